/* SPDX-License-Identifier: MIT */
/* kernels: the one device interface.
 *
 * The model is written once against it.  All pointers that an operation takes are device
 * memory of that device; operations are in order, and only `download` waits.  Activations
 * are f32, (tokens, width) row by row.  A weight is an object with a format: a product
 * takes it as it is stored.
 *
 * An operation that fails keeps its error; later ones do nothing, and `download` tells.
 * For one device the result is a function of the arguments alone: no number of threads,
 * no memory, no order of arrival changes a bit.
 */
#ifndef NIBBLE_KERNELS_KERNELS_H
#define NIBBLE_KERNELS_KERNELS_H

#include "lib/core/dtype.h"
#include "lib/core/err.h"
#include "lib/core/isa.h"
#include "lib/nvfp4/quant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix (out, in): y = x W'. */
struct weight {
    enum dtype dtype;      // f32, bf16, f16 or nvfp4
    const void *values;    // nvfp4: codes
    const uint8_t *scales; // nvfp4
    const float *scale2;   // nvfp4: (1) multiplier; NULL: 1
    size_t out, in;
};

/* Where the NVFP4 form of a matrix goes. */
struct packed {
    uint8_t *codes, *scales;
    float *scale2; // (1)
};

/* Heads of a layer, and which tokens see each other.  There are keys of `past` tokens and
 * then those of these tokens: token t sees keys first[t] .. past + t. */
struct heads {
    size_t tokens, past, query, kv, dim;
    const int32_t *first; // (tokens)
};

/* Optimizer state of a tensor, numerics.md 7.5.  8-bit moments are in groups of 32 from
 * the tensor's first element, with a bf16 scale each. */
enum moments { MOMENTS_F32, MOMENTS_BF16, MOMENTS_INT8 };
struct adam_state {
    void *master;
    enum dtype dtype; // of the master: f32, or bf16 with stochastic rounding
    enum moments moments;
    void *m, *v;                 // f32; bf16; i8 and u8
    uint16_t *m_scale, *v_scale; // int8
};
/* What an update knows besides: the same for all tensors but row and decay. */
struct adam_step {
    float lr, beta1, beta2, eps, decay;
    float rest1, rest2;       // 1 - beta^t
    float clip;               // gradients are multiplied by it
    uint32_t seed, step, row; // of its random numbers; row of the tensor table
};

/* What memory is for. */
enum part {
    PART_MASTER,
    PART_MOMENTS,
    PART_GRADIENTS,
    PART_WEIGHTS, // as products take them, if that is not the master
    PART_KEPT,    // activations that the way back needs
    PART_WORK,    // other activations
    PART_LOGITS,
    PART_CACHE, // keys and values of tokens before
    PART_OTHER,
    PARTS
};

/* What was asked for: the device counts, `most` is the peak of all together. */
struct ledger {
    uint64_t now[PARTS], peak[PARTS], all, most;
    double flops; // of products and attention
};

struct kernels {
    const char *name;
    enum part part; // of what is allocated next; set by the caller
    struct ledger ledger;
    void (*close)(struct kernels *k);

    void *(*alloc)(struct kernels *k, size_t bytes); // zeros; NULL: the error is kept
    void (*release)(struct kernels *k, void *p);
    void (*upload)(struct kernels *k, void *to, const void *from, size_t bytes);
    void (*copy)(struct kernels *k, void *to, const void *from, size_t bytes);
    int (*download)(struct kernels *k, void *to, const void *from, size_t bytes);

    /* y (+)= x W', dx (+)= dy W, dw += dy' x. */
    void (*linear)(struct kernels *k, float *y, const float *x, const struct weight *w,
                   size_t tokens, bool add);
    void (*linear_dx)(struct kernels *k, float *dx, const float *dy,
                      const struct weight *w, size_t tokens, bool add);
    void (*linear_dw)(struct kernels *k, float *dw, const float *dy, const float *x,
                      size_t out, size_t in, size_t tokens);

    void (*embed)(struct kernels *k, float *y, const struct weight *w,
                  const int32_t *ids, size_t tokens);
    /* dw[ids[t]] += dy[t], in the order of t. */
    void (*embed_dw)(struct kernels *k, float *dw, const float *dy, const int32_t *ids,
                     size_t tokens, size_t in);

    /* RMSNorm of rows of n; scale: (rows), 1 / sqrt(mean + eps), for the way back. */
    void (*norm)(struct kernels *k, float *y, float *scale, const float *x,
                 const float *gain, size_t rows, size_t n, float eps);
    /* dx (+)= ..., dgain += ...; dgain may be NULL. */
    void (*norm_dx)(struct kernels *k, float *dx, float *dgain, const float *dy,
                    const float *x, const float *scale, const float *gain, size_t rows,
                    size_t n, bool add);

    /* Rotate-half in place; table: (positions, dim) of dim/2 cosines and dim/2 sines.
     * back: by the negative angle. */
    void (*rope)(struct kernels *k, float *x, const float *table,
                 const int32_t *position, size_t tokens, size_t heads, size_t dim,
                 bool back);

    /* q, out: (tokens, query, dim); k, v: (tokens, kv, dim); lse: (query, tokens). */
    void (*attention)(struct kernels *k, float *out, float *lse, const float *q,
                      const float *key, const float *value, const struct heads *h);
    /* dq = ..., dkey = ..., dvalue = ... */
    void (*attention_dx)(struct kernels *k, float *dq, float *dkey, float *dvalue,
                         const float *dout, const float *out, const float *lse,
                         const float *q, const float *key, const float *value,
                         const struct heads *h);

    /* y = silu(gate) * up. */
    void (*swiglu)(struct kernels *k, float *y, const float *gate, const float *up,
                   size_t n);
    /* gate and up become their own gradients. */
    void (*swiglu_dx)(struct kernels *k, float *gate, float *up, const float *dy,
                      size_t n);

    void (*add)(struct kernels *k, float *y, const float *x, size_t n);
    void (*zero)(struct kernels *k, void *p, size_t bytes);
    /* Rows of n: y[r] = x[index[r]], and the way back: y[index[r]] = x[r]. */
    void (*gather)(struct kernels *k, float *y, const float *x, const int32_t *index,
                   size_t rows, size_t n);
    void (*scatter)(struct kernels *k, float *y, const float *x, const int32_t *index,
                    size_t rows, size_t n);
    /* f32 from f32, bf16 or f16. */
    void (*convert)(struct kernels *k, float *y, const void *x, enum dtype dtype,
                    size_t n);

    /* Cross-entropy of rows of logits, which become scale * d loss / d logits; rows of
     * label -1 have loss 0 and gradient 0. */
    void (*cross_entropy)(struct kernels *k, float *loss, float *logits,
                          const int32_t *label, size_t rows, size_t vocab, float scale);

    /* loss[r]: mean |x[r] - e|, e the row of w that the label says; dx = scale / n *
     * sign(x - e), and dw, if not NULL, grows by the same of its rows, negative. */
    void (*l1)(struct kernels *k, float *loss, float *dx, float *dw, const float *x,
               const struct weight *w, const int32_t *label, size_t rows, float scale);

    /* Largest magnitude of f32, bf16 or f16 values; NaN if one is not finite. */
    void (*amax)(struct kernels *k, float *out, const void *values, enum dtype dtype,
                 size_t n);
    /* The NVFP4 form of a matrix, whose tensor scale is that of the largest of n amax:
     * the bytes of nvfp4_quant.  Not finite: scale2 is NaN. */
    void (*quantize)(struct kernels *k, const struct packed *to, const void *values,
                     enum dtype dtype, size_t rows, size_t cols, const float *amax,
                     size_t n, const struct quant_spec *spec);
    void (*sum_squares)(struct kernels *k, double *out, const float *x, size_t n);
    /* AdamW of elements first .. first + n - 1 of a tensor; first is a multiple of 32.
     * s and grad are those of the whole tensor. */
    void (*adamw)(struct kernels *k, const struct adam_state *s, const float *grad,
                  uint64_t first, size_t n, const struct adam_step *a);
};

/* The CPU; isa: at most this one, threads: how many. */
struct kernels *kernels_cpu(enum isa isa, unsigned threads, struct err *err);
/* A device that computes nothing and has any amount of memory: what a run on `name` would
 * need.  Its memory cannot be looked at; download gives zeros. */
struct kernels *kernels_dry(const char *name, struct err *err);

/* For implementations: count an allocation, or with a negative size its end. */
void kernels_count(struct kernels *k, enum part part, int64_t bytes);

#endif
