/* SPDX-License-Identifier: MIT */
/* train: see train.h; numerics.md section 7 by its numbers. */
#include "lib/model/train.h"

#include "lib/core/maths.h"
#include "lib/core/num.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GROUP = 32,      // elements that share the scale of an 8-bit moment
    CHUNK = 256,     // elements that a part of an update is a multiple of
    MOST_ARRAYS = 6, // of a tensor
};

/* ---- arrays ----------------------------------------------------------------------------- */

static int
no_memory(struct train *t)
{
    return err_set(t->err, ERR_MEMORY, "out of memory for a training");
}

static void *
take(struct train *t, enum part part, uint64_t bytes)
{
    struct kernels *k = t->net.k;
    k->part = part;
    return k->alloc(k, (size_t)bytes);
}

/* One more array for a row of the table, of this type and shape. */
static int
new_array(struct train *t, const struct row *r, const char *before, const char *behind,
          struct train_array shape, bool there, enum part part, void **device)
{
    char name[160];
    struct train_array *a = &t->array[t->n_arrays++];
    int len = snprintf(name, sizeof name, "%s%s%s", before, r->name, behind);
    *a = shape;
    a->bytes =
        a->shape[0] * (a->rank == 2 ? a->shape[1] : 1) * dtype_bits(a->dtype) / 8;
    a->name = arena_copy(&t->arena, name, (size_t)len);
    if (!a->name)
        return no_memory(t);
    if (!there)
        return 0;
    *device = a->device = take(t, part, a->bytes);
    return a->device ? 0 : -1;
}

/* Of the row's shape, or with a scale a group. */
static int
add_array(struct train *t, const struct row *r, const char *before, const char *behind,
          enum dtype dtype, bool there, enum part part, void **device)
{
    bool scales = *behind != '\0';
    struct train_array a = { .dtype = dtype, .rank = scales ? 1 : r->rank };
    a.shape[0] = scales ? (r->numel + GROUP - 1) / GROUP : r->shape[0];
    a.shape[1] = scales ? 0 : r->shape[1];
    return new_array(t, r, before, behind, a, there, part, device);
}

static int
add_moments(struct train *t, size_t i)
{
    const struct row *r = &t->net.table.row[i];
    struct adam_state *s = &t->tensor[i].state;
    bool there = t->tensor[i].trained, small = s->moments == MOMENTS_INT8;
    enum dtype dtype = s->moments == MOMENTS_F32 ? DT_F32 : DT_BF16;
    void *m_scale = NULL, *v_scale = NULL;
    if (add_array(t, r, "adam.m/", "", small ? DT_I8 : dtype, there, PART_MOMENTS,
                  &s->m) < 0 ||
        (small && add_array(t, r, "adam.m/", ".scale", DT_BF16, there, PART_MOMENTS,
                            &m_scale) < 0) ||
        add_array(t, r, "adam.v/", "", small ? DT_U8 : dtype, there, PART_MOMENTS,
                  &s->v) < 0 ||
        (small && add_array(t, r, "adam.v/", ".scale", DT_BF16, there, PART_MOMENTS,
                            &v_scale) < 0))
        return -1;
    s->m_scale = m_scale;
    s->v_scale = v_scale;
    return 0;
}

/* Codes and scales of NVFP4; the last dimension shrinks. */
static int
add_nvfp4(struct train *t, const struct row *r, const char *before, bool there,
          enum part part, struct seed_plane *p)
{
    unsigned last = r->rank - 1;
    struct train_array codes = { .dtype = DT_U8,
                                 .rank = r->rank,
                                 .shape = { r->shape[0], r->shape[1] } };
    struct train_array scales = codes;
    if (r->shape[last] % NVFP4_BLOCK)
        return err_set(t->err, ERR_USAGE,
                       "%s: rows of %llu columns cannot be packed: no multiple of %d",
                       r->name, (unsigned long long)r->shape[last], NVFP4_BLOCK);
    codes.shape[last] /= 2;
    scales.dtype = DT_F8_E4M3;
    scales.shape[last] /= NVFP4_BLOCK;
    if (new_array(t, r, before, ".qdata", codes, there, part, &p->q) < 0)
        return -1;
    return new_array(t, r, before, ".scale", scales, there, part, &p->scales);
}

/* A moment of the seed's: NVFP4, or 8 bits with a scale a row. */
static int
add_seed_moment(struct train *t, size_t i, const char *before, struct seed_plane *p)
{
    const struct row *r = &t->net.table.row[i];
    bool there = t->tensor[i].trained;
    if (t->layout.seed == SEED_NVFP4)
        return add_nvfp4(t, r, before, there, PART_MOMENTS, p);
    struct train_array q = { .dtype = DT_I8,
                             .rank = r->rank,
                             .shape = { r->shape[0], r->shape[1] } };
    struct train_array scales = { .dtype = DT_F32,
                                  .rank = 1,
                                  .shape = { r->rank == 2 ? r->shape[0] : 1 } };
    if (new_array(t, r, before, "", q, there, PART_MOMENTS, &p->q) < 0)
        return -1;
    return new_array(t, r, before, ".scale", scales, there, PART_MOMENTS, &p->scales);
}

static int
add_seed_moments(struct train *t, size_t i)
{
    struct seed_state *s = &t->tensor[i].seed;
    return add_seed_moment(t, i, "adam.m/", &s->m) < 0
               ? -1
               : add_seed_moment(t, i, "adam.v/", &s->v);
}

/* The weight of a row, and what else is known of it. */
static int
add_seed_weight(struct train *t, size_t i)
{
    const struct row *r = &t->net.table.row[i];
    struct seed_state *s = &t->tensor[i].seed;
    s->moments = t->layout.seed;
    s->rows = r->rank == 2 ? (size_t)r->shape[0] : 1;
    s->cols = (size_t)r->shape[r->rank - 1];
    return add_nvfp4(t, r, "", true, PART_MASTER, &s->w);
}

static int
add_master(struct train *t, size_t i)
{
    struct adam_state *s = &t->tensor[i].state;
    s->dtype = t->layout.master;
    s->moments = t->layout.moments;
    int rc = add_array(t, &t->net.table.row[i], "", "", s->dtype, true, PART_MASTER,
                       &s->master);
    t->values[i] = s->master;
    return rc;
}

static bool
is_trained(const struct train *t, const struct row *r)
{
    uint32_t last = t->layout.last_layers;
    return last == 0 || (r->layer >= 0 && r->layer >= (int)t->net.frozen);
}

static int
take_arrays(struct train *t)
{
    const struct table *table = &t->net.table;
    bool seed = t->layout.seed != SEED_NONE;
    int rc = 0;
    t->array = calloc(MOST_ARRAYS * table->n, sizeof *t->array);
    t->tensor = calloc(table->n, sizeof *t->tensor);
    t->values = calloc(table->n, sizeof *t->values);
    t->host = calloc(table->n, sizeof *t->host);
    t->order = calloc(table->n, sizeof *t->order);
    if (!t->array || !t->tensor || !t->values || !t->host || !t->order)
        return no_memory(t);
    for (size_t i = 0; i < table->n && rc == 0; i++) {
        t->tensor[i].trained = is_trained(t, &table->row[i]);
        rc = seed ? add_seed_weight(t, i) : add_master(t, i);
    }
    for (size_t i = 0; i < table->n && rc == 0; i++)
        rc = seed ? add_seed_moments(t, i) : add_moments(t, i);
    t->squares = rc == 0 ? take(t, PART_OTHER, table->n * sizeof *t->squares) : NULL;
    t->clips = t->squares ? take(t, PART_OTHER, table->n * sizeof *t->clips) : NULL;
    return t->clips ? 0 : -1;
}

/* What products take, of rows that are not quantized. */
static int
point_weights(struct train *t)
{
    bool seed = t->layout.seed != SEED_NONE;
    for (size_t i = 0; i < t->net.table.n; i++) {
        const struct row *r = &t->net.table.row[i];
        struct train_tensor *x = &t->tensor[i];
        struct weight *w = &t->net.t[i].w;
        if (w->dtype == DT_NVFP4) // weights_open has done it
            continue;
        *w = (struct weight){ .dtype = seed ? DT_NVFP4 : t->layout.master,
                              .values = seed ? x->seed.w.q : x->state.master,
                              .scales = x->seed.w.scales,
                              .out = r->rank == 2 ? (size_t)r->shape[0] : 1,
                              .in = (size_t)r->shape[r->rank - 1] };
        if (seed ? !r->quantized : r->rank == 1 && t->layout.master != DT_F32) {
            x->gain = take(t, PART_WEIGHTS, r->numel * sizeof *x->gain);
            if (!x->gain)
                return -1;
            w->dtype = DT_F32;
            w->values = x->gain;
        }
    }
    return 0;
}

/* ---- gradients ----------------------------------------------------------------------------- */

/* With release one memory serves all tensors, since only gradients that are given together
 * are there at a time.  That of the embedding grows from the head to the end of the way back. */
static bool
has_own(const struct train *t, size_t i)
{
    return !t->layout.release || t->net.table.row[i].role == ROLE_EMBED;
}

/* Only projections get all of their gradient from one product. */
static enum dtype
grad_dtype(const struct train *t, const struct row *r)
{
    return t->layout.one_pass && r->quantized ? t->net.k->is.grad : DT_F32;
}

static uint64_t
grad_bytes(const struct train *t, size_t i)
{
    const struct row *r = &t->net.table.row[i];
    return r->numel * dtype_bits(grad_dtype(t, r)) / 8;
}

/* Gradients that are given together lie one behind the other, as one product may give them:
 * those of k and v behind that of q, that of up behind that of gate. */
static bool
is_behind(const struct train *t, size_t i)
{
    enum role role = t->net.table.row[i].role;
    return role == ROLE_K || role == ROLE_V || role == ROLE_UP;
}

/* How far the next one is, and the bytes of all from i on. */
static uint64_t
grad_room(const struct train *t, size_t i)
{
    return round_up(grad_bytes(t, i), TABLE_ALIGN);
}

static uint64_t
grads_room(const struct train *t, size_t i)
{
    uint64_t bytes = grad_room(t, i);
    while (++i < t->net.table.n && is_behind(t, i))
        bytes += grad_room(t, i);
    return bytes;
}

static void *
grad_place(struct train *t, size_t i)
{
    if (is_behind(t, i))
        return (char *)t->net.t[i - 1].grad.values + grad_room(t, i - 1);
    return has_own(t, i) ? take(t, PART_GRADIENTS, grads_room(t, i)) : t->scratch;
}

static int
take_gradients(struct train *t)
{
    const struct table *table = &t->net.table;
    uint64_t most = 0;
    for (size_t i = 0; i < table->n; i++)
        if (t->tensor[i].trained && !has_own(t, i) && grads_room(t, i) > most)
            most = grads_room(t, i);
    if (most && !(t->scratch = take(t, PART_GRADIENTS, most)))
        return -1;
    for (size_t i = 0; i < table->n; i++)
        if (t->tensor[i].trained) {
            struct grad *g = &t->net.t[i].grad;
            g->dtype = grad_dtype(t, &table->row[i]);
            g->values = grad_place(t, i);
            if (!g->values)
                return -1;
        }
    return 0;
}

static void released(void *ctx, size_t i);

int
train_open(struct train *t, const struct config *c, struct kernels *k,
           const struct train_layout *layout, struct err *err)
{
    *t = (struct train){ .layout = *layout, .last_norm = -1, .err = err };
    if (net_open(&t->net, c, k, layout->positions, err) < 0)
        return -1;
    t->net.kind = layout->loss;
    t->net.recompute = layout->recompute;
    t->net.activations = layout->activations;
    if (layout->last_layers && layout->last_layers < c->layers)
        t->net.frozen = c->layers - layout->last_layers;
    if (layout->release) {
        t->net.done = released;
        t->net.ctx = t;
    }
    t->bad_row = t->net.table.n;
    if (layout->seed != SEED_NONE && !k->seed_adamw)
        return err_set(err, ERR_USAGE,
                       "the seed's packed optimizer: only the CPU has it, %s has not",
                       k->is.name);
    if (take_arrays(t) < 0 ||
        weights_open(&t->weights, &t->net, layout->quant, layout->share,
                     layout->expand) < 0 ||
        point_weights(t) < 0 || take_gradients(t) < 0)
        return -1;
    return 0;
}

void
train_close(struct train *t)
{
    struct kernels *k = t->net.k;
    weights_close(&t->weights);
    for (size_t i = 0; i < t->n_arrays; i++)
        k->release(k, t->array[i].device);
    for (size_t i = 0; t->tensor && i < t->net.table.n; i++) {
        k->release(k, t->tensor[i].gain);
        if (t->net.t && has_own(t, i) && !is_behind(t, i))
            k->release(k, t->net.t[i].grad.values);
    }
    if (k) {
        k->release(k, t->scratch);
        k->release(k, t->squares);
        k->release(k, t->clips);
    }
    if (k)
        net_close(&t->net);
    arena_free(&t->arena);
    free(t->array);
    free(t->tensor);
    free(t->values);
    free(t->host);
    free(t->order);
    free(t->loss);
    *t = (struct train){ 0 };
}

/* What products see, of the masters as they are. */
static int
make_weights(struct train *t)
{
    struct kernels *k = t->net.k;
    bool seed = t->layout.seed != SEED_NONE;
    for (size_t i = 0; i < t->net.table.n; i++)
        if (t->tensor[i].gain && seed)
            k->seed_values(k, t->tensor[i].gain, &t->tensor[i].seed);
        else if (t->tensor[i].gain)
            k->convert(k, t->tensor[i].gain, t->tensor[i].state.master,
                       t->layout.master, (size_t)t->net.table.row[i].numel);
    if (weights_make(&t->weights, t->values, t->layout.master) < 0)
        return -1;
    return weights_check(&t->weights, &t->bad_row);
}

int
train_ready(struct train *t)
{
    weights_begin(&t->weights); // a step that was skipped may have left some behind
    return make_weights(t);
}

/* ---- the update ----------------------------------------------------------------------------- */

/* 1 - beta^t */
static float
rest(double beta, uint64_t t)
{
    if (beta <= 0)
        return 1;
    double log = maths_log(beta) * (double)t;
    return log < -600 ? 1 : (float)(1 - maths_exp(log));
}

static void
begin_update(struct train *t)
{
    const struct train_numbers *n = &t->numbers;
    // beta is a float in the formula, so it is one here, too.
    t->adam = (struct adam_step){ .lr = n->lr,
                                  .beta1 = n->beta1,
                                  .beta2 = n->beta2,
                                  .eps = n->eps,
                                  .rest1 = rest((double)n->beta1, t->t + 1),
                                  .rest2 = rest((double)n->beta2, t->t + 1),
                                  .seed = n->seed,
                                  .step = (uint32_t)(t->step + 1) };
    weights_begin(&t->weights);
}

static double
clip_for(const struct train *t, double norm)
{
    double limit = (double)t->numbers.clip;
    if (limit <= 0 || norm < 0)
        return 1;
    return fmin(1, limit / (norm + 1e-6));
}

/* Squares of gradients must stay numbers of f32, in sums, too. */
static const double most_norm = 1e18;

/* What the gradient of a tensor is multiplied by. */
static double
tensor_clip(const struct train *t, size_t i)
{
    return t->numbers.mode == CLIP_TENSOR ? clip_for(t, t->tensor[i].norm)
                                          : (double)t->clip;
}

/* Some rows at a time. */
static void
update_seed(struct train *t, size_t i, const struct adam_step *a)
{
    struct kernels *k = t->net.k;
    const struct seed_state *s = &t->tensor[i].seed;
    size_t chunk = t->numbers.chunk_rows ? t->numbers.chunk_rows : s->rows;
    for (size_t at = 0; at < s->rows; at += chunk)
        k->seed_adamw(k, s, &t->net.t[i].grad, at,
                      s->rows - at < chunk ? s->rows - at : chunk, a);
}

/* What the gradient of a tensor is multiplied by, as the device finds it. */
static float *
find_clip(struct train *t, size_t i, const float *before)
{
    struct kernels *k = t->net.k;
    k->clip(k, &t->clips[i], &t->squares[i], t->clip,
            t->numbers.mode == CLIP_TENSOR ? t->numbers.clip : 0, most_norm, before);
    return &t->clips[i];
}

/* One tensor, some rows at a time. */
static void
update(struct train *t, size_t i, const float *clip)
{
    struct kernels *k = t->net.k;
    const struct row *r = &t->net.table.row[i];
    struct adam_step a = t->adam;
    uint64_t chunk = t->numbers.chunk_rows * (r->rank == 2 ? r->shape[1] : 1);
    a.row = (uint32_t)i;
    a.decay = r->rank == 2 ? t->numbers.decay : 0;
    a.clip = clip;
    if (t->layout.seed != SEED_NONE) {
        update_seed(t, i, &a);
        return;
    }
    a.amax = weights_amax(&t->weights, i);
    chunk = chunk ? (chunk + CHUNK - 1) / CHUNK * CHUNK : r->numel;
    for (uint64_t at = 0; at < r->numel; at += chunk)
        k->adamw(k, &t->tensor[i].state, &t->net.t[i].grad, at,
                 (size_t)(r->numel - at < chunk ? r->numel - at : chunk), &a);
}

/* The first reason is the one. */
static void skip(struct train *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void
skip(struct train *t, const char *fmt, ...)
{
    struct train_result *r = t->result;
    va_list ap;
    if (r->outcome != TRAIN_DONE)
        return;
    r->outcome = t->moved ? TRAIN_SPOILT : TRAIN_SKIPPED;
    va_start(ap, fmt);
    vsnprintf(r->reason, sizeof r->reason, fmt, ap);
    va_end(ap);
}

/* ---- gradients as they come ------------------------------------------------------------------- */

/* Whether a gradient can be used: its norm is known, and what it is multiplied by. */
static bool
usable(struct train *t, size_t i)
{
    double norm = t->tensor[i].norm;
    if (norm * tensor_clip(t, i) <= most_norm)
        return true;
    skip(t, "the gradient of %s %s", t->net.table.row[i].name,
         isfinite(norm) ? "is too large" : "is not finite");
    return false;
}

/* A gradient is complete: use it and forget it.  The device decides, so that nothing
 * waits: after one that is not finite nothing moves, but what has moved already cannot be
 * taken back here. */
static void
released(void *ctx, size_t i)
{
    struct train *t = ctx;
    struct kernels *k = t->net.k;
    const float *before = t->n_order ? &t->clips[t->order[t->n_order - 1]] : NULL;
    const size_t numel = (size_t)t->net.table.row[i].numel;
    k->sum_squares(k, &t->squares[i], &t->net.t[i].grad, &numel, 1);
    update(t, i, find_clip(t, i, before));
    t->order[t->n_order++] = i;
}

/* The norms of all gradients. */
static int
measure(struct train *t)
{
    struct kernels *k = t->net.k;
    const struct table *table = &t->net.table;
    if (k->download(k, t->host, t->squares, table->n * sizeof *t->host) < 0)
        return -1;
    for (size_t i = 0; i < table->n; i++)
        if (t->tensor[i].trained)
            t->tensor[i].norm = sqrt(t->host[i]);
    return 0;
}

/* What became of gradients that were used as they came. */
static int
settle_released(struct train *t)
{
    if (measure(t) < 0)
        return -1;
    for (size_t i = 0; i < t->n_order && usable(t, t->order[i]); i++)
        t->moved = true;
    return 0;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static uint64_t
count_targets(const struct net_batch *b, size_t n)
{
    uint64_t targets = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < b[i].tokens; k++)
            targets += b[i].label[k] >= 0;
    return targets;
}

/* Room for the losses of a pass. */
static int
room_for(struct train *t, size_t tokens)
{
    if (tokens <= t->cap_loss)
        return 0;
    free(t->loss);
    t->loss = calloc(tokens, sizeof *t->loss);
    t->cap_loss = t->loss ? tokens : 0;
    return t->loss ? 0 : no_memory(t);
}

/* Sum of the losses of a pass, in the order of its tokens. */
static int
run_pass(struct train *t, const struct net_batch *b, float scale, double *sum)
{
    if (room_for(t, b->tokens) < 0 || net_pass(&t->net, b, scale, t->loss, NULL) < 0)
        return -1;
    for (size_t i = 0; i < b->tokens; i++)
        *sum += (double)t->loss[i];
    return 0;
}

static double
all_norms(const struct train *t)
{
    double sum = 0;
    for (size_t i = 0; i < t->net.table.n; i++)
        if (t->tensor[i].trained)
            sum += t->tensor[i].norm * t->tensor[i].norm;
    return sqrt(sum);
}

/* All or none. */
static void
update_all(struct train *t)
{
    struct train_result *r = t->result;
    if (t->numbers.mode == CLIP_GLOBAL)
        t->clip = (float)clip_for(t, r->grad_norm);
    r->clip = (double)t->clip;
    for (size_t i = 0; i < t->net.table.n; i++)
        if (t->tensor[i].trained)
            usable(t, i);
    if (t->numbers.mode != CLIP_TENSOR) // one for all
        t->net.k->upload(t->net.k, t->clips, &t->clip, sizeof t->clip);
    for (size_t i = 0; i < t->net.table.n && r->outcome == TRAIN_DONE; i++)
        if (t->tensor[i].trained)
            update(t, i,
                   t->numbers.mode == CLIP_TENSOR ? find_clip(t, i, NULL) : t->clips);
}

static int
measure_all(struct train *t)
{
    size_t n = t->net.table.n, *numel = calloc(n, sizeof *numel);
    struct grad *grad = calloc(n, sizeof *grad);
    int rc = -1;
    if (numel && grad) {
        for (size_t i = 0; i < n; i++) {
            numel[i] = (size_t)t->net.table.row[i].numel;
            if (t->tensor[i].trained)
                grad[i] = t->net.t[i].grad;
        }
        t->net.k->sum_squares(t->net.k, t->squares, grad, numel, n);
        rc = measure(t);
    } else {
        no_memory(t);
    }
    free(numel);
    free(grad);
    return rc;
}

/* All gradients are there: judge, clip, update. */
static int
apply(struct train *t)
{
    struct train_result *r = t->result;
    if (r->outcome == TRAIN_DONE && !t->layout.release && measure_all(t) < 0)
        return -1;
    r->grad_norm = all_norms(t);
    if (t->judge && r->outcome == TRAIN_DONE &&
        !t->judge(t->judge_ctx, r->loss, r->grad_norm))
        skip(t, "a spike");
    if (r->outcome == TRAIN_DONE && !t->layout.release)
        update_all(t);
    return 0;
}

static int
run_step(struct train *t, const struct net_batch *b, size_t n)
{
    struct train_result *r = t->result;
    double sum = 0;
    if (t->bad_row < t->net.table.n)
        skip(t, "the weight %s is not finite", t->net.table.row[t->bad_row].name);
    if (r->targets == 0)
        skip(t, "no token is to be learnt");
    if (r->outcome != TRAIN_DONE)
        return 0;
    begin_update(t);
    t->n_order = 0;
    t->clip = t->numbers.mode == CLIP_PREV ? (float)clip_for(t, t->last_norm) : 1;
    r->clip = (double)t->clip;
    for (size_t i = 0; i < n; i++) {
        t->net.add = i > 0;
        if (run_pass(t, &b[i], 1 / (float)r->targets, &sum) < 0 ||
            (t->layout.release && settle_released(t) < 0))
            return -1;
        if (!isfinite(sum))
            skip(t, "the loss is not finite");
    }
    r->loss = sum / (double)r->targets;
    return apply(t);
}

int
train_step(struct train *t, const struct net_batch *b, size_t n, struct train_result *r)
{
    *r = (struct train_result){ .loss = NAN, .grad_norm = NAN, .clip = 1 };
    t->result = r;
    t->moved = false;
    for (size_t i = 0; i < n; i++)
        r->tokens += b[i].tokens;
    r->targets = count_targets(b, n);
    int rc = run_step(t, b, n);
    t->result = NULL;
    if (rc < 0 || t->err->kind)
        return -1;
    t->step++;
    if (r->outcome != TRAIN_DONE)
        return 0;
    t->t++;
    t->last_norm = r->grad_norm;
    if (make_weights(t) < 0)
        return -1;
    if (t->bad_row < t->net.table.n) {
        r->outcome = TRAIN_SPOILT;
        snprintf(r->reason, sizeof r->reason, "the weight %s is not finite any more",
                 t->net.table.row[t->bad_row].name);
    }
    return 0;
}

void
train_pass_over(struct train *t)
{
    t->step++;
}

int
train_eval(struct train *t, const struct net_batch *b, double *sum, uint64_t *targets)
{
    *targets += count_targets(b, 1);
    return run_pass(t, b, 0, sum);
}
