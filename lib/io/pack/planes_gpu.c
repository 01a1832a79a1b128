/* SPDX-License-Identifier: MIT */
/* planes_gpu: quantizing on a GPU. */
#include "lib/io/pack/produce.h"

#include "kernels/kernels.h"
#include "lib/core/par.h"

#include <stdlib.h>

/* A tensor on it, and its nvfp4 form. */
struct on_gpu {
    struct kernels *k;
    float *amax;
    struct matrix from, to;
};

static int
gpu_alloc(struct on_gpu *g, const struct producer *x, size_t rows, size_t cols,
          enum dtype dtype)
{
    struct kernels *k = g->k;
    const enum memory what = MEMORY_WORK;
    size_t n = rows * cols;
    g->from =
        matrix_of(dtype, kernels_alloc(k, what, n * dtype_bits(dtype) / 8), rows, cols);
    g->amax = kernels_alloc(k, what, sizeof *g->amax);
    g->to = matrix_of(DT_NVFP4, kernels_alloc(k, what, n / 2), rows, cols);
    g->to.scales = kernels_alloc(k, what, n / NVFP4_BLOCK);
    g->to.scale2 = kernels_alloc(k, what, sizeof *g->to.scale2);
    return x->p->err->kind ? -1 : 0;
}

static void
gpu_free(struct on_gpu *g)
{
    kernels_free(g->k, g->from.data);
    kernels_free(g->k, g->amax);
    kernels_free(g->k, g->to.data);
    kernels_free(g->k, g->to.scales);
    kernels_free(g->k, g->to.scale2);
}

static int
gpu_upload(struct on_gpu *g, struct producer *x)
{
    uint64_t chunks = producer_chunks(x);
    for (uint64_t i = 0; i < chunks; i++) {
        enum dtype d;
        const void *from = producer_read(x, i, x->scratch, &d, x->p->err);
        if (!from)
            return -1;
        size_t bytes = dtype_bits(d) / 8;
        kernels_upload(g->k, dtype_at(d, g->from.data, i * VALUES_CHUNK), from,
                       producer_chunk(x, i) * bytes);
    }
    return 0;
}

struct measured {
    struct producer *x;
    const uint8_t *codes;
    struct quant_error *error; // of each chunk
};

static int
measure_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct measured *m = ctx;
    struct producer *x = m->x;
    struct values_scratch *w = &x->scratch[worker];
    uint64_t first = i * (uint64_t)VALUES_CHUNK;
    size_t n = producer_chunk(x, i);
    if (producer_floats(x, first, n, w, NULL, err) < 0)
        return -1;
    nvfp4_measure(m->codes + first / 2, x->nvfp4->scales + first / NVFP4_BLOCK, w->f32,
                  n, &x->scale, &m->error[i]);
    return 0;
}

static int
measure_all(struct producer *x, const uint8_t *codes)
{
    size_t chunks = (size_t)producer_chunks(x);
    struct measured m = { x, codes, calloc(chunks, sizeof *m.error) };
    if (!m.error)
        return err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
    int rc = par_for(x->threads, chunks, measure_chunk, &m, x->p->err);
    for (size_t i = 0; i < chunks; i++)
        producer_add_error(&x->nvfp4->error, &m.error[i]);
    free(m.error);
    return rc;
}

/* A whole tensor at once. */
int
producer_gpu(struct producer *x)
{
    struct nvfp4 *t = x->nvfp4;
    struct on_gpu g = { .k = x->p->c->gpu };
    struct kernels *k = g.k;
    size_t n = (size_t)x->it->numel, cols = (size_t)t->cols;
    enum dtype in_file = item_file_floats(x->it);
    enum dtype dtype = in_file == DT_NONE ? DT_F32 : in_file;
    uint8_t *codes = malloc(n / 2 + 1);
    int rc = codes ? gpu_alloc(&g, x, n / cols, cols, dtype)
                   : err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
    if (rc == 0 && (rc = gpu_upload(&g, x)) == 0) {
        kernels_upload(k, g.amax, &x->scale.amax, sizeof x->scale.amax);
        op_quantize(k, &g.to, &g.from, g.amax, 1, &x->spec);
        rc = kernels_download(k, codes, g.to.data, n / 2);
    }
    if (rc == 0)
        rc = kernels_download(k, t->scales, g.to.scales, n / NVFP4_BLOCK);
    if (rc == 0)
        producer_settle_zeros(t->dialect, codes, t->scales, n / NVFP4_BLOCK);
    if (rc == 0 && x->measure)
        rc = measure_all(x, codes);
    if (rc == 0 && !x->discard)
        rc = producer_write(x, codes, n / 2);
    gpu_free(&g);
    free(codes);
    return rc;
}
