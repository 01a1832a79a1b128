/* SPDX-License-Identifier: MIT */
/* ptx: all inline PTX: asynchronous copies to and from shared memory, ldmatrix, mma, approximate
 * math.  All of it is here: tests/emulate has a header of the
 * same name, in C.
 *
 * A piece of m16n8k16 is in the registers of a warp; with g = lane / 4 and t = lane % 4:
 *   A (16, 16): row g or g + 8 (registers 0, 1), the same 8 columns on (2, 3); a register
 *      has columns 2t and 2t + 1;
 *   B (16, 8): column g; registers 0 and 1 have rows 2t and 2t + 1, and 8 rows on;
 *   C (16, 8): numbers 0, 1: row g, columns 2t and 2t + 1; 2, 3: row g + 8.
 * So two neighbours of C, rounded, are an A. */
#ifndef NIBBLE_KERNELS_CUDA_PTX_H
#define NIBBLE_KERNELS_CUDA_PTX_H

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t
shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Keep a value in its register: the compiler must not recompute it. */
static __device__ __forceinline__ uint32_t
keep(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* 16 bytes; zeros if they are not `there`: then nothing is read. */
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

/* The end of a group of copies, and the wait for all groups but the last N. */
static __device__ __forceinline__ void
copies_end(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
static __device__ __forceinline__ void
copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* A barrier of 8 bytes of shared memory has phases.  One ends when as many threads as it
 * was opened for have come to it, and the bytes that they said are there.  Phases are
 * counted by one bit. */
static __device__ __forceinline__ void
phases_open(uint32_t barrier, unsigned threads)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(threads)
                 : "memory");
}

/* Once, after mbarrier_init, before other threads use them. */
static __device__ __forceinline__ void
phases_are_open(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrive: what this thread wrote is visible; it does not wait. */
static __device__ __forceinline__ void
phase_tell(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrive, and expect so many bytes by bulk_load. */
static __device__ __forceinline__ void
phase_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
        "r"(bytes)
        : "memory");
}

static __device__ __forceinline__ void
phase_wait(uint32_t barrier, uint32_t phase)
{
    asm volatile("{\n\t.reg .pred over;\n"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n\t"
                 "@!over bra again;\n\t}" ::"r"(barrier),
                 "r"(phase)
                 : "memory");
}

/* Copies of multiples of 16 bytes that one thread starts. */
static __device__ __forceinline__ void
bulk_load(void *to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Before a bulk_store of another thread: what this one wrote may be read. */
static __device__ __forceinline__ void
bulk_may_read(void)
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

static __device__ __forceinline__ void
bulk_end(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Wait until the sources of all bulk stores of this thread have been read. */
static __device__ __forceinline__ void
bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Four 8x8 matrices; lane l says where row l % 8 of matrix l / 8 is. */
static __device__ __forceinline__ void
load4(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

/* The same of their transposes. */
static __device__ __forceinline__ void
load4_turned(uint32_t (&r)[4], uint32_t at)
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

/* The same, in place. */
static __device__ __forceinline__ void
mma(float sum[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
    uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* 16 bytes that nobody needs twice; v stays what it is if they are not `there`.  No load of
 * constants: the compiler would put it off until after cuda_wait. */
static __device__ __forceinline__ void
load16_once(uint4 &v, const void *p, bool there)
{
    asm volatile("{ .reg .pred there; setp.ne.u32 there, %5, 0;\n"
                 "@there ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"((uint32_t)there)
                 : "memory");
}

/* Two bytes, or zeros. */
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

/* Bits of a where the mask has ones, else of b: one instruction. */
static __device__ __forceinline__ uint32_t
select_bits(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(y) : "r"(mask), "r"(a), "r"(b));
    return y;
}

/* 1 / x, off by a unit in the last place, and the root of x, by 2^-23 of it; subnormal numbers
 * are 0. */
static __device__ __forceinline__ float
inverse_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float
root_fast(float x)
{
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 2^x; that of -infinity is 0. */
static __device__ __forceinline__ float
exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two numbers as bf16, and back. */
static __device__ __forceinline__ uint32_t
two_bf16(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
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

/* All threads of a block, from wherever in the program: a function, so that all are at the
 * same instruction then. */
static __device__ __noinline__ void
block_meets(void)
{
    asm volatile("barrier.sync 0;" ::: "memory");
}

#endif
