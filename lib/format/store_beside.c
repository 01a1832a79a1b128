/* SPDX-License-Identifier: MIT */
/* store_beside: the texts that lie beside a file: its sidecar, and config.json.
 *
 * A configuration is looked for, in this order: where --config says
 * (store_load_config), inside the container (its reader), in the sidecar of the file,
 * in a config.json beside it (store_load_beside); that of a directory is its own
 * config.json. */
#include "lib/base/json.h"
#include "lib/file/path.h"
#include "lib/format/container.h"
#include "lib/format/object.h"

#include <string.h>
#include <sys/stat.h>

int
store_slurp(struct store *s, const char *path, struct slice *text)
{
    enum { LIMIT = 16 << 20 }; // of a model they have some KiB
    *text = (struct slice){ 0 };
    int there = path_exists(path, s->err);
    if (there <= 0)
        return there;
    struct map m;
    int rc = map_open(&m, path, s->opt.guard, s->err);
    if (rc == 0 && m.size > LIMIT)
        rc = err_set(s->err, ERR_FORMAT, "%s: %zu bytes, expected at most %d", m.name,
                     m.size, LIMIT);
    if (rc == 0) {
        char *p = arena_alloc(&s->arena, m.size + 1);
        if (!p)
            rc = err_set(s->err, ERR_MEMORY, "%s: out of memory", m.name);
        else if (store_note(s, &m) < 0 || map_read(&m, p, m.size, 0, s->err) < 0)
            rc = -1;
        else
            p[m.size] = '\0';
        *text = (struct slice){ p, m.size };
    }
    map_close(&m);
    return rc;
}

/* Whether it is a directory, a pipe or a device: nothing that we wrote. */
static bool
is_no_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

/* Whether a text that cannot be understood was a sidecar of ours. */
static bool
was_ours(struct slice text)
{
    return text.p && (text.n == 0 || slice_starts(text, "{\"format\":\"nibble-1\""));
}

/* Read FILE.json: 1, or 0 if there is none.  One of another program is no reason to
 * refuse the file.  One that cannot be read or is damaged is, since it may hold the
 * file's checksum. */
static int
read_sidecar(struct store *s, struct nibble_object *o)
{
    struct slice text;
    struct err why = { 0 };
    struct err *mine = s->err;
    struct buf path = { 0 };
    buf_printf(&path, "%s.json", s->path);
    if (buf_ok(&path, s->err) < 0)
        return -1;
    s->err = &why;
    int rc = store_slurp(s, path.data, &text);
    if (rc == 0 && text.p)
        rc = object_read(o, path.data, text, &s->arena, &why);
    s->err = mine;
    bool damaged = rc < 0 && why.kind == ERR_FORMAT && was_ours(text);
    bool foreign = rc < 0 && (why.kind == ERR_FORMAT || is_no_file(path.data));
    buf_free(&path);
    if (damaged)
        return err_set(
            s->err, ERR_FORMAT,
            "%s.json: the sidecar is damaged: without it the file is taken as "
            "it is: %s",
            s->name, why.msg);
    if (foreign)
        return store_warn(s, "its sidecar was not written by nibble and is ignored");
    if (rc < 0)
        return err_set(s->err, why.kind, "%s", why.msg);
    return text.p != NULL;
}

/* What the sidecar has, if it fits.  One that fits by its size alone is kept, for the
 * checksum of the whole decides. */
static int
load_sidecar(struct store *s)
{
    struct nibble_object o = { 0 };
    char hex[2 * XXH3_BYTES + 1];
    uint8_t digest[XXH3_BYTES];
    int rc = read_sidecar(s, &o);
    if (rc <= 0)
        return rc;
    if (s->kind->index_hash(s, digest) < 0)
        return -1;
    hash_hex(hex, digest, XXH3_BYTES);
    if (!o.has_bytes || o.bytes != s->bytes)
        return store_warn(s, "its sidecar is stale and is ignored");
    if (!slice_is(o.index_xxh3, hex))
        store_warn(s, "its entry headers differ from those in its sidecar");
    s->side_xxh3 = o.xxh3;
    s->config = o.config;
    s->provenance = o.provenance;
    return 0;
}

/* A JSON object, verbatim with white space at its ends; nothing if there is no file. */
static int
read_config(struct store *s, const char *path)
{
    struct slice text;
    struct json j;
    char q[TEXT_QUOTE];
    if (store_slurp(s, path, &text) < 0)
        return -1;
    if (!text.p)
        return 0;
    json_open(&j, text_quote(q, path, strlen(path)), 0, text, &s->arena, s->err);
    if (json_peek(&j) != '{')
        return json_expected(&j, "an object");
    if (json_skip(&j, NULL) < 0 || json_end(&j) < 0)
        return -1;
    s->config = text;
    return 0;
}

int
store_find_config(struct store *s)
{
    const char *slash = strrchr(s->path, '/');
    struct buf path = { 0 };
    if (s->is_directory)
        buf_printf(&path, "%s/config.json", s->path);
    else
        buf_printf(&path, "%.*sconfig.json", slash ? (int)(slash - s->path) + 1 : 0,
                   s->path);
    int rc = path.failed ? err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name)
                         : read_config(s, path.data);
    buf_free(&path);
    return rc;
}

int
store_load_config(struct store *s, const char *path)
{
    s->config = (struct slice){ 0 };
    if (read_config(s, path) < 0)
        return -1;
    return s->config.p ? 0 : err_set(s->err, ERR_IO, "%s: no such file", path);
}

int
store_load_beside(struct store *s)
{
    struct err *mine = s->err;
    struct err why = { 0 };
    if (strcmp(s->path, "-") == 0)
        return 0;
    if (s->kind->index_hash && load_sidecar(s) < 0)
        return -1;
    if (s->config.p || s->is_directory)
        return 0;
    s->err = &why; // a bad config.json beside a file is no reason to refuse the file
    int rc = store_find_config(s);
    s->err = mine;
    if (rc < 0) {
        s->config = (struct slice){ 0 };
        store_warn(s, "config.json beside it is ignored: %s", why.msg);
    }
    s->config_beside = s->config.p != NULL;
    return 0;
}
