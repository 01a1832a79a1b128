/* SPDX-License-Identifier: MIT */
/* stats: see stats.h. */
#include "lib/load/stats.h"

#include <math.h>

void
stats_merge(struct stats *a, const struct stats *b)
{
    a->zeros += b->zeros;
    a->nans += b->nans;
    a->infs += b->infs;
    if (b->n == 0)
        return;
    if (a->n == 0) {
        a->n = b->n;
        a->min = b->min;
        a->max = b->max;
        a->mean = b->mean;
        a->m2 = b->m2;
        return;
    }
    double na = (double)a->n;
    double nb = (double)b->n;
    double d = b->mean - a->mean;
    a->mean += d * (nb / (na + nb));
    a->m2 += b->m2 + d * d * (na * (nb / (na + nb)));
    a->n += b->n;
    a->min = b->min < a->min ? b->min : a->min;
    a->max = b->max > a->max ? b->max : a->max;
}

double
stats_std(const struct stats *s)
{
    return sqrt(s->m2 / (double)s->n);
}

double
stats_absmax(const struct stats *s)
{
    double low = fabs(s->min);
    double high = fabs(s->max);
    return low > high ? low : high;
}
