/* SPDX-License-Identifier: MIT */
/* log: one line a step as JSON, TensorBoard's events, and memory by phase; display.c has what
 * standard output and a terminal get.  It only reads the training state. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/json.h"
#include "lib/base/machine.h"
#include "lib/base/num.h"
#include "lib/base/os.h"
#include "lib/file/outfile.h"
#include "lib/file/path.h"
#include "lib/file/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REPORT_TOOL "\"Tool\":\"trainstep\""

enum { LOG_LINE = 1 << 20 }; // bytes

struct logs {
    int json, events; // descriptors, or -1
    off_t keep;       // bytes of the log to keep, -1: all
    uint64_t dropped; // lines after these
    bool reported;    // the report file is of this run
    bool streams;     // the report is a stream, open from the start
    struct outfile stream;
    struct buf line, samples;
    double started;
    uint64_t first_step, logged;
    size_t n_samples;
};

/* Resident bytes of this process, or their peak; 0: unknown. */
uint64_t
log_rss(bool peak)
{
    int64_t bytes = os_bytes("/proc/self/status", peak ? "VmHWM" : "VmRSS");
    return bytes < 0 ? 0 : (uint64_t)bytes;
}

/* The driver's bytes: what is less free than before, minus our own allocations.  Libraries
 * load until the first step has ended; later differences are of other processes.  One that
 * starts before that is counted as the driver, unless it allocates much. */
void
log_driver(struct run *r)
{
    uint64_t now, own, gone;
    if (r->device.host || !r->k || r->t.step > r->logs->first_step + 1)
        return;
    now = device_free(&r->where);
    own = r->k->usage.total;
    gone =
        r->free_before != UINT64_MAX && now < r->free_before ? r->free_before - now : 0;
    if (gone > own + r->driver)
        r->driver = gone - own < 2 * r->device.driver ? gone - own : r->device.driver;
}

/* Bytes of the device with its driver; on the CPU those of the process. */
uint64_t
log_memory(const struct run *r, bool peak)
{
    if (r->device.host)
        return log_rss(peak);
    return (peak ? r->k->usage.total_peak : r->k->usage.total) + r->driver;
}

/* Wait until fd is writable; false: a stop was requested first. */
static bool
wait_writable(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    int rc;
    do
        rc = poll(&p, 1, 1000);
    while (rc < 0 || (rc == 0 && !run_stopped()));
    return rc > 0;
}

/* -1 with errno.  A writable pipe takes PIPE_BUF bytes without blocking. */
static int
try_put(int fd, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n && wait_writable(fd)) {
        ssize_t k = write(fd, p, n < PIPE_BUF ? n : PIPE_BUF);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && errno == EPIPE) {
            stop_request(SIGPIPE);
            return 0;
        }
        if (k < 0)
            return -1;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int
output_fd(const struct run *r, enum output to)
{
    return to == OUTPUT_TABLE ? STDOUT_FILENO
           : to == OUTPUT_LOG ? r->logs->json
                              : r->logs->events;
}

static const char *
output_name(const struct run *r, enum output to)
{
    return to == OUTPUT_TABLE ? "standard output"
           : to == OUTPUT_LOG ? r->o->log
                              : r->o->tensorboard;
}

static void
output_failed(struct run *r, enum output to)
{
    struct err err = { 0 };
    char q[TEXT_QUOTE];
    const char *name = output_name(r, to);
    err_set(&err, ERR_IO, "%s:", text_quote(q, name, strlen(name)));
    r->failed[to] = true;
    stop_for_output(&err);
}

void
log_put(struct run *r, enum output to, const void *bytes, size_t n)
{
    if (!r->failed[to] && try_put(output_fd(r, to), bytes, n) < 0)
        output_failed(r, to);
}

/* ---- JSONL ------------------------------------------------------------------------------ */

/* Whether the last line may be one of ours that was cut off. */
static bool
is_partial(const struct reader *r, struct slice line, const char *head)
{
    return r->open_end && line.n < strlen(head) && memcmp(line.p, head, line.n) == 0;
}

/* Find the end of the lines up to `step`: what follows is of a run that was lost, or was cut
 * off by a crash.  A file that does not begin like a log is refused. */
static void
find_log_end(struct logs *l, const char *path, uint64_t step)
{
    static const char head[] = "{\"step\":";
    struct reader r = { .fd = l->json, .name = path, .limit = LOG_LINE };
    struct err err = { 0 };
    struct slice line;
    int more;
    l->keep = 0;
    while ((more = reader_line(&r, &line, &err)) > 0) {
        bool ours = slice_starts(line, head), first = l->keep == 0 && l->dropped == 0;
        if (first && !ours && !is_partial(&r, line, head))
            die(EXIT_TROUBLE, "%s: is no log of trainstep", path);
        if (r.open_end)
            break;
        if (l->dropped || (ours && strtoull(line.p + sizeof head - 1, NULL, 10) > step))
            l->dropped++;
        else
            l->keep = (off_t)r.end;
    }
    if (more < 0)
        die_err(&err); // a log that cannot be read is not truncated
    reader_free(&r);
}

static void
open_json(struct run *r)
{
    const char *path = r->o->log;
    struct stat st;
    // A FIFO is opened for writing only, or we would be its reader.
    bool is_file = stat(path, &st) != 0 || S_ISREG(st.st_mode);
    int how = is_file ? O_RDWR : O_WRONLY;
    r->logs->json = open(path, how | O_CREAT | O_CLOEXEC, 0666);
    if (r->logs->json < 0 &&
        path_cannot_make(path, path, "cannot be opened for writing", &r->err) < 0)
        die_err(&r->err);
    if (fstat(r->logs->json, &st) != 0)
        die(EXIT_TROUBLE, "%s:", path);
    if (is_file && S_ISREG(st.st_mode))
        find_log_end(r->logs, path, r->t.step);
}

/* Truncate only when there is a line to write: a run that ends earlier changes no log. */
static void
cut_json(struct run *r)
{
    struct logs *l = r->logs;
    if (l->keep < 0 || r->failed[OUTPUT_LOG])
        return;
    if (ftruncate(l->json, l->keep) != 0 || lseek(l->json, l->keep, SEEK_SET) < 0) {
        output_failed(r, OUTPUT_LOG);
        return;
    }
    l->keep = -1;
    if (l->dropped && !r->o->cmd.quiet)
        warn("%s: %llu line%s of steps beyond %llu %s dropped", r->o->log,
             (unsigned long long)l->dropped, l->dropped == 1 ? "" : "s",
             (unsigned long long)l->first_step, l->dropped == 1 ? "is" : "are");
}

static void
put_f32(struct buf *b, const char *key, double v)
{
    buf_printf(b, ",\"%s\":", key);
    json_put_number(b, v, 9);
}

static void
flush_json(struct run *r)
{
    struct logs *l = r->logs;
    buf_char(&l->line, '\n');
    if (l->line.failed)
        die(EXIT_MEMORY, "out of memory for a log line");
    if (l->json >= 0) {
        cut_json(r);
        log_put(r, OUTPUT_LOG, l->line.data, l->line.len);
    }
    l->line.len = 0;
}

static double
gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

/* What products saw of the weights in that step, where that changes during a training. */
static void
put_quant(const struct run *r, struct buf *b, uint64_t step)
{
    if (r->s.quant_from > 0)
        buf_printf(b, ",\"quant\":\"%s\"",
                   run_before_quant(r, step) ? "none" : r->quantizer);
}

static void
log_json(struct run *r, const struct train_result *res, double rate, double ms)
{
    struct buf *b = &r->logs->line;
    double seconds = ms / 1000;
    buf_printf(b, "{\"step\":%llu", (unsigned long long)r->t.step);
    put_f32(b, "loss", (double)(float)res->loss);
    buf_printf(b, ",\"tokens\":%llu", (unsigned long long)res->tokens);
    put_f32(b, "lr", (double)(float)rate);
    put_f32(b, "grad_norm", (double)(float)res->grad_norm);
    put_f32(b, "tok_s",
            seconds > 0 ? (double)(float)((double)res->tokens / seconds) : 0);
    buf_str(b, ",\"mfu\":null");
    put_f32(b, "mem_gb", (double)(float)gib(log_memory(r, true)));
    put_f32(b, "ms", (double)(float)ms);
    buf_printf(b, ",\"skipped\":%d,\"epoch\":%llu,\"target_tokens\":%llu",
               res->outcome != TRAIN_DONE, (unsigned long long)r->data.epoch,
               (unsigned long long)res->targets);
    put_f32(b, "clip", (double)(float)res->clip);
    if (ranks_count() > 1)
        put_f32(b, "wait_ms", (double)(float)r->wait_ms);
    put_quant(r, b, r->t.step);
    if (r->t.net.fp8)
        buf_printf(b, ",\"fp8_clipped\":%llu", (unsigned long long)res->fp8_clipped);
    if (r->has_teacher) {
        put_f32(b, "ce", (double)(float)res->ce);
        put_f32(b, "kl", (double)(float)res->kl);
    }
    if (res->outcome != TRAIN_DONE) {
        buf_str(b, ",\"reason\":");
        json_put(b, slice_of(res->reason));
    }
    buf_char(b, '}');
    flush_json(r);
}

/* ---- TensorBoard ---------------------------------------------------------------------------- */

/* Castagnoli's CRC, reflected. */
static uint32_t
crc32c(const uint8_t *p, size_t n)
{
    uint32_t c = 0xffffffff;
    for (; n; n--, p++) {
        c ^= *p;
        for (int i = 0; i < 8; i++)
            c = c >> 1 ^ (c & 1 ? 0x82f63b78 : 0);
    }
    return ~c;
}

static void
put_masked(struct buf *b, const uint8_t *p, size_t n)
{
    uint8_t bytes[4];
    uint32_t c = crc32c(p, n);
    store_le32(bytes, (c >> 15 | c << 17) + 0xa282ead8);
    buf_add(b, bytes, sizeof bytes);
}

static void
put_event(struct run *r, const struct buf *event)
{
    struct buf b = { 0 };
    uint8_t length[8];
    store_le64(length, event->len);
    buf_add(&b, length, sizeof length);
    put_masked(&b, length, sizeof length);
    buf_add(&b, event->data, event->len);
    put_masked(&b, (const uint8_t *)event->data, event->len);
    if (b.failed || event->failed)
        die(EXIT_MEMORY, "out of memory for an event");
    log_put(r, OUTPUT_EVENTS, b.data, b.len);
    buf_free(&b);
}

static void
put_varint(struct buf *b, uint64_t v)
{
    for (; v > 127; v >>= 7)
        buf_char(b, (char)(v | 128));
    buf_char(b, (char)v);
}

static void
put_time(struct buf *b)
{
    struct timespec t;
    uint8_t bytes[8];
    uint64_t bits;
    clock_gettime(CLOCK_REALTIME, &t);
    double seconds = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    memcpy(&bits, &seconds, sizeof bits);
    store_le64(bytes, bits);
    buf_char(b, 0x09);
    buf_add(b, bytes, sizeof bytes);
}

static void
put_scalar(struct run *r, const char *tag, double v)
{
    struct buf b = { 0 };
    size_t tag_n = strlen(tag), value = 2 + tag_n + 5;
    float f = (float)v;
    uint32_t bits;
    uint8_t bytes[4];
    put_time(&b);
    buf_char(&b, 0x10);
    put_varint(&b, r->t.step);
    buf_char(&b, 0x2a);
    put_varint(&b, 2 + value);
    buf_char(&b, 0x0a);
    put_varint(&b, value);
    buf_char(&b, 0x0a);
    put_varint(&b, tag_n);
    buf_add(&b, tag, tag_n);
    buf_char(&b, 0x15);
    memcpy(&bits, &f, sizeof bits);
    store_le32(bytes, bits);
    buf_add(&b, bytes, sizeof bytes);
    put_event(r, &b);
    buf_free(&b);
}

static void
open_events(struct run *r)
{
    char host[256] = "";
    struct buf path = { 0 }, first = { 0 };
    gethostname(host, sizeof host - 1);
    if (mkdir(r->o->tensorboard, 0777) != 0 && errno != EEXIST)
        die(EXIT_TROUBLE, "%s:", r->o->tensorboard);
    buf_printf(&path, "%s/events.out.tfevents.%lld.%s", r->o->tensorboard,
               (long long)time(NULL), host);
    put_time(&first);
    buf_str(&first, "\x1a\x0d"
                    "brain.Event:2");
    if (path.failed)
        die(EXIT_MEMORY, "out of memory");
    r->logs->events = open(path.data, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (r->logs->events < 0)
        die(EXIT_TROUBLE, "%s:", path.data);
    put_event(r, &first);
    buf_free(&path);
    buf_free(&first);
}

static void
log_events(struct run *r, const struct train_result *res, double rate, double ms)
{
    if (r->logs->events < 0)
        return;
    put_scalar(r, "loss", res->loss);
    put_scalar(r, "lr", rate);
    put_scalar(r, "grad_norm", res->grad_norm);
    put_scalar(r, "tok_s", ms > 0 ? (double)res->tokens / ms * 1000 : 0);
}

/* ---- memory by phase ------------------------------------------------------------------------- */

static void
put_timestamp(struct buf *b, const char *key)
{
    struct timespec t;
    struct tm tm;
    char text[40];
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    buf_printf(b, "\"%s\":\"%s.%07ldZ\"", key, text, t.tv_nsec / 100);
}

static unsigned long long
mib(uint64_t bytes)
{
    return (unsigned long long)(bytes >> 20);
}

void
log_phase(struct run *r, const char *phase)
{
    struct logs *l = r->logs;
    if (!r->o->memory_report)
        return;
    log_driver(r);
    struct buf *b = &l->samples;
    // On the CPU all three are this process's memory, read once: it may grow meanwhile.
    unsigned long long rss = mib(log_rss(false));
    unsigned long long own = r->device.host ? rss : mib(log_memory(r, false));
    // Of all processes on a GPU.
    unsigned long long all = r->device.host ? rss : mib(device_used(&r->where));
    buf_str(b, l->n_samples++ ? ",{" : "{");
    put_timestamp(b, "TimestampUtc");
    buf_printf(b, ",\"Phase\":\"%s\",\"PidMemoryMiB\":%llu,\"TotalMemoryMiB\":%llu",
               phase, own, all);
    buf_printf(b, ",\"DeviceUsedMiB\":%llu,\"DevicePeakMiB\":%llu,\"HostRssMiB\":%llu",
               mib(r->k ? r->k->usage.total : 0),
               mib(r->k ? r->k->usage.total_peak : 0), rss);
    if (!r->device.host)
        buf_printf(b, ",\"DeviceDriverMiB\":%llu", mib(r->driver));
    uint64_t available = machine_free();
    buf_printf(b, ",\"MemAvailableMiB\":%llu,\"Step\":%llu,\"ElapsedMs\":%.0f}",
               available == UINT64_MAX ? 0 : mib(available),
               (unsigned long long)r->t.step, (os_seconds() - l->started) * 1000);
}

static void
put_report(struct run *r, struct buf *b)
{
    bool unified = device_unified(&r->where);
    buf_printf(b, "{\"Pid\":%d,", (int)getpid());
    put_timestamp(b, "CreatedUtc");
    buf_printf(b,
               "," REPORT_TOOL ",\"Version\":\"%s\",\"Device\":\"%s\","
               "\"UnifiedMemory\":%s,\"Samples\":[",
               cmd_version(), r->device.name, unified ? "true" : "false");
    if (r->logs->samples.len)
        buf_add(b, r->logs->samples.data, r->logs->samples.len);
    buf_str(b, "]}\n");
    b->failed |= r->logs->samples.failed;
}

/* Whether path is a report of an earlier run, which is replaced without -f. */
static bool
is_report(const char *path)
{
    char head[160] = "";
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f)
        fclose(f);
    head[n] = '\0';
    return strncmp(head, "{\"Pid\":", 7) == 0 && strstr(head, "," REPORT_TOOL ",");
}

/* A stream gets the report once, at the end. */
static int
stream_report(struct run *r, const struct buf *b, struct err *err)
{
    struct outfile *o = &r->logs->stream;
    o->err = err;
    if (b->failed)
        err_set(err, ERR_MEMORY, "out of memory for the memory report");
    else if (try_put(o->fd, b->data, b->len) < 0)
        err_set(err, ERR_IO, "%s:", o->name);
    return out_commit(o);
}

/* Replace the report file. */
static int
replace_report(struct run *r, const struct buf *b, bool last, struct err *err)
{
    struct outfile o;
    const char *path = r->o->memory_report;
    bool replace = r->o->force || r->logs->reported || is_report(path);
    if (b->failed)
        err_set(err, ERR_MEMORY, "out of memory for the memory report");
    unsigned flags = (replace ? OUT_FORCE : 0) | (last ? 0 : OUT_PASSING);
    int rc = out_open(&o, path, flags, &cmd_guard, err);
    if (rc == 0)
        rc = out_write(&o, b->data, b->len);
    if (rc == 0)
        rc = out_commit(&o);
    else
        out_abandon(&o);
    r->logs->reported |= rc == 0;
    return rc;
}

static int
write_report(struct run *r, bool last, struct err *err)
{
    struct buf b = { 0 };
    if (!last && r->logs->streams)
        return 0;
    put_report(r, &b);
    int rc =
        r->logs->streams ? stream_report(r, &b, err) : replace_report(r, &b, last, err);
    buf_free(&b);
    return rc;
}

static struct run *reporting; // for exit handlers

static void
report_at_exit(void)
{
    struct err err = { 0 };
    if (reporting && write_report(reporting, true, &err) < 0)
        warn("%s", err.msg);
}

/* Check before the first step that the report can be written.  Opening a FIFO waits for its
 * reader, so do it while a signal still ends the program. */
static void
open_report(struct run *r)
{
    struct logs *l = r->logs;
    struct err err = { 0 };
    l->streams = path_is_stream(r->o->memory_report);
    if (l->streams &&
        out_open(&l->stream, r->o->memory_report, 0, &cmd_guard, &err) < 0)
        die_err(&err);
    log_saved(r);
    reporting = r;
    if (atexit(report_at_exit) != 0)
        die(EXIT_MEMORY, "out of memory for the memory report");
}

void
log_saved(struct run *r)
{
    struct err err = { 0 };
    if (r->o->memory_report && write_report(r, false, &err) < 0)
        die_err(&err);
}

static void
close_report(struct run *r)
{
    struct err err = { 0 };
    reporting = NULL;
    if (write_report(r, true, &err) < 0)
        die_err(&err);
}

/* ---- all together ------------------------------------------------------------------------------ */

void
log_open(struct run *r)
{
    struct logs *l = cmd_alloc(1, sizeof *l);
    r->logs = l;
    l->json = l->events = -1;
    l->keep = -1;
    l->started = os_seconds();
    l->first_step = l->logged = r->t.step;
    display_open(r);
    if (r->o->log)
        open_json(r);
    if (r->o->tensorboard)
        open_events(r);
    if (r->o->memory_report)
        open_report(r);
}

/* Steps that are repeated after an undone one are in the log already. */
void
log_step(struct run *r, const struct train_result *res, double rate, double ms)
{
    if (r->t.step <= r->logs->logged)
        return;
    r->logs->logged = r->t.step;
    log_json(r, res, rate, ms);
    log_events(r, res, rate, ms);
    if (res->outcome != TRAIN_DONE)
        warn("step %llu was skipped: %s", (unsigned long long)r->t.step, res->reason);
    display_step(r, res, rate, ms);
}

void
log_eval(struct run *r, const struct train_sums *sums, double ms)
{
    struct buf *b = &r->logs->line;
    uint64_t targets = sums->targets;
    double loss = train_loss(&r->t, sums), ce = train_ce(sums), kl = train_kl(sums);
    buf_printf(b, "{\"step\":%llu", (unsigned long long)r->t.step);
    put_f32(b, "eval_loss", (double)(float)loss);
    if (r->has_teacher) {
        put_f32(b, "eval_ce", (double)(float)ce);
        put_f32(b, "eval_kl", (double)(float)kl);
    }
    buf_printf(b, ",\"eval_tokens\":%llu", (unsigned long long)targets);
    put_quant(r, b, r->t.step);
    put_f32(b, "ms", (double)(float)ms);
    buf_char(b, '}');
    flush_json(r);
    if (r->logs->events >= 0)
        put_scalar(r, "eval_loss", loss);
    if (r->o->cmd.quiet)
        return;
    char parts[96] = "";
    if (r->has_teacher)
        snprintf(parts, sizeof parts, " (cross-entropy %.6g, KL %.6g)", ce, kl);
    warn("step %llu: evaluation loss %.6g%s over %llu tokens",
         (unsigned long long)r->t.step, loss, parts, (unsigned long long)targets);
}

void
log_close(struct run *r)
{
    struct logs *l = r->logs;
    progress_clear();
    if (r->o->memory_report)
        close_report(r);
    if ((l->json >= 0 && close(l->json) != 0) ||
        (l->events >= 0 && close(l->events) != 0))
        die(EXIT_TROUBLE, "a log:");
    buf_free(&l->line);
    buf_free(&l->samples);
    free(l);
    r->logs = NULL;
}
