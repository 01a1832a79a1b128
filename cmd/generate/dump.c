/* SPDX-License-Identifier: MIT */
/* dump: logits and hidden states for other programs. */
#include "cmd/generate/generate.h"

#include "lib/format/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What the writer will refuse at the end is refused at the beginning. */
int
dump_check(const struct session *s, const char *path)
{
    struct stat st;
    char q[TEXT_QUOTE];
    if (!path)
        return 0;
    text_quote(q, path, strlen(path));
    if (store_reads(&s->model.store, path))
        return err_set(s->err, ERR_USAGE, "%s: is an input, too", q);
    if (out_is_stream(path))
        return strcmp(path, "-") != 0
                   ? 0
                   : err_set(s->err, ERR_USAGE, "-: standard output is for the answer");
    if (stat(path, &st) == 0 && !s->c->force)
        return err_set(s->err, ERR_IO, "%s: exists; -f replaces it", q);
    return 0;
}

int
dump_open(struct writer *w, const struct session *s, const char *path,
          const struct dump *d, size_t n)
{
    struct writer_options o = { .flags = s->c->force ? OUT_FORCE : 0,
                                .guard = &cmd_guard };
    struct wmeta meta = { .bare = true, .version = cmd_version() };
    struct wtensor *t = calloc(n ? n : 1, sizeof *t);
    *w = (struct writer){ 0 };
    if (!t)
        return err_set(s->err, ERR_MEMORY, "out of memory for a list of tensors");
    for (size_t i = 0; i < n; i++)
        t[i] = (struct wtensor){
            .name = d[i].name, .dtype = DT_F32, .rank = 2, .shape = d[i].shape, .tag = i
        };
    return writer_open(w, "safetensors", path, t, n, &meta, &o, s->err);
}

void
dump_close(struct writer *w)
{
    struct wtensor *t = w->t;
    writer_close(w);
    free(t);
}

int
dump_write(const struct session *s, const char *path, struct dump *d, size_t n)
{
    struct writer w;
    int rc = dump_open(&w, s, path, d, n);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct dump *x = &d[w.t[i].tag];
        rc = writer_write(&w, x->values,
                          (size_t)(x->shape[0] * x->shape[1]) * sizeof(float));
    }
    if (rc == 0)
        rc = writer_commit(&w, (struct slice){ 0 });
    dump_close(&w);
    return rc;
}

/* ---- hidden states ------------------------------------------------------------------------ */

/* Chunks come layer by layer, each behind the one before. */
static int
take_layer(void *ctx, uint32_t layer, const float *hidden, size_t tokens)
{
    struct layers *l = ctx;
    size_t width = l->s->model.config.hidden;
    if (l->at >= l->tokens)
        return 0; // the answer's
    memcpy(l->h[layer] + l->at * width, hidden, tokens * width * sizeof *hidden);
    if (layer + 1 == l->s->model.config.layers)
        l->at += tokens;
    return 0;
}

int
layers_open(struct layers *l, struct session *s, size_t tokens)
{
    uint32_t n = s->model.config.layers;
    *l = (struct layers){ .s = s, .tokens = tokens, .h = calloc(n, sizeof *l->h) };
    for (uint32_t i = 0; i < n && l->h; i++)
        if (!(l->h[i] = malloc((tokens * s->model.config.hidden + 1) * sizeof **l->h)))
            return err_set(s->err, ERR_MEMORY, "out of memory for hidden states");
    if (!l->h)
        return err_set(s->err, ERR_MEMORY, "out of memory for hidden states");
    s->hidden = take_layer;
    s->hidden_ctx = l;
    return 0;
}

int
layers_write(struct layers *l)
{
    uint32_t n = l->s->model.config.layers;
    struct dump *d = calloc(n, sizeof *d);
    char(*name)[24] = calloc(n, sizeof *name);
    int rc = d && name
                 ? 0
                 : err_set(l->s->err, ERR_MEMORY, "out of memory for hidden states");
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        snprintf(name[i], sizeof name[i], "hidden.%u", i);
        d[i] =
            (struct dump){ name[i], { l->tokens, l->s->model.config.hidden }, l->h[i] };
    }
    if (rc == 0)
        rc = dump_write(l->s, l->s->c->dump_layers, d, n);
    free(name);
    free(d);
    return rc;
}

void
layers_close(struct layers *l)
{
    for (uint32_t i = 0; l->h && i < l->s->model.config.layers; i++)
        free(l->h[i]);
    free(l->h);
    if (l->s)
        l->s->hidden = NULL;
    *l = (struct layers){ 0 };
}
