/* SPDX-License-Identifier: MIT */
/* merge: several inputs in one output.  A line says how many tensors each input gave, and two
 * whole models of different configurations are refused, since the output would be neither. */
#include "lib/convert/output.h"

#include <string.h>

/* If there are more inputs, as with shards, the files that only add tensors are counted, not named. */
enum { MAX_NAMED = 4 };

/* ---- two whole models -------------------------------------------------------------- */

/* The configuration of a whole model: every tensor of it is selected from this input.  false
 * if the input has no configuration, or only a part of the tensors. */
static bool
whole_model(struct plan *p, const struct input *in, struct config *c)
{
    struct err why = { 0 };
    struct table t = { 0 };
    size_t found = 0;
    if (!in->store.config.p ||
        config_parse(c, in->store.name, in->store.config, &why) < 0)
        return false;
    bool known = table_open(&t, c, false, &why) == 0;
    for (size_t i = 0; known && i < in->views.n; i++) {
        const struct view *v = &in->views.v[i];
        found += !v->entry->state && select_matches(&p->c->select, v->name) &&
                 table_find(&t, (struct slice){ v->name, v->name_len });
    }
    bool whole = known && found == t.n;
    table_close(&t);
    return whole;
}

/* The first setting in which the weights of a and b need different models, with both values;
 * NULL: one configuration fits both.  tie_word_embeddings is not among them: head.c has the
 * rules for the head. */
static const char *
first_difference(const struct config *a, const struct config *b, double value[2])
{
    const struct {
        const char *name;
        double a, b;
    } settings[] = {
        { "hidden_size", a->hidden, b->hidden },
        { "num_hidden_layers", a->layers, b->layers },
        { "num_attention_heads", a->heads, b->heads },
        { "num_key_value_heads", a->kv_heads, b->kv_heads },
        { "head_dim", a->head_dim, b->head_dim },
        { "intermediate_size", a->ffn, b->ffn },
        { "vocab_size", a->vocab, b->vocab },
        { "rms_norm_eps", a->rms_eps, b->rms_eps },
        { "rope_theta", a->rope_theta, b->rope_theta },
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (settings[i].a != settings[i].b) {
            value[0] = settings[i].a;
            value[1] = settings[i].b;
            return settings[i].name;
        }
    return NULL;
}

int
merge_check(struct plan *p)
{
    const struct input *first = NULL;
    struct config model, other;
    double value[2];
    // A user who renames tensors, or names the configuration that holds, knows what is merged.
    bool asked = p->n_inputs < 2 || p->c->n_renames || p->c->config_path || p->has_like;
    for (size_t i = 0; i < p->n_inputs && !asked; i++) {
        const struct input *in = &p->inputs[i];
        if (!whole_model(p, in, first ? &other : &model))
            continue;
        const char *name = first ? first_difference(&model, &other, value) : NULL;
        if (name)
            return err_set(p->err, ERR_USAGE,
                           "%s and %s: are two whole models: %s is %.9g and %.9g: "
                           "expected parts of one model; -s chooses tensors, --config "
                           "says which configuration holds",
                           first->store.name, in->store.name, name, value[0], value[1]);
        if (!first)
            first = in;
    }
    return 0;
}

/* ---- in words ---------------------------------------------------------------------- */

static const char *
plural(size_t n)
{
    return n == 1 ? "" : "s";
}

/* Append how many of the n tensors so far a later input replaced, and how many it added. */
static void
put_input(struct buf *b, const struct input *in, size_t n, bool names_added)
{
    const char *name = in->store.name;
    if (in->replaced)
        buf_printf(b, ", %s%zu replaced by %s's",
                   in->replaced == n && n > 1 ? "all " : "", in->replaced, name);
    if (in->reshaped)
        buf_printf(b, " (%zu of another shape)", in->reshaped);
    if (in->added && names_added)
        buf_printf(b, ", %zu added by %s", in->added, name);
    if (!in->added && !in->replaced)
        buf_printf(b, ", none of %s", name);
}

/* "120 tensors of a.dat, 3 replaced by b.dat's, 17 added by b.dat", or of many files
 * "400 tensors of 12 files, no name in two of them". */
void
report_merged(const struct plan *p)
{
    struct buf b = { 0 };
    size_t n = 0, replaced = 0;
    if (p->n_inputs < 2)
        return;
    bool names_added = p->n_inputs <= MAX_NAMED;
    for (size_t i = 0; i < p->n_inputs; i++) {
        n += p->inputs[i].added;
        replaced += p->inputs[i].replaced;
    }
    if (names_added)
        n = p->inputs[0].added;
    buf_printf(&b, "%zu tensor%s of ", n, plural(n));
    if (names_added)
        buf_str(&b, p->inputs[0].store.name);
    else
        buf_printf(&b, "%zu files%s", p->n_inputs,
                   replaced ? "" : ", no name in two of them");
    n = p->inputs[0].added;
    for (size_t i = 1; i < p->n_inputs; i++) {
        put_input(&b, &p->inputs[i], n, names_added);
        n += p->inputs[i].added;
    }
    if (!b.failed)
        host_note(p->c->host, "%s: %.*s", p->c->out, (int)b.len, b.data);
    buf_free(&b);
}
