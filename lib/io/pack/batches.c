/* SPDX-License-Identifier: MIT */
/* batches: values are made in chunks on all threads, and written in order while the next
 * ones are made. */
#include "lib/io/pack/produce.h"

#include "lib/core/num.h"
#include "lib/core/par.h"

#include <math.h>

static void
round_to_source(enum dtype source, float *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (source == DT_BF16)
            f[i] = num_from_bf16(num_to_bf16(f[i]));
        else if (source == DT_F16)
            f[i] = num_from_f16(num_to_f16(f[i]));
}

static void
make_weights(const struct producer *x, uint64_t first, float *f, size_t n)
{
    const struct item *it = x->it;
    // sqrt is exact to the last bit, so the scale is the same everywhere
    double sigma = sqrt(8.0 * 4294967295.0 / 12.0);
    if (it->how == HOW_ONE)
        for (size_t i = 0; i < n; i++)
            f[i] = 1;
    else
        x->random(f, first, n, x->p->c->init_seed, it->row, x->p->init_range / sigma);
    round_to_source(it->source, f, n);
}

int
producer_floats(const struct producer *x, uint64_t first, size_t n,
                struct values_scratch *w, struct range *r, struct err *err)
{
    if (x->it->how == HOW_RANDOM || x->it->how == HOW_ONE) {
        make_weights(x, first, w->f32, n);
        return 0;
    }
    if (values_read(&x->values, first, n, w, err) < 0)
        return -1;
    if (x->values.kind == VALUES_F64)
        item_narrow(x->it, first, w, n, r);
    return 0;
}

size_t
producer_chunk(const struct producer *x, uint64_t chunk)
{
    uint64_t left = x->it->numel - chunk * VALUES_CHUNK;
    return left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
}

uint64_t
producer_chunks(const struct producer *x)
{
    return (x->it->numel + VALUES_CHUNK - 1) / VALUES_CHUNK;
}

static int
make_chunk(struct producer *x, size_t i, struct values_scratch *w, struct err *err)
{
    struct batch *b = x->making;
    const struct item *it = x->it;
    uint64_t chunk = b->first + i, first = chunk * VALUES_CHUNK;
    size_t n = producer_chunk(x, chunk);
    if (x->nvfp4)
        return planes_chunk(x, i, w, err);
    b->range[i] = (struct range){ 0 };
    if (producer_floats(x, first, n, w, &b->range[i], err) < 0)
        return -1;
    b->bytes[i] = n * dtype_bits(it->dtype) / 8;
    item_encode(it, first, w->f32, n, b->out[i], &b->range[i]);
    return 0;
}

static int
write_batch(struct producer *x, const struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        if (x->nvfp4)
            planes_add_error(&x->nvfp4->error, &b->error[i]);
        else
            range_add(&x->range, &b->range[i]);
        // Beyond a value that cannot be held the rest is only counted.
        if (x->discard || x->range.over)
            continue;
        if (writer_write(x->w, b->out[i], b->bytes[i]) < 0)
            return -1;
        io_progress_add(x->progress, b->bytes[i]);
    }
    return 0;
}

/* Item 0 writes the batch before, the others make the next. */
static int
work(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct producer *x = ctx;
    if (i > 0)
        return make_chunk(x, i - 1, &x->scratch[worker], err);
    if (write_batch(x, x->writing) < 0) // its error is the writer's: the plan's
        return err_set(err, x->p->err->kind, "%s", x->p->err->msg);
    return 0;
}

int
producer_convert(struct producer *x)
{
    struct err err = { 0 };
    uint64_t chunks = producer_chunks(x);
    x->making = &x->batch[0];
    x->writing = &x->batch[1];
    x->writing->n = 0;
    for (uint64_t at = 0; at < chunks || x->writing->n; at += x->writing->n) {
        uint64_t left = chunks - at;
        x->making->first = at;
        x->making->n = left < x->capacity ? (size_t)left : x->capacity;
        if (par_for(x->threads, x->making->n + 1, work, x, &err) < 0)
            return x->p->err->kind ? -1 : err_set(x->p->err, err.kind, "%s", err.msg);
        struct batch *made = x->making;
        x->making = x->writing;
        x->writing = made;
    }
    return 0;
}
