/* SPDX-License-Identifier: MIT */
/* datcat: what its parts share.  list.c shows, scan.c reads payloads, compare.c and
 * verify_names.c answer yes or no; list_tok.c knows .tok files; datcat.c parses. */
#ifndef NIBBLE_CMD_DATCAT_H
#define NIBBLE_CMD_DATCAT_H

#include "cmd/cmd.h"
#include "lib/core/hash.h"
#include "lib/format/view.h"
#include "lib/io/select.h"
#include "lib/io/values.h"

enum action {
    LIST,
    NAMES,
    JSON,
    NDJSON,
    TSV,
    HIST,
    VALUES,
    PAYLOAD,
    HASH,
    CHECK,
    DIFF,
    VERIFY,
    MAP,
    META
};

struct config_datcat {
    enum action action;
    struct cmd cmd;
    struct select select;
    const char *target; // of --values, --payload, --check
    enum hash_kind hash;
    unsigned threads;
    uint64_t bins;
    bool group, stats, raw, strict, full;
    bool tolerant; // --atol or --rtol given
    double atol, rtol;
    bool many; // more than one FILE
};

/* An open file as its user asked to see it: selected views, statistics if wanted. */
struct subject {
    struct store store;
    struct views views;  // only those selected
    struct stats *stats; // (views.n) or NULL
};

/* list.c */
void list_text(const struct config_datcat *c, const struct subject *f);
void list_names(const struct subject *f);
void list_json(const struct config_datcat *c, struct subject *f);
void list_lines(const struct config_datcat *c, const struct subject *f); // NDJSON, TSV
void list_map(const struct subject *f);
void list_meta(const struct subject *f);

/* scan.c */
int scan_stats(const struct config_datcat *c, struct subject *f, struct err *err);
int scan_hist(const struct config_datcat *c, struct subject *f, struct err *err);
int scan_values(const struct config_datcat *c, struct subject *f, struct err *err);
int scan_payload(const struct config_datcat *c, struct subject *f, struct err *err);
/* One digest an entry, and last that of the file's bytes: (n_tensors + 1, HASH_MAX). */
int scan_hash(const struct config_datcat *c, struct subject *f, enum hash_kind kind,
              uint8_t **digests, struct err *err);

/* compare.c: EXIT_DONE or EXIT_NO, or -1 with *err. */
int compare_check(const struct config_datcat *c, struct subject *f, struct err *err);
int compare_diff(const struct config_datcat *c, struct subject *a, struct subject *b,
                 struct err *err);
int compare_verify(const struct config_datcat *c, struct subject *f, struct err *err);

/* verify_names.c: whether the tensors are those of the configuration that the file has with it.
 * EXIT_DONE, EXIT_NO, or -1 with *err; appends to *what what was compared, or why not. */
int names_verify(struct subject *f, struct buf *what, struct err *err);

/* list_tok.c: a .tok has samples in place of tensors, and no subject. */
bool tok_is(const char *path);
int tok_file(const struct config_datcat *c, const char *path, struct err *err);

#endif
