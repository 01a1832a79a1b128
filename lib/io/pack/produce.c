/* SPDX-License-Identifier: MIT */
/* produce: payloads.  Copies stream through one buffer; everything else is made in
 * chunks, several at a time on all threads, and written in order while the next ones are
 * made. */
#include "lib/io/pack/plan.h"
#include "lib/io/pack/random.h"

#include "kernels/kernels.h"
#include "lib/core/num.h"
#include "lib/core/par.h"
#include "lib/nvfp4/codec.h"
#include "lib/nvfp4/gguf.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COPY_BYTES = 1 << 20,
    PER_WORKER = 4, // chunks that a worker makes before they are written
};

/* Values of a tensor that its new type does not hold. */
struct range {
    uint64_t over, first; // too large: how many, the first of them
    double value;         // that one
    double max;           // the largest magnitude among them that is finite
    bool infinite;        // some are not
    uint64_t under, zero; // rounded below the smallest normal number; of these to 0
};

/* What chunks become before they are written. */
struct batch {
    uint8_t **out;             // (threads * PER_WORKER): VALUES_CHUNK * 4 bytes each
    size_t *bytes;             // (threads * PER_WORKER)
    struct quant_error *error; // (threads * PER_WORKER)
    struct range *range;       // (threads * PER_WORKER)
    uint64_t first;            // number of the first chunk
    size_t n;
};

struct producer {
    struct plan *p;
    struct writer *w;
    struct io_progress *progress;
    unsigned threads;
    struct values_scratch *scratch; // (threads)
    struct batch batch[2];          // one is made while the other is written
    random_fn *random;
    uint8_t *copy; // (COPY_BYTES)
    // the item at work
    const struct item *it; // what its values are, for NVFP4 those of the source
    struct values values;
    struct batch *making, *writing;
    struct range range;
    // NVFP4
    struct nvfp4 *nvfp4; // NULL: an item of another kind
    struct quant_spec spec;
    struct quant_scale scale;
    bool measure; // somebody wants to know what it costs
    bool discard; // make scales, codes are written later
    float *amax;  // of chunks
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

static size_t
batch_size(const struct producer *x)
{
    return (size_t)x->threads * PER_WORKER;
}

struct producer *
producer_open(struct plan *p, struct writer *w, struct io_progress *progress)
{
    struct producer *x = calloc(1, sizeof *x);
    bool bad = !x;
    if (x) {
        unsigned n = p->c->threads;
        *x = (struct producer){ .p = p, .w = w, .progress = progress, .threads = n };
        x->scratch = calloc(n, sizeof *x->scratch);
        x->copy = malloc(COPY_BYTES);
        x->random = random_weights[p->c->io->isa];
        x->measure = p->c->report || p->c->io->warn;
        bad = !x->scratch || !x->copy || !batch_open(&x->batch[0], batch_size(x)) ||
              !batch_open(&x->batch[1], batch_size(x));
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
    batch_close(&x->batch[0], batch_size(x));
    batch_close(&x->batch[1], batch_size(x));
    free(x->scratch);
    free(x->copy);
    free(x->amax);
    free(x);
}

/* ---- values ---------------------------------------------------------------------------- */

/* The file that an item's values are from. */
static const char *
origin(const struct item *it)
{
    const struct store *s = it->nvfp4 ? it->nvfp4->source.s : it->s;
    return s ? s->name : "--init";
}

/* The name of an item's values in that file: a head made of the embedding has its own. */
static const char *
name_there(const struct item *it)
{
    const struct item *from = it->nvfp4 ? &it->nvfp4->source : it;
    return from->view ? from->view->name : it->name;
}

/* The largest number of a dtype that values are converted to. */
static double
largest(enum dtype d)
{
    return d == DT_F16 ? 65504 : d == DT_BF16 ? 0x1.fep127 : (double)FLT_MAX;
}

const char *
produce_way_out(const struct plan *p, enum dtype d, double max)
{
    const struct pack *c = p->c;
    bool bf16 = d == DT_F16 && max <= largest(DT_BF16) && !c->seed_compat;
    if (d == DT_F32 || c->like || writer_traits(c->to)->dialect ||
        max > largest(DT_F32))
        return "";
    if (writer_traits(c->to)->training)
        return "; --master f32 keeps them";
    return bf16 ? "; --dtype bf16 or f32 keeps them" : "; --dtype f32 keeps them";
}

/* Whether an item's values are those of an NVFP4 tensor: each is finite, but decoded it
 * can be too large for a float. */
static bool
is_packed(const struct item *it)
{
    return it->how == HOW_CONVERT && it->view->dtype == DT_NVFP4;
}

static void
note_over(struct range *r, uint64_t index, double value)
{
    if (r->over++ == 0) {
        r->first = index;
        r->value = value;
    }
    if (!isfinite(value))
        r->infinite = true;
    else if (fabs(value) > r->max)
        r->max = fabs(value);
}

static void
add_range(struct range *sum, const struct range *r)
{
    if (sum->over == 0) {
        sum->first = r->first;
        sum->value = r->value;
    }
    sum->max = fmax(sum->max, r->max);
    sum->infinite |= r->infinite;
    sum->over += r->over;
    sum->under += r->under;
    sum->zero += r->zero;
}

static int
out_of_range(const struct plan *p, const struct item *it, const struct range *r)
{
    char q[TEXT_QUOTE], value[32] = "too large for a float";
    double max = r->infinite && is_packed(it) ? INFINITY : r->max;
    if (isfinite(r->value) || !is_packed(it))
        snprintf(value, sizeof value, "%.9g", r->value);
    return err_set(p->err, ERR_FORMAT,
                   "%s: \"%s\": element %llu is %s, which %s cannot hold; %llu of "
                   "%llu values are too large%s",
                   origin(it), text_quote(q, name_there(it), strlen(name_there(it))),
                   (unsigned long long)r->first, value, dtype_name(it->dtype),
                   (unsigned long long)r->over, (unsigned long long)it->numel,
                   produce_way_out(p, it->dtype, max));
}

/* What was lost in the item that is written: too much, or to be said at the end. */
static int
settle_range(struct plan *p, const struct item *it, const struct range *r)
{
    struct lost *lost = &p->lost;
    if (r->over)
        return out_of_range(p, it, r);
    if (it->how != HOW_CONVERT || r->under == 0) // what is drawn has no older value
        return 0;
    lost->mixed |= lost->under && lost->dtype != it->dtype;
    if (r->under > lost->max) {
        lost->max = r->under;
        lost->worst = it->name;
        lost->dtype = it->dtype;
    }
    lost->under += r->under;
    lost->zero += r->zero;
    return 0;
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

static void
note_under(struct range *r, bool zero)
{
    r->under++;
    r->zero += zero;
}

static void
encode_f16(uint64_t first, const float *f, size_t n, uint8_t *out, struct range *r)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t bits = num_to_f16(f[i]);
        float a = fabsf(f[i]);
        if (a > 65504.0F)
            note_over(r, first + i, (double)f[i]);
        else if (a < 0x1p-14F && num_from_f16(bits) != f[i])
            note_under(r, !(bits & 0x7fff));
        store_le16(out + 2 * i, bits);
    }
}

/* packed: no infinity was one before. */
static void
encode_bf16(uint64_t first, const float *f, size_t n, bool packed, uint8_t *out,
            struct range *r)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t bits = num_to_bf16(f[i]);
        float a = fabsf(f[i]);
        if (a >= 0x1.ffp127F && (packed || isfinite(f[i])))
            note_over(r, first + i, (double)f[i]);
        else if (a < 0x1p-126F && num_from_bf16(bits) != f[i])
            note_under(r, !(bits & 0x7fff));
        store_le16(out + 2 * i, bits);
    }
}

/* n floats to the dtype of the item. */
static void
encode(const struct item *it, uint64_t first, const float *f, size_t n, uint8_t *out,
       struct range *r)
{
    if (it->dtype == DT_F16) {
        encode_f16(first, f, n, out, r);
        return;
    }
    if (it->dtype == DT_BF16) {
        encode_bf16(first, f, n, is_packed(it), out, r);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        if (isinf(f[i]) && is_packed(it))
            note_over(r, first + i, (double)f[i]);
        memcpy(&bits, &f[i], sizeof bits);
        store_le32(out + 4 * i, bits);
    }
}

/* Doubles (f64 tensors): narrowed once, checked against the target's range. */
static void
narrow_all(const struct item *it, uint64_t first, struct values_scratch *w, size_t n,
           struct range *r)
{
    assert(r);
    for (size_t i = 0; i < n; i++) {
        double value = w->f64[i];
        bool last = it->dtype == DT_F32;
        float target = last ? (float)value : narrow(value);
        if (isinf(target) && !isinf(value)) {
            note_over(r, first + i, value);
            target = 0; // it is counted
        } else if (last && fabs(value) < 0x1p-126 && (double)target != value) {
            note_under(r, target == 0);
        }
        // Float i lies below double i: nothing unread is overwritten.
        w->f32[i] = target;
    }
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

/* n elements of the item from `first` on, as floats in w.  r: of an item that may be f64,
 * which is not quantized. */
static int
make_floats(const struct producer *x, uint64_t first, size_t n,
            struct values_scratch *w, struct range *r, struct err *err)
{
    if (x->it->how == HOW_RANDOM || x->it->how == HOW_ONE) {
        make_weights(x, first, w->f32, n);
        return 0;
    }
    if (values_read(&x->values, first, n, w, err) < 0)
        return -1;
    if (x->values.kind == VALUES_F64)
        narrow_all(x->it, first, w, n, r);
    return 0;
}

static size_t
chunk_size(const struct producer *x, uint64_t chunk)
{
    uint64_t left = x->it->numel - chunk * VALUES_CHUNK;
    return left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
}

static uint64_t
chunks_of(uint64_t numel)
{
    return (numel + VALUES_CHUNK - 1) / VALUES_CHUNK;
}

/* ---- NVFP4 ------------------------------------------------------------------------------- */

static int
not_finite(const struct producer *x, uint64_t index, const void *values, size_t at,
           enum dtype dtype, struct err *err)
{
    char q[TEXT_QUOTE];
    const struct item *it = x->it;
    bool wide = dtype == DT_F32;
    uint32_t bits =
        wide ? ((const uint32_t *)values)[at] : ((const uint16_t *)values)[at];
    return err_set(err, ERR_FORMAT, "%s: \"%s\": element %llu is not finite: %s 0x%0*x",
                   origin(it), text_quote(q, name_there(it), strlen(name_there(it))),
                   (unsigned long long)index, dtype_name(dtype), wide ? 8 : 4, bits);
}

/* Whether an item's values are floats as they lie in the file. */
static bool
is_plain(const struct item *it)
{
    enum dtype d = it->view && it->how == HOW_CONVERT ? it->view->dtype : DT_NONE;
    return d == DT_F16 || d == DT_BF16 || d == DT_F32;
}

/* A chunk of them, else as f32. */
static const void *
read_chunk(const struct producer *x, uint64_t chunk, struct values_scratch *w,
           enum dtype *d, struct err *err)
{
    uint64_t first = chunk * VALUES_CHUNK;
    size_t n = chunk_size(x, chunk);
    if (!is_plain(x->it)) {
        *d = DT_F32;
        return make_floats(x, first, n, w, NULL, err) < 0 ? NULL : w->f32;
    }
    *d = x->it->view->dtype;
    size_t bytes = dtype_bits(*d) / 8;
    return store_read(x->it->s, x->it->entry, first * bytes, w->bytes, n * bytes, err) <
                   0
               ? NULL
               : w->bytes;
}

/* Largest magnitude of a chunk. */
static int
scan_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct producer *x = ctx;
    struct values_scratch *w = &x->scratch[worker];
    uint64_t first = i * (uint64_t)VALUES_CHUNK;
    size_t n = chunk_size(x, i), bad;
    enum dtype d;
    const void *values = read_chunk(x, i, w, &d, err);
    if (!values)
        return -1;
    x->amax[i] = nvfp4_amax(d, values, n, &bad);
    return bad < n ? not_finite(x, first + bad, values, bad, d, err) : 0;
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

static int
begin_values(struct producer *x, const struct item *it)
{
    x->it = it;
    if (it->how != HOW_CONVERT)
        return 0;
    return check_payloads(x, it) < 0
               ? -1
               : values_open(&x->values, it->s, it->view, x->p->c->io->isa, x->p->err);
}

/* The first of the two passes: the largest magnitude of the tensor and of those that it
 * shares its scale with. */
static int
scan(struct producer *x, struct nvfp4 *t)
{
    for (t = t->group; t; t = t->next) {
        if (t->scanned)
            continue;
        size_t chunks = (size_t)chunks_of(t->source.numel);
        free(x->amax);
        x->amax = malloc((chunks ? chunks : 1) * sizeof *x->amax);
        if (!x->amax)
            return err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
        if (begin_values(x, &t->source) < 0 ||
            par_for(x->threads, chunks, scan_chunk, x, x->p->err) < 0)
            return -1;
        for (size_t i = 0; i < chunks; i++)
            t->amax = fmaxf(t->amax, x->amax[i]);
        t->scanned = true;
    }
    return 0;
}

static int
find_scale(struct producer *x, struct nvfp4 *t)
{
    float amax = 0;
    x->spec = x->p->spec;
    x->spec.source = t->source.view ? t->source.view->dtype : t->source.source;
    if (scan(x, t) < 0)
        return -1;
    for (const struct nvfp4 *u = t->group; u; u = u->next)
        amax = fmaxf(amax, u->amax);
    x->scale = nvfp4_scale(&x->spec, amax);
    return 0;
}

/* Blocks of zeros as another program's dialect has them. */
static void
settle_zeros(const struct view_dialect *d, uint8_t *codes, uint8_t *scales,
             size_t blocks)
{
    for (size_t b = 0; b < blocks && d->foreign; b++)
        if (scales[b] == 0) {
            memset(codes + b * (NVFP4_BLOCK / 2), 0, NVFP4_BLOCK / 2);
            scales[b] = d->zero_scale;
        }
}

static int
make_nvfp4(struct producer *x, size_t i, struct values_scratch *w, struct err *err)
{
    struct nvfp4 *t = x->nvfp4;
    struct batch *b = x->making;
    uint64_t chunk = b->first + i, first = chunk * VALUES_CHUNK;
    size_t n = chunk_size(x, chunk);
    uint8_t *codes = b->out[i], *scales = t->scales + first / NVFP4_BLOCK;
    b->error[i] = (struct quant_error){ 0 };
    if (t->quantize) {
        if (make_floats(x, first, n, w, NULL, err) < 0)
            return -1;
        nvfp4_quant(codes, scales, w->f32, 1, n, first, &x->spec, &x->scale,
                    x->measure ? &b->error[i] : NULL);
    } else if (values_planes(&x->values, first, n, codes, scales, w, err) < 0) {
        return -1;
    }
    settle_zeros(t->dialect, codes, scales, n / NVFP4_BLOCK);
    b->bytes[i] = n / 2;
    if (t->dialect->blocks) { // n is a multiple of their size, as rows are
        uint8_t *blocks = w->bytes;
        nvfp4_gguf_pack(blocks, codes, scales, n);
        b->bytes[i] = n / NVFP4_GGUF_BLOCK * NVFP4_GGUF_BYTES;
        memcpy(codes, blocks, b->bytes[i]);
    }
    return 0;
}

/* ---- in batches --------------------------------------------------------------------------- */

static int
make_chunk(struct producer *x, size_t i, struct values_scratch *w, struct err *err)
{
    struct batch *b = x->making;
    const struct item *it = x->it;
    uint64_t chunk = b->first + i, first = chunk * VALUES_CHUNK;
    size_t n = chunk_size(x, chunk);
    if (x->nvfp4)
        return make_nvfp4(x, i, w, err);
    b->range[i] = (struct range){ 0 };
    if (make_floats(x, first, n, w, &b->range[i], err) < 0)
        return -1;
    b->bytes[i] = n * dtype_bits(it->dtype) / 8;
    encode(it, first, w->f32, n, b->out[i], &b->range[i]);
    return 0;
}

static void
add_error(struct quant_error *sum, const struct quant_error *e)
{
    sum->noise += e->noise;
    sum->signal += e->signal;
    sum->max = fmaxf(sum->max, e->max);
    sum->zero_scales += e->zero_scales;
    sum->saturated += e->saturated;
}

static int
write_batch(struct producer *x, const struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        if (x->nvfp4)
            add_error(&x->nvfp4->error, &b->error[i]);
        else
            add_range(&x->range, &b->range[i]);
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

static int
convert(struct producer *x)
{
    struct err err = { 0 };
    uint64_t chunks = chunks_of(x->it->numel);
    x->making = &x->batch[0];
    x->writing = &x->batch[1];
    x->writing->n = 0;
    for (uint64_t at = 0; at < chunks || x->writing->n; at += x->writing->n) {
        uint64_t left = chunks - at;
        x->making->first = at;
        x->making->n = left < batch_size(x) ? (size_t)left : batch_size(x);
        if (par_for(x->threads, x->making->n + 1, work, x, &err) < 0)
            return x->p->err->kind ? -1 : err_set(x->p->err, err.kind, "%s", err.msg);
        struct batch *made = x->making;
        x->making = x->writing;
        x->writing = made;
    }
    return 0;
}

/* ---- items --------------------------------------------------------------------------------- */

static int
copy_piece(struct producer *x, uint64_t at, size_t n, struct hash *h)
{
    const struct item *it = x->it;
    if (store_read(it->s, it->entry, at, x->copy, n, x->p->err) < 0 ||
        (it->how == HOW_SCALES && values_check_scales(&x->values, at * NVFP4_BLOCK,
                                                      x->copy, n, x->p->err) < 0) ||
        writer_write(x->w, x->copy, n) < 0)
        return -1;
    if (h)
        hash_add(h, x->copy, n);
    io_progress_add(x->progress, n);
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
write_scale(struct producer *x, float f)
{
    uint8_t bytes[4];
    uint32_t bits;
    char q[TEXT_QUOTE];
    if (!isfinite(f) || f <= 0) // a reciprocal can be none
        return err_set(x->p->err, ERR_FORMAT,
                       "%s: \"%s\": the tensor scale would be %.9g, and must be a "
                       "float above 0",
                       origin(x->it), text_quote(q, x->it->name, strlen(x->it->name)),
                       (double)f);
    memcpy(&bits, &f, sizeof bits);
    store_le32(bytes, bits);
    return writer_write(x->w, bytes, 4);
}

/* A scale as another dialect has it.  Only what another program made is looked at more
 * closely: ours is a multiplier, and its divisor the reciprocal. */
static float
swapped(const struct view_dialect *from, float f)
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
    return write_scale(x,
                       it->how == HOW_SWAPPED ? swapped(it->view->dialect, f) : 1 / f);
}

/* The tensor scale of an NVFP4 tensor that keeps its codes: the same bits, unless
 * multiplier becomes divisor or the other way round. */
static int
kept_scale2(struct producer *x, const struct item *it, const struct nvfp4 *t)
{
    const struct view *v = t->source.view;
    float f = 1;
    if (begin_values(x, &t->source) < 0 ||
        (v->scale2 &&
         values_scale(&f, t->source.s, v->scale2, "tensor", t->name, x->p->err) < 0))
        return -1;
    x->it = it;
    bool same = !v->scale2 || v->dialect->divides == t->dialect->divides;
    return write_scale(x, same ? f : swapped(v->dialect, f));
}

/* ---- on a GPU ------------------------------------------------------------------------------ */

/* A tensor on it, and its nvfp4 form. */
struct on_gpu {
    struct kernels *k;
    float *amax;
    struct matrix from, to;
};

static int
gpu_alloc(struct on_gpu *g, const struct producer *x, size_t rows, size_t cols,
          enum dtype dtype)
{
    struct kernels *k = g->k;
    const enum memory what = MEMORY_WORK;
    size_t n = rows * cols;
    g->from =
        matrix_of(dtype, kernels_alloc(k, what, n * dtype_bits(dtype) / 8), rows, cols);
    g->amax = kernels_alloc(k, what, sizeof *g->amax);
    g->to = matrix_of(DT_NVFP4, kernels_alloc(k, what, n / 2), rows, cols);
    g->to.scales = kernels_alloc(k, what, n / NVFP4_BLOCK);
    g->to.scale2 = kernels_alloc(k, what, sizeof *g->to.scale2);
    return x->p->err->kind ? -1 : 0;
}

static void
gpu_free(struct on_gpu *g)
{
    kernels_free(g->k, g->from.data);
    kernels_free(g->k, g->amax);
    kernels_free(g->k, g->to.data);
    kernels_free(g->k, g->to.scales);
    kernels_free(g->k, g->to.scale2);
}

static int
gpu_upload(struct on_gpu *g, struct producer *x)
{
    uint64_t chunks = chunks_of(x->it->numel);
    for (uint64_t i = 0; i < chunks; i++) {
        enum dtype d;
        const void *from = read_chunk(x, i, x->scratch, &d, x->p->err);
        if (!from)
            return -1;
        size_t bytes = dtype_bits(d) / 8;
        kernels_upload(g->k, dtype_at(d, g->from.data, i * VALUES_CHUNK), from,
                       chunk_size(x, i) * bytes);
    }
    return 0;
}

struct measured {
    struct producer *x;
    const uint8_t *codes;
    struct quant_error *error; // of each chunk
};

static int
measure_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct measured *m = ctx;
    struct producer *x = m->x;
    struct values_scratch *w = &x->scratch[worker];
    uint64_t first = i * (uint64_t)VALUES_CHUNK;
    size_t n = chunk_size(x, i);
    if (make_floats(x, first, n, w, NULL, err) < 0)
        return -1;
    nvfp4_measure(m->codes + first / 2, x->nvfp4->scales + first / NVFP4_BLOCK, w->f32,
                  n, &x->scale, &m->error[i]);
    return 0;
}

static int
measure_all(struct producer *x, const uint8_t *codes)
{
    size_t chunks = (size_t)chunks_of(x->it->numel);
    struct measured m = { x, codes, calloc(chunks, sizeof *m.error) };
    if (!m.error)
        return err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
    int rc = par_for(x->threads, chunks, measure_chunk, &m, x->p->err);
    for (size_t i = 0; i < chunks; i++)
        add_error(&x->nvfp4->error, &m.error[i]);
    free(m.error);
    return rc;
}

static int
write_codes(struct producer *x, const uint8_t *codes, size_t n)
{
    for (size_t at = 0; at < n; at += COPY_BYTES) {
        size_t part = n - at < COPY_BYTES ? n - at : COPY_BYTES;
        if (writer_write(x->w, codes + at, part) < 0)
            return -1;
        io_progress_add(x->progress, part);
    }
    return 0;
}

/* A whole tensor at once. */
static int
gpu_convert(struct producer *x)
{
    struct nvfp4 *t = x->nvfp4;
    struct on_gpu g = { .k = x->p->c->gpu };
    struct kernels *k = g.k;
    size_t n = (size_t)x->it->numel, cols = (size_t)t->cols;
    enum dtype dtype = is_plain(x->it) ? x->it->view->dtype : DT_F32;
    uint8_t *codes = malloc(n / 2 + 1);
    int rc = codes ? gpu_alloc(&g, x, n / cols, cols, dtype)
                   : err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
    if (rc == 0 && (rc = gpu_upload(&g, x)) == 0) {
        kernels_upload(k, g.amax, &x->scale.amax, sizeof x->scale.amax);
        op_quantize(k, &g.to, &g.from, g.amax, 1, &x->spec);
        rc = kernels_download(k, codes, g.to.data, n / 2);
    }
    if (rc == 0)
        rc = kernels_download(k, t->scales, g.to.scales, n / NVFP4_BLOCK);
    if (rc == 0)
        settle_zeros(t->dialect, codes, t->scales, n / NVFP4_BLOCK);
    if (rc == 0 && x->measure)
        rc = measure_all(x, codes);
    if (rc == 0 && !x->discard)
        rc = write_codes(x, codes, n / 2);
    gpu_free(&g);
    free(codes);
    return rc;
}

/* Codes and scales of t, into t->scales and unless `discard` into the file. */
static int
make_planes(struct producer *x, struct nvfp4 *t, bool discard)
{
    if (!t->scales)
        t->scales = malloc((size_t)(t->source.numel / NVFP4_BLOCK) + NVFP4_BLOCK);
    if (!t->scales)
        return err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
    if ((t->quantize && find_scale(x, t) < 0) || begin_values(x, &t->source) < 0)
        return -1;
    t->error = (struct quant_error){ 0 };
    x->nvfp4 = t;
    x->discard = discard;
    int rc = x->p->c->gpu && t->quantize ? gpu_convert(x) : convert(x);
    x->nvfp4 = NULL;
    x->discard = false;
    t->made = true;
    return rc;
}

static int
write_scales(struct producer *x, struct nvfp4 *t)
{
    size_t n = (size_t)(t->source.numel / NVFP4_BLOCK);
    if (!t->made && make_planes(x, t, true) < 0)
        return -1;
    for (size_t at = 0; at < n; at += COPY_BYTES) {
        size_t part = n - at < COPY_BYTES ? n - at : COPY_BYTES;
        if (writer_write(x->w, t->scales + at, part) < 0)
            return -1;
        io_progress_add(x->progress, part);
    }
    t->scales_written = true;
    free(t->scales); // codes that are still to come make them again
    t->scales = NULL;
    return 0;
}

static int
plane(struct producer *x, const struct item *it)
{
    struct nvfp4 *t = it->nvfp4;
    switch (it->plane) {
    case PLANE_CODES:
        if (make_planes(x, t, false) < 0)
            return -1;
        if (t->dialect->blocks || t->scales_written) {
            free(t->scales);
            t->scales = NULL;
        }
        return 0;
    case PLANE_SCALES:
        return write_scales(x, t);
    default: // PLANE_SCALE2
        if (!t->quantize)
            return kept_scale2(x, it, t);
        if (find_scale(x, t) < 0)
            return -1;
        x->it = it;
        return write_scale(x,
                           t->dialect->divides ? 1 / x->scale.scale2 : x->scale.scale2);
    }
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
        return plane(x, it);
    default:
        x->range = (struct range){ 0 };
        return begin_values(x, it) < 0 || convert(x) < 0
                   ? -1
                   : settle_range(x->p, it, &x->range);
    }
}
