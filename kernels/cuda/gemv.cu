/* SPDX-License-Identifier: MIT */
/* gemv: y = x W' + c for at most GEMV_MOST tokens: what decoding does.  It costs the bytes
 * of the weight, so the weight is read once, packed as it is stored.
 *
 * Packed NVFP4 with bf16 activations goes through the tensor cores, 16 rows of the weight
 * at a time, since they leave the other units free to unpack.  An operand's columns may
 * stand in any order that both operands share; ours is the one in which codes unpack with
 * the fewest operations.  Everything else is sums of products in f32, a row a warp. */
#include "kernels/cuda/cuda.h"

struct job {
    void *y;
    const void *x, *add;
    const void *values;
    const uint8_t *scales;
    const float *scale2;
    size_t out, in;
    int tokens;
    bool wide; // y is f32
};

/* The result of one row for one token. */
template <typename A>
static __device__ __forceinline__ void
put(const struct job &j, int token, size_t row, float sum)
{
    size_t at = (size_t)token * j.out + row;
    if (j.wide) {
        float *y = (float *)j.y;
        y[at] = sum + (j.add ? ((const float *)j.add)[at] : 0);
    } else {
        A *y = (A *)j.y;
        y[at] = from_f32<A>(sum + (j.add ? to_f32(((const A *)j.add)[at]) : 0));
    }
}

/* ---- NVFP4 by tensor cores -------------------------------------------------------------- */

/* Two codes of a word, i and i + 4, as bf16 of 2^-126 times their values: sign and
 * magnitude only move to where bf16 has sign, exponent and fraction; 0.5 becomes a
 * subnormal number. */
template <int I>
static __device__ __forceinline__ uint32_t
two_codes(uint32_t word)
{
    uint32_t size = 6 - 4 * I >= 0 ? word << (6 - 4 * I) : word >> (4 * I - 6);
    uint32_t sign = word << (12 - 4 * I);
    return (size & 0x01c001c0U) | (sign & 0x80008000U);
}

/* 2^118 times an E4M3 number, twice: the most that keeps 448 finite. */
static __device__ __forceinline__ __nv_bfloat162
scale_factor(uint32_t byte)
{
    float s = __uint_as_float((byte & 0x7f) << 20) * 0x1p119F * 0x1p119F;
    return __float2bfloat162_rn(s);
}

constexpr float unscale = 0x1p8F; // 126 - 118

static __device__ __forceinline__ uint32_t
times(uint32_t pair, __nv_bfloat162 s)
{
    __nv_bfloat162 v = __hmul2(*(__nv_bfloat162 *)&pair, s);
    return *(uint32_t *)&v;
}

/* A block of 16 codes as pairs (0,4) (1,5) (2,6) (3,7) (8,12) ... */
static __device__ __forceinline__ void
unpack(uint32_t pair[8], uint32_t low, uint32_t high, __nv_bfloat162 s)
{
    pair[0] = times(two_codes<0>(low), s);
    pair[1] = times(two_codes<1>(low), s);
    pair[2] = times(two_codes<2>(low), s);
    pair[3] = times(two_codes<3>(low), s);
    pair[4] = times(two_codes<0>(high), s);
    pair[5] = times(two_codes<1>(high), s);
    pair[6] = times(two_codes<2>(high), s);
    pair[7] = times(two_codes<3>(high), s);
}

/* 16 activations in the same pairs. */
static __device__ __forceinline__ void
arrange(uint32_t pair[8], uint4 a, uint4 b)
{
    pair[0] = __byte_perm(a.x, a.z, 0x5410);
    pair[1] = __byte_perm(a.x, a.z, 0x7632);
    pair[2] = __byte_perm(a.y, a.w, 0x5410);
    pair[3] = __byte_perm(a.y, a.w, 0x7632);
    pair[4] = __byte_perm(b.x, b.z, 0x5410);
    pair[5] = __byte_perm(b.x, b.z, 0x7632);
    pair[6] = __byte_perm(b.y, b.w, 0x5410);
    pair[7] = __byte_perm(b.y, b.w, 0x7632);
}

static __device__ __forceinline__ void
mma(float sum[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
    uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* What a thread takes of a unit of 128 columns: two blocks of two rows, and of x. */
struct piece {
    uint4 codes[2], x[4];
    uint16_t scales[2];
};

enum { UNIT = 128, ROWS = 16 };

/* Rows row and row + 8 (never behind the last), blocks `at` and at + 1. */
static __device__ __forceinline__ void
fetch(struct piece *p, const struct job &j, size_t row, size_t at, int token)
{
    size_t blocks = j.in / NVFP4_BLOCK;
    bool there = at < blocks;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        size_t r = row + 8 * (size_t)i < j.out ? row + 8 * (size_t)i : j.out - 1;
        size_t block = r * blocks + at;
        p->codes[i] = there ? __ldcs((const uint4 *)((const char *)j.values + block * 8))
                            : make_uint4(0, 0, 0, 0);
        p->scales[i] = there ? *(const uint16_t *)(j.scales + block) : 0;
    }
    const uint4 *x = (const uint4 *)((const __nv_bfloat16 *)j.x + (size_t)token * j.in +
                                     at * NVFP4_BLOCK);
#pragma unroll
    for (int i = 0; i < 4; i++)
        p->x[i] = there && token < j.tokens ? x[i] : make_uint4(0, 0, 0, 0);
}

static __device__ __forceinline__ void
use(float sum[4], const struct piece &p)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t a[8], b[8], x[8];
        uint32_t s0 = p.scales[0] >> (8 * i), s1 = p.scales[1] >> (8 * i);
        uint4 c0 = p.codes[0], c1 = p.codes[1];
        unpack(a, i ? c0.z : c0.x, i ? c0.w : c0.y, scale_factor(s0));
        unpack(b, i ? c1.z : c1.x, i ? c1.w : c1.y, scale_factor(s1));
        arrange(x, p.x[2 * i], p.x[2 * i + 1]);
#pragma unroll
        for (int k = 0; k < 8; k += 2)
            mma(sum, a[k], b[k], a[k + 1], b[k + 1], x[k], x[k + 1]);
    }
}

template <int WARPS>
static __global__ void
__launch_bounds__(WARPS * 32)
packed_kernel(const struct job j)
{
    __shared__ float part[WARPS][ROWS][9];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4;
    size_t row = (size_t)blockIdx.x * ROWS + group;
    size_t units = (j.in + UNIT - 1) / UNIT;
    float sum[4] = { 0, 0, 0, 0 };
    struct piece now, next;
    size_t unit = warp, at = 2 * (size_t)(lane % 4);
    if (unit < units)
        fetch(&now, j, row, unit * 8 + at, group);
    for (; unit < units; unit += WARPS) {
        if (unit + WARPS < units)
            fetch(&next, j, row, (unit + WARPS) * 8 + at, group);
        use(sum, now);
        now = next;
    }
    int column = lane % 4 * 2;
    part[warp][group][column] = sum[0];
    part[warp][group][column + 1] = sum[1];
    part[warp][group + 8][column] = sum[2];
    part[warp][group + 8][column + 1] = sum[3];
    __syncthreads();
    int r = threadIdx.x / 8, token = threadIdx.x % 8;
    if (r >= ROWS || token >= j.tokens || (size_t)blockIdx.x * ROWS + r >= j.out)
        return;
    float all = 0;
    for (int w = 0; w < WARPS; w++)
        all += part[w][r][token];
    put<__nv_bfloat16>(j, token, (size_t)blockIdx.x * ROWS + r,
                       all * unscale * (j.scale2 ? *j.scale2 : 1));
}

/* ---- sums of products ------------------------------------------------------------------- */

static __device__ __forceinline__ float
code_value(uint32_t code)
{
    uint32_t bits = (code & 7) << 22 | (code & 8) << 28;
    return __uint_as_float(bits) * 0x1p126F;
}

static __device__ __forceinline__ float
scale_value(uint32_t byte)
{
    return __uint_as_float((byte & 0x7f) << 20) * 0x1p120F;
}

/* N neighbours of a row, as f32. */
template <typename W, int N>
struct reader {
    static __device__ __forceinline__ void
    read(float w[N], const struct job &j, size_t row, size_t at)
    {
        pack<W, N> p = *(const pack<W, N> *)((const W *)j.values + row * j.in + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = to_f32(p.v[i]);
    }
};

struct fp4;
template <>
struct reader<fp4, NVFP4_BLOCK> {
    static __device__ __forceinline__ void
    read(float w[NVFP4_BLOCK], const struct job &j, size_t row, size_t at)
    {
        size_t block = (row * j.in + at) / NVFP4_BLOCK;
        uint2 codes = *(const uint2 *)((const char *)j.values + block * 8);
        float s = scale_value(j.scales[block]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            w[i] = code_value(codes.x >> (4 * i)) * s;
            w[i + 8] = code_value(codes.y >> (4 * i)) * s;
        }
    }
};

/* A row a warp, N columns a lane at a time; A: of activations. */
template <typename A, typename W, int N>
static __global__ void
__launch_bounds__(256)
row_kernel(const struct job j)
{
    size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    float sum[GEMV_MOST] = { 0 };
    if (row >= j.out)
        return;
    for (size_t at = threadIdx.x % 32 * N; at < j.in; at += 32 * N) {
        float w[N];
        reader<W, N>::read(w, j, row, at);
#pragma unroll
        for (int t = 0; t < GEMV_MOST; t++)
            if (t < j.tokens) {
                const A *x = (const A *)j.x + (size_t)t * j.in + at;
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum[t] = fmaf(w[i], to_f32(x[i]), sum[t]);
            }
    }
    float scale = j.scale2 ? *j.scale2 : 1;
#pragma unroll
    for (int t = 0; t < GEMV_MOST; t++)
        if (t < j.tokens) {
            float all = warp_sum(sum[t]) * scale;
            if (threadIdx.x % 32 == 0)
                put<A>(j, t, row, all);
        }
}

template <typename A>
static void
by_rows(struct cuda *c, const struct job &j, enum dtype dtype)
{
    unsigned blocks = blocks_of(j.out, 8);
    cudaStream_t s = c->stream;
    size_t each = dtype == DT_F32 ? 4 : 8;
    bool whole = j.in % each == 0 && (uintptr_t)j.values % 16 == 0;
    if (dtype == DT_NVFP4)
        row_kernel<A, fp4, NVFP4_BLOCK><<<blocks, 256, 0, s>>>(j);
    else if (dtype == DT_F32 && whole)
        row_kernel<A, float, 4><<<blocks, 256, 0, s>>>(j);
    else if (dtype == DT_F32)
        row_kernel<A, float, 1><<<blocks, 256, 0, s>>>(j);
    else if (dtype == DT_BF16 && whole)
        row_kernel<A, __nv_bfloat16, 8><<<blocks, 256, 0, s>>>(j);
    else if (dtype == DT_BF16)
        row_kernel<A, __nv_bfloat16, 1><<<blocks, 256, 0, s>>>(j);
    else if (whole)
        row_kernel<A, __half, 8><<<blocks, 256, 0, s>>>(j);
    else
        row_kernel<A, __half, 1><<<blocks, 256, 0, s>>>(j);
}

/* How many warps share the columns of 16 rows.  A short weight is over before the memory
 * has answered twice, so each warp asks for all of its own at once; a long one has rows
 * enough for every multiprocessor. */
static void
by_tensor_cores(struct cuda *c, const struct job &j)
{
    enum { LONG = 1 << 15 };
    unsigned blocks = blocks_of(j.out, ROWS);
    size_t units = (j.in + UNIT - 1) / UNIT;
    if (j.out >= LONG)
        packed_kernel<4><<<blocks, 4 * 32, 0, c->stream>>>(j);
    else if (units <= 8)
        packed_kernel<8><<<blocks, 8 * 32, 0, c->stream>>>(j);
    else if (units <= 16)
        packed_kernel<16><<<blocks, 16 * 32, 0, c->stream>>>(j);
    else
        packed_kernel<20><<<blocks, 20 * 32, 0, c->stream>>>(j);
}

void
cuda_gemv(struct cuda *c, void *y, bool wide, const void *x, const struct weight *w,
          size_t tokens, const void *add)
{
    struct job j = { y,         x,        add,   w->values,   w->scales,
                     w->scale2, w->out,   w->in, (int)tokens, wide };
    bool packed = w->dtype == DT_NVFP4 && w->values;
    enum dtype dtype = w->dtype;
    if (dtype == DT_NVFP4 && !packed) { // only its products are there
        j.values = w->expanded;
        dtype = DT_BF16;
    }
    bool even = (uintptr_t)w->values % 16 == 0 && (uintptr_t)w->scales % 2 == 0 &&
                (uintptr_t)x % 16 == 0 && w->in % 32 == 0;
    if (packed && even && c->k.is.act == DT_BF16)
        by_tensor_cores(c, j);
    else
        BY_ACT(c, by_rows, c, j, dtype);
    CUDA_LAUNCHED(c, "a product of few tokens");
}
