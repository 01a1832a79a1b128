/* SPDX-License-Identifier: MIT */
/* attest: the record of how a file was made as an in-toto Statement v1 with a SLSA
 * provenance v1 predicate, doc/provenance.md.  It has nothing that the record does not
 * have but the SHA-256 of the files, so that equal files give equal statements. */
#include "lib/inspect/inspect.h"

#include "lib/base/grow.h"
#include "lib/base/json.h"

#include "lib/file/feed.h"
#include "lib/file/path.h"
#include "lib/format/modeldir.h"
#include "lib/load/training.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

struct statement {
    const struct inspect *c;
    struct buf out;
    struct buf place; // "FILE: record", for messages
    struct arena arena;
    struct names dependencies; // their texts: each stands there once
    struct record_list {
        struct slice *v; // JSON objects, borrowed
        size_t n, cap;
    } records; // that were found, the inputs of which are dependencies, too
    struct err *err;
};

static int
no_memory(struct statement *t)
{
    return err_set(t->err, ERR_MEMORY, "out of memory for a statement");
}

/* ---- the subject ----------------------------------------------------------------------- */

static int
sha256_of(struct statement *t, const char *path, uint8_t digest[HASH_MAX])
{
    struct map m = { .fd = -1 };
    struct hash *h = hash_begin(HASH_SHA256);
    struct feed *f = NULL;
    const uint8_t *p;
    size_t n;
    int rc = h ? map_open(&m, path, t->c->printer->host->guard, t->err) : no_memory(t);
    if (rc == 0)
        rc = (f = feed_open(&m, 0, m.size, t->c->threads, t->err)) ? 1 : -1;
    while (rc > 0 && (rc = feed_next(f, &p, &n)) > 0)
        hash_add(h, p, n);
    if (rc == 0)
        rc = map_check(&m, t->err);
    feed_close(f);
    map_close(&m);
    hash_end(h, rc < 0 ? NULL : digest);
    return rc;
}

static int
put_subject(struct statement *t, const char *path)
{
    uint8_t digest[HASH_MAX];
    char hex[2 * HASH_MAX + 1];
    const char *slash = strrchr(path, '/');
    if (sha256_of(t, path, digest) < 0)
        return -1;
    hash_hex(hex, digest, SHA256_BYTES);
    buf_str(&t->out, t->out.data[t->out.len - 1] == '[' ? "{\"name\":" : ",{\"name\":");
    json_put(&t->out, slice_of(slash ? slash + 1 : path));
    buf_printf(&t->out, ",\"digest\":{\"sha256\":\"%s\"}}", hex);
    return 0;
}

static int
by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int
no_dots(const struct dirent *e)
{
    return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

/* The files that the run wrote; others are no result of it. */
static int
put_entries(struct statement *t, const char *path, const struct modeldir *d,
            struct dirent **e, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char dir[TEXT_QUOTE], leaf[TEXT_QUOTE];
        struct buf file = { 0 };
        if (!modeldir_replaces(d, e[i]->d_name)) {
            host_warn(t->c->printer->host,
                      "%s: \"%s\" is not part of the model: it is left out of the "
                      "statement",
                      text_quote(dir, path, strlen(path)),
                      text_quote(leaf, e[i]->d_name, strlen(e[i]->d_name)));
            continue;
        }
        buf_printf(&file, "%s/%s", path, e[i]->d_name);
        int rc = file.failed ? no_memory(t) : put_subject(t, file.data);
        buf_free(&file);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static int
check_complete(struct statement *t, const char *path, const struct modeldir *d,
               struct dirent **e, size_t n)
{
    char dir[TEXT_QUOTE], leaf[TEXT_QUOTE];
    for (size_t k = 0; k < d->names.n; k++) {
        size_t i = 0;
        while (i < n && strcmp(e[i]->d_name, d->names.name[k]) != 0)
            i++;
        if (i == n)
            return err_set(
                t->err, ERR_FORMAT,
                "%s: \"%s\" is missing: nibble.json lists it among the files "
                "that were written together",
                text_quote(dir, path, strlen(path)),
                text_quote(leaf, d->names.name[k], strlen(d->names.name[k])));
    }
    return 0;
}

static int
put_directory(struct statement *t, const char *path)
{
    struct modeldir d;
    struct dirent **e = NULL;
    char q[TEXT_QUOTE];
    int rc = modeldir_open(&d, path, t->c->printer->host->guard, t->err);
    int n = rc < 0 ? 0 : scandir(path, &e, no_dots, by_bytes);
    if (n < 0)
        rc = err_set(t->err, ERR_IO, "%s:", text_quote(q, path, strlen(path)));
    if (rc == 0 && (rc = check_complete(t, path, &d, e, (size_t)n)) == 0)
        rc = put_entries(t, path, &d, e, (size_t)n);
    for (int i = 0; i < n; i++)
        free(e[i]);
    free(e);
    modeldir_close(&d);
    return rc;
}

/* ---- reading the record ---------------------------------------------------------------- */

static void
open_text(struct statement *t, struct json *j, struct slice text)
{
    json_open(j, t->place.data, 0, text, &t->arena, t->err);
}

/* The member of an object, text and all; p == NULL: it is not there. */
static int
member(struct statement *t, struct slice object, const char *name, struct slice *value)
{
    struct json j;
    struct slice key;
    int more;
    *value = (struct slice){ 0 };
    open_text(t, &j, object);
    json_object(&j);
    while ((more = json_key(&j, &key)) > 0)
        if (json_skip(&j, slice_is(key, name) ? value : NULL) < 0)
            return -1;
    return more;
}

/* A member that must be there and begin so: '{', '[' or '"'. */
static int
want(struct statement *t, struct slice object, const char *name, char begin,
     struct slice *value)
{
    if (member(t, object, name, value) < 0)
        return -1;
    if (value->p && *value->p == begin)
        return 0;
    return err_set(t->err, ERR_FORMAT, "%s: \"%s\" %s", t->place.data, name,
                   value->p ? "is not of its kind" : "is missing");
}

/* A hash as a JSON string of that many digits, or null. */
static int
check_hex(struct statement *t, struct slice text, const char *name, size_t digits)
{
    size_t good = 1;
    while (good < text.n && strchr("0123456789abcdef", text.p[good]))
        good++;
    if (good == digits + 1 && text.n == digits + 2)
        return 0;
    return err_set(t->err, ERR_FORMAT, "%s: \"%s\" is no hash: expected %zu hex digits",
                   t->place.data, name, digits);
}

static int
is_word(struct statement *t, struct slice text, const char *word, bool *is)
{
    struct json j;
    struct slice s;
    open_text(t, &j, text);
    int rc = json_string(&j, &s);
    *is = rc == 0 && slice_is(s, word);
    return rc;
}

/* ---- dependencies ---------------------------------------------------------------------- */

/* What an input is to the program that read it; the first row that fits. */
static const struct {
    const char *tool, *kind, *role;
} roles[] = {
    { NULL, "importance", "importance" },
    { NULL, "input-scales", "input-scales" },
    { NULL, "tok", "data" },
    { "tokenize", NULL, "data" },
    { NULL, NULL, "weights" },
};

static int
find_role(struct statement *t, struct slice tool, struct slice kind, const char **role)
{
    bool fits = false;
    for (size_t i = 0; !fits; i++) {
        bool is_tool = true, is_kind = true;
        if ((roles[i].tool && is_word(t, tool, roles[i].tool, &is_tool) < 0) ||
            (roles[i].kind && is_word(t, kind, roles[i].kind, &is_kind) < 0))
            return -1;
        *role = roles[i].role;
        fits = is_tool && is_kind;
    }
    return 0;
}

/* Print b, unless the same text stands there, and free it. */
static int
put_dependency(struct statement *t, struct buf *b)
{
    int known = NAME_NO_MEMORY;
    const char *copy = b->failed ? NULL : arena_copy(&t->arena, b->data, b->len);
    if (copy)
        known = names_add(&t->dependencies, (struct slice){ copy, b->len },
                          t->dependencies.n);
    if (known == 0) {
        if (t->dependencies.n > 1)
            buf_char(&t->out, ',');
        buf_add(&t->out, b->data, b->len);
    }
    buf_free(b);
    return known == NAME_NO_MEMORY ? no_memory(t) : 0;
}

/* One of which nothing but the hash is known, a JSON string; p == NULL or null: there is
 * none. */
static int
put_hash(struct statement *t, struct slice object, const char *key, const char *role,
         const char *algorithm, size_t digits)
{
    struct slice hash;
    struct buf b = { 0 };
    if (member(t, object, key, &hash) < 0)
        return -1;
    if (!hash.p || slice_is(hash, "null"))
        return 0;
    if (check_hex(t, hash, key, digits) < 0)
        return -1;
    buf_printf(&b, "{\"name\":\"%s\",\"digest\":{\"%s\":%.*s}}", role, algorithm,
               (int)hash.n, hash.p);
    return put_dependency(t, &b);
}

static int
add_record(struct statement *t, struct slice record)
{
    struct record_list *l = &t->records;
    if (!GROW(l->v, l->n, l->cap, 16))
        return no_memory(t);
    l->v[l->n++] = record;
    return 0;
}

static void
put_raw(struct buf *b, const char *before, struct slice json)
{
    buf_str(b, before);
    buf_add(b, json.p, json.n);
}

/* How it was made itself, but for its own inputs, which are dependencies, too. */
static int
put_made(struct statement *t, struct buf *b, struct slice record)
{
    struct slice options, tool, version;
    if (want(t, record, "options", '{', &options) < 0 ||
        want(t, record, "tool", '"', &tool) < 0 ||
        want(t, record, "version", '"', &version) < 0)
        return -1;
    put_raw(b, "{\"options\":", options);
    put_raw(b, ",\"tool\":", tool);
    put_raw(b, ",\"version\":", version);
    buf_char(b, '}');
    return add_record(t, record);
}

static int
put_input(struct statement *t, struct slice input, struct slice tool)
{
    struct slice count, hash, kind, record;
    struct buf b = { 0 };
    const char *role;
    if (want(t, input, "xxh3", '"', &hash) < 0 ||
        want(t, input, "kind", '"', &kind) < 0 ||
        check_hex(t, hash, "xxh3", 2 * XXH3_BYTES) < 0 ||
        member(t, input, "count", &count) < 0 ||
        member(t, input, "provenance", &record) < 0 ||
        find_role(t, tool, kind, &role) < 0)
        return -1;
    buf_printf(&b, "{\"name\":\"%s\",\"digest\":{\"xxh3-128\":%.*s},\"annotations\":{",
               role, (int)hash.n, hash.p);
    if (count.p)
        put_raw(&b, "\"count\":", count);
    put_raw(&b, count.p ? ",\"kind\":" : "\"kind\":", kind);
    if (record.p && *record.p == '{') {
        buf_str(&b, ",\"made\":");
        if (put_made(t, &b, record) < 0) {
            buf_free(&b);
            return -1;
        }
    }
    buf_str(&b, "}}");
    return put_dependency(t, &b);
}

static int
put_inputs(struct statement *t, struct slice record, struct slice tool)
{
    struct json j;
    struct slice inputs, input;
    int more;
    if (want(t, record, "inputs", '[', &inputs) < 0)
        return -1;
    open_text(t, &j, inputs);
    json_array(&j);
    while ((more = json_item(&j)) > 0)
        if (json_skip(&j, &input) < 0 || put_input(t, input, tool) < 0)
            return -1;
    return more;
}

/* The data of each span, and its teacher. */
static int
put_spans(struct statement *t, struct slice options)
{
    struct json j;
    struct slice spans, span, data, settings;
    int more;
    if (want(t, options, "spans", '[', &spans) < 0)
        return -1;
    open_text(t, &j, spans);
    json_array(&j);
    while ((more = json_item(&j)) > 0) {
        if (json_skip(&j, &span) < 0 || member(t, span, "data", &data) < 0)
            return -1;
        if (!data.p) // the digest of older ones
            continue;
        if (want(t, span, "data", '{', &data) < 0 ||
            want(t, span, "settings", '{', &settings) < 0 || add_record(t, data) < 0 ||
            put_hash(t, settings, "teacher", "teacher", "xxh3-128", 2 * XXH3_BYTES) <
                0 ||
            put_hash(t, settings, "teacher_data", "data", "xxh3-128", 2 * XXH3_BYTES) <
                0)
            return -1;
    }
    return more;
}

static int
put_program(struct statement *t, struct slice record)
{
    struct slice version;
    struct buf b = { 0 };
    if (want(t, record, "version", '"', &version) < 0)
        return -1;
    // A version has the characters of a URI; what else stands there is no record of ours.
    for (size_t i = 1; i + 1 < version.n; i++)
        if (!strchr(
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_+~",
                version.p[i]))
            return err_set(t->err, ERR_FORMAT, "%s: \"version\" is no version",
                           t->place.data);
    buf_printf(&b, "{\"name\":\"program\",\"uri\":\"pkg:generic/nibble@%.*s\"}",
               (int)(version.n - 2), version.p + 1);
    return put_dependency(t, &b);
}

/* What one record names; records that stand in it are added to the list. */
static int
put_record(struct statement *t, struct slice record)
{
    struct slice options, tool;
    bool trains, tokenizes;
    if (want(t, record, "tool", '"', &tool) < 0 ||
        want(t, record, "options", '{', &options) < 0 ||
        is_word(t, tool, "trainstep", &trains) < 0 ||
        is_word(t, tool, "tokenize", &tokenizes) < 0 || put_inputs(t, record, tool) < 0)
        return -1;
    if (trains && put_spans(t, options) < 0)
        return -1;
    if (tokenizes &&
        put_hash(t, options, "tokenizer", "tokenizer", "sha256", 2 * SHA256_BYTES) < 0)
        return -1;
    return put_program(t, record);
}

/* ---- the statement --------------------------------------------------------------------- */

static int
put_definition(struct statement *t, struct slice record)
{
    struct slice options, tool, version;
    if (want(t, record, "options", '{', &options) < 0 ||
        want(t, record, "tool", '"', &tool) < 0 ||
        want(t, record, "version", '"', &version) < 0 || add_record(t, record) < 0)
        return -1;
    buf_str(&t->out,
            "],\"predicateType\":\"https://slsa.dev/provenance/v1\",\"predicate\":"
            "{\"buildDefinition\":{\"buildType\":\"pkg:generic/nibble#doc/"
            "provenance.md\",\"externalParameters\":{");
    put_raw(&t->out, "\"options\":", options);
    put_raw(&t->out, ",\"tool\":", tool);
    buf_str(&t->out, "},\"resolvedDependencies\":[");
    for (size_t i = 0; i < t->records.n; i++)
        if (put_record(t, t->records.v[i]) < 0)
            return -1;
    put_raw(&t->out,
            "]},\"runDetails\":{\"builder\":{\"id\":\"pkg:generic/"
            "nibble\",\"version\":{\"nibble\":",
            version);
    buf_str(&t->out, "}}}}}\n");
    return 0;
}

static int
begin_statement(struct statement *t, const char *name)
{
    buf_printf(&t->place, "%s: record", name);
    buf_str(&t->out, "{\"_type\":\"https://in-toto.io/Statement/v1\",\"subject\":[");
    return t->place.failed || t->out.failed ? no_memory(t) : 0;
}

static int
end_statement(struct statement *t, int rc)
{
    if (rc == 0 && t->out.failed)
        rc = no_memory(t);
    if (rc == 0)
        printer_put(t->c->printer, &t->out, HOST_JSON);
    names_free(&t->dependencies);
    arena_free(&t->arena);
    free(t->records.v);
    buf_free(&t->place);
    buf_free(&t->out);
    return rc == 0 && printer_end(t->c->printer) == 0 ? ANSWER_YES : -1;
}

int
attest_store(const struct inspect *c, struct subject *f, struct err *err)
{
    struct statement t = { .c = c, .err = err };
    struct store *s = &f->store;
    const char *what;
    if (!s->provenance.p)
        return err_set(err, ERR_FORMAT,
                       "%s: has no record of how it was made, or that of other bytes: "
                       "there is nothing to attest",
                       s->name);
    if (store_verify(s, true, c->threads, &what) < 0 || training_check(s, err) < 0)
        return -1;
    if (!store_has_sums(s))
        host_note(
            c->printer->host,
            "%s: its container has no checksums: the statement is about the bytes as "
            "they are now, and its record cannot tell whether they were changed",
            s->name);
    int rc = begin_statement(&t, s->name);
    if (rc == 0 && s->is_directory)
        rc = put_directory(&t, s->path);
    for (size_t i = 0; i < s->n_files && rc == 0 && !s->is_directory; i++)
        rc = put_subject(&t, s->files[i].path);
    if (rc == 0)
        rc = put_definition(&t, s->provenance);
    if (rc == 0)
        rc = store_check(s);
    return end_statement(&t, rc);
}

int
attest_stream(const struct inspect *c, const char *path, struct slice record,
              struct err *err)
{
    struct statement t = { .c = c, .err = err };
    char q[TEXT_QUOTE];
    int rc = begin_statement(&t, text_quote(q, path, strlen(path)));
    if (rc == 0)
        rc = put_subject(&t, path);
    if (rc == 0)
        rc = put_definition(&t, record);
    return end_statement(&t, rc);
}
