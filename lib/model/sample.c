/* SPDX-License-Identifier: MIT */
/* sample: see sample.h. */
#include "lib/model/sample.h"

#include "lib/base/maths.h"
#include "lib/base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int
sampler_open(struct sampler *s, const struct sample_options *o, size_t vocab,
             struct err *err)
{
    *s = (struct sampler){ .o = *o, .vocab = vocab };
    s->logits = malloc(vocab * sizeof *s->logits);
    s->weight = malloc(vocab * sizeof *s->weight);
    s->heap = malloc(vocab * sizeof *s->heap);
    if (!s->logits || !s->weight || !s->heap)
        return err_set(err, ERR_MEMORY, "out of memory for sampling");
    return 0;
}

void
sampler_close(struct sampler *s)
{
    free(s->logits);
    free(s->weight);
    free(s->heap);
    *s = (struct sampler){ 0 };
}

/* ---- logits ----------------------------------------------------------------------------- */

uint32_t
logits_best(const float *logits, size_t n)
{
    enum { EACH = 16 }; // lanes, as many as compilers make a vector of
    float lane[EACH], most = logits[0];
    size_t i = 0;
    for (size_t l = 0; l < EACH; l++)
        lane[l] = most;
    for (; i + EACH <= n; i += EACH)
        for (size_t l = 0; l < EACH; l++)
            lane[l] = logits[i + l] > lane[l] ? logits[i + l] : lane[l];
    for (size_t l = 0; l < EACH; l++)
        most = lane[l] > most ? lane[l] : most;
    for (; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (i = 0; i < n; i++)
        if (logits[i] == most)
            return (uint32_t)i;
    return 0; // NaN
}

bool
logits_finite(const float *logits, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            return false;
    return true;
}

/* exp(x), x <= 0, as maths_shares. */
static double
share(double x)
{
    return x > MATHS_LOWEST ? maths_exp(x) : 0;
}

double
logits_log_sum(const float *logits, size_t n)
{
    enum { PART = 256 };
    double most = (double)logits[logits_best(logits, n)], sum = 0, part[PART];
    for (size_t i = 0; i < n; i += PART) {
        size_t some = n - i < PART ? n - i : PART;
        maths_shares(part, logits + i, some, most, 1);
        for (size_t k = 0; k < some; k++)
            sum += part[k];
    }
    return most + maths_log(sum);
}

/* ---- the best ones ------------------------------------------------------------------------ */

static bool
better(const float *logits, uint32_t a, uint32_t b)
{
    float x = logits[a], y = logits[b];
    return x > y || (x == y && a < b);
}

/* heap[at] sinks until no child is better. */
static void
sink(uint32_t *heap, size_t n, size_t at, const float *logits)
{
    uint32_t id = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && better(logits, heap[child + 1], heap[child]))
            child++;
        if (!better(logits, heap[child], id))
            break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

static void
make_heap(struct sampler *s, const float *logits)
{
    for (size_t i = 0; i < s->vocab; i++)
        s->heap[i] = (uint32_t)i;
    for (size_t i = s->vocab / 2; i-- > 0;)
        sink(s->heap, s->vocab, i, logits);
}

/* The best of the first n goes behind them: after k calls the best k are, in order, the
 * last k of the heap from its end backwards. */
static uint32_t
pop(struct sampler *s, size_t n, const float *logits)
{
    uint32_t id = s->heap[0];
    s->heap[0] = s->heap[n - 1];
    s->heap[n - 1] = id;
    sink(s->heap, n - 1, 0, logits);
    return id;
}

const uint32_t *
sampler_best(struct sampler *s, const float *logits, size_t k)
{
    make_heap(s, logits);
    for (size_t i = 0; i < k; i++)
        pop(s, s->vocab - i, logits);
    uint32_t *last = s->heap + s->vocab - k;
    for (size_t i = 0; i < k / 2; i++) {
        uint32_t id = last[i];
        last[i] = last[k - 1 - i];
        last[k - 1 - i] = id;
    }
    return last;
}

/* ---- a draw --------------------------------------------------------------------------------- */

/* The logits with what came before punished. */
static void
penalize(struct sampler *s, const float *logits, const uint32_t *before, size_t n)
{
    memcpy(s->logits, logits, s->vocab * sizeof *logits);
    if (s->o.penalty == 1)
        return;
    for (size_t i = 0; i < n; i++) {
        double l = (double)logits[before[i]];
        s->logits[before[i]] = (float)(l < 0 ? l * s->o.penalty : l / s->o.penalty);
    }
}

/* Uniform in [0, 1). */
static double
uniform(const struct sampler *s, uint64_t prompt, uint32_t token)
{
    const uint32_t key[2] = { s->o.seed, token };
    const uint32_t counter[4] = { (uint32_t)prompt, (uint32_t)(prompt >> 32), 0,
                                  PHILOX_SAMPLE };
    uint32_t word[4];
    philox4x32(word, counter, key);
    return ((double)(word[0] >> 5) * 0x1p26 + (double)(word[1] >> 6)) * 0x1p-53;
}

/* Which of n weights the point u of 0 .. 1 falls on. */
static size_t
land(const double *weight, size_t n, double sum, double u)
{
    double at = u * sum, passed = 0;
    size_t last = 0;
    for (size_t i = 0; i < n; i++) {
        if (weight[i] == 0)
            continue;
        last = i;
        passed += weight[i];
        if (passed > at)
            break;
    }
    return last; // rounding may leave nothing to land on behind the last one
}

/* Of all tokens, in the order of ids. */
static double
weigh_all(struct sampler *s, double most)
{
    double sum = 0;
    maths_shares(s->weight, s->logits, s->vocab, most, s->o.temperature);
    for (size_t i = 0; i < s->vocab; i++)
        sum += s->weight[i];
    return sum;
}

static uint32_t
draw_all(struct sampler *s, double most, double u)
{
    double sum = weigh_all(s, most);
    return (uint32_t)land(s->weight, s->vocab, sum, u);
}

/* Of the best ones, best first. */
static uint32_t
draw_best(struct sampler *s, double most, double u)
{
    size_t k = s->o.top_k && s->o.top_k < s->vocab ? s->o.top_k : s->vocab, n = 0;
    bool counted = k < s->vocab; // else the sum of all is needed before the best are
    double sum = 0, limit, kept = 0;
    if (!counted)
        sum = weigh_all(s, most);
    make_heap(s, s->logits);
    for (size_t i = 0; i < k && counted; i++) {
        uint32_t id = pop(s, s->vocab - i, s->logits);
        s->weight[i] = share(((double)s->logits[id] - most) / s->o.temperature);
        sum += s->weight[i];
    }
    limit = s->o.top_p * sum;
    while (n < k && (n == 0 || s->o.top_p >= 1 || kept < limit)) {
        if (!counted) {
            uint32_t id = pop(s, s->vocab - n, s->logits);
            s->weight[n] = share(((double)s->logits[id] - most) / s->o.temperature);
        }
        kept += s->weight[n++];
    }
    return s->heap[s->vocab - 1 - land(s->weight, n, kept, u)];
}

uint32_t
sampler_next(struct sampler *s, const float *logits, const uint32_t *before, size_t n,
             uint64_t prompt, uint32_t token)
{
    if (s->o.temperature <= 0 && s->o.penalty == 1)
        return logits_best(logits, s->vocab);
    penalize(s, logits, before, n);
    uint32_t best = logits_best(s->logits, s->vocab);
    if (s->o.temperature <= 0)
        return best;
    double u = uniform(s, prompt, token), most = (double)s->logits[best];
    bool all = s->o.top_p >= 1 && (!s->o.top_k || s->o.top_k >= s->vocab);
    return all ? draw_all(s, most, u) : draw_best(s, most, u);
}
