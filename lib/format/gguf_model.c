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

/* The same on both sides. */
static const char *const suffixes[] = { ".weight", ".scale", ".input_scale" };

enum {
    N_SUFFIXES = sizeof suffixes / sizeof *suffixes,
    MAX_LAYER = 1 << 24,
};

struct parsed {
    const struct arch *arch;
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

/* Find the module among the rows of an architecture. */
static bool
find_row(struct parsed *x, const struct arch *arch, struct slice module, bool layer,
         bool theirs)
{
    for (unsigned i = 0; i < arch->n_rows; i++) {
        const struct arch_row *row = &arch->row[i];
        if (row->layer != layer || !slice_is(module, theirs ? row->gguf : row->name))
            continue;
        x->arch = arch;
        x->row = i;
        return x->suffix == 0 || !row->norm;
    }
    return false;
}

static bool
parse_name(struct parsed *x, struct slice name, bool theirs)
{
    const char *prefix = theirs ? ARCH_GGUF_LAYER : ARCH_LAYER;
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
    for (size_t i = 0; arch_all[i]; i++)
        if (find_row(x, arch_all[i], name, layer, theirs))
            return true;
    return false;
}

static const struct arch_row *
row_of(const struct parsed *x)
{
    return &x->arch->row[x->row];
}

static void
put_name(struct buf *out, const struct parsed *x, bool theirs)
{
    if (row_of(x)->layer)
        buf_printf(out, "%s%u.", theirs ? ARCH_GGUF_LAYER : ARCH_LAYER, x->layer);
    buf_str(out, theirs ? row_of(x)->gguf : row_of(x)->name);
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
    enum { ROWS = 64 }; // more than there are
    uint64_t group = row_of(&x)->layer ? x.layer + 1
                     : x.row == 0      ? 0
                                  : (uint64_t)MAX_LAYER * 10 + 2; // above any layer
    return (group * ROWS + x.row) * N_SUFFIXES + x.suffix;
}

bool
gguf_is_norm(struct slice ours)
{
    struct parsed x;
    return parse_name(&x, ours, false) && row_of(&x)->norm;
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

/* Whether the key is that of an architecture, which the keys before it are of, too. */
static bool
is_of(struct gguf_model *m, struct slice key, const struct arch *arch, const char *want)
{
    if (!slice_is(key, want) || (m->arch && m->arch != arch))
        return false;
    m->arch = arch;
    return true;
}

static void
set_float(struct gguf_model *m, struct slice key, const struct arch *arch, double f)
{
    if (is_of(m, key, arch, arch->eps_key))
        m->eps = (float)f;
    else if (is_of(m, key, arch, arch->theta_key))
        m->theta = (float)f;
}

static void
set_size(struct gguf_model *m, struct slice key, const struct arch *arch, uint64_t n)
{
    for (unsigned i = 0; i < ARCH_SIZES; i++)
        if (is_of(m, key, arch, arch->key[i].gguf)) {
            m->size[i] = n;
            m->sizes |= 1U << i;
        }
}

/* A key of an architecture. */
static void
set_of(struct gguf_model *m, struct slice key, const struct arch *arch,
       const struct gguf_value *v)
{
    if (v->type == GGUF_STRING && is_of(m, key, arch, arch->scaling_key))
        m->rope_scaling = v->text;
    else if (v->type == GGUF_F32 || v->type == GGUF_F64)
        set_float(m, key, arch, v->f);
    else if (is_integer(v))
        set_size(m, key, arch, v->u);
}

void
gguf_model_set(struct gguf_model *m, struct slice key, const struct gguf_value *v)
{
    for (size_t i = 0; arch_all[i]; i++)
        set_of(m, key, arch_all[i], v);
    if (v->type == GGUF_STRING && slice_is(key, "general.architecture"))
        m->architecture = v->text;
    else if (v->type == GGUF_STRING && slice_is(key, "nibble.provenance"))
        m->nibble = v->text;
    else if (!is_integer(v) || v->u > UINT32_MAX)
        return;
    else if (slice_is(key, "tokenizer.ggml.bos_token_id"))
        m->bos = (int64_t)v->u;
    else if (slice_is(key, "tokenizer.ggml.eos_token_id"))
        m->eos = (int64_t)v->u;
}

static const struct tensor *
embedding(const struct store *s)
{
    const struct tensor *t = store_find(s, slice_of(ARCH_GGUF_EMBED));
    return t && t->rank == 2 ? t : NULL;
}

/* What is missing or impossible; NULL if nothing is. */
static const char *
lacking(const struct gguf_model *m, const struct arch *arch, const struct store *s)
{
    if (m->arch != arch)
        return arch->key[ARCH_LAYERS].gguf;
    for (unsigned i = 0; i < ARCH_SIZES; i++)
        if (arch->key[i].required && !(m->sizes & 1U << i))
            return arch->key[i].gguf;
    if (!(m->eps > 0) || isinf(m->eps))
        return arch->eps_key;
    if (!(m->theta > 0) || isinf(m->theta))
        return arch->theta_key;
    if (!embedding(s))
        return ARCH_GGUF_EMBED;
    bool key = m->sizes & 1U << ARCH_HEAD_DIM, value = m->sizes & 1U << ARCH_VALUE_DIM;
    if (key != value || m->size[ARCH_HEAD_DIM] != m->size[ARCH_VALUE_DIM])
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
        buf_printf(b, "  \"%s\": %llu,\n", m->arch->key[i].config,
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
    const struct arch *arch = arch_of_gguf(m->architecture);
    if (!arch)
        return;
    *missing = lacking(m, arch, s);
    if (*missing)
        return;
    const struct tensor *embed = embedding(s);
    bool tied = !store_find(s, slice_of(ARCH_GGUF_HEAD));
    buf_printf(out,
               "{\n  \"architectures\": [\n    \"%s\"\n  ],\n"
               "  \"attention_bias\": false,\n",
               arch->class);
    if (m->bos >= 0)
        buf_printf(out, "  \"bos_token_id\": %lld,\n", (long long)m->bos);
    if (m->eos >= 0)
        buf_printf(out, "  \"eos_token_id\": %lld,\n", (long long)m->eos);
    put_size(out, m, ARCH_HEAD_DIM);
    buf_str(out, "  \"hidden_act\": \"silu\",\n");
    put_size(out, m, ARCH_HIDDEN);
    put_size(out, m, ARCH_FFN);
    put_size(out, m, ARCH_POSITIONS);
    buf_printf(out, "  \"model_type\": \"%s\",\n", arch->model_type);
    put_size(out, m, ARCH_HEADS);
    put_size(out, m, ARCH_LAYERS);
    put_size(out, m, ARCH_KV_HEADS);
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
    for (unsigned i = 0; m->arch && i < ARCH_SIZES && !key; i++)
        if (slice_is(name, m->arch->key[i].config) && m->sizes & 1U << i) {
            key = m->arch->key[i].config;
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
