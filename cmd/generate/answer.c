/* SPDX-License-Identifier: MIT */
/* answer: prompts in, answers out. */
#include "cmd/generate/generate.h"
#include "cmd/generate/stream.h"

#include "lib/core/num.h"
#include "lib/core/os.h"
#include "lib/core/reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RESERVE_TOKENS = 4096,
    PROMPT_LINE = 16 << 20, // bytes
};

enum why { WHY_LENGTH, WHY_END, WHY_STOP, WHY_CONTEXT };
static const char *const stop_reasons[] = { "length", "end", "stop", "context" };

/* One prompt and its answer. */
struct answer {
    struct session *s;
    uint64_t index;  // of the prompt or turn
    size_t prompt;   // tokens of s->ids before the answer
    size_t computed; // prompt tokens that were not in the cache
    size_t n;        // of the answer
    struct stream stream;
    enum why why;
    uint32_t end;    // the id that ended it, if why is WHY_END
    double *logprob; // (n), with --json
    struct buf top;  // with --top-logprobs: JSON arrays, one a token
    float *logits;   // (n, vocab), with --logits
    size_t cap;
    double prefill_s, decode_s;
};

struct answers {
    struct session *s;
    uint64_t index;
    struct layers layers;
};

/* ---- a token ------------------------------------------------------------------------------ */

/* Grow the buffers for one more token. */
static int
grow(struct answer *a)
{
    size_t vocab = a->s->model.config.vocab, cap = a->cap ? 2 * a->cap : 16;
    if (a->n < a->cap)
        return 0;
    double *l = realloc(a->logprob, cap * sizeof *l);
    if (!l)
        return err_set(a->s->err, ERR_MEMORY, "out of memory for an answer");
    a->logprob = l;
    if (a->s->c->logits) {
        float *all = realloc(a->logits, cap * vocab * sizeof *all);
        if (!all)
            return err_set(a->s->err, ERR_MEMORY, "out of memory for logits");
        a->logits = all;
    }
    a->cap = cap;
    return 0;
}

/* Record the logits by which a token was chosen. */
static int
keep_logits(struct answer *a, uint32_t id)
{
    struct session *s = a->s;
    size_t vocab = s->model.config.vocab, k = s->c->top_logprobs;
    if (s->c->logits)
        memcpy(a->logits + a->n * vocab, s->logits, vocab * sizeof *s->logits);
    if (!s->c->json)
        return 0;
    double sum = logits_log_sum(s->logits, vocab);
    a->logprob[a->n] = (double)s->logits[id] - sum;
    if (!k)
        return 0;
    const uint32_t *best = sampler_best(&s->sampler, s->logits, k < vocab ? k : vocab);
    buf_str(&a->top, a->n ? ",[" : "[");
    for (size_t i = 0; i < k && i < vocab; i++) {
        buf_printf(&a->top, "%s{\"id\":%u,\"logprob\":", i ? "," : "", best[i]);
        json_put_number(&a->top, (double)s->logits[best[i]] - sum, 9);
        buf_char(&a->top, '}');
    }
    buf_char(&a->top, ']');
    return buf_ok(&a->top, s->err);
}

/* Choose the next token; 1: the answer is complete. */
static int
next_token(struct answer *a)
{
    struct session *s = a->s;
    uint32_t id = s->greedy ? (uint32_t)s->argmax
                            : sampler_next(&s->sampler, s->logits, s->ids.v, s->ids.n,
                                           a->index, (uint32_t)a->n);
    if (!s->c->ignore_eos && session_ends(s, id)) {
        a->why = WHY_END;
        a->end = id;
        return 1;
    }
    if (grow(a) < 0 || keep_logits(a, id) < 0)
        return -1;
    ids_add(&s->ids, id);
    a->n++;
    if (ids_ok(&s->ids, s->err) < 0)
        return -1;
    int stop = stream_push(&a->stream, id, s->err);
    if (stop > 0)
        a->why = WHY_STOP;
    else if (stop == 0 && s->ids.n > s->limit && a->n < s->c->max_tokens)
        a->why = WHY_CONTEXT;
    return stop ? stop : a->why == WHY_CONTEXT;
}

static int
generate(struct answer *a)
{
    struct session *s = a->s;
    double start = os_seconds();
    size_t max = s->c->max_tokens; // for a long answer the cache grows later
    size_t want = s->ids.n + (max < RESERVE_TOKENS ? max : RESERVE_TOKENS);
    if (s->ids.n > s->limit)
        return err_set(s->err, ERR_USAGE,
                       "prompt %llu: %zu tokens, the context has %zu%s",
                       (unsigned long long)a->index, s->ids.n, s->limit,
                       s->c->context ? " (--context)" : "");
    a->prompt = s->prompt = s->ids.n;
    if (session_reserve(s, want) < 0)
        return -1;
    a->computed = a->prompt - (s->c->no_kv ? 0 : s->cache.used);
    int rc = session_follow(s);
    a->prefill_s = os_seconds() - start;
    start = os_seconds();
    while (rc == 0 && a->n < s->c->max_tokens) {
        rc = next_token(a);
        if (rc == 0 && a->n < s->c->max_tokens)
            rc = session_follow(s);
    }
    a->decode_s = os_seconds() - start;
    if (rc < 0)
        return -1;
    int stop = stream_finish(&a->stream, s->err);
    if (stop > 0)
        a->why = WHY_STOP;
    return stop < 0 ? -1 : 0;
}

/* ---- output ------------------------------------------------------------------------------- */

static void
put_ids(struct buf *b, const uint32_t *ids, size_t n, const char *between)
{
    for (size_t i = 0; i < n; i++) {
        buf_str(b, i ? between : "");
        buf_u64(b, ids[i]);
    }
}

static void
put_timing(struct buf *b, const struct answer *a)
{
    buf_printf(b, "{\"prefill_tokens\":%zu,\"prefill_s\":", a->computed);
    json_put_number(b, a->prefill_s, 6);
    buf_str(b, ",\"decode_s\":");
    json_put_number(b, a->decode_s, 6);
    buf_char(b, '}');
}

static void
put_json(struct buf *b, const struct answer *a)
{
    const struct session *s = a->s;
    buf_printf(b, "{\"prompt\":%llu,\"text\":", (unsigned long long)a->index);
    if (s->t)
        json_put(b, (struct slice){ a->stream.text.data ? a->stream.text.data : "",
                                    a->stream.text.len });
    else
        buf_str(b, "null");
    buf_str(b, ",\"ids\":[");
    put_ids(b, s->ids.v + a->prompt, a->n, ",");
    buf_str(b, "],\"logprobs\":[");
    for (size_t i = 0; i < a->n; i++) {
        buf_str(b, i ? "," : "");
        json_put_number(b, a->logprob[i], 9);
    }
    buf_char(b, ']');
    if (s->c->top_logprobs) {
        buf_str(b, ",\"top_logprobs\":[");
        buf_add(b, a->top.data, a->top.len);
        buf_char(b, ']');
    }
    buf_printf(b, ",\"stop\":\"%s\",\"stop_id\":", stop_reasons[a->why]);
    if (a->why == WHY_END)
        buf_u64(b, a->end);
    else
        buf_str(b, "null");
    buf_printf(b, ",\"prompt_tokens\":%zu,\"timing\":", a->prompt);
    put_timing(b, a);
    buf_str(b, "}\n");
}

static void
put_answer(const struct answer *a)
{
    const struct session *s = a->s;
    struct buf b = { 0 };
    if (s->c->json) {
        put_json(&b, a);
    } else if (s->c->ids) {
        put_ids(&b, s->ids.v + a->prompt, a->n, " ");
        buf_char(&b, '\n');
    } else {
        buf_char(&b, '\n'); // the text was streamed
    }
    if (s->c->json)
        cmd_flush_json(&b);
    else
        cmd_flush(&b);
    buf_free(&b);
    if (fflush(stdout) != 0)
        die(EXIT_TROUBLE, "standard output:");
}

static double
rate(double n, double s)
{
    return s > 0 ? n / s : 0;
}

static void
report_speed(const struct answer *a)
{
    size_t steps = a->n + (a->why == WHY_END); // the first needs no step of its own
    steps -= steps > 0;
    warn("prompt %llu: prefill %zu tokens, %.1f tok/s; decode %zu tokens, %.1f tok/s; "
         "stopped by %s",
         (unsigned long long)a->index, a->computed,
         rate((double)a->computed, a->prefill_s), steps,
         rate((double)steps, a->decode_s), stop_reasons[a->why]);
}

/* ---- one prompt ----------------------------------------------------------------------------- */

static int
write_logits(const struct answer *a)
{
    struct dump d = { "logits", { a->n, a->s->model.config.vocab }, a->logits };
    return dump_write(a->s, a->s->c->logits, &d, 1, NULL);
}

/* s->ids is the prompt. */
static int
answer(struct answers *all)
{
    struct session *s = all->s;
    const struct config_generate *c = s->c;
    struct answer a = { .s = s,
                        .index = all->index,
                        .stream = { .decoder = { .t = s->t },
                                    .stop = c->stop,
                                    .n_stops = c->n_stops,
                                    .print = !c->json && !c->ids } };
    int rc = c->dump_layers ? layers_open(&all->layers, s, s->ids.n) : 0;
    if (rc == 0)
        rc = generate(&a);
    if (rc == 0) {
        put_answer(&a);
        if (c->cmd.verbose)
            report_speed(&a);
        if (c->dump_layers)
            rc = layers_write(&all->layers);
    }
    if (rc == 0 && c->logits)
        rc = write_logits(&a);
    if (c->dump_layers)
        layers_close(&all->layers);
    stream_free(&a.stream);
    buf_free(&a.top);
    free(a.logprob);
    free(a.logits);
    all->index++;
    return rc;
}

/* Close the answer in s->ids by its end token and a LF, before the next turn. */
static int
end_turn(struct session *s)
{
    uint32_t id = tokenizer_added(s->t, "<|im_end|>");
    if (id == TOKEN_NONE)
        return err_set(s->err, ERR_FORMAT,
                       "the tokenizer has no added token <|im_end|>");
    ids_add(&s->ids, id);
    return encode(s->e, &s->ids, slice_of("\n"), false, s->err);
}

static int
render(struct session *s, struct slice text, bool first)
{
    const struct config_generate *c = s->c;
    struct message m[2] = { { slice_of("system"),
                              slice_of(c->system ? c->system : "") },
                            { slice_of("user"), text } };
    bool system = c->system && first;
    return render_prompt(s->e, &s->ids, &c->how, system ? m : m + 1, system ? 2 : 1,
                         s->err);
}

/* Parse the ids of a line. */
static int
read_ids(struct session *s, struct slice text, const char *where)
{
    const char *p = text.p, *end = p + text.n;
    char q[TEXT_QUOTE];
    while (p < end) {
        if (*p == ' ' || *p == '\t') {
            p++;
            continue;
        }
        const char *word = p;
        uint64_t id = 0;
        while (p < end && *p >= '0' && *p <= '9' && id < UINT32_MAX)
            id = 10 * id + (uint64_t)(*p++ - '0');
        if (p < end && *p != ' ' && *p != '\t') {
            while (p < end && *p != ' ' && *p != '\t')
                p++;
            return err_set(s->err, ERR_FORMAT, "%s: expected ids, found \"%s\"", where,
                           text_quote(q, word, (size_t)(p - word)));
        }
        if (id >= s->model.config.vocab)
            return err_set(s->err, ERR_FORMAT,
                           "%s: id %llu at position %zu: the model's vocab_size is %u",
                           where, (unsigned long long)id, s->ids.n,
                           s->model.config.vocab);
        ids_add(&s->ids, (uint32_t)id);
    }
    return ids_ok(&s->ids, s->err);
}

static int
one_prompt(struct answers *all, struct slice text, const char *where)
{
    struct session *s = all->s;
    size_t bad = utf8_check(text.p, text.n);
    bool goes_on = s->c->chat && all->index > 0;
    if (bad < text.n)
        return err_set(s->err, ERR_FORMAT, "%s: byte %zu: not UTF-8", where, bad);
    if ((s->c->logits || s->c->dump_layers) && all->index > 0)
        return err_set(s->err, ERR_USAGE,
                       "%s: --logits and --dump-layers take one "
                       "prompt",
                       where);
    if (!goes_on) {
        s->ids.n = 0;
        if (s->has_cache)
            s->cache.used = 0;
    }
    int rc = goes_on ? end_turn(s) : 0;
    if (rc == 0)
        rc = s->c->ids ? read_ids(s, text, where) : render(s, text, !goes_on);
    if (rc == 0 && s->ids.n == 0)
        rc = err_set(s->err, ERR_USAGE, "%s: a prompt without a token", where);
    return rc < 0 ? -1 : answer(all);
}

/* ---- sources of prompts --------------------------------------------------------------------- */

/* A prompt for a user at a terminal. */
static void
prompt_user(const struct config_generate *c)
{
    if (!c->cmd.quiet && isatty(STDIN_FILENO) && isatty(STDERR_FILENO))
        fputs("> ", stderr);
}

static int
from_stdin(struct answers *all)
{
    struct reader r = { .fd = STDIN_FILENO, .name = "<stdin>", .limit = PROMPT_LINE };
    struct slice line;
    int rc;
    prompt_user(all->s->c);
    while ((rc = reader_line(&r, &line, all->s->err)) > 0) {
        char where[64];
        while (line.n > 0 && line.p[line.n - 1] == '\r')
            line.n--;
        if (line.n == 0)
            continue;
        snprintf(where, sizeof where, "<stdin>: line %llu",
                 (unsigned long long)r.number);
        if ((rc = one_prompt(all, line, where)) < 0)
            break;
        prompt_user(all->s->c);
    }
    reader_free(&r);
    return rc;
}

int
answer_all(struct session *s)
{
    struct answers all = { .s = s };
    int rc = 0;
    if (!s->c->n_prompts)
        return from_stdin(&all);
    for (size_t i = 0; i < s->c->n_prompts && rc == 0; i++) {
        char where[64];
        snprintf(where, sizeof where, "prompt %zu", i);
        rc = one_prompt(&all, slice_of(s->c->prompts[i]), where);
    }
    return rc;
}
