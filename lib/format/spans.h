/* SPDX-License-Identifier: MIT */
/* spans: the byte ranges that the records of a header claim, and whether they tile
 * their file.  20 bytes a record, sorted in place: a header of 100 MB has 1.8
 * million. */
#ifndef NIBBLE_FORMAT_SPANS_H
#define NIBBLE_FORMAT_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct span {
    uint64_t begin, end; // begin <= end
    uint32_t at;         // of the record: no two are equal
} __attribute__((packed));

struct spans {
    struct span *v; // in the order in which they were added, until spans_gap
    size_t n, cap;
    bool sorted; // each began where the one before ended, the first at 0
};

/* 0, or -1: no memory. */
int spans_add(struct spans *x, struct span one);
/* NULL if in sorted order each begins where the one before ends, the first at 0: then
 * *end is where the last one ends.  Else the first that does not, and *end is where it
 * should begin. */
const struct span *spans_gap(struct spans *x, uint64_t *end);
void spans_free(struct spans *x);

#endif
