/* SPDX-License-Identifier: MIT */
/* planes_gpu: quantizing on a GPU.
 *
 * A tensor's values are uploaded for its largest magnitude and stay there until it is
 * quantized, if that is next; the errors are measured by the threads of the CPU. */
#include "lib/convert/produce.h"

#include "lib/base/par.h"
#include "lib/load/bulk.h"

#include <stdlib.h>

/* Upload values that are not floats of a file. */
static int
upload_chunks(struct producer *x, void *to)
{
    uint64_t chunks = producer_chunks(x);
    for (uint64_t i = 0; i < chunks; i++) {
        enum dtype d;
        const void *from = producer_read(x, i, x->scratch, &d, x->p->err);
        if (!from)
            return -1;
        kernels_upload(x->pool.k, dtype_at(d, to, i * VALUES_CHUNK), from,
                       producer_chunk(x, i) * dtype_bits(d) / 8);
    }
    return x->p->err->kind ? -1 : 0;
}

/* Load the values of t; its checksum is verified at the first time. */
static int
load(struct producer *x, struct nvfp4 *t)
{
    const struct item *it = &t->source;
    enum dtype d = item_file_floats(it);
    size_t rows = (size_t)(it->numel / t->cols);
    bool in_file = d != DT_NONE;
    t->on_gpu = matrix_of(in_file ? d : DT_F32, NULL, rows, (size_t)t->cols);
    t->on_gpu.data =
        pool_alloc(&x->pool, (size_t)it->numel * dtype_bits(t->on_gpu.dtype) / 8);
    if (!t->on_gpu.data)
        return -1;
    if (!in_file)
        return producer_begin(x, it) < 0 ? -1 : upload_chunks(x, t->on_gpu.data);
    const struct bulk b = { it->entry, t->on_gpu.data, 0, 0 };
    return bulk_load(x->pool.k, it->s, &b, 1, !t->scanned && it->entry->xxh3,
                     x->threads, x->p->err);
}

static void
drop(struct producer *x, struct nvfp4 *t)
{
    pool_free(&x->pool, t->on_gpu.data);
    t->on_gpu.data = NULL;
}

int
planes_gpu_amax(struct producer *x, struct nvfp4 *t, bool keep)
{
    struct kernels *k = x->pool.k;
    float *amax = pool_alloc(&x->pool, sizeof *amax);
    int rc = amax ? load(x, t) : -1;
    if (rc == 0) {
        op_amax(k, amax, &t->on_gpu);
        rc = kernels_download(k, &t->amax, amax, sizeof t->amax);
    }
    pool_free(&x->pool, amax);
    if (!keep)
        drop(x, t);
    return rc;
}

struct measured {
    struct producer *x;
    const uint8_t *codes;
    struct quant_error *error; // of each chunk
};

/* Item 0 writes the codes, the others measure a chunk each. */
static int
measure_or_write(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct measured *m = ctx;
    struct producer *x = m->x;
    struct values_scratch *w = &x->scratch[worker];
    if (i == 0 && !x->discard &&
        producer_write(x, m->codes, (size_t)x->it->numel / 2) < 0)
        return err_set(err, x->p->err->kind, "%s", x->p->err->msg);
    if (i == 0)
        return 0;
    uint64_t first = (i - 1) * (uint64_t)VALUES_CHUNK;
    size_t n = producer_chunk(x, i - 1);
    if (producer_floats(x, first, n, w, NULL, err) < 0)
        return -1;
    nvfp4_measure(m->codes + first / 2, x->nvfp4->scales + first / NVFP4_BLOCK, w->f32,
                  n, &x->scale, &m->error[i - 1]);
    return 0;
}

/* Write the codes, and measure the errors if they are wanted. */
static int
take_planes(struct producer *x, const uint8_t *codes)
{
    size_t chunks = x->measure ? (size_t)producer_chunks(x) : 0;
    struct err err = { 0 };
    struct measured m = { x, codes, calloc(chunks + 1, sizeof *m.error) };
    if (!m.error)
        return err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
    int rc = par_for(x->threads, chunks + 1, measure_or_write, &m, &err);
    for (size_t i = 0; i < chunks; i++)
        producer_add_error(&x->nvfp4->error, &m.error[i]);
    free(m.error);
    return rc < 0 ? err_set(x->p->err, err.kind, "%s", err.msg) : 0;
}

/* Codes and scales of the values on the GPU, into host memory. */
static int
quantize(struct producer *x, struct nvfp4 *t, uint8_t *codes)
{
    struct kernels *k = x->pool.k;
    struct quant_spec spec = x->spec;
    size_t n = (size_t)t->source.numel, weights = (size_t)t->cols * sizeof(float);
    float *amax = pool_alloc(&x->pool, 2 * sizeof *amax);
    float *column = t->importance ? pool_alloc(&x->pool, weights) : NULL;
    struct matrix to = matrix_of(DT_NVFP4, pool_alloc(&x->pool, n / 2), t->on_gpu.rows,
                                 t->on_gpu.cols);
    to.scales = pool_alloc(&x->pool, n / NVFP4_BLOCK);
    int rc = -1;
    if (amax && to.data && to.scales && !t->importance == !column) {
        if (column)
            kernels_upload(k, column, t->importance, weights);
        spec.column_weight = column;
        to.scale2 = amax + 1;
        kernels_upload(k, amax, &x->scale.amax, sizeof x->scale.amax);
        op_quantize(k, &to, &t->on_gpu, amax, 1, &spec);
        rc = kernels_download(k, codes, to.data, n / 2);
        if (rc == 0)
            rc = kernels_download(k, t->scales, to.scales, n / NVFP4_BLOCK);
    }
    pool_free(&x->pool, amax);
    pool_free(&x->pool, column);
    pool_free(&x->pool, to.data);
    pool_free(&x->pool, to.scales);
    return rc;
}

int
planes_gpu_make(struct producer *x)
{
    struct nvfp4 *t = x->nvfp4;
    size_t n = (size_t)t->source.numel;
    uint8_t *codes = malloc(n / 2 + 1);
    int rc = codes ? 0 : err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
    if (rc == 0 && !t->on_gpu.data)
        rc = load(x, t);
    if (rc == 0)
        rc = producer_values(x, &t->source);
    if (rc == 0)
        rc = quantize(x, t, codes);
    drop(x, t);
    if (rc == 0) {
        producer_settle_zeros(t->dialect, codes, t->scales, n / NVFP4_BLOCK);
        rc = take_planes(x, codes);
    }
    free(codes);
    return rc;
}
