/* SPDX-License-Identifier: MIT */
/* reference: the model of --kl-model, which runs on the same tokens as the one that is
 * scored.  The logits of both are compared where they are computed. */
#include "lib/infer/reference.h"

int
reference_open(struct reference *r, struct session *s)
{
    const struct infer_options *c = s->c;
    struct load_options o = { .threads = c->where.threads,
                              .no_verify = c->no_verify,
                              .host = c->host };
    struct model *m = &r->model;
    *r = (struct reference){ .s = s };
    if (model_open(m, c->kl_model, &o, s->err) < 0)
        return -1;
    if (m->config.vocab != s->model.config.vocab)
        return err_set(s->err, ERR_FORMAT,
                       "%s: its vocab_size is %u, that of %s is %u: models that are "
                       "compared have the same",
                       m->store.name, m->config.vocab, s->model.store.name,
                       s->model.config.vocab);
    return model_load(m, s->k, 1);
}

int
reference_reserve(struct reference *r, size_t n)
{
    struct session *s = r->s;
    struct model *m = &r->model;
    if (n > m->config.positions)
        return err_set(
            s->err, ERR_USAGE,
            "%s: has %u positions, a document of %s %zu: a reference runs on all "
            "of it",
            m->store.name, m->config.positions, s->c->score, n);
    if (model_stretch(m, n) < 0)
        return -1;
    s->model.net.teacher = &m->net;
    return net_cache_open(&r->cache, &m->net, n);
}

void
reference_close(struct reference *r)
{
    if (!r->s)
        return;
    r->s->model.net.teacher = NULL;
    if (r->cache.n)
        net_cache_close(&r->cache);
    model_close(&r->model);
    *r = (struct reference){ 0 };
}
