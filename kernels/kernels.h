/* SPDX-License-Identifier: MIT */
/* kernels: the one device interface.
 *
 * The model is written once against it.  All pointers that an operation takes are memory of
 * that device, unless they are said to be the host's.  Operations run in the order of their
 * calls, within a queue; only `kernels_download` waits.
 *
 * The first error is kept in k->err; operations after it do nothing, so a row of calls is
 * checked once, at the end.  Shapes are checked here, by assert, in kernels/ops.c: the
 * devices behind it need not.
 *
 * For one device the result is a function of the arguments alone: no number of threads, no
 * amount of memory and no order of arrival changes a bit.
 *
 * Dimensions: B batch, T tokens, C width of the model, V vocabulary, L layers, H heads, K
 * key/value heads, D head width, F width of the feed-forward part.  H * D is not C.
 */
#ifndef NIBBLE_KERNELS_KERNELS_H
#define NIBBLE_KERNELS_KERNELS_H

#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/base/isa.h"
#include "lib/nvfp4/quant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- matrices ------------------------------------------------------------------------- */

/* A matrix on a device, or a view of one: some of its rows, or some of its columns.  Row r
 * begins at data + r * stride elements.  A weight is (out, in): y = x W'. */
struct matrix {
    enum dtype dtype; // f32, bf16, f16, nvfp4, or f8_e4m3
    bool per_row;     // nvfp4 activations: scale2 is (rows), each row quantized alone
    size_t rows, cols;
    size_t stride; // elements from a row to the next; nvfp4: cols
    void *data;    // nvfp4: codes, two in a byte

    // Of nvfp4, which has codes and scales, or expanded, or all three.
    uint8_t *scales; // (rows, cols / 16) E4M3
    float *scale2;   // (1) tensor scale, which matrices may share; NULL: 1
    void *expanded;  // (rows, cols) code times scale, exact in bf16
    uint8_t *tiles;  // scales as in lib/nvfp4/tiles.h, or NULL

    // Of f8_e4m3: an element times *scale2, which matrices may share, is its value.
    uint8_t *transposed; // (cols, transposed_stride) the same elements, or NULL
    size_t transposed_stride;

    // Of activations, where norm, swiglu and their gradients write them: grows to their
    // largest magnitude, as op_amax has it; NULL: not wanted.
    float *amax;
};

static inline struct matrix
matrix_of(enum dtype dtype, const void *data, size_t rows, size_t cols)
{
    // Who takes it as an input does not write to it.
    struct matrix m = { dtype, false, rows, cols, cols, (void *)(uintptr_t)data,
                        NULL,  NULL,  NULL, NULL, NULL, 0,
                        NULL };
    return m;
}

/* Element i of what begins at p; not of less than a byte. */
static inline void *
dtype_at(enum dtype dtype, const void *p, size_t i)
{
    return p ? (char *)(uintptr_t)p + i * (dtype_bits(dtype) / 8) : NULL;
}

/* Views: rows, or columns, first .. first + n - 1; not of nvfp4. */
struct matrix matrix_rows(const struct matrix *m, size_t first, size_t n);
struct matrix matrix_cols(const struct matrix *m, size_t first, size_t n);

static inline bool
matrix_is_dense(const struct matrix *m)
{
    return m->stride == m->cols;
}

/* ---- what operations take besides -------------------------------------------------------- */

enum { LINEAR_MAX = 3 }; // weights of one product
enum { SUM_MAX = 8 };    // matrices that a device adds at a time

/* Rotary embedding of heads that lie beside each other in a row. */
struct rope {
    const float *table;      // (positions, D): D/2 cosines, then D/2 sines
    const int32_t *position; // (T)
    size_t heads, dim;       // H or K; D
    float eps;               // of the norm before it
};

/* What op_qk_norm_rope_bwd takes besides the gradient. */
struct head_norm {
    float *dgain;
    const struct matrix *x;
    const float *rstd, *gain;
    const struct rope *rope;
};

/* Heads of a layer, and which tokens see each other.  There are keys of `past` tokens and
 * then those of these T tokens: token t sees keys first[t] .. past + t. */
struct heads {
    size_t tokens, past, query, kv, dim; // T, tokens before, H, K, D
    const int32_t *first;                // (T)
    size_t length; // of each document, if all have the same; 0: unknown
};

/* A token each of several sequences, with the keys and values of those before it in a cache of
 * its own, to which its own are added. */
enum { ATTEND_MAX = 64, ATTEND_STEP = 256 };
struct attend {
    size_t tokens, query, kv, dim; // T, at most ATTEND_MAX; H, K, D
    const float *table;            // as in struct rope
    const float *q_gain, *k_gain;  // (D)
    float eps;
    const int32_t *position; // (T) tokens before
    // (T) on the host
    void *const *key, *const *value; // caches: (more than those, K * D)
    const size_t *past;              // tokens before; only past / ATTEND_STEP matters
};

/* All layers of one token. */
enum { LAYER_WEIGHTS = 7 };
struct layer_step {
    struct matrix w[LAYER_WEIGHTS]; // q, k, v, o, gate, up, down
    const float *input_gain, *mid_gain, *q_gain, *k_gain;
    void *key, *value; // cache: (more than the tokens before, K * D)
};
struct layer_steps {
    const struct layer_step *layer;
    size_t layers, query, kv, dim; // H, K, D
    const float *table;            // as in struct rope
    float eps;
    int32_t *position; // tokens before
    size_t past;       // the same on the host; only past / ATTEND_STEP matters
};
/* What comes before and after them. */
struct token_ends {
    int32_t *id;
    const struct matrix *embed; // (V, C)
    const float *gain;          // of the last norm
    const struct matrix *head, *logits;
    int32_t *best; // (2) or NULL.  The largest logit's id, as of op_argmax, becomes the
                   // token's, and best[position % 2], and its position the next one
};

/* What is learnt from another model's logits, numerics.md 11: a row's loss is (1 - share) ce
 * + share temperature^2 kl. */
struct distill {
    float share, temperature;
};

/* AdamW state of a tensor, or of its elements from `first` on, numerics.md 7.5.  8-bit
 * moments are in groups of 32 from the tensor's first element, with a bf16 scale each. */
enum moments { MOMENTS_F32, MOMENTS_BF16, MOMENTS_INT8 };
struct adam_state {
    void *master;
    enum dtype dtype; // of the master: f32, or bf16 with stochastic rounding
    enum moments moments;
    void *m, *v;                 // f32; bf16; i8 and u8
    uint16_t *m_scale, *v_scale; // int8
    uint64_t first;              // index in the tensor of the arrays' element 0
};
/* Parameters of a step, the same for all tensors but row, decay, clip and amax. */
struct adam_step {
    float lr, beta1, beta2, eps, decay;
    float bias_correction1, bias_correction2; // 1 - beta^t
    const float *clip;        // (1) gradients are multiplied by it; NaN: no update
    float *amax;              // (1) or NULL: see op_adamw
    uint32_t seed, step, row; // of the random numbers; row of the tensor table
};

/* An update of op_adamw: elements first .. first + n - 1 of a tensor.  first is a multiple of
 * 32, and of 256 for speed; element i of the tensor is element i - state.first of the arrays
 * of state, and of grad, f32 or bf16. */
struct adam_update {
    struct adam_state state;
    struct matrix grad;
    uint64_t first;
    size_t n;
    struct adam_step step;
};

/* TorchSharp's packed optimizer, numerics.md 7.4.  The weight (rows, cols) is nvfp4 of one
 * level; moments are, too, or 8-bit integers with an f32 for each row. */
enum torchsharp_moments { TORCHSHARP_NVFP4, TORCHSHARP_INT8 };
struct torchsharp_plane {
    void *q; // codes of nvfp4, two in a byte; or i8
    void *scales;
};
struct torchsharp_state {
    struct torchsharp_plane w, m, v;
    enum torchsharp_moments moments;
    size_t rows, cols;
};

/* ---- a device ---------------------------------------------------------------------------- */

/* What memory is for. */
enum memory {
    MEMORY_MASTER,
    MEMORY_MOMENTS,
    MEMORY_GRADIENTS,
    MEMORY_WEIGHTS,     // as products take them, if that is not the master
    MEMORY_ACTIVATIONS, // that the backward pass needs
    MEMORY_WORK,        // other activations
    MEMORY_LOGITS,
    MEMORY_CACHE,   // keys and values of earlier tokens
    MEMORY_TEACHER, // weights of another model
    MEMORY_OTHER,
    MEMORIES
};

/* Allocated bytes, and operations that were asked for. */
struct usage {
    uint64_t now[MEMORIES], peak[MEMORIES];
    uint64_t total, total_peak;
    double flops; // of products and attention
};

/* How a device multiplies nvfp4 by nvfp4, and so which planes of activations it takes. */
enum fp4_path {
    FP4_CODES,    // emulated, from codes and scales
    FP4_EXPANDED, // emulated, from `expanded`
    FP4_NATIVE,   // by 4-bit tensor cores, from codes and tiles
};
enum { FP4_NATIVE_UNIT = 128 }; // native products take multiples of it, both ways

/* What is known of a device before it is opened. */
struct device {
    const char *name;
    enum dtype act;    // of activations: f32 or bf16
    enum dtype grad;   // of a weight gradient that nothing is added to
    size_t max_logits; // elements of logits at a time
    bool host;         // its memory is the host's
    bool expands;      // products are faster from `expanded`
    bool any_order;    // sums may come in any order, other bits each time
    bool torchsharp;   // it has TorchSharp's packed optimizer
    /* Products of 1 to `alike` tokens give a token the same bits with any others; so do products
     * of more, unless the device trains, but they may be other bits. */
    size_t alike;
    /* Attention of a token has the same bits if it is computed with all tokens of a pass or with
     * those from a multiple of `cut` on, if these are more than `alike`. */
    size_t cut;
    bool trains; // NVFP4 weights have equal results expanded and not, few tokens, too
    bool transposes; // products of FP8 take `transposed` where they sum over rows
    uint64_t fixed;  // bytes that it allocates for itself
    uint64_t driver; // bytes of its driver and libraries, about; in no other figure
    enum fp4_path fp4;
    size_t fp4_sums; // bytes that it allocates at the first product of nvfp4 by nvfp4
    /* Bytes besides, for attention of that shape, backward included; NULL: none. */
    size_t (*attention_workspace)(const struct heads *h);
};

/* Queues: operations of one are in order, those of two need not be.  Operations go to the
 * queue that kernels_queue chose last, at first to QUEUE_COMPUTE. */
enum queue { QUEUE_COMPUTE, QUEUE_COPY, QUEUE_EXCHANGE, QUEUES };
enum { EVENTS = 16 };

enum { ROUTE_SIZE = 96, STAGES = 32, STAGE_BYTES = 1 << 20 };

struct ops; // kernels/ops.h, for devices

struct kernels {
    const struct ops *op;
    struct device is;
    struct err *err;
    char route[ROUTE_SIZE]; // what its bits depend on, besides sizes
    struct usage usage;
    enum queue queue;
    bool dry; // computes nothing, see kernels_dry
};

void kernels_close(struct kernels *k);

/* Bytes that are zero; NULL: the error is kept. */
void *kernels_alloc(struct kernels *k, enum memory what, size_t bytes);
void kernels_free(struct kernels *k, void *p);
/* From and to the host. */
void kernels_upload(struct kernels *k, void *to, const void *from, size_t bytes);
int kernels_download(struct kernels *k, void *to, const void *from, size_t bytes);
/* A download of at most STAGE_BYTES in two parts: what is given meanwhile is not waited for.
 * stays: nothing writes there before the download has ended, so what is given meanwhile does
 * not wait for it either.  The result is a handle; negative: the error is kept, or the device's
 * memory is the host's.  Each handle is handed back once; to: NULL if the bytes are not wanted. */
int kernels_download_begin(struct kernels *k, const void *from, size_t bytes,
                           bool stays);
int kernels_download_end(struct kernels *k, int handle, void *to, size_t bytes);
/* An upload without a copy on the host: a staging buffer of STAGE_BYTES of its memory, which
 * the caller fills and hands back to kernels_stage_upload.  Threads may call these two in
 * turns; up to STAGES buffers may be out, one a thread; uploads and downloads need one, too.
 * NULL: the error is kept.  Not of a device whose memory is the host's, nor of a dry one. */
void *kernels_stage(struct kernels *k);
void kernels_stage_upload(struct kernels *k, void *to, void *stage, size_t bytes);

/* Which queue the next operations go to. */
void kernels_queue(struct kernels *k, enum queue queue);
/* Event e, below EVENTS, has happened when all of this queue so far is done. */
void kernels_record(struct kernels *k, unsigned e);
/* What this queue is given from now on begins after event e, if it was ever recorded. */
void kernels_wait(struct kernels *k, unsigned e);

/* Repeat a sequence of operations whose arguments are the same each time; only the contents of the
 * device's memory differ.  True: the device has repeated the sequence recorded under this key.
 * False: call the operations, without uploads and downloads, and then kernels_recorded;
 * repeats: whether an equal key means equal arguments.  They are not counted in usage.flops.
 * Freeing memory makes the device forget all sequences. */
enum { REPLAY_KEY = 64 }; // bytes, at most
bool kernels_replay(struct kernels *k, const void *key, size_t bytes);
void kernels_recorded(struct kernels *k, bool repeats);

/* ---- several ranks ------------------------------------------------------------------------ */

/* To rank q, and from it, the q-th of a row of these; either may be of 0 bytes. */
struct transfer {
    const void *from;
    void *to;
    size_t send, receive; // bytes; that of both ranks agree
    size_t there;         // where rank q gets it: bytes from the base of its array on
};

/* An array that all ranks have, each in one allocation, and get parts of. */
struct exchanged {
    unsigned array;        // its number, of all ranks
    const void *base;      // where it is here, in all calls
    struct transfer *with; // (ranks)
};

/* Ranks, and how their hosts tell each other a few bytes: each fills its part of `all`, which are
 * `each` bytes for each rank, and gets the others'.  False: that failed, and the error is kept.  ctx
 * outlives the device. */
struct company {
    unsigned rank, ranks;
    bool (*gather)(void *ctx, void *all, size_t each);
    void *ctx;
};

/* Join devices of several ranks, each of which has one; a device whose memory is the host's has
 * nothing to do.  By copies between GPUs of one host: 1; 0: not all ranks can, and why.  By NCCL:
 * id is that of rank 0's kernels_cuda_peers_id. */
enum { PEERS_ID = 128 };
int kernels_join_copies(struct kernels *k, const struct company *of, char *why,
                        size_t n);
int kernels_join(struct kernels *k, unsigned rank, unsigned ranks, const void *id);
/* Of n arrays.  All ranks make the same calls in the same order; to and from itself a rank sends
 * nothing. */
void op_transfer(struct kernels *k, unsigned ranks, const struct exchanged *e,
                 size_t n);
/* Seconds in which QUEUE_COMPUTE has done nothing but to wait for QUEUE_EXCHANGE so far; the host
 * waits for the last wait. */
double kernels_exchanged(struct kernels *k);

/* ---- operations --------------------------------------------------------------------------- */

/* An operation that returns bool does the work of several, for decoding: false if the device
 * lacks it for these sizes; then nothing was done.  A row gets the bits that the separate
 * operations give, except from op_attend. */

/* Matrices are dense (stride == cols) unless a comment says that they may be views.
 * Activations are of the type k->is.act.  "y = ..." overwrites, "y += ..." adds.  NULL is
 * allowed where it is mentioned. */

void op_copy(struct kernels *k, void *to, const void *from, size_t bytes);
void op_zero(struct kernels *k, void *p, size_t bytes);
/* y[r] = x[index[r]] for each row of y; y[index[r]] = x[r] for each row of x. */
void op_gather(struct kernels *k, const struct matrix *y, const struct matrix *x,
               const int32_t *index);
void op_scatter(struct kernels *k, const struct matrix *y, const struct matrix *x,
                const int32_t *index);
/* y = x in another type: f32 from f32, bf16, f16 or nvfp4 of a tensor; activations from nvfp4
 * per row.  Rounded to nearest even. */
void op_convert(struct kernels *k, const struct matrix *y, const struct matrix *x);
/* w->expanded from its codes and scales, on a device that expands. */
void op_expand(struct kernels *k, const struct matrix *w);

/* Products of n weights, LINEAR_MAX at most, (out_i, in), with one x, (T, in).
 *
 * Forward: y[i] = x w[i]' + c, (T, out_i), of activations or f32; c: NULL, a y of its own
 * place, or another, and only with n == 1.  x may be nvfp4 per row where the weights are
 * nvfp4, too: sums of products of codes and block scales, each product exact, in f32; then
 * times the weight's tensor scale, times the row's; then c is added.
 *
 * All three products may be of f8_e4m3, where both operands are, with f32 sums; where
 * k->is.transposes dx takes `transposed` of the weights, dw that of dy and x. */
void op_linear(struct kernels *k, size_t n, const struct matrix *y,
               const struct matrix *x, const struct matrix *w, const struct matrix *c);
/* y[i] = norm(x) w[i]'; y = silu(norm(x) w[0]') * (norm(x) w[1]'); gain: (in). */
bool op_norm_linear(struct kernels *k, size_t n, const struct matrix *y,
                    const struct matrix *x, const float *gain, float eps,
                    const struct matrix *w);
bool op_norm_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *x,
                    const float *gain, float eps, const struct matrix *w);
/* Norm and rotate q, (T, H * D), and key, add key and value, (T, K * D), to the caches, and
 * attend: out, (T, H * D).  A row of out has the same bits whatever the others are. */
bool op_attend(struct kernels *k, const struct matrix *out, const struct matrix *q,
               const struct matrix *key, const struct matrix *value,
               const struct attend *a);
/* What the operations above make of one token's x, (1, C), through all layers: y, (1, C). */
bool op_layers(struct kernels *k, const struct matrix *y, const struct matrix *x,
               const struct layer_steps *l);
/* The same from the token's id to its logits, (1, V). */
bool op_token(struct kernels *k, const struct layer_steps *l,
              const struct token_ends *e);
/* dx = sum of dy_i w[i] + c, where dy_i are columns of dy, (T, sum of out_i), in the order of
 * the weights; c: NULL, dx, or another. */
void op_linear_dx(struct kernels *k, size_t n, const struct matrix *dx,
                  const struct matrix *dy, const struct matrix *w,
                  const struct matrix *c);
/* dw[i] = dy_i' x, or += with add, (out_i, in): f32 or k->is.grad.  It may be
 * one product where the gradients lie one behind the other, which they do in every run or in
 * none. */
void op_linear_dw(struct kernels *k, size_t n, const struct matrix *dw,
                  const struct matrix *dy, const struct matrix *x, bool add);

/* y[t] = w[ids[t]]: y (T, C), w (V, C); dw[ids[t]] += dy[t], f32, in the order of t. */
void op_embed(struct kernels *k, const struct matrix *y, const struct matrix *w,
              const int32_t *ids);
void op_embed_dw(struct kernels *k, const struct matrix *dw, const struct matrix *dy,
                 const int32_t *ids);

/* RMSNorm: y = x * rstd * gain; rstd: (rows) 1 / sqrt(mean of squares + eps), for the
 * backward pass; gain: (cols).  A y without data is not written: rstd and y->amax are found. */
void op_norm(struct kernels *k, const struct matrix *y, float *rstd,
             const struct matrix *x, const float *gain, float eps);
/* dx = ... + c, c: NULL or dx; dgain += ..., (cols), NULL: not wanted; y: NULL, or where the
 * forward result is written again, since x is read anyway. */
void op_norm_bwd(struct kernels *k, const struct matrix *dx, float *dgain,
                 const struct matrix *y, const struct matrix *dy,
                 const struct matrix *x, const float *rstd, const float *gain,
                 const struct matrix *c);

/* RMSNorm of each head, then rotary embedding (rotate-half): y, x (T, heads * D); rstd:
 * (T * heads); gain: (D). */
void op_qk_norm_rope(struct kernels *k, const struct matrix *y, float *rstd,
                     const struct matrix *x, const float *gain, const struct rope *r);
/* d: the gradient of y becomes that of x; it may be a view of columns.  dgain += ..., NULL:
 * not wanted. */
void op_qk_norm_rope_bwd(struct kernels *k, const struct matrix *d, float *dgain,
                         const struct matrix *x, const float *rstd, const float *gain,
                         const struct rope *r);

/* out, q: (T, H * D); key, value: (past + T, K * D); lse: (H, T) log of the sums of
 * exponentials. */
void op_attention(struct kernels *k, const struct matrix *out, float *lse,
                  const struct matrix *q, const struct matrix *key,
                  const struct matrix *value, const struct heads *h);
/* dq, dkey, dvalue may be views of columns; work: (H, T); past is 0. */
void op_attention_bwd(struct kernels *k, const struct matrix *dq,
                      const struct matrix *dkey, const struct matrix *dvalue,
                      const struct matrix *dout, const struct matrix *out,
                      const float *lse, const struct matrix *q,
                      const struct matrix *key, const struct matrix *value, float *work,
                      const struct heads *h);
/* op_attention_bwd, then op_qk_norm_rope_bwd of dq, with the bits of both: a device need not
 * store dq between them. */
void op_attention_rope_bwd(struct kernels *k, const struct matrix *dq,
                           const struct matrix *dkey, const struct matrix *dvalue,
                           const struct matrix *dout, const struct matrix *out,
                           const float *lse, const struct matrix *q,
                           const struct matrix *key, const struct matrix *value,
                           float *work, const struct heads *h,
                           const struct head_norm *n);

/* y = silu(gate) * up, all (T, F).  A y without data is not written: y->amax is found; so with
 * d_gate_up of the gradient, where d stays, too. */
void op_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *gate,
               const struct matrix *up);
/* d_gate_up: (T, 2 F), columns of gate's gradient, then of up's; d: the gradient of y becomes
 * y. */
void op_swiglu_bwd(struct kernels *k, const struct matrix *d_gate_up,
                   const struct matrix *d, const struct matrix *gate,
                   const struct matrix *up);

/* Cross-entropy of rows of logits, (rows, V) of activations or f32, which become scale * d loss
 * / d logits; loss, label: (rows).  Rows of label -1 have loss 0 and gradient 0. */
void op_cross_entropy(struct kernels *k, float *loss, const struct matrix *logits,
                      const int32_t *label, float scale);
/* Distillation: logits, (rows, V) of activations or f32, become scale * d loss / d logits;
 * teacher: those of another model.  ce: the rows' cross-entropy; kl: KL(teacher || logits), of both
 * divided by the temperature.  Rows of label -1 have 0 for all three. */
void op_distill(struct kernels *k, float *ce, float *kl, const struct matrix *logits,
                const struct matrix *teacher, const int32_t *label,
                const struct distill *how, float scale);
/* loss[r] = mean of |x[r] - e|, e being row label[r] of w; dx = scale / C * sign(x - e), and
 * dw -= the same in row label[r]; dx and dw: NULL: not wanted. */
void op_l1(struct kernels *k, float *loss, const struct matrix *dx,
           const struct matrix *dw, const struct matrix *x, const struct matrix *w,
           const int32_t *label, float scale);
/* id[r]: index of the largest of row r of f32 logits, the first of equals; -1 if one is not
 * finite. */
void op_argmax(struct kernels *k, int32_t *id, const struct matrix *logits);

/* For each column of x, activations: squares, (cols) f64, += the squares of its rows, one after
 * the other; peak, (cols), = the larger of itself and the largest magnitude. */
void op_column_stats(struct kernels *k, double *squares, float *peak,
                     const struct matrix *x);
/* For each block of `width` columns of x, activations: gram, (cols / width, width, width) f64,
 * += the products of its columns, summed over rows one after the other. */
void op_block_gram(struct kernels *k, double *gram, size_t width,
                   const struct matrix *x);
/* *out = largest magnitude of f32, bf16 or f16; NaN if one is not finite.  Of nvfp4: what no
 * code times its scale is above, 6 times the largest scale. */
void op_amax(struct kernels *k, float *out, const struct matrix *x);
/* amax[i] = the largest of of[i], of[i + n], ... of `ranks` rows of n, none of them negative; NaN if
 * one is. */
void op_largest(struct kernels *k, float *amax, const float *of, size_t n,
                size_t ranks);
/* The nvfp4 form of x, in the planes that `to` has: the bytes of nvfp4_quant.  The tensor
 * scale is that of the largest of n values at amax.  to->per_row: each row by its own largest
 * magnitude and `max` or `native`, or all by the scale that spec gives and `max`; n is 0.  Where
 * amax or a row is not finite scale2 is NaN.  Neither x nor amax may be what the op_quantize
 * just before has written, since it may still run. */
void op_quantize(struct kernels *k, const struct matrix *to, const struct matrix *x,
                 const float *amax, size_t n, const struct quant_spec *spec);

/* The f8_e4m3 form of x, activations, or codes times scales of a tensor in nvfp4, in the planes
 * that `to` has: to nearest even of x 2^e, e of lib/nvfp4/e4m3_scale.h for the largest of n
 * values at amax.  *to->scale2 is 2^-e, times the tensor scale of x.  Rows of `transposed` are
 * zero from to->rows to the next multiple of FP8_UNIT.  Where amax is not finite scale2 is NaN
 * and elements are zero.  amax may be less than x has: what is then above 448, the
 * largest number of E4M3, is 448, and Inf and NaN are NaN.  found: NULL, or what is counted besides. */
/* Products of FP8 take weights that are multiples of FP8_UNIT, both ways, and scales at
 * multiples of FP8_SCALE_UNIT floats. */
enum { FP8_UNIT = 16, FP8_SCALE_UNIT = 4 };
struct fp8_found {
    float *
        amax; // of activations, grows to their largest magnitude; NaN: one is not finite
    uint64_t *lost; // += how many activations were above 448, or how many codes times
                    // scales were no numbers of E4M3
};
void op_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *x,
               const float *amax, size_t n, const struct fp8_found *found);
/* The f8_e4m3 form of what an operation gives, which itself is written nowhere: as op_to_fp8 of
 * that, by one value at amax.  Of norm, rows only, and rstd is found; `again`: by the rstd that
 * was found.  Of swiglu's gradient, y is what swiglu gives, as y_amax says, and not counted; d
 * stays. */
void op_norm_to_fp8(struct kernels *k, const struct matrix *to, float *rstd,
                    const struct matrix *x, const float *gain, float eps,
                    const float *amax, const struct fp8_found *found);
void op_norm_again_to_fp8(struct kernels *k, const struct matrix *to, const float *rstd,
                          const struct matrix *x, const float *gain, const float *amax,
                          const struct fp8_found *found);
void op_swiglu_to_fp8(struct kernels *k, const struct matrix *to,
                      const struct matrix *gate, const struct matrix *up,
                      const float *amax, const struct fp8_found *found);
void op_swiglu_bwd_to_fp8(struct kernels *k, const struct matrix *d_gate_up,
                          const float *amax, const struct fp8_found *found,
                          const struct matrix *y, const float *y_amax,
                          const struct matrix *d, const struct matrix *gate,
                          const struct matrix *up);

/* y = x[0] + x[1] + ..., or y += each of them with add, one after the other; y is f32, x[i] of its
 * shape and all f32 or all bf16. */
void op_sum(struct kernels *k, const struct matrix *y, size_t n, const struct matrix *x,
            bool add);
/* out[i] = sum of squares of g[i], f64 and of the same bits on every device; g[i] without
 * data: out[i] stays.  Contiguous blocks of SQUARES_BLOCK elements are summed alone: lane l of
 * SQUARES_LANES takes elements l, l + SQUARES_LANES, ... of the block one after the other.
 * Then, first of the lanes and then of the blocks, neighbours are added until one is left; one
 * without a neighbour goes on as it is. */
enum { SQUARES_BLOCK = 1 << 14, SQUARES_LANES = 1 << 11 };
void op_sum_squares(struct kernels *k, double *out, const struct matrix *g,
                    size_t count);
/* The sums of those blocks: of g[0], behind them of g[1], ... */
void op_block_squares(struct kernels *k, double *out, const struct matrix *g,
                      size_t count);
/* *out = what a gradient of that sum of squares is to be multiplied by: `factor`, or with
 * limit > 0 at most limit / norm.  NaN, which stops updates, if its norm is then above `max`
 * or not finite, or if *before, unless NULL, is NaN. */
void op_clip(struct kernels *k, float *out, const double *squares, float factor,
             float limit, double max, const float *before);
/* AdamW: several updates together; no element is in two of them.  *step.amax, which is 0 before
 * the first, grows to the largest magnitude of what is written to the master (NaN: one is not
 * finite); without an update it stays. */
void op_adamw(struct kernels *k, const struct adam_update *u, size_t count);
/* The same of rows first .. first + n - 1 of a packed tensor: unpacked, updated and packed
 * again.  Only where k->is.torchsharp. */
void op_torchsharp_adamw(struct kernels *k, const struct torchsharp_state *s,
                         const struct matrix *grad, size_t first, size_t n,
                         const struct adam_step *a);

/* ---- the CPU ------------------------------------------------------------------------------- */

/* How a CPU computes. */
struct cpu_kind {
    enum dtype compute; // f32, or bf16, to which operands of products are rounded
    enum isa isa;
    unsigned threads;
};

/* Activations are f32 whatever `compute` is. */
struct kernels *kernels_cpu(const struct cpu_kind *kind, struct err *err);
extern const struct device kernels_cpu_device; // what it will be
/* Whether its products of bf16 are faster than those of f32. */
bool kernels_cpu_pairs(enum isa isa);
/* From now on a product of a few tokens with nvfp4 takes x as 16-bit integers, see
 * cpu/coarse.h; its bits are then others than those of many tokens.  The route has it. */
void kernels_cpu_coarse(struct kernels *k);
bool kernels_cpu_coarse_pays(enum isa isa); // it is faster

/* ---- GPUs ---------------------------------------------------------------------------------- */

/* An error that has the reason if there is no GPU, or no backend for it. */
struct kernels *kernels_cuda(const struct device *is, int device, struct err *err);
/* any_order: attention's gradients are added as they come, which is faster. */
struct device kernels_cuda_device(enum dtype act, bool any_order);
/* The number of GPUs; if it is 0, *why has the reason. */
int kernels_cuda_count(char *why, size_t size);
/* Whether there is a backend for them; if not, *why has the reason. */
bool kernels_cuda_there(char *why, size_t n);
/* Free bytes of its memory, 0: unknown.  Asks without a context where the driver can, so
 * that the memory of a context is seen when one is made. */
uint64_t kernels_cuda_free(int device);
/* Bytes of it that all processes use; 0: unknown.  For a device that is open. */
uint64_t kernels_cuda_used(int device);
/* Whether its memory is the machine's. */
bool kernels_cuda_integrated(int device);
/* Whether it has FP4_NATIVE; if not, *why has the reason. */
bool kernels_cuda_native(int device, char *why, size_t n);
/* What ranks with GPUs find each other by, PEERS_ID bytes; false: *why has the reason. */
bool kernels_cuda_peers_id(void *id, char *why, size_t n);
/* Which GPU it is, GPU_UUID bytes that no other one has, and its model; false: unknown. */
enum { GPU_UUID = 16 };
bool kernels_cuda_identity(int device, uint8_t *uuid, char *name, size_t n);
typedef void kernels_line_fn(void *ctx, const char *what, const char *value);
/* Lines about devices, versions, and what is missing. */
void kernels_cuda_diagnose(kernels_line_fn *say, void *ctx);

/* ---- a plan -------------------------------------------------------------------------------- */

/* A device that computes nothing and has any amount of memory: what a run on such a device
 * would allocate.  Its memory must not be touched; downloads are zeros.  cpu: how the CPU
 * would compute. */
struct kernels *kernels_dry(const struct device *like, const struct cpu_kind *cpu,
                            struct err *err);

/* ---- helpers ------------------------------------------------------------------------------- */

/* Activations at p, (rows, cols), and element i of them. */
static inline struct matrix
kernels_act(const struct kernels *k, const void *p, size_t rows, size_t cols)
{
    return matrix_of(k->is.act, p, rows, cols);
}

#endif
