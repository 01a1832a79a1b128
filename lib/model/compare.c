/* SPDX-License-Identifier: MIT */
/* compare: the logits of a model beside those of another one. */
#include "lib/model/pass.h"

/* Rows r .. r + n - 1 of the last `rows` tokens; p->ids have been looked up. */
static void
compare_chunk(struct pass *p, struct pass *teacher, size_t rows, size_t r, size_t n)
{
    static const struct distill whole = { 1, 1 };
    struct kernels *k = p->k;
    struct matrix mine = pass_logits_f32(p, p->tokens - rows + r, n),
                  theirs = pass_logits_f32(teacher, teacher->tokens - rows + r, n);
    op_argmax(k, p->ids + r, &mine);
    op_argmax(k, teacher->ids + r, &theirs);
    op_distill(k, p->loss + r, p->kl + r, &mine, &theirs, p->label + r, &whole, 0);
    op_cross_entropy(k, teacher->loss + r, &theirs, p->label + r, 0);
}

int
net_compare(struct net *n, const int32_t *label, size_t rows,
            const struct net_compared *to)
{
    struct pass *p = n->pass, *teacher = n->teacher->pass;
    struct kernels *k = n->k;
    size_t max = pass_rows_f32(p), theirs = pass_rows_f32(teacher);
    max = theirs < max ? theirs : max;
    kernels_upload(k, p->label, label, rows * sizeof *label);
    for (size_t r = 0; r < rows; r += max)
        compare_chunk(p, teacher, rows, r, rows - r < max ? rows - r : max);
    const struct {
        void *to;
        const void *from;
    } copy[] = { { to->ce, p->loss },
                 { to->teacher_ce, teacher->loss },
                 { to->kl, p->kl },
                 { to->best, p->ids },
                 { to->teacher_best, teacher->ids } };
    for (size_t i = 0; i < sizeof copy / sizeof *copy; i++)
        if (kernels_download(k, copy[i].to, copy[i].from, rows * sizeof *label) < 0)
            return -1;
    return n->err->kind ? -1 : 0;
}
