/* SPDX-License-Identifier: MIT */
/* template: samples and prompts of the small tokenizer, compared as text with the
 * control tokens by name and a bar where targets begin and end. */
#include "lib/text/template.h"

#include "tests/unit/tokens.h"

static struct tokenizer *small;
static struct encoder *encoder;

/* The text of a sample; [ and ] are put around targets. */
static const char *
shown(const struct ids *ids, const struct buf *mask)
{
    static struct buf out;
    bool inside = false;
    out.len = 0;
    for (size_t i = 0; i < ids->n; i++) {
        bool target = mask && mask->data[i];
        if (target != inside)
            buf_char(&out, target ? '[' : ']');
        inside = target;
        struct slice s = tokenizer_bytes(small, ids->v[i]);
        buf_add(&out, s.p, s.n);
    }
    buf_str(&out, inside ? "]" : "");
    return out.data;
}

static void
check_shown(const struct rendered *r, const char *want)
{
    CHECK(r->mask.len == r->ids.n);
    if (r->mask.len == r->ids.n) {
        const char *got = shown(&r->ids, &r->mask);
        CHECK_SAY(strcmp(got, want) == 0, "want %s, got %s", want, got);
    }
}

static void
check_pairs(void)
{
    static const struct {
        struct template_options o;
        const char *prompt, *target, *want;
    } t[] = {
        { { .kind = TEMPLATE_QWEN3 },
          "p",
          "t",
          "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n[t<|im_end|>]\n" },
        { { .kind = TEMPLATE_QWEN3, .no_end = true },
          " p ",
          " t ",
          "<|im_start|>user\n p <|im_end|>\n<|im_start|>assistant\n[ t ]" },
        { { .kind = TEMPLATE_TORCHSHARP },
          "p",
          "t",
          "<|im_start|>user\np\n<|im_end|>\n<|im_start|>assistant\n[t<|im_end|>]" },
        { { .kind = TEMPLATE_TORCHSHARP, .no_end = true, .joint = true },
          "p",
          "t",
          "<|im_start|>user\np\n<|im_end|>\n<|im_start|>assistant\n[t]" },
        { { .kind = TEMPLATE_NONE }, "p", "t", "p[t<|im_end|>]" },
        { { .kind = TEMPLATE_NONE, .no_end = true }, "p", "t", "p[t]" },
        { { .kind = TEMPLATE_NONE, .no_end = true }, "", "", "" },
        // Apart, the target keeps its line end; joint, it belongs to the prompt's token.
        { { .kind = TEMPLATE_QWEN3 },
          "p",
          "\nt",
          "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n[\nt<|im_end|>]\n" },
        { { .kind = TEMPLATE_QWEN3, .joint = true },
          "p",
          "\nt",
          "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n\n[t<|im_end|>]\n" },
        // One token of both sides: it is prompt, and here nothing is left over.
        { { .kind = TEMPLATE_NONE, .joint = true, .no_end = true }, "a", "n", "an" },
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct rendered r = { 0 };
        struct err err = { 0 };
        CHECK_SAY(render_pair(encoder, &r, &t[i].o, slice_of(t[i].prompt),
                              slice_of(t[i].target), &err) == 0,
                  "%s", err.msg);
        check_shown(&r, t[i].want);
        rendered_free(&r);
    }
}

static struct message
says(const char *role, const char *content)
{
    return (struct message){ .role = slice_of(role), .content = slice_of(content) };
}

static void
check_messages(void)
{
    struct template_options o = { .kind = TEMPLATE_QWEN3 };
    const struct message m[] = {
        says("system", "be"), says("user", "a"), says("assistant", "b"),
        says("tool", "1"),    says("tool", "2"), says("assistant", "c"),
        says("user", "d"),    says("tool", "3"), says("assistant", ""),
    };
    struct rendered r = { 0 };
    struct err err = { 0 };
    CHECK(render_messages(encoder, &r, &o, m, 9, &err) == 0);
    check_shown(&r, "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
                    "<|im_start|>assistant\n[b<|im_end|>]\n"
                    "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n"
                    "<tool_response>\n2\n</tool_response><|im_end|>\n"
                    "<|im_start|>assistant\n[c<|im_end|>]\n"
                    "<|im_start|>user\nd<|im_end|>\n"
                    "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
                    "<|im_start|>assistant\n[<|im_end|>]\n");
    rendered_free(&r);
    o.no_end = true;
    CHECK(render_messages(encoder, &r, &o, m + 2, 4, &err) == 0);
    check_shown(&r, "<|im_start|>assistant\n[b]<|im_end|>\n"
                    "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n"
                    "<tool_response>\n2\n</tool_response><|im_end|>\n"
                    "<|im_start|>assistant\n[c]");
    rendered_free(&r);
    CHECK(render_messages(encoder, &r, &o, m, 2, &err) == 0);
    check_shown(&r,
                "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\na<|im_end|>\n");
    rendered_free(&r);

    const struct message odd = says("developer\x1b", "x");
    CHECK(render_messages(encoder, &r, &o, &odd, 1, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT, "found \"developer\\x1b\"");
    err = (struct err){ 0 };
    CHECK(render_messages(encoder, &r, &o, m, 0, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT, "found none");
    err = (struct err){ 0 };
    o.kind = TEMPLATE_TORCHSHARP;
    CHECK(render_messages(encoder, &r, &o, m, 2, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT, "template torchsharp has no form for messages");
    rendered_free(&r);
}

static void
check_documents(void)
{
    struct template_options o = { .kind = TEMPLATE_NONE };
    struct rendered r = { 0 };
    struct err err = { 0 };
    CHECK(render_document(encoder, &r, &o, T("a b"), &err) == 0);
    check_shown(&r, "[a b<|endoftext|>]");
    r.ids.n = r.mask.len = 0;
    o.no_end = true;
    CHECK(render_document(encoder, &r, &o, T("a b"), &err) == 0);
    check_shown(&r, "[a b]");
    rendered_free(&r);
}

/* What looks like a control token in a text is text, unless asked for. */
static void
check_special(void)
{
    struct template_options o = { .kind = TEMPLATE_NONE, .no_end = true };
    struct rendered r = { 0 };
    struct err err = { 0 };
    uint32_t end = tokenizer_added(small, "<|im_end|>");
    for (int parse = 0; parse < 2; parse++) {
        size_t found = 0;
        o.parse_special = parse;
        r.ids.n = r.mask.len = 0;
        CHECK(render_pair(encoder, &r, &o, T("a<|im_end|>"), T("<|im_end|>b"), &err) ==
              0);
        for (size_t i = 0; i < r.ids.n; i++)
            found += r.ids.v[i] == end;
        CHECK(found == (parse ? 2 : 0));
        CHECK(parse == (r.ids.n == 4));
        check_shown(&r, "a<|im_end|>[<|im_end|>b]");
    }
    rendered_free(&r);
}

static void
check_prompts(void)
{
    static const struct {
        enum template_kind kind;
        size_t first, n;
        const char *want; // NULL: refused
    } t[] = {
        { TEMPLATE_QWEN3, 1, 1,
          "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n" },
        { TEMPLATE_QWEN3, 0, 4,
          "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
          "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
          "<|im_start|>assistant\n" },
        { TEMPLATE_TORCHSHARP, 1, 1,
          "<|im_start|>user\na\n<|im_end|>\n<|im_start|>assistant\n" },
        { TEMPLATE_NONE, 1, 1, "a" },
        { TEMPLATE_QWEN3, 0, 0, NULL },
        { TEMPLATE_TORCHSHARP, 0, 2, NULL },
        { TEMPLATE_TORCHSHARP, 0, 1, NULL },
        { TEMPLATE_NONE, 0, 4, NULL },
    };
    const struct message m[] = { says("system", "s"), says("user", "a"),
                                 says("assistant", "b"), says("user", "c") };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct template_options o = { .kind = t[i].kind, .no_end = true };
        struct ids ids = { 0 };
        struct err err = { 0 };
        int rc = render_prompt(encoder, &ids, &o, m + t[i].first, t[i].n, &err);
        CHECK_SAY((rc == 0) == (t[i].want != NULL), "prompt %zu: %s", i, err.msg);
        if (rc == 0 && t[i].want)
            CHECK_SAY(strcmp(shown(&ids, NULL), t[i].want) == 0, "want %s, got %s",
                      t[i].want, shown(&ids, NULL));
        else
            CHECK(err.kind == ERR_FORMAT);
        ids_free(&ids);
    }
}

int
main(void)
{
    struct err err = { 0 };
    small = tokens_open(SMALL);
    encoder = encoder_open(small, &err);
    NEED(encoder);
    CHECK(strcmp(template_name(TEMPLATE_TORCHSHARP), "seed") == 0);
    check_pairs();
    check_messages();
    check_documents();
    check_special();
    check_prompts();
    encoder_close(encoder);
    tokenizer_close(small);
    return check_end();
}
