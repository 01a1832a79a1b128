/* SPDX-License-Identifier: MIT */
/* dat: a .dat as a file, as standard input, and through a pipe, which is another way
 * through the same parser and must come to the same tensors. */
#include "tests/fuzz/fuzz.h"

static void
become_stdin(int fd)
{
    HOLDS(dup2(fd, STDIN_FILENO) == STDIN_FILENO, "dup2");
    close(fd);
}

/* All of it in a pipe, or false when that is too small. */
static bool
fill_pipe(const uint8_t *data, size_t n)
{
    int fd[2];
    HOLDS(pipe2(fd, O_CLOEXEC) == 0, "pipe");
    int room = fcntl(fd[1], F_GETPIPE_SZ);
    bool fits = room > 0 && n <= (size_t)room;
    if (fits)
        HOLDS(write(fd[1], data, n) == (ssize_t)n, "write");
    close(fd[1]);
    become_stdin(fd[0]);
    return fits;
}

static void
compare(const struct store *a, const struct store *b)
{
    HOLDS(a->n_tensors == b->n_tensors && a->bytes == b->bytes, "%zu tensors, %zu",
          a->n_tensors, b->n_tensors);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const struct tensor *x = &a->tensors[i], *y = &b->tensors[i];
        HOLDS(strcmp(x->name, y->name) == 0 && x->dtype == y->dtype &&
                  x->rank == y->rank && x->numel == y->numel &&
                  x->nbytes == y->nbytes && x->head == y->head &&
                  x->offset == y->offset,
              "%s", x->name);
        HOLDS(!x->rank || memcmp(x->shape, y->shape, x->rank * sizeof *x->shape) == 0,
              "%s", x->name);
    }
}

/* The same bytes from "-", compared with the open file. */
static void
from_stdin(const struct store *file, bool file_ok, bool list_only)
{
    struct store_options opt = { .guard = &fuzz_guard,
                                 .list_only = list_only,
                                 .tmpdir = fuzz_dir };
    struct err err = { 0 };
    struct store s;
    bool ok = store_open(&s, "-", &opt, &err) == 0;
    HOLDS(ok == file_ok, "the file was %s, standard input says: %s",
          file_ok ? "taken" : "refused", err.msg);
    if (ok) {
        compare(file, &s);
        fuzz_store(&s);
    } else {
        fuzz_refused(&err);
    }
    store_close(&s);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *path = fuzz_put("x.dat", data, n);
    struct store_options opt = { .guard = &fuzz_guard, .tmpdir = fuzz_dir };
    struct err err = { 0 };
    struct store s;
    fuzz_open(path, true);
    bool ok = store_open(&s, path, &opt, &err) == 0;
    if (ok)
        fuzz_store(&s);
    else
        fuzz_refused(&err);
    become_stdin(open(path, O_RDONLY | O_CLOEXEC));
    from_stdin(&s, ok, false);
    for (int list_only = 0; list_only < 2; list_only++)
        if (fill_pipe(data, n))
            from_stdin(&s, ok, list_only);
    store_close(&s);
    return 0;
}
