/* SPDX-License-Identifier: MIT */
/* ops: see kernels.h.  Shapes are checked and operations are counted here, once for all
 * devices. */
#include "kernels/ops.h"

#include <assert.h>

/* Call an operation of the device, unless an earlier one has failed. */
#define RUN(k, name, ...)                                                              \
    do {                                                                               \
        if ((k)->op->name && (k)->err->kind == ERR_NONE)                               \
            (k)->op->name((k), __VA_ARGS__);                                           \
    } while (0)

/* ---- matrices ------------------------------------------------------------------------- */

struct matrix
matrix_rows(const struct matrix *m, size_t first, size_t n)
{
    struct matrix r = *m;
    assert(m->dtype != DT_NVFP4 && first + n <= m->rows);
    r.rows = n;
    r.data = dtype_at(m->dtype, m->data, first * m->stride);
    r.transposed = m->transposed ? m->transposed + first : NULL;
    return r;
}

struct matrix
matrix_cols(const struct matrix *m, size_t first, size_t n)
{
    struct matrix c = *m;
    assert(m->dtype != DT_NVFP4 && first + n <= m->cols);
    c.cols = n;
    c.data = dtype_at(m->dtype, m->data, first);
    c.transposed = m->transposed ? m->transposed + first * m->transposed_stride : NULL;
    return c;
}

/* ---- checks --------------------------------------------------------------------------- */

/* A view of that shape; NULL is one of any. */
static bool
is_view(const struct matrix *m, size_t rows, size_t cols)
{
    return !m || (m->rows == rows && m->cols == cols && m->stride >= cols);
}

static bool
is_dense(const struct matrix *m, size_t rows, size_t cols)
{
    return !m || (is_view(m, rows, cols) && matrix_is_dense(m));
}

/* Activations of that shape. */
static bool
is_act(const struct kernels *k, const struct matrix *m, size_t rows, size_t cols)
{
    return !m || (m->dtype == k->is.act && is_dense(m, rows, cols));
}

/* Whether products take it as FP8; it may lack the planes that they do not read. */
static bool
is_fp8(const struct matrix *m, size_t rows, size_t cols)
{
    return m->dtype == DT_F8_E4M3 && is_dense(m, rows, cols) && m->scale2;
}

/* What products take beside weights. */
static bool
is_input(const struct kernels *k, const struct matrix *m, size_t rows, size_t cols)
{
    return is_act(k, m, rows, cols) || is_fp8(m, rows, cols);
}

/* Logits: activations, or f32 where they are compared and not learnt from. */
static bool
is_logits(const struct kernels *k, const struct matrix *m, size_t rows, size_t cols)
{
    return is_act(k, m, rows, cols) || (m->dtype == DT_F32 && is_dense(m, rows, cols));
}

static bool
is_act_view(const struct kernels *k, const struct matrix *m, size_t rows, size_t cols)
{
    return !m || (m->dtype == k->is.act && is_view(m, rows, cols));
}

/* Columns of what several products of one x give. */
static size_t
sum_of_rows(const struct matrix *w, size_t n)
{
    size_t rows = 0;
    for (size_t i = 0; i < n; i++)
        rows += w[i].rows;
    return rows;
}

/* Two operations for each weight and token. */
static void
count_product(struct kernels *k, size_t tokens, const struct matrix *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        k->usage.flops += 2.0 * (double)tokens * (double)w[i].rows * (double)w[i].cols;
}

/* Two products of a triangle of scores, as if all tokens were one document. */
static void
count_attention(struct kernels *k, const struct heads *h, double passes)
{
    double keys = (double)h->past + 0.5 * (double)h->tokens;
    k->usage.flops +=
        passes * 4.0 * (double)h->tokens * keys * (double)h->query * (double)h->dim;
}

/* ---- memory and queues ------------------------------------------------------------------ */

void
usage_add(struct usage *u, enum memory what, int64_t bytes)
{
    u->now[what] += (uint64_t)bytes;
    u->total += (uint64_t)bytes;
    if (u->now[what] > u->peak[what])
        u->peak[what] = u->now[what];
    if (u->total > u->total_peak)
        u->total_peak = u->total;
}

void
kernels_close(struct kernels *k)
{
    if (k)
        k->op->close(k);
}

void *
kernels_alloc(struct kernels *k, enum memory what, size_t bytes)
{
    return k->err->kind == ERR_NONE ? k->op->alloc(k, what, bytes) : NULL;
}

void
kernels_free(struct kernels *k, void *p)
{
    if (p)
        k->op->free(k, p);
}

void
kernels_upload(struct kernels *k, void *to, const void *from, size_t bytes)
{
    RUN(k, upload, to, from, bytes);
}

int
kernels_download(struct kernels *k, void *to, const void *from, size_t bytes)
{
    return k->err->kind == ERR_NONE ? k->op->download(k, to, from, bytes) : -1;
}

int
kernels_download_begin(struct kernels *k, const void *from, size_t bytes, bool stays)
{
    return k->err->kind == ERR_NONE && k->op->download_begin
               ? k->op->download_begin(k, from, bytes, stays)
               : -1;
}

int
kernels_download_end(struct kernels *k, int handle, void *to, size_t bytes)
{
    return k->op->download_end(k, handle, to, bytes); // also after an error
}

void *
kernels_stage(struct kernels *k)
{
    return k->err->kind == ERR_NONE ? k->op->stage(k) : NULL;
}

void
kernels_stage_upload(struct kernels *k, void *to, void *stage, size_t bytes)
{
    k->op->stage_upload(k, to, stage, bytes); // after an error it takes the buffer back
}

void
kernels_queue(struct kernels *k, enum queue queue)
{
    if (queue != k->queue && k->op->queue)
        k->op->queue(k, queue); // after an error, too: the device keeps which one it is
    k->queue = queue;
}

void
kernels_record(struct kernels *k, unsigned e)
{
    assert(e < EVENTS);
    RUN(k, record, e);
}

void
kernels_wait(struct kernels *k, unsigned e)
{
    assert(e < EVENTS);
    RUN(k, wait, e);
}

bool
kernels_replay(struct kernels *k, const void *key, size_t bytes)
{
    assert(bytes <= REPLAY_KEY);
    return k->op->replay && k->err->kind == ERR_NONE && k->op->replay(k, key, bytes);
}

void
kernels_recorded(struct kernels *k, bool repeats)
{
    if (k->op->recorded)
        k->op->recorded(k, repeats); // after an error it ends what was begun
}

/* ---- several ranks ----------------------------------------------------------------------- */

int
kernels_join(struct kernels *k, unsigned rank, unsigned ranks, const void *id)
{
    RUN(k, join, rank, ranks, id);
    return k->err->kind ? -1 : 0;
}

int
kernels_join_copies(struct kernels *k, const struct company *of, char *why, size_t n)
{
    bool joined = k->op->join_copies && k->err->kind == ERR_NONE &&
                  k->op->join_copies(k, of, why, n);
    return k->err->kind ? -1 : joined;
}

void
op_transfer(struct kernels *k, unsigned ranks, const struct exchanged *e, size_t n)
{
    RUN(k, transfer, ranks, e, n);
}

double
kernels_exchanged(struct kernels *k)
{
    return k->op->exchanged ? k->op->exchanged(k) : 0;
}

/* ---- operations --------------------------------------------------------------------------- */

void
op_copy(struct kernels *k, void *to, const void *from, size_t bytes)
{
    RUN(k, copy, to, from, bytes);
}

void
op_zero(struct kernels *k, void *p, size_t bytes)
{
    RUN(k, zero, p, bytes);
}

void
op_gather(struct kernels *k, const struct matrix *y, const struct matrix *x,
          const int32_t *index)
{
    assert(is_act(k, y, y->rows, x->cols) && is_act(k, x, x->rows, x->cols));
    RUN(k, gather, y, x, index);
}

void
op_scatter(struct kernels *k, const struct matrix *y, const struct matrix *x,
           const int32_t *index)
{
    assert(is_act(k, y, y->rows, x->cols) && is_act(k, x, x->rows, x->cols));
    RUN(k, scatter, y, x, index);
}

void
op_convert(struct kernels *k, const struct matrix *y, const struct matrix *x)
{
    assert(y->dtype == (x->per_row ? k->is.act : DT_F32));
    assert(is_dense(y, x->rows, x->cols) && matrix_is_dense(x));
    RUN(k, convert, y, x);
}

void
op_expand(struct kernels *k, const struct matrix *w)
{
    assert(w->dtype == DT_NVFP4 && w->expanded && w->data && k->is.expands);
    RUN(k, expand, w);
}

void
op_linear(struct kernels *k, size_t n, const struct matrix *y, const struct matrix *x,
          const struct matrix *w, const struct matrix *c)
{
    size_t t = x->rows;
    assert(n > 0 && n <= LINEAR_MAX && (!c || n == 1));
    assert(x->per_row ? x->dtype == DT_NVFP4 : is_input(k, x, t, x->cols));
    for (size_t i = 0; i < n; i++) {
        assert((x->dtype == DT_F8_E4M3) == (w[i].dtype == DT_F8_E4M3));
        assert(is_dense(&w[i], w[i].rows, x->cols) && is_dense(&y[i], t, w[i].rows));
        assert(y[i].dtype == k->is.act || (y[i].dtype == DT_F32 && !c));
        assert(!x->per_row || w[i].dtype == DT_NVFP4);
    }
    assert(is_act(k, c, t, w->rows));
    count_product(k, t, w, n);
    RUN(k, linear, n, y, x, w, c);
}

/* Call one that is several in one; after an error there is nothing left to do. */
#define TRY(k, name, ...)                                                              \
    ((k)->op->name && ((k)->err->kind != ERR_NONE || (k)->op->name((k), __VA_ARGS__)))

bool
op_norm_linear(struct kernels *k, size_t n, const struct matrix *y,
               const struct matrix *x, const float *gain, float eps,
               const struct matrix *w)
{
    assert(n > 0 && n <= LINEAR_MAX && is_act(k, x, x->rows, x->cols));
    for (size_t i = 0; i < n; i++)
        assert(is_act(k, &y[i], x->rows, w[i].rows) &&
               is_dense(&w[i], w[i].rows, x->cols));
    bool done = TRY(k, norm_linear, n, y, x, gain, eps, w);
    if (done)
        count_product(k, x->rows, w, n);
    return done;
}

bool
op_norm_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *x,
               const float *gain, float eps, const struct matrix *w)
{
    assert(is_act(k, x, x->rows, x->cols) && is_act(k, y, x->rows, w->rows));
    assert(is_dense(&w[0], w->rows, x->cols) && is_dense(&w[1], w->rows, x->cols));
    bool done = TRY(k, norm_swiglu, y, x, gain, eps, w);
    if (done)
        count_product(k, x->rows, w, 2);
    return done;
}

bool
op_attend(struct kernels *k, const struct matrix *out, const struct matrix *q,
          const struct matrix *key, const struct matrix *value, const struct attend *a)
{
    size_t t = a->tokens, wide = a->query * a->dim, narrow = a->kv * a->dim;
    assert(t <= ATTEND_MAX && is_act(k, out, t, wide) && is_act(k, q, t, wide));
    assert(is_act(k, key, t, narrow) && is_act(k, value, t, narrow));
    bool done = TRY(k, attend, out, q, key, value, a);
    for (size_t i = 0; done && i < t; i++) {
        const struct heads one = { 1, a->past[i], a->query, a->kv, a->dim, NULL, 0 };
        count_attention(k, &one, 1);
    }
    return done;
}

static void
count_layers(struct kernels *k, const struct layer_steps *l)
{
    for (size_t i = 0; i < l->layers; i++) {
        const struct heads one = { 1, l->past, l->query, l->kv, l->dim, NULL, 0 };
        count_product(k, 1, l->layer[i].w, LAYER_WEIGHTS);
        count_attention(k, &one, 1);
    }
}

bool
op_layers(struct kernels *k, const struct matrix *y, const struct matrix *x,
          const struct layer_steps *l)
{
    assert(is_act(k, y, 1, x->cols) && is_act(k, x, 1, x->cols));
    bool done = TRY(k, layers, y, x, l);
    if (done)
        count_layers(k, l);
    return done;
}

bool
op_token(struct kernels *k, const struct layer_steps *l, const struct token_ends *e)
{
    assert(e->logits->dtype == DT_F32 && matrix_is_dense(e->embed));
    assert(e->head->cols == e->embed->cols && e->head->cols == l->layer->w[0].cols);
    assert(e->logits->rows == 1 && e->logits->cols == e->head->rows);
    bool done = TRY(k, token, l, e);
    if (done) {
        count_layers(k, l);
        count_product(k, 1, e->head, 1);
    }
    return done;
}

void
op_linear_dx(struct kernels *k, size_t n, const struct matrix *dx,
             const struct matrix *dy, const struct matrix *w, const struct matrix *c)
{
    assert(n > 0 && n <= LINEAR_MAX);
    assert(is_input(k, dy, dx->rows, sum_of_rows(w, n)));
    for (size_t i = 0; i < n; i++)
        assert(is_act(k, dx, dx->rows, w[i].cols) &&
               is_dense(&w[i], w[i].rows, dx->cols) &&
               (dy->dtype == DT_F8_E4M3) == (w[i].dtype == DT_F8_E4M3));
    assert(is_act(k, c, dx->rows, dx->cols));
    count_product(k, dy->rows, w, n);
    RUN(k, linear_dx, n, dx, dy, w, c);
}

void
op_linear_dw(struct kernels *k, size_t n, const struct matrix *dw,
             const struct matrix *dy, const struct matrix *x, bool add)
{
    assert(n > 0 && n <= LINEAR_MAX);
    assert(is_input(k, dy, x->rows, sum_of_rows(dw, n)) &&
           is_input(k, x, x->rows, x->cols) && x->dtype == dy->dtype);
    for (size_t i = 0; i < n; i++)
        assert(is_dense(&dw[i], dw[i].rows, x->cols) &&
               (dw[i].dtype == DT_F32 || dw[i].dtype == k->is.grad));
    count_product(k, x->rows, dw, n);
    RUN(k, linear_dw, n, dw, dy, x, add);
}

void
op_embed(struct kernels *k, const struct matrix *y, const struct matrix *w,
         const int32_t *ids)
{
    assert(is_act(k, y, y->rows, w->cols) && matrix_is_dense(w));
    RUN(k, embed, y, w, ids);
}

void
op_embed_dw(struct kernels *k, const struct matrix *dw, const struct matrix *dy,
            const int32_t *ids)
{
    assert(dw->dtype == DT_F32 && matrix_is_dense(dw));
    assert(is_act(k, dy, dy->rows, dw->cols));
    RUN(k, embed_dw, dw, dy, ids);
}

void
op_norm(struct kernels *k, const struct matrix *y, float *rstd, const struct matrix *x,
        const float *gain, float eps)
{
    assert(is_act(k, y, x->rows, x->cols) && is_act(k, x, x->rows, x->cols));
    RUN(k, norm, y, rstd, x, gain, eps);
}

void
op_norm_bwd(struct kernels *k, const struct matrix *dx, float *dgain,
            const struct matrix *y, const struct matrix *dy, const struct matrix *x,
            const float *rstd, const float *gain, const struct matrix *c)
{
    assert(is_act(k, dx, x->rows, x->cols) && is_act(k, y, x->rows, x->cols));
    assert(is_act(k, dy, x->rows, x->cols) && is_act(k, x, x->rows, x->cols));
    assert(!c || c->data == dx->data);
    RUN(k, norm_bwd, dx, dgain, y, dy, x, rstd, gain, c);
}

void
op_qk_norm_rope(struct kernels *k, const struct matrix *y, float *rstd,
                const struct matrix *x, const float *gain, const struct rope *r)
{
    size_t cols = r->heads * r->dim;
    assert(is_act(k, y, x->rows, cols) && is_act(k, x, x->rows, cols));
    RUN(k, qk_norm_rope, y, rstd, x, gain, r);
}

void
op_qk_norm_rope_bwd(struct kernels *k, const struct matrix *d, float *dgain,
                    const struct matrix *x, const float *rstd, const float *gain,
                    const struct rope *r)
{
    size_t cols = r->heads * r->dim;
    assert(is_act_view(k, d, x->rows, cols) && is_act(k, x, x->rows, cols));
    RUN(k, qk_norm_rope_bwd, d, dgain, x, rstd, gain, r);
}

void
op_attention(struct kernels *k, const struct matrix *out, float *lse,
             const struct matrix *q, const struct matrix *key,
             const struct matrix *value, const struct heads *h)
{
    size_t t = h->tokens, wide = h->query * h->dim, narrow = h->kv * h->dim;
    assert(is_act(k, out, t, wide) && is_act(k, q, t, wide));
    assert(is_act(k, key, h->past + t, narrow) &&
           is_act(k, value, h->past + t, narrow));
    count_attention(k, h, 1);
    RUN(k, attention, out, lse, q, key, value, h);
}

void
op_attention_bwd(struct kernels *k, const struct matrix *dq, const struct matrix *dkey,
                 const struct matrix *dvalue, const struct matrix *dout,
                 const struct matrix *out, const float *lse, const struct matrix *q,
                 const struct matrix *key, const struct matrix *value, float *work,
                 const struct heads *h)
{
    size_t t = h->tokens, wide = h->query * h->dim, narrow = h->kv * h->dim;
    assert(h->past == 0 && is_act_view(k, dq, t, wide));
    assert(is_act_view(k, dkey, t, narrow) && is_act_view(k, dvalue, t, narrow));
    assert(is_act(k, dout, t, wide) && is_act(k, out, t, wide) &&
           is_act(k, q, t, wide));
    assert(is_act(k, key, t, narrow) && is_act(k, value, t, narrow));
    count_attention(k, h, 2);
    RUN(k, attention_bwd, dq, dkey, dvalue, dout, out, lse, q, key, value, work, h);
}

void
op_attention_rope_bwd(struct kernels *k, const struct matrix *dq,
                      const struct matrix *dkey, const struct matrix *dvalue,
                      const struct matrix *dout, const struct matrix *out,
                      const float *lse, const struct matrix *q,
                      const struct matrix *key, const struct matrix *value, float *work,
                      const struct heads *h, const struct head_norm *n)
{
    assert(n->rope->heads == h->query && n->rope->dim == h->dim);
    if (TRY(k, attention_rope_bwd, dq, dkey, dvalue, dout, out, lse, q, key, value,
            work, h, n)) {
        count_attention(k, h, 2);
        return;
    }
    op_attention_bwd(k, dq, dkey, dvalue, dout, out, lse, q, key, value, work, h);
    op_qk_norm_rope_bwd(k, dq, n->dgain, n->x, n->rstd, n->gain, n->rope);
}

void
op_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *gate,
          const struct matrix *up)
{
    assert(is_act(k, y, y->rows, y->cols));
    assert(is_act(k, gate, y->rows, y->cols) && is_act(k, up, y->rows, y->cols));
    RUN(k, swiglu, y, gate, up);
}

void
op_swiglu_bwd(struct kernels *k, const struct matrix *d_gate_up, const struct matrix *d,
              const struct matrix *gate, const struct matrix *up)
{
    assert(is_act(k, d_gate_up, d->rows, 2 * d->cols) &&
           is_act(k, d, d->rows, d->cols));
    assert(is_act(k, gate, d->rows, d->cols) && is_act(k, up, d->rows, d->cols));
    RUN(k, swiglu_bwd, d_gate_up, d, gate, up);
}

void
op_cross_entropy(struct kernels *k, float *loss, const struct matrix *logits,
                 const int32_t *label, float scale)
{
    assert(is_logits(k, logits, logits->rows, logits->cols));
    RUN(k, cross_entropy, loss, logits, label, scale);
}

void
op_distill(struct kernels *k, float *ce, float *kl, const struct matrix *logits,
           const struct matrix *teacher, const int32_t *label,
           const struct distill *how, float scale)
{
    assert(is_logits(k, logits, logits->rows, logits->cols));
    assert(is_logits(k, teacher, logits->rows, logits->cols));
    assert(teacher->dtype == logits->dtype);
    assert(how->temperature > 0);
    RUN(k, distill, ce, kl, logits, teacher, label, how, scale);
}

void
op_l1(struct kernels *k, float *loss, const struct matrix *dx, const struct matrix *dw,
      const struct matrix *x, const struct matrix *w, const int32_t *label, float scale)
{
    assert(is_act(k, x, x->rows, w->cols) && is_act(k, dx, x->rows, w->cols));
    assert(matrix_is_dense(w) && is_dense(dw, w->rows, w->cols));
    assert(!dw || dw->dtype == DT_F32);
    RUN(k, l1, loss, dx, dw, x, w, label, scale);
}

void
op_argmax(struct kernels *k, int32_t *id, const struct matrix *logits)
{
    assert(logits->dtype == DT_F32 && matrix_is_dense(logits));
    RUN(k, argmax, id, logits);
}

void
op_block_gram(struct kernels *k, double *gram, size_t width, const struct matrix *x)
{
    assert(is_act(k, x, x->rows, x->cols) && x->cols % width == 0);
    RUN(k, block_gram, gram, width, x);
}

void
op_column_stats(struct kernels *k, double *squares, float *peak, const struct matrix *x)
{
    assert(is_act(k, x, x->rows, x->cols));
    RUN(k, column_stats, squares, peak, x);
}

void
op_amax(struct kernels *k, float *out, const struct matrix *x)
{
    assert(matrix_is_dense(x));
    RUN(k, amax, out, x);
}

void
op_largest(struct kernels *k, float *amax, const float *of, size_t n, size_t ranks)
{
    RUN(k, largest, amax, of, n, ranks);
}

void
op_quantize(struct kernels *k, const struct matrix *to, const struct matrix *x,
            const float *amax, size_t n, const struct quant_spec *spec)
{
    assert(to->dtype == DT_NVFP4 && to->cols % NVFP4_BLOCK == 0);
    assert(is_dense(x, to->rows, to->cols) && to->per_row == (n == 0));
    assert(!to->per_row || (is_act(k, x, to->rows, to->cols) &&
                            (spec->kind == QUANT_MAX || spec->kind == QUANT_NATIVE)));
    assert(spec->given == 0 || (to->per_row && spec->kind == QUANT_MAX));
    RUN(k, quantize, to, x, amax, n, spec);
}

void
op_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *x,
          const float *amax, size_t n, const struct fp8_found *found)
{
    assert(is_fp8(to, x->rows, x->cols) && x->cols % FP8_UNIT == 0 && n > 0);
    assert(x->dtype == DT_NVFP4 ? !x->per_row && x->rows % FP8_UNIT == 0
                                : is_act(k, x, x->rows, x->cols));
    assert(!to->transposed || to->transposed_stride >= x->rows);
    RUN(k, to_fp8, to, x, amax, n, found);
}

void
op_norm_to_fp8(struct kernels *k, const struct matrix *to, float *rstd,
               const struct matrix *x, const float *gain, float eps, const float *amax,
               const struct fp8_found *found)
{
    assert(is_fp8(to, x->rows, x->cols) && is_act(k, x, x->rows, x->cols));
    assert(x->cols % FP8_UNIT == 0 && to->data && !to->transposed);
    RUN(k, norm_to_fp8, to, rstd, x, gain, eps, amax, found);
}

void
op_norm_again_to_fp8(struct kernels *k, const struct matrix *to, const float *rstd,
                     const struct matrix *x, const float *gain, const float *amax,
                     const struct fp8_found *found)
{
    assert(is_fp8(to, x->rows, x->cols) && is_act(k, x, x->rows, x->cols));
    assert(x->cols % FP8_UNIT == 0);
    RUN(k, norm_again_to_fp8, to, rstd, x, gain, amax, found);
}

void
op_swiglu_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *gate,
                 const struct matrix *up, const float *amax,
                 const struct fp8_found *found)
{
    assert(is_fp8(to, gate->rows, gate->cols) && gate->cols % FP8_UNIT == 0);
    assert(is_act(k, gate, to->rows, to->cols) && is_act(k, up, to->rows, to->cols));
    RUN(k, swiglu_to_fp8, to, gate, up, amax, found);
}

void
op_swiglu_bwd_to_fp8(struct kernels *k, const struct matrix *d_gate_up,
                     const float *amax, const struct fp8_found *found,
                     const struct matrix *y, const float *y_amax,
                     const struct matrix *d, const struct matrix *gate,
                     const struct matrix *up)
{
    assert(is_fp8(d_gate_up, d->rows, 2 * d->cols) && is_fp8(y, d->rows, d->cols));
    assert(is_act(k, d, d->rows, d->cols) && d->cols % FP8_UNIT == 0);
    assert(is_act(k, gate, d->rows, d->cols) && is_act(k, up, d->rows, d->cols));
    RUN(k, swiglu_bwd_to_fp8, d_gate_up, amax, found, y, y_amax, d, gate, up);
}

void
op_sum(struct kernels *k, const struct matrix *y, size_t n, const struct matrix *x,
       bool add)
{
    assert(y->dtype == DT_F32 && (x->dtype == DT_F32 || x->dtype == DT_BF16));
    for (size_t i = 0; i < n; i++)
        assert(is_dense(y, x[i].rows, x[i].cols) && matrix_is_dense(&x[i]) &&
               x[i].dtype == x->dtype);
    for (size_t i = 0; i < n; i += SUM_MAX)
        RUN(k, sum, y, n - i < SUM_MAX ? n - i : SUM_MAX, x + i, add || i);
}

void
op_sum_squares(struct kernels *k, double *out, const struct matrix *g, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert(!g[i].data || matrix_is_dense(&g[i]));
    RUN(k, sum_squares, out, g, count);
}

void
op_block_squares(struct kernels *k, double *out, const struct matrix *g, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert(g[i].data && matrix_is_dense(&g[i]));
    RUN(k, block_squares, out, g, count);
}

void
op_clip(struct kernels *k, float *out, const double *squares, float factor, float limit,
        double max, const float *before)
{
    RUN(k, clip, out, squares, factor, limit, max, before);
}

void
op_adamw(struct kernels *k, const struct adam_update *u, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        assert(matrix_is_dense(&u[i].grad) && u[i].first % 32 == 0);
        assert(u[i].first >= u[i].state.first);
        assert(u[i].first - u[i].state.first + u[i].n <=
               u[i].grad.rows * u[i].grad.cols);
    }
    RUN(k, adamw, u, count);
}

void
op_torchsharp_adamw(struct kernels *k, const struct torchsharp_state *s,
                    const struct matrix *grad, size_t first, size_t n,
                    const struct adam_step *a)
{
    assert(k->is.torchsharp && is_dense(grad, s->rows, s->cols));
    assert(first + n <= s->rows);
    RUN(k, torchsharp_adamw, s, grad, first, n, a);
}
