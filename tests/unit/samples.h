/* SPDX-License-Identifier: MIT */
/* samples: small .tok files, for unit programs of lib/train. */
#ifndef NIBBLE_TESTS_UNIT_SAMPLES_H
#define NIBBLE_TESTS_UNIT_SAMPLES_H

#include "lib/file/guard.h"
#include "lib/format/tok.h"
#include "tests/unit/check.h"

static struct guard samples_guard;

/* Sample i has 2 + i % 3 ids, of which i is the first.  tokenizer: its hash; NULL: unknown. */
static inline void
put_samples_of(const char *path, uint32_t n, uint32_t vocab, const uint8_t *tokenizer)
{
    static const struct tok_settings settings = { .input = "ids", .invalid = "error" };
    struct tok_header h = { .template = slice_of("none"),
                            .version = slice_of("1"),
                            .has_vocab = vocab > 0,
                            .vocab = vocab };
    if (tokenizer) {
        h.has_tokenizer = true;
        memcpy(h.tokenizer, tokenizer, sizeof h.tokenizer);
    }
    struct outfile out;
    struct tok_writer w;
    struct err err = { 0 };
    NEED(out_open(&out, path, OUT_FORCE, &samples_guard, &err) == 0);
    NEED(tok_begin(&w, &out, &h, &settings, &err) == 0);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t ids[] = { i, i + 10, i + 20, i + 30 };
        const uint8_t mask[] = { 1, 1, 1, 1 };
        struct buf record = { 0 };
        struct tok_counts counts = { 0 };
        tok_encode(&record, &counts, ids, mask, 2 + i % 3, NULL, 0);
        NEED(tok_write(&w, record.data, record.len, &counts) == 0);
        buf_free(&record);
    }
    NEED(tok_end(&w, &(struct tok_end){ 0 }) == 0 && out_commit(&out) == 0);
    tok_close_writer(&w);
}

static inline void
put_samples(const char *path, uint32_t n, uint32_t vocab)
{
    put_samples_of(path, n, vocab, NULL);
}

#endif
