/* SPDX-License-Identifier: MIT */
/* norm: RMSNorm over rows. */
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

/* The gain's gradient is a sum over rows: row r goes to slice r % slices, each slice
 * sums into its part of c->q.partials, then the slices are added.  The number of slices
 * depends on sizes only. */
enum {
    SLICES = 512, // max. slices of norm_bwd, each as wide as a row
    ADD_WARPS = 32,
    COLUMNS = 1 << 16, // per pass of norm_dgain_plain
    MAX_PARTIALS = PARTIALS / sizeof(float),
};

/* to += the sum of slices of n elements; a block has 32 columns, a warp every
 * ADD_WARPS-th slice. */
static __global__ void __launch_bounds__(32 * ADD_WARPS)
    add_slices(float *to, const float *__restrict__ partial, unsigned slices,
               unsigned n)
{
    __shared__ float scratch[ADD_WARPS][32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned column = blockIdx.x * 32 + lane;
    float sum = 0;
    cuda_take_over();
    if (column < n)
#pragma unroll 8
        for (unsigned s = warp; s < slices; s += ADD_WARPS)
            sum += partial[(size_t)s * n + column];
    scratch[warp][lane] = sum;
    __syncthreads();
    if (warp || column >= n)
        return;
    sum = 0;
#pragma unroll
    for (int i = 0; i < ADD_WARPS; i++)
        sum += scratch[i][lane];
    to[column] += sum;
}

void
cuda_add_slices(struct cuda *c, float *to, size_t slices, size_t n)
{
    cuda_start(c, "add_slices", add_slices, blocks_of(n, 32), 32 * ADD_WARPS, 0, to,
               c->q.partials, (unsigned)slices, (unsigned)n);
}

/* A block per row, which stays in registers: PER packs per thread. */
template <typename T, int PER>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_rows(T *y, float *rstd, const T *x, const float *__restrict__ gain, unsigned n,
              float eps, float *amax)
{
    constexpr int V = lanes<T>;
    __shared__ float scratch[33];
    __shared__ unsigned all;
    size_t row = blockIdx.x;
    unsigned peak = 0;
    pack<T, V> v[PER];
    cuda_take_over();
    float s = load_scaled(v, x + row * n, n, eps, scratch);
#pragma unroll
    for (int p = 0; p < PER; p++) {
        unsigned at = (threadIdx.x + p * blockDim.x) * V;
        float g[V];
        if (at >= n)
            continue;
        load(g, gain + at);
#pragma unroll
        for (int i = 0; i < V; i++) {
            g[i] = to_f32(v[p].v[i]) * s * g[i];
            peak = larger_of(peak, g[i]);
        }
        if (y)
            store(y + row * n + at, g);
    }
    if (amax)
        grow_amax<T>(amax, &all, peak);
    if (threadIdx.x == 0)
        rstd[row] = s;
}

/* The same in E4M3, by one value at amax. */
template <typename T, int PER>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_rows_fp8(uint8_t *y, float *scale2, float *rstd, const T *x,
                  const float *__restrict__ gain, unsigned n, float eps,
                  const float *amax, struct fp8_found found)
{
    constexpr int V = lanes<T>;
    __shared__ float scratch[33];
    __shared__ struct tally all;
    size_t row = gridDim.x - 1 - blockIdx.x; // see struct place in fp8.cu
    pack<T, V> v[PER];
    cuda_take_over();
    struct fp8_scale to = fp8_scale_of(scale2, NULL, amax, 1);
    struct tally t = fp8_tally(to);
    float s = load_scaled(v, x + row * n, n, eps, scratch);
#pragma unroll
    for (int p = 0; p < PER; p++) {
        unsigned at = (threadIdx.x + p * blockDim.x) * V;
        float g[V];
        pack<uint16_t, V / 2> two;
        if (at >= n)
            continue;
        load(g, gain + at);
#pragma unroll
        for (int i = 0; i < V; i++) {
            g[i] = to.finite ? rounded<T>(to_f32(v[p].v[i]) * s * g[i]) : 0;
            if (found.lost)
                fp8_count<false>(&t, g[i], to.factor);
        }
#pragma unroll
        for (int i = 0; i < V; i += 2)
            two.v[i / 2] = (uint16_t)two_e4m3(fp8_scaled(g[i], to.factor),
                                              fp8_scaled(g[i + 1], to.factor));
        *(pack<uint16_t, V / 2> *)(y + row * n + at) = two;
    }
    if (found.lost)
        fp8_add(found, &all, t);
    if (threadIdx.x == 0)
        rstd[row] = s;
}

/* Any width; reads x twice. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    norm_plain(T *y, float *rstd, const T *x, const float *__restrict__ gain, size_t n,
               float eps, float *amax)
{
    __shared__ float scratch[33];
    __shared__ unsigned all;
    size_t row = blockIdx.x;
    unsigned peak = 0;
    float sum = 0;
    cuda_take_over();
    for (size_t i = threadIdx.x; i < n; i += THREADS)
        sum = fmaf(to_f32(x[row * n + i]), to_f32(x[row * n + i]), sum);
    float s = 1 / sqrtf(block_sum(sum, scratch) / (float)n + eps);
    for (size_t i = threadIdx.x; i < n; i += THREADS) {
        float out = to_f32(x[row * n + i]) * s * gain[i];
        peak = larger_of(peak, out);
        if (y)
            y[row * n + i] = from_f32<T>(out);
    }
    if (amax)
        grow_amax<T>(amax, &all, peak);
    if (threadIdx.x == 0)
        rstd[row] = s;
}

template <typename T, int PER>
static void
norm_per(struct cuda *c, void *y, float *rstd, const void *x, const float *gain,
         size_t rows, size_t n, float eps, float *amax, unsigned threads)
{
    cuda_start(c, "norm", norm_rows<T, PER>, (unsigned)rows, threads, 0, (T *)y, rstd,
               (const T *)x, gain, (unsigned)n, eps, amax);
}

template <typename T>
static void
norm_of(struct cuda *c, void *y, float *rstd, const void *x, const float *gain,
        size_t rows, size_t n, float eps, float *amax)
{
    size_t packs = n / lanes<T>;
    if (!in_packs<T>(n, addr(y) | addr(x) | addr(gain)) || packs > NORM_PACKS) {
        cuda_start(c, "norm", norm_plain<T>, (unsigned)rows, THREADS, 0, (T *)y, rstd,
                   (const T *)x, gain, n, eps, amax);
        return;
    }
    struct norm_shape s = norm_shape_of((unsigned)packs);
    if (s.per == 1)
        norm_per<T, 1>(c, y, rstd, x, gain, rows, n, eps, amax, s.threads);
    else if (s.per == 2)
        norm_per<T, 2>(c, y, rstd, x, gain, rows, n, eps, amax, s.threads);
    else
        norm_per<T, 4>(c, y, rstd, x, gain, rows, n, eps, amax, s.threads);
}

void
cuda_norm(struct kernels *k, const struct matrix *y, float *rstd,
          const struct matrix *x, const float *gain, float eps)
{
    if (x->rows && x->cols)
        BY_TYPE(x->dtype, norm_of, cuda_of(k), y->data, rstd, x->data, gain, x->rows,
                x->cols, eps, y->amax);
}

template <typename T, int PER>
static void
norm_fp8_per(struct cuda *c, const struct matrix *to, float *rstd, const void *x,
             const float *gain, float eps, const float *amax,
             const struct fp8_found &found, unsigned threads)
{
    cuda_start(c, "norm to fp8", norm_rows_fp8<T, PER>, (unsigned)to->rows, threads, 0,
               (uint8_t *)to->data, to->scale2, rstd, (const T *)x, gain,
               (unsigned)to->cols, eps, amax, found);
}

/* False: it takes rows that do not stay in registers. */
template <typename T>
static bool
norm_fp8_of(struct cuda *c, const struct matrix *to, float *rstd, const void *x,
            const float *gain, float eps, const float *amax,
            const struct fp8_found &found)
{
    size_t packs = to->cols / lanes<T>;
    if (!in_packs<T>(to->cols, addr(to->data) | addr(x) | addr(gain)) ||
        packs > NORM_PACKS)
        return false;
    struct norm_shape s = norm_shape_of((unsigned)packs);
    if (s.per == 1)
        norm_fp8_per<T, 1>(c, to, rstd, x, gain, eps, amax, found, s.threads);
    else if (s.per == 2)
        norm_fp8_per<T, 2>(c, to, rstd, x, gain, eps, amax, found, s.threads);
    else
        norm_fp8_per<T, 4>(c, to, rstd, x, gain, eps, amax, found, s.threads);
    return true;
}

void
cuda_norm_to_fp8(struct kernels *k, const struct matrix *to, float *rstd,
                 const struct matrix *x, const float *gain, float eps,
                 const float *amax, const struct fp8_found *found)
{
    const struct fp8_found none = { NULL, NULL };
    struct matrix unwritten = matrix_of(x->dtype, NULL, x->rows, x->cols);
    if (x->rows == 0 || x->cols == 0 ||
        BY_TYPE(x->dtype, norm_fp8_of, cuda_of(k), to, rstd, x->data, gain, eps, amax,
                found ? *found : none))
        return;
    cuda_norm(k, &unwritten, rstd, x, gain, eps);
    cuda_norm_again_to_fp8(k, to, rstd, x, gain, amax, found);
}

/* A block per slice of the rows. dx may be dy: a thread writes only what it alone has
 * read.  Rejected: prefetching the next row.  It takes registers, and more blocks hide
 * as much latency. */
template <typename T, int PER>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_bwd_rows(T *dx, float *partial, T *y, const T *dy, const T *x,
                  const float *rstd, const float *__restrict__ gain, size_t rows,
                  unsigned n, bool add, float *amax)
{
    constexpr int V = lanes<T>;
    __shared__ float scratch[33];
    __shared__ unsigned all;
    unsigned packs = n / V, peak = 0;
    pack<T, V> d[PER], v[PER], old[PER];
    float g[PER][V], dgain[PER][V];
    cuda_wait();
#pragma unroll
    for (int p = 0; p < PER; p++) {
        unsigned at = (threadIdx.x + p * blockDim.x) * V;
        if (at < n)
            load(g[p], gain + at);
#pragma unroll
        for (int i = 0; i < V; i++)
            dgain[p][i] = 0;
    }
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float s = rstd[row], share = 0;
        load_row(d, dy + row * n, packs);
        load_row(v, x + row * n, packs);
        if (add)
            load_row(old, dx + row * n, packs);
#pragma unroll
        for (int p = 0; p < PER; p++)
            if (threadIdx.x + p * blockDim.x < packs)
#pragma unroll
                for (int i = 0; i < V; i++)
                    share = fmaf(to_f32(d[p].v[i]) * g[p][i], to_f32(v[p].v[i]), share);
        share = block_sum(share, scratch) * s * s / (float)n;
#pragma unroll
        for (int p = 0; p < PER; p++) {
            unsigned at = (threadIdx.x + p * blockDim.x) * V;
            float out[V], out_y[V];
            if (at >= n)
                continue;
            stay_packed(d[p]);
            stay_packed(v[p]);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float di = to_f32(d[p].v[i]), vi = to_f32(v[p].v[i]);
                out_y[i] = vi * s * g[p][i];
                dgain[p][i] = fmaf(di, vi * s, dgain[p][i]);
                out[i] = s * (di * g[p][i] - vi * share);
                if (add)
                    out[i] = to_f32(old[p].v[i]) + out[i];
                peak = larger_of(peak, out[i]);
            }
            store(dx + row * n + at, out);
            if (y)
                store(y + row * n + at, out_y);
        }
    }
    if (amax)
        grow_amax<T>(amax, &all, peak);
    if (!partial)
        return;
#pragma unroll
    for (int p = 0; p < PER; p++) {
        unsigned at = (threadIdx.x + p * blockDim.x) * V;
        if (at < n)
            store(partial + (size_t)blockIdx.x * n + at, dgain[p]);
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    norm_bwd_plain(T *dx, T *y, const T *dy, const T *x, const float *rstd,
                   const float *__restrict__ gain, size_t n, bool add, float *amax)
{
    __shared__ float scratch[33];
    __shared__ unsigned all;
    size_t row = blockIdx.x * n;
    unsigned peak = 0;
    float s = rstd[blockIdx.x], share = 0;
    for (size_t i = threadIdx.x; i < n; i += THREADS)
        share = fmaf(to_f32(dy[row + i]) * gain[i], to_f32(x[row + i]), share);
    share = block_sum(share, scratch) * s * s / (float)n;
    for (size_t i = threadIdx.x; i < n; i += THREADS) {
        float out = s * (to_f32(dy[row + i]) * gain[i] - to_f32(x[row + i]) * share);
        if (add)
            out = to_f32(dx[row + i]) + out;
        peak = larger_of(peak, out);
        dx[row + i] = from_f32<T>(out);
        if (y)
            y[row + i] = from_f32<T>(to_f32(x[row + i]) * s * gain[i]);
    }
    if (amax)
        grow_amax<T>(amax, &all, peak);
}

/* A thread per column and slice, for some columns of rows of n elements. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    norm_dgain_plain(float *partial, const T *dy, const T *x, const float *rstd,
                     size_t rows, size_t n, unsigned columns, unsigned slices)
{
    unsigned parts = (columns + THREADS - 1) / THREADS, slice = blockIdx.x / parts;
    unsigned column = blockIdx.x % parts * THREADS + threadIdx.x;
    float sum = 0;
    if (column >= columns)
        return;
    for (size_t row = slice; row < rows; row += slices)
        sum = fmaf(to_f32(dy[row * n + column]),
                   to_f32(x[row * n + column]) * rstd[row], sum);
    partial[(size_t)slice * columns + column] = sum;
}

/* The gain's gradient first, since dx may be dy. */
template <typename T>
static void
norm_bwd_slow(struct cuda *c, void *dx, float *dgain, void *y, const void *dy,
              const void *x, const float *rstd, const float *gain, size_t rows,
              size_t n, bool add, float *amax)
{
    unsigned slices = (unsigned)min_size(rows, MAX_PARTIALS / COLUMNS);
    for (size_t at = 0; dgain && at < n; at += COLUMNS) {
        unsigned columns = (unsigned)min_size(n - at, COLUMNS);
        norm_dgain_plain<T>
            <<<blocks_of(columns, THREADS) * slices, THREADS, 0, c->q.stream>>>(
                c->q.partials, (const T *)dy + at, (const T *)x + at, rstd, rows, n,
                columns, slices);
        cuda_launched(c, "norm_bwd");
        cuda_add_slices(c, dgain + at, slices, columns);
    }
    norm_bwd_plain<T><<<(unsigned)rows, THREADS, 0, c->q.stream>>>(
        (T *)dx, (T *)y, (const T *)dy, (const T *)x, rstd, gain, n, add, amax);
    cuda_launched(c, "norm_bwd");
}

template <typename T, int PER>
static void
norm_bwd_per(struct cuda *c, void *dx, float *dgain, void *y, const void *dy,
             const void *x, const float *rstd, const float *gain, size_t rows, size_t n,
             bool add, float *amax)
{
    unsigned threads = row_threads(n / lanes<T>, PER, NORM_THREADS);
    size_t slices = min_size(rows, min_size(SLICES, MAX_PARTIALS / n));
    cuda_start(c, "norm_bwd", norm_bwd_rows<T, PER>, (unsigned)slices, threads, 0,
               (T *)dx, dgain ? c->q.partials : NULL, (T *)y, (const T *)dy,
               (const T *)x, rstd, gain, rows, (unsigned)n, add, amax);
    if (dgain)
        cuda_add_slices(c, dgain, slices, n);
}

template <typename T>
static void
norm_bwd_of(struct cuda *c, void *dx, float *dgain, void *y, const void *dy,
            const void *x, const float *rstd, const float *gain, size_t rows, size_t n,
            bool add, float *amax)
{
    uintptr_t places = addr(dx) | addr(y) | addr(dy) | addr(x) | addr(gain);
    size_t packs = n / lanes<T>;
    if (!in_packs<T>(n, places) || packs > 2 * NORM_THREADS)
        norm_bwd_slow<T>(c, dx, dgain, y, dy, x, rstd, gain, rows, n, add, amax);
    else if (packs <= THREADS)
        norm_bwd_per<T, 1>(c, dx, dgain, y, dy, x, rstd, gain, rows, n, add, amax);
    else
        norm_bwd_per<T, 2>(c, dx, dgain, y, dy, x, rstd, gain, rows, n, add, amax);
}

void
cuda_norm_bwd(struct kernels *k, const struct matrix *dx, float *dgain,
              const struct matrix *y, const struct matrix *dy, const struct matrix *x,
              const float *rstd, const float *gain, const struct matrix *c)
{
    if (x->rows && x->cols)
        BY_TYPE(x->dtype, norm_bwd_of, cuda_of(k), dx->data, dgain, y ? y->data : NULL,
                dy->data, x->data, rstd, gain, x->rows, x->cols, c != NULL, dx->amax);
}
