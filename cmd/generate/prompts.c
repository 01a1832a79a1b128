/* SPDX-License-Identifier: MIT */
/* prompts: answers one prompt after the other, of -p or of standard input, where a line is a
 * prompt or, with --input jsonl, a request.  A prompt that
 * cannot be answered has its error in place of an answer, and the others are answered. */
#include "cmd/generate/place.h"
#include "cmd/generate/request.h"

#include "lib/core/reader.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROMPT_LINE = 16 << 20 }; // bytes

struct prompts {
    struct session *s;
    struct settings how;
    struct layers layers;
    struct meter meter;
    struct place place;     // of the prompt
    uint64_t refused;       // prompts
    struct request request; // with --input jsonl
};

/* Whether the tokens of s->ids can be a prompt. */
static int
check_length(const struct session *s, struct err *err)
{
    if (s->ids.n == 0)
        return err_set(err, ERR_USAGE, "a prompt without a token");
    if (s->ids.n > s->limit)
        return err_set(err, ERR_USAGE, "%zu tokens, the context has %zu%s", s->ids.n,
                       s->limit, s->c->context ? " (--context)" : "");
    return 0;
}

/* ---- one prompt ----------------------------------------------------------------------------- */

static int
write_logits(const struct answer *a)
{
    struct dump d = { "logits", { a->n, a->s->model.config.vocab }, a->logits };
    return dump_write(a->s, a->s->c->logits, &d, 1, NULL);
}

static void
put(const struct prompts *p, const struct answer *a)
{
    struct buf b = { 0 };
    if (!p->s->c->json) {
        answer_put(a);
        return;
    }
    place_head(&b, &p->place);
    buf_str(&b, "\"text\":");
    answer_json_text(&b, a);
    buf_char(&b, ',');
    answer_json(&b, a);
    buf_str(&b, "}\n");
    answer_flush(&b, true);
    buf_free(&b);
}

/* s->ids is the prompt. */
static int
answer(struct prompts *p)
{
    struct session *s = p->s;
    const struct config_generate *c = s->c;
    struct answer a;
    answer_open(&a, s, c->requests ? &p->request.how : &p->how);
    a.index = p->place.index;
    a.draw = c->requests ? 0 : a.index; // a request is answered as if it were alone
    a.meter = &p->meter;
    int rc = c->dump_layers ? layers_open(&p->layers, s, s->ids.n) : 0;
    if (rc == 0)
        rc = answer_make(&a);
    if (rc == 0) {
        put(p, &a);
        if (c->cmd.verbose)
            answer_report(&a);
        if (c->dump_layers)
            rc = layers_write(&p->layers);
    }
    if (rc == 0 && c->logits)
        rc = write_logits(&a);
    if (c->dump_layers)
        layers_close(&p->layers);
    answer_free(&a);
    return rc;
}

/* The tokens of a prompt, behind the message of --system. */
static int
render(struct session *s, struct slice text, struct err *err)
{
    const struct config_generate *c = s->c;
    struct message m[2] = { { slice_of("system"),
                              slice_of(c->system ? c->system : "") },
                            { slice_of("user"), text } };
    size_t first = c->system ? 0 : 1;
    return render_prompt(s->e, &s->ids, &c->how, m + first, 2 - first, err);
}

/* Append the ids of a line to s->ids. */
static int
read_ids(struct session *s, struct slice text, struct err *err)
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
                           (unsigned long long)id, s->ids.n, s->model.config.vocab);
        ids_add(&s->ids, (uint32_t)id);
    }
    return ids_ok(&s->ids, err);
}

/* The messages of a request, and that of --system if they have none. */
static int
render_request(struct session *s, struct messages *m, struct err *err)
{
    const struct config_generate *c = s->c;
    struct message system = { slice_of("system"),
                              slice_of(c->system ? c->system : "") };
    if (c->system && m->n && !slice_is(m->v[0].role, "system") &&
        messages_prepend(m, system, err) < 0)
        return -1;
    return render_prompt(s->e, &s->ids, &c->how, m->v, m->n, err);
}

/* The tokens of a request into s->ids. */
static int
prepare_request(struct prompts *p, struct slice line, struct err *err)
{
    static const char *const names[] = { "", "prompt", "messages", "ids" };
    struct session *s = p->s;
    struct request *r = &p->request;
    if (request_parse(r, &p->how, line, err) < 0)
        return -1;
    if (r->how.n_stops && !s->t) {
        r->field = slice_of("stop");
        return err_set(err, ERR_USAGE, "needs a tokenizer: want -t tokenizer.json");
    }
    r->field = slice_of(names[r->kind]);
    if (r->kind != REQUEST_IDS && !s->t)
        return err_set(err, ERR_USAGE, "needs a tokenizer: with --ids only \"ids\"");
    if (r->kind == REQUEST_IDS)
        ids_append(&s->ids, r->ids.v, r->ids.n);
    else if (r->kind == REQUEST_PROMPT ? render(s, r->prompt, err) < 0
                                       : render_request(s, &r->messages, err) < 0)
        return -1;
    return ids_ok(&s->ids, err);
}

static int
prepare_text(struct prompts *p, struct slice text, struct err *err)
{
    struct session *s = p->s;
    size_t bad = utf8_check(text.p, text.n);
    if (bad < text.n)
        return err_set(err, ERR_FORMAT, "byte %zu: not UTF-8", bad);
    return s->c->ids ? read_ids(s, text, err) : render(s, text, err);
}

static int
prepare(struct prompts *p, struct slice line, struct err *err)
{
    if (p->s->c->requests ? prepare_request(p, line, err) < 0
                          : prepare_text(p, line, err) < 0)
        return -1;
    return check_length(p->s, err);
}

static int
one_prompt(struct prompts *p, struct slice text, double share)
{
    struct session *s = p->s;
    struct err err = { 0 };
    if ((s->c->logits || s->c->dump_layers) && p->place.index > 0)
        return err_set(s->err, ERR_USAGE,
                       "<stdin>: line %llu: --logits and --dump-layers take one prompt",
                       (unsigned long long)p->place.line);
    s->ids.n = 0;
    if (s->has_cache)
        s->cache.used = 0;
    int rc = prepare(p, text, &err);
    p->place.id = p->request.id;
    p->place.field = p->request.field;
    if (rc == 0) {
        rc = answer(p);
    } else {
        rc = place_refuse(&p->place, s->c->json, &err, s->err);
        p->refused++;
    }
    p->place.index++;
    meter_prompt(&p->meter, share);
    return rc;
}

/* ---- sources of prompts --------------------------------------------------------------------- */

/* A prompt for a user at a terminal. */
static void
prompt_user(const struct config_generate *c)
{
    if (!c->cmd.quiet && isatty(STDIN_FILENO) && isatty(STDERR_FILENO))
        fputs("> ", stderr);
}

/* Bytes of standard input that are still to be read; 0: it is no file. */
static double
bytes_ahead(void)
{
    struct stat st;
    off_t at = lseek(STDIN_FILENO, 0, SEEK_CUR);
    if (fstat(STDIN_FILENO, &st) < 0 || !S_ISREG(st.st_mode) || at >= st.st_size)
        return 0;
    return (double)(st.st_size - at);
}

int
prompts_lines(struct session *s, prompts_line_fn *take, void *ctx)
{
    struct reader r = { .fd = STDIN_FILENO, .name = "<stdin>", .limit = PROMPT_LINE };
    struct slice line;
    double all = bytes_ahead();
    int rc;
    prompt_user(s->c);
    while ((rc = reader_line(&r, &line, s->err)) > 0) {
        while (line.n > 0 && line.p[line.n - 1] == '\r')
            line.n--;
        if (line.n == 0)
            continue;
        double share = all > 0 && (double)r.end < all ? (double)r.end / all : 0;
        if ((rc = take(ctx, line, r.number, share)) < 0)
            break;
        prompt_user(s->c);
    }
    reader_free(&r);
    return rc;
}

static int
one_line(void *ctx, struct slice line, uint64_t number, double share)
{
    struct prompts *p = ctx;
    p->place.line = number;
    return one_prompt(p, line, share);
}

static int
from_options(struct prompts *p)
{
    const struct config_generate *c = p->s->c;
    for (size_t i = 0; i < c->n_prompts; i++)
        if (one_prompt(p, slice_of(c->prompts[i]),
                       (double)(i + 1) / (double)c->n_prompts) < 0)
            return -1;
    return 0;
}

int
prompts_answer(struct session *s, bool *all)
{
    const struct config_generate *c = s->c;
    struct prompts p = { .s = s,
                         .how = answer_settings(s),
                         .place = { .what = "prompt" },
                         .request = { .vocab = s->model.config.vocab } };
    bool typed = !c->n_prompts && isatty(STDIN_FILENO);
    meter_open(&p.meter, &c->cmd, c->n_prompts != 1 && !typed);
    int rc = c->n_prompts ? from_options(&p) : prompts_lines(s, one_line, &p);
    meter_close(&p.meter);
    request_free(&p.request);
    *all = p.refused == 0;
    if (rc == 0 && c->requests && p.place.index == 0 && !c->cmd.quiet)
        warn("<stdin>: no requests");
    if (rc == 0 && c->json && p.refused)
        warn("%llu of %llu prompts could not be answered: see \"error\"",
             (unsigned long long)p.refused, (unsigned long long)p.place.index);
    return rc;
}
