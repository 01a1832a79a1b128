/* SPDX-License-Identifier: MIT */
/* state: the map of that name in a checkpoint, doc/FORMAT.md section 4: the progress of
 * a training.  The container reads it whenever it opens a file, so that no number in it
 * is out of range wherever the file is used.
 */
#ifndef NIBBLE_FORMAT_STATE_H
#define NIBBLE_FORMAT_STATE_H

#include "lib/base/hash.h"
#include "lib/format/mp.h"

enum { SPIKE_WINDOW = 128, STATE_ROUTE = 96, STATE_FP8 = 8 }; // magnitudes of a layer

struct spike {
    size_t n, at; // accepted steps that are in it; the next place
    double loss[SPIKE_WINDOW], norm[SPIKE_WINDOW];
};

struct state {
    uint64_t step;     // below 2^32
    uint64_t t, skips; // at most step
    double grad_norm;  // negative: none
    bool has_sampler, has_tokenizer, has_teacher,
        has_teacher_data; // not without a teacher
    uint8_t data[XXH3_BYTES], tokenizer[SHA256_BYTES];
    uint8_t teacher[XXH3_BYTES], teacher_data[XXH3_BYTES];
    uint64_t epoch, index;   // of the next sample: below 2^63
    char route[STATE_ROUTE]; // of the products; empty: none yet
    struct spike spike;
    bool has_spike;
    struct slice
        fp8_amax; // of delayed scales: f32, little-endian; empty: none.  Borrowed: of
                  // what was read, or the caller's
};

/* Read the map from m and check it.  *settings is the msgpack of its settings, a map of
 * integers, finite numbers and words: which there are and what they mean is defined by
 * trainstep.  0, or -1 with the error. */
int state_parse(struct state *st, struct slice *settings, struct mp *m);
void state_pack(msgpack_packer *pk, const struct state *st, struct slice settings);

#endif
