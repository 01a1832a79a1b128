/* SPDX-License-Identifier: MIT */
/* gguf: the particulars of GGUF: names of tensors, and key-value pairs.
 *
 * Reading and writing go through store.h and writer.h, as with any container.  A writer
 * also needs the model's key-value pairs (wmeta.gguf): its caller, which has
 * configuration and tokenizer, builds them with the functions here.
 */
#ifndef NIBBLE_FORMAT_GGUF_H
#define NIBBLE_FORMAT_GGUF_H

#include "lib/base/buf.h"
#include "lib/base/text.h"
#include "lib/format/store.h"
#include "lib/model/arch/arch.h"

#include <stdbool.h>
#include <stdint.h>

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

/* ---- names ---------------------------------------------------------------------- */

/* Append the other program's name of a tensor: model.layers.0.mlp.up_proj.weight is
 * blk.0.ffn_up.weight.  Also of what belongs to it, .scale and .input_scale in place of
 * .weight.  False: there is none. */
bool gguf_name_of(struct buf *out, struct slice ours);
bool gguf_name_to_ours(struct buf *out, struct slice theirs);
/* The place of a tensor of our name in a file: embedding, layers ascending, norm, head,
 * each followed by what belongs to it; UINT64_MAX if a GGUF has no name for it. */
uint64_t gguf_place(struct slice ours);
/* Whether it is a norm: those are f32 in every GGUF. */
bool gguf_is_norm(struct slice ours);

/* ---- key-value pairs, as in a file --------------------------------------------- */

struct gguf_kv {
    struct buf bytes; // buf_ok(&kv.bytes): all went in
    uint64_t n;
    const char *architecture; // of the model
};

void gguf_put_u32(struct buf *b, uint32_t v);
void gguf_put_u64(struct buf *b, uint64_t v);
void gguf_put_string(struct buf *b, struct slice s);

void gguf_kv_u32(struct gguf_kv *kv, const char *key, uint32_t v);
void gguf_kv_f32(struct gguf_kv *kv, const char *key, float v);
void gguf_kv_bool(struct gguf_kv *kv, const char *key, bool v);
void gguf_kv_string(struct gguf_kv *kv, const char *key, struct slice v);
/* Then just n items follow, by gguf_put_... into kv->bytes. */
void gguf_kv_array(struct gguf_kv *kv, const char *key, enum gguf_type item,
                   uint64_t n);
void gguf_kv_free(struct gguf_kv *kv);

/* ---- the configuration in the keys; for the reader ------------------------- */

/* The values of the keys that we use. */
struct gguf_model {
    struct slice architecture, nibble;
    const struct arch *arch; // that of its keys; NULL: unknown
    uint64_t size[ARCH_SIZES];
    unsigned sizes;            // a bit for each one found
    float eps, theta;          // 0: not found
    int64_t bos, eos;          // -1: not found
    struct slice rope_scaling; // its type
};

struct gguf_value {
    enum gguf_type type;
    bool negative;
    uint64_t u;        // integers that are not negative, and booleans
    int64_t i;         // negative ones
    double f;          // floats
    struct slice text; // strings
    enum gguf_type item;
    uint64_t count; // of an array
};

/* A finite float in the fewest digits that give it again. */
void gguf_put_shortest(struct buf *b, float f);
void gguf_model_init(struct gguf_model *m);
void gguf_model_set(struct gguf_model *m, struct slice key, const struct gguf_value *v);
/* Append a config.json made of the keys and the tensors of s; nothing, and in *missing
 * the name of what is missing, if they are too few (NULL: it is of no architecture that we know). */
void gguf_model_config(const struct gguf_model *m, const struct store *s,
                       struct buf *out, const char **missing);
/* Whether a config.json agrees with the keys; *differs is what does not. */
bool gguf_model_agrees(const struct gguf_model *m, const struct store *s,
                       struct slice config, const char **differs);

#endif
