/* SPDX-License-Identifier: MIT */
/* guard and map: mapped input files, what happens when they shrink, and the temporary
 * files that a deadly signal leaves. */
#include "lib/file/guard.h"

#include "lib/file/map.h"
#include "tests/unit/check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { PAGES = 4 };

static struct guard guard;
static size_t page;
static volatile sig_atomic_t repaired, strays;

static void
on_sigbus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (guard_repair(&guard, info->si_addr)) {
        repaired++;
        return;
    }
    strays++;
    signal(sig, SIG_DFL);
}

/* A read behind an indirect call: valgrind goes on after a handler with the registers
 * that it knew at the last jump it could not see through. */
static uint8_t
read_byte(const uint8_t *p)
{
    return *(const volatile uint8_t *)p;
}

static uint8_t (*volatile peek)(const uint8_t *) = read_byte;

static void
put_pages(const char *path, size_t n)
{
    uint8_t *p = malloc(n);
    NEED(p);
    check_fill(p, n);
    check_put(path, p, n);
    free(p);
}

static void
check_open(void)
{
    struct err err = { 0 };
    struct map m;
    uint8_t byte = 7;
    check_put("empty", "", 0);
    check_put("some", "abc", 3);
    NEED(mkdir("dir", 0777) == 0);
    NEED(mkfifo("fifo", 0666) == 0);

    CHECK(map_open(&m, "some", &guard, &err) == 0 && m.size == 3);
    CHECK(memcmp(m.data, "abc", 3) == 0 && strcmp(m.path, "some") == 0);
    CHECK(map_read(&m, &byte, 1, 2, &err) == 0 && byte == 'c');
    CHECK(map_read(&m, &byte, 0, 3, &err) == 0 && map_check(&m, &err) == 0);
    CHECK(map_read(&m, &byte, 1, 3, &err) == -1);
    CHECK_ERR(err, ERR_IO, "some: byte 3:");
    map_close(&m);
    map_close(&m);

    err = (struct err){ 0 };
    CHECK(map_open(&m, "empty", &guard, &err) == 0 && m.size == 0 && !m.data);
    CHECK(map_check(&m, &err) == 0);
    map_close(&m);

    static const char *const odd[] = { "dir", "fifo", "/dev/null" };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        err = (struct err){ 0 };
        CHECK(map_open(&m, odd[i], &guard, &err) == -1);
        CHECK_ERR(err, ERR_IO, "not a regular file");
        map_close(&m);
    }
    err = (struct err){ 0 };
    CHECK(map_open(&m, "miss\x1b[31ming", &guard, &err) == -1);
    CHECK_ERR(err, ERR_IO, "miss\\x1b[31ming: No such file");
    map_close(&m);
    for (int i = 0; i < GUARD_SLOTS; i++)
        CHECK(!atomic_load(&guard.maps[i]));
}

/* The file changes under the mapping. */
static void
check_truncated(void)
{
    struct err err = { 0 };
    struct map m;
    uint8_t *buf = malloc(PAGES * page);
    NEED(buf);
    put_pages("file", PAGES * page - 100);
    NEED(map_open(&m, "file", &guard, &err) == 0);
    size_t size = m.size;
    NEED(truncate("file", (off_t)page + 10) == 0);

    CHECK(map_read(&m, buf, page + 10, 0, &err) == 0);
    CHECK(map_read(&m, buf, 11, page, &err) == -1);
    CHECK_ERR(err, ERR_IO, "changed while being read");
    err = (struct err){ 0 };
    CHECK(map_read(&m, buf, size, 0, &err) == -1);
    err = (struct err){ 0 };
    CHECK(map_check(&m, &err) == -1);
    CHECK_ERR(err, ERR_IO, "changed while being read");

    // The mapping itself: bytes that are gone read as zeros, the others stay.
    const uint8_t *data = m.data;
    CHECK(peek(data + 2 * page + 5) == 0 && repaired == 1);
    CHECK(peek(data + size - 1) == 0 && peek(data + 2 * page) == 0 && repaired == 1);
    CHECK(peek(data + 3) == check_byte(3));
    CHECK(peek(data + page + 9) == check_byte(page + 9));
    CHECK(atomic_load(&m.lost));

    // Back to its size it is still lost.
    NEED(truncate("file", (off_t)size) == 0);
    err = (struct err){ 0 };
    CHECK(map_check(&m, &err) == -1);
    CHECK_ERR(err, ERR_IO, "could not be read");
    map_close(&m);

    // Longer than it was is changed, too.
    put_pages("file", page);
    err = (struct err){ 0 };
    NEED(map_open(&m, "file", &guard, &err) == 0);
    put_pages("file", page + 1);
    CHECK(map_check(&m, &err) == -1);
    map_close(&m);
    free(buf);
}

/* Two mappings: the right one is repaired, from its first lost page on. */
static void
check_two(void)
{
    struct err err = { 0 };
    struct map a, b;
    put_pages("a", PAGES * page);
    put_pages("b", PAGES * page);
    NEED(map_open(&a, "a", &guard, &err) == 0 && map_open(&b, "b", &guard, &err) == 0);
    NEED(truncate("b", 0) == 0);
    repaired = 0;
    const uint8_t *data = b.data;
    CHECK(peek(data + page) == 0 && repaired == 1);
    CHECK(peek(data + 3 * page) == 0 && repaired == 1);
    CHECK(peek(data) == 0 && repaired == 2);
    CHECK(atomic_load(&b.lost) && !atomic_load(&a.lost));
    CHECK(map_check(&a, &err) == 0 && a.data[page] == check_byte(page));
    int here = 0;
    CHECK(!guard_repair(&guard, &here) && !guard_repair(&guard, NULL));
    CHECK(!atomic_load(&a.lost));
    const uint8_t *end = a.data + a.size; // where b may begin
    CHECK(end == b.data || !guard_repair(&guard, end));
    const uint8_t *gone = a.data;
    map_close(&a);
    CHECK(!guard_repair(&guard, gone));
    map_close(&b);
    CHECK(strays == 0);
}

static bool
exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static void
check_temps(void)
{
    static char names[GUARD_SLOTS + 1];
    struct err err = { 0 };
    struct map m = { 0 };
    check_put("t1", "x", 1);
    check_put("t2", "x", 1);
    check_put("kept", "x", 1);
    NEED(mkdir("td", 0777) == 0);
    for (int i = 0; i < 200; i++) { // more names than one getdents call returns
        char name[64];
        snprintf(name, sizeof name, "td/a-file-with-a-long-name-%d", i);
        check_put(name, "x", 1);
    }
    CHECK(guard_temp(&guard, "t1", &err) == 0 && guard_temp(&guard, "t2", &err) == 0);
    const char *dir = "td";
    CHECK(guard_temp(&guard, dir, &err) == 0 && guard_temp(&guard, "gone", &err) == 0);
    const char *kept = "kept";
    CHECK(guard_temp(&guard, kept, &err) == 0);
    guard_forget_temp(&guard, kept);
    guard_remove_temps(&guard);
    CHECK(!exists("t1") && !exists("t2") && !exists("td") && exists("kept"));

    // A link in place of a directory is removed, not followed.
    NEED(mkdir("real", 0777) == 0);
    check_put("real/x", "x", 1);
    NEED(symlink("real", "t1") == 0);
    guard_remove_temps(&guard);
    CHECK(!exists("t1") && exists("real/x"));

    static struct guard full;
    for (int i = 0; i < GUARD_SLOTS; i++)
        NEED(guard_temp(&full, &names[i], &err) == 0 &&
             guard_map(&full, &m, &err) == 0);
    CHECK(guard_temp(&full, &names[GUARD_SLOTS], &err) == -1);
    CHECK_ERR(err, ERR_IO, "output files");
    err = (struct err){ 0 };
    CHECK(guard_map(&full, &m, &err) == -1);
    CHECK_ERR(err, ERR_IO, "files open");
    err = (struct err){ 0 };
    guard_forget_temp(&full, &names[17]);
    CHECK(guard_temp(&full, &names[GUARD_SLOTS], &err) == 0);
}

static volatile sig_atomic_t heard; // of one thread and its handler

static void
on_term(int sig)
{
    (void)sig;
    heard++;
}

/* What the thread that makes files and the one that ends tell each other. */
struct meeting {
    struct guard guard;
    atomic_bool ended; // guard_end has returned
    int steps[2];      // a pipe: a byte for each step of the maker
};

enum { HOLDS = 'h', RELEASED = 'r', CAME_BACK = 'b' };

static void
tell(struct meeting *m, char step)
{
    NEED(write(m->steps[1], &step, 1) == 1);
}

/* Whether the flag is set within the time, in ms. */
static bool
is_set(const atomic_bool *flag, int ms)
{
    for (int i = 0; i < ms && !atomic_load(flag); i++)
        usleep(1000);
    return atomic_load(flag);
}

/* A file that is made while another thread handles a signal.  A guard_end that waits for
 * nobody has returned, or removed what there is, long before the file is made. */
static void *
make_late(void *arg)
{
    struct meeting *m = arg;
    struct err err = { 0 };
    sigset_t before;
    static const char name[] = "late";
    guard_hold(&m->guard, &before);
    tell(m, HOLDS);
    CHECK(is_set(&m->guard.ending, 10000));
    CHECK(!is_set(&m->ended, 100));
    check_put(name, "x", 1);
    CHECK(guard_temp(&m->guard, name, &err) == 0);
    guard_release(&m->guard, &before);
    tell(m, RELEASED);
    while (!atomic_load(&m->ended))
        usleep(1000);
    guard_hold(&m->guard, &before); // never comes back
    tell(m, CAME_BACK);
    return NULL;
}

/* The step that the maker tells of within the time, in ms; 0: none. */
static char
next_step(struct meeting *m, int ms)
{
    struct pollfd p = { .fd = m->steps[0], .events = POLLIN };
    char step = 0;
    return poll(&p, 1, ms) == 1 && read(m->steps[0], &step, 1) == 1 ? step : 0;
}

/* In a process of its own, since the maker stays where it is. */
static _Noreturn void
end_beside_maker(void)
{
    static struct meeting m;
    pthread_t maker;
    check_failed = 0;
    alarm(30); // if a thread waits in vain
    NEED(pipe(m.steps) == 0);
    NEED(pthread_create(&maker, NULL, make_late, &m) == 0);
    NEED(next_step(&m, 10000) == HOLDS);
    guard_end(&m.guard);
    atomic_store(&m.ended, true);
    NEED(next_step(&m, 10000) == RELEASED); // after the maker's own checks
    CHECK(!exists("late"));
    CHECK(next_step(&m, 200) == 0);
    _exit(check_failed != 0);
}

static void
check_hold(void)
{
    static struct guard g;
    sigset_t before;
    signal(SIGTERM, on_term);
    guard_hold(&g, &before);
    raise(SIGTERM);
    CHECK(heard == 0);
    guard_release(&g, &before);
    CHECK(heard == 1);
    signal(SIGTERM, SIG_DFL);

    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0)
        end_beside_maker();
    int status = 0;
    NEED(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int
main(void)
{
    struct sigaction bus = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };
    page = (size_t)sysconf(_SC_PAGESIZE);
    check_scratch();
    NEED(sigaction(SIGBUS, &bus, NULL) == 0);
    check_open();
    check_truncated();
    check_two();
    check_temps();
    check_hold();
    return check_end();
}
