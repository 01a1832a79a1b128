/* SPDX-License-Identifier: MIT */
/* memfiles: files in memory (memfd, /dev/shm, any tmpfs) that the command's processes have written.
 *
 * Their pages are no process's resident memory unless they are mapped.  A file counts if a process
 * of the tree has it open for writing, and after that, if it has a name and MEMFILES_CLOSED bytes,
 * until it is removed.  A file that is older than the command counts by its growth since it was
 * first seen.  Each file counts once.
 *
 * A file is not known if no look found it open, since the system does not tell which process made it.
 * Examples are a file that was opened, written and closed between two looks, and a file whose only
 * descriptor is in a message of a socket.
 */
#ifndef NIBBLE_CMD_MEMGUARD_MEMFILES_H
#define NIBBLE_CMD_MEMGUARD_MEMFILES_H

#include "cmd/memguard/tree.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { MEMFILES_CLOSED = 1 << 20 };

struct memfile {
    uint64_t device, inode;
    uint64_t bytes;  // of memory
    uint64_t before; // bytes of them that the command did not write
    uint64_t mapped; // bytes that the tree has mapped, by memfiles_find_mapped
    char *path;      // its name when it was first seen, or NULL
};

struct memfiles {
    struct timespec began; // the command
    struct memfile *v;     // (n) by device and inode
    size_t n;
    uint64_t leaving;      // resident bytes without a mapping, by memfiles_find_mapped
    struct memfile *found; // of a look, process by process
    size_t n_found, capacity;
};

/* The command begins now. */
void memfiles_begin(struct memfiles *m);
/* Look at the files of the tree's processes, and set their `files`.  Without memory for that the
 * last look counts. */
void memfiles_look(struct memfiles *m, struct tree *t);
/* The largest number of bytes of them that the tree's processes can have mapped. */
uint64_t memfiles_max_mapped(const struct tree *t);
/* Find out how much of each file the tree's processes have mapped.  Reads all their pages' tables:
 * tens of milliseconds a GB. */
void memfiles_find_mapped(struct memfiles *m, const struct tree *t);

/* Bytes of all files, and the bytes of them that the last memfiles_find_mapped found unmapped. */
uint64_t memfiles_bytes(const struct memfiles *m);
uint64_t memfiles_unmapped(const struct memfiles *m);

#endif
