/* SPDX-License-Identifier: MIT */
/* request: see request.h. */
#include "cmd/generate/request.h"

#include "cmd/nearest.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields ------------------------------------------------------------------------- */

static int
take_id(struct request *r, struct json *j)
{
    if (json_peek(j) != '"' && json_peek(j) != '0')
        return json_expected(j, "a string or a number");
    return json_skip(j, &r->id);
}

/* What is asked comes in one of three forms. */
static int
set_kind(struct request *r, struct json *j, enum request_kind kind)
{
    if (r->kind != REQUEST_NONE)
        return json_fail(j, j->pos, "one of \"prompt\", \"messages\" and \"ids\" only");
    r->kind = kind;
    return 0;
}

static int
take_prompt(struct request *r, struct json *j)
{
    return set_kind(r, j, REQUEST_PROMPT) < 0 ? -1 : json_string(j, &r->prompt);
}

static int
take_messages(struct request *r, struct json *j)
{
    return set_kind(r, j, REQUEST_MESSAGES) < 0
               ? -1
               : messages_parse(&r->messages, j, &messages_openai);
}

static int
take_ids(struct request *r, struct json *j)
{
    int more;
    if (set_kind(r, j, REQUEST_IDS) < 0 || json_array(j) < 0)
        return -1;
    while ((more = json_item(j)) > 0) {
        uint64_t id;
        size_t at = j->pos;
        if (json_u63(j, &id) < 0)
            return -1;
        if (id >= r->vocab)
            return json_fail(j, at,
                             "id %llu at position %zu: the model's vocab_size is %u",
                             (unsigned long long)id, r->ids.n, r->vocab);
        ids_add(&r->ids, (uint32_t)id);
    }
    return more < 0 ? -1 : ids_ok(&r->ids, j->err);
}

static int
take_u32(struct json *j, uint32_t *v, uint32_t max)
{
    uint64_t n;
    size_t at = j->pos;
    if (json_u63(j, &n) < 0)
        return -1;
    if (n > max)
        return json_fail(j, at, "expected a number of 0 to %u", max);
    *v = (uint32_t)n;
    return 0;
}

static int
take_number(struct json *j, double *v, double max)
{
    double x;
    size_t at = j->pos;
    if (json_number(j, &x) < 0)
        return -1;
    if (!(x >= 0 && x <= max))
        return max < DBL_MAX
                   ? json_fail(j, at, "expected a number of 0 to %g", max)
                   : json_fail(j, at, "expected a finite number of at least 0");
    *v = x;
    return 0;
}

static int
take_max_tokens(struct request *r, struct json *j)
{
    return take_u32(j, &r->how.max_tokens, INT32_MAX);
}

static int
take_temperature(struct request *r, struct json *j)
{
    return take_number(j, &r->how.sample.temperature, DBL_MAX);
}

static int
take_top_p(struct request *r, struct json *j)
{
    return take_number(j, &r->how.sample.top_p, 1);
}

static int
take_top_k(struct request *r, struct json *j)
{
    return take_u32(j, &r->how.sample.top_k, UINT32_MAX);
}

static int
take_seed(struct request *r, struct json *j)
{
    return take_u32(j, &r->how.sample.seed, UINT32_MAX);
}

static int
take_enable_thinking(struct request *r, struct json *j)
{
    bool think;
    if (json_bool(j, &think) < 0)
        return -1;
    r->how.think = think ? THINK_ON : THINK_OFF;
    return 0;
}

static int
take_stop_text(struct request *r, struct json *j)
{
    size_t at = j->pos, n = r->how.n_stops;
    if (n == MAX_STOPS)
        return json_fail(j, at, "at most %d texts", MAX_STOPS);
    if (json_string(j, &r->stop[n]) < 0)
        return -1;
    if (r->stop[n].n == 0)
        return json_fail(j, at, "expected a text that is not empty");
    r->how.n_stops++;
    return 0;
}

static int
take_stop(struct request *r, struct json *j)
{
    int more;
    r->how.stop = r->stop;
    r->how.n_stops = 0;
    if (json_peek(j) != '[')
        return take_stop_text(r, j);
    json_array(j);
    while ((more = json_item(j)) > 0)
        if (take_stop_text(r, j) < 0)
            return -1;
    return more;
}

static const struct field {
    const char *name;
    int (*take)(struct request *r, struct json *j);
} fields[] = {
    { "id", take_id },
    { "prompt", take_prompt },
    { "messages", take_messages },
    { "ids", take_ids },
    { "max_tokens", take_max_tokens },
    { "temperature", take_temperature },
    { "top_p", take_top_p },
    { "top_k", take_top_k },
    { "seed", take_seed },
    { "stop", take_stop },
    { "enable_thinking", take_enable_thinking },
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static int
unknown_field(const struct request *r, struct json *j)
{
    struct nearest near = nearest_to(r->field.p, r->field.n);
    for (size_t i = 0; i < N_FIELDS; i++)
        nearest_try(&near, fields[i].name);
    return near.word
               ? json_fail(j, j->pos, "unknown field: expected \"%s\"?", near.word)
               : json_fail(j, j->pos, "unknown field");
}

/* The value of r->field; null is as if it were not there. */
static int
take_field(struct request *r, struct json *j)
{
    size_t i = 0;
    while (i < N_FIELDS && !slice_is(r->field, fields[i].name))
        i++;
    if (i == N_FIELDS)
        return unknown_field(r, j);
    if (r->seen & 1U << i)
        return json_fail(j, j->pos, "is there twice");
    r->seen |= 1U << i;
    return json_peek(j) == 'n' ? json_null(j) : fields[i].take(r, j);
}

/* ---- a line ------------------------------------------------------------------------- */

static int
parse(struct request *r, struct json *j)
{
    int more = json_object(j);
    while (more >= 0) {
        struct slice key;
        r->field = (struct slice){ 0 };
        if ((more = json_key(j, &key)) <= 0)
            break;
        r->field = key;
        more = take_field(r, j);
    }
    if (more < 0 || json_end(j) < 0)
        return -1;
    return r->kind != REQUEST_NONE
               ? 0
               : json_fail(j, 0, "expected \"prompt\", \"messages\" or \"ids\"");
}

/* The id of a line that is in error before it. */
static void
find_id(struct request *r, struct slice line)
{
    struct err ignored = { 0 };
    struct slice key;
    struct json j;
    json_open(&j, "", 0, line, &r->arena, &ignored);
    json_object(&j);
    while (!r->id.p && json_key(&j, &key) > 0)
        if (!slice_is(key, "id"))
            json_skip(&j, NULL);
        else if (take_id(r, &j) < 0)
            r->id = (struct slice){ 0 };
}

int
request_parse(struct request *r, const struct settings *base, struct slice line,
              struct err *err)
{
    struct json j;
    r->id = r->field = (struct slice){ 0 };
    r->kind = REQUEST_NONE;
    r->messages.n = r->ids.n = 0;
    r->how = *base;
    r->seen = 0;
    arena_clear(&r->arena);
    json_open(&j, "", 0, line, &r->arena, err);
    if (parse(r, &j) == 0)
        return 0;
    if (!r->id.p)
        find_id(r, line);
    return -1;
}

void
request_free(struct request *r)
{
    messages_free(&r->messages);
    ids_free(&r->ids);
    arena_free(&r->arena);
}
