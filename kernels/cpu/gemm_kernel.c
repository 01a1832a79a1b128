/* SPDX-License-Identifier: MIT */
/* gemm_kernel: the innermost loops of gemm.h, compiled once for each instruction set.
 *
 * A tile of C, MR rows of VECS vectors, stays in registers while k goes by. */
#include "kernels/cpu/gemm.h"

#include "lib/core/vec.h"

#include <math.h>

#if defined __AVX512F__
enum { MR = 12, VECS = 2 };
#elif defined __AVX2__
enum { MR = 6, VECS = 2 };
#elif defined __aarch64__
enum { MR = 8, VECS = 3 };
#else
enum { MR = 4, VECS = 1 };
#endif

enum { NR = LANES * VECS };

static inline vf
load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void
store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* sum + a * b, rounded once, everywhere. */
static inline vf
fused(vf sum, vf a, vf b)
{
#if defined __AVX2__ || defined __aarch64__
    return plus_product(sum, a, b);
#else
    for (int i = 0; i < LANES; i++)
        sum[i] = fmaf(a[i], b[i], sum[i]);
    return sum;
#endif
}

static void
micro(size_t k, const float *a, const float *b, float *c, size_t ldc, bool add)
{
    vf sum[MR][VECS];
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < VECS; v++)
            sum[i][v] = add ? load(c + (size_t)i * ldc + v * LANES) : (vf){ 0 };
    for (size_t s = 0; s < k; s++, a += MR, b += NR) {
        vf column[VECS];
        for (int v = 0; v < VECS; v++)
            column[v] = load(b + v * LANES);
        for (int i = 0; i < MR; i++)
            for (int v = 0; v < VECS; v++)
                sum[i][v] = fused(sum[i][v], all(a[i]), column[v]);
    }
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < VECS; v++)
            store(c + (size_t)i * ldc + v * LANES, sum[i][v]);
}

/* Rows of x turned into columns of a panel, LANES at a time.  A narrow panel is stored
 * with whole vectors, each over what the one before wrote too much: there must be room
 * for a vector behind the last. */
static void
turn(float *out, const float *x, size_t line, size_t rows, size_t k, size_t unit)
{
    size_t whole = k - k % LANES;
    for (size_t s = 0; s < whole; s += LANES)
        for (size_t r = 0; r < unit; r += LANES) {
            vf v[LANES];
            for (size_t i = 0; i < LANES; i++)
                v[i] = r + i < rows ? load(x + (r + i) * line + s) : (vf){ 0 };
            transpose(v);
            for (size_t i = 0; i < LANES; i++)
                store(out + (s + i) * unit + r, v[i]);
        }
    for (size_t s = whole; s < k; s++)
        for (size_t r = 0; r < unit; r++)
            out[s * unit + r] = r < rows ? x[r * line + s] : 0;
}

const struct gemm_isa NAME(gemm) = { MR, NR, micro, turn };
