/* SPDX-License-Identifier: MIT */
/* meter: see meter.h. */
#include "cmd/generate/meter.h"

#include "lib/base/os.h"

#include <math.h>
#include <unistd.h>

void
meter_open(struct meter *m, const struct cmd *c, bool many)
{
    *m = (struct meter){ .program = c->name };
    m->active = many && !c->quiet && isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO);
    m->started = m->shown = os_seconds();
}

static void
show(struct meter *m)
{
    double now = os_seconds(), seconds = now - m->started;
    if (!m->active || now - m->shown < 0.2)
        return;
    m->shown = now;
    fprintf(stderr, "\r%s: %llu prompts, %.1f tok/s", m->program,
            (unsigned long long)m->prompts, (double)m->tokens / seconds);
    if (m->share > 0)
        fprintf(stderr, ", %.0f %%, %.0f s left", 100 * m->share,
                ceil(seconds * (1 - m->share) / m->share));
    fputs("\033[K", stderr);
    progress_shown();
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
    if (m->active)
        progress_clear();
    m->active = false;
}
