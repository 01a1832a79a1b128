/* SPDX-License-Identifier: MIT */
/* transcript: see transcript.h. */
#include "lib/infer/transcript.h"

#include "lib/file/outfile.h"
#include "lib/file/path.h"
#include "lib/file/reader.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRANSCRIPT_LINE = 64 << 20 };

/* Append the messages of a line of a transcript or of --chat --json.  The line of a turn that was
 * refused has "error" instead of messages. */
static int
parse_line(struct messages *m, struct slice line, const char *name, struct arena *arena,
           struct err *err)
{
    struct json j;
    struct slice key;
    bool found = false, refused = false;
    json_open(&j, name, 0, line, arena, err);
    int more = json_object(&j);
    while (more >= 0 && (more = json_key(&j, &key)) > 0) {
        bool here = slice_is(key, "messages");
        found |= here;
        refused |= slice_is(key, "error");
        more = here ? messages_parse(m, &j, &messages_openai) : json_skip(&j, NULL);
    }
    if (more < 0 || json_end(&j) < 0)
        return -1;
    return found || refused ? 0 : json_fail(&j, 0, "expected \"messages\"");
}

/* Open a regular file only: a FIFO would be waited for, and a device may have no end. */
static int
open_regular(const char *path, const char *name, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_IO, "%s:", name);
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    close(fd);
    return err_set(err, ERR_USAGE,
                   "%s: is no regular file: expected one that /save has written", name);
}

static int
read_lines(struct messages *m, int fd, const char *name, struct arena *arena,
           struct err *err)
{
    char place[TEXT_QUOTE + 32];
    struct slice line;
    struct reader r = { .fd = fd, .name = name, .limit = TRANSCRIPT_LINE };
    int more;
    while ((more = reader_line(&r, &line, err)) > 0) {
        snprintf(place, sizeof place, "%s: line %llu", name,
                 (unsigned long long)r.number);
        char *copy = line.n ? arena_copy(arena, line.p, line.n) : NULL;
        if (line.n && !copy)
            more = err_set(err, ERR_MEMORY, "out of memory for the conversation");
        else if (copy)
            more = parse_line(m, (struct slice){ copy, line.n }, place, arena, err);
        if (more < 0)
            break;
    }
    reader_free(&r);
    return more;
}

/* A system message, if any, and then users and assistants in turn. */
static int
check_messages(const struct messages *m, const char *name, struct err *err)
{
    size_t first = m->n && slice_is(m->v[0].role, "system");
    char q[TEXT_QUOTE];
    for (size_t i = first; i < m->n; i++) {
        const char *want = (i - first) % 2 ? "assistant" : "user";
        if (!slice_is(m->v[i].role, want))
            return err_set(err, ERR_FORMAT,
                           "%s: message %zu: expected role %s, found \"%s\"", name, i,
                           want, text_quote(q, m->v[i].role.p, m->v[i].role.n));
    }
    if (m->n == 0 || (m->n - first) % 2)
        return err_set(err, ERR_FORMAT, "%s: expected the answer to each turn", name);
    return 0;
}

int
transcript_read(struct messages *m, const char *path, struct arena *arena,
                struct err *err)
{
    char q[TEXT_QUOTE];
    int fd = open_regular(path, text_quote(q, path, strlen(path)), err);
    if (fd < 0)
        return -1;
    int rc = read_lines(m, fd, q, arena, err);
    close(fd);
    return rc < 0 ? -1 : check_messages(m, q, err);
}

int
transcript_write(const char *path, const struct buf *text, bool force, struct guard *g,
                 struct err *err)
{
    struct outfile o = { 0 };
    char q[TEXT_QUOTE];
    if (path_is_stream(path))
        return err_set(err, ERR_USAGE, "%s: is no regular file: expected a new name",
                       text_quote(q, path, strlen(path)));
    int rc = out_open(&o, path, force ? OUT_FORCE : 0, g, err);
    if (rc == 0)
        rc = out_write(&o, text->data, text->len);
    rc = rc == 0 ? out_commit(&o) : -1;
    if (rc < 0)
        out_abandon(&o);
    return rc;
}
