/* SPDX-License-Identifier: MIT */
/* score: the logits of a model by labels, and beside those of another one. */
#include "lib/model/pass.h"

/* Rows r .. r + n - 1 of the last `rows` tokens; p->ids have been looked up. */
static void
score_chunk(struct pass *p, struct pass *teacher, size_t rows, size_t r, size_t n)
{
    static const struct distill whole = { 1, 1 };
    struct kernels *k = p->k;
    struct matrix mine = pass_logits_f32(p, p->tokens - rows + r, n);
    op_argmax(k, p->ids + r, &mine);
    if (!teacher) {
        op_cross_entropy(k, p->loss + r, &mine, p->label + r, 0);
        return;
    }
    struct matrix theirs = pass_logits_f32(teacher, teacher->tokens - rows + r, n);
    op_argmax(k, teacher->ids + r, &theirs);
    op_distill(k, p->loss + r, p->kl + r, &mine, &theirs, p->label + r, &whole, 0);
    op_cross_entropy(k, teacher->loss + r, &theirs, p->label + r, 0);
}

static int
read_scores(struct pass *p, const struct pass *teacher, size_t rows,
            const struct net_scores *to)
{
    size_t bytes = rows * sizeof *to->ce;
    if (kernels_download(p->k, to->ce, p->loss, bytes) < 0 ||
        kernels_download(p->k, to->best, p->ids, bytes) < 0)
        return -1;
    if (teacher && (kernels_download(p->k, to->kl, p->kl, bytes) < 0 ||
                    kernels_download(p->k, to->teacher_ce, teacher->loss, bytes) < 0 ||
                    kernels_download(p->k, to->teacher_best, teacher->ids, bytes) < 0))
        return -1;
    return p->n->err->kind ? -1 : 0;
}

int
net_score(struct net *n, const int32_t *label, size_t rows, const struct net_scores *to)
{
    struct pass *p = n->pass, *teacher = n->teacher ? n->teacher->pass : NULL;
    size_t max = pass_rows_f32(p);
    if (teacher && pass_rows_f32(teacher) < max)
        max = pass_rows_f32(teacher);
    kernels_upload(n->k, p->label, label, rows * sizeof *label);
    for (size_t r = 0; r < rows; r += max)
        score_chunk(p, teacher, rows, r, rows - r < max ? rows - r : max);
    return read_scores(p, teacher, rows, to);
}
