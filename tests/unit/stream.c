/* SPDX-License-Identifier: MIT */
/* stream: what goes out at each token is whole characters and can be no beginning of a
 * stop text; all of it together is the text up to the first stop text. */
#include "lib/infer/stream.h"

#include "lib/base/text.h"
#include "tests/unit/check.h"

static struct guard guard;
static struct err err;

/* A vocabulary of the 256 bytes: every border is a border of tokens. */
static struct tokenizer *
bytes_tokenizer(void)
{
    FILE *f = fopen("tokenizer.json", "w");
    NEED(f);
    fputs(
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[],"
        "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
        "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":",
        f);
    fputs("\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
          "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
          "\\\\s+(?!\\\\S)|\\\\s+\"",
          f);
    fputs("},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
          "\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}]},"
          "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
          "\"trim_offsets\":false,\"use_regex\":false},\"decoder\":{\"type\":"
          "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,"
          "\"use_regex\":false},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
          "\"unk_token\":null,\"continuing_subword_prefix\":\"\","
          "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,"
          "\"ignore_merges\":false,\"vocab\":{",
          f);
    for (unsigned b = 0, odd = 0; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        fprintf(f, "%s\"\\u%04x\":%u", b ? "," : "", plain ? b : 256 + odd, b);
        odd += !plain;
    }
    fputs("},\"merges\":[]}}", f);
    NEED(fclose(f) == 0);
    struct tokenizer *t = tokenizer_open("tokenizer.json", &guard, &err);
    CHECK_SAY(t, "%s", err.msg);
    NEED(t);
    return t;
}

/* Where the stop text begins that is complete first; of two the longer one. */
static size_t
first_stop(const char *text, size_t n, const struct slice *stop, size_t n_stops)
{
    for (size_t end = 1; end <= n; end++) {
        size_t most = 0;
        for (size_t k = 0; k < n_stops; k++)
            if (stop[k].n <= end && stop[k].n > most &&
                memcmp(text + end - stop[k].n, stop[k].p, stop[k].n) == 0)
                most = stop[k].n;
        if (most)
            return end - most;
    }
    return n;
}

/* Bytes text[sure ..] that could still become a stop text must not have gone out. */
static bool
too_early(const char *text, size_t n, size_t sure, const struct slice *stop,
          size_t n_stops)
{
    for (size_t at = 0; at < sure; at++)
        for (size_t k = 0; k < n_stops; k++)
            if (n - at < stop[k].n && memcmp(text + at, stop[k].p, n - at) == 0)
                return true;
    return false;
}

static void
check_text(const struct tokenizer *t, const char *text, size_t n,
           const struct slice *stop, size_t n_stops)
{
    struct stream x = { .decoder = { .t = t }, .stop = stop, .n_stops = n_stops };
    size_t end = first_stop(text, n, stop, n_stops);
    bool good = utf8_check(text, n) == n;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = stream_push(&x, (uint8_t)text[i], &err);
        NEED(rc >= 0);
        if (rc > 0)
            break;
        CHECK(x.printed <= i + 1);
        CHECK(!good || utf8_check(x.text.data, x.printed) == x.printed);
        CHECK_SAY(!too_early(text, i + 1, x.printed, stop, n_stops),
                  "\"%s\": %zu bytes went out after %zu", text, x.printed, i + 1);
    }
    if (rc == 0)
        rc = stream_finish(&x, &err);
    CHECK_SAY((rc > 0) == (end < n), "\"%s\": %d", text, rc);
    CHECK_SAY(x.text.len == end && x.printed == end &&
                  (end == 0 || check_equal(x.text.data, text, end)),
              "\"%s\": %zu bytes, expected %zu", text, x.text.len, end);
    CHECK(stream_finish(&x, &err) == 0 && x.text.len == end);
    stream_free(&x);
}

static void
check_stops(const struct tokenizer *t)
{
    static const char *const texts[] = {
        "",
        "abababac",
        "aaaaaaab",
        "h\xc3\xa9llo \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f"
        "\x91\x8b!",
        "\xe4\xbd\xe5\xa5\xbd\xff"
        "a\xf0\x9f",
        "end\xe4\xbd"
    };
    const struct slice stops[] = { slice_of("abac"), slice_of("aab"),
                                   slice_of("b"),    slice_of("\xe5\xa5\xbd"),
                                   slice_of("end"),  slice_of("llo \xe4\xbd\xa0") };
    size_t n_stops = sizeof stops / sizeof *stops;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_text(t, texts[i], strlen(texts[i]), NULL, 0);
        for (size_t from = 0; from < n_stops; from++)
            for (size_t k = 1; from + k <= n_stops; k++)
                check_text(t, texts[i], strlen(texts[i]), stops + from, k);
    }
}

/* Random texts of few letters have many beginnings of stop texts. */
static void
check_random_texts(const struct tokenizer *t)
{
    static const char *const letters[] = { "a", "b", "\xc3\xa9", "\xe4\xbd\xa0" };
    uint64_t r = 0;
    for (int round = 0; round < 2000; round++) {
        struct buf text = { 0 }, word[2] = { { 0 } };
        struct slice stop[2];
        for (int i = 0; i < 24; i++)
            buf_str(&text, letters[check_random(r++) % 4]);
        for (int k = 0; k < 2; k++) {
            for (uint32_t i = 0, n = 2 + check_random(r++) % 3; i < n; i++)
                buf_str(&word[k], letters[check_random(r++) % 4]);
            stop[k] = (struct slice){ word[k].data, word[k].len };
        }
        check_text(t, text.data, text.len, stop, 2);
        buf_free(&text);
        buf_free(&word[0]);
        buf_free(&word[1]);
    }
}

/* A row of the model without a token is a replacement character. */
static void
check_no_token(const struct tokenizer *t)
{
    struct stream x = { .decoder = { .t = t } };
    CHECK(stream_push(&x, 0xe4, &err) == 0);
    CHECK(x.printed == 0);
    CHECK(stream_push(&x, 300, &err) == 0);
    CHECK(stream_push(&x, 'a', &err) == 0);
    CHECK(x.printed == 5 && check_equal(x.text.data,
                                        "\xe4\xef\xbf\xbd"
                                        "a",
                                        5));
    stream_free(&x);
    struct stream none = { 0 }; // only ids
    CHECK(stream_push(&none, 5, &err) == 0 && stream_finish(&none, &err) == 0);
    CHECK(none.text.len == 0);
}

int
main(void)
{
    check_scratch();
    struct tokenizer *t = bytes_tokenizer();
    check_stops(t);
    check_random_texts(t);
    check_no_token(t);
    tokenizer_close(t);
    return check_end();
}
