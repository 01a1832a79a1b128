/* SPDX-License-Identifier: MIT */
/* memory: fill value of the emulation's memory, and its poisoning for ASan. */
#ifndef NIBBLE_TESTS_EMULATE_MEMORY_H
#define NIBBLE_TESTS_EMULATE_MEMORY_H

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n)
#define UNPOISON(p, n)
#endif

enum { NAN_BYTE = 0xff };

#endif
