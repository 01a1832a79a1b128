/* SPDX-License-Identifier: MIT */
/* messages: see messages.h. */
#include "lib/data/messages.h"

#include "lib/base/grow.h"
#include "lib/data/learn.h"

#include <stdlib.h>
#include <string.h>

static const char *const sharegpt_roles[][2] = { { "human", "user" },
                                                 { "gpt", "assistant" },
                                                 { NULL, NULL } };
const struct message_keys messages_openai = { "role", "content", NULL, false };
const struct message_keys messages_training = { "role", "content", NULL, true };
const struct message_keys messages_sharegpt = { "from", "value", sharegpt_roles, true };

static struct message *
add_message(struct messages *m)
{
    if (!GROW(m->v, m->n, m->cap, 16))
        return NULL;
    m->v[m->n] = (struct message){ 0 };
    return &m->v[m->n++];
}

int
messages_refuse_tools(struct json *j, const char *key)
{
    size_t at = j->pos;
    struct slice raw;
    if (json_skip(j, &raw) < 0)
        return -1;
    if (slice_is(raw, "null") || slice_is(raw, "[]"))
        return 0;
    return json_fail(j, at, "\"%s\": tools are not supported", key);
}

/* ---- keys that exclude ------------------------------------------------------------- */

/* Read the value of a key in training data that may exclude text. */
static int
read_learn(struct json *j, struct slice key, struct learn *l)
{
    size_t at = j->pos;
    struct slice raw;
    char q[TEXT_QUOTE];
    if (json_skip(j, &raw) < 0)
        return -1;
    *l = learn_judge(LEARN_MESSAGE, key, raw);
    if (l->verdict == LEARN_REFUSED)
        return json_fail(j, at, "\"%s\": expected %s, found %s", l->key, l->wants,
                         text_quote(q, raw.p, raw.n));
    return 0;
}

/* Parts of a message are learnt all or none. */
static int
take_part_learn(struct json *j, struct slice key)
{
    size_t at = j->pos;
    struct learn l;
    if (read_learn(j, key, &l) < 0)
        return -1;
    if (l.verdict != LEARN_EXCLUDED)
        return 0;
    return json_fail(j, at,
                     "\"%s\": expected it beside \"role\": a part of a message cannot "
                     "be excluded alone",
                     l.key);
}

/* The keys of a message that include it in the loss or exclude it. */
struct excluding {
    const char *included; // the key that asks for it; NULL: none
    size_t at;            // its value
};

static int
take_learn(struct json *j, struct slice key, struct message *m, struct excluding *x)
{
    size_t at = j->pos;
    struct learn l;
    if (read_learn(j, key, &l) < 0)
        return -1;
    if (l.verdict == LEARN_EXCLUDED)
        m->context = true;
    if (l.verdict == LEARN_INCLUDED)
        *x = (struct excluding){ l.key, at };
    return 0;
}

/* ---- a message ----------------------------------------------------------------------- */

/* Append the text of {"type":"text","text":...}. */
static int
take_part(struct json *j, struct buf *text, bool training)
{
    struct slice key, type = { NULL, 0 }, words = { NULL, 0 };
    size_t at = j->pos;
    char q[TEXT_QUOTE];
    int more;
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        if (slice_is(key, "type"))
            json_string(j, &type);
        else if (slice_is(key, "text"))
            json_string(j, &words);
        else if (training)
            take_part_learn(j, key);
        else
            json_skip(j, NULL);
    }
    if (more < 0)
        return -1;
    if (!type.p || !slice_is(type, "text"))
        return json_fail(j, at, "expected a part of type \"text\", found \"%s\"",
                         text_quote(q, type.p ? type.p : "", type.n));
    if (!words.p)
        return json_fail(j, at, "expected a part with \"text\"");
    buf_add(text, words.p, words.n);
    return 0;
}

static int
take_parts(struct json *j, struct slice *s, bool training)
{
    struct buf text = { 0 };
    int more, rc = json_array(j);
    while (rc == 0 && (more = json_item(j)) != 0)
        rc = more < 0 ? -1 : take_part(j, &text, training);
    if (rc == 0)
        rc = buf_ok(&text, j->err);
    if (rc == 0) {
        *s = (struct slice){ arena_copy(j->arena, text.data ? text.data : "", text.len),
                             text.len };
        rc = s->p ? 0 : err_set(j->err, ERR_MEMORY, "out of memory for a message");
    }
    buf_free(&text);
    return rc;
}

/* Text, or an array of parts that are texts.  null leaves *s without text: *null is where. */
static int
take_content(struct json *j, struct slice *s, size_t *null, bool training)
{
    switch (json_peek(j)) {
    case '[':
        return take_parts(j, s, training);
    case 'n':
        *null = j->pos;
        return json_null(j);
    default:
        return json_string(j, s);
    }
}

static int
take_reasoning(struct json *j, struct slice *s)
{
    return json_peek(j) == 'n' ? json_null(j) : json_string(j, s);
}

static int
take_message(struct messages *list, struct json *j, const struct message_keys *k)
{
    bool role = false, content = false;
    struct excluding learn = { 0 };
    size_t null = 0; // where a null content stands
    char q[TEXT_QUOTE];
    struct slice key;
    int more;
    struct message *m = add_message(list);
    if (!m)
        return err_set(j->err, ERR_MEMORY, "out of memory for a message");
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        if (slice_is(key, k->role) && json_once(j, &role, k->role) == 0)
            json_string(j, &m->role);
        else if (slice_is(key, k->content) && json_once(j, &content, k->content) == 0)
            take_content(j, &m->content, &null, k->training);
        else if (slice_is(key, "reasoning_content"))
            take_reasoning(j, &m->reasoning);
        else if (slice_is(key, "tool_calls"))
            messages_refuse_tools(j, "tool_calls");
        else if (slice_is(key, "function_call"))
            messages_refuse_tools(j, "function_call");
        else if (k->training)
            take_learn(j, key, m, &learn);
        else
            json_skip(j, NULL);
    }
    if (more < 0)
        return -1;
    if (!role || !content)
        return json_fail(j, j->pos, "expected a message with \"%s\" and \"%s\"",
                         k->role, k->content);
    if (null)
        return json_fail(j, null, "\"%s\" is null: expected a text", k->content);
    for (size_t i = 0; k->roles && k->roles[i][0]; i++)
        if (slice_is(m->role, k->roles[i][0]))
            m->role = slice_of(k->roles[i][1]);
    if (learn.included && !slice_is(m->role, "assistant"))
        return json_fail(
            j, learn.at,
            "\"%s\": expected an assistant's message, found \"%s\": others are learnt "
            "with --targets all only",
            learn.included, text_quote(q, m->role.p, m->role.n));
    return 0;
}

int
messages_parse(struct messages *m, struct json *j, const struct message_keys *k)
{
    int more;
    if (json_array(j) < 0)
        return -1;
    while ((more = json_item(j)) > 0)
        if (take_message(m, j, k) < 0)
            return -1;
    return more;
}

int
messages_prepend(struct messages *m, struct message first, struct err *err)
{
    if (!add_message(m))
        return err_set(err, ERR_MEMORY, "out of memory for a message");
    memmove(m->v + 1, m->v, (m->n - 1) * sizeof *m->v);
    m->v[0] = first;
    return 0;
}

void
messages_free(struct messages *m)
{
    free(m->v);
    *m = (struct messages){ 0 };
}
