/* SPDX-License-Identifier: MIT */
/* kernels: the one device interface.
 *
 * The model is written once against it.  All pointers that an operation takes are device
 * memory of that device; operations are in order, and only `download` waits.  Activations
 * are (tokens, width) row by row, of the device's own type; where a pointer is `void *`
 * and nothing else is said, it is to activations.  A weight is an object with a format: a
 * product takes it as it is stored.
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

enum { LINEAR_MANY = 3, STAGES = 32, STAGE_BYTES = 1 << 20 };

/* A matrix (out, in): y = x W'. */
struct weight {
    enum dtype dtype;      // f32, bf16, f16 or nvfp4
    const void *values;    // nvfp4: codes
    const uint8_t *scales; // nvfp4
    const float *scale2;   // nvfp4: (1) multiplier; NULL: 1; weights may share one
    const void *expanded;  // nvfp4: code times scale as bf16, which is exact; or NULL
    size_t out, in;
    const uint8_t *tiles; // nvfp4: scales as in lib/nvfp4/tiles.h; or NULL
};

/* Where the NVFP4 form of a matrix goes: codes and scales, their products, or both. */
struct packed {
    uint8_t *codes, *scales;
    float *scale2; // (1)
    void *expanded;
    uint8_t *tiles; // the scales once more, as `tile` writes them
};

/* Activations in NVFP4, (rows, in), each row with a tensor scale of its own, so that a
 * token's numbers do not depend on the tokens beside it. */
struct packed_rows {
    size_t rows, in;
    float *scale2; // (rows)
    // What there is of it depends on how the device multiplies, see net.c.
    uint8_t *codes, *scales;
    void *expanded; // code times scale in the type of activations, which is exact
    uint8_t *tiles;
};

/* A gradient: f32, or bf16 that was rounded once. */
struct grad {
    void *values;
    enum dtype dtype;
};

/* Heads that are turned: table (positions, dim) has dim/2 cosines and dim/2 sines. */
struct turn {
    const float *table;
    const int32_t *position; // (tokens)
    size_t tokens, heads, dim;
    float eps;
    size_t row; // of turn_dx: from a token to the next in d; 0: heads * dim
};

/* Heads of a layer, and which tokens see each other.  There are keys of `past` tokens and
 * then those of these tokens: token t sees keys first[t] .. past + t. */
struct heads {
    size_t tokens, past, query, kv, dim;
    const int32_t *first; // (tokens)
    size_t length;        // of each document, if all have the same; 0: not known
    // Of attention_dx: from a token to the next in dq, dkey and dvalue, so that they may
    // be columns of one matrix; 0: query * dim, kv * dim.
    size_t row;
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
    const float *clip;        // (1) gradients are multiplied by it; NaN: no update
    float *amax;              // (1) NULL, or: see adamw
    uint32_t seed, step, row; // of its random numbers; row of the tensor table
};

/* The seed's packed optimizer, numerics.md 7.4.  The weight (rows, cols) is NVFP4 of one
 * level; moments are, too, or 8-bit numbers with an f32 for each row. */
enum seed_moments { SEED_NONE, SEED_NVFP4, SEED_INT8 };
struct seed_plane {
    void *q; // codes of NVFP4, two in a byte; or i8
    void *scales;
};
struct seed_state {
    struct seed_plane w, m, v;
    enum seed_moments moments;
    size_t rows, cols;
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

/* How a device multiplies NVFP4 with NVFP4: what it wants of activations. */
enum fp4_way {
    FP4_CODES,    // emulated, from codes and scales
    FP4_EXPANDED, // emulated, from their products
    FP4_NATIVE,   // by the chip's own products, from codes and tiles
};
enum { FP4_NATIVE_UNIT = 128 }; // of which native products take multiples, both ways

/* What there is to know of a device before it is opened. */
struct device {
    const char *name;
    enum dtype act;  // of activations: f32 or bf16
    enum dtype grad; // of a matrix's gradient that nothing is added to
    size_t logits;   // numbers of logits at a time
    bool host;       // its memory is ours
    bool expands;    // products are faster from `expanded`
    bool any_order;  // sums may come in any order, other bits each time
    uint64_t fixed;  // bytes that it takes for itself
    uint64_t driver; // and, uncounted, its driver and libraries, about
    enum fp4_way fp4;
    size_t sums; // bytes that it takes for products of NVFP4 with NVFP4
    /* And besides, for attention of that kind, the way back included; NULL: nothing. */
    size_t (*attention_room)(const struct heads *h);
};

enum { ROUTE_ROOM = 96 };

struct kernels {
    struct device is;
    char route[ROUTE_ROOM]; // what its bits depend on, besides sizes
    enum part part;         // of what is allocated next; set by the caller
    struct ledger ledger;
    void (*close)(struct kernels *k);

    void *(*alloc)(struct kernels *k, size_t bytes); // zeros; NULL: the error is kept
    void (*release)(struct kernels *k, void *p);
    void (*upload)(struct kernels *k, void *to, const void *from, size_t bytes);
    /* The same without a copy on the host: STAGE_BYTES of its memory, into which the caller
     * puts what `send` then takes, with the room.  Threads may call these two in turns, and
     * STAGES rooms may be out, one a thread; uploads and downloads want one, too.  NULL: the
     * error is kept.  Not of a device whose memory is the host's, nor of a dry one. */
    void *(*stage)(struct kernels *k);
    void (*send)(struct kernels *k, void *to, void *room, size_t bytes);
    void (*copy)(struct kernels *k, void *to, const void *from, size_t bytes);
    int (*download)(struct kernels *k, void *to, const void *from, size_t bytes);

    /* y = x W' + c, dx = dy W + c; c: NULL, the result's own place, or another. */
    void (*linear)(struct kernels *k, void *y, const void *x, const struct weight *w,
                   size_t tokens, const void *c);
    /* y[i] = x w[i]' for n products of one x, LINEAR_MANY at most: what linear gives. */
    void (*linear_many)(struct kernels *k, void *const *y, const void *x,
                        const struct weight *const *w, size_t n, size_t tokens);
    void (*linear_dx)(struct kernels *k, void *dx, const void *dy,
                      const struct weight *w, size_t tokens, const void *c);
    /* dw (+)= dy' x. */
    void (*linear_dw)(struct kernels *k, const struct grad *dw, const void *dy,
                      const void *x, size_t out, size_t in, size_t tokens, bool add);
    /* The way back of linear_many, dy[i] being columns of one matrix, (tokens, all out),
     * those of the first weight first: dx = sum of dy[i] w[i] + c, and dw[i] (+)= dy[i]'
     * x.  It may be one product where weights share a scale2, or where their gradients lie
     * one behind the other, which they then do in every run. */
    void (*linear_many_dx)(struct kernels *k, void *dx, const void *dy,
                           const struct weight *const *w, size_t n, size_t tokens,
                           const void *c);
    void (*linear_many_dw)(struct kernels *k, const struct grad *const *dw,
                           const void *dy, const void *x, const struct weight *const *w,
                           size_t n, size_t tokens, bool add);
    /* Activations as NVFP4, by the quantizer `max` or `native`: the bytes of nvfp4_quant
     * for each row, with its largest magnitude.  A row that is not finite has NaN for its
     * tensor scale.  to->rows and in are given. */
    void (*quantize_rows)(struct kernels *k, const struct packed_rows *to,
                          const void *x, const struct quant_spec *spec);
    /* And back, rounded to the type of activations. */
    void (*unpack_rows)(struct kernels *k, void *y, const struct packed_rows *x);
    /* y = x W' + c of two matrices in NVFP4, c: NULL or another place than y.  Sums of
     * products of codes and block scales in f32, where each product is exact; a sum is
     * multiplied by the weight's tensor scale, then by the row's, then c is added. */
    void (*linear_fp4)(struct kernels *k, void *y, const struct packed_rows *x,
                       const struct weight *w, const void *c);
    /* Scales row by row, a byte a block, to those in tiles. */
    void (*tile)(struct kernels *k, uint8_t *tiles, const uint8_t *scales, size_t rows,
                 size_t blocks);
    /* As linear, in f32 whatever activations are. */
    void (*logits)(struct kernels *k, float *y, const void *x, const struct weight *w,
                   size_t tokens);

    /* Where the largest of n logits is, the first of equals; -1 if one is not finite. */
    void (*best)(struct kernels *k, int32_t *id, const float *logits, size_t n);

    void (*embed)(struct kernels *k, void *y, const struct weight *w,
                  const int32_t *ids, size_t tokens);
    /* dw[ids[t]] += dy[t], in the order of t. */
    void (*embed_dw)(struct kernels *k, float *dw, const void *dy, const int32_t *ids,
                     size_t tokens, size_t in);

    /* RMSNorm of rows of n; scale: (rows), 1 / sqrt(mean + eps), for the way back. */
    void (*norm)(struct kernels *k, void *y, float *scale, const void *x,
                 const float *gain, size_t rows, size_t n, float eps);
    /* dx = ... + c, where c is NULL or dx; dgain += ...; y: what norm gave, once more.
     * dgain and y may be NULL. */
    void (*norm_dx)(struct kernels *k, void *dx, float *dgain, void *y, const void *dy,
                    const void *x, const float *scale, const float *gain, size_t rows,
                    size_t n, const void *c);

    /* RMSNorm of each head, then rotate-half; scale: (tokens * heads). */
    void (*turn)(struct kernels *k, void *y, float *scale, const void *x,
                 const float *gain, const struct turn *t);
    /* The gradient of y becomes that of x. */
    void (*turn_dx)(struct kernels *k, void *d, float *dgain, const void *x,
                    const float *scale, const float *gain, const struct turn *t);

    /* q, out: (tokens, query, dim); k, v: (tokens, kv, dim); lse: (query, tokens). */
    void (*attention)(struct kernels *k, void *out, float *lse, const void *q,
                      const void *key, const void *value, const struct heads *h);
    /* dq = ..., dkey = ..., dvalue = ...; work: as lse. */
    void (*attention_dx)(struct kernels *k, void *dq, void *dkey, void *dvalue,
                         const void *dout, const void *out, const float *lse,
                         const void *q, const void *key, const void *value, float *work,
                         const struct heads *h);

    /* y = silu(gate) * up. */
    void (*swiglu)(struct kernels *k, void *y, const void *gate, const void *up,
                   size_t n);
    /* The gradients of gate and up, (tokens, n), become columns of `both`, (tokens, 2 n), and
     * d, that of y, becomes y. */
    void (*swiglu_dx)(struct kernels *k, void *both, void *d, const void *gate,
                      const void *up, size_t tokens, size_t n);

    void (*zero)(struct kernels *k, void *p, size_t bytes);
    /* Rows of n: y[r] = x[index[r]], and the way back: y[index[r]] = x[r]. */
    void (*gather)(struct kernels *k, void *y, const void *x, const int32_t *index,
                   size_t rows, size_t n);
    void (*scatter)(struct kernels *k, void *y, const void *x, const int32_t *index,
                    size_t rows, size_t n);
    /* f32 from f32, bf16 or f16. */
    void (*convert)(struct kernels *k, float *y, const void *x, enum dtype dtype,
                    size_t n);

    /* Cross-entropy of rows of logits, which become scale * d loss / d logits; rows of
     * label -1 have loss 0 and gradient 0. */
    void (*cross_entropy)(struct kernels *k, float *loss, void *logits,
                          const int32_t *label, size_t rows, size_t vocab, float scale);

    /* loss[r]: mean |x[r] - e|, e the row of w that the label says; dx = scale / n *
     * sign(x - e), and dw, if not NULL, grows by the same of its rows, negative. */
    void (*l1)(struct kernels *k, float *loss, void *dx, float *dw, const void *x,
               const struct weight *w, const int32_t *label, size_t rows, float scale);

    /* Largest magnitude of f32, bf16 or f16 values; NaN if one is not finite. */
    void (*amax)(struct kernels *k, float *out, const void *values, enum dtype dtype,
                 size_t n);
    /* The NVFP4 form of a matrix, whose tensor scale is that of the largest of n amax:
     * the bytes of nvfp4_quant.  Not finite: scale2 is NaN.  Neither values nor amax are
     * what the quantize before has written, unless something was done in between. */
    void (*quantize)(struct kernels *k, const struct packed *to, const void *values,
                     enum dtype dtype, size_t rows, size_t cols, const float *amax,
                     size_t n, const struct quant_spec *spec);
    /* out[i] of n[i] numbers of g[i], added in an order that n[i] alone decides; without
     * values it stays. */
    void (*sum_squares)(struct kernels *k, double *out, const struct grad *g,
                        const size_t *n, size_t count);
    /* What a gradient of that sum of squares is to be multiplied by: `given`, or with
     * limit > 0 at most limit / norm.  NaN, which stops updates, if then its norm is
     * more than `most` or no number, or if before, unless NULL, is NaN. */
    void (*clip)(struct kernels *k, float *out, const double *squares, float given,
                 float limit, double most, const float *before);
    /* AdamW of elements first .. first + n - 1 of a tensor; first is a multiple of 32, and
     * one of 256 is quicker.  s and grad are those of the whole tensor.  a->amax, which is
     * 0 before the first of them, grows to the largest magnitude of what is written to the
     * master: amax of it when all are done, and NaN likewise.  Without an update it
     * stays. */
    void (*adamw)(struct kernels *k, const struct adam_state *s,
                  const struct grad *grad, uint64_t first, size_t n,
                  const struct adam_step *a);
    /* The same of rows first .. first + n - 1 of a tensor that is kept packed: unpacked,
     * updated and packed again.  NULL: not on this device, and neither is the other. */
    void (*seed_adamw)(struct kernels *k, const struct seed_state *s,
                       const struct grad *grad, size_t first, size_t n,
                       const struct adam_step *a);
    /* The weight as f32. */
    void (*seed_values)(struct kernels *k, float *y, const struct seed_state *s);
};

/* How a CPU computes. */
struct cpu_kind {
    enum dtype compute; // f32 or bf16
    enum isa isa;
    unsigned threads;
};

/* The CPU; compute: f32, or bf16, to which operands of products are rounded, while
 * activations are f32 all the same; isa: the instruction set, threads: how many. */
struct kernels *kernels_cpu(enum dtype compute, enum isa isa, unsigned threads,
                            struct err *err);
/* Whether its products of bf16 are faster than those of f32. */
bool kernels_cpu_pairs(enum isa isa);
/* From now on a product of a few tokens with NVFP4 takes x as integers of 16 bits, and has
 * other bits than that of many; see cpu/coarse.h.  The route says so. */
void kernels_cpu_coarse(struct kernels *k);
bool kernels_cpu_coarse_pays(enum isa isa); // it is faster
/* A GPU; it is an error that says why if there is none, or no backend for it. */
struct kernels *kernels_cuda(const struct device *is, int device, struct err *err);
/* any_order: attention's gradients are added as they come, which is faster. */
struct device kernels_cuda_device(enum dtype act, bool any_order);
int kernels_cuda_count(void); // of GPUs that there are
/* Whether there is a backend for them; if not, *why says so. */
bool kernels_cuda_there(char *why, size_t n);
/* Bytes of its memory that are free, 0: not known.  Where the driver tells it without a
 * context there is none made by this, and so what one takes is seen. */
uint64_t kernels_cuda_free(int device);
/* Bytes of it that all processes use; 0: not known.  For a device that is open. */
uint64_t kernels_cuda_used(int device);
/* Whether its memory is the machine's. */
bool kernels_cuda_integrated(int device);
/* Whether it has products of NVFP4 with NVFP4, FP4_NATIVE; if not, *why says so. */
bool kernels_cuda_native(int device, char *why, size_t n);
typedef void kernels_say_fn(void *ctx, const char *what, const char *value);
/* Lines about devices, versions, and what is missing. */
void kernels_cuda_diagnose(kernels_say_fn *say, void *ctx);

/* What kernels_cpu will be. */
extern const struct device kernels_cpu_device;
/* A device that computes nothing and has any amount of memory: what a run on such a device
 * would need.  Its memory cannot be looked at; download gives zeros.  cpu: of the CPU, how
 * it will compute. */
struct kernels *kernels_dry(const struct device *like, const struct cpu_kind *cpu,
                            struct err *err);

/* Bytes of a number of an activation. */
static inline size_t
kernels_act(const struct kernels *k)
{
    return dtype_bits(k->is.act) / 8;
}

/* From a token to the next in d of turn_dx, and in gradients of so many heads. */
static inline size_t
turn_row(const struct turn *t)
{
    return t->row ? t->row : t->heads * t->dim;
}

static inline size_t
heads_row(const struct heads *h, size_t heads)
{
    return h->row ? h->row : heads * h->dim;
}

/* Columns of what several products of one x give. */
static inline size_t
kernels_outs(const struct weight *const *w, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += w[i]->out;
    return all;
}

/* For implementations: count an allocation, or with a negative size its end. */
void kernels_count(struct kernels *k, enum part part, int64_t bytes);

#endif
