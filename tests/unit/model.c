/* SPDX-License-Identifier: MIT */
/* model: a file on a device: whole payloads, memory that is used again, the words of a
 * quantizer, and models of each container. */
#include "lib/load/bulk.h"
#include "lib/load/load.h"
#include "lib/load/pool.h"
#include "lib/load/quantizer.h"
#include "tests/unit/model_files.h"

static struct kernels *
open_cpu(struct err *err)
{
    const struct cpu_kind kind = { DT_F32, isa_best(), 2 };
    struct kernels *k = kernels_cpu(&kind, err);
    NEED(k);
    return k;
}

/* ---- host ----------------------------------------------------------------------- */

static void
check_io(void)
{
    struct host quiet = host;
    struct buf lines = { 0 };
    buf_str(&lines, "one\ntwo\n");
    heard = (struct heard){ 0 };
    host_note(&host, "%s %d", "n", 3);
    host_note_lines(&host, &lines);
    CHECK(strcmp(heard.warnings, "n 3\none\ntwo\n") == 0);
    struct host_progress p = host_progress_begin(&host, "reading", 10);
    CHECK(heard.done == 0 && heard.total == 10);
    host_progress_add(&p, 4);
    CHECK(heard.done == 4);
    host_progress_end(&p);
    CHECK(heard.done == 10 && heard.calls == 3);
    quiet.warn = NULL;
    quiet.progress = NULL;
    host_note_lines(&quiet, &lines);
    p = host_progress_begin(&quiet, "reading", 1);
    host_progress_end(&p);
    CHECK(heard.calls == 3);
    buf_free(&lines);
}

/* ---- quantizers ----------------------------------------------------------------- */

static void
check_quantizers(void)
{
    static const struct {
        struct quant_words words; // criterion, name, share, variant
        enum quant kind;
        bool share, mae, modelopt;
    } rows[] = {
        { { NULL, NULL, NULL, NULL }, QUANT_COUNT, false, false, false },
        { { "mse", "none", "none", "" }, QUANT_COUNT, false, false, false },
        { { NULL, "sweep", NULL, NULL }, QUANT_SWEEP, true, false, false },
        { { "mse", "sweep", "none", "" }, QUANT_SWEEP, false, false, false },
        { { NULL, "sweepfp8", NULL, NULL }, QUANT_SWEEPFP8, true, false, false },
        { { NULL, "sweep1", NULL, NULL }, QUANT_SWEEP1, false, false, false },
        { { "mse", "sweep1", "qkv,gate_up", "" }, QUANT_SWEEP1, false, false, false },
        { { "mae", "4over6", "qkv,gate_up", "" }, QUANT_4OVER6, true, true, false },
        { { "mse", "max", "none", "modelopt" }, QUANT_MAX, false, false, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct quant_spec spec = { .kind = QUANT_COUNT };
        bool share = false;
        bool is = quantizer_of(&spec, &share, &rows[i].words);
        CHECK_SAY(is == (rows[i].kind < QUANT_COUNT) && spec.kind == rows[i].kind &&
                      share == rows[i].share && spec.mae == rows[i].mae &&
                      spec.modelopt == rows[i].modelopt,
                  "row %zu", i);
    }
}

/* ---- memory and payloads ---------------------------------------------------------- */

static void
check_pool(void)
{
    struct err err = { 0 };
    struct pool pool = { .k = open_cpu(&err) };
    void *a = pool_alloc(&pool, 100), *b = pool_alloc(&pool, 200);
    CHECK(a && b && a != b);
    pool_free(&pool, b);
    CHECK(pool_alloc(&pool, 150) == b);
    pool_free(&pool, a);
    a = pool_alloc(&pool, 1000); // in place of the smaller one
    CHECK(a && pool.n == 2);
    pool_free(&pool, NULL);
    for (int i = 0; i < 40; i++)
        CHECK(pool_alloc(&pool, 0) != NULL);
    struct kernels *k = pool.k;
    pool_close(&pool);
    CHECK(k->usage.now[MEMORY_WORK] == 0);
    kernels_close(k);
}

/* Every payload is what store_read reads, by one thread and by several. */
static void
check_bulk(const char *path)
{
    struct err err = { 0 };
    const struct store_options opt = { .guard = &guard, .tmpdir = "/tmp" };
    struct store s;
    struct kernels *k = open_cpu(&err);
    NEED(store_open(&s, path, &opt, &err) == 0);
    struct bulk *b = calloc(s.n_tensors, sizeof *b);
    NEED(b);
    for (size_t i = 0; i < s.n_tensors; i++)
        b[i] = (struct bulk){
            &s.tensors[i],
            kernels_alloc(k, MEMORY_WORK, (size_t)s.tensors[i].nbytes + 1), 0, 0
        };
    for (unsigned threads = 1; threads <= 5; threads += 2) {
        CHECK(bulk_load(k, &s, b, s.n_tensors, threads > 1, threads, &err) == 0);
        for (size_t i = 0; i < s.n_tensors; i++) {
            const struct tensor *t = &s.tensors[i];
            size_t n = (size_t)t->nbytes;
            uint8_t *want = malloc(n + 1);
            NEED(want && b[i].to && store_read(&s, t, 0, want, n, &err) == 0);
            CHECK_SAY(memcmp(want, b[i].to, n) == 0, "%s: %s", path, t->name);
            memset(b[i].to, 0, n);
            free(want);
        }
    }
    CHECK(bulk_load(k, &s, b, 0, true, 2, &err) == 0);
    for (size_t i = 0; i < s.n_tensors; i++)
        kernels_free(k, b[i].to);
    free(b);
    store_close(&s);
    kernels_close(k);
}

/* A byte of a checkpoint's array is another: with verify that is an error. */
static void
check_damage(const char *path)
{
    struct err err = { 0 }, later = { 0 };
    const struct store_options opt = { .guard = &guard, .tmpdir = "/tmp" };
    struct store s;
    NEED(store_open(&s, path, &opt, &err) == 0);
    const struct tensor *t = &s.tensors[1];
    struct kernels *k = open_cpu(&err);
    struct bulk b = { .t = t, .to = kernels_alloc(k, MEMORY_WORK, (size_t)t->nbytes) };
    FILE *f = fopen(path, "r+b");
    uint8_t byte;
    NEED(f && fseek(f, (long)t->offset, SEEK_SET) == 0 && fread(&byte, 1, 1, f) == 1);
    byte ^= 1;
    NEED(fseek(f, (long)t->offset, SEEK_SET) == 0 && fwrite(&byte, 1, 1, f) == 1 &&
         fclose(f) == 0);
    CHECK(bulk_load(k, &s, &b, 1, false, 2, &later) == 0);
    CHECK(bulk_load(k, &s, &b, 1, true, 2, &later) == -1);
    CHECK_ERR(later, ERR_FORMAT, "is damaged");
    CHECK_ERR(later, ERR_FORMAT, t->name);
    kernels_free(k, b.to);
    store_close(&s);
    kernels_close(k);
}

/* ---- models --------------------------------------------------------------------- */

/* The greatest logits of some tokens, or -1. */
static int
last_token(struct model *m, int32_t *id)
{
    static const int32_t ids[] = { 1, 5, 90, 33 };
    struct net_cache cache = { 0 };
    int rc = net_cache_open(&cache, &m->net, 8);
    if (rc == 0)
        rc = net_argmax(&m->net, &cache, ids, 4, id, NULL, NULL);
    net_cache_close(&cache);
    return rc;
}

/* A model of that file, loaded and asked. */
static int32_t
ask(const char *path, const char *quant, struct model *m, struct err *err)
{
    const struct load_options o = { .threads = 2, .quant = quant, .host = &host };
    struct kernels *k = open_cpu(err);
    int32_t id = -2;
    if (model_open(m, path, &o, err) == 0 && model_load(m, k, 16) == 0 &&
        last_token(m, &id) < 0)
        id = -3;
    bool quantizes = m->quantizes;
    model_close(m);
    kernels_close(k);
    m->quantizes = quantizes;
    return id;
}

static void
convert(const char *from, const char *to, bool quantize)
{
    struct err err = { 0 };
    struct pack c = pack_to(to);
    char *paths[] = { (char *)(uintptr_t)from };
    c.quantize = quantize;
    int rc = pack_run(&c, paths, 1, &err);
    CHECK_SAY(rc == 0, "%s: %s", to, err.msg);
}

static void
check_models(void)
{
    struct model m;
    struct err err = { 0 };
    int32_t want = ask("m.safetensors", NULL, &m, &err);
    CHECK_SAY(want >= 0, "%s", err.msg);
    CHECK(!m.quantizes);
    convert("m.safetensors", "m.ckpt", false);
    // The checkpoint says that its projections are quantized by sweep.
    int32_t swept = ask("m.ckpt", NULL, &m, &err);
    CHECK(swept >= 0 && m.quantizes);
    CHECK(ask("m.ckpt", "none", &m, &err) == want && !m.quantizes);
    CHECK(ask("m.safetensors", "sweep", &m, &err) == swept && m.quantizes);
    convert("m.safetensors", "q.dat", true);
    CHECK(ask("q.dat", NULL, &m, &err) >= 0 && !m.quantizes);
    CHECK_SAY(err.kind == ERR_NONE, "%s", err.msg);
}

static void
check_refused(void)
{
    struct model m;
    struct err err = { 0 };
    struct pack c = pack_to("part.safetensors");
    char *paths[] = { (char *)(uintptr_t) "m.safetensors" };
    select_add(&c.select, true, "*.1.mlp.up_proj.weight");
    NEED(pack_run(&c, paths, 1, &err) == 0);
    CHECK(ask("part.safetensors", NULL, &m, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT, "\"model.layers.1.mlp.up_proj.weight\" is missing");
    err = (struct err){ 0 };
    CHECK(ask("none.safetensors", NULL, &m, &err) < 0);
    CHECK_ERR(err, ERR_IO, "none.safetensors");
}

int
main(void)
{
    check_scratch();
    check_io();
    check_quantizers();
    check_pool();
    make_model("m.safetensors", true);
    check_models();
    check_refused();
    check_bulk("m.safetensors");
    check_bulk("m.ckpt");
    check_damage("m.ckpt");
    return check_end();
}
