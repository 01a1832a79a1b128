/* SPDX-License-Identifier: MIT */
/* generate: what the parts of the program share. */
#ifndef NIBBLE_CMD_GENERATE_GENERATE_H
#define NIBBLE_CMD_GENERATE_GENERATE_H

#include "cmd/cli/cmd.h"
#include "cmd/cli/device_rows.h"
#include "lib/base/par.h"
#include "lib/format/tok.h"
#include "lib/format/writer.h"
#include "lib/load/load.h"
#include "lib/model/sample.h"
#include "lib/text/template.h"

#include <signal.h>

enum { MAX_STOPS = 64, MAX_END = 32, MAX_BATCH = 64, MAX_ANSWERS = 1 << 16 };

struct config_generate {
    struct cmd cmd;
    const char *model, *tokenizer, *config, *quant;
    const char **prompts; // (n_prompts) of -p
    size_t n_prompts;
    const char *system;
    struct template_options how;
    unsigned requests; // --input jsonl: 1
    bool chat, no_drop, time, ids, json, ignore_eos, no_kv, no_verify, force, hessian;
    const char *history;
    uint32_t max_tokens;
    uint32_t batch;               // prompts at a time
    uint32_t answers;             // to each prompt
    struct sample_options sample; // what was not given is the model's
    struct slice stop[MAX_STOPS];
    size_t n_stops;
    uint32_t top_logprobs;
    const char *score, *logits, *kl, *kl_model, *dump_layers, *dump_importance;
    uint64_t chunk, context; // 0: not given
    uint64_t gpus;           // of --score; 0: not given
    const char *rendezvous;
    double rank_timeout; // seconds
    bool torchsharp;     // --compat
    enum activations activations;
    enum input_scale { INPUT_SCALE_DYNAMIC, INPUT_SCALE_STATIC } input_scale;
    struct device_options where;
    struct device device; // that `where` is
};

/* The tokens of a prompt and its answer, and what was computed of them. */
struct sequence {
    struct ids ids;         // the cache holds the first of them
    size_t prompt, end;     // ids of the prompt; the most that there may be
    struct net_cache cache; // if has_cache
    bool has_cache;
    // of the next token
    int32_t argmax;      // if the session is greedy
    const float *logits; // (vocab) otherwise; borrowed, until more is computed
    double log_sum;      // of their exponentials, with --json
};

/* An open model. */
struct session {
    struct config_generate *c;
    struct model model;
    struct quant_spec activations; // of model
    struct kernels *k;
    struct tokenizer *t; // NULL: only ids
    char *tokenizer;     // the path of its file
    struct encoder *e;
    struct sampler sampler;
    size_t limit;          // max positions
    uint32_t end[MAX_END]; // ids that end an answer
    size_t n_end;
    bool greedy;           // only the argmax of the next token is needed
    struct sequence *q;    // the one that is worked on
    struct sequence first; // q at the beginning
    float *logits;         // (vocab) of session_follow
    struct par *pool;      // for logits of several prompts; NULL: greedy, or one
    size_t together;       // max. tokens of longer prompts to compute together; 0: none
    bool asked_together;   // together is set
    bool apart;            // each prompt is computed by itself
    const volatile sig_atomic_t *stop; // set by a signal: the answer ends; NULL: none
    net_hidden_fn *hidden;             // called with hidden states, or NULL
    void *hidden_ctx;
    struct err *err;
};

/* session.c */
int session_open(struct session *s, struct config_generate *c, struct err *err);
void session_close(struct session *s);
/* Set s->greedy by the settings of s->c, after a change of them. */
void session_settle_draws(struct session *s);
void sequence_free(struct sequence *q);
/* Reserve cache for n tokens of s->q in all, at most s->limit, so that it need not grow. */
int session_reserve(struct session *s, size_t n);
/* Whether there is memory for that. */
bool session_fits(const struct session *s, size_t n);
/* How many tokens a prompt of n may share with one that begins with the same `common`: their keys
 * and values have the bits that it gets alone, and tokens are left to be computed. */
size_t session_shares(const struct session *s, size_t common, size_t n);
/* How many of the n tokens of a prompt others may share when it is computed. */
size_t session_shareable(const struct session *s, size_t n);
/* How many tokens of q, with their keys and values in its cache, others may share. */
size_t session_shared(const struct session *s, const struct sequence *q);
/* Copy keys and values of the first n tokens to the cache of s->q, which has capacity for them. */
int session_copy(struct session *s, const struct net_cache *from, size_t n);
/* Run n tokens through the model in chunks, which end at multiples of their size; the logits of the
 * last `rows` into logits, or with NULL the argmax of the last into s->q->argmax.  1 if s->stop was
 * set before all was done. */
int session_extend(struct session *s, const uint32_t *ids, size_t n, size_t rows,
                   float *logits);
/* Run the tokens of s->q that its cache lacks; its argmax or logits are of the next. */
int session_follow(struct session *s);
/* Whether products of n tokens read weights as they are stored, which have bits of their own:
 * prompts for which it is not the same are not computed together. */
bool session_reads_stored(const struct session *s, size_t n);
/* Max. number of tokens, in all, of prompts to compute together, of which one has n; 0: this one by
 * itself. */
size_t session_together(struct session *s, size_t n);
/* Allocate a pass of that number of tokens, if it is not 0, before caches take all memory. */
int session_reserve_together(struct session *s, size_t n, size_t sequences);
/* Free it: from now on each prompt is computed by itself. */
void session_apart(struct session *s);
/* session_follow for n sequences that lack one token each, or two and more each as
 * session_together allows; logits: (n, vocab) scratch.  Each gets the bits that it gets alone. */
int session_step(struct session *s, struct sequence *const *q, size_t n, float *logits);
bool session_ends(const struct session *s, uint32_t id);

/* defaults.c: values of generation_config.json where no option was given. */
int defaults_read(struct session *s);
/* The path of a file in the model's directory or beside the model. */
int defaults_beside(struct buf *path, const struct session *s, const char *leaf);

/* Whether a checkpoint holds the hash of another tokenizer. */
int defaults_tokenizer(struct session *s, const uint8_t sha256[SHA256_BYTES],
                       bool *other);

/* prompts.c: one prompt after the other; *all: whether each of them has an answer.  What is
 * wrong with the others was reported. */
int prompts_answer(struct session *s, bool *all);
/* chat.c: the turns of a conversation; all as above. */
int chat_answer(struct session *s, bool *all);

/* score.c */
int score_file(struct session *s);

/* reference.c: the model of --kl-model. */
struct reference {
    struct session *s;
    struct model model; // on the device of s, whose model has it as its teacher
    struct net_cache cache;
};
/* Call reference_close in any case, before s is closed. */
int reference_open(struct reference *r, struct session *s);
/* Memory for documents of n tokens. */
int reference_reserve(struct reference *r, size_t n);
void reference_close(struct reference *r);

/* tensors.c: tensors of f32 in a safetensors file. */
struct dump {
    const char *name;
    uint64_t shape[3];   // up to the first that is 0
    const float *values; // NULL: written by the caller
};
int dump_check(const struct session *s, const char *path);
/* A file open for writing: payloads go in the order of t.  tok: another input, or NULL.
 * dump_close also after a failure. */
struct dumper {
    struct writer w;
    struct wtensor *t; // tag: index into the list that was given
    struct buf provenance;
};
int dump_open(struct dumper *x, const struct session *s, const char *path,
              const struct dump *d, size_t n, const struct tok_reader *tok);
int dump_commit(struct dumper *x) __attribute__((warn_unused_result));
void dump_close(struct dumper *x);
/* Write all of a file. */
int dump_write(const struct session *s, const char *path, struct dump *d, size_t n,
               const struct tok_reader *tok);
/* importance.c: what the products of projections and head take, over all tokens of --score,
 * into the file of --dump-importance: for each of them the mean square of each column, the
 * largest magnitude, and with --hessian the mean products of columns. */
int importance_begin(struct session *s);
int importance_write(struct session *s, const struct tok_reader *tok, uint64_t tokens);
void importance_end(struct session *s);
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
