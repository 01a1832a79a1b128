/* SPDX-License-Identifier: MIT */
/* defaults: files of the model: generation_config.json, and the hash of the tokenizer that a
 * checkpoint was trained with. */
#include "lib/infer/defaults.h"

#include "lib/base/json.h"
#include "lib/file/map.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int
defaults_beside(struct buf *path, const struct session *s, const char *leaf)
{
    const char *model = s->model.store.path, *slash = strrchr(model, '/');
    if (s->model.store.is_directory)
        buf_printf(path, "%s/", model);
    else if (slash)
        buf_add(path, model, (size_t)(slash - model) + 1);
    buf_str(path, leaf);
    return buf_ok(path, s->err);
}

static int
read_end(struct session *s, struct json *j)
{
    uint64_t id;
    if (json_u63(j, &id) < 0)
        return -1;
    if (id < s->model.config.vocab && !session_ends(s, (uint32_t)id) &&
        s->n_end < MAX_END)
        s->end[s->n_end++] = (uint32_t)id;
    return 0;
}

static int
read_ends(struct session *s, struct json *j)
{
    if (json_peek(j) == 'n')
        return json_null(j);
    if (json_peek(j) != '[')
        return read_end(s, j);
    int more;
    json_array(j);
    while ((more = json_item(j)) > 0)
        if (read_end(s, j) < 0)
            return -1;
    return more;
}

/* A number or null; outside of low .. high it is refused. */
static int
read_number(struct json *j, double *v, bool given, double low, double high)
{
    double x;
    size_t at = j->pos;
    if (json_peek(j) == 'n')
        return json_null(j);
    if (json_number(j, &x) < 0)
        return -1;
    if (!(x >= low && x <= high))
        return json_fail(j, at, "expected a number of %g to %g, found %g", low, high,
                         x);
    if (!given)
        *v = x;
    return 0;
}

static int
read_pair(struct session *s, struct json *j, struct slice key, bool *greedy)
{
    struct infer_options *c = s->c;
    double k = c->sample.top_k;
    bool sample = true;
    int rc;
    if (slice_is(key, "temperature"))
        return read_number(j, &c->sample.temperature, c->given.temperature, 0, 1e6);
    if (slice_is(key, "top_p"))
        return read_number(j, &c->sample.top_p, c->given.top_p, 0, 1);
    if (slice_is(key, "repetition_penalty"))
        return read_number(j, &c->sample.penalty, c->given.penalty, 1e-6, 1e6);
    if (slice_is(key, "top_k")) {
        rc = read_number(j, &k, c->given.top_k, 0, 0x1p31);
        c->sample.top_k = (uint32_t)k;
        return rc;
    }
    if (slice_is(key, "eos_token_id"))
        return read_ends(s, j);
    if (slice_is(key, "do_sample") && json_peek(j) != 'n') {
        rc = json_bool(j, &sample);
        *greedy = !sample;
        return rc;
    }
    return json_skip(j, NULL);
}

static int
read_text(struct session *s, const char *name, struct slice text)
{
    struct arena arena = { 0 };
    struct json j;
    struct slice key;
    bool greedy = false;
    int more;
    json_open(&j, name, 0, text, &arena, s->err);
    more = json_object(&j);
    while (more >= 0 && (more = json_key(&j, &key)) > 0)
        more = read_pair(s, &j, key, &greedy);
    if (more == 0)
        more = json_end(&j);
    if (greedy && !s->c->given.temperature)
        s->c->sample.temperature = 0;
    arena_free(&arena);
    return more;
}

int
defaults_read(struct session *s)
{
    struct buf path = { 0 };
    struct stat st;
    struct map m;
    if (strcmp(s->c->model, "-") == 0)
        return 0;
    int rc = defaults_beside(&path, s, "generation_config.json");
    if (rc == 0 && !(stat(path.data, &st) < 0 && errno == ENOENT)) {
        rc = map_open(&m, path.data, s->c->host->guard, s->err);
        if (rc == 0)
            rc = read_text(s, m.name, (struct slice){ (const char *)m.data, m.size });
        map_close(&m);
    }
    buf_free(&path);
    return rc;
}

/* ---- a checkpoint's tokenizer ---------------------------------------------------------- */

/* *raw = the value of a key of the object at j, unchanged if it has none. */
static int
find_key(struct json *j, const char *name, struct slice *raw)
{
    struct slice key;
    int more = json_object(j);
    while (more >= 0 && (more = json_key(j, &key)) > 0)
        more = json_skip(j, slice_is(key, name) ? raw : NULL);
    return more;
}

static int
compare_tokenizer(struct session *s, const uint8_t sha256[SHA256_BYTES],
                  struct arena *arena, bool *other)
{
    struct store *st = &s->model.store;
    struct slice state = { 0 }, kept = { 0 };
    struct json j;
    char hex[2 * SHA256_BYTES + 1];
    json_open(&j, st->name, 0, st->meta, arena, s->err);
    if (find_key(&j, "state", &state) < 0)
        return -1;
    if (!state.p)
        return 0;
    json_open(&j, st->name, 0, state, arena, s->err);
    if (find_key(&j, "tokenizer", &kept) < 0)
        return -1;
    for (size_t i = 0; i < SHA256_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", sha256[i]);
    // Between quotes, or it is null.
    *other = kept.n == sizeof hex + 1 && memcmp(kept.p + 1, hex, sizeof hex - 1) != 0;
    return 0;
}

int
defaults_tokenizer(struct session *s, const uint8_t sha256[SHA256_BYTES], bool *other)
{
    struct arena arena = { 0 };
    *other = false;
    if (!store_traits(&s->model.store)->training)
        return 0;
    int rc = store_meta(&s->model.store);
    if (rc == 0)
        rc = compare_tokenizer(s, sha256, &arena, other);
    arena_free(&arena);
    return rc;
}
