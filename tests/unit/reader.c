/* SPDX-License-Identifier: MIT */
/* reader: lines across the borders of reads, with and without an end, at the limit and
 * above it; reads that fail. */
#include "lib/file/reader.h"

#include "tests/unit/check.h"

#include <fcntl.h>

/* The text as a pipe gives it that is written in pieces of `step` bytes. */
static int
piped(const char *text, size_t n, size_t step)
{
    int fds[2];
    NEED(pipe(fds) == 0);
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        for (size_t at = 0; at < n; at += step)
            if (write(fds[1], text + at, n - at < step ? n - at : step) < 0)
                _exit(1);
        _exit(0);
    }
    close(fds[1]);
    return fds[0];
}

static void
check_lines(size_t step)
{
    static const char text[] = "one\n\ntwo\0three\nlast";
    static const struct {
        const char *p;
        size_t n;
        uint64_t end;
    } want[] = {
        { "one", 3, 4 }, { "", 0, 5 }, { "two\0three", 9, 15 }, { "last", 4, 19 }
    };
    struct reader r = { .fd = piped(text, sizeof text - 1, step),
                        .name = "pipe",
                        .limit = 9 };
    struct err err = { 0 };
    struct slice line;
    for (size_t i = 0; i < 4; i++) {
        NEED(reader_line(&r, &line, &err) == 1);
        CHECK(line.n == want[i].n && memcmp(line.p, want[i].p, line.n) == 0);
        CHECK(line.p[line.n] == '\0');
        CHECK(r.number == i + 1 && r.end == want[i].end && r.open_end == (i == 3));
    }
    CHECK(reader_line(&r, &line, &err) == 0 && reader_line(&r, &line, &err) == 0);
    CHECK(err.kind == ERR_NONE);
    close(r.fd);
    reader_free(&r);
}

/* Lines of every length around the size of a read. */
static void
check_long(void)
{
    enum { MOST = 200000 };
    char *text = malloc(MOST + 1);
    NEED(text);
    memset(text, 'x', MOST);
    for (size_t n = 65530; n < 65545; n++) {
        struct reader r = { .fd = -1, .name = "long", .limit = n };
        struct err err = { 0 };
        struct slice line;
        text[n] = '\n';
        check_put("long", text, 2 * n + 2); // a line of n, one of n + 1
        text[n] = 'x';
        r.fd = open("long", O_RDONLY);
        NEED(r.fd >= 0);
        CHECK(reader_line(&r, &line, &err) == 1 && line.n == n);
        CHECK(reader_line(&r, &line, &err) == -1);
        CHECK_ERR(err, ERR_FORMAT, "long: line 2: longer than");
        close(r.fd);
        reader_free(&r);
    }
    free(text);
}

static void
check_endless(void)
{
    struct reader r = { .fd = open("/dev/zero", O_RDONLY),
                        .name = "0",
                        .limit = 1 << 20 };
    struct err err = { 0 };
    struct slice line;
    NEED(r.fd >= 0);
    CHECK(reader_line(&r, &line, &err) == -1);
    CHECK_ERR(err, ERR_FORMAT, "0: line 1: longer than 1048576 bytes");
    CHECK(r.cap <= 4 << 20);
    close(r.fd);
    reader_free(&r);
}

static void
check_trouble(void)
{
    struct reader r = { .fd = open(".", O_RDONLY), .name = "dir", .limit = 9 };
    struct err err = { 0 }, closed = { 0 };
    struct slice line;
    CHECK(reader_line(&r, &line, &err) == -1);
    CHECK_ERR(err, ERR_IO, "dir: line 1: read: Is a directory");
    close(r.fd);
    r.fd = -1;
    CHECK(reader_line(&r, &line, &closed) == -1 && closed.kind == ERR_IO);
    reader_free(&r);
}

int
main(void)
{
    check_scratch();
    check_lines(1);
    check_lines(3);
    check_lines(1000);
    check_long();
    check_endless();
    check_trouble();
    return check_end();
}
