/* SPDX-License-Identifier: MIT */
/* lock: one process at a time makes new versions of a file. */
#include "lib/file/lock.h"

#include "tests/unit/check.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct guard guard;

static bool
exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static int
acquire(struct lock *l, const char *path, struct err *err)
{
    *err = (struct err){ 0 };
    return lock_acquire(l, path, &guard, err);
}

/* A child that holds the lock of path until it is killed. */
static pid_t
holder(const char *path)
{
    int ready[2];
    char byte = 0;
    NEED(pipe(ready) == 0);
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        struct lock l;
        struct err err;
        if (acquire(&l, path, &err) < 0 || write(ready[1], "k", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1 && byte == 'k');
    close(ready[0]);
    return pid;
}

static void
stop(pid_t pid)
{
    NEED(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

static void
check_one(void)
{
    struct lock l;
    struct err err;
    CHECK(acquire(&l, "file", &err) == 0 && l.fd >= 0 && exists(".file.nibble-lock"));
    CHECK(atomic_load(&guard.temps[0])); // a deadly signal removes it
    lock_release(&l);
    CHECK(l.fd == -1 && !exists(".file.nibble-lock") && !atomic_load(&guard.temps[0]));
    lock_release(&l); // not held: nothing happens

    // A link and its target are one file.
    NEED(mkdir("far", 0777) == 0 && symlink("far/real", "link") == 0);
    CHECK(acquire(&l, "link", &err) == 0 && exists("far/.real.nibble-lock"));
    lock_release(&l);
    CHECK(acquire(&l, "no/such/file", &err) == -1 && l.fd == -1);
    CHECK_ERR(err, ERR_IO, "no/such/file: there is no directory no");
}

static void
check_two(void)
{
    struct lock l, other;
    struct err err;
    pid_t pid = holder("shared");
    CHECK(acquire(&l, "other", &err) == 0); // another file's
    CHECK(acquire(&other, "shared", &err) == -1 && other.fd == -1);
    CHECK_ERR(err, ERR_IO, "another process is writing it");
    CHECK(exists(".shared.nibble-lock"));
    lock_release(&l);
    stop(pid);
    CHECK(exists(".shared.nibble-lock")); // left behind, which is no lock
    CHECK(acquire(&other, "shared", &err) == 0);
    lock_release(&other);
    CHECK(!exists(".shared.nibble-lock"));
}

static void
check_in_the_way(void)
{
    struct lock l;
    struct err err;
    check_put("victim", "x", 1);
    NEED(symlink("victim", ".a.nibble-lock") == 0 &&
         mkdir(".b.nibble-lock", 0777) == 0 && mkfifo(".c.nibble-lock", 0666) == 0);
    for (const char *name = "abc"; *name; name++) {
        const char path[] = { *name, '\0' };
        CHECK(acquire(&l, path, &err) == -1 && l.fd == -1);
        CHECK_ERR(err, ERR_IO, "is in the way of its lock");
    }
    CHECK(exists("victim") && exists(".a.nibble-lock") && exists(".c.nibble-lock"));
}

int
main(void)
{
    check_scratch();
    check_one();
    check_two();
    check_in_the_way();
    return check_end();
}
