/* SPDX-License-Identifier: MIT */
/* object: see object.h. */
#include "lib/format/object.h"

#include "lib/base/json.h"

int
object_read(struct nibble_object *o, const char *file, struct slice text,
            struct arena *arena, struct err *err)
{
    struct json j;
    struct slice key;
    bool ours = false;
    int more;
    *o = (struct nibble_object){ 0 };
    json_open(&j, file, 0, text, arena, err);
    json_object(&j);
    while ((more = json_key(&j, &key)) > 0) {
        if (slice_is(key, "format")) {
            struct slice f;
            if (json_string(&j, &f) == 0)
                ours = slice_is(f, "nibble-1");
        } else if (slice_is(key, "bytes")) {
            o->has_bytes = json_u63(&j, &o->bytes) == 0;
        } else if (slice_is(key, "index_xxh3")) {
            json_string(&j, &o->index_xxh3);
        } else if (slice_is(key, "xxh3")) {
            json_string(&j, &o->xxh3);
        } else if (slice_is(key, "config") && json_peek(&j) == '{') {
            json_skip(&j, &o->config);
        } else if (slice_is(key, "provenance") && json_peek(&j) == '{') {
            json_skip(&j, &o->provenance);
        } else if (slice_is(key, "files")) {
            json_skip(&j, &o->files);
        } else {
            json_skip(&j, NULL);
        }
    }
    if (more < 0 || json_end(&j) < 0)
        return -1;
    if (!ours)
        return err_set(err, ERR_FORMAT, "%s: expected \"format\":\"nibble-1\"", file);
    return 0;
}

static void
put_or_null(struct buf *out, struct slice json)
{
    if (json.p)
        buf_add(out, json.p, json.n);
    else
        buf_str(out, "null");
}

void
object_put(struct buf *out, const struct nibble_object *o)
{
    buf_str(out, "{\"format\":\"nibble-1\"");
    if (o->has_bytes)
        buf_printf(out, ",\"bytes\":%llu,\"index_xxh3\":\"%.*s\",\"xxh3\":\"%.*s\"",
                   (unsigned long long)o->bytes, (int)o->index_xxh3.n, o->index_xxh3.p,
                   (int)o->xxh3.n, o->xxh3.p);
    if (o->files.p) {
        buf_str(out, ",\"files\":");
        buf_add(out, o->files.p, o->files.n);
    }
    buf_str(out, ",\"config\":");
    put_or_null(out, o->config);
    buf_str(out, ",\"provenance\":");
    put_or_null(out, o->provenance);
    buf_char(out, '}');
}
