/* SPDX-License-Identifier: MIT */
/* optimizer: what a training keeps of each tensor, and how a step updates it.  A file
 * lib/model/optimizer_NAME.c has all of one optimizer. */
#ifndef NIBBLE_MODEL_OPTIMIZER_H
#define NIBBLE_MODEL_OPTIMIZER_H

#include "lib/model/arrays.h"

struct train;
struct train_tensor;

/* Updates that are still to be done: the device is given many at once. */
enum { UPDATES = 64 };
struct updates {
    struct adam_update list[UPDATES];
    size_t n;
};

struct optimizer {
    const char *name; // for messages
    // The words of a checkpoint for master and moments, to *l; false: they are not of this one.
    bool (*layout)(struct array_layout *l, const char *master, const char *moments);
    // How a plane of a row is stored.  1; 0: the layout has no such plane; -1: *err.
    int (*form)(const struct array_layout *l, enum array_plane plane,
                const struct row *r, struct array_form *form, struct err *err);
    bool (*runs_on)(const struct device *is);
    void (*describe)(struct train_tensor *x, const struct array_layout *l,
                     const struct row *r);
    // A tensor's plane lies at p.
    void (*attach)(struct train_tensor *x, enum array_plane plane, void *p);
    // The whole master as a matrix, and whether products need a copy of it as f32.
    struct matrix (*master)(const struct train_tensor *x);
    bool (*needs_unpacked)(const struct array_layout *l, const struct row *r);
    // Update row i, at once or by *u.
    void (*update)(struct train *t, size_t i, struct adam_step *a, struct updates *u);
};

/* By enum optimizer_kind. */
extern const struct optimizer *const optimizers[OPTIMIZERS];

static inline const struct optimizer *
optimizer_of(const struct array_layout *l)
{
    return optimizers[l->optimizer];
}

#endif
