/* SPDX-License-Identifier: MIT */
/* view: the tensors of a store as a user means them.
 *
 * The two or three entries of an NVFP4 tensor become one of dtype nvfp4 with its
 * logical shape; everything else stays what it is.  The spellings of the dialects stand
 * in one table (view.c).
 */
#ifndef NIBBLE_FORMAT_VIEW_H
#define NIBBLE_FORMAT_VIEW_H

#include "lib/format/store.h"

struct view {
    const char *name; // NUL-terminated
    uint32_t name_len;
    uint8_t dtype; // enum dtype
    uint8_t rank;
    bool divides; // value / scale2 instead of value * scale2
    bool foreign; // of another program's dialect, which always has a tensor scale
    const uint64_t *shape;       // (rank)
    uint64_t numel, nbytes;      // nbytes: of all its entries
    const struct tensor *entry;  // the tensor itself; of nvfp4 the codes
    const struct tensor *scale;  // nvfp4: block scales
    const struct tensor *scale2; // nvfp4: the tensor scale, or NULL
};

struct views {
    struct view *v; // in file order, an nvfp4 tensor where its codes stand
    size_t n;
    struct arena arena;
};

/* raw: one view an entry.  Entries that look like a pair but do not fit each other stay
 * what they are, with a warning in s; in strict mode they are refused. */
int views_open(struct views *w, struct store *s, bool raw);
void views_close(struct views *w);
/* Whether both spellings that a .dat may have are there for one prefix. */
bool view_spelt_twice(const struct names *names, struct slice prefix);

/* Levels of an nvfp4 view. */
static inline int
view_levels(const struct view *v)
{
    return v->scale2 ? 2 : 1;
}

#endif
