/* SPDX-License-Identifier: MIT */
/* generate: what the parts of the program share. */
#ifndef NIBBLE_CMD_GENERATE_GENERATE_H
#define NIBBLE_CMD_GENERATE_GENERATE_H

#include "cmd/cmd.h"
#include "cmd/device.h"
#include "lib/format/tok.h"
#include "lib/format/writer.h"
#include "lib/io/load.h"
#include "lib/model/sample.h"
#include "lib/text/template.h"

enum { MAX_STOPS = 64, MAX_END = 32 };

struct config_generate {
    struct cmd cmd;
    const char *model, *tokenizer, *config, *quant;
    const char **prompts; // (n_prompts) of -p
    size_t n_prompts;
    const char *system;
    struct template_options how;
    bool chat, ids, json, ignore_eos, no_kv, no_verify, force;
    uint32_t max_tokens;
    struct sample_options sample; // what was not given comes from the model
    struct slice stop[MAX_STOPS];
    size_t n_stops;
    uint32_t top_logprobs;
    const char *score, *logits, *kl, *dump_layers;
    uint64_t chunk, context; // 0: not given
    bool torchsharp;         // --compat
    enum activations activations;
    struct device_options where;
    struct device device; // that `where` is
};

/* A model at work, and the tokens so far. */
struct session {
    struct config_generate *c;
    struct model model;
    struct quant_spec activations; // of model
    struct kernels *k;
    struct tokenizer *t; // NULL: only ids
    struct encoder *e;
    struct sampler sampler;
    struct net_cache cache;
    bool has_cache;
    size_t limit;          // positions that there may be
    uint32_t end[MAX_END]; // ids that end an answer
    size_t n_end;
    struct ids ids; // prompt and answer; the cache holds the first of them
    size_t prompt;  // how many of ids are the prompt
    bool greedy;    // of what follows the last of ids only the best one is asked for
    int32_t best;   // that one, if greedy
    float *logits;  // (vocab) otherwise
    net_hidden_fn *hidden; // is told of what is computed, or NULL
    void *hidden_ctx;
    struct err *err;
};

/* session.c */
int session_open(struct session *s, struct config_generate *c, struct err *err);
void session_close(struct session *s);
/* Room for n tokens in all, so that the cache need not move; what the limit allows. */
int session_room(struct session *s, size_t n);
/* The first n tokens of another list go through the model in chunks; `rows` logits of the
 * last ones into logits, or with NULL the best id behind the last one into s->best. */
int session_extend(struct session *s, const uint32_t *ids, size_t n, size_t rows,
                   float *logits);
/* All of s->ids that the cache lacks; s->best or s->logits is then what follows. */
int session_follow(struct session *s);
bool session_ends(const struct session *s, uint32_t id);

/* defaults.c: what generation_config.json says, where no option was given. */
int defaults_read(struct session *s);
/* The name of a file in the model's directory or beside the model. */
int defaults_beside(struct buf *path, const struct session *s, const char *leaf);

/* Whether a checkpoint holds the hash of another tokenizer. */
int defaults_tokenizer(struct session *s, const uint8_t sha256[SHA256_BYTES],
                       bool *other);

/* answer.c: one prompt after the other. */
int answer_all(struct session *s);

/* score.c */
int score_file(struct session *s);

/* tensors.c: tensors of f32 in a safetensors file. */
struct dump {
    const char *name;
    uint64_t shape[2];
    const float *values; // NULL: handed over later
};
int dump_check(const struct session *s, const char *path);
/* The file, into which the tensors' payloads go in the order of t; tok: an input beside
 * the model, or NULL.  dump_close is right after success and failure alike. */
struct dumper {
    struct writer w;
    struct wtensor *t; // tag: index into the list that was given
    struct buf provenance;
};
int dump_open(struct dumper *x, const struct session *s, const char *path,
              const struct dump *d, size_t n, const struct tok_reader *tok);
int dump_commit(struct dumper *x) __attribute__((warn_unused_result));
void dump_close(struct dumper *x);
/* All of it at once. */
int dump_write(const struct session *s, const char *path, struct dump *d, size_t n);
/* Hidden states of one prompt. */
struct layers {
    struct session *s;
    size_t tokens, at;
    float **h; // (layers) of (tokens, hidden)
};
int layers_open(struct layers *l, struct session *s, size_t tokens);
int layers_write(struct layers *l);
void layers_close(struct layers *l);

#endif
