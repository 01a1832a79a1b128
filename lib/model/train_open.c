/* SPDX-License-Identifier: MIT */
/* train_open: the memory of a training: arrays of the checkpoint, weights of products,
 * gradients. */
#include "lib/model/train.h"

#include "lib/base/num.h"
#include "lib/model/delayed.h"
#include "lib/model/gradient.h"
#include "lib/model/shard.h"
#include "lib/model/squares.h"
#include "lib/model/update.h"

#include <stdlib.h>

static int
no_memory(struct train *t)
{
    return err_set(t->err, ERR_MEMORY, "out of memory for a training");
}

/* ---- arrays ----------------------------------------------------------------------------- */

/* What a rank holds of an array; *span: of its elements. */
static uint64_t
held_bytes(const struct train *t, const struct array *a, unsigned rank,
           struct span *span)
{
    uint64_t at;
    *span = train_has_parts(t, a)
                ? train_span_of(t, a->row, rank)
                : (struct span){ a->row, 0, t->net.table.row[a->row].numel };
    if (a->plane >= ARRAY_M && !t->tensor[a->row].trained)
        return 0;
    uint64_t bytes = array_bytes(a, span, &at);
    return bytes ? bytes : 1; // no memory means another thing
}

static int
alloc_array(struct train *t, size_t i)
{
    const struct array *a = &t->arrays.v[i];
    struct train_tensor *x = &t->tensor[a->row];
    struct train_held *h = &t->held[i];
    unsigned rank = t->layout.comm ? t->layout.comm->rank : 0;
    uint64_t bytes = held_bytes(t, a, rank, &h->span);
    if (bytes == 0)
        return 0;
    h->device = kernels_alloc(
        t->net.k, a->plane < ARRAY_M ? MEMORY_MASTER : MEMORY_MOMENTS, (size_t)bytes);
    if (!h->device)
        return -1;
    optimizer_of(&t->layout.arrays)->attach(x, a->plane, h->device);
    return 0;
}

static bool
is_trained(const struct train *t, const struct row *r)
{
    uint32_t last = t->layout.last_layers;
    return last == 0 || (r->layer >= 0 && r->layer >= (int)t->net.frozen);
}

static void
describe_tensor(struct train *t, size_t i)
{
    const struct row *r = &t->net.table.row[i];
    const struct array_layout *l = &t->layout.arrays;
    struct train_tensor *x = &t->tensor[i];
    x->trained = is_trained(t, r);
    x->rows = r->rank == 2 ? (size_t)r->shape[0] : 1;
    x->cols = (size_t)r->shape[r->rank - 1];
    optimizer_of(l)->describe(x, l, r);
}

static int
alloc_arrays(struct train *t)
{
    struct kernels *k = t->net.k;
    size_t n = t->net.table.n;
    int rc = arrays_open(&t->arrays, &t->net.table, &t->layout.arrays, t->err);
    if (rc < 0)
        return -1;
    t->held = calloc(t->arrays.n, sizeof *t->held);
    t->tensor = calloc(n, sizeof *t->tensor);
    t->masters = calloc(n, sizeof *t->masters);
    t->host_squares = calloc(n, sizeof *t->host_squares);
    t->released = calloc(n, sizeof *t->released);
    if (!t->held || !t->tensor || !t->masters || !t->host_squares || !t->released)
        return no_memory(t);
    for (size_t i = 0; i < n; i++)
        describe_tensor(t, i);
    for (size_t i = 0; i < t->arrays.n && rc == 0; i++)
        rc = alloc_array(t, i);
    t->squares =
        rc == 0 ? kernels_alloc(k, MEMORY_OTHER, n * sizeof *t->squares) : NULL;
    t->clips = t->squares ? kernels_alloc(k, MEMORY_OTHER, n * sizeof *t->clips) : NULL;
    return t->clips ? 0 : -1;
}

/* ---- weights of products ------------------------------------------------------------------- */

/* The master of a row as a matrix, or this rank's rows of it. */
static struct matrix
master_of(const struct train *t, size_t i)
{
    const struct train_tensor *x = &t->tensor[i];
    struct matrix whole = optimizer_of(&t->layout.arrays)->master(x);
    if (!train_parts_master(t, i))
        return whole;
    return matrix_of(whole.dtype, whole.data, (size_t)train_span(t, i).count / x->cols,
                     x->cols);
}

/* Weights that weights_open has not quantized: the master, or a copy of it. */
static int
point_weights(struct train *t)
{
    const struct array_layout *l = &t->layout.arrays;
    for (size_t i = 0; i < t->net.table.n; i++) {
        const struct row *r = &t->net.table.row[i];
        struct train_tensor *x = &t->tensor[i];
        struct matrix *w = &t->net.t[i].w;
        if (!l->packed)
            t->masters[i] = master_of(t, i);
        if (t->weights.packed[i].scale2)
            continue;
        *w = master_of(t, i);
        if (!optimizer_of(l)->needs_unpacked(l, r))
            continue;
        x->unpacked = kernels_alloc(t->net.k, MEMORY_WEIGHTS, r->numel * sizeof(float));
        if (!x->unpacked)
            return -1;
        *w = matrix_of(DT_F32, x->unpacked, w->rows, w->cols);
    }
    return 0;
}

/* ---- gradients ----------------------------------------------------------------------------- */

/* Whether a step's gradients are sums over passes, each of which is computed alone. */
static bool
adds_passes(const struct train *t)
{
    return !t->layout.release && !t->layout.one_pass;
}

/* Where a pass's gradients are released or added at once, one memory serves all tensors, since
 * only gradients of one product exist at a time; two where they are exchanged while the next
 * product runs.  That of the embedding grows from the head to the end of the backward pass; norms
 * are small, and waiting for an exchange of theirs would be waiting for all before it. */
static bool
has_own(const struct train *t, size_t i)
{
    const struct row *r = &t->net.table.row[i];
    return (!t->layout.release && !adds_passes(t)) || r->role == ROLE_EMBED ||
           (train_overlaps(t) && r->rank == 1);
}

/* Products of a layer take turns: down, gate and up, o, q and k and v. */
static unsigned
piece_of(const struct train *t, size_t i)
{
    enum role role = t->net.table.row[i].role;
    if (has_own(t, i))
        return TRAIN_OWN;
    return train_overlaps(t) && role != ROLE_DOWN && role != ROLE_O;
}

/* Of a pass: only projections get all of their gradient from one product. */
static enum dtype
grad_dtype(const struct train *t, const struct row *r)
{
    return r->quantized ? t->net.k->is.grad : DT_F32;
}

/* Gradients of one product lie one behind the other: those of k and v behind that of q, that
 * of up behind that of gate. */
static bool
is_behind(const struct train *t, size_t i)
{
    enum role role = t->net.table.row[i].role;
    return role == ROLE_K || role == ROLE_V || role == ROLE_UP;
}

/* Bytes from a gradient to the next one, and of all of a product from i on. */
static uint64_t
grad_stride(const struct train *t, size_t i)
{
    const struct row *r = &t->net.table.row[i];
    return round_up(r->numel * dtype_bits(grad_dtype(t, r)) / 8, TABLE_ALIGN);
}

static uint64_t
product_bytes(const struct train *t, size_t i)
{
    uint64_t bytes = grad_stride(t, i);
    while (++i < t->net.table.n && is_behind(t, i))
        bytes += grad_stride(t, i);
    return bytes;
}

static void *
place_grad(struct train *t, size_t i)
{
    if (is_behind(t, i))
        return (char *)t->net.t[i - 1].grad.data + grad_stride(t, i - 1);
    if (t->tensor[i].piece != TRAIN_OWN)
        return t->piece[t->tensor[i].piece];
    return kernels_alloc(t->net.k, MEMORY_GRADIENTS, product_bytes(t, i));
}

/* Of a sum over passes. */
static size_t
sum_bytes(size_t count)
{
    return (count ? count : 1) * sizeof(float);
}

uint64_t
train_part_bytes(const struct train *t, unsigned rank)
{
    uint64_t bytes = gradient_received(t, rank);
    struct span span;
    for (size_t i = 0; i < t->arrays.n; i++)
        bytes += held_bytes(t, &t->arrays.v[i], rank, &span);
    for (size_t i = 0; i < t->net.table.n && adds_passes(t); i++)
        if (t->net.t[i].grad.data)
            bytes += sum_bytes((size_t)train_span_of(t, i, rank).count);
    return bytes;
}

/* Sums over passes; of parts they have no rows. */
static int
alloc_sums(struct train *t)
{
    for (size_t i = 0; i < t->net.table.n; i++) {
        size_t count = (size_t)train_span(t, i).count;
        const struct matrix *pass = &t->net.t[i].grad;
        if (!pass->data)
            continue;
        void *p = kernels_alloc(t->net.k, MEMORY_GRADIENTS, sum_bytes(count));
        if (!p)
            return -1;
        t->tensor[i].grad = train_shards(t)
                                ? matrix_of(DT_F32, p, 1, count)
                                : matrix_of(DT_F32, p, pass->rows, pass->cols);
    }
    t->net.done = gradient_add;
    t->net.begin = train_overlaps(t) ? gradient_begin : NULL;
    return 0;
}

/* What gradients share. */
static int
alloc_pieces(struct train *t)
{
    uint64_t max[TRAIN_PIECES + 1] = { 0 };
    for (size_t i = 0; i < t->net.table.n; i++) {
        unsigned piece = t->tensor[i].piece = piece_of(t, i);
        if (t->tensor[i].trained && product_bytes(t, i) > max[piece])
            max[piece] = product_bytes(t, i);
    }
    for (int i = 0; i < TRAIN_PIECES; i++)
        if (max[i] &&
            !(t->piece[i] = kernels_alloc(t->net.k, MEMORY_GRADIENTS, max[i])))
            return -1;
    return 0;
}

static int
alloc_gradients(struct train *t)
{
    const struct table *table = &t->net.table;
    if (alloc_pieces(t) < 0)
        return -1;
    for (size_t i = 0; i < table->n; i++) {
        const struct matrix *w = &t->net.t[i].w;
        struct matrix *g = &t->net.t[i].grad;
        *g = matrix_of(grad_dtype(t, &table->row[i]), NULL, w->rows, w->cols);
        if (t->tensor[i].trained && !(g->data = place_grad(t, i)))
            return -1;
        if (!adds_passes(t))
            t->tensor[i].grad = *g;
    }
    if (adds_passes(t) && alloc_sums(t) < 0)
        return -1;
    if (train_shards(t) && squares_open(t) < 0)
        return -1;
    return gradient_open(t);
}

/* ---- open and close ------------------------------------------------------------------------ */

/* See net.h, layer. */
static void
await_layer(void *ctx, uint32_t layer)
{
    struct train *t = ctx;
    weights_await(&t->weights, layer);
}

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
    t->net.ctx = t;
    t->net.done = layout->release ? update_released : NULL;
    t->net.layer = train_overlaps(t) ? await_layer : NULL;
    t->bad_row = t->net.table.n;
    const struct optimizer *o = optimizer_of(&layout->arrays);
    if (!o->runs_on(&k->is))
        return err_set(err, ERR_USAGE, "%s: only the CPU has it, %s has not", o->name,
                       k->is.name);
    bool parts = train_shards(t) && layout->quant_from <= 1;
    const struct weights_form form = { .quant = layout->quant,
                                       .share = layout->share,
                                       .expand = layout->expand,
                                       .fp8 = layout->fp8,
                                       .pack_fp8 = layout->pack_fp8,
                                       .overlaps = parts && train_overlaps(t) };
    t->net.fp8 = layout->quant && layout->fp8;
    if (alloc_arrays(t) < 0 || weights_open(&t->weights, &t->net, &form) < 0 ||
        (parts && weights_share(&t->weights, layout->comm) < 0) ||
        point_weights(t) < 0 || alloc_gradients(t) < 0 || delayed_open(t) < 0)
        return -1;
    return 0;
}

static void
free_device(struct train *t)
{
    struct kernels *k = t->net.k;
    for (size_t i = 0; t->held && i < t->arrays.n; i++)
        kernels_free(k, t->held[i].device);
    for (size_t i = 0; t->tensor && i < t->net.table.n; i++) {
        kernels_free(k, t->tensor[i].unpacked);
        if (adds_passes(t))
            kernels_free(k, t->tensor[i].grad.data);
        if (t->net.t && has_own(t, i) && !is_behind(t, i))
            kernels_free(k, t->net.t[i].grad.data);
    }
    for (int i = 0; i < TRAIN_PIECES; i++)
        kernels_free(k, t->piece[i]);
    kernels_free(k, t->received);
    squares_close(t);
    delayed_close(t);
    kernels_free(k, t->squares);
    kernels_free(k, t->clips);
    net_close(&t->net);
}

void
train_close(struct train *t)
{
    weights_close(&t->weights);
    if (t->net.k)
        free_device(t);
    arrays_close(&t->arrays);
    free(t->held);
    free(t->tensor);
    free(t->masters);
    free(t->host_squares);
    free(t->released);
    free(t->losses.loss);
    free(t->sums);
    free(t->part);
    free(t->term);
    *t = (struct train){ 0 };
}
