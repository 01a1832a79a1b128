/* SPDX-License-Identifier: MIT */
/* dump: see dump.h.  Logits come from an extra forward pass. */
#include "lib/train/dump.h"

#include "lib/format/writer.h"

#include <stdlib.h>
#include <string.h>

static int
no_memory(struct err *err)
{
    return err_set(err, ERR_MEMORY, "out of memory for --dump");
}

/* ---- logits ----------------------------------------------------------------------------- */

/* All logits of the step: (samples, longest, vocab), zeros where a sample is shorter. */
struct logits {
    size_t samples, longest, vocab;
    float *v;
};

/* Count the samples of the step: each begins at a position 0.  Documents of a packed sample
 * count as samples. */
static void
measure_step(const struct trainer *t, struct logits *l)
{
    const struct course *d = &t->in->data;
    *l = (struct logits){ .vocab = t->run->model.vocab };
    for (size_t i = 0; i < d->n_batches; i++)
        for (size_t at = 0; at < d->batch[i].tokens; at++) {
            size_t length = (size_t)d->batch[i].position[at] + 1;
            l->samples += d->batch[i].position[at] == 0;
            l->longest = length > l->longest ? length : l->longest;
        }
}

/* Add the logits of a pass, whose first sample is the one behind *sample. */
static int
add_pass(struct trainer *t, struct logits *l, const struct net_batch *b, size_t *sample)
{
    float *loss = calloc(2 * b->tokens + 1, sizeof *loss);
    float *own = malloc((b->tokens * l->vocab + 1) * sizeof *own);
    const struct net_losses losses = { loss, loss ? loss + b->tokens : NULL };
    int rc = loss && own ? 0 : no_memory(t->err);
    if (rc == 0)
        rc = net_pass(&t->train.net, b, 0, &losses, own);
    for (size_t at = 0; rc == 0 && at < b->tokens; at++) {
        *sample += b->position[at] == 0;
        size_t row = (*sample - 1) * l->longest + (size_t)b->position[at];
        memcpy(l->v + row * l->vocab, own + at * l->vocab, l->vocab * sizeof *l->v);
    }
    free(loss);
    free(own);
    return rc;
}

static int
make_logits(struct trainer *t, struct logits *l)
{
    const struct course *d = &t->in->data;
    size_t sample = 0;
    int rc = 0;
    measure_step(t, l);
    l->v = calloc(l->samples * l->longest * l->vocab + 1, sizeof *l->v);
    if (!l->v)
        return no_memory(t->err);
    for (size_t i = 0; rc == 0 && i < d->n_batches; i++)
        rc = add_pass(t, l, &d->batch[i], &sample);
    return rc;
}

/* ---- the file --------------------------------------------------------------------------- */

enum { TAG_LOSS, TAG_LOGITS, TAG_GRADIENTS }; // of the first tensor

struct list {
    struct wtensor *w;
    size_t n;
    uint64_t shape[4]; // of loss and logits
};

static int
make_list(const struct trainer *t, const struct logits *l, struct list *list)
{
    const struct table *table = &t->train.net.table;
    struct wtensor *w = list->w = calloc(table->n + TAG_GRADIENTS, sizeof *w);
    if (!w)
        return no_memory(t->err);
    const uint64_t shape[4] = { 1, l->samples, l->longest, l->vocab };
    memcpy(list->shape, shape, sizeof shape);
    w[0] = (struct wtensor){ "loss", DT_F32, 1, list->shape, .tag = TAG_LOSS };
    w[1] = (struct wtensor){ "logits", DT_F32, 3, list->shape + 1, .tag = TAG_LOGITS };
    list->n = 2;
    for (size_t i = 0; i < table->n; i++) {
        struct buf name = { 0 };
        if (!t->train.tensor[i].grad.data)
            continue;
        buf_printf(&name, "grad.%s", table->row[i].name);
        if (name.failed)
            return no_memory(t->err);
        w[list->n++] =
            (struct wtensor){ name.data, DT_F32, table->row[i].rank,
                              table->row[i].shape, .tag = i + TAG_GRADIENTS };
    }
    return 0;
}

static void
free_list(struct list *list)
{
    for (size_t i = 0; i < list->n; i++) // the writer sorted them
        if (list->w[i].tag >= TAG_GRADIENTS)
            free((char *)(uintptr_t)list->w[i].name);
    free(list->w);
}

/* A gradient as f32 on the host. */
static int
download(struct trainer *t, float *to, const struct matrix *g)
{
    struct kernels *k = t->k;
    size_t bytes = g->rows * g->cols * sizeof(float);
    struct matrix x =
        matrix_of(DT_F32, kernels_alloc(k, MEMORY_OTHER, bytes), g->rows, g->cols);
    op_convert(k, &x, g);
    int rc = kernels_download(k, to, x.data, bytes);
    kernels_free(k, x.data);
    return rc;
}

static int
write_gradient(struct trainer *t, struct writer *w, const struct wtensor *one)
{
    float *v = malloc((size_t)one->nbytes + 1);
    if (!v)
        return no_memory(t->err);
    int rc = download(t, v, &t->train.tensor[one->tag - TAG_GRADIENTS].grad);
    if (rc == 0)
        rc = writer_write(w, v, (size_t)one->nbytes);
    free(v);
    return rc;
}

static int
write_tensor(struct trainer *t, struct writer *w, const struct wtensor *one,
             double loss, const struct logits *l)
{
    float f = (float)loss;
    if (one->tag == TAG_LOSS)
        return writer_write(w, &f, sizeof f);
    if (one->tag == TAG_LOGITS)
        return writer_write(w, l->v, (size_t)one->nbytes);
    return write_gradient(t, w, one);
}

static int
write_file(struct trainer *t, struct list *list, double loss, const struct logits *l)
{
    const struct run_config *r = t->run;
    struct writer w;
    struct wmeta meta = { .version = r->host->version, .bare = true };
    struct writer_options opt = { .guard = r->host->guard,
                                  .flags = r->o->force ? OUT_FORCE : 0 };
    int rc = writer_open(&w, "safetensors", r->o->dump, list->w, list->n, &meta, &opt,
                         t->err);
    for (size_t i = 0; rc == 0 && i < w.n; i++)
        rc = write_tensor(t, &w, &w.t[i], loss, l);
    if (rc == 0)
        rc = writer_commit(&w, (struct slice){ 0 });
    writer_close(&w);
    return rc;
}

static int
on_gradients(void *ctx, struct trainer *t, double loss)
{
    struct logits l = { 0 };
    struct list list = { 0 };
    (void)ctx;
    int rc = make_logits(t, &l);
    if (rc == 0)
        rc = make_list(t, &l, &list);
    if (rc == 0)
        rc = write_file(t, &list, loss, &l);
    free_list(&list);
    free(l.v);
    return rc;
}

const struct observer dump_observer = { .gradients = on_gradients };
