/* SPDX-License-Identifier: MIT */
/* inspect: shows a file of tensors or of samples, compares two, and tells how one was made.  list.c
 * shows, order.c sorts, scan.c reads payloads, npy.c writes one, compare.c and verify_names.c answer
 * yes or no; attest.c says how a file was made; list_tok.c knows .tok files. */
#ifndef NIBBLE_INSPECT_INSPECT_H
#define NIBBLE_INSPECT_INSPECT_H

#include "lib/base/hash.h"
#include "lib/format/view.h"
#include "lib/inspect/printer.h"
#include "lib/load/select.h"
#include "lib/load/values.h"

enum answer { ANSWER_YES, ANSWER_NO };

enum action {
    LIST,
    NAMES,
    JSON,
    NDJSON,
    TSV,
    HIST,
    VALUES,
    PAYLOAD,
    NPY,
    HASH,
    CHECK,
    DIFF,
    VERIFY,
    MAP,
    META,
    ATTEST
};

enum sort { SORT_NONE, SORT_BYTES, SORT_ABSMAX, SORT_DIFF, SORT_NAME };

/* What is asked. */
struct inspect {
    struct printer *printer;
    enum action action;
    enum sort sort;
    uint64_t top; // rows to show; 0: all
    struct select select;
    const char *target; // of --values, --payload, --check
    struct {
        uint64_t first, count;
    } values; // of --values, where a .tok is asked; count UINT64_MAX: all
    enum hash_kind hash;
    unsigned threads;
    uint64_t bins;
    bool group, stats, all, raw, strict, full;
    bool tolerant; // --atol or --rtol given
    double atol, rtol;
    bool many; // more than one FILE
};

/* An open file as its user asked to see it: selected views, statistics if wanted. */
struct subject {
    const struct host *host;
    struct store store;
    struct views views;  // only those selected
    struct stats *stats; // (views.n) or NULL
    size_t
        shown; // rows of a listing: the first of the views; its totals count every view
};

/* order.c */

/* A row and its sort key, a name or a number; rows of equal keys stay in their order. */
struct ranked {
    const char *name;
    double number; // the largest first
    size_t index;
};
/* Sort by number, or with SORT_NAME by name. */
void order_rank(struct ranked *rows, size_t n, enum sort sort);
/* Put the views of f, and their statistics, into the order of --sort, and set f->shown. */
int order_views(const struct inspect *c, struct subject *f, struct err *err);

/* npy.c: a tensor as a NumPy array on standard output. */
int npy_write(const struct inspect *c, struct subject *f, struct err *err);

/* list.c.  -1: *c->printer->err. */
int list_text(const struct inspect *c, const struct subject *f);
int list_names(const struct inspect *c, const struct subject *f);
int list_json(const struct inspect *c, struct subject *f);
int list_lines(const struct inspect *c, const struct subject *f); // NDJSON, TSV
int list_map(const struct inspect *c, const struct subject *f);
int list_meta(const struct inspect *c, const struct subject *f);

/* scan.c */
int scan_stats(const struct inspect *c, struct subject *f, struct err *err);
int scan_hist(const struct inspect *c, struct subject *f, struct err *err);
int scan_values(const struct inspect *c, struct subject *f, struct err *err);
/* The view that c->target names, whose payload is not damaged, and for --values how many of its
 * values.  NULL: *err. */
const struct view *scan_find(const struct inspect *c, struct subject *f,
                             uint64_t *count, struct err *err);
/* Print the bytes of a tensor as the file has them. */
int scan_put_bytes(const struct inspect *c, const struct subject *f,
                   const struct view *v, struct err *err);
int scan_payload(const struct inspect *c, struct subject *f, struct err *err);
/* One digest an entry, and last that of the file's bytes: (n_tensors + 1, HASH_MAX). */
int scan_hash(const struct inspect *c, struct subject *f, enum hash_kind kind,
              uint8_t **digests, struct err *err);

/* compare.c: ANSWER_YES or ANSWER_NO, or -1 with *err. */
int compare_check(const struct inspect *c, struct subject *f, struct err *err);
int compare_diff(const struct inspect *c, struct subject *a, struct subject *b,
                 struct err *err);
int compare_verify(const struct inspect *c, struct subject *f, struct err *err);

/* verify_names.c: compare the tensors with those that the configuration in the file asks for.
 * ANSWER_YES, ANSWER_NO, or -1 with *err; appends to *what what was compared, or why not. */
int names_verify(struct subject *f, struct buf *what, struct err *err);

/* attest.c: how a file was made, as a statement for others to sign.  ANSWER_YES, or -1 with
 * *err: it is damaged, or has no record.  The second is of a .tok, which was checked. */
int attest_store(const struct inspect *c, struct subject *f, struct err *err);
int attest_stream(const struct inspect *c, const char *path, struct slice record,
                  struct err *err);

/* list_tok.c: a .tok has samples in place of tensors, and no subject.  First check what is asked; then
 * answer it. */
int tok_check_action(const struct inspect *c, const char *path, struct err *err);
int tok_file(const struct inspect *c, const char *path, struct err *err);

#endif
