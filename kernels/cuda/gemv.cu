/* SPDX-License-Identifier: MIT */
/* gemv: y = x W' + c for at most GEMV_MAX tokens, for decoding.  It is bound by reading
 * the weight, so the weight is read once, as it is stored, and as many loads as
 * possible are in flight before the kernel waits for x (see cuda_wait).
 *
 * A row of y has the same bits whatever other rows are computed with it: which columns
 * a warp sums, and in which order, depends on the weight alone (see division_of), and
 * so does the order in which the warps' sums are added.
 *
 * NVFP4 and bf16 weights with bf16 activations use the tensor cores, 16 rows of the
 * weight at a time, which leaves the other units free to unpack codes.  Both operands
 * of an mma may have their columns in any common order; ours is the one in which codes
 * unpack with the fewest operations, and for bf16 that in memory.  Everything else is a
 * dot product in f32, with a row per warp. */
#include "kernels/cuda/gemv.h"

/* ---- f32 dot products ------------------------------------------------------------ */

enum { FEW = 8 }; // tokens at a time

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

/* Load N elements of a row as f32. */
template <typename W, int N>
struct reader {
    static __device__ __forceinline__ void
    read(float w[N], const struct gemv_job &j, size_t row, size_t at)
    {
        const W *values = (const W *)j.part[0].values;
        pack<W, N> p = *(const pack<W, N> *)(values + row * j.in + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = to_f32(p.v[i]);
    }
};

struct fp4;
template <>
struct reader<fp4, NVFP4_BLOCK> {
    static __device__ __forceinline__ void
    read(float w[NVFP4_BLOCK], const struct gemv_job &j, size_t row, size_t at)
    {
        size_t block = (row * j.in + at) / NVFP4_BLOCK;
        uint2 codes = *(const uint2 *)((const char *)j.part[0].values + block * 8);
        float s = scale_value(j.part[0].scales[block]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            w[i] = code_value(codes.x >> (4 * i)) * s;
            w[i + 8] = code_value(codes.y >> (4 * i)) * s;
        }
    }
};

/* A row per warp, N columns per lane at a time; A: type of activations. */
template <typename A, typename W, int N>
static __global__ void __launch_bounds__(256)
    row_kernel(const __grid_constant__ struct gemv_job j)
{
    const struct product &w = j.part[0];
    size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    float sum[FEW] = { 0 };
    cuda_take_over();
    if (row >= w.out)
        return;
    for (size_t at = threadIdx.x % 32 * N; at < j.in; at += 32 * N) {
        float v[N];
        reader<W, N>::read(v, j, row, at);
#pragma unroll
        for (int t = 0; t < FEW; t++)
            if (t < j.tokens) {
                const A *x = (const A *)j.x + (size_t)t * j.in + at;
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum[t] = fmaf(v[i], to_f32(x[i]), sum[t]);
            }
    }
    float scale = w.scale2 ? *w.scale2 : 1;
#pragma unroll
    for (int t = 0; t < FEW; t++)
        if (t < j.tokens) {
            float all = warp_sum(sum[t]) * scale;
            if (threadIdx.x % 32 == 0)
                put<A>(j, w, t, row, all + added<A>(j, w, t, row));
        }
}

template <typename A, typename W, int N>
static void
start_rows(struct cuda *c, const struct gemv_job &j)
{
    cuda_start(c, "a product of few tokens", row_kernel<A, W, N>,
               blocks_of(j.part[0].out, 8), 256, 0, j);
}

template <typename A>
static void
by_rows(struct cuda *c, const struct gemv_job &j, enum dtype dtype)
{
    size_t each = dtype == DT_F32 ? 4 : 8;
    bool whole = j.in % each == 0 && (uintptr_t)j.part[0].values % 16 == 0;
    if (dtype == DT_NVFP4)
        start_rows<A, fp4, NVFP4_BLOCK>(c, j);
    else if (dtype == DT_F32)
        whole ? start_rows<A, float, 4>(c, j) : start_rows<A, float, 1>(c, j);
    else if (dtype == DT_BF16)
        whole ? start_rows<A, __nv_bfloat16, 8>(c, j)
              : start_rows<A, __nv_bfloat16, 1>(c, j);
    else
        whole ? start_rows<A, __half, 8>(c, j) : start_rows<A, __half, 1>(c, j);
}

/* ---- dispatch -------------------------------------------------------------------- */

struct division
cuda_gemv_division(unsigned tiles, unsigned units, enum dtype dtype)
{
    // So few tiles would leave SMs idle, or some with twice as many as others.
    bool few = dtype == DT_NVFP4 && tiles <= 200 && units >= 12;
    if (few)
        return units <= 2 * 4 * DEPTH ? division{ 2, 4, true }
                                      : division{ 2, 5, false };
    if (dtype == DT_NVFP4)
        for (int warps = 4; warps <= MANY_WARPS; warps += warps < 6 ? 1 : 2)
            if (units <= (unsigned)(warps * DEPTH))
                return { 1, warps, true };
    return { 1, 8, false };
}

static void
by_tensor_cores(struct cuda *c, struct gemv_job &j, enum dtype dtype)
{
    unsigned columns = dtype == DT_BF16 ? +bf16_form::COLUMNS : +fp4_form::COLUMNS;
    for (int i = 0; i < j.parts; i++)
        j.tiles += j.part[i].tiles = blocks_of(j.part[i].out, ROWS);
    if (j.gated)
        j.tiles = blocks_of(j.part[0].out, ROWS / 2);
    unsigned units = blocks_of(j.in, columns);
    struct division d = cuda_gemv_division(j.tiles, units, dtype);
    size_t bytes = (size_t)((units + d.split - 1) / d.split) * columns * 2;
    if (j.tokens == 1 && bytes <= STAGED)
        cuda_gemv_one(c, j, dtype, d, bytes);
    else if (j.tokens <= GEMV_FEW)
        cuda_gemv_few(c, j, dtype, d);
    else
        cuda_gemv_several(c, j, dtype, d);
}

static const void *
values_of(const struct matrix *w)
{
    return w->data ? w->data : w->expanded;
}

static struct product
part_of(const struct matrix *y, const struct matrix *w, const struct matrix *add)
{
    return {
        y->data, add ? add->data : NULL, values_of(w), w->scales, w->scale2, w->rows, 0
    };
}

/* The format that is read: bf16 (expanded) if there are no codes. */
static enum dtype
form_of(const struct matrix *w)
{
    return w->dtype == DT_NVFP4 && !w->data ? DT_BF16 : w->dtype;
}

static bool
for_tensor_cores(const struct matrix *w, const struct matrix *x)
{
    enum dtype form = form_of(w);
    bool even = (uintptr_t)values_of(w) % 16 == 0 && (uintptr_t)x->data % 16 == 0;
    if (form == DT_NVFP4)
        even = even && w->cols % 32 == 0 && (uintptr_t)w->scales % 2 == 0;
    even = even && w->cols <= EXPANDED / 256; // x of many tokens is copied there
    return even && w->cols % 8 == 0 && x->dtype == DT_BF16 &&
           (form == DT_NVFP4 || form == DT_BF16);
}

static struct gemv_job
job_of(const struct matrix *y, const struct matrix *x, size_t parts)
{
    struct gemv_job j = {};
    j.x = x->data;
    j.in = x->cols;
    j.tokens = (int)x->rows;
    j.parts = (int)parts;
    j.wide = y->dtype == DT_F32;
    return j;
}

/* Dot products of a few tokens after the other; rows are dense. */
static void
by_dot_products(struct cuda *c, struct gemv_job j, enum dtype act, enum dtype dtype)
{
    enum dtype of_y = j.wide ? DT_F32 : act;
    for (int left = j.tokens; left > 0; left -= FEW) {
        size_t out = j.part[0].out;
        j.tokens = left < FEW ? left : FEW;
        BY_TYPE(act, by_rows, c, j, dtype);
        j.x = dtype_at(act, j.x, FEW * j.in);
        j.part[0].y = dtype_at(of_y, j.part[0].y, FEW * out);
        j.part[0].add = dtype_at(of_y, j.part[0].add, FEW * out);
    }
}

void
cuda_gemv(struct cuda *c, const struct matrix *y, const struct matrix *x,
          const struct matrix *w, const struct matrix *add)
{
    struct gemv_job j = job_of(y, x, 1);
    j.part[0] = part_of(y, w, add);
    if (for_tensor_cores(w, x))
        by_tensor_cores(c, j, form_of(w));
    else
        by_dot_products(c, j, x->dtype, form_of(w));
}

/* Parts of a job that tensor cores take in one launch; false: they do not. */
static bool
add_parts(struct gemv_job *j, size_t n, const struct matrix *y, const struct matrix *x,
          const struct matrix *w)
{
    for (size_t i = 0; i < n; i++) {
        if (form_of(&w[i]) != form_of(w) || y[i].dtype != y->dtype ||
            !for_tensor_cores(&w[i], x))
            return false;
        j->part[i] = part_of(&y[i], &w[i], NULL);
    }
    return true;
}

bool
cuda_gemv_many(struct cuda *c, size_t n, const struct matrix *y, const struct matrix *x,
               const struct matrix *w)
{
    struct gemv_job j = job_of(y, x, n);
    if (!add_parts(&j, n, y, x, w))
        return false;
    by_tensor_cores(c, j, form_of(w));
    return true;
}

/* Whether norms of x can be part of a product: as norm_rows takes them. */
static bool
can_norm(const struct matrix *x, const float *gain)
{
    bool fits = x->rows == 1 ? x->cols * 2 <= STAGED
                             : x->rows > GEMV_FEW && x->rows <= GEMV_MAX;
    return fits && x->cols / 8 <= NORM_PACKS && (uintptr_t)gain % 16 == 0;
}

bool
cuda_norm_linear(struct kernels *k, size_t n, const struct matrix *y,
                 const struct matrix *x, const float *gain, float eps,
                 const struct matrix *w)
{
    struct gemv_job j = job_of(y, x, n);
    if (!can_norm(x, gain) || !add_parts(&j, n, y, x, w))
        return false;
    j.gain = gain;
    j.eps = eps;
    by_tensor_cores(cuda_of(k), j, form_of(w));
    return true;
}

bool
cuda_norm_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *x,
                 const float *gain, float eps, const struct matrix *w)
{
    const struct matrix both[2] = { *y, *y };
    struct gemv_job j = job_of(y, x, 2);
    // With an odd number of rows tiles would not be those of the products alone.
    if (!can_norm(x, gain) || w->rows % ROWS || w[1].rows != w->rows ||
        !add_parts(&j, 2, both, x, w))
        return false;
    j.gain = gain;
    j.eps = eps;
    j.gated = true;
    by_tensor_cores(cuda_of(k), j, form_of(w));
    return true;
}
