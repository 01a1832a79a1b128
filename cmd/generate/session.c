/* SPDX-License-Identifier: MIT */
/* session: a model, its tokenizer and its cache. */
#include "cmd/generate/generate.h"

#include "lib/base/num.h"
#include "lib/base/os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CHUNK = 512, CHUNK_GPU = 4096, CAPACITY_STEP = 64 }; // tokens
enum {
    FREE_FOR_PASS = 8
}; // part of a GPU's free memory for prompts that are computed together

/* ---- tokenizer ---------------------------------------------------------------------------- */

/* The file that -t names or the one in the directory that it names; else in the model's
 * directory or beside the model. */
static int
find_tokenizer(struct buf *path, const struct session *s)
{
    const char *given = s->c->tokenizer;
    struct stat st;
    char q[TEXT_QUOTE];
    if (given) {
        buf_str(path, given);
        if (stat(given, &st) == 0 && S_ISDIR(st.st_mode))
            buf_str(path, "/tokenizer.json");
        return buf_ok(path, s->err);
    }
    if (strcmp(s->c->model, "-") == 0)
        return err_set(s->err, ERR_USAGE, "want -t tokenizer.json: none was given");
    if (defaults_beside(path, s, "tokenizer.json") < 0)
        return -1;
    if (stat(path->data, &st) < 0 && errno == ENOENT)
        return err_set(s->err, ERR_USAGE,
                       "want -t tokenizer.json: none was given, and there is no %s; "
                       "it comes with the model%s",
                       text_quote(q, path->data, path->len),
                       s->c->chat ? "" : ", and --ids needs none");
    return 0;
}

static void
add_end(struct session *s, uint32_t id)
{
    if (s->n_end < MAX_END && id != TOKEN_NONE && !session_ends(s, id))
        s->end[s->n_end++] = id;
}

/* Another tokenizer than the checkpoint was trained with is a warning only. */
static int
warn_other_tokenizer(struct session *s, const char *path)
{
    uint8_t sha256[SHA256_BYTES];
    bool other;
    tokenizer_sha256(s->t, sha256);
    if (defaults_tokenizer(s, sha256, &other) < 0)
        return -1;
    if (other && !s->c->cmd.quiet)
        warn("%s: is not the tokenizer that the checkpoint was trained with: -t names "
             "that one",
             path);
    return 0;
}

/* Turns stand between control tokens. */
static int
check_chat(const struct session *s, const char *path)
{
    static const char *const needed[] = { "<|im_start|>", "<|im_end|>" };
    char q[TEXT_QUOTE];
    for (size_t i = 0; s->c->chat && i < sizeof needed / sizeof *needed; i++)
        if (tokenizer_added(s->t, needed[i]) == TOKEN_NONE)
            return err_set(s->err, ERR_FORMAT,
                           "%s: has no added token %s, which --chat needs: expected "
                           "the tokenizer.json of a chat model; -p TEXT --template "
                           "none continues a text",
                           text_quote(q, path, strlen(path)), needed[i]);
    return 0;
}

static int
open_tokenizer(struct session *s)
{
    struct buf path = { 0 };
    char q[TEXT_QUOTE];
    int rc = find_tokenizer(&path, s);
    const char *outputs[] = { s->c->logits, s->c->dump_layers, s->c->history };
    const char *inputs[] = { path.data };
    if (rc == 0)
        cmd_check_outputs(outputs, 3, inputs, 1);
    if (rc == 0 && !(s->t = tokenizer_open(path.data, &cmd_guard, s->err)))
        rc = -1;
    if (rc == 0 && tokenizer_vocab(s->t) > s->model.config.vocab)
        rc = err_set(s->err, ERR_FORMAT,
                     "%s: has %u tokens, the model's vocab_size is %u: expected the "
                     "tokenizer.json that came with the model",
                     text_quote(q, path.data, path.len), tokenizer_vocab(s->t),
                     s->model.config.vocab);
    if (rc == 0)
        rc = check_chat(s, path.data);
    if (rc == 0)
        rc = warn_other_tokenizer(s, path.data);
    if (rc == 0 && !(s->e = encoder_open(s->t, s->err)))
        rc = -1;
    s->tokenizer = rc == 0 ? cmd_copy(path.data) : NULL;
    buf_free(&path);
    if (rc < 0)
        return -1;
    add_end(s, tokenizer_added(s->t, "<|im_end|>"));
    add_end(s, tokenizer_added(s->t, "<|endoftext|>"));
    return 0;
}

/* ---- open and close ------------------------------------------------------------------------- */

static int
settle_limit(struct session *s)
{
    size_t max = s->model.config.positions;
    if (s->c->context > max)
        return err_set(s->err, ERR_USAGE, "--context: %zu: the model has %zu positions",
                       s->c->context, max);
    s->limit = s->c->context ? s->c->context : max;
    return 0;
}

/* Answers differ by their draws; each request is checked by itself. */
static int
check_answers(const struct session *s)
{
    const struct config_generate *c = s->c;
    return c->answers > 1 && !c->requests && c->sample.temperature <= 0
               ? err_set(s->err, ERR_USAGE,
                         "--answers: at temperature 0 all answers are equal: expected "
                         "--temp above 0")
               : 0;
}

/* Coarse products are of NVFP4 weights with plain activations only. */
static void
report_fast(struct session *s)
{
    struct device_options *o = &s->c->where;
    bool packed = false;
    for (size_t i = 0; i < s->model.net.table.n; i++)
        packed |= s->model.net.t[i].w.dtype == DT_NVFP4;
    if (o->coarse && (!packed || o->fp4)) {
        o->coarse = false;
        o->why = packed ? "--activations nvfp4 has products of its own"
                        : "no weight is NVFP4";
    }
    device_report_speed(o);
    if (!s->model.fp8)
        return;
    device_report_not_fp8(o->host, &s->model.net.table);
    if (s->model.n_inexact)
        device_report_inexact(o->host, s->model.n_inexact, s->model.n_fp8);
}

void
session_settle_draws(struct session *s)
{
    const struct config_generate *c = s->c;
    s->greedy =
        c->sample.temperature <= 0 && c->sample.penalty == 1 && !c->json && !c->logits;
}

/* Check all that needs no weights first, so that mistakes are reported at once. */
int
session_open(struct session *s, struct config_generate *c, struct err *err)
{
    struct load_options o = { .threads = c->where.threads,
                              .config = c->config,
                              .quant = c->quant,
                              .no_verify = c->no_verify,
                              .host = cmd_host(&c->cmd) };
    *s = (struct session){ .c = c, .err = err };
    s->q = &s->first;
    double start = os_seconds();
    if (model_open(&s->model, c->model, &o, err) < 0 || settle_limit(s) < 0)
        return -1;
    if (device_products(&c->where, &c->device, c->activations, &s->model.config,
                        &s->activations, &s->model.activations, err) < 0)
        return -1;
    s->model.fp8 = c->where.compute == COMPUTE_FP8;
    if (s->model.fp8 && s->model.activations)
        return err_set(err, ERR_USAGE,
                       "--compute fp8: rounds inputs of products to FP8, --activations "
                       "nvfp4 to NVFP4: expected --activations plain, or another "
                       "--compute");
    s->model.input_scales = c->input_scale == INPUT_SCALE_STATIC;
    for (uint32_t i = 0; i < s->model.config.n_eos; i++)
        add_end(s, s->model.config.eos[i]);
    bool text = !c->score && (!c->ids || c->tokenizer);
    if ((text && open_tokenizer(s) < 0) || defaults_read(s) < 0 || check_answers(s) < 0)
        return -1;
    s->logits = malloc(s->model.config.vocab * sizeof *s->logits);
    if (!s->logits)
        return err_set(err, ERR_MEMORY, "out of memory for logits");
    if (sampler_open(&s->sampler, &c->sample, s->model.config.vocab, err) < 0 ||
        dump_check(s, c->logits) < 0 || dump_check(s, c->dump_layers) < 0 ||
        dump_check(s, c->dump_importance) < 0)
        return -1;
    session_settle_draws(s);
    const char *outputs[] = { c->logits, c->dump_layers, c->dump_importance,
                              c->history };
    const char *inputs[] = { c->score, c->kl, c->tokenizer, c->config, c->model };
    cmd_check_outputs(outputs, 4, inputs, 5);
    if (c->batch > 1 && !s->greedy && !(s->pool = par_open(c->where.threads, err)))
        return -1;
    s->k = device_open(&c->where, err);
    if (!s->k)
        return -1;
    if (model_load(&s->model, s->k, 1) < 0)
        return -1;
    report_fast(s);
    char words[64];
    device_describe(words, sizeof words, &c->where);
    if (c->cmd.verbose)
        warn("%s: loaded in %.2f s; device: %s", s->model.store.name,
             os_seconds() - start, words);
    return 0;
}

void
sequence_free(struct sequence *q)
{
    if (q->has_cache)
        net_cache_close(&q->cache);
    ids_free(&q->ids);
    *q = (struct sequence){ 0 };
}

void
session_close(struct session *s)
{
    sequence_free(&s->first);
    model_close(&s->model);
    if (s->k)
        kernels_close(s->k);
    if (s->e)
        encoder_close(s->e);
    if (s->t)
        tokenizer_close(s->t);
    sampler_close(&s->sampler);
    par_close(s->pool);
    free(s->logits);
    free(s->tokenizer);
    *s = (struct session){ 0 };
}

bool
session_ends(const struct session *s, uint32_t id)
{
    for (size_t i = 0; i < s->n_end; i++)
        if (s->end[i] == id)
            return true;
    return false;
}

/* ---- tokens through the model ----------------------------------------------------------------- */

int
session_copy(struct session *s, const struct net_cache *from, size_t n)
{
    const struct config *c = &s->model.config;
    size_t row = (size_t)c->kv_heads * c->head_dim,
           bytes = n * row * (dtype_bits(s->k->is.act) / 8);
    for (uint32_t i = 0; i < c->layers; i++) {
        op_copy(s->k, s->q->cache.key[i], from->key[i], bytes);
        op_copy(s->k, s->q->cache.value[i], from->value[i], bytes);
    }
    s->q->cache.used = n;
    net_cache_changed(&s->q->cache);
    return s->err->kind ? -1 : 0;
}

/* Into a larger cache. */
static int
move_cache(struct session *s, struct net_cache *old)
{
    int rc = session_copy(s, old, old->used);
    net_cache_close(old);
    return rc;
}

/* Bytes of a token: keys and values in all layers, cosines and sines. */
static uint64_t
token_bytes(const struct session *s)
{
    const struct config *c = &s->model.config;
    uint64_t row = (uint64_t)c->kv_heads * c->head_dim * (dtype_bits(s->k->is.act) / 8);
    return 2 * c->layers * row + c->head_dim * sizeof(float);
}

/* The capacity for n tokens: rounded up and doubled as far as memory allows. */
static int
choose_capacity(struct session *s, size_t n, size_t *capacity)
{
    uint64_t available = device_free(&s->c->where);
    uint64_t fit = available / token_bytes(s);
    size_t old = s->q->has_cache ? s->q->cache.capacity
                                 : 0; // still allocated while it is copied
    *capacity = (size_t)round_up(n, CAPACITY_STEP);
    if (*capacity < 2 * old)
        *capacity = 2 * old;
    if (*capacity > fit)
        *capacity = n;
    if (*capacity > s->limit)
        *capacity = s->limit;
    if (*capacity <= fit)
        return 0;
    char way[64] = "not even those of one token fit";
    if (fit + old > 0)
        snprintf(way, sizeof way, "--context %llu is the largest that fits",
                 (unsigned long long)(fit + old));
    return err_set(s->err, ERR_MEMORY,
                   "keys and values of %zu tokens need %.3f GB, %s has %.3f free: %s",
                   *capacity, (double)*capacity * (double)token_bytes(s) / (1 << 30),
                   s->k->is.host ? "this machine" : "the GPU",
                   (double)available / (1 << 30), way);
}

bool
session_fits(const struct session *s, size_t n)
{
    if (n > s->limit)
        n = s->limit;
    return (s->q->has_cache && n <= s->q->cache.capacity) ||
           round_up(n, CAPACITY_STEP) <= device_free(&s->c->where) / token_bytes(s);
}

int
session_reserve(struct session *s, size_t n)
{
    struct net_cache old = s->q->cache;
    if (n > s->limit)
        n = s->limit;
    if (s->q->has_cache && n <= old.capacity)
        return 0;
    size_t capacity;
    if (choose_capacity(s, n, &capacity) < 0 || model_stretch(&s->model, capacity) < 0)
        return -1;
    bool grows = s->q->has_cache;
    s->q->has_cache = true;
    if (net_cache_open(&s->q->cache, &s->model.net, capacity) < 0)
        return -1;
    return grows ? move_cache(s, &old) : 0;
}

/* One chunk: logits of its last rows, or without a buffer the argmax of the last token. */
static int
extend(struct session *s, const uint32_t *ids, size_t n, size_t rows, float *logits)
{
    struct net *net = &s->model.net;
    const int32_t *mine = (const int32_t *)ids;
    if (rows && !logits)
        return net_argmax(net, &s->q->cache, mine, n, &s->q->argmax, s->hidden,
                          s->hidden_ctx);
    return net_extend(net, &s->q->cache, mine, n, rows, logits, s->hidden,
                      s->hidden_ctx);
}

static size_t
chunk_tokens(const struct session *s)
{
    return s->c->chunk ? s->c->chunk : s->k->is.host ? CHUNK : CHUNK_GPU;
}

/* Up to how many tokens may be computed together without a change of any bit; so may any number
 * above it on a GPU, unless products are of FP8. */
static size_t
alike(const struct session *s)
{
    return s->model.fp8 ? 1 : s->k->is.alike;
}

static bool
any_number(const struct session *s)
{
    return alike(s) == SIZE_MAX;
}

/* Whether a prompt may begin inside a chunk. */
static bool
may_cut(const struct session *s)
{
    return !s->k->is.host && !s->model.fp8 && !s->c->where.fp4 &&
           chunk_tokens(s) > alike(s);
}

/* Where the last chunk of n tokens begins. */
static size_t
last_chunk(const struct session *s, size_t n)
{
    return n ? (n - 1) / chunk_tokens(s) * chunk_tokens(s) : 0;
}

size_t
session_shareable(const struct session *s, size_t n)
{
    size_t last = last_chunk(s, n);
    if (n < 2 || (may_cut(s) && n - last <= alike(s)))
        return last;
    return n;
}

/* The same of a GPU: of the prompt, and of the chunk that is cut, more than alike(s) tokens are left. */
static size_t
shares_of_chunks(const struct session *s, size_t common, size_t n)
{
    size_t chunk = chunk_tokens(s), few = alike(s) + 1, end = session_shareable(s, n),
           k = end > few ? end - few : 0, begin, in;
    k = common < k ? common : k;
    begin = k / chunk * chunk;
    in = k - begin < chunk - few ? k - begin : chunk - few; // of the chunk that is cut
    return begin + in / s->k->is.cut * s->k->is.cut;
}

/* Otherwise whole chunks of prompts have the bits that they have alone: the same tokens behind the
 * same cache.  One token by itself is computed as those of an answer are, so it is no chunk, and
 * more than one must be left. */
size_t
session_shares(const struct session *s, size_t common, size_t n)
{
    size_t left = any_number(s) ? 1 : 2, unit = any_number(s) ? 1 : chunk_tokens(s);
    if (s->c->no_kv || s->c->dump_layers || n < left)
        return 0;
    if (may_cut(s))
        return shares_of_chunks(s, common, n);
    return (common < n - left ? common : n - left) / unit * unit;
}

size_t
session_shared(const struct session *s, const struct sequence *q)
{
    if (any_number(s))
        return q->cache.used;
    return q->prompt <= q->cache.used ? session_shareable(s, q->prompt) : 0;
}

int
session_extend(struct session *s, const uint32_t *ids, size_t n, size_t rows,
               float *logits)
{
    size_t chunk = chunk_tokens(s);
    size_t vocab = s->model.config.vocab;
    for (size_t at = 0; at < n;) {
        size_t left = chunk - s->q->cache.used % chunk,
               part = n - at < left ? n - at : left, end = at + part;
        if (s->stop && *s->stop)
            return 1;
        size_t mine =
            end + rows > n ? end + rows - n : 0; // rows that are in this chunk
        if (mine > part)
            mine = part;
        if (extend(s, ids + at, part, mine, logits) < 0)
            return -1;
        if (logits)
            logits += mine * vocab;
        at = end;
    }
    return 0;
}

/* The result of a pass, in q. */
static int
read_result(const struct session *s, struct sequence *q, struct err *err)
{
    size_t vocab = s->model.config.vocab;
    if (s->greedy ? q->argmax < 0 : !logits_finite(q->logits, vocab))
        return err_set(err, ERR_NONFINITE, "logits after token %zu are not finite",
                       q->ids.n - 1);
    if (s->c->json)
        q->log_sum = logits_log_sum(q->logits, vocab);
    return 0;
}

struct results {
    const struct session *s;
    struct sequence *const *q;
};

static int
read_one(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct results *r = ctx;
    (void)worker;
    return read_result(r->s, r->q[i], err);
}

/* Of n sequences.  Exponentials of eight prompts' logits by one thread would take a quarter of
 * the time of their step. */
static int
read_results(struct session *s, struct sequence *const *q, size_t n)
{
    struct results r = { s, q };
    if (s->pool)
        return par_run(s->pool, n, read_one, &r, s->err);
    for (size_t i = 0; i < n; i++)
        if (read_result(s, q[i], s->err) < 0)
            return -1;
    return 0;
}

int
session_follow(struct session *s)
{
    struct sequence *q = s->q;
    if (session_reserve(s, q->ids.n) < 0)
        return -1;
    if (s->c->no_kv)
        q->cache.used = 0;
    size_t from = q->cache.used;
    if (q->ids.n - from == 1 && !s->hidden) // as in a batch
        return s->stop && *s->stop ? 1 : session_step(s, &q, 1, s->logits);
    q->logits = s->logits;
    int rc = session_extend(s, q->ids.v + from, q->ids.n - from, 1,
                            s->greedy ? NULL : s->logits);
    if (rc != 0)
        return rc;
    return read_results(s, &q, 1) < 0 ? -1 : store_check(&s->model.store);
}

bool
session_reads_stored(const struct session *s, size_t n)
{
    return n <= alike(s);
}

/* Bytes of a pass of n tokens and the logits of some. */
static uint64_t
pass_bytes(const struct session *s, size_t n)
{
    struct err err = { 0 };
    struct net net = { 0 };
    struct cpu_kind cpu = device_cpu(&s->c->where);
    struct kernels *k = kernels_dry(&s->k->is, &cpu, &err);
    uint64_t bytes = UINT64_MAX;
    if (k && net_open(&net, &s->model.config, k, 1, &err) == 0) {
        uint64_t before = k->usage.total;
        if (net_reserve(&net, n, MAX_BATCH, false) == 0)
            bytes = k->usage.total - before;
    }
    if (k) {
        net_close(&net);
        kernels_close(k);
    }
    return bytes;
}

/* A chunk, or half as many tokens again and again until a pass takes no more than a part of the
 * memory that is free. */
static size_t
pass_tokens(const struct session *s)
{
    size_t n = chunk_tokens(s);
    uint64_t most = device_free(&s->c->where) / FREE_FOR_PASS;
    while (n > alike(s) && pass_bytes(s, n) > most)
        n /= 2;
    return n > alike(s) ? n : 0;
}

size_t
session_together(struct session *s, size_t n)
{
    size_t chunk = chunk_tokens(s), few = alike(s);
    if (s->k->is.host || s->model.fp8) // slower there; or numbers depend on others
        s->apart = true;
    if (n > few && !s->apart && !s->asked_together) {
        s->asked_together = true;
        s->together = pass_tokens(s);
    }
    size_t most = n > few ? s->together : chunk < few ? chunk : few;
    return !s->apart && n > 1 && n <= most ? most : 0;
}

int
session_reserve_together(struct session *s, size_t n, size_t sequences)
{
    size_t most = session_together(s, n);
    return most ? net_reserve(&s->model.net, most, sequences, false) : 0;
}

void
session_apart(struct session *s)
{
    s->apart = true;
    net_release(&s->model.net);
}

/* Tokens of n sequences; id: the best of each, if that is all that is wanted. */
static int
extend_each(struct session *s, struct sequence *const *q, size_t n, float *logits,
            int32_t *id)
{
    struct net_run run[MAX_BATCH];
    struct net_cache *cache[MAX_BATCH];
    bool more = q[0]->ids.n + 1 < q[0]->end, steps = true;
    for (size_t i = 0; i < n; i++) {
        size_t from = q[i]->cache.used;
        const int32_t *ids = (const int32_t *)q[i]->ids.v + from;
        cache[i] = &q[i]->cache;
        run[i] = (struct net_run){ cache[i], ids, q[i]->ids.n - from };
        id[i] = ids[0];
        steps = steps && run[i].tokens == 1;
    }
    return steps ? net_step(&s->model.net, cache, id, n, logits, id, more)
                 : net_extend_each(&s->model.net, run, n, logits, id);
}

int
session_step(struct session *s, struct sequence *const *q, size_t n, float *logits)
{
    int32_t id[MAX_BATCH];
    for (size_t i = 0; i < n; i++) {
        s->q = q[i];
        if (session_reserve(s, q[i]->ids.n) < 0)
            return -1;
    }
    if (extend_each(s, q, n, s->greedy ? NULL : logits, id) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        q[i]->argmax = id[i];
        q[i]->logits = s->greedy ? NULL : logits + i * s->model.config.vocab;
    }
    return read_results(s, q, n) < 0 ? -1 : store_check(&s->model.store);
}
