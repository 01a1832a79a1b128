/* SPDX-License-Identifier: MIT */
/* err: the first error of a program run, and its message.
 *
 * A command owns one struct err; every context (store, writer, ...) is handed a
 * pointer to it.  Library functions return 0, or -1 with the error filled in.
 */
#ifndef NIBBLE_BASE_ERR_H
#define NIBBLE_BASE_ERR_H

#include <stddef.h>

enum err_kind {
    ERR_NONE,
    ERR_USAGE,     // the request makes no sense
    ERR_IO,        // a system call failed: errno is in the message
    ERR_FORMAT,    // the bytes of a file break a rule
    ERR_MEMORY,    // an allocation failed, or a plan is over its limit
    ERR_NONFINITE, // NaN or infinity where a number is needed
    ERR_ELSEWHERE, // another process of the run has failed, and says why
};

struct err {
    enum err_kind kind;
    char msg[6000]; // the longest names of files, and words
};

/* The end of a message about a file that ends too early. */
#define ERR_FILE_CUT ": it may have been cut: copy or download it again"

/* Keep the first error, ignore later ones.  A final colon in fmt appends
 * strerror(errno); ERR_IO with ENOMEM is kept as ERR_MEMORY.  Always -1, so that
 * callers can "return err_set(...)". */
void err_fill(struct err *e, enum err_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Inline, so that compilers and analyzers see the -1. */
static inline int
err_minus_one(void)
{
    return -1;
}
#define err_set(...) (err_fill(__VA_ARGS__), err_minus_one())

#endif
