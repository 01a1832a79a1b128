/* SPDX-License-Identifier: MIT */
/* plan: what a conversion decides before it writes a byte: names, types, order, where the
 * bytes come from, who shares a tensor scale, and what is refused. */
#include "lib/convert/plan.h"
#include "tests/unit/model_files.h"

enum { LAYERS = 2, ROWS = 2 + 11 * LAYERS }; // of a tied model

static char *const model[] = { (char *)(uintptr_t) "m.safetensors" };

static int
open_plan(struct plan *p, struct pack *c, const char *path, struct err *err)
{
    char *paths[] = { (char *)(uintptr_t)path };
    *err = (struct err){ 0 };
    heard = (struct heard){ 0 };
    return plan_open(p, c, paths, 1, err);
}

static const struct item *
item_named(const struct plan *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->item[i].name, name) == 0)
            return &p->item[i];
    return NULL;
}

#define OPENS(p, c, path)                                                              \
    do {                                                                               \
        struct err e;                                                                  \
        int opened = open_plan(p, c, path, &e);                                        \
        CHECK_SAY(opened == 0, "%s", e.msg);                                           \
    } while (0)

#define REFUSED(c, path, kind, words)                                                  \
    do {                                                                               \
        struct plan refused;                                                           \
        struct err e;                                                                  \
        CHECK(open_plan(&refused, c, path, &e) == -1);                                 \
        CHECK_ERR(e, kind, words);                                                     \
        plan_close(&refused);                                                          \
    } while (0)

/* From a container into itself every tensor is copied. */
static void
check_copy(void)
{
    struct plan p;
    struct pack c = pack_to("x.safetensors");
    OPENS(&p, &c, *model);
    CHECK(p.n == ROWS && p.n_nvfp4 == 0);
    for (size_t i = 0; i < p.n; i++)
        CHECK_SAY(p.item[i].how == HOW_COPY && p.item[i].dtype == DT_BF16, "%s",
                  p.item[i].name);
    plan_close(&p);
}

/* A .dat knows no bf16 and has the head of a tied model, and the order of a model. */
static void
check_dat(void)
{
    struct plan p;
    struct pack c = pack_to("x.dat");
    OPENS(&p, &c, *model);
    NEED(p.n == ROWS + 1);
    CHECK(strcmp(p.item[0].name, TABLE_EMBED) == 0);
    CHECK(strcmp(p.item[ROWS].name, TABLE_HEAD) == 0);
    CHECK(strcmp(p.item[1].name, "model.layers.0.self_attn.q_proj.weight") == 0);
    for (size_t i = 0; i < p.n; i++)
        CHECK_SAY(p.item[i].how == HOW_CONVERT && p.item[i].dtype == DT_F16, "%s",
                  p.item[i].name);
    plan_close(&p);
    c.head = HEAD_TIE;
    OPENS(&p, &c, *model);
    CHECK(p.n == ROWS && p.model.tied && !item_named(&p, TABLE_HEAD));
    plan_close(&p);
    c.head = HEAD_UNTIE;
    OPENS(&p, &c, *model);
    CHECK(p.n == ROWS + 1 && !p.model.tied &&
          memmem(p.config.p, p.config.n, "\"tie_word_embeddings\":false", 27));
    plan_close(&p);
}

/* Who shares a tensor scale with the named tensor. */
static size_t
group_size(const struct plan *p, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_nvfp4; i++)
        if (strcmp(p->nvfp4[i]->name, name) == 0)
            for (const struct nvfp4 *t = p->nvfp4[i]->group; t; t = t->next)
                n++;
    return n;
}

static void
check_quantized(void)
{
    struct plan p;
    struct pack c = pack_to("x.dat");
    c.quantize = true;
    OPENS(&p, &c, *model);
    CHECK(p.spec.kind == QUANT_SWEEP && p.share && strcmp(c.quant, "sweep") == 0);
    CHECK(p.n_nvfp4 == 7 * LAYERS + 1); // and the head
    const struct item *codes =
        item_named(&p, "model.layers.1.mlp.gate_proj.weight.qdata");
    CHECK(codes && codes->how == HOW_NVFP4 && codes->dtype == DT_U8 &&
          codes->shape[0] == 128 && codes->shape[1] == 32);
    const struct item *scale2 =
        item_named(&p, "model.layers.1.mlp.gate_proj.weight.scale2");
    CHECK(scale2 && scale2->dtype == DT_F32 && scale2->numel == 1);
    CHECK(group_size(&p, "model.layers.0.self_attn.k_proj.weight") == 3);
    CHECK(group_size(&p, "model.layers.0.mlp.up_proj.weight") == 2);
    CHECK(group_size(&p, "model.layers.0.mlp.down_proj.weight") == 1);
    plan_close(&p);

    c = pack_to("x.dat");
    c.quantize = true;
    c.quant = "sweep1";
    select_add(&c.quantized, false, "*.mlp.*");
    OPENS(&p, &c, *model);
    CHECK(p.n_nvfp4 == 3 * LAYERS && !p.share);
    CHECK(!item_named(&p, "model.layers.0.mlp.up_proj.weight.scale2"));
    CHECK(group_size(&p, "model.layers.0.mlp.up_proj.weight") == 1);
    plan_close(&p);
}

static void
check_checkpoint(void)
{
    struct plan p;
    struct pack c = pack_to("x.ckpt");
    c.master = "bf16";
    c.moments = "int8";
    OPENS(&p, &c, *model);
    CHECK(p.n == 5 * ROWS); // a master, two moments and their scales
    const struct item *m = item_named(&p, "adam.m/" TABLE_EMBED ".scale");
    CHECK(m && m->how == HOW_ZERO && m->numel == 96 * 64 / 32);
    plan_close(&p);
}

/* The entries of an NVFP4 file stay what they are, or change their spelling. */
static void
check_kept(void)
{
    struct err err = { 0 };
    struct plan p;
    struct pack c = pack_to("q.safetensors");
    c.quantize = true;
    NEED(pack_run(&c, (char **)(uintptr_t)model, 1, &err) == 0);
    struct pack d = pack_to("x.dat");
    OPENS(&p, &d, "q.safetensors");
    const struct item *s = item_named(&p, "model.layers.0.mlp.up_proj.weight.scale");
    CHECK(s && s->how == HOW_SCALES && p.n_nvfp4 == 1); // the head, which is made
    plan_close(&p);
    d.dtype = WISH_F32;
    OPENS(&p, &d, "q.safetensors");
    s = item_named(&p, "model.layers.0.mlp.up_proj.weight");
    CHECK(s && s->how == HOW_CONVERT && s->dtype == DT_F32);
    plan_close(&p);
}

static void
check_refused(void)
{
    struct pack c = pack_to("x.dat");
    select_add(&c.select, false, "nothing.*");
    REFUSED(&c, *model, ERR_USAGE, "no tensor matches \"nothing.*\"");
    c = pack_to("x.dat");
    c.n_renames = 1;
    c.rename[0] = (struct rename){ "a*", "b*", false };
    REFUSED(&c, *model, ERR_USAGE, "--rename: no tensor matches \"a*\"");
    c.rename[0] = (struct rename){ "model.layers.*", "x", false };
    REFUSED(&c, *model, ERR_USAGE, "--rename: two tensors would be named \"x\"");
    c = pack_to("x.ckpt");
    c.master = "bf16";
    c.moments = "int8";
    select_add(&c.select, true, "model.norm.weight");
    REFUSED(&c, *model, ERR_FORMAT, "\"model.norm.weight\" is missing");
    c = pack_to("x.dat");
    c.quantize = true;
    c.quant = "max";
    c.criterion = "mae";
    REFUSED(&c, *model, ERR_USAGE, "--criterion: goes with --quant 4over6");
    c = pack_to("x.dat");
    REFUSED(&c, "none.dat", ERR_IO, "none.dat");
}

int
main(void)
{
    check_scratch();
    make_model(*model, true);
    check_copy();
    check_dat();
    check_quantized();
    check_checkpoint();
    check_kept();
    check_refused();
    return check_end();
}
