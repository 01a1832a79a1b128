/* SPDX-License-Identifier: MIT */
/* producer: reading the values of an item, and writing bytes of it. */
#include "lib/convert/produce.h"

#include "lib/base/num.h"

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
    b->chunk = calloc(n, sizeof *b->chunk);
    bool good = b->chunk != NULL;
    for (size_t i = 0; i < n && good; i++) {
        b->chunk[i].out = malloc((size_t)VALUES_CHUNK * 4);
        good = b->chunk[i].out != NULL;
    }
    return good;
}

static void
batch_close(struct batch *b, size_t n)
{
    for (size_t i = 0; b->chunk && i < n; i++)
        free(b->chunk[i].out);
    free(b->chunk);
}

struct producer *
producer_open(struct plan *p, struct writer *w, struct host_progress *progress)
{
    struct producer *x = calloc(1, sizeof *x);
    bool bad = !x;
    if (x) {
        unsigned n = p->c->threads;
        *x = (struct producer){ .p = p,
                                .w = w,
                                .progress = progress,
                                .threads = n,
                                .capacity = (size_t)n * PER_WORKER,
                                .pool.k = p->c->gpu };
        x->scratch = calloc(n, sizeof *x->scratch);
        x->copy = malloc(COPY_BYTES);
        x->random = random_weights[p->c->host->isa];
        x->measure = p->c->report || p->c->host->warn;
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
    pool_close(&x->pool);
    free(x);
}

/* ---- values of the item at work -------------------------------------------------- */

int
producer_values(struct producer *x, const struct item *it)
{
    x->it = it;
    return it->how == HOW_CONVERT
               ? values_open(&x->values, it->s, it->view, x->p->c->host->isa, x->p->err)
               : 0;
}

int
producer_begin(struct producer *x, const struct item *it)
{
    // Verified just before the values are used: the second read is from the page cache.
    if (it->how == HOW_CONVERT && view_check_payloads(it->s, it->view, x->p->err) < 0)
        return -1;
    return producer_values(x, it);
}

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

uint64_t
producer_chunks(const struct producer *x)
{
    return (x->it->numel + VALUES_CHUNK - 1) / VALUES_CHUNK;
}

size_t
producer_chunk(const struct producer *x, uint64_t chunk)
{
    uint64_t left = x->it->numel - chunk * VALUES_CHUNK;
    return left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
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

enum dtype
item_file_floats(const struct item *it)
{
    enum dtype d = it->view && it->how == HOW_CONVERT ? it->view->dtype : DT_NONE;
    return d == DT_F16 || d == DT_BF16 || d == DT_F32 ? d : DT_NONE;
}

const void *
producer_read(const struct producer *x, uint64_t chunk, struct values_scratch *w,
              enum dtype *d, struct err *err)
{
    uint64_t first = chunk * VALUES_CHUNK;
    size_t n = producer_chunk(x, chunk);
    *d = item_file_floats(x->it);
    if (*d == DT_NONE) {
        *d = DT_F32;
        return producer_floats(x, first, n, w, NULL, err) < 0 ? NULL : w->f32;
    }
    size_t bytes = dtype_bits(*d) / 8;
    return store_read(x->it->s, x->it->entry, first * bytes, w->bytes, n * bytes, err) <
                   0
               ? NULL
               : w->bytes;
}

/* ---- to the writer --------------------------------------------------------------- */

int
producer_write(struct producer *x, const uint8_t *bytes, size_t n)
{
    for (size_t at = 0; at < n; at += COPY_BYTES) {
        size_t part = n - at < COPY_BYTES ? n - at : COPY_BYTES;
        if (writer_write(x->w, bytes + at, part) < 0)
            return -1;
        host_progress_add(x->progress, part);
    }
    return 0;
}

int
producer_scale(struct producer *x, float f)
{
    uint8_t bytes[4];
    uint32_t bits;
    char q[TEXT_QUOTE];
    if (!isfinite(f) || f <= 0) // a reciprocal may overflow
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

/* Blocks of zeros as another program's dialect has them. */
void
producer_settle_zeros(const struct view_dialect *d, uint8_t *codes, uint8_t *scales,
                      size_t blocks)
{
    for (size_t b = 0; b < blocks && d->foreign; b++)
        if (scales[b] == 0) {
            memset(codes + b * (NVFP4_BLOCK / 2), 0, NVFP4_BLOCK / 2);
            scales[b] = d->zero_scale;
        }
}

void
producer_add_error(struct quant_error *sum, const struct quant_error *e)
{
    sum->noise += e->noise;
    sum->signal += e->signal;
    sum->max = fmaxf(sum->max, e->max);
    sum->zero_scales += e->zero_scales;
    sum->saturated += e->saturated;
}
