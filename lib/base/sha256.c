/* SPDX-License-Identifier: MIT */
/* sha256: see sha256.h.  The SHA-NI body needs no build flag of its own: the function
 * carries its target, and sha256_init asks the CPU. */
#include "lib/base/sha256.h"

#include "lib/base/num.h"

#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2
};

static uint32_t
ror(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static uint32_t
load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void
schedule(uint32_t w[64], const uint8_t *p)
{
    for (int i = 0; i < 16; i++)
        w[i] = load_be32(p + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15];
        uint32_t b = w[i - 2];
        w[i] = w[i - 16] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) + w[i - 7] +
               (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
    }
}

void
sha256_blocks_portable(uint32_t h[8], const uint8_t *p, size_t n)
{
    for (; n; n--, p += 64) {
        uint32_t w[64];
        uint32_t s[8];
        schedule(w, p);
        memcpy(s, h, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t e = s[4];
            uint32_t a = s[0];
            uint32_t t1 = s[7] + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) +
                          ((e & s[5]) ^ (~e & s[6])) + K[i] + w[i];
            uint32_t t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) +
                          ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += t1;
            s[0] = t1 + t2;
        }
        for (int i = 0; i < 8; i++)
            h[i] += s[i];
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

/* The instructions keep the state as ABEF and CDGH; four rounds take one message
 * vector and its round constants. */
__attribute__((target("sha,sse4.1,ssse3"))) static void
blocks_ni(uint32_t h[8], const uint8_t *p, size_t n)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i t = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)h), 0xb1);
    __m128i b = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(h + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(t, b, 8);
    __m128i cdgh = _mm_blend_epi16(b, t, 0xf0);
    for (; n; n--, p += 64) {
        __m128i save0 = abef;
        __m128i save1 = cdgh;
        __m128i m[4];
        for (int i = 0; i < 4; i++)
            m[i] = _mm_shuffle_epi8(
                _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)), swap);
        for (int i = 0; i < 16; i++) {
            __m128i w = m[i & 3];
            __m128i k = _mm_add_epi32(w, _mm_loadu_si128((const __m128i *)(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
            if (i < 12) { // w[i+4] from w[i], w[i+1], w[i+2], w[i+3]
                __m128i x = _mm_sha256msg1_epu32(w, m[(i + 1) & 3]);
                x = _mm_add_epi32(x,
                                  _mm_alignr_epi8(m[(i + 3) & 3], m[(i + 2) & 3], 4));
                m[i & 3] = _mm_sha256msg2_epu32(x, m[(i + 3) & 3]);
            }
        }
        abef = _mm_add_epi32(abef, save0);
        cdgh = _mm_add_epi32(cdgh, save1);
    }
    t = _mm_shuffle_epi32(abef, 0x1b);
    b = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)h, _mm_blend_epi16(t, b, 0xf0));
    _mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(b, t, 8));
}

static int
have_ni(void)
{
    unsigned a, b, c, d;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    return (b >> 29 & 1) && __builtin_cpu_supports("sse4.1");
}
#endif

void
sha256_init(struct sha256 *s)
{
    static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memcpy(s->h, start, sizeof start);
    s->bytes = 0;
    s->blocks = sha256_blocks_portable;
#if defined(__x86_64__)
    if (have_ni())
        s->blocks = blocks_ni;
#endif
}

void
sha256_add(struct sha256 *s, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    size_t have = s->bytes % 64;
    s->bytes += n;
    if (have) {
        size_t part = n < 64 - have ? n : 64 - have;
        memcpy(s->tail + have, p, part);
        p += part;
        n -= part;
        if (have + part < 64)
            return;
        s->blocks(s->h, s->tail, 1);
    }
    s->blocks(s->h, p, n / 64);
    if (n % 64)
        memcpy(s->tail, p + n / 64 * 64, n % 64);
}

void
sha256_end(struct sha256 *s, uint8_t digest[32])
{
    uint8_t pad[128] = { 0x80 };
    uint64_t bits = s->bytes * 8;
    size_t have = s->bytes % 64;
    size_t n = (have < 56 ? 56 : 120) - have;
    for (int i = 0; i < 8; i++)
        pad[n + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, pad, n + 8);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++)
            digest[4 * i + k] = (uint8_t)(s->h[i] >> (24 - 8 * k));
}
