/* SPDX-License-Identifier: MIT */
/* meter: see meter.h. */
#include "lib/infer/meter.h"

#include "lib/base/os.h"

#include <math.h>

void
meter_open(struct meter *m, const struct host *host, bool many)
{
    *m = (struct meter){ .host = many && host->status ? host : NULL };
    m->started = m->shown = os_seconds();
}

static void
show(struct meter *m)
{
    struct buf line = { 0 };
    double now = os_seconds(), seconds = now - m->started;
    if (!m->host || now - m->shown < 0.2)
        return;
    m->shown = now;
    buf_printf(&line, "%llu prompts, %.1f tok/s", (unsigned long long)m->prompts,
               (double)m->tokens / seconds);
    if (m->share > 0)
        buf_printf(&line, ", %.0f %%, %.0f s left", 100 * m->share,
                   ceil(seconds * (1 - m->share) / m->share));
    if (!line.failed)
        m->host->status(m->host->ctx, line.data);
    buf_free(&line);
}

void
meter_token(struct meter *m)
{
    m->tokens++;
    show(m);
}

void
meter_prompt(struct meter *m, double share)
{
    m->prompts++;
    m->share = share;
    show(m);
}

void
meter_close(struct meter *m)
{
    if (m->host)
        m->host->status(m->host->ctx, NULL);
    m->host = NULL;
}
