/* SPDX-License-Identifier: MIT */
/* produce: payloads.  Copies stream through one buffer; everything else is made in chunks
 * (batches.c), NVFP4 in two passes (planes.c). */
#include "lib/convert/produce.h"

static int
copy_piece(struct producer *x, uint64_t at, size_t n, struct hash *h)
{
    const struct item *it = x->it;
    if (store_read(it->s, it->entry, at, x->copy, n, x->p->err) < 0 ||
        (it->how == HOW_SCALES && values_check_scales(&x->values, at * NVFP4_BLOCK,
                                                      x->copy, n, x->p->err) < 0) ||
        producer_write(x, x->copy, n) < 0)
        return -1;
    if (h)
        hash_add(h, x->copy, n);
    return 0;
}

/* A payload with a checksum is hashed on the way. */
static int
copy(struct producer *x)
{
    const struct tensor *t = x->it->entry;
    uint8_t digest[XXH3_BYTES];
    struct hash *h = t->xxh3 ? hash_begin(HASH_XXH3) : NULL;
    int rc = t->xxh3 && !h ? err_set(x->p->err, ERR_MEMORY, "out of memory") : 0;
    for (uint64_t at = 0; at < t->nbytes && rc == 0; at += COPY_BYTES) {
        uint64_t left = t->nbytes - at;
        rc = copy_piece(x, at, left < COPY_BYTES ? (size_t)left : COPY_BYTES, h);
    }
    hash_end(h, rc == 0 ? digest : NULL);
    return rc == 0 && h ? store_check_digest(x->it->s, t, digest, x->p->err) : rc;
}

static int
write_other_scale(struct producer *x)
{
    const struct item *it = x->it;
    float f;
    if (store_check_payload(it->s, it->entry, x->p->err) < 0 ||
        values_scale(&f, it->s, it->entry, "tensor", it->name, x->p->err) < 0)
        return -1;
    return producer_scale(
        x, it->how == HOW_SWAPPED ? scale_swapped(it->view->dialect, f) : 1 / f);
}

static int
make_chunk(struct producer *x, struct chunk *c, uint64_t first, size_t n,
           struct values_scratch *w, struct err *err)
{
    if (producer_floats(x, first, n, w, &c->range, err) < 0)
        return -1;
    c->bytes = n * dtype_bits(x->it->dtype) / 8;
    item_encode(x->it, first, w->f32, n, c->out, &c->range);
    return 0;
}

int
producer_item(struct producer *x, const struct item *it)
{
    x->it = it;
    switch (it->how) {
    case HOW_SCALES:
        x->values = (struct values){ .s = it->s, .v = it->view };
        return copy(x);
    case HOW_COPY:
        return copy(x);
    case HOW_RECIPROCAL:
    case HOW_SWAPPED:
        return write_other_scale(x);
    case HOW_F32:
        return producer_scale(x, it->f32);
    case HOW_ZERO:
        return writer_zero(x->w, it->numel * dtype_bits(it->dtype) / 8);
    case HOW_NVFP4:
        return producer_plane(x, it);
    default:
        x->range = (struct range){ 0 };
        return producer_begin(x, it) < 0 || producer_convert(x, make_chunk) < 0
                   ? -1
                   : range_settle(x->p, it, &x->range);
    }
}
