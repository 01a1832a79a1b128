/* SPDX-License-Identifier: MIT */
/* ptx: all inline PTX: asynchronous copies to and from shared memory, mbarriers,
 * ldmatrix, mma, wgmma, approximate math. tests/emulate replaces this header by one of the
 * same name, in C.
 *
 * Register layout of mma.m16n8k16 in a warp, with g = lane / 4 and t = lane % 4:
 *
 *   A (16, 16): registers 0, 1: rows g, g + 8, columns 2t, 2t + 1; 2, 3: 8 columns on;
 *   B (16, 8): registers 0, 1: rows 2t, 2t + 1 and 8 rows on, column g;
 *   C (16, 8): elements 0, 1: row g, columns 2t, 2t + 1; 2, 3: row g + 8.
 *
 * So two neighbouring tiles of C, rounded to bf16, form an A. */
#ifndef NIBBLE_KERNELS_CUDA_PTX_H
#define NIBBLE_KERNELS_CUDA_PTX_H

#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t
shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Hide where a value comes from, so that the compiler does not recompute it. */
static __device__ __forceinline__ uint32_t
keep(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* cp.async of 16 bytes; if !there, writes zeros and reads nothing. */
static __device__ __forceinline__ void
copy16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void
copy4(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

/* Commit the copies so far as a group; wait for all but the last N groups. */
static __device__ __forceinline__ void
copies_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
static __device__ __forceinline__ void
copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* mbarrier: 8 bytes of shared memory.  A phase completes when `threads` threads have
 * arrived and the expected bytes have been copied; waiters pass the parity of the
 * phase. */
static __device__ __forceinline__ void
mbarrier_init(uint32_t barrier, unsigned threads)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(threads)
                 : "memory");
}

/* Once after all mbarrier_init, before a barrier that makes them visible to other
 * threads. */
static __device__ __forceinline__ void
mbarrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrive without waiting; releases the thread's writes. */
static __device__ __forceinline__ void
mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrive, and expect `bytes` more bytes from bulk_load or box_load. */
static __device__ __forceinline__ void
mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
        "r"(bytes)
        : "memory");
}

static __device__ __forceinline__ void
mbarrier_wait(uint32_t barrier, uint32_t phase)
{
    asm volatile("{\n\t.reg .pred over;\n"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n\t"
                 "@!over bra again;\n\t}" ::"r"(barrier),
                 "r"(phase)
                 : "memory");
}

/* cp.async.bulk, started by one thread; addresses and sizes are multiples of 16
 * bytes. */
static __device__ __forceinline__ void
bulk_load(void *to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* The same of what is not read again soon: other lines stay in L2. */
static __device__ __forceinline__ void
bulk_load_once(void *to, const void *from, uint32_t bytes, uint32_t barrier)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* A box of 64 columns of a tensor map, its first column and row; rows and columns that the
 * matrix does not have are 0.  It comes as rows of 128 bytes with the swizzle of wgmma. */
static __device__ __forceinline__ void
box_load(uint32_t to, const struct tensor_map *from, int column, int row,
         uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(from), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

/* Proxy fence: makes this thread's shared memory writes visible to later bulk copies. */
static __device__ __forceinline__ void
bulk_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void
bulk_store(void *to, const void *from, uint32_t bytes)
{
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes)
        : "memory");
}

/* Count on in shared memory, as the threads of a block see it in order: what others did before
 * they counted is done.  Returns the count before. */
static __device__ __forceinline__ unsigned
count_in(unsigned *count)
{
    unsigned before;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "r"(shared_address(count))
                 : "memory");
    return before;
}

static __device__ __forceinline__ void
bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Wait until the bulk stores of this thread have read their sources. */
static __device__ __forceinline__ void
bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* ldmatrix of four 8x8 matrices; lane l has the address of row l % 8 of matrix l /
 * 8. */
static __device__ __forceinline__ void
load4(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

/* The same, transposed. */
static __device__ __forceinline__ void
load4_trans(uint32_t (&r)[4], uint32_t at)
{
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(at));
}

/* c += a b */
static __device__ __forceinline__ void
mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same with a in four registers. */
static __device__ __forceinline__ void
mma(float sum[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
    uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* wgmma: a warpgroup, four warps whose first has a number that is a multiple of 4,
 * multiplies asynchronously.  C is (64, N): warp w has rows 16 w .. 16 w + 15 as of mma,
 * in N / 8 tiles of 4 elements each.  Operands in shared memory are told by descriptors
 * (attention_hopper.h), A in registers has the layout of mma.
 *
 * wgmma_fence: before the first wgmma that reads registers written since; wgmma_commit:
 * those so far are a group; wgmma_wait: all but the last N groups are done. */
static __device__ __forceinline__ void
wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void
wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
static __device__ __forceinline__ void
wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* ---- products of a warpgroup ------------------------------------------------------
 *
 * Four warps, each with 16 rows of A in registers, and one B (16, 8 NT) in shared memory:
 * first its upper 8 rows, then the lower ones, each as NT matrices of 8 columns; a matrix
 * is stored column by column, 128 bytes.  NT is even.  sm_90a has wgmma for this: it runs
 * asynchronously, and its sums have the bits that those of mma have on the same chip
 * (tested on an H100 for 8 to 64 columns, exponents 40 apart).
 *
 *   operand_at       where the first of several B is; the next begins where it ends;
 *   multiply         sum += A B, or sum = A B if !more; B: the k-th of them;
 *   products_begin   between writing registers and products that read them;
 *   products_commit  the products so far form a group;
 *   products_wait<N> waits for all groups but the last N;
 *   hold             registers are not moved or reused across this point. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SUM4(s, i) "+f"(s[i][0]), "+f"(s[i][1]), "+f"(s[i][2]), "+f"(s[i][3])

static __device__ __forceinline__ void
warpgroup_mma(float (&sum)[2][4], const uint32_t (&a)[4], uint64_t b, bool more)
{
    asm volatile("{ .reg .pred more; setp.ne.u32 more, %13, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "{%8, %9, %10, %11}, %12, more, 1, 1, 0; }"
                 : SUM4(sum, 0), SUM4(sum, 1)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "r"((uint32_t)more));
}

static __device__ __forceinline__ void
warpgroup_mma(float (&sum)[4][4], const uint32_t (&a)[4], uint64_t b, bool more)
{
    asm volatile("{ .reg .pred more; setp.ne.u32 more, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
                 "%14, %15}, "
                 "{%16, %17, %18, %19}, %20, more, 1, 1, 0; }"
                 : SUM4(sum, 0), SUM4(sum, 1), SUM4(sum, 2), SUM4(sum, 3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "r"((uint32_t)more));
}

static __device__ __forceinline__ void
warpgroup_mma(float (&sum)[8][4], const uint32_t (&a)[4], uint64_t b, bool more)
{
    asm volatile("{ .reg .pred more; setp.ne.u32 more, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
                 "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
                 "%26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, more, 1, 1, 0; }"
                 : SUM4(sum, 0), SUM4(sum, 1), SUM4(sum, 2), SUM4(sum, 3), SUM4(sum, 4),
                   SUM4(sum, 5), SUM4(sum, 6), SUM4(sum, 7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "r"((uint32_t)more));
}

template <int NT>
static __device__ __forceinline__ uint64_t
operand_at(uint32_t x)
{
    return (uint64_t)(128 / 16) << 32 | (NT * 128 / 16) << 16 | (x & 0x3ffff) >> 4;
}

template <int NT>
static __device__ __forceinline__ void
multiply(float (&sum)[NT][4], const uint32_t (&a)[4], uint64_t b, int k, bool more)
{
    warpgroup_mma(sum, a, b + (uint64_t)(k * NT * 16), more);
}

static __device__ __forceinline__ void
products_begin(void)
{
    wgmma_fence();
}

static __device__ __forceinline__ void
products_commit(void)
{
    wgmma_commit();
}

template <int N>
static __device__ __forceinline__ void
products_wait(void)
{
    wgmma_wait<N>();
}

template <int N>
static __device__ __forceinline__ void
hold(uint32_t (&a)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]));
}

template <int N>
static __device__ __forceinline__ void
hold(float (&sum)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : SUM4(sum, i));
}
#undef SUM4
#else
#include "kernels/cuda/multiply.h"
#endif

/* Load 16 bytes without allocating in L1; v is unchanged if !there.  Not a read-only
 * load (__ldg): the compiler would move it behind cuda_wait. */
static __device__ __forceinline__ void
load16_once(uint4 &v, const void *p, bool there)
{
    asm volatile("{ .reg .pred there; setp.ne.u32 there, %5, 0;\n"
                 "@there ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"((uint32_t)there)
                 : "memory");
}

/* Ask for the line of a constant, for a load that comes later. */
static __device__ __forceinline__ void
prefetch(const void *p)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

/* Load 2 bytes; 0 if !there. */
static __device__ __forceinline__ uint32_t
load2(const void *p, bool there)
{
    uint32_t v;
    asm volatile("{ .reg .pred there; setp.ne.u32 there, %2, 0;\n"
                 "mov.u32 %0, 0;\n"
                 "@there ld.global.u16 %0, [%1]; }"
                 : "=&r"(v)
                 : "l"(p), "r"((uint32_t)there)
                 : "memory");
    return v;
}

/* Bitwise select: a where the mask is 1, else b; one instruction. */
static __device__ __forceinline__ uint32_t
select_bits(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(y) : "r"(mask), "r"(a), "r"(b));
    return y;
}

/* 1 / x to 1 ulp, and sqrt(x) to a relative error of 2^-23; subnormals are flushed to
 * 0. */
static __device__ __forceinline__ float
inverse_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float
sqrt_fast(float x)
{
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 2^x; 2^-infinity is 0. */
static __device__ __forceinline__ float
exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two f32 packed as bf16x2, and back. */
static __device__ __forceinline__ uint32_t
two_bf16(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* Two f32 as E4M3, to nearest even and at most 448 in magnitude, low in the lower byte. */
static __device__ __forceinline__ uint32_t
two_e4m3(float low, float high)
{
    uint16_t y;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
    return y;
}

static __device__ __forceinline__ float
low_bf16(uint32_t x)
{
    return __uint_as_float(x << 16);
}

static __device__ __forceinline__ float
high_bf16(uint32_t x)
{
    return __uint_as_float(x & 0xffff0000U);
}

/* Block barrier that threads reach from different call sites: not inlined, so that all
 * execute the same instruction. */
static __device__ __noinline__ void
block_barrier(void)
{
    asm volatile("barrier.sync 0;" ::: "memory");
}

/* After the wait: results are not read before. */
template <int N>
static __device__ __forceinline__ void
wgmma_result(float (&c)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(c[i])::"memory");
}

/* c (64, 64) = A B, plus c if add; a transposed operand is one whose rows are summed
 * over. */
template <bool A_TRANS, bool B_TRANS>
static __device__ __forceinline__ void
wgmma(float (&c)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, %32, %33, add, 1, 1, %35, %36; }"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]),
                   "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]),
                   "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]),
                   "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
                   "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]),
                   "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "l"(a), "l"(b), "r"((int)add), "n"((int)A_TRANS), "n"((int)B_TRANS));
}

/* The 64 registers of a (64, 128). */
#define C8(c, i)                                                                       \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]),        \
        "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define C64(c)                                                                         \
    C8(c, 0), C8(c, 8), C8(c, 16), C8(c, 24), C8(c, 32), C8(c, 40), C8(c, 48), C8(c, 56)

/* c (64, 128) = A B, plus c if add; A in registers. */
template <bool B_TRANS>
static __device__ __forceinline__ void
wgmma(float (&c)[64], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, add, 1, 1, %70; }"
                 : C64(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add),
                   "n"((int)B_TRANS));
}

#undef C8
#undef C64

/* setmaxnreg, by all warps of a warpgroup: give registers back, or wait for more. */
template <int N>
static __device__ __forceinline__ void
registers_release(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
static __device__ __forceinline__ void
registers_acquire(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* stmatrix: the reverse of load4. */
static __device__ __forceinline__ void
store4(uint32_t at, const uint32_t (&r)[4])
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}

/* Add f32 to global memory, started by one thread; no order with other additions. */
static __device__ __forceinline__ void
bulk_add(void *to, const void *from, uint32_t bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 "
                 "[%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

/* The same as a store.  Unlike bulk_store it may follow writes of some of the block's
 * threads only, which a mbarrier orders. */
static __device__ __forceinline__ void
bulk_put(void *to, const void *from, uint32_t bytes)
{
    bulk_store(to, from, bytes);
}

/* Wait until the bulk stores of this thread are done. */
static __device__ __forceinline__ void
bulk_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Proxy fence for global memory, too: between bulk copies and other accesses. */
static __device__ __forceinline__ void
bulk_fence_global(void)
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* Counters that order blocks. */
static __device__ __forceinline__ int
load_acquire(const int *p)
{
    int v;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ void
store_release(int *p, int v)
{
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* Loads and stores that other blocks of the running kernel see: they go to L2, and a
 * load is made each time that it is asked for. */
static __device__ __forceinline__ uint4
load_exchanged16(const void *p)
{
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

static __device__ __forceinline__ uint32_t
load_exchanged4(const void *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ void
store_exchanged4(void *p, uint32_t v)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* The same in shared memory, between warps of a block that have no barrier. */
static __device__ __forceinline__ uint32_t
load_polled(const void *p)
{
    uint32_t v;
    asm volatile("ld.volatile.shared.u32 %0, [%1];"
                 : "=r"(v)
                 : "r"(shared_address(p))
                 : "memory");
    return v;
}

static __device__ __forceinline__ void
store_polled(void *p, uint32_t v)
{
    asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v)
                 : "memory");
}

/* Barrier of some warps of a block: `threads` of them with this number, 1 to 15. */
static __device__ __forceinline__ void
barrier_of(int number, int threads)
{
    asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

#endif
