/* SPDX-License-Identifier: MIT */
/* output: writing the file, while its inputs are hashed. */
#include "lib/convert/output.h"

#include "lib/convert/produce.h"
#include "lib/file/lock.h"
#include "lib/file/path.h"

#include <pthread.h>
#include <stdlib.h>

/* Hashes of the inputs, computed while the output is written. */
struct hasher {
    struct plan *p;
    struct err err;
    pthread_t thread;
    bool running;
};

static void *
hash_inputs(void *arg)
{
    struct hasher *h = arg;
    struct plan *p = h->p;
    for (size_t i = 0; i < p->n_inputs + p->has_like; i++) {
        struct store *s = &p->inputs[i].store;
        if (store_content_hash(s, p->inputs[i].xxh3, 1, &h->err) < 0 ||
            store_check_gaps(s, &h->err) < 0)
            break;
    }
    return NULL;
}

static void
hasher_start(struct hasher *h)
{
    h->running =
        h->p->c->threads > 1 && pthread_create(&h->thread, NULL, hash_inputs, h) == 0;
    if (!h->running)
        hash_inputs(h);
}

static int
hasher_finish(struct hasher *h, struct err *err)
{
    if (h->running)
        pthread_join(h->thread, NULL);
    h->running = false;
    return h->err.kind ? err_set(err, h->err.kind, "%s", h->err.msg) : 0;
}

static struct wtensor *
wtensors(const struct plan *p)
{
    struct wtensor *t = calloc(p->n ? p->n : 1, sizeof *t);
    for (size_t i = 0; t && i < p->n; i++)
        t[i] = (struct wtensor){ .name = p->item[i].name,
                                 .dtype = p->item[i].dtype,
                                 .rank = p->item[i].rank,
                                 .shape = p->item[i].shape,
                                 .tag = i };
    if (!t)
        err_set(p->err, ERR_MEMORY, "out of memory for the plan");
    return t;
}

static int
write_items(struct plan *p, struct writer *w)
{
    uint64_t total = 0;
    for (size_t i = 0; i < w->n; i++)
        total += w->t[i].nbytes;
    struct host_progress progress = host_progress_begin(p->c->host, "writing", total);
    struct producer *x = producer_open(p, w, &progress);
    int rc = x ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < w->n; i++)
        rc = producer_item(x, &p->item[w->t[i].tag]);
    producer_close(x);
    host_progress_end(&progress);
    for (size_t i = 0; rc == 0 && i < p->n_inputs + p->has_like; i++)
        rc = store_check(&p->inputs[i].store);
    return rc;
}

/* What the file has besides tensors. */
struct header {
    struct buf provenance;
    struct metadata metadata;
    struct gguf_kv kv;
};

static int
header_gather(struct plan *p, struct header *h)
{
    if (record_put(&h->provenance, p) < 0 ||
        (plan_target(p)->embeds_tokenizer && beside_vocabulary(p, &h->kv) < 0))
        return -1;
    return metadata_gather(p, &h->metadata);
}

static void
header_free(struct header *h)
{
    gguf_kv_free(&h->kv);
    metadata_free(&h->metadata);
    buf_free(&h->provenance);
}

static int
begin_output(struct plan *p, struct writer *w, const struct header *h,
             struct wtensor *t)
{
    const struct pack *c = p->c;
    const struct wmeta meta = {
        .gguf = &h->kv,
        .version = c->host->version,
        .config = p->config,
        .provenance = { h->provenance.data, h->provenance.len },
        .metadata = { h->metadata.text.data, h->metadata.text.len },
        .bare = c->torchsharp && !plan_target(p)->training,
        .master = c->master,
        .moments = c->moments,
        .quant = c->quant,
        .variant = c->variant,
        .criterion = c->criterion,
        .share = c->share,
    };
    const struct writer_options opt = { .flags = c->force ? OUT_FORCE : 0,
                                        .directory = c->directory,
                                        .shard_bytes = c->shard_bytes,
                                        .guard = c->host->guard };
    return writer_open(w, c->to, c->out, t, p->n, &meta, &opt, p->err);
}

static int
finish_output(struct plan *p, struct writer *w, struct header *h)
{
    struct buf *b = &h->provenance;
    if (record_put(b, p) < 0 || (p->c->directory && beside_copy(p, w) < 0))
        return -1;
    return writer_commit(w, (struct slice){ b->data, b->len });
}

static int
write_output(struct plan *p)
{
    struct header h = { 0 };
    struct writer w = { 0 };
    struct hasher hasher = { .p = p };
    struct wtensor *t = wtensors(p);
    // A stream cannot be patched: its provenance must be known before the first byte.
    // Elsewhere the output comes first: what is wrong with it is reported at once.
    bool stream = path_is_stream(p->c->out);
    if (t && stream)
        hash_inputs(&hasher);
    int rc = t ? hasher_finish(&hasher, p->err) : -1;
    if (rc == 0)
        rc = header_gather(p, &h);
    if (rc == 0)
        rc = begin_output(p, &w, &h, t);
    if (rc == 0 && !stream)
        hasher_start(&hasher);
    if (rc == 0)
        rc = write_items(p, &w);
    if (hasher_finish(&hasher, p->err) < 0)
        rc = -1;
    if (rc == 0)
        rc = finish_output(p, &w, &h);
    writer_close(&w);
    header_free(&h);
    free(t);
    return rc;
}

/* A checkpoint is locked: a training that saves to the same name would replace ours, or
 * fail when it finds it. */
int
output_write(struct plan *p)
{
    const struct pack *c = p->c;
    struct lock lock = { .fd = -1 };
    bool training = plan_target(p)->training && !path_is_stream(c->out);
    if (training && lock_acquire(&lock, c->out, c->host->guard, p->err) < 0)
        return -1;
    int rc = write_output(p);
    lock_release(&lock);
    return rc;
}
