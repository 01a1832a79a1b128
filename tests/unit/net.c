/* SPDX-License-Identifier: MIT */
/* net: gradients against finite differences; the same bits for any number of threads and
 * any instruction set; documents that do not see each other.
 *
 *   net DIR      also a golden model: config.json, model.safetensors and
 *                expect.safetensors with ids, mask, loss, logits and gradients in float64
 *
 * With products of bf16 as well: those too have the same bits everywhere, and are as close
 * to f32 as roundings of 2^-9 make them.
 */
#include "lib/model/net.h"
#include "lib/model/arch/list.h"

#include "lib/base/num.h"
#include "lib/format/store.h"
#include "lib/nvfp4/quant.h"
#include "tests/unit/check.h"

#include <math.h>

static struct guard guard;

/* ---- a model in memory ------------------------------------------------------------------ */

struct model {
    struct net net;
    struct kernels *k;
    struct err err;
};

static void
model_open(struct model *m, const struct config *c, enum dtype compute, enum isa isa,
           unsigned threads)
{
    *m = (struct model){ 0 };
    const struct cpu_kind kind = { compute, isa, threads };
    m->k = kernels_cpu(&kind, &m->err);
    NEED(m->k && net_open(&m->net, c, m->k, 128, &m->err) == 0);
    for (size_t i = 0; i < m->net.table.n; i++) {
        const struct row *r = &m->net.table.row[i];
        struct net_tensor *t = &m->net.t[i];
        size_t rows = r->rank == 2 ? (size_t)r->shape[0] : 1, bytes = r->numel * 4;
        t->w = matrix_of(DT_F32, kernels_alloc(m->k, MEMORY_WEIGHTS, bytes), rows,
                         (size_t)r->shape[r->rank - 1]);
        t->grad = t->w;
        t->grad.data = kernels_alloc(m->k, MEMORY_GRADIENTS, bytes);
        NEED(t->w.data && t->grad.data);
    }
}

static float *
values(struct model *m, size_t i)
{
    return m->net.t[i].w.data;
}

static void
model_close(struct model *m)
{
    for (size_t i = 0; i < m->net.table.n; i++) {
        kernels_free(m->k, values(m, i));
        kernels_free(m->k, m->net.t[i].grad.data);
    }
    net_close(&m->net);
    kernels_close(m->k);
}

static void
model_random(struct model *m)
{
    for (size_t i = 0; i < m->net.table.n; i++) {
        const struct row *r = &m->net.table.row[i];
        for (size_t e = 0; e < r->numel; e++) {
            double u = check_random(i * 1000003 + e) * 0x1p-31 - 1;
            values(m, i)[e] = (float)(r->rank == 1 ? 1 + 0.2 * u : 0.25 * u);
        }
    }
}

static double
mean_loss(struct model *m, const struct net_batch *b, float scale)
{
    const struct distill *d = &m->net.distill;
    float *loss = calloc(2 * b->tokens, sizeof *loss), *kl = loss + b->tokens;
    double sum = 0, T = (double)d->temperature;
    size_t counted = 0;
    NEED(loss);
    CHECK_SAY(net_pass(&m->net, b, scale, &(struct net_losses){ loss, kl }, NULL) == 0,
              "%s", m->err.msg);
    for (size_t t = 0; t < b->tokens; t++) {
        double ce = (double)loss[t], share = (double)d->share;
        sum += m->net.teacher ? (1 - share) * ce + share * T * T * (double)kl[t] : ce;
        counted += b->label[t] >= 0;
    }
    free(loss);
    return sum / (double)counted;
}

/* Another model of random weights on the device of m, which learns from it. */
static void
teacher_open(struct model *t, struct model *m, const struct config *c)
{
    *t = (struct model){ .k = m->k };
    NEED(net_open(&t->net, c, t->k, 128, &m->err) == 0);
    for (size_t i = 0; i < t->net.table.n; i++) {
        const struct row *r = &t->net.table.row[i];
        struct matrix *w = &t->net.t[i].w;
        *w = matrix_of(DT_F32, NULL, r->rank == 2 ? (size_t)r->shape[0] : 1,
                       (size_t)r->shape[r->rank - 1]);
        NEED((w->data = kernels_alloc(t->k, MEMORY_TEACHER, r->numel * 4)));
    }
    model_random(t);
    m->net.teacher = &t->net;
}

static void
teacher_close(struct model *t, struct model *m)
{
    for (size_t i = 0; i < t->net.table.n; i++)
        kernels_free(t->k, values(t, i));
    net_close(&t->net);
    m->net.teacher = NULL;
}

/* ---- finite differences ------------------------------------------------------------------- */

enum { TOKENS = 21 };

static const struct config small = {
    .arch = &arch_qwen3,
    .hidden = 12,
    .layers = 2,
    .heads = 6,
    .kv_heads = 3,
    .head_dim = 4,
    .ffn = 20,
    .vocab = 29,
    .positions = 128,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
    .tied = true,
};

/* Two documents, of 13 and 8 tokens. */
static void
make_batch(struct net_batch *b, int32_t room[4][TOKENS], uint32_t vocab)
{
    for (int t = 0; t < TOKENS; t++) {
        int first = t < 13 ? 0 : 13;
        room[0][t] = (int32_t)(check_random((uint64_t)t + 5) % vocab);
        room[1][t] =
            t % 4 == 0 ? -1 : (int32_t)(check_random((uint64_t)t + 99) % vocab);
        room[2][t] = t - first;
        room[3][t] = first;
    }
    *b = (struct net_batch){ TOKENS, room[0], room[1], room[2], room[3], NULL };
}

static size_t
labels(const struct net_batch *b)
{
    size_t n = 0;
    for (size_t t = 0; t < b->tokens; t++)
        n += b->label[t] >= 0;
    return n;
}

/* Some elements of every tensor: the slope of the loss by two evaluations.  f32 losses
 * are good to 1e-7, so steps are large and tolerances wide; a wrong term is far off. */
static void
check_slopes(bool tied, const struct distill *how)
{
    struct config c = small, wide = small;
    struct net_batch b;
    int32_t room[4][TOKENS];
    struct model m, teacher;
    c.tied = tied;
    make_batch(&b, room, c.vocab);
    model_open(&m, &c, DT_F32, isa_best(), 1);
    model_random(&m);
    if (how) {
        wide.hidden = 20;
        wide.layers = 1;
        teacher_open(&teacher, &m, &wide);
        m.net.distill = *how;
    }
    mean_loss(&m, &b, 1 / (float)labels(&b));
    double worst = 0;
    for (size_t i = 0; i < m.net.table.n; i++) {
        const struct row *r = &m.net.table.row[i];
        for (size_t e = 0; e < r->numel; e += r->numel / 5 + 1) {
            float *x = &values(&m, i)[e], old = *x, step = 4e-3F;
            *x = old + step;
            double up = mean_loss(&m, &b, 0);
            *x = old - step;
            double down = mean_loss(&m, &b, 0);
            *x = old;
            double slope = (up - down) / (2 * (double)step);
            double found = (double)((float *)m.net.t[i].grad.data)[e];
            double off = fabs(slope - found);
            worst = fmax(worst, off);
            CHECK_SAY(off < 4e-4 + 0.01 * fabs(slope), "%s[%zu]: slope %g, gradient %g",
                      r->name, e, slope, found);
        }
    }
    printf("slopes, %s%s: off by at most %.2g\n", tied ? "tied" : "untied",
           how ? ", with a teacher" : "", worst);
    if (how)
        teacher_close(&teacher, &m);
    model_close(&m);
}

/* Who has the teacher's bits learns nothing: no divergence, no gradient. */
static void
check_same_bits(enum dtype compute)
{
    struct net_batch b;
    int32_t room[4][TOKENS];
    struct model m, teacher;
    make_batch(&b, room, small.vocab);
    model_open(&m, &small, compute, isa_best(), 2);
    model_random(&m);
    teacher_open(&teacher, &m, &small);
    for (int cold = 0; cold < 2; cold++) {
        m.net.distill = (struct distill){ 1, cold ? 0.37F : 1 };
        CHECK(mean_loss(&m, &b, 1) == 0);
        for (size_t i = 0; i < m.net.table.n; i++)
            for (size_t e = 0; e < m.net.table.row[i].numel; e++)
                CHECK(((float *)m.net.t[i].grad.data)[e] == 0);
        m.net.distill.share = 0; // and of cross-entropy there is nothing new
        double mixed = mean_loss(&m, &b, 0);
        m.net.teacher = NULL;
        double alone = mean_loss(&m, &b, 0);
        m.net.teacher = &teacher.net;
        CHECK_SAY(fabs(mixed - alone) < 1e-6, "%.9g, alone %.9g", mixed, alone);
    }
    teacher_close(&teacher, &m);
    model_close(&m);
}

/* ---- the same bits ------------------------------------------------------------------------- */

static void
check_paths(enum dtype compute)
{
    struct net_batch b;
    int32_t room[4][TOKENS];
    struct model truth, m;
    make_batch(&b, room, small.vocab);
    model_open(&truth, &small, compute, ISA_SCALAR, 1);
    model_random(&truth);
    double want = mean_loss(&truth, &b, 0.1F);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (unsigned threads = 1; threads <= 4 && isa_have((enum isa)isa); threads++) {
            model_open(&m, &small, compute, (enum isa)isa, threads);
            model_random(&m);
            double loss = mean_loss(&m, &b, 0.1F);
            CHECK_SAY(loss == want, "%s: loss %a, scalar %a", isa_name((enum isa)isa),
                      loss, want);
            for (size_t i = 0; i < m.net.table.n; i++)
                CHECK_SAY(memcmp(m.net.t[i].grad.data, truth.net.t[i].grad.data,
                                 (size_t)m.net.table.row[i].numel * 4) == 0,
                          "%s, %u threads: gradient of %s", isa_name((enum isa)isa),
                          threads, m.net.table.row[i].name);
            model_close(&m);
        }
    model_close(&truth);
}

/* A document's losses do not depend on what stands before it. */
static void
check_documents(enum dtype compute)
{
    struct net_batch b, second;
    int32_t room[4][TOKENS], zeros[TOKENS] = { 0 };
    float loss[TOKENS], alone[TOKENS];
    struct model m;
    make_batch(&b, room, small.vocab);
    second = (struct net_batch){ TOKENS - 13,  room[0] + 13, room[1] + 13,
                                 room[2] + 13, zeros,        NULL };
    model_open(&m, &small, compute, isa_best(), 2);
    model_random(&m);
    CHECK(net_pass(&m.net, &b, 0, &(struct net_losses){ loss, NULL }, NULL) == 0);
    CHECK(net_pass(&m.net, &second, 0, &(struct net_losses){ alone, NULL }, NULL) == 0);
    CHECK(memcmp(loss + 13, alone, sizeof *loss * second.tokens) == 0);
    model_close(&m);
}

/* ---- bf16 beside f32 ----------------------------------------------------------------------- */

/* |a - b| / |b| of vectors. */
static double
relative(const float *a, const float *b, size_t n)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return size > 0 ? sqrt(off / size) : sqrt(off);
}

/* Every gradient differs, by roundings of 2^-9 at a dozen products on the way; twice what
 * is found in this model, whose narrow layers average out little. */
static void
check_rounding(void)
{
    struct net_batch b;
    int32_t room[4][TOKENS];
    struct model f32, bf16;
    make_batch(&b, room, small.vocab);
    model_open(&f32, &small, DT_F32, isa_best(), 1);
    model_open(&bf16, &small, DT_BF16, isa_best(), 1);
    model_random(&f32);
    model_random(&bf16);
    double want = mean_loss(&f32, &b, 0.1F), loss = mean_loss(&bf16, &b, 0.1F);
    double off = fabs(loss / want - 1), least = 1, most = 0;
    for (size_t i = 0; i < f32.net.table.n; i++) {
        double grad = relative(bf16.net.t[i].grad.data, f32.net.t[i].grad.data,
                               f32.net.table.row[i].numel);
        least = fmin(least, grad);
        most = fmax(most, grad);
    }
    printf("bf16: loss off by %.2g, gradients by %.2g to %.2g\n", off, least, most);
    CHECK_SAY(off > 0 && off < 1e-3, "loss %a, in f32 %a", loss, want);
    CHECK_SAY(least > 1e-4 && most < 6e-2, "gradients off by %g to %g", least, most);
    model_close(&f32);
    model_close(&bf16);
}

/* Sizes that are no numbers are refused, not wrapped. */
static void
check_sizes(void)
{
    static const size_t tokens[] = { SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX / 64,
                                     (size_t)1 << 57 };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        struct model m;
        struct net_cache cache;
        model_open(&m, &small, DT_F32, ISA_SCALAR, 1);
        CHECK(net_reserve(&m.net, tokens[i], 1, true) == -1);
        CHECK_ERR(m.err, ERR_MEMORY, "positions has more than 2^63 bytes");
        m.err = (struct err){ 0 };
        CHECK(net_cache_open(&cache, &m.net, tokens[i]) == -1);
        CHECK(m.err.kind == ERR_MEMORY);
        net_cache_close(&cache);
        m.err = (struct err){ 0 };
        model_close(&m);
    }
}

/* ---- golden models ---------------------------------------------------------------------------- */

static void
open_store(struct store *s, const char *dir, const char *leaf, struct err *err)
{
    char path[4096];
    struct store_options opt = { .guard = &guard };
    snprintf(path, sizeof path, "%s/%s", dir, leaf);
    NEED(store_open(s, path, &opt, err) == 0);
}

static void *
load(struct store *s, const char *name, size_t *n)
{
    struct err err = { 0 };
    const struct tensor *t = store_find(s, slice_of(name));
    if (!t)
        return NULL;
    void *p = malloc((size_t)t->nbytes + 1);
    NEED(p && store_read(s, t, 0, p, (size_t)t->nbytes, &err) == 0);
    *n = (size_t)t->numel;
    return p;
}

struct golden {
    struct model m;
    struct store weights, expect;
    struct net_batch b;
    int32_t *room[4];
    float *loss, *logits;
    void *owned[1024];
    size_t n_owned;
};

static void
golden_open(struct golden *g, enum dtype compute, const char *dir)
{
    struct err err = { 0 };
    struct config c;
    char path[4096], text[8192];
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "r");
    NEED(f);
    struct slice config = { text, fread(text, 1, sizeof text, f) };
    fclose(f);
    NEED(config_parse(&c, path, config, &err) == 0);
    open_store(&g->weights, dir, "model.safetensors", &err);
    open_store(&g->expect, dir, "expect.safetensors", &err);
    model_open(&g->m, &c, compute, isa_best(), 2);
    for (size_t i = 0; i < g->m.net.table.n; i++) {
        size_t n;
        float *w = load(&g->weights, g->m.net.table.row[i].name, &n);
        NEED(w && n == g->m.net.table.row[i].numel);
        memcpy(values(&g->m, i), w, n * sizeof *w);
        free(w);
    }
    size_t n = 0;
    int32_t *ids = load(&g->expect, "ids", &n);
    uint8_t *mask = load(&g->expect, "mask", &n);
    const struct tensor *t = store_find(&g->expect, slice_of("ids"));
    size_t length = (size_t)t->shape[1];
    NEED(n > 0);
    for (int i = 0; i < 4; i++)
        NEED((g->room[i] = calloc(n, sizeof(int32_t))));
    for (size_t k = 0; k < n; k++) {
        bool last = k % length == length - 1;
        g->room[0][k] = ids[k];
        g->room[1][k] = !last && mask[k + 1] ? ids[k + 1] : -1;
        g->room[2][k] = (int32_t)(k % length);
        g->room[3][k] = (int32_t)(k - k % length);
    }
    g->b =
        (struct net_batch){ n, g->room[0], g->room[1], g->room[2], g->room[3], NULL };
    g->loss = calloc(n, sizeof *g->loss);
    g->logits = calloc(n * c.vocab, sizeof *g->logits);
    NEED(g->loss && g->logits);
    free(ids);
    free(mask);
}

/* Projections as NVFP4, the product's weight; what it leaves is for golden_close. */
static void
golden_quantize(struct golden *g, enum quant kind)
{
    struct quant_spec spec = { .kind = kind, .isa = isa_best(), .source = DT_F32 };
    for (size_t i = 0; i < g->m.net.table.n; i++) {
        const struct row *r = &g->m.net.table.row[i];
        struct matrix *w = &g->m.net.t[i].w;
        if (!r->quantized)
            continue;
        size_t n = (size_t)r->numel, bad;
        uint8_t *codes = malloc(n / 2), *scales = malloc(n / 16);
        NEED(codes && scales && g->n_owned + 4 < 1024);
        struct quant_scale t = nvfp4_scale(&spec, nvfp4_amax(DT_F32, w->data, n, &bad));
        nvfp4_quant(codes, scales, w->data, w->rows, w->cols, 0, &spec, &t, NULL);
        g->owned[g->n_owned++] = codes;
        g->owned[g->n_owned++] = scales;
        kernels_free(g->m.k, values(&g->m, i));
        float *scale2 = malloc(sizeof *scale2);
        NEED(scale2);
        *scale2 = t.scale2;
        g->owned[g->n_owned++] = scale2;
        *w = matrix_of(DT_NVFP4, codes, w->rows, w->cols);
        w->scales = scales;
        w->scale2 = scale2;
    }
}

static void
golden_check(struct golden *g, const char *prefix, double loss_limit, double grad_limit)
{
    char name[256];
    size_t n, counted = labels(&g->b);
    double sum = 0, worst = 0;
    CHECK_SAY(net_pass(&g->m.net, &g->b, 1 / (float)counted,
                       &(struct net_losses){ g->loss, NULL }, g->logits) == 0,
              "%s", g->m.err.msg);
    for (size_t t = 0; t < g->b.tokens; t++)
        sum += (double)g->loss[t];
    snprintf(name, sizeof name, "%sloss", prefix);
    float *loss = load(&g->expect, name, &n);
    snprintf(name, sizeof name, "%slogits", prefix);
    float *logits = load(&g->expect, name, &n);
    double off = fabs(sum / (double)counted / (double)*loss - 1);
    double logits_off = relative(g->logits, logits, n);
    for (size_t i = 0; i < g->m.net.table.n; i++) {
        snprintf(name, sizeof name, "%sgrad.%s", prefix, g->m.net.table.row[i].name);
        float *want = load(&g->expect, name, &n);
        NEED(want);
        double grad = relative(g->m.net.t[i].grad.data, want, n);
        worst = fmax(worst, grad);
        CHECK_SAY(grad < grad_limit, "%s: off by %g", name, grad);
        free(want);
    }
    printf("%sloss %.6f, off by %.2g; logits %.2g; gradients at most %.2g\n", prefix,
           (double)*loss, off, logits_off, worst);
    CHECK_SAY(off < loss_limit, "%sloss: off by %g", prefix, off);
    CHECK_SAY(logits_off < 10 * loss_limit, "%slogits: off by %g", prefix, logits_off);
    free(loss);
    free(logits);
}

static void
golden_close(struct golden *g)
{
    for (size_t i = 0; i < g->m.net.table.n; i++)
        if (g->m.net.t[i].w.dtype == DT_NVFP4)
            g->m.net.t[i].w.data = NULL;
    model_close(&g->m);
    for (size_t i = 0; i < g->n_owned; i++)
        free(g->owned[i]);
    for (int i = 0; i < 4; i++)
        free(g->room[i]);
    free(g->loss);
    free(g->logits);
    store_close(&g->weights);
    store_close(&g->expect);
}

static void
check_golden(const char *dir)
{
    static const struct {
        const char *prefix;
        double loss, grad;
        enum dtype compute;
        enum quant kind;
    } ways[] = { { "", 1e-4, 1e-3, DT_F32, QUANT_COUNT },
                 { "ste_max.", 2e-3, 2e-2, DT_F32, QUANT_MAX },
                 { "ste_torchao.", 2e-3, 2e-2, DT_F32, QUANT_TORCHAO },
                 // bf16: three times what is found for the models that there are
                 { "", 1e-3, 3e-2, DT_BF16, QUANT_COUNT },
                 { "ste_max.", 2e-3, 3e-2, DT_BF16, QUANT_MAX },
                 { "ste_torchao.", 2e-3, 3e-2, DT_BF16, QUANT_TORCHAO } };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        static struct golden g;
        g = (struct golden){ 0 };
        golden_open(&g, ways[i].compute, dir);
        if (ways[i].kind != QUANT_COUNT)
            golden_quantize(&g, ways[i].kind);
        printf("%s: ", dtype_name(ways[i].compute));
        golden_check(&g, ways[i].prefix, ways[i].loss, ways[i].grad);
        golden_close(&g);
    }
}

int
main(int argc, char **argv)
{
    check_slopes(true, NULL);
    check_slopes(false, NULL);
    check_slopes(true, &(struct distill){ 1, 1 });
    check_slopes(false, &(struct distill){ 0.7F, 1.7F });
    check_same_bits(DT_F32);
    check_same_bits(DT_BF16);
    check_paths(DT_F32);
    check_paths(DT_BF16);
    check_documents(DT_F32);
    check_documents(DT_BF16);
    check_rounding();
    check_sizes();
    for (int i = 1; i < argc; i++)
        check_golden(argv[i]);
    return check_end();
}
