/* SPDX-License-Identifier: MIT */
/* source: see source.h. */
#include "cmd/generate/source.h"

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

/* Whether the next prompt would have to be waited for. */
static bool
waits(struct source *s)
{
    struct given_prompts *x = (struct given_prompts *)s;
    return !x->c->n_prompts && !reader_is_ready(&x->reader);
}

void
source_open(struct given_prompts *x, const struct config_generate *c)
{
    *x = (struct given_prompts){
        .source = { .next = source_next, .waits = waits },
        .c = c,
        .reader = { .fd = STDIN_FILENO, .name = "<stdin>", .limit = PROMPT_LINE }
    };
    if (!c->n_prompts)
        x->bytes = bytes_ahead();
}

void
source_close(struct given_prompts *x)
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

/* Without the ends of lines of other systems and, in the first line, a byte order mark. */
static void
trim(struct slice *text, bool first)
{
    static const char mark[] = "\xef\xbb\xbf";
    size_t n = strlen(mark);
    while (text->n > 0 && text->p[text->n - 1] == '\r')
        text->n--;
    if (first && text->n >= n && memcmp(text->p, mark, n) == 0)
        *text = (struct slice){ text->p + n, text->n - n };
}

/* A line without text is no prompt; to JSON spaces are none. */
static bool
is_empty(const struct given_prompts *x, struct slice text)
{
    size_t i = 0;
    while (x->c->o.requests && i < text.n && (text.p[i] == ' ' || text.p[i] == '\t'))
        i++;
    return i == text.n;
}

/* Note that a line looks like one of --input jsonl. */
static void
check_json(const struct given_prompts *x, struct slice text)
{
    static const char prompt[] = "\"prompt\"", messages[] = "\"messages\"";
    bool object = text.n > 1 && text.p[0] == '{' && text.p[text.n - 1] == '}';
    if (x->c->o.requests || x->c->o.ids || x->c->cmd.quiet || !object)
        return;
    if (memmem(text.p, text.n, prompt, sizeof prompt - 1) ||
        memmem(text.p, text.n, messages, sizeof messages - 1))
        warn(
            "<stdin>: line 1: looks like a request, and is answered as a text: --input "
            "jsonl reads requests");
}

static int
next_line(struct given_prompts *x, struct slice *text, struct err *err)
{
    const struct reader *r = &x->reader;
    int rc;
    prompt_user(x->c);
    do {
        rc = reader_line(&x->reader, text, err);
        if (rc > 0)
            trim(text, r->number == 1);
    } while (rc > 0 && is_empty(x, *text));
    if (rc > 0 && x->source.line == 0)
        check_json(x, *text);
    x->source.line = r->number;
    if (x->bytes > 0 && (double)r->end < x->bytes)
        x->source.share = (double)r->end / x->bytes;
    return rc;
}

int
source_next(struct source *s, struct slice *text, struct err *err)
{
    struct given_prompts *x = (struct given_prompts *)s;
    const struct config_generate *c = x->c;
    if (!c->n_prompts)
        return next_line(x, text, err);
    if (x->at == c->n_prompts)
        return 0;
    *text = slice_of(c->prompts[x->at++]);
    s->share = (double)x->at / (double)c->n_prompts;
    return 1;
}
