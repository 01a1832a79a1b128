/* SPDX-License-Identifier: MIT */
/* rank_gpus: each of several ranks computes on a GPU of its own, and the GPUs exchange memory. */
#ifndef NIBBLE_LOAD_RANK_GPUS_H
#define NIBBLE_LOAD_RANK_GPUS_H

#include "kernels/kernels.h"
#include "lib/base/host.h"
#include "lib/dist/ranks.h"

/* Settle the number of this rank's GPU, unless the device names one; refuse two ranks of one. */
int rank_gpus_settle(struct ranks *r, const char *device, int *number, struct err *err);
/* The link from a GPU that exchanges memory to its rank.  It outlives the device. */
struct rank_gpus {
    struct ranks *ranks;
    struct kernels *k;
};
/* Let the ranks' GPUs exchange their memory; a verbose host hears how they do it. */
int rank_gpus_join(struct rank_gpus *g, struct ranks *r, struct kernels *k,
                   const struct host *host, struct err *err);

#endif
