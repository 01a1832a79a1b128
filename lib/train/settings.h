/* SPDX-License-Identifier: MIT */
/* settings: the values that change the result of a training, in one table for options,
 * checkpoints and provenance. */
#ifndef NIBBLE_TRAIN_SETTINGS_H
#define NIBBLE_TRAIN_SETTINGS_H

#include "lib/base/buf.h"
#include "lib/base/hash.h"
#include "lib/format/mp.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum order { ORDER_SHUFFLE, ORDER_FILE };
enum schedule { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_WSD };
enum loss_word { LOSS_CE, LOSS_SCALAR };
enum fp8_scales { SCALES_CURRENT, SCALES_DELAYED };

struct settings {
    bool has_accum; // a checkpoint or an option has it
    uint64_t batch, accum;
    uint64_t activations; // enum activations
    uint64_t seq_len;     // max input positions; 0: unset
    uint64_t seed, order;
    double lr, min_lr;
    uint64_t schedule, warmup, total_steps, decay; // decay 0: a tenth of total_steps
    double beta1, beta2, eps, weight_decay, clip;
    uint64_t clip_mode, loss, last_layers;
    uint64_t fp8_scales; // enum fp8_scales
    double spike, distill, distill_temp;
    double quant_from; // the first quantized step, or below 1 a fraction of total_steps
};

enum setting_kind { SET_U64, SET_F64, SET_WORD };
struct setting {
    const char *key, *option; // in a checkpoint; on the command line
    enum setting_kind kind;
    bool f32;      // SET_F64: kernels take it as f32
    bool late;     // of a later version: a checkpoint has it unless it is `first`
    size_t offset; // in struct settings
    const char *const *words; // SET_WORD
    const char *const
        *given;       // SET_WORD: those that the option takes, a prefix of words
    double low, high; // allowed range
    double first;     // in a new checkpoint
};
extern const struct setting settings_table[];
enum { SETTINGS = 25 };

void settings_begin(struct settings *s);
/* The row of an option that the table has. */
size_t settings_row(const char *option);
/* Set the value of row i, a count or the number of a word; a number, which may be refused. */
void settings_set_count(struct settings *s, size_t i, uint64_t v);
int settings_set_number(struct settings *s, size_t i, double v, struct err *err);
/* Refuse combinations that make no sense. */
int settings_check(const struct settings *s, struct err *err);
void settings_copy(struct settings *to, const struct settings *from, size_t i);
/* The map "settings" of a checkpoint; unknown keys are refused. */
int settings_read(struct mp *m, struct settings *s);
void settings_put(msgpack_packer *pk, const struct settings *s);
/* A hash that stands among them, under a name that comes before those behind it. */
struct settings_hash {
    const char *key;
    const uint8_t *xxh3; // NULL: there is none
};
void settings_json(struct buf *b, const struct settings *s,
                   const struct settings_hash *hash, size_t n);
/* The same as lines, an option and its value. */
void settings_lines(struct buf *b, const struct settings *s);
/* The first step whose forward pass is quantized, if the checkpoint has a quantizer. */
uint64_t settings_quant_from(const struct settings *s);
/* Learning rate of step t = 1, 2, ... */
double settings_rate(const struct settings *s, uint64_t t);

#endif
