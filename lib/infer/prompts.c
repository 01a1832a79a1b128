/* SPDX-License-Identifier: MIT */
/* prompts: answers prompts: as many at a time as the options say, each with tokens and cache of its
 * own, in the order in which they came.  A finished one leaves, and the next one enters.  A
 * prompt that cannot be answered has its error in place of an answer.  Several answers to a prompt
 * are computed as if it came several times, but for their draws.
 *
 * Tokens with which another prompt began are not computed again: their keys and values are copied
 * from its cache, which lasts until the next prompt needs it. */
#include "lib/infer/prompts.h"

#include "lib/infer/answer.h"
#include "lib/infer/meter.h"
#include "lib/infer/place.h"
#include "lib/infer/request.h"
#include "lib/infer/tensors.h"

#include <stdlib.h>
#include <string.h>

enum {
    WAITING = 64, // answers that may wait for an earlier one, for each prompt at a time
    WORTH = 128, // tokens to share for which a GPU computes the prompts that wait first
};

/* A prompt that is being answered. */
struct slot {
    enum {
        SLOT_FREE,
        SLOT_HELD,
        SLOT_BUSY
    } state; // held: there is no memory for it yet
    struct sequence *q, own;
    struct ids kept; // if not busy: tokens whose keys and values are in the cache
    struct place place;
    uint64_t order;         // of its output among all
    double share;           // of all prompts, up to this one
    struct buf line;        // of a request, whose texts are in it
    struct request request; // with --input jsonl
    struct answer a;
};

/* The output of an answer or of an error. */
struct output {
    struct buf text;
    bool done;
};

/* Busy ones, to be computed together. */
struct group {
    struct slot *slot[MAX_BATCH];
    size_t n, tokens;
};

struct prompts {
    struct session *s;
    struct answer_settings how;
    struct source *source;
    struct layers layers;
    struct meter meter;
    struct slot slot[MAX_BATCH];
    size_t slots, busy; // slots: at a time
    struct group few,
        many;      // of prompts whose products read weights as stored, and of others
    float *logits; // (slots, vocab) of a step
    struct output *out; // (cap) that of order i at i % cap, from `printed` on
    size_t cap;
    uint64_t ordered, printed; // outputs
    uint64_t next, refused;    // prompts
    struct buf again;          // the last prompt, if it has several answers
    uint32_t answer, answers;  // the last one that was begun, and how many it has
    uint64_t tokens, shared;   // of prompts; of these computed for another one
    uint64_t begins, passes;   // prompts that were computed, and in how many passes
    bool idle[REQUEST_FIELDS]; // fields of requests that had no effect
    bool end;                  // there are no more
};

/* Whether the tokens of q can be a prompt. */
static int
check_length(const struct session *s, const struct sequence *q, struct err *err)
{
    if (q->ids.n == 0)
        return err_set(err, ERR_USAGE, "a prompt without a token");
    if (q->ids.n > s->limit)
        return err_set(err, ERR_USAGE, "%zu tokens, the context has %zu%s", q->ids.n,
                       s->limit, s->c->context ? " (--context)" : "");
    return 0;
}

/* ---- output, in order --------------------------------------------------------------------- */

static int
put_output(struct prompts *p, struct slot *x, struct buf *text)
{
    const struct host *host = p->s->c->host;
    int rc = 0;
    struct output *o = &p->out[x->order % p->cap];
    *o = (struct output){ .text = *text, .done = true };
    while ((o = &p->out[p->printed % p->cap])->done) {
        if (rc == 0 && host->print)
            rc = host->print(host->ctx, &o->text, p->s->c->json ? HOST_JSON : HOST_TEXT,
                             p->s->err);
        buf_free(&o->text);
        o->done = false;
        p->printed++;
    }
    x->state = SLOT_FREE;
    if (x->place.answer + 1 >= x->place.answers)
        meter_prompt(&p->meter, x->share);
    return rc;
}

static void
put(struct buf *b, const struct slot *x)
{
    if (!x->a.s->c->json) {
        answer_put(b, &x->a);
        return;
    }
    place_head(b, &x->place);
    answer_json_text(b, &x->a);
    buf_char(b, ',');
    answer_json(b, &x->a);
    buf_str(b, "}\n");
}

static int
refuse(struct prompts *p, struct slot *x, const struct err *why)
{
    struct buf b = { 0 };
    x->place.id = x->request.id;
    x->place.field = x->request.field;
    if (place_refuse(&b, &x->place, p->s->c->host, p->s->c->json, why, p->s->err) < 0)
        return -1;
    p->refused++;
    return put_output(p, x, &b);
}

/* ---- an answer ------------------------------------------------------------------------------ */

static int
write_logits(const struct answer *a)
{
    struct dump d = { "logits", { a->n, a->s->model.config.vocab }, a->logits };
    return dump_write(a->s, a->q, a->s->c->logits, &d, 1, NULL);
}

/* Ids whose keys and values other prompts may have. */
static struct ids
cached(const struct session *s, const struct slot *x)
{
    struct ids ids = x->kept;
    if (x->state == SLOT_BUSY) {
        ids = x->q->ids;
        ids.n = session_shared(s, x->q);
    }
    return ids;
}

/* Of an answer that is complete, for prompts to come. */
static void
keep(const struct session *s, struct slot *x)
{
    struct ids ids = cached(s, x);
    x->q->ids = x->kept;
    x->kept = ids;
}

static size_t
common(const struct ids *a, const struct ids *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->v[n] == b->v[n])
        n++;
    return n;
}

/* The slot, x itself at best, that has the most tokens that x may share; *n: how many. */
static const struct slot *
source_of(const struct prompts *p, const struct slot *x, size_t *n)
{
    const struct ids *ids = &x->q->ids;
    const struct slot *from = x;
    size_t most = common(ids, &x->kept);
    for (size_t i = 0; i < MAX_BATCH; i++) {
        struct ids other = cached(p->s, &p->slot[i]);
        size_t mine = common(ids, &other);
        if (mine > most) {
            most = mine;
            from = &p->slot[i];
        }
    }
    *n = session_shares(p->s, most, ids->n);
    return from;
}

/* Fill the cache with what other prompts, or the one before in this slot, have in common with
 * this one. */
static int
share(struct prompts *p, struct slot *x, size_t tokens)
{
    struct session *s = p->s;
    const struct ids *ids = &x->q->ids;
    size_t most;
    const struct slot *from = source_of(p, x, &most);
    x->q->cache.used = from == x ? most : 0;
    x->q->prompt = 0; // others have nothing of it until it is computed
    p->tokens += ids->n;
    p->shared += most;
    if (session_reserve(s, x->q, tokens) < 0)
        return -1;
    return from == x ? 0 : session_copy(s, x->q, &from->q->cache, most);
}

/* The answer is complete. */
static int
finish_answer(struct prompts *p, struct slot *x)
{
    struct session *s = p->s;
    const struct infer_options *c = s->c;
    struct buf b = { 0 };
    int rc = answer_end(&x->a);
    if (rc == 0) {
        put(&b, x);
        if (answer_reports(c))
            answer_report(&x->a);
        if (c->dump_layers)
            rc = layers_write(&p->layers);
    }
    if (rc == 0 && c->logits)
        rc = write_logits(&x->a);
    if (c->dump_layers)
        layers_close(&p->layers);
    answer_free(&x->a);
    keep(s, x);
    p->busy--;
    return put_output(p, x, &b) < 0 ? -1 : rc;
}

/* Choose the next token by what was computed. */
static int
choose(struct prompts *p, struct slot *x)
{
    int rc = answer_next(&x->a);
    return rc > 0 ? finish_answer(p, x) : rc;
}

/* Compute n prompts together, and choose the first tokens of their answers. */
static int
compute(struct prompts *p, struct slot *const *x, size_t n)
{
    struct answer *a[MAX_BATCH] = { NULL };
    for (size_t i = 0; i < n; i++)
        a[i] = &x[i]->a;
    p->begins += n;
    p->passes++;
    if (answer_begin(a, n, p->logits) < 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (choose(p, x[i]) < 0)
            return -1;
    return 0;
}

/* Compute the prompts that wait. */
static int
compute_waiting(struct prompts *p, struct group *g)
{
    size_t n = g->n;
    g->n = g->tokens = 0;
    return n ? compute(p, g->slot, n) : 0;
}

/* How many tokens x could share with one that waits, if that were computed. */
static size_t
waiting_shares(const struct prompts *p, const struct slot *x, const struct group *g)
{
    size_t most = 0;
    for (size_t i = 0; i < g->n; i++) {
        struct ids other = g->slot[i]->q->ids;
        other.n = session_shareable(p->s, other.n);
        size_t n = common(&x->q->ids, &other);
        most = n > most ? n : most;
    }
    return session_shares(p->s, most, x->q->ids.n);
}

/* Compute the group if x would make it larger than `most` tokens (0: x is computed by itself), or
 * could share WORTH tokens more with it than with prompts that are computed. */
static int
make_room(struct prompts *p, const struct slot *x, struct group *g, size_t most)
{
    size_t shares;
    source_of(p, x, &shares);
    if ((most == 0 || g->tokens + x->q->ids.n - shares <= most) &&
        waiting_shares(p, x, g) < shares + WORTH)
        return 0;
    return compute_waiting(p, g);
}

/* Begin an answer; its prompt is computed now, or with others, later.  One token by itself is
 * computed as those of an answer are. */
static int
start_prompt(struct prompts *p, struct slot *x)
{
    struct session *s = p->s;
    const struct infer_options *c = s->c;
    const struct answer_settings *how = c->requests ? &x->request.how : &p->how;
    size_t n = x->q->ids.n, most = p->slots > 1 ? session_together(s, n) : 0;
    struct group *g = session_reads_stored(s, n) ? &p->few : &p->many;
    if (p->slots > 1 && make_room(p, x, g, most) < 0)
        return -1;
    if (share(p, x, answer_tokens(x->q->ids.n, how)) < 0)
        return -1;
    answer_open(&x->a, s, x->q, how,
                p->slots == 1 && c->batch == 1 && !c->json && !c->ids);
    x->a.index = x->place.index;
    x->a.number = x->place.answer;
    x->a.draw = c->requests ? 0 : x->place.index; // a request as if it were alone
    x->a.draw |= (uint64_t)x->place.answer << 32;
    x->a.meter = &p->meter;
    x->state = SLOT_BUSY;
    p->busy++;
    if (c->dump_layers && layers_open(&p->layers, s, x->q) < 0)
        return -1;
    if (!most)
        return compute(p, &x, 1);
    g->slot[g->n++] = x;
    g->tokens += n - x->q->cache.used;
    return 0;
}

/* A token for each of the prompts. */
static int
step(struct prompts *p)
{
    struct slot *busy[MAX_BATCH];
    struct sequence *q[MAX_BATCH] = { &p->slot[0].own };
    size_t n = 0;
    for (size_t i = 0; i < MAX_BATCH; i++)
        if (p->slot[i].state == SLOT_BUSY) {
            busy[n] = &p->slot[i];
            q[n++] = p->slot[i].q;
        }
    if (n == 1 ? session_follow(p->s, q[0]) < 0
               : session_step(p->s, q, n, p->logits) < 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (choose(p, busy[i]) < 0)
            return -1;
    return 0;
}

/* ---- a prompt ------------------------------------------------------------------------------- */

/* The template of the options, with the thinking switch of a request. */
static struct template_options
template_of(const struct session *s, const struct answer_settings *how)
{
    struct template_options o = s->c->how;
    o.think = how->think;
    return o;
}

/* The tokens of a prompt, behind the message of --system. */
static int
render(struct session *s, struct ids *ids, const struct answer_settings *how,
       struct slice text, struct err *err)
{
    const struct infer_options *c = s->c;
    struct template_options o = template_of(s, how);
    struct message m[2] = { { .role = slice_of("system"),
                              .content = slice_of(c->system ? c->system : "") },
                            { .role = slice_of("user"), .content = text } };
    size_t first = c->system ? 0 : 1;
    return render_prompt(s->e, ids, &o, m + first, 2 - first, err);
}

/* Append the ids of a line. */
static int
read_ids(struct session *s, struct ids *ids, struct slice text, struct err *err)
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
            return err_set(err, ERR_FORMAT, "expected ids, found \"%s\"",
                           text_quote(q, word, (size_t)(p - word)));
        }
        if (id >= s->model.config.vocab)
            return err_set(err, ERR_FORMAT,
                           "id %llu at position %zu: the model's vocab_size is %u",
                           (unsigned long long)id, ids->n, s->model.config.vocab);
        ids_add(ids, (uint32_t)id);
    }
    return ids_ok(ids, err);
}

/* The messages of a request, and that of --system if they have none. */
static int
render_request(struct session *s, struct ids *ids, const struct answer_settings *how,
               struct messages *m, struct err *err)
{
    const struct infer_options *c = s->c;
    struct template_options o = template_of(s, how);
    struct message system = { .role = slice_of("system"),
                              .content = slice_of(c->system ? c->system : "") };
    if (c->system && m->n && !slice_is(m->v[0].role, "system") &&
        messages_prepend(m, system, err) < 0)
        return -1;
    return render_prompt(s->e, ids, &o, m->v, m->n, err);
}

/* The tokens of a request into x->q, its texts and settings into the slot. */
static int
prepare_request(struct prompts *p, struct slot *x, struct slice text, struct err *err)
{
    static const char *const names[] = { "", "prompt", "messages", "ids" };
    struct session *s = p->s;
    struct request *r = &x->request;
    x->line.len = 0;
    buf_add(&x->line, text.p, text.n);
    struct slice line = { x->line.data, x->line.len };
    if (buf_ok(&x->line, err) < 0 || request_parse(r, &p->how, line, err) < 0)
        return -1;
    if (r->how.n_stops && !s->t) {
        r->field = slice_of("stop");
        return err_set(err, ERR_USAGE, "needs a tokenizer: want -t tokenizer.json");
    }
    if (r->how.think != p->how.think &&
        (r->kind == REQUEST_IDS || s->c->how.kind != TEMPLATE_QWEN3)) {
        r->field = slice_of("enable_thinking");
        return err_set(err, ERR_USAGE, "needs --template qwen3");
    }
    if (r->how.answers > 1 && r->how.sample.temperature <= 0) {
        r->field = slice_of("n");
        return err_set(err, ERR_USAGE,
                       "at temperature 0 all answers are equal: expected 1, or a "
                       "\"temperature\" above 0");
    }
    r->field = slice_of(names[r->kind]);
    if (r->kind != REQUEST_IDS && !s->t)
        return err_set(err, ERR_USAGE, "needs a tokenizer: with --ids only \"ids\"");
    if (r->kind == REQUEST_IDS)
        ids_append(&x->q->ids, r->ids.v, r->ids.n);
    else if (r->kind == REQUEST_PROMPT
                 ? render(s, &x->q->ids, &r->how, r->prompt, err) < 0
                 : render_request(s, &x->q->ids, &r->how, &r->messages, err) < 0)
        return -1;
    return ids_ok(&x->q->ids, err);
}

static int
prepare_text(struct session *s, struct ids *ids, const struct answer_settings *how,
             struct slice text, struct err *err)
{
    size_t bad = utf8_check(text.p, text.n);
    if (bad < text.n)
        return err_set(err, ERR_FORMAT, "byte %zu: not UTF-8", bad);
    return s->c->ids ? read_ids(s, ids, text, err) : render(s, ids, how, text, err);
}

static int
prepare(struct prompts *p, struct slot *x, struct slice text, struct err *err)
{
    struct session *s = p->s;
    x->q->ids.n = 0;
    if (s->c->requests ? prepare_request(p, x, text, err) < 0
                       : prepare_text(s, &x->q->ids, &p->how, text, err) < 0)
        return -1;
    x->place.id = x->request.id;
    return check_length(s, x->q, err);
}

static bool
fits(const struct prompts *p, struct slot *x)
{
    struct session *s = p->s;
    const struct answer_settings *how = s->c->requests ? &x->request.how : &p->how;
    return session_fits(s, x->q, answer_tokens(x->q->ids.n, how));
}

/* Start a prompt that does not fit, or did not: in the memory of answers that are complete and, if
 * there are no others, of the pass for several prompts.  Else it waits. */
static int
start_held(struct prompts *p, struct slot *x)
{
    for (size_t i = 0; i < MAX_BATCH && !fits(p, x); i++) {
        struct slot *done = &p->slot[i];
        if (done->state != SLOT_FREE || done == x)
            continue;
        sequence_free(done->q);
        done->kept.n = 0;
    }
    if (!fits(p, x)) {
        if (p->busy) {
            p->slots = p->busy;
            return 0;
        }
        session_apart(p->s);
    }
    return start_prompt(p, x);
}

/* Start it if there is memory for it, or nothing to wait for. */
static int
start_or_hold(struct prompts *p, struct slot *x)
{
    struct session *s = p->s;
    if (p->slots > 1 && session_reserve_together(s, x->q->ids.n, p->slots) < 0)
        return -1;
    if (fits(p, x))
        return start_prompt(p, x);
    if (p->busy == 0)
        return start_held(p, x);
    x->state = SLOT_HELD;
    p->slots = p->busy;
    host_note(s->c->host,
              "--batch: not enough memory for keys and values: %zu at a time", p->busy);
    return 0;
}

/* Whether the last prompt has answers that were not begun. */
static bool
lacks_answers(const struct prompts *p)
{
    return p->answer + 1 < p->answers;
}

/* The next prompt, or the last one again for another answer.  Returns 0 after the last prompt. */
static int
next_text(struct prompts *p, struct slice *text)
{
    if (lacks_answers(p)) {
        p->answer++;
        *text = (struct slice){ p->again.data, p->again.len };
        return 1;
    }
    int rc = p->source->next(p->source, text, p->s->err);
    if (rc > 0)
        p->next++;
    p->answer = 0;
    p->answers = 1;
    return rc;
}

/* Keep the text of a prompt for its other answers. */
static int
keep_text(struct prompts *p, const struct slot *x, struct slice text)
{
    const struct answer_settings *how = p->s->c->requests ? &x->request.how : &p->how;
    p->answers = how->answers;
    if (p->answers == 1 || p->answer > 0)
        return 0;
    p->again.len = 0;
    buf_add(&p->again, text.p, text.n);
    return buf_ok(&p->again, p->s->err);
}

/* Returns 1 after an answer was started or its prompt was held or refused, 0 after the last prompt. */
static int
take(struct prompts *p)
{
    struct session *s = p->s;
    struct slot *x = p->slot;
    struct slice text;
    struct err err = { 0 };
    int rc = next_text(p, &text);
    if (rc <= 0)
        return rc;
    while (x->state != SLOT_FREE)
        x++;
    x->place = (struct place){ .what = "prompt",
                               .index = p->next - 1,
                               .answer = p->answer,
                               .answers = p->answers,
                               .line = p->source->line };
    x->order = p->ordered++;
    x->share = p->source->share;
    if ((s->c->logits || s->c->dump_layers) && x->place.index > 0)
        return err_set(s->err, ERR_USAGE,
                       "<stdin>: line %llu: --logits and --dump-layers take one prompt",
                       (unsigned long long)x->place.line);
    if (prepare(p, x, text, &err) < 0)
        return refuse(p, x, &err) < 0 ? -1 : 1;
    if (keep_text(p, x, text) < 0)
        return -1;
    x->place.answers = p->answers;
    return start_or_hold(p, x) < 0 ? -1 : 1;
}

static struct slot *
held(struct prompts *p)
{
    for (size_t i = 0; i < MAX_BATCH; i++)
        if (p->slot[i].state == SLOT_HELD)
            return &p->slot[i];
    return NULL;
}

/* Whether to take another prompt now: not if it would have to be waited for while others are
 * answered. */
static bool
wants_more(struct prompts *p)
{
    return !p->end && p->busy < p->slots && p->ordered - p->printed < p->cap &&
           (p->busy == 0 || lacks_answers(p) || !p->source->waits(p->source));
}

static int
run_prompts(struct prompts *p)
{
    int rc = 0;
    while (rc >= 0) {
        struct slot *x = held(p);
        if (x && p->busy < p->slots) {
            rc = start_held(p, x);
        } else if (!x && wants_more(p)) {
            rc = take(p);
            p->end = rc == 0;
        } else if (p->few.n || p->many.n) {
            rc = compute_waiting(p, &p->few);
            rc = rc < 0 ? rc : compute_waiting(p, &p->many);
        } else if (p->busy) {
            rc = step(p);
        } else {
            return 0;
        }
    }
    return rc;
}

/* How many prompts at a time. */
static size_t
slots(const struct session *s)
{
    const struct infer_options *c = s->c;
    // Else a row of a product has the same bits with any others.
    const char *how = c->where.coarse                  ? "--fast"
                      : !s->k->is.host && c->where.fp4 ? "--activations nvfp4 on a GPU"
                                                       : NULL;
    if (c->batch > 1 && how)
        host_note(c->host,
                  "--batch: no effect: with %s numbers depend on how many tokens are "
                  "computed "
                  "together",
                  how);
    return how ? 1 : c->batch;
}

static int
open_slots(struct prompts *p)
{
    struct session *s = p->s;
    for (size_t i = 0; i < MAX_BATCH; i++) {
        p->slot[i].q = &p->slot[i].own;
        p->slot[i].request.vocab = s->model.config.vocab;
        p->slot[i].request.idle = p->idle;
    }
    p->slots = slots(s);
    p->cap = p->slots * WAITING;
    p->out = calloc(p->cap, sizeof *p->out);
    if (!p->out)
        return err_set(s->err, ERR_MEMORY, "out of memory for answers");
    if (p->slots > 1 && !s->greedy &&
        !(p->logits = malloc(p->slots * s->model.config.vocab * sizeof *p->logits)))
        return err_set(s->err, ERR_MEMORY, "out of memory for logits");
    return 0;
}

static void
close_slots(struct prompts *p)
{
    for (size_t i = 0; i < MAX_BATCH; i++) {
        struct slot *x = &p->slot[i];
        if (x->state == SLOT_BUSY)
            answer_free(&x->a);
        sequence_free(&x->own);
        ids_free(&x->kept);
        request_free(&x->request);
        buf_free(&x->line);
    }
    for (size_t i = 0; p->out && i < p->cap; i++)
        buf_free(&p->out[i].text);
    free(p->out);
    free(p->logits);
    buf_free(&p->again);
}

/* Report how much was computed, and the fields of requests that had no effect. */
static void
report(const struct prompts *p)
{
    struct buf names = { 0 };
    const struct host *host = p->s->c->host;
    if (p->shared)
        host_warn(
            host,
            "prompts: %llu tokens, %llu computed: an earlier prompt began with the "
            "others",
            (unsigned long long)p->tokens, (unsigned long long)(p->tokens - p->shared));
    if (p->passes < p->begins)
        host_warn(host, "prompts: %llu computed in %llu pass%s",
                  (unsigned long long)p->begins, (unsigned long long)p->passes,
                  p->passes == 1 ? "" : "es");
    request_put_idle(&names, p->idle);
    if (names.len)
        host_warn(host, "requests: fields without an effect: %s", names.data);
    buf_free(&names);
}

int
prompts_answer(struct session *s, struct source *source, bool many, uint64_t *all,
               uint64_t *refused)
{
    struct prompts *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(s->err, ERR_MEMORY, "out of memory for prompts");
    *p = (struct prompts){ .s = s, .how = answer_settings(s), .source = source };
    int rc = open_slots(p);
    meter_open(&p->meter, s->c->host, many);
    if (rc == 0)
        rc = run_prompts(p);
    meter_close(&p->meter);
    layers_close(&p->layers); // after an error
    *all = p->next;
    *refused = p->refused;
    if (rc == 0 && s->c->host->verbose)
        report(p);
    close_slots(p);
    free(p);
    return rc;
}
