/* SPDX-License-Identifier: MIT */
/* ckpt: a checkpoint around a header, with hashes that fit it; without them nothing
 * would come past the two hashes.
 *
 * The first byte of the input says what the others are.  0xff: the whole file, as it is.
 * 0xfe: the same, then both hashes are made right.  Else the header's msgpack; the low
 * half of the byte is the number of pages behind the header, its high half what is in
 * them (zeros, or that byte). */
#include "tests/fuzz/fuzz.h"

enum { PROLOGUE = 64, PAGE = 4096 };

static void
whole_file(const uint8_t *header, size_t n, unsigned pages, uint8_t fill)
{
    static const uint8_t magic[8] = { 0x89, 'N', 'I', 'B', 'C', 'K', '\r', '\n' };
    size_t start = (size_t)round_up(PROLOGUE + n, PAGE);
    size_t size = start + (size_t)pages * PAGE;
    uint8_t *p = calloc(1, size);
    HOLDS(p, "out of memory");
    memcpy(p, magic, sizeof magic);
    store_le32(p + 8, 1);
    store_le64(p + 16, size);
    store_le64(p + 24, n);
    memcpy(p + PROLOGUE, header, n);
    xxh3_128(p + 32, header, n);
    xxh3_128(p + 48, p, 48);
    memset(p + start, fill, size - start);
    fuzz_put("x.ckpt", p, size);
    free(p);
}

static void
repaired_file(const uint8_t *file, size_t n)
{
    uint8_t *p = malloc(n);
    HOLDS(p, "out of memory");
    memcpy(p, file, n);
    uint64_t header = load_le64(p + 24);
    if (header <= n - PROLOGUE)
        xxh3_128(p + 32, p + PROLOGUE, (size_t)header);
    xxh3_128(p + 48, p, 48);
    fuzz_put("x.ckpt", p, n);
    free(p);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    if (*data == 0xfe && n > PROLOGUE)
        repaired_file(data + 1, n - 1);
    else if (*data >= 0xfe)
        fuzz_put("x.ckpt", data + 1, n - 1);
    else
        whole_file(data + 1, n - 1, *data & 15, *data & 0xf0);
    bool ok = fuzz_open(fuzz_path("x.ckpt"), false);
    HOLDS(fuzz_open(fuzz_path("x.ckpt"), true) == ok, "nothing in it is merely odd");
    if (ok) { // known by its magic, too
        HOLDS(rename(fuzz_path("x.ckpt"), fuzz_path("x")) == 0, "rename");
        HOLDS(fuzz_open(fuzz_path("x"), false), "refused without its suffix");
    }
    return 0;
}
