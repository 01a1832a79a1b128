/* SPDX-License-Identifier: MIT */
/* chat: the turns of one conversation.  c->q.ids has the tokens of the turns as they were made,
 * and the cache what was computed of them; when the context is full, the oldest turns leave.  At
 * a terminal a line that begins with a slash is a command. */
#include "cmd/generate/edit.h"
#include "cmd/generate/source.h"

#include "lib/base/grow.h"
#include "lib/base/nearest.h"
#include "lib/base/num.h"
#include "lib/file/path.h"
#include "lib/infer/answer.h"
#include "lib/infer/place.h"
#include "lib/infer/transcript.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TIME_TEXT = 32 };

/* What was said, of the user and of the model in turn. */
struct said {
    const char *role; // a literal
    char *text;
    size_t n;        // bytes of text
    char *reasoning; // NULL: none
    size_t n_reasoning;
    char time[TIME_TEXT]; // "": unknown
    struct buf speed;     // members of its object, with --time
};

struct chat {
    struct session *s;
    const struct config_generate *g;
    struct sequence q;
    struct answer_settings how;
    struct place place; // of the turn
    bool refused;       // a turn was
    char *system;       // NULL: none
    size_t head;        // tokens of the system message, with which c->q.ids begin
    size_t *start;      // (turns) where they begin in c->q.ids
    size_t turns, cap;
    bool open; // the tokens end with an answer, without its end token
    struct said *said;
    size_t n_said, cap_said;
};

/* ---- the transcript ---------------------------------------------------------------- */

static void
time_text(char out[TIME_TEXT], time_t at)
{
    struct tm tm;
    if (!gmtime_r(&at, &tm) || !strftime(out, TIME_TEXT, "%Y-%m-%dT%H:%M:%SZ", &tm))
        *out = '\0';
}

static char *
copy_text(struct slice s)
{
    char *p = malloc(s.n + 1);
    if (!p)
        die(EXIT_MEMORY, "out of memory for the conversation");
    if (s.n)
        memcpy(p, s.p, s.n);
    p[s.n] = '\0';
    return p;
}

static struct said *
remember(struct chat *c, const struct message *m, const char *time)
{
    if (!GROW(c->said, c->n_said, c->cap_said, 16))
        die(EXIT_MEMORY, "out of memory for the conversation");
    struct said *x = &c->said[c->n_said++];
    *x = (struct said){ .role = slice_is(m->role, "user") ? "user" : "assistant",
                        .text = copy_text(m->content),
                        .n = m->content.n,
                        .n_reasoning = m->reasoning.n };
    if (m->reasoning.p)
        x->reasoning = copy_text(m->reasoning);
    snprintf(x->time, sizeof x->time, "%s", time);
    return x;
}

/* Forget all but the first n messages. */
static void
forget(struct chat *c, size_t n)
{
    while (c->n_said > n) {
        struct said *x = &c->said[--c->n_said];
        free(x->text);
        free(x->reasoning);
        buf_free(&x->speed);
    }
}

static void
put_message(struct buf *b, const struct said *x)
{
    buf_str(b, "{\"role\":");
    json_put(b, slice_of(x->role));
    buf_str(b, ",\"content\":");
    json_put(b, (struct slice){ x->text, x->n });
    if (x->reasoning) {
        buf_str(b, ",\"reasoning_content\":");
        json_put(b, (struct slice){ x->reasoning, x->n_reasoning });
    }
    if (*x->time)
        buf_printf(b, ",\"time\":\"%s\"", x->time);
    if (x->speed.len)
        buf_add(b, x->speed.data, x->speed.len);
    buf_char(b, '}');
}

/* Messages from `first` on, behind that of the system if they are all. */
static void
put_messages(struct buf *b, const struct chat *c, size_t first)
{
    bool system = c->system && first == 0;
    buf_str(b, "\"messages\":[");
    if (system)
        put_message(b, &(struct said){ .role = "system",
                                       .text = c->system,
                                       .n = strlen(c->system) });
    for (size_t i = first; i < c->n_said; i++) {
        buf_str(b, system || i > first ? "," : "");
        put_message(b, &c->said[i]);
    }
    buf_char(b, ']');
}

/* ---- tokens ------------------------------------------------------------------------- */

/* Replace n tokens at `at` of c->q.ids by others: what was computed from the first that differs
 * on is void. */
static int
replace_ids(struct chat *c, size_t at, size_t n, const struct ids *by, struct err *err)
{
    struct ids all = { 0 };
    ids_append(&all, c->q.ids.v, at);
    ids_append(&all, by->v, by->n);
    ids_append(&all, c->q.ids.v + at + n, c->q.ids.n - at - n);
    if (ids_ok(&all, err) < 0)
        return -1;
    for (size_t i = 0; i < n && i < by->n && c->q.ids.v[at] == all.v[at]; i++)
        at++;
    ids_free(&c->q.ids);
    c->q.ids = all;
    if (c->q.has_cache && c->q.cache.used > at)
        c->q.cache.used = at;
    return 0;
}

/* Make text the message of the system, NULL: none. */
static int
set_system(struct chat *c, const char *text, struct err *err)
{
    struct session *s = c->s;
    struct message m = { .role = slice_of("system"),
                         .content = slice_of(text ? text : "") };
    struct rendered r = { 0 };
    int rc = text ? render_messages(s->e, &r, &s->c->how, &m, 1, err) : 0;
    if (rc == 0)
        rc = replace_ids(c, 0, c->head, &r.ids, err);
    if (rc == 0) {
        for (size_t i = 0; i < c->turns; i++)
            c->start[i] += r.ids.n - c->head;
        c->head = r.ids.n;
        char *copy = text ? cmd_copy(text) : NULL;
        free(c->system);
        c->system = copy;
    }
    rendered_free(&r);
    return rc;
}

/* Keep the first n tokens only.  The last of them ends the system message or a complete turn. */
static void
cut(struct chat *c, size_t n)
{
    c->q.ids.n = n;
    if (c->q.has_cache && c->q.cache.used > n)
        c->q.cache.used = n;
    c->open = false;
}

/* Forget all turns; the message of the system stays. */
static void
reset(struct chat *c)
{
    cut(c, c->head);
    c->turns = 0;
    c->place.index = 0;
    forget(c, 0);
}

/* Remove the last turn and its answer. */
static int
undo(struct chat *c, struct err *err)
{
    if (c->turns == 0)
        return err_set(err, ERR_USAGE,
                       c->n_said
                           ? "the turns before this one were dropped: the context "
                             "was full"
                           : "there is no turn");
    cut(c, c->start[--c->turns]);
    forget(c, c->n_said - 2);
    return 0;
}

static void
add_start(struct chat *c, size_t at)
{
    if (!GROW(c->start, c->turns, c->cap, 16))
        die(EXIT_MEMORY, "out of memory for the conversation");
    c->start[c->turns++] = at;
}

/* The last answer's end token and LF, and what the user says. */
static int
append(struct chat *c, struct slice text, struct err *err)
{
    struct session *s = c->s;
    struct message m = { .role = slice_of("user"), .content = text };
    uint32_t end = tokenizer_added(s->t, "<|im_end|>");
    if (c->open && end == TOKEN_NONE)
        return err_set(err, ERR_FORMAT, "the tokenizer has no added token <|im_end|>");
    if (c->open) {
        ids_add(&c->q.ids, end);
        if (encode(s->e, &c->q.ids, slice_of("\n"), false, err) < 0)
            return -1;
    }
    size_t start = c->q.ids.n;
    if (render_prompt(s->e, &c->q.ids, &s->c->how, &m, 1, err) < 0)
        return -1;
    size_t alone = c->head + c->q.ids.n - start;
    if (alone > s->limit)
        return err_set(err, ERR_USAGE, "%zu tokens, the context has %zu%s", alone,
                       s->limit, s->c->context ? " (--context)" : "");
    add_start(c, start);
    return 0;
}

/* Keep what fits: when there is no space for an answer, at most a quarter of the context, the
 * oldest turns leave until half of it is free, or all but the last have left, because what stays
 * is computed again.  *dropped turns. */
static int
drop_oldest(struct chat *c, size_t *dropped)
{
    struct session *s = c->s;
    size_t space = c->how.max_tokens, k = 0;
    if (space > s->limit / 4)
        space = s->limit / 4;
    *dropped = 0;
    if (s->c->no_drop && c->q.ids.n > s->limit)
        return err_set(s->err, ERR_USAGE,
                       "turn %llu: %zu tokens, the context has %zu%s, and --no-drop "
                       "keeps all turns",
                       (unsigned long long)c->place.index, c->q.ids.n, s->limit,
                       s->c->context ? " (--context)" : "");
    if (s->c->no_drop || c->q.ids.n + space <= s->limit)
        return 0;
    while (k + 1 < c->turns && c->head + c->q.ids.n - c->start[k] > s->limit / 2)
        k++;
    if (k == 0)
        return 0;
    size_t gone = c->start[k] - c->head;
    if (replace_ids(c, c->head, gone, &(struct ids){ 0 }, s->err) < 0)
        return -1;
    c->turns -= k;
    for (size_t i = 0; i < c->turns; i++)
        c->start[i] = c->start[i + k] - gone;
    *dropped = k;
    if (!s->c->host->quiet)
        warn("turn %llu: the context of %zu tokens is full: the oldest turns were "
             "dropped, %zu of them",
             (unsigned long long)c->place.index, s->limit, k);
    return 0;
}

/* Append a message as the template renders it behind those before. */
static int
render_said(struct chat *c, struct rendered *r, const struct said *x, struct err *err)
{
    struct session *s = c->s;
    struct buf whole = { 0 }; // an answer may end inside of a character
    utf8_repair(&whole, (struct slice){ x->text, x->n });
    struct message m = { .role = slice_of(x->role),
                         .content = { whole.data ? whole.data : "", whole.len } };
    int rc = buf_ok(&whole, err);
    if (rc == 0)
        rc = render_messages(s->e, r, &s->c->how, &m, 1, err);
    buf_free(&whole);
    return rc;
}

/* The turn that is complete, as the hybrid template renders it when another follows: without
 * thoughts. */
static int
drop_thoughts(struct chat *c)
{
    struct session *s = c->s;
    struct rendered r = { 0 };
    size_t at = c->start[c->turns - 1];
    int rc = 0;
    for (size_t i = c->n_said - 2; rc == 0 && i < c->n_said; i++)
        rc = render_said(c, &r, &c->said[i], s->err);
    if (rc == 0)
        rc = replace_ids(c, at, c->q.ids.n - at, &r.ids, s->err);
    rendered_free(&r);
    c->open = false;
    return rc;
}

/* ---- a turn ------------------------------------------------------------------------- */

static int
print(const struct chat *c, struct buf *b)
{
    const struct host *host = c->s->c->host;
    return host->print(host->ctx, b, c->s->c->json, c->s->err);
}

static int
put(const struct chat *c, const struct answer *a, size_t first, size_t dropped)
{
    struct buf b = { 0 };
    bool json = c->s->c->json;
    if (json) {
        place_head(&b, &c->place);
        put_messages(&b, c, first);
        buf_printf(&b, ",\"dropped\":%zu,", dropped);
        answer_json(&b, a);
        buf_str(&b, "}\n");
    } else {
        answer_put(&b, a);
    }
    int rc = print(c, &b);
    buf_free(&b);
    return rc;
}

/* The turn and its answer into the transcript. */
static void
keep_turn(struct chat *c, const struct answer *a, struct slice text, const char *asked)
{
    struct message user = { .role = slice_of("user"), .content = text };
    struct message said = { .role = slice_of("assistant") };
    char now[TIME_TEXT];
    bool speed = c->s->c->time;
    time_text(now, time(NULL));
    answer_cut(a, &said.reasoning, &said.content);
    struct said *x = remember(c, &user, asked);
    if (speed)
        buf_printf(&x->speed, ",\"tokens\":%zu", a->prompt - c->start[c->turns - 1]);
    x = remember(c, &said, now);
    if (speed) {
        buf_printf(&x->speed, ",\"tokens\":%zu", a->n);
        answer_put_speed(&x->speed, a);
    }
}

/* The answer to the turn in c->q.ids. */
static int
answer(struct chat *c, struct slice text)
{
    struct session *s = c->s;
    struct answer a;
    size_t dropped, first = c->n_said;
    char asked[TIME_TEXT];
    if (drop_oldest(c, &dropped) < 0)
        return -1;
    time_text(asked, time(NULL));
    answer_open(&a, s, &c->q, &c->how, !s->c->json);
    a.index = a.draw = c->place.index;
    int rc = answer_make(&a);
    if (rc == 0) {
        keep_turn(c, &a, text, asked);
        c->open = true;
        rc = put(c, &a, first, dropped);
        if (answer_reports(s->c))
            answer_report(&a);
        if (rc == 0 && c->how.think != THINK_UNSET)
            rc = drop_thoughts(c);
    }
    answer_free(&a);
    return rc;
}

static int
turn(struct chat *c, struct slice text)
{
    struct session *s = c->s;
    struct err err = { 0 };
    size_t before = c->q.ids.n, bad = utf8_check(text.p, text.n);
    int rc = bad < text.n ? err_set(&err, ERR_FORMAT, "byte %zu: not UTF-8", bad)
                          : append(c, text, &err);
    if (rc == 0) {
        rc = answer(c, text);
    } else {
        struct buf b = { 0 };
        c->q.ids.n = before;
        c->refused = true;
        rc = place_refuse(&b, &c->place, s->c->host, s->c->json, &err, s->err);
        if (rc == 0)
            rc = print(c, &b);
        buf_free(&b);
    }
    c->place.index++;
    return rc;
}

/* ---- commands ----------------------------------------------------------------------- */

/* 1: the end of the conversation; 0, or -1 with *err, which does not end it.  Errors are written
 * behind the command's name. */
typedef int command_fn(struct chat *c, const char *arg, struct err *err);

static command_fn help;

/* Report what a command did. */
static void __attribute__((format(printf, 2, 3)))
tell(const struct chat *c, const char *fmt, ...)
{
    struct buf words = { 0 };
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&words, fmt, ap);
    va_end(ap);
    if (!c->s->c->host->quiet && !words.failed)
        warn("%s", words.data);
    buf_free(&words);
}

static const char *
plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static int
command_reset(struct chat *c, const char *arg, struct err *err)
{
    size_t n = c->n_said / 2;
    (void)arg;
    (void)err;
    reset(c);
    tell(c, "/reset: %zu turn%s forgotten; %s", n, plural(n),
         c->system ? "the system message stays" : "there is no system message");
    return 0;
}

static int
command_undo(struct chat *c, const char *arg, struct err *err)
{
    (void)arg;
    if (undo(c, err) < 0)
        return -1;
    size_t n = c->n_said / 2;
    tell(c, "/undo: the last turn was removed; %zu turn%s left", n, plural(n));
    return 0;
}

/* The number of the turn is another one than before, so its draws are, too. */
static int
command_retry(struct chat *c, const char *arg, struct err *err)
{
    (void)arg;
    size_t n = c->n_said;
    if (c->turns == 0)
        return undo(c, err); // an error
    char *text = copy_text((struct slice){ c->said[n - 2].text, c->said[n - 2].n });
    char *before = copy_text((struct slice){ c->said[n - 1].text, c->said[n - 1].n });
    size_t length = c->said[n - 2].n;
    int rc = undo(c, err);
    if (rc == 0)
        rc = turn(c, (struct slice){ text, length });
    if (rc == 0 && c->how.sample.temperature <= 0 && c->n_said == n &&
        slice_is((struct slice){ c->said[n - 1].text, c->said[n - 1].n }, before))
        tell(c, "/retry: the same answer: at temperature 0 it does not change; /temp "
                "0.7 before it draws another");
    free(text);
    free(before);
    return rc;
}

static int
command_temp(struct chat *c, const char *arg, struct err *err)
{
    struct session *s = c->s;
    double x = c->how.sample.temperature;
    char q[TEXT_QUOTE];
    if (*arg && (!num_double(&x, arg) || x < 0))
        return err_set(err, ERR_USAGE, "%s: expected a number of at least 0",
                       text_quote(q, arg, strlen(arg)));
    c->how.sample.temperature = s->c->sample.temperature = x;
    session_settle_draws(s);
    if (!*arg || !s->c->host->quiet)
        warn("/temp: the temperature is %g%s", x,
             x > 0 ? "" : ": the most likely token is taken");
    return 0;
}

static int
command_system(struct chat *c, const char *arg, struct err *err)
{
    size_t n = strlen(arg), bad = utf8_check(arg, n);
    if (bad < n)
        return err_set(err, ERR_FORMAT, "byte %zu: not UTF-8", bad);
    if (set_system(c, *arg ? arg : NULL, err) < 0)
        return -1;
    tell(c, *arg ? "/system: set, from the next turn on"
                 : "/system: there is none, from the next turn on");
    return 0;
}

static int
command_think(struct chat *c, const char *arg, struct err *err)
{
    (void)arg;
    (void)err;
    c->how.think = c->s->c->how.think = THINK_ON;
    tell(c, "/think: the model thinks, from the next turn on");
    return 0;
}

static int
command_no_think(struct chat *c, const char *arg, struct err *err)
{
    (void)arg;
    (void)err;
    c->how.think = c->s->c->how.think = THINK_OFF;
    tell(c, "/no-think: the model answers at once, from the next turn on");
    return 0;
}

static int
command_exit(struct chat *c, const char *arg, struct err *err)
{
    (void)c;
    (void)arg;
    (void)err;
    return 1;
}

/* Files of this run are not replaced by a conversation. */
static int
check_free(const struct session *s, const char *path, const char *name, struct err *err)
{
    const struct infer_options *o = s->c;
    if (path_same_file(path, s->tokenizer) || path_same_file(path, o->config) ||
        store_reads(&s->model.store, path))
        return err_set(err, ERR_USAGE, "%s: is an input: expected a new name", name);
    return path_same_file(path, o->history)
               ? err_set(err, ERR_USAGE, "%s: is the history: expected a new name",
                         name)
               : 0;
}

static int
command_save(struct chat *c, const char *arg, struct err *err)
{
    struct buf b = { 0 };
    size_t n = c->n_said / 2;
    char q[TEXT_QUOTE];
    text_quote(q, arg, strlen(arg));
    if (check_free(c->s, arg, q, err) < 0)
        return -1;
    if (n == 0)
        return err_set(err, ERR_USAGE, "%s: not written: there is no turn", q);
    buf_char(&b, '{');
    put_messages(&b, c, 0);
    buf_str(&b, "}\n");
    int rc = buf_ok(&b, err);
    if (rc == 0)
        rc = transcript_write(arg, &b, c->s->c->force, &cmd_guard, err);
    buf_free(&b);
    if (rc == 0)
        tell(c, "/save: %s: %zu turn%s written", q, n, plural(n));
    return rc;
}

/* The conversation becomes these messages. */
static int
adopt(struct chat *c, const struct messages *m, struct err *err)
{
    struct session *s = c->s;
    size_t first = slice_is(m->v[0].role, "system");
    struct buf system = { 0 };
    buf_add(&system, m->v[0].content.p, m->v[0].content.n);
    reset(c);
    int rc = buf_ok(&system, err);
    if (rc == 0)
        rc = set_system(c, first ? system.data : NULL, err);
    for (size_t i = first; rc == 0 && i < m->n; i++) {
        struct rendered r = { 0 };
        rc = render_messages(s->e, &r, &s->c->how, m->v + i, 1, err);
        if (rc == 0 && i % 2 == first)
            add_start(c, c->q.ids.n);
        ids_append(&c->q.ids, r.ids.v, r.ids.n);
        rendered_free(&r);
        remember(c, &m->v[i], "");
    }
    c->place.index = c->turns;
    buf_free(&system);
    return rc == 0 ? ids_ok(&c->q.ids, err) : -1;
}

static int
command_load(struct chat *c, const char *arg, struct err *err)
{
    struct messages m = { 0 };
    struct arena arena = { 0 };
    char q[TEXT_QUOTE];
    int rc = transcript_read(&m, arg, &arena, err);
    if (rc == 0)
        rc = adopt(c, &m, err);
    if (rc == 0)
        tell(c, "/load: %s: %zu turn%s%s", text_quote(q, arg, strlen(arg)), c->turns,
             plural(c->turns), c->system ? ", with a system message" : "");
    messages_free(&m);
    arena_free(&arena);
    return rc;
}

static const struct command {
    const char *name, *arg, *help; // arg "[X]": it may be missing
    command_fn *run;
} commands[] = {
    { "help", NULL, "this list", help },
    { "retry", NULL, "answer the last turn again, by other draws", command_retry },
    { "undo", NULL, "remove the last turn and its answer", command_undo },
    { "reset", NULL, "forget all turns; the system message stays", command_reset },
    { "system", "[TEXT]", "make TEXT the system message, without one: none",
      command_system },
    { "temp", "[X]", "make X the temperature, without one: show it", command_temp },
    { "think", NULL, "a hybrid Qwen3 model: let it think before it answers",
      command_think },
    { "no-think", NULL, "a hybrid Qwen3 model: let it answer at once",
      command_no_think },
    { "save", "FILE", "write the conversation as JSONL, as tokenize reads it",
      command_save },
    { "load", "FILE", "go on with such a conversation", command_load },
    { "exit", NULL, "the end, as Ctrl-D", command_exit },
    { "quit", NULL, "the end, too", command_exit },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static int
help(struct chat *c, const char *arg, struct err *err)
{
    (void)c;
    (void)arg;
    (void)err;
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "/%-9s%-7s %s\n", commands[i].name,
                commands[i].arg ? commands[i].arg : "", commands[i].help);
    fputs("//TEXT            a turn that begins with a slash\n"
          "TEXT\\             the turn goes on in the next line; pasted lines are one "
          "turn\n"
          "Ctrl-C            ends an answer, or discards what was typed\n",
          stderr);
    return 0;
}

/* Names that other chat programs have for a command. */
static const char *const other_names[][2] = {
    { "?", "help" },           { "bye", "exit" },          { "q", "quit" },
    { "clear", "reset" },      { "new", "reset" },         { "regen", "retry" },
    { "regenerate", "retry" }, { "redo", "retry" },        { "temperature", "temp" },
    { "write", "save" },       { "read", "load" },         { "back", "undo" },
    { "nothink", "no-think" }, { "no_think", "no-think" },
};

/* The command that is meant by a name that is none, or NULL. */
static const char *
meant(const char *name, size_t n)
{
    struct nearest near = nearest_to(name, n);
    const char *begins = NULL; // the only command that begins so
    size_t begin = 0;
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (slice_is((struct slice){ name, n }, other_names[i][0]))
            return other_names[i][1];
    for (size_t i = 0; i < N_COMMANDS; i++) {
        nearest_try(&near, commands[i].name);
        if (n && strncmp(commands[i].name, name, n) == 0 && begin++ == 0)
            begins = commands[i].name;
    }
    return begin == 1 ? begins : near.word;
}

static int
unknown_command(const char *name, size_t n, struct err *err)
{
    const char *word = meant(name, n);
    return word ? err_set(err, ERR_USAGE,
                          "unknown command: expected /%s? /help lists all", word)
                : err_set(err, ERR_USAGE, "unknown command; /help lists them");
}

static int
run_command(struct chat *c, const char *name, size_t n, const char *arg,
            struct err *err)
{
    size_t i = 0;
    while (i < N_COMMANDS && !slice_is((struct slice){ name, n }, commands[i].name))
        i++;
    if (i == N_COMMANDS)
        return unknown_command(name, n, err);
    const struct command *x = &commands[i];
    if (x->arg && *x->arg != '[' && !*arg)
        return err_set(err, ERR_USAGE, "want /%s %s", x->name, x->arg);
    if (!x->arg && *arg)
        return err_set(err, ERR_USAGE, "takes no argument");
    return x->run(c, arg, err);
}

/* line: behind the slash; blanks at its end are cut. */
static int
command(struct chat *c, char *line)
{
    static const char blanks[] = " \t\n";
    struct err err = { 0 };
    size_t end = strlen(line), n = strcspn(line, blanks);
    char q[TEXT_QUOTE];
    while (end && strchr(blanks, line[end - 1]))
        line[--end] = '\0';
    n = n < end ? n : end;
    int rc = run_command(c, line, n, line + n + strspn(line + n, blanks), &err);
    if (rc >= 0 || c->s->err->kind) // an error of the session ends it
        return rc;
    warn("/%s: %s", text_quote(q, line, n), err.msg);
    return err.kind == ERR_MEMORY ? err_set(c->s->err, err.kind, "%s", err.msg) : 0;
}

/* ---- sources of turns --------------------------------------------------------------- */

static bool
is_blank(struct slice text)
{
    size_t i = 0;
    while (i < text.n && strchr(" \t\n", text.p[i]) && text.p[i])
        i++;
    return i == text.n;
}

/* A word by which other programs end is not sent to the model. */
static bool
is_farewell(struct slice text)
{
    static const char *const words[] = { "exit", "quit", "exit()", "quit()", ":q" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (slice_is(text, words[i]))
            return true;
    return false;
}

/* 1: the user wants no more. */
static int
typed_message(struct chat *c, struct slice text)
{
    if (is_blank(text))
        return 0;
    if (is_farewell(text)) {
        warn("not sent: /quit or Ctrl-D ends the chat");
        return 0;
    }
    if (text.p[0] != '/')
        return turn(c, text);
    if (text.n > 1 && text.p[1] == '/')
        return turn(c, (struct slice){ text.p + 1, text.n - 1 });
    char *copy = copy_text((struct slice){ text.p + 1, text.n - 1 });
    int rc = command(c, copy);
    free(copy);
    return rc;
}

static int
typed(struct chat *c)
{
    struct session *s = c->s;
    const struct config_generate *g = c->g;
    struct edit *e = edit_open(&g->cmd, g->o.history, s->err);
    struct slice text;
    int rc;
    if (!e)
        return -1;
    s->stop = &edit_interrupted;
    if (!g->cmd.quiet)
        warn("/help lists commands; Ctrl-D ends");
    while ((rc = edit_message(e, &text, s->err)) > 0)
        if ((rc = typed_message(c, text)) != 0)
            break;
    s->stop = NULL;
    edit_close(e);
    c->refused = false; // the user has seen it
    return rc < 0 ? -1 : 0;
}

static int
each(struct chat *c)
{
    struct given_prompts x;
    struct slice text;
    int rc;
    source_open(&x, c->g);
    while ((rc = source_next(&x.source, &text, c->s->err)) > 0) {
        c->place.line = x.source.line;
        if ((rc = turn(c, text)) < 0)
            break;
    }
    source_close(&x);
    return rc;
}

int
chat_answer(struct session *s, const struct config_generate *g, bool *all)
{
    struct chat c = {
        .s = s, .g = g, .how = answer_settings(s), .place = { .what = "turn" }
    };
    int rc = set_system(&c, s->c->system, s->err);
    if (rc == 0)
        rc = !g->n_prompts && isatty(STDIN_FILENO) ? typed(&c) : each(&c);
    *all = !c.refused;
    forget(&c, 0);
    sequence_free(&c.q);
    free(c.said);
    free(c.start);
    free(c.system);
    return rc;
}
