/* SPDX-License-Identifier: MIT */
/* request: a line of generate --input jsonl: what is taken is what an answer can be made by;
 * what is refused has words, and its id is one. */
#include "lib/infer/request.h"

#include "tests/fuzz/fuzz.h"

#include <float.h>

enum { VOCAB = 100 };

static const struct answer_settings base = { .max_tokens = 7,
                                             .answers = 1,
                                             .sample = { .top_p = 1, .penalty = 1 } };

static void
check_settings(const struct answer_settings *how)
{
    const struct sample_options *o = &how->sample;
    HOLDS(how->max_tokens <= INT32_MAX, "%u", how->max_tokens);
    HOLDS(o->temperature >= 0 && o->temperature <= DBL_MAX, "%g", o->temperature);
    HOLDS(o->top_p >= 0 && o->top_p <= 1, "%g", o->top_p);
    HOLDS(o->penalty >= 1e-6 && o->penalty <= 1e6, "%g", o->penalty);
    HOLDS(how->answers >= 1 && how->answers <= MAX_ANSWERS, "%u answers", how->answers);
    HOLDS(how->n_stops <= MAX_STOPS, "%zu stops", how->n_stops);
    for (size_t i = 0; i < how->n_stops; i++)
        HOLDS(how->stop[i].n > 0, "stop %zu is empty", i);
}

/* A string or a number. */
static void
check_id(struct slice id)
{
    static struct arena arena;
    struct err err = { 0 };
    struct json j;
    if (!id.p)
        return;
    json_open(&j, "id", 0, id, &arena, &err);
    HOLDS(json_peek(&j) == '"' || json_peek(&j) == '0', "%.*s", (int)id.n, id.p);
    HOLDS(json_skip(&j, NULL) == 0 && json_end(&j) == 0, "%s", err.msg);
    arena_clear(&arena);
}

static void
check_taken(const struct request *r)
{
    HOLDS(r->kind != REQUEST_NONE, "nothing is asked");
    HOLDS(r->kind == REQUEST_MESSAGES || r->messages.n == 0, "messages");
    HOLDS(r->kind == REQUEST_IDS || r->ids.n == 0, "ids");
    for (size_t i = 0; i < r->ids.n; i++)
        HOLDS(r->ids.v[i] < VOCAB, "id %u", r->ids.v[i]);
    for (size_t i = 0; i < r->messages.n; i++)
        HOLDS(r->messages.v[i].role.p && r->messages.v[i].content.p, "message %zu", i);
    check_settings(&r->how);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool idle[REQUEST_FIELDS];
    static struct request r = { .vocab = VOCAB, .idle = idle };
    struct slice line = { (const char *)data, n };
    struct err err = { 0 };
    char field[TEXT_QUOTE];
    if (request_parse(&r, &base, line, &err) == 0) {
        check_taken(&r);
    } else {
        fuzz_refused(&err);
        text_quote(field, r.field.p, r.field.p ? r.field.n : 0);
    }
    check_id(r.id);
    return 0;
}
