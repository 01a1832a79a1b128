/* SPDX-License-Identifier: MIT */
/* config: see config.h. */
#include "lib/model/config.h"

#include "lib/base/json.h"
#include "lib/base/names.h"

#include <stdio.h>
#include <string.h>

struct parse {
    struct json j;
    struct config *c;
    const char *file;
    bool theta_top, theta_rope; // where rope_theta was found
    double theta[2];
    bool dtype_seen;
    bool knows_arch; // "model_type" is that of c->arch
};

static int
want_u32(struct parse *p, uint32_t *out, uint32_t low, uint32_t high, const char *key)
{
    uint64_t v;
    json_peek(&p->j);
    size_t at = p->j.pos;
    if (json_u63(&p->j, &v) < 0)
        return -1;
    if (v < low || v > high)
        return json_fail(&p->j, at, "%s: expected %u..%u, found %llu", key, low, high,
                         (unsigned long long)v);
    *out = (uint32_t)v;
    return 0;
}

static int
want_positive(struct parse *p, double *out, const char *key)
{
    json_peek(&p->j);
    size_t at = p->j.pos;
    if (json_number(&p->j, out) < 0)
        return -1;
    if (!(*out > 0))
        return json_fail(&p->j, at, "%s: expected a number above 0", key);
    return 0;
}

/* A value that must be just this text of JSON. */
static int
want_text(struct parse *p, const char *json, const char *key)
{
    struct slice raw;
    char q[TEXT_QUOTE];
    json_peek(&p->j);
    size_t at = p->j.pos;
    if (json_skip(&p->j, &raw) < 0)
        return -1;
    if (!slice_is(raw, json))
        return json_fail(&p->j, at, "%s: only %s is supported, found %s", key, json,
                         text_quote(q, raw.p, raw.n));
    return 0;
}

static int
want_zero(struct parse *p, const char *key)
{
    double v;
    json_peek(&p->j);
    size_t at = p->j.pos;
    if (json_number(&p->j, &v) < 0)
        return -1;
    return v == 0 ? 0 : json_fail(&p->j, at, "%s: only 0 is supported", key);
}

/* Informative: what is not known matters only to who needs it. */
static int
want_dtype(struct parse *p)
{
    static const char prefix[] = "torch.";
    struct slice s;
    if (json_peek(&p->j) == 'n')
        return json_null(&p->j);
    size_t at = p->j.pos;
    if (json_string(&p->j, &s) < 0)
        return -1;
    if (slice_starts(s, prefix)) {
        s.p += strlen(prefix);
        s.n -= strlen(prefix);
    }
    enum dtype d = slice_is(s, "bfloat16")  ? DT_BF16
                   : slice_is(s, "float16") ? DT_F16
                   : slice_is(s, "float32") ? DT_F32
                                            : DT_NONE;
    if (d == DT_NONE) {
        p->c->dtype = p->dtype_seen ? p->c->dtype : d;
        return 0;
    }
    if (p->dtype_seen && d != p->c->dtype)
        return json_fail(&p->j, at, "torch_dtype and dtype disagree");
    p->dtype_seen = true;
    p->c->dtype = d;
    return 0;
}

static int
want_eos(struct parse *p)
{
    struct config *c = p->c;
    int more;
    c->n_eos = 0;
    if (json_peek(&p->j) == '0') {
        c->n_eos = 1;
        return want_u32(p, &c->eos[0], 0, UINT32_MAX, "eos_token_id");
    }
    if (json_peek(&p->j) == 'n')
        return json_null(&p->j);
    json_array(&p->j);
    while ((more = json_item(&p->j)) > 0) {
        if (c->n_eos == MAX_EOS)
            return json_fail(&p->j, p->j.pos, "eos_token_id: more than %d", MAX_EOS);
        if (want_u32(p, &c->eos[c->n_eos++], 0, UINT32_MAX, "eos_token_id") < 0)
            return -1;
    }
    return more;
}

/* rope_parameters {"rope_type":"default","rope_theta":...} of newer writers. */
static int
want_rope(struct parse *p)
{
    struct slice key;
    int more;
    if (json_peek(&p->j) == 'n')
        return json_null(&p->j);
    json_object(&p->j);
    while ((more = json_key(&p->j, &key)) > 0) {
        int rc;
        if (slice_is(key, "rope_type") || slice_is(key, "type")) {
            rc = want_text(p, "\"default\"", "rope_type");
        } else if (slice_is(key, "rope_theta")) {
            p->theta_rope = true;
            rc = want_positive(p, &p->theta[1], "rope_theta");
        } else {
            rc = json_fail(&p->j, p->j.pos,
                           "rope_parameters: unknown key: only rope_type and "
                           "rope_theta are supported");
        }
        if (rc < 0)
            return -1;
    }
    return more;
}

/* An array whose items are all that text, or null. */
static int
want_list(struct parse *p, const char *json, const char *key)
{
    int more;
    if (json_peek(&p->j) == 'n')
        return json_null(&p->j);
    json_array(&p->j);
    while ((more = json_item(&p->j)) > 0)
        if (want_text(p, json, key) < 0)
            return -1;
    return more;
}

static int
want_architectures(struct parse *p)
{
    const char *class = p->c->arch->class;
    char json[64];
    snprintf(json, sizeof json, "\"%s\"", class);
    json_array(&p->j);
    if (json_item(&p->j) == 0)
        return json_fail(&p->j, p->j.pos, "architectures: expected %s", class);
    if (want_text(p, json, "architectures") < 0)
        return -1;
    if (json_item(&p->j) == 1)
        return json_fail(&p->j, p->j.pos, "architectures: expected %s and no other",
                         class);
    return p->j.err->kind ? -1 : 0;
}

/* The names of all architectures, as JSON. */
static const char *
all_types(char text[256])
{
    size_t n = 0;
    for (size_t i = 0; arch_all[i] && n < 256; i++)
        n += (size_t)snprintf(text + n, 256 - n, "%s\"%s\"", i ? " or " : "",
                              arch_all[i]->model_type);
    return text;
}

/* The architecture was looked up before. */
static int
want_model_type(struct parse *p)
{
    char json[64], all[256];
    snprintf(json, sizeof json, "\"%s\"", p->c->arch->model_type);
    return p->knows_arch ? want_text(p, json, "model_type")
                         : want_text(p, all_types(all), "model_type");
}

/* Sizes: key, where it goes, smallest and largest. */
static const struct {
    const char *key;
    size_t offset;
    uint32_t low, high;
    bool required;
} sizes[] = {
    { "hidden_size", offsetof(struct config, hidden), 1, 1 << 20, true },
    { "num_hidden_layers", offsetof(struct config, layers), 1, 4096, true },
    { "num_attention_heads", offsetof(struct config, heads), 1, 1 << 16, true },
    { "num_key_value_heads", offsetof(struct config, kv_heads), 1, 1 << 16, true },
    { "head_dim", offsetof(struct config, head_dim), 2, 1 << 16, false },
    { "intermediate_size", offsetof(struct config, ffn), 1, 1 << 24, true },
    { "vocab_size", offsetof(struct config, vocab), 1, 1 << 24, true },
    { "max_position_embeddings", offsetof(struct config, positions), 1, 1 << 30, true },
};

enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* Keys whose values tell another architecture, or mathematics that we do not do: 0 when
 * taken, 1: another key. */
static int
take_setting(struct parse *p, struct slice key)
{
    const struct arch *arch = p->c->arch;
    if (slice_is(key, "model_type"))
        return want_model_type(p);
    if (slice_is(key, "architectures"))
        return want_architectures(p);
    if (slice_is(key, "rope_parameters"))
        return want_rope(p);
    size_t i = 0;
    while (i < arch->n_settings && !slice_is(key, arch->setting[i].key))
        i++;
    if (i == arch->n_settings)
        return 1;
    const struct arch_setting *want = &arch->setting[i];
    if (want->list)
        return want_list(p, want->json, want->key);
    return want->json ? want_text(p, want->json, want->key) : want_zero(p, want->key);
}

/* Find the architecture of the text before its other keys are read; the first one of all where the
 * text does not say a supported one, which is refused later. */
static void
find_arch(struct parse *p, struct slice text)
{
    struct arena arena = { 0 };
    struct err err = { 0 };
    struct json j;
    struct slice key, type = { 0 };
    json_open(&j, "config", 0, text, &arena, &err);
    json_object(&j);
    while (json_key(&j, &key) > 0)
        if (slice_is(key, "model_type") && !type.p && json_peek(&j) == '"')
            json_string(&j, &type);
        else
            json_skip(&j, NULL);
    p->c->arch = arch_of_type(type);
    p->knows_arch = p->c->arch != NULL;
    if (!p->knows_arch)
        p->c->arch = arch_all[0];
    arena_free(&arena);
}

/* Keys beyond the sizes; 0 when taken, 1 when unknown (then it was skipped). */
static int
take_other(struct parse *p, struct slice key)
{
    struct config *c = p->c;
    int rc = take_setting(p, key);
    if (rc <= 0)
        return rc;
    if (slice_is(key, "rms_norm_eps"))
        return want_positive(p, &c->rms_eps, "rms_norm_eps");
    if (slice_is(key, "initializer_range"))
        return want_positive(p, &c->init_range, "initializer_range");
    if (slice_is(key, "rope_theta")) {
        p->theta_top = true;
        return want_positive(p, &p->theta[0], "rope_theta");
    }
    if (slice_is(key, "tie_word_embeddings"))
        return json_bool(&p->j, &c->tied);
    if (slice_is(key, "torch_dtype") || slice_is(key, "dtype"))
        return want_dtype(p);
    if (slice_is(key, "eos_token_id"))
        return want_eos(p);
    if (slice_is(key, "bos_token_id") && json_peek(&p->j) == '0') {
        uint32_t bos;
        if (want_u32(p, &bos, 0, UINT32_MAX, "bos_token_id") < 0)
            return -1;
        c->bos = bos;
        return 0;
    }
    return json_skip(&p->j, NULL) < 0 ? -1 : 1;
}

bool
config_is_supported(struct slice text)
{
    struct arena arena = { 0 };
    struct err err = { 0 };
    struct config c;
    struct parse p = { .c = &c };
    struct slice key;
    bool model_type = false;
    find_arch(&p, text);
    json_open(&p.j, "config", 0, text, &arena, &err);
    json_object(&p.j);
    while (json_key(&p.j, &key) > 0) {
        model_type |= slice_is(key, "model_type");
        if (take_setting(&p, key) > 0)
            json_skip(&p.j, NULL);
    }
    arena_free(&arena);
    return model_type && err.kind == ERR_NONE;
}

static int
check(struct parse *p, unsigned seen, bool model_type, bool eps)
{
    struct config *c = p->c;
    struct err *err = p->j.err;
    char all[256];
    for (unsigned i = 0; i < N_SIZES; i++)
        if (sizes[i].required && !(seen & 1U << i))
            return err_set(err, ERR_FORMAT, "%s: \"%s\" is missing", p->file,
                           sizes[i].key);
    if (!model_type)
        return err_set(err, ERR_FORMAT, "%s: \"model_type\" is missing: expected %s",
                       p->file, all_types(all));
    if (!eps)
        return err_set(err, ERR_FORMAT, "%s: \"rms_norm_eps\" is missing", p->file);
    if (!p->theta_top && !p->theta_rope)
        return err_set(err, ERR_FORMAT,
                       "%s: \"rope_theta\" is missing, and has no default", p->file);
    if (p->theta_top && p->theta_rope && p->theta[0] != p->theta[1])
        return err_set(err, ERR_FORMAT, "%s: rope_theta is given twice, as %g and %g",
                       p->file, p->theta[0], p->theta[1]);
    c->rope_theta = p->theta_top ? p->theta[0] : p->theta[1];
    if (c->heads % c->kv_heads)
        return err_set(err, ERR_FORMAT,
                       "%s: num_attention_heads %u is not a multiple of "
                       "num_key_value_heads %u",
                       p->file, c->heads, c->kv_heads);
    if (c->head_dim == 0 && c->hidden % c->heads)
        return err_set(
            err, ERR_FORMAT,
            "%s: \"head_dim\" is missing, and hidden_size %u is not a multiple of "
            "num_attention_heads %u",
            p->file, c->hidden, c->heads);
    if (c->head_dim == 0)
        c->head_dim = c->hidden / c->heads;
    if (c->head_dim % 2 || c->head_dim == 0)
        return err_set(err, ERR_FORMAT,
                       "%s: head_dim is %u: expected an even number above 0", p->file,
                       c->head_dim);
    return 0;
}

int
config_parse(struct config *c, const char *file, struct slice text, struct err *err)
{
    struct arena arena = { 0 };
    struct parse p = { .c = c, .file = file };
    struct seen keys = { 0 };
    struct slice key;
    unsigned seen = 0;
    bool model_type = false, eps = false;
    int more;
    *c = (struct config){ .init_range = 0.02, .bos = -1, .dtype = DT_BF16 };
    find_arch(&p, text);
    json_open(&p.j, file, 0, text, &arena, err);
    json_object(&p.j);
    for (size_t at = p.j.pos; (more = json_key(&p.j, &key)) > 0; at = p.j.pos) {
        char q[TEXT_QUOTE];
        int twice = seen_add(&keys, key); // 64 bits of a few hashes: they are enough
        if (twice > 0)
            json_fail(&p.j, at, "\"%s\" appears twice", text_quote(q, key.p, key.n));
        else if (twice < 0)
            err_set(err, ERR_MEMORY, "%s: out of memory", file);
        unsigned i = 0;
        while (i < N_SIZES && !slice_is(key, sizes[i].key))
            i++;
        if (i < N_SIZES) {
            seen |= 1U << i;
            uint32_t *out = (uint32_t *)(void *)((char *)c + sizes[i].offset);
            want_u32(&p, out, sizes[i].low, sizes[i].high, sizes[i].key);
            continue;
        }
        model_type |= slice_is(key, "model_type");
        eps |= slice_is(key, "rms_norm_eps");
        take_other(&p, key);
    }
    int rc = more < 0 || json_end(&p.j) < 0 ? -1 : check(&p, seen, model_type, eps);
    seen_free(&keys);
    arena_free(&arena);
    return rc;
}
