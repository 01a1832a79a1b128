/* SPDX-License-Identifier: MIT */
/* tokenizer_json: the loader takes a file or refuses it with words; what it took
 * encodes any text and gives its normal form back, and knows all of its ids. */
#include "lib/text/nfc.h"
#include "lib/text/tokenizer.h"

#include "tests/fuzz/fuzz.h"

static const char text[] = "abc  ab'S a<|im_end|>\xe4\xbd\xa0 e\xcc\x81\n\n 12\xff";

static void
check_taken(const struct tokenizer *t)
{
    struct err err = { 0 };
    struct ids ids = { 0 };
    struct buf back = { 0 }, normal = { 0 };
    struct slice s = { text, sizeof text - 2 }; // without the byte that is not UTF-8
    struct encoder *e = encoder_open(t, &err);
    HOLDS(e, "%s", err.msg);
    HOLDS(encode(e, &ids, s, false, &err) == 0, "%s", err.msg);
    HOLDS(decode(t, &back, ids.v, ids.n, &err) == 0, "%s", err.msg);
    nfc_add(&normal, s);
    HOLDS(normal.len == back.len && memcmp(normal.data, back.data, back.len) == 0,
          "%.*s", (int)back.len, back.data);
    ids.n = 0;
    HOLDS(encode(e, &ids, s, true, &err) == 0, "%s", err.msg);
    for (size_t i = 0; i < ids.n; i++)
        HOLDS(ids.v[i] < tokenizer_vocab(t) && tokenizer_bytes(t, ids.v[i]).p, "id %u",
              (unsigned)ids.v[i]);
    ids_free(&ids);
    buf_free(&back);
    buf_free(&normal);
    encoder_close(e);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err err = { 0 };
    struct tokenizer *t =
        tokenizer_open(fuzz_put("tokenizer.json", data, n), &fuzz_guard, &err);
    if (t)
        check_taken(t);
    else
        fuzz_refused(&err);
    tokenizer_close(t);
    return 0;
}
