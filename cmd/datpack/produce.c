/* SPDX-License-Identifier: MIT */
/* produce: payloads.  Copies stream through one buffer; conversions and random weights
 * are made in chunks, several at a time on all threads, and written in order. */
#include "cmd/datpack/datpack.h"
#include "cmd/datpack/random.h"

#include "lib/core/num.h"
#include "lib/core/par.h"
#include "lib/nvfp4/codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    COPY_BYTES = 1 << 20,
    PER_WORKER = 8, // chunks that a worker makes before they are written
};

struct producer {
    struct plan *p;
    struct writer *w;
    struct progress *progress;
    unsigned threads;
    struct values_scratch *scratch; // (threads)
    uint8_t **out;                  // (threads * PER_WORKER): VALUES_CHUNK * 4 each
    size_t *out_bytes;              // (threads * PER_WORKER)
    random_fn *random;
    uint8_t *copy; // (COPY_BYTES)
    // the item at work
    const struct item *it;
    struct values values;
    uint64_t first_chunk;
};

static random_fn *const random_weights[ISA_COUNT] = {
    [ISA_SCALAR] = random_weights_scalar,
#if defined __x86_64__
    [ISA_AVX2] = random_weights_avx2,
    [ISA_AVX512] = random_weights_avx512,
#elif defined __aarch64__
    [ISA_NEON] = random_weights_neon,
#endif
};

struct producer *
producer_open(struct plan *p, struct writer *w, struct progress *progress)
{
    struct producer *x = calloc(1, sizeof *x);
    bool bad = !x;
    if (x) {
        unsigned n = p->c->threads;
        *x = (struct producer){ .p = p, .w = w, .progress = progress, .threads = n };
        x->scratch = calloc(n, sizeof *x->scratch);
        x->out = calloc((size_t)n * PER_WORKER, sizeof *x->out);
        x->out_bytes = calloc((size_t)n * PER_WORKER, sizeof *x->out_bytes);
        x->copy = malloc(COPY_BYTES);
        x->random = random_weights[cmd_isa()];
        bad = !x->scratch || !x->out || !x->out_bytes || !x->copy;
        for (unsigned i = 0; i < n && !bad; i++)
            bad = values_scratch(&x->scratch[i], p->err) < 0;
        for (unsigned i = 0; i < n * PER_WORKER && !bad; i++) {
            x->out[i] = malloc((size_t)VALUES_CHUNK * 4);
            bad = !x->out[i];
        }
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
    for (unsigned i = 0; x->out && i < x->threads * PER_WORKER; i++)
        free(x->out[i]);
    free(x->scratch);
    free(x->out);
    free(x->out_bytes);
    free(x->copy);
    free(x);
}

static int
out_of_range(const struct item *it, uint64_t index, double value, struct err *err)
{
    char q[TEXT_QUOTE];
    return err_set(
        err, ERR_FORMAT, "%s: \"%s\": element %llu is %.9g, which %s cannot hold",
        it->s ? it->s->name : "--init", text_quote(q, it->name, strlen(it->name)),
        (unsigned long long)index, value, dtype_name(it->dtype));
}

/* The float next to d that keeps a second rounding right: inexact results get an odd
 * last bit (rounding to odd), so that they are never taken for a tie. */
static float
narrow(double d)
{
    float f = (float)d;
    if ((double)f == d || !isfinite(f) || !isfinite(d))
        return f;
    uint32_t bits;
    if (fabs((double)f) > fabs(d))
        f = nextafterf(f, 0);
    memcpy(&bits, &f, sizeof bits);
    bits |= 1;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* n floats to the dtype of the item. */
static int
encode(const struct item *it, uint64_t first, const float *f, size_t n, uint8_t *out,
       struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        switch (it->dtype) {
        case DT_F16:
            if (fabsf(f[i]) > 65504.0F)
                return out_of_range(it, first + i, (double)f[i], err);
            store_le16(out + 2 * i, num_to_f16(f[i]));
            break;
        case DT_BF16:
            store_le16(out + 2 * i, num_to_bf16(f[i]));
            if (isfinite(f[i]) && fabsf(f[i]) >= 0x1.ffp127F)
                return out_of_range(it, first + i, (double)f[i], err);
            break;
        default: { // DT_F32
            uint32_t bits;
            memcpy(&bits, &f[i], sizeof bits);
            store_le32(out + 4 * i, bits);
        }
        }
    }
    return 0;
}

/* Doubles (f64 tensors): narrowed once, checked against the target's range. */
static int
narrow_all(const struct item *it, uint64_t first, struct values_scratch *w, size_t n,
           struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        double value = w->f64[i];
        float target = it->dtype == DT_F32 ? (float)value : narrow(value);
        if (isinf(target) && !isinf(value))
            return out_of_range(it, first + i, value, err);
        w->f32[i] =
            target; // float i lies below double i: nothing unread is overwritten
    }
    return 0;
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

static int
make_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct producer *x = ctx;
    const struct item *it = x->it;
    struct values_scratch *w = &x->scratch[worker];
    uint64_t first = (x->first_chunk + i) * VALUES_CHUNK;
    uint64_t left = it->numel - first;
    size_t n = left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
    float *f = w->f32;
    if (it->how == HOW_CONVERT) {
        if (values_read(&x->values, first, n, w, err) < 0)
            return -1;
        if (x->values.kind == VALUES_F64 && narrow_all(it, first, w, n, err) < 0)
            return -1;
    } else {
        make_weights(x, first, f, n);
    }
    x->out_bytes[i] = n * dtype_bits(it->dtype) / 8;
    return encode(it, first, f, n, x->out[i], err);
}

static int
convert(struct producer *x)
{
    const struct item *it = x->it;
    uint64_t chunks = (it->numel + VALUES_CHUNK - 1) / VALUES_CHUNK;
    if (it->how == HOW_CONVERT &&
        values_open(&x->values, it->s, it->view, x->p->err) < 0)
        return -1;
    size_t most = (size_t)x->threads * PER_WORKER;
    for (x->first_chunk = 0; x->first_chunk < chunks; x->first_chunk += most) {
        uint64_t left = chunks - x->first_chunk;
        size_t batch = left < most ? (size_t)left : most;
        if (par_for(x->threads, batch, make_chunk, x, x->p->err) < 0)
            return -1;
        for (size_t i = 0; i < batch; i++) {
            if (writer_write(x->w, x->out[i], x->out_bytes[i]) < 0)
                return -1;
            progress_add(x->progress, x->out_bytes[i]);
        }
    }
    return 0;
}

static int
copy(struct producer *x)
{
    const struct item *it = x->it;
    for (uint64_t at = 0; at < it->entry->nbytes; at += COPY_BYTES) {
        uint64_t left = it->entry->nbytes - at;
        size_t n = left < COPY_BYTES ? (size_t)left : COPY_BYTES;
        if (store_read(it->s, it->entry, at, x->copy, n, x->p->err) < 0 ||
            (it->how == HOW_SCALES && values_check_scales(&x->values, at * NVFP4_BLOCK,
                                                          x->copy, n, x->p->err) < 0) ||
            writer_write(x->w, x->copy, n) < 0)
            return -1;
        progress_add(x->progress, n);
    }
    return 0;
}

static int
reciprocal(struct producer *x)
{
    uint8_t bytes[4];
    uint32_t bits;
    float f;
    if (store_read(x->it->s, x->it->entry, 0, bytes, 4, x->p->err) < 0)
        return -1;
    bits = load_le32(bytes);
    memcpy(&f, &bits, sizeof f);
    f = 1 / f;
    if (!isfinite(f) || f <= 0)
        return out_of_range(x->it, 0, (double)f, x->p->err);
    memcpy(&bits, &f, sizeof bits);
    store_le32(bytes, bits);
    return writer_write(x->w, bytes, 4);
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
        return reciprocal(x);
    case HOW_ZERO:
        return writer_zero(x->w, it->numel * dtype_bits(it->dtype) / 8);
    default:
        return convert(x);
    }
}
