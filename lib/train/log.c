/* SPDX-License-Identifier: MIT */
/* log: see log.h. */
#include "lib/train/log.h"

#include "lib/base/json.h"
#include "lib/base/text.h"
#include "lib/file/path.h"
#include "lib/file/reader.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the lines that are there ----------------------------------------------------------- */

/* Whether the last line may be one of ours that was cut off. */
static bool
is_partial(const struct reader *r, struct slice line, const char *head)
{
    return r->open_end && line.n < strlen(head) && memcmp(line.p, head, line.n) == 0;
}

/* Find the end of the lines up to `step`: what follows is of a run that was lost, or was cut
 * off by a crash.  A file that does not begin like a log is refused. */
static int
find_end(struct log *l, uint64_t step, struct err *err)
{
    enum { LINE = 1 << 20 }; // bytes
    static const char head[] = "{\"step\":";
    struct reader r = { .fd = l->out.fd, .name = l->out.name, .limit = LINE };
    struct slice line;
    int more = 0, rc = 0;
    l->keep = 0;
    while (rc == 0 && (more = reader_line(&r, &line, err)) > 0) {
        bool ours = slice_starts(line, head), first = l->keep == 0 && l->dropped == 0;
        if (first && !ours && !is_partial(&r, line, head))
            rc = err_set(err, ERR_FORMAT, "%s: is no log of trainstep", l->out.name);
        else if (r.open_end)
            break;
        else if (l->dropped ||
                 (ours && strtoull(line.p + sizeof head - 1, NULL, 10) > step))
            l->dropped++;
        else
            l->keep = (off_t)r.end;
    }
    reader_free(&r);
    return more < 0 ? -1 : rc; // a log that cannot be read is not truncated
}

static void
cut_failed(struct log *l)
{
    struct err err = { 0 };
    char q[TEXT_QUOTE];
    err_set(&err, ERR_IO, "%s:", text_quote(q, l->out.name, strlen(l->out.name)));
    l->out.failed = true;
    output_failed(l->out.host, l->out.stop, &err);
}

/* Truncate only when there is a line to write: a run that ends earlier changes no log. */
static void
cut(struct log *l)
{
    if (l->keep < 0 || l->out.failed)
        return;
    if (ftruncate(l->out.fd, l->keep) != 0 || lseek(l->out.fd, l->keep, SEEK_SET) < 0) {
        cut_failed(l);
        return;
    }
    l->keep = -1;
    if (l->dropped)
        host_note(l->out.host, "%s: %llu line%s of steps beyond %llu %s dropped",
                  l->out.name, (unsigned long long)l->dropped,
                  l->dropped == 1 ? "" : "s", (unsigned long long)l->first,
                  l->dropped == 1 ? "is" : "are");
}

/* ---- lines ------------------------------------------------------------------------------ */

static void
put_f32(struct buf *b, const char *key, double v)
{
    buf_printf(b, ",\"%s\":", key);
    json_put_number(b, (double)(float)v, 9);
}

static int
flush(struct log *l, struct err *err)
{
    buf_char(&l->line, '\n');
    if (l->line.failed)
        return err_set(err, ERR_MEMORY, "out of memory for a log line");
    cut(l);
    output_put(&l->out, l->line.data, l->line.len);
    l->line.len = 0;
    return 0;
}

/* Put the quantizer of that step, where a training changes it. */
static void
put_quant(const struct run_config *r, struct buf *b, uint64_t step)
{
    if (r->s.quant_from > 0)
        buf_printf(b, ",\"quant\":\"%s\"",
                   config_before_quant(r, step) ? "none" : r->quantizer);
}

/* Put the fields that only some trainings have. */
static void
put_parts(struct buf *b, const struct trainer *t, const struct step_event *e)
{
    const struct train_result *res = e->result;
    if (t->ranks->size > 1)
        put_f32(b, "wait_ms", e->wait_ms);
    put_quant(t->run, b, t->train.step);
    if (t->train.net.fp8)
        buf_printf(b, ",\"fp8_clipped\":%llu", (unsigned long long)res->fp8_clipped);
    if (t->in->has_teacher) {
        put_f32(b, "ce", res->ce);
        put_f32(b, "kl", res->kl);
    }
    if (res->outcome != TRAIN_DONE) {
        buf_str(b, ",\"reason\":");
        json_put(b, slice_of(res->reason));
    }
}

static int
on_step(void *ctx, const struct trainer *t, const struct step_event *e)
{
    struct log *l = ctx;
    struct buf *b = &l->line;
    const struct train_result *res = e->result;
    double seconds = e->ms / 1000;
    if (e->repeated)
        return 0;
    buf_printf(b, "{\"step\":%llu", (unsigned long long)t->train.step);
    put_f32(b, "loss", res->loss);
    buf_printf(b, ",\"tokens\":%llu", (unsigned long long)res->tokens);
    put_f32(b, "lr", e->rate);
    put_f32(b, "grad_norm", res->grad_norm);
    put_f32(b, "tok_s", seconds > 0 ? (double)res->tokens / seconds : 0);
    buf_str(b, ",\"mfu\":null");
    put_f32(b, "mem_gb", (double)trainer_memory(t, true) / (1 << 30));
    put_f32(b, "ms", e->ms);
    buf_printf(b, ",\"skipped\":%d,\"epoch\":%llu,\"target_tokens\":%llu",
               res->outcome != TRAIN_DONE, (unsigned long long)t->in->data.epoch,
               (unsigned long long)res->targets);
    put_f32(b, "clip", res->clip);
    put_parts(b, t, e);
    buf_char(b, '}');
    return flush(l, t->err);
}

static int
on_eval(void *ctx, const struct trainer *t, const struct eval_event *e)
{
    struct log *l = ctx;
    struct buf *b = &l->line;
    buf_printf(b, "{\"step\":%llu", (unsigned long long)t->train.step);
    put_f32(b, "eval_loss", train_loss(&t->train, e->sums));
    if (t->in->has_teacher) {
        put_f32(b, "eval_ce", train_ce(e->sums));
        put_f32(b, "eval_kl", train_kl(e->sums));
    }
    buf_printf(b, ",\"eval_tokens\":%llu", (unsigned long long)e->sums->targets);
    put_quant(t->run, b, t->train.step);
    put_f32(b, "ms", e->ms);
    buf_char(b, '}');
    return flush(l, t->err);
}

/* ---- open and close --------------------------------------------------------------------- */

int
log_open(struct log *l, const struct run_config *r, struct stop *stop)
{
    const char *path = r->o->log;
    struct stat st;
    *l = (struct log){ .observer = { .ctx = l, .step = on_step, .eval = on_eval },
                       .out = { -1, path, r->host, stop, false },
                       .keep = -1,
                       .first = r->in_step };
    // A FIFO is opened for writing only, or we would be its reader.
    bool is_file = stat(path, &st) != 0 || S_ISREG(st.st_mode);
    int how = is_file ? O_RDWR : O_WRONLY;
    l->out.fd = open(path, how | O_CREAT | O_CLOEXEC, 0666);
    if (l->out.fd < 0)
        return path_cannot_make(path, path, "cannot be opened for writing", r->err);
    if (fstat(l->out.fd, &st) != 0)
        return err_set(r->err, ERR_IO, "%s:", path);
    return is_file && S_ISREG(st.st_mode) ? find_end(l, r->in_step, r->err) : 0;
}

int
log_close(struct log *l, struct err *err)
{
    int fd = l->out.fd;
    buf_free(&l->line);
    l->out.fd = -1;
    return fd >= 0 && close(fd) != 0 ? err_set(err, ERR_IO, "a log:") : 0;
}
