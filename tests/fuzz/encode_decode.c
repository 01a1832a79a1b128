/* SPDX-License-Identifier: MIT */
/* encode_decode: decoding what was encoded gives the normal form of the text, which is
 * normal itself; an encoder that has seen other texts gives the same ids as a new one;
 * a stream gives the same bytes and never part of a character; and with added tokens
 * each piece between them is as it would be alone.
 *
 * Started from the root of the tree, where the small tokenizer of the tests is. */
#include "lib/text/nfc.h"
#include "lib/text/tokenizer.h"

#include "tests/fuzz/fuzz.h"

static struct tokenizer *tokenizer;
static struct encoder *used;

static void
open_once(void)
{
    struct err err = { 0 };
    if (tokenizer)
        return;
    tokenizer = tokenizer_open("tests/vectors/tokenizer-small.json", &fuzz_guard, &err);
    HOLDS(tokenizer, "%s", err.msg);
    used = encoder_open(tokenizer, &err);
    HOLDS(used, "%s", err.msg);
}

static bool
same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static void
check_normal(struct slice text, struct buf *normal)
{
    struct buf again = { 0 };
    nfc_add(normal, text);
    HOLDS(utf8_check(normal->data, normal->len) == normal->len, "not UTF-8");
    nfc_add(&again, (struct slice){ normal->data, normal->len });
    HOLDS(same(normal, &again), "not normal");
    if (nfc_plain(text))
        HOLDS(normal->len == text.n &&
                  (text.n == 0 || memcmp(normal->data, text.p, text.n) == 0),
              "plain text was changed");
    buf_free(&again);
}

static void
check_stream(const struct ids *ids, const struct buf *want)
{
    struct decoder d = { .t = tokenizer };
    struct err err = { 0 };
    struct buf out = { 0 };
    for (size_t i = 0; i < ids->n; i++) {
        size_t start = out.len;
        HOLDS(decode_push(&d, &out, ids->v[i], &err) == 0, "%s", err.msg);
        HOLDS(out.len == start ||
                  utf8_check(out.data + start, out.len - start) == out.len - start,
              "part of a character");
    }
    HOLDS(d.n_held == 0, "%u bytes are held", d.n_held);
    HOLDS(same(&out, want), "the stream differs");
    buf_free(&out);
}

static void
check_plain(struct slice text)
{
    struct err err = { 0 };
    struct ids ids = { 0 }, fresh = { 0 };
    struct buf normal = { 0 }, back = { 0 };
    struct encoder *e = encoder_open(tokenizer, &err);
    HOLDS(e, "%s", err.msg);
    HOLDS(encode(used, &ids, text, false, &err) == 0, "%s", err.msg);
    HOLDS(encode(e, &fresh, text, false, &err) == 0, "%s", err.msg);
    HOLDS(ids.n == fresh.n && (ids.n == 0 || memcmp(ids.v, fresh.v, ids.n * 4) == 0),
          "other ids from a used encoder");
    check_normal(text, &normal);
    HOLDS(decode(tokenizer, &back, ids.v, ids.n, &err) == 0, "%s", err.msg);
    HOLDS(same(&normal, &back), "%.*s", (int)back.len, back.data);
    check_stream(&ids, &normal);
    ids_free(&ids);
    ids_free(&fresh);
    buf_free(&normal);
    buf_free(&back);
    encoder_close(e);
}

/* Ids of added tokens cut the text; between two of them it is encoded alone. */
static void
check_special(struct slice text)
{
    struct err err = { 0 };
    struct ids ids = { 0 }, alone = { 0 };
    uint32_t first = tokenizer_added(tokenizer, "<|endoftext|>");
    size_t at = 0, from = 0;
    HOLDS(encode(used, &ids, text, true, &err) == 0, "%s", err.msg);
    for (size_t i = 0; i <= ids.n; i++) {
        if (i < ids.n && ids.v[i] < first)
            continue;
        // The next added token's text, or the end of all.
        struct slice token = { "", 0 };
        size_t end = text.n;
        if (i < ids.n) {
            token = tokenizer_bytes(tokenizer, ids.v[i]);
            const char *p = memmem(text.p + at, text.n - at, token.p, token.n);
            HOLDS(p, "id %u, but its text is not there", (unsigned)ids.v[i]);
            end = (size_t)(p - text.p);
        }
        alone.n = 0;
        HOLDS(encode(used, &alone, (struct slice){ text.p + at, end - at }, false,
                     &err) == 0,
              "%s", err.msg);
        HOLDS(alone.n == i - from &&
                  (alone.n == 0 || memcmp(alone.v, ids.v + from, alone.n * 4) == 0),
              "text beside an added token has other ids");
        at = end + token.n;
        from = i + 1;
    }
    ids_free(&ids);
    ids_free(&alone);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct slice text = { (const char *)data, n };
    open_once();
    text.n = utf8_check(text.p, n); // text is what is UTF-8
    check_plain(text);
    check_special(text);
    return 0;
}
