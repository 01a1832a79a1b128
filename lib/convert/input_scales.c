/* SPDX-License-Identifier: MIT */
/* input_scales: activation scales of a W4A4 model, from the file of --input-scales: for each
 * tensor X.weight one number X.input_amax, the largest magnitude of what its product takes.
 * What else generate --dump-importance writes must fit, but changes nothing here. */
#include "lib/convert/plan.h"

#include "lib/base/num.h"

#include <string.h>

#define SUFFIX ".input_amax"

int
input_scales_open(struct plan *p)
{
    struct store_options opt = { .guard = p->c->host->guard,
                                 .tmpdir = p->c->host->tmpdir };
    if (!p->c->input_scales)
        return 0;
    p->has_input_scales = true; // so that it is closed
    struct store *s = &p->input_scales.store;
    return store_open(s, p->c->input_scales, &opt, p->err) < 0
               ? -1
               : store_content_hash(s, p->input_scales.xxh3, 1, p->err);
}

static int
read_amax(struct plan *p, const struct tensor *t, float *amax)
{
    struct store *s = &p->input_scales.store;
    uint8_t bytes[4];
    char q[TEXT_QUOTE];
    text_quote(q, t->name, t->name_len);
    if (t->dtype != DT_F32 || t->numel != 1)
        return err_set(p->err, ERR_FORMAT, "%s: \"%s\": expected one f32", s->name, q);
    if (store_check_payload(s, t, p->err) < 0 ||
        store_read(s, t, 0, bytes, sizeof bytes, p->err) < 0)
        return -1;
    uint32_t bits = load_le32(bytes);
    memcpy(amax, &bits, sizeof bits);
    // Both 2688/amax and amax/2688 are then normal numbers.
    if (*amax >= 0x1p-100F && *amax <= 0x1p100F)
        return 0;
    return err_set(
        p->err, ERR_FORMAT,
        "%s: \"%s\": expected a magnitude above 0, of which a scale can be made, found "
        "%g: measure on other tokens, or leave --input-scales out",
        s->name, q, (double)*amax);
}

/* 1: the file has the largest magnitude of a weight's input; 0: not; -1. */
static int
amax_of(struct plan *p, const char *name, float *amax)
{
    struct slice module = slice_of(name);
    struct buf b = { 0 };
    if (slice_ends(module, ".weight"))
        module.n -= strlen(".weight");
    buf_add(&b, module.p, module.n);
    buf_str(&b, SUFFIX);
    const char *entry = plan_text(p, &b);
    if (!entry)
        return -1;
    const struct tensor *t = store_find(&p->input_scales.store, slice_of(entry));
    return !t ? 0 : read_amax(p, t, amax) < 0 ? -1 : 1;
}

/* Rows of the configuration that take the same input. */
static int
check_group(struct plan *p, size_t first, size_t n)
{
    const struct row *row = &p->weights.row[first];
    float one, other;
    char q[TEXT_QUOTE], r[TEXT_QUOTE];
    int has = n > 1 ? amax_of(p, row->name, &one) : 0;
    for (size_t i = 1; i < n && has > 0; i++) {
        int rc = amax_of(p, row[i].name, &other);
        if (rc > 0 && one != other)
            return err_set(p->err, ERR_FORMAT,
                           "%s: " SUFFIX " of \"%s\" is %g and of \"%s\" %g: expected "
                           "equal ones, since they take the same input",
                           p->input_scales.store.name,
                           text_quote(q, row->name, strlen(row->name)), (double)one,
                           text_quote(r, row[i].name, strlen(row[i].name)),
                           (double)other);
        has = rc < 0 ? rc : has;
    }
    return has < 0 ? -1 : 0;
}

/* An entry of no weight, or a vector of another width: the file is of another model. */
static int
check_entry(struct plan *p, const struct tensor *t)
{
    struct slice name = { t->name, t->name_len };
    struct buf weight = { 0 };
    char q[TEXT_QUOTE];
    bool amax = slice_ends(name, SUFFIX);
    buf_add(&weight, name.p, name.n - (amax ? strlen(SUFFIX) : 0));
    buf_str(&weight, amax ? ".weight" : "");
    const char *text = plan_text(p, &weight);
    if (!text)
        return -1;
    text_quote(q, t->name, t->name_len);
    const struct row *r = table_find(&p->weights, slice_of(text));
    if (amax && !r && strcmp(text, TABLE_HEAD) != 0)
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\": the configuration has no such tensor: of another "
                       "model?",
                       p->input_scales.store.name, q);
    if (!amax && r && r->rank == 2 && (t->rank != 1 || t->shape[0] != r->shape[1]))
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\": expected [%llu], a value for each column: of "
                       "another model?",
                       p->input_scales.store.name, q, (unsigned long long)r->shape[1]);
    return 0;
}

int
input_scales_check(struct plan *p)
{
    const struct store *s = &p->input_scales.store;
    if (!p->has_input_scales)
        return 0;
    for (size_t i = 0; i < s->n_tensors; i++)
        if (check_entry(p, &s->tensors[i]) < 0)
            return -1;
    for (size_t i = 0, n; i < p->weights.n; i += n) {
        n = table_fused_rows(&p->weights, i);
        if (check_group(p, i, n) < 0)
            return -1;
    }
    return 0;
}

int
input_scales_find(struct plan *p, const struct candidate *c, float *amax)
{
    char q[TEXT_QUOTE];
    int rc = amax_of(p, c->name, amax);
    if (rc == 0)
        return err_set(
            p->err, ERR_FORMAT, "%s: \"%s\" has no " SUFFIX ": of another model?",
            p->input_scales.store.name, text_quote(q, c->name, strlen(c->name)));
    return rc < 0 ? -1 : 0;
}
