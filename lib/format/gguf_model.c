/* SPDX-License-Identifier: MIT */
/* gguf_model: names of tensors, key-value pairs and the configuration: see gguf.h. */
#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/format/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---------------------------------------------------------------------- */

/* In the order of files.  Names of a layer follow its number. */
static const struct {
    const char *ours, *theirs;
    bool layer, norm;
} rows[] = {
    { "model.embed_tokens", "token_embd", false, false },
    { "self_attn.q_proj", "attn_q", true, false },
    { "self_attn.k_proj", "attn_k", true, false },
    { "self_attn.v_proj", "attn_v", true, false },
    { "self_attn.o_proj", "attn_output", true, false },
    { "self_attn.q_norm", "attn_q_norm", true, true },
    { "self_attn.k_norm", "attn_k_norm", true, true },
    { "mlp.gate_proj", "ffn_gate", true, false },
    { "mlp.up_proj", "ffn_up", true, false },
    { "mlp.down_proj", "ffn_down", true, false },
    { "input_layernorm", "attn_norm", true, true },
    { "post_attention_layernorm", "ffn_norm", true, true },
    { "model.norm", "output_norm", false, true },
    { "lm_head", "output", false, false },
};

/* The same on both sides. */
static const char *const suffixes[] = { ".weight", ".scale", ".input_scale" };

enum {
    N_ROWS = sizeof rows / sizeof *rows,
    N_SUFFIXES = sizeof suffixes / sizeof *suffixes,
    MAX_LAYER = 1 << 24,
};

struct parsed {
    unsigned row, suffix;
    uint32_t layer;
};

/* "17." at the beginning of s, in its shortest form; the rest stays in s. */
static bool
read_number(uint32_t *number, struct slice *s)
{
    uint32_t v = 0;
    size_t i = 0;
    for (; i < s->n && s->p[i] >= '0' && s->p[i] <= '9' && v < MAX_LAYER; i++)
        v = 10 * v + (uint32_t)(s->p[i] - '0');
    if (i == 0 || (s->p[0] == '0' && i > 1) || i == s->n || s->p[i] != '.')
        return false;
    *number = v;
    *s = (struct slice){ s->p + i + 1, s->n - i - 1 };
    return true;
}

static bool
parse_name(struct parsed *x, struct slice name, bool theirs)
{
    const char *prefix = theirs ? "blk." : "model.layers.";
    bool layer = slice_starts(name, prefix);
    *x = (struct parsed){ 0 };
    if (layer) {
        name = (struct slice){ name.p + strlen(prefix), name.n - strlen(prefix) };
        if (!read_number(&x->layer, &name))
            return false;
    }
    while (x->suffix < N_SUFFIXES && !slice_ends(name, suffixes[x->suffix]))
        x->suffix++;
    if (x->suffix == N_SUFFIXES)
        return false;
    // ".input_scale" does not end in ".scale", so the first that fits is right.
    name.n -= strlen(suffixes[x->suffix]);
    for (; x->row < N_ROWS; x->row++)
        if (rows[x->row].layer == layer &&
            slice_is(name, theirs ? rows[x->row].theirs : rows[x->row].ours))
            return x->suffix == 0 || !rows[x->row].norm;
    return false;
}

static void
put_name(struct buf *out, const struct parsed *x, bool theirs)
{
    if (rows[x->row].layer)
        buf_printf(out, "%s%u.", theirs ? "blk." : "model.layers.", x->layer);
    buf_str(out, theirs ? rows[x->row].theirs : rows[x->row].ours);
    buf_str(out, suffixes[x->suffix]);
}

bool
gguf_name_of(struct buf *out, struct slice ours)
{
    struct parsed x;
    if (!parse_name(&x, ours, false))
        return false;
    put_name(out, &x, true);
    return true;
}

bool
gguf_name_to_ours(struct buf *out, struct slice theirs)
{
    struct parsed x;
    if (!parse_name(&x, theirs, true))
        return false;
    put_name(out, &x, false);
    return true;
}

uint64_t
gguf_place(struct slice ours)
{
    struct parsed x;
    if (!parse_name(&x, ours, false))
        return UINT64_MAX;
    uint64_t group = rows[x.row].layer ? x.layer + 1
                     : x.row == 0      ? 0
                                  : (uint64_t)MAX_LAYER * 10 + 2; // above any layer
    return (group * N_ROWS + x.row) * N_SUFFIXES + x.suffix;
}

bool
gguf_is_norm(struct slice ours)
{
    struct parsed x;
    return parse_name(&x, ours, false) && rows[x.row].norm;
}

/* ---- key-value pairs --------------------------------------------------------------- */

void
gguf_put_u32(struct buf *b, uint32_t v)
{
    uint8_t bytes[4];
    store_le32(bytes, v);
    buf_add(b, bytes, sizeof bytes);
}

void
gguf_put_u64(struct buf *b, uint64_t v)
{
    uint8_t bytes[8];
    store_le64(bytes, v);
    buf_add(b, bytes, sizeof bytes);
}

void
gguf_put_string(struct buf *b, struct slice s)
{
    gguf_put_u64(b, s.n);
    buf_add(b, s.p, s.n);
}

static void
put_key(struct gguf_kv *kv, const char *key, enum gguf_type type)
{
    gguf_put_string(&kv->bytes, slice_of(key));
    gguf_put_u32(&kv->bytes, type);
    kv->n++;
}

void
gguf_kv_u32(struct gguf_kv *kv, const char *key, uint32_t v)
{
    put_key(kv, key, GGUF_U32);
    gguf_put_u32(&kv->bytes, v);
}

void
gguf_kv_f32(struct gguf_kv *kv, const char *key, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(kv, key, GGUF_F32);
    gguf_put_u32(&kv->bytes, bits);
}

void
gguf_kv_bool(struct gguf_kv *kv, const char *key, bool v)
{
    put_key(kv, key, GGUF_BOOL);
    buf_char(&kv->bytes, (char)v);
}

void
gguf_kv_string(struct gguf_kv *kv, const char *key, struct slice v)
{
    put_key(kv, key, GGUF_STRING);
    gguf_put_string(&kv->bytes, v);
}

void
gguf_kv_array(struct gguf_kv *kv, const char *key, enum gguf_type item, uint64_t n)
{
    put_key(kv, key, GGUF_ARRAY);
    gguf_put_u32(&kv->bytes, item);
    gguf_put_u64(&kv->bytes, n);
}

void
gguf_kv_free(struct gguf_kv *kv)
{
    buf_free(&kv->bytes);
    kv->n = 0;
}

/* ---- the configuration --------------------------------------------------------------- */

enum { LAYERS, POSITIONS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM };

static const struct {
    const char *key, *json;
    bool required;
} sizes[GGUF_SIZES] = {
    [LAYERS] = { "qwen3.block_count", "num_hidden_layers", true },
    [POSITIONS] = { "qwen3.context_length", "max_position_embeddings", true },
    [HIDDEN] = { "qwen3.embedding_length", "hidden_size", true },
    [FFN] = { "qwen3.feed_forward_length", "intermediate_size", true },
    [HEADS] = { "qwen3.attention.head_count", "num_attention_heads", true },
    [KV_HEADS] = { "qwen3.attention.head_count_kv", "num_key_value_heads", true },
    [HEAD_DIM] = { "qwen3.attention.key_length", "head_dim", false },
    // It has no name in config.json: it must be the same.
    [VALUE_DIM] = { "qwen3.attention.value_length", "head_dim", false },
};

static const char eps_key[] = "qwen3.attention.layer_norm_rms_epsilon";
static const char theta_key[] = "qwen3.rope.freq_base";

void
gguf_model_init(struct gguf_model *m)
{
    *m = (struct gguf_model){ .bos = -1, .eos = -1 };
}

static bool
is_integer(const struct gguf_value *v)
{
    return v->type != GGUF_F32 && v->type != GGUF_F64 && v->type != GGUF_BOOL &&
           v->type != GGUF_STRING && v->type != GGUF_ARRAY && !v->negative;
}

void
gguf_model_set(struct gguf_model *m, struct slice key, const struct gguf_value *v)
{
    if (v->type == GGUF_STRING) {
        if (slice_is(key, "general.architecture"))
            m->architecture = v->text;
        else if (slice_is(key, "nibble.provenance"))
            m->nibble = v->text;
        else if (slice_is(key, "qwen3.rope.scaling.type"))
            m->rope_scaling = v->text;
    } else if (v->type == GGUF_F32 || v->type == GGUF_F64) {
        if (slice_is(key, eps_key))
            m->eps = (float)v->f;
        else if (slice_is(key, theta_key))
            m->theta = (float)v->f;
    } else if (is_integer(v)) {
        for (unsigned i = 0; i < GGUF_SIZES; i++)
            if (slice_is(key, sizes[i].key)) {
                m->size[i] = v->u;
                m->sizes |= 1U << i;
            }
        if (slice_is(key, "tokenizer.ggml.bos_token_id") && v->u <= UINT32_MAX)
            m->bos = (int64_t)v->u;
        else if (slice_is(key, "tokenizer.ggml.eos_token_id") && v->u <= UINT32_MAX)
            m->eos = (int64_t)v->u;
    }
}

static const struct tensor *
embedding(const struct store *s)
{
    const struct tensor *t = store_find(s, slice_of("token_embd.weight"));
    return t && t->rank == 2 ? t : NULL;
}

/* What is missing or impossible; NULL if nothing is. */
static const char *
lacking(const struct gguf_model *m, const struct store *s)
{
    for (unsigned i = 0; i < GGUF_SIZES; i++)
        if (sizes[i].required && !(m->sizes & 1U << i))
            return sizes[i].key;
    if (!(m->eps > 0) || isinf(m->eps))
        return eps_key;
    if (!(m->theta > 0) || isinf(m->theta))
        return theta_key;
    if (!embedding(s))
        return "token_embd.weight";
    bool key = m->sizes & 1U << HEAD_DIM, value = m->sizes & 1U << VALUE_DIM;
    if (key != value || m->size[HEAD_DIM] != m->size[VALUE_DIM])
        return "one length of keys and values";
    return NULL;
}

void
gguf_put_shortest(struct buf *b, float f)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        if (strtof(text, NULL) == f)
            break;
    }
    // A whole number is written as one, as config.json has it: 5000000, not 5e+06.
    if (f == truncf(f) && fabsf(f) < 1e9F)
        snprintf(text, sizeof text, "%.0f", (double)f);
    buf_str(b, text);
}

static void
put_size(struct buf *b, const struct gguf_model *m, unsigned i)
{
    if (m->sizes & 1U << i)
        buf_printf(b, "  \"%s\": %llu,\n", sizes[i].json,
                   (unsigned long long)m->size[i]);
}

static const char *
torch_dtype(const struct tensor *t)
{
    return t->dtype == DT_F16 ? "float16" : t->dtype == DT_F32 ? "float32" : "bfloat16";
}

void
gguf_model_config(const struct gguf_model *m, const struct store *s, struct buf *out,
                  const char **missing)
{
    *missing = NULL;
    if (!slice_is(m->architecture, "qwen3"))
        return;
    *missing = lacking(m, s);
    if (*missing)
        return;
    const struct tensor *embed = embedding(s);
    bool tied = !store_find(s, slice_of("output.weight"));
    buf_str(out, "{\n  \"architectures\": [\n    \"Qwen3ForCausalLM\"\n  ],\n"
                 "  \"attention_bias\": false,\n");
    if (m->bos >= 0)
        buf_printf(out, "  \"bos_token_id\": %lld,\n", (long long)m->bos);
    if (m->eos >= 0)
        buf_printf(out, "  \"eos_token_id\": %lld,\n", (long long)m->eos);
    put_size(out, m, HEAD_DIM);
    buf_str(out, "  \"hidden_act\": \"silu\",\n");
    put_size(out, m, HIDDEN);
    put_size(out, m, FFN);
    put_size(out, m, POSITIONS);
    buf_str(out, "  \"model_type\": \"qwen3\",\n");
    put_size(out, m, HEADS);
    put_size(out, m, LAYERS);
    put_size(out, m, KV_HEADS);
    buf_str(out, "  \"rms_norm_eps\": ");
    gguf_put_shortest(out, m->eps);
    buf_str(out, ",\n  \"rope_scaling\": ");
    if (m->rope_scaling.p && !slice_is(m->rope_scaling, "none")) {
        buf_str(out, "{\"rope_type\": "); // refused by who reads the configuration
        json_put(out, m->rope_scaling);
        buf_char(out, '}');
    } else {
        buf_str(out, "null");
    }
    buf_str(out, ",\n  \"rope_theta\": ");
    gguf_put_shortest(out, m->theta);
    buf_printf(out,
               ",\n  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"%s\",\n"
               "  \"vocab_size\": %llu\n}\n",
               tied ? "true" : "false", torch_dtype(embed),
               (unsigned long long)embed->shape[0]);
}

/* Whether the number that comes next in j is what the keys have under that name of
 * config.json; a name that they do not have is skipped. */
static bool
number_agrees(struct json *j, struct slice name, const struct gguf_model *m,
              const struct store *s, const char **differs)
{
    const struct tensor *embed = embedding(s);
    const char *key = NULL;
    double want = 0, v = 0;
    bool is_float = false;
    for (unsigned i = 0; i < GGUF_SIZES && !key; i++)
        if (slice_is(name, sizes[i].json) && m->sizes & 1U << i) {
            key = sizes[i].json;
            want = (double)m->size[i];
        }
    if (slice_is(name, "vocab_size") && embed) {
        key = "vocab_size";
        want = (double)embed->shape[0];
    } else if (slice_is(name, "rms_norm_eps") && m->eps > 0) {
        key = "rms_norm_eps";
        want = (double)m->eps;
        is_float = true;
    } else if (slice_is(name, "rope_theta") && m->theta > 0) {
        key = "rope_theta";
        want = (double)m->theta;
        is_float = true;
    }
    if (!key || json_peek(j) != '0') {
        json_skip(j, NULL);
        return true;
    }
    // The keys are floats: the float next to the configuration's number is the same.
    if (json_number(j, &v) == 0 && (is_float ? (float)v : v) == want)
        return true;
    *differs = key;
    return false;
}

bool
gguf_model_agrees(const struct gguf_model *m, const struct store *s,
                  struct slice config, const char **differs)
{
    struct json j;
    struct err err = { 0 };
    struct arena arena = { 0 };
    struct slice key;
    bool same = true;
    json_open(&j, "", 0, config, &arena, &err);
    json_object(&j);
    while (same && json_key(&j, &key) > 0) {
        if (slice_is(key, "rope_parameters") && json_peek(&j) == '{') {
            json_object(&j);
            while (same && json_key(&j, &key) > 0)
                same = number_agrees(&j, key, m, s, differs);
        } else {
            same = number_agrees(&j, key, m, s, differs);
        }
    }
    arena_free(&arena);
    return same;
}
