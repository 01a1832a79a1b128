/* SPDX-License-Identifier: MIT */
/* history: see history.h. */
#include "lib/format/history.h"

#include "lib/base/grow.h"
#include "lib/base/json.h"
#include "lib/format/provenance.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading -------------------------------------------------------------------------- */

static bool
read_hex(struct slice s, uint8_t digest[XXH3_BYTES])
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
    struct history_span s = { 0 };
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
        h->older.count = count;
        h->older.first = s.first;
        h->older.last = s.last;
        return read_hex(hex, h->older.digest) ? 0 : -1;
    }
    if (hex.p || !s.data.p || !s.route.p || !s.settings.p)
        return -1;
    return history_add(h, &s, j->err);
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

/* {"inputs":[...],"options":{...},"tool":"trainstep",...} */
static int
read_object(struct json *j, struct history *h)
{
    struct slice key, tool = { 0 };
    int more;
    if (json_object(j) < 0)
        return -1;
    while ((more = json_key(j, &key)) > 0) {
        bool inputs = slice_is(key, "inputs") && json_peek(j) == '[';
        int rc = inputs                     ? json_skip(j, &h->inputs)
                 : slice_is(key, "options") ? read_options(j, h)
                 : slice_is(key, "tool")    ? json_string(j, &tool)
                                            : json_skip(j, NULL);
        if (rc < 0)
            return -1;
    }
    return more == 0 && slice_is(tool, "trainstep") && h->inputs.p && h->n > 0 ? 0 : -1;
}

int
history_read(struct history *h, struct slice provenance, struct err *err)
{
    struct json j;
    struct err why = { 0 };
    *h = (struct history){ 0 };
    if (!provenance.p)
        return 0;
    json_open(&j, "provenance", 0, provenance, &h->arena, &why);
    if (read_object(&j, h) == 0) {
        h->inputs = (struct slice){ h->inputs.p + 1, h->inputs.n - 2 };
        return 1;
    }
    history_free(h);
    return why.kind == ERR_MEMORY ? err_set(err, why.kind, "%s", why.msg) : 0;
}

void
history_free(struct history *h)
{
    arena_free(&h->arena);
    free(h->span);
    *h = (struct history){ 0 };
}

/* ---- writing -------------------------------------------------------------------------- */

int
history_add(struct history *h, const struct history_span *s, struct err *err)
{
    struct history_span *last = h->n ? &h->span[h->n - 1] : NULL;
    if (last && last->last + 1 == s->first && slice_eq(last->data, s->data) &&
        slice_eq(last->route, s->route) && slice_eq(last->settings, s->settings)) {
        last->last = s->last;
        return 0;
    }
    if (!GROW(h->span, h->n, h->cap, 64))
        return err_set(err, ERR_MEMORY, "out of memory for the provenance");
    h->span[h->n++] = *s;
    return 0;
}

static void
put_span(struct buf *b, const struct history_span *s)
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

/* digest = XXH3(digest, the span as it would be stored); false: out of memory. */
static bool
fold(struct history *h, const struct history_span *s)
{
    struct buf b = { 0 };
    buf_add(&b, h->older.digest, XXH3_BYTES);
    put_span(&b, s);
    bool ok = !b.failed;
    if (ok)
        xxh3_128(h->older.digest, b.data, b.len);
    h->older.first = h->older.count ? h->older.first : s->first;
    h->older.last = s->last;
    h->older.count++;
    buf_free(&b);
    return ok;
}

static void
put_spans(struct buf *b, const struct history *h)
{
    struct history now = *h; // of which only `older` changes
    char hex[2 * XXH3_BYTES + 1];
    size_t i = 0;
    for (; i + HISTORY_SPANS < h->n; i++)
        b->failed |= !fold(&now, &h->span[i]);
    buf_char(b, '[');
    if (now.older.count) {
        hash_hex(hex, now.older.digest, XXH3_BYTES);
        buf_printf(b, "{\"count\":%llu,\"digest\":\"%s\",\"first\":%llu,\"last\":%llu}",
                   (unsigned long long)now.older.count, hex,
                   (unsigned long long)now.older.first,
                   (unsigned long long)now.older.last);
    }
    for (bool first = !now.older.count; i < h->n; i++, first = false) {
        if (!first)
            buf_char(b, ',');
        put_span(b, &h->span[i]);
    }
    buf_char(b, ']');
}

void
history_put(struct buf *b, const struct history *h, const char *version)
{
    provenance_begin(b);
    buf_add(b, h->inputs.p, h->inputs.n);
    provenance_options(b);
    buf_str(b, "{\"spans\":");
    put_spans(b, h);
    buf_char(b, '}');
    provenance_end(b, "trainstep", slice_of(version));
}
