/* SPDX-License-Identifier: MIT */
/* pages: which pages of a file are in the page cache, by mincore.
 *
 *   pages list FILE     numbers of the resident pages, one a line
 *   pages count FILE    "RESIDENT TOTAL"
 *   pages evict FILE    write the file back and drop its pages; exit 1 if some stay
 *
 * Mapping the file reads none of it.  A kernel tells the truth only to an owner of the
 * file or a user who may write it.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct pages {
    int fd;
    size_t n, resident;
    unsigned char *in; // (n): bit 0: the page is resident
};

static _Noreturn void
fail(const char *what)
{
    fputs("pages: ", stderr);
    perror(what);
    exit(2);
}

static void
look(struct pages *p, const char *path)
{
    struct stat st;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    p->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (p->fd < 0 || fstat(p->fd, &st) < 0)
        fail(path);
    size_t size = (size_t)st.st_size;
    p->n = (size + page - 1) / page;
    p->in = calloc(p->n + 1, 1);
    if (!p->in)
        fail(path);
    p->resident = 0;
    if (size == 0)
        return;
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, p->fd, 0);
    if (map == MAP_FAILED || mincore(map, size, p->in) < 0)
        fail(path);
    munmap(map, size);
    for (size_t i = 0; i < p->n; i++)
        p->resident += p->in[i] & 1;
}

static void
done(struct pages *p)
{
    close(p->fd);
    free(p->in);
}

static int
evict(const char *path)
{
    struct pages p;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        fail(path);
    close(fd);
    look(&p, path);
    size_t left = p.resident;
    done(&p);
    if (left)
        fprintf(stderr, "pages: %s: %zu pages stay\n", path, left);
    return left ? 1 : 0;
}

int
main(int argc, char **argv)
{
    struct pages p;
    if (argc == 3 && strcmp(argv[1], "evict") == 0)
        return evict(argv[2]);
    if (argc != 3 || (strcmp(argv[1], "list") != 0 && strcmp(argv[1], "count") != 0)) {
        fputs("usage: pages list|count|evict FILE\n", stderr);
        return 2;
    }
    look(&p, argv[2]);
    if (strcmp(argv[1], "count") == 0)
        printf("%zu %zu\n", p.resident, p.n);
    else
        for (size_t i = 0; i < p.n; i++)
            if (p.in[i] & 1)
                printf("%zu\n", i);
    done(&p);
    return fflush(stdout) == 0 ? 0 : 2;
}
