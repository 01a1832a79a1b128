/* SPDX-License-Identifier: MIT */
/* ops: views of matrices, sums of squares of several at once, the norm of rows that are no
 * whole chunks, errors that stop operations, what is counted and what is freed. */
#include "kernels/kernels.h"

#include "tests/unit/check.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

enum { ROWS = 6, COLS = 5 };

static struct err err;
static float x[ROWS * COLS];

static void
check_views(void)
{
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16 };
    for (int t = 0; t < 3; t++) {
        size_t size = dtype_bits(types[t]) / 8;
        struct matrix m = matrix_of(types[t], x, ROWS, COLS);
        struct matrix rows = matrix_rows(&m, 2, 3), cols = matrix_cols(&m, 1, 2);
        struct matrix both = matrix_cols(&rows, 4, 1), last = matrix_rows(&cols, 5, 1);
        CHECK(matrix_is_dense(&m) && matrix_is_dense(&rows) && !matrix_is_dense(&cols));
        CHECK(rows.rows == 3 && rows.cols == COLS && cols.rows == ROWS &&
              cols.cols == 2 && cols.stride == COLS && both.rows == 3);
        CHECK(rows.data == (char *)x + 2 * COLS * size);
        CHECK(cols.data == (char *)x + size);
        CHECK(both.data == (char *)x + (2 * COLS + 4) * size);
        CHECK(last.data == (char *)x + (5 * COLS + 1) * size);
    }
}

/* A matrix without data keeps its sum. */
static void
check_sums(struct kernels *k)
{
    const struct matrix g[] = { matrix_of(DT_F32, x, ROWS, COLS),
                                matrix_of(DT_F32, NULL, ROWS, COLS),
                                matrix_of(DT_F32, x + 3, 1, 7) };
    double out[] = { -1, -1, -1 }, want[] = { 0, -1, 0 };
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        x[i] = (float)i - 9;
        want[0] += (double)x[i] * (double)x[i];
        want[2] += i >= 3 && i < 10 ? (double)x[i] * (double)x[i] : 0;
    }
    op_sum_squares(k, out, g, 3);
    for (int i = 0; i < 3; i++)
        CHECK_SAY(out[i] == want[i], "sum %d is %g, want %g", i, out[i], want[i]);
}

/* Neighbours of v, as numerics.md 10 says it: halves that are powers of two. */
static double
tree_of(const double *v, size_t n)
{
    size_t half = 1;
    if (n < 2)
        return n ? *v : 0;
    while (2 * half < n)
        half *= 2;
    return tree_of(v, half) + tree_of(v + half, n - half);
}

/* The order of a sum of squares is defined, whatever the instruction set and the threads. */
static void
check_order(struct kernels *k)
{
    enum { BLOCK = 16384, LANES = 2048, MOST = 5 * BLOCK + 4099 };
    static const size_t sizes[] = {
        0, 1, 7, LANES - 1, BLOCK - 5, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 7, MOST
    };
    static float v[MOST];
    for (size_t i = 0; i < MOST; i++)
        v[i] = (float)(check_random(i) * 0x1p-31 - 1) * (i % 97 ? 1e-3F : 50);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        double block[6] = { 0 }, sums[2 * 6], out = -1, want;
        size_t n = sizes[s], blocks = 0;
        for (size_t at = 0; at < n; at += BLOCK) {
            double lane[LANES] = { 0 };
            for (size_t i = 0; i < BLOCK && at + i < n; i++)
                lane[i % LANES] += (double)v[at + i] * (double)v[at + i];
            block[blocks++] = tree_of(lane, LANES);
        }
        want = tree_of(block, blocks);
        const struct matrix g[] = { matrix_of(DT_F32, v, 1, n),
                                    matrix_of(DT_F32, v, 1, n) };
        op_sum_squares(k, &out, g, 1);
        CHECK_SAY(out == want, "squares of %zu: %a, want %a", n, out, want);
        op_block_squares(k, sums, g, 2);
        for (size_t i = 0; i < 2 * blocks; i++)
            CHECK_SAY(sums[i] == block[i % blocks], "block %zu of %zu twice: %a", i, n,
                      sums[i]);
    }
}

/* y + x + x, or x + x, each sum rounded once; -0 and what is not finite as IEEE has it. */
static void
check_op_sum(struct kernels *k)
{
    enum { N = 9001 };
    static float y[N], more[N], want[N];
    static uint16_t half[N];
    for (int form = 0; form < 4; form++) {
        bool bf16 = form & 1, adds = form & 2;
        for (size_t i = 0; i < N; i++) {
            uint32_t bits = check_random(i) & 0xffff0000;
            memcpy(&more[i], &bits, sizeof bits);
            half[i] = (uint16_t)(bits >> 16);
            y[i] = (float)(check_random(i + N) * 0x1p-31 - 1);
            if (i % 5 == 0)
                y[i] = -more[i];
            want[i] = (adds ? y[i] + more[i] : more[i]) + more[i];
        }
        struct matrix to = matrix_of(DT_F32, y, 1, N),
                      from = bf16 ? matrix_of(DT_BF16, half, 1, N)
                                  : matrix_of(DT_F32, more, 1, N);
        op_sum(k, &to, 2, (struct matrix[]){ from, from }, adds);
        for (size_t i = 0; i < N; i++)
            CHECK_SAY(isnan(want[i]) ? isnan(y[i]) : y[i] == want[i],
                      "sum %zu is %a, want %a", i, (double)y[i], (double)want[i]);
    }
}

/* Rows of one chunk and a part: against the formula in double, and nothing beyond. */
static void
check_norm_bwd(struct kernels *k)
{
    enum { T = 3, C = 300, EDGE = 600 };
    static float in[T * C], dy[T * C], gain[C], rstd[T], dx[T * C + EDGE];
    struct matrix mx = matrix_of(DT_F32, in, T, C), my = matrix_of(DT_F32, dy, T, C);
    struct matrix to = matrix_of(DT_F32, dx, T, C);
    double worst = 0, edge = 0;
    for (int i = 0; i < T * C; i++) {
        in[i] = (float)(i * 37 % 101 - 50) / 32;
        dy[i] = (float)(i * 53 % 89 - 44) / 16;
        gain[i % C] = (float)(i % 17) / 8;
    }
    for (int r = 0; r < T; r++)
        rstd[r] = 0.5F + (float)r;
    op_norm_bwd(k, &to, NULL, NULL, &my, &mx, rstd, gain, NULL);
    for (int r = 0; r < T; r++) {
        double sum = 0;
        for (int i = 0; i < C; i++)
            sum += (double)dy[r * C + i] * (double)gain[i] * (double)in[r * C + i];
        for (int i = 0; i < C; i++) {
            double s = (double)rstd[r], want = (double)dy[r * C + i] * (double)gain[i] -
                                               (double)in[r * C + i] * sum * s * s / C;
            double off = fabs((double)dx[r * C + i] - want * s);
            if (!(off <= worst)) /* not fmax: gcc 12 for aarch64 fails on it */
                worst = off;
        }
    }
    for (int i = T * C; i < T * C + EDGE; i++)
        edge += fabs((double)dx[i]);
    CHECK_SAY(worst < 1e-4, "off by %g", worst);
    CHECK(edge == 0);
}

/* Logits far from 0: exponentials are of differences. */
static void
check_large_logits(struct kernels *k)
{
    enum { R = 2, V = 37 };
    static float logits[R * V], teacher[R * V], ce[R], kl[R];
    static const int32_t label[R] = { 3, 3 };
    const struct distill how = { 0.5F, 1 };
    struct matrix m = matrix_of(DT_F32, logits, R, V),
                  mt = matrix_of(DT_F32, teacher, R, V);
    double sum = 0;
    for (int i = 0; i < V; i++)
        sum += exp((i - 3) / -8.0);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < V; i++) {
            logits[i] = teacher[i] = 1000 - (float)i / 8;
            logits[V + i] = teacher[V + i] = -1000 - (float)i / 8;
        }
        if (pass == 0)
            op_cross_entropy(k, ce, &m, label, 1);
        else
            op_distill(k, ce, kl, &m, &mt, label, &how, 1);
        for (int r = 0; r < R; r++)
            CHECK_SAY(fabs((double)ce[r] - log(sum)) < 1e-4 && kl[r] == 0,
                      "row %d: %g and %g, want %g", r, (double)ce[r], (double)kl[r],
                      log(sum));
    }
}

/* More than one thread's part, from a byte that is no multiple of anything. */
static void
check_copies(struct kernels *k)
{
    enum { BYTES = 3000001, EDGE = 7 };
    uint8_t *from = malloc(BYTES), *to = malloc(BYTES + 2 * EDGE);
    if (!from || !to)
        exit(1);
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (uint8_t)(i * 2654435761U >> 24);
    memset(to, 0x5a, BYTES + 2 * EDGE);
    op_copy(k, to + EDGE, from, BYTES);
    CHECK(memcmp(to + EDGE, from, BYTES) == 0);
    op_zero(k, to + EDGE, BYTES);
    size_t wrong = 0;
    for (size_t i = 0; i < BYTES + 2 * EDGE; i++)
        wrong += to[i] != (i < EDGE || i >= BYTES + EDGE ? 0x5a : 0);
    CHECK_SAY(wrong == 0, "%zu bytes are wrong", wrong);
    free(from);
    free(to);
}

/* What is freed is given back to the system, to its last page. */
static void
check_freed(struct kernels *k)
{
    enum { BYTES = 4 << 20 };
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char there;
    char *p = kernels_alloc(k, MEMORY_WORK, BYTES), *last = p + BYTES - 1;
    NEED(p);
    last -= (uintptr_t)last % page;
    CHECK(mincore(last, page, &there) == 0);
    kernels_free(k, p);
    CHECK(mincore(last, page, &there) < 0 && errno == ENOMEM);
}

static void
check_usage(struct kernels *k)
{
    struct matrix m = matrix_of(DT_F32, x, 2, 3), y = matrix_of(DT_F32, x + 6, 2, 2);
    void *a = kernels_alloc(k, MEMORY_CACHE, 100),
         *b = kernels_alloc(k, MEMORY_WORK, 7);
    CHECK(a && b && k->usage.now[MEMORY_CACHE] == 100);
    CHECK(k->usage.total == 107 && k->usage.total_peak == 107);
    kernels_free(k, a);
    kernels_free(k, NULL);
    CHECK(k->usage.now[MEMORY_CACHE] == 0 && k->usage.peak[MEMORY_CACHE] == 100);
    CHECK(k->usage.total == 7 && k->usage.total_peak == 107);
    kernels_free(k, b);
    double before = k->usage.flops;
    op_linear(k, 1, &y, &m, &m, NULL);
    CHECK(k->usage.flops - before == 2.0 * 2 * 2 * 3);
    before = k->usage.flops;
    op_linear_dx(k, 1, &m, &y, &m, NULL);
    CHECK(k->usage.flops - before == 2.0 * 2 * 2 * 3);
    struct matrix dw = matrix_of(DT_F32, x + 12, 2, 3);
    before = k->usage.flops;
    op_linear_dw(k, 1, &dw, &y, &m, false);
    CHECK(k->usage.flops - before == 2.0 * 2 * 2 * 3);
}

/* Two products of each of the 2 heads with 3 tokens before and half of its own 2. */
static void
check_attention_flops(struct kernels *k)
{
    enum { T = 2, PAST = 3, H = 2, D = 2 };
    static float q[T * H * D], key[(PAST + T) * D], value[(PAST + T) * D],
        out[T * H * D], lse[H * T], work[H * T];
    static const int32_t first[T] = { 0, 0 };
    struct heads h = { T, PAST, H, 1, D, first, 0 };
    struct matrix mq = matrix_of(DT_F32, q, T, H * D), to = mq,
                  mk = matrix_of(DT_F32, key, PAST + T, D),
                  mv = matrix_of(DT_F32, value, PAST + T, D);
    to.data = out;
    double before = k->usage.flops;
    op_attention(k, &to, lse, &mq, &mk, &mv, &h);
    CHECK(k->usage.flops - before == 2.0 * 2 * T * (PAST + T / 2.0) * H * D);
    h.past = 0;
    mk.rows = mv.rows = T;
    op_attention(k, &to, lse, &mq, &mk, &mv, &h);
    before = k->usage.flops;
    struct matrix dk = matrix_of(DT_F32, key + T * D, T, D),
                  dv = matrix_of(DT_F32, value + T * D, T, D), dq = to;
    static float d_out[T * H * D], d_q[T * H * D];
    struct matrix m_d = matrix_of(DT_F32, d_out, T, H * D);
    dq.data = d_q;
    op_attention_bwd(k, &dq, &dk, &dv, &m_d, &to, lse, &mq, &mk, &mv, work, &h);
    CHECK(k->usage.flops - before == 2 * 2.0 * 2 * T * (T / 2.0) * H * D);
}

/* What products allocate is what a plan of them counts. */
static void
check_dry(void)
{
    enum { IN = 64, OUT = 48, MAX = 40 };
    static const size_t tokens[] = { 1, 3, 8, MAX };
    static const enum dtype compute[] = { DT_F32, DT_BF16 };
    static float w[OUT * IN], in[MAX * IN], y[MAX * OUT];
    for (size_t i = 0; i < 2 * sizeof tokens / sizeof *tokens; i++) {
        struct err e = { 0 };
        struct cpu_kind kind = { compute[i % 2], isa_best(), 2 };
        struct kernels *real = kernels_cpu(&kind, &e);
        NEED(real);
        struct kernels *dry = kernels_dry(&real->is, &kind, &e),
                       *both[] = { real, dry };
        NEED(dry);
        size_t t = tokens[i / 2];
        struct matrix mw = matrix_of(DT_F32, w, OUT, IN),
                      mx = matrix_of(DT_F32, in, t, IN),
                      my = matrix_of(DT_F32, y, t, OUT);
        uint64_t work[3][2];
        for (int k = 0; k < 2; k++) {
            op_linear(both[k], 1, &my, &mx, &mw, NULL);
            work[0][k] = both[k]->usage.now[MEMORY_WORK];
            op_linear_dx(both[k], 1, &mx, &my, &mw, NULL);
            work[1][k] = both[k]->usage.now[MEMORY_WORK];
            op_linear_dw(both[k], 1, &mw, &my, &mx, false);
            work[2][k] = both[k]->usage.now[MEMORY_WORK];
        }
        for (int k = 0; k < 3; k++)
            CHECK_SAY(work[k][0] == work[k][1],
                      "%s of %zu tokens, product %d: %llu bytes, planned %llu",
                      dtype_name(kind.compute), t, k, (unsigned long long)work[k][0],
                      (unsigned long long)work[k][1]);
        kernels_close(dry);
        kernels_close(real);
        CHECK(e.kind == ERR_NONE);
    }
}

/* By the scale of another step: what is above 448 is 448 and counted, what is not finite is NaN
 * and is not; the largest magnitude is that of all. */
static void
check_clipped(struct kernels *k)
{
    enum { C = FP8_UNIT };
    static const float in[] = {
        1, 448,   449,  1000, -500,    INFINITY, -INFINITY, NAN,
        0, -0.0F, -448, 447,  0x1p-9F, 1e38F,    0x1p-10F,  -1
    };
    static const uint8_t want[] = { 0x38, 0x7e, 0x7e, 0x7e, 0xfe, 0x7f, 0x7f, 0x7f,
                                    0x00, 0x80, 0xfe, 0x7e, 0x01, 0x7e, 0x00, 0xb8 };
    uint8_t bytes[C], columns[C * FP8_UNIT];
    float scale2, given = 448, peak = 0;
    uint64_t lost = 1;
    const struct fp8_found found = { &peak, &lost };
    struct matrix from = matrix_of(DT_F32, in, 1, C),
                  to = matrix_of(DT_F8_E4M3, bytes, 1, C);
    to.scale2 = &scale2;
    to.transposed = columns;
    to.transposed_stride = FP8_UNIT;
    op_to_fp8(k, &to, &from, &given, 1, &found);
    for (int i = 0; i < C; i++)
        CHECK_SAY(bytes[i] == want[i] && columns[i * FP8_UNIT] == want[i],
                  "%g: %02x, want %02x", (double)in[i], bytes[i], want[i]);
    CHECK(scale2 == 1 && lost == 5 && isnan(peak));
    // Half of that scale: a value less is clipped.
    given = 896;
    op_to_fp8(k, &to, &from, &given, 1, &found);
    CHECK_SAY(scale2 == 2 && lost == 7, "scale %g, %llu lost", (double)scale2,
              (unsigned long long)lost);
}

/* The largest magnitude of what an operation writes, on top of that which is there. */
static void
check_grown(struct kernels *k)
{
    enum { N = 40 };
    float in[N], up[N], out[N], peak = 0.5F;
    struct matrix gate = matrix_of(DT_F32, in, 1, N), mu = matrix_of(DT_F32, up, 1, N),
                  y = matrix_of(DT_F32, out, 1, N);
    for (int i = 0; i < N; i++) {
        in[i] = 20;
        up[i] = i == 7 ? -3 : 0.001F;
    }
    y.amax = &peak;
    op_swiglu(k, &y, &gate, &mu);
    CHECK_SAY(peak == 60, "%a", (double)peak); // silu(20) is 20
    up[7] = 1;
    op_swiglu(k, &y, &gate, &mu);
    CHECK(peak == 60);
    up[9] = INFINITY;
    op_swiglu(k, &y, &gate, &mu);
    CHECK(isnan(peak));
}

/* What an operation writes in E4M3 itself, and a conversion of what it writes, counted; of rows
 * that are longer than what is computed at a time. */
enum { WIDE = 1040, TALL = 3 };
struct form {
    uint8_t data[TALL * 2 * WIDE], columns[FP8_UNIT * 2 * WIDE];
    float scale2, amax;
    uint64_t lost;
};

static struct matrix
form_open(struct form *f, struct fp8_found *found, size_t cols)
{
    memset(f, 0xff, sizeof *f);
    f->amax = 0;
    f->lost = 1;
    *found = (struct fp8_found){ &f->amax, &f->lost };
    struct matrix m = matrix_of(DT_F8_E4M3, f->data, TALL, cols);
    m.scale2 = &f->scale2;
    m.transposed = f->columns;
    m.transposed_stride = FP8_UNIT;
    return m;
}

/* Values with an amax that clips some of them, or, where it is NaN, makes all of them NaN. */
static void
check_written(struct kernels *k, float amax)
{
    static float in[TALL * WIDE], up[TALL * WIDE], d[TALL * WIDE], y[TALL * WIDE],
        both[TALL * 2 * WIDE], gain[WIDE];
    static struct form f[4];
    float rstd[TALL] = { 0 }, peak[2] = { 0, 0 }, one = 1;
    struct fp8_found found[4];
    struct matrix x_in = matrix_of(DT_F32, in, TALL, WIDE),
                  mu = matrix_of(DT_F32, up, TALL, WIDE),
                  md = matrix_of(DT_F32, d, TALL, WIDE),
                  my = matrix_of(DT_F32, y, TALL, WIDE),
                  mb = matrix_of(DT_F32, both, TALL, 2 * WIDE), none = my;
    for (uint32_t i = 0; i < TALL * WIDE; i++) {
        in[i] = (float)(int32_t)check_random(3 * i) * 0x1p-29F;
        up[i] = (float)(int32_t)check_random(3 * i + 1) * 0x1p-30F;
        y[i] = d[i] = (float)(int32_t)check_random(3 * i + 2) * 0x1p-31F;
        gain[i % WIDE] = up[i] + 1;
    }
    in[WIDE + 1030] = INFINITY; // one that is not finite; in norm its row
    my.amax = &peak[0];
    none.data = NULL;
    none.amax = &peak[1];
    struct matrix to[4];
    for (int i = 0; i < 4; i++)
        to[i] = form_open(&f[i], &found[i], i < 2 ? 2 * WIDE : WIDE);
    mb.amax = &peak[0];
    op_swiglu_bwd(k, &mb, &my, &x_in, &mu); // y was d
    struct matrix unwritten = mb;
    unwritten.data = NULL;
    unwritten.amax = &peak[1];
    op_swiglu_bwd(k, &unwritten, &md, &x_in, &mu);
    CHECK(check_equal(&peak[0], &peak[1], sizeof *peak));
    op_to_fp8(k, &to[0], &mb, &amax, 1, &found[0]);
    op_to_fp8(k, &to[2], &my, &one, 1, NULL);
    op_swiglu_bwd_to_fp8(k, &to[1], &amax, &found[1], &to[3], &one, &md, &x_in, &mu);
    CHECK(check_equal(&f[0], &f[1], sizeof *f) && check_equal(&f[2], &f[3], sizeof *f));
    CHECK(isnan(amax) ? isnan(f[0].scale2) : f[0].lost > 100);
    for (int is_norm = 0; is_norm < 2; is_norm++) {
        for (int i = 0; i < 2; i++)
            to[i] = form_open(&f[i], &found[i], WIDE);
        peak[0] = peak[1] = 0;
        if (is_norm) {
            op_norm(k, &my, rstd, &x_in, gain, 1e-6F);
            op_norm(k, &none, rstd, &x_in, gain, 1e-6F);
            op_norm_again_to_fp8(k, &to[1], rstd, &x_in, gain, &amax, &found[1]);
        } else {
            op_swiglu(k, &my, &x_in, &mu);
            op_swiglu(k, &none, &x_in, &mu);
            op_swiglu_to_fp8(k, &to[1], &x_in, &mu, &amax, &found[1]);
        }
        op_to_fp8(k, &to[0], &my, &amax, 1, &found[0]);
        CHECK(check_equal(&peak[0], &peak[1], sizeof *peak));
        CHECK(check_equal(&f[0], &f[1], sizeof *f));
        CHECK(isnan(amax) ? isnan(f[0].scale2) : f[0].lost > 100);
    }
    // Rows alone, and rstd.
    float twice[TALL];
    to[1] = form_open(&f[1], &found[1], WIDE);
    to[1].transposed = NULL;
    memcpy(f[1].columns, f[0].columns, sizeof f[1].columns);
    op_norm_to_fp8(k, &to[1], twice, &x_in, gain, 1e-6F, &amax, &found[1]);
    CHECK(check_equal(&f[0], &f[1], sizeof *f) &&
          check_equal(twice, rstd, sizeof rstd));
}

/* After an error operations, allocations and downloads do nothing; freeing works. */
static void
check_error(struct kernels *k)
{
    char here = 1;
    uint64_t before = k->usage.now[MEMORY_WORK];
    void *p = kernels_alloc(k, MEMORY_WORK, 8);
    NEED(p);
    err_set(&err, ERR_IO, "first");
    op_zero(k, x, sizeof x);
    CHECK(x[0] != 0 && !kernels_alloc(k, MEMORY_WORK, 8));
    CHECK(kernels_download(k, &here, x, 1) == -1 && here == 1);
    kernels_free(k, p);
    CHECK(k->usage.now[MEMORY_WORK] == before);
    CHECK_ERR(err, ERR_IO, "first");
}

int
main(void)
{
    struct kernels *k = kernels_cpu(&(struct cpu_kind){ DT_F32, isa_best(), 2 }, &err);
    NEED(k);
    check_views();
    check_sums(k);
    check_order(k);
    check_op_sum(k);
    check_copies(k);
    check_norm_bwd(k);
    check_large_logits(k);
    check_clipped(k);
    check_grown(k);
    check_written(k, 0.5F);
    check_written(k, NAN);
    check_usage(k);
    check_attention_flops(k);
    check_freed(k);
    check_dry();
    check_error(k);
    kernels_close(k);
    return check_end();
}
