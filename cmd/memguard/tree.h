/* SPDX-License-Identifier: MIT */
/* tree: the processes below memguard, their memory, and the one way to signal them.
 *
 * A process is named by its number and its start, since numbers are given again.  With
 * `adopts` an orphan becomes our child (PR_SET_CHILD_SUBREAPER), so that being below us
 * is a fact that the kernel keeps: nothing has to be remembered of a process to know
 * whether it is the command's.
 */
#ifndef NIBBLE_CMD_MEMGUARD_TREE_H
#define NIBBLE_CMD_MEMGUARD_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct tree_proc {
    pid_t pid, parent;
    uint64_t start; // clock ticks from the boot to its start
    uint64_t rss;   // bytes
    uint64_t gpu;   // bytes, for whom it may concern
    bool alive;     // no zombie
    bool stopped;
    char name[40];
};

struct tree {
    pid_t self;
    struct tree_proc command; // pid 0: not started
    pid_t witness;            // a child of ours that is not the command's
    bool adopts;              // all children of ours but the witness are the command's
    int proc;                 // the directory /proc
    struct tree_proc *procs;  // of the last walk, by pid
    size_t n, room;
    pid_t *strangers; // by pid, read again now and then only
    size_t n_strangers, strangers_room;
    pid_t *listed;
    size_t listed_room;
    unsigned walks;
};

/* Take the system's /proc and become the reaper of orphans.  0, or -1 with words. */
int tree_open(struct tree *t, const char **why);
/* pid was forked as the command and not waited for yet. */
int tree_command(struct tree *t, pid_t pid);
/* Find the processes below us.  `all` reads every process anew; otherwise those known
 * as strangers are read each sixteenth time only, which misses a process of ours for
 * that long if it was given a stranger's number in between.  -1: no memory, or /proc
 * cannot be read; the former walk stays. */
int tree_walk(struct tree *t, bool all);
uint64_t tree_rss(const struct tree *t);
/* Memory of all, pages that several share counted once: as the kernel's PSS tells. */
uint64_t tree_pss(const struct tree *t);
size_t tree_alive(const struct tree *t);
const struct tree_proc *tree_find(const struct tree *t, pid_t pid);

/* Signal a process if it is still the one that was meant, and below us.  Every signal
 * of this program goes through here.  0: sent; -1: it is not there, or not ours. */
int tree_signal(const struct tree *t, const struct tree_proc *p, int sig);

/* ---- pure parts ---- */

/* A line of /proc/PID/stat. */
bool tree_parse(struct tree_proc *p, const char *line, uint64_t page);

enum tree_kin { TREE_OPEN, TREE_OURS, TREE_STRANGER, TREE_LOST };
/* What each of n processes, sorted by pid, is to us.  LOST: its parent went away between
 * two reads, so nothing can be said. */
void tree_kin(const struct tree *t, const struct tree_proc *procs, size_t n,
              enum tree_kin *kin);

/* Who is to hear of a SIGTERM now.  told[i]: has heard.  Sets pick[i], returns how many.
 *
 * Not everybody at once: a shell pipeline's tee would die before the trainer that
 * writes to it could save, and make or timeout pass the signal on, so that their
 * children would hear twice, which means "at once" to many programs.  So first those
 * that hold the memory (half of the most or more) and have no such process below;
 * when they are gone, the same of those that are left. */
size_t tree_pick(const struct tree_proc *procs, const bool *told, size_t n, bool by_gpu,
                 bool *pick);

#endif
