/* SPDX-License-Identifier: MIT */
/* gemm: see gemm.h.
 *
 * As much of A and B as fits into the workspace is packed by all threads, each part once,
 * and then multiplied by all threads, a tile of C at a time.  What is packed is divided
 * into squares of GROUP rows (of B: columns) and K_BLOCK of k, each packed by one thread,
 * and squares into panels of as many rows as the kernel multiplies at once.
 *
 * Where there are enough groups of columns for all threads (with one group of rows: one
 * for each), only A is packed first: a thread packs a square of B when it needs it, for
 * all rows, and B never leaves its cache. */
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/flush.h"
#include "kernels/cpu/sizes.h"
#include "lib/base/num.h"

#include <math.h>
#include <string.h>

enum {
    GROUP = 96, // a multiple of every mr and nr
    K_BLOCK = 256,
    SLACK = 16, // floats that packing may write behind a square
    SQUARE = GROUP * K_BLOCK + SLACK,
    MAX_M = 8, // groups that are packed together
    MAX_N = 20,
    MAX_K = 4,  // blocks of k
    TILE_N = 5, // groups of columns of a tile; it has one group of rows
    TILES = 8,  // tiles are made smaller until there are so many
    EACH = 2,   // and so many for each thread
    MAX_CUTS =
        4, // tiles of a group of rows; GROUP / MAX_CUTS is a multiple of every mr
    MAX_MR = 16,
    MAX_NR = 32,
    ENOUGH = 6,      // groups of columns for each thread
    PIECE = 64,      // columns that are converted and then packed
    SMALL = 1 << 18, // products that are not worth a second thread
};

/* A part of A or B, packed: squares of group g and block b at (g * blocks + b). */
struct packed {
    const struct operand *x;
    float *squares;
    size_t from, n;          // rows of A, columns of B
    size_t k, depth;         // first k, and how many
    size_t stride, k_stride; // of a row (of B: column), and of k
    size_t unit;             // rows of a panel
    bool left;               // A
    float factor;            // of bf16: multiplied before rounding
};

struct gemm_job {
    const struct gemm *g;
    const struct gemm_isa *isa;
    struct packed a, b;
    size_t a_squares;
    float *worker_b;       // of each worker: a square of b
    size_t across, tile_n; // tiles of a row of tiles; groups of columns of a tile
    size_t cuts;           // tiles of a group of rows
};

/* For f32, and for bf16. */
static const struct gemm_isa *const table[ISA_COUNT][2] = {
    [ISA_SCALAR] = { &gemm_scalar, &gemm_bf16_scalar },
#if defined __x86_64__
    [ISA_AVX2] = { &gemm_avx2, &gemm_bf16_avx2 },
    [ISA_AVX512] = { &gemm_avx512, &gemm_bf16_avx512 },
#elif defined __aarch64__
    [ISA_NEON] = { &gemm_neon, &gemm_bf16_neon },
#endif
};

static size_t
blocks(const struct packed *p)
{
    return ceil_div(p->depth, K_BLOCK);
}

static size_t
squares(const struct packed *p)
{
    return ceil_div(p->n, GROUP) * blocks(p);
}

static float *
square(const struct packed *p, size_t group, size_t block)
{
    return p->squares + (group * blocks(p) + block) * SQUARE;
}

struct operand
gemm_operand(const struct matrix *m, bool transposed)
{
    return (struct operand){ .data = m->data,
                             .dtype = m->dtype,
                             .row_stride = transposed ? 1 : m->stride,
                             .col_stride = transposed ? m->stride : 1,
                             .scales = m->scales,
                             .scale2 = m->scale2 ? *m->scale2 : 1 };
}

/* ---- packing --------------------------------------------------------------------------- */

/* n elements of x from `at` on, as floats: those of x, or converted in the buffer. */
static const float *
floats(const struct gemm_isa *isa, const struct operand *x, size_t at, size_t n,
       float *buffer)
{
    if (x->dtype == DT_F32)
        return (const float *)x->data + at;
    isa->read(buffer, x, at, n);
    return buffer;
}

/* k is contiguous: rows become columns. */
static void
pack_transposed(const struct gemm_isa *isa, float *out, const struct packed *p,
                size_t at, size_t n, size_t k)
{
    float buffer[MAX_NR * PIECE];
    for (size_t row = 0; row < n; row += p->unit, out += p->unit * k) {
        size_t rows = min(n - row, p->unit), from = at + row * p->stride;
        if (p->x->dtype == DT_F32) {
            isa->pack(out, (const float *)p->x->data + from, p->stride, rows, k,
                      p->unit);
            continue;
        }
        for (size_t s = 0; s < k; s += PIECE) {
            size_t cols = min(k - s, PIECE);
            for (size_t r = 0; r < rows; r++)
                isa->read(buffer + r * PIECE, p->x, from + r * p->stride + s, cols);
            isa->pack(out + s * p->unit, buffer, PIECE, rows, cols, p->unit);
        }
    }
}

/* Rows (of B: columns) are contiguous: a piece of each goes to every panel. */
static void
pack_contiguous(const struct gemm_isa *isa, float *out, const struct packed *p,
                size_t at, size_t n, size_t k)
{
    float buffer[GROUP];
    for (size_t s = 0; s < k; s++) {
        const float *x = floats(isa, p->x, at + s * p->k_stride, n, buffer);
        for (size_t row = 0; row < n; row += p->unit) {
            size_t rows = min(n - row, p->unit);
            float *to = out + row * k + s * p->unit;
            memcpy(to, x + row, rows * sizeof *to);
            memset(to + rows, 0, (p->unit - rows) * sizeof *to);
        }
    }
}

static void
pack_elements(const struct gemm_isa *isa, float *out, const struct packed *p, size_t at,
              size_t n, size_t k)
{
    float value;
    for (size_t row = 0; row < n; row += p->unit)
        for (size_t s = 0; s < k; s++)
            for (size_t r = row; r < row + p->unit; r++)
                *out++ = r < n
                             ? *floats(isa, p->x, at + r * p->stride + s * p->k_stride,
                                       1, &value)
                             : 0;
}

static void
pack_square(const struct gemm_isa *isa, const struct packed *p, size_t i)
{
    size_t group = i / blocks(p), block = i % blocks(p);
    size_t row = group * GROUP, s = block * K_BLOCK;
    size_t n = min(p->n - row, GROUP), k = min(p->depth - s, K_BLOCK);
    size_t at = (p->from + row) * p->stride + (p->k + s) * p->k_stride;
    float *out = square(p, group, block);
    if (p->k_stride == 1)
        pack_transposed(isa, out, p, at, n, k);
    else if (p->stride == 1)
        pack_contiguous(isa, out, p, at, n, k);
    else
        pack_elements(isa, out, p, at, n, k);
    for (size_t first = 0; first < n; first += p->unit)
        gemm_round_panel(isa, out + first * k, k, p->left, p->factor);
}

static int
pack_one(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct gemm_job *j = ctx;
    (void)worker;
    (void)err;
    if (i < j->a_squares)
        pack_square(j->isa, &j->a, i);
    else
        pack_square(j->isa, &j->b, i - j->a_squares);
    return 0;
}

/* ---- products -------------------------------------------------------------------------- */

void
gemm_round_panel(const struct gemm_isa *isa, float *panel, size_t k, bool left,
                 float factor)
{
    if (!isa->round_panel)
        return;
    uint64_t mode = flush_begin(FLUSH_ALL);
    isa->round_panel(panel, k, left, factor);
    flush_end(mode);
}

void
gemm_panels(const struct gemm_isa *isa, const float *a, const float *b, float *c,
            size_t ldc, size_t m, size_t n, size_t k, bool add)
{
    uint64_t mode = isa->round_panel ? flush_begin(FLUSH_ALL) : 0;
    for (size_t col = 0; col < n; col += isa->nr)
        for (size_t row = 0; row < m; row += isa->mr) {
            const float *pa = a + row * k, *pb = b + col * k;
            float *out = c + row * ldc + col;
            size_t rows = min(m - row, isa->mr), cols = min(n - col, isa->nr);
            if (rows == isa->mr && cols == isa->nr) {
                isa->micro(k, pa, pb, out, ldc, add);
                continue;
            }
            float edge[MAX_MR * MAX_NR] = { 0 };
            for (size_t r = 0; r < rows && add; r++)
                memcpy(edge + r * isa->nr, out + r * ldc, cols * sizeof *out);
            isa->micro(k, pa, pb, edge, isa->nr, add);
            for (size_t r = 0; r < rows; r++)
                memcpy(out + r * ldc, edge + r * isa->nr, cols * sizeof *out);
        }
    if (isa->round_panel)
        flush_end(mode);
}

static int
run_tile(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct gemm_job *j = ctx;
    const struct gemm *g = j->g;
    size_t line = i / j->across, first = i % j->across * j->tile_n;
    size_t down = line / j->cuts, rows = GROUP / j->cuts, at = line % j->cuts * rows;
    size_t row = down * GROUP + at;
    size_t last = min(first + j->tile_n, ceil_div(j->b.n, GROUP));
    (void)worker;
    (void)err;
    if (row >= j->a.n)
        return 0;
    size_t m = min(j->a.n - row, rows);
    for (size_t block = 0; block < blocks(&j->a); block++) {
        size_t k = min(j->a.depth - block * K_BLOCK, K_BLOCK);
        for (size_t group = first; group < last; group++) {
            size_t col = group * GROUP, n = min(j->b.n - col, GROUP);
            float *c = g->c + (j->a.from + row) * g->ldc + j->b.from + col;
            gemm_panels(j->isa, square(&j->a, down, block) + at * k,
                        square(&j->b, group, block), c, g->ldc, m, n, k,
                        j->a.k + block > 0 || g->add);
        }
    }
    return 0;
}

/* All rows by one group of columns, whose squares are packed here. */
static int
run_columns(void *ctx, size_t group, unsigned worker, struct err *err)
{
    const struct gemm_job *j = ctx;
    const struct gemm *g = j->g;
    size_t col = group * GROUP;
    struct packed b = j->b;
    (void)err;
    b.squares = j->worker_b + worker * (size_t)SQUARE;
    b.from += col;
    b.n = min(j->b.n - col, GROUP);
    for (size_t block = 0; block < blocks(&j->a); block++) {
        b.k = j->b.k + block * K_BLOCK;
        b.depth = min(j->b.depth - block * K_BLOCK, K_BLOCK);
        pack_square(j->isa, &b, 0);
        for (size_t row = 0; row < j->a.n; row += GROUP)
            gemm_panels(j->isa, square(&j->a, row / GROUP, block), b.squares,
                        g->c + (j->a.from + row) * g->ldc + b.from, g->ldc,
                        min(j->a.n - row, GROUP), b.n, b.depth, b.k > 0 || g->add);
    }
    return 0;
}

static int
for_all(const struct gemm_job *j, struct par *pool, size_t n, par_fn fn,
        struct err *err)
{
    void *ctx = (void *)(uintptr_t)j;
    if (j->a.n * j->b.n * j->a.depth > SMALL)
        return par_run(pool, n, fn, ctx, err);
    for (size_t i = 0; i < n; i++)
        fn(ctx, i, 0, err);
    return 0;
}

/* Pack A, and B if it is new, and multiply. */
static int
run_part(struct gemm_job *j, bool new_b, struct par *pool, struct err *err)
{
    size_t down = ceil_div(j->a.n, GROUP), groups = ceil_div(j->b.n, GROUP);
    j->a_squares = squares(&j->a);
    bool by_columns = groups >= (size_t)(down == 1 ? 1 : ENOUGH) * par_threads(pool);
    if (by_columns && j->a.n == j->g->m) {
        if (for_all(j, pool, j->a_squares, pack_one, err) < 0)
            return -1;
        return for_all(j, pool, groups, run_columns, err);
    }
    if (for_all(j, pool, j->a_squares + (new_b ? squares(&j->b) : 0), pack_one, err) <
        0)
        return -1;
    size_t enough = (size_t)EACH * par_threads(pool);
    enough = enough > TILES ? enough : TILES;
    j->tile_n = TILE_N;
    while (j->tile_n > 1 && down * ceil_div(groups, j->tile_n) < enough)
        j->tile_n--;
    j->across = ceil_div(groups, j->tile_n);
    j->cuts = 1;
    while (j->cuts < MAX_CUTS && down * j->cuts * j->across < enough)
        j->cuts *= 2;
    return for_all(j, pool, down * j->cuts * j->across, run_tile, err);
}

/* Squares of B in the workspace, which are also enough for one of each worker. */
static size_t
max_b(size_t n, size_t k)
{
    return min(ceil_div(n, GROUP), MAX_N) * min(ceil_div(k, K_BLOCK), MAX_K);
}

size_t
gemm_workspace(size_t m, size_t n, size_t k)
{
    size_t a = min(ceil_div(m, GROUP), MAX_M) * min(ceil_div(k, K_BLOCK), MAX_K);
    return (a + max_b(n, k)) * SQUARE * sizeof(float);
}

/* Groups of columns that are multiplied together; with one group of rows as many for each
 * thread. */
static size_t
max_n(const struct gemm *g, unsigned threads)
{
    return g->m <= GROUP && threads <= MAX_N ? MAX_N - MAX_N % threads : MAX_N;
}

/* C of an empty sum. */
static void
clear(const struct gemm *g)
{
    for (size_t r = 0; r < g->m && !g->add; r++)
        memset(g->c + r * g->ldc, 0, g->n * sizeof *g->c);
}

/* Takes the tensor scale out of x: the other operand is multiplied by it. */
static float
take_scale(struct operand *x)
{
    float scale = x->dtype == DT_NVFP4 ? x->scale2 : 1;
    x->scale2 = 1;
    return scale;
}

int
gemm_run(const struct gemm *g, const struct gemm_isa *isa, struct par *pool,
         float *workspace, struct err *err)
{
    enum { M = MAX_M * GROUP, K = MAX_K * K_BLOCK };
    const size_t N = max_n(g, par_threads(pool)) * GROUP;
    struct operand a = g->a, b = g->b;
    struct gemm_job j = { .g = g, .isa = isa, .worker_b = workspace };
    if (err->kind)
        return -1;
    if (g->k == 0)
        clear(g);
    float of_a = isa->round_panel ? take_scale(&a) : 1;
    float of_b = isa->round_panel ? take_scale(&b) : 1;
    j.a = (struct packed){ .x = &a,
                           .squares = workspace + max_b(g->n, g->k) * SQUARE,
                           .stride = g->a.row_stride,
                           .k_stride = g->a.col_stride,
                           .unit = isa->mr,
                           .left = true,
                           .factor = of_b };
    j.b = (struct packed){ .x = &b,
                           .squares = workspace,
                           .stride = g->b.col_stride,
                           .k_stride = g->b.row_stride,
                           .unit = isa->nr,
                           .factor = of_a };
    for (j.b.from = 0; j.b.from < g->n; j.b.from += N)
        for (size_t from = 0; from < g->k; from += K)
            for (j.a.from = 0; j.a.from < g->m; j.a.from += M) {
                j.a.k = j.b.k = from;
                j.a.depth = j.b.depth = min(g->k - from, K);
                j.a.n = min(g->m - j.a.from, M);
                j.b.n = min(g->n - j.b.from, N);
                if (run_part(&j, j.a.from == 0, pool, err) < 0)
                    return -1;
            }
    return 0;
}

/* ---- choice of kernels -------------------------------------------------------------------- */

const struct gemm_isa *
gemm_of(enum isa isa)
{
    return table[isa][0];
}

#if defined __x86_64__

/* Test values, by round: ordinary ones; small ones and large ones, whose products
 * underflow and overflow; any bits, with NaN and infinity now and then. */
static float
test_value(uint64_t seed, int round)
{
    uint64_t mix = (seed + 1) * 0x9e3779b97f4a7c15;
    mix = (mix ^ mix >> 29) * 0xbf58476d1ce4e5b9;
    uint32_t bits = (uint32_t)(mix >> 32), low[] = { 120, 57, 178, 0 };
    float x;
    bits &= round == 3 ? ~0U : 0x87ffffff; // 16 exponents, any mantissa
    if (round < 3)
        bits += low[round] << 23;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static bool
same_value(float x, float y)
{
    uint32_t a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &y, sizeof b);
    return a == b || (isnan(x) && isnan(y));
}

/* Whether two kernels of one shape give the same sums. */
static bool
agree(const struct gemm_isa *x, const struct gemm_isa *y)
{
    enum { K = 47, VALUES = K * (MAX_MR + MAX_NR), SUMS = MAX_MR * MAX_NR };
    const struct gemm_isa *both[] = { x, y };
    _Alignas(64) float panel[VALUES + SLACK];
    float sum[2][SUMS];
    float *a = panel, *b = panel + K * x->mr;
    for (int round = 0; round < 16; round++) {
        for (int i = 0; i < 2; i++) {
            for (uint64_t n = 0; n < K * (x->mr + x->nr); n++)
                panel[n] = test_value(n + (uint64_t)round * VALUES, round % 4);
            for (uint64_t n = 0; n < SUMS; n++)
                sum[i][n] = test_value(n * n, round % 4);
            gemm_round_panel(both[i], a, K, true, 1);
            gemm_round_panel(both[i], b, K, false, 1);
            gemm_panels(both[i], a, b, sum[i], x->nr, x->mr, x->nr, K, round % 3);
        }
        for (size_t n = 0; n < x->mr * x->nr; n++)
            if (!same_value(sum[0][n], sum[1][n]))
                return false;
    }
    return true;
}

/* The instruction is tested: having it is not enough. */
bool
gemm_has_pairs(enum isa isa)
{
    return isa == ISA_AVX512 && isa_have_bf16() &&
           agree(&gemm_pairs_avx512, &gemm_bf16_avx512);
}

#else

bool
gemm_has_pairs(enum isa isa)
{
    (void)isa;
    return false;
}

#endif

const struct gemm_isa *
gemm_bf16_of(enum isa isa)
{
#if defined __x86_64__
    if (gemm_has_pairs(isa))
        return &gemm_pairs_avx512;
#endif
    return table[isa][1];
}
