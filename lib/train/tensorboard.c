/* SPDX-License-Identifier: MIT */
/* tensorboard: see tensorboard.h. */
#include "lib/train/tensorboard.h"

#include "lib/base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- records ---------------------------------------------------------------------------- */

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

static int
put_event(struct tensorboard *t, const struct buf *event, struct err *err)
{
    struct buf b = { 0 };
    uint8_t length[8];
    store_le64(length, event->len);
    buf_add(&b, length, sizeof length);
    put_masked(&b, length, sizeof length);
    buf_add(&b, event->data, event->len);
    put_masked(&b, (const uint8_t *)event->data, event->len);
    bool failed = b.failed || event->failed;
    if (!failed)
        output_put(&t->out, b.data, b.len);
    buf_free(&b);
    return failed ? err_set(err, ERR_MEMORY, "out of memory for an event") : 0;
}

/* ---- events, as protocol buffers -------------------------------------------------------- */

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

static int
put_scalar(struct tensorboard *t, const struct trainer *at, const char *tag, double v)
{
    struct buf b = { 0 };
    size_t tag_n = strlen(tag), value = 2 + tag_n + 5;
    float f = (float)v;
    uint32_t bits;
    uint8_t bytes[4];
    put_time(&b);
    buf_char(&b, 0x10);
    put_varint(&b, at->train.step);
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
    int rc = put_event(t, &b, at->err);
    buf_free(&b);
    return rc;
}

static int
on_step(void *ctx, const struct trainer *t, const struct step_event *e)
{
    const struct train_result *res = e->result;
    const double speed = e->ms > 0 ? (double)res->tokens / e->ms * 1000 : 0;
    if (e->repeated)
        return 0;
    if (put_scalar(ctx, t, "loss", res->loss) < 0 ||
        put_scalar(ctx, t, "lr", e->rate) < 0 ||
        put_scalar(ctx, t, "grad_norm", res->grad_norm) < 0)
        return -1;
    return put_scalar(ctx, t, "tok_s", speed);
}

static int
on_eval(void *ctx, const struct trainer *t, const struct eval_event *e)
{
    return put_scalar(ctx, t, "eval_loss", train_loss(&t->train, e->sums));
}

/* ---- open and close --------------------------------------------------------------------- */

static int
open_file(struct tensorboard *t, const char *dir, struct err *err)
{
    char host[256] = "";
    struct buf path = { 0 };
    int rc = 0;
    gethostname(host, sizeof host - 1);
    buf_printf(&path, "%s/events.out.tfevents.%lld.%s", dir, (long long)time(NULL),
               host);
    if (path.failed)
        rc = err_set(err, ERR_MEMORY, "out of memory");
    else
        t->out.fd = open(path.data, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (rc == 0 && t->out.fd < 0)
        rc = err_set(err, ERR_IO, "%s:", path.data);
    buf_free(&path);
    return rc;
}

int
tensorboard_open(struct tensorboard *t, const struct run_config *r, struct stop *stop)
{
    const char *dir = r->o->tensorboard;
    struct buf first = { 0 };
    *t = (struct tensorboard){
        .observer = { .ctx = t, .step = on_step, .eval = on_eval },
        .out = { -1, dir, r->host, stop, false }
    };
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return err_set(r->err, ERR_IO, "%s:", dir);
    if (open_file(t, dir, r->err) < 0)
        return -1;
    put_time(&first);
    buf_str(&first, "\x1a\x0d"
                    "brain.Event:2");
    int rc = put_event(t, &first, r->err);
    buf_free(&first);
    return rc;
}

int
tensorboard_close(struct tensorboard *t, struct err *err)
{
    int fd = t->out.fd;
    t->out.fd = -1;
    return fd >= 0 && close(fd) != 0 ? err_set(err, ERR_IO, "a log:") : 0;
}
