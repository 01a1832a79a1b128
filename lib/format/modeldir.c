/* SPDX-License-Identifier: MIT */
/* modeldir: see modeldir.h. */
#include "lib/format/modeldir.h"

#include "lib/base/json.h"
#include "lib/file/map.h"
#include "lib/file/path.h"
#include "lib/format/object.h"

#include <string.h>
#include <sys/stat.h>

enum { MAX_TEXT = 16 << 20 }; // of a nibble.json, as for readers

const char *
modeldir_companion(size_t i)
{
    static const char *const names[] = {
        "tokenizer.json",      "tokenizer_config.json", "vocab.json",
        "merges.txt",          "added_tokens.json",     "special_tokens_map.json",
        "chat_template.jinja", "chat_template.json",    "generation_config.json",
    };
    return i < sizeof names / sizeof *names ? names[i] : NULL;
}

bool
modeldir_is_companion(const char *leaf)
{
    const char *name;
    for (size_t i = 0; (name = modeldir_companion(i)); i++)
        if (strcmp(leaf, name) == 0)
            return true;
    return false;
}

bool
modeldir_is_card(const char *leaf)
{
    return strcmp(leaf, "README.md") == 0 || strncmp(leaf, "LICENSE", 7) == 0;
}

/* model-00001-of-00003.safetensors */
static bool
is_shard(const char *leaf)
{
    size_t k, n;
    if (strncmp(leaf, "model-", 6) != 0)
        return false;
    leaf += 6;
    k = strspn(leaf, "0123456789");
    if (k < 5 || strncmp(leaf + k, "-of-", 4) != 0)
        return false;
    leaf += k + 4;
    n = strspn(leaf, "0123456789");
    return n >= 5 && strcmp(leaf + n, ".safetensors") == 0;
}

/* The weights and what describes them, as each version of this program has written
 * them. */
static bool
is_usual(const char *leaf)
{
    static const char *const names[] = { "model.safetensors",
                                         "model.safetensors.index.json", "config.json",
                                         "nibble.json", "hf_quant_config.json" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(leaf, names[i]) == 0)
            return true;
    return is_shard(leaf);
}

bool
modeldir_writes(const void *ctx, const char *leaf)
{
    (void)ctx;
    return is_usual(leaf) || modeldir_is_companion(leaf) || modeldir_is_card(leaf);
}

bool
modeldir_replaces(const void *ctx, const char *leaf)
{
    const struct modeldir *d = ctx;
    if (!d->ours)
        return false;
    // Without a list a tokenizer.json may be that of an earlier run, or the user's.
    return d->listed ? names_find(&d->names, slice_of(leaf)) >= 0 : is_usual(leaf);
}

/* The array of names; -1 if it is not one. */
static int
read_list(struct modeldir *d, const char *file, struct slice text, struct err *err)
{
    struct json j;
    struct slice name;
    int more;
    struct buf place = { 0 };
    buf_printf(&place, "%s: \"files\"", file);
    const char *where =
        place.failed ? file : arena_copy(&d->arena, place.data, place.len);
    buf_free(&place);
    if (!where)
        return err_set(err, ERR_MEMORY, "%s: out of memory", file);
    json_open(&j, where, 0, text, &d->arena, err);
    json_array(&j);
    while ((more = json_item(&j)) > 0) {
        if (json_string(&j, &name) < 0)
            return -1;
        if (!name_fits(name))
            return err_set(err, ERR_FORMAT,
                           "%s: expected the names of files in that directory", where);
        const char *copy = arena_copy(&d->arena, name.p, name.n);
        if (!copy || names_add(&d->names, (struct slice){ copy, name.n }, d->names.n) ==
                         NAME_NO_MEMORY)
            return err_set(err, ERR_MEMORY, "%s: out of memory", file);
    }
    return more;
}

static bool
is_json(struct slice text, struct arena *arena)
{
    struct json j;
    struct err err = { 0 };
    json_open(&j, "", 0, text, arena, &err);
    return json_skip(&j, NULL) == 0 && json_end(&j) == 0;
}

/* Set d->ours, unless it is intact and another program's. */
static int
read_object(struct modeldir *d, struct map *m, struct err *why)
{
    struct nibble_object o;
    struct slice text = { (const char *)m->data, m->size };
    struct err foreign = { 0 };
    if (m->size > MAX_TEXT)
        return err_set(why, ERR_FORMAT, "%s: has more than %d bytes", m->name,
                       MAX_TEXT);
    if (object_read(&o, m->name, text, &d->arena, &foreign) < 0) {
        if (map_check(m, why) < 0)
            return -1;
        return foreign.kind == ERR_FORMAT && is_json(text, &d->arena)
                   ? 0
                   : err_set(why, foreign.kind, "%s", foreign.msg);
    }
    d->listed = o.files.p;
    if (d->listed && read_list(d, m->name, o.files, why) < 0)
        return -1;
    d->ours = map_check(m, why) == 0;
    return d->ours ? 0 : -1;
}

int
modeldir_open(struct modeldir *d, const char *path, struct guard *g, struct err *err)
{
    struct map m = { .fd = -1 };
    struct err why = { 0 };
    struct stat st;
    struct buf name = { 0 };
    *d = (struct modeldir){ 0 };
    size_t n = strlen(path);
    buf_printf(&name, "%s%snibble.json", path, n && path[n - 1] == '/' ? "" : "/");
    if (buf_ok(&name, err) < 0)
        return -1;
    int there = path_exists(name.data, err);
    bool regular = there > 0 && stat(name.data, &st) == 0 && S_ISREG(st.st_mode);
    if (regular && map_open(&m, name.data, g, &why) == 0)
        read_object(d, &m, &why);
    map_close(&m);
    buf_free(&name);
    // A file that cannot be read may still be ours.
    if (why.kind == ERR_FORMAT)
        return err_set(
            err, why.kind,
            "%s: it is damaged, so that it is unknown what an earlier run wrote "
            "there: nothing is replaced; write to another directory",
            why.msg);
    if (why.kind)
        return err_set(
            err, why.kind,
            "%s: it lists what an earlier run wrote there: nothing is replaced; "
            "write to another directory",
            why.msg);
    return there < 0 ? -1 : 0;
}

void
modeldir_close(struct modeldir *d)
{
    names_free(&d->names);
    arena_free(&d->arena);
    *d = (struct modeldir){ 0 };
}
