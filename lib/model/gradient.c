/* SPDX-License-Identifier: MIT */
/* gradient: see gradient.h; numerics.md section 10. */
#include "lib/model/gradient.h"

void
gradient_add(void *ctx, size_t i)
{
    struct train *t = ctx;
    const struct matrix *sum = &t->tensor[i].grad, *pass = &t->net.t[i].grad;
    if (t->first_pass)
        op_convert(t->net.k, sum, pass);
    else
        op_add(t->net.k, sum, pass);
}
