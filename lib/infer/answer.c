/* SPDX-License-Identifier: MIT */
/* answer: see answer.h. */
#include "lib/infer/answer.h"

#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESERVE_TOKENS = 4096 };

static const char *const stop_reasons[] = { "length", "end", "stop", "context",
                                            "interrupt" };

struct answer_settings
answer_settings(const struct session *s)
{
    const struct infer_options *c = s->c;
    return (struct answer_settings){ .max_tokens = c->max_tokens,
                                     .sample = c->sample,
                                     .stop = c->stop,
                                     .n_stops = c->n_stops,
                                     .think = c->how.think,
                                     .answers = c->answers };
}

void
answer_open(struct answer *a, struct session *s, struct sequence *q,
            const struct answer_settings *how, bool print)
{
    *a = (struct answer){ .s = s,
                          .q = q,
                          .how = how,
                          .stream = { .host = s->c->host,
                                      .decoder = { .t = s->t },
                                      .stop = how->stop,
                                      .n_stops = how->n_stops,
                                      .print = print } };
}

void
answer_free(struct answer *a)
{
    stream_free(&a->stream);
    buf_free(&a->top);
    free(a->logprob);
    free(a->logits);
}

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

/* One token of the top list: as text, too, if there is a tokenizer.  Of a token that is a part of
 * a character the text is U+FFFD. */
static void
put_top(struct answer *a, uint32_t id, double logprob)
{
    struct buf *b = &a->top;
    buf_printf(b, "{\"id\":%u,\"logprob\":", id);
    json_put_number(b, logprob, 9);
    struct slice text = { 0 };
    if (a->s->t)
        text = tokenizer_bytes(a->s->t, id);
    if (text.p) {
        buf_str(b, ",\"text\":");
        json_put(b, text);
    }
    buf_char(b, '}');
}

/* Record the logits by which a token was chosen. */
static int
keep_logits(struct answer *a, uint32_t id)
{
    struct session *s = a->s;
    size_t vocab = s->model.config.vocab, k = s->c->top_logprobs;
    if (s->c->logits)
        memcpy(a->logits + a->n * vocab, a->q->logits, vocab * sizeof *a->q->logits);
    if (!s->c->json)
        return 0;
    double sum = a->q->log_sum;
    a->logprob[a->n] = (double)a->q->logits[id] - sum;
    if (!k)
        return 0;
    const uint32_t *best =
        sampler_best(&s->sampler, a->q->logits, k < vocab ? k : vocab);
    buf_str(&a->top, a->n ? ",[" : "[");
    for (size_t i = 0; i < k && i < vocab; i++) {
        if (i)
            buf_char(&a->top, ',');
        put_top(a, best[i], (double)a->q->logits[best[i]] - sum);
    }
    buf_char(&a->top, ']');
    return buf_ok(&a->top, s->err);
}

/* Choose the next token; 1: the answer is complete. */
static int
next_token(struct answer *a)
{
    struct session *s = a->s;
    s->sampler.o = a->how->sample;
    uint32_t id = s->greedy ? (uint32_t)a->q->argmax
                            : sampler_next(&s->sampler, a->q->logits, a->q->ids.v,
                                           a->q->ids.n, a->draw, (uint32_t)a->n);
    if (!s->c->ignore_eos && session_ends(s, id)) {
        a->why = WHY_END;
        a->end = id;
        return 1;
    }
    if (grow(a) < 0 || keep_logits(a, id) < 0)
        return -1;
    ids_add(&a->q->ids, id);
    a->n++;
    if (a->meter)
        meter_token(a->meter);
    if (ids_ok(&a->q->ids, s->err) < 0)
        return -1;
    int stop = stream_push(&a->stream, id, s->err);
    if (stop > 0)
        a->why = WHY_STOP;
    else if (stop == 0 && a->q->ids.n > s->limit && a->n < a->how->max_tokens)
        a->why = WHY_CONTEXT;
    return stop ? stop : a->why == WHY_CONTEXT;
}

size_t
answer_tokens(size_t prompt, const struct answer_settings *how)
{
    size_t max = how->max_tokens; // for a long answer the cache grows later
    return prompt + (max < RESERVE_TOKENS ? max : RESERVE_TOKENS);
}

static int
prepare(struct answer *a)
{
    struct session *s = a->s;
    a->prompt = a->q->prompt = a->q->ids.n;
    a->q->end = a->prompt + a->how->max_tokens;
    if (session_reserve(s, a->q, answer_tokens(a->prompt, a->how)) < 0)
        return -1;
    a->computed = a->prompt - (s->c->no_kv ? 0 : a->q->cache.used);
    return 0;
}

int
answer_begin(struct answer *const *a, size_t n, float *logits)
{
    struct sequence *q[MAX_BATCH];
    struct session *s = a[0]->s;
    double start = os_seconds();
    size_t tokens = 0;
    for (size_t i = 0; i < n; i++) {
        q[i] = a[i]->q;
        if (prepare(a[i]) < 0)
            return -1;
        tokens += a[i]->computed;
    }
    int rc = n == 1 ? session_follow(s, q[0]) : session_step(s, q, n, logits);
    double now = os_seconds();
    for (size_t i = 0; i < n; i++) {
        if (rc > 0)
            a[i]->why = WHY_INTERRUPT;
        a[i]->first_s = now - start;
        a[i]->prefill_s = a[i]->first_s * (double)a[i]->computed / (double)tokens;
        a[i]->started = now;
    }
    return rc;
}

int
answer_next(struct answer *a)
{
    int rc = a->n < a->how->max_tokens ? next_token(a) : 1;
    return rc == 0 && a->n == a->how->max_tokens ? 1 : rc;
}

int
answer_end(struct answer *a)
{
    a->decode_s = os_seconds() - a->started;
    int stop = stream_finish(&a->stream, a->s->err);
    if (stop > 0)
        a->why = WHY_STOP;
    return stop < 0 ? -1 : 0;
}

int
answer_make(struct answer *a)
{
    int rc = answer_begin(&a, 1, NULL);
    while (rc == 0 && (rc = answer_next(a)) == 0)
        if ((rc = session_follow(a->s, a->q)) > 0)
            a->why = WHY_INTERRUPT;
    return rc < 0 ? -1 : answer_end(a);
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

static double
rate(double n, double s)
{
    return s > 0 ? n / s : 0;
}

/* Tokens of an answer: the first follows from the prompt. */
static size_t
steps(const struct answer *a)
{
    size_t n = a->n + (a->why == WHY_END);
    return n - (n > 0);
}

void
answer_put_speed(struct buf *b, const struct answer *a)
{
    buf_str(b, ",\"first_token_ms\":");
    json_put_number(b, a->first_s * 1e3, 6);
    buf_str(b, ",\"tokens_per_s\":");
    json_put_number(b, rate((double)steps(a), a->decode_s), 6);
}

static void
put_timing(struct buf *b, const struct answer *a)
{
    buf_printf(b, "{\"prefill_tokens\":%zu,\"prefill_s\":", a->computed);
    json_put_number(b, a->prefill_s, 6);
    buf_str(b, ",\"decode_s\":");
    json_put_number(b, a->decode_s, 6);
    if (a->s->c->time)
        answer_put_speed(b, a);
    buf_char(b, '}');
}

static void
json_put_or_null(struct buf *b, struct slice s)
{
    if (s.p)
        json_put(b, s);
    else
        buf_str(b, "null");
}

void
answer_cut(const struct answer *a, struct slice *thoughts, struct slice *text)
{
    static const char begin[] = "<think>";
    const struct buf *all = &a->stream.text;
    *thoughts = (struct slice){ 0 };
    *text = (struct slice){ all->data ? all->data : "", all->len };
    if (a->how->think == THINK_UNSET || template_cut_thoughts(*text, thoughts, text) ||
        !slice_starts(*text, begin))
        return;
    size_t n = strlen(begin);
    *thoughts = (struct slice){ text->p + n, text->n - n };
    *text = (struct slice){ "", 0 };
}

void
answer_json_text(struct buf *b, const struct answer *a)
{
    struct slice thoughts, text;
    answer_cut(a, &thoughts, &text);
    if (a->how->think != THINK_UNSET) {
        buf_str(b, "\"reasoning_content\":");
        json_put_or_null(b, thoughts);
        buf_char(b, ',');
    }
    buf_str(b, "\"text\":");
    json_put_or_null(b, a->s->t ? text : (struct slice){ 0 });
}

void
answer_json(struct buf *b, const struct answer *a)
{
    const struct session *s = a->s;
    buf_str(b, "\"ids\":[");
    put_ids(b, a->q->ids.v + a->prompt, a->n, ",");
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
}

void
answer_put(struct buf *b, const struct answer *a)
{
    const struct stream *x = &a->stream;
    if (a->s->c->ids)
        put_ids(b, a->q->ids.v + a->prompt, a->n, " ");
    else if (!x->print)
        buf_add(b, x->text.data, x->text.len);
    buf_char(b, '\n');
}

bool
answer_reports(const struct infer_options *c)
{
    return c->host->verbose || (c->time && !c->json);
}

void
answer_report(const struct answer *a)
{
    char number[32] = "";
    if (a->how->answers > 1)
        snprintf(number, sizeof number, ", answer %u", a->number);
    host_warn(a->s->c->host,
              "prompt %llu%s: prefill %zu tokens, %.1f tok/s; decode %zu tokens, %.1f "
              "tok/s; stopped by %s",
              (unsigned long long)a->index, number, a->computed,
              rate((double)a->computed, a->prefill_s), steps(a),
              rate((double)steps(a), a->decode_s), stop_reasons[a->why]);
}
