/* SPDX-License-Identifier: MIT */
/* batches: values are made in chunks on all threads, and written in order while the next
 * ones are made. */
#include "lib/convert/produce.h"

#include "lib/base/par.h"

static int
write_batch(struct producer *x, const struct batch *b)
{
    for (const struct chunk *c = b->chunk; c < b->chunk + b->n; c++) {
        if (x->nvfp4)
            producer_add_error(&x->nvfp4->error, &c->error);
        else
            range_add(&x->range, &c->range);
        // After the first value that is too large they are only counted.
        if (!x->discard && !x->range.over && producer_write(x, c->out, c->bytes) < 0)
            return -1;
    }
    return 0;
}

/* Item 0 writes the previous batch, the others make the next. */
static int
work(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct producer *x = ctx;
    if (i > 0) {
        uint64_t chunk = x->making->first + i - 1;
        struct chunk *c = &x->making->chunk[i - 1];
        c->error = (struct quant_error){ 0 };
        c->range = (struct range){ 0 };
        return x->make(x, c, chunk * VALUES_CHUNK, producer_chunk(x, chunk),
                       &x->scratch[worker], err);
    }
    if (write_batch(x, x->writing) < 0) // the error is in the plan
        return err_set(err, x->p->err->kind, "%s", x->p->err->msg);
    return 0;
}

int
producer_convert(struct producer *x, chunk_fn *make)
{
    struct err err = { 0 };
    uint64_t chunks = producer_chunks(x);
    x->make = make;
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
