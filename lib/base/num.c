/* SPDX-License-Identifier: MIT */
/* num: see num.h. */
#include "lib/base/num.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool
num_u64(uint64_t *out, const char *text)
{
    uint64_t v = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        if (__builtin_mul_overflow(v, 10U, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*text - '0'), &v))
            return false;
    }
    *out = v;
    return true;
}

bool
num_double(double *out, const char *text)
{
    // strtod alone takes white space, "inf", "nan" and 0x: allow decimal forms only.
    if (!*text || text[strspn(text, "0123456789+-.eE")] != '\0')
        return false;
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (*end != '\0' || !isfinite(v) || (errno == ERANGE && fabs(v) > 1))
        return false;
    *out = v;
    return true;
}

/* The power of 2 that a suffix stands for, 0 without one. */
static unsigned
shift_of(char suffix)
{
    static const char suffixes[] = "KMGT";
    const char *at = suffix ? strchr(suffixes, suffix) : NULL;
    return at ? 10 * (unsigned)(at - suffixes + 1) : 0;
}

/* text without a suffix, into digits; its shift in *shift. */
static bool
cut_suffix(char digits[32], unsigned *shift, const char *text)
{
    size_t n = strlen(text);
    if (n == 0 || n >= 32)
        return false;
    *shift = shift_of(text[n - 1]);
    memcpy(digits, text, n + 1);
    if (*shift)
        digits[n - 1] = '\0';
    return true;
}

bool
num_bytes(uint64_t *out, const char *text)
{
    char digits[32];
    unsigned shift;
    uint64_t v;
    if (!cut_suffix(digits, &shift, text) || shift > 30 || !num_u64(&v, digits) ||
        v > UINT64_MAX >> shift)
        return false;
    *out = v << shift;
    return true;
}

bool
num_gb(uint64_t *out, const char *text)
{
    char digits[32];
    unsigned shift;
    double v;
    if (!cut_suffix(digits, &shift, text) || !num_double(&v, digits) || v < 0)
        return false;
    double bytes = ldexp(v, shift ? (int)shift : 30);
    if (bytes >= 0x1p62)
        *out = 1ULL << 62;
    else
        *out = bytes > 0 && bytes < 1 ? 1 : (uint64_t)bytes;
    return true;
}

float
num_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t exp = bits >> 10 & 31;
    uint32_t man = bits & 1023;
    uint32_t wide;
    float f;
    if (exp == 31) {
        wide = sign | 0x7f800000 | man << 13;
    } else if (exp) {
        wide = sign | (exp + 112) << 23 | man << 13;
    } else { // zero or subnormal: man * 2^-24, exact in f32
        f = (float)man * 0x1p-24f;
        memcpy(&wide, &f, sizeof wide);
        wide |= sign;
    }
    memcpy(&f, &wide, sizeof f);
    return f;
}

uint16_t
num_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t mag = bits & 0x7fffffff;
    if (mag > 0x7f800000) // NaN: keep it one, and the upper payload
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x1ff));
    if (mag >= 0x477ff000) // 65520 and more rounds to infinity
        return (uint16_t)(sign | 0x7c00);
    if (mag >= 0x38800000) { // normal: round the 13 low bits to even
        uint32_t r = mag - (112U << 23);
        r += 0xfff + (r >> 13 & 1);
        return (uint16_t)(sign | r >> 13);
    }
    if (mag < 0x33000000) // below 2^-25: zero
        return (uint16_t)sign;
    // subnormal: man is 24 bits; shift so that one unit is 2^-24, round to even
    uint32_t man = (mag & 0x7fffff) | 0x800000;
    uint32_t shift = 126 - (mag >> 23);
    uint32_t half = 1U << (shift - 1);
    uint32_t rest = man & ((1U << shift) - 1);
    uint32_t r = man >> shift;
    r += rest > half || (rest == half && (r & 1));
    return (uint16_t)(sign | r);
}

uint16_t
num_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
