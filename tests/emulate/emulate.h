/* SPDX-License-Identifier: MIT */
/* emulate: runs the kernels of the CUDA backend on the CPU, for tests; no GPU is used.
 *
 * The sources are the product's own .cu, compiled by the host's C++ compiler with our
 * headers in place of NVIDIA's (include/). translate.py rewrites what is not C++
 * (launches, shared variables) into calls of the functions below.
 *
 * The threads of a block are fibers, which switch only where they wait: at barriers and
 * in warp operations.  A read without such a wait sees what the threads before it have
 * written, so a data race shows as another result when NIBBLE_EMULATE_ORDER=back
 * reverses the order of threads and blocks.  Likewise a wait that is missing between two
 * streams, with NIBBLE_EMULATE_QUEUES=late or early, see runtime.c.  Asynchronous copies
 * complete when a kernel waits for them, not earlier; with NIBBLE_EMULATE_COPIES=early a load that
 * an mbarrier waits for completes at once, and overwrites data that is still being read.  Blocks
 * run one after the other; with NIBBLE_EMULATE_BLOCKS=together up to eight of a launch take turns.
 * All memory starts as NaN.  What would hang a GPU or is undefined aborts the program with a
 * message that names the kernel. */
#ifndef NIBBLE_TESTS_EMULATE_H
#define NIBBLE_TESTS_EMULATE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* f32 bits to bf16 as the device rounds, ties to even; NaN becomes 0x7fff. */
static inline uint16_t
emulate_bf16(uint32_t bits)
{
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* f32 to E4M3, ties to even, saturating. */
static inline uint8_t
emulate_e4m3(float x)
{
    uint8_t sign = signbit(x) ? 0x80 : 0;
    float a = fabsf(x);
    int e;
    if (isnan(x))
        return 0x7f;
    if (a >= 448)
        return sign | 0x7e;
    frexpf(a, &e); // a < 2^e
    a = rintf(a * ldexpf(1, e > -5 ? 4 - e : 9)) * ldexpf(1, e > -5 ? e - 4 : -9);
    if (a < 0x1p-6F)
        return sign | (uint8_t)(a * 512);
    float f = frexpf(a, &e);
    return (uint8_t)(sign | (e + 6) << 3 | (int)(f * 16 - 8));
}

struct emulate_xyz {
    unsigned x, y, z;
};

/* threadIdx and blockIdx of the running thread; gridDim and blockDim. */
struct emulate_thread {
    struct emulate_xyz thread, block;
};
extern struct emulate_thread *emulate_now;
extern struct emulate_xyz emulate_blocks, emulate_threads;

/* A launch: each thread calls body(with). */
struct emulate_launch {
    const void *kernel; // NULL: unknown
    struct emulate_xyz blocks, threads;
    size_t shared; // dynamic shared memory per block, bytes
    unsigned
        cluster; // blocks per cluster, along x; of a cooperative launch all of them
    void (*body)(void *);
    void *with;
};
int emulate_run(const struct emulate_launch *l); // cudaError_t
void emulate_allow_shared(const void *kernel, size_t bytes);

/* Start of a kernel: its name, and the thread limit of its __launch_bounds__. */
void emulate_begin(const char *name, unsigned max_threads);

/* Dynamic shared memory of this block. */
enum { EMULATE_SHARED = 512 << 10 };
void *emulate_dynamic(void);
/* A __shared__ variable, at the same offset in every block of a launch. id: zero before
 * the first call. */
struct emulate_place {
    uint64_t launch;
    size_t at;
};
void *emulate_variable(struct emulate_place *id, size_t bytes);
uint32_t emulate_address(const void *p);
void *emulate_of_rank(const void *p, unsigned rank);

/* Converge the lanes of the mask; the last to arrive calls all() with the `data` of
 * each lane. */
typedef void emulate_all_fn(void *const *data, uint32_t mask);
void emulate_warp_sync(const char *what, uint32_t mask, void *data,
                       emulate_all_fn *all);
unsigned emulate_lane(void);

/* Block barrier.  All threads must call it with the same line. */
void emulate_barrier(const char *what, int line);
/* Barrier of `threads` threads of the block. */
void emulate_numbered(unsigned number, unsigned threads);
/* Wait until no other thread can run and something was stored for other blocks. */
void emulate_poll(void);
void emulate_stored(void);
void emulate_cluster_arrive(void);
void emulate_cluster_wait(void);

/* cp.async: copy `copied` bytes, then zeros up to `bytes`. */
void emulate_copy(uint32_t to, const void *from, unsigned copied, unsigned bytes);
void emulate_copies_commit(void);
void emulate_copies_wait(unsigned but);

/* mbarrier and cp.async.bulk, see include/kernels/cuda/ptx.h. */
void emulate_mbarrier_init(uint32_t barrier, unsigned threads);
void emulate_mbarrier_init_fence(void);
void emulate_mbarrier_arrive(uint32_t barrier);
void emulate_mbarrier_expect(uint32_t barrier, unsigned bytes);
void emulate_mbarrier_wait(uint32_t barrier, unsigned phase);
void emulate_bulk_load(void *to, const void *from, unsigned bytes, uint32_t barrier);
void emulate_box_load(uint32_t to, const void *map, int column, int row,
                      uint32_t barrier);
void emulate_bulk_store(void *to, const void *from, unsigned bytes);
void emulate_bulk_add(void *to, const void *from, unsigned bytes, bool add);
void emulate_bulk_fence(void);
void emulate_bulk_commit(void);
void emulate_bulk_wait_read(void);

/* Warp-wide, see include/kernels/cuda/ptx.h. */
void emulate_load_matrices(uint32_t r[4], uint32_t at, bool trans);
void emulate_store_matrices(uint32_t at, const uint32_t r[4]);
void emulate_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);

/* A warp's part of wgmma.m64nNk16, done at once. */
struct emulate_wgmma {
    uint64_t a, b; // descriptors; a unless it is in registers
    unsigned columns;
    bool a_trans, b_trans, add;
};
void emulate_wgmma(float *c, const uint32_t *a, const struct emulate_wgmma *of);

/* Print the message with the running kernel, block and thread, and abort. */
void emulate_fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif

#endif
