/* SPDX-License-Identifier: MIT */
/* template: see template.h.
 *
 * A rendered text is a row of control tokens, put in by id, and runs of text between
 * them.  A run is encoded in one piece, except that prompt and target never share one
 * unless joint was asked for.
 */
#include "lib/text/template.h"

#include "lib/text/vocab.h"

#include <string.h>

const char *const template_words[] = { "qwen3", "torchsharp", "none", NULL };

const char *
template_name(enum template_kind k)
{
    return k == TEMPLATE_TORCHSHARP ? "seed" : template_words[k];
}

void
rendered_free(struct rendered *r)
{
    ids_free(&r->ids);
    buf_free(&r->mask);
}

/* What the functions below share. */
struct render {
    struct encoder *e;
    const struct tokenizer *t;
    const struct template_options *o;
    struct ids *ids;
    struct buf *mask; // NULL: none is wanted
    struct buf run;   // scratch: a run put together
    bool context;     // the message at hand is no target
    struct err *err;
};

/* All ids that have no mask yet are targets, or not. */
static void
mark(struct render *r, bool target)
{
    bool learnt = (target || r->o->all_targets) && !r->context;
    if (r->mask && r->ids->n > r->mask->len)
        buf_fill(r->mask, learnt, r->ids->n - r->mask->len);
}

static int
control(struct render *r, const char *text)
{
    uint32_t id = tokenizer_added(r->t, text);
    if (id == TOKEN_NONE)
        return err_set(r->err, ERR_FORMAT,
                       "template %s: the tokenizer has no added token %s",
                       template_words[r->o->kind], text);
    ids_add(r->ids, id);
    return 0;
}

static int
text_run(struct render *r, struct slice text)
{
    return encode(r->e, r->ids, text, r->o->parse_special, r->err);
}

/* before, text and after as one run. */
static int
run_of(struct render *r, const char *before, struct slice text, const char *after)
{
    r->run.len = 0;
    buf_str(&r->run, before);
    buf_add(&r->run, text.p, text.n);
    buf_str(&r->run, after);
    if (buf_ok(&r->run, r->err) < 0)
        return -1;
    return text_run(r, (struct slice){ r->run.data, r->run.len });
}

/* A run of prompt and then target, and the mask up to there.  Joint, they are encoded
 * as one, and as many ids as the prompt alone would have belong to it. */
static int
run_with_target(struct render *r, struct slice prompt, struct slice target)
{
    size_t start = r->ids->n;
    if (text_run(r, prompt) < 0)
        return -1;
    size_t border = r->ids->n;
    if (!r->o->joint) {
        mark(r, false);
        if (text_run(r, target) < 0)
            return -1;
    } else {
        r->ids->n = start;
        r->run.len = 0;
        buf_add(&r->run, prompt.p, prompt.n);
        buf_add(&r->run, target.p, target.n);
        if (buf_ok(&r->run, r->err) < 0 ||
            text_run(r, (struct slice){ r->run.data, r->run.len }) < 0)
            return -1;
        size_t end = r->ids->n;
        r->ids->n = border < end ? border : end;
        mark(r, false);
        r->ids->n = end;
    }
    mark(r, true);
    return 0;
}

static const struct slice newline = { "\n", 1 };
static const struct slice assistant = { "assistant\n", 10 };

/* <|im_start|>user LF content <|im_end|> LF; torchsharp has one more LF before the end. */
static int
user_turn(struct render *r, struct slice prompt)
{
    if (control(r, "<|im_start|>") < 0 ||
        run_of(r, "user\n", prompt, r->o->kind == TEMPLATE_TORCHSHARP ? "\n" : "") <
            0 ||
        control(r, "<|im_end|>") < 0)
        return -1;
    return text_run(r, newline);
}

/* The end of a target and, for qwen3, the LF that closes the template. */
static int
end_target(struct render *r)
{
    if (r->o->no_end)
        return 0;
    if (control(r, "<|im_end|>") < 0)
        return -1;
    mark(r, true);
    if (r->o->kind == TEMPLATE_QWEN3 && text_run(r, newline) < 0)
        return -1;
    mark(r, false);
    return 0;
}

static struct render
begin_render(struct encoder *e, struct ids *ids, struct buf *mask,
             const struct template_options *o, struct err *err)
{
    return (struct render){
        .e = e, .t = encoder_tokenizer(e), .o = o, .ids = ids, .mask = mask, .err = err
    };
}

static int
end_render(struct render *r, int rc)
{
    buf_free(&r->run);
    if (rc < 0 || ids_ok(r->ids, r->err) < 0)
        return -1;
    return r->mask ? buf_ok(r->mask, r->err) : 0;
}

static int
pair(struct render *r, struct slice prompt, struct slice target)
{
    if (r->o->kind == TEMPLATE_NONE)
        return run_with_target(r, prompt, target);
    if (user_turn(r, prompt) < 0 || control(r, "<|im_start|>") < 0)
        return -1;
    return run_with_target(r, assistant, target);
}

int
render_pair(struct encoder *e, struct rendered *out, const struct template_options *o,
            struct slice prompt, struct slice target, struct err *err)
{
    struct render r = begin_render(e, &out->ids, &out->mask, o, err);
    int rc = pair(&r, prompt, target);
    return end_render(&r, rc < 0 ? -1 : end_target(&r));
}

/* ---- several messages ------------------------------------------------------- */

static int
plain_turn(struct render *r, const struct message *m)
{
    const char *head = slice_is(m->role, "user") ? "user\n" : "system\n";
    if (control(r, "<|im_start|>") < 0 || run_of(r, head, m->content, "") < 0 ||
        control(r, "<|im_end|>") < 0 || text_run(r, newline) < 0)
        return -1;
    mark(r, false);
    return 0;
}

/* Without newlines at its beginning, or its end. */
static struct slice
strip_left(struct slice s)
{
    while (s.n && *s.p == '\n')
        s = (struct slice){ s.p + 1, s.n - 1 };
    return s;
}

static struct slice
strip_right(struct slice s)
{
    while (s.n && s.p[s.n - 1] == '\n')
        s.n--;
    return s;
}

/* What follows the last mark in s; all of s without one. */
static struct slice
behind_last(struct slice s, const char *mark)
{
    size_t n = strlen(mark);
    const char *at;
    while ((at = s.n ? memmem(s.p, s.n, mark, n) : NULL))
        s = (struct slice){ at + n, s.n - (size_t)(at + n - s.p) };
    return s;
}

bool
template_cut_thoughts(struct slice said, struct slice *thoughts, struct slice *content)
{
    static const char end[] = "</think>";
    const char *at = said.n ? memmem(said.p, said.n, end, strlen(end)) : NULL;
    if (!at)
        return false;
    struct slice before = { said.p, (size_t)(at - said.p) };
    *thoughts = strip_left(behind_last(strip_right(before), "<think>"));
    *content = strip_left(behind_last(said, end));
    return true;
}

/* <think> LF thoughts LF </think>, with LF LF still to follow. */
static int
thoughts_block(struct render *r, struct slice thoughts)
{
    if (control(r, "<think>") < 0 ||
        run_of(r, "\n", strip_left(strip_right(thoughts)), "\n") < 0)
        return -1;
    return control(r, "</think>");
}

static const struct slice two_newlines = { "\n\n", 2 };

/* Of what an assistant has said, the hybrid template shows thoughts only in steps that
 * follow the last question; of the last message also that there are none. */
static int
said(struct render *r, const struct message *m, bool follows, bool last)
{
    struct slice thoughts = m->reasoning, content = m->content;
    if (r->o->think == THINK_UNSET)
        return run_with_target(r, assistant, content);
    if (!thoughts.p && !template_cut_thoughts(m->content, &thoughts, &content))
        thoughts = (struct slice){ "", 0 };
    if (!follows || (!last && !thoughts.n))
        return run_with_target(r, assistant, content);
    if (text_run(r, assistant) < 0 || thoughts_block(r, thoughts) < 0)
        return -1;
    return run_with_target(r, two_newlines, strip_left(content));
}

/* Without end tokens only the last turn goes without: inside, the end token and the LF
 * are what the next turn stands on.  They are no targets then. */
static int
assistant_turn(struct render *r, const struct message *m, bool follows, bool last)
{
    if (control(r, "<|im_start|>") < 0 || said(r, m, follows, last) < 0)
        return -1;
    if (last || !r->o->no_end)
        return end_target(r);
    if (control(r, "<|im_end|>") < 0 || text_run(r, newline) < 0)
        return -1;
    mark(r, false);
    return 0;
}

/* One of a run of tool messages, which together are a user turn. */
static int
tool_message(struct render *r, const struct message *m, bool first, bool last)
{
    if ((first && control(r, "<|im_start|>") < 0) ||
        run_of(r, first ? "user" : "", newline, "") < 0 ||
        control(r, "<tool_response>") < 0 || run_of(r, "\n", m->content, "\n") < 0 ||
        control(r, "</tool_response>") < 0)
        return -1;
    if (last && (control(r, "<|im_end|>") < 0 || text_run(r, newline) < 0))
        return -1;
    mark(r, false);
    return 0;
}

/* Whether it is a result of a tool that a user message brings. */
static bool
is_tool_response(struct slice content)
{
    return slice_starts(content, "<tool_response>") &&
           slice_ends(content, "</tool_response>");
}

/* The last question of a user; the last message if there is none. */
static size_t
last_query(const struct message *m, size_t n)
{
    for (size_t i = n; i-- > 0;)
        if (slice_is(m[i].role, "user") && !is_tool_response(m[i].content))
            return i;
    return n - 1;
}

static int
message(struct render *r, const struct message *m, size_t i, size_t n)
{
    struct slice role = m[i].role;
    char q[TEXT_QUOTE];
    r->context = m[i].context;
    if (slice_is(role, "user") || slice_is(role, "system"))
        return plain_turn(r, m + i);
    if (slice_is(role, "assistant"))
        return assistant_turn(r, m + i, i > last_query(m, n), i + 1 == n);
    if (slice_is(role, "tool"))
        return tool_message(r, m + i, i == 0 || !slice_is(m[i - 1].role, "tool"),
                            i + 1 == n || !slice_is(m[i + 1].role, "tool"));
    return err_set(r->err, ERR_FORMAT,
                   "message %zu: expected role system, user, assistant or tool, found "
                   "\"%s\"",
                   i, text_quote(q, role.p, role.n));
}

static int
messages(struct render *r, const struct message *m, size_t n)
{
    if (n == 0)
        return err_set(r->err, ERR_FORMAT, "expected messages, found none");
    for (size_t i = 0; i < n; i++)
        if (message(r, m, i, n) < 0)
            return -1;
    return 0;
}

int
render_messages(struct encoder *e, struct rendered *out,
                const struct template_options *o, const struct message *m, size_t n,
                struct err *err)
{
    struct render r = begin_render(e, &out->ids, &out->mask, o, err);
    if (o->kind != TEMPLATE_QWEN3)
        return err_set(err, ERR_FORMAT,
                       "template %s has no form for messages: only qwen3 has",
                       template_words[o->kind]);
    return end_render(&r, messages(&r, m, n));
}

int
render_document(struct encoder *e, struct rendered *out,
                const struct template_options *o, struct slice text, struct err *err)
{
    struct render r = begin_render(e, &out->ids, &out->mask, o, err);
    int rc = text_run(&r, text);
    if (rc == 0 && !o->no_end)
        rc = control(&r, "<|endoftext|>");
    mark(&r, true);
    return end_render(&r, rc);
}

/* ---- prompts ---------------------------------------------------------------- */

static int
single_prompt(struct render *r, const struct message *m, size_t n)
{
    if (n != 1 || !slice_is(m->role, "user"))
        return err_set(r->err, ERR_FORMAT,
                       "template %s takes one message of role user and no other",
                       template_words[r->o->kind]);
    return r->o->kind == TEMPLATE_NONE ? text_run(r, m->content)
                                       : user_turn(r, m->content);
}

/* The beginning of the answer; without thinking an empty block of thoughts belongs to it. */
static int
generation_prompt(struct render *r)
{
    if (control(r, "<|im_start|>") < 0 || text_run(r, assistant) < 0)
        return -1;
    if (r->o->think != THINK_OFF)
        return 0;
    return thoughts_block(r, (struct slice){ 0 }) < 0 ? -1 : text_run(r, two_newlines);
}

/* All messages of a prompt are complete, so none is without its end token. */
int
render_prompt(struct encoder *e, struct ids *out, const struct template_options *o,
              const struct message *m, size_t n, struct err *err)
{
    struct template_options whole = *o;
    whole.no_end = false;
    struct render r = begin_render(e, out, NULL, &whole, err);
    int rc = o->kind == TEMPLATE_QWEN3 ? messages(&r, m, n) : single_prompt(&r, m, n);
    if (rc == 0 && o->kind != TEMPLATE_NONE)
        rc = generation_prompt(&r);
    return end_render(&r, rc);
}
