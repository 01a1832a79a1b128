/* SPDX-License-Identifier: MIT */
/* produce: payloads.  Copies stream through one buffer; everything else is made in chunks
 * (batches.c), NVFP4 in two passes (planes.c). */
#include "lib/io/pack/produce.h"

#include "lib/core/num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PER_WORKER = 4 }; // chunks that a worker makes before they are written

static random_fn *const random_weights[ISA_COUNT] = {
    [ISA_SCALAR] = random_weights_scalar,
#if defined __x86_64__
    [ISA_AVX2] = random_weights_avx2,
    [ISA_AVX512] = random_weights_avx512,
#elif defined __aarch64__
    [ISA_NEON] = random_weights_neon,
#endif
};

static bool
batch_open(struct batch *b, size_t n)
{
    b->out = calloc(n, sizeof *b->out);
    b->bytes = calloc(n, sizeof *b->bytes);
    b->error = calloc(n, sizeof *b->error);
    b->range = calloc(n, sizeof *b->range);
    bool good = b->out && b->bytes && b->error && b->range;
    for (size_t i = 0; i < n && good; i++) {
        b->out[i] = malloc((size_t)VALUES_CHUNK * 4);
        good = b->out[i] != NULL;
    }
    return good;
}

static void
batch_close(struct batch *b, size_t n)
{
    for (size_t i = 0; b->out && i < n; i++)
        free(b->out[i]);
    free(b->out);
    free(b->bytes);
    free(b->error);
    free(b->range);
}

struct producer *
producer_open(struct plan *p, struct writer *w, struct io_progress *progress)
{
    struct producer *x = calloc(1, sizeof *x);
    bool bad = !x;
    if (x) {
        unsigned n = p->c->threads;
        *x = (struct producer){ .p = p,
                                .w = w,
                                .progress = progress,
                                .threads = n,
                                .capacity = (size_t)n * PER_WORKER };
        x->scratch = calloc(n, sizeof *x->scratch);
        x->copy = malloc(COPY_BYTES);
        x->random = random_weights[p->c->io->isa];
        x->measure = p->c->report || p->c->io->warn;
        bad = !x->scratch || !x->copy || !batch_open(&x->batch[0], x->capacity) ||
              !batch_open(&x->batch[1], x->capacity);
        for (unsigned i = 0; i < n && !bad; i++)
            bad = values_scratch(&x->scratch[i], p->err) < 0;
    }
    if (bad) {
        err_set(p->err, ERR_MEMORY, "out of memory for conversion");
        producer_close(x);
        return NULL;
    }
    return x;
}

void
producer_close(struct producer *x)
{
    if (!x)
        return;
    for (unsigned i = 0; x->scratch && i < x->threads; i++)
        values_scratch_free(&x->scratch[i]);
    batch_close(&x->batch[0], x->capacity);
    batch_close(&x->batch[1], x->capacity);
    free(x->scratch);
    free(x->copy);
    free(x->amax);
    free(x);
}

/* ---- copies ---------------------------------------------------------------------- */

int
producer_write(struct producer *x, const uint8_t *bytes, size_t n)
{
    for (size_t at = 0; at < n; at += COPY_BYTES) {
        size_t part = n - at < COPY_BYTES ? n - at : COPY_BYTES;
        if (writer_write(x->w, bytes + at, part) < 0)
            return -1;
        io_progress_add(x->progress, part);
    }
    return 0;
}

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

/* What values are made of is looked at just before it is used: the second read finds it
 * in the page cache. */
static int
check_payloads(struct producer *x, const struct item *it)
{
    const struct view *v = it->view;
    const struct tensor *const t[] = { v->entry, v->scale, v->scale2 };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (t[i] && store_check_payload(it->s, t[i], x->p->err) < 0)
            return -1;
    return 0;
}

int
producer_begin(struct producer *x, const struct item *it)
{
    x->it = it;
    if (it->how != HOW_CONVERT)
        return 0;
    return check_payloads(x, it) < 0
               ? -1
               : values_open(&x->values, it->s, it->view, x->p->c->io->isa, x->p->err);
}

int
producer_scale(struct producer *x, float f)
{
    uint8_t bytes[4];
    uint32_t bits;
    char q[TEXT_QUOTE];
    if (!isfinite(f) || f <= 0) // a reciprocal can be none
        return err_set(x->p->err, ERR_FORMAT,
                       "%s: \"%s\": the tensor scale would be %.9g, and must be a "
                       "float above 0",
                       item_source(x->it),
                       text_quote(q, x->it->name, strlen(x->it->name)), (double)f);
    memcpy(&bits, &f, sizeof bits);
    store_le32(bytes, bits);
    return writer_write(x->w, bytes, 4);
}

/* Only scales of other programs are examined more closely: ours are multipliers, and the
 * divisor is the reciprocal. */
float
scale_swapped(const struct view_dialect *from, float f)
{
    return from->foreign ? nvfp4_swap_scale(f, !from->divides) : 1 / f;
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
    case HOW_ZERO:
        return writer_zero(x->w, it->numel * dtype_bits(it->dtype) / 8);
    case HOW_NVFP4:
        return producer_plane(x, it);
    default:
        x->range = (struct range){ 0 };
        return producer_begin(x, it) < 0 || producer_convert(x) < 0
                   ? -1
                   : range_settle(x->p, it, &x->range);
    }
}
