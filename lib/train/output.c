/* SPDX-License-Identifier: MIT */
/* output: see output.h. */
#include "lib/train/output.h"

#include "lib/base/text.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* Wait until fd is writable; false: a stop was requested first. */
static bool
wait_writable(int fd, struct stop *stop)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    int rc;
    do
        rc = poll(&p, 1, 1000);
    while (rc < 0 || (rc == 0 && !stop_signal(stop)));
    return rc > 0;
}

/* A writable pipe takes PIPE_BUF bytes without blocking. */
int
output_try(int fd, struct stop *stop, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n && wait_writable(fd, stop)) {
        ssize_t k = write(fd, p, n < PIPE_BUF ? n : PIPE_BUF);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && errno == EPIPE) {
            stop_request(stop, SIGPIPE);
            return 0;
        }
        if (k < 0)
            return -1;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

void
output_failed(const struct host *host, struct stop *stop, const struct err *err)
{
    host_warn(host, "%s; the run is saved and ends", err->msg);
    stop_request(stop, STOP_FOR_OUTPUT);
}

void
output_put(struct output *o, const void *bytes, size_t n)
{
    struct err err = { 0 };
    char q[TEXT_QUOTE];
    if (o->failed || output_try(o->fd, o->stop, bytes, n) == 0)
        return;
    err_set(&err, ERR_IO, "%s:", text_quote(q, o->name, strlen(o->name)));
    o->failed = true;
    output_failed(o->host, o->stop, &err);
}
