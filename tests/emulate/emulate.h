/* SPDX-License-Identifier: MIT */
/* emulate: runs the kernels of the CUDA backend on the CPU, for tests; no GPU is used.
 *
 * The sources are the product's own .cu, read by the host's C++ compiler with headers of
 * ours in place of NVIDIA's (include/); translate.py turns what C++ has no words for into
 * calls of what is declared here.
 *
 * The threads of a block are fibers, which take turns only where they wait for each other:
 * at barriers and in operations of a warp.  So what a kernel reads without such a wait is
 * what the thread before or behind it has left there, and with NIBBLE_EMULATE_ORDER=back,
 * which turns the order of threads and blocks around, a race of either kind shows up as
 * another result.  Copies to shared memory that a kernel starts are done when it waits for
 * them, no earlier.  All memory starts as NaN.  What a GPU would hang on, or what is
 * undefined, ends the program, with words that name the kernel. */
#ifndef NIBBLE_TESTS_EMULATE_H
#define NIBBLE_TESTS_EMULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* bf16 of a number as the device rounds it, ties to even; its NaN is this one. */
static inline uint16_t
emulate_bf16(uint32_t bits)
{
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct emulate_xyz {
    unsigned x, y, z;
};

/* The thread that runs, as it sees itself, and the grid. */
struct emulate_thread {
    struct emulate_xyz thread, block;
};
extern struct emulate_thread *emulate_now;
extern struct emulate_xyz emulate_blocks, emulate_threads;

/* A launch: `body` is called once by each thread. */
struct emulate_launch {
    const void *kernel; // NULL: not known
    struct emulate_xyz blocks, threads;
    size_t shared;    // bytes of a block, asked for by the launch
    unsigned cluster; // blocks of a cluster, along x
    void (*body)(void *);
    void *with;
};
int emulate_run(const struct emulate_launch *l); // cudaError_t
void emulate_allow_shared(const void *kernel, size_t bytes);

/* A kernel begins: its name, and how many threads of a block it was compiled for. */
void emulate_begin(const char *name, unsigned most);

/* Shared memory of this block. */
enum { EMULATE_SHARED = 512 << 10 };
void *emulate_dynamic(void);
/* A variable: the same place in every block of a launch.  id: 0 before the first call. */
struct emulate_place {
    uint64_t launch;
    size_t at;
};
void *emulate_variable(struct emulate_place *id, size_t bytes);
uint32_t emulate_address(const void *p);
void *emulate_of_rank(const void *p, unsigned rank);

/* All lanes of the mask come here with a room each; `all` then does it for all of them. */
typedef void emulate_all_fn(void *const *room, uint32_t mask);
void emulate_meet(const char *what, uint32_t mask, void *room, emulate_all_fn *all);
unsigned emulate_lane(void);

/* All of a block; line: where they must be, 0: anywhere. */
void emulate_barrier(const char *what, int line);
void emulate_cluster_arrive(void);
void emulate_cluster_wait(void);

/* cp.async: `copied` bytes, then zeros up to `bytes`. */
void emulate_copy(uint32_t to, const void *from, unsigned copied, unsigned bytes);
void emulate_copies_end(void);
void emulate_copies_wait(unsigned but);

/* Barriers with phases and cp.async.bulk, see include/kernels/cuda/ptx.h. */
void emulate_phases_open(uint32_t barrier, unsigned threads);
void emulate_phases_are_open(void);
void emulate_phase_tell(uint32_t barrier);
void emulate_phase_expect(uint32_t barrier, unsigned bytes);
void emulate_phase_wait(uint32_t barrier, unsigned phase);
void emulate_bulk_load(void *to, const void *from, unsigned bytes, uint32_t barrier);
void emulate_bulk_store(void *to, const void *from, unsigned bytes);
void emulate_bulk_may_read(void);
void emulate_bulk_end(void);
void emulate_bulk_wait_read(void);

/* Of a warp, see include/kernels/cuda/ptx.h. */
void emulate_load_matrices(uint32_t r[4], uint32_t at, bool turned);
void emulate_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);

/* Ends the program, and says where it is. */
void emulate_fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif

#endif
