/* SPDX-License-Identifier: MIT */
/* output: a stream that a run writes while it trains.  One that cannot be written gets no more, and
 * the run is asked to stop: it saves and ends. */
#ifndef NIBBLE_TRAIN_OUTPUT_H
#define NIBBLE_TRAIN_OUTPUT_H

#include "lib/base/host.h"
#include "lib/base/stop.h"

#include <stddef.h>

struct output {
    int fd;
    const char *name;
    const struct host *host;
    struct stop *stop;
    bool failed;
};

/* Write all bytes, unless a stop is requested meanwhile. */
void output_put(struct output *o, const void *bytes, size_t n);
/* Write all bytes to fd, unless a stop is requested.  -1: errno has the failure. */
int output_try(int fd, struct stop *stop, const void *bytes, size_t n);
/* Say that an output failed, as *err has it, and request a stop. */
void output_failed(const struct host *host, struct stop *stop, const struct err *err);

#endif
