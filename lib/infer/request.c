/* SPDX-License-Identifier: MIT */
/* request: see request.h. */
#include "lib/infer/request.h"

#include "lib/base/nearest.h"

#include <assert.h>
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
take_answers(struct request *r, struct json *j)
{
    size_t at = j->pos;
    if (take_u32(j, &r->how.answers, MAX_ANSWERS) < 0)
        return -1;
    return r->how.answers > 0
               ? 0
               : json_fail(j, at, "expected a number of 1 to %d", MAX_ANSWERS);
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

/* -1 means all tokens to vLLM, as 0 does. */
static int
take_top_k(struct request *r, struct json *j)
{
    struct json number = *j;
    double k;
    if (json_number(&number, &k) < 0 || k != -1)
        return take_u32(j, &r->how.sample.top_k, UINT32_MAX);
    *j = number;
    r->how.sample.top_k = 0;
    return 0;
}

static int
take_penalty(struct request *r, struct json *j)
{
    const double min = 1e-6, max = 1e6;
    size_t at = j->pos;
    if (take_number(j, &r->how.sample.penalty, max) < 0)
        return -1;
    return r->how.sample.penalty >= min
               ? 0
               : json_fail(j, at, "expected a number of %g to %g", min, max);
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
    if (r->has_thinking)
        return json_fail(j, j->pos, "\"enable_thinking\" is there twice");
    r->has_thinking = true;
    if (json_bool(j, &think) < 0)
        return -1;
    r->how.think = think ? THINK_ON : THINK_OFF;
    return 0;
}

/* Arguments of the chat template, as servers take them. */
static int
take_template_arguments(struct request *r, struct json *j)
{
    struct slice key;
    char q[TEXT_QUOTE];
    int more;
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        if (!slice_is(key, "enable_thinking"))
            return json_fail(j, j->pos,
                             "\"%s\": is not supported: expected \"enable_thinking\"",
                             text_quote(q, key.p, key.n));
        if (take_enable_thinking(r, j) < 0)
            return -1;
    }
    return more;
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

/* Fields of requests to servers.  One without a function has no effect: the values that it may
 * have change no answer. */
static const struct field {
    const char *name;
    int (*take)(struct request *r, struct json *j);
    const char *neutral; // compact JSON, separated by spaces; NULL: any value
    const char *advice;  // for other values; NULL: none
} fields[] = {
    { "id", take_id, NULL, NULL },
    { "prompt", take_prompt, NULL, NULL },
    { "messages", take_messages, NULL, NULL },
    { "ids", take_ids, NULL, NULL },
    { "max_tokens", take_max_tokens, NULL, NULL },
    { "max_completion_tokens", take_max_tokens, NULL, NULL }, // OpenAI's new name
    { "n_predict", take_max_tokens, NULL, NULL },             // llama.cpp's
    { "temperature", take_temperature, NULL, NULL },
    { "top_p", take_top_p, NULL, NULL },
    { "top_k", take_top_k, NULL, NULL },
    { "repetition_penalty", take_penalty, NULL, NULL },
    { "seed", take_seed, NULL, NULL },
    { "stop", take_stop, NULL, NULL },
    { "n", take_answers, NULL, NULL },
    { "enable_thinking", take_enable_thinking, NULL, NULL },
    { "chat_template_kwargs", take_template_arguments, NULL, NULL },
    { "model", NULL, NULL, NULL },
    { "user", NULL, NULL, NULL },
    { "metadata", NULL, NULL, NULL },
    { "store", NULL, NULL, NULL },
    { "service_tier", NULL, NULL, NULL },
    { "safety_identifier", NULL, NULL, NULL },
    { "prompt_cache_key", NULL, NULL, NULL },
    { "request_id", NULL, NULL, NULL },
    { "priority", NULL, NULL, NULL },
    { "cache_prompt", NULL, NULL, NULL },
    { "id_slot", NULL, NULL, NULL },
    { "parallel_tool_calls", NULL, NULL, NULL },
    { "stream_options", NULL, NULL, NULL },
    { "stream", NULL, "false", "answers are written when they are complete" },
    { "tools", NULL, "[]", NULL },
    { "tool_choice", NULL, "\"none\" \"auto\"", NULL },
    { "functions", NULL, "[]", NULL },
    { "function_call", NULL, "\"none\" \"auto\"", NULL },
    { "response_format", NULL, "{\"type\":\"text\"}", NULL },
    { "modalities", NULL, "[\"text\"]", NULL },
    { "reasoning_effort", NULL, "null", "\"enable_thinking\" is the switch of Qwen3" },
    { "logit_bias", NULL, "{} []", NULL },
    { "presence_penalty", NULL, "0", "\"repetition_penalty\" is supported" },
    { "frequency_penalty", NULL, "0", "\"repetition_penalty\" is supported" },
    { "repeat_penalty", NULL, "1",
      "\"repetition_penalty\" counts all of prompt and answer" },
    { "repeat_last_n", NULL, NULL, NULL },
    { "length_penalty", NULL, "1", NULL },
    { "min_p", NULL, "0", NULL },
    { "typical_p", NULL, "1", NULL },
    { "mirostat", NULL, "0", NULL },
    { "dry_multiplier", NULL, "0", NULL },
    { "xtc_probability", NULL, "0", NULL },
    { "min_tokens", NULL, "0", NULL },
    { "ignore_eos", NULL, "false", "--ignore-eos holds for all requests" },
    { "best_of", NULL, "1", "\"n\" gives several answers" },
    { "use_beam_search", NULL, "false", NULL },
    { "logprobs", NULL, "true false 0", "--top-logprobs holds for all requests" },
    { "top_logprobs", NULL, "0", "--top-logprobs holds for all requests" },
    { "n_probs", NULL, "0", "--top-logprobs holds for all requests" },
    { "prompt_logprobs", NULL, "0", NULL },
    { "echo", NULL, "false", NULL },
    { "suffix", NULL, "\"\"", NULL },
    { "stop_token_ids", NULL, "[]", NULL },
    { "bad_words", NULL, "[]", NULL },
    { "grammar", NULL, "\"\"", NULL },
    { "json_schema", NULL, "{}", NULL },
    { "structured_outputs", NULL, "{}", NULL },
    { "guided_json", NULL, "{}", NULL },
    { "guided_regex", NULL, "\"\"", NULL },
    { "guided_choice", NULL, "[]", NULL },
    { "guided_grammar", NULL, "\"\"", NULL },
    { "skip_special_tokens", NULL, "false", "control tokens are part of the text" },
    { "include_stop_str_in_output", NULL, "false", NULL },
    { "add_generation_prompt", NULL, "true", NULL },
    { "continue_final_message", NULL, "false", NULL },
};
enum { N_FIELDS = sizeof fields / sizeof *fields };
static_assert(sizeof fields / sizeof *fields <= REQUEST_FIELDS, "a flag for each");

/* Append JSON without the white space between its tokens. */
static void
put_compact(struct buf *b, struct slice raw)
{
    bool text = false;
    for (size_t i = 0; i < raw.n; i++) {
        char c = raw.p[i];
        if (!text && strchr(" \t\r\n", c))
            continue;
        buf_char(b, c);
        if (text && c == '\\' && i + 1 < raw.n)
            buf_char(b, raw.p[++i]);
        else if (c == '"')
            text = !text;
    }
}

/* Whether a value is one of a list of neutral ones; the spellings of a number are equal. */
static bool
is_neutral(struct slice value, bool number, const char *list)
{
    while (*list) {
        size_t n = strcspn(list, " ");
        bool digit = *list >= '0' && *list <= '9';
        if (number ? digit && value.p && strtod(value.p, NULL) == strtod(list, NULL)
                   : slice_eq(value, (struct slice){ list, n }))
            return true;
        list += n + (list[n] == ' ');
    }
    return false;
}

static int
refuse_value(struct json *j, size_t at, const struct field *f)
{
    struct buf words = { 0 };
    for (const char *c = f->neutral; *c; c++)
        if (*c == ' ')
            buf_str(&words, " or ");
        else
            buf_char(&words, *c);
    if (f->advice)
        buf_printf(&words, "; %s", f->advice);
    int rc = buf_ok(&words, j->err);
    if (rc == 0)
        rc = json_fail(j, at, "is not supported: expected %s", words.data);
    buf_free(&words);
    return rc;
}

/* A value that changes no answer. */
static int
skip_neutral(struct json *j, const struct field *f)
{
    struct slice raw;
    struct buf value = { 0 };
    bool number = json_peek(j) == '0';
    size_t at = j->pos;
    if (json_skip(j, &raw) < 0)
        return -1;
    if (!f->neutral)
        return 0;
    put_compact(&value, raw);
    int rc = buf_ok(&value, j->err);
    if (rc == 0 &&
        !is_neutral((struct slice){ value.data, value.len }, number, f->neutral))
        rc = refuse_value(j, at, f);
    buf_free(&value);
    return rc;
}

/* Names that other servers and data sets have for a field. */
static const char *const other_names[][2] = {
    { "max_new_tokens", "max_tokens" },
    { "max_length", "max_tokens" },
    { "max_output_tokens", "max_tokens" },
    { "num_predict", "max_tokens" },
    { "text", "prompt" },
    { "input", "prompt" },
    { "inputs", "prompt" },
    { "instruction", "prompt" },
    { "question", "prompt" },
    { "query", "prompt" },
    { "content", "prompt" },
    { "conversation", "messages" },
    { "conversations", "messages" },
    { "system", "messages" },
    { "do_sample", "temperature" },
    { "repeat_penalty", "repetition_penalty" },
    { "stop_sequences", "stop" },
    { "stop_strings", "stop" },
    { "num_return_sequences", "n" },
    { "input_ids", "ids" },
};

/* The field that is meant by a name that is none, or NULL. */
static const char *
meant(struct slice name)
{
    struct nearest near = nearest_to(name.p, name.n);
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (slice_is(name, other_names[i][0]))
            return other_names[i][1];
    for (size_t i = 0; i < N_FIELDS; i++)
        nearest_try(&near, fields[i].name);
    return near.word;
}

static int
unknown_field(const struct request *r, struct json *j)
{
    const char *word = meant(r->field);
    return word ? json_fail(j, j->pos, "unknown field: expected \"%s\"?", word)
                : json_fail(j, j->pos, "unknown field; generate(1) lists them");
}

/* A setting that has several names is given by one of them. */
static int
check_alias(const struct request *r, struct json *j, size_t at)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if (r->given[i] && fields[i].take && fields[i].take == fields[at].take)
            return json_fail(j, j->pos,
                             "means the same as \"%s\": expected one of them",
                             fields[i].name);
    return 0;
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
    if (r->seen[i])
        return json_fail(j, j->pos, "is there twice");
    r->seen[i] = true;
    if (!fields[i].take && r->idle)
        r->idle[i] = true;
    if (json_peek(j) == 'n')
        return json_null(j);
    if (check_alias(r, j, i) < 0)
        return -1;
    r->given[i] = true;
    return fields[i].take ? fields[i].take(r, j) : skip_neutral(j, &fields[i]);
}

void
request_put_idle(struct buf *b, const bool idle[REQUEST_FIELDS])
{
    const char *between = "";
    for (size_t i = 0; i < N_FIELDS; i++)
        if (idle[i]) {
            buf_printf(b, "%s\"%s\"", between, fields[i].name);
            between = ", ";
        }
}

/* ---- a line ------------------------------------------------------------------------- */

static int
parse_fields(struct request *r, struct json *j)
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
request_parse(struct request *r, const struct answer_settings *base, struct slice line,
              struct err *err)
{
    struct json j;
    r->id = r->field = (struct slice){ 0 };
    r->kind = REQUEST_NONE;
    r->messages.n = r->ids.n = 0;
    r->how = *base;
    memset(r->seen, 0, sizeof r->seen);
    memset(r->given, 0, sizeof r->given);
    r->has_thinking = false;
    arena_clear(&r->arena);
    json_open(&j, "", 0, line, &r->arena, err);
    if (parse_fields(r, &j) == 0)
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
