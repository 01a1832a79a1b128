/* SPDX-License-Identifier: MIT */
/* bulk: payloads of a file into device memory, by several threads. */
#ifndef NIBBLE_LOAD_BULK_H
#define NIBBLE_LOAD_BULK_H

#include "kernels/kernels.h"
#include "lib/format/store.h"

struct bulk {
    const struct tensor *t;
    void *to;           // on the device
    uint64_t at, bytes; // which of the payload; bytes 0: all
};

/* Load n payloads.  verify: each must have the hash that the file has for it; the error
 * names the first one that is damaged; parts of payloads cannot be verified.  err is k->err. */
int bulk_load(struct kernels *k, struct store *s, const struct bulk *b, size_t n,
              bool verify, unsigned threads, struct err *err);

#endif
