/* SPDX-License-Identifier: MIT */
/* gemm: see gemm.h.
 *
 * C is cut into tiles of TILE_M x TILE_N, each the work of one thread: it packs its own
 * parts of A and B, K_BLOCK of k at a time, and runs the kernel over them.  Packing twice
 * what another thread packs, too, costs less than a hundredth of the products and needs no
 * barriers. */
#include "kernels/cpu/gemm.h"

#include "lib/core/num.h"
#include "lib/core/par.h"

#include <stdlib.h>
#include <string.h>

enum {
    TILE_M = 360, // a multiple of every mr
    TILE_N = 480, // of every nr
    K_BLOCK = 256,
    MOST_MR = 16,
    MOST_NR = 32,
    SLACK = 16, // what turn may write too much
    A_ROOM = TILE_M * K_BLOCK + SLACK,
    B_ROOM = TILE_N * K_BLOCK + SLACK,
};

struct job {
    const struct gemm *g;
    const struct gemm_isa *isa;
    size_t across; // tiles of a row of tiles
    float **room;  // of each worker
};

static const struct gemm_isa *const table[ISA_COUNT] = {
    [ISA_SCALAR] = &gemm_scalar,
#if defined __x86_64__
    [ISA_AVX2] = &gemm_avx2,
    [ISA_AVX512] = &gemm_avx512,
#elif defined __aarch64__
    [ISA_NEON] = &gemm_neon,
#endif
};

/* n neighbours from element `at` on, as floats; *room has space for them. */
static const float *
floats(const struct matrix *x, size_t at, size_t n, float *room)
{
    const uint16_t *half = (const uint16_t *)x->p + at;
    if (x->dtype == DT_F32)
        return (const float *)x->p + at;
    for (size_t i = 0; i < n; i++)
        room[i] = x->dtype == DT_BF16 ? num_from_bf16(half[i]) : num_from_f16(half[i]);
    return room;
}

static float
element(const struct matrix *x, size_t at)
{
    float room;
    return *floats(x, at, 1, &room);
}

/* A panel of `unit` rows: for each k its elements together; rows beyond n are zeros.
 * line, step: strides of a row and of k. */
static void
pack_panel(const struct job *j, float *out, const struct matrix *x, size_t from,
           size_t line, size_t step, size_t rows, size_t k, size_t unit, float *room)
{
    if (step == 1) { // k runs along memory: rows become columns
        const float *values = (const float *)x->p + from;
        if (x->dtype != DT_F32) {
            for (size_t r = 0; r < rows; r++)
                floats(x, from + r * line, k, room + r * K_BLOCK);
            values = room;
            line = K_BLOCK;
        }
        j->isa->turn(out, values, line, rows, k, unit);
        return;
    }
    for (size_t s = 0; s < k; s++, out += unit) {
        if (line == 1)
            memcpy(out, floats(x, from + s * step, rows, room), rows * sizeof *out);
        for (size_t r = line == 1 ? rows : 0; r < unit; r++)
            out[r] = r < rows ? element(x, from + r * line + s * step) : 0;
    }
}

static void
pack(const struct job *j, float *out, const struct matrix *x, size_t from, size_t line,
     size_t step, size_t n, size_t k, size_t unit, float *room)
{
    for (size_t p = 0; p < n; p += unit, out += unit * k) {
        size_t rows = n - p < unit ? n - p : unit;
        pack_panel(j, out, x, from + p * line, line, step, rows, k, unit, room);
    }
}

/* One tile over one block of k: all panels against each other. */
static void
tile_block(const struct job *j, const float *a, const float *b, float *c, size_t m,
           size_t n, size_t k, bool add)
{
    const struct gemm_isa *isa = j->isa;
    size_t ldc = j->g->ldc;
    for (size_t col = 0; col < n; col += isa->nr)
        for (size_t row = 0; row < m; row += isa->mr) {
            const float *pa = a + row * k, *pb = b + col * k;
            float *out = c + row * ldc + col;
            size_t rows = m - row < isa->mr ? m - row : isa->mr;
            size_t cols = n - col < isa->nr ? n - col : isa->nr;
            if (rows == isa->mr && cols == isa->nr) {
                isa->micro(k, pa, pb, out, ldc, add);
                continue;
            }
            float edge[MOST_MR * MOST_NR] = { 0 };
            for (size_t r = 0; r < rows && add; r++)
                memcpy(edge + r * isa->nr, out + r * ldc, cols * sizeof *out);
            isa->micro(k, pa, pb, edge, isa->nr, add);
            for (size_t r = 0; r < rows; r++)
                memcpy(out + r * ldc, edge + r * isa->nr, cols * sizeof *out);
        }
}

static int
run_tile(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    const struct gemm *g = j->g;
    size_t row = i / j->across * TILE_M, col = i % j->across * TILE_N;
    size_t m = g->m - row < TILE_M ? g->m - row : TILE_M;
    size_t n = g->n - col < TILE_N ? g->n - col : TILE_N;
    float *a = j->room[worker], *b = a + A_ROOM, *halves = b + B_ROOM;
    float *c = g->c + row * g->ldc + col;
    (void)err;
    for (size_t k = 0; k < g->k; k += K_BLOCK) {
        size_t depth = g->k - k < K_BLOCK ? g->k - k : K_BLOCK;
        pack(j, a, &g->a, row * g->a.rows + k * g->a.cols, g->a.rows, g->a.cols, m,
             depth, j->isa->mr, halves);
        pack(j, b, &g->b, k * g->b.rows + col * g->b.cols, g->b.cols, g->b.rows, n,
             depth, j->isa->nr, halves);
        tile_block(j, a, b, c, m, n, depth, k > 0 || g->add);
    }
    for (size_t r = 0; r < m && g->k == 0 && !g->add; r++)
        memset(c + r * g->ldc, 0, n * sizeof *c);
    return 0;
}

int
gemm_run(const struct gemm *g, enum isa isa, unsigned threads, struct err *err)
{
    size_t down = (g->m + TILE_M - 1) / TILE_M;
    struct job j = { .g = g,
                     .isa = table[isa],
                     .across = (g->n + TILE_N - 1) / TILE_N };
    size_t tiles = down * j.across, room = A_ROOM + B_ROOM + MOST_NR * K_BLOCK;
    if (threads > tiles)
        threads = tiles ? (unsigned)tiles : 1;
    j.room = calloc(threads, sizeof *j.room);
    bool good = j.room != NULL;
    for (unsigned t = 0; t < threads && good; t++)
        good = (j.room[t] = malloc(room * sizeof(float))) != NULL;
    int rc = good ? par_for(threads, tiles, run_tile, &j, err)
                  : err_set(err, ERR_MEMORY, "out of memory for a product");
    for (unsigned t = 0; t < threads && j.room; t++)
        free(j.room[t]);
    free(j.room);
    return rc;
}
