/* SPDX-License-Identifier: MIT */
/* list_tok: what datcat tells of a .tok, which has samples in place of tensors.  It is read
 * in order, in little memory, and always to its end: nothing of it is true before. */
#include "lib/base/grow.h"
#include "lib/base/num.h"
#include "lib/format/tok.h"
#include "lib/inspect/inspect.h"

#include "lib/base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FLUSH_AT = 1 << 16 };

/* Numbers whose distribution is asked for. */
struct lengths {
    uint32_t *v;
    size_t n, cap;
};

enum { IDS, TARGETS, DOCUMENTS, KINDS };

static const char *const kind_names[KINDS] = { "ids", "targets", "documents" };

struct look {
    const struct inspect *c;
    struct tok_reader r;
    struct buf out;
    uint32_t shortest;
    struct lengths lengths[KINDS]; // with --stats
    uint64_t want, count;          // of --values
    struct err *err;
};

/* ---- what is asked ----------------------------------------------------------------- */

/* Options that ask for tensors have no answer here. */
int
tok_check_action(const struct inspect *c, const char *path, struct err *err)
{
    char q[TEXT_QUOTE];
    bool knows = c->action == LIST || c->action == JSON || c->action == VALUES ||
                 c->action == HASH || c->action == VERIFY || c->action == MAP ||
                 c->action == META || c->action == ATTEST;
    if (knows && !c->group && !c->raw && c->select.n_in == 0 && c->select.n_out == 0 &&
        c->sort == SORT_NONE && !c->top && !c->all)
        return 0;
    return err_set(err, ERR_USAGE,
                   "%s: a .tok has samples, no tensors: --json, --values, --stats, "
                   "--hash, --verify, --map, --meta and --attest can be asked",
                   text_quote(q, path, strlen(path)));
}

/* ---- samples ------------------------------------------------------------------------ */

static int
add_length(struct look *k, int kind, uint32_t v)
{
    struct lengths *l = &k->lengths[kind];
    if (!GROW(l->v, l->n, l->cap, 1024))
        return err_set(k->err, ERR_MEMORY, "out of memory for %zu lengths", l->n + 1);
    l->v[l->n++] = v;
    return 0;
}

static int
add_lengths(struct look *k, const struct tok_sample *s)
{
    if (add_length(k, IDS, s->n) < 0 || add_length(k, TARGETS, s->targets) < 0)
        return -1;
    for (uint32_t i = 0; k->r.header.packed && i < s->n_starts; i++) {
        uint32_t end = i + 1 < s->n_starts ? s->starts[i + 1] : s->n;
        if (add_length(k, DOCUMENTS, end - s->starts[i]) < 0)
            return -1;
    }
    return 0;
}

static void
put_values(struct look *k, const struct tok_sample *s)
{
    for (uint32_t i = 0; i < s->n && i < k->count; i++)
        buf_printf(&k->out, "%u %d\n", s->ids[i], s->flags[i] & TOK_MASK);
}

static void
put_segment(struct look *k, uint64_t offset, uint64_t n, const char *what)
{
    buf_printf(&k->out, "%llu\t%llu\t%s\t", (unsigned long long)offset,
               (unsigned long long)n, what);
}

static int
look_at_sample(struct look *k, const struct tok_sample *s)
{
    if (s->index == 0 || s->n < k->shortest)
        k->shortest = s->n;
    if (k->c->stats && add_lengths(k, s) < 0)
        return -1;
    if (k->c->action == VALUES && s->index == k->want)
        put_values(k, s);
    if (k->c->action == MAP) {
        put_segment(k, s->offset, s->bytes, "sample");
        buf_printf(&k->out, "%llu\n", (unsigned long long)s->index);
        if (k->out.len > FLUSH_AT)
            printer_put(k->c->printer, &k->out, HOST_TEXT);
    }
    return printer_end(k->c->printer);
}

/* ---- answers ------------------------------------------------------------------------ */

static void
put_mean(struct buf *b, const struct tok_counts *c, int digits, const char *none)
{
    if (c->samples)
        buf_printf(b, "%.*g", digits, (double)c->tokens / (double)c->samples);
    else
        buf_str(b, none);
}

static void
put_totals(struct look *k)
{
    const struct tok_end *e = &k->r.end;
    buf_str(&k->out, "samples\ttokens\ttargets\tskipped\ttruncated\tshortest\tmean\t"
                     "longest\n");
    buf_printf(&k->out, "%llu\t%llu\t%llu\t%llu\t%llu\t%u\t",
               (unsigned long long)e->counts.samples,
               (unsigned long long)e->counts.tokens,
               (unsigned long long)e->counts.targets, (unsigned long long)e->skipped,
               (unsigned long long)e->truncated, k->shortest);
    put_mean(&k->out, &e->counts, 6, "-");
    buf_printf(&k->out, "\t%llu\n", (unsigned long long)e->counts.longest);
}

static int
by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

struct summary {
    double mean, std;
    uint32_t quantile[5]; // min, p50, p90, p99, max
};

/* pre: l->n > 0.  A quantile is the value at rank ceil(n*q): one of the lengths. */
static struct summary
summarize(struct lengths *l)
{
    static const unsigned percent[5] = { 0, 50, 90, 99, 100 };
    struct summary s = { 0 };
    double square = 0;
    qsort(l->v, l->n, sizeof *l->v, by_value);
    for (size_t i = 0; i < l->n; i++)
        s.mean += l->v[i];
    s.mean /= (double)l->n;
    for (size_t i = 0; i < l->n; i++)
        square += (l->v[i] - s.mean) * (l->v[i] - s.mean);
    s.std = sqrt(square / (double)l->n);
    for (int i = 0; i < 5; i++) {
        size_t rank = (l->n * percent[i] + 99) / 100;
        s.quantile[i] = l->v[rank ? rank - 1 : 0];
    }
    return s;
}

static void
put_stats(struct look *k)
{
    buf_str(&k->out, "length\tn\tmin\tp50\tp90\tp99\tmax\tmean\tstd\n");
    for (int kind = 0; kind < KINDS; kind++) {
        struct lengths *l = &k->lengths[kind];
        if (l->n == 0)
            continue;
        struct summary s = summarize(l);
        buf_printf(&k->out, "%s\t%zu", kind_names[kind], l->n);
        for (int i = 0; i < 5; i++)
            buf_printf(&k->out, "\t%u", s.quantile[i]);
        buf_printf(&k->out, "\t%.6g\t%.6g\n", s.mean, s.std);
    }
}

static void
put_stats_json(struct look *k)
{
    static const char *const names[5] = { "min", "p50", "p90", "p99", "max" };
    buf_str(&k->out, ",\"lengths\":{");
    for (int kind = 0, some = 0; kind < KINDS; kind++) {
        struct lengths *l = &k->lengths[kind];
        if (l->n == 0)
            continue;
        struct summary s = summarize(l);
        buf_printf(&k->out, "%s\"%s\":{\"n\":%zu", some++ ? "," : "", kind_names[kind],
                   l->n);
        for (int i = 0; i < 5; i++)
            buf_printf(&k->out, ",\"%s\":%u", names[i], s.quantile[i]);
        buf_printf(&k->out, ",\"mean\":%.17g,\"std\":%.17g}", s.mean, s.std);
    }
    buf_char(&k->out, '}');
}

static void
put_hex(struct buf *b, const uint8_t *bytes, size_t n)
{
    char hex[2 * HASH_MAX + 1];
    hash_hex(hex, bytes, n);
    buf_printf(b, "\"%s\"", hex);
}

static void
put_totals_json(struct look *k)
{
    const struct tok_end *e = &k->r.end;
    buf_printf(&k->out,
               "{\"samples\":%llu,\"tokens\":%llu,\"targets\":%llu,\"skipped\":%llu,"
               "\"truncated\":%llu,\"shortest\":%u,\"mean\":",
               (unsigned long long)e->counts.samples,
               (unsigned long long)e->counts.tokens,
               (unsigned long long)e->counts.targets, (unsigned long long)e->skipped,
               (unsigned long long)e->truncated, k->shortest);
    put_mean(&k->out, &e->counts, 17, "null");
    buf_printf(&k->out, ",\"longest\":%llu}", (unsigned long long)e->counts.longest);
}

/* What header and end record say, keys sorted behind the provenance. */
static void
put_meta(struct look *k)
{
    const struct tok_header *h = &k->r.header;
    struct buf *b = &k->out;
    buf_str(b, "{\"provenance\":");
    tok_put_provenance(b, &k->r);
    buf_printf(b, ",\"packed\":%s,\"seq_len\":", h->packed ? "true" : "false");
    if (h->has_seq_len)
        buf_printf(b, "%u", h->seq_len);
    else
        buf_str(b, "null");
    buf_str(b, ",\"settings\":");
    buf_add(b, h->settings.p, h->settings.n);
    buf_str(b, ",\"template\":");
    json_put(b, h->template);
    buf_str(b, ",\"tokenizer\":");
    if (h->has_tokenizer)
        put_hex(b, h->tokenizer, SHA256_BYTES);
    else
        buf_str(b, "null");
    buf_str(b, ",\"version\":");
    json_put(b, h->version);
    if (h->has_vocab)
        buf_printf(b, ",\"vocab\":%llu", (unsigned long long)h->vocab);
    else
        buf_str(b, ",\"vocab\":null");
    buf_str(b, ",\"xxh3\":");
    put_hex(b, k->r.end.xxh3, XXH3_BYTES);
    buf_char(b, '}');
}

static void
put_json(struct look *k, const char *path)
{
    bool all = k->c->action == JSON;
    buf_str(&k->out, "{\"file\":");
    json_put(&k->out, slice_of(path));
    buf_str(&k->out, ",\"container\":\"tok\"");
    if (all) {
        buf_printf(&k->out, ",\"bytes\":%llu,\"tensors\":[],\"totals\":",
                   (unsigned long long)k->r.bytes);
        put_totals_json(k);
        if (k->c->stats)
            put_stats_json(k);
    }
    buf_str(&k->out, ",\"config\":null,\"meta\":");
    put_meta(k);
    buf_str(&k->out, "}\n");
}

static int
attest(struct look *k, const char *path)
{
    struct buf record = { 0 };
    tok_put_provenance(&record, &k->r);
    int rc = buf_ok(&record, k->err);
    if (rc == 0)
        rc = attest_stream(k->c, path, (struct slice){ record.data, record.len },
                           k->err);
    buf_free(&record);
    return rc;
}

static int
put_answer(struct look *k, const char *path)
{
    uint64_t n = k->r.end.counts.samples;
    switch (k->c->action) {
    case JSON:
    case META:
        put_json(k, path);
        break;
    case ATTEST:
        return attest(k, path);
    case VALUES:
        if (k->want >= n)
            return err_set(k->err, ERR_USAGE,
                           "%s: --values %llu: there are %llu samples, counted from 0",
                           k->r.name, (unsigned long long)k->want,
                           (unsigned long long)n);
        break;
    case MAP:
        put_segment(k, k->r.end_offset, k->r.bytes - k->r.end_offset - XXH3_BYTES,
                    "end record");
        buf_char(&k->out, '\n');
        put_segment(k, k->r.bytes - XXH3_BYTES, XXH3_BYTES, "xxh3");
        buf_char(&k->out, '\n');
        break;
    case VERIFY:
        if (!k->c->printer->host->quiet)
            buf_printf(&k->out,
                       "%s: OK (records, counts and XXH3 of the whole stream)\n",
                       k->r.name);
        break;
    default: // LIST
        if (k->c->stats)
            put_stats(k);
        else
            put_totals(k);
    }
    return 0;
}

static int
look_through(struct look *k, const char *path)
{
    struct tok_sample s;
    int more;
    if (k->c->action == VERIFY && !k->c->full) {
        if (!k->c->printer->host->quiet)
            buf_printf(&k->out, "%s: OK (header only; the records were not read)\n",
                       k->r.name);
        return 0;
    }
    if (k->c->action == MAP) {
        buf_str(&k->out, "offset\tbytes\twhat\tname\n");
        put_segment(k, 0, TOK_PROLOGUE, "prologue");
        buf_char(&k->out, '\n');
        put_segment(k, TOK_PROLOGUE, k->r.start - TOK_PROLOGUE, "msgpack header");
        buf_char(&k->out, '\n');
    }
    while ((more = tok_next(&k->r, &s)) > 0)
        if (look_at_sample(k, &s) < 0)
            return -1;
    return more < 0 ? -1 : put_answer(k, path);
}

/* The file as a whole is all that can be hashed. */
static int
put_hash(struct look *k, const char *path, int fd)
{
    uint8_t block[1 << 16], digest[HASH_MAX];
    char hex[2 * HASH_MAX + 1], q[TEXT_QUOTE];
    ssize_t n;
    struct hash *h = hash_begin(k->c->hash);
    if (!h)
        return err_set(k->err, ERR_MEMORY, "out of memory for a hash");
    while ((n = read(fd, block, sizeof block)) > 0 || (n < 0 && errno == EINTR))
        hash_add(h, block, n < 0 ? 0 : (size_t)n);
    hash_end(h, digest);
    if (n < 0)
        return err_set(k->err, ERR_IO, "%s:", text_quote(q, path, strlen(path)));
    hash_hex(hex, digest, hash_bytes(k->c->hash));
    buf_printf(&k->out, "%s  *\n", hex);
    return 0;
}

int
tok_file(const struct inspect *c, const char *path, struct err *err)
{
    struct look k = { .c = c, .err = err };
    struct slice none = { NULL, 0 };
    char q[TEXT_QUOTE];
    k.want = c->values.first;
    k.count = c->values.count;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_IO, "%s:", text_quote(q, path, strlen(path)));
    if (c->many && (c->action == LIST || c->action == HASH || c->action == MAP))
        printer_line(c->printer, "==> %s <==\n", text_quote(q, path, strlen(path)));
    int rc = c->action == HASH ? 0 : tok_stream(&k.r, fd, path, none, 0, err);
    if (rc == 0)
        rc = c->action == HASH ? put_hash(&k, path, fd) : look_through(&k, path);
    if (rc == 0 && (c->action == JSON || c->action == META))
        printer_put(c->printer, &k.out, HOST_JSON);
    else if (rc == 0)
        printer_put(c->printer, &k.out, HOST_TEXT);
    tok_close(&k.r);
    close(fd);
    buf_free(&k.out);
    for (int i = 0; i < KINDS; i++)
        free(k.lengths[i].v);
    return rc == 0 && printer_end(c->printer) == 0 ? ANSWER_YES : -1;
}
