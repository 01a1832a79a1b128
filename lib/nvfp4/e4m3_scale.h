/* SPDX-License-Identifier: MIT */
/* e4m3_scale: the power of two that brings a tensor into the range of E4M3.
 *
 * A power of two, since it changes no significand: what is rounded is rounded once, and a
 * number of E4M3 stays one.  The includer defines E4M3_FN: the kind of function. */
#ifndef NIBBLE_NVFP4_E4M3_SCALE_H
#define NIBBLE_NVFP4_E4M3_SCALE_H

#include <stdint.h>

enum {
    E4M3_MOST = 60,   // so that a product of two scales is a normal number
    E4M3_LIMIT = 448, // the largest number
};

/* The largest e, at most E4M3_MOST, with amax 2^e <= 448 = 1.75 2^8; bits: those of a finite
 * amax as f32. */
E4M3_FN int
e4m3_exponent(uint32_t bits)
{
    int e = 8 - ((int)(bits >> 23) - 127) - ((bits & 0x7fffff) > 0x600000);
    return e < E4M3_MOST ? e : E4M3_MOST;
}

#endif
