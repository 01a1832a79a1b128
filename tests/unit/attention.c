/* SPDX-License-Identifier: MIT */
/* attention: of the CPU against sums in double; the same bits on every path, for any
 * threads, in whatever pieces tokens come, and wherever a document stands. */
#include "kernels/kernels.h"

#include "tests/unit/check.h"

#include <math.h>

enum { MOST = 1 << 19 };

static struct err err;

static float
value(uint64_t i)
{
    return (float)((double)check_random(i) * 0x1p-31 - 1);
}

struct data {
    struct heads h;
    size_t q, kv; // elements
    int32_t first[2048];
    float in[4][MOST]; // queries, keys, values, gradients of what comes out
    float out[MOST], lse[MOST], dq[MOST], dk[MOST], dv[MOST];
};

static struct data want, got;

/* Documents of `length` tokens. */
static void
make(struct data *d, size_t tokens, size_t query, size_t kv, size_t dim, size_t length)
{
    d->h = (struct heads){ tokens, 0, query, kv, dim, d->first, 0 };
    d->h.length = tokens % length ? 0 : length;
    d->q = tokens * query * dim;
    d->kv = tokens * kv * dim;
    NEED(tokens <= 2048 && d->q <= MOST);
    for (size_t t = 0; t < tokens; t++)
        d->first[t] = (int32_t)(t - t % length);
    for (uint64_t n = 0; n < 4; n++)
        for (size_t i = 0; i < (n == 0 || n == 3 ? d->q : d->kv); i++)
            d->in[n][i] = (n == 0 ? 3 : 1) * value(i + n * 1000003);
}

/* (tokens, heads * dim) */
static struct matrix
rows_of(const float *p, size_t tokens, size_t cols)
{
    return matrix_of(DT_F32, p, tokens, cols);
}

static void
forward(struct kernels *k, float *out, float *lse, const float *q, const float *key,
        const float *value_in, const struct heads *h)
{
    size_t keys = h->past + h->tokens, wide = h->query * h->dim, kv = h->kv * h->dim;
    const struct matrix m[] = { rows_of(out, h->tokens, wide),
                                rows_of(q, h->tokens, wide), rows_of(key, keys, kv),
                                rows_of(value_in, keys, kv) };
    op_attention(k, &m[0], lse, &m[1], &m[2], &m[3], h);
}

/* Gradients of d at dq, dk and dv, of that stride, or dense with 0. */
static void
backward(struct kernels *k, struct data *d, float *dq, float *dk, float *dv,
         size_t stride)
{
    const struct heads *h = &d->h;
    size_t t = h->tokens, wide = h->query * h->dim, kv = h->kv * h->dim;
    struct matrix g[] = { rows_of(dq, t, wide), rows_of(dk, t, kv),
                          rows_of(dv, t, kv) };
    const struct matrix m[] = { rows_of(d->in[3], t, wide), rows_of(d->out, t, wide),
                                rows_of(d->in[0], t, wide), rows_of(d->in[1], t, kv),
                                rows_of(d->in[2], t, kv) };
    for (int i = 0; i < 3 && stride; i++)
        g[i].stride = stride;
    op_attention_bwd(k, &g[0], &g[1], &g[2], &m[0], &m[1], d->lse, &m[2], &m[3], &m[4],
                     NULL, h);
}

static void
run_as(struct data *d, const struct cpu_kind *kind, bool bwd)
{
    struct kernels *k = kernels_cpu(kind, &err);
    NEED(k);
    forward(k, d->out, d->lse, d->in[0], d->in[1], d->in[2], &d->h);
    if (bwd)
        backward(k, d, d->dq, d->dk, d->dv, 0);
    kernels_close(k);
}

static void
run(struct data *d, enum isa isa, unsigned threads, bool bwd)
{
    run_as(d, &(struct cpu_kind){ DT_F32, isa, threads }, bwd);
}

/* Gradients that are columns of one matrix have the bits that they have by themselves. */
static void
check_columns(enum isa isa, unsigned threads)
{
    enum { GAP = 3 };
    static float all[2 * MOST];
    const struct heads *h = &want.h;
    size_t q = h->query * h->dim, kv = h->kv * h->dim, row = q + 2 * kv + GAP;
    struct kernels *k = kernels_cpu(&(struct cpu_kind){ DT_F32, isa, threads }, &err);
    NEED(k && h->tokens * row <= 2 * MOST);
    memset(all, 0xff, sizeof all);
    run(&want, isa, threads, true);
    backward(k, &want, all, all + q, all + q + kv, row);
    for (size_t t = 0; t < h->tokens; t++) {
        const float *at = all + t * row;
        CHECK(memcmp(at, want.dq + t * q, q * sizeof *at) == 0);
        CHECK(memcmp(at + q, want.dk + t * kv, kv * sizeof *at) == 0);
        CHECK(memcmp(at + q + kv, want.dv + t * kv, kv * sizeof *at) == 0);
        for (size_t i = q + 2 * kv; i < row; i++)
            CHECK(isnan(at[i]));
    }
    kernels_close(k);
}

/* ---- against double -------------------------------------------------------------------- */

static double
dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void
check_close(const float *x, const double *y, size_t n, const char *what)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        off = fmax(off, fabs((double)x[i] - y[i]));
        size = fmax(size, fabs(y[i]));
    }
    CHECK_SAY(off <= 2e-6 * size, "%s: off by %g of %g", what, off, size);
}

/* One row: the probabilities of the keys it sees. */
static double
probabilities(const struct data *d, double *p, size_t t, size_t head)
{
    size_t dim = d->h.dim, kv = head / (d->h.query / d->h.kv);
    double most = -INFINITY, sum = 0;
    for (size_t i = (size_t)d->first[t]; i <= t; i++) {
        p[i] = dot(d->in[0] + (t * d->h.query + head) * dim,
                   d->in[1] + (i * d->h.kv + kv) * dim, dim) /
               sqrt((double)dim);
        most = fmax(most, p[i]);
    }
    for (size_t i = (size_t)d->first[t]; i <= t; i++)
        sum += p[i] = exp(p[i] - most);
    for (size_t i = (size_t)d->first[t]; i <= t; i++)
        p[i] /= sum;
    return most + log(sum);
}

static void
check_plain(size_t tokens, size_t query, size_t kv, size_t dim, size_t length)
{
    static double out[MOST], dq[MOST], dk[MOST], dv[MOST], p[2048], lse[MOST];
    struct data *d = &want;
    make(d, tokens, query, kv, dim, length);
    run(d, isa_best(), 2, true);
    memset(dk, 0, d->kv * sizeof *dk);
    memset(dv, 0, d->kv * sizeof *dv);
    for (size_t head = 0; head < query; head++)
        for (size_t t = 0; t < tokens; t++) {
            size_t at = (t * query + head) * dim;
            const float *dout = d->in[3] + at;
            double mean = 0;
            lse[head * tokens + t] = probabilities(d, p, t, head);
            for (size_t i = (size_t)d->first[t]; i <= t; i++)
                mean += p[i] *
                        dot(dout, d->in[2] + (i * kv + head / (query / kv)) * dim, dim);
            for (size_t e = 0; e < dim; e++)
                out[at + e] = dq[at + e] = 0;
            for (size_t i = (size_t)d->first[t]; i <= t; i++) {
                size_t from = (i * kv + head / (query / kv)) * dim;
                double ds =
                    p[i] * (dot(dout, d->in[2] + from, dim) - mean) / sqrt((double)dim);
                for (size_t e = 0; e < dim; e++) {
                    out[at + e] += p[i] * (double)d->in[2][from + e];
                    dq[at + e] += ds * (double)d->in[1][from + e];
                    dk[from + e] += ds * (double)d->in[0][at + e];
                    dv[from + e] += p[i] * (double)dout[e];
                }
            }
        }
    check_close(d->out, out, d->q, "out");
    check_close(d->lse, lse, tokens * query, "lse");
    check_close(d->dq, dq, d->q, "dq");
    check_close(d->dk, dk, d->kv, "dkey");
    check_close(d->dv, dv, d->kv, "dvalue");
}

/* ---- the same bits ------------------------------------------------------------------------ */

static void
check_paths(size_t tokens, size_t query, size_t kv, size_t dim, size_t length)
{
    make(&want, tokens, query, kv, dim, length);
    run(&want, ISA_SCALAR, 1, true);
    make(&got, tokens, query, kv, dim, length);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (unsigned threads = 1; threads <= 9 && isa_have((enum isa)isa);
             threads += threads < 3 ? 1 : 3) {
            run(&got, (enum isa)isa, threads, true);
            CHECK_SAY(memcmp(got.out, want.out, want.q * 4) == 0 &&
                          memcmp(got.lse, want.lse, tokens * query * 4) == 0 &&
                          memcmp(got.dq, want.dq, want.q * 4) == 0 &&
                          memcmp(got.dk, want.dk, want.kv * 4) == 0 &&
                          memcmp(got.dv, want.dv, want.kv * 4) == 0,
                      "%zu tokens, %zu heads of %zu: %s, %u threads", tokens, query,
                      dim, isa_name((enum isa)isa), threads);
        }
}

/* Some tokens at a time, the keys of those before already there. */
static void
run_pieces(struct data *d, const struct cpu_kind *kind, size_t piece)
{
    const struct heads *all = &d->h;
    struct kernels *k = kernels_cpu(kind, &err);
    NEED(k);
    for (size_t t = 0; t < all->tokens; t += piece) {
        size_t n = all->tokens - t < piece ? all->tokens - t : piece;
        struct heads h = { n, t, all->query, all->kv, all->dim, d->first + t, 0 };
        size_t at = t * all->query * all->dim;
        forward(k, d->out + at, d->lse, d->in[0] + at, d->in[1], d->in[2], &h);
    }
    kernels_close(k);
}

/* In pieces they have the bits that they have together: on every path, in f32 and bf16.  A piece
 * of few rows is multiplied by keys and values where they lie. */
static void
check_past(size_t tokens, size_t query, size_t kv, size_t dim, size_t length)
{
    static const size_t pieces[] = { 1, 2, 7, 100, 333 };
    for (int n = 0; n < 2 * ISA_COUNT; n++) {
        struct cpu_kind kind = { n % 2 ? DT_BF16 : DT_F32, (enum isa)(n / 2), 2 };
        if (!isa_have(kind.isa))
            continue;
        make(&want, tokens, query, kv, dim, length);
        run_as(&want, &(struct cpu_kind){ kind.compute, ISA_SCALAR, 1 }, false);
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            make(&got, tokens, query, kv, dim, length);
            memset(got.out, 0xff, sizeof got.out);
            run_pieces(&got, &kind, pieces[i]);
            CHECK_SAY(memcmp(got.out, want.out, want.q * 4) == 0,
                      "%zu tokens of %zu heads in pieces of %zu: %s %s", tokens, query,
                      pieces[i], isa_name(kind.isa), n % 2 ? "bf16" : "f32");
        }
    }
}

/* A document alone and behind another. */
static void
check_place(size_t before, size_t tokens)
{
    enum { QUERY = 4, KV = 2, DIM = 16, Q = QUERY * DIM, K = KV * DIM };
    make(&want, before + tokens, QUERY, KV, DIM, before + tokens);
    for (size_t t = before; t < before + tokens; t++)
        want.first[t] = (int32_t)before;
    run(&want, isa_best(), 1, true);
    make(&got, tokens, QUERY, KV, DIM, tokens);
    for (int n = 0; n < 4; n++)
        memcpy(got.in[n], want.in[n] + before * (n == 0 || n == 3 ? Q : K),
               (n == 0 || n == 3 ? got.q : got.kv) * 4);
    run(&got, isa_best(), 1, true);
    CHECK_SAY(memcmp(got.out, want.out + before * Q, got.q * 4) == 0 &&
                  memcmp(got.dq, want.dq + before * Q, got.q * 4) == 0 &&
                  memcmp(got.dk, want.dk + before * K, got.kv * 4) == 0 &&
                  memcmp(got.dv, want.dv + before * K, got.kv * 4) == 0,
              "%zu tokens behind %zu", tokens, before);
}

int
main(void)
{
    check_plain(1, 1, 1, 4, 1);
    check_plain(5, 6, 3, 12, 5);
    check_plain(220, 2, 1, 20, 220);
    check_plain(150, 3, 1, 64, 70);
    check_plain(100, 16, 1, 33, 99);
    check_paths(37, 6, 2, 12, 20);
    check_paths(200, 2, 2, 16, 200);
    check_paths(100, 5, 1, 18, 40);
    check_paths(240, 4, 2, 16, 60); // spans of two documents, the first of one
    check_paths(301, 3, 1, 16, 43);
    check_columns(isa_best(), 3); // of the last
    make(&want, 41, 4, 2, 12, 41);
    check_columns(ISA_SCALAR, 1);
    check_past(400, 2, 1, 16, 400);
    check_past(300, 3, 1, 12, 150);
    check_past(110, 8, 1, 33, 60);
    check_past(70, 9, 1, 70, 70);
    check_past(130, 10, 2, 128, 130);
    check_place(13, 200);
    check_place(200, 97);
    CHECK_SAY(!err.kind, "%s", err.msg);
    return check_end();
}
