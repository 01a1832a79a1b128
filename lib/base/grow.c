/* SPDX-License-Identifier: MIT */
/* grow: see grow.h. */
#include "lib/base/grow.h"

#include <stdint.h>
#include <stdlib.h>

/* A pointer of whatever type, seen as one to void. */
typedef void *__attribute__((may_alias)) any_pointer;

bool
grow_array(void *v, size_t n, size_t *cap, size_t size, size_t first)
{
    any_pointer *array = v;
    if (n < *cap)
        return true;
    size_t more = *cap ? 2 * *cap : first;
    if (more <= *cap || more > SIZE_MAX / size)
        return false;
    void *grown = realloc(*array, more * size);
    if (!grown)
        return false;
    *array = grown;
    *cap = more;
    return true;
}
