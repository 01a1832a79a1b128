/* SPDX-License-Identifier: MIT */
/* source: see source.h. */
#include "cmd/generate/source.h"

#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROMPT_LINE = 16 << 20 }; // bytes

/* Bytes of standard input that are still to be read, if it is a file. */
static double
bytes_ahead(void)
{
    struct stat st;
    off_t at = lseek(STDIN_FILENO, 0, SEEK_CUR);
    if (fstat(STDIN_FILENO, &st) < 0 || !S_ISREG(st.st_mode) || at >= st.st_size)
        return 0;
    return (double)(st.st_size - at);
}

void
source_open(struct source *x, const struct config_generate *c)
{
    *x = (struct source){
        .c = c,
        .reader = { .fd = STDIN_FILENO, .name = "<stdin>", .limit = PROMPT_LINE }
    };
    if (!c->n_prompts)
        x->bytes = bytes_ahead();
}

void
source_close(struct source *x)
{
    reader_free(&x->reader);
}

/* A prompt for a user at a terminal. */
static void
prompt_user(const struct config_generate *c)
{
    if (!c->cmd.quiet && isatty(STDIN_FILENO) && isatty(STDERR_FILENO))
        fputs("> ", stderr);
}

static int
next_line(struct source *x, struct slice *text, struct err *err)
{
    const struct reader *r = &x->reader;
    int rc;
    prompt_user(x->c);
    do {
        rc = reader_line(&x->reader, text, err);
        while (rc > 0 && text->n > 0 && text->p[text->n - 1] == '\r')
            text->n--;
    } while (rc > 0 && text->n == 0);
    x->line = r->number;
    if (x->bytes > 0 && (double)r->end < x->bytes)
        x->share = (double)r->end / x->bytes;
    return rc;
}

int
source_next(struct source *x, struct slice *text, struct err *err)
{
    const struct config_generate *c = x->c;
    if (!c->n_prompts)
        return next_line(x, text, err);
    if (x->at == c->n_prompts)
        return 0;
    *text = slice_of(c->prompts[x->at++]);
    x->share = (double)x->at / (double)c->n_prompts;
    return 1;
}

bool
source_waits(const struct source *x)
{
    const struct reader *r = &x->reader;
    struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
    if (x->c->n_prompts ||
        (r->text && memchr(r->text + r->from, '\n', r->have - r->from)))
        return false;
    return poll(&p, 1, 0) == 0;
}
