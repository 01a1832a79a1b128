/* SPDX-License-Identifier: MIT */
/* stats: see stats.h. */
#include "cmd/stats.h"

#include "cmd/cmd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* From slow to fast; NIBBLE_ISA names the last one allowed.  amx has no loop of its own
 * here and takes the one below it. */
static const struct {
    const char *name;
    const struct stats_isa *isa;
} levels[] = {
    { "scalar", &stats_scalar },
#ifdef __x86_64__
    { "avx2", &stats_avx2 },
    { "avx512", &stats_avx512 },
    { "amx", &stats_avx512 },
#endif
};

enum { N_LEVELS = sizeof levels / sizeof *levels };

static bool
cpu_has(const char *name)
{
#ifdef __x86_64__
    if (strcmp(name, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(name, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (strcmp(name, "amx") == 0) {
        FILE *f = fopen("/proc/cpuinfo", "r");
        char line[4096];
        bool found = false;
        while (f && !found && fgets(line, sizeof line, f))
            found = strstr(line, "amx_tile") != NULL;
        if (f)
            fclose(f);
        return found;
    }
#endif
    return strcmp(name, "scalar") == 0;
}

const struct stats_isa *
stats_isa(void)
{
    const char *want = getenv("NIBBLE_ISA");
    if (!want || !*want) {
        int best = 0;
        for (int i = 0; i < N_LEVELS; i++)
            if (strcmp(levels[i].name, "amx") != 0 && cpu_has(levels[i].name))
                best = i;
        return levels[best].isa;
    }
    for (int i = 0; i < N_LEVELS; i++)
        if (strcmp(levels[i].name, want) == 0) {
            if (!cpu_has(want))
                die(EXIT_TROUBLE, "NIBBLE_ISA=%s: this CPU does not have it", want);
            return levels[i].isa;
        }
    char q[TEXT_QUOTE];
    die(EXIT_TROUBLE, "NIBBLE_ISA=%s: want scalar, avx2, avx512 or amx",
        text_quote(q, want, strlen(want)));
}

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
