/* SPDX-License-Identifier: MIT */
/* spark: a sparkline of the loss for the progress line. */
#include "cmd/trainstep/trainstep.h"

#include <math.h>

/* All columns have the same number of steps; when they are full, pairs are merged, so that
 * the line shows all of the run. */
void
spark_add(struct spark *s, double loss)
{
    if (s->columns == 0 || s->steps == s->per) {
        if (s->columns == SPARK_COLUMNS) {
            for (size_t i = 0; i < SPARK_COLUMNS; i += 2) {
                s->sum[i / 2] = s->sum[i] + s->sum[i + 1];
                s->finite[i / 2] = s->finite[i] + s->finite[i + 1];
            }
            s->columns /= 2;
            s->per *= 2;
        }
        if (s->columns == 0)
            s->per = 1;
        s->sum[s->columns] = 0;
        s->finite[s->columns++] = 0;
        s->steps = 0;
    }
    s->steps++;
    if (isfinite(loss)) {
        s->sum[s->columns - 1] += loss;
        s->finite[s->columns - 1]++;
    }
}

/* NaN: none of its steps had a finite loss. */
static double
mean_of(const struct spark *s, size_t column)
{
    return s->finite[column] ? s->sum[column] / (double)s->finite[column] : NAN;
}

/* The lowest column shown has the lowest mark.  Steps without a finite loss are a gap. */
void
spark_draw(struct buf *b, const struct spark *s, size_t max_columns, bool utf8)
{
    enum { LEVELS = 8 };
    static const char *const blocks[LEVELS] = {
        "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"
    };
    static const char *const ascii[LEVELS] = { "_", ".", ":", "-", "=", "+", "*", "#" };
    double low = INFINITY, high = -INFINITY;
    size_t from = s->columns > max_columns ? s->columns - max_columns : 0;
    for (size_t i = from; i < s->columns; i++) {
        low = fmin(low, mean_of(s, i)); // a NaN is no number to these
        high = fmax(high, mean_of(s, i));
    }
    for (size_t i = from; i < s->columns; i++) {
        double mean = mean_of(s, i);
        size_t level = 0;
        if (!isnan(mean) && high > low)
            level = (size_t)((mean - low) / (high - low) * (LEVELS - 0.5));
        buf_str(b, isnan(mean) ? " " : utf8 ? blocks[level] : ascii[level]);
    }
}
