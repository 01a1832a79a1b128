/* SPDX-License-Identifier: MIT */
/* path: see path.h. */
#include "lib/file/path.h"

#include "lib/base/hash.h"
#include "lib/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int
path_exists(const char *path, struct err *err)
{
    struct stat st;
    char q[TEXT_QUOTE];
    if (stat(path, &st) == 0)
        return 1;
    return errno == ENOENT || errno == ENOTDIR
               ? 0
               : err_set(err, ERR_IO, "%s:", text_quote(q, path, strlen(path)));
}

char *
path_escape(const char *path)
{
    struct buf b = { 0 };
    text_escape(&b, path, strlen(path));
    return b.data;
}

char *
path_join(const char *dir, const char *leaf)
{
    struct buf b = { 0 };
    buf_printf(&b, "%s/%s", dir, leaf);
    if (b.failed)
        buf_free(&b);
    return b.data;
}

char *
path_target(const char *path)
{
    char link[PATH_MAX];
    char *at = strdup(path);
    for (int hops = 0; at; hops++) {
        size_t len = strlen(at);
        while (len > 1 && at[len - 1] == '/')
            at[--len] = '\0';
        ssize_t n = readlink(at, link, sizeof link - 1);
        if (n < 0)
            break; // no link (EINVAL), or not there yet
        if (hops == 40) {
            free(at);
            errno = ELOOP;
            return NULL;
        }
        link[n] = '\0';
        char *slash = strrchr(at, '/');
        char *next;
        if (link[0] == '/' || !slash) {
            next = strdup(link);
        } else {
            *slash = '\0';
            next = path_join(at, link);
        }
        free(at);
        at = next;
    }
    return at;
}

char *
path_missing_directory(const char *path)
{
    struct buf dir = { 0 };
    struct stat st;
    bool missing = false;
    for (const char *slash = path; !missing && (slash = strchr(slash, '/')); slash++) {
        dir.len = 0;
        buf_add(&dir, path, (size_t)(slash - path));
        missing =
            slash > path && !dir.failed && stat(dir.data, &st) < 0 && errno == ENOENT;
    }
    char *shown = missing ? path_escape(dir.data) : NULL;
    buf_free(&dir);
    return shown;
}

int
path_cannot_make(const char *path, const char *name, const char *failed,
                 struct err *err)
{
    int why = errno;
    char *missing = why == ENOENT ? path_missing_directory(path) : NULL;
    if (missing)
        err_set(err, ERR_IO, "%s: there is no directory %s", name, missing);
    errno = why;
    if (!missing)
        err_set(err, ERR_IO, "%s: %s:", name, failed);
    free(missing);
    return -1;
}

bool
path_has_name(const char *path)
{
    size_t n = strlen(path);
    while (n && path[n - 1] == '/')
        n--;
    size_t from = n;
    while (from && path[from - 1] != '/')
        from--;
    size_t len = n - from; // 0 to 2: the beginning of ".."?
    return len > 2 || strncmp(path + from, "..", len) != 0;
}

int
path_check_name(const char *path, const char *name, struct err *err)
{
    if (path_has_name(path))
        return 0;
    return err_set(err, ERR_USAGE,
                   "\"%s\": ends in no name: expected the name of what is written",
                   name);
}

char *
path_beside(const char *path, const char *suffix)
{
    struct buf b = { 0 };
    const char *slash = strrchr(path, '/');
    const char *leaf = slash ? slash + 1 : path;
    size_t n = strlen(leaf);
    buf_add(&b, path, (size_t)(leaf - path));
    if (n <= 200)
        buf_printf(&b, ".%s%s", leaf, suffix);
    else
        buf_printf(&b, ".%.100s-%016llx%s", leaf, (unsigned long long)xxh3_64(leaf, n),
                   suffix);
    if (b.failed)
        buf_free(&b);
    return b.data;
}

const char path_reserved[] =
    "is a name of temporary files and locks, which a run removes: "
    "expected another; choose one";

static bool
is_reserved_leaf(const char *path)
{
    static const char *const suffixes[] = { PATH_TEMP, PATH_LOCK, PATH_OLD };
    const char *slash = strrchr(path, '/'), *leaf = slash ? slash + 1 : path;
    size_t n = strlen(leaf);
    for (size_t i = 0; *leaf == '.' && i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t tail = strlen(suffixes[i]);
        if (n > tail && strcmp(leaf + n - tail, suffixes[i]) == 0)
            return true;
    }
    return false;
}

bool
path_is_reserved(const char *path)
{
    char *target = path_target(path);
    bool reserved = target && is_reserved_leaf(target);
    free(target);
    return reserved;
}

bool
path_is_stream(const char *path)
{
    // A descriptor is written to even if it is that of a regular file: the shell
    // opened that for us.
    static const char *const names[] = { "/dev/stdout", "/dev/stderr", "/dev/fd/",
                                         "/proc/self/fd/" };
    struct stat st;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(path, names[i], strlen(names[i])) == 0)
            return true;
    return strcmp(path, "-") == 0 ||
           (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode));
}

bool
path_holds(const char *dir, const char *file)
{
    struct stat here, st;
    struct buf parent = { 0 };
    const char *slash = strrchr(file, '/');
    buf_add(&parent, slash ? file : ".", slash ? (size_t)(slash - file) + 1 : 1);
    bool inside = !parent.failed && stat(dir, &here) == 0 && S_ISDIR(here.st_mode) &&
                  stat(parent.data, &st) == 0 && st.st_dev == here.st_dev &&
                  st.st_ino == here.st_ino;
    buf_free(&parent);
    return inside;
}

bool
path_is_file(const char *path, dev_t dev, ino_t ino)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

int
path_sync_parent(const char *path, const char *name, struct err *err)
{
    char *dir = strdup(path);
    if (!dir)
        return err_set(err, ERR_MEMORY, "%s: out of memory", name);
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0'; // "/x" has the parent "/"
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    int rc = 0;
    if (fd < 0)
        return err_set(err, ERR_IO, "%s: cannot open its directory:", name);
    // Some file systems cannot sync a directory; they return EINVAL and keep the order.
    if (fsync(fd) < 0 && errno != EINVAL)
        rc = err_set(err, ERR_IO, "%s: cannot sync its directory:", name);
    close(fd);
    return rc;
}

bool
path_same_file(const char *a, const char *b)
{
    struct stat x, y;
    if (!a || !b)
        return false;
    if (stat(a, &x) != 0 || stat(b, &y) != 0)
        return strcmp(a, b) == 0;
    return x.st_ino == y.st_ino && x.st_dev == y.st_dev && !S_ISCHR(x.st_mode);
}

int
path_check_outputs(const char *const *outputs, size_t n, const char *const *inputs,
                   size_t n_inputs, struct err *err)
{
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < n; i++) {
        const char *out = outputs[i];
        if (out)
            text_quote(q, out, strlen(out));
        if (out && path_is_reserved(out))
            return err_set(err, ERR_USAGE, "%s: %s", q, path_reserved);
        for (size_t k = 0; k < n_inputs; k++)
            if (path_same_file(out, inputs[k]))
                return err_set(err, ERR_USAGE, "%s: is an input, too", q);
        for (size_t k = 0; k < i; k++)
            if (path_same_file(out, outputs[k]))
                return err_set(err, ERR_USAGE, "%s: is another output, too", q);
    }
    return 0;
}
