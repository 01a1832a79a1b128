/* SPDX-License-Identifier: MIT */
/* vocab: the inside of a struct tokenizer, shared by loader, encoder and decoder. */
#ifndef NIBBLE_TEXT_VOCAB_H
#define NIBBLE_TEXT_VOCAB_H

#include "lib/text/bpe.h"

/* An added token; its bytes are those of its id. */
struct added {
    struct slice text; // borrowed from bpe.bytes
    uint32_t id;
};

struct tokenizer {
    uint8_t sha256[SHA256_BYTES];
    struct bpe bpe;
    struct added *added; // sorted by bytes
    size_t n_added;
    bool begins[256]; // an added token begins with this byte
};

/* The tokenizer that an encoder was opened for. */
const struct tokenizer *encoder_tokenizer(const struct encoder *e);

#endif
