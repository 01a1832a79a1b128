/* SPDX-License-Identifier: MIT */
/* importance: how much the columns of quantized tensors matter, from the file of
 * --importance: for each tensor a vector of its name, the mean squares of what its product
 * takes; and for --hessian the mean products, in blocks along the diagonal. */
#include "lib/convert/plan.h"

#include "lib/nvfp4/feedback.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int
importance_open(struct plan *p)
{
    struct store_options opt = { .guard = p->c->host->guard,
                                 .tmpdir = p->c->host->tmpdir };
    bool sweeps = quant_sweeps(p->spec.kind);
    if (!p->c->importance)
        return p->c->hessian ? err_set(p->err, ERR_USAGE,
                                       "--hessian: goes with --importance FILE")
                             : 0;
    if (p->c->hessian && (p->spec.kind == QUANT_4OVER6 || p->spec.exhaustive))
        return err_set(p->err, ERR_USAGE,
                       "--hessian: goes with --quant sweep, sweep1 or sweepfp8, "
                       "without --exhaustive");
    if (!sweeps && p->spec.kind != QUANT_4OVER6)
        return err_set(p->err, ERR_USAGE,
                       "--importance: %s does not compare errors: goes with --quant "
                       "sweep, sweep1, sweepfp8 or 4over6",
                       p->c->quant);
    p->has_importance = true; // so that it is closed
    struct store *s = &p->importance.store;
    return store_open(s, p->c->importance, &opt, p->err) < 0
               ? -1
               : store_content_hash(s, p->importance.xxh3, 1, p->err);
}

int
importance_check_use(const struct plan *p)
{
    bool used = !p->has_importance, is_nvfp4 = p->n_nvfp4 > 0;
    for (size_t i = 0; i < p->n_nvfp4; i++)
        used = used || p->nvfp4[i]->quantize;
    for (size_t i = 0; i < p->n_inputs && !is_nvfp4; i++)
        for (size_t v = 0; v < p->inputs[i].views.n && !is_nvfp4; v++)
            is_nvfp4 = p->inputs[i].views.v[v].dtype == DT_NVFP4;
    if (used)
        return 0;
    if (is_nvfp4 && !plan_target(p)->training)
        return err_set(p->err, ERR_USAGE,
                       "--importance: the input is NVFP4 already and would only be "
                       "copied: start from the weights before they were quantized");
    return plan_target(p)->training
               ? err_set(p->err, ERR_USAGE,
                         "--importance: a checkpoint's weights are quantized anew at "
                         "each step of its training, without it")
               : err_set(p->err, ERR_USAGE,
                         "--importance: nothing is quantized: --dtype nvfp4 or "
                         "--to modelopt does that");
}

static int
check_vector(struct plan *p, const struct tensor *t, const struct nvfp4 *n,
             const float *v, float *most)
{
    char q[TEXT_QUOTE];
    text_quote(q, t->name, strlen(t->name));
    *most = 0;
    for (uint64_t i = 0; i < n->cols; i++) {
        if (!(v[i] >= 0) || isinf(v[i]))
            return err_set(p->err, ERR_FORMAT,
                           "%s: \"%s\": element %llu: expected a finite number of 0 or "
                           "more, found %g",
                           p->importance.store.name, q, (unsigned long long)i,
                           (double)v[i]);
        *most = fmaxf(*most, v[i]);
    }
    return *most > 0 ? 0
                     : err_set(p->err, ERR_FORMAT,
                               "%s: \"%s\": all elements are 0: nothing was measured",
                               p->importance.store.name, q);
}

/* The largest is brought to 1 .. 2 by a power of two, which changes no choice, and none is
 * below 2^-24: where all of a block are that small, they count alike. */
static void
settle_vector(float *v, size_t n, float most)
{
    float unit = ldexpf(1, -ilogbf(most));
    for (size_t i = 0; i < n; i++)
        v[i] = fmaxf(v[i] * unit, 0x1p-24F);
}

/* As often as a chunk is long, since chunks begin anywhere in a row. */
static void
repeat(float *v, size_t n)
{
    for (size_t i = n; i < n + VALUES_CHUNK; i++)
        v[i] = v[i - n];
}

/* NAME.hessian for NAME.weight. */
static const struct tensor *
find_hessian(struct plan *p, const struct nvfp4 *t)
{
    const struct tensor *found = NULL;
    struct buf name = { 0 };
    size_t n = strlen(t->name), w = feedback_width((size_t)t->cols);
    bool weight = n > 6 && strcmp(t->name + n - 6, "weight") == 0;
    char q[TEXT_QUOTE];
    buf_add(&name, t->name, weight ? n - 6 : n);
    buf_str(&name, weight ? "hessian" : ".hessian");
    if (buf_ok(&name, p->err) < 0)
        return NULL;
    text_quote(q, name.data, name.len);
    found = store_find(&p->importance.store, (struct slice){ name.data, name.len });
    if (!found)
        err_set(p->err, ERR_FORMAT,
                "%s: \"%s\" is missing: generate --dump-importance writes it with "
                "--hessian",
                p->importance.store.name, q);
    else if (found->dtype != DT_F32 || found->rank != 3 ||
             found->shape[0] != t->cols / w || found->shape[1] != w ||
             found->shape[2] != w)
        err_set(p->err, ERR_FORMAT,
                "%s: \"%s\": expected f32 [%llu, %zu, %zu], by the tensor's columns",
                p->importance.store.name, q, (unsigned long long)(t->cols / w), w, w);
    buf_free(&name);
    return p->err->kind ? NULL : found;
}

static int
bad_block(struct plan *p, const struct tensor *from, size_t block, const char *what)
{
    char q[TEXT_QUOTE];
    return err_set(p->err, ERR_FORMAT,
                   "%s: \"%s\": block %zu: expected mean products: %s",
                   p->importance.store.name,
                   text_quote(q, from->name, strlen(from->name)), block, what);
}

/* The factor of one block, in place of its products.  A power of two brings the largest to
 * 1 .. 2: only ratios matter. */
static int
make_factor(struct plan *p, const struct tensor *from, size_t block, float *v,
            double *h, size_t w)
{
    float most = 0;
    for (size_t i = 0; i < w * w; i++)
        if (!isfinite(v[i]))
            return bad_block(p, from, block, "a value is not finite");
        else if (v[i] != v[i % w * w + i / w])
            return bad_block(p, from, block, "it is not symmetric");
        else
            most = fmaxf(most, fabsf(v[i]));
    int unit = most > 0 ? -ilogbf(most) : 0;
    for (size_t i = 0; i < w * w; i++)
        h[i] = ldexp((double)v[i], unit);
    return feedback_factor(v, h, w)
               ? 0
               : bad_block(p, from, block, "it is not positive definite");
}

/* Whether a tensor has products at all: one without any was not measured. */
static int
check_measured(struct plan *p, const struct tensor *from, const float *v, size_t n)
{
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < n; i++)
        if (v[i] != 0)
            return 0;
    return err_set(
        p->err, ERR_FORMAT, "%s: \"%s\": all elements are 0: nothing was measured",
        p->importance.store.name, text_quote(q, from->name, strlen(from->name)));
}

float *
importance_factor(struct plan *p, const struct nvfp4 *t)
{
    size_t w = feedback_width((size_t)t->cols), n = (size_t)t->cols * w;
    const struct tensor *from = find_hessian(p, t);
    float *v = from ? malloc(n * sizeof *v) : NULL;
    double *h = v ? malloc(w * w * sizeof *h) : NULL;
    if (from && !h)
        plan_no_memory(p);
    if (h && store_check_payload(&p->importance.store, from, p->err) == 0 &&
        store_read(&p->importance.store, from, 0, v, n * sizeof *v, p->err) == 0 &&
        check_measured(p, from, v, n) == 0)
        for (size_t b = 0; b < n / (w * w) && p->err->kind == ERR_NONE; b++)
            make_factor(p, from, b, v + b * w * w, h, w);
    free(h);
    if (p->err->kind) {
        free(v);
        return NULL;
    }
    return v;
}

int
importance_load(struct plan *p, struct nvfp4 *t)
{
    char q[TEXT_QUOTE];
    struct store *s = &p->importance.store;
    float most;
    if (!p->has_importance || !t->quantize)
        return 0;
    if (p->c->hessian)
        return find_hessian(p, t) ? 0 : -1;
    text_quote(q, t->name, strlen(t->name));
    const struct tensor *from = store_find(s, slice_of(t->name));
    if (!from)
        return err_set(p->err, ERR_FORMAT, "%s: \"%s\" is missing: of another model?",
                       s->name, q);
    if (from->dtype != DT_F32 || from->rank != 1 || from->shape[0] != t->cols)
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\": expected f32 [%llu], a value for each column",
                       s->name, q, (unsigned long long)t->cols);
    t->importance = malloc((t->cols + VALUES_CHUNK) * sizeof *t->importance);
    if (!t->importance)
        return plan_no_memory(p);
    if (store_check_payload(s, from, p->err) < 0 ||
        store_read(s, from, 0, t->importance, (size_t)t->cols * sizeof *t->importance,
                   p->err) < 0 ||
        check_vector(p, from, t, t->importance, &most) < 0)
        return -1;
    settle_vector(t->importance, (size_t)t->cols, most);
    repeat(t->importance, (size_t)t->cols);
    return 0;
}
