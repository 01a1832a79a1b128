/* SPDX-License-Identifier: MIT */
/* memory: fill value of the emulation's memory, and its poisoning for ASan. */
#ifndef NIBBLE_TESTS_EMULATE_MEMORY_H
#define NIBBLE_TESTS_EMULATE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n)
#define UNPOISON(p, n)
#endif

enum { NAN_BYTE = 0xff };

struct allocation {
    void *p;
    size_t bytes;
    bool mapped; // has pages of its own
    int fd;      // of what they are; -1: no other process may map them
};

/* The one that p points into; NULL: none. */
struct allocation *emulate_allocation(const void *p);
/* Pages of zeros, and back. */
void *emulate_map(size_t bytes);
void emulate_unmap(void *p, size_t bytes, int fd);

#endif
