/* SPDX-License-Identifier: MIT */
/* cuda_runtime: the part of CUDA C++ that the backend uses, for the emulation.  Names
 * and meanings are CUDA's, the implementation is ours. */
#ifndef NIBBLE_TESTS_EMULATE_CUDA_RUNTIME_H
#define NIBBLE_TESTS_EMULATE_CUDA_RUNTIME_H

#include "runtime.h"
#include "tests/emulate/emulate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cstddef>
#include <type_traits>

/* ---- keywords -------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __align__(n) alignas(n)
#define __launch_bounds__(...)

#define threadIdx (emulate_now->thread)
#define blockIdx  (emulate_now->block)
#define blockDim  emulate_threads
#define gridDim   emulate_blocks

/* For translate.py: the start of a kernel with its launch bounds, and __shared__
 * variables. */
#define EMULATE_BEGIN(...)                                                             \
    emulate_begin(__PRETTY_FUNCTION__, emulate_first(__VA_ARGS__))
#define EMULATE_SHARED_AS(id, ...) emulate_shared<__VA_ARGS__, id>()

constexpr unsigned
emulate_first(int max_threads = 1024, int = 0, int = 0)
{
    return (unsigned)max_threads;
}

template <typename T, int ID>
static T &
emulate_shared(void)
{
    static struct emulate_place place;
    return *(T *)emulate_variable(&place, sizeof(T));
}

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)
        : x(x_), y(y_), z(z_)
    {
    }
};

struct alignas(8) float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

struct alignas(8) uint2 {
    unsigned x, y;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline float2
make_float2(float x, float y)
{
    return { x, y };
}

static inline uint2
make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}

static inline uint4
make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}

/* ---- launches -------------------------------------------------------------------- */

template <typename F>
struct emulate_start {
    struct emulate_launch launch;
    F f;
};

template <typename F>
static void
emulate_call(void *f)
{
    (*(F *)f)();
}

template <typename F>
static void
emulate_begin_launch(void *with)
{
    alignas(emulate_start<F>) char bytes[sizeof(emulate_start<F>)];
    emulate_start<F> *s = (emulate_start<F> *)(void *)bytes;
    memcpy(bytes, with, sizeof bytes);
    s->launch.with = &s->f;
    emulate_settle();
    emulate_error((cudaError_t)emulate_run(&s->launch));
}

/* f: a copy of it is called, by each thread. */
template <typename F>
static void
emulate_put_launch(const void *kernel, dim3 blocks, dim3 threads, size_t shared,
                   unsigned cluster, cudaStream_t stream, F f)
{
    static_assert(std::is_trivially_copyable<F>::value, "copied as bytes");
    emulate_start<F> s = { { kernel,
                             { blocks.x, blocks.y, blocks.z },
                             { threads.x, threads.y, threads.z },
                             shared,
                             cluster,
                             emulate_call<F>,
                             NULL },
                           f };
    emulate_put(stream, emulate_begin_launch<F>, &s, sizeof s);
}

/* A call with arguments as they are now. */
template <typename F, typename... A>
static auto
emulate_with(F f, A... args)
{
    return [=] { f(args...); };
}

/* <<<blocks, threads, shared, stream>>> */
template <typename F>
static void
emulate_grid(const void *kernel, F f, dim3 blocks, dim3 threads, size_t shared,
             cudaStream_t stream)
{
    emulate_put_launch(kernel, blocks, threads, shared, 1, stream, f);
}

enum cudaLaunchAttributeID {
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        struct {
            unsigned x, y, z;
        } clusterDim;
        int programmaticStreamSerializationAllowed, cooperative;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 emulate_blocks, emulate_threads; // gridDim and blockDim: these are macros
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

template <typename... P, typename... A>
static cudaError_t
cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A... args)
{
    unsigned cluster = 1;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = c->attrs[i].val.clusterDim.x;
        else if (c->attrs[i].id == cudaLaunchAttributeCooperative)
            cluster = c->gridDim.x; // all blocks are there at once
    emulate_put_launch((const void *)kernel, c->gridDim, c->blockDim,
                       c->dynamicSmemBytes, cluster, c->stream,
                       [=] { kernel(args...); });
    return cudaSuccess;
}

template <typename T>
static cudaError_t
cudaFuncSetAttribute(T *kernel, enum cudaFuncAttribute which, int value)
{
    return emulate_attribute((const void *)kernel, which, value);
}

template <typename T>
static cudaError_t
cudaMalloc(T **p, size_t bytes)
{
    return emulate_malloc((void **)p, bytes);
}

template <typename T>
static cudaError_t
cudaMallocHost(T **p, size_t bytes)
{
    return emulate_malloc_host((void **)p, bytes);
}

/* Kernels run one after another: programmatic dependent launch does nothing. */
static inline void
cudaTriggerProgrammaticLaunchCompletion(void)
{
}

static inline void
cudaGridDependencySynchronize(void)
{
}

/* ---- threads --------------------------------------------------------------------- */

static inline void
__syncthreads(int line = __builtin_LINE())
{
    emulate_barrier("__syncthreads", line);
}

static inline void
__syncwarp(unsigned mask = 0xffffffffU)
{
    emulate_warp_sync("__syncwarp", mask, NULL, NULL);
}

static inline void
__cluster_barrier_arrive(void)
{
    emulate_cluster_arrive();
}

static inline void
__cluster_barrier_arrive_relaxed(void)
{
    emulate_cluster_arrive();
}

static inline void
__cluster_barrier_wait(void)
{
    emulate_cluster_wait();
}

template <typename T>
static inline void *
__cluster_map_shared_rank(T *p, unsigned rank)
{
    return emulate_of_rank((const void *)p, rank);
}

static inline size_t
__cvta_generic_to_shared(const void *p)
{
    return emulate_address(p);
}

/* ---- a warp ---------------------------------------------------------------------- */

struct emulate_lane_value {
    uint64_t in, out;
    unsigned from; // a lane
    bool yes;
};

static inline void
emulate_shuffle_all(void *const *data, uint32_t mask)
{
    for (unsigned l = 0; l < 32; l++) {
        struct emulate_lane_value *v = (struct emulate_lane_value *)data[l];
        if (!(mask >> l & 1))
            continue;
        if (!(mask >> v->from & 1))
            emulate_fail("a shuffle from lane %u, which the mask does not have",
                         v->from);
        v->out = ((struct emulate_lane_value *)data[v->from])->in;
    }
}

template <typename T>
static inline T
emulate_shuffle(const char *what, unsigned mask, T x, unsigned from)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a number");
    struct emulate_lane_value v = { 0, 0, from, false };
    memcpy(&v.in, &x, sizeof x);
    emulate_warp_sync(what, mask, &v, emulate_shuffle_all);
    memcpy(&x, &v.out, sizeof x);
    return x;
}

template <typename T>
static inline T
__shfl_xor_sync(unsigned mask, T x, unsigned with)
{
    return emulate_shuffle("__shfl_xor_sync", mask, x, emulate_lane() ^ with);
}

template <typename T>
static inline T
__shfl_sync(unsigned mask, T x, int from, int width = 32)
{
    unsigned lane = emulate_lane(), low = lane & ~((unsigned)width - 1);
    return emulate_shuffle("__shfl_sync", mask, x,
                           low | ((unsigned)from & (width - 1)));
}

static inline void
emulate_ballot_all(void *const *data, uint32_t mask)
{
    uint64_t all = 0;
    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1)
            all |= (uint64_t)((struct emulate_lane_value *)data[l])->yes << l;
    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1)
            ((struct emulate_lane_value *)data[l])->out = all;
}

static inline unsigned
emulate_ballot(const char *what, unsigned mask, bool yes)
{
    struct emulate_lane_value v = { 0, 0, 0, yes };
    emulate_warp_sync(what, mask, &v, emulate_ballot_all);
    return (unsigned)v.out;
}

static inline unsigned
__ballot_sync(unsigned mask, int yes)
{
    return emulate_ballot("__ballot_sync", mask, yes);
}

/* Whoever polls lets others run. */
static inline void
__nanosleep(unsigned)
{
}

static inline int
__any_sync(unsigned mask, int yes)
{
    return emulate_ballot("__any_sync", mask, yes) != 0;
}

template <bool ADD>
static inline void
emulate_reduce_all(void *const *data, uint32_t mask)
{
    unsigned all = 0;
    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1) {
            unsigned x = (unsigned)((struct emulate_lane_value *)data[l])->in;
            all = ADD ? all + x : x > all ? x : all;
        }
    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1)
            ((struct emulate_lane_value *)data[l])->out = all;
}

/* Threads see what others have written before them. */
static inline void
__threadfence(void)
{
}

static inline void
__threadfence_block(void)
{
}

static inline unsigned
__reduce_max_sync(unsigned mask, unsigned x)
{
    struct emulate_lane_value v = { x, 0, 0, false };
    emulate_warp_sync("__reduce_max_sync", mask, &v, emulate_reduce_all<false>);
    return (unsigned)v.out;
}

static inline int
__reduce_add_sync(unsigned mask, int x)
{
    struct emulate_lane_value v = { (unsigned)x, 0, 0, false };
    emulate_warp_sync("__reduce_add_sync", mask, &v, emulate_reduce_all<true>);
    return (int)(unsigned)v.out;
}

/* ---- memory ---------------------------------------------------------------------- */

template <typename T>
static inline T
__ldg(const T *p)
{
    return *p;
}

template <typename T>
static inline T
__ldcs(const T *p)
{
    return *p;
}

static inline unsigned
atomicMax(unsigned *p, unsigned x)
{
    unsigned before = *p;
    if (x > before)
        *p = x;
    return before;
}

template <typename T>
static inline T
atomicAdd(T *p, T x)
{
    T before = *p;
    *p += x;
    return before;
}

/* ---- arithmetic ------------------------------------------------------------------ */

template <typename A, typename B>
static inline typename std::common_type<A, B>::type
max(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    return (T)a > (T)b ? (T)a : (T)b;
}

template <typename A, typename B>
static inline typename std::common_type<A, B>::type
min(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    return (T)a < (T)b ? (T)a : (T)b;
}

static inline float
__uint_as_float(unsigned x)
{
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline unsigned
__float_as_uint(float x)
{
    unsigned y;
    memcpy(&y, &x, sizeof y);
    return y;
}

/* One rounding each: compiled without contraction. */
static inline float
__fmul_rn(float a, float b)
{
    return a * b;
}

static inline float
__fadd_rn(float a, float b)
{
    return a + b;
}

static inline float
__fsub_rn(float a, float b)
{
    return a - b;
}

static inline float
__fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float
__fsqrt_rn(float x)
{
    return sqrtf(x);
}

static inline float
__fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline double
__dmul_rn(double a, double b)
{
    return a * b;
}

static inline double
__dadd_rn(double a, double b)
{
    return a + b;
}

static inline double
__ddiv_rn(double a, double b)
{
    return a / b;
}

static inline double
__dsqrt_rn(double x)
{
    return sqrt(x);
}

static inline float
__double2float_rn(double x)
{
    return (float)x;
}

static inline float
__saturatef(float x)
{
    return x > 0 ? x < 1 ? x : 1 : 0;
}

static inline unsigned
__umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

static inline int
__popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int
__ffs(int x)
{
    return __builtin_ffs(x);
}

static inline unsigned
__byte_perm(unsigned a, unsigned b, unsigned which)
{
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned nibble = which >> 4 * i, byte = both >> (nibble & 7) * 8 & 0xff;
        if (nibble & 8) // replicate the sign
            byte = byte & 0x80 ? 0xff : 0;
        out |= byte << 8 * i;
    }
    return out;
}

template <typename F>
static inline unsigned
emulate_halves(F f)
{
    return (f(0) & 0xffff) | (f(16) & 0xffff) << 16;
}

static inline unsigned
__vmaxu2(unsigned a, unsigned b)
{
    return emulate_halves([=](int i) { return max(a >> i & 0xffff, b >> i & 0xffff); });
}

static inline unsigned
__viaddmax_u16x2(unsigned a, unsigned b, unsigned c)
{
    return emulate_halves(
        [=](int i) { return max(((a >> i) + (b >> i)) & 0xffff, c >> i & 0xffff); });
}

static inline int
__vimin3_s32(int a, int b, int c)
{
    return min(min(a, b), c);
}

static inline unsigned
__vimin3_u32(unsigned a, unsigned b, unsigned c)
{
    return min(min(a, b), c);
}

static inline unsigned
__vimax3_u32(unsigned a, unsigned b, unsigned c)
{
    return max(max(a, b), c);
}

static inline unsigned
__vimin3_u16x2(unsigned a, unsigned b, unsigned c)
{
    return emulate_halves([=](int i) {
        return min(min(a >> i & 0xffff, b >> i & 0xffff), c >> i & 0xffff);
    });
}

static inline unsigned
__dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 32; i += 8)
        c += (a >> i & 0xff) * (b >> i & 0xff);
    return c;
}

static inline unsigned
__dp2a_lo(unsigned a, unsigned b, unsigned c)
{
    return c + (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff);
}

#endif
