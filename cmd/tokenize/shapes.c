/* SPDX-License-Identifier: MIT */
/* shapes: see shapes.h.
 *
 * An object is read twice: first its keys, with the values of known ones as raw text; they
 * determine the shape, and only the values of that shape are parsed.  So a key that
 * means nothing in a shape may have a value of any type.
 */
#include "cmd/tokenize/shapes.h"

#include <stdlib.h>
#include <string.h>

enum key {
    TEXT,
    PROMPT,
    TARGET,
    COMPLETION,
    MESSAGES,
    CONVERSATIONS,
    INSTRUCTION,
    INPUT,
    OUTPUT,
    ERROR, // generate has it in place of an answer
    KEYS
};

static const char *const key_names[KEYS] = {
    [TEXT] = "text",
    [PROMPT] = "prompt",
    [TARGET] = "target",
    [COMPLETION] = "completion",
    [MESSAGES] = "messages",
    [CONVERSATIONS] = "conversations",
    [INSTRUCTION] = "instruction",
    [INPUT] = "input",
    [OUTPUT] = "output",
    [ERROR] = "error",
};

struct object {
    struct row *row;
    struct json *j;
    struct slice value[KEYS]; // raw; p == NULL: there is no such key
    struct learn excluded;    // by a key of the row
};

/* ---- values ------------------------------------------------------------------------ */

/* A reader of one value, whose messages have the right byte. */
static struct json
reader_of(const struct object *o, enum key k)
{
    struct json v, *j = o->j;
    size_t at = (size_t)(o->value[k].p - j->text);
    json_open(&v, j->file, j->base + at, o->value[k], j->arena, j->err);
    return v;
}

static int
text_of(const struct object *o, enum key k, struct slice *s)
{
    struct json v = reader_of(o, k);
    return json_string(&v, s);
}

/* ---- shapes ------------------------------------------------------------------------ */

static int
fill_text(const struct object *o, enum key text)
{
    return text_of(o, text, &o->row->text);
}

static int
fill_pair(const struct object *o, enum key target)
{
    return text_of(o, PROMPT, &o->row->prompt) < 0
               ? -1
               : text_of(o, target, &o->row->target);
}

static int
fill_messages(const struct object *o, enum key k)
{
    struct json v = reader_of(o, k);
    return messages_parse(&o->row->messages, &v,
                          k == MESSAGES ? &messages_training : &messages_sharegpt);
}

/* The instruction, and behind a line feed the input if there is one. */
static int
fill_alpaca(const struct object *o, enum key output)
{
    struct slice input = { NULL, 0 }, *prompt = &o->row->prompt;
    struct json v;
    if (text_of(o, INSTRUCTION, prompt) < 0 || text_of(o, output, &o->row->target) < 0)
        return -1;
    if (o->value[INPUT].p) {
        v = reader_of(o, INPUT);
        if ((json_peek(&v) == 'n' ? json_null(&v) : json_string(&v, &input)) < 0)
            return -1;
    }
    if (input.n == 0)
        return 0;
    char *both = arena_alloc(o->j->arena, prompt->n + 1 + input.n);
    if (!both)
        return err_set(o->j->err, ERR_MEMORY, "out of memory for a prompt");
    memcpy(both, prompt->p, prompt->n);
    both[prompt->n] = '\n';
    memcpy(both + prompt->n + 1, input.p, input.n);
    *prompt = (struct slice){ both, prompt->n + 1 + input.n };
    return 0;
}

#define KEY(k) (1U << (k))

/* An object has a shape if it has all keys that the shape needs; of the keys that mark other
 * shapes it may have those that this one allows. */
static const struct shape {
    int (*fill)(const struct object *o, enum key k);
    enum key k; // for it
    enum row_kind kind;
    unsigned needs, allows;
} shapes[] = {
    { fill_text, TEXT, ROW_TEXT, KEY(TEXT), 0 },
    { fill_pair, TARGET, ROW_PAIR, KEY(PROMPT) | KEY(TARGET), 0 },
    { fill_pair, COMPLETION, ROW_PAIR, KEY(PROMPT) | KEY(COMPLETION), 0 },
    // Data sets often repeat the first prompt, or have the text as it was rendered.
    { fill_messages, MESSAGES, ROW_MESSAGES, KEY(MESSAGES), KEY(PROMPT) },
    { fill_messages, CONVERSATIONS, ROW_MESSAGES, KEY(CONVERSATIONS), KEY(PROMPT) },
    { fill_alpaca, OUTPUT, ROW_PAIR, KEY(INSTRUCTION) | KEY(OUTPUT),
      KEY(PROMPT) | KEY(TEXT) },
};

static const unsigned beginnings = KEY(TEXT) | KEY(PROMPT) | KEY(TARGET) |
                                   KEY(COMPLETION) | KEY(MESSAGES) |
                                   KEY(CONVERSATIONS) | KEY(INSTRUCTION);

/* The first names of an object that was read before. */
static void
put_names(struct buf *b, const struct json *j)
{
    enum { MAX_SHOWN = 10, MAX_NAME = 40 };
    struct err ignored = { 0 };
    struct json again;
    struct slice key;
    char q[TEXT_QUOTE];
    unsigned n = 0;
    json_open(&again, "", 0, (struct slice){ j->text, j->len }, j->arena, &ignored);
    json_object(&again);
    for (; n <= MAX_SHOWN && json_key(&again, &key) > 0; n++) {
        buf_str(b, n ? ", " : "the keys ");
        if (n == MAX_SHOWN)
            buf_str(b, "...");
        else
            buf_printf(b, "\"%s\"",
                       text_quote(q, key.p, key.n < MAX_NAME ? key.n : MAX_NAME));
        json_skip(&again, NULL);
    }
    if (n == 0)
        buf_str(b, "no keys");
}

static int
fail_unknown(struct json *j)
{
    struct buf names = { 0 };
    put_names(&names, j);
    int rc = buf_ok(&names, j->err);
    if (rc == 0)
        rc = json_fail(j, 0,
                       "expected \"text\", \"messages\", \"conversations\", "
                       "\"prompt\" with \"completion\" or \"target\", or "
                       "\"instruction\" with \"output\": one of these shapes; found %s",
                       names.data);
    buf_free(&names);
    return rc;
}

static int
settle_shape(const struct object *o)
{
    unsigned has = 0;
    for (enum key k = 0; k < KEYS; k++)
        if (o->value[k].p)
            has |= KEY(k);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        if ((has & s->needs) != s->needs || (has & beginnings & ~s->needs & ~s->allows))
            continue;
        o->row->kind = s->kind;
        if (s->fill(o, s->k) < 0)
            return -1;
        row_exclude(o->row, &o->excluded);
        return 0;
    }
    if (!(has & KEY(ERROR)))
        return fail_unknown(o->j);
    o->row->kind = ROW_SKIPPED;
    o->row->why = "an error instead of an answer";
    return 0;
}

/* Read the value of a key that belongs to no shape. */
static int
take_learn(struct object *o, struct slice key)
{
    struct json *j = o->j;
    size_t at = j->pos;
    struct slice raw;
    char q[TEXT_QUOTE];
    if (json_skip(j, &raw) < 0)
        return -1;
    struct learn l = learn_judge(LEARN_ROW, key, raw);
    if (l.verdict == LEARN_EXCLUDED)
        o->excluded = l;
    if (l.verdict != LEARN_REFUSED)
        return 0;
    return json_fail(j, at, "\"%s\": expected %s, found %s", l.key, l.wants,
                     text_quote(q, raw.p, raw.n));
}

static int
take_keys(struct object *o)
{
    struct json *j = o->j;
    struct slice key;
    int more;
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        enum key k = 0;
        while (k < KEYS && !slice_is(key, key_names[k]))
            k++;
        bool seen = k < KEYS && o->value[k].p;
        if (slice_is(key, "tools"))
            messages_refuse_tools(j, "tools");
        else if (slice_is(key, "functions"))
            messages_refuse_tools(j, "functions");
        else if (k == KEYS)
            take_learn(o, key);
        else if (row_once(j, &seen, key_names[k]) == 0)
            json_skip(j, &o->value[k]);
    }
    return more < 0 ? -1 : json_end(j);
}

int
shape_parse(struct row *r, struct json *j)
{
    struct object o = { .row = r, .j = j };
    return take_keys(&o) < 0 ? -1 : settle_shape(&o);
}
