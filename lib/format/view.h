/* SPDX-License-Identifier: MIT */
/* view: the tensors of a store as a user means them.
 *
 * The entries of an NVFP4 tensor become one of dtype nvfp4 with its logical shape, and
 * the tensors of a GGUF get the names of Hugging Face; all else is unchanged.  The
 * spellings of the dialects are in one table (view.c).
 */
#ifndef NIBBLE_FORMAT_VIEW_H
#define NIBBLE_FORMAT_VIEW_H

#include "lib/format/store.h"

/* How a program spells the parts of the NVFP4 tensor X.weight. */
struct view_dialect {
    const char *name;
    const char *codes, *scale, *scale2; // what follows X
    const char *input;                  // the same of its activation scale, or NULL
    unsigned scale2_rank;
    uint8_t zero_scale; // foreign: of a block of zeros
    bool divides;       // value / scale2 instead of value * scale2, input alike
    bool foreign;       // another program's: we write a scale2 always, the same for
                        // fused projections, and codes 0 for a block of zeros
    bool blocks;        // codes and scales are one entry, see lib/nvfp4/gguf.h
};
enum view_plane { PLANE_CODES, PLANE_SCALES, PLANE_SCALE2 };

/* The dialect of that name; NULL: the built-in one. */
const struct view_dialect *view_dialect(const char *name);

struct view {
    const char *name; // NUL-terminated
    uint32_t name_len;
    uint8_t dtype; // enum dtype
    uint8_t rank;
    bool aside;                  // of use to others than us: conversions leave it out
    bool incomplete;             // an entry of an NVFP4 tensor that lacks another
    bool lacks_input;            // nvfp4: no activation scale, though the others of its
                                 // kind have one; set by dialect_views
    const uint64_t *shape;       // (rank)
    uint64_t numel, nbytes;      // nbytes: of all its entries
    const struct tensor *entry;  // the tensor itself; of nvfp4 the codes
    const struct tensor *scale;  // nvfp4: block scales; NULL: view_in_blocks
    const struct tensor *scale2; // nvfp4: the tensor scale, or NULL
    const struct tensor *input;  // nvfp4: the activation scale (W4A4), or NULL
    const struct view_dialect *dialect; // nvfp4
};

struct views {
    struct view *v; // in file order, an nvfp4 tensor at the place of its codes
    size_t n;
    bool unknown_quantization; // the configuration names one that we do not read;
                               // set by dialect_views
    struct arena arena;
};

/* raw: one view an entry.  Entries that look like a pair but do not fit each other stay
 * what they are, with a warning in s; in strict mode they are refused. */
int views_open(struct views *w, struct store *s, bool raw);
void views_close(struct views *w);
/* store_check_payload of the entries that make up the values of v. */
int view_check_payloads(struct store *s, const struct view *v, struct err *err);
/* Whether both spellings that a .dat may have are there for one prefix. */
bool view_spelt_twice(const struct names *names, struct slice prefix);

/* Whether the one entry of an nvfp4 view has codes and scales, as in a GGUF. */
static inline bool
view_in_blocks(const struct view *v)
{
    return v->dialect && v->dialect->blocks;
}

/* Levels of an nvfp4 view. */
static inline int
view_levels(const struct view *v)
{
    return v->scale2 ? 2 : 1;
}

#endif
