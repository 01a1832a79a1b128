/* SPDX-License-Identifier: MIT */
/* vec: vectors of LANES floats as wide as the instruction set that a source is compiled
 * for, by GCC's vector types and, where those lack an operation, intrinsics.
 *
 * Only for sources that are compiled once for each set (ISA_SRCS in the Makefile): they
 * name what they define NAME(x), which becomes x_avx2, x_avx512, x_neon ...
 */
#ifndef NIBBLE_BASE_VEC_H
#define NIBBLE_BASE_VEC_H

#include <stdint.h>
#include <string.h>

#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define NAME(x)      PASTE(PASTE(x, _), ISA)

#if defined __AVX512F__
#include <immintrin.h>
enum { LANES = 16 };
#elif defined __AVX2__
#include <immintrin.h>
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
#if defined __aarch64__
#include <arm_neon.h>
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));

static inline vf
all(float x)
{
    return x - (vf){ 0 };
}

/* At any alignment.  Not into elements of an array of vectors: compilers copy the
 * halves, and loading the whole waits for both stores. */
static inline vf
load(const void *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void
store(void *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* pre: no NaN. */
static inline vf
least_of(vf a, vf b)
{
#if defined __AVX512F__
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined __aarch64__
    return (vf)vminq_f32((float32x4_t)a, (float32x4_t)b);
#else
    vi m = a < b;
    return (vf)((m & (vi)a) | (~m & (vi)b));
#endif
}

static inline vf
most_of(vf a, vf b)
{
#if defined __AVX512F__
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined __aarch64__
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    vi m = a > b;
    return (vf)((m & (vi)a) | (~m & (vi)b));
#endif
}

/* a + b * c and a - b * c, fused where that is one instruction. */
static inline vf
plus_product(vf a, vf b, vf c)
{
#if defined __AVX512F__
    return (vf)_mm512_fmadd_ps((__m512)b, (__m512)c, (__m512)a);
#elif defined __AVX2__
    return (vf)_mm256_fmadd_ps((__m256)b, (__m256)c, (__m256)a);
#elif defined __aarch64__
    return (vf)vfmaq_f32((float32x4_t)a, (float32x4_t)b, (float32x4_t)c);
#else
    return a + b * c;
#endif
}

static inline vf
minus_product(vf a, vf b, vf c)
{
#if defined __AVX512F__
    return (vf)_mm512_fnmadd_ps((__m512)b, (__m512)c, (__m512)a);
#elif defined __AVX2__
    return (vf)_mm256_fnmadd_ps((__m256)b, (__m256)c, (__m256)a);
#elif defined __aarch64__
    return (vf)vfmsq_f32((float32x4_t)a, (float32x4_t)b, (float32x4_t)c);
#else
    return a - b * c;
#endif
}

static inline vf
choose_f(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

static inline vi
choose_i(vi mask, vi yes, vi no)
{
    return (mask & yes) | (~mask & no);
}

static inline vf
magnitude(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}

/* ---- transposing ------------------------------- */

#if defined __clang__ || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){ __VA_ARGS__ })
#endif

/* Interleave the lower halves of a and b, or the upper halves. */
static inline vf
zip_low(vf a, vf b)
{
#if defined __AVX512F__
    return SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif defined __AVX2__
    return SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return SHUFFLE(a, b, 0, 4, 1, 5);
#endif
}

static inline vf
zip_high(vf a, vf b)
{
#if defined __AVX512F__
    return SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined __AVX2__
    return SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return SHUFFLE(a, b, 2, 6, 3, 7);
#endif
}

#if defined __AVX512F__
/* A square of 16 x 16: within quarters of vectors, which is cheaper than zips, then
 * those quarters. */
static inline void
transpose(vf *v)
{
    __m512 t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps((__m512)v[i], (__m512)v[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps((__m512)v[i], (__m512)v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) {
            __m512d a = (__m512d)t[i + k], b = (__m512d)t[i + k + 2];
            u[i + 2 * k] = (__m512)_mm512_unpacklo_pd(a, b);
            u[i + 2 * k + 1] = (__m512)_mm512_unpackhi_pd(a, b);
        }
    for (int i = 0; i < 16; i += 8)
        for (int k = 0; k < 4; k++) {
            t[i + k] = _mm512_shuffle_f32x4(u[i + k], u[i + k + 4], 0x88);
            t[i + k + 4] = _mm512_shuffle_f32x4(u[i + k], u[i + k + 4], 0xdd);
        }
    for (int k = 0; k < 8; k++) {
        v[k] = (vf)_mm512_shuffle_f32x4(t[k], t[k + 8], 0x88);
        v[k + 8] = (vf)_mm512_shuffle_f32x4(t[k], t[k + 8], 0xdd);
    }
}
#elif defined __AVX2__
/* The same of 8 x 8 within halves. */
static inline void
transpose(vf *v)
{
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps((__m256)v[i], (__m256)v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps((__m256)v[i], (__m256)v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            __m256d a = (__m256d)t[i + k], b = (__m256d)t[i + k + 2];
            u[i + 2 * k] = (__m256)_mm256_unpacklo_pd(a, b);
            u[i + 2 * k + 1] = (__m256)_mm256_unpackhi_pd(a, b);
        }
    for (int k = 0; k < 4; k++) {
        v[k] = (vf)_mm256_permute2f128_ps(u[k], u[k + 4], 0x20);
        v[k + 4] = (vf)_mm256_permute2f128_ps(u[k], u[k + 4], 0x31);
    }
}
#else
/* A square of LANES x LANES: log2(LANES) rounds of zips. */
static inline void
transpose(vf *v)
{
    for (int round = 1; round < LANES; round *= 2) {
        vf t[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            t[2 * i] = zip_low(v[i], v[i + LANES / 2]);
            t[2 * i + 1] = zip_high(v[i], v[i + LANES / 2]);
        }
        memcpy(v, t, sizeof t);
    }
}
#endif

#endif
