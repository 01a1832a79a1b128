/* SPDX-License-Identifier: MIT */
/* tokenizer: the small tokenizer of tests/vectors against ids of the Python package
 * "tokenizers" (made by tests/make_tokenizer.py), and what must hold of any: decoding
 * gives the normal form back, long pieces merge as a slow and simple program merges
 * them, streams never break a character.  Then what the loader takes and refuses. */
#include "lib/text/tokenizer.h"

#include "lib/text/nfc.h"
#include "lib/text/split.h"
#include "tests/unit/tokens.h"

#include <unistd.h>

static struct tokenizer *small;
static struct encoder *encoder;

static void
encode_ok(struct ids *out, struct slice text, bool special)
{
    struct err err = { 0 };
    out->n = 0;
    CHECK_SAY(encode(encoder, out, text, special, &err) == 0, "%s", err.msg);
}

/* ---- vectors ---------------------------------------------------------------- */

static void
check_stream(const struct ids *ids, const struct buf *whole)
{
    struct decoder d = { .t = small };
    struct buf out = { 0 };
    struct err err = { 0 };
    for (size_t i = 0; i < ids->n; i++) {
        size_t start = out.len;
        CHECK_SAY(decode_push(&d, &out, ids->v[i], &err) == 0, "%s", err.msg);
        CHECK(utf8_check(out.data + start, out.len - start) == out.len - start);
    }
    decode_finish(&d, &out);
    CHECK(out.len == whole->len && check_equal(out.data, whole->data, out.len));
    buf_free(&out);
}

/* Decoding what was encoded gives the normal form, at once and as a stream. */
static void
check_back(struct slice text, const struct ids *ids)
{
    struct buf want = { 0 }, got = { 0 };
    struct err err = { 0 };
    nfc_add(&want, text);
    CHECK(decode(small, &got, ids->v, ids->n, &err) == 0);
    CHECK(got.len == want.len &&
          (got.len == 0 || check_equal(got.data, want.data, got.len)));
    if (ids->n)
        check_stream(ids, &got);
    buf_free(&want);
    buf_free(&got);
}

static void
check_vector(void *ctx, const struct vector *v, size_t line)
{
    struct ids *got = ctx;
    encode_ok(got, v->text, !v->raw);
    CHECK_SAY(tokens_same(got, &v->ids), "line %zu: want %s, got %s", line,
              tokens_show(&v->ids), tokens_show(got));
    if (v->raw)
        check_back(v->text, got);
}

static void
check_vectors(void)
{
    struct ids got = { 0 };
    FILE *f = fopen("tests/vectors/tokenizer-small.jsonl", "r");
    CHECK(tokens_vectors(f, check_vector, &got) > 400);
    fclose(f);
    ids_free(&got);
}

/* ---- long pieces ------------------------------------------------------------ */

/* The merges of the small tokenizer, by rank.  Rank order is the order in which its
 * tokens were made, so merging rank by rank from left to right is right as well. */
struct naive {
    struct {
        struct slice left, right;
    } merge[4096];
    size_t n;
};

/* The next string that stands in double quotes; the file has no escapes but one. */
static struct slice
quoted(const char **p)
{
    const char *start = strchr(*p, '"');
    NEED(start);
    const char *end = ++start;
    while (*end != '"')
        end += *end == '\\' ? 2 : 1;
    *p = end + 1;
    if (*start == '\\')
        start++;
    return (struct slice){ start, (size_t)(end - start) };
}

static void
naive_open(struct naive *n, const char *json)
{
    const char *p = json ? strstr(json, "\"merges\": [") : NULL;
    NEED(p);
    p += strlen("\"merges\": [");
    while (strchr(p, '[') && n->n < 4096) {
        n->merge[n->n].left = quoted(&p);
        n->merge[n->n++].right = quoted(&p);
    }
}

/* Symbols are spans of text; letters of ASCII and CR stand for themselves in the file. */
static size_t
naive_merge(const struct naive *n, struct slice *s, size_t count)
{
    for (size_t r = 0; r < n->n; r++) {
        size_t kept = 0;
        char first = n->merge[r].left.p[0];
        if (first < 'a' || first > 'z')
            continue; // all texts here are lower case
        for (size_t i = 0; i < count; i++)
            if (kept && i && s[kept - 1].n && slice_eq(s[kept - 1], n->merge[r].left) &&
                slice_eq(s[i], n->merge[r].right))
                s[kept - 1].n += s[i].n;
            else
                s[kept++] = s[i];
        count = kept;
    }
    return count;
}

static void
check_long(const struct naive *n, struct slice text)
{
    struct slice *s = malloc(text.n * sizeof *s);
    struct ids got = { 0 };
    struct err err = { 0 };
    NEED(s);
    for (size_t i = 0; i < text.n; i++)
        s[i] = (struct slice){ text.p + i, 1 };
    size_t count = naive_merge(n, s, text.n);
    CHECK(encode(encoder, &got, text, false, &err) == 0);
    CHECK_SAY(got.n == count, "%zu ids, want %zu", got.n, count);
    for (size_t i = 0; i < count && i < got.n; i++)
        if (!slice_eq(tokenizer_bytes(small, got.v[i]), s[i])) {
            CHECK_SAY(false, "id %zu of %zu bytes is another", i, text.n);
            break;
        }
    ids_free(&got);
    free(s);
}

/* Around the sizes where short arrays, the heap and windows take over. */
static void
check_long_pieces(void)
{
    static const size_t sizes[] = { 1,   2,   63,  64,   65,    127,
                                    191, 192, 193, 1000, 16384, 18000 };
    static const char *const letters[] = { "a", "abcdefghijklmnopqrstuvwxyz",
                                           "etaoins" };
    static struct naive naive;
    char *text = malloc(18000);
    FILE *f = fopen(SMALL, "r");
    NEED(text && f);
    struct buf json = tokens_read(f);
    fclose(f);
    naive_open(&naive, json.data);
    CHECK(naive.n == 2816);
    for (size_t k = 0; k < sizeof letters / sizeof *letters; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (size_t c = 0; c < sizes[i]; c++)
                text[c] = letters[k][check_random(c + i) % strlen(letters[k])];
            check_long(&naive, (struct slice){ text, sizes[i] });
        }
    buf_free(&json);
    free(text);
}

/* A megabyte of one thing must neither take forever nor change. */
static void
check_megabytes(void)
{
    static const char *const units[] = {
        "a",       " ", "'", "\n", "=", "\xe4\xbd\xa0", "e\xcc\x81", "\xcc\x81\xcd\x85",
        "\xcc\xa3"
    };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct buf text = { 0 };
        struct ids ids = { 0 };
        while (text.len < 1 << 20)
            buf_str(&text, units[i]);
        encode_ok(&ids, (struct slice){ text.data, text.len }, true);
        check_back((struct slice){ text.data, text.len }, &ids);
        ids_free(&ids);
        buf_free(&text);
    }
}

/* ---- pieces and normal forms ------------------------------------------------ */

static void
check_split(void)
{
    // Pieces of each text, one behind the other, between bars.
    static const struct {
        const char *text, *pieces;
    } t[] = {
        { "I'm you'RE it'\xc5\xbf", "I|'m| you|'RE| it|'\xc5\xbf" },
        { "it'\xc5\xbfx'\xc5\xbex", "it|'\xc5\xbf|x|'\xc5\xbex" },
        { "'lL'd'x''t", "'lL|'d|'x|''|t" },
        { "'sx'tx'rex'vex'mx'llx'dx'x", "'s|x|'t|x|'re|x|'ve|x|'m|x|'ll|x|'d|x|'x" },
        { "'rx'ex'lx", "'rx|'ex|'lx" },
        { "12 a", "1|2| a" },
        { "a  b", "a| | b" },
        { " \t!x", " |\t|!x" },
        { "  !\n\n x", " | !\n\n| x" },
        { "a \n \n  b", "a| \n \n| | b" },
        { "\r\n\ta", "\r\n|\ta" },
        { "x   ", "x|   " },
        { "\n\n", "\n\n" },
        { "\xe3\x80\x80\xe3\x80\x80\xe4\xbd\xa0",
          "\xe3\x80\x80|\xe3\x80\x80\xe4\xbd\xa0" },
        { "e\xcc\x81z", "e|\xcc\x81z" },
        { "...\r\n...", "...\r\n|..." },
        { "'", "'" },
        { "'s", "'s" },
        { "'r", "'r" },
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct buf got = { 0 };
        const char *p = t[i].text;
        while (*p) {
            size_t n = split_piece(p, strlen(p));
            if (got.len)
                buf_char(&got, '|');
            buf_add(&got, p, n);
            p += n;
        }
        CHECK_SAY(strcmp(got.data, t[i].pieces) == 0, "want %s, got %s", t[i].pieces,
                  got.data);
        buf_free(&got);
    }
}

static void
check_nfc(void)
{
    static const struct {
        const char *text, *normal;
    } t[] = {
        { "e\xcc\x81", "\xc3\xa9" },
        { "\xe2\x84\xaa", "K" },                    // Kelvin sign
        { "a\xcc\x82\xcc\xa3", "\xe1\xba\xad" },    // marks in order
        { "\xe1\xba\xa1\xcc\x82", "\xe1\xba\xad" }, // from a composed one
        { "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81" }, // jamo
        { "\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81" },             // LV and T
        { "\xea\xb0\x80\xe1\x86\xa7", "\xea\xb0\x80\xe1\x86\xa7" }, // U+11A7 stays
        { "\xea\xb0\x80\xe1\x87\x82", "\xea\xb0\x9b" },             // the last T
        { "\xea\xb0\x80\xe1\x87\x83", "\xea\xb0\x80\xe1\x87\x83" }, // and beyond
        { "\xe1\x84\x92\xe1\x85\xb5", "\xed\x9e\x88" },             // the last L and V
        { "\xe1\x84\x93\xe1\x85\xa1", "\xe1\x84\x93\xe1\x85\xa1" },
        { "\xe1\x84\x80\xe1\x85\xb6", "\xe1\x84\x80\xe1\x85\xb6" },
        { "\xea\xb0\x81\xe1\x86\xa8", "\xea\xb0\x81\xe1\x86\xa8" }, // LVT
        { "\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc" },             // never composed
        { "\xcc\x81", "\xcc\x81" },                                 // nothing before
        { "e\xcc\x81\xcc\x81", "\xc3\xa9\xcc\x81" },
        { "a\xdf\xbd\xcc\x81",
          "a\xdf\xbd\xcc\x81" }, // U+07FD: class 0 here, in the way
        { "\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0", "\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0" },
        { "", "" },
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct buf got = { 0 };
        struct slice s = slice_of(t[i].text);
        nfc_add(&got, s);
        CHECK_SAY(strcmp(got.data ? got.data : "", t[i].normal) == 0, "nfc %zu", i);
        if (strcmp(t[i].text, t[i].normal) != 0)
            CHECK(!nfc_plain(s));
        buf_free(&got);
    }
    CHECK(nfc_plain(T("plain \xc3\xa9 \xe4\xbd\xa0 \xea\xb0\x80")));
}

/* ---- decoding --------------------------------------------------------------- */

static void
check_decode(void)
{
    struct err err = { 0 };
    struct buf out = { 0 };
    struct decoder d = { .t = small };
    uint32_t vocab = tokenizer_vocab(small);
    CHECK(vocab == 3072 + 26);
    CHECK(tokenizer_added(small, "<|im_end|>") == 3074);
    CHECK(tokenizer_added(small, "<|im_end|") == TOKEN_NONE);
    CHECK(slice_is(tokenizer_bytes(small, 3074), "<|im_end|>"));
    CHECK(!tokenizer_bytes(small, vocab).p && !tokenizer_bytes(small, TOKEN_NONE).p);
    const uint32_t bad[] = { 0, vocab, 1 };
    CHECK(decode(small, &out, bad, 3, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT, "id 3098 at position 1");
    err = (struct err){ 0 };
    CHECK(decode_push(&d, &out, vocab, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT, "id 3098");
    // Bytes that are no text come out as they are, as soon as that is certain.
    static const uint8_t bytes[] = { 0xe4, 0xbd, 'a',  0xff, 0xf0, 0x9f, 0x91, 0x8b,
                                     0xe0, 0x80, 0xed, 0xa0, 0xf4, 0x90, 0xc3 };
    static const size_t lengths[] = {
        0, 0, 3, 4, 4, 4, 4, 8, 8, 10, 10, 12, 12, 14, 14
    };
    err = (struct err){ 0 };
    out.len = 0;
    struct ids ids = { 0 };
    for (uint32_t id = 0; id < 256; id++)
        ids_add(&ids, id);
    for (size_t i = 0; i < sizeof bytes; i++) {
        uint32_t id = 0;
        while ((uint8_t)*tokenizer_bytes(small, id).p != bytes[i])
            id++;
        CHECK(decode_push(&d, &out, id, &err) == 0);
        CHECK_SAY(out.len == lengths[i], "byte %zu: %zu are out", i, out.len);
    }
    decode_finish(&d, &out);
    CHECK(out.len == sizeof bytes && check_equal(out.data, bytes, out.len));
    ids_free(&ids);
    buf_free(&out);
}

/* ---- the loader ------------------------------------------------------------- */

#define LEVEL                                                                          \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,"       \
    "\"use_regex\":false}"

/* A whole tokenizer.json: bytes, the merges "ab" and "abc", one added token. */
static void
put_tokenizer(struct buf *b)
{
    struct slice regex = slice_of(split_regex);
    buf_str(b,
            "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
            "\"added_tokens\":[{\"id\":300,\"content\":\"<x>\",\"single_word\":false,"
            "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
            "\"special\":true}],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":"
            "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
            "\"pattern\":{\"Regex\":");
    json_put(b, regex);
    buf_str(b, "},\"behavior\":\"Isolated\",\"invert\":false}," LEVEL
               "]},\"post_processor\":" LEVEL ",\"decoder\":" LEVEL
               ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
               "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\","
               "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
               "\"vocab\":{\"ab\":256,\"abc\":257");
    for (unsigned c = 0, next = 256; c < 256; c++) {
        bool itself = (c >= 33 && c <= 126) || (c >= 161 && c != 173);
        struct buf name = { 0 };
        utf8_add(&name, itself ? c : next++);
        buf_char(b, ',');
        json_put(b, (struct slice){ name.data, name.len });
        buf_printf(b, ":%u", c);
        buf_free(&name);
    }
    buf_str(b, "},\"merges\":[[\"a\",\"b\"],[\"ab\",\"c\"]]}}");
}

/* The text with one part of it replaced, as a file. */
static void
put_changed(const struct buf *good, const char *from, const char *to)
{
    struct buf b = { 0 };
    const char *at = strstr(good->data, from);
    if (!at) {
        CHECK_SAY(false, "no %s", from);
        return;
    }
    buf_add(&b, good->data, (size_t)(at - good->data));
    buf_str(&b, to);
    buf_str(&b, at + strlen(from));
    check_put("t.json", b.data, b.len);
    buf_free(&b);
}

static void
check_taken(const struct buf *good, const char *from, const char *to)
{
    struct err err = { 0 };
    put_changed(good, from, to);
    struct tokenizer *t = tokenizer_open("t.json", &tokens_guard, &err);
    struct encoder *e = t ? encoder_open(t, &err) : NULL;
    struct ids ids = { 0 };
    CHECK_SAY(t && e, "%s", err.msg);
    if (t && e) {
        CHECK(encode(e, &ids, T("abcab<x>"), true, &err) == 0);
        CHECK_SAY(ids.n == 3 && ids.v[0] == 257 && ids.v[1] == 256 && ids.v[2] == 300,
                  "%s: %s", to, tokens_show(&ids));
    }
    ids_free(&ids);
    encoder_close(e);
    tokenizer_close(t);
}

static void
check_refused(const struct buf *good, const char *from, const char *to,
              const char *words)
{
    struct err err = { 0 };
    put_changed(good, from, to);
    CHECK_SAY(!tokenizer_open("t.json", &tokens_guard, &err), "taken: %s", to);
    CHECK_ERR(err, ERR_FORMAT, words);
    CHECK(strncmp(err.msg, "t.json: ", 8) == 0);
}

static void
check_loader(void)
{
    static const struct {
        const char *from, *to;
    } taken[] = {
        { "", "" },
        { "[[\"a\",\"b\"],[\"ab\",\"c\"]]", "[\"a b\",\"ab c\"]" },
        { "[\"a\",\"b\"]", "\"a b\"" },
        { "\"post_processor\":" LEVEL, "\"post_processor\":null" },
        { "\"dropout\":null,", "" },
        { "\"continuing_subword_prefix\":\"\"", "\"continuing_subword_prefix\":null" },
        { "\"ignore_merges\":false,", "" },
        { "\"id\":300,\"content\":\"<x>\",",
          "\"id\":1000000,\"content\":\"hole\"},{\"id\":300,\"content\":\"<x>\"," },
        { "\"id\":300,\"content\":\"<x>\",",
          "\"id\":257,\"content\":\"abc\"},{\"id\":300,\"content\":\"<x>\"," },
        { "\"abc\":257", "\"ab\\u0063\":257" },
        { ",\"merges\"", "  ,\n \"merges\"" },
    };
    static const struct {
        const char *from, *to, *words;
    } refused[] = {
        { "{", "", "a tokenizer.json" },
        { "\"1.0\"", "\"2.0\"", "version: expected \"1.0\", found \"2.0\"" },
        { "\"truncation\":null", "\"truncation\":{\"max\":1}",
          "truncation: expected null" },
        { "\"NFC\"", "\"NFKC\"", "normalizer: expected \"NFC\"" },
        { "{\"type\":\"NFC\"}", "{}", "normalizer: a key is missing" },
        { "{\"type\":\"NFC\"}", "null", "an object" },
        { "\"normalizer\":{\"type\":\"NFC\"},", "", "a key is missing" },
        { "\"Sequence\"", "\"Split\"", "pre_tokenizer" },
        { "\\\\p{N}|", "\\\\p{N}{1,3}|", "pre_tokenizer pattern" },
        { "\"Isolated\"", "\"Removed\"", "behavior" },
        { "\"invert\":false", "\"invert\":true", "invert: expected false" },
        { "\"use_regex\":false", "\"use_regex\":true", "use_regex: expected false" },
        { ",\"use_regex\":false", "", "second pre_tokenizer: a key is missing" },
        { "," LEVEL "]", "]", "expected two steps, Split and ByteLevel" },
        { LEVEL "]", LEVEL "," LEVEL "]", "expected two steps, Split and ByteLevel" },
        { "\"decoder\":" LEVEL ",", "", "a key is missing" },
        { "\"decoder\":" LEVEL, "\"decoder\":null", "an object" },
        { "\"BPE\"", "\"WordPiece\"", "model: expected \"BPE\"" },
        { "\"dropout\":null", "\"dropout\":0.1", "dropout: expected null, found 0.1" },
        { "\"unk_token\":null", "\"unk_token\":\"a\"", "unk_token: expected null" },
        { "_suffix\":\"\"", "_suffix\":\"</w>\"", "end_of_word_suffix: expected \"\"" },
        { "\"fuse_unk\":false", "\"fuse_unk\":true", "fuse_unk: expected false" },
        { "\"ignore_merges\":false", "\"ignore_merges\":true", "ignore_merges" },
        { "\"fuse_unk\":false", "\"fuse\":false", "unknown key fuse" },
        { "\"fuse_unk\":false", "\"fuse_unk\":false,\"fuse_unk\":false", "twice" },
        { "\"model\":{", "\"model\":{\"merges\":[],", "merges before the vocabulary" },
        { "\"ab\":256", "\"ab\":256,\"ab\":258", "token \"ab\" appears twice" },
        { "\"ab\":256", "\"ab\":257", "id 257: two tokens have it" },
        { "\"ab\":256", "\"ab\":-1", "an integer" },
        { "\"ab\":256", "\"ab\":4294967295", "id 4294967295: expected at most" },
        { "\"ab\":256", "\"a b\":256", "U+0020 stands for no byte" },
        { "\"ab\":256", "\"\xe4\xbd\xa0\":256", "U+4F60 stands for no byte" },
        { "\"ab\":256", "\"\":256", "empty token" },
        { "\"A\":65,", "", "no token for byte 0x41" },
        { "[\"a\",\"b\"]", "[\"a\",\"zz\"]",
          "merge 0: \"zz\" is not in the vocabulary" },
        { "[\"ab\",\"c\"]", "[\"ab\",\"d\"]",
          "merge 1: \"abd\" is not in the vocabulary" },
        { "[\"ab\",\"c\"]", "[\"a\",\"b\"]", "merge 1 repeats merge 0" },
        { "[\"a\",\"b\"]", "[\"a\"]", "merge 0: expected two strings" },
        { "[\"a\",\"b\"]", "[\"a\",\"b\",\"c\"]", "merge 0: expected two strings" },
        { "[\"a\",\"b\"]", "\"ab\"", "merge 0: expected two tokens" },
        { "[\"a\",\"b\"]", "\"a  b\"", "U+0020 stands for no byte" },
        { "[\"a\",\"b\"]", "\" ab\"", "merge 0: \"\" is not in the vocabulary" },
        { "[\"a\",\"b\"]", "1", "a string" },
        { "\"id\":300", "\"id\":257", "id 257: two tokens have it" },
        { "\"<x>\"", "\"\"", "empty token" },
        { "\"content\":\"<x>\"", "\"content\":\"ab\"",
          "added token \"ab\" has id 300, and 256 in the vocabulary" },
        { "\"id\":300,", "", "added token: a key is missing" },
        { "\"lstrip\":false", "\"lstrip\":true", "lstrip: expected false" },
        { "\"normalized\":false", "\"normalized\":true", "normalized: expected false" },
        { "\"id\":300,\"content\":\"<x>\"",
          "\"id\":301,\"content\":\"<x>\"},{\"id\":300,\"content\":\"<x>\"",
          "added token \"<x>\" appears twice" },
        { "]]}}", "]]}", "the end" },
        { "]]}}", "]]}} x", "the end of the JSON text" },
    };
    struct buf good = { 0 };
    put_tokenizer(&good);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        check_taken(&good, taken[i].from, taken[i].to);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        check_refused(&good, refused[i].from, refused[i].to, refused[i].words);
    for (size_t n = 0; n < good.len; n++) { // cut anywhere
        struct err err = { 0 };
        check_put("t.json", good.data, n);
        CHECK_SAY(!tokenizer_open("t.json", &tokens_guard, &err), "cut at %zu", n);
        CHECK_ERR(err, ERR_FORMAT, "t.json");
    }
    struct err err = { 0 };
    CHECK(!tokenizer_open("none.json", &tokens_guard, &err));
    CHECK_ERR(err, ERR_IO, "none.json");
    buf_free(&good);
}

int
main(void)
{
    struct err err = { 0 };
    small = tokens_open(SMALL);
    encoder = encoder_open(small, &err);
    NEED(encoder);
    check_vectors();
    check_long_pieces();
    check_megabytes();
    check_split();
    check_nfc();
    check_decode();
    encoder_close(encoder);
    tokenizer_close(small);
    check_scratch();
    check_loader();
    return check_end();
}
