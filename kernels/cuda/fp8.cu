/* SPDX-License-Identifier: MIT */
/* fp8: matrices in E4M3 and their transposes, for products of FP8.
 *
 * A block converts TALL rows of WIDE columns, a thread 4 rows of 8: they are read once,
 * and go out as rows, and through shared memory as columns.  What is converted is bf16
 * bits or f32, times a power of two, so bytes are the CPU's.  It lies in memory, or is
 * computed of what does, by the expressions of norm.cu and swiglu.cu, and rounded as they
 * store it. */
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/swiglu.h"

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

/* Eight elements of a row, from a multiple of eight on; and as they lie in memory. */
struct eight {
    float x[COLS];
};

template <typename T>
struct packed {
    uint4 four[sizeof(T) / 2];
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
unpack(struct eight *v, const packed<__nv_bfloat16> &p)
{
    unpack(v, p.four[0]);
}

static __device__ __forceinline__ void
unpack(struct eight *v, const packed<float> &p)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        v->x[4 * i] = __uint_as_float(p.four[i].x);
        v->x[4 * i + 1] = __uint_as_float(p.four[i].y);
        v->x[4 * i + 2] = __uint_as_float(p.four[i].z);
        v->x[4 * i + 3] = __uint_as_float(p.four[i].w);
    }
}

template <typename T>
static __device__ __forceinline__ void
load(packed<T> *p, const T *x)
{
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 2); i++)
        p->four[i] = __ldg((const uint4 *)x + i);
}

/* Sources: `load` reads what the values of a row from a column on are computed of, for all
 * rows of a thread before `values` computes them. */

template <typename T>
struct activations {
    static constexpr bool codes = false;
    const T *x;
    typedef packed<T> raw;

    __device__ __forceinline__ void
    load(raw *r, size_t row, size_t col, size_t cols) const
    {
        ::load(r, x + row * cols + col);
    }

    __device__ __forceinline__ void
    values(struct eight *v, const raw &r, size_t) const
    {
        unpack(v, r);
    }
};

/* Codes of NVFP4, two in a byte. */
struct nvfp4 {
    static constexpr bool codes = true;
    const uint8_t *x, *scales;
    struct raw {
        uint32_t codes;
        uint8_t scale;
    };

    __device__ __forceinline__ void
    load(raw *r, size_t row, size_t col, size_t cols) const
    {
        size_t at = row * cols + col;
        r->codes = __ldg((const uint32_t *)(x + at / 2));
        r->scale = __ldg(scales + at / COLUMNS);
    }

    __device__ __forceinline__ void
    values(struct eight *v, const raw &r, size_t) const
    {
        unpack(v, products(r.codes, r.scale));
    }
};

/* What norm.cu gives, by the rstd that it has found. */
template <typename T>
struct normed {
    static constexpr bool codes = false;
    const T *x;
    const float *rstd, *gain;
    struct raw {
        packed<T> x;
        float rstd;
    };

    __device__ __forceinline__ void
    load(raw *r, size_t row, size_t col, size_t cols) const
    {
        ::load(&r->x, x + row * cols + col);
        r->rstd = __ldg(rstd + row);
    }

    __device__ __forceinline__ void
    values(struct eight *v, const raw &r, size_t col) const
    {
        unpack(v, r.x);
#pragma unroll
        for (int i = 0; i < COLS; i++)
            v->x[i] = rounded<T>(v->x[i] * r.rstd * __ldg(gain + col + i));
    }
};

/* What swiglu.cu gives. */
template <typename T>
struct swiglu {
    static constexpr bool codes = false;
    const T *gate, *up;
    struct raw {
        packed<T> gate, up;
    };

    __device__ __forceinline__ void
    load(raw *r, size_t row, size_t col, size_t cols) const
    {
        ::load(&r->gate, gate + row * cols + col);
        ::load(&r->up, up + row * cols + col);
    }

    __device__ __forceinline__ void
    values(struct eight *v, const raw &r, size_t) const
    {
        struct eight up;
        unpack(v, r.gate);
        unpack(&up, r.up);
#pragma unroll
        for (int i = 0; i < COLS; i++)
            v->x[i] = rounded<T>(swiglu_of(v->x[i], up.x[i]));
    }
};

/* ---- conversion ------------------------------------------------------------------ */

struct target {
    uint8_t *data, *transposed; // NULL: not wanted
    float *scale2;
    size_t rows, cols, row_stride, column_stride;
};

static __device__ __forceinline__ uint2
bytes_of(const struct eight &v, float factor)
{
    uint32_t two[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        two[i] = two_e4m3(fp8_scaled(v.x[2 * i], factor),
                          fp8_scaled(v.x[2 * i + 1], factor));
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

static __device__ __forceinline__ void
put_tile(uint32_t *tile, unsigned chunk, unsigned four, const uint2 bytes[ROWS])
{
    const uint32_t low[ROWS] = { bytes[0].x, bytes[1].x, bytes[2].x, bytes[3].x };
    const uint32_t high[ROWS] = { bytes[0].y, bytes[1].y, bytes[2].y, bytes[3].y };
    put_columns(tile, chunk * COLS, four, low);
    put_columns(tile, chunk * COLS + 4, four, high);
}

/* A thread's own rows. */
static __device__ __forceinline__ void
store_rows(const struct target &to, size_t row, size_t col, const uint2 bytes[ROWS])
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (to.data && row + i < to.rows && col < to.cols)
            *(uint2 *)(to.data + (row + i) * to.row_stride + col) = bytes[i];
}

/* Columns of the tile to rows of `transposed`, up to the end of a unit. */
static __device__ __forceinline__ void
store_columns(const struct target &to, const uint32_t *tile, size_t row, size_t col)
{
    for (unsigned i = threadIdx.x; i < WIDE * UNITS; i += THREADS) {
        unsigned column = i / UNITS, unit = i % UNITS;
        if (col + column < to.cols && row + unit * UNIT < to.rows)
            *(uint4 *)(to.transposed + (col + column) * to.column_stride + row +
                       unit * UNIT) =
                *(const uint4 *)(tile + word_at(column, unit * 4));
    }
}

template <bool codes>
static __device__ __forceinline__ void
count(struct tally *t, const struct eight &v, float factor)
{
#pragma unroll
    for (int i = 0; i < COLS; i++)
        fp8_count<codes>(t, v.x[i], factor);
}

/* ---- kernels --------------------------------------------------------------------- */

/* Where a thread's rows and columns begin.  The last rows come first: they are in the L2 cache
 * if what is read was written or read just before, from the first row on. */
struct place {
    unsigned chunk, four;
    size_t row, col;         // of the block
    size_t own_row, own_col; // of the thread
};

static __device__ __forceinline__ struct place
place_of_thread(void)
{
    struct place p = { threadIdx.x % CHUNKS,
                       threadIdx.x / CHUNKS,
                       (size_t)(gridDim.y - 1 - blockIdx.y) * TALL,
                       (size_t)blockIdx.x * WIDE,
                       0,
                       0 };
    p.own_row = p.row + p.four * ROWS;
    p.own_col = p.col + p.chunk * COLS;
    return p;
}

/* x_scale2: of x, or NULL.  found.lost: NULL, nothing is counted. */
template <typename S>
static __global__ void __launch_bounds__(THREADS)
    to_fp8_kernel(struct target to, S x, const float *x_scale2, const float *amax,
                  unsigned n, struct fp8_found found)
{
    __shared__ alignas(16) uint32_t tile[WIDE * TALL / 4];
    __shared__ struct tally all;
    struct fp8_scale s = fp8_scale_of(to.scale2, x_scale2, amax, n);
    struct place p = place_of_thread();
    typename S::raw raw[ROWS];
    uint2 bytes[ROWS];
    struct tally t = fp8_tally(s);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (s.finite && p.own_row + i < to.rows && p.own_col < to.cols)
            x.load(&raw[i], p.own_row + i, p.own_col, to.cols);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        struct eight v = {};
        if (s.finite && p.own_row + i < to.rows && p.own_col < to.cols)
            x.values(&v, raw[i], p.own_col);
        bytes[i] = bytes_of(v, s.factor);
        if (found.lost)
            count<S::codes>(&t, v, s.factor);
    }
    store_rows(to, p.own_row, p.own_col, bytes);
    if (found.lost)
        fp8_add(found, &all, t);
    if (!to.transposed)
        return;
    put_tile(tile, p.chunk, p.four, bytes);
    __syncthreads();
    store_columns(to, tile, p.row, p.col);
}

/* What the gradient of swiglu is computed of, and what it gives. */
template <typename T>
struct swiglu_bwd {
    const T *d, *gate, *up;
    struct raw {
        packed<T> d, gate, up;
    };

    __device__ __forceinline__ void
    load(raw *r, size_t row, size_t col, size_t cols) const
    {
        ::load(&r->d, d + row * cols + col);
        ::load(&r->gate, gate + row * cols + col);
        ::load(&r->up, up + row * cols + col);
    }

    __device__ __forceinline__ void
    values(struct eight *dgate, struct eight *dup, struct eight *y, const raw &r) const
    {
        struct eight d, gate, up;
        unpack(&d, r.d);
        unpack(&gate, r.gate);
        unpack(&up, r.up);
#pragma unroll
        for (int i = 0; i < COLS; i++) {
            struct swiglu_gradient g = swiglu_gradient_of(gate.x[i], up.x[i], d.x[i]);
            dgate->x[i] = rounded<T>(g.gate);
            dup->x[i] = rounded<T>(g.up);
            y->x[i] = rounded<T>(g.y);
        }
    }
};

/* dgate and dup: columns of one matrix, which have one scale. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    swiglu_bwd_fp8_kernel(struct target dgate, struct target dup, struct target y,
                          swiglu_bwd<T> x, const float *amax, const float *y_amax,
                          struct fp8_found found)
{
    __shared__ alignas(16) uint32_t tile[3][WIDE * TALL / 4];
    __shared__ struct tally all;
    struct fp8_scale s = fp8_scale_of(dgate.scale2, NULL, amax, 1),
                     sy = fp8_scale_of(y.scale2, NULL, y_amax, 1);
    struct place p = place_of_thread();
    typename swiglu_bwd<T>::raw raw[ROWS];
    uint2 bytes[3][ROWS];
    struct tally t = fp8_tally(s);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (p.own_row + i < y.rows && p.own_col < y.cols)
            x.load(&raw[i], p.own_row + i, p.own_col, y.cols);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        struct eight a = {}, b = {}, c = {};
        if (p.own_row + i < y.rows && p.own_col < y.cols)
            x.values(&a, &b, &c, raw[i]);
        if (!s.finite)
            a = b = {};
        if (!sy.finite)
            c = {};
        bytes[0][i] = bytes_of(a, s.factor);
        bytes[1][i] = bytes_of(b, s.factor);
        bytes[2][i] = bytes_of(c, sy.factor);
        if (found.lost) {
            count<false>(&t, a, s.factor);
            count<false>(&t, b, s.factor);
        }
    }
    const struct target *const to[3] = { &dgate, &dup, &y };
#pragma unroll
    for (int i = 0; i < 3; i++) {
        store_rows(*to[i], p.own_row, p.own_col, bytes[i]);
        if (to[i]->transposed)
            put_tile(tile[i], p.chunk, p.four, bytes[i]);
    }
    if (found.lost)
        fp8_add(found, &all, t);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (to[i]->transposed)
            store_columns(*to[i], tile[i], p.row, p.col);
}

static struct target
target_of(const struct matrix *m)
{
    return { (uint8_t *)m->data, m->transposed,       m->scale2, m->rows, m->cols,
             m->stride,          m->transposed_stride };
}

static dim3
grid_of(const struct matrix *m)
{
    return dim3(blocks_of(m->cols, WIDE), blocks_of(m->rows, TALL));
}

static const struct fp8_found nothing = { NULL, NULL };

template <typename S>
static void
launch(struct cuda *c, const struct matrix *to, const S &x, const float *x_scale2,
       const float *amax, size_t n, const struct fp8_found *found)
{
    if (to->rows == 0 || to->cols == 0)
        return;
    to_fp8_kernel<S><<<grid_of(to), THREADS, 0, c->q.stream>>>(
        target_of(to), x, x_scale2, amax, (unsigned)n, found ? *found : nothing);
    cuda_launched(c, "to fp8");
}

template <typename T>
static void
convert(struct cuda *c, const struct matrix *to, const struct matrix *x,
        const float *amax, size_t n, const struct fp8_found *found)
{
    launch(c, to, activations<T>{ (const T *)x->data }, NULL, amax, n, found);
}

void
cuda_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *x,
            const float *amax, size_t n, const struct fp8_found *found)
{
    if (x->dtype == DT_NVFP4)
        launch(cuda_of(k), to, nvfp4{ (const uint8_t *)x->data, x->scales }, x->scale2,
               amax, n, found);
    else
        BY_TYPE(x->dtype, convert, cuda_of(k), to, x, amax, n, found);
}

template <typename T>
static void
convert_norm(struct cuda *c, const struct matrix *to, const float *rstd,
             const struct matrix *x, const float *gain, const float *amax,
             const struct fp8_found *found)
{
    launch(c, to, normed<T>{ (const T *)x->data, rstd, gain }, NULL, amax, 1, found);
}

void
cuda_norm_again_to_fp8(struct kernels *k, const struct matrix *to, const float *rstd,
                       const struct matrix *x, const float *gain, const float *amax,
                       const struct fp8_found *found)
{
    BY_TYPE(x->dtype, convert_norm, cuda_of(k), to, rstd, x, gain, amax, found);
}

template <typename T>
static void
convert_swiglu(struct cuda *c, const struct matrix *to, const struct matrix *gate,
               const struct matrix *up, const float *amax,
               const struct fp8_found *found)
{
    launch(c, to, swiglu<T>{ (const T *)gate->data, (const T *)up->data }, NULL, amax,
           1, found);
}

void
cuda_swiglu_to_fp8(struct kernels *k, const struct matrix *to,
                   const struct matrix *gate, const struct matrix *up,
                   const float *amax, const struct fp8_found *found)
{
    BY_TYPE(gate->dtype, convert_swiglu, cuda_of(k), to, gate, up, amax, found);
}

template <typename T>
static void
convert_swiglu_bwd(struct cuda *c, const struct matrix *d_gate_up, const float *amax,
                   const struct fp8_found *found, const struct matrix *y,
                   const float *y_amax, const struct matrix *d,
                   const struct matrix *gate, const struct matrix *up)
{
    const struct matrix dgate = matrix_cols(d_gate_up, 0, y->cols),
                        dup = matrix_cols(d_gate_up, y->cols, y->cols);
    const swiglu_bwd<T> x = { (const T *)d->data, (const T *)gate->data,
                              (const T *)up->data };
    swiglu_bwd_fp8_kernel<T><<<grid_of(y), THREADS, 0, c->q.stream>>>(
        target_of(&dgate), target_of(&dup), target_of(y), x, amax, y_amax,
        found ? *found : nothing);
    cuda_launched(c, "swiglu_bwd to fp8");
}

void
cuda_swiglu_bwd_to_fp8(struct kernels *k, const struct matrix *d_gate_up,
                       const float *amax, const struct fp8_found *found,
                       const struct matrix *y, const float *y_amax,
                       const struct matrix *d, const struct matrix *gate,
                       const struct matrix *up)
{
    if (y->rows && y->cols)
        BY_TYPE(d->dtype, convert_swiglu_bwd, cuda_of(k), d_gate_up, amax, found, y,
                y_amax, d, gate, up);
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
