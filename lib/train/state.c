/* SPDX-License-Identifier: MIT */
/* state: where a training stands, from a checkpoint and into one; and the window of
 * accepted steps by which a spike is recognised. */
#include "lib/train/state.h"

#include "lib/load/training.h"

#include <math.h>
#include <string.h>

/* ---- in a checkpoint ------------------------------------------------------------------ */

static struct mp
open_map(const struct store *file, struct slice s)
{
    return (struct mp){ .data = (const uint8_t *)s.p,
                        .len = s.n,
                        .base = (uint64_t)((const uint8_t *)s.p - file->header) + 64,
                        .file = file->name,
                        .depth = 2,
                        .err = file->err };
}

int
checkpoint_open(struct store *s, const char *path, struct guard *g, struct err *err)
{
    struct store_options opt = { .guard = g };
    return store_open(s, path, &opt, err) < 0 ? -1 : training_check(s, err);
}

int
state_read(struct state *st, struct settings *s, const struct store *file)
{
    struct slice settings;
    struct mp m = open_map(file, file->training.state);
    settings_begin(s);
    if (state_parse(st, &settings, &m) < 0)
        return -1;
    m = open_map(file, settings);
    return settings_read(&m, s);
}

void
state_put(struct buf *b, const struct state *st, const struct settings *s)
{
    struct buf text = { 0 };
    msgpack_packer pk;
    mp_pack_into(&pk, &text);
    settings_put(&pk, s);
    mp_pack_into(&pk, b);
    state_pack(&pk, st, (struct slice){ text.data, text.len });
    b->failed |= text.failed;
    buf_free(&text);
}

/* ---- spikes -------------------------------------------------------------------------------- */

/* How many deviations x lies above the mean of n values. */
static double
score(const double *v, size_t n, double x)
{
    double mean = 0, square = 0;
    for (size_t i = 0; i < n; i++)
        mean += v[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        square += (v[i] - mean) * (v[i] - mean);
    double deviation = sqrt(square / (double)n);
    // Values that hardly differ make everything a spike.
    double least = 1e-3 * fabs(mean);
    deviation = deviation > least ? deviation : least;
    return deviation > 0 ? (x - mean) / deviation : 0;
}

bool
spike_fits(const struct spike *w, double z, double loss, double norm)
{
    enum { ENOUGH = SPIKE_WINDOW / 4 };
    if (isnan(loss) || isnan(norm))
        return false;
    if (w->n < ENOUGH)
        return true;
    return score(w->loss, w->n, loss) <= z && score(w->norm, w->n, norm) <= z;
}

void
spike_add(struct spike *w, double loss, double norm)
{
    w->loss[w->at] = loss;
    w->norm[w->at] = norm;
    w->at = (w->at + 1) % SPIKE_WINDOW;
    w->n += w->n < SPIKE_WINDOW;
}
