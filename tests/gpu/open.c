/* SPDX-License-Identifier: MIT */
/* open: the backend opens with activations of both types; prints the route, which its
 * results depend on. */
#include "tests/gpu/pair.h"

#include <ctype.h>

int
main(void)
{
    for (int i = 0; i < 2; i++) {
        const char *begin = i ? "cuda bf16 " : "cuda f32 ", *number;
        pair_open(i ? DT_BF16 : DT_F32);
        number = gpu->route + strlen(begin);
        CHECK_SAY(strncmp(gpu->route, begin, strlen(begin)) == 0 &&
                      isdigit((unsigned char)*number) &&
                      strncmp(number + strspn(number, "0123456789"), " sm_", 4) == 0,
                  "route \"%s\"", gpu->route);
        puts(gpu->route);
        pair_close();
    }
    return check_end();
}
