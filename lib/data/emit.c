/* SPDX-License-Identifier: MIT */
/* emit: samples as records, as ids, as JSON, as text. */
#include "lib/data/emit.h"

#include "lib/data/lines.h"

#include <assert.h>
#include <string.h>

/* snprintf takes ten times as long, and most of the output is ids. */
static void
put_u32(struct buf *b, uint32_t v, char after)
{
    char text[12], *p = text + sizeof text;
    if (after)
        *--p = after;
    do
        *--p = (char)('0' + v % 10);
    while (v /= 10);
    buf_add(b, p, (size_t)(text + sizeof text - p));
}

static void
put_list(struct buf *b, const uint32_t *v, uint32_t n, char between)
{
    for (uint32_t i = 0; i < n; i++)
        put_u32(b, v[i], i + 1 < n ? between : '\0');
}

static void
put_json(struct buf *b, const struct sample *s)
{
    buf_str(b, "{\"ids\":[");
    put_list(b, s->ids, s->n, ',');
    buf_str(b, "],\"mask\":[");
    for (uint32_t i = 0; i < s->n; i++)
        put_u32(b, s->mask[i], i + 1 < s->n ? ',' : '\0');
    if (s->starts) {
        buf_str(b, "],\"starts\":[");
        put_list(b, s->starts, s->n_starts, ',');
    }
    buf_str(b, "]}\n");
}

static int
put_text(struct buf *b, const struct sample *s, const struct tokenizer *t, bool json,
         struct err *err)
{
    struct buf text = { 0 }, whole = { 0 };
    if (!json) {
        int rc = decode(t, b, s->ids, s->n, err);
        buf_char(b, '\n');
        return rc;
    }
    int rc = decode(t, &text, s->ids, s->n, err);
    if (rc == 0) { // JSON cannot hold bytes that are not UTF-8
        utf8_repair(&whole, (struct slice){ text.data, text.len });
        buf_str(b, "{\"text\":");
        json_put(b, (struct slice){ whole.data, whole.len });
        buf_str(b, "}\n");
        if (text.failed || whole.failed)
            b->failed = true;
    }
    buf_free(&text);
    buf_free(&whole);
    return rc;
}

static void
count(struct tok_counts *counts, const struct sample *s)
{
    uint64_t targets = 0;
    for (uint32_t i = 1; s->mask && i < s->n; i++)
        targets += s->mask[i];
    for (uint32_t i = 1; s->mask && i < s->n_starts; i++)
        targets -= s->mask[s->starts[i]];
    tok_add_counts(counts, &(struct tok_counts){ 1, s->n, targets, s->n });
}

int
emit_sample(struct buf *out, struct tok_counts *counts, enum emit form,
            const struct sample *s, const struct tokenizer *t, struct err *err)
{
    if (form == EMIT_TOK) {
        tok_encode(out, counts, s->ids, s->mask, s->n, s->starts, s->n_starts);
        return 0;
    }
    count(counts, s);
    switch (form) {
    case EMIT_IDS:
        put_list(out, s->ids, s->n, ' ');
        buf_char(out, '\n');
        break;
    case EMIT_JSONL:
        put_json(out, s);
        break;
    case EMIT_TEXT:
    case EMIT_TEXT_JSONL:
        return put_text(out, s, t, form == EMIT_TEXT_JSONL, err);
    default: // EMIT_NOTHING
        break;
    }
    return 0;
}
