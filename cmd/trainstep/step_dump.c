/* SPDX-License-Identifier: MIT */
/* step_dump: see step_dump.h.  Logits come from an extra forward pass. */
#include "cmd/trainstep/step_dump.h"

#include "lib/format/writer.h"

#include <stdlib.h>
#include <string.h>

/* Count the samples of the step: each begins at a position 0.  Documents of a packed sample
 * count as samples. */
static void
measure(const struct run *r, size_t *samples, size_t *longest)
{
    const struct course *d = &r->data;
    *samples = *longest = 0;
    for (size_t i = 0; i < d->n_batches; i++)
        for (size_t t = 0; t < d->batch[i].tokens; t++) {
            size_t length = (size_t)d->batch[i].position[t] + 1;
            *samples += d->batch[i].position[t] == 0;
            *longest = length > *longest ? length : *longest;
        }
}

/* (samples, longest, V), zeros where a sample is shorter. */
static float *
make_logits(struct run *r, size_t samples, size_t longest)
{
    const struct course *d = &r->data;
    size_t vocab = r->c.vocab, sample = 0;
    float *all = cmd_alloc(samples * longest * vocab, sizeof *all);
    for (size_t i = 0; i < d->n_batches; i++) {
        const struct net_batch *b = &d->batch[i];
        float *loss = cmd_alloc(2 * b->tokens, sizeof *loss);
        const struct net_losses losses = { loss, loss + b->tokens };
        float *logits = cmd_alloc(b->tokens * vocab, sizeof *logits);
        if (net_pass(&r->t.net, b, 0, &losses, logits) < 0)
            die_err(&r->err);
        for (size_t t = 0; t < b->tokens; t++) {
            sample += b->position[t] == 0;
            memcpy(all + ((sample - 1) * longest + (size_t)b->position[t]) * vocab,
                   logits + t * vocab, vocab * sizeof *all);
        }
        free(loss);
        free(logits);
    }
    return all;
}

static struct wtensor *
list(struct run *r, size_t samples, size_t longest, uint64_t shape[4], size_t *n)
{
    const struct table *table = &r->t.net.table;
    struct wtensor *w = cmd_alloc(table->n + 2, sizeof *w);
    shape[0] = 1;
    shape[1] = samples;
    shape[2] = longest;
    shape[3] = r->c.vocab;
    w[0] = (struct wtensor){ "loss", DT_F32, 1, shape, .tag = 0 };
    w[1] = (struct wtensor){ "logits", DT_F32, 3, shape + 1, .tag = 1 };
    *n = 2;
    for (size_t i = 0; i < table->n; i++) {
        struct buf name = { 0 };
        if (!r->t.tensor[i].grad.data)
            continue;
        buf_printf(&name, "grad.%s", table->row[i].name);
        if (name.failed)
            die(EXIT_MEMORY, "out of memory for --dump");
        w[(*n)++] = (struct wtensor){ name.data, DT_F32, table->row[i].rank,
                                      table->row[i].shape, .tag = i + 2 };
    }
    return w;
}

/* A gradient as f32 on the host. */
static void
download(struct run *r, float *to, const struct matrix *g)
{
    struct kernels *k = r->k;
    size_t bytes = g->rows * g->cols * sizeof(float);
    struct matrix x =
        matrix_of(DT_F32, kernels_alloc(k, MEMORY_OTHER, bytes), g->rows, g->cols);
    op_convert(k, &x, g);
    if (kernels_download(k, to, x.data, bytes) < 0)
        die_err(&r->err);
    kernels_free(k, x.data);
}

/* The values of the tensor with that tag, on the host; free it. */
static float *
values(struct run *r, size_t tag, const struct wtensor *w, double loss, float **logits)
{
    float *v = tag == 1 ? *logits : cmd_alloc(1, (size_t)w->nbytes);
    if (tag == 0)
        *v = (float)loss;
    else if (tag > 1)
        download(r, v, &r->t.tensor[tag - 2].grad);
    *logits = tag == 1 ? NULL : *logits;
    return v;
}

void
dump_write(struct run *r, double loss)
{
    size_t samples, longest, n;
    uint64_t shape[4];
    struct writer w;
    struct wmeta meta = { .version = cmd_version(), .bare = true };
    struct writer_options opt = { .guard = &cmd_guard,
                                  .flags = r->o->force ? OUT_FORCE : 0 };
    measure(r, &samples, &longest);
    float *logits = make_logits(r, samples, longest);
    struct wtensor *t = list(r, samples, longest, shape, &n);
    int rc = writer_open(&w, "safetensors", r->o->dump, t, n, &meta, &opt, &r->err);
    for (size_t i = 0; i < w.n && rc == 0; i++) {
        float *v = values(r, w.t[i].tag, &w.t[i], loss, &logits);
        rc = writer_write(&w, v, (size_t)w.t[i].nbytes);
        free(v);
    }
    if (rc == 0)
        rc = writer_commit(&w, (struct slice){ 0 });
    writer_close(&w);
    if (rc < 0)
        die_err(&r->err);
    free(logits);
    for (size_t i = 0; i < n; i++) // the writer sorted them
        if (t[i].tag > 1)
            free((char *)(uintptr_t)t[i].name);
    free(t);
}
