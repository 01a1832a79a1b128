/* SPDX-License-Identifier: MIT */
/* fp4: activations in NVFP4, and their products with weights in NVFP4.
 *
 * Codes and scales are the CPU's bytes, by quant_math.h with 16 values per thread.
 * Products are cuBLASLt's, by 4-bit tensor cores if the chip has them, else of codes
 * times scales, which bf16 holds exactly; sums are f32. cuBLASLt has one alpha per
 * product, which is the weight's tensor scale; the scale per row and the addend are
 * applied afterwards, before rounding to the type of activations. */
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/ops.h"

#define TILES_FN static __host__ __device__ inline
#include "lib/nvfp4/tiles.h"

#include <stdio.h>

enum { THREADS = 128 };

/* Blocks for `threads` threads, limited: kernels use grid-stride loops. */
static unsigned
grid_of(const struct cuda *c, size_t threads)
{
    unsigned want = blocks_of(threads, THREADS), max = (unsigned)c->sms * 16;
    return want < max ? want : max;
}

/* ---- quantize and dequantize activations ----------------------------------------- */

static __device__ __forceinline__ void
store_expanded(__nv_bfloat16 *to, const struct coded *out)
{
    uint4 *four = (uint4 *)to;
    four[0] = products(out->codes[0], out->scale);
    four[1] = products(out->codes[1], out->scale);
}

static __device__ __forceinline__ void
store2(float *to, uint32_t two)
{
    *(float2 *)to = make_float2(f_from(two << 16), f_from(two & 0xffff0000));
}

static __device__ __forceinline__ void
store_expanded(float *to, const struct coded *out)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 eight = products(out->codes[half], out->scale);
        store2(to + 8 * half, eight.x);
        store2(to + 8 * half + 2, eight.y);
        store2(to + 8 * half + 4, eight.z);
        store2(to + 8 * half + 6, eight.w);
    }
}

/* Maximum magnitude of a row as f32 bits, in all threads of its block. */
template <typename T>
static __device__ __forceinline__ uint32_t
row_peak(const T *x, size_t blocks)
{
    __shared__ unsigned scratch;
    uint32_t peak = 0;
    if (threadIdx.x == 0)
        scratch = 0;
    for (size_t b = threadIdx.x; b < blocks; b += THREADS) {
        struct values v;
        load_row(&v, x + b * COLUMNS);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            peak = max(peak, f_bits(v.x[i]) & 0x7fffffff);
    }
    peak = __reduce_max_sync(0xffffffffU, peak);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        atomicMax(&scratch, peak);
    __syncthreads();
    return scratch;
}

/* A block per row; rows past the last one only pad tiles.  given: enc of all rows, or 0. */
template <typename T, enum quant KIND>
static __global__ void __launch_bounds__(THREADS)
    quantize_rows_kernel(struct matrix to, const T *x, enum dtype source, float given)
{
    size_t row = blockIdx.x, wide = to.cols / COLUMNS;
    size_t written = to.tiles ? tiles_blocks(wide) : wide;
    bool there = row < to.rows;
    const T *in = x + (there ? row * to.cols : 0);
    uint32_t peak = there ? row_peak(in, wide) : 0;
    bool finite = peak < 0x7f800000;
    const struct quant_scale t =
        given > 0 ? given_scale(given)
                  : tensor_scale(KIND, false, f_from(finite ? peak : 0));
    if (there && threadIdx.x == 0)
        to.scale2[row] = finite ? t.scale2 : f_from(0x7fc00000);
    for (size_t b = threadIdx.x; b < written; b += THREADS) {
        struct coded out = { { 0, 0 }, 0 };
        if (there && finite && b < wide) {
            struct values v;
            load_row(&v, in + b * COLUMNS);
            v.amax = row_amax(v.x);
            if (KIND == QUANT_MAX)
                code_max(&out, &v, &t, NULL, 0);
            else
                code_native(&out, &v, source);
        }
        if (to.tiles)
            to.tiles[tiles_at(row, b, wide)] = (uint8_t)out.scale;
        if (!there || b >= wide)
            continue;
        size_t at = row * wide + b;
        if (to.data) {
            ((uint2 *)to.data)[at] = make_uint2(out.codes[0], out.codes[1]);
            to.scales[at] = (uint8_t)out.scale;
        }
        if (to.expanded)
            store_expanded((T *)to.expanded + at * COLUMNS, &out);
    }
}

template <typename T>
static void
quantize_rows(struct cuda *c, const struct matrix *to, const void *x,
              const struct quant_spec *spec)
{
    unsigned blocks = (unsigned)(to->tiles ? tiles_rows(to->rows) : to->rows);
    if (spec->kind == QUANT_MAX)
        quantize_rows_kernel<T, QUANT_MAX><<<blocks, THREADS, 0, c->q.stream>>>(
            *to, (const T *)x, spec->source, spec->given);
    else
        quantize_rows_kernel<T, QUANT_NATIVE><<<blocks, THREADS, 0, c->q.stream>>>(
            *to, (const T *)x, spec->source, spec->given);
    cuda_launched(c, "quantize rows");
}

void
cuda_quantize_rows(struct cuda *c, const struct matrix *to, const struct matrix *x,
                   const struct quant_spec *spec)
{
    if (to->rows)
        BY_TYPE(x->dtype, quantize_rows, c, to, x->data, spec);
}

/* Eight elements per thread, from `expanded` if there are no codes; that has the type
 * of activations if scales are per row. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) unpack_kernel(T *y, struct matrix x)
{
    size_t n = x.rows * x.cols / 8, step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float scale2 = x.per_row ? x.scale2[i * 8 / x.cols] : x.scale2 ? *x.scale2 : 1;
        float v[8];
        if (x.data) {
            uint4 eight = products(((const uint32_t *)x.data)[i], x.scales[i / 2]);
            store2(v, eight.x);
            store2(v + 2, eight.y);
            store2(v + 4, eight.z);
            store2(v + 6, eight.w);
        } else {
            for (int e = 0; e < 8; e++)
                v[e] = x.per_row
                           ? to_f32(((const T *)x.expanded)[i * 8 + e])
                           : to_f32(((const __nv_bfloat16 *)x.expanded)[i * 8 + e]);
        }
        for (int e = 0; e < 8; e++)
            y[i * 8 + e] = from_f32<T>(f_mul(v[e], scale2));
    }
}

template <typename T>
static void
unpack(struct cuda *c, void *y, const struct matrix *x)
{
    unsigned grid = grid_of(c, x->rows * x->cols / 8);
    unpack_kernel<<<grid, THREADS, 0, c->q.stream>>>((T *)y, *x);
    cuda_launched(c, "unpack");
}

void
cuda_unpack(struct cuda *c, const struct matrix *y, const struct matrix *x)
{
    if (x->rows)
        BY_TYPE(y->dtype, unpack, c, y->data, x);
}

/* ---- tiles ----------------------------------------------------------------------- */

/* Four scales of a tile's row per thread. */
static __global__ void __launch_bounds__(THREADS)
    tile_kernel(uint32_t *tiles, const uint8_t *scales, size_t rows, size_t blocks)
{
    size_t across = tiles_blocks(blocks) / TILE_BLOCKS, n = tiles_rows(rows) * across;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS) {
        size_t row = i / across, block = i % across * TILE_BLOCKS;
        uint32_t four = 0;
        for (size_t b = 0; b < TILE_BLOCKS && row < rows && block + b < blocks; b++)
            four |= (uint32_t)scales[row * blocks + block + b] << 8 * b;
        tiles[tiles_at(row, block, blocks) / TILE_BLOCKS] = four;
    }
}

void
cuda_tile(struct cuda *c, const struct matrix *m)
{
    size_t blocks = m->cols / COLUMNS;
    unsigned grid = grid_of(c, tiles_bytes(m->rows, blocks) / TILE_BLOCKS);
    if (!cuda_ready(c) || grid == 0)
        return;
    tile_kernel<<<grid, THREADS, 0, c->q.stream>>>((uint32_t *)m->tiles, m->scales,
                                                   m->rows, blocks);
    cuda_launched(c, "tile");
}

/* ---- products -------------------------------------------------------------------- */

/* A block per row, N columns per thread at a time. */
template <typename T, int N>
static __global__ void
finish_kernel(T *y, const float *sums, const float *scale2, const T *add, size_t out)
{
    size_t row = blockIdx.x;
    float s = scale2[row];
    for (size_t o = threadIdx.x * (size_t)N; o < out; o += blockDim.x * (size_t)N) {
        size_t at = row * out + o;
        pack<float, N> sum = *(const pack<float, N> *)(sums + at);
        pack<T, N> c, r;
        if (add)
            c = *(const pack<T, N> *)(add + at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float v = f_mul(sum.v[i], s);
            r.v[i] = from_f32<T>(add ? f_add(v, to_f32(c.v[i])) : v);
        }
        *(pack<T, N> *)(y + at) = r;
    }
}

template <typename T>
static void
scale_sums(struct cuda *c, void *y, const float *sums, const float *scale2,
           const void *add, size_t rows, size_t out)
{
    if (!cuda_ready(c))
        return;
    if (out % 4 == 0)
        finish_kernel<T, 4><<<(unsigned)rows, 256, 0, c->q.stream>>>(
            (T *)y, sums, scale2, (const T *)add, out);
    else
        finish_kernel<T, 1><<<(unsigned)rows, 256, 0, c->q.stream>>>(
            (T *)y, sums, scale2, (const T *)add, out);
    cuda_launched(c, "finish");
}

/* Allocate the buffer of f32 sums on first use. */
static bool
has_sums(struct cuda *c)
{
    if (!c->fp4_sums)
        c->fp4_sums = (float *)cuda_alloc(&c->k, MEMORY_WORK, c->k.is.fp4_sums);
    return c->fp4_sums != NULL;
}

/* f32 products of n rows from `first` on. */
static void
sum_rows(struct cuda *c, const struct matrix *x, const struct matrix *w, size_t first,
         size_t n)
{
    size_t at = first * x->cols;
    if (c->k.is.fp4 == FP4_NATIVE) {
        cuda_gemm_fp4(c, c->fp4_sums, (const uint8_t *)x->data + at / 2,
                      x->tiles + tiles_at(first, 0, x->cols / COLUMNS), w, n);
        return;
    }
    struct matrix in = matrix_of(c->k.is.act, dtype_at(c->k.is.act, x->expanded, at), n,
                                 x->cols),
                  sums = matrix_of(DT_F32, c->fp4_sums, n, w->rows);
    cuda_linear(&c->k, 1, &sums, &in, w, NULL);
}

void
cuda_linear_fp4(struct cuda *c, const struct matrix *y, const struct matrix *x,
                const struct matrix *w, const struct matrix *add)
{
    // Whole tiles at a time.
    size_t max = c->k.is.fp4_sums / (w->rows * sizeof(float)) / TILE_ROWS * TILE_ROWS;
    if (!has_sums(c))
        return;
    if (max == 0) {
        err_set(c->k.err, ERR_USAGE,
                "cuda: a weight of %zu x %zu (%s) is too large for products of NVFP4; "
                "--path dequant has no such limit",
                w->rows, w->cols, dtype_name(w->dtype));
        return;
    }
    for (size_t first = 0; first < x->rows && cuda_ready(c); first += max) {
        size_t n = x->rows - first < max ? x->rows - first : max, at = first * w->rows;
        sum_rows(c, x, w, first, n);
        BY_TYPE(y->dtype, scale_sums, c, dtype_at(y->dtype, y->data, at), c->fp4_sums,
                x->scale2 + first, add ? dtype_at(y->dtype, add->data, at) : NULL, n,
                w->rows);
    }
}

/* ---- support of native products -------------------------------------------------- */

/* Ask cuBLASLt for a native product on that device. */
static bool
ask(struct cuda *c, char *why, size_t n)
{
    bool yes = false;
    cudaDeviceProp p;
    if (!cuda_check(c, cudaGetDeviceProperties(&p, c->device),
                    "cudaGetDeviceProperties")) {
        snprintf(why, n, "%s", c->k.err->msg);
        return false;
    }
    if (p.major != 10 && p.major != 12) {
        snprintf(why, n, "cuda:%d, sm_%d%d, has no 4-bit products", c->device, p.major,
                 p.minor);
        return false;
    }
    if (cuda_check(c, cudaSetDevice(c->device), "cudaSetDevice") &&
        cuda_check(c, cudaMalloc(&c->q.workspace, 4096), "cudaMalloc") &&
        cuda_gemm_open(c))
        yes = cuda_gemm_has_fp4(c);
    if (!yes)
        snprintf(why, n, "%s", c->k.err->msg);
    cuda_gemm_close(c);
    cudaFree(c->q.workspace);
    cudaGetLastError(); // do not leave an error for a later launch
    return yes;
}

extern "C" __attribute__((visibility("default"))) bool
nibble_cuda_native(int device, char *why, size_t n)
{
    struct err err = {};
    struct cuda c = {};
    c.k.err = &err;
    c.device = device;
    return ask(&c, why, n);
}
