/* SPDX-License-Identifier: MIT */
/* loss: losses of the tokens that have labels, and the gradient of the last norm's result. */
#include "lib/model/pass.h"

enum { ROWS = 256 }; // products are fastest with multiples of it

/* Of n rows of logits so many at a time: as few chunks as there must be, about equal. */
static size_t
chunk_rows(const struct pass *p, size_t n)
{
    size_t max = p->logit_rows;
    if (p->n->teacher && p->n->teacher->pass->logit_rows < max)
        max = p->n->teacher->pass->logit_rows;
    size_t chunks = (n + max - 1) / max;
    size_t rows = chunks ? (n + chunks - 1) / chunks : 1;
    size_t whole = (rows + ROWS - 1) / ROWS * ROWS;
    return whole <= max ? whole : rows;
}

/* Logits of rows r .. r + n - 1 of those with labels, in p->logits; x: those rows. */
static struct matrix
logits_of(struct pass *p, size_t r, size_t n, struct matrix *x)
{
    struct matrix all = kernels_act(p->k, p->selected, p->labels, p->c->hidden);
    struct matrix logits = kernels_act(p->k, p->logits, n, p->c->vocab);
    *x = matrix_rows(&all, r, n);
    op_linear(p->k, 1, &logits, x, &pass_tensor(p, pass_head(p), -1)->w, NULL);
    return logits;
}

/* Rows r .. r + n - 1 of those with labels: losses, and with scale gradients. */
static void
cross_entropy_chunk(struct pass *p, size_t r, size_t n, float scale)
{
    struct kernels *k = p->k;
    const struct net_tensor *head = pass_tensor(p, pass_head(p), -1);
    struct matrix x, unused, logits = logits_of(p, r, n, &x);
    if (r >= p->by_label) {
        struct matrix theirs = logits_of(p->n->teacher->pass, r, n, &unused);
        op_distill(k, p->loss + r, p->kl + r, &logits, &theirs, p->label + r,
                   &p->n->distill, scale);
    } else {
        op_cross_entropy(k, p->loss + r, &logits, p->label + r, scale);
    }
    if (scale == 0)
        return;
    struct matrix all = kernels_act(k, p->dselected, p->labels, p->c->hidden);
    struct matrix dx = matrix_rows(&all, r, n);
    op_linear_dx(k, 1, &dx, &logits, &head->w, NULL);
    if (head->grad.data)
        op_linear_dw(k, 1, &head->grad, &logits, &x, r > 0);
}

/* Rows r .. end - 1, all with a teacher or all without. */
static void
cross_entropy_rows(struct pass *p, size_t r, size_t end, float scale)
{
    for (size_t max = chunk_rows(p, end - r); r < end; r += max)
        cross_entropy_chunk(p, r, end - r < max ? end - r : max, scale);
}

static void
cross_entropy(struct pass *p, float scale)
{
    if (p->kl)
        op_zero(p->k, p->kl, p->by_label * sizeof *p->kl);
    cross_entropy_rows(p, 0, p->by_label, scale);
    cross_entropy_rows(p, p->by_label, p->labels, scale);
    if (scale != 0 && pass_head(p) == ROLE_HEAD)
        pass_done(p, ROLE_HEAD, -1);
}

static void
scalar_loss(struct pass *p, float scale)
{
    const struct net_tensor *e = pass_tensor(p, ROLE_EMBED, -1);
    bool learns = scale != 0 && p->n->kind == NET_TORCHSHARP && e->grad.data;
    struct matrix x = kernels_act(p->k, p->selected, p->labels, p->c->hidden), dx = x;
    dx.data = p->dselected;
    op_l1(p->k, p->loss, scale != 0 ? &dx : NULL, learns ? &e->grad : NULL, &x, &e->w,
          p->label, scale);
}

/* The gradients of embedding and head, unless a product writes them first. */
static void
zero_embedding_grads(struct pass *p)
{
    struct net *n = p->n;
    bool product = n->kind == NET_CE && p->labels;
    const enum role roles[] = { ROLE_EMBED, ROLE_HEAD };
    for (int i = 0; i < 2; i++) {
        const struct net_tensor *t = pass_tensor(p, roles[i], -1);
        if (t)
            pass_begin(p, roles[i], -1);
        if (t && t->grad.data && !(product && roles[i] == pass_head(p)))
            op_zero(p->k, t->grad.data, t->grad.rows * t->grad.cols * sizeof(float));
    }
}

void
pass_select(struct pass *p)
{
    size_t hidden = p->c->hidden;
    struct matrix x = kernels_act(p->k, p->selected, p->labels, hidden),
                  top = pass_act(p, p->top, hidden);
    op_gather(p->k, &x, &top, p->index);
}

void
pass_losses(struct pass *p, float scale)
{
    struct kernels *k = p->k;
    size_t hidden = p->c->hidden;
    pass_select(p);
    if (scale != 0)
        zero_embedding_grads(p);
    if (p->n->kind == NET_CE)
        cross_entropy(p, scale);
    else
        scalar_loss(p, scale);
    if (scale == 0)
        return;
    struct matrix x = kernels_act(k, p->dselected, p->labels, hidden),
                  top = pass_act(p, p->dn, hidden);
    op_zero(k, p->dn, p->tokens * hidden * (dtype_bits(k->is.act) / 8));
    op_scatter(k, &top, &x, p->index);
}
