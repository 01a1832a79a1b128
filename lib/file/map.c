/* SPDX-License-Identifier: MIT */
/* map: see map.h. */
#include "lib/file/map.h"

#include "lib/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int
map_fd(struct map *m, int fd, const char *path, struct guard *g, struct err *err)
{
    struct buf name = { 0 };
    struct stat st;
    *m = (struct map){ .fd = fd, .page = (size_t)sysconf(_SC_PAGESIZE), .guard = g };
    text_escape(&name, path, strlen(path));
    m->name = name.data;
    m->path = strdup(path);
    if (!m->name || !m->path)
        return err_set(err, ERR_MEMORY, "out of memory for a file name");
    if (fstat(fd, &st) < 0)
        return err_set(err, ERR_IO, "%s:", m->name);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_IO, "%s: not a regular file", m->name);
    m->size = (size_t)st.st_size;
    m->changed = st.st_mtim;
    m->dev = st.st_dev;
    m->ino = st.st_ino;
    if (m->size == 0)
        return 0;
    void *p = mmap(NULL, m->size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return err_set(err, ERR_IO, "%s: cannot map %zu bytes:", m->name, m->size);
    m->data = p;
    // One page a fault: a listing must not drag payloads in behind the headers.
    madvise(p, m->size, MADV_RANDOM);
    return guard_map(g, m, err);
}

int
map_open(struct map *m, const char *path, struct guard *g, struct err *err)
{
    *m = (struct map){ .fd = -1 };
    // O_NONBLOCK: a FIFO is to be refused, not waited for.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        char q[TEXT_QUOTE];
        return err_set(err, ERR_IO, "%s:", text_quote(q, path, strlen(path)));
    }
    return map_fd(m, fd, path, g, err);
}

void
map_close(struct map *m)
{
    if (m->data) {
        guard_forget_map(m->guard, m);
        munmap((void *)(uintptr_t)m->data, m->size);
    }
    if (m->path && m->fd >= 0)
        close(m->fd);
    free(m->path);
    free(m->name);
    *m = (struct map){ .fd = -1 };
}

void
map_forget(struct map *m, uint64_t from, uint64_t to)
{
    uint64_t mask = ~(uint64_t)(m->page - 1);
    from = (from + m->page - 1) & mask;
    to = (to < m->size ? to : m->size) & mask;
    if (from < to)
        madvise((void *)(uintptr_t)(m->data + from), (size_t)(to - from),
                MADV_DONTNEED);
}

void
map_expect(struct map *m, uint64_t from, uint64_t to)
{
    if (from < to)
        posix_fadvise(m->fd, (off_t)from, (off_t)(to - from), POSIX_FADV_WILLNEED);
}

void
map_use(struct map *m)
{
    if (m->data)
        madvise((void *)(uintptr_t)m->data, m->size, MADV_NORMAL);
}

void
map_scatter(struct map *m, bool on)
{
    posix_fadvise(m->fd, 0, 0, on ? POSIX_FADV_RANDOM : POSIX_FADV_NORMAL);
}

int
map_check(struct map *m, struct err *err)
{
    struct stat st;
    if (fstat(m->fd, &st) < 0)
        return err_set(err, ERR_IO, "%s:", m->name);
    if ((uint64_t)st.st_size != m->size)
        return err_set(
            err, ERR_IO,
            "%s: the file had %zu bytes when opened and has %lld now: it was "
            "changed while being read",
            m->name, m->size, (long long)st.st_size);
    if (atomic_load(&m->lost))
        return err_set(
            err, ERR_IO,
            "%s: a part of it could not be read: the disk or the connection to it "
            "may be faulty",
            m->name);
    if (st.st_mtim.tv_sec != m->changed.tv_sec ||
        st.st_mtim.tv_nsec != m->changed.tv_nsec)
        return err_set(
            err, ERR_IO,
            "%s: it was written to while being read: run again when no other "
            "process writes it",
            m->name);
    return 0;
}

int
map_read(struct map *m, void *dst, size_t n, uint64_t offset, struct err *err)
{
    char *to = dst;
    while (n) {
        ssize_t got = pread(m->fd, to, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set(err, ERR_IO, "%s: byte %llu: read:", m->name,
                           (unsigned long long)offset);
        if (got == 0) {
            if (map_check(m, err) < 0)
                return -1;
            return err_set(
                err, ERR_IO,
                "%s: byte %llu: the file ends here, before what is to be read", m->name,
                (unsigned long long)offset);
        }
        to += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}
