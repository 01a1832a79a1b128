/* SPDX-License-Identifier: MIT */
/* grow: arrays that grow by doubling. */
#ifndef NIBBLE_BASE_GROW_H
#define NIBBLE_BASE_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* Make room for one more item in the array v, which holds n items and has room for cap.  v and cap are
 * lvalues.  An empty array gets room for `first` items.  false: no memory, and nothing has changed. */
#define GROW(v, n, cap, first) grow_array(&(v), n, &(cap), sizeof *(v), first)

/* v: the address of the pointer to the array. */
bool grow_array(void *v, size_t n, size_t *cap, size_t size, size_t first);

#endif
