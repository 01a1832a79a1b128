/* SPDX-License-Identifier: MIT */
/* model_files: small models of random weights, for unit programs of lib/convert and lib/load. */
#ifndef NIBBLE_TESTS_UNIT_MODEL_FILES_H
#define NIBBLE_TESTS_UNIT_MODEL_FILES_H

#include "lib/base/par.h"
#include "lib/convert/pack.h"
#include "lib/format/writer.h"
#include "tests/unit/check.h"

static struct guard guard;

/* What the library reported. */
struct heard {
    char warnings[4096];
    uint64_t done, total;
    unsigned calls;
};
static struct heard heard;

static inline void
hear_warning(void *ctx, const char *line)
{
    struct heard *h = ctx;
    size_t n = strlen(h->warnings);
    snprintf(h->warnings + n, sizeof h->warnings - n, "%s\n", line);
}

static inline void
hear_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct heard *h = ctx;
    CHECK(*what && (h->calls == 0 || done == 0 || done >= h->done));
    h->calls++;
    h->done = done;
    h->total = total;
}

static struct host host = { .program = "unit",
                            .version = "0",
                            .tmpdir = "/tmp",
                            .guard = &guard,
                            .warn = hear_warning,
                            .progress = hear_progress,
                            .ctx = &heard };

/* A pack of that output, whose kind is that of its suffix. */
static inline struct pack
pack_to(const char *out)
{
    host.isa = isa_best();
    return (struct pack){ .host = &host,
                          .out = out,
                          .to = writer_kind_of(out),
                          .shard_bytes = UINT64_MAX,
                          .threads = 2,
                          .force = true };
}

/* config.json and a model of that name, bf16. */
static inline void
make_model(const char *out, bool tied)
{
    char text[1024];
    struct err err = { 0 };
    struct pack c = pack_to(out);
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"qwen3\",\"vocab_size\":96,\"hidden_size\":64,"
                     "\"intermediate_size\":128,\"num_hidden_layers\":2,"
                     "\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                     "\"head_dim\":16,\"hidden_act\":\"silu\","
                     "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,"
                     "\"rope_theta\":10000,\"attention_bias\":false,"
                     "\"tie_word_embeddings\":%s,\"torch_dtype\":\"bfloat16\"}",
                     tied ? "true" : "false");
    check_put("config.json", text, (size_t)n);
    c.config_path = "config.json";
    c.init = true;
    c.init_seed = 7;
    int rc = pack_run(&c, NULL, 0, &err);
    CHECK_SAY(rc == 0, "%s", err.msg);
    NEED(rc == 0);
}

#endif
