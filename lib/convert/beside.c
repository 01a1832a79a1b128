/* SPDX-License-Identifier: MIT */
/* beside: files beside the inputs: they are copied, have the vocabulary for a GGUF, and
 * must not be the output. */
#include "lib/convert/output.h"

#include "lib/file/path.h"
#include "lib/load/gguf_vocab.h"
#include "lib/text/tokenizer.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- --tokenizer ------------------------------------------------------------------- */

/* It is read once, as for encoding: else a file that is not a tokenizer would be noticed only
 * when the model is served. */
static int
check_tokenizer(struct plan *p)
{
    struct err why = { 0 };
    struct tokenizer *t = tokenizer_open(p->tokenizer, p->c->host->guard, &why);
    uint32_t tokens = t ? tokenizer_vocab(t) : 0;
    tokenizer_close(t);
    if (!t)
        return err_set(p->err, why.kind,
                       "--tokenizer: expected the tokenizer.json of a Qwen model, or a "
                       "directory with one: %s",
                       why.msg);
    if (p->c->directory && p->is_model && tokens > p->model.vocab)
        return err_set(p->err, ERR_FORMAT,
                       "%s: has %u tokens, the model's vocab_size is %u: expected the "
                       "tokenizer.json that came with the model",
                       p->tokenizer, tokens, p->model.vocab);
    return 0;
}

int
beside_find_tokenizer(struct plan *p)
{
    const struct pack *c = p->c;
    struct stat st;
    struct buf b = { 0 };
    if (!c->tokenizer)
        return 0;
    if (!writer_traits(c->to)->embeds_tokenizer && !c->directory)
        return err_set(p->err, ERR_USAGE,
                       "--tokenizer: goes with a GGUF or a model directory");
    size_t n = strlen(c->tokenizer);
    bool in = stat(c->tokenizer, &st) == 0 && S_ISDIR(st.st_mode);
    buf_add(&b, c->tokenizer, n);
    if (in)
        buf_printf(&b, "%stokenizer.json", c->tokenizer[n - 1] == '/' ? "" : "/");
    if (!(p->tokenizer = plan_text(p, &b)))
        return -1;
    int there = path_exists(p->tokenizer, p->err);
    if (there == 0)
        return err_set(p->err, ERR_IO, "--tokenizer: %s: does not exist", p->tokenizer);
    return there < 0 ? -1 : check_tokenizer(p);
}

/* ---- copies ------------------------------------------------------------------------ */

/* A file beside the input, if it exists. */
static int
copy_file(struct plan *p, struct writer *w, const char *path, const char *leaf)
{
    struct map m;
    int rc = path_exists(path, p->err);
    if (rc <= 0)
        return rc;
    rc = map_open(&m, path, p->c->host->guard, p->err);
    if (rc == 0)
        rc = writer_extra(w, leaf, m.data, m.size);
    if (rc == 0)
        rc = map_check(&m, p->err);
    map_close(&m);
    return rc;
}

/* That file in a directory, or beside a file. */
static int
beside(const struct plan *p, struct buf *path, const char *place, bool is_directory,
       const char *leaf)
{
    const char *slash = strrchr(place, '/');
    if (is_directory)
        buf_printf(path, "%s/%s", place, leaf);
    else
        buf_printf(path, "%.*s%s", slash ? (int)(slash - place) + 1 : 0, place, leaf);
    return buf_ok(path, p->err);
}

static int
copy_beside(struct plan *p, struct writer *w, const char *place, bool is_directory,
            const char *leaf)
{
    struct buf path = { 0 };
    int rc = beside(p, &path, place, is_directory, leaf);
    if (rc == 0)
        rc = copy_file(p, w, path.data, leaf);
    buf_free(&path);
    return rc;
}

/* Tokenizer and settings of a model in that directory, or beside that file. */
static int
copy_companions(struct plan *p, struct writer *w, const char *place, bool is_directory)
{
    const char *leaf;
    int rc = 0;
    for (size_t i = 0; rc == 0 && (leaf = modeldir_companion(i)); i++)
        if (!p->tokenizer || strcmp(leaf, "tokenizer.json") != 0)
            rc = copy_beside(p, w, place, is_directory, leaf);
    return rc;
}

/* Settings of answers belong to the model: its own, where --tokenizer has none beside it. */
static int
copy_generation(struct plan *p, struct writer *w, const struct store *s)
{
    static const char leaf[] = "generation_config.json";
    struct buf path = { 0 };
    int rc = beside(p, &path, p->tokenizer, false, leaf);
    if (rc == 0)
        rc = path_exists(path.data, p->err);
    buf_free(&path);
    return rc == 0  ? copy_beside(p, w, s->path, s->is_directory, leaf)
           : rc < 0 ? rc
                    : 0;
}

static int
is_card(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return modeldir_is_card(e->d_name) && utf8_check(e->d_name, n) == n;
}

/* The card and the licenses of a model directory.  Beside a single file they may belong to
 * something else and are not copied. */
static int
copy_cards(struct plan *p, struct writer *w, const struct store *s)
{
    struct dirent **e;
    int rc = 0, n = s->is_directory ? scandir(s->path, &e, is_card, NULL) : 0;
    if (n < 0)
        return err_set(p->err, ERR_IO, "%s:", s->name);
    for (int i = 0; i < n; i++) {
        struct buf path = { 0 };
        struct stat st;
        buf_printf(&path, "%s/%s", s->path, e[i]->d_name);
        if (rc == 0)
            rc = buf_ok(&path, p->err);
        if (rc == 0 && stat(path.data, &st) == 0 && S_ISREG(st.st_mode))
            rc = copy_file(p, w, path.data, e[i]->d_name);
        buf_free(&path);
        free(e[i]);
    }
    if (s->is_directory)
        free(e);
    return rc;
}

/* That of --tokenizer, under the name that readers look for, and what lies beside it. */
static int
copy_tokenizer(struct plan *p, struct writer *w)
{
    if (copy_file(p, w, p->tokenizer, "tokenizer.json") < 0)
        return -1;
    return copy_companions(p, w, p->tokenizer, false);
}

int
beside_copy(struct plan *p, struct writer *w)
{
    const struct store *s = p->n_inputs ? &p->inputs[0].store : NULL;
    if (p->tokenizer && copy_tokenizer(p, w) < 0)
        return -1;
    if (!s || strcmp(s->path, "-") == 0)
        return 0;
    if ((p->tokenizer ? copy_generation(p, w, s)
                      : copy_companions(p, w, s->path, s->is_directory)) < 0)
        return -1;
    return copy_cards(p, w, s);
}

/* Whether the directory that was written has that file. */
static bool
wrote(const struct plan *p, const char *leaf)
{
    struct err why = { 0 };
    char *path = path_join(p->c->out, leaf);
    bool there = path && path_exists(path, &why) == 1;
    free(path);
    return there;
}

void
beside_report(const struct plan *p)
{
    const struct pack *c = p->c;
    if (!c->directory)
        return;
    if (!p->config.p)
        host_note(c->host, "%s: no configuration was found, so it has no config.json",
                  c->out);
    else if (!wrote(p, "tokenizer.json") &&
             !(wrote(p, "vocab.json") && wrote(p, "merges.txt")))
        host_note(c->host,
                  "%s: has no tokenizer, which servers need: %s%s; -t FILE adds the "
                  "model's tokenizer.json",
                  c->out,
                  p->n_inputs ? "none lies beside " : "random weights have none",
                  p->n_inputs ? p->inputs[0].store.name : "");
}

static int
is_input(const struct plan *p, const char *out)
{
    char q[TEXT_QUOTE];
    return err_set(p->err, ERR_USAGE,
                   "%s: is an input, too, or belongs to one: expected another name",
                   text_quote(q, out, strlen(out)));
}

int
beside_check(const struct plan *p, const char *out)
{
    struct stat st;
    for (size_t i = 0; i < p->n_inputs + p->has_like; i++)
        if (store_reads(&p->inputs[i].store, out))
            return is_input(p, out);
    if (p->has_importance && store_reads(&p->importance.store, out))
        return is_input(p, out);
    if (p->has_input_scales && store_reads(&p->input_scales.store, out))
        return is_input(p, out);
    const char *named[] = { p->c->config_path, p->tokenizer };
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (named[i] && stat(named[i], &st) == 0 &&
            (path_is_file(out, st.st_dev, st.st_ino) || path_holds(out, named[i])))
            return is_input(p, out);
    return 0;
}

int
beside_check_output(const struct plan *p)
{
    struct buf sidecar = { 0 };
    if (beside_check(p, p->c->out) < 0)
        return -1;
    if (p->c->directory || path_is_stream(p->c->out) || p->c->torchsharp)
        return 0;
    buf_printf(&sidecar, "%s.json", p->c->out);
    int rc = buf_ok(&sidecar, p->err);
    if (rc == 0)
        rc = beside_check(p, sidecar.data);
    buf_free(&sidecar);
    return rc;
}

/* The tokenizer and the files beside it are inputs, too. */
static int
check_not_tokenizer(const struct plan *p, const char *out, const char *tokenizer)
{
    const char *slash = strrchr(tokenizer, '/'), *leaf;
    struct stat st;
    int rc = 0;
    if (stat(tokenizer, &st) == 0 && path_is_file(out, st.st_dev, st.st_ino))
        return is_input(p, out);
    for (size_t i = 0; rc == 0 && (leaf = modeldir_companion(i)); i++) {
        struct buf path = { 0 };
        buf_printf(&path, "%.*s%s", slash ? (int)(slash - tokenizer) + 1 : 0, tokenizer,
                   leaf);
        rc = buf_ok(&path, p->err);
        if (rc == 0 && stat(path.data, &st) == 0 &&
            path_is_file(out, st.st_dev, st.st_ino))
            rc = is_input(p, out);
        buf_free(&path);
    }
    return rc;
}

int
beside_vocabulary(const struct plan *p, struct gguf_kv *kv)
{
    const struct pack *c = p->c;
    char *found = NULL, **places = NULL;
    const char *path = p->tokenizer;
    int rc = 0;
    if (!path) {
        places = calloc(p->n_inputs + 1, sizeof *places);
        if (!places)
            return err_set(p->err, ERR_MEMORY, "out of memory");
        for (size_t i = 0; i < p->n_inputs; i++)
            places[i] = p->inputs[i].store.path;
        places[p->n_inputs] = (char *)(uintptr_t)c->config_path;
        rc = gguf_find_tokenizer(&found, places, p->n_inputs + 1, p->err);
        path = found;
    }
    if (rc == 0)
        rc = check_not_tokenizer(p, c->out, path);
    if (rc == 0 && c->report)
        rc = check_not_tokenizer(p, c->report, path);
    if (rc == 0)
        rc = gguf_vocab(kv, &p->model, path, p->c->host->guard, p->err);
    free(places);
    free(found);
    return rc;
}
