/* SPDX-License-Identifier: MIT */
/* select: the globs of -s and -x.
 *
 * A glob is fnmatch(3) over the whole name; * matches dots and slashes too.  Without -s
 * every name matches; -x wins over -s; an -s that matches no name is an error.
 */
#ifndef NIBBLE_LOAD_SELECT_H
#define NIBBLE_LOAD_SELECT_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_GLOBS = 256 };

struct select {
    struct glob {
        const char *pattern;
        bool hit;
    } in[MAX_GLOBS], out[MAX_GLOBS];
    size_t n_in, n_out;
};

/* false: there are MAX_GLOBS already. */
bool select_add(struct select *s, bool exclude, const char *pattern);
bool select_matches(struct select *s, const char *name);
/* The first -s that matched no name so far, or NULL. */
const char *select_unused(const struct select *s);

#endif
