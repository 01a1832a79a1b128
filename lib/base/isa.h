/* SPDX-License-Identifier: MIT */
/* isa: the instruction sets for which loops are compiled more than once.
 *
 * Every path gives the same bytes; the choice is one of speed.  ISA_SCALAR is plain C
 * and always there.
 */
#ifndef NIBBLE_BASE_ISA_H
#define NIBBLE_BASE_ISA_H

#include <stdbool.h>

/* From slow to fast. */
enum isa {
    ISA_SCALAR,
#if defined __x86_64__
    ISA_AVX2, // with FMA and F16C
    ISA_AVX512,
#elif defined __aarch64__
    ISA_NEON,
#endif
    ISA_COUNT
};

/* The words that NIBBLE_ISA takes; amx is ISA_AVX512 with tiles. */
#if defined __x86_64__
#define ISA_CHOICES "scalar, avx2, avx512 or amx"
#elif defined __aarch64__
#define ISA_CHOICES "scalar or neon"
#else
#define ISA_CHOICES "scalar"
#endif

const char *isa_name(enum isa isa);
/* ISA_COUNT when there is no such name here. */
enum isa isa_named(const char *name);
/* Whether this CPU has it. */
bool isa_have(enum isa isa);
/* Whether this CPU multiplies pairs of bf16, besides what ISA_AVX512 asks for. */
bool isa_have_bf16(void);
/* The fastest that this CPU has. */
enum isa isa_best(void);

#endif
