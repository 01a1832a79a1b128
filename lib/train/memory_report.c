/* SPDX-License-Identifier: MIT */
/* memory_report: see memory_report.h. */
#include "lib/train/memory_report.h"

#include "lib/base/machine.h"
#include "lib/base/os.h"
#include "lib/file/path.h"
#include "lib/train/output.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TOOL "\"Tool\":\"trainstep\""

/* ---- samples ---------------------------------------------------------------------------- */

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

static int
on_phase(void *ctx, const struct trainer *t, const char *phase)
{
    struct memory_report *m = ctx;
    const struct run_config *r = t->run;
    struct buf *b = &m->samples;
    // On the CPU all three are this process's memory, read once: it may grow meanwhile.
    unsigned long long rss = mib(machine_resident(false));
    unsigned long long own = r->device.host ? rss : mib(trainer_memory(t, false));
    // A GPU counts all its processes.
    unsigned long long all = r->device.host ? rss : mib(device_used(&r->where));
    buf_str(b, m->n++ ? ",{" : "{");
    put_timestamp(b, "TimestampUtc");
    buf_printf(b, ",\"Phase\":\"%s\",\"PidMemoryMiB\":%llu,\"TotalMemoryMiB\":%llu",
               phase, own, all);
    buf_printf(b, ",\"DeviceUsedMiB\":%llu,\"DevicePeakMiB\":%llu,\"HostRssMiB\":%llu",
               mib(t->k ? t->k->usage.total : 0),
               mib(t->k ? t->k->usage.total_peak : 0), rss);
    if (!r->device.host)
        buf_printf(b, ",\"DeviceDriverMiB\":%llu", mib(t->driver));
    uint64_t available = machine_free();
    buf_printf(b, ",\"MemAvailableMiB\":%llu,\"Step\":%llu,\"ElapsedMs\":%.0f}",
               available == UINT64_MAX ? 0 : mib(available),
               (unsigned long long)t->train.step, (os_seconds() - m->started) * 1000);
    return 0;
}

/* ---- the report ------------------------------------------------------------------------- */

static void
put_report(const struct memory_report *m, struct buf *b)
{
    const struct run_config *r = m->run;
    bool unified = device_unified(&r->where);
    buf_printf(b, "{\"Pid\":%d,", (int)getpid());
    put_timestamp(b, "CreatedUtc");
    buf_printf(b,
               "," TOOL ",\"Version\":\"%s\",\"Device\":\"%s\","
               "\"UnifiedMemory\":%s,\"Samples\":[",
               r->host->version, r->device.name, unified ? "true" : "false");
    if (m->samples.len)
        buf_add(b, m->samples.data, m->samples.len);
    buf_str(b, "]}\n");
    b->failed |= m->samples.failed;
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
    return strncmp(head, "{\"Pid\":", 7) == 0 && strstr(head, "," TOOL ",");
}

static int
no_memory(struct err *err)
{
    return err_set(err, ERR_MEMORY, "out of memory for the memory report");
}

static int
write_stream(struct memory_report *m, const struct buf *b, struct err *err)
{
    struct outfile *o = &m->stream;
    o->err = err;
    if (b->failed)
        no_memory(err);
    else if (output_try(o->fd, m->stop, b->data, b->len) < 0)
        err_set(err, ERR_IO, "%s:", o->name);
    return out_commit(o);
}

static int
replace_file(struct memory_report *m, const struct buf *b, bool last, struct err *err)
{
    struct outfile o;
    const struct train_options *options = m->run->o;
    const char *path = options->memory_report;
    bool replace = options->force || m->ours || is_report(path);
    if (b->failed)
        no_memory(err);
    unsigned flags = (replace ? OUT_FORCE : 0) | (last ? 0 : OUT_PASSING);
    int rc = out_open(&o, path, flags, m->run->host->guard, err);
    if (rc == 0)
        rc = out_write(&o, b->data, b->len);
    if (rc == 0)
        rc = out_commit(&o);
    else
        out_abandon(&o);
    m->ours |= rc == 0;
    return rc;
}

static int
write_report(struct memory_report *m, bool last, struct err *err)
{
    struct buf b = { 0 };
    if (!last && m->streams)
        return 0;
    put_report(m, &b);
    int rc = m->streams ? write_stream(m, &b, err) : replace_file(m, &b, last, err);
    buf_free(&b);
    return rc;
}

static int
on_saved(void *ctx, const struct trainer *t, bool now)
{
    return now ? write_report(ctx, false, t->err) : 0;
}

int
memory_report_open(struct memory_report *m, const struct run_config *r,
                   struct stop *stop)
{
    const char *path = r->o->memory_report;
    *m = (struct memory_report){
        .observer = { .ctx = m, .phase = on_phase, .saved = on_saved },
        .run = r,
        .stop = stop,
        .started = os_seconds(),
        .streams = path_is_stream(path)
    };
    if (m->streams && out_open(&m->stream, path, 0, r->host->guard, r->err) < 0)
        return -1;
    if (write_report(m, false, r->err) < 0)
        return -1;
    m->open = true;
    return 0;
}

int
memory_report_close(struct memory_report *m, struct err *err)
{
    if (!m->open)
        return 0;
    m->open = false;
    int rc = write_report(m, true, err);
    buf_free(&m->samples);
    return rc;
}
