/* SPDX-License-Identifier: MIT */
/* place: see place.h. */
#include "lib/infer/place.h"

#include "lib/base/json.h"

#include <string.h>

static void
put_words(struct buf *b, const struct place *p, const char *words)
{
    char q[TEXT_QUOTE];
    buf_printf(b, "%s %llu: ", p->line ? "<stdin>: line" : p->what,
               (unsigned long long)(p->line ? p->line : p->index));
    if (p->field.p)
        buf_printf(b, "\"%s\": ", text_quote(q, p->field.p, p->field.n));
    buf_str(b, strncmp(words, ": ", 2) == 0 ? words + 2 : words);
}

void
place_head(struct buf *b, const struct place *p)
{
    buf_printf(b, "{\"%s\":%llu,", p->what, (unsigned long long)p->index);
    if (p->answers > 1)
        buf_printf(b, "\"answer\":%u,", p->answer);
    if (p->id.p) {
        buf_str(b, "\"id\":");
        buf_add(b, p->id.p, p->id.n);
        buf_char(b, ',');
    }
}

static void
put_object(struct buf *b, const struct place *p, const struct buf *words)
{
    place_head(b, p);
    if (p->line)
        buf_printf(b, "\"line\":%llu,", (unsigned long long)p->line);
    if (p->field.p) {
        buf_str(b, "\"field\":");
        json_put(b, p->field);
        buf_char(b, ',');
    }
    buf_str(b, "\"error\":");
    json_put(b, (struct slice){ words->data, words->len });
    buf_char(b, '}');
}

int
place_refuse(struct buf *b, const struct place *p, const struct host *host, bool json,
             const struct err *why, struct err *err)
{
    struct buf words = { 0 };
    if (why->kind == ERR_MEMORY)
        return err_set(err, why->kind, "%s", why->msg);
    put_words(&words, p, why->msg);
    if (buf_ok(&words, err) < 0)
        return -1;
    if (json)
        put_object(b, p, &words);
    else
        host_warn(host, "%s", words.data);
    buf_char(b, '\n'); // of a text an empty line, so that lines stay in step
    buf_free(&words);
    return 0;
}
