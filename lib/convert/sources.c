/* SPDX-License-Identifier: MIT */
/* sources: the inputs, the reference of --like and the configuration. */
#include "lib/convert/plan.h"

#include "lib/format/dialect.h"
#include "lib/load/training.h"

#include <stdlib.h>

static int
open_source(struct plan *p, struct input *in, const char *path)
{
    struct store_options opt = { .guard = p->c->host->guard,
                                 .strict = p->c->strict,
                                 .whole_pairs = p->c->quantize || p->c->dequantize,
                                 .tmpdir = p->c->host->tmpdir };
    // What is selected by hand is up to the user.
    bool model = (plan_target(p)->needs_model || p->c->quantize) &&
                 !p->c->select.n_in && !p->c->select.n_out;
    if (store_open(&in->store, path, &opt, p->err) < 0 ||
        training_check(&in->store, p->err) < 0 ||
        (model && store_check_model(&in->store, p->err) < 0) ||
        store_load_beside(&in->store) < 0 ||
        dialect_views(&in->views, &in->store, plan_keeps_foreign(p)) < 0)
        return -1;
    host_note_lines(p->c->host, &in->store.warnings);
    return 0;
}

/* The text of --config. */
static int
load_config(struct plan *p, const char *path)
{
    struct store fake = { .opt = { .guard = p->c->host->guard }, .err = p->err };
    int rc = store_load_config(&fake, path);
    if (rc == 0) {
        p->config.p = arena_copy(&p->arena, fake.config.p, fake.config.n);
        p->config.n = fake.config.n;
        rc = p->config.p ? 0 : plan_no_memory(p);
    }
    arena_free(&fake.arena);
    return rc;
}

/* The configuration: --config, else that of the first input that has one. */
static int
find_config(struct plan *p)
{
    const char *from = p->c->config_path;
    struct err why = { 0 };
    if (from && load_config(p, from) < 0)
        return -1;
    for (size_t i = 0; i < p->n_inputs && !p->config.p; i++) {
        p->config = p->inputs[i].store.config;
        from = p->inputs[i].store.name;
    }
    if (!p->config.p)
        return 0;
    p->is_model = config_parse(&p->model, from, p->config, &why) == 0;
    // The configuration of something else is copied, unless a model is needed.
    if (!p->is_model && (p->c->config_path || plan_target(p)->needs_model))
        return err_set(p->err, why.kind, "%s", why.msg);
    return 0;
}

int
sources_open(struct plan *p, char **paths, size_t n)
{
    p->inputs = calloc(n + 1, sizeof *p->inputs);
    if (!p->inputs)
        return plan_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        p->n_inputs++; // so that it is closed
        if (open_source(p, &p->inputs[i], paths[i]) < 0)
            return -1;
    }
    if (p->has_like && open_source(p, &p->inputs[n], p->c->like) < 0)
        return -1;
    return find_config(p);
}

void
sources_close(struct plan *p)
{
    for (size_t i = 0; p->inputs && i < p->n_inputs + p->has_like; i++) {
        views_close(&p->inputs[i].views);
        store_close(&p->inputs[i].store);
    }
    free(p->inputs);
    if (p->has_importance)
        store_close(&p->importance.store);
    if (p->has_input_scales)
        store_close(&p->input_scales.store);
}
