/* SPDX-License-Identifier: MIT */
/* report: samples and peaks of a run as JSON.
 *
 * A file is one document, complete at any time: it is replaced about once a second and synced
 * at the end.  At most REPORT_SAMPLES are kept; beyond that pairs of neighbours are merged into
 * their worst, so that no peak is lost.  A stream (a pipe, /dev/stdout) gets a line a sample and
 * a last one for the result; lines that would block are dropped, since a slow reader must not
 * hold up the guard.
 */
#ifndef NIBBLE_CMD_MEMGUARD_REPORT_H
#define NIBBLE_CMD_MEMGUARD_REPORT_H

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "lib/file/guard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPORT_SAMPLES = 1024 };

struct sample {
    double wall;       // seconds since 1970
    double elapsed;    // seconds since the command began
    uint64_t host;     // bytes of the tree
    uint64_t gpu;      // bytes of the tree
    int64_t available; // bytes of the machine, -1: unknown
    size_t processes;
};

struct samples {
    struct sample kept[REPORT_SAMPLES];
    size_t n;
    unsigned each, open; // measurements a sample; those in the last one so far
};

/* Add one, merging pairs when they are full; the worst of two into a. */
void samples_add(struct samples *all, const struct sample *s);
void sample_worst(struct sample *a, const struct sample *b);

/* Constants of a run. */
struct report_facts {
    char *const *command;          // NULL at its end
    uint64_t host, gpu, available; // limits in bytes, 0: none
    double over, poll, term_first;
    bool watches_gpu; // there is a GPU limit
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

/* Write the first version, so that errors come before the command starts.  path NULL: no
 * report, and the other functions do nothing. */
int report_open(struct report *r, const char *path, bool force,
                const struct report_facts *facts, struct guard *g, struct err *err);
int report_add(struct report *r, const struct sample *s, struct err *err);
/* status: exit status of memguard; ended: why memguard ended the command, or NULL. */
int report_close(struct report *r, int status, const char *ended, struct err *err);

#endif
