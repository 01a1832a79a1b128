/* SPDX-License-Identifier: MIT */
/* fp8: matrices in E4M3 and their transposes, for products of FP8.
 *
 * A block converts TALL rows of WIDE columns, a thread 4 rows of 8: they are read once,
 * and go out as rows, and through shared memory as columns.  What is converted is bf16
 * bits or f32, times a power of two, so bytes are the CPU's. */
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.h"

#define E4M3_FN static __device__ __forceinline__
#include "lib/nvfp4/e4m3_scale.h"

enum {
    THREADS = 256,
    TALL = 128,
    WIDE = 64,
    ROWS = 4, // of a thread
    COLS = 8,
    UNIT = 16,           // bytes of a column that are stored together
    UNITS = TALL / UNIT, // of a column
    CHUNKS = WIDE / COLS,
};

/* ---- what is converted ----------------------------------------------------------- */

/* Eight elements of a row, from a multiple of eight on. */
struct eight {
    float x[COLS];
};

static __device__ __forceinline__ void
unpack(struct eight *v, uint4 four)
{
    const uint32_t w[4] = { four.x, four.y, four.z, four.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v->x[2 * i] = low_bf16(w[i]);
        v->x[2 * i + 1] = high_bf16(w[i]);
    }
}

static __device__ __forceinline__ void
load(struct eight *v, const __nv_bfloat16 *x, const uint8_t *, size_t at)
{
    unpack(v, __ldg((const uint4 *)(x + at)));
}

static __device__ __forceinline__ void
load(struct eight *v, const float *x, const uint8_t *, size_t at)
{
    float4 a = __ldg((const float4 *)(x + at)), b = __ldg((const float4 *)(x + at) + 1);
    *v = { { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w } };
}

/* Codes of NVFP4, two in a byte. */
static __device__ __forceinline__ void
load(struct eight *v, const uint8_t *codes, const uint8_t *scales, size_t at)
{
    unpack(v, products(__ldg((const uint32_t *)(codes + at / 2)),
                       __ldg(scales + at / COLUMNS)));
}

/* ---- conversion ------------------------------------------------------------------ */

struct target {
    uint8_t *data, *transposed; // NULL: not wanted
    float *scale2;
    size_t rows, cols, stride;
};

static __device__ __forceinline__ float
power(int e)
{
    return __uint_as_float((uint32_t)(e + 127) << 23);
}

/* Maximum of n; NaN if one is. */
static __device__ __forceinline__ float
max_of(const float *amax, unsigned n)
{
    float peak = 0;
    for (unsigned i = 0; i < n; i++)
        peak = isnan(amax[i]) || amax[i] > peak ? amax[i] : peak;
    return peak;
}

/* Times 0, Inf is NaN, which no conversion takes for a large number; and 0 added to a number
 * changes none, nor its sign, which is that of the product. */
static __device__ __forceinline__ float
scaled(float x, float factor)
{
    return fmaf(x, 0, f_mul(x, factor));
}

static __device__ __forceinline__ uint2
bytes_of(const struct eight &v, float factor)
{
    uint32_t two[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        two[i] = two_e4m3(scaled(v.x[2 * i], factor), scaled(v.x[2 * i + 1], factor));
    return make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
}

/* Where shared memory has four rows from row 4 * four on of a column, as a word.  Units
 * are permuted so that neither stores of threads side by side nor loads of whole units
 * meet in a bank. */
static __device__ __forceinline__ unsigned
word_at(unsigned column, unsigned four)
{
    unsigned unit = four / 4 ^ column / COLS % UNITS;
    return column * (TALL / 4) + unit * 4 + four % 4;
}

/* Four rows of four bytes become four columns. */
static __device__ __forceinline__ void
put_columns(uint32_t *tile, unsigned column, unsigned four, const uint32_t row[ROWS])
{
    uint32_t a = __byte_perm(row[0], row[1], 0x5140),
             b = __byte_perm(row[2], row[3], 0x5140);
    uint32_t c = __byte_perm(row[0], row[1], 0x7362),
             d = __byte_perm(row[2], row[3], 0x7362);
    tile[word_at(column, four)] = __byte_perm(a, b, 0x5410);
    tile[word_at(column + 1, four)] = __byte_perm(a, b, 0x7632);
    tile[word_at(column + 2, four)] = __byte_perm(c, d, 0x5410);
    tile[word_at(column + 3, four)] = __byte_perm(c, d, 0x7632);
}

/* Columns of the tile to rows of `transposed`, up to the end of a unit. */
static __device__ __forceinline__ void
store_columns(const struct target &to, const uint32_t *tile, size_t row, size_t col)
{
    for (unsigned i = threadIdx.x; i < WIDE * UNITS; i += THREADS) {
        unsigned column = i / UNITS, unit = i % UNITS;
        if (col + column < to.cols && row + unit * UNIT < to.rows)
            *(uint4 *)(to.transposed + (col + column) * to.stride + row + unit * UNIT) =
                *(const uint4 *)(tile + word_at(column, unit * 4));
    }
}

/* ---- what is counted besides ----------------------------------------------------- */

struct tally {
    unsigned peak, lost; // bits of a magnitude, see kernels.h
};

static __device__ __forceinline__ bool
is_lost(const uint8_t *, float x)
{
    float steps = x * 512; // of subnormal numbers
    return x < 0x1p-6f ? steps != truncf(steps)
                       : x > E4M3_LIMIT || (__float_as_uint(x) & 0xfffff);
}

template <typename T>
static __device__ __forceinline__ bool
is_lost(const T *, float x)
{
    return x > E4M3_LIMIT && x < INFINITY;
}

template <typename T>
static __device__ __forceinline__ void
count(struct tally *t, const T *type, const struct eight &v, float factor)
{
#pragma unroll
    for (int i = 0; i < COLS; i++) {
        float x = fabsf(v.x[i]);
        t->peak = max(t->peak, __float_as_uint(x));
        t->lost += is_lost(type, f_mul(x, factor));
    }
}

/* By all threads of a block: a sum of counts has no order. */
static __device__ __forceinline__ void
add(const struct fp8_found &to, const struct tally &t)
{
    __shared__ unsigned peak, lost;
    if (threadIdx.x == 0)
        peak = lost = 0;
    __syncthreads();
    unsigned most = __reduce_max_sync(0xffffffffU, t.peak);
    unsigned sum = (unsigned)__reduce_add_sync(0xffffffffU, (int)t.lost);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&peak, most >= 0x7f800000 ? 0x7fc00000 : most);
        atomicAdd(&lost, sum);
    }
    __syncthreads();
    if (threadIdx.x == 0 && to.amax)
        atomicMax((unsigned *)to.amax, peak);
    if (threadIdx.x == 0 && lost)
        atomicAdd((unsigned long long *)to.lost, (unsigned long long)lost);
}

/* ---- the kernel ------------------------------------------------------------------ */

/* scale2: of x, or NULL.  found.lost: NULL, nothing is counted. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    to_fp8_kernel(struct target to, const T *x, const uint8_t *scales,
                  const float *scale2, const float *amax, unsigned n,
                  struct fp8_found found)
{
    __shared__ alignas(16) uint32_t tile[WIDE * TALL / 4];
    float peak = max_of(amax, n);
    bool finite = !isnan(peak);
    int e = finite ? e4m3_exponent(__float_as_uint(peak)) : 0;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *to.scale2 = finite ? f_mul(power(-e), scale2 ? *scale2 : 1) : peak;
    unsigned chunk = threadIdx.x % CHUNKS, four = threadIdx.x / CHUNKS;
    size_t row = (size_t)blockIdx.y * TALL, col = (size_t)blockIdx.x * WIDE,
           own = col + chunk * COLS;
    struct eight v[ROWS];
    uint2 bytes[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        size_t r = row + four * ROWS + i;
        v[i] = {};
        if (finite && r < to.rows && own < to.cols)
            load(&v[i], x, scales, r * to.cols + own);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        size_t r = row + four * ROWS + i;
        bytes[i] = bytes_of(v[i], power(e));
        if (to.data && r < to.rows && own < to.cols)
            *(uint2 *)(to.data + r * to.cols + own) = bytes[i];
    }
    if (found.lost) {
        struct tally t = { finite ? 0 : 0x7fc00000U, 0 };
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            count(&t, x, v[i], power(e));
        add(found, t);
    }
    if (!to.transposed)
        return;
    const uint32_t low[ROWS] = { bytes[0].x, bytes[1].x, bytes[2].x, bytes[3].x };
    const uint32_t high[ROWS] = { bytes[0].y, bytes[1].y, bytes[2].y, bytes[3].y };
    put_columns(tile, chunk * COLS, four, low);
    put_columns(tile, chunk * COLS + 4, four, high);
    __syncthreads();
    store_columns(to, tile, row, col);
}

template <typename T>
static void
launch(struct cuda *c, const struct target &to, const void *x, const uint8_t *scales,
       const float *scale2, const float *amax, size_t n, const struct fp8_found *found)
{
    const struct fp8_found none = { NULL, NULL };
    dim3 grid(blocks_of(to.cols, WIDE), blocks_of(to.rows, TALL));
    to_fp8_kernel<T><<<grid, THREADS, 0, c->q.stream>>>(
        to, (const T *)x, scales, scale2, amax, (unsigned)n, found ? *found : none);
    cuda_launched(c, "to fp8");
}

void
cuda_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *x,
            const float *amax, size_t n, const struct fp8_found *found)
{
    struct cuda *c = cuda_of(k);
    const struct target t = {
        (uint8_t *)to->data,  to->transposed, to->scale2, to->rows, to->cols,
        to->transposed_stride
    };
    if (to->rows == 0 || to->cols == 0)
        return;
    if (x->dtype == DT_NVFP4)
        launch<uint8_t>(c, t, x->data, x->scales, x->scale2, amax, n, found);
    else
        BY_TYPE(x->dtype, launch, c, t, x->data, NULL, NULL, amax, n, found);
}

/* ---- the largest scale ----------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
    amax_codes_kernel(unsigned *out, const uint8_t *scales, size_t n)
{
    unsigned most = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        most = max(most, (unsigned)__ldg(scales + i));
    most = __reduce_max_sync(0xffffffffU, most);
    if (threadIdx.x % 32 == 0)
        atomicMax(out, __float_as_uint(f_mul(6, scale_value(most))));
}

void
cuda_amax_codes(struct cuda *c, float *out, const struct matrix *x)
{
    size_t n = x->rows * x->cols / COLUMNS;
    unsigned want = blocks_of(n, THREADS * 16), most = (unsigned)c->sms * 4;
    unsigned grid = want < most ? want : most;
    amax_codes_kernel<<<grid, THREADS, 0, c->q.stream>>>((unsigned *)out, x->scales, n);
    cuda_launched(c, "amax of codes");
}
