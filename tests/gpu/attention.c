/* SPDX-License-Identifier: MIT */
/* attention: the GPU's attention against the CPU's, for many sizes, documents and
 * pasts; it must be deterministic. --time: speed, as TSV.
 *
 * The limits are a few times the rounding error of the type: weights and outputs have 9
 * bits in bf16, and gradients also depend on the rounded outputs of the forward
 * pass. */
#include "tests/gpu/pair.h"

static size_t
min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- cases ----------------------------------------------------------------------- */

enum { EACH = 1024 };

// one document; odd lengths; one token each; EACH tokens each, which the device knows
enum documents { ONE, ODD, SINGLE, EVEN };

static const char *const documents_name[] = { "one", "odd", "single", "even" };

static int32_t *
make_first(size_t tokens, enum documents kind)
{
    static const size_t lengths[] = { 37, 1, 129, 5, 64, 1, 1, 300, 17, 211 };
    int32_t *first = malloc(tokens * sizeof *first + 1);
    size_t at = 0, n = 0;
    NEED(first);
    while (at < tokens) {
        size_t length = kind == ONE      ? tokens
                        : kind == SINGLE ? 1
                        : kind == EVEN   ? EACH
                                         : lengths[n++ % 10];
        size_t end = min_size(tokens, at + length);
        for (size_t t = at; t < end; t++)
            first[t] = (int32_t)at;
        at = end;
    }
    return first;
}

/* The relative error over all elements. min_norm: gradients of scores that are nearly 0
 * are differences of larger values. */
static void
check_near(const char *what, const char *name, const float *found, const float *want,
           size_t n, double min_norm, double limit)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)found[i] - (double)want[i];
        off += isnan(d) ? INFINITY : d * d;
        size += (double)want[i] * (double)want[i];
    }
    off = sqrt(off) / fmax(fmax(sqrt(size), min_norm), 1e-30);
    CHECK_SAY(off <= limit, "%s: %s off by %g, at most %g is right", name, what, off,
              limit);
}

/* Each by itself: a key that one row sees and should not is lost in the error over all. */
static void
check_each(const char *what, const char *name, const float *found, const float *want,
           size_t n, double limit)
{
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)found[i] - (double)want[i]);
        CHECK_SAY(off <= limit * (1 + fabs((double)want[i]) / 16),
                  "%s: %s %zu is %g, want %g", name, what, i, (double)found[i],
                  (double)want[i]);
    }
}

static double
size_of(const float *x, size_t n)
{
    double size = 0;
    for (size_t i = 0; i < n; i++)
        size += (double)x[i] * (double)x[i];
    return sqrt(size);
}

static void *
take_bytes(const void *p, size_t bytes)
{
    void *x = malloc(bytes + 1);
    NEED(x);
    CHECK(kernels_download(gpu, x, p, bytes) == 0);
    return x;
}

static void
check_same(const char *what, const char *name, const void *a, const void *b,
           size_t bytes)
{
    void *x = take_bytes(a, bytes), *y = take_bytes(b, bytes);
    CHECK_SAY(memcmp(x, y, bytes) == 0, "%s: %s", name, what);
    free(x);
    free(y);
}

/* Queries, keys, values, dout, on the CPU and on the GPU. */
struct inputs {
    float *host[4];
    void *device[4];
    size_t n[4];
};

/* q_size: of queries; scores have a third of that as standard deviation. */
static struct inputs
make_inputs(const struct heads *h, size_t keys, enum dtype act, float q_size)
{
    struct inputs in;
    for (int i = 0; i < 4; i++) {
        in.n[i] =
            i == 0 || i == 3 ? h->tokens * h->query * h->dim : keys * h->kv * h->dim;
        in.host[i] = pair_random(in.n[i], i == 0 ? q_size : 1, act, (uint32_t)i + 1);
        in.device[i] = pair_put(in.host[i], act, in.n[i]);
    }
    return in;
}

static void
free_inputs(struct inputs *in)
{
    for (int i = 0; i < 4; i++) {
        free(in->host[i]);
        kernels_free(gpu, in->device[i]);
    }
}

struct limits {
    double out, lse, grad;
};

static struct limits
limits_of(enum dtype act)
{
    return act == DT_F32 ? (struct limits){ 1e-5, 1e-5, 1e-5 }
                         : (struct limits){ 5e-3, 1e-4, 1e-2 };
}

enum { OUT, LSE, DQ, DKEY, DVALUE, RESULTS };

static const char *const result_name[] = { "out", "lse", "dq", "dkey", "dvalue" };

/* Forward and backward. */
static void
check_case(enum dtype act, size_t tokens, size_t query, size_t kv, size_t dim,
           enum documents kind)
{
    char name[128];
    int32_t *first = make_first(tokens, kind);
    struct heads h = { tokens, 0, query, kv, dim, first, kind == EVEN ? EACH : 0 };
    struct inputs in = make_inputs(&h, tokens, act, 2);
    struct limits limit = limits_of(act);
    const size_t n[RESULTS] = { in.n[0], query * tokens, in.n[0], in.n[1], in.n[1] };
    size_t bytes = dtype_bits(act) / 8;
    float *want[RESULTS];
    void *got[2][RESULTS];
    snprintf(name, sizeof name, "%s, %zu tokens, %zu/%zu x %zu, %s",
             act == DT_F32 ? "f32" : "bf16", tokens, query, kv, dim,
             documents_name[kind]);
    pair_begins(name);

    for (int i = 0; i < RESULTS; i++) {
        want[i] = calloc(n[i] + 1, sizeof **want);
        NEED(want[i]);
    }
    pair_attention(cpu, want[OUT], want[LSE], in.host[0], in.host[1], in.host[2], &h);
    pair_attention_bwd(cpu, want[DQ], want[DKEY], want[DVALUE], in.host[3], want[OUT],
                       want[LSE], in.host[0], in.host[1], in.host[2], NULL, &h, 0);

    h.first = pair_bytes(first, tokens * sizeof *first);
    void *work = pair_poisoned(n[LSE] * sizeof(float));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < RESULTS; i++)
            got[round][i] = pair_poisoned(n[i] * (i == LSE ? 4 : bytes));
        pair_attention(gpu, got[round][OUT], got[round][LSE], in.device[0],
                       in.device[1], in.device[2], &h);
        pair_attention_bwd(gpu, got[round][DQ], got[round][DKEY], got[round][DVALUE],
                           in.device[3], got[round][OUT], got[round][LSE], in.device[0],
                           in.device[1], in.device[2], work, &h, 0);
    }
    double small =
        (kind == SINGLE || tokens == 1 ? 1 : 0.1) * size_of(want[DVALUE], n[DVALUE]);
    for (int i = 0; i < RESULTS; i++) {
        float *x = pair_get(got[0][i], i == LSE ? DT_F32 : act, n[i]);
        check_near(result_name[i], name, x, want[i], n[i],
                   i == DQ || i == DKEY ? small : 0,
                   i == OUT   ? limit.out
                   : i == LSE ? limit.lse
                              : limit.grad);
        char twice[64];
        snprintf(twice, sizeof twice, "%s differs the second time", result_name[i]);
        check_same(twice, name, got[0][i], got[1][i], n[i] * (i == LSE ? 4 : bytes));
        free(x);
        free(want[i]);
        kernels_free(gpu, got[0][i]);
        kernels_free(gpu, got[1][i]);
    }
    kernels_free(gpu, work);
    kernels_free(gpu, (void *)(uintptr_t)h.first);
    free_inputs(&in);
    free(first);
}

/* Gradients in columns of one matrix have the bits of separate ones, and other columns
 * are unchanged. length: of each document, or 0. */
static void
check_columns(enum dtype act, size_t tokens, size_t query, size_t kv, size_t dim,
              size_t length)
{
    enum { GAP = 8 };
    char name[128];
    size_t bytes = dtype_bits(act) / 8, q = query * dim, k = kv * dim;
    size_t row = q + 2 * k + GAP;
    int32_t *first = make_first(tokens, ONE);
    snprintf(name, sizeof name, "columns, %s, %zu tokens, %zu/%zu x %zu, length %zu",
             act == DT_F32 ? "f32" : "bf16", tokens, query, kv, dim, length);
    pair_begins(name);
    for (size_t t = 0; t < tokens && length; t++)
        first[t] = (int32_t)(t - t % length);
    struct heads h = { tokens, 0, query, kv, dim, first, length };
    struct inputs in = make_inputs(&h, tokens, act, 2);
    h.first = pair_bytes(first, tokens * sizeof *first);
    float *lse = pair_poisoned(query * tokens * 4),
          *work = pair_poisoned(query * tokens * 4);
    void *out = pair_poisoned(tokens * q * bytes);
    char *alone = pair_poisoned(tokens * (q + 2 * k) * bytes);
    char *all = pair_poisoned(tokens * row * bytes);
    const size_t width[3] = { q, k, k };
    char *to = alone, *column = all;
    pair_attention(gpu, out, lse, in.device[0], in.device[1], in.device[2], &h);
    pair_attention_bwd(gpu, to, to + tokens * q * bytes, to + tokens * (q + k) * bytes,
                       in.device[3], out, lse, in.device[0], in.device[1], in.device[2],
                       work, &h, 0);
    pair_attention_bwd(gpu, column, column + q * bytes, column + (q + k) * bytes,
                       in.device[3], out, lse, in.device[0], in.device[1], in.device[2],
                       work, &h, row);
    float *found = pair_get(all, act, tokens * row);
    float *want = pair_get(alone, act, tokens * (q + 2 * k));
    const float *from = want;
    size_t at = 0, wrong = 0;
    for (int i = 0; i < 3; from += tokens * width[i], at += width[i], i++)
        for (size_t t = 0; t < tokens; t++)
            wrong += memcmp(found + t * row + at, from + t * width[i],
                            width[i] * sizeof *from) != 0;
    for (size_t t = 0; t < tokens; t++)
        for (size_t i = at; i < row; i++)
            wrong += isnan(found[t * row + i]) ? 0 : 1;
    CHECK_SAY(wrong == 0, "%s: %zu rows differ", name, wrong);
    free(found);
    free(want);
    free(first);
    kernels_free(gpu, (void *)(uintptr_t)h.first);
    kernels_free(gpu, lse);
    kernels_free(gpu, work);
    kernels_free(gpu, out);
    kernels_free(gpu, alone);
    kernels_free(gpu, all);
    free_inputs(&in);
}

/* Attention's gradients and that of the norm of queries: the bits of both operations, and
 * other columns are unchanged. */
static void
check_rope(enum dtype act, size_t tokens, size_t query, size_t kv, size_t dim,
           enum documents kind, size_t gap)
{
    char name[128];
    size_t bytes = dtype_bits(act) / 8, q = query * dim, k = kv * dim;
    size_t row = q + 2 * k + gap;
    int32_t *first = make_first(tokens, kind), *position = malloc(tokens * 4);
    NEED(position);
    snprintf(name, sizeof name, "rope, %s, %zu tokens, %zu/%zu x %zu, %s, %zu columns",
             act == DT_F32 ? "f32" : "bf16", tokens, query, kv, dim,
             documents_name[kind], row);
    pair_begins(name);
    for (size_t t = 0; t < tokens; t++)
        position[t] = (int32_t)t - first[t];
    struct heads h = { tokens, 0, query, kv, dim, first, kind == EVEN ? EACH : 0 };
    struct inputs in = make_inputs(&h, tokens, act, 2);
    float *angles = malloc(tokens * dim * sizeof *angles);
    float *gain = pair_random(dim, 1, DT_F32, 7);
    NEED(angles);
    for (size_t i = 0; i < tokens * dim; i++) {
        size_t token = i / dim, pair = i % (dim / 2);
        float angle = (float)token * powf(1e4F, -(float)(2 * pair) / (float)dim);
        angles[i] = i % dim < dim / 2 ? cosf(angle) : sinf(angle);
    }
    h.first = pair_bytes(first, tokens * sizeof *first);
    struct rope r = { pair_bytes(angles, tokens * dim * sizeof *angles),
                      pair_bytes(position, tokens * 4), query, dim, 1e-6F };
    float *gpu_gain = pair_bytes(gain, dim * sizeof *gain);
    float *lse = pair_poisoned(query * tokens * 4),
          *work = pair_poisoned(query * tokens * 4);
    float *rstd = pair_poisoned(query * tokens * 4), *dgain[2];
    void *out = pair_poisoned(tokens * q * bytes),
         *rotated = pair_poisoned(tokens * q * bytes);
    char *all[2];
    struct matrix x = kernels_act(gpu, in.device[0], tokens, q),
                  y = kernels_act(gpu, rotated, tokens, q),
                  dout = kernels_act(gpu, in.device[3], tokens, q),
                  o = kernels_act(gpu, out, tokens, q),
                  key = kernels_act(gpu, in.device[1], tokens, k),
                  value = kernels_act(gpu, in.device[2], tokens, k);
    op_qk_norm_rope(gpu, &y, rstd, &x, gpu_gain, &r);
    op_attention(gpu, &o, lse, &y, &key, &value, &h);
    for (int i = 0; i < 2; i++) {
        float zero[256] = { 0 };
        NEED(dim <= 256);
        all[i] = pair_poisoned(tokens * row * bytes);
        dgain[i] = pair_bytes(zero, dim * sizeof *zero);
        struct matrix m = kernels_act(gpu, all[i], tokens, row),
                      dq = matrix_cols(&m, 0, q), dk = matrix_cols(&m, q, k),
                      dv = matrix_cols(&m, q + k, k);
        struct head_norm n = { dgain[i], &x, rstd, gpu_gain, &r };
        if (i == 0) {
            op_attention_bwd(gpu, &dq, &dk, &dv, &dout, &o, lse, &y, &key, &value, work,
                             &h);
            op_qk_norm_rope_bwd(gpu, &dq, dgain[i], &x, rstd, gpu_gain, &r);
        } else {
            op_attention_rope_bwd(gpu, &dq, &dk, &dv, &dout, &o, lse, &y, &key, &value,
                                  work, &h, &n);
        }
    }
    check_same("gradients differ from those of two operations", name, all[0], all[1],
               tokens * row * bytes);
    check_same("dgain differs from that of two operations", name, dgain[0], dgain[1],
               dim * sizeof *gain);
    void *const host[] = { first, position, angles, gain };
    void *const device[] = { (void *)(uintptr_t)h.first,
                             (void *)(uintptr_t)r.table,
                             (void *)(uintptr_t)r.position,
                             gpu_gain,
                             lse,
                             work,
                             rstd,
                             out,
                             rotated };
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        kernels_free(gpu, device[i]);
    for (int i = 0; i < 2; i++) {
        kernels_free(gpu, all[i]);
        kernels_free(gpu, dgain[i]);
    }
    free_inputs(&in);
}

/* In pieces: some tokens at a time, with the keys of earlier ones as past. */
static void
check_past(enum dtype act, size_t tokens, size_t query, size_t kv, size_t dim,
           size_t piece, enum documents kind)
{
    char name[128];
    int32_t *first = make_first(tokens, kind);
    struct heads all = { tokens, 0, query, kv, dim, first, 0 };
    struct inputs in = make_inputs(&all, tokens, act, 2);
    struct limits limit = limits_of(act);
    size_t row = query * dim, bytes = dtype_bits(act) / 8;
    float *want = malloc(in.n[0] * sizeof *want), *part = malloc(query * tokens * 4);
    float *want_lse = malloc(query * tokens * 4);
    NEED(want && part && want_lse);
    snprintf(name, sizeof name, "%s, %zu tokens in pieces of %zu, %zu/%zu x %zu, %s",
             act == DT_F32 ? "f32" : "bf16", tokens, piece, query, kv, dim,
             documents_name[kind]);
    pair_begins(name);
    pair_attention(cpu, want, want_lse, in.host[0], in.host[1], in.host[2], &all);

    int32_t *there = pair_bytes(first, tokens * sizeof *first);
    char *out = pair_poisoned(in.n[0] * bytes);
    float *lse = pair_poisoned(query * tokens * 4);
    for (size_t t = 0; t < tokens; t += piece) {
        size_t n = min_size(piece, tokens - t);
        struct heads h = { n, t, query, kv, dim, there + t, 0 };
        pair_attention(gpu, out + t * row * bytes, lse,
                       (char *)in.device[0] + t * row * bytes, in.device[1],
                       in.device[2], &h);
        if (t + n == tokens) { // lse of the last piece
            for (size_t head = 0; head < query; head++)
                memcpy(part + head * n, want_lse + head * tokens + t, n * sizeof *part);
            float *x = pair_get(lse, DT_F32, query * n);
            check_near("lse", name, x, part, query * n, 0, limit.lse);
            free(x);
        }
    }
    float *x = pair_get(out, act, in.n[0]);
    check_near("out", name, x, want, in.n[0], 0, limit.out);
    free(x);
    free(want);
    free(part);
    free(want_lse);
    free(first);
    kernels_free(gpu, there);
    kernels_free(gpu, out);
    kernels_free(gpu, lse);
    free_inputs(&in);
}

/* From a multiple of some tokens on the others are what they are with those before.  Large queries, so
 * that maxima are raised behind the first keys, which the rows of a warp do together. */
static void
check_cut(enum dtype act, size_t tokens, size_t query, size_t kv, size_t dim)
{
    char name[128];
    int32_t *first = make_first(tokens, ONE), *there;
    struct heads all = { tokens, 0, query, kv, dim, NULL, 0 };
    struct inputs in = make_inputs(&all, tokens, act, 20);
    size_t row = query * dim * dtype_bits(act) / 8, step = gpu->is.cut;
    char *out = pair_poisoned(tokens * row), *part = pair_poisoned(tokens * row);
    float *lse = pair_poisoned(query * tokens * 4);
    all.first = there = pair_bytes(first, tokens * sizeof *first);
    pair_attention(gpu, out, lse, in.device[0], in.device[1], in.device[2], &all);
    for (size_t t = step; tokens - t > gpu->is.alike;
         t += pair_tiny ? 2 * step : step) {
        size_t n = tokens - t;
        struct heads h = { n, t, query, kv, dim, there, 0 };
        snprintf(name, sizeof name, "%s, %zu tokens from %zu on, %zu/%zu x %zu",
                 act == DT_F32 ? "f32" : "bf16", tokens, t, query, kv, dim);
        pair_begins(name);
        pair_attention(gpu, part, lse, (char *)in.device[0] + t * row, in.device[1],
                       in.device[2], &h);
        check_same("others than with all", name, out + t * row, part, n * row);
    }
    free(first);
    kernels_free(gpu, there);
    kernels_free(gpu, out);
    kernels_free(gpu, part);
    kernels_free(gpu, lse);
    free_inputs(&in);
}

/* Some tokens with a long past. */
static void
check_long(enum dtype act, size_t past, size_t tokens, int32_t from, float q_size)
{
    enum { QUERY = 32, KV = 8, DIM = 128 };
    char name[128];
    int32_t first[DIM];
    struct heads h = { tokens, past, QUERY, KV, DIM, first, 0 };
    struct limits limit = limits_of(act);
    if (q_size > 100 && act == DT_F32)
        limit.out *= 3; // such scores are off by 1e-5 themselves
    NEED(tokens <= DIM);
    for (size_t t = 0; t < tokens; t++)
        first[t] = from;
    struct inputs in = make_inputs(&h, past + tokens, act, q_size);
    float *want = malloc(in.n[0] * sizeof *want + 1);
    float *lse = malloc(QUERY * tokens * 4 + 1);
    NEED(want && lse);
    snprintf(name, sizeof name, "%s, %zu tokens behind %zu, from %d, queries of %g",
             act == DT_F32 ? "f32" : "bf16", tokens, past, (int)from, (double)q_size);
    pair_begins(name);
    pair_attention(cpu, want, lse, in.host[0], in.host[1], in.host[2], &h);
    h.first = pair_bytes(first, tokens * sizeof *first);
    void *out[2], *out_lse[2];
    for (int i = 0; i < 2; i++) {
        out[i] = pair_poisoned(in.n[0] * dtype_bits(act) / 8);
        out_lse[i] = pair_poisoned(QUERY * tokens * 4);
        pair_attention(gpu, out[i], out_lse[i], in.device[0], in.device[1],
                       in.device[2], &h);
    }
    float *x = pair_get(out[0], act, in.n[0]);
    float *y = pair_get(out_lse[0], DT_F32, QUERY * tokens);
    check_near("out", name, x, want, in.n[0], 0, limit.out);
    check_near("lse", name, y, lse, QUERY * tokens, 0, limit.lse);
    check_each("lse", name, y, lse, QUERY * tokens, 1e-4);
    check_same("out differs the second time", name, out[0], out[1],
               in.n[0] * dtype_bits(act) / 8);
    free(x);
    free(y);
    free(want);
    free(lse);
    for (int i = 0; i < 2; i++) {
        kernels_free(gpu, out[i]);
        kernels_free(gpu, out_lse[i]);
    }
    kernels_free(gpu, (void *)(uintptr_t)h.first);
    free_inputs(&in);
}

/* heads: query, kv, dim. */
static bool
takes(const size_t heads[3])
{
    return !pair_few || heads[0] * heads[2] <= 512;
}

static void
check_all(enum dtype act)
{
    static const size_t tokens[] = { 1, 17, 64, 127, 128, 129, 300, 1000 };
    static const size_t heads[][3] = {
        { 32, 8, 128 }, { 16, 8, 128 }, { 4, 2, 16 },  { 3, 1, 64 },  { 8, 8, 128 },
        { 16, 1, 64 },  { 3, 1, 33 },   { 2, 1, 256 }, { 8, 1, 128 },
    };
    static const size_t pieces[] = { 1, 7, 16, 100 };
    pair_open(act);
    for (size_t i = pair_tiny && act == DT_F32 ? 2 : 0;
         i < sizeof heads / sizeof *heads; i++) {
        if (!takes(heads[i]))
            continue;
        for (size_t t = pair_small; t < sizeof tokens / sizeof *tokens;
             t += pair_small ? 4 : 1)
            for (int kind = pair_tiny ? ODD : ONE; kind <= (pair_tiny ? ODD : SINGLE);
                 kind++)
                check_case(act, tokens[t], heads[i][0], heads[i][1], heads[i][2],
                           (enum documents)kind);
    }
    // Several blocks of keys, which add to dQ in order; the last is not full.
    check_case(act, 330, 4, 2, 128, ONE);
    check_case(act, 700, 2, 1, 128, ODD);
    check_columns(act, 300, 4, 2, 128, 0);
    check_columns(act, 131, 6, 2, 64, 0);
    check_columns(act, 77, 3, 1, 40, 0);
    if (!pair_few)
        check_columns(act, 512, 4, 2, 128, 256); // cuDNN may be used
    check_rope(act, 330, 4, 2, 128, ODD, 8);
    check_rope(act, 131, 2, 1, 128, ONE, 1); // no vectors of 16 bytes
    check_rope(act, 70, 3, 1, 64, ONE, 0);
    if (!pair_small) {
        // More tiles than run at once: they are sorted.
        check_case(act, 2500, 4, 2, 128, ONE);
        check_case(act, 9000, 8, 2, 64, ODD);
        check_case(act, 8192, 8, 8, 128, EVEN); // more blocks of keys to a chunk
    }
    for (size_t i = pair_tiny && act == DT_F32 ? 2 : 0;
         i < sizeof heads / sizeof *heads; i++) {
        if (!takes(heads[i]))
            continue;
        for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p += pair_small ? 3 : 1)
            for (int kind = pair_small ? ODD : ONE; kind <= ODD; kind++)
                check_past(act, pair_few && pieces[p] == 1 ? 20 : 300, heads[i][0],
                           heads[i][1], heads[i][2], pieces[p], (enum documents)kind);
    }
    for (size_t i = pair_tiny && act == DT_F32 ? 2 : 0;
         i < sizeof heads / sizeof *heads; i++)
        if (takes(heads[i]))
            check_cut(act, pair_small ? 230 : 1000, heads[i][0], heads[i][1],
                      heads[i][2]);
    // The last key is the last, the first or in the middle of a tile; large scores.
    check_long(act, 254, 20, 0, 2);
    check_long(act, 126, 17, 0, 2);
    check_long(act, 112, 17, 0, 2);
    check_long(act, 254, 33, 0, 200);
    check_long(act, 111, 33, 111, 200);
    check_long(act, 500, 5, 490, 2);
    check_long(act, 400, 1, 0, 200);
    if (!pair_small) {
        check_long(act, 5000, 1, 0, 2);
        check_long(act, 4999, 16, 0, 2);
        check_long(act, 3000, 100, 0, 2);
        check_long(act, 3000, 100, 0, 200);
        check_long(act, 3000, 5, 2990, 2);
        check_long(act, 40960, 1, 0, 2);
    }
    pair_close();
}

/* ---- time ------------------------------------------------------------------------ */

enum { QUERY = 32, KV = 8, DIM = 128, TIMES = 20 };

/* Time when all previous work is done. */
static double
wait_for(const void *p)
{
    char x;
    NEED(kernels_download(gpu, &x, p, 1) == 0);
    return os_seconds();
}

/* n random bf16, repeating. */
static void *
fill(size_t n, uint32_t seed)
{
    enum { SOME = 1 << 20 };
    char *p = kernels_alloc(gpu, MEMORY_WORK, n * 2);
    float *x = pair_random(SOME, 1, DT_BF16, seed);
    uint16_t *half = malloc(SOME * 2);
    NEED(p && half);
    for (size_t i = 0; i < SOME; i++)
        half[i] = num_to_bf16(x[i]);
    for (size_t i = 0; i < n; i += SOME)
        kernels_upload(gpu, p + 2 * i, half, 2 * min_size(SOME, n - i));
    free(x);
    free(half);
    return p;
}

static void
time_training(size_t documents, size_t length, bool even)
{
    size_t tokens = documents * length, n = tokens * QUERY * DIM,
           n_kv = tokens * KV * DIM;
    int32_t *first = malloc(tokens * sizeof *first);
    NEED(first);
    for (size_t t = 0; t < tokens; t++)
        first[t] = (int32_t)(t - t % length);
    struct heads h = { tokens, 0, QUERY, KV, DIM, NULL, even ? length : 0 };
    h.first = pair_bytes(first, tokens * sizeof *first);
    void *q = fill(n, 1), *key = fill(n_kv, 2), *value = fill(n_kv, 3),
         *dout = fill(n, 4);
    void *out = fill(n, 5), *dq = fill(n, 6), *dkey = fill(n_kv, 7);
    void *dvalue = fill(n_kv, 8);
    float *lse = kernels_alloc(gpu, MEMORY_WORK, tokens * QUERY * 4);
    float *work = kernels_alloc(gpu, MEMORY_WORK, tokens * QUERY * 4);
    double scores = 0.5 * (double)length * (double)(length + 1) * (double)documents;
    double flops = 4 * scores * QUERY * DIM;
    for (int bwd = 0; bwd < 2; bwd++) {
        double start = 0;
        for (int i = -3; i < TIMES; i++) {
            if (i == 0)
                start = wait_for(out);
            if (bwd)
                pair_attention_bwd(gpu, dq, dkey, dvalue, dout, out, lse, q, key, value,
                                   work, &h, 0);
            else
                pair_attention(gpu, out, lse, q, key, value, &h);
        }
        double seconds = (wait_for(out) - start) / TIMES;
        printf("%s %zux%zu%s\t%.1f\t%.1f TFLOP/s\n", bwd ? "back" : "forward",
               documents, length, even ? ", even" : "", 1e6 * seconds,
               (bwd ? 2.5 : 1) * flops / seconds * 1e-12);
        fflush(stdout);
    }
    void *const all[] = { q, key, value, dout, out, dq, dkey, dvalue, lse, work };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kernels_free(gpu, all[i]);
    kernels_free(gpu, (void *)(uintptr_t)h.first);
    free(first);
}

/* Caches of many layers, so that none is in L2. */
static void
time_decoding(size_t past)
{
    size_t n = (past + 1) * KV * DIM, layers = ((size_t)256 << 20) / n / 2 + 1;
    size_t times = layers * (1 + 200 / layers);
    const int32_t first = 0;
    struct heads h = { 1, past, QUERY, KV, DIM, pair_bytes(&first, sizeof first), 0 };
    char *key = fill(n * layers, 1), *value = fill(n * layers, 2);
    void *q = fill(QUERY * DIM, 3), *out = fill(QUERY * DIM, 4);
    float *lse = kernels_alloc(gpu, MEMORY_WORK, QUERY * 4);
    double start = 0;
    for (size_t i = 0; i < times + layers; i++) {
        if (i == layers)
            start = wait_for(out);
        size_t at = i % layers * n * 2;
        pair_attention(gpu, out, lse, q, key + at, value + at, &h);
    }
    double seconds = (wait_for(out) - start) / (double)times;
    printf("decode %zu\t%.1f\t%.0f GB/s\n", past, 1e6 * seconds,
           4e-9 * (double)n / seconds);
    fflush(stdout);
    void *const all[] = { key, value, q, out, lse, (void *)(uintptr_t)h.first };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kernels_free(gpu, all[i]);
}

static void
time_all(void)
{
    pair_open(DT_BF16);
    printf("case\tmicroseconds\tspeed\n");
    // Without and with the length known, with which other kernels may be used.
    for (int even = 0; even < 2; even++) {
        time_training(8, 2048, even);
        time_training(2, 2048, even);
        time_training(1, 4096, even);
        time_training(1, 8192, even);
        time_training(16, 512, even);
    }
    time_decoding(128);
    time_decoding(4096);
    time_decoding(32768);
    pair_close();
}

int
main(int argc, char **argv)
{
    pair_options(argc, argv);
    if (pair_option(argc, argv, "--time")) {
        time_all();
        return check_end();
    }
    check_all(DT_BF16);
    check_all(DT_F32);
    return check_end();
}
