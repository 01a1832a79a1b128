/* SPDX-License-Identifier: MIT */
/* weights: see weights.h. */
#include "lib/model/weights.h"

#include "lib/base/num.h"
#include "lib/model/exchange.h"
#include "lib/model/shard.h"
#include "lib/nvfp4/tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many rows from i on share a tensor scale. */
static size_t
group(const struct weights *w, size_t i)
{
    return w->share ? table_fused_rows(&w->n->table, i) : 1;
}

/* Bytes from an expanded form to where the next one of a group may begin. */
static uint64_t
expanded_stride(const struct weights *w, size_t i)
{
    return round_up(w->n->table.row[i].numel * sizeof(uint16_t), TABLE_ALIGN);
}

static bool
has_multiples(const struct row *r, uint64_t unit)
{
    return r->shape[0] % unit == 0 && r->shape[1] % unit == 0;
}

/* Whether products of row i take E4M3. */
static bool
may_be_fp8(const struct weights *w, size_t i)
{
    return w->fp8 && w->n->table.row[i].quantized &&
           weights_may_be_fp8(&w->n->table, i);
}

/* What a group of n rows has together: the tensor scale, and one memory for the expanded
 * forms, so that a product may take them as one matrix, and likewise for those of E4M3:
 * transposed they are columns of one. */
static void
alloc_shared(struct weights *w, size_t i, size_t n)
{
    struct kernels *k = w->n->k;
    struct matrix *p = &w->packed[i];
    bool fp8 = !w->pack_fp8 && may_be_fp8(w, i);
    uint64_t bytes = 0, rows = 0, cols = w->n->table.row[i].shape[1];
    for (size_t m = i; m < i + n; m++) {
        bytes += expanded_stride(w, m);
        rows += w->n->table.row[m].shape[0];
    }
    p->scale2 = kernels_alloc(k, MEMORY_WEIGHTS, sizeof *p->scale2);
    p->dtype = fp8 ? DT_F8_E4M3 : DT_NVFP4;
    if (w->expand && !fp8)
        p->expanded = kernels_alloc(k, MEMORY_WEIGHTS, (size_t)bytes);
    if (fp8 && k->is.transposes)
        p->transposed = kernels_alloc(k, MEMORY_WEIGHTS, (size_t)(rows * cols));
    p->transposed_stride = (size_t)rows;
    for (size_t m = i + 1; m < i + n; m++, p++) {
        p[1] = *p;
        if (p->expanded)
            p[1].expanded = (char *)p->expanded + expanded_stride(w, m - 1);
        if (p->transposed)
            p[1].transposed = p->transposed + w->n->table.row[m - 1].shape[0];
    }
}

static int
alloc_packed(struct weights *w, size_t i)
{
    struct kernels *k = w->n->k;
    const struct row *r = &w->n->table.row[i];
    struct matrix *p = &w->packed[i];
    size_t rows = (size_t)r->shape[0], cols = (size_t)r->shape[1], n = rows * cols;
    bool native = w->n->activations && k->is.fp4 == FP4_NATIVE;
    if (cols % NVFP4_BLOCK)
        return err_set(
            w->n->err, ERR_USAGE,
            "%s: rows of %llu columns cannot be quantized: expected a multiple of %d; "
            "--quant none leaves them as they are",
            r->name, (unsigned long long)cols, NVFP4_BLOCK);
    p->rows = rows;
    p->cols = p->stride = cols;
    if (p->dtype == DT_F8_E4M3) {
        p->data = kernels_alloc(k, MEMORY_WEIGHTS, n);
    } else if (!w->expand || w->overlaps || native) {
        p->data = kernels_alloc(k, MEMORY_WEIGHTS, n / 2);
        p->scales = kernels_alloc(k, MEMORY_WEIGHTS, n / NVFP4_BLOCK);
    }
    if (native)
        p->tiles =
            kernels_alloc(k, MEMORY_WEIGHTS, tiles_bytes(rows, cols / NVFP4_BLOCK));
    w->n->t[i].w = *p;
    return w->n->err->kind ? -1 : 0;
}

/* Describe codes of the group of row i in memory from codes->data and codes->scales on, or
 * where there is none, find how much they need. */
static void
place_codes(struct weights *w, size_t i, const struct matrix *codes, size_t *code_bytes,
            size_t *scale_bytes)
{
    size_t end = i + group(w, i), code = 0, scale = 0;
    for (; i < end; i++) {
        const struct row *r = &w->n->table.row[i];
        w->codes[i] = *codes;
        w->codes[i].rows = (size_t)r->shape[0];
        w->codes[i].cols = w->codes[i].stride = (size_t)r->shape[1];
        if (codes->data) {
            w->codes[i].data = (uint8_t *)codes->data + code;
            w->codes[i].scales = codes->scales + scale;
        }
        code += (size_t)round_up(r->numel / 2, TABLE_ALIGN);
        scale += (size_t)round_up(r->numel / NVFP4_BLOCK, TABLE_ALIGN);
    }
    *code_bytes = code > *code_bytes ? code : *code_bytes;
    *scale_bytes = scale > *scale_bytes ? scale : *scale_bytes;
}

/* Codes of all groups in E4M3, which use one memory, or two, in turn. */
static void
place_all_codes(struct weights *w, size_t *code_bytes, size_t *scale_bytes)
{
    size_t turn = 0;
    for (size_t i = 0; i < w->n->table.n; i += group(w, i))
        if (w->packed[i].dtype == DT_F8_E4M3) {
            place_codes(w, i, &w->shared_codes[turn], &code_bytes[turn],
                        &scale_bytes[turn]);
            turn = w->overlaps && !turn;
        }
}

/* What is found in codes. */
static int
alloc_found(struct weights *w)
{
    struct kernels *k = w->n->k;
    w->bound = kernels_alloc(k, MEMORY_WEIGHTS, w->n->table.n * sizeof *w->bound);
    w->inexact = kernels_alloc(k, MEMORY_WEIGHTS, sizeof *w->inexact);
    return w->bound && w->inexact ? 0 : -1;
}

/* Codes that E4M3 is made of at once. */
static int
alloc_codes(struct weights *w)
{
    struct kernels *k = w->n->k;
    size_t codes[2] = { 0 }, scales[2] = { 0 };
    place_all_codes(w, codes, scales);
    if (codes[0] == 0)
        return 0;
    for (int i = 0; i < 2 && codes[i]; i++) {
        struct matrix *shared = &w->shared_codes[i];
        shared->dtype = DT_NVFP4;
        shared->data = kernels_alloc(k, MEMORY_WEIGHTS, codes[i]);
        shared->scales = kernels_alloc(k, MEMORY_WEIGHTS, scales[i]);
        shared->scale2 = kernels_alloc(k, MEMORY_WEIGHTS, sizeof *shared->scale2);
    }
    place_all_codes(w, codes, scales);
    return alloc_found(w);
}

/* Rows of the n weights of a product from row i on. */
static size_t
product_rows(const struct weights *w, size_t i, size_t n)
{
    size_t rows = 0;
    for (size_t end = i + n; i < end; i++)
        rows += (size_t)w->n->table.row[i].shape[0];
    return rows;
}

/* Describe their E4M3 in the scratch: rows, and in the same bytes columns, which are those of one
 * matrix if the scale is one.  Sizes are multiples of FP8_UNIT, so all is aligned. */
static void
place_product(struct weights *w, size_t i, size_t n)
{
    size_t rows = 0, all = product_rows(w, i, n);
    for (size_t m = 0; m < n; m++) {
        const struct row *r = &w->n->table.row[i + m];
        struct net_tensor *t = &w->n->t[i + m];
        struct matrix *to = &t->fp8;
        *to = matrix_of(DT_F8_E4M3, w->scratch + rows * r->shape[1],
                        (size_t)r->shape[0], (size_t)r->shape[1]);
        to->scale2 = w->scratch_scale2 + (w->share ? 0 : m * FP8_SCALE_UNIT);
        to->transposed = w->share ? w->scratch + rows : to->data;
        to->transposed_stride = w->share ? all : to->rows;
        t->bound = &w->bound[w->share ? i : i + m];
        t->bounds = w->share ? n : 1;
        rows += to->rows;
    }
}

/* E4M3 that is written before each product, of codes that are kept. */
static int
alloc_scratch(struct weights *w)
{
    const struct table *t = &w->n->table;
    size_t max = 0;
    for (size_t i = 0, n; i < t->n; i += n) {
        n = table_fused_rows(t, i);
        size_t bytes = product_rows(w, i, n) * (size_t)t->row[i].shape[1];
        if (may_be_fp8(w, i) && bytes > max)
            max = bytes;
    }
    if (max == 0)
        return 0;
    w->scratch = kernels_alloc(w->n->k, MEMORY_WEIGHTS, max);
    w->scratch_scale2 =
        kernels_alloc(w->n->k, MEMORY_WEIGHTS,
                      LINEAR_MAX * FP8_SCALE_UNIT * sizeof *w->scratch_scale2);
    if (alloc_found(w) < 0 || !w->scratch || !w->scratch_scale2)
        return -1;
    for (size_t i = 0, n; i < t->n; i += n) {
        n = table_fused_rows(t, i);
        if (may_be_fp8(w, i))
            place_product(w, i, n);
    }
    return 0;
}

int
weights_open(struct weights *w, struct net *n, const struct weights_form *form)
{
    const struct quant_spec *quant = form->quant;
    *w = (struct weights){ .n = n,
                           .quantize = quant != NULL,
                           .expand = form->expand,
                           .share = form->share,
                           .fp8 = form->fp8,
                           .pack_fp8 = form->fp8 && form->pack_fp8,
                           .overlaps = form->overlaps };
    if (quant)
        w->spec = *quant;
    w->packed = calloc(n->table.n, sizeof *w->packed);
    w->codes = calloc(n->table.n, sizeof *w->codes);
    w->host_amax = calloc(n->table.n, sizeof *w->host_amax);
    w->known = calloc(n->table.n, sizeof *w->known);
    w->stale = calloc(n->table.n, sizeof *w->stale);
    if (!w->packed || !w->codes || !w->host_amax || !w->known || !w->stale)
        return err_set(n->err, ERR_MEMORY, "out of memory for weights");
    w->amax = kernels_alloc(n->k, MEMORY_WEIGHTS, n->table.n * sizeof *w->amax);
    int rc = w->amax ? 0 : -1;
    for (size_t i = 0, m = 1; i < n->table.n && quant; i += m) {
        m = group(w, i);
        if (n->table.row[i].quantized)
            alloc_shared(w, i, m);
    }
    for (size_t i = 0; i < n->table.n && quant && rc == 0; i++)
        if (n->table.row[i].quantized)
            rc = alloc_packed(w, i);
    if (rc < 0 || !quant || !w->fp8)
        return rc;
    return w->pack_fp8 ? alloc_scratch(w) : alloc_codes(w);
}

void
weights_close(struct weights *w)
{
    if (!w->n)
        return;
    struct kernels *k = w->n->k;
    for (size_t i = 0, m = 1; w->packed && i < w->n->table.n; i += m) {
        m = group(w, i);
        kernels_free(k, w->packed[i].scale2);
        kernels_free(k, w->packed[i].expanded);
        kernels_free(k, w->packed[i].transposed);
    }
    for (size_t i = 0; w->packed && i < w->n->table.n; i++) {
        kernels_free(k, w->packed[i].data);
        kernels_free(k, w->packed[i].scales);
        kernels_free(k, w->packed[i].tiles);
    }
    for (int i = 0; i < 2; i++) {
        kernels_free(k, w->shared_codes[i].data);
        kernels_free(k, w->shared_codes[i].scales);
        kernels_free(k, w->shared_codes[i].scale2);
    }
    kernels_free(k, w->bound);
    kernels_free(k, w->inexact);
    kernels_free(k, w->scratch);
    kernels_free(k, w->scratch_scale2);
    kernels_free(k, w->amax);
    kernels_free(k, w->all_amax);
    free(w->packed);
    free(w->codes);
    free(w->host_amax);
    free(w->known);
    free(w->stale);
    free(w->at);
    *w = (struct weights){ 0 };
}

void
weights_begin(struct weights *w)
{
    size_t n = w->n->table.n;
    op_zero(w->n->k, w->amax, n * sizeof *w->amax);
    memset(w->known, 0, n * sizeof *w->known);
}

float *
weights_amax(struct weights *w, size_t i)
{
    w->known[i] = true;
    return &w->amax[i];
}

/* ---- several ranks ------------------------------------------------------------------------ */

int
weights_share(struct weights *w, struct comm *c)
{
    w->comm = c;
    w->all_amax = kernels_alloc(w->n->k, MEMORY_WEIGHTS,
                                w->n->table.n * c->size * sizeof *w->all_amax);
    w->at = calloc(EXCHANGE_TOGETHER * ((size_t)c->size + 1), sizeof *w->at);
    if (!w->all_amax || !w->at)
        return err_set(w->n->err, ERR_MEMORY, "out of memory for weights");
    return 0;
}

static bool
has_others(const struct weights *w)
{
    return w->comm && !w->n->k->dry && !w->n->err->kind;
}

/* The largest magnitudes of tensors from those of their parts. */
static void
share_amax(struct weights *w)
{
    struct kernels *k = w->n->k;
    size_t n = w->n->table.n, bytes = n * sizeof *w->all_amax;
    const struct exchange_array all = { EXCHANGE_AMAX, 0, w->all_amax, w->at };
    for (unsigned q = 0; q <= w->comm->size; q++)
        w->at[q] = q * bytes;
    op_copy(k, w->all_amax + w->comm->rank * n, w->amax, bytes);
    exchange_begin(k);
    exchange_gather(k, w->comm, &all, 1);
    exchange_end(k, EXCHANGE_LAYER);
    kernels_wait(k, EXCHANGE_LAYER);
    op_largest(k, w->amax, w->all_amax, n, w->comm->size);
}

/* The own rows of `codes`, which are row i's, without their expanded form; how many elements. */
static size_t
own_rows(const struct weights *w, size_t i, const struct matrix *codes,
         struct matrix *rows)
{
    struct span s = shard_span(&w->n->table, i, w->comm->size, w->comm->rank);
    *rows = *codes;
    rows->rows = (size_t)(s.count / rows->cols);
    rows->data = (uint8_t *)rows->data + s.first / 2;
    rows->scales = (uint8_t *)rows->scales + s.first / NVFP4_BLOCK;
    rows->expanded = NULL;
    return (size_t)s.count;
}

/* The bytes at which ranks' parts begin in an array of row i with that number of elements a byte,
 * in the `array`-th row of w->at. */
static size_t *
parts_of(struct weights *w, size_t i, size_t array, size_t elements)
{
    size_t *at = w->at + array * ((size_t)w->comm->size + 1);
    shard_parts(at, &w->n->table, i, w->comm->size);
    for (unsigned q = 0; q <= w->comm->size; q++)
        at[q] /= elements;
    return at;
}

/* The event of what is gathered of row i. */
static unsigned
event_of(const struct weights *w, size_t i)
{
    if (w->packed[i].dtype == DT_F8_E4M3)
        return EXCHANGE_CODES + (w->codes[i].scale2 == w->shared_codes[1].scale2);
    return w->n->table.row[i].layer > 0 ? EXCHANGE_ALL : EXCHANGE_LAYER;
}

/* Of a layer's codes, before its first pass after they were made. */
static void
expand(struct weights *w, uint32_t layer)
{
    for (size_t i = 0; i < w->n->table.n; i++)
        if (w->stale[i] && w->n->table.row[i].layer == (int)layer) {
            op_expand(w->n->k, &w->packed[i]);
            w->stale[i] = false;
        }
}

void
weights_await(struct weights *w, uint32_t layer)
{
    if (layer <= 1) // the others are gathered while the first one is computed
        kernels_wait(w->n->k, layer ? EXCHANGE_ALL : EXCHANGE_LAYER);
    if (!w->n->unquantized)
        expand(w, layer);
}

/* Codes and scales of the group of n rows from i on, and its tensor scale, which the owner of the
 * first rows has made. */
static void
gather_codes(struct weights *w, size_t i, size_t n, const struct matrix *codes)
{
    struct exchange_array a[EXCHANGE_TOGETHER];
    size_t arrays = 0, *at = parts_of(w, i, 0, 1);
    for (unsigned q = 0; q <= w->comm->size; q++)
        at[q] = at[q] ? sizeof *codes->scale2 : 0;
    a[arrays++] = (struct exchange_array){ EXCHANGE_SCALE2, i, codes[i].scale2, at };
    for (size_t m = i; m < i + n; m++) {
        at = parts_of(w, m, arrays, 2);
        a[arrays++] = (struct exchange_array){ EXCHANGE_DATA, m, codes[m].data, at };
        at = parts_of(w, m, arrays, NVFP4_BLOCK);
        a[arrays++] =
            (struct exchange_array){ EXCHANGE_SCALES, m, codes[m].scales, at };
    }
    exchange_begin(w->n->k);
    exchange_gather(w->n->k, w->comm, a, arrays);
    exchange_end(w->n->k, event_of(w, i));
}

/* ---- making ------------------------------------------------------------------------------- */

/* E4M3 of the codes of the group of n rows from i on, if it is of E4M3. */
static void
make_fp8(struct weights *w, size_t i, size_t n)
{
    const struct fp8_found found = { NULL, w->inexact };
    if (w->packed[i].dtype != DT_F8_E4M3)
        return;
    if (w->comm)
        kernels_wait(w->n->k, event_of(w, i));
    for (size_t m = i; m < i + n; m++)
        op_amax(w->n->k, &w->bound[m], &w->codes[m]);
    for (size_t m = i; m < i + n; m++)
        op_to_fp8(w->n->k, &w->packed[m], &w->codes[m], &w->bound[i], n,
                  w->n_fp8 ? NULL : &found);
}

/* The codes of that group, or of this rank's rows, and then the others'. */
static void
make_group(struct weights *w, size_t i, size_t n, const struct matrix *master)
{
    struct matrix *to = w->packed[i].dtype == DT_F8_E4M3 ? w->codes : w->packed, rows;
    if (!w->packed[i].scale2 || !master[i].data)
        return;
    for (size_t m = i; m < i + n; m++) {
        rows = to[m];
        if (!w->comm || own_rows(w, m, &to[m], &rows))
            op_quantize(w->n->k, &rows, &master[m], &w->amax[i], n, &w->spec);
        w->stale[m] = w->comm && to[m].expanded;
    }
    if (w->comm && !w->n->err->kind)
        gather_codes(w, i, n, to);
}

/* The weights of products of all groups.  Where codes are gathered meanwhile, those of a group
 * are used after those of the next one have been made. */
static void
make_groups(struct weights *w, const struct matrix *master)
{
    size_t rows = w->n->table.n, before = rows;
    for (size_t i = 0, n = 1; i < rows; i += n) {
        n = group(w, i);
        make_group(w, i, n, master);
        if (!w->overlaps) {
            make_fp8(w, i, n);
            continue;
        }
        if (before < rows)
            make_fp8(w, before, group(w, before));
        before = i;
    }
    if (before < rows)
        make_fp8(w, before, group(w, before));
}

/* Bounds of codes that are kept.  All ranks wait for all codes here: where only the first layer
 * waited for its own, one of several ranks could wait for another that was ahead. */
static void
find_bounds(struct weights *w)
{
    for (uint32_t layer = 0; layer < 2 && w->comm; layer++)
        weights_await(w, layer);
    for (size_t i = 0; i < w->n->table.n; i++)
        if (w->n->t[i].bound)
            op_amax(w->n->k, &w->bound[i], &w->packed[i]);
}

/* What conversions of kept codes will lose. */
static void
count_inexact(struct weights *w)
{
    const struct fp8_found found = { NULL, w->inexact };
    for (size_t i = 0; i < w->n->table.n; i++) {
        const struct net_tensor *t = &w->n->t[i];
        struct matrix to = t->fp8;
        to.transposed = NULL;
        if (t->bound)
            op_to_fp8(w->n->k, &to, &w->packed[i], t->bound, t->bounds, &found);
    }
}

/* The first time: what the conversions have counted. */
static void
read_inexact(struct weights *w)
{
    kernels_download(w->n->k, &w->n_inexact, w->inexact, sizeof *w->inexact);
    for (size_t i = 0; i < w->n->table.n; i++)
        if (w->packed[i].dtype == DT_F8_E4M3 || w->n->t[i].bound)
            w->n_fp8 += w->packed[i].rows * w->packed[i].cols;
}

int
weights_make(struct weights *w, const struct matrix *master)
{
    struct kernels *k = w->n->k;
    const struct table *t = &w->n->table;
    for (size_t i = 0; i < t->n; i++)
        if (master[i].data && master[i].rows && !w->known[i])
            op_amax(k, &w->amax[i], &master[i]);
    if (has_others(w))
        share_amax(w);
    bool counts = w->inexact && w->n_fp8 == 0 && !w->n->unquantized;
    if (counts)
        op_zero(k, w->inexact, sizeof *w->inexact);
    if (!w->n->unquantized)
        make_groups(w, master);
    if (w->scratch && !w->n->unquantized)
        find_bounds(w);
    if (w->scratch && counts)
        count_inexact(w);
    if (counts)
        read_inexact(w);
    memset(w->known, 0, t->n * sizeof *w->known);
    return w->n->err->kind ? -1 : 0;
}

const struct row *
weights_odd(const struct table *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->row[i].quantized && !has_multiples(&t->row[i], FP4_NATIVE_UNIT))
            return &t->row[i];
    return NULL;
}

const struct row *
weights_not_fp8(const struct table *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->row[i].quantized && !has_multiples(&t->row[i], FP8_UNIT))
            return &t->row[i];
    return NULL;
}

bool
weights_may_be_fp8(const struct table *t, size_t i)
{
    while (i > 0 && table_fused_rows(t, i - 1) > 1)
        i--;
    for (size_t end = i + table_fused_rows(t, i); i < end; i++)
        if (!has_multiples(&t->row[i], FP8_UNIT))
            return false;
    return true;
}

int
weights_check(struct weights *w, size_t *row)
{
    struct kernels *k = w->n->k;
    size_t n = w->n->table.n;
    *row = n;
    if (kernels_download(k, w->host_amax, w->amax, n * sizeof *w->host_amax) < 0)
        return -1;
    for (size_t i = n; i-- > 0;)
        if (isnan(w->host_amax[i]))
            *row = i;
    return 0;
}
