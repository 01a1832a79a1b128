/* SPDX-License-Identifier: MIT */
/* gguf: blocks of NVFP4, names, key-value pairs, and files that are written and read
 * back.  What others make of such files, tests/gguf.bats and tests/peers_gguf.py ask:
 *
 *   gguf OUT CONFIG TOKENIZER   writes a model of that configuration, of a pattern
 */
#include "lib/nvfp4/gguf.h"
#include "lib/base/num.h"
#include "lib/format/store.h"
#include "lib/format/view.h"
#include "lib/format/writer.h"
#include "lib/load/gguf_vocab.h"
#include "lib/model/table.h"
#include "lib/nvfp4/codec.h"
#include "tests/unit/check.h"

static struct guard guard;

/* ---- blocks ------------------------------------------------------------------- */

/* The same by the description, one code at a time. */
static void
pack_slowly(uint8_t *blocks, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    memset(blocks, 0, n / 64 * 36);
    for (size_t i = 0; i < n; i++) {
        uint8_t *block = blocks + i / 64 * 36;
        unsigned code = codes[i / 2] >> (i % 2 ? 4 : 0) & 15;
        size_t in = i % 16;
        block[i % 64 / 16] = scales[i / 16];
        block[4 + i % 64 / 16 * 8 + in % 8] |= (uint8_t)(code << (in < 8 ? 0 : 4));
    }
}

static void
check_blocks(void)
{
    static const uint8_t ours[8] = { 0x00, 0x08, 0x91, 0x21, 0xb2, 0x43, 0x54, 0x6d };
    static const uint8_t theirs[8] = { 0x20, 0xb0, 0x38, 0x40, 0x41, 0x59, 0xd1, 0x62 };
    static const uint8_t scales[4] = { 1, 2, 3, 4 };
    enum { N = 64 * 251, BYTES = N / 64 * 36 };
    static uint8_t codes[N / 2], sc[N / 16], blocks[BYTES], want[BYTES], c2[N / 2],
        s2[N / 16];
    for (int k = 0; k < 4; k++)
        memcpy(codes + 8 * k, ours, 8);
    nvfp4_gguf_pack(blocks, codes, scales, 64);
    CHECK(memcmp(blocks, scales, 4) == 0);
    for (int k = 0; k < 4; k++)
        CHECK_SAY(memcmp(blocks + 4 + 8 * k, theirs, 8) == 0, "sixteen %d", k);

    check_fill(codes, sizeof codes);
    check_fill(sc, sizeof sc);
    nvfp4_gguf_pack(blocks, codes, sc, N);
    pack_slowly(want, codes, sc, N);
    CHECK(memcmp(blocks, want, sizeof want) == 0);
    nvfp4_gguf_unpack(c2, s2, blocks, N);
    CHECK(memcmp(c2, codes, sizeof codes) == 0 && memcmp(s2, sc, sizeof sc) == 0);
    // Any bytes are blocks.
    for (size_t i = 0; i < sizeof want; i++)
        want[i] = (uint8_t)check_random(i);
    nvfp4_gguf_unpack(c2, s2, want, N);
    nvfp4_gguf_pack(blocks, c2, s2, N);
    CHECK(memcmp(blocks, want, sizeof want) == 0);
    nvfp4_gguf_pack(blocks, codes, sc, 0);
    CHECK(memcmp(blocks, want, sizeof want) == 0);
}

/* ---- names -------------------------------------------------------------------- */

static const struct {
    const char *ours, *theirs;
} names[] = {
    { "model.embed_tokens.weight", "token_embd.weight" },
    { "model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight" },
    { "model.layers.0.self_attn.q_proj.scale", "blk.0.attn_q.scale" },
    { "model.layers.0.self_attn.q_proj.input_scale", "blk.0.attn_q.input_scale" },
    { "model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight" },
    { "model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight" },
    { "model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight" },
    { "model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight" },
    { "model.layers.0.self_attn.k_norm.weight", "blk.0.attn_k_norm.weight" },
    { "model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight" },
    { "model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight" },
    { "model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight" },
    { "model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight" },
    { "model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight" },
    { "model.layers.7.mlp.up_proj.weight", "blk.7.ffn_up.weight" },
    { "model.layers.35.mlp.down_proj.scale", "blk.35.ffn_down.scale" },
    { "model.norm.weight", "output_norm.weight" },
    { "lm_head.weight", "output.weight" },
    { "lm_head.scale", "output.scale" },
};

enum { N_NAMES = sizeof names / sizeof *names };

static bool
is(const struct buf *b, const char *text)
{
    return b->data && strcmp(b->data, text) == 0;
}

static void
check_names(void)
{
    static const char *const none[] = {
        "",
        "model.layers.0.mlp.up_proj",
        "model.layers.0.mlp.up_proj.bias",
        "model.layers.0.mlp.up_proj.weight.qdata",
        "model.layers.00.mlp.up_proj.weight",
        "model.layers.01.mlp.up_proj.weight",
        "model.layers..mlp.up_proj.weight",
        "model.layers.-1.mlp.up_proj.weight",
        "model.layers.999999999999.mlp.up_proj.weight",
        "model.layers.4294967296.mlp.up_proj.weight",
        "model.layers.0",
        "model.layers.0.weight",
        "model.layers.0.model.norm.weight",
        "model.norm.scale",
        "model.layers.0.input_layernorm.scale",
        "mlp.up_proj.weight",
        "blk.0.ffn_up.weight",
        "token_embd.weight",
    };
    uint64_t last = 0;
    for (size_t i = 0; i < N_NAMES; i++) {
        struct buf theirs = { 0 }, ours = { 0 };
        bool known = gguf_name_of(&theirs, slice_of(names[i].ours));
        bool back = gguf_name_to_ours(&ours, slice_of(names[i].theirs));
        CHECK_SAY(known && is(&theirs, names[i].theirs), "%s", names[i].ours);
        CHECK_SAY(back && is(&ours, names[i].ours), "%s", names[i].theirs);
        uint64_t place = gguf_place(slice_of(names[i].ours));
        CHECK_SAY(i == 0 ? place == 0 : place > last && place < UINT64_MAX,
                  "place of %s", names[i].ours);
        CHECK_SAY(gguf_is_norm(slice_of(names[i].ours)) ==
                      (strstr(names[i].ours, "norm") != NULL),
                  "%s", names[i].ours);
        last = place;
        buf_free(&theirs);
        buf_free(&ours);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        struct buf b = { 0 };
        CHECK_SAY(!gguf_name_of(&b, slice_of(none[i])) && !b.data, "\"%s\"", none[i]);
        CHECK(gguf_place(slice_of(none[i])) == UINT64_MAX);
        buf_free(&b);
    }
    struct buf b = { 0 };
    CHECK(!gguf_name_to_ours(&b, slice_of("blk.00.ffn_up.weight")));
    CHECK(!gguf_name_to_ours(&b, slice_of("blk.0_ffn_up.weight")));
    CHECK(!gguf_name_to_ours(&b, slice_of("blk.0")));
    CHECK(!gguf_name_to_ours(&b, slice_of("rope_freqs.weight")));
    CHECK(!gguf_name_to_ours(&b, slice_of("blk.0.output_norm.weight")));
    CHECK(!gguf_name_to_ours(&b, (struct slice){ "blk.0.ffn_up.weight", 18 }));
    CHECK(!b.data);
}

static void
check_floats(void)
{
    static const struct {
        float f;
        const char *text;
    } cases[] = {
        { 1e-6F, "1e-06" },
        { 5000000, "5000000" },
        { 10000, "10000" },
        { 1e6F, "1000000" },
        { 0.1F, "0.1" },
        { 1.5F, "1.5" },
        { 0x1.fffffep127F, "3.4028235e+38" },
        { 0x1p-149F, "1e-45" },
        { 0, "0" },
        { -3, "-3" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = { 0 };
        gguf_put_shortest(&b, cases[i].f);
        CHECK_SAY(is(&b, cases[i].text), "%s: found %s", cases[i].text, b.data);
        buf_free(&b);
    }
}

/* ---- files ---------------------------------------------------------------------- */

static const char config[] =
    "{\"model_type\":\"qwen3\",\"hidden_size\":64,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":32,"
    "\"intermediate_size\":64,\"vocab_size\":5,\"max_position_embeddings\":9,"
    "\"rms_norm_eps\":1e-06,\"rope_theta\":5000000,\"x\":\"\xc3\xa9\"}";

static void
fill_pairs(struct gguf_kv *kv, float eps)
{
    kv->architecture = "qwen3";
    gguf_kv_u32(kv, "qwen3.block_count", 1);
    gguf_kv_u32(kv, "qwen3.context_length", 9);
    gguf_kv_u32(kv, "qwen3.embedding_length", 64);
    gguf_kv_u32(kv, "qwen3.feed_forward_length", 64);
    gguf_kv_u32(kv, "qwen3.attention.head_count", 2);
    gguf_kv_u32(kv, "qwen3.attention.head_count_kv", 1);
    gguf_kv_u32(kv, "qwen3.attention.key_length", 32);
    gguf_kv_u32(kv, "qwen3.attention.value_length", 32);
    gguf_kv_f32(kv, "qwen3.attention.layer_norm_rms_epsilon", eps);
    gguf_kv_f32(kv, "qwen3.rope.freq_base", 5000000);
    gguf_kv_array(kv, "tokenizer.ggml.tokens", GGUF_STRING, 2);
    gguf_put_string(&kv->bytes, slice_of("a"));
    gguf_put_string(&kv->bytes, slice_of(""));
    gguf_kv_array(kv, "tokenizer.ggml.token_type", GGUF_I32, 1);
    gguf_put_u32(&kv->bytes, 5);
    gguf_kv_u32(kv, "tokenizer.ggml.eos_token_id", 3);
    gguf_kv_bool(kv, "tokenizer.ggml.add_bos_token", false);
    gguf_kv_string(kv, "tokenizer.chat_template", slice_of("{{ \"x\" }}"));
}

enum { UP, UP_SCALE, NORM, EMBED, N_TENSORS };

static const uint64_t shapes[N_TENSORS][2] = { { 2, 64 }, { 1 }, { 64 }, { 5, 64 } };

/* In an order that is not the file's. */
static void
fill_tensors(struct wtensor *t)
{
    t[UP] = (struct wtensor){ .name = "model.layers.0.mlp.up_proj.weight",
                              .dtype = DT_NVFP4_GGUF,
                              .rank = 2 };
    t[UP_SCALE] = (struct wtensor){ .name = "model.layers.0.mlp.up_proj.scale",
                                    .dtype = DT_F32,
                                    .rank = 1 };
    t[NORM] =
        (struct wtensor){ .name = "model.norm.weight", .dtype = DT_F32, .rank = 1 };
    t[EMBED] = (struct wtensor){ .name = "model.embed_tokens.weight",
                                 .dtype = DT_BF16,
                                 .rank = 2 };
    for (size_t i = 0; i < N_TENSORS; i++) {
        t[i].shape = shapes[i];
        t[i].tag = i;
    }
}

/* Open a writer of t and put payloads of the pattern into it. */
static int
write_all(const char *path, struct wtensor *t, size_t n, const struct wmeta *meta,
          struct slice provenance, struct err *err)
{
    struct writer w;
    struct writer_options opt = { .flags = OUT_FORCE, .guard = &guard };
    uint8_t bytes[1024];
    check_fill(bytes, sizeof bytes);
    int rc = writer_open(&w, "gguf", path, t, n, meta, &opt, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = writer_write(&w, bytes + t[i].tag, t[i].nbytes);
    if (rc == 0)
        rc = writer_commit(&w, provenance);
    writer_close(&w);
    return rc;
}

static int
open_file(struct store *s, const char *path, struct err *err)
{
    struct store_options opt = { .guard = &guard, .strict = true, .tmpdir = "." };
    return store_open(s, path, &opt, err);
}

static void
check_read_back(struct store *s)
{
    static const char *const order[] = { "token_embd.weight", "blk.0.ffn_up.weight",
                                         "blk.0.ffn_up.scale", "output_norm.weight" };
    static const unsigned tag[] = { EMBED, UP, UP_SCALE, NORM };
    uint8_t bytes[1024], found[1024];
    struct views v;
    check_fill(bytes, sizeof bytes);
    NEED(s->n_tensors == N_TENSORS);
    for (size_t i = 0; i < N_TENSORS; i++) {
        const struct tensor *t = &s->tensors[i];
        CHECK_SAY(strcmp(t->name, order[i]) == 0, "%zu is %s", i, t->name);
        CHECK(t->offset % 32 == 0);
        NEED(t->nbytes <= sizeof found);
        CHECK(store_read(s, t, 0, found, t->nbytes, s->err) == 0 &&
              memcmp(found, bytes + tag[i], t->nbytes) == 0);
    }
    NEED(views_open(&v, s, false) == 0);
    NEED(v.n == 3);
    CHECK(strcmp(v.v[1].name, "model.layers.0.mlp.up_proj.weight") == 0);
    CHECK(v.v[1].dtype == DT_NVFP4 && view_in_blocks(&v.v[1]) && !v.v[1].scale);
    CHECK(v.v[1].scale2 == &s->tensors[2] && v.v[1].nbytes == 76);
    CHECK(v.v[1].shape[0] == 2 && v.v[1].shape[1] == 64 && view_levels(&v.v[1]) == 2);
    views_close(&v);
}

static bool
holds(struct slice text, const char *part)
{
    return text.p && memmem(text.p, text.n, part, strlen(part));
}

static void
check_files(void)
{
    struct err err = { 0 };
    struct gguf_kv kv = { 0 };
    struct store s;
    struct wtensor t[N_TENSORS];
    struct wmeta meta = { .config = slice_of(config),
                          .provenance = slice_of("{\"a\":1}"),
                          .gguf = &kv };
    fill_pairs(&kv, 1e-6F);
    fill_tensors(t);
    CHECK(write_all("x.gguf", t, N_TENSORS, &meta, slice_of("{\"a\":2}"), &err) == 0);
    CHECK(open_file(&s, "x.gguf", &err) == 0);
    CHECK_SAY(!err.kind, "%s", err.msg);
    check_read_back(&s);
    CHECK(s.bytes % 32 == 0 && !s.warnings.len);
    CHECK(slice_is(s.config, config)); // verbatim
    CHECK(slice_is(s.provenance, "{\"a\":2}"));
    CHECK(holds(s.meta, "{\"general.architecture\":\"qwen3\","
                        "\"general.file_type\":39,"
                        "\"general.quantization_version\":2,"
                        "\"general.tensor_extra.name\":"
                        "{\"items\":1,\"of\":\"string\"},"
                        "\"general.tensor_extra.prec_a4\":"
                        "{\"items\":1,\"of\":\"bool\"},"
                        "\"qwen3.block_count\":1,"));
    CHECK(holds(s.meta, "\"tokenizer.ggml.tokens\":{\"items\":2,\"of\":\"string\"}"));
    CHECK(!holds(s.meta, "nibble"));
    store_close(&s);

    // Other keys than the configuration: what a GGUF's readers see counts.
    gguf_kv_free(&kv);
    fill_pairs(&kv, 1e-5F);
    struct err plain = { 0 };
    struct store_options lenient = { .guard = &guard, .tmpdir = "." };
    CHECK(write_all("y.gguf", t, N_TENSORS, &meta, slice_of("{\"a\":2}"), &err) == 0);
    CHECK(store_open(&s, "y.gguf", &lenient, &plain) == 0);
    CHECK(s.warnings.data && strstr(s.warnings.data, "rms_norm_eps"));
    CHECK(holds(s.config, "\"rms_norm_eps\": 1e-05,"));
    CHECK(slice_is(s.provenance, "{\"a\":2}"));
    store_close(&s);

    // Without an object of ours: a configuration of the keys.
    meta.bare = true;
    CHECK(write_all("z.gguf", t, N_TENSORS, &meta, (struct slice){ 0 }, &err) == 0);
    CHECK(open_file(&s, "z.gguf", &err) == 0);
    CHECK(!s.provenance.p && holds(s.config, "\"eos_token_id\": 3,") &&
          holds(s.config, "\"tie_word_embeddings\": true,") &&
          holds(s.config, "\"torch_dtype\": \"bfloat16\",") &&
          holds(s.config, "\"rope_theta\": 5000000,") &&
          holds(s.config, "\"vocab_size\": 5"));
    store_close(&s);

    // No tensors at all.
    CHECK(write_all("none.gguf", t, 0, &meta, (struct slice){ 0 }, &err) == 0);
    CHECK(open_file(&s, "none.gguf", &err) == 0 && s.n_tensors == 0);
    store_close(&s);
    CHECK_SAY(!err.kind, "%s", err.msg);
    gguf_kv_free(&kv);
}

static void
check_refusals(void)
{
    static const struct {
        const char *name, *words;
        unsigned which;
        enum dtype dtype;
    } cases[] = {
        { NULL, "those are f32", NORM, DT_BF16 },
        { NULL, "readers of a GGUF do not take", UP, DT_F64 },
        { "model.layers.0.mlp.up_proj.bias", "has no name in a GGUF", UP, DT_F32 },
        { "lm_head.scale", "one f32", UP, DT_F32 },
        { NULL, "one f32", UP_SCALE, DT_F16 },
        { "blk.0.ffn_up.weight", "has no name in a GGUF", EMBED, DT_F32 },
        { NULL, "readers of a GGUF do not take", EMBED, DT_NVFP4 },
    };
    struct gguf_kv kv = { 0 };
    struct wmeta meta = { .gguf = &kv };
    struct wtensor t[N_TENSORS];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = { 0 };
        fill_tensors(t);
        t[cases[i].which].dtype = cases[i].dtype;
        if (cases[i].name)
            t[cases[i].which].name = cases[i].name;
        CHECK(write_all("bad.gguf", t, N_TENSORS, &meta, (struct slice){ 0 }, &err) <
              0);
        CHECK_ERR(err, ERR_USAGE, cases[i].words);
        CHECK(access("bad.gguf", F_OK) < 0);
    }
    struct err err = { 0 };
    fill_tensors(t);
    meta.gguf = NULL;
    CHECK(write_all("bad.gguf", t, N_TENSORS, &meta, (struct slice){ 0 }, &err) < 0);
    CHECK_ERR(err, ERR_USAGE, "tokenizer");
}

/* ---- a whole model ----------------------------------------------------------------- */

/* The rows of the table as tensors: projections in blocks, each with its scale. */
static size_t
fill_model(struct wtensor *t, struct arena *a, const struct table *table)
{
    static const uint64_t one[1] = { 1 };
    size_t n = 0;
    for (size_t i = 0; i < table->n; i++) {
        const struct row *r = &table->row[i];
        t[n++] = (struct wtensor){ .name = r->name,
                                   .dtype = r->quantized   ? DT_NVFP4_GGUF
                                            : r->rank == 1 ? DT_F32
                                                           : DT_BF16,
                                   .rank = r->rank,
                                   .shape = r->shape };
        if (!r->quantized)
            continue;
        char *name = arena_copy(a, r->name, strlen(r->name));
        NEED(name);
        memcpy(name + strlen(name) - 6, "scale", 6); // of "weight"
        t[n++] =
            (struct wtensor){ .name = name, .dtype = DT_F32, .rank = 1, .shape = one };
    }
    return n;
}

static int
write_payloads(struct writer *w, const struct wtensor *t, size_t n)
{
    uint8_t bytes[1 << 12];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = check_byte(i) & 0x3f; // no NaN in any type
    for (size_t i = 0; i < n; i++)
        for (uint64_t at = 0; at < t[i].nbytes; at += sizeof bytes) {
            uint64_t left = t[i].nbytes - at;
            size_t part = left < sizeof bytes ? (size_t)left : sizeof bytes;
            if (writer_write(w, bytes, part) < 0)
                return -1;
        }
    return 0;
}

static int
write_model(char **argv)
{
    struct err err = { 0 };
    struct config c;
    struct table table = { 0 };
    struct arena arena = { 0 };
    struct gguf_kv kv = { 0 };
    struct writer w = { 0 };
    struct wtensor *t = NULL;
    char text[1 << 16];
    FILE *f = fopen(argv[2], "r");
    NEED(f);
    struct slice json = { text, fread(text, 1, sizeof text, f) };
    fclose(f);
    int rc = config_parse(&c, argv[2], json, &err);
    if (rc == 0)
        rc = table_open(&table, &c, !c.tied, &err);
    if (rc == 0)
        rc = gguf_vocab(&kv, &c, argv[3], &guard, &err);
    if (rc == 0) {
        struct wmeta meta = { .config = json,
                              .provenance = slice_of("{}"),
                              .gguf = &kv };
        struct writer_options opt = { .flags = OUT_FORCE, .guard = &guard };
        t = calloc(2 * table.n, sizeof *t);
        NEED(t);
        size_t n = fill_model(t, &arena, &table);
        rc = writer_open(&w, "gguf", argv[1], t, n, &meta, &opt, &err);
        if (rc == 0)
            rc = write_payloads(&w, t, n);
        if (rc == 0)
            rc = writer_commit(&w, (struct slice){ 0 });
        writer_close(&w);
    }
    if (rc < 0)
        printf("%s\n", err.msg);
    free(t);
    gguf_kv_free(&kv);
    table_close(&table);
    arena_free(&arena);
    return rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static void
check_finding(void)
{
    struct err err = { 0 };
    char *path;
    NEED(mkdir("m", 0700) == 0 && mkdir("n", 0700) == 0);
    char *places[] = { "x/a.dat", "-", "n/", "m", "n/a.dat" };
    CHECK(gguf_find_tokenizer(&path, places, 5, &err) < 0 && !path);
    CHECK_ERR(err, ERR_USAGE,
              "looked for x/tokenizer.json, n/tokenizer.json, m/tokenizer.json, "
              "n/tokenizer.json");
    err = (struct err){ 0 };
    CHECK(gguf_find_tokenizer(&path, places, 0, &err) < 0);
    CHECK_ERR(err, ERR_USAGE, "tokenizer.json");
    err = (struct err){ 0 };
    check_put("m/tokenizer.json", "{}", 2);
    CHECK(gguf_find_tokenizer(&path, places, 5, &err) == 0 && path &&
          strcmp(path, "m/tokenizer.json") == 0);
    free(path);
    check_put("tokenizer.json", "{}", 2);
    places[0] = "a.dat";
    CHECK(gguf_find_tokenizer(&path, places, 5, &err) == 0 && path &&
          strcmp(path, "tokenizer.json") == 0);
    free(path);
}

int
main(int argc, char **argv)
{
    if (argc == 4)
        return write_model(argv);
    check_scratch();
    check_blocks();
    check_names();
    check_floats();
    check_files();
    check_refusals();
    check_finding();
    return check_end();
}
