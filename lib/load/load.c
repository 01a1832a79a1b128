/* SPDX-License-Identifier: MIT */
/* load: see load.h. */
#include "lib/load/load.h"

#include "lib/base/grow.h"
#include "lib/format/dialect.h"
#include "lib/load/bulk.h"
#include "lib/load/quantizer.h"
#include "lib/load/training.h"
#include "lib/nvfp4/codec.h"
#include "lib/nvfp4/tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the file ------------------------------------------------------------------------- */

static int
find_config(struct model *m)
{
    struct store *s = &m->store;
    const char *from = m->o.config;
    if (from && store_load_config(s, from) < 0)
        return -1;
    if (!s->config.p)
        return err_set(m->err, ERR_USAGE,
                       "%s: no configuration: looked for --config, then inside the "
                       "file, in %s.json, which is written with it and must be copied "
                       "with it, and for config.json beside it",
                       s->name, s->name);
    return config_parse(&m->config, from ? from : s->name, s->config, m->err);
}

static const struct view *
view_named(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->views.n; i++)
        if (!m->views.v[i].entry->state && strcmp(m->views.v[i].name, name) == 0)
            return &m->views.v[i];
    return NULL;
}

static int
wrong_shape(struct model *m, const struct row *r, const struct view *v)
{
    struct buf b = { 0 };
    buf_str(&b, "expected ");
    buf_shape(&b, r->shape, r->rank, ", ");
    buf_str(&b, ", found ");
    buf_shape(&b, v->shape, v->rank, ", ");
    if (m->store.config_beside)
        buf_str(&b, "; the configuration is the config.json beside it, perhaps of "
                    "another model: --config FILE names one");
    err_set(m->err, ERR_FORMAT, "%s: \"%s\": %s", m->store.name, r->name,
            b.failed ? "another shape" : b.data);
    buf_free(&b);
    return -1;
}

/* A config.json that happens to lie beside the file is found out before anything else is blamed. */
static int
check_beside(struct model *m)
{
    const struct view *v = view_named(m, TABLE_EMBED);
    const struct row embed = { .name = TABLE_EMBED,
                               .shape = { m->config.vocab, m->config.hidden },
                               .rank = 2 };
    bool fits = !v || (v->rank == 2 && v->shape[0] == embed.shape[0] &&
                       v->shape[1] == embed.shape[1]);
    return !m->store.config_beside || fits ? 0 : wrong_shape(m, &embed, v);
}

/* How the projections are quantized: by the option, else by the checkpoint. */
static void
settle_quant(struct model *m)
{
    const struct quant_words *kept = &m->store.quant;
    struct quant_words words = { .name = m->o.quant };
    if (!words.name || (kept->name && strcmp(kept->name, words.name) == 0))
        words = *kept;
    m->quantizes = quantizer_of(&m->spec, &m->share, &words);
}

int
model_open(struct model *m, const char *path, const struct load_options *o,
           struct err *err)
{
    struct store_options opt = { .guard = o->host->guard,
                                 .whole_pairs = true,
                                 .tmpdir = o->host->tmpdir };
    *m = (struct model){ .o = *o, .memory = MEMORY_WEIGHTS, .err = err };
    if (store_open(&m->store, path, &opt, err) < 0 ||
        training_check(&m->store, err) < 0 || store_check_model(&m->store, err) < 0 ||
        store_load_beside(&m->store) < 0 ||
        dialect_views(&m->views, &m->store, false) < 0 || find_config(m) < 0 ||
        check_beside(m) < 0)
        return -1;
    host_note_lines(o->host, &m->store.warnings);
    settle_quant(m);
    return values_scratch(&m->scratch, err);
}

void
model_unload(struct model *m)
{
    while (m->n_owned)
        kernels_free(m->k, m->owned[--m->n_owned]);
    weights_close(&m->weights);
    if (m->net.k)
        net_close(&m->net);
}

void
model_close(struct model *m)
{
    model_unload(m);
    free(m->owned);
    values_scratch_free(&m->scratch);
    views_close(&m->views);
    if (m->store.path)
        store_close(&m->store);
    *m = (struct model){ 0 };
}

/* ---- which tensors ---------------------------------------------------------------------- */

static int
check_tensor(struct model *m, const struct row *r, const struct view *v)
{
    if (!v)
        return err_set(m->err, ERR_FORMAT, "%s: \"%s\" is missing", m->store.name,
                       r->name);
    if (v->rank != r->rank ||
        memcmp(v->shape, r->shape, r->rank * sizeof *r->shape) != 0)
        return wrong_shape(m, r, v);
    enum dtype d = v->dtype;
    if (d != DT_F32 && d != DT_BF16 && d != DT_F16 && d != DT_NVFP4)
        return err_set(m->err, ERR_FORMAT,
                       "%s: \"%s\": expected f32, bf16, f16 or nvfp4, found %s",
                       m->store.name, r->name, dtype_name(d));
    return 0;
}

static int
check_extra(struct model *m, const struct table *t)
{
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < m->views.n; i++) {
        const struct view *v = &m->views.v[i];
        struct slice name = { v->name, v->name_len };
        if (v->aside || v->entry->state || table_find(t, name) ||
            slice_is(name, TABLE_HEAD)) // of a tied model: settle_head decides
            continue;
        return err_set(m->err, ERR_FORMAT,
                       "%s: \"%s\": the configuration has no such tensor",
                       m->store.name, text_quote(q, v->name, v->name_len));
    }
    return 0;
}

/* A tied model's file may hold a head: it is used unless it equals the embedding. */
static int
settle_head(struct model *m)
{
    const struct view *head = view_named(m, TABLE_HEAD),
                      *embed = view_named(m, TABLE_EMBED);
    if (!m->config.tied || !head || !embed)
        return 0;
    int same = head->dtype != embed->dtype || head->dtype == DT_NVFP4
                   ? 0
                   : values_same_bytes(&m->store, head->entry, &m->store, embed->entry,
                                       m->err);
    if (same < 0)
        return -1;
    m->config.tied = same;
    if (!same && head->dtype != DT_NVFP4)
        host_note(m->o.host,
                  "%s: \"" TABLE_HEAD
                  "\" differs from the embedding of a tied model and is used",
                  m->store.name);
    return 0;
}

/* ---- to the device ------------------------------------------------------------------------ */

/* Device memory that model_close frees. */
static void *
own(struct model *m, size_t bytes)
{
    if (!GROW(m->owned, m->n_owned, m->cap_owned, 256)) {
        err_set(m->err, ERR_MEMORY, "out of memory for the model");
        return NULL;
    }
    void *p = kernels_alloc(m->k, m->memory, bytes ? bytes : 1);
    if (p)
        m->owned[m->n_owned++] = p;
    return p;
}

/* An entry's payload on the device: the read-only mapping if the device uses host memory
 * and it is aligned, else a copy. */
static void *
payload(struct model *m, const struct tensor *t, size_t align)
{
    struct store *s = &m->store;
    const uint8_t *mapped = store_data(s, t);
    if (m->host && !m->k->dry && mapped && (uintptr_t)mapped % align == 0) {
        map_expect(&s->files[t->file], t->offset, t->offset + t->nbytes);
        return (void *)(uintptr_t)mapped;
    }
    struct bulk b = { t, own(m, (size_t)t->nbytes), 0, 0 };
    if (b.to && !m->k->dry)
        bulk_load(m->k, s, &b, 1, false, m->o.threads, m->err);
    return m->err->kind ? NULL : b.to;
}

static float *
scalar_on_device(struct model *m, float x)
{
    float *p = own(m, sizeof *p);
    if (p)
        kernels_upload(m->k, p, &x, sizeof x);
    return p;
}

/* All values as f32, on the device. */
static float *
as_f32(struct model *m, const struct view *v)
{
    struct values x;
    float *to = own(m, (size_t)v->numel * sizeof *to);
    if (to && m->k->dry)
        return to;
    if (!to || values_open(&x, &m->store, v, m->o.host->isa, m->err) < 0)
        return NULL;
    for (uint64_t at = 0; at < v->numel; at += VALUES_CHUNK) {
        size_t n = v->numel - at < VALUES_CHUNK ? (size_t)(v->numel - at)
                                                : (size_t)VALUES_CHUNK;
        if (values_read(&x, at, n, &m->scratch, m->err) < 0)
            return NULL;
        kernels_upload(m->k, to + at, m->scratch.f32, n * sizeof *to);
    }
    return to;
}

/* The planes of a GGUF's blocks. */
static int
unpack_weight(struct model *m, struct matrix *w, const struct values *x)
{
    uint64_t numel = x->v->numel;
    uint8_t *codes = own(m, (size_t)numel / 2),
            *scales = own(m, (size_t)numel / NVFP4_BLOCK);
    if (!codes || !scales)
        return -1;
    for (uint64_t at = 0; at < numel && !m->k->dry; at += VALUES_CHUNK) {
        size_t n = numel - at < VALUES_CHUNK ? (size_t)(numel - at) : VALUES_CHUNK;
        struct values_scratch *s = &m->scratch;
        if (values_planes(x, at, n, s->bytes, s->scales, s, m->err) < 0)
            return -1;
        kernels_upload(m->k, codes + at / 2, s->bytes, n / 2);
        kernels_upload(m->k, scales + at / NVFP4_BLOCK, s->scales, n / NVFP4_BLOCK);
    }
    w->data = codes;
    w->scales = scales;
    return 0;
}

/* Check all scales of a tensor. */
static int
check_scales(struct model *m, const struct values *x)
{
    uint64_t n = x->v->scale->nbytes;
    for (uint64_t at = 0; at < n; at += VALUES_CHUNK) {
        size_t part = n - at < VALUES_CHUNK ? (size_t)(n - at) : VALUES_CHUNK;
        if (store_read(&m->store, x->v->scale, at, m->scratch.bytes, part, m->err) <
                0 ||
            values_check_scales(x, at * NVFP4_BLOCK, m->scratch.bytes, part, m->err) <
                0)
            return -1;
    }
    return 0;
}

static int
load_nvfp4(struct model *m, struct matrix *w, const struct view *v)
{
    struct values x;
    if (values_open(&x, &m->store, v, m->o.host->isa, m->err) < 0)
        return -1;
    if (view_in_blocks(v)) {
        if (unpack_weight(m, w, &x) < 0)
            return -1;
    } else {
        if (!m->k->dry && check_scales(m, &x) < 0)
            return -1;
        w->data = payload(m, v->entry, 1);
        w->scales = payload(m, v->scale, 1);
    }
    w->dtype = DT_NVFP4;
    if (v->scale2)
        w->scale2 = scalar_on_device(m, x.scale2);
    return m->err->kind ? -1 : 0;
}

/* As it is stored, but norms are f32, and so is an NVFP4 embedding, whose rows are looked
 * up. */
static int
load_weight(struct model *m, size_t i, const struct view *v)
{
    const struct row *r = &m->net.table.row[i];
    struct matrix *w = &m->net.t[i].w;
    bool plain = v->dtype != DT_NVFP4;
    if (r->rank == 1 || (!plain && r->role == ROLE_EMBED)) {
        w->data = as_f32(m, v);
        w->dtype = DT_F32;
    } else if (plain) {
        w->data = payload(m, v->entry, v->dtype == DT_F32 ? 4 : 2);
        w->dtype = v->dtype;
    } else if (load_nvfp4(m, w, v) < 0) {
        return -1;
    }
    return m->err->kind ? -1 : 0;
}

/* ---- quantizing at load --------------------------------------------------------------------- */

/* The values of a fused group, until they are quantized: as they are stored if all are of
 * one float type, else as f32. */
static int
load_sources(struct model *m, size_t first, size_t n, struct matrix *master)
{
    const struct row *row = &m->net.table.row[first];
    enum dtype dtype = view_named(m, row[0].name)->dtype;
    for (size_t i = 1; i < n; i++)
        if (view_named(m, row[i].name)->dtype != dtype)
            dtype = DT_NVFP4;
    for (size_t i = 0; i < n; i++) {
        const struct view *v = view_named(m, row[i].name);
        const struct matrix *w = &m->net.t[first + i].w;
        bool plain = dtype != DT_NVFP4;
        master[first + i] = matrix_of(
            plain ? dtype : DT_F32,
            plain ? payload(m, v->entry, dtype == DT_F32 ? 4 : 2) : as_f32(m, v),
            w->rows, w->cols);
    }
    return m->err->kind ? -1 : 0;
}

static int
quantize_group(struct model *m, size_t first, size_t n, struct matrix *master)
{
    size_t before = m->n_owned;
    if (load_sources(m, first, n, master) < 0 || weights_make(&m->weights, master) < 0)
        return -1;
    memset(&master[first], 0, n * sizeof *master);
    while (m->n_owned > before)
        kernels_free(m->k, m->owned[--m->n_owned]);
    return 0;
}

/* Stored bytes of those of rows first .. first + n - 1 that are quantized. */
static uint64_t
quantized_bytes(const struct model *m, size_t first, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = first; i < first + n; i++)
        if (m->net.table.row[i].quantized)
            sum += view_named(m, m->net.table.row[i].name)->nbytes;
    return sum;
}

static int
quantize_all(struct model *m)
{
    const struct table *t = &m->net.table;
    struct matrix *master = calloc(t->n + 1, sizeof *master);
    size_t bad;
    if (!master)
        return err_set(m->err, ERR_MEMORY, "out of memory for the model");
    const struct weights_form form = { .quant = &m->spec, .share = m->share };
    int rc = weights_open(&m->weights, &m->net, &form);
    struct host_progress progress =
        host_progress_begin(m->o.host, "quantizing", quantized_bytes(m, 0, t->n));
    for (size_t i = 0, n; i < t->n && rc == 0; i += n) {
        n = m->share ? table_fused_rows(t, i) : 1;
        if (t->row[i].quantized)
            rc = quantize_group(m, i, n, master);
        host_progress_add(&progress, quantized_bytes(m, i, n));
    }
    host_progress_end(&progress);
    free(master);
    if (rc < 0 || weights_check(&m->weights, &bad) < 0)
        return -1;
    if (bad < t->n)
        return err_set(m->err, ERR_FORMAT, "%s: \"%s\": a value is not finite",
                       m->store.name, t->row[bad].name);
    return 0;
}

/* Projections that are stored as NVFP4 are not quantized again unless --quant asks. */
static void
settle_stored(struct model *m)
{
    bool plain = m->o.quant != NULL;
    for (size_t i = 0; i < m->net.table.n; i++)
        if (m->net.table.row[i].quantized)
            plain |= view_named(m, m->net.table.row[i].name)->dtype != DT_NVFP4;
    m->quantizes &= plain;
}

/* ---- for activations in NVFP4 ---------------------------------------------------------------- */

/* The scales of a weight that was not quantized here, in tiles for native products. */
static int
make_tiles(struct model *m, size_t i)
{
    struct matrix *w = &m->net.t[i].w;
    size_t blocks = w->cols / NVFP4_BLOCK, bytes = tiles_bytes(w->rows, blocks);
    if (w->tiles || m->k->is.fp4 != FP4_NATIVE)
        return 0;
    uint8_t *scales = malloc(w->rows * blocks + 1), *tiles = malloc(bytes + 1);
    int rc = scales && tiles && (w->tiles = own(m, bytes)) ? 0 : -1;
    if (rc == 0)
        rc = kernels_download(m->k, scales, w->scales, w->rows * blocks);
    if (rc == 0) {
        tiles_make(tiles, scales, w->rows, blocks);
        kernels_upload(m->k, w->tiles, tiles, bytes);
    }
    free(scales);
    free(tiles);
    return rc < 0 ? err_set(m->err, ERR_MEMORY, "out of memory for the model") : 0;
}

/* How a server of the file quantizes the input of a projection. */
static int
load_input_scale(struct model *m, size_t i)
{
    const struct view *v = view_named(m, m->net.table.row[i].name);
    struct net_tensor *t = &m->net.t[i];
    char q[TEXT_QUOTE];
    float f;
    if (!v) // load_rows will say so
        return 0;
    text_quote(q, v->name, v->name_len);
    if (!v->input)
        return err_set(m->err, ERR_USAGE,
                       "%s: \"%s\" has no activation scale: --input-scale static needs "
                       "one; datpack --input-scales FILE --to compressed-tensors or "
                       "modelopt writes them",
                       m->store.name, q);
    if (values_input(&f, &m->store, v, m->err) < 0)
        return -1;
    t->input_enc = v->dialect->divides ? f : 1 / f;
    if (isfinite(t->input_enc) && isfinite(1 / t->input_enc))
        return 0;
    return err_set(m->err, ERR_FORMAT,
                   "%s: activation scale of \"%s\": 1/%g is beyond the range of f32",
                   m->store.name, q, (double)f);
}

/* One product has one scale of its input. */
static int
check_shared_input(struct model *m, size_t first, size_t n)
{
    const struct net_tensor *t = m->net.t;
    char q[TEXT_QUOTE], other[TEXT_QUOTE];
    for (size_t i = first + 1; i < first + n; i++)
        if (t[i].input_enc != t[first].input_enc) {
            const char *a = m->net.table.row[first].name, *b = m->net.table.row[i].name;
            return err_set(m->err, ERR_FORMAT,
                           "%s: \"%s\" and \"%s\" take the same input, and have "
                           "different activation scales: datpack --input-scales FILE "
                           "writes one for both",
                           m->store.name, text_quote(q, a, strlen(a)),
                           text_quote(other, b, strlen(b)));
        }
    return 0;
}

static int
load_input_scales(struct model *m)
{
    const struct table *t = &m->net.table;
    for (size_t i = 0, n; i < t->n && m->input_scales; i += n) {
        n = table_fused_rows(t, i);
        for (size_t k = i; k < i + n; k++)
            if (t->row[k].quantized && load_input_scale(m, k) < 0)
                return -1;
        if (check_shared_input(m, i, n) < 0)
            return -1;
    }
    return 0;
}

static int
check_projections(struct model *m)
{
    const struct table *t = &m->net.table;
    for (size_t i = 0; i < t->n && m->activations; i++) {
        if (!t->row[i].quantized)
            continue;
        if (m->net.t[i].w.dtype != DT_NVFP4)
            return err_set(m->err, ERR_USAGE,
                           "%s: \"%s\" is %s: --activations nvfp4 needs projections "
                           "in NVFP4; --quant NAME makes them",
                           m->store.name, t->row[i].name,
                           dtype_name(m->net.t[i].w.dtype));
        if (make_tiles(m, i) < 0)
            return -1;
    }
    return 0;
}

/* ---- for products of FP8 ---------------------------------------------------------------------- */

/* The group of n rows from i on, whose scales are those of a training: of the largest of all. */
static void
make_fp8(struct model *m, size_t i, size_t n, float *bound,
         const struct fp8_found *found)
{
    struct net_tensor *t = m->net.t + i;
    for (size_t k = 0; k < n; k++)
        op_amax(m->k, &bound[k], &t[k].w);
    for (size_t k = 0; k < n; k++) {
        struct matrix to = matrix_of(DT_F8_E4M3, NULL, t[k].w.rows, t[k].w.cols);
        to.data = own(m, to.rows * to.cols);
        to.scale2 = own(m, sizeof *to.scale2);
        m->n_fp8 += to.rows * to.cols;
        if (to.data && to.scale2)
            op_to_fp8(m->k, &to, &t[k].w, bound, n, found);
        t[k].fp8 = to;
    }
}

/* Whether all n rows from i on are in NVFP4; else an error about the first that is not. */
static bool
are_packed(struct model *m, size_t i, size_t n)
{
    for (; n; n--, i++)
        if (m->net.t[i].w.dtype != DT_NVFP4) {
            err_set(m->err, ERR_USAGE,
                    "%s: \"%s\" is %s: --compute fp8 needs projections in NVFP4; "
                    "--quant NAME makes them",
                    m->store.name, m->net.table.row[i].name,
                    dtype_name(m->net.t[i].w.dtype));
            return false;
        }
    return true;
}

static int
add_fp8(struct model *m)
{
    const struct table *t = &m->net.table;
    struct fp8_found found = { NULL, own(m, sizeof *found.lost) };
    float *bound = own(m, LINEAR_MAX * sizeof *bound);
    if (!bound)
        return -1;
    op_zero(m->k, found.lost, sizeof *found.lost);
    for (size_t i = 0, n; i < t->n; i += n) {
        n = m->quantizes && !m->share ? 1 : table_fused_rows(t, i);
        if (!t->row[i].quantized || !weights_may_be_fp8(t, i))
            continue;
        if (!are_packed(m, i, n))
            return -1;
        make_fp8(m, i, n, bound, &found);
    }
    m->net.fp8 = true;
    return kernels_download(m->k, &m->n_inexact, found.lost, sizeof m->n_inexact);
}

/* ---- all ------------------------------------------------------------------------------------ */

static int
load_rows(struct model *m)
{
    const struct table *t = &m->net.table;
    for (size_t i = 0; i < t->n; i++) {
        const struct row *r = &t->row[i];
        const struct view *v = view_named(m, r->name);
        if (check_tensor(m, r, v) < 0)
            return -1;
        size_t cols = (size_t)r->shape[r->rank - 1];
        m->net.t[i].w =
            matrix_of(DT_NONE, NULL, r->rank == 2 ? (size_t)r->shape[0] : 1, cols);
    }
    if (check_extra(m, t) < 0)
        return -1;
    settle_stored(m);
    for (size_t i = 0; i < t->n; i++)
        if (!(m->quantizes && t->row[i].quantized) &&
            load_weight(m, i, view_named(m, t->row[i].name)) < 0)
            return -1;
    return m->quantizes ? quantize_all(m) : 0;
}

/* All payloads that have checksums are verified before anything is computed. */
static int
check_payloads(struct model *m)
{
    const struct tensor **t = calloc(m->store.n_tensors + 1, sizeof *t);
    size_t n = 0;
    if (!t)
        return err_set(m->err, ERR_MEMORY, "out of memory for the model");
    for (size_t i = 0; i < m->store.n_tensors; i++)
        if (!m->store.tensors[i].state)
            t[n++] = &m->store.tensors[i];
    int rc = store_check_payloads(&m->store, t, n, m->o.threads, m->err);
    free(t);
    return rc;
}

int
model_load(struct model *m, struct kernels *k, size_t positions)
{
    m->k = k;
    m->host = k->is.host;
    for (size_t i = 0; i < m->store.n_files; i++)
        map_use(&m->store.files[i]);
    if (!m->o.no_verify && !k->dry && check_payloads(m) < 0)
        return -1;
    if (settle_head(m) < 0 || net_open(&m->net, &m->config, k, positions, m->err) < 0)
        return -1;
    m->net.activations = m->activations;
    if (load_input_scales(m) < 0 || load_rows(m) < 0 || check_projections(m) < 0 ||
        (m->fp8 && add_fp8(m) < 0))
        return -1;
    return store_check(&m->store);
}

int
model_stretch(struct model *m, size_t positions)
{
    struct net longer;
    if (positions <= m->net.positions)
        return 0;
    int rc = net_open(&longer, &m->config, m->k, positions, m->err);
    if (rc < 0) {
        net_close(&longer);
        return -1;
    }
    memcpy(longer.t, m->net.t, longer.table.n * sizeof *longer.t);
    longer.activations = m->net.activations;
    longer.fp8 = m->net.fp8;
    net_close(&m->net);
    m->net = longer;
    return 0;
}
