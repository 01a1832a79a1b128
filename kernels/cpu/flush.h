/* SPDX-License-Identifier: MIT */
/* flush: a mode of the processor, for this thread, in which denormals count as 0 (x86: FTZ
 * and DAZ; ARM: FZ).
 *
 * Only around calls through a pointer: a compiler does not know that arithmetic depends
 * on the mode, and may move what it can see across. */
#ifndef NIBBLE_KERNELS_CPU_FLUSH_H
#define NIBBLE_KERNELS_CPU_FLUSH_H

#include <stdbool.h>
#include <stdint.h>

#if defined __x86_64__
#include <xmmintrin.h>
enum { FLUSH_RESULTS = 0x8000, FLUSH_ALL = 0x8040 }; // all: operands, too
static inline uint64_t
flush_begin(uint64_t bits)
{
    unsigned was = _mm_getcsr();
    _mm_setcsr(was | (unsigned)bits);
    return was;
}
static inline void
flush_end(uint64_t was)
{
    _mm_setcsr((unsigned)was);
}
#elif defined __aarch64__
enum { FLUSH_ALL = 1 << 24 };
static inline uint64_t
flush_begin(uint64_t bits)
{
    uint64_t was;
    __asm__ volatile("mrs %0, fpcr" : "=r"(was));
    __asm__ volatile("msr fpcr, %0" ::"r"(was | bits));
    return was;
}
static inline void
flush_end(uint64_t was)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(was));
}
#else
enum { FLUSH_ALL = 1 }; // denormals are kept
static inline uint64_t
flush_begin(uint64_t bits)
{
    return bits;
}
static inline void
flush_end(uint64_t was)
{
    (void)was;
}
#endif

/* Whether results can be flushed without operands: decoding NVFP4 has denormal operands. */
#if defined __x86_64__
enum { FLUSH_APART = 1 };
#else
enum { FLUSH_APART = 0, FLUSH_RESULTS = FLUSH_ALL };
#endif

#endif
