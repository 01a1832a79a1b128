/* SPDX-License-Identifier: MIT */
/* check: what the unit programs share: counting what fails, a scratch directory, and
 * numbers that look random but are always the same. */
#ifndef NIBBLE_TESTS_UNIT_CHECK_H
#define NIBBLE_TESTS_UNIT_CHECK_H

#include "lib/base/philox.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHECK_SHOWN = 40 };

static unsigned long check_failed;
static char check_dir[256];

static inline void __attribute__((format(printf, 3, 4)))
check_report(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    if (++check_failed > CHECK_SHOWN)
        return;
    printf("%s:%d: ", file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    fflush(stdout); // before a crash, and before a fork
}

/* A check that fails is a line; the program goes on. */
#define CHECK(cond) ((cond) ? (void)0 : check_report(__FILE__, __LINE__, "%s", #cond))
/* The same with the words for the case that failed. */
#define CHECK_SAY(cond, ...)                                                           \
    ((cond) ? (void)0 : check_report(__FILE__, __LINE__, __VA_ARGS__))

/* The same of an error: its kind, and words that its message must hold. */
#define CHECK_ERR(err, want, words)                                                    \
    CHECK_SAY((err).kind == (want) && strstr((err).msg, words),                        \
              "expected error %d with \"%s\", found %d \"%s\"", (int)(want), words,    \
              (int)(err).kind, (err).msg)

/* What the rest cannot do without. */
#define NEED(cond)                                                                     \
    ((cond) ? (void)0                                                                  \
            : (check_report(__FILE__, __LINE__, "%s: cannot go on", #cond),            \
               exit(EXIT_FAILURE)))

static inline int
check_remove(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

/* Go to an empty directory; check_end removes it. */
static inline void
check_scratch(void)
{
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(check_dir, sizeof check_dir, "%s/nibble-unit-XXXXXX",
                     tmp && *tmp ? tmp : "/tmp");
    NEED(n > 0 && (size_t)n < sizeof check_dir);
    NEED(mkdtemp(check_dir));
    NEED(chdir(check_dir) == 0);
}

/* The exit status of main. */
static inline int
check_end(void)
{
    if (*check_dir && chdir("/") == 0)
        nftw(check_dir, check_remove, 8, FTW_DEPTH | FTW_PHYS);
    if (check_failed > CHECK_SHOWN)
        printf("%lu more checks failed\n", check_failed - CHECK_SHOWN);
    return check_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* The n-th of a row of random numbers. */
static inline uint32_t
check_random(uint64_t n)
{
    const uint32_t counter[4] = { (uint32_t)(n / 4), (uint32_t)(n / 4 >> 32), 0, 0 };
    const uint32_t key[2] = { 0x6e696262, 0x6c65 };
    uint32_t out[4];
    philox4x32(out, counter, key);
    return out[n % 4];
}

/* Byte i of a pattern of period 251, the largest prime below 256: swapped blocks do
 * not go unnoticed.  tests/xxh3.py has the same. */
static inline uint8_t
check_byte(size_t i)
{
    return (uint8_t)((i * 7 + i / 251) % 251);
}

static inline void
check_fill(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = check_byte(i);
}

/* Equal as bytes: for floats, NaN and -0 included. */
static inline bool
check_equal(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n) == 0;
}

/* A file of the working directory, replaced. */
static inline void
check_put(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    NEED(f);
    NEED(fwrite(bytes, 1, n, f) == n);
    NEED(fclose(f) == 0);
}

#endif
