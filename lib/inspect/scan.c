/* SPDX-License-Identifier: MIT */
/* scan: reads payloads for statistics, histograms, values and hashes.  Chunks are fixed, results are merged in their
 * order: the same bytes come out for any number of threads. */
#include "lib/inspect/inspect.h"

#include "lib/base/num.h"
#include "lib/base/par.h"
#include "lib/file/feed.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- statistics and histograms ----------------------------------------------------- */

/* All chunks of all views as one list of items. */
struct chunks {
    struct values *values; // (views)
    uint64_t *first;       // (views + 1): number of its first item
    size_t views;
    struct values_scratch *scratch; // (threads)
    unsigned threads;
    struct stats *stats; // (items), while computing statistics
    // histograms
    const struct stats *range; // (views)
    uint64_t *counts;          // (threads, views, bins)
    uint64_t bins;
    struct host_progress progress;
};

static void
chunks_close(struct chunks *k)
{
    for (unsigned i = 0; k->scratch && i < k->threads; i++)
        values_scratch_free(&k->scratch[i]);
    free(k->scratch);
    free(k->values);
    free(k->first);
    free(k->stats);
    free(k->counts);
    if (k->progress.host)
        host_progress_end(&k->progress);
}

static int
chunks_open(struct chunks *k, const struct inspect *c, struct subject *f,
            struct err *err)
{
    uint64_t items = 0, bytes = 0;
    *k = (struct chunks){ .views = f->views.n, .threads = c->threads };
    k->values = calloc(k->views + 1, sizeof *k->values);
    k->first = calloc(k->views + 1, sizeof *k->first);
    k->scratch = calloc(c->threads, sizeof *k->scratch);
    if (!k->values || !k->first || !k->scratch)
        return err_set(err, ERR_MEMORY, "out of memory for %zu tensors", k->views);
    for (size_t i = 0; i < k->views; i++) {
        if (values_open(&k->values[i], &f->store, &f->views.v[i], f->host->isa, err) <
            0)
            return -1;
        k->first[i] = items;
        if (k->values[i].kind != VALUES_NONE) {
            items += values_chunks(&f->views.v[i]);
            bytes += f->views.v[i].nbytes;
        }
    }
    k->first[k->views] = items;
    for (unsigned i = 0; i < c->threads; i++)
        if (values_scratch(&k->scratch[i], err) < 0)
            return -1;
    k->progress = host_progress_begin(f->host, "reading", bytes);
    return 0;
}

static size_t
view_of(const struct chunks *k, uint64_t item)
{
    size_t low = 0, high = k->views;
    while (high - low > 1) { // the last view whose first item is <= item
        size_t mid = low + (high - low) / 2;
        if (k->first[mid] <= item)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static int
stats_item(void *ctx, size_t item, unsigned worker, struct err *err)
{
    struct chunks *k = ctx;
    size_t v = view_of(k, item);
    const struct values *x = &k->values[v];
    if (worker == 0)
        host_progress_add(&k->progress, k->threads * (uint64_t)VALUES_CHUNK *
                                            x->v->nbytes /
                                            (x->v->numel ? x->v->numel : 1));
    return values_stats(x, item - k->first[v], &k->scratch[worker], &k->stats[item],
                        err);
}

/* A payload that differs from its checksum is damaged: it is not shown or computed with. */
static int
check_view(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct subject *f = ctx;
    (void)worker;
    return view_check_payloads(&f->store, &f->views.v[i], err);
}

int
scan_stats(const struct inspect *c, struct subject *f, struct err *err)
{
    struct chunks k;
    int rc = par_for(c->threads, f->views.n, check_view, f, err);
    if (rc < 0)
        return -1;
    rc = chunks_open(&k, c, f, err);
    f->stats = calloc(f->views.n ? f->views.n : 1, sizeof *f->stats);
    if (rc == 0) {
        k.stats = calloc(k.first[k.views] + 1, sizeof *k.stats);
        if (!k.stats || !f->stats)
            rc = err_set(err, ERR_MEMORY, "out of memory for statistics");
    }
    if (rc == 0)
        rc = par_for(c->threads, k.first[k.views], stats_item, &k, err);
    for (size_t i = 0; rc == 0 && i < k.views; i++)
        for (uint64_t j = k.first[i]; j < k.first[i + 1]; j++)
            stats_merge(&f->stats[i], &k.stats[j]);
    chunks_close(&k);
    return rc;
}

/* The bin of x; the last one includes the maximum. */
static uint64_t
bin_of(const struct stats *range, uint64_t bins, double x)
{
    // Halves, so that the span of two huge numbers is no infinity.
    double at =
        (x / 2 - range->min / 2) / (range->max / 2 - range->min / 2) * (double)bins;
    if (!(at > 0))
        return 0;
    return at >= (double)bins ? bins - 1 : (uint64_t)at;
}

static int
hist_item(void *ctx, size_t item, unsigned worker, struct err *err)
{
    struct chunks *k = ctx;
    size_t v = view_of(k, item);
    const struct values *x = &k->values[v];
    struct values_scratch *w = &k->scratch[worker];
    uint64_t first = (item - k->first[v]) * VALUES_CHUNK;
    uint64_t left = x->v->numel - first;
    size_t n = left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
    uint64_t *counts = k->counts + (worker * k->views + v) * k->bins;
    if (values_read(x, first, n, w, err) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        double value = x->kind == VALUES_F32 ? (double)w->f32[i] : w->f64[i];
        if (isfinite(value))
            counts[bin_of(&k->range[v], k->bins, value)]++;
    }
    return 0;
}

/* Where bin b begins. */
static double
edge(const struct stats *r, uint64_t b, uint64_t bins)
{
    double part = (double)b / (double)bins;
    return r->min * (1 - part) + r->max * part;
}

static void
print_hist(const struct inspect *c, const struct chunks *k, const struct subject *f)
{
    struct buf out = { 0 };
    bool bars = f->host->terminal;
    buf_str(&out, "name\tfrom\tto\tcount\n");
    for (size_t v = 0; v < k->views; v++) {
        const struct stats *r = &f->stats[v];
        uint64_t highest = 1;
        if (r->n == 0)
            continue;
        for (uint64_t b = 0; b < k->bins; b++) {
            for (unsigned t = 1; t < k->threads; t++)
                k->counts[v * k->bins + b] +=
                    k->counts[(t * k->views + v) * k->bins + b];
            if (k->counts[v * k->bins + b] > highest)
                highest = k->counts[v * k->bins + b];
        }
        for (uint64_t b = 0; b < k->bins; b++) {
            double from = edge(r, b, k->bins), to = edge(r, b + 1, k->bins);
            uint64_t count = k->counts[v * k->bins + b];
            text_escape(&out, f->views.v[v].name, f->views.v[v].name_len);
            buf_printf(&out, "\t%.9g\t%.9g\t%" PRIu64, from, to, count);
            if (bars) {
                buf_char(&out, '\t');
                buf_fill(&out, '#', (size_t)(40 * count / highest));
            }
            buf_char(&out, '\n');
        }
        printer_put(c->printer, &out, HOST_TEXT);
    }
    printer_put(c->printer, &out, HOST_TEXT);
    buf_free(&out);
}

int
scan_hist(const struct inspect *c, struct subject *f, struct err *err)
{
    struct chunks k = { 0 };
    int rc = scan_stats(c, f, err); // the range comes first
    if (rc == 0)
        rc = chunks_open(&k, c, f, err);
    if (rc == 0) {
        k.bins = c->bins;
        k.range = f->stats;
        k.counts =
            calloc(c->threads * (k.views ? k.views : 1), k.bins * sizeof *k.counts);
        if (!k.counts)
            rc = err_set(err, ERR_MEMORY, "out of memory for histograms");
    }
    if (rc == 0)
        rc = par_for(c->threads, k.first[k.views], hist_item, &k, err);
    if (rc == 0)
        print_hist(c, &k, f);
    chunks_close(&k);
    return rc;
}

/* ---- one tensor ---------------------------------------------------------------------- */

/* The view of NAME, or of NAME:COUNT; a name that holds a colon itself wins. */
static const struct view *
find_named(const struct inspect *c, struct subject *f, uint64_t *count, struct err *err)
{
    const char *target = c->target;
    const char *colon = strrchr(target, ':');
    char q[TEXT_QUOTE];
    *count = UINT64_MAX;
    for (int part = 0; part < 2; part++) {
        struct slice name = slice_of(target);
        if (part) {
            uint64_t n;
            if (c->action != VALUES || !colon || !num_u64(&n, colon + 1))
                break;
            name.n = (size_t)(colon - target);
            *count = n;
        }
        for (size_t i = 0; i < f->views.n; i++) {
            struct view *v = &f->views.v[i];
            if (slice_eq(name, (struct slice){ v->name, v->name_len }))
                return v;
        }
    }
    err_set(err, ERR_USAGE, "%s: no tensor \"%s\"", f->store.name,
            text_quote(q, target, strlen(target)));
    return NULL;
}

const struct view *
scan_find(const struct inspect *c, struct subject *f, uint64_t *count, struct err *err)
{
    const struct view *v = find_named(c, f, count, err);
    return v && view_check_payloads(&f->store, v, err) == 0 ? v : NULL;
}

/* 64-bit integers do not survive a double: print them as they are. */
static bool
put_wide_integers(struct buf *out, enum dtype d, const uint8_t *bytes, size_t n)
{
    if (d != DT_I64 && d != DT_U64)
        return false;
    for (size_t i = 0; i < n; i++) {
        uint64_t u = load_le64(bytes + 8 * i);
        if (d == DT_I64)
            buf_printf(out, "%" PRId64 "\n", (int64_t)u);
        else
            buf_printf(out, "%" PRIu64 "\n", u);
    }
    return true;
}

static void
put_value(struct buf *out, double value, int digits)
{
    if (isnan(value))
        buf_str(out, "NaN\n");
    else if (isinf(value))
        buf_str(out, value > 0 ? "Infinity\n" : "-Infinity\n");
    else
        buf_printf(out, "%.*g\n", digits, value);
}

int
scan_values(const struct inspect *c, struct subject *f, struct err *err)
{
    uint64_t count;
    struct values x;
    struct values_scratch w = { 0 };
    struct buf out = { 0 };
    const struct view *v = scan_find(c, f, &count, err);
    if (!v || values_open(&x, &f->store, v, f->host->isa, err) < 0)
        return -1;
    if (x.kind == VALUES_NONE)
        return err_set(err, ERR_USAGE,
                       "%s: values of %s cannot be shown; --payload gives "
                       "their bytes",
                       f->store.name, dtype_name(v->dtype));
    int rc = values_scratch(&w, err);
    if (count > v->numel)
        count = v->numel;
    for (uint64_t at = 0; rc == 0 && at < count; at += VALUES_CHUNK) {
        size_t n = count - at < VALUES_CHUNK ? (size_t)(count - at) : VALUES_CHUNK;
        uint64_t rest = v->numel - at; // whole blocks are decoded
        size_t whole = n + 15 < rest ? n + 15 - (n + 15) % 16 : (size_t)rest;
        if (whole > VALUES_CHUNK)
            whole = VALUES_CHUNK;
        rc = values_read(&x, at, whole, &w, err);
        if (rc == 0 && !put_wide_integers(&out, v->dtype, w.bytes, n))
            for (size_t i = 0; i < n; i++)
                put_value(&out, x.kind == VALUES_F32 ? (double)w.f32[i] : w.f64[i],
                          v->dtype == DT_F64     ? 17
                          : x.kind == VALUES_F64 ? 10
                                                 : 9);
        if (rc == 0) {
            printer_put(c->printer, &out, HOST_TEXT);
            rc = printer_end(c->printer);
        }
    }
    buf_free(&out);
    values_scratch_free(&w);
    return rc;
}

int
scan_put_bytes(const struct inspect *c, const struct subject *f, const struct view *v,
               struct err *err)
{
    const uint8_t *p;
    size_t n;
    int rc;
    struct feed *feed = feed_open(&f->store.files[v->entry->file], v->entry->offset,
                                  v->entry->nbytes, c->threads, err);
    if (!feed)
        return -1;
    while ((rc = feed_next(feed, &p, &n)) > 0 && printer_end(c->printer) == 0)
        printer_bytes(c->printer, p, n);
    feed_close(feed);
    return rc;
}

int
scan_payload(const struct inspect *c, struct subject *f, struct err *err)
{
    uint64_t count;
    const struct view *v = scan_find(c, f, &count, err);
    if (!v || printer_refuse_terminal(c->printer) < 0)
        return -1;
    int rc = scan_put_bytes(c, f, v, err);
    return rc < 0 ? rc : printer_end(c->printer);
}

/* ---- hashes ---------------------------------------------------------------------------- */

struct hashing {
    const struct inspect *c;
    struct subject *f;
    enum hash_kind kind;
    uint8_t *digests;
    struct host_progress progress;
};

/* What of a chunk belongs to which entry: payloads lie in file order. */
struct cursor {
    struct hash *h;
    size_t entry;
    uint64_t done; // bytes of the entry
};

static int
hash_payloads(struct hashing *g, struct cursor *at, size_t file, uint64_t offset,
              const uint8_t *p, size_t n, struct err *err)
{
    const struct store *s = &g->f->store;
    uint64_t end = offset + n;
    while (at->entry < s->n_tensors) {
        const struct tensor *t = &s->tensors[at->entry];
        uint64_t from = t->offset + at->done;
        if (t->file != file || (from >= end && at->done < t->nbytes))
            return 0;
        if (!at->h && !(at->h = hash_begin(g->kind)))
            return err_set(err, ERR_MEMORY, "out of memory for a hash");
        uint64_t left = t->nbytes - at->done;
        uint64_t part = end > from ? end - from : 0;
        if (part > left)
            part = left;
        if (part)
            hash_add(at->h, p + (from - offset), (size_t)part);
        at->done += part;
        if (at->done < t->nbytes)
            return 0;
        hash_end(at->h, g->digests + at->entry * HASH_MAX);
        at->h = NULL;
        at->done = 0;
        at->entry++;
    }
    return 0;
}

/* One pass over all files: entries, the whole, or both. */
static int
hash_pass(struct hashing *g, bool entries, bool whole, unsigned threads,
          struct err *err)
{
    struct store *s = &g->f->store;
    struct cursor at = { 0 };
    struct hash *all = whole ? hash_begin(g->kind) : NULL;
    int rc = whole && !all ? err_set(err, ERR_MEMORY, "out of memory for a hash") : 0;
    for (size_t i = 0; rc == 0 && i < s->n_files; i++) {
        const uint8_t *p;
        size_t n;
        uint64_t offset = 0;
        struct feed *feed = feed_open(&s->files[i], 0, s->files[i].size, threads, err);
        rc = feed ? 1 : -1;
        while (rc > 0 && (rc = feed_next(feed, &p, &n)) > 0) {
            if (whole)
                hash_add(all, p, n);
            if (entries && hash_payloads(g, &at, i, offset, p, n, err) < 0)
                rc = -1;
            offset += n;
            if (whole)
                host_progress_add(&g->progress, n);
        }
        feed_close(feed);
        // Empty payloads may stand behind the last byte.
        if (rc == 0 && entries)
            rc = hash_payloads(g, &at, i, offset, NULL, 0, err);
    }
    hash_end(at.h, NULL);
    hash_end(all, rc == 0 ? g->digests + s->n_tensors * HASH_MAX : NULL);
    return rc;
}

static int
hash_item(void *ctx, size_t i, unsigned worker, struct err *err)
{
    (void)worker;
    return hash_pass(ctx, i == 0, i == 1, 1, err);
}

int
scan_hash(const struct inspect *c, struct subject *f, enum hash_kind kind,
          uint8_t **digests, struct err *err)
{
    struct hashing g = { c, f, kind, calloc(f->store.n_tensors + 1, HASH_MAX), { 0 } };
    *digests = NULL;
    if (!g.digests)
        return err_set(err, ERR_MEMORY, "out of memory for hashes");
    g.progress = host_progress_begin(f->host, "hashing", f->store.bytes);
    // XXH3 is faster than reading: one reader feeds both sums.  SHA-256 is slower:
    // each of the two takes a processor and reads for itself.
    int rc = kind == HASH_XXH3 || c->threads < 2
                 ? hash_pass(&g, true, true, c->threads, err)
                 : par_for(2, 2, hash_item, &g, err);
    host_progress_end(&g.progress);
    if (rc < 0) {
        free(g.digests);
        return -1;
    }
    *digests = g.digests;
    return 0;
}
