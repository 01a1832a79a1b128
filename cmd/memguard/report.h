/* SPDX-License-Identifier: MIT */
/* report: samples and peaks of a run as JSON.
 *
 * A file is one document, whole at any time: it is replaced by its next version about
 * once a second, and synced at the end.  At most REPORT_SAMPLES are kept: when they are
 * too many, each two neighbours become one, with the worst of both, and from then on
 * twice as many make one; so no peak is lost.  A stream (a pipe, /dev/stdout) gets a
 * line for each sample and a last one for the result; what it does not take at once is
 * dropped, since whoever reads it must not hold up the guard.
 */
#ifndef NIBBLE_CMD_MEMGUARD_REPORT_H
#define NIBBLE_CMD_MEMGUARD_REPORT_H

#include "lib/core/buf.h"
#include "lib/core/err.h"
#include "lib/core/guard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPORT_SAMPLES = 1024 };

struct sample {
    double wall;       // seconds since 1970
    double elapsed;    // seconds since the command began
    uint64_t host;     // bytes of the tree
    uint64_t gpu;      // bytes of the tree
    int64_t available; // bytes of the machine, -1: not known
    size_t processes;
};

struct samples {
    struct sample kept[REPORT_SAMPLES];
    size_t n;
    unsigned each, open; // so many are one; of the last so many are there
};

/* Pure: add one, thin out when there are too many.  The worst of two is theirs. */
void samples_add(struct samples *all, const struct sample *s);
void sample_worst(struct sample *a, const struct sample *b);

/* What does not change while the command runs. */
struct report_facts {
    char *const *command;          // NULL at its end
    uint64_t host, gpu, available; // limits in bytes, 0: none
    double over, poll, term_first;
    bool gpu_told; // GPU memory is looked at
};

struct report {
    const char *path;
    int fd; // of a stream
    bool failed;
    double written; // when
    const struct report_facts *facts;
    struct samples all;
    struct sample peak;
    double began; // seconds since 1970
    unsigned long dropped;
    struct guard *guard;
};

/* The first version, so that what cannot be written is known before the command
 * begins.  path NULL: no report, and the others do nothing. */
int report_open(struct report *r, const char *path, bool force,
                const struct report_facts *facts, struct guard *g, struct err *err);
int report_add(struct report *r, const struct sample *s, struct err *err);
/* status: of memguard; ended: the words of why memguard ended it, NULL if not. */
int report_close(struct report *r, int status, const char *ended, struct err *err);

#endif
