/* SPDX-License-Identifier: MIT */
/* grow: see grow.h. */
#include "lib/base/grow.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool
grow_array(void *v, size_t n, size_t *cap, size_t size, size_t first)
{
    void *items; // pointers to all types look alike here
    if (n < *cap)
        return true;
    size_t more = *cap ? 2 * *cap : first;
    if (more <= *cap || more > SIZE_MAX / size)
        return false;
    memcpy(&items, v, sizeof items);
    items = realloc(items, more * size);
    if (!items)
        return false;
    memcpy(v, &items, sizeof items);
    *cap = more;
    return true;
}
