/* SPDX-License-Identifier: MIT */
/* importance: the file of --dump-importance.  For each projection and the head a vector of the
 * weight's name, the mean square of each column of what its products take; and one number,
 * NAME.input_amax for NAME.weight, the largest magnitude.  Weights that share their input
 * have equal vectors. */
#include "cmd/generate/generate.h"

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
        n->t[i].squares = NULL;
        n->t[i].peak = NULL;
    }
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
        for (size_t i = 0; i < cols; i++)
            v[i] = (float)(squares[i] / (double)tokens);
        v[cols] = most;
    }
    free(squares);
    return v;
}

/* NAME.input_amax, for the life of the program. */
static char *
amax_name(const char *weight)
{
    size_t n = strlen(weight) - strlen(".weight");
    char *name = cmd_alloc(1, n + sizeof ".input_amax");
    memcpy(name, weight, n);
    strcpy(name + n, ".input_amax");
    return name;
}

/* Warn, since a mean of few tokens tells little. */
static void
warn_short(const struct session *s, uint64_t tokens)
{
    enum { ENOUGH = 4096 };
    if (tokens < ENOUGH && !s->c->cmd.quiet)
        warn("%s: %llu tokens are few to measure on: %d or more are usual", s->c->score,
             (unsigned long long)tokens, ENOUGH);
}

int
importance_write(struct session *s, const struct tok_reader *tok, uint64_t tokens)
{
    const struct net *n = &s->model.net;
    struct dump *d = cmd_alloc(2 * n->table.n + 1, sizeof *d);
    float **v = cmd_alloc(n->table.n + 1, sizeof *v);
    size_t count = 0, of;
    if (tokens == 0)
        return err_set(s->err, ERR_USAGE, "%s: no tokens to measure on", s->c->score);
    warn_short(s, tokens);
    for (size_t i = 0; i < n->table.n && s->err->kind == ERR_NONE; i++) {
        const struct row *r = &n->table.row[i];
        if (!is_measured(n, i, &of))
            continue;
        size_t cols = (size_t)r->shape[1];
        const char *name = r->role == ROLE_EMBED ? TABLE_HEAD : r->name;
        if (!(v[i] = measured(s, of, cols, tokens)))
            break;
        d[count++] = (struct dump){ name, { cols }, v[i] };
        d[count++] = (struct dump){ amax_name(name), { 1 }, v[i] + cols };
    }
    int rc = s->err->kind ? -1 : dump_write(s, s->c->dump_importance, d, count, tok);
    for (size_t i = 0; i < n->table.n; i++)
        free(v[i]);
    for (size_t i = 1; i < count; i += 2)
        free((char *)(uintptr_t)d[i].name);
    free(v);
    free(d);
    return rc;
}
