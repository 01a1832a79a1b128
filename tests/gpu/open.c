/* SPDX-License-Identifier: MIT */
/* open: whether there is a GPU, and its backend opens with activations of both types and
 * says what its numbers depend on. */
#include "tests/gpu/pair.h"

int
main(void)
{
    for (int i = 0; i < 2; i++) {
        char type[8];
        unsigned ours, chip;
        pair_open(i ? DT_BF16 : DT_F32);
        CHECK_SAY(sscanf(gpu->route, "cuda %7s %u sm_%u", type, &ours, &chip) == 3 &&
                      strcmp(type, i ? "bf16" : "f32") == 0,
                  "route \"%s\"", gpu->route);
        puts(gpu->route);
        pair_close();
    }
    return check_end();
}
