/* SPDX-License-Identifier: MIT */
/* trainstep: what its sources share. */
#ifndef NIBBLE_CMD_TRAINSTEP_TRAINSTEP_H
#define NIBBLE_CMD_TRAINSTEP_TRAINSTEP_H

#include "cmd/cli/cmd.h"
#include "cmd/cli/ranks.h"
#include "lib/train/keep.h"
#include "lib/train/output.h"
#include "lib/train/trainer.h"

/* ---- run.c ------------------------------------------------------------------------------- */

/* Train as the options ask, on that device; the exit status. */
int run(const struct train_options *o, const struct device *device);

/* ---- spark.c: the loss so far, as a sparkline ---------------------------------------- */

enum { SPARK_COLUMNS = 32 };
struct spark {
    double sum[SPARK_COLUMNS];      // of the finite losses of a column
    uint64_t finite[SPARK_COLUMNS]; // how many
    size_t columns;
    uint64_t per, steps; // steps a column; steps of the last column so far
};

void spark_add(struct spark *s, double loss);
/* Draw the last columns. */
void spark_draw(struct buf *b, const struct spark *s, size_t max_columns, bool utf8);

/* ---- display.c: standard output and the terminal ----------------------------------- */

enum column { STEP, LOSS, TOKENS, LR, NORM, TOK_S, MFU, MEM, MS, SKIPPED, COLUMNS };
struct display {
    struct observer observer;
    struct output out;
    double row[COLUMNS]; // of the last step
    bool owed;           // --log-every left it out so far
    bool progress, utf8; // there is a status line; the terminal shows UTF-8
    bool terminal;       // the table is on one, too
    bool head;           // the names are printed
    unsigned from;       // the columns that are shown
    double started, drawn;
    uint64_t first_step, tokens;
    struct spark spark;
};

void display_open(struct display *d, const struct run_config *r, struct stop *stop);

/* ---- stop.c: signals ----------------------------------------------------------------------- */

struct stop *stop_requests(void);
/* From here on SIGINT, SIGTERM and SIGHUP, if they were not ignored, ask to stop; a second
 * one ends the program.  Before, they end it: there is nothing to save. */
void stop_catch(void);
/* Say where the run was saved, and how to continue. */
void stop_report(struct buf *b, const struct trainer *t, const struct keep *k);
/* Print that; the exit status.  A stopped run without a saved file dies of the signal. */
int stop_end(const struct buf *words);

#endif
