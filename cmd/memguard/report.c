/* SPDX-License-Identifier: MIT */
/* report: see report.h. */
#include "cmd/memguard/report.h"

#include "cmd/cli/cmd.h"
#include "lib/base/json.h"
#include "lib/base/os.h"
#include "lib/file/outfile.h"
#include "lib/file/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- samples ------------------------------------------------------------------------ */

void
sample_worst(struct sample *a, const struct sample *b)
{
    if (b->host > a->host)
        a->host = b->host;
    if (b->gpu > a->gpu)
        a->gpu = b->gpu;
    if (b->processes > a->processes)
        a->processes = b->processes;
    if (a->available < 0 || (b->available >= 0 && b->available < a->available))
        a->available = b->available;
}

void
samples_add(struct samples *all, const struct sample *s)
{
    if (all->each == 0)
        all->each = 1;
    if (all->open > 0 && all->open < all->each) {
        sample_worst(&all->kept[all->n - 1], s);
        all->open++;
        return;
    }
    if (all->n == REPORT_SAMPLES) {
        for (size_t i = 0; i < REPORT_SAMPLES / 2; i++) {
            all->kept[i] = all->kept[2 * i];
            sample_worst(&all->kept[i], &all->kept[2 * i + 1]);
        }
        all->n /= 2;
        all->each *= 2;
    }
    all->kept[all->n++] = *s;
    all->open = 1;
}

/* ---- JSON --------------------------------------------------------------------------- */

static unsigned long long
mib(uint64_t bytes)
{
    return (unsigned long long)(bytes >> 20);
}

static void
put_time(struct buf *b, const char *key, double wall)
{
    struct tm tm;
    char text[40];
    time_t whole = (time_t)wall;
    gmtime_r(&whole, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    buf_printf(b, "\"%s\":\"%s.%03dZ\"", key, text,
               (int)((wall - (double)whole) * 1000));
}

static void
put_figures(struct buf *b, const struct report *r, const struct sample *s)
{
    buf_printf(b, "\"HostRssMiB\":%llu", mib(s->host));
    if (r->facts->watches_gpu)
        buf_printf(b, ",\"GpuMiB\":%llu", mib(s->gpu));
    if (s->available >= 0)
        buf_printf(b, ",\"MemAvailableMiB\":%llu", mib((uint64_t)s->available));
    buf_printf(b, ",\"Processes\":%zu", s->processes);
}

static void
put_sample(struct buf *b, const struct report *r, const struct sample *s)
{
    buf_char(b, '{');
    put_time(b, "TimestampUtc", s->wall);
    buf_printf(b, ",\"ElapsedMs\":%.0f,", s->elapsed * 1000);
    put_figures(b, r, s);
    buf_char(b, '}');
}

static void
put_limit(struct buf *b, const char *key, uint64_t bytes, bool *some)
{
    if (!bytes)
        return;
    buf_printf(b, "%s\"%s\":%llu", *some ? "," : "", key, mib(bytes));
    *some = true;
}

/* Members that are known at the start. */
static void
put_facts(struct buf *b, const struct report *r)
{
    const struct report_facts *f = r->facts;
    bool some = false;
    buf_printf(b, "\"Pid\":%d,", (int)getpid());
    put_time(b, "CreatedUtc", r->began);
    buf_printf(b, ",\"Tool\":\"memguard\",\"Version\":\"%s\",\"Command\":[",
               cmd_version());
    for (size_t i = 0; f->command[i]; i++) {
        buf_str(b, i ? "," : "");
        json_put(b, slice_of(f->command[i]));
    }
    buf_str(b, "],\"Limits\":{");
    put_limit(b, "HostRssMiB", f->host, &some);
    put_limit(b, "GpuMiB", f->gpu, &some);
    put_limit(b, "MemAvailableMiB", f->available, &some);
    buf_str(b, "},\"PollSeconds\":");
    json_put_number(b, f->poll, 6);
    buf_str(b, ",\"OverSeconds\":");
    json_put_number(b, f->over, 6);
    buf_str(b, ",\"TermFirstSeconds\":");
    json_put_number(b, f->term_first, 6);
}

/* Members that are known at the end.  status -1: still running. */
static void
put_result(struct buf *b, const struct report *r, int status, const char *ended)
{
    buf_str(b, "\"Peaks\":{");
    put_figures(b, r, &r->peak);
    buf_str(b, "},\"Exit\":");
    if (status < 0)
        buf_str(b, "null");
    else
        buf_printf(b, "%d", status);
    buf_str(b, ",\"Ended\":");
    if (ended)
        json_put(b, slice_of(ended));
    else
        buf_str(b, "null");
}

/* ---- a file ------------------------------------------------------------------------- */

static int
write_document(struct report *r, unsigned flags, int status, const char *ended,
               struct err *err)
{
    struct buf b = { 0 };
    struct outfile o;
    buf_char(&b, '{');
    put_facts(&b, r);
    buf_char(&b, ',');
    put_result(&b, r, status, ended);
    buf_printf(&b, ",\"SamplesInOne\":%u,\"Samples\":[", r->all.each ? r->all.each : 1);
    for (size_t i = 0; i < r->all.n; i++) {
        buf_str(&b, i ? ",\n" : "\n");
        put_sample(&b, r, &r->all.kept[i]);
    }
    buf_str(&b, "]}\n");
    int rc = buf_ok(&b, err);
    if (rc == 0) {
        if (out_open(&o, r->path, flags, r->guard, err) == 0)
            out_write(&o, b.data, b.len);
        rc = out_commit(&o);
    }
    buf_free(&b);
    return rc;
}

/* ---- a stream ----------------------------------------------------------------------- */

static int
open_stream(const char *path, struct err *err)
{
    char q[TEXT_QUOTE];
    struct stat st;
    // Standard output keeps its position; a FIFO is opened for reading, too, since the
    // open would wait for a reader.
    bool out = strcmp(path, "-") == 0 || strcmp(path, "/dev/stdout") == 0;
    bool fifo = stat(path, &st) == 0 && S_ISFIFO(st.st_mode);
    int fd = out ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                 : open(path, (fifo ? O_RDWR : O_WRONLY) | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_IO, "%s:", text_quote(q, path, strlen(path)));
    return fd;
}

/* Write a line if the stream is writable within that time. */
static int
put_line(struct report *r, struct buf *b, int wait_ms, struct err *err)
{
    struct pollfd p = { .fd = r->fd, .events = POLLOUT };
    char q[TEXT_QUOTE];
    int rc = 0;
    buf_char(b, '\n');
    // A writable pipe takes PIPE_BUF bytes without blocking.
    if (b->failed || (b->len > PIPE_BUF && !wait_ms) || poll(&p, 1, wait_ms) != 1) {
        r->dropped++;
    } else {
        size_t done = 0;
        while (done < b->len) {
            ssize_t n = write(r->fd, b->data + done, b->len - done);
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0) {
                rc = err_set(err, ERR_IO,
                             "%s:", text_quote(q, r->path, strlen(r->path)));
                break;
            }
            done += (size_t)n;
        }
    }
    buf_free(b);
    return rc;
}

/* ---- both --------------------------------------------------------------------------- */

static double
wall_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int
report_open(struct report *r, const char *path, bool force,
            const struct report_facts *facts, struct guard *g, struct err *err)
{
    *r = (struct report){
        .path = path, .fd = -1, .facts = facts, .guard = g, .began = wall_clock()
    };
    r->peak.available = -1;
    if (!path)
        return 0;
    if (!path_is_stream(path))
        return write_document(r, force ? OUT_FORCE : 0, -1, NULL, err);
    r->fd = open_stream(path, err);
    if (r->fd < 0)
        return -1;
    struct buf b = { 0 };
    buf_char(&b, '{');
    put_facts(&b, r);
    buf_char(&b, '}');
    return put_line(r, &b, 1000, err);
}

int
report_add(struct report *r, const struct sample *s, struct err *err)
{
    struct sample now = *s;
    now.wall = wall_clock();
    sample_worst(&r->peak, &now);
    if (!r->path || r->failed)
        return 0;
    int rc = 0;
    if (r->fd >= 0) {
        struct buf b = { 0 };
        put_sample(&b, r, &now);
        rc = put_line(r, &b, 0, err);
    } else {
        samples_add(&r->all, &now);
        if (os_seconds() - r->written >= 1) {
            rc = write_document(r, OUT_FORCE | OUT_PASSING, -1, NULL, err);
            r->written = os_seconds();
        }
    }
    r->failed = rc < 0; // report the error once
    return rc;
}

int
report_close(struct report *r, int status, const char *ended, struct err *err)
{
    if (!r->path || (r->failed && r->fd >= 0))
        return 0;
    if (r->fd < 0) // there may be space again
        return write_document(r, OUT_FORCE, status, ended, err);
    struct buf b = { 0 };
    buf_char(&b, '{');
    put_result(&b, r, status, ended);
    buf_printf(&b, ",\"Dropped\":%lu}", r->dropped);
    int rc = put_line(r, &b, 2000, err);
    if (close(r->fd) != 0 && rc == 0)
        rc = err_set(err, ERR_IO, "the report:");
    return rc;
}
