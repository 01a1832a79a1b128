/* SPDX-License-Identifier: MIT */
/* open: whether there is a GPU, and its backend opens with activations of both types and
 * says what its numbers depend on. */
#include "tests/gpu/pair.h"

int
main(void)
{
    for (int i = 0; i < 2; i++) {
        pair_open(i ? DT_BF16 : DT_F32);
        CHECK_SAY(strncmp(gpu->route, "cuda sm_", 8) == 0, "route \"%s\"", gpu->route);
        puts(gpu->route);
        pair_close();
    }
    return check_end();
}
