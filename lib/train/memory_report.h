/* SPDX-License-Identifier: MIT */
/* memory_report: memory by phase, as JSON (--memory-report).  A file is replaced at each save and at
 * the end; a stream gets the report once, at the end. */
#ifndef NIBBLE_TRAIN_MEMORY_REPORT_H
#define NIBBLE_TRAIN_MEMORY_REPORT_H

#include "lib/file/outfile.h"
#include "lib/train/trainer.h"

struct memory_report {
    struct observer observer;
    const struct run_config *run;
    struct stop *stop;
    struct outfile stream;
    struct buf samples;
    double started;
    size_t n; // samples
    bool open;
    bool streams; // it is a stream, open from the start
    bool ours;    // the file is of this run
};

/* Check that it can be written.  Opening a FIFO waits for its reader: do it while a signal still ends
 * the program.  -1: *r->err. */
int memory_report_open(struct memory_report *m, const struct run_config *r,
                       struct stop *stop);
/* Write the last state of the report; right for one that is not open, too. */
int memory_report_close(struct memory_report *m, struct err *err);

#endif
