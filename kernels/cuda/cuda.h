/* SPDX-License-Identifier: MIT */
/* cuda: what the parts of the CUDA backend share.
 *
 * One stream: operations are in its order.  Sums go in an order that depends on sizes
 * alone, never on which block comes first; there are no floating-point atomics.  What must
 * have the CPU's bits (quantizers, optimizer) says so in its file and is written in
 * single operations that nothing fuses: the whole backend is compiled with -fmad=false,
 * and a fused one is asked for by name, fmaf.
 */
#ifndef NIBBLE_KERNELS_CUDA_CUDA_H
#define NIBBLE_KERNELS_CUDA_CUDA_H

extern "C" {
#include "kernels/kernels.h"
}

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum {
    WORKSPACE = 64 << 20, // of cuBLASLt
    PARTIALS = 16 << 20,  // of sums that go over rows, and of attention's pieces
    EXPANDED = 128 << 20, // of weights that a product takes as bf16
};

/* Kernels that begin early, see cuda_start; each kind behind its own only. */
enum early { NOT_EARLY, EARLY_FORWARD, EARLY_UPDATES, EARLY_QUANTIZERS };

struct plan;  // of a product: gemm.cu
struct drawn; // the same
struct trace; // of times: cuda.cu

struct cuda {
    struct kernels k; // first: a struct kernels * is one of these
    struct err *err;
    int device, sms;  // multiprocessors
    int major, minor; // compute capability
    size_t shared;    // most bytes of a block, if asked for
    cudaStream_t stream;
    cublasLtHandle_t lt;
    void *workspace; // WORKSPACE bytes
    float *partials; // PARTIALS bytes: of the operation that runs
    void *expanded;  // EXPANDED bytes: the same
    float *sums;     // is.sums bytes, of fp4.cu: the same; NULL: not yet needed
    float *numbers;  // small: 1, 0 and what an operation needs of its own
    char *stages;    // page-locked memory of the host: STAGES of STAGE_BYTES
    cudaEvent_t stage_free[STAGES];
    bool stage_out[STAGES]; // to who asked for it
    int stage_at;           // the last one
    void *cudnn;            // of attention_cudnn
    struct trace *trace;    // NULL: nobody wants to know
    int early;              // which launches may begin before the last one has ended
    const void *updated;    // by the last adamw, which may still run
    struct plan *plans;
    size_t n_plans, cap_plans;
    struct drawn *drawn; // algorithms of products that are tried, see gemm.cu
    size_t n_drawn;
    uint64_t passes; // that have begun
};

static inline struct cuda *
cuda_of(struct kernels *k)
{
    return (struct cuda *)k;
}

/* False, and the error kept, if not.  what: the call, with its place. */
bool cuda_check(struct cuda *c, cudaError_t e, const char *what);
bool cuda_check_blas(struct cuda *c, cublasStatus_t s, const char *what);

/* With NIBBLE_CUDA_TIMES set, what the stream did since the last mark is counted for this
 * name, and a table of all is printed in the end. */
void cuda_mark(struct cuda *c, const char *name);

/* Whether an operation may begin: after an error none does. */
static inline bool
cuda_ready(const struct cuda *c)
{
    return c->err->kind == ERR_NONE;
}

/* After each launch, unless it is cuda_start's. */
void cuda_launched(struct cuda *c, const char *name);

static inline unsigned
blocks_of(size_t n, size_t each)
{
    return (unsigned)((n + each - 1) / each);
}

/* Call f<float> or f<__nv_bfloat16>, by the type of the device's activations. */
#define BY_ACT(c, f, ...)                                                              \
    ((c)->k.is.act == DT_F32 ? f<float>(__VA_ARGS__) : f<__nv_bfloat16>(__VA_ARGS__))

/* ---- on the device ------------------------------------------------------------------ */

#ifdef __CUDACC__ // attention_cudnn.cpp is for the host's compiler alone

/* Launches that begin early.  Decoding is short kernels one after the other, so each lets
 * the next one begin at once, which gets its blocks in place and asks for its weights while
 * the one before still works.  A kernel that cuda_start launches calls cuda_next, which
 * lets the next one begin, and in every block cuda_wait, before anything but weights is
 * read and before anything is written: then all kernels before it have ended, since the
 * one before it had waited, too.
 *
 * What it reads before it waits must not be what a kernel writes that may still run.  After
 * anything else on the stream the next launch is a plain one, which begins when all before
 * it has ended, and those behind it begin no earlier than it does.  In between:
 *   EARLY_FORWARD     no kernel writes weights, which is what is read;
 *   EARLY_UPDATES     of norms, clips and adamw, adamw alone reads: a gradient and the state
 *                     of its tensor, which only another adamw of it writes; it lets the next
 *                     one begin when it has waited, so that c->updated is all there is to know;
 *   EARLY_QUANTIZERS  values, their amax and weights of columns are read, which kernels.h
 *                     says none of them writes; codes and the like are written, and a
 *                     multiplier that several share, by each the same. */
static __device__ __forceinline__ void
cuda_next(void)
{
    cudaTriggerProgrammaticLaunchCompletion();
}

static __device__ __forceinline__ void
cuda_wait(void)
{
    cudaGridDependencySynchronize();
}

/* Both: of kernels that have nothing to do before. */
static __device__ __forceinline__ void
cuda_take_over(void)
{
    cuda_next();
    cuda_wait();
}

/* cluster: how many neighbouring blocks are a cluster. */
template <typename... P, typename... A>
static void
cuda_start_kind(struct cuda *c, enum early kind, const char *name, unsigned cluster,
                void (*kernel)(P...), dim3 blocks, unsigned threads, size_t shared,
                A... args)
{
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = c->stream;
    config.attrs = attribute;
    if (c->early == kind) {
        cudaLaunchAttribute *may = &attribute[config.numAttrs++];
        may->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        may->val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute *size = &attribute[config.numAttrs++];
        size->id = cudaLaunchAttributeClusterDimension;
        size->val.clusterDim.x = cluster;
        size->val.clusterDim.y = size->val.clusterDim.z = 1;
    }
    cuda_check(c, cudaLaunchKernelEx(&config, kernel, (P)args...), name);
    cuda_launched(c, name);
    c->early = c->trace ? NOT_EARLY : kind;
}

template <typename... P, typename... A>
static void
cuda_start_clusters(struct cuda *c, const char *name, unsigned cluster,
                    void (*kernel)(P...), dim3 blocks, unsigned threads, size_t shared,
                    A... args)
{
    cuda_start_kind(c, EARLY_FORWARD, name, cluster, kernel, blocks, threads, shared,
                    args...);
}

template <typename... P, typename... A>
static void
cuda_start(struct cuda *c, const char *name, void (*kernel)(P...), dim3 blocks,
           unsigned threads, size_t shared, A... args)
{
    cuda_start_clusters(c, name, 1, kernel, blocks, threads, shared, args...);
}

static __device__ __forceinline__ float
to_f32(float x)
{
    return x;
}

static __device__ __forceinline__ float
to_f32(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ float
to_f32(__half x)
{
    return __half2float(x);
}

template <typename T> static __device__ __forceinline__ T from_f32(float x);

template <>
__device__ __forceinline__ float
from_f32<float>(float x)
{
    return x;
}

template <>
__device__ __forceinline__ __nv_bfloat16
from_f32<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* N neighbours that are read and written at once. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T v[N];
};

/* How many of them make 16 bytes. */
template <typename T> constexpr int lanes = 16 / (int)sizeof(T);

static __device__ __forceinline__ float
warp_sum(float x)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffU, x, i);
    return x;
}

static __device__ __forceinline__ float
warp_max(float x)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, i));
    return x;
}

/* Sum over a block of at most 1024 threads, the same for all; room: 33 floats. */
static __device__ __forceinline__ float
block_sum(float x, float *room)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
        warps = (blockDim.x + 31) / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_sum(lane < warps ? room[lane] : 0);
        if (lane == 0)
            room[32] = x;
    }
    __syncthreads();
    return room[32];
}

static __device__ __forceinline__ float
block_max(float x, float *room)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
        warps = (blockDim.x + 31) / 32;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_max(lane < warps ? room[lane] : room[0]);
        if (lane == 0)
            room[32] = x;
    }
    __syncthreads();
    return room[32];
}

#endif

/* ---- the operations, by file ----------------------------------------------------------- */

/* gemm.cu: products, by cuBLASLt. */
bool cuda_gemm_open(struct cuda *c);
void cuda_gemm_close(struct cuda *c);
void cuda_linear(struct kernels *k, void *y, const void *x, const struct weight *w,
                 size_t tokens, const void *add);
void cuda_linear_many(struct kernels *k, void *const *y, const void *x,
                      const struct weight *const *w, size_t n, size_t tokens);
void cuda_linear_dx(struct kernels *k, void *dx, const void *dy, const struct weight *w,
                    size_t tokens, const void *add);
void cuda_linear_dw(struct kernels *k, const struct grad *dw, const void *dy,
                    const void *x, size_t out, size_t in, size_t tokens, bool add);
void cuda_linear_many_dx(struct kernels *k, void *dx, const void *dy,
                         const struct weight *const *w, size_t n, size_t tokens,
                         const void *add);
void cuda_linear_many_dw(struct kernels *k, const struct grad *const *dw,
                         const void *dy, const void *x, const struct weight *const *w,
                         size_t n, size_t tokens, bool add);
void cuda_logits(struct kernels *k, float *y, const void *x, const struct weight *w,
                 size_t tokens);

/* d (rows, w->out) = f32 sums of the chip's own products of NVFP4, times w->scale2; rows
 * are filled up to whole tiles, in codes and in d, too. */
void cuda_gemm_fp4(struct cuda *c, float *d, const uint8_t *codes, const uint8_t *tiles,
                   const struct weight *w, size_t rows);
/* Whether cuBLASLt has such a product here; if not, the error says why. */
bool cuda_gemm_has_fp4(struct cuda *c);

/* fp4.cu */
void cuda_quantize_rows(struct kernels *k, const struct packed_rows *to, const void *x,
                        const struct quant_spec *spec);
void cuda_unpack_rows(struct kernels *k, void *y, const struct packed_rows *x);
void cuda_linear_fp4(struct kernels *k, void *y, const struct packed_rows *x,
                     const struct weight *w, const void *add);
void cuda_tile(struct kernels *k, uint8_t *tiles, const uint8_t *scales, size_t rows,
               size_t blocks);

/* gemv.cu: products of few tokens, straight from the weight as it is stored.  y is f32 if
 * wide, else activations; add: NULL or what is added. */
enum { GEMV_MOST = 8 };
void cuda_gemv(struct cuda *c, void *y, bool wide, const void *x,
               const struct weight *w, size_t tokens, const void *add);
/* Several products of one x as one, if that can be: then they are done. */
bool cuda_gemv_many(struct cuda *c, void *const *y, const void *x,
                    const struct weight *const *w, size_t n, size_t tokens);

/* rows.cu */
void cuda_embed(struct kernels *k, void *y, const struct weight *w, const int32_t *ids,
                size_t tokens);
void cuda_embed_dw(struct kernels *k, float *dw, const void *dy, const int32_t *ids,
                   size_t tokens, size_t in);
void cuda_norm(struct kernels *k, void *y, float *scale, const void *x,
               const float *gain, size_t rows, size_t n, float eps);
void cuda_norm_dx(struct kernels *k, void *dx, float *dgain, void *y, const void *dy,
                  const void *x, const float *scale, const float *gain, size_t rows,
                  size_t n, const void *c);
void cuda_turn(struct kernels *k, void *y, float *scale, const void *x,
               const float *gain, const struct turn *t);
void cuda_turn_dx(struct kernels *k, void *d, float *dgain, const void *x,
                  const float *scale, const float *gain, const struct turn *t);
void cuda_swiglu(struct kernels *k, void *y, const void *gate, const void *up,
                 size_t n);
void cuda_swiglu_dx(struct kernels *k, void *both, void *d, const void *gate,
                    const void *up, size_t tokens, size_t n);
void cuda_gather(struct kernels *k, void *y, const void *x, const int32_t *index,
                 size_t rows, size_t n);
void cuda_scatter(struct kernels *k, void *y, const void *x, const int32_t *index,
                  size_t rows, size_t n);
void cuda_convert(struct kernels *k, float *y, const void *x, enum dtype dtype,
                  size_t n);
void cuda_cross_entropy(struct kernels *k, float *loss, void *logits,
                        const int32_t *label, size_t rows, size_t vocab, float scale);
void cuda_best(struct kernels *k, int32_t *id, const float *logits, size_t n);
void cuda_l1(struct kernels *k, float *loss, void *dx, float *dw, const void *x,
             const struct weight *w, const int32_t *label, size_t rows, float scale);

/* attention.cu */
void cuda_attention(struct kernels *k, void *out, float *lse, const void *q,
                    const void *key, const void *value, const struct heads *h);
void cuda_attention_dx(struct kernels *k, void *dq, void *dkey, void *dvalue,
                       const void *dout, const void *out, const float *lse,
                       const void *q, const void *key, const void *value, float *work,
                       const struct heads *h);

/* quant.cu */
void cuda_amax(struct kernels *k, float *out, const void *values, enum dtype dtype,
               size_t n);
void cuda_quantize(struct kernels *k, const struct packed *to, const void *values,
                   enum dtype dtype, size_t rows, size_t cols, const float *amax,
                   size_t n, const struct quant_spec *spec);
/* bf16 products of n codes with their scales, to c->expanded or elsewhere; n is a multiple
 * of 16. */
void cuda_expand(struct cuda *c, void *to, const uint8_t *codes, const uint8_t *scales,
                 size_t n);

/* adamw.cu */
void cuda_sum_squares(struct kernels *k, double *out, const struct grad *g,
                      const size_t *n, size_t count);
void cuda_clip(struct kernels *k, float *out, const double *squares, float given,
               float limit, double most, const float *before);
void cuda_adamw(struct kernels *k, const struct adam_state *s, const struct grad *grad,
                uint64_t first, size_t n, const struct adam_step *a);

#endif
