/* SPDX-License-Identifier: MIT */
/* gguf_vocab: see gguf_vocab.h.
 *
 * The tokenizer is opened as for encoding first, which refuses unsupported ones.  Its file
 * is then read a second time for what encoding does not need: how tokens are spelt, and
 * which of the added ones are special.
 */
#include "lib/load/gguf_vocab.h"

#include "lib/base/json.h"
#include "lib/file/map.h"
#include "lib/file/path.h"
#include "lib/text/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum token_type { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

struct vocab {
    struct json j;
    const struct config *c;
    struct slice *text; // (c->vocab) p == NULL: no such token
    uint8_t *type;      // (c->vocab) enum token_type
    struct buf merges;  // strings, as a GGUF has them
    uint64_t n_merges;
};

/* ---- where it is ------------------------------------------------------------------ */

/* DIR/leaf, if path is a directory, or leaf beside the file. */
static void
put_place(struct buf *b, const char *path, const char *leaf)
{
    struct stat st;
    const char *slash = strrchr(path, '/');
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        buf_printf(b, "%s%s", path, slash && !slash[1] ? "" : "/");
    } else if (slash) {
        buf_add(b, path, (size_t)(slash - path) + 1);
    }
    buf_str(b, leaf);
}

int
gguf_find_tokenizer(char **path, char *const *places, size_t n, struct err *err)
{
    struct buf tried = { 0 };
    int rc = 1;
    *path = NULL;
    for (size_t i = 0; i < n && rc > 0; i++) {
        struct buf b = { 0 };
        if (!places[i] || strcmp(places[i], "-") == 0)
            continue;
        put_place(&b, places[i], "tokenizer.json");
        rc = buf_ok(&b, err);
        if (rc == 0)
            rc = path_exists(b.data, err);
        if (rc > 0) {
            *path = b.data;
            rc = 0;
            break;
        }
        if (rc == 0) {
            buf_str(&tried, tried.len ? ", " : "");
            text_escape(&tried, b.data, b.len);
            rc = 1;
        }
        buf_free(&b);
    }
    if (rc > 0)
        rc = err_set(err, ERR_USAGE,
                     "a GGUF needs a tokenizer.json: looked for %s; -t FILE names one",
                     tried.data ? tried.data : "none, since no input is a file");
    buf_free(&tried);
    return rc;
}

/* The whole file, to be freed; text->p == NULL if it is not there and not needed. */
static int
load(struct slice *text, const char *path, bool needed, struct guard *g,
     struct err *err)
{
    struct map m;
    struct stat st;
    *text = (struct slice){ 0 };
    if (!needed && stat(path, &st) < 0 && errno == ENOENT)
        return 0;
    int rc = map_open(&m, path, g, err);
    char *p = rc == 0 ? malloc(m.size + 1) : NULL;
    if (rc == 0 && !p)
        rc = err_set(err, ERR_MEMORY, "%s: out of memory", m.name);
    if (rc == 0)
        rc = map_read(&m, p, m.size, 0, err);
    if (rc == 0)
        *text = (struct slice){ p, m.size };
    else
        free(p);
    map_close(&m);
    return rc;
}

/* ---- tokenizer.json ----------------------------------------------------------------- */

static int
set_token(struct vocab *v, uint64_t id, struct slice text, enum token_type type)
{
    char q[TEXT_QUOTE];
    if (id >= v->c->vocab)
        return json_fail(&v->j, v->j.pos,
                         "token \"%s\" has the id %llu, the model's vocab_size is %u",
                         text_quote(q, text.p, text.n), (unsigned long long)id,
                         v->c->vocab);
    if (type == NORMAL && v->text[id].p) // an added token is in both lists
        return 0;
    v->text[id] = text;
    v->type[id] = (uint8_t)type;
    return 0;
}

/* To llama.cpp's converter every <|...|> is a control token, even if tokenizer.json
 * disagrees: Qwen's <|fim_prefix|> and the like. */
static bool
looks_special(struct slice text)
{
    return slice_starts(text, "<|") && slice_ends(text, "|>");
}

static int
read_added(struct vocab *v)
{
    struct json *j = &v->j;
    struct slice key, text = { 0 };
    uint64_t id = 0;
    bool special = false;
    int rc = 0;
    json_object(j);
    while (rc == 0 && json_key(j, &key) > 0)
        rc = slice_is(key, "id")        ? json_u63(j, &id)
             : slice_is(key, "content") ? json_string(j, &text)
             : slice_is(key, "special") ? json_bool(j, &special)
                                        : json_skip(j, NULL);
    if (j->err->kind)
        return -1;
    special |= looks_special(text);
    return set_token(v, id, text, special ? CONTROL : USER_DEFINED);
}

static int
read_vocab(struct vocab *v)
{
    struct slice key;
    uint64_t id;
    int more;
    json_object(&v->j);
    while ((more = json_key(&v->j, &key)) > 0)
        if (json_u63(&v->j, &id) < 0 || set_token(v, id, key, NORMAL) < 0)
            return -1;
    return more;
}

/* "a b", or ["a","b"]: the tokens have no spaces of their own. */
static int
read_merge(struct vocab *v)
{
    struct slice a = { 0 }, b = { 0 };
    if (json_peek(&v->j) == '"') {
        if (json_string(&v->j, &a) < 0)
            return -1;
        gguf_put_string(&v->merges, a);
        return 0;
    }
    json_array(&v->j);
    json_item(&v->j);
    json_string(&v->j, &a);
    json_item(&v->j);
    if (json_string(&v->j, &b) < 0 || json_item(&v->j) < 0)
        return -1;
    gguf_put_u64(&v->merges, a.n + 1 + b.n);
    buf_add(&v->merges, a.p, a.n);
    buf_char(&v->merges, ' ');
    buf_add(&v->merges, b.p, b.n);
    return 0;
}

static int
read_merges(struct vocab *v)
{
    int more;
    json_array(&v->j);
    for (; (more = json_item(&v->j)) > 0; v->n_merges++)
        if (read_merge(v) < 0)
            return -1;
    return more;
}

static int
read_model(struct vocab *v)
{
    struct slice key;
    int rc = 0, more = 0;
    json_object(&v->j);
    while (rc == 0 && (more = json_key(&v->j, &key)) > 0)
        rc = slice_is(key, "vocab")    ? read_vocab(v)
             : slice_is(key, "merges") ? read_merges(v)
                                       : json_skip(&v->j, NULL);
    return rc < 0 ? -1 : more;
}

static int
read_all_added(struct vocab *v)
{
    int more;
    if (json_peek(&v->j) == 'n')
        return json_null(&v->j);
    json_array(&v->j);
    while ((more = json_item(&v->j)) > 0)
        if (read_added(v) < 0)
            return -1;
    return more;
}

static int
read_tokenizer(struct vocab *v)
{
    struct slice key;
    int rc = 0, more = 0;
    json_object(&v->j);
    while (rc == 0 && (more = json_key(&v->j, &key)) > 0)
        rc = slice_is(key, "model")          ? read_model(v)
             : slice_is(key, "added_tokens") ? read_all_added(v)
                                             : json_skip(&v->j, NULL);
    return rc < 0 || more < 0 ? -1 : json_end(&v->j);
}

/* ---- pairs -------------------------------------------------------------------------- */

static void
put_config(struct gguf_kv *kv, const struct config *c)
{
    const uint32_t size[ARCH_SIZES] = {
        [ARCH_LAYERS] = c->layers,     [ARCH_POSITIONS] = c->positions,
        [ARCH_HIDDEN] = c->hidden,     [ARCH_FFN] = c->ffn,
        [ARCH_HEADS] = c->heads,       [ARCH_KV_HEADS] = c->kv_heads,
        [ARCH_HEAD_DIM] = c->head_dim, [ARCH_VALUE_DIM] = c->head_dim,
    };
    kv->architecture = c->arch->gguf;
    for (unsigned i = 0; i < ARCH_SIZES; i++)
        gguf_kv_u32(kv, c->arch->key[i].gguf, size[i]);
    gguf_kv_f32(kv, c->arch->eps_key, (float)c->rms_eps);
    gguf_kv_f32(kv, c->arch->theta_key, (float)c->rope_theta);
}

static void
put_vocab(struct gguf_kv *kv, const struct vocab *v)
{
    uint32_t n = v->c->vocab;
    gguf_kv_string(kv, "tokenizer.ggml.model", slice_of("gpt2"));
    gguf_kv_string(kv, "tokenizer.ggml.pre", slice_of(v->c->arch->gguf_pre));
    gguf_kv_array(kv, "tokenizer.ggml.tokens", GGUF_STRING, n);
    for (uint32_t i = 0; i < n; i++) {
        struct buf pad = { 0 };
        if (!v->text[i].p)
            buf_printf(&pad, "[PAD%u]", i);
        gguf_put_string(&kv->bytes, v->text[i].p ? v->text[i]
                                                 : (struct slice){ pad.data, pad.len });
        kv->bytes.failed |= pad.failed;
        buf_free(&pad);
    }
    gguf_kv_array(kv, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (uint32_t i = 0; i < n; i++)
        gguf_put_u32(&kv->bytes, v->text[i].p ? v->type[i] : UNUSED);
    gguf_kv_array(kv, "tokenizer.ggml.merges", GGUF_STRING, v->n_merges);
    buf_add(&kv->bytes, v->merges.data, v->merges.len);
    kv->bytes.failed |= v->merges.failed;
}

/* Ids of special tokens.  Readers use ids of another vocabulary for what is missing, so an
 * id that is not in the configuration is looked up by the token's text. */
static void
put_ids(struct gguf_kv *kv, const struct config *c, const struct tokenizer *t)
{
    uint32_t text_end = tokenizer_added(t, "<|endoftext|>");
    uint32_t turn_end = tokenizer_added(t, "<|im_end|>");
    uint32_t eos = c->n_eos ? c->eos[0] : turn_end != TOKEN_NONE ? turn_end : text_end;
    uint32_t bos = c->bos >= 0 ? (uint32_t)c->bos : text_end;
    if (bos != TOKEN_NONE)
        gguf_kv_u32(kv, "tokenizer.ggml.bos_token_id", bos);
    if (eos != TOKEN_NONE)
        gguf_kv_u32(kv, "tokenizer.ggml.eos_token_id", eos);
    if (text_end != TOKEN_NONE)
        gguf_kv_u32(kv, "tokenizer.ggml.padding_token_id", text_end);
    gguf_kv_bool(kv, "tokenizer.ggml.add_bos_token", false);
}

/* ---- the chat template ------------------------------------------------------------------ */

/* Of an array of {"name":..., "template":...}, the template named "default". */
static int
read_named(struct json *j, struct slice *template)
{
    struct slice key, name = { 0 }, text = { 0 };
    int more, member = 0;
    json_array(j);
    while ((more = json_item(j)) > 0) {
        json_object(j);
        while ((member = json_key(j, &key)) > 0)
            if ((slice_is(key, "name")       ? json_string(j, &name)
                 : slice_is(key, "template") ? json_string(j, &text)
                                             : json_skip(j, NULL)) < 0)
                return -1;
        if (member < 0)
            return -1;
        if (slice_is(name, "default"))
            *template = text;
    }
    return more;
}

/* "chat_template" of tokenizer_config.json. */
static int
read_template(struct json *j, struct slice *template)
{
    struct slice key;
    int rc = 0, more = 0;
    json_object(j);
    while (rc == 0 && (more = json_key(j, &key)) > 0) {
        bool wanted = slice_is(key, "chat_template");
        if (wanted && json_peek(j) == '"')
            rc = json_string(j, template);
        else if (wanted && json_peek(j) == '[')
            rc = read_named(j, template);
        else
            rc = json_skip(j, NULL);
    }
    return rc < 0 || more < 0 ? -1 : json_end(j);
}

static int
put_template(struct gguf_kv *kv, const char *tokenizer, struct guard *g,
             struct err *err)
{
    struct buf settings = { 0 }, jinja = { 0 }, name = { 0 };
    struct slice text = { 0 }, bare = { 0 }, template = { 0 };
    struct arena arena = { 0 };
    struct json j;
    put_place(&settings, tokenizer, "tokenizer_config.json");
    put_place(&jinja, tokenizer, "chat_template.jinja");
    int rc = buf_ok(&settings, err) < 0 ? -1 : buf_ok(&jinja, err);
    if (rc == 0)
        rc = load(&text, settings.data, false, g, err);
    if (rc == 0 && text.p) {
        text_escape(&name, settings.data, settings.len);
        json_open(&j, name.data ? name.data : "", 0, text, &arena, err);
        rc = read_template(&j, &template);
    }
    if (rc == 0 && !template.p) {
        rc = load(&bare, jinja.data, false, g, err);
        template = bare;
    }
    if (rc == 0 && template.p)
        gguf_kv_string(kv, "tokenizer.chat_template", template);
    free((char *)text.p);
    free((char *)bare.p);
    arena_free(&arena);
    buf_free(&settings);
    buf_free(&jinja);
    buf_free(&name);
    return rc;
}

/* ---- all together ------------------------------------------------------------------------ */

static int
put_tokenizer(struct gguf_kv *kv, struct vocab *v, const struct tokenizer *t,
              const char *path, struct guard *g, struct err *err)
{
    struct slice text;
    struct arena arena = { 0 };
    struct buf name = { 0 };
    int rc = load(&text, path, true, g, err);
    text_escape(&name, path, strlen(path));
    if (rc == 0) {
        json_open(&v->j, name.data ? name.data : "", 0, text, &arena, err);
        rc = read_tokenizer(v);
    }
    if (rc == 0) {
        put_vocab(kv, v); // tokens are borrowed from the text
        put_ids(kv, v->c, t);
    }
    free((char *)text.p);
    arena_free(&arena);
    buf_free(&name);
    return rc;
}

int
gguf_vocab(struct gguf_kv *kv, const struct config *c, const char *tokenizer,
           struct guard *g, struct err *err)
{
    struct vocab v = { .c = c };
    struct tokenizer *t = tokenizer_open(tokenizer, g, err);
    v.text = calloc(c->vocab, sizeof *v.text);
    v.type = calloc(c->vocab, sizeof *v.type);
    int rc = t ? 0 : -1;
    if (rc == 0 && (!v.text || !v.type))
        rc = err_set(err, ERR_MEMORY, "out of memory for %u tokens", c->vocab);
    if (rc == 0) {
        put_config(kv, c);
        rc = put_tokenizer(kv, &v, t, tokenizer, g, err);
    }
    if (rc == 0)
        rc = put_template(kv, tokenizer, g, err);
    if (rc == 0)
        rc = buf_ok(&kv->bytes, err);
    tokenizer_close(t);
    free(v.text);
    free(v.type);
    buf_free(&v.merges);
    return rc;
}
