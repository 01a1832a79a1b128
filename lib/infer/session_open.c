/* SPDX-License-Identifier: MIT */
/* session_open: a model, its tokenizer and a device, opened in an order in which mistakes are
 * found before weights are read. */
#include "lib/infer/session.h"

#include "lib/base/os.h"
#include "lib/base/par.h"
#include "lib/file/path.h"
#include "lib/infer/defaults.h"
#include "lib/infer/tensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
    if (other)
        host_note(
            s->c->host,
            "%s: is not the tokenizer that the checkpoint was trained with: -t names "
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
        rc = path_check_outputs(outputs, 3, inputs, 1, s->err);
    if (rc == 0 && !(s->t = tokenizer_open(path.data, s->c->host->guard, s->err)))
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
    if (rc == 0 && !(s->tokenizer = strdup(path.data)))
        rc = err_set(s->err, ERR_MEMORY, "out of memory for a file name");
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
    const struct infer_options *c = s->c;
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
    const struct infer_options *c = s->c;
    s->greedy =
        c->sample.temperature <= 0 && c->sample.penalty == 1 && !c->json && !c->logits;
}

/* Check all that needs no weights first, so that mistakes are reported at once. */
int
session_open(struct session *s, struct infer_options *c, struct err *err)
{
    struct load_options o = { .threads = c->where.threads,
                              .config = c->config,
                              .quant = c->quant,
                              .no_verify = c->no_verify,
                              .host = c->host };
    *s = (struct session){ .c = c, .err = err };
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
    if (path_check_outputs(outputs, 4, inputs, 5, err) < 0)
        return -1;
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
    if (c->host->verbose)
        host_warn(c->host, "%s: loaded in %.2f s; device: %s", s->model.store.name,
                  os_seconds() - start, words);
    return 0;
}

void
session_close(struct session *s)
{
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
