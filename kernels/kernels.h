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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix (out, in): y = x W'. */
struct weight {
    enum dtype dtype;      // f32, bf16, f16 or nvfp4
    const void *values;    // nvfp4: codes
    const uint8_t *scales; // nvfp4
    float scale2;          // nvfp4: multiplier
    size_t out, in;
};

/* Heads of a layer, and which tokens see each other: token t sees first[t] .. t. */
struct heads {
    size_t tokens, query, kv, dim;
    const int32_t *first; // (tokens)
};

struct kernels {
    const char *name;
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

    /* Cross-entropy of rows of logits, which become scale * d loss / d logits; rows of
     * label -1 have loss 0 and gradient 0. */
    void (*cross_entropy)(struct kernels *k, float *loss, float *logits,
                          const int32_t *label, size_t rows, size_t vocab, float scale);
};

/* The CPU; isa: at most this one, threads: how many. */
struct kernels *kernels_cpu(enum isa isa, unsigned threads, struct err *err);

#endif
