/* SPDX-License-Identifier: MIT */
/* philox: the known answers that Random123 publishes for philox4x32-10 (kat_vectors). */
#include "lib/base/philox.h"

#include "tests/unit/check.h"

static const struct {
    uint32_t counter[4], key[2], want[4];
} answers[] = {
    { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
    { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
      { 0xffffffff, 0xffffffff },
      { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
    { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
      { 0xa4093822, 0x299f31d0 },
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
};

int
main(void)
{
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        uint32_t out[4];
        philox4x32(out, answers[i].counter, answers[i].key);
        CHECK_SAY(memcmp(out, answers[i].want, sizeof out) == 0,
                  "answer %zu: %08x %08x %08x %08x", i, out[0], out[1], out[2], out[3]);
    }
    return check_end();
}
