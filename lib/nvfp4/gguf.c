/* SPDX-License-Identifier: MIT */
/* gguf: see gguf.h.
 *
 * Sixteen codes are one 64-bit word w, element i at bits 4i.  Ours has them in that
 * order.  ggml's byte j holds elements j and j + 8: the low halves of the bytes are the
 * lower eight nibbles of w, spread out, the high halves the upper eight.
 */
#include "lib/nvfp4/gguf.h"

#include "lib/base/num.h"
#include "lib/nvfp4/codec.h"

/* Nibble i of x to the low half of byte i. */
static uint64_t
spread(uint32_t x)
{
    uint64_t w = x;
    w = (w | w << 16) & 0x0000ffff0000ffff;
    w = (w | w << 8) & 0x00ff00ff00ff00ff;
    return (w | w << 4) & 0x0f0f0f0f0f0f0f0f;
}

/* And back; the high halves of the bytes do not matter. */
static uint32_t
gather_nibbles(uint64_t w)
{
    w &= 0x0f0f0f0f0f0f0f0f;
    w = (w | w >> 4) & 0x00ff00ff00ff00ff;
    w = (w | w >> 8) & 0x0000ffff0000ffff;
    return (uint32_t)(w | w >> 16);
}

void
nvfp4_gguf_pack(uint8_t *blocks, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    for (size_t i = 0; i < n; i += NVFP4_GGUF_BLOCK, blocks += NVFP4_GGUF_BYTES)
        for (size_t s = 0; s < NVFP4_GGUF_SCALES; s++) {
            const uint8_t *from = codes + i / 2 + 8 * s;
            blocks[s] = scales[i / NVFP4_BLOCK + s];
            store_le64(blocks + NVFP4_GGUF_SCALES + 8 * s,
                       spread(load_le32(from)) | spread(load_le32(from + 4)) << 4);
        }
}

void
nvfp4_gguf_unpack(uint8_t *codes, uint8_t *scales, const uint8_t *blocks, size_t n)
{
    for (size_t i = 0; i < n; i += NVFP4_GGUF_BLOCK, blocks += NVFP4_GGUF_BYTES)
        for (size_t s = 0; s < NVFP4_GGUF_SCALES; s++) {
            uint64_t w = load_le64(blocks + NVFP4_GGUF_SCALES + 8 * s);
            scales[i / NVFP4_BLOCK + s] = blocks[s];
            store_le32(codes + i / 2 + 8 * s, gather_nibbles(w));
            store_le32(codes + i / 2 + 8 * s + 4, gather_nibbles(w >> 4));
        }
}
