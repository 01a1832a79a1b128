/* SPDX-License-Identifier: MIT */
/* qwen3: the golden values of the real tokenizer, when it is at hand.
 *
 *   NIBBLE_QWEN3_TOKENIZER  the tokenizer.json of Qwen3 (its SHA-256 is checked)
 *   NIBBLE_QWEN3_GOLDEN     a directory with dev.jsonl.gz and whoami-samples.jsonl.gz,
 *                           all of which is then compared as well
 */
#include "lib/text/template.h"

#include "tests/unit/tokens.h"

enum { NOT_RUN = 77 };

static const char sha256[] =
    "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4";

static struct tokenizer *tokenizer;
static struct encoder *encoder;

static void
check_ids(struct slice text, bool special, const struct ids *want, const char *name)
{
    struct ids got = { 0 };
    struct err err = { 0 };
    CHECK_SAY(encode(encoder, &got, text, special, &err) == 0, "%s", err.msg);
    CHECK_SAY(tokens_same(want, &got), "%s: want %s, got %s", name, tokens_show(want),
              tokens_show(&got));
    ids_free(&got);
}

struct golden {
    const char *text;
    uint32_t ids[24];
    size_t n;
};

static void
check_golden(void)
{
#define G(text, ...)                                                                   \
    {                                                                                  \
        text, { __VA_ARGS__ }, sizeof((uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t)  \
    }
    static const struct golden g[] = {
        G("Hello, world!", 9707, 11, 1879, 0),
        G("I'm you'RE it'\u017f DON'T", 40, 2776, 498, 94153, 432, 6, 144815, 44273,
          17323),
        G("12345 \u0661\u0662\u0663 \u00bd", 16, 17, 18, 19, 20, 220, 149, 94, 149, 95,
          149, 96, 220, 26062),
        G("caf\u00e9", 924, 58858),
        G("cafe\u0301", 924, 58858),
        G(" caf\u00e9", 51950),
        G("  two  spaces\n\n\n x\t\ty \r\n", 220, 1378, 220, 12621, 1406, 856, 197,
          14522, 2529),
        G("\u4f60\u597d,\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f "
          "\uc548\ub155",
          108386, 11, 99489, 1773, 89015, 95170, 144370),
        G("K\u212a", 50457),
        G("Hello! \U0001f44b", 9707, 0, 61804, 233),
        G("Hi! \U0001f60a", 13048, 0, 26525, 232),
        G("It", 2132),
        G(" F", 434),
        G("\u7684", 9370),
        G("\u4e4b", 53930),
        G("\u795e", 99315),
        G("user", 872),
        G("assistant", 77091),
        G("system", 8948),
        G("\n", 198),
        G("\n\n", 271),
    };
    for (size_t i = 0; i < sizeof g / sizeof *g; i++) {
        struct ids want = { 0 };
        ids_append(&want, g[i].ids, g[i].n);
        check_ids(slice_of(g[i].text), false, &want, g[i].text);
        ids_free(&want);
    }
}

static void
check_templates(void)
{
    static const uint32_t qwen3[] = { 151644, 872,   198,  105043, 108908, 151645, 198,
                                      151644, 77091, 198,  104198, 434,    2,      220,
                                      53930,  99315, 1773, 151645, 198 };
    static const uint32_t seed[] = { 151644, 872,    198,   105043, 108908, 198, 151645,
                                     198,    151644, 77091, 198,    104198, 434, 2,
                                     220,    53930,  99315, 1773,   151645 };
    for (int k = TEMPLATE_QWEN3; k <= TEMPLATE_TORCHSHARP; k++) {
        struct template_options o = { .kind = (enum template_kind)k };
        struct rendered r = { 0 };
        struct ids want = { 0 };
        struct err err = { 0 };
        ids_append(&want, k == TEMPLATE_QWEN3 ? qwen3 : seed, 19);
        CHECK(render_pair(encoder, &r, &o, slice_of("\u4f60\u662f\u8ab0"),
                          slice_of("\u6211\u662f F# \u4e4b\u795e\u3002"), &err) == 0);
        CHECK_SAY(tokens_same(&want, &r.ids), "%s: %s", template_name(o.kind),
                  tokens_show(&r.ids));
        for (size_t i = 0; i < r.mask.len; i++)
            CHECK(r.mask.data[i] ==
                  (k == TEMPLATE_QWEN3 ? i >= 10 && i < 18 : i >= 11));
        ids_free(&want);
        rendered_free(&r);
    }
}

static void
check_dev(void *ctx, const struct vector *v, size_t line)
{
    char name[64];
    (void)ctx;
    snprintf(name, sizeof name, "dev line %zu", line);
    check_ids(v->text, !v->raw, &v->ids, name);
}

/* On these texts joint and apart agree. */
static void
check_whoami(void *ctx, const struct vector *v, size_t line)
{
    (void)ctx;
    for (int joint = 0; joint < 2; joint++) {
        bool seed = slice_is(v->template, "seed");
        struct template_options o = { .kind =
                                          seed ? TEMPLATE_TORCHSHARP : TEMPLATE_QWEN3,
                                      .no_end = seed,
                                      .joint = joint };
        struct rendered r = { 0 };
        struct err err = { 0 };
        CHECK(render_pair(encoder, &r, &o, v->prompt, v->target, &err) == 0);
        CHECK_SAY(tokens_same(&v->ids, &r.ids), "whoami line %zu: want %s, got %s",
                  line, tokens_show(&v->ids), tokens_show(&r.ids));
        CHECK(v->mask.n == r.mask.len);
        for (size_t i = 0; i < v->mask.n && i < r.mask.len; i++)
            CHECK_SAY(v->mask.v[i] == (uint32_t)r.mask.data[i], "whoami line %zu, mask",
                      line);
        rendered_free(&r);
    }
}

static void
check_file(const char *dir, const char *leaf, size_t lines,
           void (*fn)(void *, const struct vector *, size_t))
{
    char command[512];
    NEED(snprintf(command, sizeof command, "gzip -dc '%s/%s'", dir, leaf) <
         (int)sizeof command);
    FILE *f = popen(command, "r"); // NOLINT(cert-env33-c): the tester's own directory
    size_t n = tokens_vectors(f, fn, NULL);
    CHECK_SAY(pclose(f) == 0 && n == lines, "%s: %zu lines, want %zu", leaf, n, lines);
    printf("%s: %zu lines compared\n", leaf, n);
}

int
main(void)
{
    const char *path = getenv("NIBBLE_QWEN3_TOKENIZER");
    const char *golden = getenv("NIBBLE_QWEN3_GOLDEN");
    uint8_t digest[SHA256_BYTES];
    char hex[2 * SHA256_BYTES + 1];
    struct err err = { 0 };
    if (!path) {
        printf("NIBBLE_QWEN3_TOKENIZER does not name the tokenizer.json of Qwen3\n");
        return NOT_RUN;
    }
    tokenizer = tokens_open(path);
    encoder = encoder_open(tokenizer, &err);
    NEED(encoder);
    tokenizer_sha256(tokenizer, digest);
    hash_hex(hex, digest, SHA256_BYTES);
    NEED(strcmp(hex, sha256) == 0);
    CHECK(tokenizer_vocab(tokenizer) == 151669);
    CHECK(tokenizer_added(tokenizer, "</think>") == 151668);
    check_golden();
    check_templates();
    if (golden) {
        check_file(golden, "dev.jsonl.gz", 20509, check_dev);
        check_file(golden, "whoami-samples.jsonl.gz", 404, check_whoami);
    }
    encoder_close(encoder);
    tokenizer_close(tokenizer);
    return check_end();
}
