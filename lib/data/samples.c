/* SPDX-License-Identifier: MIT */
/* samples: lines to samples, on all threads; all but the part of a thread is read only. */
#include "lib/data/samples.h"

#include "lib/base/num.h"
#include "lib/data/csv.h"
#include "lib/data/emit.h"
#include "lib/data/lines.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEEP_BYTES = 1 << 20 }; // larger buffers of a long line are freed

/* The current line. */
struct at {
    const struct group *g;
    struct worker *w;
    struct part *p;
    struct pile *pile; // that the row belongs to
    size_t offset;     // of the line in the group's text
};

/* Only messages need it, so it is counted for them. */
static unsigned long long
line_number(const struct at *a)
{
    uint64_t n = a->g->first_line;
    const char *p = a->g->text.p, *end = p + a->offset;
    while (p < end && (p = memchr(p, '\n', (size_t)(end - p)))) {
        n++;
        p++;
    }
    return (unsigned long long)n;
}

/* Put file and line before the message of a function that does not have them. */
static int
fail(const struct at *a, const struct err *why, struct err *err)
{
    return err_set(err, why->kind, "%s: %s %llu%s%s", a->g->name, a->g->unit,
                   line_number(a), *why->msg == ':' ? "" : ": ", why->msg);
}

static int
skip(const struct at *a, const char *why, struct err *err)
{
    struct tally *t = &a->pile->tally;
    t->skipped++;
    if (!*t->first)
        snprintf(t->first, sizeof t->first, "%.100s: %s %llu: %s", a->g->name,
                 a->g->unit, line_number(a), why);
    if (a->g->c->strict)
        return err_set(err, ERR_FORMAT, "%s: %s %llu: %s", a->g->name, a->g->unit,
                       line_number(a), why);
    if (a->g->c->host->verbose)
        buf_printf(&a->p->notes, "%s: %s %llu: skipped: %s\n", a->g->name, a->g->unit,
                   line_number(a), why);
    return 0;
}

/* Whether samples that a .tok cannot hold are skipped. */
static bool
must_fit(const struct data_options *c)
{
    return c->emit == EMIT_TOK || c->pack || (c->count && !c->emit_given);
}

/* A run of ids of a row. */
struct run {
    const uint32_t *ids;
    const uint8_t *mask;
    size_t n;
};

/* *left: why the sample was skipped, if it was. */
static int
put_run(const struct at *a, struct run r, const char **left, struct err *err)
{
    const struct data_options *c = a->g->c;
    struct pile *p = a->pile;
    if (r.n > UINT32_MAX)
        return err_set(err, ERR_FORMAT, "expected at most %u ids, found %zu",
                       UINT32_MAX, r.n);
    if (must_fit(c) && !tok_fits(r.mask, r.n)) {
        *left = r.n < 2 ? "expected two ids or more" : "no target after its first id";
        return 0;
    }
    struct sample s = { .ids = r.ids, .mask = r.mask, .n = (uint32_t)r.n };
    size_t before = p->out.len;
    int rc = emit_sample(&p->out, &p->tally.counts, sink_format(c), &s, a->g->t, err);
    if (sink_buffers(c))
        sizes_add(&p->sizes, p->out.len - before);
    return rc;
}

/* The last N+1 ids. */
static int
put_end(const struct at *a, struct run r, const char **left, struct err *err)
{
    size_t gone = r.n - a->g->c->seq_len - 1;
    struct run end = { r.ids + gone, r.mask + gone, r.n - gone };
    int rc = put_run(a, end, left, err);
    a->pile->tally.truncated += rc == 0 && !*left;
    return rc;
}

/* The last id of a chunk is the first of the next, so each id but the first is a target. */
static int
put_chunks(const struct at *a, struct run r, const char **left, struct err *err)
{
    size_t step = a->g->c->chunk;
    for (size_t i = 0; i + 1 < r.n; i += step) {
        size_t n = r.n - i <= step ? r.n - i : step + 1;
        if (put_run(a, (struct run){ r.ids + i, r.mask + i, n }, left, err) < 0)
            return -1;
    }
    return 0;
}

/* Only where all ids are targets no chunk lacks what its targets depend on, nor targets. */
static bool
is_document(struct run r)
{
    return r.n > 1 && !memchr(r.mask + 1, 0, r.n - 1);
}

static int
put_sample(const struct at *a, struct run r, const char **left, struct err *err)
{
    const struct data_options *c = a->g->c;
    bool over = c->chunk && r.n > (size_t)c->chunk + 1;
    if (over && is_document(r))
        return put_chunks(a, r, left, err);
    if (over && !c->seq_len)
        return err_set(err, ERR_FORMAT,
                       "%zu ids of a prompt and its answer: --chunk cuts documents "
                       "only: expected at most %u ids; --seq-len %u keeps the last "
                       "ones of such a row",
                       r.n, c->chunk + 1, c->chunk);
    if (c->seq_len && r.n > (size_t)c->seq_len + 1)
        return put_end(a, r, left, err);
    return put_run(a, r, left, err);
}

static int
render(const struct at *a, struct err *err)
{
    const struct template_options *how = &a->g->c->how;
    struct worker *w = a->w;
    struct row *r = &w->row;
    struct rendered *out = &w->rendered;
    out->ids.n = 0;
    out->mask.len = 0;
    switch (r->kind) {
    case ROW_PAIR:
        return render_pair(w->encoder, out, how, r->prompt, r->target, err);
    case ROW_MESSAGES:
        return render_messages(w->encoder, out, how, r->messages.v, r->messages.n, err);
    default: // ROW_TEXT; an empty one has no ids, and no end to predict either
        return r->text.n ? render_document(w->encoder, out, how, r->text, err) : 0;
    }
}

/* Ids of the input must be below the vocabulary of a tokenizer that was given. */
static int
check_given(const struct at *a, struct err *err)
{
    const struct ids *ids = &a->w->row.given.ids;
    uint32_t vocab = a->g->t ? tokenizer_vocab(a->g->t) : UINT32_MAX;
    for (size_t i = 0; a->g->t && i < ids->n; i++)
        if (ids->v[i] >= vocab)
            return err_set(err, ERR_FORMAT,
                           "id %u at position %zu, expected less than %u", ids->v[i], i,
                           vocab);
    return 0;
}

static int
put_row(const struct at *a, const char **left, struct err *err)
{
    struct worker *w = a->w;
    const struct rendered *r = &w->rendered;
    int rc;
    if (w->row.kind == ROW_IDS) {
        r = &w->row.given;
        rc = check_given(a, err);
    } else {
        rc = render(a, err);
    }
    if (rc < 0)
        return rc;
    return put_sample(a,
                      (struct run){ r->ids.v, (const uint8_t *)r->mask.data, r->ids.n },
                      left, err);
}

/* Text without NUL, UTF-8 or made so. */
static int
check_text(const struct at *a, struct slice *line, struct err *err)
{
    uint64_t base = a->g->base + a->offset;
    const char *nul = line->n ? memchr(line->p, '\0', line->n) : NULL;
    size_t bad = utf8_check(line->p, line->n);
    if (nul && (size_t)(nul - line->p) < bad)
        return err_set(err, ERR_FORMAT, ": byte %llu: expected text, found a NUL byte",
                       (unsigned long long)(base + (size_t)(nul - line->p)));
    if (bad == line->n)
        return 0;
    if (a->g->c->invalid == INVALID_ERROR)
        return err_set(err, ERR_FORMAT,
                       ": byte %llu: expected UTF-8, found byte 0x%02x",
                       (unsigned long long)(base + bad), (uint8_t)line->p[bad]);
    if (nul) // also behind the bad bytes
        return err_set(err, ERR_FORMAT, ": byte %llu: expected text, found a NUL byte",
                       (unsigned long long)(base + (size_t)(nul - line->p)));
    a->w->repaired.len = 0;
    a->pile->tally.repaired += utf8_repair(&a->w->repaired, *line);
    if (buf_ok(&a->w->repaired, err) < 0)
        return -1;
    *line = (struct slice){ a->w->repaired.data, a->w->repaired.len };
    return 0;
}

/* ---- --split ------------------------------------------------------------------------ */

static void
add_le32(struct buf *b, uint32_t v)
{
    uint8_t bytes[4];
    store_le32(bytes, v);
    buf_add(b, bytes, sizeof bytes);
}

static void
add_text(struct buf *b, struct slice s)
{
    buf_add(b, s.p, s.n);
    buf_char(b, '\0');
}

/* What determines a row's side: its texts, whatever they are written as and rendered to, or
 * its ids. */
static void
add_content(struct buf *b, const struct row *r)
{
    switch (r->kind) {
    case ROW_PAIR:
        add_text(b, r->prompt);
        add_text(b, r->target);
        break;
    case ROW_MESSAGES:
        for (size_t i = 0; i < r->messages.n; i++)
            add_text(b, r->messages.v[i].content);
        break;
    case ROW_TEXT:
        add_text(b, r->text);
        break;
    default: // ROW_IDS
        for (size_t i = 0; i < r->given.ids.n; i++)
            add_le32(b, r->given.ids.v[i]);
    }
}

/* 0 or 1: the output that the row goes to. */
static int
side_of(const struct at *a, unsigned *side, struct err *err)
{
    const struct data_options *c = a->g->c;
    struct buf *b = &a->w->content;
    uint8_t digest[XXH3_BYTES];
    b->len = 0;
    add_le32(b, c->split_seed);
    add_content(b, &a->w->row);
    if (buf_ok(b, err) < 0)
        return -1;
    xxh3_128(digest, b->data, b->len);
    *side = load_le64(digest) < (uint64_t)ldexp(c->fraction, 64);
    return 0;
}

static int
work_line(struct at *a, struct slice line, struct err *err)
{
    struct err why = { 0 };
    struct row *row = &a->w->row;
    a->pile = a->p->piles;
    if (check_text(a, &line, &why) < 0 ||
        row_parse(row, &a->g->form, line, a->g->base + a->offset, &why) < 0)
        return fail(a, &why, err);
    if (row->kind == ROW_NOTHING)
        return 0;
    if (*row->remark && a->p->remark.len == 0)
        buf_printf(&a->p->remark, "%s: %s %llu: %s\n", a->g->name, a->g->unit,
                   line_number(a), row->remark);
    const char *left = row->kind == ROW_SKIPPED ? row->why : NULL;
    unsigned side = 0;
    if (!left && a->g->c->split && side_of(a, &side, &why) < 0)
        return fail(a, &why, err);
    a->pile = &a->p->piles[side];
    a->pile->tally.rows++;
    if (!left && put_row(a, &left, &why) < 0)
        return fail(a, &why, err);
    return left ? skip(a, left, err) : 0;
}

/* The buffers of a very long line must not stay allocated in each thread. */
static void
free_large(struct worker *w)
{
    if (w->repaired.cap > KEEP_BYTES)
        buf_free(&w->repaired);
    if (w->content.cap > KEEP_BYTES)
        buf_free(&w->content);
    if (w->rendered.ids.cap > KEEP_BYTES || w->rendered.mask.cap > KEEP_BYTES)
        rendered_free(&w->rendered);
    if (w->row.given.ids.cap > KEEP_BYTES || w->row.given.mask.cap > KEEP_BYTES)
        rendered_free(&w->row.given);
}

int
samples_of_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct group *g = ctx;
    struct part *p = &g->parts[i];
    struct slice text = { g->text.p, p->end }, line;
    struct at a = { g, &g->workers[worker], p, p->piles, p->begin };
    size_t at = p->begin;
    bool csv = g->form.kind == INPUT_CSV;
    while (!p->failed &&
           (csv ? csv_next(text, &at, &line) : line_next(text, &at, &line))) {
        p->failed = work_line(&a, line, &p->err) < 0;
        a.offset = at;
    }
    free_large(a.w);
    for (unsigned k = 0; k < g->c->n_out; k++)
        if (!p->failed && (p->piles[k].out.failed || p->piles[k].sizes.failed))
            p->failed = err_set(&p->err, ERR_MEMORY, "out of memory for samples") < 0;
    return p->failed ? err_set(err, p->err.kind, "%s", p->err.msg) : 0;
}
