/* SPDX-License-Identifier: MIT */
/* generate: run a model: answers, chat, scores. */
#include "cmd/generate/generate.h"
#include "cmd/generate/edit.h"
#include "cmd/generate/source.h"

#include "cmd/cli/device_rows.h"
#include "cmd/cli/ranks.h"
#include "cmd/cli/suffix.h"
#include "lib/file/path.h"
#include "lib/format/tok.h"
#include "lib/infer/score.h"
#include "lib/load/rank_gpus.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config_generate cfg = {
    .cmd = { .name = "generate",
             .synopsis = "generate [OPTION]... MODEL",
             .about = "Run a model from any container: answer prompts, chat, or "
                      "measure its loss on samples.\nThe prompt is not repeated." },
    .rank_timeout = 600,
    .o = { .max_tokens = 256,
           .batch = 1,
           .answers = 1,
           .sample = { .top_p = 1, .penalty = 1 },
           .where = { .device = "auto", .decodes = true } },
};

static const char *
quant_word(size_t i)
{
    return i == 0 ? "none" : i <= QUANT_COUNT ? quant_name((enum quant)(i - 1)) : NULL;
}

static void
add_prompt(const struct cmd_option *o, const char *arg)
{
    struct config_generate *c = o->to.any;
    const char **p = realloc(c->prompts, (c->n_prompts + 1) * sizeof *p);
    if (!p)
        die(EXIT_MEMORY, "out of memory for prompts");
    c->prompts = p;
    c->prompts[c->n_prompts++] = arg;
}

static void
add_stop(const struct cmd_option *o, const char *arg)
{
    struct config_generate *c = o->to.any;
    if (!*arg)
        misuse("--stop: want a text that is not empty");
    if (c->o.n_stops == MAX_STOPS)
        misuse("--stop: at most %d of them", MAX_STOPS);
    c->o.stop[c->o.n_stops++] = slice_of(arg);
}

static void
take_top_p(const struct cmd_option *o, const char *arg)
{
    double p = cmd_number(o->name, arg, 0);
    if (p > 1)
        misuse("--top-p: %s: want a number of 0 to 1", arg);
    *o->to.number = p;
}

static const char *const input_kinds[] = { "lines", "jsonl", NULL };
static const char *const input_scales[] = { "dynamic", "static", NULL };

static const struct cmd_option options[] = {
    { 't', "tokenizer", "FILE", "tokenizer.json (default: the one beside MODEL)",
      CMD_FILE(&cfg.o.tokenizer) },
    { 'p', "prompt", "TEXT",
      "a prompt; repeatable (default: each line of stdin is one)",
      CMD_EACH(&cfg, add_prompt) },
    { 0, "input", "KIND", "what stdin holds: lines (default), or jsonl: requests",
      CMD_CHOICE(&cfg.o.requests, input_kinds, 0) },
    { CMD_TEMPLATE(&cfg.o.how.kind) },
    { 0, "system", "TEXT", "a system message before the prompt",
      CMD_TEXT(&cfg.o.system) },
    { 0, "think", NULL, "a hybrid Qwen3 model: let it think before it answers",
      CMD_SET(&cfg.o.how.think, THINK_ON) },
    { 0, "no-think", NULL, "a hybrid Qwen3 model: let it answer at once",
      CMD_SET(&cfg.o.how.think, THINK_OFF) },
    { 0, "chat", NULL, "a conversation, a turn a line; typed ones are edited by %s",
      CMD_FLAG(&cfg.o.chat), .word = edit_name },
    { 0, "no-drop", NULL, "with --chat: end where the context is full",
      CMD_FLAG(&cfg.o.no_drop) },
    { 0, "history", "FILE", "with --chat: keep what is typed in this file",
      CMD_FILE(&cfg.o.history) },
    { 0, "time", NULL, "report how long answers take: in JSON, else on stderr",
      CMD_FLAG(&cfg.o.time) },
    { 0, "batch", "N", "answer N prompts at the same time (default 1)",
      CMD_U32(&cfg.o.batch, 1, MAX_BATCH) },
    { 0, "answers", "N", "N answers to each prompt, drawn apart (default 1)",
      CMD_U32(&cfg.o.answers, 1, MAX_ANSWERS) },
    { 'n', "max-tokens", "N", "max tokens of an answer (default 256)",
      CMD_U32(&cfg.o.max_tokens, 0, INT32_MAX) },
    { 0, "temp", "X", "temperature; 0: always the most likely token",
      CMD_NUMBER(&cfg.o.sample.temperature, 0) },
    { 0, "top-p", "X", "draw from the most likely tokens, of probability X in all",
      CMD_CALL(&cfg.o.sample.top_p, take_top_p) },
    { 0, "top-k", "N", "draw from the N most likely tokens; 0: from all",
      CMD_U32(&cfg.o.sample.top_k, 0, UINT32_MAX) },
    { 0, "repeat-penalty", "X", "makes tokens that occurred before less likely; 1: off",
      CMD_NUMBER(&cfg.o.sample.penalty, 1e-6) },
    { 0, "seed", "N", "random seed of the draws (default 0)",
      CMD_U32(&cfg.o.sample.seed, 0, UINT32_MAX) },
    { 0, "stop", "TEXT", "text that ends an answer and is not shown (repeatable)",
      CMD_EACH(&cfg, add_stop) },
    { 0, "ignore-eos", NULL, "do not stop at end tokens", CMD_FLAG(&cfg.o.ignore_eos) },
    { 0, "ids", NULL, "prompts and answers are ids: no tokenizer is needed",
      CMD_FLAG(&cfg.o.ids) },
    { 0, "json", NULL, "one JSON object a prompt, with log-probabilities",
      CMD_FLAG(&cfg.o.json) },
    { 0, "top-logprobs", "K", "with --json: also the K most likely tokens",
      CMD_U32(&cfg.o.top_logprobs, 1, 1 << 16) },
    { 0, "score", "FILE.tok", "mean loss and perplexity of targets, as TSV",
      CMD_FILE(&cfg.o.score) },
    { 0, "logits", "FILE", "write logits into this .safetensors",
      CMD_FILE(&cfg.o.logits) },
    { 0, "kl", "FILE", "with --score: compare with logits of another model",
      CMD_FILE(&cfg.o.kl) },
    { 0, "kl-model", "MODEL", "with --score: compare with that model",
      CMD_FILE(&cfg.o.kl_model) },
    { 0, "dump-layers", "FILE", "write the hidden states of a prompt after each layer",
      CMD_FILE(&cfg.o.dump_layers) },
    { 0, "dump-importance", "FILE", "with --score: measure how much each column counts",
      CMD_FILE(&cfg.o.dump_importance) },
    { 0, "hessian", NULL, "with --dump-importance: also mean products of columns",
      CMD_FLAG(&cfg.o.hessian) },
    { 'f', "force", NULL, "replace files that exist", CMD_FLAG(&cfg.o.force) },
    { 0, "quant", "NAME", "quantizer of the projections (default: as in MODEL)",
      CMD_WORD_OF(&cfg.o.quant, quant_word) },
    { CMD_CONFIG(&cfg.o.config) },
    { 0, "context", "N", "max positions of prompt and answer (default: the model's)",
      CMD_U64(&cfg.o.context, 1, INT32_MAX) },
    { 0, "prefill-chunk", "N", "tokens of a prompt at a time (default 512)",
      CMD_U64(&cfg.o.chunk, 1, 1 << 20) },
    { 0, "no-kv", NULL, "keep no cache: compute all again for each token",
      CMD_FLAG(&cfg.o.no_kv) },
    { 0, "no-verify", NULL, "load faster: do not check MODEL's checksums",
      CMD_FLAG(&cfg.o.no_verify) },
    { 0, "device", "NAME", "cpu, cuda, cuda:N or auto (default auto)",
      DEVICE_NAME(cfg.o.where) },
    { 0, "compute", "TYPE", "f32, bf16, fp8 or auto (default auto)",
      DEVICE_COMPUTE(cfg.o.where, device_computes) },
    { 0, "fast", NULL, "give up equal bits where that is faster",
      DEVICE_FAST(cfg.o.where) },
    { 0, "path", "NAME", "native, dequant or auto (default auto)",
      DEVICE_PATH(cfg.o.where) },
    { 0, "activations", "NAME", "plain or nvfp4 (default plain)",
      CMD_CHOICE(&cfg.o.activations, device_activations_given, ACTIVATIONS_PLAIN) },
    { 0, "input-scale", "NAME",
      "of nvfp4 activations: dynamic (default), or static: MODEL's own",
      CMD_CHOICE(&cfg.o.input_scale, input_scales, INPUT_SCALE_DYNAMIC) },
    { 0, "gpus", "N", "with --score: on N GPUs of this machine, a process each",
      CMD_U64(&cfg.gpus, 1, 1024) },
    { 0, "rendezvous", "HOST:PORT", "with --score: where ranks with GPUs meet",
      CMD_TEXT(&cfg.rendezvous) },
    { 0, "rank-timeout", "SECONDS",
      "end if one of those does not come for so long (600)",
      CMD_NUMBER(&cfg.rank_timeout, 1) },
    { CMD_COMPAT(&cfg.torchsharp,
                 "--template torchsharp, control tokens in text count") },
    { CMD_THREADS(&cfg.o.where.threads) },
    CMD_COMMON(cfg.cmd),
};

/* ---- what goes together -------------------------------------------------------- */

static void
check_text(const char *option, const char *text)
{
    size_t n = text ? strlen(text) : 0, bad = text ? utf8_check(text, n) : 0;
    if (bad < n)
        misuse("--%s: byte %zu: not UTF-8", option, bad);
}

static void
settle_score(const struct config_generate *c)
{
    if (c->n_prompts || c->o.chat || c->o.ids || c->o.system || c->o.n_stops ||
        c->o.top_logprobs || c->o.dump_layers || c->o.no_kv || c->o.requests ||
        c->o.batch > 1 || c->o.answers > 1 || c->o.how.think != THINK_UNSET ||
        c->o.time || cmd_given(&c->cmd, "template"))
        misuse("--score: goes with --logits, --kl, --kl-model, --dump-importance and "
               "--json, "
               "not with prompts");
    if (c->o.kl_model && (c->o.kl || c->o.logits || c->o.dump_importance))
        misuse("--kl-model: not with --%s: run the model once more for it",
               c->o.kl       ? "kl"
               : c->o.logits ? "logits"
                             : "dump-importance");
    const char *const inputs[] = { c->o.score, c->o.model, c->o.kl_model };
    int stdins = 0;
    for (size_t i = 0; i < 3; i++)
        stdins += inputs[i] && strcmp(inputs[i], "-") == 0;
    if (stdins > 1)
        misuse("-: standard input can be read once");
}

static void
settle_requests(struct config_generate *c)
{
    const char *other = c->n_prompts       ? "prompt"
                        : c->o.chat        ? "chat"
                        : c->o.logits      ? "logits"
                        : c->o.dump_layers ? "dump-layers"
                                           : NULL;
    if (!c->o.requests)
        return;
    if (other)
        misuse("--input jsonl: not with --%s: requests are lines of standard input",
               other);
    c->o.json = true;
}

static void
settle_options(struct config_generate *c)
{
    c->o.given.temperature = cmd_given(&c->cmd, "temp");
    c->o.given.top_p = cmd_given(&c->cmd, "top-p");
    c->o.given.top_k = cmd_given(&c->cmd, "top-k");
    c->o.given.penalty = cmd_given(&c->cmd, "repeat-penalty");
    if (c->torchsharp && !cmd_given(&c->cmd, "template"))
        c->o.how.kind = TEMPLATE_TORCHSHARP;
    if (c->torchsharp && c->o.activations == ACTIVATIONS_NVFP4)
        c->o.activations = ACTIVATIONS_TORCHSHARP;
    c->o.how.parse_special = c->torchsharp;
    if (c->o.input_scale == INPUT_SCALE_STATIC && c->o.activations != ACTIVATIONS_NVFP4)
        misuse("--input-scale static: goes with --activations nvfp4%s",
               c->torchsharp ? ", without --compat torchsharp" : "");
    if (c->o.kl && !c->o.score)
        misuse("--kl: goes with --score");
    if (c->o.kl_model && !c->o.score)
        misuse("--kl-model: goes with --score: models are compared on the tokens of a "
               ".tok");
    const char *const several[] = { "gpus", "rendezvous", "rank-timeout" };
    for (size_t i = 0; i < sizeof several / sizeof *several; i++)
        if (cmd_given(&c->cmd, several[i]) && !c->o.score)
            misuse("--%s: goes with --score: answers are computed on one GPU",
                   several[i]);
    if (c->o.dump_importance && !c->o.score)
        misuse("--dump-importance: goes with --score: it measures on the tokens of a "
               ".tok");
    if (c->o.hessian && !c->o.dump_importance)
        misuse("--hessian: goes with --dump-importance");
    suffix_check("--logits", c->o.logits, "safetensors");
    suffix_check("--dump-layers", c->o.dump_layers, "safetensors");
    suffix_check("--dump-importance", c->o.dump_importance, "safetensors");
    if (c->o.score) {
        settle_score(c);
        return;
    }
    settle_requests(c);
    if (c->o.batch > 1 && (c->o.chat || c->o.logits || c->o.dump_layers || c->o.no_kv))
        misuse("--batch: not with --%s", c->o.chat          ? "chat"
                                         : c->o.logits      ? "logits"
                                         : c->o.dump_layers ? "dump-layers"
                                                            : "no-kv");
    if (c->o.answers > 1 && (c->o.chat || c->o.logits || c->o.dump_layers))
        misuse("--answers: not with --%s", c->o.chat     ? "chat"
                                           : c->o.logits ? "logits"
                                                         : "dump-layers");
    if (!c->o.chat && (c->o.no_drop || c->o.history))
        misuse("--%s: goes with --chat", c->o.no_drop ? "no-drop" : "history");
    if (c->o.top_logprobs && !c->o.json)
        misuse("--top-logprobs: goes with --json");
    if (c->o.ids && (c->o.chat || c->o.system || cmd_given(&c->cmd, "template")))
        misuse("--ids: prompts are taken as they are: no --chat, --system or "
               "--template");
    if (c->o.ids && c->o.n_stops && !c->o.tokenizer)
        misuse("--stop: with --ids it needs -t tokenizer.json");
    if (c->o.how.think != THINK_UNSET && (c->o.ids || c->o.how.kind != TEMPLATE_QWEN3))
        misuse("--%s: needs --template qwen3",
               c->o.how.think == THINK_ON ? "think" : "no-think");
    if ((c->o.chat || c->o.system) && c->o.how.kind != TEMPLATE_QWEN3)
        misuse("--%s: needs --template qwen3", c->o.chat ? "chat" : "system");
    if ((c->o.chat || c->n_prompts > 1) && (c->o.logits || c->o.dump_layers))
        misuse("--logits and --dump-layers: take one prompt");
    assert(c->o.model);
    if (!c->n_prompts && strcmp(c->o.model, "-") == 0)
        misuse("-: the model is on standard input: want -p TEXT");
    check_text("system", c->o.system);
    for (size_t i = 0; i < c->o.n_stops; i++)
        check_text("stop", c->o.stop[i].p);
}

/* Said once, of what has no effect. */
static void
warn_idle(const struct config_generate *c)
{
    if (!c->cmd.quiet && !c->o.score && c->o.sample.temperature <= 0 &&
        (cmd_given(&c->cmd, "top-p") || cmd_given(&c->cmd, "top-k")))
        warn("--top-k and --top-p do nothing without --temp: the most likely token is "
             "taken");
}

/* ---- several ranks ------------------------------------------------------------- */

/* Samples of --score are divided among the processes that a launcher has started, or --gpus. */
static void
begin_ranks(struct config_generate *c)
{
    struct ranks *r = cmd_ranks();
    if (c->gpus) {
        cmd_ranks_want_gpus(&c->o.where.device, c->rendezvous);
        cmd_ranks_start((unsigned)c->gpus, false);
    }
    if (!cmd_given(&c->cmd, "threads"))
        c->o.where.threads = ranks_threads(r, c->o.where.threads);
    if (r->size == 1)
        return;
    const char *const whole[] = { "logits", "dump-importance" };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (cmd_given(&c->cmd, whole[i]))
            misuse("--%s: one process writes it: expected no other ranks", whole[i]);
    const char *const inputs[] = { c->o.score, c->o.model, c->o.kl_model };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i] && path_is_stream(inputs[i]))
            misuse("%s: a pipe would reach one of %u ranks only: expected a file",
                   inputs[i], r->size);
}

static void
join_ranks(struct config_generate *c)
{
    struct err err = { 0 };
    struct ranks *r = cmd_ranks();
    // Samples take as long as they take: ranks that are there are waited for without an end.
    cmd_ranks_join(0, c->rank_timeout, c->o.where.cuda, c->rendezvous);
    if (!c->cmd.quiet)
        cmd_ranks_report();
    if (c->o.where.cuda && r->size > 1 &&
        rank_gpus_settle(r, c->o.where.device, &c->o.where.number, &err) < 0)
        cmd_ranks_die(&err);
}

/* ---- prompts ------------------------------------------------------------------- */

static void
warn_without(const struct config_generate *c)
{
    warn(c->o.requests ? "<stdin>: no requests"
                       : "<stdin>: no prompts: expected one a line, or -p TEXT");
}

/* *all: whether each prompt has an answer. */
static int
answer(struct session *s, const struct config_generate *c, bool *all)
{
    struct given_prompts x;
    uint64_t n, refused;
    bool typed = !c->n_prompts && isatty(STDIN_FILENO);
    if (typed && !c->cmd.quiet && isatty(STDERR_FILENO))
        warn("a line is a prompt, Ctrl-D ends; -p TEXT gives one without typing");
    source_open(&x, c);
    int rc = prompts_answer(s, &x.source, c->n_prompts != 1 && !typed, &n, &refused);
    source_close(&x);
    *all = refused == 0;
    if (rc == 0 && !typed && n == 0 && !c->cmd.quiet)
        warn_without(c);
    if (rc == 0 && c->o.json && refused)
        warn("%llu of %llu prompts could not be answered: see \"error\"",
             (unsigned long long)refused, (unsigned long long)n);
    return rc;
}

/* all: see answer. */
static int
answer_all(struct config_generate *c, bool *all, struct err *err)
{
    struct session s;
    int rc = session_open(&s, &c->o, err);
    if (rc == 0) {
        warn_idle(c);
        rc = c->o.score  ? score_file(&s, cmd_ranks())
             : c->o.chat ? chat_answer(&s, c, all)
                         : answer(&s, c, all);
    }
    session_close(&s);
    return rc;
}

/* A model in the place of the prompt, or samples in that of the model: say what goes where. */
static void
check_swapped(const struct config_generate *c)
{
    char model[TEXT_QUOTE], prompt[TEXT_QUOTE];
    const char *p =
        c->n_prompts == 1 && strcmp(c->o.model, "-") != 0 ? c->prompts[0] : NULL;
    text_quote(model, c->o.model, strlen(c->o.model));
    if (p && access(c->o.model, F_OK) != 0 && access(p, F_OK) == 0)
        misuse("%s: does not exist, and -p %s does: expected -p %s %s", model,
               text_quote(prompt, p, strlen(p)), model, prompt);
    if (c->o.tokenizer && slice_ends(slice_of(c->o.model), ".json") &&
        !slice_ends(slice_of(c->o.tokenizer), ".json") &&
        access(c->o.tokenizer, F_OK) == 0)
        misuse("%s: is a tokenizer by its name, and -t %s is none: expected -t %s %s",
               model, text_quote(prompt, c->o.tokenizer, strlen(c->o.tokenizer)), model,
               prompt);
    if (!c->o.score && tok_is_file(c->o.model))
        misuse("%s: is a .tok of samples: expected a MODEL, and --score %s to measure "
               "its loss on them",
               model, model);
}

int
main(int argc, char **argv)
{
    struct err err = { 0 };
    bool all = true;
    cmd_begin(&cfg.cmd);
    cfg.o.where.threads = cmd_threads(NULL);
    int first =
        cmd_parse(&cfg.cmd, options, sizeof options / sizeof *options, argc, argv);
    if (argc - first > 1 && cmd_given(&cfg.cmd, "force"))
        misuse(
            "want one MODEL, found %d operands: -f is --force; standard input has the "
            "prompts of a file: generate MODEL <FILE",
            argc - first);
    for (int i = first; argc - first > 1 && i < argc; i++)
        if (slice_ends(slice_of(argv[i]), "tokenizer.json"))
            misuse("want one MODEL, found %d operands: -t %s takes the tokenizer",
                   argc - first, argv[i]);
    if (argc - first > 1)
        misuse("want one MODEL, found %d operands: -p TEXT gives a prompt",
               argc - first);
    if (argc - first != 1)
        cmd_refuse_without("MODEL", &cfg.cmd);
    cfg.o.model = argv[first];
    check_swapped(&cfg);
    if (cfg.o.score)
        begin_ranks(&cfg);
    cfg.o.host = cfg.o.where.host = cmd_host(&cfg.cmd);
    cfg.o.device = device_settle(&cfg.o.where);
    settle_options(&cfg);
    if (cfg.o.score)
        join_ranks(&cfg);
    if (answer_all(&cfg, &all, &err) < 0)
        cmd_ranks_die(&err);
    cmd_ranks_leave();
    cmd_close_stdout();
    free(cfg.prompts);
    return all ? EXIT_DONE : EXIT_TROUBLE;
}
