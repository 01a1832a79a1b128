/* SPDX-License-Identifier: MIT */
/* history: what the provenance of a checkpoint that a training wrote tells: where its
 * weights are from, and by which data and settings they were trained.  doc/FORMAT.md
 * section 5.
 *
 * A run that changes its settings or data often would outgrow any header, so only the
 * last spans stand there as they are.  Older ones are a digest, a chain: it grows by one
 * span at a time, and only by spans to which no step will be added.  So it is a function
 * of the spans alone, whenever they were saved.
 */
#include "cmd/trainstep/trainstep.h"

#include "lib/core/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading -------------------------------------------------------------------------- */

static bool
take_hex(struct slice s, uint8_t digest[XXH3_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    if (s.n != 2 * XXH3_BYTES)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        const char *d = s.p[i] ? strchr(digits, s.p[i]) : NULL;
        if (!d)
            return false;
        unsigned v = (unsigned)(d - digits);
        digest[i / 2] = (uint8_t)(i % 2 ? digest[i / 2] | v : v << 4);
    }
    return true;
}

static uint64_t
last_step(const struct history *h)
{
    return h->n ? h->span[h->n - 1].last : h->older.last;
}

/* A span, or in the place of the first the digest of older ones. */
static int
read_item(struct json *j, struct history *h)
{
    struct span_record s = { 0 };
    struct slice key, hex = { 0 };
    uint64_t count = 0;
    int more;
    if (json_object(j) < 0)
        return -1;
    while ((more = json_key(j, &key)) > 0) {
        int rc = slice_is(key, "count")      ? json_u63(j, &count)
                 : slice_is(key, "digest")   ? json_string(j, &hex)
                 : slice_is(key, "first")    ? json_u63(j, &s.first)
                 : slice_is(key, "last")     ? json_u63(j, &s.last)
                 : slice_is(key, "data")     ? json_skip(j, &s.data)
                 : slice_is(key, "route")    ? json_skip(j, &s.route)
                 : slice_is(key, "settings") ? json_skip(j, &s.settings)
                                             : json_skip(j, NULL);
        if (rc < 0)
            return -1;
    }
    if (more < 0 || s.first > s.last || s.first <= last_step(h))
        return -1;
    if (hex.p && h->n == 0 && h->older.count == 0 && count > 0) {
        h->older = (struct older_spans){ count, s.first, s.last, { 0 } };
        return take_hex(hex, h->older.digest) ? 0 : -1;
    }
    if (hex.p || !s.data.p || !s.route.p || !s.settings.p)
        return -1;
    history_add(h, &s);
    return 0;
}

static int
read_items(struct json *j, struct history *h)
{
    int more;
    if (json_array(j) < 0)
        return -1;
    while ((more = json_item(j)) > 0)
        if (read_item(j, h) < 0)
            return -1;
    return more;
}

/* {"spans":[...]} */
static int
read_options(struct json *j, struct history *h)
{
    struct slice key;
    int more;
    if (json_object(j) < 0)
        return -1;
    while ((more = json_key(j, &key)) > 0) {
        bool spans = slice_is(key, "spans") && h->n == 0 && h->older.count == 0;
        if ((spans ? read_items(j, h) : json_skip(j, NULL)) < 0)
            return -1;
    }
    return more;
}

bool
history_read(struct history *h, const char *name, struct slice provenance)
{
    struct json j;
    struct err err = { 0 };
    struct slice key, tool = { 0 };
    int more;
    *h = (struct history){ 0 };
    if (!provenance.p)
        return false;
    json_open(&j, name, 0, provenance, &h->arena, &err);
    if (json_object(&j) < 0)
        return false;
    while ((more = json_key(&j, &key)) > 0) {
        int rc = slice_is(key, "inputs")    ? json_skip(&j, &h->inputs)
                 : slice_is(key, "options") ? read_options(&j, h)
                 : slice_is(key, "tool")    ? json_string(&j, &tool)
                                            : json_skip(&j, NULL);
        if (rc < 0)
            return false;
    }
    return more == 0 && slice_is(tool, "trainstep") && h->inputs.p && h->n > 0;
}

void
history_free(struct history *h)
{
    arena_free(&h->arena);
    free(h->span);
    *h = (struct history){ 0 };
}

/* ---- writing -------------------------------------------------------------------------- */

static bool
same(struct slice a, struct slice b)
{
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

/* Where a run was cut does not show: a span goes on if nothing has changed. */
void
history_add(struct history *h, const struct span_record *s)
{
    struct span_record *last = h->n ? &h->span[h->n - 1] : NULL;
    if (last && last->last + 1 == s->first && same(last->data, s->data) &&
        same(last->route, s->route) && same(last->settings, s->settings)) {
        last->last = s->last;
        return;
    }
    if (h->n == h->cap) {
        h->cap = h->cap ? 2 * h->cap : 64;
        struct span_record *v = realloc(h->span, h->cap * sizeof *v);
        if (!v)
            die(EXIT_MEMORY, "out of memory for the provenance");
        h->span = v;
    }
    assert(h->span);
    h->span[h->n++] = *s;
}

static void
put_span(struct buf *b, const struct span_record *s)
{
    buf_str(b, "{\"data\":");
    buf_add(b, s->data.p, s->data.n);
    buf_printf(b,
               ",\"first\":%llu,\"last\":%llu,\"route\":", (unsigned long long)s->first,
               (unsigned long long)s->last);
    buf_add(b, s->route.p, s->route.n);
    buf_str(b, ",\"settings\":");
    buf_add(b, s->settings.p, s->settings.n);
    buf_char(b, '}');
}

/* digest = XXH3(digest, the span as it would stand there). */
static void
fold(struct older_spans *older, const struct span_record *s)
{
    struct buf b = { 0 };
    buf_add(&b, older->digest, XXH3_BYTES);
    put_span(&b, s);
    if (b.failed)
        die(EXIT_MEMORY, "out of memory for the provenance");
    xxh3_128(older->digest, b.data, b.len);
    older->first = older->count ? older->first : s->first;
    older->last = s->last;
    older->count++;
    buf_free(&b);
}

void
history_put(struct buf *b, const struct history *h)
{
    struct older_spans older = h->older;
    char hex[2 * XXH3_BYTES + 1];
    size_t i = 0;
    for (; i + SPANS_KEPT < h->n; i++)
        fold(&older, &h->span[i]);
    buf_char(b, '[');
    if (older.count) {
        hash_hex(hex, older.digest, XXH3_BYTES);
        buf_printf(b, "{\"count\":%llu,\"digest\":\"%s\",\"first\":%llu,\"last\":%llu}",
                   (unsigned long long)older.count, hex,
                   (unsigned long long)older.first, (unsigned long long)older.last);
    }
    for (bool first = !older.count; i < h->n; i++, first = false) {
        if (!first)
            buf_char(b, ',');
        put_span(b, &h->span[i]);
    }
    buf_char(b, ']');
}
