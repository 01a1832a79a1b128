/* SPDX-License-Identifier: MIT */
/* memfiles: see memfiles.h. */
#include "cmd/memguard/memfiles.h"

#include "lib/base/os.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { BLOCK = 512, KB = 1024 }; // bytes, of statx and of smaps

/* ---- the table ------------------------------------------------------------------------ */

static int
by_inode(const void *a, const void *b)
{
    const struct memfile *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return (x->inode > y->inode) - (x->inode < y->inode);
}

static struct memfile *
find_file(const struct memfile *v, size_t n, uint64_t device, uint64_t inode)
{
    const struct memfile key = { .device = device, .inode = inode };
    return n ? bsearch(&key, v, n, sizeof *v, by_inode) : NULL;
}

static uint64_t
less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t
written(const struct memfile *f)
{
    return less(f->bytes, f->before);
}

uint64_t
memfiles_bytes(const struct memfiles *m)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < m->n; i++)
        sum += written(&m->v[i]);
    return sum;
}

uint64_t
memfiles_unmapped(const struct memfiles *m)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < m->n; i++)
        sum += less(written(&m->v[i]), m->v[i].mapped);
    return less(sum, m->leaving);
}

void
memfiles_begin(struct memfiles *m)
{
    *m = (struct memfiles){ .n = 0 };
    // The clock of the times of files.
    clock_gettime(CLOCK_REALTIME_COARSE, &m->began);
}

/* ---- files that are open ---------------------------------------------------------------- */

static uint64_t
device_of(const struct statx *st)
{
    return makedev(st->stx_dev_major, st->stx_dev_minor);
}

/* Whether a process's descriptor is of a file on a tmpfs. */
static bool
is_in_memory(pid_t pid, const char *name)
{
    struct statfs fs;
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, name);
    return statfs(path, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

/* Whether the descriptor writes: the mode of its link in /proc tells. */
static bool
writes(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_mode & S_IWUSR;
}

/* Whether the file is older than the command.  Where a tmpfs keeps no time of birth, it is if it was
 * not written to since. */
static bool
was_there(const struct memfiles *m, const struct statx *st)
{
    const struct statx_timestamp *t =
        st->stx_mask & STATX_BTIME ? &st->stx_btime : &st->stx_mtime;
    return t->tv_sec < m->began.tv_sec ||
           (t->tv_sec == m->began.tv_sec && t->tv_nsec < m->began.tv_nsec);
}

/* The name of an open file, if it has one. */
static char *
name_of(int dir, const char *name, const struct statx *st)
{
    char path[4096];
    ssize_t n = st->stx_nlink ? readlinkat(dir, name, path, sizeof path - 1) : -1;
    return n > 0 && path[0] == '/' ? strndup(path, (size_t)n) : NULL;
}

/* Whether the file is already among the files of the process that begin at first. */
static bool
is_found(const struct memfiles *m, size_t first, const struct memfile *f)
{
    for (size_t i = first; i < m->n_found; i++)
        if (by_inode(&m->found[i], f) == 0)
            return true;
    return false;
}

static bool
add_found(struct memfiles *m, const struct memfile *f)
{
    if (m->n_found == m->capacity) {
        size_t more = 2 * m->capacity + 16;
        struct memfile *found = realloc(m->found, more * sizeof *found);
        if (!found)
            return false;
        m->found = found;
        m->capacity = more;
    }
    m->found[m->n_found++] = *f;
    return true;
}

/* Add the file of a descriptor to m->found, where the files of p begin at first.  Returns false if
 * memory is out. */
static bool
add_open(struct memfiles *m, int dir, const char *name, struct tree_proc *p,
         size_t first)
{
    struct statx st;
    // A file of a network is not asked for: that waits for its server and writes its pages back.
    if (statx(dir, name, AT_STATX_DONT_SYNC, STATX_BASIC_STATS | STATX_BTIME, &st) !=
            0 ||
        !S_ISREG(st.stx_mode) || !writes(dir, name) || !is_in_memory(p->pid, name))
        return true;
    struct memfile f = { .device = device_of(&st),
                         .inode = st.stx_ino,
                         .bytes = st.stx_blocks * BLOCK };
    if (is_found(m, first, &f))
        return true;
    const struct memfile *known = find_file(m->v, m->n, f.device, f.inode);
    if (known)
        f.before = known->before;
    else if (was_there(m, &st))
        f.before = f.bytes;
    p->files += written(&f);
    f.path = known ? NULL : name_of(dir, name, &st); // merge keeps the path of known
    if (add_found(m, &f))
        return true;
    free(f.path);
    return false;
}

static uint64_t
mapped_by(const struct tree_proc *p)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/status", (int)p->pid);
    int64_t bytes = os_bytes(path, "RssShmem");
    return bytes > 0 ? (uint64_t)bytes : 0;
}

static bool
add_process(struct memfiles *m, const struct tree *t, struct tree_proc *p)
{
    char path[32];
    struct dirent *e;
    size_t first = m->n_found;
    bool fine = true;
    snprintf(path, sizeof path, "%d/fd", (int)p->pid);
    int fd = openat(t->proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir && fd >= 0)
        close(fd);
    p->files = 0;
    while (dir && fine && (e = readdir(dir)))
        if (e->d_name[0] != '.')
            fine = add_open(m, fd, e->d_name, p, first);
    if (dir)
        closedir(dir);
    if (p->files)
        p->files = less(p->files, mapped_by(p));
    return fine;
}

/* ---- a look ------------------------------------------------------------------------------ */

/* Whether a file that nobody has open still exists under its name and is large. */
static bool
is_kept(struct memfile *f)
{
    struct statx st;
    if (!f->path ||
        statx(AT_FDCWD, f->path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) != 0 ||
        device_of(&st) != f->device || st.stx_ino != f->inode)
        return false;
    f->bytes = st.stx_blocks * BLOCK;
    return written(f) >= MEMFILES_CLOSED;
}

/* Leave each file once among the files that were found. */
static void
unite(struct memfiles *m)
{
    size_t n = 0;
    qsort(m->found, m->n_found, sizeof *m->found, by_inode);
    for (size_t i = 0; i < m->n_found; i++) {
        if (n == 0 || by_inode(&m->found[n - 1], &m->found[i]) != 0)
            m->found[n++] = m->found[i];
        else
            free(m->found[i].path);
    }
    m->n_found = n;
}

static void
drop_found(struct memfiles *m)
{
    for (size_t i = 0; i < m->n_found; i++)
        free(m->found[i].path);
    m->n_found = 0;
}

/* Replace the table by the files that were found and the known files that still count.  Without memory
 * it stays. */
static void
merge(struct memfiles *m)
{
    size_t n = m->n_found;
    struct memfile *all = malloc((m->n + n + 1) * sizeof *all);
    if (!all)
        return;
    if (n)
        memcpy(all, m->found, n * sizeof *all);
    m->n_found = 0;
    for (size_t i = 0; i < m->n; i++) {
        struct memfile *f = &m->v[i], *open = find_file(all, n, f->device, f->inode);
        if (open) {
            open->path = f->path;
            open->mapped = f->mapped;
        }
    }
    size_t last = n;
    for (size_t i = 0; i < m->n; i++) {
        struct memfile *f = &m->v[i];
        if (find_file(all, n, f->device, f->inode))
            continue;
        if (is_kept(f))
            all[last++] = *f;
        else
            free(f->path);
    }
    free(m->v);
    m->v = all;
    m->n = last;
    qsort(m->v, m->n, sizeof *m->v, by_inode);
}

void
memfiles_look(struct memfiles *m, struct tree *t)
{
    bool fine = true;
    for (size_t i = 0; i < t->n && fine; i++)
        fine = !t->procs[i].alive || add_process(m, t, &t->procs[i]);
    if (fine && (m->n_found || m->n)) {
        if (m->n_found)
            unite(m);
        merge(m);
    }
    drop_found(m);
}

/* ---- what is mapped -------------------------------------------------------------------------- */

/* The number behind the key, in bytes.  false: the line has another key. */
static bool
read_kb(const char *line, const char *key, uint64_t *bytes)
{
    size_t n = strlen(key);
    if (strncmp(line, key, n) != 0)
        return false;
    *bytes = strtoull(line + n, NULL, 10) * KB;
    return true;
}

/* The device and inode in the first line of a mapping: FROM-TO MODE OFFSET MAJOR:MINOR INODE [PATH].
 * false: it is another line, KEY: VALUE. */
static bool
read_mapping(const char *line, uint64_t *device, uint64_t *inode)
{
    enum { BEFORE_DEVICE = 3 };
    char *end;
    if (line[strcspn(line, " :")] != ' ')
        return false;
    for (int i = 0; i < BEFORE_DEVICE; i++) {
        line += strcspn(line, " ");
        line += strspn(line, " ");
    }
    unsigned long major = strtoul(line, &end, 16);
    if (*end != ':')
        return false;
    unsigned long minor = strtoul(end + 1, &end, 16);
    *device = makedev((unsigned)major, (unsigned)minor);
    *inode = strtoull(end, NULL, 10);
    return true;
}

/* Read a line of smaps.  *at is the file of the mapping that the lines describe, or NULL; a line with
 * PSS adds to its mapped bytes.  Returns the resident bytes of the mapping if the line has them. */
static uint64_t
take_line(struct memfiles *m, struct memfile **at, const char *line)
{
    uint64_t bytes, device, inode;
    if (read_kb(line, "Rss:", &bytes))
        return bytes;
    if (read_kb(line, "Pss:", &bytes) && *at)
        (*at)->mapped += bytes;
    else if (read_mapping(line, &device, &inode))
        *at = find_file(m->v, m->n, device, inode);
    return 0;
}

uint64_t
memfiles_max_mapped(const struct tree *t)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < t->n; i++)
        sum += mapped_by(&t->procs[i]);
    return sum;
}

static void
find_mapped_by(struct memfiles *m, const struct tree_proc *p)
{
    char path[48], line[4608];
    struct memfile *at = NULL;
    uint64_t seen = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)p->pid);
    int64_t resident = os_bytes(path, "VmRSS");
    snprintf(path, sizeof path, "/proc/%d/smaps", (int)p->pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        seen += take_line(m, &at, line);
    if (f)
        fclose(f);
    // munmap takes a mapping from the list first, and its pages off the count later.
    m->leaving += resident > 0 ? less((uint64_t)resident, seen) : 0;
}

void
memfiles_find_mapped(struct memfiles *m, const struct tree *t)
{
    m->leaving = 0;
    for (size_t i = 0; i < m->n; i++)
        m->v[i].mapped = 0;
    for (size_t i = 0; i < t->n; i++)
        if (mapped_by(&t->procs[i]))
            find_mapped_by(m, &t->procs[i]);
}
