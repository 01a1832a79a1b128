/* SPDX-License-Identifier: MIT */
/* cuda: the device as the files of the CUDA backend share it; device.h has what kernels
 * share, ops.h the operations.
 *
 * Operations are in the order of their queue's stream.  Sums go in an order that depends on
 * sizes alone, never on which block comes first; there are no floating-point atomics.  What
 * must have the CPU's bits (quantizers, optimizer) says so in its file and is written in
 * single operations that nothing fuses: the whole backend is compiled with -fmad=false,
 * and a fused one is asked for by name, fmaf.
 */
#ifndef NIBBLE_KERNELS_CUDA_CUDA_H
#define NIBBLE_KERNELS_CUDA_CUDA_H

extern "C" {
#include "kernels/ops.h"
}

#include "kernels/cuda_sizes.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* Kernels that begin early, see device.h; each kind behind its own only. */
enum early { NOT_EARLY, EARLY_FORWARD, EARLY_UPDATES, EARLY_QUANTIZERS };

struct plan;  // of a product: gemm.cu
struct trace; // of times: cuda.cu

/* A queue: what operations that may run at the same time must not share.  Only that of
 * QUEUE_COMPUTE has memory to work in: products, attention, norms, losses and sums run there. */
struct cuda_queue {
    cudaStream_t stream;
    void *workspace;     // WORKSPACE bytes, of cuBLASLt
    float *partials;     // PARTIALS bytes: of the operation that runs
    void *expanded;      // EXPANDED bytes: the same
    enum early early;    // which launches may begin before the last one has ended
    const void *updated; // by the last adamw, which may still run
};

struct cuda {
    struct kernels k;                 // first: a struct kernels * is one of these
    int device, sms;                  // multiprocessors
    int major, minor;                 // compute capability
    size_t shared;                    // most bytes of a block, if asked for
    struct cuda_queue q;              // the one that operations go to
    struct cuda_queue queues[QUEUES]; // the others, as they were left
    cudaEvent_t events[EVENTS];       // of kernels_record; NULL: not yet
    cublasLtHandle_t lt;
    float *fp4_sums; // is.fp4_sums bytes, of fp4.cu; NULL: not yet needed
    float *one_zero; // 1 and 0
    char *stages;    // page-locked memory of the host: STAGES of STAGE_BYTES
    cudaEvent_t stage_free[STAGES];
    bool stage_out[STAGES]; // acquired by a thread
    int stage_at;           // the last one
    void *cudnn;            // of attention_cudnn
    struct trace *trace;    // NULL: times are not wanted
    struct plan *plans;
    size_t n_plans, cap_plans;
};

static inline struct cuda *
cuda_of(struct kernels *k)
{
    return (struct cuda *)k;
}

/* False, and the error kept, if not.  what: the call, with its place. */
bool cuda_check(struct cuda *c, cudaError_t e, const char *what);
bool cuda_check_blas(struct cuda *c, cublasStatus_t s, const char *what);

void *cuda_alloc(struct kernels *k, enum memory what, size_t bytes);
void cuda_upload(struct kernels *k, void *to, const void *from, size_t bytes);

/* With NIBBLE_CUDA_TIMES set, what the stream did since the last mark is counted for this
 * name, and a table of all is printed in the end. */
void cuda_mark(struct cuda *c, const char *name);

/* Whether an operation may go on: after an error none does. */
static inline bool
cuda_ready(const struct cuda *c)
{
    return c->k.err->kind == ERR_NONE;
}

/* After each launch, unless it is cuda_start's. */
void cuda_launched(struct cuda *c, const char *name);

static inline unsigned
blocks_of(size_t n, size_t each)
{
    return (unsigned)((n + each - 1) / each);
}

/* Call f<float> or f<__nv_bfloat16>, by the type of activations. */
#define BY_TYPE(dtype, f, ...)                                                         \
    ((dtype) == DT_F32 ? f<float>(__VA_ARGS__) : f<__nv_bfloat16>(__VA_ARGS__))

#endif
