/* SPDX-License-Identifier: MIT */
/* importance: the file of --dump-importance.  For each projection and the head a vector of the
 * weight's name, the mean square of each column of what its products take; and one number,
 * NAME.input_amax for NAME.weight, the largest magnitude; with --hessian also NAME.hessian, the
 * mean products of columns, in blocks along the diagonal.  Weights that share their input have
 * equal ones. */
#include "lib/infer/importance.h"

#include "lib/infer/tensors.h"

#include "lib/nvfp4/feedback.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whether row i's input is measured; *of: the row that has the measurements. */
static bool
is_measured(const struct net *n, size_t i, size_t *of)
{
    enum role role = n->table.row[i].role;
    bool head = role == ROLE_HEAD || (n->c.tied && role == ROLE_EMBED);
    *of = i;
    while (*of &&
           (n->table.row[*of].role == ROLE_K || n->table.row[*of].role == ROLE_V ||
            n->table.row[*of].role == ROLE_UP))
        --*of;
    return head || n->table.row[i].quantized;
}

int
importance_begin(struct session *s)
{
    struct net *n = &s->model.net;
    size_t of;
    for (size_t i = 0; i < n->table.n; i++) {
        struct net_tensor *t = &n->t[i];
        size_t cols = (size_t)n->table.row[i].shape[n->table.row[i].rank - 1];
        if (!is_measured(n, i, &of) || of != i)
            continue;
        t->squares = kernels_alloc(s->k, MEMORY_OTHER, cols * sizeof *t->squares);
        t->peak = kernels_alloc(s->k, MEMORY_OTHER, cols * sizeof *t->peak);
        t->gram_width = feedback_width(cols);
        if (s->c->hessian)
            t->gram = kernels_alloc(s->k, MEMORY_OTHER,
                                    cols * t->gram_width * sizeof *t->gram);
    }
    return s->err->kind ? -1 : 0;
}

void
importance_end(struct session *s)
{
    struct net *n = &s->model.net;
    for (size_t i = 0; s->k && n->t && i < n->table.n; i++) {
        kernels_free(s->k, n->t[i].squares);
        kernels_free(s->k, n->t[i].peak);
        kernels_free(s->k, n->t[i].gram);
        n->t[i].squares = n->t[i].gram = NULL;
        n->t[i].peak = NULL;
    }
}

/* Means of n sums over the tokens. */
static void
means_of(struct session *s, float *v, const double *sum, size_t n, uint64_t tokens)
{
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        v[i] = (float)(sum[i] / (double)tokens);
        finite &= isfinite(v[i]) != 0;
    }
    if (!finite)
        err_set(s->err, ERR_NONFINITE,
                "%s: the input of a product is too large: its squares are not finite",
                s->model.store.name);
}

/* The means of a row's input, and at the end its largest magnitude; NULL: an error. */
static float *
measured(struct session *s, size_t of, size_t cols, uint64_t tokens)
{
    const struct net_tensor *t = &s->model.net.t[of];
    double *squares = malloc((cols + 1) * sizeof *squares);
    float *v = malloc((cols + 1) * sizeof *v), most = 0;
    if (!squares || !v) {
        err_set(s->err, ERR_MEMORY, "out of memory for --dump-importance");
    } else if (kernels_download(s->k, v, t->peak, cols * sizeof *v) == 0 &&
               kernels_download(s->k, squares, t->squares, cols * sizeof *squares) ==
                   0) {
        for (size_t i = 0; i < cols; i++)
            most = fmaxf(most, v[i]);
        means_of(s, v, squares, cols, tokens);
        v[cols] = most;
    }
    free(squares);
    return v;
}

/* Mean products of the columns of a row's input; NULL: an error. */
static float *
products(struct session *s, size_t of, size_t cols, uint64_t tokens)
{
    const struct net_tensor *t = &s->model.net.t[of];
    size_t n = cols * t->gram_width;
    double *sum = malloc((n + 1) * sizeof *sum);
    float *v = malloc((n + 1) * sizeof *v);
    if (!sum || !v)
        err_set(s->err, ERR_MEMORY, "out of memory for --hessian");
    else if (kernels_download(s->k, sum, t->gram, n * sizeof *sum) == 0)
        means_of(s, v, sum, n, tokens);
    free(sum);
    return v;
}

/* NAME.what for NAME.weight; NULL without memory. */
static char *
name_of(const char *weight, const char *what)
{
    size_t n = strlen(weight) - strlen("weight");
    size_t more = strlen(what) + 1;
    char *name = malloc(n + more);
    if (name) {
        memcpy(name, weight, n);
        memcpy(name + n, what, more);
    }
    return name;
}

/* Warn, since a mean of few tokens tells little. */
static void
warn_short(const struct session *s, uint64_t tokens)
{
    enum { ENOUGH = 4096 };
    if (tokens < ENOUGH)
        host_note(s->c->host,
                  "%s: %llu tokens are few to measure on: %d or more are usual",
                  s->c->score, (unsigned long long)tokens, ENOUGH);
}

/* The tensors of row i, whose input is that of row `of`: values are computed once for all rows
 * that share it. */
static size_t
add_row(struct session *s, struct dump *d, float **means, float **grams, size_t i,
        size_t of, uint64_t tokens)
{
    const struct row *r = &s->model.net.table.row[i];
    const char *name = r->role == ROLE_EMBED ? TABLE_HEAD : r->name;
    size_t cols = (size_t)r->shape[1], w = s->model.net.t[of].gram_width, n = 0;
    if (!means[of] && !(means[of] = measured(s, of, cols, tokens)))
        return 0;
    if (s->c->hessian && !grams[of] && !(grams[of] = products(s, of, cols, tokens)))
        return 0;
    d[n++] = (struct dump){ name_of(name, "weight"), { cols }, means[of] };
    d[n++] = (struct dump){ name_of(name, "input_amax"), { 1 }, means[of] + cols };
    if (s->c->hessian)
        d[n++] =
            (struct dump){ name_of(name, "hessian"), { cols / w, w, w }, grams[of] };
    return n;
}

int
importance_write(struct session *s, const struct tok_reader *tok, uint64_t tokens)
{
    enum { PER_ROW = 3 };
    const struct net *n = &s->model.net;
    struct dump *d = calloc(PER_ROW * n->table.n + 1, sizeof *d);
    float **means = calloc(n->table.n + 1, sizeof *means);
    float **grams = calloc(n->table.n + 1, sizeof *grams);
    size_t count = 0, of;
    if (!d || !means || !grams)
        err_set(s->err, ERR_MEMORY, "out of memory for importance");
    else if (tokens == 0)
        err_set(s->err, ERR_USAGE, "%s: no tokens to measure on", s->c->score);
    else
        warn_short(s, tokens);
    for (size_t i = 0; i < n->table.n && s->err->kind == ERR_NONE; i++)
        if (is_measured(n, i, &of))
            count += add_row(s, d + count, means, grams, i, of, tokens);
    for (size_t i = 0; i < count; i++)
        if (!d[i].name)
            err_set(s->err, ERR_MEMORY, "out of memory for a name");
    int rc =
        s->err->kind ? -1 : dump_write(s, NULL, s->c->dump_importance, d, count, tok);
    for (size_t i = 0; i < n->table.n && means && grams; i++) {
        free(means[i]);
        free(grams[i]);
    }
    for (size_t i = 0; i < count; i++)
        free((char *)(uintptr_t)d[i].name);
    free(means);
    free(grams);
    free(d);
    return rc;
}
