/* SPDX-License-Identifier: MIT */
/* failio: a shim for LD_PRELOAD that makes system calls fail, fall short, do
 * nothing, wait, stop or kill, so that tests can ask what a program does then.
 * Linux, glibc, x86-64 and aarch64.
 *
 *   FAILIO="KIND:N:WHAT[:PATHPART][;KIND:N:WHAT...]"
 *     KIND      open read pread readv mmap write pwrite copy_file_range
 *               sendfile fsync fdatasync sync_file_range rename renameat2
 *               linkat unlink mkdir close fallocate posix_fallocate ftruncate
 *               flock; groups: shortread (read pread, WHAT is ignored),
 *               shortwrite, anyrename, anysync, anywrite
 *     N         the N-th call of that kind (from 1), N+ from there on, * all
 *     WHAT      an errno (ENOSPC, EIO, ... or its number), short (one byte),
 *               noop (say that it went well, do nothing), delay=MS, stop
 *               (SIGSTOP before the call), kill=SIGNUM
 *     PATHPART  only calls on files whose absolute path holds this string;
 *               each rule counts the calls that match it
 *   FAILIO_LOG=FILE   a line for each call, as soon as it is over:
 *               SEQ KIND VERDICT RESULT FLAG PATH[ -> PATH2]
 *               VERDICT pass fail short noop delay stop kill; RESULT >= 0 or
 *               -errno; FLAG d directory, r file open for reading, w other
 *
 * A failed close closes, as Linux does.  It does everything by raw system
 * calls (nothing of libc runs inside), except posix_fallocate and stdio's
 * fopen and fclose.  Writes that stdio makes on its own are not seen.
 *
 *   cc -shared -fPIC -O2 -o build/failio.so tests/failio.c -ldl
 */
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS
#undef _TIME_BITS
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind {
    K_NONE,
    K_OPEN,
    K_READ,
    K_PREAD,
    K_READV,
    K_MMAP,
    K_WRITE,
    K_PWRITE,
    K_CFR,
    K_SENDFILE,
    K_FSYNC,
    K_FDATASYNC,
    K_SYNCRANGE,
    K_RENAME,
    K_RENAME2,
    K_LINK,
    K_UNLINK,
    K_MKDIR,
    K_CLOSE,
    K_FALLOCATE,
    K_PFALLOCATE,
    K_FTRUNCATE,
    K_FLOCK,
    KINDS
};

static const char *const kind_name[KINDS] = {
    "none",
    "open",
    "read",
    "pread",
    "readv",
    "mmap",
    "write",
    "pwrite",
    "copy_file_range",
    "sendfile",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "rename",
    "renameat2",
    "linkat",
    "unlink",
    "mkdir",
    "close",
    "fallocate",
    "posix_fallocate",
    "ftruncate",
    "flock",
};

#define BIT(k) (1u << (k))

static const struct {
    const char *name;
    unsigned set;
} groups[] = {
    { "shortread", BIT(K_READ) | BIT(K_PREAD) | BIT(K_READV) },
    { "shortwrite", BIT(K_WRITE) | BIT(K_PWRITE) | BIT(K_CFR) | BIT(K_SENDFILE) },
    { "anywrite", BIT(K_WRITE) | BIT(K_PWRITE) | BIT(K_CFR) | BIT(K_SENDFILE) },
    { "anysync", BIT(K_FSYNC) | BIT(K_FDATASYNC) },
    { "anyrename", BIT(K_RENAME) | BIT(K_RENAME2) | BIT(K_LINK) },
};

static const struct {
    const char *name;
    int value;
} errnos[] = {
    { "EPERM", EPERM },   { "ENOENT", ENOENT },         { "EINTR", EINTR },
    { "EIO", EIO },       { "EAGAIN", EAGAIN },         { "ENOMEM", ENOMEM },
    { "EACCES", EACCES }, { "EEXIST", EEXIST },         { "EXDEV", EXDEV },
    { "ENODEV", ENODEV }, { "EINVAL", EINVAL },         { "EMFILE", EMFILE },
    { "EFBIG", EFBIG },   { "ENOSPC", ENOSPC },         { "EROFS", EROFS },
    { "ENOSYS", ENOSYS }, { "EOPNOTSUPP", EOPNOTSUPP }, { "EDQUOT", EDQUOT },
    { "ENOLCK", ENOLCK }, { "ENOTSUP", ENOTSUP },
};

enum act { PASS, FAIL, SHORT, NOOP, DELAY, STOP, KILL };

static const char *const act_name[] = { "pass",  "fail", "short", "noop",
                                        "delay", "stop", "kill" };

struct rule {
    unsigned set;    // kinds, as bits
    unsigned long n; // 0: every call
    int onward;      // N+
    enum act act;
    int arg;          // errno, milliseconds or signal
    const char *part; // in the path, or NULL
    unsigned long seen;
};

#define MAX_RULES 8
#define MAX_PATH  1024 // calls come from handlers on small stacks, too

static struct rule rules[MAX_RULES];
static int n_rules;
static const char *log_path;
static unsigned long log_seq;
static int ready;

struct call {
    enum kind kind;
    enum act act;
    int arg;
    char flag;
    char path[MAX_PATH], path2[MAX_PATH];
};

static long
raw(long n, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
    long ret;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;

    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;

    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
#else
#error "failio.c: write raw() for this machine"
#endif
}

static void
complain(const char *what, const char *text)
{
    char line[256];
    int n = snprintf(line, sizeof line, "failio: %s: %.200s\n", what, text);

    raw(SYS_write, 2, (long)line, n, 0, 0, 0);
    raw(SYS_exit_group, 99, 0, 0, 0, 0, 0);
}

static unsigned
parse_kind(const char *s)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strcmp(s, groups[i].name) == 0)
            return groups[i].set;
    for (int i = 1; i < KINDS; i++)
        if (strcmp(s, kind_name[i]) == 0)
            return BIT(i);
    complain("unknown kind", s);
    return 0;
}

static void
parse_what(struct rule *r, const char *s)
{
    if (strncmp(s, "delay=", 6) == 0) {
        r->act = DELAY;
        r->arg = atoi(s + 6);
    } else if (strncmp(s, "kill=", 5) == 0) {
        r->act = KILL;
        r->arg = atoi(s + 5);
    } else if (strcmp(s, "stop") == 0) {
        r->act = STOP;
    } else if (strcmp(s, "noop") == 0) {
        r->act = NOOP;
    } else if (strcmp(s, "short") == 0) {
        r->act = SHORT;
    } else {
        r->act = FAIL;
        r->arg = atoi(s);
        for (size_t i = 0; i < sizeof errnos / sizeof *errnos; i++)
            if (strcmp(s, errnos[i].name) == 0)
                r->arg = errnos[i].value;
        if (r->arg == 0)
            complain("unknown errno", s);
    }
}

/* One rule; s is ours and is cut into its fields. */
static void
parse_rule(char *s)
{
    char *field[4] = { s, NULL, NULL, NULL };
    struct rule *r = &rules[n_rules];

    for (int i = 1; i < 4; i++) {
        field[i] = field[i - 1] ? strchr(field[i - 1], ':') : NULL;
        if (field[i])
            *field[i]++ = '\0';
    }
    if (!field[2] || n_rules == MAX_RULES)
        complain("want KIND:N:WHAT[:PATHPART]", s);
    r->set = parse_kind(field[0]);
    r->n = strtoul(field[1], NULL, 10); // "*" is 0
    r->onward = field[1][strlen(field[1]) - 1] == '+';
    parse_what(r, field[2]);
    if (strncmp(field[0], "short", 5) == 0)
        r->act = SHORT;
    r->part = field[3];
    n_rules++;
}

__attribute__((constructor)) static void
setup(void)
{
    static char copy[4096];
    const char *env = getenv("FAILIO");

    if (ready)
        return;
    ready = 1;
    log_path = getenv("FAILIO_LOG");
    if (!env || !*env)
        return;
    if (strlen(env) >= sizeof copy)
        complain("FAILIO is too long", env);
    strcpy(copy, env);
    for (char *s = copy, *next; s && *s; s = next) {
        next = strchr(s, ';');
        if (next)
            *next++ = '\0';
        parse_rule(s);
    }
}

static void
link_text(char *out, const char *link)
{
    long n = raw(SYS_readlinkat, AT_FDCWD, (long)link, (long)out, MAX_PATH - 1, 0, 0);

    out[n > 0 ? n : 0] = '\0';
}

static void
fd_path(char *out, int fd)
{
    char link[64];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    link_text(out, link);
}

/* Absolute, not normalised. */
static void
at_path(char *out, int dirfd, const char *path)
{
    size_t n;

    out[0] = '\0';
    if (!path)
        return;
    if (path[0] != '/') {
        if (dirfd == AT_FDCWD)
            link_text(out, "/proc/self/cwd");
        else
            fd_path(out, dirfd);
        strncat(out, "/", MAX_PATH - 1 - strlen(out));
    }
    n = strlen(out);
    snprintf(out + n, MAX_PATH - n, "%s", path);
}

static void
write_log(const struct call *c, const char *verdict, long result)
{
    static __thread char line[2 * MAX_PATH + 128];
    unsigned long seq = __atomic_add_fetch(&log_seq, 1, __ATOMIC_RELAXED);
    long fd;
    int n;

    if (!log_path)
        return;
    n = snprintf(line, sizeof line, "%lu %s %s %ld %c %s%s%s\n", seq,
                 kind_name[c->kind], verdict, result, c->flag, c->path,
                 c->path2[0] ? " -> " : "", c->path2);
    fd = raw(SYS_openat, AT_FDCWD, (long)log_path,
             O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600, 0, 0);
    if (fd < 0)
        return;
    raw(SYS_write, fd, (long)line, n, 0, 0, 0);
    raw(SYS_close, fd, 0, 0, 0, 0, 0);
}

/* Decide what becomes of the call; waits, stops and kills happen here. */
static void
judge(struct call *c)
{
    setup();
    c->act = PASS;
    c->arg = 0;
    for (int i = 0; i < n_rules; i++) {
        struct rule *r = &rules[i];
        unsigned long n;

        if (!(r->set & BIT(c->kind)))
            continue;
        if (r->part && !strstr(c->path, r->part) && !strstr(c->path2, r->part))
            continue;
        n = __atomic_add_fetch(&r->seen, 1, __ATOMIC_RELAXED);
        if (c->act != PASS || !(r->n == 0 || n == r->n || (r->onward && n > r->n)))
            continue;
        c->act = r->act;
        c->arg = r->arg;
    }
    if (c->act < DELAY)
        return;
    write_log(c, act_name[c->act], 0);
    if (c->act == DELAY) {
        struct timespec t = { c->arg / 1000, c->arg % 1000 * 1000000L };
        raw(SYS_nanosleep, (long)&t, 0, 0, 0, 0, 0); // a signal ends it
    } else {
        raw(SYS_kill, raw(SYS_getpid, 0, 0, 0, 0, 0, 0),
            c->act == STOP ? SIGSTOP : c->arg, 0, 0, 0, 0);
    }
    c->act = PASS;
}

static void
begin_fd(struct call *c, enum kind kind, int fd)
{
    struct stat st;
    long mode = raw(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0);

    c->kind = kind;
    c->path2[0] = '\0';
    fd_path(c->path, fd);
    c->flag = mode >= 0 && (mode & O_ACCMODE) == O_RDONLY ? 'r' : 'w';
#ifdef SYS_newfstatat
    if (raw(SYS_newfstatat, fd, (long)"", (long)&st, AT_EMPTY_PATH, 0, 0) == 0
#else
    if (raw(SYS_fstat, fd, (long)&st, 0, 0, 0, 0) == 0
#endif
        && S_ISDIR(st.st_mode))
        c->flag = 'd';
    judge(c);
}

static void
begin_path(struct call *c, enum kind kind, int dir, const char *path, int dir2,
           const char *path2)
{
    c->kind = kind;
    c->flag = 'w';
    at_path(c->path, dir, path);
    at_path(c->path2, dir2, path2);
    judge(c);
}

/* Log a raw result, and turn it into libc's. */
static long
end(const struct call *c, long ret)
{
    write_log(c, act_name[c->act], ret);
    if (ret < 0 && ret > -4096) {
        errno = (int)-ret;
        return -1;
    }
    return ret;
}

/* A call on fd with arguments a; a[len] (len < 0: none) is its byte count,
 * which is also what a noop returns. */
static long
fd_call(enum kind kind, int fd, long nr, int len, long a0, long a1, long a2, long a3,
        long a4, long a5)
{
    long a[6] = { a0, a1, a2, a3, a4, a5 };
    struct call c;
    long ret;

    begin_fd(&c, kind, fd);
    if (c.act == FAIL) {
        ret = -c.arg;
        if (kind == K_CLOSE)
            raw(SYS_close, fd, 0, 0, 0, 0, 0);
    } else if (c.act == NOOP) {
        ret = len >= 0 ? a[len] : 0;
    } else {
        if (c.act == SHORT && len >= 0 && a[len] > 1)
            a[len] = 1;
        ret = raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    return end(&c, ret);
}

/* The same for calls on one or two paths. */
static long
path_call(enum kind kind, int dir, const char *path, int dir2, const char *path2,
          long nr, long a0, long a1, long a2, long a3, long a4)
{
    struct call c;
    long ret;

    begin_path(&c, kind, dir, path, dir2, path2);
    if (c.act == FAIL)
        ret = -c.arg;
    else if (c.act == NOOP)
        ret = 0;
    else
        ret = raw(nr, a0, a1, a2, a3, a4, 0);
    return end(&c, ret);
}

/* A vector call: short means the first byte of the first part. */
static long
iov_call(enum kind kind, int fd, long nr, const struct iovec *iov, int n, long off,
         long flags)
{
    struct iovec one;
    struct call c;
    long ret = 0;

    begin_fd(&c, kind, fd);
    if (c.act == SHORT && n > 0 && iov[0].iov_len > 0) {
        one = iov[0];
        one.iov_len = 1;
        iov = &one;
        n = 1;
    }
    if (c.act == FAIL)
        ret = -c.arg;
    else if (c.act == NOOP)
        for (int i = 0; i < n; i++)
            ret += (long)iov[i].iov_len;
    else
        ret = raw(nr, fd, (long)iov, n, off, 0, flags);
    return end(&c, ret);
}

static long
open_call(int dir, const char *path, int flags, mode_t mode)
{
    return path_call(K_OPEN, dir, path, AT_FDCWD, NULL, SYS_openat, dir, (long)path,
                     flags, mode, 0);
}

#define HAS_MODE(f) (((f)&O_CREAT) || ((f)&O_TMPFILE) == O_TMPFILE)
#define EXPORT      __attribute__((visibility("default")))

#define DEF_OPEN(name)                                                                 \
    EXPORT int name(const char *path, int flags, ...)                                  \
    {                                                                                  \
        mode_t mode = 0;                                                               \
        if (HAS_MODE(flags)) {                                                         \
            va_list ap;                                                                \
            va_start(ap, flags);                                                       \
            mode = va_arg(ap, mode_t);                                                 \
            va_end(ap);                                                                \
        }                                                                              \
        return (int)open_call(AT_FDCWD, path, flags, mode);                            \
    }
#define DEF_OPENAT(name)                                                               \
    EXPORT int name(int dir, const char *path, int flags, ...)                         \
    {                                                                                  \
        mode_t mode = 0;                                                               \
        if (HAS_MODE(flags)) {                                                         \
            va_list ap;                                                                \
            va_start(ap, flags);                                                       \
            mode = va_arg(ap, mode_t);                                                 \
            va_end(ap);                                                                \
        }                                                                              \
        return (int)open_call(dir, path, flags, mode);                                 \
    }
#define DEF_OPEN_2(name)                                                               \
    EXPORT int name(const char *path, int flags);                                      \
    EXPORT int name(const char *path, int flags)                                       \
    {                                                                                  \
        return (int)open_call(AT_FDCWD, path, flags, 0);                               \
    }
#define DEF_OPENAT_2(name)                                                             \
    EXPORT int name(int dir, const char *path, int flags);                             \
    EXPORT int name(int dir, const char *path, int flags)                              \
    {                                                                                  \
        return (int)open_call(dir, path, flags, 0);                                    \
    }
#define DEF_CREAT(name)                                                                \
    EXPORT int name(const char *path, mode_t mode)                                     \
    {                                                                                  \
        return (int)open_call(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);     \
    }
#define DEF_READ(name)                                                                 \
    EXPORT ssize_t name(int fd, void *buf, size_t n);                                  \
    EXPORT ssize_t name(int fd, void *buf, size_t n)                                   \
    {                                                                                  \
        return fd_call(K_READ, fd, SYS_read, 2, fd, (long)buf, (long)n, 0, 0, 0);      \
    }
#define DEF_PREAD(name)                                                                \
    EXPORT ssize_t name(int fd, void *buf, size_t n, off_t off);                       \
    EXPORT ssize_t name(int fd, void *buf, size_t n, off_t off)                        \
    {                                                                                  \
        return fd_call(K_PREAD, fd, SYS_pread64, 2, fd, (long)buf, (long)n, off, 0,    \
                       0);                                                             \
    }
#define DEF_WRITE(name)                                                                \
    EXPORT ssize_t name(int fd, const void *buf, size_t n);                            \
    EXPORT ssize_t name(int fd, const void *buf, size_t n)                             \
    {                                                                                  \
        return fd_call(K_WRITE, fd, SYS_write, 2, fd, (long)buf, (long)n, 0, 0, 0);    \
    }
#define DEF_PWRITE(name)                                                               \
    EXPORT ssize_t name(int fd, const void *buf, size_t n, off_t off);                 \
    EXPORT ssize_t name(int fd, const void *buf, size_t n, off_t off)                  \
    {                                                                                  \
        return fd_call(K_PWRITE, fd, SYS_pwrite64, 2, fd, (long)buf, (long)n, off, 0,  \
                       0);                                                             \
    }
#define DEF_IOV(name, kind, nr)                                                        \
    EXPORT ssize_t name(int fd, const struct iovec *iov, int n)                        \
    {                                                                                  \
        return iov_call(kind, fd, nr, iov, n, 0, 0);                                   \
    }
#define DEF_PIOV(name, kind, nr)                                                       \
    EXPORT ssize_t name(int fd, const struct iovec *iov, int n, off_t off)             \
    {                                                                                  \
        return iov_call(kind, fd, nr, iov, n, off, 0);                                 \
    }
#define DEF_PIOV2(name, kind, nr)                                                      \
    EXPORT ssize_t name(int fd, const struct iovec *iov, int n, off_t off, int flags)  \
    {                                                                                  \
        return iov_call(kind, fd, nr, iov, n, off, flags);                             \
    }
#define DEF_FD(name, kind, nr)                                                         \
    EXPORT int name(int fd);                                                           \
    EXPORT int name(int fd)                                                            \
    {                                                                                  \
        return (int)fd_call(kind, fd, nr, -1, fd, 0, 0, 0, 0, 0);                      \
    }

DEF_OPEN(open)
DEF_OPEN(open64)
DEF_OPENAT(openat)
DEF_OPENAT(openat64)
extern int __open(const char *, int, ...);
extern int __open64(const char *, int, ...);
DEF_OPEN(__open)
DEF_OPEN(__open64)
DEF_OPEN_2(__open_2)
DEF_OPEN_2(__open64_2)
DEF_OPENAT_2(__openat_2)
DEF_OPENAT_2(__openat64_2)
DEF_CREAT(creat)
DEF_CREAT(creat64)
DEF_READ(read)
DEF_READ(__read)
DEF_PREAD(pread)
DEF_PREAD(pread64)
DEF_PREAD(__pread64)
DEF_WRITE(write)
DEF_WRITE(__write)
DEF_PWRITE(pwrite)
DEF_PWRITE(pwrite64)
DEF_PWRITE(__pwrite64)
DEF_IOV(readv, K_READV, SYS_readv)
DEF_IOV(writev, K_WRITE, SYS_writev)
DEF_PIOV(preadv, K_READV, SYS_preadv)
DEF_PIOV(preadv64, K_READV, SYS_preadv)
DEF_PIOV(pwritev, K_PWRITE, SYS_pwritev)
DEF_PIOV(pwritev64, K_PWRITE, SYS_pwritev)
DEF_PIOV2(preadv2, K_READV, SYS_preadv2)
DEF_PIOV2(preadv64v2, K_READV, SYS_preadv2)
DEF_PIOV2(pwritev2, K_PWRITE, SYS_pwritev2)
DEF_PIOV2(pwritev64v2, K_PWRITE, SYS_pwritev2)
DEF_FD(fsync, K_FSYNC, SYS_fsync)
DEF_FD(fdatasync, K_FDATASYNC, SYS_fdatasync)
DEF_FD(close, K_CLOSE, SYS_close)
DEF_FD(__close, K_CLOSE, SYS_close)

EXPORT ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
EXPORT ssize_t
__read_chk(int fd, void *buf, size_t n, size_t room)
{
    if (n > room)
        abort();
    return read(fd, buf, n);
}

EXPORT ssize_t __pread_chk(int fd, void *buf, size_t n, off_t off, size_t room);
EXPORT ssize_t
__pread_chk(int fd, void *buf, size_t n, off_t off, size_t room)
{
    if (n > room)
        abort();
    return pread(fd, buf, n, off);
}

EXPORT ssize_t __pread64_chk(int fd, void *buf, size_t n, off_t off, size_t room);
EXPORT ssize_t
__pread64_chk(int fd, void *buf, size_t n, off_t off, size_t room)
{
    return __pread_chk(fd, buf, n, off, room);
}

static void *
map_call(void *addr, size_t n, int prot, int flags, int fd, off_t off)
{
    if (flags & MAP_ANONYMOUS) // libc's own business
        return (void *)end(&(struct call){ .kind = K_NONE },
                           raw(SYS_mmap, (long)addr, (long)n, prot, flags, fd, off));
    return (void *)fd_call(K_MMAP, fd, SYS_mmap, -1, (long)addr, (long)n, prot, flags,
                           fd, off);
}

EXPORT void *
mmap(void *addr, size_t n, int prot, int flags, int fd, off_t off)
{
    return map_call(addr, n, prot, flags, fd, off);
}

EXPORT void *
mmap64(void *addr, size_t n, int prot, int flags, int fd, off_t off)
{
    return map_call(addr, n, prot, flags, fd, off);
}

EXPORT ssize_t
copy_file_range(int in, off_t *in_off, int out, off_t *out_off, size_t n,
                unsigned flags)
{
    return fd_call(K_CFR, out, SYS_copy_file_range, 4, in, (long)in_off, out,
                   (long)out_off, (long)n, flags);
}

EXPORT ssize_t
sendfile(int out, int in, off_t *off, size_t n)
{
    return fd_call(K_SENDFILE, out, SYS_sendfile, 3, out, in, (long)off, (long)n, 0, 0);
}

EXPORT ssize_t
sendfile64(int out, int in, off_t *off, size_t n)
{
    return sendfile(out, in, off, n);
}

EXPORT int
sync_file_range(int fd, off_t off, off_t n, unsigned flags)
{
    return (int)fd_call(K_SYNCRANGE, fd, SYS_sync_file_range, -1, fd, off, n, flags, 0,
                        0);
}

EXPORT int
fallocate(int fd, int mode, off_t off, off_t n)
{
    return (int)fd_call(K_FALLOCATE, fd, SYS_fallocate, -1, fd, mode, off, n, 0, 0);
}

EXPORT int
fallocate64(int fd, int mode, off_t off, off_t n)
{
    return fallocate(fd, mode, off, n);
}

/* Returns the error; falls back to writing where fallocate is missing, so
 * this one is libc's. */
EXPORT int
posix_fallocate(int fd, off_t off, off_t n)
{
    static int (*real)(int, off_t, off_t);
    struct call c;
    int ret = 0;

    begin_fd(&c, K_PFALLOCATE, fd);
    if (c.act == FAIL) {
        ret = c.arg;
    } else if (c.act != NOOP) {
        if (!real)
            *(void **)&real = dlsym(RTLD_NEXT, "posix_fallocate");
        ret = real(fd, off, n);
    }
    write_log(&c, act_name[c.act], -ret);
    return ret;
}

EXPORT int
posix_fallocate64(int fd, off_t off, off_t n)
{
    return posix_fallocate(fd, off, n);
}

EXPORT int
ftruncate(int fd, off_t n)
{
    return (int)fd_call(K_FTRUNCATE, fd, SYS_ftruncate, -1, fd, n, 0, 0, 0, 0);
}

EXPORT int
ftruncate64(int fd, off_t n)
{
    return ftruncate(fd, n);
}

EXPORT int
flock(int fd, int op)
{
    return (int)fd_call(K_FLOCK, fd, SYS_flock, -1, fd, op, 0, 0, 0, 0);
}

/* plain: asked for without flags, so the kind is rename, not renameat2. */
static long
rename_call(int plain, int a, const char *from, int b, const char *to, unsigned flags)
{
    return path_call(plain ? K_RENAME : K_RENAME2, a, from, b, to, SYS_renameat2, a,
                     (long)from, b, (long)to, flags);
}

EXPORT int
rename(const char *from, const char *to)
{
    return (int)rename_call(1, AT_FDCWD, from, AT_FDCWD, to, 0);
}

EXPORT int
renameat(int a, const char *from, int b, const char *to)
{
    return (int)rename_call(1, a, from, b, to, 0);
}

EXPORT int
renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    return (int)rename_call(0, a, from, b, to, flags);
}

EXPORT int
linkat(int a, const char *from, int b, const char *to, int flags)
{
    return (int)path_call(K_LINK, a, from, b, to, SYS_linkat, a, (long)from, b,
                          (long)to, flags);
}

EXPORT int
link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

EXPORT int
unlinkat(int dir, const char *path, int flags)
{
    return (int)path_call(K_UNLINK, dir, path, AT_FDCWD, NULL, SYS_unlinkat, dir,
                          (long)path, flags, 0, 0);
}

EXPORT int
unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

EXPORT int
rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

EXPORT int
mkdirat(int dir, const char *path, mode_t mode)
{
    return (int)path_call(K_MKDIR, dir, path, AT_FDCWD, NULL, SYS_mkdirat, dir,
                          (long)path, mode, 0, 0);
}

EXPORT int
mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

static FILE *
fopen_call(const char *name, const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *);
    struct call c;
    FILE *f = NULL;

    begin_path(&c, K_OPEN, AT_FDCWD, path, AT_FDCWD, NULL);
    if (c.act == FAIL) {
        end(&c, -c.arg);
        return NULL;
    }
    *(void **)&real = dlsym(RTLD_NEXT, name);
    f = real(path, mode);
    write_log(&c, act_name[c.act], f ? 0 : -errno);
    return f;
}

EXPORT FILE *
fopen(const char *path, const char *mode)
{
    return fopen_call("fopen", path, mode);
}

EXPORT FILE *
fopen64(const char *path, const char *mode)
{
    return fopen_call("fopen64", path, mode);
}

EXPORT int
fclose(FILE *f)
{
    static int (*real)(FILE *);
    struct call c;
    int ret;

    begin_fd(&c, K_CLOSE, fileno(f));
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fclose");
    ret = real(f);
    if (c.act == FAIL)
        return (int)end(&c, -c.arg);
    write_log(&c, act_name[c.act], ret);
    return ret;
}

/* syscall(2) by number: the kinds that have an entry here, the rest as is. */
EXPORT long
syscall(long nr, ...)
{
    long a[6];
    va_list ap;

    va_start(ap, nr);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);

#define FD(kind, fd, len)                                                              \
    return fd_call(kind, (int)(fd), nr, len, a[0], a[1], a[2], a[3], a[4], a[5])
    switch (nr) {
    case SYS_openat:
        return open_call((int)a[0], (const char *)a[1], (int)a[2], (mode_t)a[3]);
    case SYS_read:
        FD(K_READ, a[0], 2);
    case SYS_pread64:
        FD(K_PREAD, a[0], 2);
    case SYS_write:
        FD(K_WRITE, a[0], 2);
    case SYS_pwrite64:
        FD(K_PWRITE, a[0], 2);
    case SYS_copy_file_range:
        FD(K_CFR, a[2], 4);
    case SYS_sendfile:
        FD(K_SENDFILE, a[0], 3);
    case SYS_fsync:
        FD(K_FSYNC, a[0], -1);
    case SYS_fdatasync:
        FD(K_FDATASYNC, a[0], -1);
    case SYS_sync_file_range:
        FD(K_SYNCRANGE, a[0], -1);
    case SYS_fallocate:
        FD(K_FALLOCATE, a[0], -1);
    case SYS_ftruncate:
        FD(K_FTRUNCATE, a[0], -1);
    case SYS_flock:
        FD(K_FLOCK, a[0], -1);
    case SYS_close:
        FD(K_CLOSE, a[0], -1);
    case SYS_renameat2:
        return rename_call(0, (int)a[0], (const char *)a[1], (int)a[2],
                           (const char *)a[3], (unsigned)a[4]);
#ifdef SYS_renameat
    case SYS_renameat:
        return rename_call(1, (int)a[0], (const char *)a[1], (int)a[2],
                           (const char *)a[3], 0);
#endif
#ifdef SYS_rename
    case SYS_rename:
        return rename((const char *)a[0], (const char *)a[1]);
    case SYS_open:
        return open_call(AT_FDCWD, (const char *)a[0], (int)a[1], (mode_t)a[2]);
#endif
    case SYS_linkat:
        return linkat((int)a[0], (const char *)a[1], (int)a[2], (const char *)a[3],
                      (int)a[4]);
    case SYS_unlinkat:
        return unlinkat((int)a[0], (const char *)a[1], (int)a[2]);
    case SYS_mkdirat:
        return mkdirat((int)a[0], (const char *)a[1], (mode_t)a[2]);
    default: {
        long ret = raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);

        if (ret < 0 && ret > -4096) {
            errno = (int)-ret;
            return -1;
        }
        return ret;
    }
    }
#undef FD
}
