/* SPDX-License-Identifier: MIT */
/* ptx: replaces kernels/cuda/ptx.h in the emulation, in C.  What PTX calls approximate
 * is off by 1 ulp here, up or down, so that no kernel relies on more. */
#ifndef NIBBLE_KERNELS_CUDA_PTX_H
#define NIBBLE_KERNELS_CUDA_PTX_H

#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stdint.h>

#include <cuda_bf16.h>

static inline uint32_t
shared_address(const void *p)
{
    return emulate_address(p);
}

static inline uint32_t
keep(uint32_t x)
{
    return x;
}

static inline void
copy16(uint32_t to, const void *from, bool there)
{
    emulate_copy(to, from, there ? 16 : 0, 16);
}

static inline void
copy4(uint32_t to, const void *from, bool there)
{
    emulate_copy(to, from, there ? 4 : 0, 4);
}

static inline void
copies_commit(void)
{
    emulate_copies_commit();
}

template <int N>
static inline void
copies_wait(void)
{
    emulate_copies_wait(N);
}

static inline void
mbarrier_init(uint32_t barrier, unsigned threads)
{
    emulate_mbarrier_init(barrier, threads);
}

static inline void
mbarrier_init_fence(void)
{
    emulate_mbarrier_init_fence();
}

static inline void
mbarrier_arrive(uint32_t barrier)
{
    emulate_mbarrier_arrive(barrier);
}

static inline void
mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    emulate_mbarrier_expect(barrier, bytes);
}

static inline void
mbarrier_wait(uint32_t barrier, uint32_t phase)
{
    emulate_mbarrier_wait(barrier, phase);
}

static inline void
bulk_load(void *to, const void *from, uint32_t bytes, uint32_t barrier)
{
    emulate_bulk_load(to, from, bytes, barrier);
}

static inline void
bulk_load_once(void *to, const void *from, uint32_t bytes, uint32_t barrier)
{
    emulate_bulk_load(to, from, bytes, barrier);
}

static inline void
box_load(uint32_t to, const struct tensor_map *from, int column, int row,
         uint32_t barrier)
{
    emulate_box_load(to, from, column, row, barrier);
}

static inline void
bulk_fence(void)
{
    emulate_bulk_fence();
}

static inline void
bulk_store(void *to, const void *from, uint32_t bytes)
{
    emulate_bulk_store(to, from, bytes);
}

static inline unsigned
count_in(unsigned *count)
{
    return (*count)++;
}

static inline void
bulk_commit(void)
{
    emulate_bulk_commit();
}

static inline void
bulk_wait_read(void)
{
    emulate_bulk_wait_read();
}

static inline uint32_t
select_bits(uint32_t mask, uint32_t a, uint32_t b)
{
    return (mask & a) | (~mask & b);
}

static inline void
load4(uint32_t (&r)[4], uint32_t at)
{
    emulate_load_matrices(r, at, false);
}

static inline void
load4_trans(uint32_t (&r)[4], uint32_t at)
{
    emulate_load_matrices(r, at, true);
}

static inline void
mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulate_mma(c, a, b0, b1);
}

static inline void
mma(float sum[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
    uint32_t b1)
{
    const uint32_t a[4] = { a0, a1, a2, a3 };
    emulate_mma(sum, a, b0, b1);
}

#include "kernels/cuda/multiply.h"

static inline void
load16_once(uint4 &v, const void *p, bool there)
{
    if (there)
        v = *(const uint4 *)p;
}

static inline void
prefetch(const void *p)
{
    (void)p;
}

static inline uint32_t
load2(const void *p, bool there)
{
    return there ? *(const uint16_t *)p : 0;
}

/* Flush subnormals to 0. */
static inline float
emulate_flush(float x)
{
    return fabsf(x) < 0x1p-126F ? copysignf(0, x) : x;
}

/* Pseudo-random direction of the error: 1 up, 2 down, else none. */
static inline uint32_t
emulate_mix(float x)
{
    return __float_as_uint(x) * 2654435761U >> 30;
}

static inline float
emulate_off(float y, float x)
{
    uint32_t mix = emulate_mix(x);
    if (y == 0 || !(fabsf(y) < INFINITY))
        return y;
    return emulate_flush(
        __uint_as_float(__float_as_uint(y) + (mix == 1) - (uint32_t)(mix == 2)));
}

static inline float
inverse_fast(float x)
{
    return emulate_off(1 / emulate_flush(x), x);
}

/* Off by 2^-23 relative, at most 1.5 ulp from the rounded root. */
static inline float
sqrt_fast(float x)
{
    double exact = sqrt((double)emulate_flush(x));
    uint32_t mix = emulate_mix(x);
    double edge = exact * (mix == 1 ? 1 + 0x1p-23 : mix == 2 ? 1 - 0x1p-23 : 1);
    float y = (float)edge;
    if (mix == 1 && (double)y > edge)
        y = __uint_as_float(__float_as_uint(y) - 1);
    if (mix == 2 && (double)y < edge)
        y = __uint_as_float(__float_as_uint(y) + 1);
    return y;
}

static inline float
exp2_fast(float x)
{
    return emulate_off(exp2f(emulate_flush(x)), x);
}

static inline uint32_t
two_bf16(float low, float high)
{
    return (uint32_t)__float2bfloat16_rn(high).bits << 16 |
           __float2bfloat16_rn(low).bits;
}

static inline uint32_t
two_e4m3(float low, float high)
{
    return (uint32_t)emulate_e4m3(high) << 8 | emulate_e4m3(low);
}

static inline float
low_bf16(uint32_t x)
{
    return __uint_as_float(x << 16);
}

static inline float
high_bf16(uint32_t x)
{
    return __uint_as_float(x & 0xffff0000U);
}

static inline void
block_barrier(void)
{
    emulate_barrier("barrier.sync 0", 0);
}

static inline void
wgmma_fence(void)
{
}

static inline void
wgmma_commit(void)
{
}

template <int N>
static inline void
wgmma_wait(void)
{
}

template <int N>
static inline void
wgmma_result(float (&c)[N])
{
    (void)c;
}

template <bool A_TRANS, bool B_TRANS>
static inline void
wgmma(float (&c)[32], uint64_t a, uint64_t b, bool add)
{
    const struct emulate_wgmma of = { a, b, 64, A_TRANS, B_TRANS, add };
    emulate_wgmma(c, NULL, &of);
}

template <bool B_TRANS>
static inline void
wgmma(float (&c)[64], const uint32_t (&a)[4], uint64_t b, bool add)
{
    const struct emulate_wgmma of = { 0, b, 128, false, B_TRANS, add };
    emulate_wgmma(c, a, &of);
}

template <int N>
static inline void
registers_release(void)
{
}

template <int N>
static inline void
registers_acquire(void)
{
}

static inline void
store4(uint32_t at, const uint32_t (&r)[4])
{
    emulate_store_matrices(at, r);
}

static inline void
bulk_add(void *to, const void *from, uint32_t bytes)
{
    emulate_bulk_add(to, from, bytes, true);
}

static inline void
bulk_put(void *to, const void *from, uint32_t bytes)
{
    emulate_bulk_add(to, from, bytes, false);
}

static inline void
bulk_wait(void)
{
    emulate_bulk_wait_read();
}

static inline void
bulk_fence_global(void)
{
}

static inline int
load_acquire(const int *p)
{
    return *p;
}

static inline void
store_release(int *p, int v)
{
    *p = v;
}

static inline uint4
load_exchanged16(const void *p)
{
    const volatile uint32_t *v = (const volatile uint32_t *)p;
    if (v[0] == ~0U || v[1] == ~0U || v[2] == ~0U || v[3] == ~0U)
        emulate_poll();
    return make_uint4(v[0], v[1], v[2], v[3]);
}

static inline uint32_t
load_exchanged4(const void *p)
{
    if (*(const volatile uint32_t *)p == ~0U)
        emulate_poll();
    return *(const volatile uint32_t *)p;
}

static inline void
store_exchanged4(void *p, uint32_t v)
{
    *(uint32_t *)p = v;
    emulate_stored();
}

static inline uint32_t
load_polled(const void *p)
{
    return load_exchanged4(p);
}

static inline void
store_polled(void *p, uint32_t v)
{
    store_exchanged4(p, v);
}

static inline void
barrier_of(int number, int threads)
{
    emulate_numbered((unsigned)number, (unsigned)threads);
}

#endif
