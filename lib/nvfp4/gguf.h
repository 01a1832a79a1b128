/* SPDX-License-Identifier: MIT */
/* gguf: NVFP4 as ggml keeps it, one block for 64 elements of a row.
 *
 *   4 bytes   scales, E4M3 without sign, of elements 0-15, 16-31, 32-47, 48-63
 *   4 x 8     codes: in each sixteen byte j has element j low, element j + 8 high
 *
 * ggml doubles its table of E2M1 values and halves the scales when it decodes, so the
 * bytes mean the same as ours; but for it a scale of 0x7f is 0, for us it is NaN.
 */
#ifndef NIBBLE_NVFP4_GGUF_H
#define NIBBLE_NVFP4_GGUF_H

#include <stddef.h>
#include <stdint.h>

enum {
    NVFP4_GGUF_BLOCK = 64,
    NVFP4_GGUF_SCALES = 4,
    NVFP4_GGUF_BYTES = 36,
};

/* Between n elements in blocks and ours: codes (n / 2), low nibble = even element, and
 * scales (n / 16).  Each undoes the other, for any bytes.  n is a multiple of
 * NVFP4_GGUF_BLOCK; nothing may overlap. */
void nvfp4_gguf_pack(uint8_t *blocks, const uint8_t *codes, const uint8_t *scales,
                     size_t n);
void nvfp4_gguf_unpack(uint8_t *codes, uint8_t *scales, const uint8_t *blocks,
                       size_t n);

#endif
