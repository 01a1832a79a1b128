/* SPDX-License-Identifier: MIT */
/* prompts: answers one prompt after the other, of -p or of standard input, where a line is a
 * prompt or, with --input jsonl, a request.  A prompt that
 * cannot be answered has its error in place of an answer, and the others are answered. */
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
    uint64_t index, refused; // prompts
    uint64_t line;           // of standard input, from 1; 0: prompts are those of -p
    double share;            // of all prompts, up to this one; 0: unknown
    struct request request;  // with --input jsonl
};

/* ---- errors of a prompt ------------------------------------------------------------------- */

/* What is wrong, with its place: line or prompt, field. */
static void
put_words(struct buf *b, const struct prompts *p, const char *words)
{
    struct slice field = p->request.field;
    char q[TEXT_QUOTE];
    buf_printf(b, p->line ? "<stdin>: line %llu: " : "prompt %llu: ",
               (unsigned long long)(p->line ? p->line : p->index));
    if (field.p)
        buf_printf(b, "\"%s\": ", text_quote(q, field.p, field.n));
    buf_str(b, strncmp(words, ": ", 2) == 0 ? words + 2 : words);
}

/* The beginning of the object of a prompt. */
static void
put_head(struct buf *b, const struct prompts *p)
{
    struct slice id = p->request.id;
    buf_printf(b, "{\"prompt\":%llu,", (unsigned long long)p->index);
    if (id.p) {
        buf_str(b, "\"id\":");
        buf_add(b, id.p, id.n);
        buf_char(b, ',');
    }
}

static void
put_error(struct buf *b, const struct prompts *p, const struct buf *words)
{
    put_head(b, p);
    if (p->line)
        buf_printf(b, "\"line\":%llu,", (unsigned long long)p->line);
    if (p->request.field.p) {
        buf_str(b, "\"field\":");
        json_put(b, p->request.field);
        buf_char(b, ',');
    }
    buf_str(b, "\"error\":");
    json_put(b, (struct slice){ words->data, words->len });
    buf_char(b, '}');
}

/* An error in place of an answer; -1 if it is not the prompt's alone. */
static int
refuse(struct prompts *p, const struct err *why)
{
    const struct session *s = p->s;
    struct buf b = { 0 }, words = { 0 };
    if (why->kind == ERR_MEMORY)
        return err_set(s->err, why->kind, "%s", why->msg);
    put_words(&words, p, why->msg);
    if (buf_ok(&words, s->err) < 0)
        return -1;
    if (s->c->json)
        put_error(&b, p, &words);
    else
        warn("%s", words.data);
    buf_char(&b, '\n'); // of a text an empty line, so that lines stay in step
    answer_flush(&b, s->c->json);
    buf_free(&b);
    buf_free(&words);
    p->refused++;
    return 0;
}

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
    put_head(&b, p);
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
    a.index = p->index;
    a.draw = c->requests ? 0 : p->index; // a request is answered as if it were alone
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

/* Close the answer in s->ids by its end token and a LF, before the next turn. */
static int
end_turn(struct session *s, struct err *err)
{
    uint32_t id = tokenizer_added(s->t, "<|im_end|>");
    if (id == TOKEN_NONE)
        return err_set(err, ERR_FORMAT, "the tokenizer has no added token <|im_end|>");
    ids_add(&s->ids, id);
    return encode(s->e, &s->ids, slice_of("\n"), false, err);
}

static int
render(struct session *s, struct slice text, bool first, struct err *err)
{
    const struct config_generate *c = s->c;
    struct message m[2] = { { slice_of("system"),
                              slice_of(c->system ? c->system : "") },
                            { slice_of("user"), text } };
    bool system = c->system && first;
    return render_prompt(s->e, &s->ids, &c->how, system ? m : m + 1, system ? 2 : 1,
                         err);
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
    else if (r->kind == REQUEST_PROMPT ? render(s, r->prompt, true, err) < 0
                                       : render_request(s, &r->messages, err) < 0)
        return -1;
    return ids_ok(&s->ids, err);
}

/* The tokens of a prompt into s->ids, behind those of the turns before. */
static int
prepare_text(struct prompts *p, struct slice text, struct err *err)
{
    struct session *s = p->s;
    size_t bad = utf8_check(text.p, text.n);
    bool goes_on = s->c->chat && s->ids.n > 0;
    if (bad < text.n)
        return err_set(err, ERR_FORMAT, "byte %zu: not UTF-8", bad);
    if (goes_on && end_turn(s, err) < 0)
        return -1;
    return s->c->ids ? read_ids(s, text, err) : render(s, text, !goes_on, err);
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
one_prompt(struct prompts *p, struct slice text)
{
    struct session *s = p->s;
    struct err err = { 0 };
    if ((s->c->logits || s->c->dump_layers) && p->index > 0)
        return err_set(s->err, ERR_USAGE,
                       "<stdin>: line %llu: --logits and --dump-layers take one prompt",
                       (unsigned long long)p->line);
    if (!s->c->chat) {
        s->ids.n = 0;
        if (s->has_cache)
            s->cache.used = 0;
    }
    size_t before = s->ids.n;
    int rc = prepare(p, text, &err);
    if (rc == 0) {
        rc = answer(p);
    } else {
        s->ids.n = before; // the next turn stands behind the last one that was answered
        rc = refuse(p, &err);
    }
    p->index++;
    meter_prompt(&p->meter, p->share);
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

static int
from_stdin(struct prompts *p)
{
    struct reader r = { .fd = STDIN_FILENO, .name = "<stdin>", .limit = PROMPT_LINE };
    struct slice line;
    double all = bytes_ahead();
    int rc;
    prompt_user(p->s->c);
    while ((rc = reader_line(&r, &line, p->s->err)) > 0) {
        while (line.n > 0 && line.p[line.n - 1] == '\r')
            line.n--;
        if (line.n == 0)
            continue;
        p->line = r.number;
        p->share = all > 0 && (double)r.end < all ? (double)r.end / all : 0;
        if ((rc = one_prompt(p, line)) < 0)
            break;
        prompt_user(p->s->c);
    }
    reader_free(&r);
    if (rc == 0 && p->s->c->requests && p->index == 0 && !p->s->c->cmd.quiet)
        warn("<stdin>: no requests");
    return rc;
}

static int
from_options(struct prompts *p)
{
    const struct config_generate *c = p->s->c;
    for (size_t i = 0; i < c->n_prompts; i++) {
        p->share = (double)(i + 1) / (double)c->n_prompts;
        if (one_prompt(p, slice_of(c->prompts[i])) < 0)
            return -1;
    }
    return 0;
}

int
prompts_answer(struct session *s, bool *all)
{
    const struct config_generate *c = s->c;
    struct prompts p = { .s = s,
                         .how = answer_settings(s),
                         .request = { .vocab = s->model.config.vocab } };
    bool typed = !c->n_prompts && isatty(STDIN_FILENO);
    meter_open(&p.meter, &c->cmd, c->n_prompts != 1 && !typed && !c->chat);
    int rc = c->n_prompts ? from_options(&p) : from_stdin(&p);
    meter_close(&p.meter);
    request_free(&p.request);
    *all = p.refused == 0;
    if (rc == 0 && c->json && p.refused)
        warn("%llu of %llu prompts could not be answered: see \"error\"",
             (unsigned long long)p.refused, (unsigned long long)p.index);
    return rc;
}
