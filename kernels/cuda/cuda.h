/* SPDX-License-Identifier: MIT */
/* cuda: the device, shared by the files of the CUDA backend; device.h is shared by
 * kernels, ops.h declares the operations.
 *
 * Operations are in the order of their queue's stream.  Sums have an order that depends
 * only on sizes, never on scheduling; there are no floating-point atomics.  Files whose
 * results must have the CPU's bits (quantizers, optimizer) say so and use operations
 * that are never fused: the whole backend is compiled with -fmad=false, and fused
 * multiply-adds are explicit (fmaf). */
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

/* Programmatic dependent launch, see device.h: a kernel may start before one of its own
 * kind has ended. */
enum early { NOT_EARLY, EARLY_FORWARD, EARLY_UPDATES, EARLY_QUANTIZERS };

struct plan;      // of a GEMM: gemm.cu
struct trace;     // profiling: cuda.cu
struct recording; // replay.cu
struct peers;     // peers.cu

/* A queue: stream and buffers that concurrent operations must not share.  Only
 * QUEUE_COMPUTE has buffers: products, attention, norms, losses and sums run there. */
struct cuda_queue {
    cudaStream_t stream;
    void *workspace;     // WORKSPACE bytes, for cuBLASLt
    float *partials;     // PARTIALS bytes: scratch of an operation
    void *expanded;      // EXPANDED bytes: scratch of an operation
    enum early early;    // launches of this kind may start before the last has ended
    const void *updated; // master of the last adamw, may still run; or NULL
};

struct cuda {
    struct kernels k;                 // first: a struct kernels * is one of these
    int device, sms;                  // sms: number of SMs
    int major, minor;                 // compute capability
    size_t shared;                    // max. shared memory per block (opt-in), bytes
    struct cuda_queue q;              // the current one
    struct cuda_queue queues[QUEUES]; // saved state of the others
    cudaEvent_t events[EVENTS];       // of kernels_record; NULL: not created yet
    enum queue event_of[EVENTS];      // where each was recorded
    cudaStream_t beside; // of downloads that no queue waits for; NULL: none yet
    cublasLtHandle_t lt;
    float *fp4_sums;  // is.fp4_sums bytes, for fp4.cu; NULL: not allocated yet
    float *one_zero;  // 1 and 0, for alpha and beta
    unsigned *ticket; // of attention's tiles; 0 between launches
    char *stages;     // pinned host memory: STAGES of STAGE_BYTES
    cudaEvent_t stage_free[STAGES];
    bool stage_out[STAGES]; // held by a host thread
    int stage_at;           // the last one used
    void *scratch;          // see cuda_scratch
    size_t scratch_bytes;
    void *cudnn;         // state of attention_cudnn
    void *encode;        // of tensor_map; NULL: not looked for yet
    struct trace *trace; // NULL: no profiling
    struct plan *plans;
    size_t n_plans, cap_plans;
    char *exchange;              // EXCHANGE bytes, of layers.cu
    size_t exchanged[2];         // bytes of a rotation there, elements of its vectors
    struct recording *recording; // NULL: none yet
    struct peers *peers;         // NULL: no other ranks
    int attends; // head width for which attend may use its shared memory
};

static inline struct cuda *
cuda_of(struct kernels *k)
{
    return (struct cuda *)k;
}

/* False, with the error set, on failure. what: the failed call. */
bool cuda_check(struct cuda *c, cudaError_t e, const char *what);
bool cuda_check_blas(struct cuda *c, cublasStatus_t s, const char *what);

/* A function of the driver that the runtime has not; NULL: the driver has none of this name. */
void *cuda_driver_function(const char *name);

void *cuda_alloc(struct kernels *k, enum memory what, size_t bytes);
/* Where the allocation begins that p points into. */
void *cuda_allocation(struct cuda *c, const void *p);
/* Scratch of an operation on QUEUE_COMPUTE, at least `bytes`, which is kept and grown;
 * NULL, with the error set, without memory. */
void *cuda_scratch(struct cuda *c, size_t bytes);
void cuda_upload(struct kernels *k, void *to, const void *from, size_t bytes);

/* Profiling, if NIBBLE_CUDA_TIMES is set: the stream's time since the last mark is
 * added to this name; cuda_close prints a table. */
void cuda_mark(struct cuda *c, const char *name);

/* Whether operations may run: none does after an error. */
static inline bool
cuda_ready(const struct cuda *c)
{
    return c->k.err->kind == ERR_NONE;
}

/* Call after each launch; cuda_start does so itself. */
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
