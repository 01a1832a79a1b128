/* SPDX-License-Identifier: MIT */
/* quant: amax, NVFP4 quantizers and decoding.
 *
 * The quantizers give the CPU's bytes.  A thread quantizes 16 values by quant_math.h;
 * this file loads and stores them.  Arrays start at an allocation, or a multiple of 32
 * elements after it. */
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, ANY = QUANT_COUNT };

/* Blocks for `threads` threads, at most `waves` per SM: kernels use grid-stride
 * loops. */
static unsigned
grid_of(const struct cuda *c, size_t threads, unsigned waves)
{
    size_t want = (threads + THREADS - 1) / THREADS, limit = (size_t)c->sms * waves;
    return (unsigned)(want < limit ? want : limit);
}

/* ---- amax ------------------------------------------------------------------------ */

/* Running maximum of magnitudes, as bits of one f32 or of two 16-bit floats; NaN if not
 * finite. */
template <typename T>
static __device__ __forceinline__ uint32_t max_of(uint32_t peak, uint32_t word);

template <>
__device__ __forceinline__ uint32_t
max_of<float>(uint32_t peak, uint32_t word)
{
    return max(peak, word & 0x7fffffff);
}

template <>
__device__ __forceinline__ uint32_t
max_of<__nv_bfloat16>(uint32_t peak, uint32_t word)
{
    return __vmaxu2(peak, word & 0x7fff7fff);
}

template <>
__device__ __forceinline__ uint32_t
max_of<__half>(uint32_t peak, uint32_t word)
{
    return __vmaxu2(peak, word & 0x7fff7fff);
}

static __device__ __forceinline__ uint32_t
float_of_peak(uint32_t peak, float)
{
    return peak;
}

static __device__ __forceinline__ uint32_t
float_of_peak(uint32_t peak, __nv_bfloat16)
{
    return max(peak & 0xffff, peak >> 16) << 16;
}

static __device__ __forceinline__ uint32_t
float_of_peak(uint32_t peak, __half)
{
    unsigned short bits = (unsigned short)max(peak & 0xffff, peak >> 16);
    return __float_as_uint(__half2float(__ushort_as_half(bits)));
}

/* *out must be 0. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    amax_kernel(unsigned *out, const T *x, size_t n)
{
    enum { EACH = lanes<T>, AT_ONCE = 4 };
    size_t whole = n / EACH, step = (size_t)gridDim.x * THREADS;
    const uint4 *in = (const uint4 *)x;
    uint32_t peak = 0;
    __shared__ unsigned scratch;
    if (threadIdx.x == 0)
        scratch = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < whole;
         i += step * AT_ONCE) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            v[k] = i + step * k < whole ? __ldcs(in + i + step * k)
                                        : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            peak = max_of<T>(peak, v[k].x);
            peak = max_of<T>(peak, v[k].y);
            peak = max_of<T>(peak, v[k].z);
            peak = max_of<T>(peak, v[k].w);
        }
    }
    peak = float_of_peak(peak, T());
    if (blockIdx.x == 0 && whole * EACH + threadIdx.x < n)
        peak = max(peak, __float_as_uint(fabsf(to_f32(x[whole * EACH + threadIdx.x]))));
    peak = __reduce_max_sync(0xffffffffU, peak >= 0x7f800000 ? 0x7fc00000 : peak);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        atomicMax(&scratch, peak);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicMax(out, scratch);
}

void
cuda_amax(struct kernels *k, float *out, const struct matrix *x)
{
    struct cuda *c = cuda_of(k);
    size_t n = x->rows * x->cols;
    c->q.early = NOT_EARLY;
    cuda_check(c, cudaMemsetAsync(out, 0, sizeof *out, c->q.stream), "amax");
    if (n == 0 || !cuda_ready(c))
        return;
    if (x->dtype == DT_NVFP4) {
        cuda_amax_codes(c, out, x);
        return;
    }
    unsigned *bits = (unsigned *)out, grid = grid_of(c, n / 8 + 1, 8);
    cudaStream_t stream = c->q.stream;
    if (x->dtype == DT_F32)
        amax_kernel<<<grid, THREADS, 0, stream>>>(bits, (const float *)x->data, n);
    else if (x->dtype == DT_BF16)
        amax_kernel<<<grid, THREADS, 0, stream>>>(bits, (const __nv_bfloat16 *)x->data,
                                                  n);
    else
        amax_kernel<<<grid, THREADS, 0, stream>>>(bits, (const __half *)x->data, n);
    cuda_launched(c, "amax");
}

static __global__ void __launch_bounds__(THREADS)
    largest_kernel(float *amax, const float *of, size_t n, size_t ranks)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    float peak = of[i];
    for (size_t q = 1; q < ranks; q++)
        peak = isnan(of[q * n + i]) || of[q * n + i] > peak ? of[q * n + i] : peak;
    amax[i] = peak;
}

void
cuda_largest(struct kernels *k, float *amax, const float *of, size_t n, size_t ranks)
{
    struct cuda *c = cuda_of(k);
    c->q.early = NOT_EARLY;
    largest_kernel<<<blocks_of(n, THREADS), THREADS, 0, c->q.stream>>>(amax, of, n,
                                                                       ranks);
    cuda_launched(c, "largest");
}

/* ---- values in, codes out -------------------------------------------------------- */

static __device__ __forceinline__ void
zero_row(struct values *v)
{
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        v->x[i] = 0;
        v->pair[i / 2] = 0;
    }
}

static __device__ __forceinline__ uint4
other_lane(uint4 v)
{
    v.x = __shfl_xor_sync(0xffffffffU, v.x, 1);
    v.y = __shfl_xor_sync(0xffffffffU, v.y, 1);
    v.z = __shfl_xor_sync(0xffffffffU, v.z, 1);
    v.w = __shfl_xor_sync(0xffffffffU, v.w, 1);
    return v;
}

/* Store block b.  If `pairs`, two neighbouring lanes have neighbouring blocks, and
 * store the even one's 32 bytes together, then the odd one's: whole sectors. */
static __device__ __forceinline__ void
store_products(void *expanded, const struct coded *out, size_t b, size_t blocks,
               bool pairs)
{
    uint4 *to = (uint4 *)expanded;
    uint4 low = products(out->codes[0], out->scale);
    uint4 high = products(out->codes[1], out->scale);
    if (!pairs) {
        if (b < blocks) {
            to[2 * b] = low;
            to[2 * b + 1] = high;
        }
        return;
    }
    bool odd = b % 2;
    size_t even = b - odd;
    uint4 theirs = other_lane(odd ? low : high);
    if (even < blocks)
        to[2 * even + odd] = odd ? theirs : low;
    if (even + 1 < blocks)
        to[2 * even + 2 + odd] = odd ? high : theirs;
}

/* Scale of a tensor whose amax is the maximum of n. */
static __device__ __forceinline__ struct quant_scale
scale_of(const float *amax, unsigned n, const struct quant_spec &spec)
{
    float peak = 0;
    for (unsigned i = 0; i < n; i++)
        peak = isnan(amax[i]) || amax[i] > peak ? amax[i] : peak;
    if (isnan(peak))
        return { peak, 1, peak, 0 };
    return tensor_scale(spec.kind, spec.modelopt, peak);
}

/* KIND: a quantizer without options, or ANY.  Nothing is written before cuda_wait. */
template <typename T, int KIND>
static __global__ void __launch_bounds__(THREADS)
    quantize_kernel(struct matrix to, const T *x, size_t rows, size_t cols,
                    const float *amax, unsigned n_amax,
                    const __grid_constant__ struct quant_spec spec)
{
    const bool sweeps = KIND == QUANT_SWEEP || KIND == QUANT_SWEEPFP8;
    __shared__ struct step steps[sweeps ? STEPS : 1];
    const struct quant_scale t = scale_of(amax, n_amax, spec);
    bool square = KIND == ANY && spec.square;
    size_t wide = cols / COLUMNS, blocks = rows * wide;
    size_t n = square ? (rows + 15) / 16 * 16 * wide : blocks;
    bool waited = false;
    if (blockIdx.x == 0 || isnan(t.amax)) {
        cuda_wait();
        waited = true;
        if (blockIdx.x == 0 && threadIdx.x == 0)
            *to.scale2 = t.scale2;
    }
    cuda_next();
    if (isnan(t.amax))
        return;
    if (sweeps) {
        for (unsigned k = threadIdx.x; k < STEPS; k += THREADS)
            steps[k] = step_of(k);
        __syncthreads();
    }
    // Whole warps iterate, since lanes shuffle.
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i / 32 * 32 < n;
         i += (size_t)gridDim.x * THREADS) {
        struct values v;
        struct coded out;
        size_t b = i, row = i % 16 + i / 16 / wide * 16;
        if (square)
            b = row < rows ? row * wide + i / 16 % wide : blocks;
        if (b < blocks || KIND != ANY) // without a row of its own: the last one
            load_row(&v, x + (b < blocks ? b : blocks - 1) * COLUMNS);
        else
            zero_row(&v);
        v.amax = rows_max(row_amax(v.x), square);
        if (KIND == QUANT_MAX)
            code_max(&out, &v, &t, NULL, 0);
        else if (KIND == QUANT_4OVER6)
            code_4over6(&out, &v, &t, spec.mae, NULL, false);
        else if (sweeps)
            code_sweep(&out, &v, t.enc, KIND == QUANT_SWEEPFP8, steps);
        else
            code_any(&out, &v, &spec, &t, b * COLUMNS,
                     spec.column_weight && b < blocks
                         ? spec.column_weight + b % wide * COLUMNS
                         : NULL);
        if (!waited)
            cuda_wait();
        waited = true;
        if (to.data && b < blocks) {
            ((uint2 *)to.data)[b] = make_uint2(out.codes[0], out.codes[1]);
            to.scales[b] = (uint8_t)out.scale;
        }
        if (to.expanded)
            store_products(to.expanded, &out, b, blocks, KIND != ANY);
    }
    if (!waited)
        cuda_wait();
}

template <typename T>
static void
launch(struct cuda *c, const struct matrix *to, const T *x, size_t rows, size_t cols,
       const float *amax, size_t n, const struct quant_spec *spec)
{
    void (*kernel)(struct matrix, const T *, size_t, size_t, const float *, unsigned,
                   const struct quant_spec) = quantize_kernel<T, ANY>;
    bool plain = !spec->square && !spec->stochastic && !spec->column_weight &&
                 !spec->exhaustive && !spec->modelopt;
    size_t units =
        (rows + 15) / 16 * cols; // threads for square blocks; enough for others
    unsigned grid = grid_of(c, units, 16);
    enum quant kind = spec->kind;
    if (plain && kind == QUANT_MAX)
        kernel = quantize_kernel<T, QUANT_MAX>;
    else if (plain && kind == QUANT_4OVER6)
        kernel = quantize_kernel<T, QUANT_4OVER6>;
    else if (plain && (kind == QUANT_SWEEP || kind == QUANT_SWEEP1))
        kernel = quantize_kernel<T, QUANT_SWEEP>;
    else if (plain && kind == QUANT_SWEEPFP8)
        kernel = quantize_kernel<T, QUANT_SWEEPFP8>;
    cuda_start_kind(c, EARLY_QUANTIZERS, "quantize", 1, kernel, grid ? grid : 1,
                    THREADS, 0, *to, x, rows, cols, amax, (unsigned)n, *spec);
}

void
cuda_quantize(struct kernels *k, const struct matrix *to, const struct matrix *x,
              const float *amax, size_t n, const struct quant_spec *spec)
{
    struct cuda *c = cuda_of(k);
    struct quant_spec mine = *spec;
    mine.source = x->dtype;
    if (to->per_row) {
        cuda_quantize_rows(c, to, x, spec);
        return;
    }
    if (x->dtype == DT_F32)
        launch(c, to, (const float *)x->data, to->rows, to->cols, amax, n, &mine);
    else if (x->dtype == DT_BF16)
        launch(c, to, (const __nv_bfloat16 *)x->data, to->rows, to->cols, amax, n,
               &mine);
    else
        launch(c, to, (const __half *)x->data, to->rows, to->cols, amax, n, &mine);
    if (to->tiles)
        cuda_tile(c, to);
}

/* ---- decoding -------------------------------------------------------------------- */

/* Eight codes per thread. */
static __global__ void __launch_bounds__(THREADS)
    expand_kernel(uint4 *to, const uint32_t *codes, const uint8_t *scales, size_t n)
{
    enum { AT_ONCE = 4 };
    size_t step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += step * AT_ONCE) {
        uint32_t w[AT_ONCE], s[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            size_t at = i + step * k;
            w[k] = at < n ? __ldg(codes + at) : 0;
            s[k] = at < n ? __ldg(scales + at / 2) : 0;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + step * k < n)
                to[i + step * k] = products(w[k], s[k]);
    }
}

void
cuda_expand(struct cuda *c, void *to, const uint8_t *codes, const uint8_t *scales,
            size_t n)
{
    if (!cuda_ready(c) || n == 0)
        return;
    expand_kernel<<<grid_of(c, n / 32 + 1, 8), THREADS, 0, c->q.stream>>>(
        (uint4 *)to, (const uint32_t *)codes, scales, n / 8);
    cuda_launched(c, "expand");
}

void
cuda_expand_weight(struct kernels *k, const struct matrix *w)
{
    cuda_expand(cuda_of(k), w->expanded, (const uint8_t *)w->data, w->scales,
                w->rows * w->cols);
}
