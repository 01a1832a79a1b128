/* SPDX-License-Identifier: MIT */
/* train: a NaN anywhere costs one step and nothing else; steps that are passed over leave
 * no trace; kept and released gradients make the same weights, and so does kept and packed FP8. */
#include "lib/model/train.h"
#include "kernels/ops.h"
#include "lib/model/arch/list.h"

#include "tests/unit/check.h"

#include <math.h>

enum { TOKENS = 24, STEPS = 3 };

static const struct config small = {
    .arch = &arch_qwen3,
    .hidden = 16,
    .layers = 2,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 8,
    .ffn = 32,
    .vocab = 40,
    .positions = 64,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
};

static const struct quant_spec sweep = { .kind = QUANT_SWEEP };

struct model {
    struct train t;
    struct kernels *k;
    struct err err;
};

static void
fill(struct model *m)
{
    struct train *t = &m->t;
    for (size_t i = 0; i < t->net.table.n; i++) {
        const struct array *a = &t->arrays.v[i];
        void *device = t->held[i].device;
        double size = 0.08 * (double)(1 + i % 4); // those of one product differ
        for (size_t e = 0; e < t->net.table.row[i].numel; e++) {
            double u = check_random(i * 1000003 + e) * 0x1p-31 - 1;
            float v = (float)(a->rank == 1 ? 1 + 0.1 * u : size * u);
            uint32_t bits;
            memcpy(&bits, &v, sizeof bits);
            if (a->dtype == DT_F32)
                ((float *)device)[e] = v;
            else
                ((uint16_t *)device)[e] = (uint16_t)(bits >> 16);
        }
    }
}

static void
model_open(struct model *m, const struct train_layout *layout, bool tied)
{
    struct config c = small;
    c.tied = tied;
    *m = (struct model){ 0 };
    const struct cpu_kind kind = { DT_F32, isa_best(), 2 };
    m->k = kernels_cpu(&kind, &m->err);
    NEED(m->k && train_open(&m->t, &c, m->k, layout, &m->err) == 0);
    fill(m);
    m->t.numbers = (struct train_numbers){ .lr = 1e-2F,
                                           .beta1 = 0.9F,
                                           .beta2 = 0.999F,
                                           .eps = 1e-8F,
                                           .decay = 0.1F,
                                           .clip = 1,
                                           .seed = 3 };
    NEED(train_ready(&m->t) == 0);
}

static void
model_close(struct model *m)
{
    train_close(&m->t);
    kernels_close(m->k);
}

/* Passes of step s: two documents each. */
static void
make_batch(struct net_batch *b, int32_t room[4][TOKENS], uint64_t s)
{
    for (int t = 0; t < TOKENS; t++) {
        int first = t < 15 ? 0 : 15;
        room[0][t] = (int32_t)(check_random(1000 * s + (uint64_t)t) % small.vocab);
        room[1][t] = t % 5 == 0 ? -1 : (int32_t)(check_random(s + (uint64_t)t) % 40);
        room[2][t] = t - first;
        room[3][t] = first;
    }
    *b = (struct net_batch){ TOKENS, room[0], room[1], room[2], room[3], NULL };
}

static enum train_outcome
take_step(struct model *m, uint64_t s, struct train_result *r)
{
    struct net_batch b;
    int32_t room[4][TOKENS];
    make_batch(&b, room, s);
    CHECK_SAY(train_step(&m->t, &b, 1, r) == 0, "%s", m->err.msg);
    return r->outcome;
}

/* All arrays of the checkpoint, one behind the other. */
static uint8_t *
arrays(const struct model *m, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < m->t.arrays.n; i++)
        *n += (size_t)m->t.arrays.v[i].bytes;
    uint8_t *all = malloc(*n + 1);
    NEED(all);
    size_t at = 0;
    for (size_t i = 0; i < m->t.arrays.n; i++) {
        memcpy(all + at, m->t.held[i].device, (size_t)m->t.arrays.v[i].bytes);
        at += (size_t)m->t.arrays.v[i].bytes;
    }
    return all;
}

/* ---- poison ----------------------------------------------------------------------------- */

/* The operations as they are, and those that spoil the output of a call of that number. */
static const struct ops *real;
static struct ops bad;
static int countdown;
static float venom;

static float *bitten; // what was spoilt

static void
spoil(float *p, size_t n)
{
    if (--countdown == 0) {
        bitten = p + n / 2;
        *bitten = venom;
    }
}

static void
spoil_matrix(const struct matrix *m)
{
    spoil(m->data, m->rows * m->cols);
}

static void
bad_linear(struct kernels *k, size_t n, const struct matrix *y, const struct matrix *x,
           const struct matrix *w, const struct matrix *c)
{
    real->linear(k, n, y, x, w, c);
    for (size_t i = 0; i < n; i++)
        spoil_matrix(&y[i]);
}

static void
bad_linear_dx(struct kernels *k, size_t n, const struct matrix *dx,
              const struct matrix *dy, const struct matrix *w, const struct matrix *c)
{
    real->linear_dx(k, n, dx, dy, w, c);
    spoil_matrix(dx);
}

static void
bad_linear_dw(struct kernels *k, size_t n, const struct matrix *dw,
              const struct matrix *dy, const struct matrix *x, bool add)
{
    real->linear_dw(k, n, dw, dy, x, add);
    for (size_t i = 0; i < n; i++)
        spoil_matrix(&dw[i]);
}

static void
bad_norm_bwd(struct kernels *k, const struct matrix *dx, float *dgain,
             const struct matrix *y, const struct matrix *dy, const struct matrix *x,
             const float *rstd, const float *gain, const struct matrix *c)
{
    real->norm_bwd(k, dx, dgain, y, dy, x, rstd, gain, c);
    spoil(dgain, x->cols);
}

static void
bad_loss(struct kernels *k, float *loss, const struct matrix *logits,
         const int32_t *label, float scale)
{
    real->cross_entropy(k, loss, logits, label, scale);
    spoil(loss, logits->rows);
}

static void
bad_embed(struct kernels *k, const struct matrix *y, const struct matrix *w,
          const int32_t *ids)
{
    real->embed(k, y, w, ids);
    spoil_matrix(y);
}

static void
bad_quantize(struct kernels *k, const struct matrix *to, const struct matrix *x,
             const float *amax, size_t n, const struct quant_spec *spec)
{
    real->quantize(k, to, x, amax, n, spec);
    spoil(to->scale2, 1);
    if (to->scale2 == bitten) // which tensors of a group share
        *bitten = venom;
}

static void
bad_swiglu_bwd(struct kernels *k, const struct matrix *d_gate_up,
               const struct matrix *d, const struct matrix *gate,
               const struct matrix *up)
{
    real->swiglu_bwd(k, d_gate_up, d, gate, up);
    spoil_matrix(d_gate_up);
}

static void
bad_attention_bwd(struct kernels *k, const struct matrix *dq, const struct matrix *dkey,
                  const struct matrix *dvalue, const struct matrix *dout,
                  const struct matrix *out, const float *lse, const struct matrix *q,
                  const struct matrix *key, const struct matrix *value, float *work,
                  const struct heads *h)
{
    real->attention_bwd(k, dq, dkey, dvalue, dout, out, lse, q, key, value, work, h);
    spoil(dq->data, h->query * h->dim);
}

enum operation {
    LINEAR,
    LINEAR_DX,
    LINEAR_DW,
    NORM_BWD,
    CROSS_ENTROPY,
    EMBED,
    SWIGLU_BWD,
    ATTENTION_BWD,
    QUANTIZE,
    OPERATIONS
};
static const char *const operations[OPERATIONS] = {
    "linear", "linear_dx",  "linear_dw",     "norm_bwd", "cross_entropy",
    "embed",  "swiglu_bwd", "attention_bwd", "quantize"
};

static void
poison(struct kernels *k, int which, int call, float what)
{
    bad = *(real = k->op);
    k->op = &bad;
    countdown = call;
    bitten = NULL;
    venom = what;
    switch ((enum operation)which) {
    case LINEAR:
        bad.linear = bad_linear;
        break;
    case LINEAR_DX:
        bad.linear_dx = bad_linear_dx;
        break;
    case LINEAR_DW:
        bad.linear_dw = bad_linear_dw;
        break;
    case NORM_BWD:
        bad.norm_bwd = bad_norm_bwd;
        break;
    case CROSS_ENTROPY:
        bad.cross_entropy = bad_loss;
        break;
    case EMBED:
        bad.embed = bad_embed;
        break;
    case SWIGLU_BWD:
        bad.swiglu_bwd = bad_swiglu_bwd;
        break;
    case ATTENTION_BWD:
        bad.attention_bwd = bad_attention_bwd;
        break;
    default:
        bad.quantize = bad_quantize;
        break;
    }
}

static void
heal(struct kernels *k)
{
    k->op = real;
}

/* A step that is spoilt: 1 if it was skipped, 0 if nothing was spoilt at all. */
static int
spoilt_step(const struct train_layout *layout, int which, int call, float what)
{
    struct model m, clean;
    struct train_result r;
    size_t n, n_after;
    model_open(&m, layout, call % 2);
    NEED(take_step(&m, 1, &r) == TRAIN_DONE);
    uint8_t *before = arrays(&m, &n);
    poison(m.k, which, call, what);
    if (which == QUANTIZE) // made again, wrongly
        NEED(train_ready(&m.t) == 0);
    enum train_outcome outcome = take_step(&m, 2, &r);
    bool fired = countdown <= 0;
    heal(m.k);
    if (fired) {
        CHECK_SAY(outcome != TRAIN_DONE, "%s call %d: step done", operations[which],
                  call);
        CHECK_SAY(*r.reason, "%s call %d: no reason", operations[which], call);
        CHECK(m.t.step == 2 && m.t.t == 1);
        CHECK(outcome == TRAIN_SKIPPED || layout->release);
    }
    if (fired && outcome == TRAIN_SKIPPED) {
        uint8_t *after = arrays(&m, &n_after);
        CHECK_SAY(n == n_after && memcmp(before, after, n) == 0,
                  "%s call %d: arrays changed", operations[which], call);
        free(after);
        // And the next step is as if it had been passed over.
        model_open(&clean, layout, call % 2);
        NEED(take_step(&clean, 1, &r) == TRAIN_DONE);
        train_pass_over(&clean.t);
        NEED(train_ready(&m.t) == 0);
        CHECK(take_step(&m, 3, &r) == TRAIN_DONE);
        CHECK(take_step(&clean, 3, &r) == TRAIN_DONE);
        uint8_t *a = arrays(&m, &n), *b = arrays(&clean, &n_after);
        CHECK_SAY(memcmp(a, b, n) == 0, "%s call %d: the step after differs",
                  operations[which], call);
        free(a);
        free(b);
        model_close(&clean);
    }
    free(before);
    model_close(&m);
    return fired;
}

static void
check_poison(void)
{
    const float venoms[] = { NAN, INFINITY, -INFINITY };
    struct train_layout kept = { .arrays = { .master = DT_BF16,
                                             .moments = MOMENTS_INT8 },
                                 .quant = &sweep,
                                 .share = true,
                                 .positions = 32 };
    struct train_layout released = kept;
    released.release = true;
    int cases = 0;
    for (int which = 0; which < OPERATIONS; which++) {
        int before = cases;
        for (int call = 1; call <= 14; call++) { // as many as projections
            float what = venoms[call % 3];
            // Infinity is more than any number, but a gain times it can be a NaN only
            // where it is not 0: all outputs here go on to something.
            cases += spoilt_step(call % 4 ? &kept : &released, which, call, what);
        }
        CHECK_SAY(cases > before, "%s is never called", operations[which]);
    }
    CHECK_SAY(cases >= 60, "%d cases", cases);
    printf("poison: %d cases\n", cases);
}

/* Nothing is to be learnt: no step, no division by 0. */
static void
check_no_labels(void)
{
    struct train_layout layout = { .arrays.master = DT_F32, .positions = 32 };
    struct model m;
    struct net_batch b;
    int32_t room[4][TOKENS];
    struct train_result r;
    model_open(&m, &layout, true);
    make_batch(&b, room, 1);
    for (int t = 0; t < TOKENS; t++)
        room[1][t] = -1;
    CHECK(train_step(&m.t, &b, 1, &r) == 0 && r.outcome == TRAIN_SKIPPED);
    CHECK_SAY(strstr(r.reason, "no token"), "%s", r.reason);
    CHECK(m.t.step == 1 && m.t.t == 0 && r.targets == 0);
    CHECK(take_step(&m, 2, &r) == TRAIN_DONE);
    model_close(&m);
}

/* A weight that is not finite is named, and nothing moves. */
static void
check_bad_weight(void)
{
    struct train_layout layout = { .arrays = { .master = DT_F32,
                                               .moments = MOMENTS_F32 },
                                   .quant = &sweep,
                                   .positions = 32 };
    for (size_t i = 0;; i++) {
        struct model m;
        struct train_result r;
        size_t n;
        model_open(&m, &layout, false);
        size_t rows = m.t.net.table.n;
        if (i < rows) {
            ((float *)m.t.held[i].device)[0] = i % 2 ? NAN : INFINITY;
            NEED(train_ready(&m.t) == 0);
            uint8_t *before = arrays(&m, &n);
            CHECK(take_step(&m, 1, &r) == TRAIN_SKIPPED);
            CHECK_SAY(strstr(r.reason, m.t.net.table.row[i].name), "%s", r.reason);
            uint8_t *after = arrays(&m, &n);
            CHECK(memcmp(before, after, n) == 0);
            free(before);
            free(after);
        }
        model_close(&m);
        if (i >= rows)
            return;
    }
}

/* ---- ways that lead to the same place ------------------------------------------------------ */

static uint8_t *
run(const struct train_layout *layout, enum clip_mode mode, size_t chunk, size_t *n)
{
    struct model m;
    struct train_result r;
    model_open(&m, layout, true);
    m.t.numbers.lr = 0.1F; // scales of FP8 do not stay
    m.t.numbers.mode = mode;
    m.t.numbers.chunk_rows = chunk;
    for (uint64_t s = 1; s <= STEPS; s++)
        CHECK(take_step(&m, s, &r) == TRAIN_DONE);
    uint8_t *all = arrays(&m, n);
    model_close(&m);
    return all;
}

static void
check_ways(void)
{
    struct train_layout layout = { .arrays = { .master = DT_BF16,
                                               .moments = MOMENTS_INT8 },
                                   .quant = &sweep,
                                   .share = true,
                                   .positions = 32 };
    for (int mode = CLIP_PREV; mode <= CLIP_TENSOR; mode++) {
        size_t n, n2;
        struct train_layout other = layout;
        uint8_t *truth = run(&layout, (enum clip_mode)mode, 0, &n);
        for (int way = 1; way < 8; way++) {
            other.release = way & 1;
            other.recompute = way & 2;
            uint8_t *got = run(&other, (enum clip_mode)mode, way & 4 ? 3 : 0, &n2);
            CHECK_SAY(n == n2 && memcmp(truth, got, n) == 0, "clip mode %d, way %d",
                      mode, way);
            free(got);
        }
        free(truth);
    }
}

/* E4M3 that is written before each product is that which is kept. */
static void
check_fp8_of(struct train_layout layout, const char *what)
{
    size_t n[3];
    uint8_t *f32 = run(&layout, CLIP_PREV, 0, &n[0]);
    layout.fp8 = true;
    uint8_t *kept = run(&layout, CLIP_PREV, 0, &n[1]);
    layout.pack_fp8 = true;
    uint8_t *packed = run(&layout, CLIP_PREV, 0, &n[2]);
    CHECK_SAY(n[0] == n[1] && memcmp(f32, kept, n[0]) != 0, "%s: not of FP8", what);
    CHECK_SAY(n[1] == n[2] && memcmp(kept, packed, n[1]) == 0, "%s: packed", what);
    free(f32);
    free(kept);
    free(packed);
}

static void
check_fp8(void)
{
    static const struct quant_spec sweep1 = { .kind = QUANT_SWEEP1 };
    struct train_layout layout = { .arrays = { .master = DT_BF16,
                                               .moments = MOMENTS_INT8 },
                                   .quant = &sweep,
                                   .share = true,
                                   .positions = 32 };
    check_fp8_of(layout, "one scale for a product");
    layout.recompute = layout.release = true;
    check_fp8_of(layout, "recomputed");
    layout.delayed = true;
    check_fp8_of(layout, "delayed scales");
    layout.quant_from = 2;
    check_fp8_of(layout, "a first step that is not quantized");
    layout.quant_from = 0;
    layout.share = false;
    layout.quant = &sweep1;
    check_fp8_of(layout, "a scale for each tensor");
}

/* Gradients of a step of some of the passes from 0 on, one behind the other; nothing moves. */
static float *
gradients(const struct train_layout *layout, const struct net_batch *b, size_t passes,
          double *loss, size_t *n)
{
    struct model m;
    struct train_result r;
    model_open(&m, layout, false);
    m.t.numbers.lr = 0;
    CHECK(train_step(&m.t, b, passes, &r) == 0 && r.outcome == TRAIN_DONE);
    *n = 0;
    for (size_t i = 0; i < m.t.net.table.n; i++)
        *n += (size_t)m.t.net.table.row[i].numel;
    float *all = malloc(*n * sizeof *all + 1), *to = all;
    NEED(all);
    for (size_t i = 0; i < m.t.net.table.n; i++) {
        size_t numel = (size_t)m.t.net.table.row[i].numel;
        memcpy(to, m.t.tensor[i].grad.data, numel * sizeof *to);
        to += numel;
    }
    *loss = r.loss;
    model_close(&m);
    return all;
}

/* A step's gradient is the sum of those of its passes, each computed alone, in their order and
 * from the first one on.  The scale of a pass is 1 / targets: with 2^k of them it is exact, so
 * that a pass alone differs by a power of two only. */
static void
check_passes(void)
{
    enum { PASSES = 4, LABELS = 16 };
    struct train_layout layout = { .arrays = { .master = DT_F32,
                                               .moments = MOMENTS_F32 },
                                   .positions = 32 },
                        alone = layout;
    struct net_batch b[PASSES];
    static int32_t room[PASSES][4][TOKENS];
    double loss, sum = 0;
    size_t n, same;
    alone.one_pass = true;
    for (uint64_t s = 0; s < PASSES; s++) {
        make_batch(&b[s], room[s], s + 1);
        for (int t = 0; t < TOKENS; t++)
            room[s][1][t] = t < LABELS ? t * 7 % 40 : -1;
    }
    float *all = gradients(&layout, b, PASSES, &loss, &n), *want = NULL;
    for (size_t s = 0; s < PASSES; s++) {
        double part;
        float *one = gradients(&alone, &b[s], 1, &part, &same);
        NEED(n == same);
        for (size_t i = 0; i < n; i++)
            one[i] /= PASSES;
        for (size_t i = 0; want && i < n; i++)
            want[i] += one[i];
        sum += part * LABELS;
        if (!want)
            want = one;
        else
            free(one);
    }
    CHECK(memcmp(all, want, n * sizeof *all) == 0);
    CHECK(loss == sum / (PASSES * LABELS));
    free(all);
    free(want);
}

/* Frozen tensors are not even in memory but for their masters. */
static void
check_last_layers(void)
{
    struct train_layout layout = { .arrays = { .master = DT_F32,
                                               .moments = MOMENTS_INT8 },
                                   .last_layers = 1,
                                   .positions = 32 };
    struct model m;
    struct train_result r;
    size_t n;
    model_open(&m, &layout, false);
    size_t rows = m.t.net.table.n, all = m.t.arrays.n;
    for (size_t i = 0; i < all; i++)
        CHECK((i < rows || strstr(m.t.arrays.v[i].name, "layers.1.")) ==
              (m.t.held[i].device != NULL));
    m.t.arrays.n = rows; // their masters
    uint8_t *before = arrays(&m, &n);
    for (uint64_t s = 1; s <= STEPS; s++)
        CHECK(take_step(&m, s, &r) == TRAIN_DONE);
    uint8_t *after = arrays(&m, &n);
    size_t at = 0;
    for (size_t i = 0; i < rows; i++) {
        size_t bytes = (size_t)m.t.arrays.v[i].bytes;
        bool same = memcmp(before + at, after + at, bytes) == 0;
        CHECK_SAY(same == (m.t.net.table.row[i].layer != 1), "%s",
                  m.t.arrays.v[i].name);
        at += bytes;
    }
    free(before);
    free(after);
    m.t.arrays.n = all;
    model_close(&m);
}

/* Ranks need the same but for their parts. */
static void
check_parts_of(const struct device *like, struct train_layout layout)
{
    enum { RANKS = 7 };
    struct config c = small;
    struct err err = { 0 };
    struct comm comm;
    uint64_t rest[RANKS], known[RANKS], least = UINT64_MAX, most = 0;
    c.hidden = 256;
    c.ffn = 512;
    c.vocab = 1000;
    comm_one(&comm, &err);
    comm.size = RANKS;
    layout.comm = &comm;
    layout.positions = 64;
    for (unsigned q = 0; q < RANKS; q++) {
        const struct cpu_kind kind = { DT_F32, isa_best(), 2 };
        struct kernels *k = kernels_dry(like, &kind, &err);
        struct train t;
        comm.rank = q;
        NEED(k && train_open(&t, &c, k, &layout, &err) == 0);
        uint64_t parts = train_part_bytes(&t, q);
        for (unsigned other = 0; q == 0 && other < RANKS; other++)
            known[other] = train_part_bytes(&t, other); // as rank 0 knows it
        CHECK(parts == known[q]);
        rest[q] = k->usage.total - parts;
        least = parts < least ? parts : least;
        most = parts > most ? parts : most;
        train_close(&t);
        kernels_close(k);
        CHECK_SAY(rest[q] == rest[0], "rank %u: %llu besides its parts, rank 0 %llu", q,
                  (unsigned long long)rest[q], (unsigned long long)rest[0]);
    }
    CHECK(least < most);
}

static void
check_parts(void)
{
    const struct device cpu = kernels_cpu_device,
                        gpu = kernels_cuda_device(DT_BF16, false);
    struct train_layout layout = {
        .arrays = { .master = DT_F32, .moments = MOMENTS_INT8 }, .quant = &sweep
    };
    check_parts_of(&cpu, layout);
    check_parts_of(&gpu, layout);
    layout.fp8 = true;
    check_parts_of(&gpu, layout);
    layout.pack_fp8 = true;
    check_parts_of(&gpu, layout);
    layout.pack_fp8 = false;
    layout.quant_from = 5;
    layout.last_layers = 1;
    layout.arrays.moments = MOMENTS_BF16;
    check_parts_of(&gpu, layout);
}

int
main(void)
{
    check_poison();
    check_bad_weight();
    check_no_labels();
    check_ways();
    check_fp8();
    check_passes();
    check_last_layers();
    check_parts();
    return check_end();
}
