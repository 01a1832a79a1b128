/* SPDX-License-Identifier: MIT */
/* reference: the model of --kl-model, which runs on the same tokens as the one that is
 * scored.  The logits of both are compared where they are computed. */
#include "cmd/generate/generate.h"

#include <stdlib.h>

int
reference_open(struct reference *r, struct session *s)
{
    const struct config_generate *c = s->c;
    struct load_options o = { .threads = c->where.threads,
                              .no_verify = c->no_verify,
                              .io = cmd_io(&c->cmd) };
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

/* Memory for documents of n tokens, of which so many are compared at a time. */
int
reference_reserve(struct reference *r, size_t n, size_t rows)
{
    struct session *s = r->s;
    struct model *m = &r->model;
    if (n > m->config.positions)
        return err_set(s->err, ERR_USAGE, "%s: has %u positions, a document %zu",
                       m->store.name, m->config.positions, n);
    r->label = calloc(rows + 1, sizeof *r->label);
    r->compared =
        (struct net_compared){ .ce = calloc(rows + 1, sizeof(float)),
                               .teacher_ce = calloc(rows + 1, sizeof(float)),
                               .kl = calloc(rows + 1, sizeof(float)),
                               .best = calloc(rows + 1, sizeof(int32_t)),
                               .teacher_best = calloc(rows + 1, sizeof(int32_t)) };
    const struct net_compared *to = &r->compared;
    if (!r->label || !to->ce || !to->teacher_ce || !to->kl || !to->best ||
        !to->teacher_best)
        return err_set(s->err, ERR_MEMORY, "out of memory for --kl-model");
    if (model_stretch(m, n) < 0)
        return -1;
    s->model.net.teacher = &m->net;
    return net_cache_open(&r->cache, &m->net, n);
}

int
reference_compare(struct reference *r, const uint32_t *ids, size_t n, size_t rows)
{
    struct session *s = r->s;
    struct net *net = &s->model.net, *teacher = &r->model.net;
    const int32_t *mine = (const int32_t *)ids;
    if (net_extend(net, &s->cache, mine, n, rows, NULL, NULL, NULL) < 0 ||
        net_extend(teacher, &r->cache, mine, n, rows, NULL, NULL, NULL) < 0)
        return -1;
    return net_compare(net, r->label, rows, &r->compared);
}

void
reference_close(struct reference *r)
{
    struct net_compared *to = &r->compared;
    if (!r->s)
        return;
    r->s->model.net.teacher = NULL;
    if (r->cache.n)
        net_cache_close(&r->cache);
    model_close(&r->model);
    free(r->label);
    free(to->ce);
    free(to->teacher_ce);
    free(to->kl);
    free(to->best);
    free(to->teacher_best);
    *r = (struct reference){ 0 };
}
