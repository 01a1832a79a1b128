/* SPDX-License-Identifier: MIT */
/* shapes: see shapes.h.
 *
 * An object is read twice: first its keys, with the values of known ones as raw text; they
 * determine the shape, and only the values of that shape are parsed.  So a key that
 * means nothing in a shape may have a value of any type.
 */
#include "lib/data/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const key_names[SHAPE_KEYS] = {
    [SHAPE_TEXT] = "text",
    [SHAPE_PROMPT] = "prompt",
    [SHAPE_TARGET] = "target",
    [SHAPE_COMPLETION] = "completion",
    [SHAPE_MESSAGES] = "messages",
    [SHAPE_CONVERSATIONS] = "conversations",
    [SHAPE_INSTRUCTION] = "instruction",
    [SHAPE_INPUT] = "input",
    [SHAPE_OUTPUT] = "output",
    [SHAPE_ERROR] = "error",
};

enum shape_key
shape_key(struct slice name, const struct shape_names *names)
{
    enum shape_key k = 0;
    if (names && slice_is(name, names->prompt))
        return SHAPE_PROMPT;
    if (names && slice_is(name, names->answer))
        return SHAPE_COMPLETION;
    while (k < SHAPE_KEYS && !slice_is(name, key_names[k]))
        k++;
    return names && k != SHAPE_ERROR ? SHAPE_KEYS : k;
}

/* ---- values ------------------------------------------------------------------------ */

/* A reader of one value, whose messages have the right byte. */
static struct json
reader_of(const struct object *o, enum shape_key k)
{
    struct json v, *j = o->j;
    size_t at = (size_t)(o->value[k].p - j->text);
    json_open(&v, j->file, j->base + at, o->value[k], j->arena, j->err);
    return v;
}

static int
text_of(const struct object *o, enum shape_key k, struct slice *s)
{
    if (o->table) {
        *s = o->value[k];
        return 0;
    }
    struct json v = reader_of(o, k);
    return json_string(&v, s);
}

/* No text if the key is missing or null. */
static int
maybe_text_of(const struct object *o, enum shape_key k, struct slice *s)
{
    *s = (struct slice){ NULL, 0 };
    if (!o->value[k].p)
        return 0;
    struct json v = reader_of(o, k);
    return !o->table && json_peek(&v) == 'n' ? json_null(&v) : text_of(o, k, s);
}

/* ---- shapes ------------------------------------------------------------------------ */

static int
fill_text(const struct object *o, enum shape_key text)
{
    return text_of(o, text, &o->row->text);
}

static int
fill_pair(const struct object *o, enum shape_key target)
{
    return text_of(o, SHAPE_PROMPT, &o->row->prompt) < 0
               ? -1
               : text_of(o, target, &o->row->target);
}

static int
fill_messages(const struct object *o, enum shape_key k)
{
    struct json v = reader_of(o, k);
    return messages_parse(&o->row->messages, &v,
                          k == SHAPE_MESSAGES ? &messages_training
                                              : &messages_sharegpt);
}

/* The instruction, and behind a line feed the input if there is one. */
static int
fill_alpaca(const struct object *o, enum shape_key output)
{
    struct slice input, *prompt = &o->row->prompt;
    if (text_of(o, SHAPE_INSTRUCTION, prompt) < 0 ||
        text_of(o, output, &o->row->target) < 0 ||
        maybe_text_of(o, SHAPE_INPUT, &input) < 0)
        return -1;
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
    int (*fill)(const struct object *o, enum shape_key k);
    enum shape_key k; // for it
    enum row_kind kind;
    unsigned needs, allows;
} shapes[] = {
    { fill_text, SHAPE_TEXT, ROW_TEXT, KEY(SHAPE_TEXT), 0 },
    { fill_pair, SHAPE_TARGET, ROW_PAIR, KEY(SHAPE_PROMPT) | KEY(SHAPE_TARGET), 0 },
    { fill_pair, SHAPE_COMPLETION, ROW_PAIR, KEY(SHAPE_PROMPT) | KEY(SHAPE_COMPLETION),
      0 },
    // Data sets often repeat the first prompt, or have the text as it was rendered.
    { fill_messages, SHAPE_MESSAGES, ROW_MESSAGES, KEY(SHAPE_MESSAGES),
      KEY(SHAPE_PROMPT) },
    { fill_messages, SHAPE_CONVERSATIONS, ROW_MESSAGES, KEY(SHAPE_CONVERSATIONS),
      KEY(SHAPE_PROMPT) },
    { fill_alpaca, SHAPE_OUTPUT, ROW_PAIR, KEY(SHAPE_INSTRUCTION) | KEY(SHAPE_OUTPUT),
      KEY(SHAPE_PROMPT) | KEY(SHAPE_TEXT) },
};

static const unsigned beginnings =
    KEY(SHAPE_TEXT) | KEY(SHAPE_PROMPT) | KEY(SHAPE_TARGET) | KEY(SHAPE_COMPLETION) |
    KEY(SHAPE_MESSAGES) | KEY(SHAPE_CONVERSATIONS) | KEY(SHAPE_INSTRUCTION);

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

void
shape_put_wanted(struct buf *b, bool table, const struct shape_names *names)
{
    char q[TEXT_QUOTE], r[TEXT_QUOTE];
    const char *what = table ? "the columns " : "";
    if (names)
        buf_printf(b, "expected %s\"%s\" and \"%s\"", what,
                   text_quote(q, names->prompt, strlen(names->prompt)),
                   text_quote(r, names->answer, strlen(names->answer)));
    else
        buf_printf(
            b,
            "expected %s\"text\", %s\"prompt\" with \"completion\" or "
            "\"target\", or \"instruction\" with \"output\": one of these shapes",
            what, table ? "" : "\"messages\", \"conversations\", ");
}

static int
fail_unknown(struct json *j, const struct shape_names *names)
{
    struct buf b = { 0 };
    shape_put_wanted(&b, false, names);
    buf_str(&b, "; found ");
    put_names(&b, j);
    if (!names)
        buf_str(&b, "; --prompt-key and --answer-key read a pair under other names");
    int rc = buf_ok(&b, j->err);
    if (rc == 0)
        rc = json_fail(j, 0, "%s", b.data);
    buf_free(&b);
    return rc;
}

static const struct shape *
find_shape(unsigned has)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        if ((has & s->needs) == s->needs &&
            !(has & beginnings & ~s->needs & ~s->allows))
            return s;
    }
    return NULL;
}

bool
shape_fits_table(unsigned has)
{
    const struct shape *s = find_shape(has);
    return s && s->kind != ROW_MESSAGES;
}

/* Skip a row that l excludes from what is learnt. */
static void
exclude(struct row *r, const struct learn *l)
{
    if (l->verdict != LEARN_EXCLUDED || (l->only_answered && r->kind == ROW_TEXT))
        return;
    snprintf(r->reason, sizeof r->reason, "\"%s\" excludes it", l->key);
    r->why = r->reason;
    r->kind = ROW_SKIPPED;
}

int
shape_settle(const struct object *o)
{
    unsigned has = 0;
    for (enum shape_key k = 0; k < SHAPE_KEYS; k++)
        if (o->value[k].p)
            has |= KEY(k);
    const struct shape *s = find_shape(has);
    if (s) {
        o->row->kind = s->kind;
        if (s->fill(o, s->k) < 0)
            return -1;
        exclude(o->row, &o->excluded);
        if (o->row->kind == ROW_PAIR && o->row->target.n == 0) {
            o->row->kind = ROW_SKIPPED;
            o->row->why = "the answer is empty";
        }
        return 0;
    }
    if (!(has & KEY(SHAPE_ERROR)))
        return 1;
    o->row->kind = ROW_SKIPPED;
    o->row->why = "an error instead of an answer";
    return 0;
}

/* Remark on a key that belongs to no shape, but has a part of the conversation elsewhere. */
static void
remark(struct row *r, struct slice key)
{
    static const char *const words[] = { "system", "system_prompt", "history",
                                         "context" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (slice_is(key, words[i]))
            snprintf(r->remark, sizeof r->remark,
                     "the key \"%s\" is not read; \"messages\" hold such texts",
                     words[i]);
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
    remark(o->row, key);
    struct learn l = learn_judge(LEARN_ROW, key, raw);
    if (l.verdict == LEARN_EXCLUDED)
        o->excluded = l;
    if (l.verdict != LEARN_REFUSED)
        return 0;
    return json_fail(j, at, "\"%s\": expected %s, found %s", l.key, l.wants,
                     text_quote(q, raw.p, raw.n));
}

static int
take_keys(struct object *o, const struct shape_names *names)
{
    struct json *j = o->j;
    struct slice key;
    int more;
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        enum shape_key k = shape_key(key, names);
        bool seen = k < SHAPE_KEYS && o->value[k].p;
        if (k != SHAPE_KEYS && json_once(j, &seen, key_names[k]) == 0)
            json_skip(j, &o->value[k]);
        else if (k != SHAPE_KEYS)
            continue;
        else if (slice_is(key, "tools"))
            messages_refuse_tools(j, "tools");
        else if (slice_is(key, "functions"))
            messages_refuse_tools(j, "functions");
        else
            take_learn(o, key);
    }
    return more < 0 ? -1 : json_end(j);
}

int
shape_parse(struct row *r, struct json *j, const struct shape_names *names)
{
    struct object o = { .row = r, .j = j };
    if (take_keys(&o, names) < 0)
        return -1;
    int rc = shape_settle(&o);
    return rc > 0 ? fail_unknown(j, names) : rc;
}
