/* SPDX-License-Identifier: MIT */
/* num: little-endian loads and stores, checked products, strict parsing of numbers.
 *
 * Loads and stores take any alignment.  Parsers accept the whole text or nothing.
 */
#ifndef NIBBLE_BASE_NUM_H
#define NIBBLE_BASE_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t
load_le16(const void *p)
{
    const uint8_t *b = p;
    return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t
load_le32(const void *p)
{
    const uint8_t *b = p;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t
load_le64(const void *p)
{
    const uint8_t *b = p;
    return load_le32(b) | (uint64_t)load_le32(b + 4) << 32;
}

static inline void
store_le16(void *p, uint16_t v)
{
    uint8_t *b = p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}

static inline void
store_le32(void *p, uint32_t v)
{
    uint8_t *b = p;
    store_le16(b, (uint16_t)v);
    store_le16(b + 2, (uint16_t)(v >> 16));
}

static inline void
store_le64(void *p, uint64_t v)
{
    uint8_t *b = p;
    store_le32(b, (uint32_t)v);
    store_le32(b + 4, (uint32_t)(v >> 32));
}

/* *out = a * b or a + b; false if the result is above limit. */
static inline bool
mul_fits(uint64_t *out, uint64_t a, uint64_t b, uint64_t limit)
{
    return !__builtin_mul_overflow(a, b, out) && *out <= limit;
}

static inline bool
add_fits(uint64_t *out, uint64_t a, uint64_t b, uint64_t limit)
{
    return !__builtin_add_overflow(a, b, out) && *out <= limit;
}

/* The next multiple of step (a power of two) at or above n.  pre: no overflow. */
static inline uint64_t
round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) & ~(step - 1);
}

/* The whole of text as a number: true and *out, or false.  No white space or trailing
 * text; integers without a sign, doubles without NaN, infinity and hexadecimal. */
bool num_u64(uint64_t *out, const char *text);
bool num_double(double *out, const char *text);
/* A number of bytes: digits, then nothing or one of K M G (2^10, 2^20, 2^30). */
bool num_bytes(uint64_t *out, const char *text);
/* A size: a decimal number of GB (2^30), or of the unit that K, M, G or T behind it names.  Bytes
 * in *out, at most 2^62; at least 1 of what is above 0. */
bool num_gb(uint64_t *out, const char *text);

/* The exact value of half precision or bfloat16 bits. */
float num_from_f16(uint16_t bits);
static inline float
num_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return f;
}

static inline uint32_t
num_bits_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float
num_from_bits_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest even.  NaN stays NaN (the quiet bit is set, the upper payload
 * kept); a finite f16 overflow becomes infinity, which file writers refuse. */
uint16_t num_to_f16(float value);
uint16_t num_to_bf16(float value);

#endif
