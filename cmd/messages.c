/* SPDX-License-Identifier: MIT */
/* messages: see messages.h. */
#include "cmd/messages.h"

#include <stdlib.h>
#include <string.h>

static const char *const sharegpt_roles[][2] = { { "human", "user" },
                                                 { "gpt", "assistant" },
                                                 { NULL, NULL } };
const struct message_keys messages_openai = { "role", "content", NULL };
const struct message_keys messages_sharegpt = { "from", "value", sharegpt_roles };

static struct message *
add_message(struct messages *m)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 16;
        struct message *v = realloc(m->v, cap * sizeof *v);
        if (!v)
            return NULL;
        m->v = v;
        m->cap = cap;
    }
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

/* Append the text of {"type":"text","text":...}. */
static int
take_part(struct json *j, struct buf *text)
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
take_parts(struct json *j, struct slice *s)
{
    struct buf text = { 0 };
    int more, rc = json_array(j);
    while (rc == 0 && (more = json_item(j)) != 0)
        rc = more < 0 ? -1 : take_part(j, &text);
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

/* Text, or an array of parts that are texts. */
static int
take_content(struct json *j, struct slice *s)
{
    return json_peek(j) == '[' ? take_parts(j, s) : json_string(j, s);
}

static int
take_reasoning(struct json *j, struct slice *s)
{
    return json_peek(j) == 'n' ? json_null(j) : json_string(j, s);
}

static int
once(struct json *j, bool *seen, const char *key)
{
    if (*seen)
        return json_fail(j, j->pos, "a second \"%s\"", key);
    *seen = true;
    return 0;
}

static int
take_message(struct messages *list, struct json *j, const struct message_keys *k)
{
    bool role = false, content = false;
    struct slice key;
    int more;
    struct message *m = add_message(list);
    if (!m)
        return err_set(j->err, ERR_MEMORY, "out of memory for a message");
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        if (slice_is(key, k->role) && once(j, &role, k->role) == 0)
            json_string(j, &m->role);
        else if (slice_is(key, k->content) && once(j, &content, k->content) == 0)
            take_content(j, &m->content);
        else if (slice_is(key, "reasoning_content"))
            take_reasoning(j, &m->reasoning);
        else if (slice_is(key, "tool_calls"))
            messages_refuse_tools(j, "tool_calls");
        else
            json_skip(j, NULL);
    }
    if (more < 0)
        return -1;
    if (!role || !content)
        return json_fail(j, j->pos, "expected a message with \"%s\" and \"%s\"",
                         k->role, k->content);
    for (size_t i = 0; k->roles && k->roles[i][0]; i++)
        if (slice_is(m->role, k->roles[i][0]))
            m->role = slice_of(k->roles[i][1]);
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
