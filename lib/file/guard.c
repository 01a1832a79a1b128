/* SPDX-License-Identifier: MIT */
/* guard: see guard.h. */
#include "lib/file/guard.h"

#include "lib/file/map.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int
guard_map(struct guard *g, struct map *m, struct err *err)
{
    for (int i = 0; i < GUARD_SLOTS; i++) {
        struct map *empty = NULL;
        if (atomic_compare_exchange_strong(&g->maps[i], &empty, m))
            return 0;
    }
    return err_set(err, ERR_IO, "more than %d files open at once", GUARD_SLOTS);
}

int
guard_temp(struct guard *g, const char *path, struct err *err)
{
    for (int i = 0; i < GUARD_SLOTS; i++) {
        const char *empty = NULL;
        if (atomic_compare_exchange_strong(&g->temps[i], &empty, path))
            return 0;
    }
    return err_set(err, ERR_IO, "more than %d output files at once", GUARD_SLOTS);
}

void
guard_forget_map(struct guard *g, const struct map *m)
{
    for (int i = 0; i < GUARD_SLOTS; i++)
        if (atomic_load(&g->maps[i]) == m)
            atomic_store(&g->maps[i], NULL);
}

void
guard_forget_temp(struct guard *g, const char *path)
{
    for (int i = 0; i < GUARD_SLOTS; i++)
        if (atomic_load(&g->temps[i]) == path)
            atomic_store(&g->temps[i], NULL);
}

/* Signals that the thread itself caused are not held back. */
static void
ending_signals(sigset_t *set)
{
    static const int own[] = { SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGABRT, SIGTRAP };
    sigfillset(set);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(set, own[i]);
}

void
guard_hold(struct guard *g, sigset_t *before)
{
    sigset_t set;
    ending_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, before);
    atomic_fetch_add(&g->held, 1);
    if (!atomic_load(&g->ending))
        return;
    // A handler is running on another thread: make nothing more.
    atomic_fetch_sub(&g->held, 1);
    for (;;)
        pause();
}

void
guard_release(struct guard *g, const sigset_t *before)
{
    atomic_fetch_sub(&g->held, 1);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

bool
guard_repair(struct guard *g, const void *addr)
{
    for (int i = 0; i < GUARD_SLOTS; i++) {
        struct map *m = atomic_load(&g->maps[i]);
        if (!m || (const uint8_t *)addr < m->data ||
            (const uint8_t *)addr >= m->data + m->size)
            continue;
        size_t page = (size_t)((const uint8_t *)addr - m->data) / m->page * m->page;
        void *from = (void *)(uintptr_t)(m->data + page);
        void *p = mmap(from, m->size - page, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        atomic_store(&m->lost, true);
        return p != MAP_FAILED;
    }
    return false;
}

/* Remove a directory that holds files only.  readdir may allocate, so this is
 * the system call. */
static void
remove_directory(const char *path)
{
    struct entry {
        uint64_t ino, off;
        unsigned short bytes;
        unsigned char type;
        char name[];
    };
    _Alignas(8) char list[4096];
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    long n;
    while (fd >= 0 && (n = syscall(SYS_getdents64, fd, list, sizeof list)) > 0)
        for (long at = 0; at < n;) {
            const struct entry *e = (const struct entry *)(const void *)(list + at);
            unlinkat(fd, e->name, 0);
            at += e->bytes;
        }
    if (fd >= 0)
        close(fd);
    rmdir(path);
}

void
guard_remove_temps(struct guard *g)
{
    for (int i = 0; i < GUARD_SLOTS; i++) {
        const char *path = atomic_load(&g->temps[i]);
        if (path && unlink(path) < 0)
            remove_directory(path);
    }
}

/* The holder is another thread, since its own signals are blocked: it goes on. */
void
guard_end(struct guard *g)
{
    atomic_store(&g->ending, true);
    while (atomic_load(&g->held))
        poll(NULL, 0, 1);
    guard_remove_temps(g);
}
