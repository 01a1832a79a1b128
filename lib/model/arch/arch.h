/* SPDX-License-Identifier: MIT */
/* arch: the facts about each architecture of a model, as data: the words of its config.json, its
 * tensors with their names in model directories and in a GGUF, and the keys of a GGUF.  A file of this
 * folder has all facts of one architecture, and no other file of the project names it. */
#ifndef NIBBLE_MODEL_ARCH_ARCH_H
#define NIBBLE_MODEL_ARCH_ARCH_H

#include "lib/base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The purpose of a tensor. */
enum role {
    ROLE_EMBED,
    ROLE_Q, // each layer has those from here to ROLE_POST_NORM
    ROLE_K,
    ROLE_V,
    ROLE_O,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_GATE,
    ROLE_UP,
    ROLE_DOWN,
    ROLE_INPUT_NORM,
    ROLE_POST_NORM,
    ROLE_FINAL_NORM,
    ROLE_HEAD,
    ROLES
};

/* Modules that every architecture has, and the beginning of the names of a layer's. */
#define ARCH_EMBED      "model.embed_tokens"
#define ARCH_FINAL_NORM "model.norm"
#define ARCH_HEAD       "lm_head"
#define ARCH_LAYER      "model.layers."
#define ARCH_GGUF_LAYER "blk."
#define ARCH_GGUF_EMBED "token_embd.weight"
#define ARCH_GGUF_HEAD  "output.weight"
#define ARCH_WEIGHT     ".weight"

/* A tensor, without the ".weight" of its names; in a layer they follow its number.  A dimension is a
 * letter: C hidden, Q heads * head_dim, K kv_heads * head_dim, D head_dim, F ffn, V vocabulary, 0 none. */
struct arch_row {
    enum role role;
    const char *name, *gguf; // in a model directory, in a GGUF
    char dims[2];
    bool layer, norm;
    bool quantized; // one of the projections
};

/* Rows of a layer. */
#define ARCH_PROJECTION(role, name, gguf, rows, columns)                               \
    {                                                                                  \
        role, name, gguf, { rows, columns }, true, false, true                         \
    }
#define ARCH_NORM(role, name, gguf, width)                                             \
    {                                                                                  \
        role, name, gguf, { width, 0 }, true, true, false                              \
    }
/* And of what stands around the layers. */
#define ARCH_EMBED_ROW                                                                 \
    {                                                                                  \
        ROLE_EMBED, ARCH_EMBED, "token_embd", { 'V', 'C' }, false, false, false        \
    }
#define ARCH_FINAL_NORM_ROW                                                            \
    {                                                                                  \
        ROLE_FINAL_NORM, ARCH_FINAL_NORM, "output_norm", { 'C', 0 }, false, true,      \
            false                                                                      \
    }
#define ARCH_HEAD_ROW                                                                  \
    {                                                                                  \
        ROLE_HEAD, ARCH_HEAD, "output", { 'V', 'C' }, false, false, false              \
    }

/* A setting of config.json of which one value is supported. */
struct arch_setting {
    const char *key;
    const char *json; // the value as JSON; NULL: the number 0
    bool list;        // of an array, each item is it; null is allowed, too
};

enum arch_size {
    ARCH_LAYERS,
    ARCH_POSITIONS,
    ARCH_HIDDEN,
    ARCH_FFN,
    ARCH_HEADS,
    ARCH_KV_HEADS,
    ARCH_HEAD_DIM,
    ARCH_VALUE_DIM, // config.json has no name for it: it is the same as head_dim
    ARCH_SIZES
};

struct arch_key {
    const char *gguf, *config;
    bool required;
};

/* The keys of a GGUF of that architecture. */
#define ARCH_KEYS(arch)                                                                \
    {                                                                                  \
        [ARCH_LAYERS] = { arch ".block_count", "num_hidden_layers", true },            \
        [ARCH_POSITIONS] = { arch ".context_length", "max_position_embeddings",        \
                             true },                                                   \
        [ARCH_HIDDEN] = { arch ".embedding_length", "hidden_size", true },             \
        [ARCH_FFN] = { arch ".feed_forward_length", "intermediate_size", true },       \
        [ARCH_HEADS] = { arch ".attention.head_count", "num_attention_heads", true },  \
        [ARCH_KV_HEADS] = { arch ".attention.head_count_kv", "num_key_value_heads",    \
                            true },                                                    \
        [ARCH_HEAD_DIM] = { arch ".attention.key_length", "head_dim", false },         \
        [ARCH_VALUE_DIM] = { arch ".attention.value_length", "head_dim", false },      \
    }
#define ARCH_EPS_KEY(arch)     arch ".attention.layer_norm_rms_epsilon"
#define ARCH_THETA_KEY(arch)   arch ".rope.freq_base"
#define ARCH_SCALING_KEY(arch) arch ".rope.scaling.type"

struct arch {
    const char *model_type; // of config.json
    const char *class;      // in its "architectures"
    const char *gguf;       // general.architecture
    const char *gguf_pre;   // tokenizer.ggml.pre
    const char *eps_key, *theta_key, *scaling_key;
    struct arch_key key[ARCH_SIZES];
    const struct arch_row *row; // in the order of files: embedding, a layer, norm, head
    size_t n_rows;
    const struct arch_setting *setting;
    size_t n_settings;
};

/* All of them; the last one is NULL.  The first one is that of a file that does not say. */
extern const struct arch *const arch_all[];

/* NULL: it is not supported. */
const struct arch *arch_of_type(struct slice model_type);
const struct arch *arch_of_gguf(struct slice architecture);
/* The row of a module: its name in a model directory, of a layer without what comes before
 * "self_attn." and the like.  NULL: no architecture has it. */
const struct arch_row *arch_row_of(struct slice module, bool layer,
                                   const struct arch **arch);

#endif
