/* SPDX-License-Identifier: MIT */
/* tree: the processes below memguard, their memory, and how to signal them.
 *
 * A process is identified by its pid and its start time, since pids are reused.  With `adopts`
 * orphans become our children (PR_SET_CHILD_SUBREAPER), so that the kernel's parent links show
 * which processes are the command's.
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
    uint64_t gpu;   // bytes, set by gpu_used
    uint64_t
        files;  // bytes of files in memory that it has not mapped, set by memfiles_look
    bool alive; // no zombie
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
    size_t n, capacity;
    pid_t *strangers; // by pid; read again at times only
    size_t n_strangers, strangers_capacity;
    pid_t *listed;
    size_t listed_capacity;
    unsigned walks;
};

/* Open /proc and become the reaper of orphans.  0, or -1 with a message. */
int tree_open(struct tree *t, const char **why);
/* pid was forked as the command and not waited for yet. */
int tree_command(struct tree *t, pid_t pid);
/* Find the processes below us.  `all` reads every process anew; otherwise those known
 * as strangers are read each sixteenth time only, which misses a process of ours for
 * that long if it was given a stranger's number in between.  -1: no memory, or /proc
 * cannot be read; the former walk stays. */
int tree_walk(struct tree *t, bool all);
uint64_t tree_rss(const struct tree *t);
/* Memory of all, shared pages counted once (the kernel's PSS). */
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
/* What each of n processes, sorted by pid, is to us.  LOST: its parent ended between two reads, so it is unknown. */
void tree_kin(const struct tree *t, const struct tree_proc *procs, size_t n,
              enum tree_kin *kin);

/* Choose processes for SIGTERM.  signaled[i]: got it already.  Sets pick[i], returns how many.
 *
 * Not all at once: a shell pipeline's tee would die before the trainer that writes to it could
 * save, and make or timeout pass the signal on, so that their children would get it twice, which
 * means "at once" to many programs.  So first those with most memory (half of the max or more)
 * that have no such process below; when they are gone, the same among the rest. */
size_t tree_pick(const struct tree_proc *procs, const bool *signaled, size_t n,
                 bool by_gpu, bool *pick);

#endif
