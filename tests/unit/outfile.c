/* SPDX-License-Identifier: MIT */
/* outfile: files and directories that appear whole or not at all. */
#include "lib/file/outdir.h"
#include "lib/file/path.h"

#include "tests/unit/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct guard guard;

/* The whole of a file, or NULL. */
static const char *
content(const char *path)
{
    static char text[4096];
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

static bool
holds(const char *path, const char *want)
{
    const char *found = content(path);
    return found && strcmp(found, want) == 0;
}

static bool
exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Names in a directory, those of temporary files, or all. */
static int
entries(const char *path, bool temporary)
{
    DIR *d = opendir(path);
    const struct dirent *e;
    int n = 0;
    NEED(d);
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            (!temporary || strstr(e->d_name, "nibble-tmp")))
            n++;
    closedir(d);
    return n;
}

static bool
guard_is_empty(void)
{
    for (int i = 0; i < GUARD_SLOTS; i++)
        if (atomic_load(&guard.temps[i]))
            return false;
    return true;
}

/* Write text to path: the result of the commit. */
static int
put(const char *path, const char *text, unsigned flags, struct err *err)
{
    struct outfile o;
    *err = (struct err){ 0 };
    if (out_open(&o, path, flags, &guard, err) == 0 &&
        out_write(&o, text, strlen(text)) == 0)
        return out_commit(&o);
    out_abandon(&o);
    return -1;
}

/* A try that must fail with these words and leave nothing behind. */
static void
refused_as(const char *path, unsigned flags, enum err_kind kind, const char *words)
{
    struct err err;
    CHECK_SAY(put(path, "new", flags, &err) == -1, "%s: written", path);
    CHECK_ERR(err, kind, words);
    CHECK_SAY(entries(".", true) == 0 && guard_is_empty(), "%s: leaves something",
              path);
}

static void
refused(const char *path, unsigned flags, const char *words)
{
    refused_as(path, flags, ERR_IO, words);
}

static void
check_commit(void)
{
    struct err err = { 0 };
    struct outfile o;
    CHECK(put("file", "first", 0, &err) == 0 && holds("file", "first"));
    CHECK(entries(".", false) == 1 && guard_is_empty());
    refused("file", 0, "exists; -f"); // before any work
    CHECK(holds("file", "first"));

    // Not there before the commit, gone without one.
    NEED(out_open(&o, "other", 0, &guard, &err) == 0);
    CHECK(out_write(&o, "abc", 3) == 0 && out_seal(&o) == 0 && out_seal(&o) == 0);
    CHECK(!exists("other") && entries(".", true) == 1 && !guard_is_empty());
    out_abandon(&o);
    CHECK(!exists("other") && entries(".", true) == 0 && guard_is_empty());
    out_abandon(&o);

    // Sealed, it is whole, and still locked.
    NEED(out_open(&o, "sealed", 0, &guard, &err) == 0);
    CHECK(out_write(&o, "abc", 3) == 0 && out_seal(&o) == 0);
    CHECK(holds(".sealed.nibble-tmp", "abc") && !exists("sealed"));
    struct err other;
    CHECK(put("sealed", "theirs", 0, &other) == -1);
    CHECK_ERR(other, ERR_IO, "another process is writing it");
    CHECK(out_commit(&o) == 0 && holds("sealed", "abc") && guard_is_empty());
    CHECK(put("sealed", "again", OUT_FORCE, &other) == 0 && holds("sealed", "again"));

    // Replacing: the old one is there until the new one is.
    NEED(out_open(&o, "file", OUT_FORCE, &guard, &err) == 0);
    CHECK(out_write(&o, "second", 6) == 0 && holds("file", "first"));
    out_abandon(&o);
    CHECK(holds("file", "first"));
    CHECK(put("file", "second", OUT_FORCE, &err) == 0 && holds("file", "second"));

    // Something else came in between.
    NEED(out_open(&o, "late", 0, &guard, &err) == 0);
    CHECK(out_write(&o, "abc", 3) == 0);
    check_put("late", "theirs", 6);
    CHECK(out_commit(&o) == -1 && holds("late", "theirs"));
    CHECK_ERR(err, ERR_IO, "late: ");
    CHECK(entries(".", true) == 0);

    // After an error of anybody's nothing is committed.
    err = (struct err){ 0 };
    NEED(out_open(&o, "never", 0, &guard, &err) == 0);
    (void)err_set(&err, ERR_FORMAT, "from elsewhere");
    CHECK(out_write(&o, "abc", 3) == -1 && out_commit(&o) == -1);
    CHECK(!exists("never") && entries(".", true) == 0 && guard_is_empty());
    CHECK_ERR(err, ERR_FORMAT, "from elsewhere");
}

/* A file that two write: who joins neither makes nor removes it. */
static void
check_joined(void)
{
    struct err err = { 0 }, late = { 0 };
    struct outfile o, with;
    struct stat st;
    NEED(out_open(&o, "joined", 0, &guard, &err) == 0);
    NEED(out_reserve(&o, 6) == 0 && fstat(o.fd, &st) == 0);
    CHECK(out_join(&with, "joined", st.st_ino, &err) == 0);
    CHECK(out_write(&o, "abc", 3) == 0 && out_pwrite(&with, "def", 3, 3, &err) == 0);
    CHECK(out_seal(&with) == 0);
    out_abandon(&with);
    CHECK(out_join(&with, "joined", st.st_ino, &err) == 0);
    out_abandon(&with);
    CHECK(!exists("joined") && entries(".", true) == 1);
    // Another file of that name.
    CHECK(out_join(&with, "joined", st.st_ino + 1, &late) == -1);
    CHECK_ERR(late, ERR_IO, "joined: cannot open the temporary file");
    out_abandon(&with);
    CHECK(out_commit(&o) == 0 && holds("joined", "abcdef"));
    late = (struct err){ 0 };
    CHECK(out_join(&with, "joined", st.st_ino, &late) == -1); // it is complete
    out_abandon(&with);
    CHECK(entries(".", true) == 0);
}

static void
check_places(void)
{
    struct err err = { 0 };
    struct outfile o;
    struct stat st;
    NEED(out_open(&o, "sparse", 0, &guard, &err) == 0);
    CHECK(out_reserve(&o, 0) == 0 && out_reserve(&o, 10000) == 0);
    CHECK(out_write(&o, "ab", 2) == 0 && out_skip(&o, 3) == 0 && o.offset == 5);
    CHECK(out_write(&o, "c", 1) == 0 && out_pwrite(&o, "B", 1, 1, &err) == 0 &&
          o.offset == 6);
    CHECK(out_pwrite(&o, "z", 1, 9999, &err) == 0 && out_commit(&o) == 0);
    CHECK(stat("sparse", &st) == 0 && st.st_size == 10000);
    FILE *f = fopen("sparse", "rb");
    NEED(f);
    for (int i = 0; i < 10000; i++) {
        int want = i == 0 ? 'a' : i == 1 ? 'B' : i == 5 ? 'c' : i == 9999 ? 'z' : 0;
        CHECK_SAY(getc(f) == want, "byte %d", i);
    }
    fclose(f);
    CHECK(path_is_file("sparse", st.st_dev, st.st_ino));
    CHECK(!path_is_file("file", st.st_dev, st.st_ino) && !path_is_file("no", 0, 0));
    CHECK(path_holds(".", "file") && path_holds("./", "./file"));
    CHECK(!path_holds("file", "file") && !path_holds("no", "file"));

    NEED(out_open(&o, "huge", 0, &guard, &err) == 0);
    CHECK(out_reserve(&o, UINT64_MAX) == -1);
    CHECK_ERR(err, ERR_IO, "huge: ");
    out_abandon(&o);

    NEED(mkdir("dir", 0777) == 0);
    refused("dir", OUT_FORCE, "directory");
    refused("dir/", OUT_FORCE, "directory");
    refused("no/such/dir/file", 0, "there is no directory no");
    refused("file/x", 0, "Not a directory");
    CHECK(put("dir/inside", "x", 0, &err) == 0 && holds("dir/inside", "x"));
    CHECK(entries("dir", false) == 1);

    // As long as a name may be.
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    CHECK(put(name, "long", 0, &err) == 0 && holds(name, "long"));
    CHECK(entries(".", true) == 0);
    refused("\x1b[31m/x", 0, "\\x1b[31m/x: ");
    refused_as("", 0, ERR_USAGE, "ends in no name");
}

static void
check_links(void)
{
    struct err err;
    struct stat st;
    NEED(mkdir("far", 0777) == 0);
    check_put("far/real", "old", 3);
    NEED(symlink("far/real", "link") == 0 && symlink("link", "link2") == 0);
    refused("link2", 0, "exists; -f");
    CHECK(put("link2", "new", OUT_FORCE, &err) == 0 && holds("far/real", "new"));
    CHECK(lstat("link", &st) == 0 && S_ISLNK(st.st_mode));
    CHECK(lstat("link2", &st) == 0 && S_ISLNK(st.st_mode));
    CHECK(lstat("far/real", &st) == 0 && S_ISREG(st.st_mode) &&
          entries("far", false) == 1);

    // One that leads nowhere yet; its target is relative to where the link is.
    NEED(symlink("../far/fresh", "far/dangling") == 0);
    CHECK(put("far/dangling", "fresh", 0, &err) == 0 && holds("far/fresh", "fresh"));
    CHECK(lstat("far/dangling", &st) == 0 && S_ISLNK(st.st_mode));

    NEED(symlink("loop2", "loop1") == 0 && symlink("loop1", "loop2") == 0);
    CHECK(put("loop1", "x", OUT_FORCE, &err) == -1);
    CHECK_ERR(err, ERR_IO, "loop1: ");

    // The temporary name is not to be led astray.
    check_put("victim", "victim", 6);
    NEED(symlink("victim", ".astray.nibble-tmp") == 0);
    CHECK(put("astray", "x", OUT_FORCE, &err) == -1 && holds("victim", "victim"));
    CHECK(!exists("astray"));
    NEED(unlink(".astray.nibble-tmp") == 0);
}

static void
check_streams(void)
{
    struct err err = { 0 };
    struct outfile o;
    char text[16] = "";
    CHECK(put("/dev/null", "x", 0, &err) == 0);
    CHECK(put("/dev/full", "x", 0, &err) == -1);
    CHECK_ERR(err, ERR_IO, "No space");

    NEED(mkfifo("fifo", 0666) == 0);
    int fd = open("fifo", O_RDONLY | O_NONBLOCK);
    NEED(fd >= 0);
    err = (struct err){ 0 };
    NEED(out_open(&o, "fifo", 0, &guard, &err) == 0);
    CHECK(o.direct && out_reserve(&o, 100) == 0 && out_write(&o, "ab", 2) == 0);
    CHECK(out_skip(&o, 2) == 0 && out_write(&o, "c", 1) == 0 && out_commit(&o) == 0);
    CHECK(read(fd, text, sizeof text) == 5 && memcmp(text, "ab\0\0c", 5) == 0);
    CHECK(entries(".", true) == 0 && exists("fifo"));
    close(fd);
}

/* /dev is for devices, but a regular file there (/dev/shm is a place for models) is a
 * file like any other: not replaced unasked, and never half. */
static void
check_dev_shm(void)
{
    struct err err;
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/nibble-unit-%ld", (long)getpid());
    if (access("/dev/shm", W_OK) < 0)
        return;
    CHECK_SAY(put(path, "a long first text", 0, &err) == 0, "%s", err.msg);
    check_put(path, "a long first text", 17);
    CHECK_SAY(put(path, "new", 0, &err) == -1 && holds(path, "a long first text"),
              "replaced without force: %s", content(path));
    CHECK_SAY(put(path, "new", OUT_FORCE, &err) == 0 && holds(path, "new"),
              "not what was written: %s", content(path));
    unlink(path);
}

/* Names that are ours, in a directory which is replaced and in a temporary one. */
static bool
ours(const void *ctx, const char *leaf)
{
    (void)ctx;
    return strncmp(leaf, "foreign", 7) != 0;
}

static const struct outdir_rule rule = { ours, ours, NULL };

/* A child begins path and waits to be killed. */
static pid_t
start_writer(const char *path, bool dir)
{
    int ready[2];
    char byte = 0;
    NEED(pipe(ready) == 0);
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        struct err err = { 0 };
        struct outfile o;
        struct outdir d;
        int rc = dir ? outdir_open(&d, path, 0, &rule, &guard, &err)
                     : out_open(&o, path, 0, &guard, &err);
        if (rc == 0 && dir)
            rc = outdir_file(&o, &d, "part");
        if (rc == 0)
            rc = out_write(&o, "half", 4);
        if (rc < 0 || write(ready[1], "k", 1) != 1)
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
stop_writer(pid_t pid)
{
    int status;
    NEED(kill(pid, SIGKILL) == 0);
    NEED(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void
check_others(void)
{
    struct err err = { 0 };
    struct outfile o;
    // A leftover, of a file and where its content is larger than ours.
    check_put(".stale.nibble-tmp", "something longer than what follows", 34);
    CHECK(put("stale", "ours", 0, &err) == 0 && holds("stale", "ours"));
    CHECK(entries(".", true) == 0);

    pid_t pid = start_writer("shared", false);
    CHECK(put("shared", "mine", 0, &err) == -1 && !exists("shared"));
    CHECK_ERR(err, ERR_IO, "another process is writing it");
    CHECK(holds(".shared.nibble-tmp", "half") && guard_is_empty());
    CHECK(put("unrelated", "x", 0, &err) == 0);
    stop_writer(pid);
    CHECK(holds(".shared.nibble-tmp", "half"));
    CHECK(put("shared", "mine", 0, &err) == 0 && holds("shared", "mine"));
    CHECK(entries(".", true) == 0);

    // Also inside one program.
    err = (struct err){ 0 };
    NEED(out_open(&o, "twice", 0, &guard, &err) == 0);
    CHECK(put("twice", "x", 0, &err) == -1);
    CHECK_ERR(err, ERR_IO, "another process is writing it");
    out_abandon(&o);

    // What the guard removes when a signal comes.
    err = (struct err){ 0 };
    NEED(out_open(&o, "killed", 0, &guard, &err) == 0);
    guard_remove_temps(&guard);
    CHECK(entries(".", true) == 0);
    out_abandon(&o);
}

/* A directory of one file, text of its name in it. */
static int
put_dir(const char *path, const char *leaf, unsigned flags, struct err *err)
{
    struct outdir d;
    struct outfile o;
    *err = (struct err){ 0 };
    if (outdir_open(&d, path, flags, &rule, &guard, err) < 0) {
        outdir_abandon(&d);
        return -1;
    }
    if (outdir_file(&o, &d, leaf) == 0 && out_write(&o, leaf, strlen(leaf)) == 0) {
        int rc = out_commit(&o);
        CHECK(rc == 0);
    } else {
        out_abandon(&o);
    }
    return outdir_commit(&d);
}

static void
refused_dir(const char *path, unsigned flags, const char *words)
{
    struct err err;
    CHECK_SAY(put_dir(path, "new", flags, &err) == -1, "%s: written", path);
    CHECK_ERR(err, ERR_IO, words);
    CHECK_SAY(entries(".", true) == 0 && guard_is_empty(), "%s: leaves something",
              path);
}

/* The same, and between the look before the swap and that after it somebody puts a file
 * into the directory: its name is *ctx. */
static bool
meanwhile(const void *ctx, const char *leaf)
{
    const char *path = ctx;
    if (strcmp(leaf, "last") == 0 && exists("raced/last"))
        check_put(path, "theirs", 6);
    return ours(NULL, leaf);
}

/* What came into a directory that is being replaced is not lost. */
static void
check_race(void)
{
    const struct outdir_rule race = { ours, meanwhile, "raced/foreign" };
    struct err err = { 0 };
    struct outdir d;
    CHECK(put_dir("raced", "last", 0, &err) == 0);
    NEED(outdir_open(&d, "raced", OUT_FORCE, &rule, &guard, &err) == 0);
    d.rule = race;
    struct outfile o;
    NEED(outdir_file(&o, &d, "new") == 0 && out_commit(&o) == 0);
    CHECK(outdir_commit(&d) == -1);
    CHECK_ERR(err, ERR_IO, "\"foreign\"");
    CHECK(holds("raced/foreign", "theirs") && holds("raced/last", "last"));
    CHECK(!exists("raced/new") && entries(".", true) == 0 && guard_is_empty());

    // A leftover with somebody's file in it stays.
    NEED(mkdir(".left.nibble-tmp", 0777) == 0);
    check_put(".left.nibble-tmp/foreign", "theirs", 6);
    CHECK(put_dir("left", "a", 0, &err) == -1 && !exists("left"));
    CHECK_ERR(err, ERR_IO, "left: ");
    CHECK(holds(".left.nibble-tmp/foreign", "theirs"));
    NEED(unlink(".left.nibble-tmp/foreign") == 0);
    CHECK(put_dir("left", "a", 0, &err) == 0 && entries(".", true) == 0);
}

static void
check_dirs(void)
{
    struct err err = { 0 };
    struct outdir d;
    struct outfile o;
    CHECK(put_dir("model", "a", 0, &err) == 0 && holds("model/a", "a"));
    CHECK(entries("model", false) == 1 && entries(".", true) == 0 && guard_is_empty());
    refused_dir("model", 0, "exists; -f");
    CHECK(holds("model/a", "a"));

    // Replaced as a whole: nothing of the old one stays.
    CHECK(put_dir("model/", "b", OUT_FORCE, &err) == 0 && holds("model/b", "b"));
    CHECK(entries("model", false) == 1 && entries(".", true) == 0);
    NEED(mkdir("model/sub", 0777) == 0);
    refused_dir("model", OUT_FORCE, "holds \"sub\"");
    CHECK(holds("model/b", "b") && exists("model/sub"));
    NEED(rmdir("model/sub") == 0);

    NEED(mkdir("bare", 0777) == 0);
    CHECK(put_dir("bare", "a", 0, &err) == 0 && holds("bare/a", "a"));
    check_put("plain", "x", 1);
    refused_dir("plain", OUT_FORCE, "plain: ");
    refused_dir("no/such/model", 0, "there is no directory no");
    CHECK(holds("plain", "x"));
    NEED(symlink("model", "to-model") == 0);
    CHECK(put_dir("to-model", "c", OUT_FORCE, &err) == 0 && holds("model/c", "c"));
    CHECK(!exists("model/b"));

    // Given up, with files in it, and with one of them still open.
    err = (struct err){ 0 };
    NEED(outdir_open(&d, "given-up", 0, &rule, &guard, &err) == 0);
    NEED(outdir_file(&o, &d, "one") == 0);
    CHECK(out_write(&o, "x", 1) == 0 && out_commit(&o) == 0);
    NEED(outdir_file(&o, &d, "two") == 0);
    CHECK(!exists("given-up") && entries(".", true) == 1);
    out_abandon(&o);
    outdir_abandon(&d);
    CHECK(!exists("given-up") && entries(".", true) == 0 && guard_is_empty());

    // A second file of one name; then nothing is committed.
    NEED(outdir_open(&d, "double", 0, &rule, &guard, &err) == 0);
    NEED(outdir_file(&o, &d, "one") == 0);
    CHECK(out_commit(&o) == 0);
    CHECK(outdir_file(&o, &d, "one") == -1);
    out_abandon(&o);
    CHECK(outdir_commit(&d) == -1 && !exists("double") && entries(".", true) == 0);

    // Somebody filled the target meanwhile.
    err = (struct err){ 0 };
    NEED(outdir_open(&d, "late-dir", 0, &rule, &guard, &err) == 0);
    NEED(mkdir("late-dir", 0777) == 0);
    check_put("late-dir/theirs", "x", 1);
    CHECK(outdir_commit(&d) == -1 && holds("late-dir/theirs", "x"));
    CHECK(entries(".", true) == 0);

    // Leftovers and living writers.
    NEED(mkdir(".stale-dir.nibble-tmp", 0777) == 0);
    check_put(".stale-dir.nibble-tmp/x", "x", 1);
    CHECK(put_dir("stale-dir", "a", 0, &err) == 0 && entries("stale-dir", false) == 1);
    pid_t pid = start_writer("shared-dir", true);
    CHECK(put_dir("shared-dir", "a", 0, &err) == -1 && !exists("shared-dir"));
    CHECK_ERR(err, ERR_IO, "another process is writing it");
    CHECK(holds(".shared-dir.nibble-tmp/part", "half"));
    stop_writer(pid);
    CHECK(put_dir("shared-dir", "a", 0, &err) == 0 &&
          entries("shared-dir", false) == 1);
    CHECK(entries(".", true) == 0 && guard_is_empty());

    // The guard removes a directory with what is in it.
    err = (struct err){ 0 };
    NEED(outdir_open(&d, "killed-dir", 0, &rule, &guard, &err) == 0);
    NEED(outdir_file(&o, &d, "one") == 0);
    guard_remove_temps(&guard);
    CHECK(entries(".", true) == 0);
    out_abandon(&o);
    outdir_abandon(&d);
}

int
main(void)
{
    check_scratch();
    check_commit();
    check_joined();
    check_places();
    check_links();
    check_streams();
    check_dev_shm();
    check_others();
    check_dirs();
    check_race();
    return check_end();
}
