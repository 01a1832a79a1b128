/* SPDX-License-Identifier: MIT */
/* bulk: payloads of a file into a device's memory, as fast as the file can be read. */
#ifndef NIBBLE_IO_BULK_H
#define NIBBLE_IO_BULK_H

#include "kernels/kernels.h"
#include "lib/format/store.h"

struct bulk {
    const struct tensor *t;
    void *to; // on the device, room for all of it
};

/* All of them.  With verify their hashes must be those that the file has; the error names
 * the first one that is damaged.  err is the device's, too. */
int bulk_load(struct kernels *k, struct store *s, const struct bulk *b, size_t n,
              bool verify, unsigned threads, struct err *err);

#endif
