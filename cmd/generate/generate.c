/* SPDX-License-Identifier: MIT */
/* generate: run a model: answers, chat, scores. */
#include "cmd/generate/generate.h"

#include "cmd/suffix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_TEMPLATE = 256,
    OPT_SYSTEM,
    OPT_CHAT,
    OPT_TEMP,
    OPT_TOP_P,
    OPT_TOP_K,
    OPT_PENALTY,
    OPT_SEED,
    OPT_STOP,
    OPT_IGNORE_EOS,
    OPT_IDS,
    OPT_JSON,
    OPT_TOP_LOGPROBS,
    OPT_SCORE,
    OPT_LOGITS,
    OPT_KL,
    OPT_DUMP_LAYERS,
    OPT_PATH,
    OPT_ACTIVATIONS,
    OPT_CHUNK,
    OPT_NO_KV,
    OPT_NO_VERIFY,
    OPT_DEVICE,
    OPT_QUANT,
    OPT_CONTEXT,
    OPT_COMPUTE,
    OPT_FAST,
    OPT_CONFIG,
    OPT_COMPAT,
};

static const struct cmd_option options[] = {
    { 't', "tokenizer", "FILE", "tokenizer.json (default: the one beside MODEL)" },
    { 'p', "prompt", "TEXT", "a prompt; repeatable (default: one a line from stdin)" },
    { OPT_TEMPLATE, "template", "NAME", "qwen3, seed or none (default qwen3)" },
    { OPT_SYSTEM, "system", "TEXT", "a system message before the prompt" },
    { OPT_CHAT, "chat", NULL, "prompts are the turns of one conversation" },
    { 'n', "max-tokens", "N", "tokens of an answer at most (default 256)" },
    { OPT_TEMP, "temp", "X", "temperature; 0: always the most likely token" },
    { OPT_TOP_P, "top-p", "X", "of the most likely ones that make X together" },
    { OPT_TOP_K, "top-k", "N", "of the N most likely ones; 0: of all" },
    { OPT_PENALTY, "repeat-penalty", "X", "for tokens that were there; 1: none" },
    { OPT_SEED, "seed", "N", "of the draws (default 0)" },
    { OPT_STOP, "stop", "TEXT", "ends an answer, not shown (repeatable)" },
    { OPT_IGNORE_EOS, "ignore-eos", NULL, "go on behind end tokens" },
    { OPT_IDS, "ids", NULL, "prompts and answers are ids: no tokenizer is needed" },
    { OPT_JSON, "json", NULL, "one object a prompt, with log-probabilities" },
    { OPT_TOP_LOGPROBS, "top-logprobs", "K", "with --json: of the K best tokens" },
    { OPT_SCORE, "score", "FILE.tok", "mean loss and perplexity of targets, as TSV" },
    { OPT_LOGITS, "logits", "FILE", "write logits into this .safetensors" },
    { OPT_KL, "kl", "FILE", "with --score: compare with logits of another model" },
    { OPT_DUMP_LAYERS, "dump-layers", "FILE", "write hidden states of a prompt" },
    { 'f', "force", NULL, "replace files that exist" },
    { OPT_QUANT, "quant", "NAME", "see the projections so (default: as in MODEL)" },
    { OPT_CONFIG, "config", "FILE", "the model's config.json" },
    { OPT_CONTEXT, "context", "N", "positions at most (default: as the model)" },
    { OPT_CHUNK, "prefill-chunk", "N", "tokens of a prompt at a time (default 512)" },
    { OPT_NO_KV, "no-kv", NULL, "compute everything again for each token" },
    { OPT_NO_VERIFY, "no-verify", NULL, "load faster: do not check MODEL's checksums" },
    { OPT_DEVICE, "device", "NAME", "cpu, cuda, cuda:N or auto (default auto)" },
    { OPT_COMPUTE, "compute", "TYPE", "f32, bf16 or auto (default auto)" },
    { OPT_FAST, "fast", NULL, "give up equal bits where that is faster" },
    { OPT_PATH, "path", "NAME", "native, dequant or auto (default auto)" },
    { OPT_ACTIVATIONS, "activations", "NAME", "plain or nvfp4 (default plain)" },
    { OPT_COMPAT, "compat", "seed", "--template seed, control tokens in text count" },
    { 'j', "threads", "N", "threads (default: all processors)" },
    CMD_COMMON,
};

/* ---- options ------------------------------------------------------------------------------ */

static const char *
quant_word(size_t i)
{
    return i == 0 ? "none" : i <= QUANT_COUNT ? quant_name((enum quant)(i - 1)) : NULL;
}

static void
add_prompt(struct config_generate *c, const char *text)
{
    const char **p = realloc(c->prompts, (c->n_prompts + 1) * sizeof *p);
    if (!p)
        die(EXIT_MEMORY, "out of memory for prompts");
    c->prompts = p;
    c->prompts[c->n_prompts++] = text;
}

static void
add_stop(struct config_generate *c, const char *text)
{
    if (!*text)
        misuse("--stop: want a text that is not empty");
    if (c->n_stops == MAX_STOPS)
        misuse("--stop: at most %d of them", MAX_STOPS);
    c->stop[c->n_stops++] = slice_of(text);
}

/* Of how a token is chosen. */
static bool
take_sampling(struct config_generate *c, int opt, const char *arg)
{
    switch (opt) {
    case OPT_TEMP:
        c->sample.temperature = cmd_number("temp", arg, 0);
        c->temp_given = true;
        return true;
    case OPT_TOP_P:
        c->sample.top_p = cmd_number("top-p", arg, 0);
        if (c->sample.top_p > 1)
            misuse("--top-p: %s: want a number of 0 to 1", arg);
        c->top_p_given = true;
        return true;
    case OPT_TOP_K:
        c->sample.top_k = (uint32_t)cmd_u64("top-k", arg, 0, UINT32_MAX);
        c->top_k_given = true;
        return true;
    case OPT_PENALTY:
        c->sample.penalty = cmd_number("repeat-penalty", arg, 1e-6);
        c->penalty_given = true;
        return true;
    case OPT_SEED:
        c->sample.seed = (uint32_t)cmd_u64("seed", arg, 0, UINT32_MAX);
        return true;
    default:
        return false;
    }
}

/* Of files, and of what is shown. */
static bool
take_output(struct config_generate *c, int opt, const char *arg)
{
    switch (opt) {
    case OPT_IDS:
        c->ids = true;
        return true;
    case OPT_JSON:
        c->json = true;
        return true;
    case OPT_TOP_LOGPROBS:
        c->top_logprobs = (uint32_t)cmd_u64("top-logprobs", arg, 1, 1 << 16);
        return true;
    case OPT_SCORE:
        c->score = arg;
        return true;
    case OPT_LOGITS:
        c->logits = arg;
        return true;
    case OPT_KL:
        c->kl = arg;
        return true;
    case OPT_DUMP_LAYERS:
        c->dump_layers = arg;
        return true;
    case 'f':
        c->force = true;
        return true;
    default:
        return false;
    }
}

/* Of how it is computed. */
static bool
take_computing(struct config_generate *c, int opt, const char *arg)
{
    switch (opt) {
    case OPT_PATH:
        device_take_path(&c->where, arg);
        return true;
    case OPT_ACTIVATIONS:
        c->activations =
            (enum activations)cmd_word("activations", arg, device_activations_given);
        return true;
    case OPT_CHUNK:
        c->chunk = (size_t)cmd_u64("prefill-chunk", arg, 1, 1 << 20);
        return true;
    case OPT_NO_KV:
        c->no_kv = true;
        return true;
    case OPT_NO_VERIFY:
        c->no_verify = true;
        return true;
    case OPT_DEVICE:
        device_take(&c->where, arg);
        return true;
    case OPT_QUANT:
        c->quant = cmd_word_of("quant", arg, quant_word);
        return true;
    case OPT_CONTEXT:
        c->context = (size_t)cmd_u64("context", arg, 1, INT32_MAX);
        return true;
    case OPT_COMPUTE:
        device_take_compute(&c->where, arg);
        return true;
    case OPT_FAST:
        c->where.fast = true;
        return true;
    case 'j':
        c->where.threads = cmd_threads(arg);
        return true;
    default:
        return false;
    }
}

static void
take_option(struct config_generate *c, int opt, const char *arg)
{
    static const char *const templates[] = { "qwen3", "seed", "none", NULL };
    static const char *const compats[] = { "seed", NULL };
    if (take_sampling(c, opt, arg) || take_output(c, opt, arg) ||
        take_computing(c, opt, arg))
        return;
    switch (opt) {
    case 't':
        c->tokenizer = arg;
        break;
    case 'p':
        add_prompt(c, arg);
        break;
    case OPT_TEMPLATE:
        c->how.kind = (enum template_kind)cmd_word("template", arg, templates);
        c->template_given = true;
        break;
    case OPT_SYSTEM:
        c->system = arg;
        break;
    case OPT_CHAT:
        c->chat = true;
        break;
    case 'n':
        c->max_tokens = (uint32_t)cmd_u64("max-tokens", arg, 0, INT32_MAX);
        break;
    case OPT_STOP:
        add_stop(c, arg);
        break;
    case OPT_IGNORE_EOS:
        c->ignore_eos = true;
        break;
    case OPT_CONFIG:
        c->config = arg;
        break;
    default: // OPT_COMPAT
        cmd_word("compat", arg, compats);
        c->seed_compat = c->how.parse_special = true;
    }
}

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
    if (c->n_prompts || c->chat || c->ids || c->system || c->n_stops ||
        c->top_logprobs || c->dump_layers || c->no_kv || c->template_given)
        misuse("--score: goes with --logits, --kl and --json, not with prompts");
    if (strcmp(c->score, "-") == 0 && strcmp(c->model, "-") == 0)
        misuse("-: standard input can be read once");
}

static void
settle(struct config_generate *c)
{
    if (c->seed_compat && !c->template_given)
        c->how.kind = TEMPLATE_SEED;
    if (c->seed_compat && c->activations == ACTIVATIONS_NVFP4)
        c->activations = ACTIVATIONS_SEED;
    if (c->kl && !c->score)
        misuse("--kl: goes with --score");
    suffix_check("--logits", c->logits, "safetensors");
    suffix_check("--dump-layers", c->dump_layers, "safetensors");
    if (c->score) {
        settle_score(c);
        return;
    }
    if (c->top_logprobs && !c->json)
        misuse("--top-logprobs: goes with --json");
    if (c->ids && (c->chat || c->system || c->template_given))
        misuse("--ids: prompts are taken as they are: no --chat, --system or "
               "--template");
    if (c->ids && c->n_stops && !c->tokenizer)
        misuse("--stop: with --ids it needs -t tokenizer.json");
    if ((c->chat || c->system) && c->how.kind != TEMPLATE_QWEN3)
        misuse("--%s: only template qwen3 has a form for it",
               c->chat ? "chat" : "system");
    if ((c->chat || c->n_prompts > 1) && (c->logits || c->dump_layers))
        misuse("--logits and --dump-layers: take one prompt");
    assert(c->model);
    if (!c->n_prompts && strcmp(c->model, "-") == 0)
        misuse("-: the model is on standard input: want -p TEXT");
    check_text("system", c->system);
    for (size_t i = 0; i < c->n_stops; i++)
        check_text("stop", c->stop[i].p);
}

/* Said once, of what has no effect. */
static void
warn_idle(const struct config_generate *c)
{
    if (!c->cmd.quiet && !c->score && c->sample.temperature <= 0 &&
        (c->top_p_given || c->top_k_given))
        warn("--top-k and --top-p do nothing without --temp: the most likely token is "
             "taken");
}

static int
run(struct config_generate *c, struct err *err)
{
    struct session s;
    int rc = session_open(&s, c, err);
    if (rc == 0) {
        warn_idle(c);
        rc = c->score ? score_file(&s) : answer_all(&s);
    }
    session_close(&s);
    return rc;
}

int
main(int argc, char **argv)
{
    static struct config_generate c = {
        .cmd = { .name = "generate",
                 .synopsis = "generate [OPTION]... MODEL",
                 .about = "Run a model of any container: answer prompts, chat, or "
                          "tell its loss on samples.\nThe prompt is not repeated.",
                 .options = options,
                 .n_options = sizeof options / sizeof *options },
        .max_tokens = 256,
        .sample = { .top_p = 1, .penalty = 1 },
    };
    struct err err = { 0 };
    const char *arg;
    int first;
    cmd_begin(&c.cmd);
    c.where = (struct device_options){ .device = "auto",
                                       .decodes = true,
                                       .threads = cmd_threads(NULL) };
    for (int opt; (opt = cmd_option(&c.cmd, argc, argv, &arg, &first)) >= 0;)
        take_option(&c, opt, arg);
    if (argc - first != 1)
        misuse("want one MODEL; --help shows how");
    c.model = argv[first];
    c.device = device_settle(&c.where);
    settle(&c);
    if (run(&c, &err) < 0)
        die_err(&err);
    cmd_close_stdout();
    free(c.prompts);
    return EXIT_DONE;
}
