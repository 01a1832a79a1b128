/* SPDX-License-Identifier: MIT */
/* sha256: FIPS 180-4, one block function for each kind of CPU (SHA-NI, ARMv8 crypto,
 * portable). */
#ifndef NIBBLE_BASE_SHA256_H
#define NIBBLE_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t tail[64]; // bytes % 64 of them are waiting
    void (*blocks)(uint32_t h[8], const uint8_t *p, size_t n);
};

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *bytes, size_t n);
void sha256_end(struct sha256 *s, uint8_t digest[32]);

/* n blocks of 64 bytes, portable: the truth that the fast ones must equal. */
void sha256_blocks_portable(uint32_t h[8], const uint8_t *p, size_t n);

#endif
