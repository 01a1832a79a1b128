/* SPDX-License-Identifier: MIT */
/* chat: the turns of one conversation.  s->q->ids has the tokens of the turns as they were made,
 * and the cache what was computed of them; when the context is full, the oldest turns leave.  At
 * a terminal a line that begins with a slash is a command. */
#include "cmd/generate/edit.h"
#include "cmd/generate/place.h"
#include "cmd/generate/request.h"
#include "cmd/generate/source.h"

#include "cmd/nearest.h"
#include "lib/core/outfile.h"
#include "lib/core/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TIME_TEXT = 32, TRANSCRIPT_LINE = 64 << 20 };

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
    struct settings how;
    struct place place; // of the turn
    bool refused;       // a turn was
    char *system;       // NULL: none
    size_t head;        // tokens of the system message, with which s->q->ids begin
    size_t *start;      // (turns) where they begin in s->q->ids
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
    if (c->n_said == c->cap_said) {
        size_t cap = c->cap_said ? 2 * c->cap_said : 16;
        struct said *v = realloc(c->said, cap * sizeof *v);
        if (!v)
            die(EXIT_MEMORY, "out of memory for the conversation");
        c->said = v;
        c->cap_said = cap;
    }
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

static void
forget(struct chat *c)
{
    for (size_t i = 0; i < c->n_said; i++) {
        free(c->said[i].text);
        free(c->said[i].reasoning);
        buf_free(&c->said[i].speed);
    }
    c->n_said = 0;
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

/* Replace n tokens at `at` of s->q->ids by others: what was computed from the first that differs
 * on is void. */
static int
replace_ids(struct session *s, size_t at, size_t n, const struct ids *by,
            struct err *err)
{
    struct ids all = { 0 };
    ids_append(&all, s->q->ids.v, at);
    ids_append(&all, by->v, by->n);
    ids_append(&all, s->q->ids.v + at + n, s->q->ids.n - at - n);
    if (ids_ok(&all, err) < 0)
        return -1;
    for (size_t i = 0; i < n && i < by->n && s->q->ids.v[at] == all.v[at]; i++)
        at++;
    ids_free(&s->q->ids);
    s->q->ids = all;
    if (s->q->has_cache && s->q->cache.used > at)
        s->q->cache.used = at;
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
        rc = replace_ids(s, 0, c->head, &r.ids, err);
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

/* Forget all turns; the message of the system stays. */
static void
reset(struct chat *c)
{
    struct session *s = c->s;
    s->q->ids.n = c->head;
    if (s->q->has_cache && s->q->cache.used > c->head)
        s->q->cache.used = c->head;
    c->turns = 0;
    c->open = false;
    c->place.index = 0;
    forget(c);
}

static void
add_start(struct chat *c, size_t at)
{
    if (c->turns == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 16;
        c->start = realloc(c->start, c->cap * sizeof *c->start);
        if (!c->start)
            die(EXIT_MEMORY, "out of memory for the conversation");
    }
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
        ids_add(&s->q->ids, end);
        if (encode(s->e, &s->q->ids, slice_of("\n"), false, err) < 0)
            return -1;
    }
    size_t start = s->q->ids.n;
    if (render_prompt(s->e, &s->q->ids, &s->c->how, &m, 1, err) < 0)
        return -1;
    size_t alone = c->head + s->q->ids.n - start;
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
    if (s->c->no_drop && s->q->ids.n > s->limit)
        return err_set(s->err, ERR_USAGE,
                       "turn %llu: %zu tokens, the context has %zu%s, and --no-drop "
                       "keeps all turns",
                       (unsigned long long)c->place.index, s->q->ids.n, s->limit,
                       s->c->context ? " (--context)" : "");
    if (s->c->no_drop || s->q->ids.n + space <= s->limit)
        return 0;
    while (k + 1 < c->turns && c->head + s->q->ids.n - c->start[k] > s->limit / 2)
        k++;
    if (k == 0)
        return 0;
    size_t gone = c->start[k] - c->head;
    if (replace_ids(s, c->head, gone, &(struct ids){ 0 }, s->err) < 0)
        return -1;
    c->turns -= k;
    for (size_t i = 0; i < c->turns; i++)
        c->start[i] = c->start[i + k] - gone;
    *dropped = k;
    if (!s->c->cmd.quiet)
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
        rc = replace_ids(s, at, s->q->ids.n - at, &r.ids, s->err);
    rendered_free(&r);
    c->open = false;
    return rc;
}

/* ---- a turn ------------------------------------------------------------------------- */

static void
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
    answer_flush(&b, json);
    buf_free(&b);
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

/* The answer to the turn in s->q->ids. */
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
    answer_open(&a, s, &c->how, !s->c->json);
    a.index = a.draw = c->place.index;
    int rc = answer_make(&a);
    if (rc == 0) {
        keep_turn(c, &a, text, asked);
        c->open = true;
        put(c, &a, first, dropped);
        if (answer_reports(s->c))
            answer_report(&a);
        if (c->how.think != THINK_UNSET)
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
    size_t before = s->q->ids.n, bad = utf8_check(text.p, text.n);
    int rc = bad < text.n ? err_set(&err, ERR_FORMAT, "byte %zu: not UTF-8", bad)
                          : append(c, text, &err);
    if (rc == 0) {
        rc = answer(c, text);
    } else {
        struct buf b = { 0 };
        s->q->ids.n = before;
        c->refused = true;
        rc = place_refuse(&b, &c->place, s->c->json, &err, s->err);
        answer_flush(&b, s->c->json);
        buf_free(&b);
    }
    c->place.index++;
    return rc;
}

/* ---- commands ----------------------------------------------------------------------- */

/* 1: the end of the conversation; 0, or -1 with *err, which does not end it. */
typedef int command_fn(struct chat *c, const char *arg, struct err *err);

static command_fn help;

static int
command_reset(struct chat *c, const char *arg, struct err *err)
{
    (void)arg;
    (void)err;
    reset(c);
    return 0;
}

static int
command_system(struct chat *c, const char *arg, struct err *err)
{
    size_t n = strlen(arg), bad = utf8_check(arg, n);
    if (bad < n)
        return err_set(err, ERR_FORMAT, "/system: byte %zu: not UTF-8", bad);
    return set_system(c, *arg ? arg : NULL, err);
}

static int
set_think(struct chat *c, enum template_think think)
{
    c->how.think = c->s->c->how.think = think;
    return 0;
}

static int
command_think(struct chat *c, const char *arg, struct err *err)
{
    (void)arg;
    (void)err;
    return set_think(c, THINK_ON);
}

static int
command_no_think(struct chat *c, const char *arg, struct err *err)
{
    (void)arg;
    (void)err;
    return set_think(c, THINK_OFF);
}

static int
command_exit(struct chat *c, const char *arg, struct err *err)
{
    (void)c;
    (void)arg;
    (void)err;
    return 1;
}

static int
command_save(struct chat *c, const char *arg, struct err *err)
{
    struct outfile o = { 0 };
    struct buf b = { 0 };
    struct session *s = c->s;
    if (cmd_same_file(arg, s->c->tokenizer) || store_reads(&s->model.store, arg))
        return err_set(err, ERR_USAGE, "/save: %s: is an input", arg);
    buf_char(&b, '{');
    put_messages(&b, c, 0);
    buf_str(&b, "}\n");
    int rc = buf_ok(&b, err);
    if (rc == 0)
        rc = out_open(&o, arg, s->c->force ? OUT_FORCE : 0, &cmd_guard, err);
    if (rc == 0)
        rc = out_write(&o, b.data, b.len);
    rc = rc == 0 ? out_commit(&o) : -1;
    if (rc < 0)
        out_abandon(&o);
    buf_free(&b);
    return rc;
}

/* The messages of a line of a transcript or of --chat --json, in which a turn that was refused has
 * none. */
static int
parse_line(struct messages *m, struct slice line, const char *name, struct arena *arena,
           struct err *err)
{
    struct json j;
    struct slice key;
    bool found = false, refused = false;
    json_open(&j, name, 0, line, arena, err);
    int more = json_object(&j);
    while (more >= 0 && (more = json_key(&j, &key)) > 0) {
        bool here = slice_is(key, "messages");
        found |= here;
        refused |= slice_is(key, "error");
        more = here ? messages_parse(m, &j, &messages_openai) : json_skip(&j, NULL);
    }
    if (more < 0 || json_end(&j) < 0)
        return -1;
    return found || refused ? 0 : json_fail(&j, 0, "expected \"messages\"");
}

/* Messages of a file in order, whose texts live in the arena. */
static int
read_messages(struct messages *m, const char *path, struct arena *arena,
              struct err *err)
{
    char q[TEXT_QUOTE];
    struct slice line;
    struct reader r = { .name = q, .limit = TRANSCRIPT_LINE };
    text_quote(q, path, strlen(path));
    if ((r.fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_set(err, ERR_IO, "/load: %s:", q);
    int more;
    while ((more = reader_line(&r, &line, err)) > 0) {
        char *copy = line.n ? arena_copy(arena, line.p, line.n) : NULL;
        if (line.n && !copy)
            more = err_set(err, ERR_MEMORY, "out of memory for the conversation");
        else if (copy)
            more = parse_line(m, (struct slice){ copy, line.n }, q, arena, err);
        if (more < 0)
            break;
    }
    reader_free(&r);
    close(r.fd);
    return more;
}

/* A system message, if any, and then users and assistants in turn. */
static int
check_messages(const struct messages *m, struct err *err)
{
    size_t first = m->n && slice_is(m->v[0].role, "system");
    char q[TEXT_QUOTE];
    for (size_t i = first; i < m->n; i++) {
        const char *want = (i - first) % 2 ? "assistant" : "user";
        if (!slice_is(m->v[i].role, want))
            return err_set(err, ERR_FORMAT,
                           "/load: message %zu: expected role %s, found \"%s\"", i,
                           want, text_quote(q, m->v[i].role.p, m->v[i].role.n));
    }
    if (m->n == 0 || (m->n - first) % 2)
        return err_set(err, ERR_FORMAT, "/load: expected the answer to each turn");
    return 0;
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
            add_start(c, s->q->ids.n);
        ids_append(&s->q->ids, r.ids.v, r.ids.n);
        rendered_free(&r);
        remember(c, &m->v[i], "");
    }
    c->place.index = c->turns;
    buf_free(&system);
    return rc == 0 ? ids_ok(&s->q->ids, err) : -1;
}

static int
command_load(struct chat *c, const char *arg, struct err *err)
{
    struct messages m = { 0 };
    struct arena arena = { 0 };
    int rc = read_messages(&m, arg, &arena, err);
    if (rc == 0)
        rc = check_messages(&m, err);
    if (rc == 0)
        rc = adopt(c, &m, err);
    messages_free(&m);
    arena_free(&arena);
    return rc;
}

static const struct command {
    const char *name, *arg, *help; // arg "[X]": it may be missing
    command_fn *run;
} commands[] = {
    { "help", NULL, "this list", help },
    { "reset", NULL, "forget all turns; the system message stays", command_reset },
    { "system", "[TEXT]", "make TEXT the system message, without one: none",
      command_system },
    { "think", NULL, "a hybrid Qwen3 model: let it think before it answers",
      command_think },
    { "no-think", NULL, "a hybrid Qwen3 model: let it answer at once",
      command_no_think },
    { "save", "FILE", "write the conversation as JSONL, as tokenize reads it",
      command_save },
    { "load", "FILE", "go on with such a conversation", command_load },
    { "exit", NULL, "the end, as Ctrl-D", command_exit },
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
          "Ctrl-C            ends an answer, or discards what was typed\n",
          stderr);
    return 0;
}

static int
unknown_command(const char *name, size_t n, struct err *err)
{
    struct nearest near = nearest_to(name, n);
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < N_COMMANDS; i++)
        nearest_try(&near, commands[i].name);
    text_quote(q, name, n);
    return near.word
               ? err_set(err, ERR_USAGE,
                         "/%s: unknown command: expected /%s? /help lists all", q,
                         near.word)
               : err_set(err, ERR_USAGE, "/%s: unknown command; /help lists them", q);
}

/* line: behind the slash. */
static int
command(struct chat *c, const char *line, struct err *err)
{
    size_t n = strcspn(line, " "), i = 0;
    const char *arg = line + n + strspn(line + n, " ");
    while (i < N_COMMANDS && !slice_is((struct slice){ line, n }, commands[i].name))
        i++;
    if (i == N_COMMANDS)
        return unknown_command(line, n, err);
    const struct command *x = &commands[i];
    if (x->arg && *x->arg != '[' && !*arg)
        return err_set(err, ERR_USAGE, "/%s: want /%s %s", x->name, x->name, x->arg);
    if (!x->arg && *arg)
        return err_set(err, ERR_USAGE, "/%s: takes no argument", x->name);
    return x->run(c, arg, err);
}

/* ---- sources of turns --------------------------------------------------------------- */

/* 1: the user wants no more. */
static int
typed_line(struct chat *c, struct slice line)
{
    struct err err = { 0 };
    if (line.n == 0)
        return 0;
    if (line.p[0] != '/')
        return turn(c, line);
    if (line.n > 1 && line.p[1] == '/')
        return turn(c, (struct slice){ line.p + 1, line.n - 1 });
    char *copy = cmd_alloc(line.n, 1);
    memcpy(copy, line.p + 1, line.n - 1);
    int rc = command(c, copy, &err);
    free(copy);
    if (rc >= 0)
        return rc;
    warn("%s", err.msg);
    return err.kind == ERR_MEMORY ? err_set(c->s->err, err.kind, "%s", err.msg) : 0;
}

static int
typed(struct chat *c)
{
    struct session *s = c->s;
    const struct config_generate *o = s->c;
    struct edit *e = edit_open(&o->cmd, o->history, s->err);
    struct slice line;
    int rc;
    if (!e)
        return -1;
    s->stop = &edit_interrupted;
    if (!o->cmd.quiet)
        warn("/help lists commands; Ctrl-D ends");
    while ((rc = edit_line(e, &line, s->err)) > 0)
        if ((rc = typed_line(c, line)) != 0)
            break;
    s->stop = NULL;
    edit_close(e);
    c->refused = false; // the user has seen it
    return rc < 0 ? -1 : 0;
}

static int
each(struct chat *c)
{
    struct source x;
    struct slice text;
    int rc;
    source_open(&x, c->s->c);
    while ((rc = source_next(&x, &text, c->s->err)) > 0) {
        c->place.line = x.line;
        if ((rc = turn(c, text)) < 0)
            break;
    }
    source_close(&x);
    return rc;
}

int
chat_answer(struct session *s, bool *all)
{
    struct chat c = { .s = s, .how = answer_settings(s), .place = { .what = "turn" } };
    int rc = set_system(&c, s->c->system, s->err);
    if (rc == 0)
        rc = !s->c->n_prompts && isatty(STDIN_FILENO) ? typed(&c) : each(&c);
    *all = !c.refused;
    forget(&c);
    free(c.said);
    free(c.start);
    free(c.system);
    return rc;
}
