/* SPDX-License-Identifier: MIT */
/* gemm: C = A B or C += A B in f32, the same bits everywhere.
 *
 * Each element of C has one accumulator, to which its products are added in the order of k
 * with one fused multiply-add each.  So neither the number of threads, nor the blocking,
 * nor the width of the vectors can change a bit, and machines with AVX2, AVX-512 and NEON
 * agree.  (OpenBLAS, oneDNN and MKL promise none of this.)
 *
 * Operands are f32, bf16 or f16 arrays with two strides, so all transposes are the same
 * call; packing reorders them and converts them to f32.  NVFP4 may be an operand, too, as
 * whole rows without gaps, transposed or not; E4M3 as in kernels.h, in products of f32.
 *
 * gemm_bf16_of: the same with operands rounded to bf16.
 *
 * gemv is the product of a few rows of x with a weight, which is read once and not packed;
 * its sums have the same order, so a row of x gives the same bits alone, with a few or
 * with many.
 */
#ifndef NIBBLE_KERNELS_CPU_GEMM_H
#define NIBBLE_KERNELS_CPU_GEMM_H

#include "kernels/kernels.h"
#include "lib/base/par.h"

/* Element (i, k) is element i * row_stride + k * col_stride of data. */
struct operand {
    const void *data;
    enum dtype dtype; // f32, bf16, f16, nvfp4 or f8_e4m3
    size_t row_stride, col_stride;
    const uint8_t *scales; // nvfp4
    float scale2;          // nvfp4, f8_e4m3
};
struct operand gemm_operand(const struct matrix *m, bool transposed);

struct gemm {
    size_t m, n, k;
    struct operand a, b; // a: m x k; b: k x n
    float *c;            // (m, ldc)
    size_t ldc;
    bool add; // C += A B
};

/* The kernels of an instruction set, and the form of the panels that they multiply. */
struct gemm_isa;
/* Operands are f32. */
const struct gemm_isa *gemm_of(enum isa isa);
/* Operands are rounded to bf16, nearest even.  With a and b of bf16,
 *
 *     sum = a * b + sum        in the order of k, each rounded once to f32,
 *
 * where denormals, operands as well as results, count as 0 of their sign.  Values of NVFP4
 * are used without their tensor scale, which makes them exact in bf16; the other operand is
 * multiplied by it, in f32, before it is rounded.
 *
 * That is how VDPBF16PS of AVX512_BF16 is defined for a pair of products, the one in the
 * upper halves first: the earlier k is put there.  Elsewhere, and where a test finds that
 * the instruction differs, panels are floats that were rounded, and the processor flushes
 * denormals (flush.h).  A result is a denormal or not after rounding; ARM decides before,
 * which shows only in sums that are less than 2^-126 by less than 2^-150.  NaN is NaN,
 * whatever its bits. */
const struct gemm_isa *gemm_bf16_of(enum isa isa);
/* Whether `isa` has that instruction here, and it gives these bits. */
bool gemm_has_pairs(enum isa isa);

/* Bytes of workspace for gemm_run, whatever the number of threads. */
size_t gemm_workspace(size_t m, size_t n, size_t k);
/* workspace: aligned to 64 bytes.  0, or -1 with *err filled. */
int gemm_run(const struct gemm *g, const struct gemm_isa *isa, struct par *pool,
             float *workspace, struct err *err);

/* A few rows of x with a weight. */
struct gemv {
    float *y;       // (tokens, w->rows)
    const float *x; // (tokens, w->cols)
    const struct matrix *w;
    size_t tokens;
    bool add;  // y += ...
    bool bf16; // as gemm_bf16_of; x was rounded by gemv_round_x
};

enum { GEMV_MAX = 32 }; // tokens
/* Up to how many tokens gemv is faster than gemm; GEMV_MAX at most. */
size_t gemv_max(enum isa isa, const struct matrix *w, bool bf16);
/* out = x, times the tensor scale of w, rounded to bf16: for gemv. */
void gemv_round_x(float *out, const float *x, const struct matrix *w, size_t tokens,
                  enum isa isa);
int gemv_run(const struct gemv *g, enum isa isa, struct par *pool, struct err *err);

/* ---- private to kernels/cpu -------------------------------------- */

/* c[i * ldc + j] (+)= sum of a[k * MR + i] * b[k * NR + j], i < MR, j < NR. */
typedef void gemm_micro_fn(size_t k, const float *a, const float *b, float *c,
                           size_t ldc, bool add);
/* Packs a panel: out[s * unit + r] = x[r * stride + s] for r < rows and s < k, 0 for
 * rows <= r < unit; may write a few floats behind the end. */
typedef void gemm_pack_fn(float *out, const float *x, size_t stride, size_t rows,
                          size_t k, size_t unit);
/* out = elements at .. at + n - 1 of x, as floats; nvfp4: whole blocks. */
typedef void gemm_read_fn(float *out, const struct operand *x, size_t at, size_t n);
/* out = x * factor, rounded to bf16.  Only while denormals are flushed. */
typedef void gemm_round_fn(float *out, const float *x, size_t n, float factor);
/* The same in place for a panel of A (left; k times MR) or B (k times NR), and the form
 * that micro needs; may read a few floats behind the end. */
typedef void gemm_round_panel_fn(float *panel, size_t k, bool left, float factor);
struct gemm_isa {
    size_t mr, nr;
    gemm_micro_fn *micro;
    gemm_pack_fn *pack;
    gemm_read_fn *read;
    gemm_round_fn *round;
    gemm_round_panel_fn *round_panel; // NULL: operands stay f32
};
/* A packed panel becomes what micro needs; nothing where operands stay f32. */
void gemm_round_panel(const struct gemm_isa *isa, float *panel, size_t k, bool left,
                      float factor);
/* c (+)= A B of panels: (m, k) in those of mr rows, (k, n) in those of nr columns. */
void gemm_panels(const struct gemm_isa *isa, const float *a, const float *b, float *c,
                 size_t ldc, size_t m, size_t n, size_t k, bool add);
extern const struct gemm_isa gemm_scalar, gemm_bf16_scalar;

/* y of some of the weight's rows. */
typedef void gemv_fn(const struct gemv *g, size_t row, size_t rows);
extern gemv_fn gemv_scalar;

#if defined __x86_64__
extern const struct gemm_isa gemm_avx2, gemm_bf16_avx2, gemm_avx512, gemm_bf16_avx512,
    gemm_pairs_avx512;
extern gemv_fn gemv_avx2, gemv_avx512;
#elif defined __aarch64__
extern const struct gemm_isa gemm_neon, gemm_bf16_neon;
extern gemv_fn gemv_neon;
#endif

#endif
