/* SPDX-License-Identifier: MIT */
/* adamw_kernel: see adamw.h.
 *
 * BLOCK elements at a time go through arrays in the L1 cache; behind the end of a tensor a
 * block is padded with 0, which is not written back.  Loops without square roots are plain:
 * compilers vectorize them. */
#include "kernels/cpu/adamw.h"

#include "lib/base/num.h"
#include "lib/base/philox.h"
#include "lib/base/vec.h"

#include <math.h>

enum { GROUP = 32, BLOCK = 128, COUNTERS = BLOCK / 8 };

/* ---- random numbers ------------------------------------------------------------------ */

/* Upper and lower halves of the products of 32-bit integers. */
static inline void
multiply(vu *high, vu *low, vu a, uint32_t b)
{
#if defined __AVX512F__
    __m512i factor = _mm512_set1_epi32((int)b);
    __m512i even = _mm512_mul_epu32((__m512i)a, factor);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
    *high = (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low = a * b;
#elif defined __AVX2__
    __m256i factor = _mm256_set1_epi32((int)b);
    __m256i even = _mm256_mul_epu32((__m256i)a, factor);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
    *high = (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low = a * b;
#else
    *high = *low = (vu){ 0 };
    for (int i = 0; i < LANES; i++) {
        uint64_t p = (uint64_t)a[i] * b;
        (*high)[i] = (uint32_t)(p >> 32);
        (*low)[i] = (uint32_t)p;
    }
#endif
}

/* philox4x32 of LANES counters, a lane each. */
static inline void
philox(vu c[4], const uint32_t key[2])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        vu high0, low0, high1, low1;
        multiply(&high0, &low0, c[0], 0xd2511f53);
        multiply(&high1, &low1, c[2], 0xcd9e8d57);
        c[0] = high1 ^ c[1] ^ k0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ k1;
        c[3] = low0;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
}

/* 16 random bits for each of the elements from `first` on: a counter gives those of eight
 * elements, a word those of two, the earlier in its low half. */
static void
random_bits(uint32_t bits[BLOCK], uint64_t first, const struct adam_step *a,
            uint32_t use)
{
    const uint32_t key[2] = { a->seed, a->step };
    uint32_t word[BLOCK / 2];
    for (unsigned at = 0; at < COUNTERS; at += LANES) {
        uint32_t low[LANES], high[LANES];
        for (unsigned l = 0; l < LANES; l++) {
            uint64_t index = first / 8 + at + l;
            low[l] = (uint32_t)index;
            high[l] = (uint32_t)(index >> 32);
        }
        vu c[4] = { { 0 }, { 0 }, (vu){ 0 } + a->row, (vu){ 0 } + use };
        memcpy(&c[0], low, sizeof low);
        memcpy(&c[1], high, sizeof high);
        philox(c, key);
        vf p = zip_low((vf)c[0], (vf)c[2]), q = zip_low((vf)c[1], (vf)c[3]);
        vf s = zip_high((vf)c[0], (vf)c[2]), t = zip_high((vf)c[1], (vf)c[3]);
        const vf transposed[4] = { zip_low(p, q), zip_high(p, q), zip_low(s, t),
                                   zip_high(s, t) };
        memcpy(word + (size_t)at * 4, transposed, sizeof transposed);
    }
    for (int i = 0; i < BLOCK / 2; i++) {
        bits[2 * i] = word[i] & 0xffff;
        bits[2 * i + 1] = word[i] >> 16;
    }
}

/* ---- bits of floats -------------------------------------------------------------------- */

static inline float
float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { INFINITE = 0x7f800000, MAGNITUDE = 0x7fffffff, NAN_BF16 = 0x7fc0 };

/* 0 <= x < 2^23, rounded to an integer. */
static inline int32_t
nearest(float x)
{
    return (int32_t)num_bits_f32(x + 0x1p23F) - 0x4b000000;
}

static inline vf
vector_sqrt(vf x)
{
#if defined __AVX512F__
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined __AVX2__
    return (vf)_mm256_sqrt_ps((__m256)x);
#elif defined __aarch64__
    return (vf)vsqrtq_f32((float32x4_t)x);
#else
    for (int i = 0; i < LANES; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* ---- values in memory --------------------------------------------------- */

static void
load_bf16(float out[BLOCK], const uint16_t *in)
{
    for (int i = 0; i < BLOCK; i++)
        out[i] = float_of((uint32_t)in[i] << 16);
}

static inline uint32_t
stochastic(uint32_t bits, uint32_t random)
{
    uint32_t size = bits & MAGNITUDE, bf16 = (bits + random) >> 16;
    if ((size + random) >> 16 >= INFINITE >> 16)
        bf16 = bits >> 16;
    return size > INFINITE ? NAN_BF16 : bf16;
}

static void
store_bf16(uint16_t *out, const float x[BLOCK], const uint32_t random[BLOCK])
{
    for (int i = 0; i < BLOCK; i++)
        out[i] = (uint16_t)stochastic(num_bits_f32(x[i]), random[i]);
}

/* bf16 of the largest magnitude, rounded up but not to infinity. */
static uint16_t
scale_of(const float x[GROUP])
{
    uint32_t max = 0;
    for (int i = 0; i < GROUP; i++) {
        uint32_t size = num_bits_f32(x[i]) & MAGNITUDE;
        max = size > max ? size : max;
    }
    if (max >= INFINITE)
        return NAN_BF16;
    max = (max + 0xffff) >> 16;
    return (uint16_t)(max < INFINITE >> 16 ? max : max - 1);
}

/* Scale 0 or NaN: all codes are 0. */
static bool
is_degenerate(uint16_t scale)
{
    return scale == 0 || scale == NAN_BF16;
}

static void
load_m8(float m[GROUP], const int8_t *q, uint16_t scale)
{
    float s = float_of((uint32_t)scale << 16);
    for (int i = 0; i < GROUP; i++) {
        int code = (int)q[i];
        m[i] = s * (float)code / (float)(254 - (code < 0 ? -code : code));
    }
}

static uint16_t
store_m8(int8_t *q, const float m[GROUP], const uint32_t random[GROUP])
{
    uint16_t scale = scale_of(m);
    float s = float_of((uint32_t)scale << 16);
    memset(q, 0, GROUP);
    for (int i = 0; i < GROUP && !is_degenerate(scale); i++) {
        uint32_t bits = num_bits_f32(m[i]);
        float size = float_of(bits & MAGNITUDE);
        int32_t sign = -(int32_t)(bits >> 31);
        // m exceeds its scale only above the largest bf16.
        int32_t fixed = nearest(size / (s + size) * 0x1.fcp23F);
        fixed = fixed > 127 << 16 ? 127 << 16 : fixed;
        q[i] = (int8_t)((((fixed ^ sign) - sign) + (int32_t)random[i]) >> 16);
    }
    return scale;
}

static void
load_v8(float v[GROUP], const uint8_t *q, uint16_t scale)
{
    float unit = float_of((uint32_t)scale << 16) / 255;
    for (int i = 0; i < GROUP; i++) {
        float r = (float)q[i] * unit;
        uint32_t bits = num_bits_f32(r * r);
        v[i] = float_of(bits | (q[i] && !bits));
    }
}

/* r: square roots of v, which are normal or 0. */
static uint16_t
store_v8(uint8_t *q, const float r[GROUP])
{
    uint16_t scale = scale_of(r);
    float inverse = 255 / float_of((uint32_t)scale << 16);
    memset(q, 0, GROUP);
    for (int i = 0; i < GROUP && !is_degenerate(scale); i++) {
        int32_t code = nearest(r[i] * inverse);
        code = code < 1 ? 1 : code > 255 ? 255 : code;
        q[i] = (uint8_t)(num_bits_f32(r[i]) ? code : 0);
    }
    return scale;
}

/* ---- a block ---------------------------------------------------------------------------- */

struct block {
    float w[BLOCK], g[BLOCK], m[BLOCK], v[BLOCK];
    uint32_t random[BLOCK];
};

static void
update(struct block *b, const struct adam_step *a)
{
    float clip = *a->clip;
    vf one_minus_beta1 = all(1 - a->beta1), one_minus_beta2 = all(1 - a->beta2);
    for (int i = 0; i < BLOCK; i += LANES) {
        vf g = clip * load(b->g + i), w = load(b->w + i);
        vf m = a->beta1 * load(b->m + i) + one_minus_beta1 * g;
        vf v = a->beta2 * load(b->v + i) + one_minus_beta2 * (g * g);
        vf u =
            m / a->bias_correction1 / (vector_sqrt(v / a->bias_correction2) + a->eps);
        store(b->m + i, m);
        store(b->v + i, v);
        store(b->w + i, w - a->lr * (u + a->decay * w));
    }
}

static void
load_moments(struct block *b, const struct adam_state *s, uint64_t at)
{
    switch (s->moments) {
    case MOMENTS_F32:
        memcpy(b->m, (const float *)s->m + at, sizeof b->m);
        memcpy(b->v, (const float *)s->v + at, sizeof b->v);
        break;
    case MOMENTS_BF16:
        load_bf16(b->m, (const uint16_t *)s->m + at);
        load_bf16(b->v, (const uint16_t *)s->v + at);
        break;
    case MOMENTS_INT8:
        for (size_t i = 0; i < BLOCK; i += GROUP) {
            uint64_t group = (at + i) / GROUP;
            load_m8(b->m + i, (const int8_t *)s->m + at + i, s->m_scale[group]);
            load_v8(b->v + i, (const uint8_t *)s->v + at + i, s->v_scale[group]);
        }
        break;
    }
}

static void
store_m8_v8(struct block *b, const struct adam_state *s, uint64_t at)
{
    for (size_t i = 0; i < BLOCK; i += LANES)
        store(b->v + i, vector_sqrt(load(b->v + i)));
    for (size_t i = 0; i < BLOCK; i += GROUP) {
        uint64_t group = (at + i) / GROUP;
        s->m_scale[group] = store_m8((int8_t *)s->m + at + i, b->m + i, b->random + i);
        s->v_scale[group] = store_v8((uint8_t *)s->v + at + i, b->v + i);
    }
}

/* at: index of the block in the arrays of s; element: in the tensor. */
static void
store_moments(struct block *b, const struct adam_state *s, uint64_t at,
              uint64_t element, const struct adam_step *a)
{
    if (s->moments == MOMENTS_F32) {
        memcpy((float *)s->m + at, b->m, sizeof b->m);
        memcpy((float *)s->v + at, b->v, sizeof b->v);
        return;
    }
    random_bits(b->random, element, a, PHILOX_MOMENT);
    if (s->moments == MOMENTS_INT8) {
        store_m8_v8(b, s, at);
        return;
    }
    store_bf16((uint16_t *)s->m + at, b->m, b->random);
    random_bits(b->random, element, a, PHILOX_MOMENT2);
    store_bf16((uint16_t *)s->v + at, b->v, b->random);
}

static void
run_block(const struct adam_state *s, const float *grad, uint64_t at, uint64_t element,
          const struct adam_step *a)
{
    struct block b;
    bool bf16 = s->dtype == DT_BF16;
    memcpy(b.g, grad + at, sizeof b.g);
    if (bf16)
        load_bf16(b.w, (const uint16_t *)s->master + at);
    else
        memcpy(b.w, (const float *)s->master + at, sizeof b.w);
    load_moments(&b, s, at);
    update(&b, a);
    store_moments(&b, s, at, element, a);
    if (bf16) {
        random_bits(b.random, element, a, PHILOX_MASTER);
        store_bf16((uint16_t *)s->master + at, b.w, b.random);
    } else {
        memcpy((float *)s->master + at, b.w, sizeof b.w);
    }
}

/* ---- the end of a tensor ------------------------------------------------------------------ */

/* State and gradients of a block, for fewer elements than a block has. */
struct padded {
    float master[BLOCK], m[BLOCK], v[BLOCK], grad[BLOCK]; // of any type
    uint16_t m_scale[BLOCK / GROUP], v_scale[BLOCK / GROUP];
};

/* n elements to the padded block, or back. */
static void
copy(bool write, void *padded, void *state, uint64_t at, size_t n, size_t size)
{
    void *p = (char *)state + at * size;
    memcpy(write ? p : padded, write ? padded : p, n * size);
}

static void
copy_state(bool write, struct padded *x, const struct adam_state *s, uint64_t at,
           size_t n)
{
    static const size_t sizes[] = {
        [MOMENTS_F32] = 4, [MOMENTS_BF16] = 2, [MOMENTS_INT8] = 1
    };
    size_t size = sizes[s->moments], groups = (n + GROUP - 1) / GROUP;
    copy(write, x->master, s->master, at, n, s->dtype == DT_BF16 ? 2 : 4);
    copy(write, x->m, s->m, at, n, size);
    copy(write, x->v, s->v, at, n, size);
    if (s->moments == MOMENTS_INT8) {
        copy(write, x->m_scale, s->m_scale, at / GROUP, groups, sizeof *x->m_scale);
        copy(write, x->v_scale, s->v_scale, at / GROUP, groups, sizeof *x->v_scale);
    }
}

static void
run_end(const struct adam_state *s, const float *grad, uint64_t at, uint64_t element,
        size_t n, const struct adam_step *a)
{
    struct padded x = { 0 };
    struct adam_state padded = { x.master, s->dtype,  s->moments, x.m,
                                 x.v,      x.m_scale, x.v_scale,  0 };
    memcpy(x.grad, grad + at, n * sizeof *grad);
    copy_state(false, &x, s, at, n);
    run_block(&padded, x.grad, 0, element, a);
    copy_state(true, &x, s, at, n);
}

void
NAME(adamw)(const struct adam_state *s, const float *grad, uint64_t first, size_t n,
            const struct adam_step *a)
{
    uint64_t at = first - s->first; // in the arrays
    size_t whole = n - n % BLOCK;
    for (size_t i = 0; i < whole; i += BLOCK)
        run_block(s, grad, at + i, first + i, a);
    if (whole < n)
        run_end(s, grad, at + whole, first + whole, n - whole, a);
}
