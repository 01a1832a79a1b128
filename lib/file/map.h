/* SPDX-License-Identifier: MIT */
/* map: an input file, mapped read-only, with reads that notice when it changes.
 *
 * data is borrowed: any alignment, PROT_READ, gone after map_close.  It is right for
 * headers and for weights used in place.  Bulk passes should use map_read: from a warm
 * page cache it moves 22 GB/s a thread where faulting a mapping in gives 7 to 10
 * (EPYC 9005, Linux 6.18, 3 GB file), and it leaves no pages in our memory.
 *
 * A file that shrinks under a mapping does not kill the program: see guard.h.
 */
#ifndef NIBBLE_FILE_MAP_H
#define NIBBLE_FILE_MAP_H

#include "lib/base/err.h"
#include "lib/file/guard.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct map {
    const uint8_t *data; // NULL if size == 0
    size_t size;
    size_t page; // of memory, for guard_repair
    int fd;
    char *path; // as given
    char *name; // path, escaped for messages
    dev_t dev;
    ino_t ino;
    struct timespec changed; // when it was opened, the time of the last write
    struct guard *guard;
    atomic_bool lost;
};

/* Map a regular file.  map_close is right after success and failure alike.  m must
 * stay where it is until then. */
int map_open(struct map *m, const char *path, struct guard *g, struct err *err);
/* The same for an open descriptor, which m owns from now on; path names it. */
int map_fd(struct map *m, int fd, const char *path, struct guard *g, struct err *err);
void map_close(struct map *m);

/* n bytes from offset into dst; -1 if the file has become shorter or cannot be read. */
int map_read(struct map *m, void *dst, size_t n, uint64_t offset, struct err *err);
/* The mapped bytes [from, to) will not be looked at soon: their pages are no longer
 * counted as ours, and come back when they are. */
void map_forget(struct map *m, uint64_t from, uint64_t to);
/* They will be looked at, one after the other: read ahead. */
void map_expect(struct map *m, uint64_t from, uint64_t to);
/* The mapping itself will be read in long pieces: faults bring in what follows. */
void map_use(struct map *m);
/* Reads that follow are of single pages: bring no others in.  false: of all again. */
void map_scatter(struct map *m, bool on);
/* 0, or -1 if the mapping was lost or the file was written to since it was opened: it
 * has another size or another time of change. */
int map_check(struct map *m, struct err *err);

#endif
