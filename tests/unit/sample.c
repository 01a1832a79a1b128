/* SPDX-License-Identifier: MIT */
/* sample: against the same rules said plainly, with a sorted list of all tokens. */
#include "lib/model/sample.h"

#include "tests/unit/check.h"

#include <math.h>

enum { MOST = 700 };

static struct err err;

struct plain {
    float logits[MOST];
    double weight[MOST];
    size_t order[MOST];
    size_t n; // of order
};

/* Best first, the lowest id of equal ones. */
static void
sort(struct plain *p, size_t vocab)
{
    for (size_t i = 0; i < vocab; i++) {
        size_t at = i;
        for (; at > 0 && p->logits[p->order[at - 1]] < p->logits[i]; at--)
            p->order[at] = p->order[at - 1];
        p->order[at] = i;
    }
    p->n = vocab;
}

static double
total(const struct plain *p, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += p->weight[p->order[i]];
    return sum;
}

static void
punish(struct plain *p, const struct sample_options *o, const uint32_t *before,
       size_t n, size_t vocab)
{
    for (size_t i = 0; i < vocab; i++) {
        bool there = false;
        for (size_t k = 0; k < n; k++)
            there |= before[k] == i;
        double l = (double)p->logits[i];
        if (there)
            p->logits[i] = (float)(l > 0 ? l / o->penalty : l * o->penalty);
    }
}

/* The tokens that may come, in the order in which the draw passes them. */
static void
narrow(struct plain *p, const struct sample_options *o, size_t vocab)
{
    sort(p, vocab);
    double most = (double)p->logits[p->order[0]];
    for (size_t i = 0; i < vocab; i++)
        p->weight[i] = exp(((double)p->logits[i] - most) / o->temperature);
    if (o->top_k && o->top_k < vocab)
        p->n = o->top_k;
    if (o->top_p < 1) {
        double all = total(p, p->n);
        size_t n = 1;
        while (n < p->n && total(p, n) < o->top_p * all)
            n++;
        p->n = n;
    } else if (p->n == vocab) {
        for (size_t i = 0; i < vocab; i++)
            p->order[i] = i;
    }
}

static void
check_next(struct sampler *s, const float *logits, const uint32_t *before, size_t n,
           uint64_t prompt, uint32_t token)
{
    static struct plain p;
    const struct sample_options *o = &s->o;
    uint32_t got = sampler_next(s, logits, before, n, prompt, token);
    memcpy(p.logits, logits, s->vocab * sizeof *logits);
    punish(&p, o, before, n, s->vocab);
    if (o->temperature <= 0) {
        sort(&p, s->vocab);
        CHECK_SAY(got == p.order[0], "argmax: %u, expected %zu", got, p.order[0]);
        return;
    }
    narrow(&p, o, s->vocab);
    const uint32_t key[2] = { o->seed, token };
    const uint32_t counter[4] = { (uint32_t)prompt, (uint32_t)(prompt >> 32), 0, 5 };
    uint32_t w[4];
    philox4x32(w, counter, key);
    double u = ((w[0] >> 5) * 67108864.0 + (w[1] >> 6)) / 9007199254740992.0;
    double sum = total(&p, p.n), at = 0;
    size_t i = 0;
    for (; i < p.n; i++) {
        at += p.weight[p.order[i]];
        if (fabs(at / sum - u) < 1e-12)
            return; // too near to a border to tell
        if (at / sum > u)
            break;
    }
    CHECK_SAY(i < p.n && got == p.order[i],
              "temp %g, top-k %u, top-p %g, penalty %g: token %u, expected %zu",
              o->temperature, o->top_k, o->top_p, o->penalty, got, p.order[i]);
}

/* Many logits, with equal ones among them, for a pair of settings each. */
static void
check_many(void)
{
    static const double temps[] = { 0, 0.01, 0.7, 1, 5 };
    static const double tops[] = { 0, 0.1, 0.8, 0.999, 1 };
    static const uint32_t ks[] = { 0, 1, 2, 20, 96, 97, 98, 1000 };
    static const double penalties[] = { 1, 1.3, 0.5 };
    static const size_t vocabs[] = { 1, 2, 97, MOST };
    float logits[MOST];
    uint32_t before[8];
    uint64_t r = 0;
    for (uint32_t round = 0; round < 3000; round++) {
        struct sample_options o = { .temperature = temps[round % 5],
                                    .top_p = tops[round / 5 % 5],
                                    .top_k = ks[round / 25 % 8],
                                    .penalty = penalties[round % 3],
                                    .seed = round };
        size_t vocab = vocabs[round % 4];
        struct sampler s;
        NEED(sampler_open(&s, &o, vocab, &err) == 0);
        for (size_t i = 0; i < vocab; i++) {
            double u = check_random(r++) * 0x1p-31 - 1;
            logits[i] = round % 7 ? (float)(12 * u * u * u) : (float)(int)(4 * u);
        }
        for (size_t i = 0; i < 8; i++)
            before[i] = check_random(r++) % (uint32_t)vocab;
        uint64_t prompt = round % 2 ? round : (uint64_t)round << 33;
        check_next(&s, logits, before, round % 9, prompt, round % 11);
        sampler_close(&s);
    }
}

/* A draw does not depend on what was drawn before, and all numbers come. */
static void
check_frequencies(void)
{
    static const float logits[] = { 0, 1, 2, -1, 0.5F };
    struct sample_options o = { .temperature = 1, .top_p = 1, .penalty = 1 };
    struct sampler s;
    unsigned count[5] = { 0 };
    enum { DRAWS = 200000 };
    NEED(sampler_open(&s, &o, 5, &err) == 0);
    for (uint32_t i = 0; i < DRAWS; i++) {
        uint32_t id = sampler_next(&s, logits, NULL, 0, 0, i);
        NEED(id < 5);
        count[id]++;
    }
    double sum = logits_log_sum(logits, 5);
    for (int i = 0; i < 5; i++) {
        double p = exp((double)logits[i] - sum);
        double sigma = sqrt(p * (1 - p) * DRAWS);
        CHECK_SAY(fabs(count[i] - p * DRAWS) < 5 * sigma, "token %d: %u times", i,
                  count[i]);
    }
    CHECK(sampler_next(&s, logits, NULL, 0, 3, 17) ==
          sampler_next(&s, logits, NULL, 0, 3, 17));
    sampler_close(&s);
}

/* The token that crosses p is taken, the one behind it never. */
static void
check_crossing(void)
{
    const float logits[] = { logf(0.5F), logf(0.3F), logf(0.2F) };
    struct sample_options o = { .temperature = 1, .top_p = 0.6, .penalty = 1 };
    struct sampler s;
    unsigned count[3] = { 0 };
    NEED(sampler_open(&s, &o, 3, &err) == 0);
    for (uint32_t i = 0; i < 8000; i++)
        count[sampler_next(&s, logits, NULL, 0, 0, i)]++;
    CHECK(count[2] == 0);
    CHECK_SAY(count[1] > 2700 && count[1] < 3300, "%u", count[1]); // 3/8 of them
    sampler_close(&s);
}

/* The largest wherever it stands, the first of equal ones; with NaN some index. */
static void
check_best(void)
{
    enum { MANY = 40 };
    float x[MANY];
    for (size_t n = 1; n <= MANY; n++)
        for (size_t at = 0; at < n; at++) {
            for (size_t i = 0; i < n; i++)
                x[i] = i % 2 ? -0.0F : 0;
            CHECK(logits_best(x, n) == 0);
            x[at] = x[n - 1] = 1;
            CHECK(logits_best(x, n) == at);
            x[at] = NAN;
            CHECK(logits_best(x, n) < n);
        }
}

static void
check_logits(void)
{
    float x[] = { 3, 7, -2, 7, 1 };
    const struct sample_options o = { .penalty = 1 };
    struct sampler s;
    NEED(sampler_open(&s, &o, 5, &err) == 0);
    CHECK(logits_best(x, 5) == 1);
    const uint32_t *best = sampler_best(&s, x, 5);
    static const uint32_t want[] = { 1, 3, 0, 4, 2 };
    CHECK(check_equal(best, want, sizeof want));
    best = sampler_best(&s, x, 3);
    CHECK(check_equal(best, want, 3 * sizeof *want));
    CHECK(logits_finite(x, 5));
    double sum = log(exp(3) + 2 * exp(7) + exp(-2) + exp(1));
    CHECK(fabs(logits_log_sum(x, 5) - sum) < 1e-12);
    x[2] = -1e30F; // nothing of it is left
    CHECK(isfinite(logits_log_sum(x, 5)));
    for (int i = 0; i < 5; i++) {
        static const float bad[] = { NAN, -INFINITY, INFINITY };
        float was = x[i];
        for (int k = 0; k < 3; k++) {
            x[i] = bad[k];
            CHECK(!logits_finite(x, 5));
        }
        x[i] = was;
    }
    CHECK(logits_finite(x, 5));
    sampler_close(&s);
}

int
main(void)
{
    check_many();
    check_frequencies();
    check_crossing();
    check_best();
    check_logits();
    CHECK(err.kind == ERR_NONE);
    return check_end();
}
