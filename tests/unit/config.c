/* SPDX-License-Identifier: MIT */
/* config and table: the real configuration of Qwen3-4B-Instruct-2507 (tests/vectors),
 * and each single change to it that must be refused or taken. */
#include "lib/model/config.h"

#include "lib/base/buf.h"
#include "lib/model/table.h"
#include "tests/unit/check.h"

#define VECTOR "tests/vectors/qwen3-4b-config.json"

static struct buf text;

static void
read_vector(void)
{
    char part[4096];
    size_t n;
    FILE *f = fopen(VECTOR, "rb");
    NEED(f);
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        buf_add(&text, part, n);
    NEED(!ferror(f) && !text.failed && text.len);
    fclose(f);
}

static void
check_values(void)
{
    struct config c;
    struct err err = { 0 };
    CHECK(config_parse(&c, "config.json", (struct slice){ text.data, text.len },
                       &err) == 0);
    CHECK_ERR(err, ERR_NONE, "");
    CHECK(c.hidden == 2560 && c.layers == 36 && c.heads == 32 && c.kv_heads == 8);
    CHECK(c.head_dim == 128 && c.ffn == 9728 && c.vocab == 151936);
    CHECK(c.positions == 262144 && c.rms_eps == 1e-06 && c.rope_theta == 5000000);
    CHECK(c.init_range == 0.02 && c.tied && c.dtype == DT_BF16);
    CHECK(c.bos == 151643 && c.n_eos == 1 && c.eos[0] == 151645);
}

static void
check_row(const struct table *t, size_t i, const char *name, enum role role, int layer,
          uint64_t rows, uint64_t cols, bool quantized)
{
    NEED(i < t->n);
    const struct row *r = &t->row[i];
    CHECK_SAY(strcmp(r->name, name) == 0 && r->role == role && r->layer == layer &&
                  r->quantized == quantized && r->rank == (cols ? 2 : 1) &&
                  r->shape[0] == rows && (!cols || r->shape[1] == cols) &&
                  r->numel == rows * (cols ? cols : 1),
              "row %zu: %s [%llu,%llu], expected %s", i, r->name,
              (unsigned long long)r->shape[0], (unsigned long long)r->shape[1], name);
    CHECK(table_find(t, slice_of(name)) == r);
}

/* The inventory, in the order of a real file. */
static void
check_table(bool with_head)
{
    static const struct {
        const char *name;
        uint64_t rows, cols;
        enum role role;
        bool quantized;
    } layer[] = {
        { "self_attn.q_proj", 4096, 2560, ROLE_Q, true },
        { "self_attn.k_proj", 1024, 2560, ROLE_K, true },
        { "self_attn.v_proj", 1024, 2560, ROLE_V, true },
        { "self_attn.o_proj", 2560, 4096, ROLE_O, true },
        { "self_attn.q_norm", 128, 0, ROLE_Q_NORM, false },
        { "self_attn.k_norm", 128, 0, ROLE_K_NORM, false },
        { "mlp.gate_proj", 9728, 2560, ROLE_GATE, true },
        { "mlp.up_proj", 9728, 2560, ROLE_UP, true },
        { "mlp.down_proj", 2560, 9728, ROLE_DOWN, true },
        { "input_layernorm", 2560, 0, ROLE_INPUT_NORM, false },
        { "post_attention_layernorm", 2560, 0, ROLE_POST_NORM, false },
    };
    struct config c;
    struct table t;
    struct err err = { 0 };
    size_t at = 0;
    NEED(config_parse(&c, "config.json", (struct slice){ text.data, text.len }, &err) ==
         0);
    NEED(table_open(&t, &c, with_head, &err) == 0);
    CHECK(t.n == (with_head ? 399 : 398));
    CHECK(t.parameters == (with_head ? 4411424256 : 4022468096));
    check_row(&t, at++, "model.embed_tokens.weight", ROLE_EMBED, -1, 151936, 2560,
              false);
    for (int l = 0; l < 36; l++)
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, layer[i].name);
            check_row(&t, at++, name, layer[i].role, l, layer[i].rows, layer[i].cols,
                      layer[i].quantized);
        }
    check_row(&t, at++, "model.norm.weight", ROLE_FINAL_NORM, -1, 2560, 0, false);
    if (with_head)
        check_row(&t, at, "lm_head.weight", ROLE_HEAD, -1, 151936, 2560, false);
    CHECK(!table_find(&t, slice_of("model.layers.36.input_layernorm.weight")));
    CHECK(!table_find(&t, slice_of("")));
    CHECK(!with_head == !table_find(&t, slice_of("lm_head.weight")));
    table_close(&t);
}

/* Replace `from` by `to` once; refused: words of the message, NULL: taken. */
static const struct edit {
    const char *from, *to, *refused;
} edits[] = {
    // Another architecture.
    { "\"Qwen3ForCausalLM\"", "\"Qwen2ForCausalLM\"", "architectures" },
    { "\"Qwen3ForCausalLM\"", "\"Qwen3MoeForCausalLM\"", "architectures" },
    { "\"Qwen3ForCausalLM\"", "\"Qwen3ForCausalLM\",\"B\"", "architectures" },
    { "\"Qwen3ForCausalLM\"", "", "architectures" },
    { "[\n    \"Qwen3ForCausalLM\"\n  ]", "\"Qwen3ForCausalLM\"", "array" },
    { "\"qwen3\"", "\"qwen2\"", "model_type" },
    { "\"qwen3\"", "\"Qwen3\"", "model_type" },
    { "\"qwen3\"", "null", "model_type" },
    { "\"model_type\"", "\"x\"", "model_type" },
    // Mathematics that we do not do.
    { "\"silu\"", "\"gelu\"", "hidden_act" },
    { "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias" },
    { "\"attention_bias\": false", "\"attention_bias\": 0", "attention_bias" },
    { "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", "attention_dropout" },
    { "\"attention_dropout\": 0.0", "\"attention_dropout\": false", "number" },
    { "\"attention_dropout\": 0.0", "\"attention_dropout\": 0", NULL },
    { "\"rope_scaling\": null", "\"rope_scaling\": {\"type\":\"yarn\"}",
      "rope_scaling" },
    { "\"rope_scaling\": null", "\"rope_scaling\": false", "rope_scaling" },
    { "\"sliding_window\": null", "\"sliding_window\": 4096", "sliding_window" },
    { "\"use_sliding_window\": false", "\"use_sliding_window\": true",
      "use_sliding_window" },
    { "{", "{\"layer_types\":[\"full_attention\",\"full_attention\"],", NULL },
    { "{", "{\"layer_types\":null,", NULL },
    { "{", "{\"layer_types\":[\"full_attention\",\"sliding_attention\"],",
      "layer_types" },
    { "{", "{\"layer_types\":[null],", "layer_types" },
    { "{", "{\"layer_types\":\"full_attention\",", "array" },
    // rope_theta: from the file, in one of two places, or both alike.
    { "\"rope_theta\"", "\"x\"", "rope_theta" },
    { "5000000", "0", "rope_theta" },
    { "5000000", "-10000", "rope_theta" },
    { "5000000", "\"5000000\"", "number" },
    { "5000000", "null", "number" },
    { "5000000", "5e6", NULL },
    { "\"rope_theta\": 5000000",
      "\"rope_parameters\": {\"rope_type\":\"default\",\"rope_theta\":5000000}", NULL },
    { "{", "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e6},",
      NULL },
    { "{", "{\"rope_parameters\":null,", NULL },
    { "{", "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000},",
      "rope_theta" },
    { "{", "{\"rope_parameters\":{\"rope_type\":\"yarn\"},", "rope_type" },
    { "{", "{\"rope_parameters\":{\"rope_type\":\"default\",\"factor\":4},",
      "rope_parameters" },
    { "{", "{\"rope_parameters\":5000000,", "object" },
    { "\"rope_theta\": 5000000", "\"rope_parameters\": {\"rope_type\":\"default\"}",
      "rope_theta" },
    // torch_dtype or dtype.
    { "\"torch_dtype\"", "\"dtype\"", NULL },
    { "{", "{\"dtype\":\"bfloat16\",", NULL },
    { "{", "{\"dtype\":\"float16\",", "disagree" },
    { "\"bfloat16\"", "\"float16\"", NULL },
    { "\"bfloat16\"", "\"float32\"", NULL },
    { "\"bfloat16\"", "\"float8_e4m3fn\"", NULL },
    { "\"bfloat16\"", "null", NULL },
    { "{", "{\"dtype\":\"torch.bfloat16\",", NULL },
    { "{", "{\"dtype\":\"auto\",", NULL },
    { "{", "{\"dtype\":\"torch.float16\",", "disagree" },
    { "\"bfloat16\"", "16", "string" },
    // Integers are JSON integers in range, and all there.
    { "\"hidden_size\"", "\"x\"", "hidden_size" },
    { "\"num_hidden_layers\"", "\"x\"", "num_hidden_layers" },
    { "\"num_attention_heads\"", "\"x\"", "num_attention_heads" },
    { "\"num_key_value_heads\"", "\"x\"", "num_key_value_heads" },
    { "\"intermediate_size\"", "\"x\"", "intermediate_size" },
    { "\"vocab_size\"", "\"x\"", "vocab_size" },
    { "\"max_position_embeddings\"", "\"x\"", "max_position_embeddings" },
    { "\"rms_norm_eps\"", "\"x\"", "rms_norm_eps" },
    { ": 2560", ": 2560.0", "integer" },
    { ": 2560", ": 256e1", "integer" },
    { ": 2560", ": \"2560\"", "number" },
    { ": 2560", ": -2560", "integer" },
    { ": 2560", ": true", "number" },
    { ": 2560", ": null", "number" },
    { ": 2560", ": 0", "hidden_size" },
    { ": 2560", ": 1048577", "hidden_size: expected 1..1048576, found 1048577" },
    { ": 2560", ": 4294969856", "hidden_size" }, // 2560 modulo 2^32
    { ": 2560", ": 18446744073709554176", "integer" },
    { ": 2560", ": 99999999999999999999999999999999999999", "integer" },
    { "\"num_hidden_layers\": 36", "\"num_hidden_layers\": 0", "num_hidden_layers" },
    { "\"num_hidden_layers\": 36", "\"num_hidden_layers\": 4294967295",
      "num_hidden_layers" },
    { "\"num_hidden_layers\": 36", "\"num_hidden_layers\": 4097",
      "num_hidden_layers: expected 1..4096" },
    { ": 151936", ": 4294967296", "vocab_size" },
    { ": 151936", ": 16777217", "vocab_size: expected 1..16777216" },
    { ": 151936", ": 16777216", NULL },
    { ": 9728", ": 16777217", "intermediate_size: expected 1..16777216" },
    { ": 262144", ": 1073741825", "max_position_embeddings: expected 1..1073741824" },
    { "1e-06", "0", "rms_norm_eps" },
    { "1e-06", "-1e-06", "rms_norm_eps" },
    { "1e-06", "1e-400", "rms_norm_eps" },
    { "1e-06", "1e400", "double" },
    { "1e-06", "NaN", "number" },
    { "{", "{\"hidden_size\":2560,", "twice" },
    // The byte that is named is that of the value, behind white space.
    { "{", "{\"hidden_size\": 0,", "byte 16: hidden_size" },
    { "{", "{\"rms_norm_eps\": 0,", "byte 17: rms_norm_eps" },
    { "{", "{\"rope_scaling\": 0,", "byte 17: rope_scaling" },
    { "{", "{\"attention_dropout\": 1,", "byte 22: attention_dropout" },
    // Heads.
    { "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7", "multiple" },
    { "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 64", "multiple" },
    { "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 0",
      "num_key_value_heads" },
    { "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 32", NULL },
    { "\"head_dim\": 128", "\"head_dim\": 127", "head_dim" },
    { "\"head_dim\": 128", "\"head_dim\": 0", "head_dim" },
    { "\"head_dim\": 128", "\"head_dim\": 1", "head_dim" },
    { "\"head_dim\": 128", "\"head_dim\": 64", NULL },
    { "\"head_dim\": 128,", "", NULL },
    { "\"tie_word_embeddings\": true,", "", NULL },
    { "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1", "true or false" },
    { "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": \"false\"",
      "true or false" },
    // Ends of text.
    { "151645", "[151645, 151643]", NULL },
    { "151645", "[]", NULL },
    { "151645", "null", NULL },
    { "151645", "[1,2,3,4,5,6,7,8]", NULL },
    { "151645", "[1,2,3,4,5,6,7,8,9]", "eos_token_id" },
    { "151645", "-1", "integer" },
    { "151645", "\"x\"", "array" },
    { "151645", "4294967296", "eos_token_id" },
    { "\"bos_token_id\": 151643", "\"bos_token_id\": null", NULL },
    // Fields that only others read.
    { "\"use_cache\": true", "\"use_cache\": [{\"a\":null}]", NULL },
    { "\"transformers_version\": \"4.51.0\",", "", NULL },
    { "\"max_window_layers\": 36", "\"max_window_layers\": 28", NULL },
    // No JSON, or not an object.
    { "{", "[", "object" },
    { "{", "", "object" },
    { "}", "}}", "end of the JSON" },
    { "}", "", "',' or '}'" },
    { "}", ",}", "key" },
};

static void
check_edit(const struct edit *e)
{
    struct config c;
    struct err err = { 0 };
    struct buf b = { 0 };
    const char *at = strstr(text.data, e->from);
    CHECK_SAY(at, "%s does not stand in the vector", e->from);
    if (!at)
        return;
    buf_add(&b, text.data, (size_t)(at - text.data));
    buf_str(&b, e->to);
    buf_str(&b, at + strlen(e->from));
    int rc = config_parse(&c, "config.json", (struct slice){ b.data, b.len }, &err);
    if (e->refused)
        CHECK_SAY(rc == -1 && err.kind == ERR_FORMAT && strstr(err.msg, e->refused),
                  "%s -> %s: returned %d: %s", e->from, e->to, rc, err.msg);
    else
        CHECK_SAY(rc == 0, "%s -> %s: %s", e->from, e->to, err.msg);
    buf_free(&b);
}

/* The text with one replacement must be taken; its configuration. */
static struct config
with(const char *from, const char *to)
{
    struct config c;
    struct err err = { 0 };
    struct buf b = { 0 };
    const char *at = strstr(text.data, from);
    NEED(at);
    buf_add(&b, text.data, (size_t)(at - text.data));
    buf_str(&b, to);
    buf_str(&b, at + strlen(from));
    int rc = config_parse(&c, "config.json", (struct slice){ b.data, b.len }, &err);
    CHECK_SAY(rc == 0, "%s -> %s: %s", from, to, err.msg);
    buf_free(&b);
    return c;
}

static void
check_meaning(void)
{
    struct config c = with("\"head_dim\": 128,", "");
    CHECK(c.head_dim == 80);
    c = with("\"tie_word_embeddings\": true,", "");
    CHECK(!c.tied);
    c = with("151645", "[7, 9]");
    CHECK(c.n_eos == 2 && c.eos[0] == 7 && c.eos[1] == 9);
    c = with("151645", "null");
    CHECK(c.n_eos == 0);
    c = with("\"bos_token_id\": 151643", "\"bos_token_id\": null");
    CHECK(c.bos == -1);
    c = with("\"rope_theta\": 5000000",
             "\"rope_parameters\": {\"rope_theta\":10000,\"rope_type\":\"default\"}");
    CHECK(c.rope_theta == 10000);
    c = with("\"torch_dtype\": \"bfloat16\"", "\"dtype\": \"float32\"");
    CHECK(c.dtype == DT_F32);
    c = with("\"bfloat16\"", "\"torch.float16\"");
    CHECK(c.dtype == DT_F16);
    c = with("\"bfloat16\"", "null");
    CHECK(c.dtype == DT_BF16);
    c = with("\"bfloat16\"", "\"float64\"");
    CHECK(c.dtype == DT_NONE);
    c = with("{", "{\"dtype\":\"auto\",");
    CHECK(c.dtype == DT_BF16);
    c = with("\"torch_dtype\": \"bfloat16\"",
             "\"torch_dtype\":\"float32\",\"dtype\":\"auto\"");
    CHECK(c.dtype == DT_F32);
    c = with("\"num_attention_heads\"", "\"num_attention\\u005fheads\"");
    CHECK(c.heads == 32);

    // No head_dim, and none that fits.
    struct buf b = { 0 };
    struct err err = { 0 };
    buf_str(&b, "{\"model_type\":\"qwen3\",\"hidden_size\":100,\"num_hidden_layers\":1,"
                "\"num_attention_heads\":3,\"num_key_value_heads\":3,\"vocab_size\":9,"
                "\"intermediate_size\":16,\"max_position_embeddings\":8,"
                "\"rms_norm_eps\":1e-6,\"rope_theta\":1e4}");
    CHECK(config_parse(&c, "x", (struct slice){ b.data, b.len }, &err) == -1);
    CHECK_ERR(err, ERR_FORMAT, "head_dim");
    buf_free(&b);
}

int
main(void)
{
    read_vector();
    check_values();
    check_table(false);
    check_table(true);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        check_edit(&edits[i]);
    check_meaning();
    buf_free(&text);
    return check_end();
}
