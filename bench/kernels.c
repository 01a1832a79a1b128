/* SPDX-License-Identifier: MIT */
/* kernels: what the operations of the CPU backend cost, by themselves and in a pass.
 *
 *   kernels [-j THREADS] [-a ISA] PART...
 *
 *   products    W of the shapes of Qwen3-0.6B against 512 tokens: GFLOP/s, forward and
 *               both gradients, beside sgemm where it was linked in (-DPEER)
 *   decode      one token, the weights of a layer of Qwen3-4B, several times what the
 *               cache holds: GB/s of the weight's bytes, beside plain reading; and
 *               as generate --fast decodes, which parts behind it then do, too
 *   attention   Qwen3-0.6B, long sequences: GFLOP/s of the causal half
 *   adamw       parameters a second
 *   small       a launch: an operation on few numbers
 *   tiny, 0.6b  a training pass, forward and backward: 8 x 64 tokens of a model of 128 channels, and
 *               512 tokens of Qwen3-0.6B; milliseconds of each operation
 *
 * CSV on standard output: what, threads, path, value, unit.  Each figure is the best of
 * some runs after one that is not counted; allocation lies outside.  With one thread it is
 * processor time, so what others do meanwhile counts only by what it takes of the caches
 * and the memory.
 */
#include "kernels/ops.h"
#include "lib/base/num.h"
#include "lib/model/arch/list.h"
#include "lib/model/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef PEER
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c,
                 int ldc);
#endif

static struct err err;
static unsigned threads = 1;
static enum isa isa;

static double
now(void)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void
say(const char *what, double value, const char *unit)
{
    printf("%s,%u,%s,%.4g,%s\n", what, threads, isa_name(isa), value, unit);
    fflush(stdout);
}

static void *
alloc(struct kernels *k, size_t bytes)
{
    void *p = kernels_alloc(k, MEMORY_WORK, bytes);
    if (!p) {
        fprintf(stderr, "kernels: %s\n", err.msg);
        exit(2);
    }
    return p;
}

static void
fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((double)(uint32_t)(i * 2654435761U) * 0x1p-31 - 1);
}

/* ---- weights --------------------------------------------------------------------------- */

static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16, DT_NVFP4 };
enum { TYPES = 4 };

static size_t
weight_bytes(enum dtype t, size_t n)
{
    return t == DT_NVFP4 ? n / 2 + n / 16 : n * dtype_bits(t) / 8;
}

static struct matrix
make_weight(struct kernels *k, enum dtype t, size_t out, size_t in)
{
    size_t n = out * in;
    uint8_t *p = alloc(k, weight_bytes(t, n));
    struct matrix w = matrix_of(t, p, out, in);
    if (t == DT_F32)
        fill((float *)(void *)p, n);
    else
        for (size_t i = 0; i < weight_bytes(t, n); i++)
            p[i] = (uint8_t)(t == DT_NVFP4 && i >= n / 2 ? 56 : i * 101 & 0x3f);
    static float scale2 = 0.0123F;
    if (t == DT_NVFP4) {
        w.scales = p + n / 2;
        w.scale2 = &scale2;
    }
    return w;
}

static void
release_weight(struct kernels *k, struct matrix *w)
{
    kernels_free(k, w->data);
}

/* ---- products ---------------------------------------------------------------------------- */

struct shape {
    size_t out, in;
};

enum { TOKENS = 512, RUNS = 30 };

static double
best_product(struct kernels *k, int way, const struct matrix *w, const float *x,
             const float *y, const float *dw)
{
    const struct matrix mx = matrix_of(DT_F32, x, TOKENS, w->cols),
                        my = matrix_of(DT_F32, y, TOKENS, w->rows),
                        mdw = matrix_of(DT_F32, dw, w->rows, w->cols);
    double best = 1e9;
    for (int r = 0; r <= RUNS; r++) {
        double start = now();
        if (way == 0)
            op_linear(k, 1, &my, &mx, w, NULL);
        else if (way == 1)
            op_linear_dx(k, 1, &mx, &my, w, NULL);
        else
            op_linear_dw(k, 1, &mdw, &my, &mx, false);
        double t = now() - start;
        best = r && t < best ? t : best;
    }
    return best;
}

#ifdef PEER
static void
peer_products(const struct shape *s, const float *w, float *x, float *y, float *dw)
{
    static const char *const ways[] = { "forward", "dx", "dw" };
    int out = (int)s->out, in = (int)s->in;
    for (int way = 0; way < 3; way++) {
        double best = 1e9;
        for (int r = 0; r <= RUNS; r++) {
            double start = now();
            if (way == 0)
                cblas_sgemm(101, 111, 112, TOKENS, out, in, 1, x, in, w, in, 0, y, out);
            else if (way == 1)
                cblas_sgemm(101, 111, 111, TOKENS, in, out, 1, y, out, w, in, 0, x, in);
            else
                cblas_sgemm(101, 112, 111, out, in, TOKENS, 1, y, out, x, in, 1, dw,
                            in);
            double t = now() - start;
            best = r && t < best ? t : best;
        }
        char what[128];
        snprintf(what, sizeof what, PEER " %s %zu x %zu f32", ways[way], s->out, s->in);
        say(what, 2e-9 * TOKENS * (double)s->out * (double)s->in / best, "GFLOP/s");
    }
}
#endif

static void
products(struct kernels *k)
{
    static const char *const ways[] = { "forward", "dx", "dw" };
    static const struct shape shapes[] = { { 2048, 1024 },
                                           { 3072, 1024 },
                                           { 1024, 3072 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        float *x = alloc(k, TOKENS * s->in * 4), *y = alloc(k, TOKENS * s->out * 4);
        float *dw = alloc(k, s->out * s->in * 4);
        for (int t = 0; t < TYPES; t++) {
            struct matrix w = make_weight(k, types[t], s->out, s->in);
            for (int way = 0; way < (t ? 2 : 3); way++) {
                char what[128];
                fill(x, TOKENS * s->in);
                fill(y, TOKENS * s->out);
                double best = best_product(k, way, &w, x, y, dw);
                snprintf(what, sizeof what, "%s %zu x %zu %s", ways[way], s->out, s->in,
                         dtype_name(types[t]));
                say(what, 2e-9 * TOKENS * (double)s->out * (double)s->in / best,
                    "GFLOP/s");
            }
#ifdef PEER
            if (t == 0)
                peer_products(s, w.data, x, y, dw);
#endif
            release_weight(k, &w);
        }
        kernels_free(k, x);
        kernels_free(k, y);
        kernels_free(k, dw);
    }
}

/* ---- one token ------------------------------------------------------------------------------ */

enum { OUT = 9728, IN = 2560, COPIES = 8, MOST = 32 };

static void
few(struct kernels *k, enum dtype dtype, const size_t *batches, size_t n,
    const char *how)
{
    float *x = alloc(k, MOST * IN * 4), *y = alloc(k, MOST * OUT * 4);
    struct matrix w[COPIES];
    size_t bytes = weight_bytes(dtype, (size_t)OUT * IN);
    fill(x, MOST * IN);
    for (int i = 0; i < COPIES; i++)
        w[i] = make_weight(k, dtype, OUT, IN);
    for (size_t b = 0; b < n; b++) {
        const struct matrix mx = matrix_of(DT_F32, x, batches[b], IN),
                            my = matrix_of(DT_F32, y, batches[b], OUT);
        double best = 1e9;
        for (int r = 0; r < 4; r++) {
            double start = now();
            for (int i = 0; i < COPIES; i++)
                op_linear(k, 1, &my, &mx, &w[i], NULL);
            double took = now() - start;
            best = r && took < best ? took : best;
        }
        char what[128];
        snprintf(what, sizeof what, "decode %d x %d %s%s tokens %zu", OUT, IN,
                 dtype_name(dtype), how, batches[b]);
        say(what, 1e-9 * (double)bytes * COPIES / best, "GB/s");
    }
    for (int i = 0; i < COPIES; i++)
        release_weight(k, &w[i]);
    kernels_free(k, x);
    kernels_free(k, y);
}

static void
decode(struct kernels *k)
{
    static const size_t batches[] = { 1, 2, 4, 8, 9, 16, 32 };
    double *sum = alloc(k, 8);
    float *big = alloc(k, (size_t)OUT * IN * COPIES * 4);
    fill(big, (size_t)OUT * IN * COPIES);
    for (int t = 0; t < TYPES; t++)
        few(k, types[t], batches, sizeof batches / sizeof *batches, "");
    kernels_cpu_coarse(k); // from here on
    few(k, DT_NVFP4, batches, 3, " --fast");
    const struct matrix all = matrix_of(DT_F32, big, (size_t)OUT * COPIES, IN);
    double best = 1e9;
    for (int r = 0; r < 4; r++) {
        double start = now();
        op_sum_squares(k, sum, &all, 1);
        double took = now() - start;
        best = r && took < best ? took : best;
    }
    say("sum of squares", 1e-9 * OUT * IN * COPIES * 4 / best, "GB/s");
}

/* ---- attention ------------------------------------------------------------------------------- */

static void
attention(struct kernels *k)
{
    static const size_t lengths[] = { 512, 2048, 8192 };
    enum { QUERY = 16, KV = 8, DIM = 128 };
    for (int i = 0; i < 3; i++) {
        size_t t = lengths[i], q = t * QUERY * DIM, kv = t * KV * DIM;
        struct matrix a[4], b[4]; // q, out, dq, dout; key, value, their gradients
        float *lse = alloc(k, t * QUERY * 4), *work = alloc(k, t * QUERY * 4);
        int32_t *first = alloc(k, t * 4);
        struct heads h = { t, 0, QUERY, KV, DIM, first, 0 };
        for (int n = 0; n < 4; n++) {
            a[n] = matrix_of(DT_F32, alloc(k, q * 4), t, QUERY * DIM);
            b[n] = matrix_of(DT_F32, alloc(k, kv * 4), t, KV * DIM);
            fill(a[n].data, q);
            fill(b[n].data, kv);
        }
        for (int back = 0; back < 2; back++) {
            double best = 1e9;
            for (int r = 0; r < (t > 4096 ? 2 : 4); r++) {
                double start = now();
                if (back)
                    op_attention_bwd(k, &a[2], &b[2], &b[3], &a[3], &a[1], lse, &a[0],
                                     &b[0], &b[1], work, &h);
                else
                    op_attention(k, &a[1], lse, &a[0], &b[0], &b[1], &h);
                double took = now() - start;
                best = r && took < best ? took : best;
            }
            char what[128];
            snprintf(what, sizeof what, "attention %s %zu tokens",
                     back ? "backward" : "forward", t);
            // Two products forward, five back, over half of the square.
            say(what,
                1e-9 * (back ? 5 : 2) * QUERY * DIM * (double)t * (double)t / best,
                "GFLOP/s");
        }
        for (int n = 0; n < 4; n++) {
            kernels_free(k, a[n].data);
            kernels_free(k, b[n].data);
        }
        kernels_free(k, lse);
        kernels_free(k, work);
        kernels_free(k, first);
    }
}

/* ---- the optimizer ----------------------------------------------------------------------------- */

static void
adamw(struct kernels *k)
{
    static const char *const names[] = { "f32", "bf16", "int8" };
    size_t n = (size_t)1 << 25;
    float *g = alloc(k, n * 4);
    void *p[5];
    const struct matrix grad = matrix_of(DT_F32, g, 1, n);
    fill(g, n);
    for (int i = 0; i < 5; i++)
        p[i] = alloc(k, n * 4);
    for (int m = 0; m < 3; m++)
        for (int half = 0; half < 2; half++) {
            double best = 1e9;
            for (int i = 0; i < 5; i++)
                memset(p[i], 0, n * 4);
            struct adam_state s = {
                p[0], half ? DT_BF16 : DT_F32, (enum moments)m, p[1], p[2], p[3], p[4],
                0
            };
            static const float clip = 1;
            struct adam_step a = { .lr = 1e-5F,
                                   .beta1 = .9F,
                                   .beta2 = .999F,
                                   .eps = 1e-8F,
                                   .bias_correction1 = .1F,
                                   .bias_correction2 = .001F,
                                   .clip = &clip,
                                   .seed = 1,
                                   .step = 1,
                                   .row = 1 };
            for (int r = 0; r <= RUNS; r++) {
                double start = now();
                op_adamw(k, &(struct adam_update){ s, grad, 0, n, a }, 1);
                double took = now() - start;
                best = r && took < best ? took : best;
            }
            char what[128];
            snprintf(what, sizeof what, "adamw master %s moments %s",
                     half ? "bf16" : "f32", names[m]);
            say(what, 1e-9 * (double)n / best, "G/s");
        }
    for (int i = 0; i < 5; i++)
        kernels_free(k, p[i]);
    kernels_free(k, g);
}

/* ---- small ---------------------------------------------------------------------------------------- */

static void
small(struct kernels *k)
{
    enum { N = 20000, ROWS = 512, C = 128 };
    float *x = alloc(k, ROWS * C * 4), *y = alloc(k, ROWS * C * 4);
    float *scale = alloc(k, ROWS * 4), *gain = alloc(k, C * 4);
    struct matrix mx = matrix_of(DT_F32, x, ROWS, C),
                  my = matrix_of(DT_F32, y, ROWS, C);
    fill(x, ROWS * C);
    double best = 1e9;
    for (int r = 0; r < 4; r++) {
        double start = now();
        for (int i = 0; i < N; i++)
            op_norm(k, &my, scale, &mx, gain, 1e-6F);
        double took = now() - start;
        best = r && took < best ? took : best;
    }
    say("norm of 512 x 128", 1e6 * best / N, "us");
    struct matrix w = make_weight(k, DT_F32, C, C);
    mx.rows = my.rows = 64;
    best = 1e9;
    for (int r = 0; r < 4; r++) {
        double start = now();
        for (int i = 0; i < N / 20; i++)
            op_linear(k, 1, &my, &mx, &w, NULL);
        double took = now() - start;
        best = r && took < best ? took : best;
    }
    say("product 64 x 128 x 128", 1e6 * best * 20 / N, "us");
}

/* ---- a pass ----------------------------------------------------------------------------------------- */

/* Each operation is replaced by one that counts its time. */
#define ARGS(...) __VA_ARGS__
#define MAT       const struct matrix *
#define OPS(X)                                                                         \
    X(copy, ARGS(void *to, const void *from, size_t n), ARGS(to, from, n))             \
    X(zero, ARGS(void *p, size_t n), ARGS(p, n))                                       \
    X(gather, ARGS(MAT y, MAT x, const int32_t *i), ARGS(y, x, i))                     \
    X(scatter, ARGS(MAT y, MAT x, const int32_t *i), ARGS(y, x, i))                    \
    X(linear, ARGS(size_t n, MAT y, MAT x, MAT w, MAT c), ARGS(n, y, x, w, c))         \
    X(linear_dx, ARGS(size_t n, MAT dx, MAT dy, MAT w, MAT c), ARGS(n, dx, dy, w, c))  \
    X(linear_dw, ARGS(size_t n, MAT dw, MAT dy, MAT x, bool add),                      \
      ARGS(n, dw, dy, x, add))                                                         \
    X(embed, ARGS(MAT y, MAT w, const int32_t *ids), ARGS(y, w, ids))                  \
    X(embed_dw, ARGS(MAT dw, MAT dy, const int32_t *ids), ARGS(dw, dy, ids))           \
    X(norm, ARGS(MAT y, float *rstd, MAT x, const float *gain, float eps),             \
      ARGS(y, rstd, x, gain, eps))                                                     \
    X(norm_bwd,                                                                        \
      ARGS(MAT dx, float *dgain, MAT y, MAT dy, MAT x, const float *rstd,              \
           const float *gain, MAT c),                                                  \
      ARGS(dx, dgain, y, dy, x, rstd, gain, c))                                        \
    X(qk_norm_rope,                                                                    \
      ARGS(MAT y, float *rstd, MAT x, const float *gain, const struct rope *r),        \
      ARGS(y, rstd, x, gain, r))                                                       \
    X(qk_norm_rope_bwd,                                                                \
      ARGS(MAT d, float *dgain, MAT x, const float *rstd, const float *gain,           \
           const struct rope *r),                                                      \
      ARGS(d, dgain, x, rstd, gain, r))                                                \
    X(attention,                                                                       \
      ARGS(MAT out, float *lse, MAT q, MAT key, MAT value, const struct heads *h),     \
      ARGS(out, lse, q, key, value, h))                                                \
    X(attention_bwd,                                                                   \
      ARGS(MAT dq, MAT dkey, MAT dvalue, MAT dout, MAT out, const float *lse, MAT q,   \
           MAT key, MAT value, float *work, const struct heads *h),                    \
      ARGS(dq, dkey, dvalue, dout, out, lse, q, key, value, work, h))                  \
    X(swiglu, ARGS(MAT y, MAT gate, MAT up), ARGS(y, gate, up))                        \
    X(swiglu_bwd, ARGS(MAT d_gate_up, MAT d, MAT gate, MAT up),                        \
      ARGS(d_gate_up, d, gate, up))                                                    \
    X(cross_entropy, ARGS(float *loss, MAT logits, const int32_t *label, float scale), \
      ARGS(loss, logits, label, scale))

#define NUMBER(name, params, args) OP_##name,
enum { OPS(NUMBER) OP_COUNT };
#define NAME_OF(name, params, args) #name,
static const char *const op_names[] = { OPS(NAME_OF) };
static double op_time[OP_COUNT];
static unsigned op_calls[OP_COUNT];
static const struct ops *plain;
#define TIMED(name, params, args)                                                      \
    static void timed_##name(struct kernels *k, params)                                \
    {                                                                                  \
        double start = now();                                                          \
        plain->name(k, args);                                                          \
        op_time[OP_##name] += now() - start;                                           \
        op_calls[OP_##name]++;                                                         \
    }
OPS(TIMED)

static void
fill_net(struct net *n)
{
    for (size_t i = 0; i < n->table.n; i++) {
        const struct row *r = &n->table.row[i];
        float *w = alloc(n->k, (size_t)r->numel * 4);
        fill(w, (size_t)r->numel);
        for (size_t e = 0; e < r->numel; e++)
            w[e] = r->rank == 1 ? 1 : 0.03F * w[e];
        size_t cols = (size_t)r->shape[r->rank - 1], rows = (size_t)r->numel / cols;
        n->t[i].w = matrix_of(DT_F32, w, rows, cols);
        n->t[i].grad = matrix_of(DT_F32, alloc(n->k, (size_t)r->numel * 4), rows, cols);
    }
}

static void
pass(struct kernels *k, const char *name, const struct config *c, size_t documents,
     size_t length, int runs)
{
    struct net n;
    size_t tokens = documents * length;
    int32_t *ids = calloc(4 * tokens, sizeof *ids);
    float *loss = calloc(tokens, sizeof *loss);
    if (!ids || !loss || net_open(&n, c, k, length, &err) < 0)
        exit(2);
    struct net_batch b = { tokens, ids, ids + tokens, ids + 2 * tokens,
                           ids + 3 * tokens };
    for (size_t t = 0; t < tokens; t++) {
        ids[t] = (int32_t)(t * 7919 % c->vocab);
        ids[tokens + t] = (int32_t)(t * 104729 % c->vocab);
        ids[2 * tokens + t] = (int32_t)(t % length);
        ids[3 * tokens + t] = (int32_t)(t - t % length);
    }
    fill_net(&n);
    plain = k->op;
    struct ops timed = *plain;
#define WRAP(name, params, args) timed.name = timed_##name;
    OPS(WRAP)
    k->op = &timed;
    double best = 1e9;
    for (int r = 0; r <= runs; r++) {
        double start = now();
        if (r == 1) {
            memset(op_time, 0, sizeof op_time);
            memset(op_calls, 0, sizeof op_calls);
        }
        if (net_pass(&n, &b, 1 / (float)tokens, &(struct net_losses){ loss, NULL },
                     NULL) < 0)
            exit(2);
        double took = now() - start;
        best = r && took < best ? took : best;
    }
    k->op = plain;
    char what[128];
    double all = 0;
    for (int i = 0; i < OP_COUNT; i++) {
        if (!op_calls[i])
            continue;
        snprintf(what, sizeof what, "%s %s x %u", name, op_names[i],
                 op_calls[i] / (unsigned)runs);
        say(what, 1e3 * op_time[i] / runs, "ms");
        all += op_time[i] / runs;
    }
    snprintf(what, sizeof what, "%s all operations", name);
    say(what, 1e3 * all, "ms");
    snprintf(what, sizeof what, "%s pass (best)", name);
    say(what, 1e3 * best, "ms");
    net_close(&n);
}

static const struct config tiny = {
    .arch = &arch_qwen3,
    .hidden = 128,
    .layers = 4,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 32,
    .ffn = 384,
    .vocab = 4096,
    .positions = 64,
    .rms_eps = 1e-6,
    .rope_theta = 1e6,
    .tied = true,
};
static const struct config model06 = {
    .arch = &arch_qwen3,
    .hidden = 1024,
    .layers = 28,
    .heads = 16,
    .kv_heads = 8,
    .head_dim = 128,
    .ffn = 3072,
    .vocab = 151936,
    .positions = 512,
    .rms_eps = 1e-6,
    .rope_theta = 1e6,
    .tied = true,
};

static int
run(struct kernels *k, const char *part)
{
    if (!strcmp(part, "products"))
        products(k);
    else if (!strcmp(part, "decode"))
        decode(k);
    else if (!strcmp(part, "attention"))
        attention(k);
    else if (!strcmp(part, "adamw"))
        adamw(k);
    else if (!strcmp(part, "small"))
        small(k);
    else if (!strcmp(part, "tiny"))
        pass(k, "tiny", &tiny, 8, 64, 20);
    else if (!strcmp(part, "0.6b"))
        pass(k, "0.6b", &model06, 1, 512, 1);
    else
        return -1;
    return 0;
}

int
main(int argc, char **argv)
{
    int opt;
    isa = isa_best();
    while ((opt = getopt(argc, argv, "j:a:")) != -1)
        if (opt == 'j')
            threads = (unsigned)strtoul(optarg, NULL, 10);
        else if (opt == 'a')
            isa = isa_named(optarg);
        else
            return 2;
    struct kernels *k = kernels_cpu(&(struct cpu_kind){ DT_F32, isa, threads }, &err);
    for (int i = optind; i < argc && k; i++)
        if (run(k, argv[i]) < 0) {
            fprintf(stderr, "kernels: %s: no such part\n", argv[i]);
            return 2;
        }
    if (err.kind)
        fprintf(stderr, "kernels: %s\n", err.msg);
    return err.kind ? 2 : 0;
}
