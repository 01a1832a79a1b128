/* SPDX-License-Identifier: MIT */
/* tensors: logits and hidden states as safetensors files. */
#include "lib/infer/tensors.h"

#include "lib/base/json.h"
#include "lib/file/path.h"
#include "lib/format/provenance.h"
#include "lib/format/writer.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Refuse at the beginning what the writer would refuse at the end. */
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
    if (path_is_stream(path))
        return strcmp(path, "-") != 0
                   ? 0
                   : err_set(s->err, ERR_USAGE, "-: standard output is for the answer");
    if (stat(path, &st) == 0)
        return s->c->force ? 0
                           : err_set(s->err, ERR_IO, "%s: exists; -f replaces it", q);
    char *copy = strdup(path);
    if (!copy)
        return err_set(s->err, ERR_MEMORY, "out of memory for a file name");
    int rc = access(dirname(copy), W_OK) == 0 ? 0 : err_set(s->err, ERR_IO, "%s:", q);
    free(copy);
    return rc;
}

/* ---- provenance ------------------------------------------------------------------------- */

static void
put_number(struct buf *b, const char *key, double v, double otherwise)
{
    if (v == otherwise)
        return;
    buf_printf(b, "\"%s\":", key);
    json_put_number(b, v, 17);
    buf_char(b, ',');
}

/* Options of sampling; keys sorted. */
static void
put_sampling(struct buf *b, const struct infer_options *c)
{
    const struct sample_options *o = &c->sample;
    if (o->temperature > 0)
        buf_printf(b, "\"seed\":%u,", o->seed);
    for (size_t i = 0; i < c->n_stops; i++) {
        buf_str(b, i ? "," : "\"stop\":[");
        json_put(b, c->stop[i]);
    }
    buf_str(b, c->n_stops ? "]," : "");
    put_number(b, "temp", o->temperature, 0);
    put_number(b, "top_k", o->top_k, 0);
    put_number(b, "top_p", o->top_p, 1);
}

/* Options that change the content, where they are not the default; keys sorted. */
static void
put_options(struct buf *b, const struct session *s, const struct sequence *q)
{
    const struct infer_options *c = s->c;
    if (c->activations != ACTIVATIONS_PLAIN)
        buf_printf(b, "\"activations\":\"%s\",", device_activations[c->activations]);
    if (c->where.unlike)
        buf_printf(b, "\"compute\":\"%s\",", device_computes[c->where.compute]);
    put_number(b, "context", (double)c->context, 0);
    if (c->where.coarse)
        buf_str(b, "\"fast\":true,");
    if (c->ignore_eos)
        buf_str(b, "\"ignore_eos\":true,");
    if (!c->score)
        buf_printf(b, "\"max_tokens\":%u,", c->max_tokens);
    for (size_t i = 0; q && i < q->prompt; i++)
        buf_printf(b, "%s%u", i ? "," : "\"prompt\":[", q->ids.v[i]);
    buf_str(b, q && q->prompt ? "]," : "");
    if (c->quant) {
        buf_str(b, "\"quant\":");
        json_put(b, slice_of(c->quant));
        buf_char(b, ',');
    }
    if (!c->score)
        put_number(b, "repeat_penalty", c->sample.penalty, 1);
    if (c->where.cuda) {
        buf_str(b, "\"route\":");
        json_put(b, slice_of(s->k->route));
        buf_char(b, ',');
    }
    if (!c->score)
        put_sampling(b, c);
    if (b->len && b->data[b->len - 1] == ',')
        b->len--;
}

static int
put_provenance(struct buf *b, const struct session *s, const struct sequence *q,
               const struct tok_reader *tok)
{
    uint8_t digest[XXH3_BYTES];
    struct store *model = (struct store *)(uintptr_t)&s->model.store;
    if (store_content_hash(model, digest, s->c->where.threads, s->err) < 0)
        return -1;
    provenance_begin(b);
    provenance_input(b, slice_of(store_kind(model)), model->provenance, 1, digest);
    if (tok) {
        struct buf from = { 0 };
        tok_put_provenance(&from, tok);
        provenance_input(b, slice_of("tok"), (struct slice){ from.data, from.len }, 1,
                         tok->end.xxh3);
        b->failed |= from.failed;
        buf_free(&from);
    }
    provenance_options(b);
    buf_char(b, '{');
    put_options(b, s, q);
    buf_char(b, '}');
    provenance_end(b, s->c->host->program, slice_of(s->c->host->version));
    return buf_ok(b, s->err);
}

/* ---- files ---------------------------------------------------------------------------------- */

int
dump_open(struct dumper *x, const struct session *s, const struct sequence *q,
          const char *path, const struct dump *d, size_t n,
          const struct tok_reader *tok)
{
    struct writer_options o = { .flags = s->c->force ? OUT_FORCE : 0,
                                .guard = s->c->host->guard };
    struct wmeta meta = { .version = s->c->host->version };
    *x = (struct dumper){ .t = calloc(n ? n : 1, sizeof *x->t) };
    if (!x->t)
        return err_set(s->err, ERR_MEMORY, "out of memory for a list of tensors");
    for (size_t i = 0; i < n; i++)
        x->t[i] = (struct wtensor){ .name = d[i].name,
                                    .dtype = DT_F32,
                                    .rank = d[i].shape[2]   ? 3
                                            : d[i].shape[1] ? 2
                                                            : 1,
                                    .shape = d[i].shape,
                                    .tag = i };
    if (put_provenance(&x->provenance, s, q, tok) < 0)
        return -1;
    meta.provenance = (struct slice){ x->provenance.data, x->provenance.len };
    return writer_open(&x->w, "safetensors", path, x->t, n, &meta, &o, s->err);
}

int
dump_commit(struct dumper *x)
{
    return writer_commit(&x->w,
                         (struct slice){ x->provenance.data, x->provenance.len });
}

void
dump_close(struct dumper *x)
{
    if (x->w.t)
        writer_close(&x->w);
    free(x->t);
    buf_free(&x->provenance);
}

int
dump_write(const struct session *s, const struct sequence *q, const char *path,
           struct dump *d, size_t n, const struct tok_reader *tok)
{
    struct dumper x;
    int rc = dump_open(&x, s, q, path, d, n, tok);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct dump *from = &d[x.t[i].tag];
        rc = writer_write(&x.w, from->values, (size_t)x.w.t[i].nbytes);
    }
    if (rc == 0)
        rc = dump_commit(&x);
    dump_close(&x);
    return rc;
}

/* ---- hidden states ------------------------------------------------------------------------ */

/* Called for each layer of each chunk, in order. */
static int
copy_layer(void *ctx, uint32_t layer, const float *hidden, size_t tokens)
{
    struct layers *l = ctx;
    size_t width = l->s->model.config.hidden;
    if (l->at >= l->tokens)
        return 0; // of the answer
    memcpy(l->h[layer] + l->at * width, hidden, tokens * width * sizeof *hidden);
    if (layer + 1 == l->s->model.config.layers)
        l->at += tokens;
    return 0;
}

int
layers_open(struct layers *l, struct session *s, const struct sequence *q)
{
    size_t tokens = q->ids.n;
    uint32_t n = s->model.config.layers;
    *l = (struct layers){
        .s = s, .q = q, .tokens = tokens, .h = calloc(n, sizeof *l->h)
    };
    for (uint32_t i = 0; i < n && l->h; i++)
        if (!(l->h[i] = malloc((tokens * s->model.config.hidden + 1) * sizeof **l->h)))
            return err_set(s->err, ERR_MEMORY, "out of memory for hidden states");
    if (!l->h)
        return err_set(s->err, ERR_MEMORY, "out of memory for hidden states");
    s->hidden = copy_layer;
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
        rc = dump_write(l->s, l->q, l->s->c->dump_layers, d, n, NULL);
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
