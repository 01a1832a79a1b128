/* SPDX-License-Identifier: MIT */
/* datpack: put tensors from any container into any other. */
#include "cmd/cli/convert.h"
#include "cmd/cli/suffix.h"

#include "lib/format/writer.h"

#include <string.h>

static struct pack cfg = { .shard_bytes = (uint64_t)5 << 30 };
static struct cmd cmd = {
    .name = "datpack",
    .synopsis = "datpack [OPTION]... -o OUT INPUT...",
    .about = "Put tensors from any container into any other: .dat, "
             ".safetensors, .gguf, .ckpt,\nmodel directories.  Later inputs "
             "replace tensors of earlier ones."
};

static void
take_rename(const struct cmd_option *o, const char *arg)
{
    struct pack *c = o->to.any;
    size_t at = strcspn(arg, "=");
    if (at == 0 || arg[at] == '\0' || arg[at + 1] == '\0')
        misuse("--rename: %s: want OLD=NEW", arg);
    char *text = cmd_copy(arg);
    char *eq = text + at;
    *eq = '\0';
    const char *a = strchr(text, '*'), *b = strchr(eq + 1, '*');
    if (!a != !b || (a && strchr(a + 1, '*')) || (b && strchr(b + 1, '*')))
        misuse("--rename: %s: want one * on each side, or none", arg);
    if (c->n_renames == MAX_RENAMES)
        misuse("--rename: more than %d", MAX_RENAMES);
    c->rename[c->n_renames++] = (struct rename){ text, eq + 1, false };
}

static void
take_shard_size(const struct cmd_option *o, const char *arg)
{
    *o->to.u64 = cmd_bytes(o->name, arg, 1);
}

/* Checkpoints may train without a quantizer. */
static const char *
quant_or_none(size_t i)
{
    return i == 0 ? "none" : pack_quant(i - 1);
}

static const char *const dtypes[] = { "keep", "f16", "bf16", "f32", "nvfp4", NULL };
static const char *const masters[] = { "f32", "bf16", NULL };
static const char *const moments[] = { "f32", "bf16", "int8", "nvfp4", NULL };

static const struct cmd_option options[] = {
    { 'o', "output", "OUT",
      "write here; the suffix tells the container, a final / a directory",
      CMD_FILE(&cfg.out) },
    { 0, "to", "KIND", "%s", CMD_WORD_OF(&cfg.to, writer_kind) },
    { 'f', "force", NULL, "replace OUT if it exists", CMD_FLAG(&cfg.force) },
    { 0, "dtype", "TYPE",
      "f16, bf16, f32, nvfp4 or keep (default: what suits the target)",
      CMD_CHOICE(&cfg.dtype, dtypes, WISH_KEEP) },
    { CMD_SELECT(&cfg.select, "only these tensors (repeatable)") },
    { CMD_EXCLUDE(&cfg.select) },
    { 0, "rename", "OLD=NEW", "rename; one * on each side is the same text",
      CMD_EACH(&cfg, take_rename) },
    { 0, "like", "REF", "order, names and types of REF, payloads of the inputs",
      CMD_FILE(&cfg.like) },
    { PACK_UNTIE(cfg) },
    { PACK_TIE(cfg) },
    { CMD_CONFIG(&cfg.config_path) },
    { 't', "tokenizer", "FILE", "tokenizer.json for a GGUF or a model directory",
      CMD_FILE(&cfg.tokenizer) },
    { 0, "shard-size", "BYTES", "of a model directory's files (default 5G)",
      CMD_CALL(&cfg.shard_bytes, take_shard_size) },
    { 0, "init", "SEED", "instead of inputs: random weights for --config",
      CMD_U32(&cfg.init_seed, 0, UINT32_MAX) },
    { 0, "master", "TYPE", "of a new checkpoint: f32 or bf16 (default bf16)",
      CMD_WORD(&cfg.master, masters) },
    { 0, "moments", "TYPE",
      "f32, bf16, int8 (default); with --compat torchsharp: nvfp4, int8",
      CMD_WORD(&cfg.moments, moments) },
    { 0, "quant", "NAME", "what makes NVFP4 (default: the checkpoint's, else sweep)",
      CMD_WORD_OF(&cfg.quant, quant_or_none) },
    { PACK_VARIANT(cfg) },
    { PACK_CRITERION(cfg, "of 4over6: mse or mae") },
    { PACK_SHARE_SCALE(cfg) },
    { PACK_IMPORTANCE(cfg) },
    { PACK_HESSIAN(cfg) },
    { 0, "input-scales", "FILE",
      "W4A4: activation scales by generate --dump-importance",
      CMD_FILE(&cfg.input_scales) },
    { PACK_COMPAT(cfg) },
    { CMD_STRICT(&cfg.strict) },
    { CMD_THREADS(&cfg.threads) },
    CMD_COMMON(cmd),
};

static void
check_combination(const struct pack *c, int operands)
{
    const struct traits *kind = writer_traits(c->to);
    bool ckpt = kind->training;
    if (c->init && operands > 0)
        misuse("--init: takes no INPUT");
    if (!c->init && operands < 1)
        cmd_refuse_without("INPUT", &cmd);
    if (c->like && (c->init || ckpt || kind->dialect))
        misuse("--like: goes with inputs and a .dat or safetensors output");
    bool typed = c->dtype > WISH_KEEP;
    if (c->like && (typed || c->n_renames))
        misuse("--like: names and types are those of the reference");
    if (ckpt && typed)
        misuse("--dtype: a checkpoint's type is --master");
    if (!ckpt && (c->master || c->moments))
        misuse("--master, --moments: go with --to ckpt");
    if (kind->dialect && typed && c->dtype != WISH_NVFP4)
        misuse("--dtype: in a %s model projections are NVFP4; nvfp4 and keep are "
               "possible",
               c->to);
    if (!ckpt && c->quant && strcmp(c->quant, "none") == 0)
        misuse("--quant none: goes with --to ckpt");
    if (kind->dialect && c->share && strcmp(c->share, "none") == 0)
        misuse("--share-scale none: q, k, v and gate, up share a scale in a %s model",
               c->to);
    if (c->input_scales && !kind->dialect)
        misuse("--input-scales: goes with --to modelopt, compressed-tensors or gguf, "
               "which have a place for them");
    bool packed = ckpt && c->torchsharp;
    if (c->moments && strcmp(c->moments, "nvfp4") == 0 && !packed)
        misuse("--moments nvfp4: only with --compat torchsharp");
    if (packed && c->master)
        misuse("--master: with --compat torchsharp it is nvfp4");
    if (packed && c->moments && strcmp(c->moments, "nvfp4") != 0 &&
        strcmp(c->moments, "int8") != 0)
        misuse("--moments %s: with --compat torchsharp they are nvfp4 or int8",
               c->moments);
    if (cmd_given(&cmd, "shard-size") && !c->directory)
        misuse("--shard-size: goes with an OUT that ends in /");
    if (c->torchsharp && !kind->torchsharp_reads)
        misuse("--compat torchsharp: the TorchSharp programs read .dat files");
}

static int
parse_options(struct pack *c, int argc, char **argv)
{
    int first = cmd_parse(&cmd, options, sizeof options / sizeof *options, argc, argv);
    c->init = cmd_given(&cmd, "init");
    if (!c->out)
        cmd_refuse_without_output(argc - first, argv + first);
    suffix_settle(c->out, &c->to, &c->directory);
    check_combination(c, argc - first);
    return first;
}

int
main(int argc, char **argv)
{
    struct err err = { 0 };
    cmd_begin(&cmd);
    cfg.threads = cmd_threads(NULL);
    int first = parse_options(&cfg, argc, argv);
    cfg.host = cmd_host(&cmd);
    if (pack_run(&cfg, argv + first, (size_t)(argc - first), &err) < 0)
        die_err(&err);
    cmd_close_stdout();
    return EXIT_DONE;
}
