/* SPDX-License-Identifier: MIT */
/* datpack: put tensors from any container into any other. */
#include "cmd/cmd.h"
#include "cmd/suffix.h"
#include "lib/io/pack/pack.h"

#include "lib/format/writer.h"

#include <string.h>

enum {
    OPT_TO = 256,
    OPT_DTYPE,
    OPT_RENAME,
    OPT_LIKE,
    OPT_UNTIE,
    OPT_TIE,
    OPT_CONFIG,
    OPT_SHARD_SIZE,
    OPT_STRICT,
    OPT_QUANT,
    OPT_VARIANT,
    OPT_CRITERION,
    OPT_SHARE,
    OPT_INIT,
    OPT_MASTER,
    OPT_MOMENTS,
    OPT_COMPAT
};

static struct cmd_option options[] = {
    { 'o', "output", "OUT",
      "write here; the suffix tells the container, a final / a directory" },
    { OPT_TO, "to", "KIND", "" }, // main adds the words
    { 'f', "force", NULL, "replace OUT if it exists" },
    { OPT_DTYPE, "dtype", "TYPE",
      "f16, bf16, f32, nvfp4 or keep (default: what suits the target)" },
    { 's', "select", "GLOB", "only these tensors (repeatable)" },
    { 'x', "exclude", "GLOB", "not these (repeatable, wins over -s)" },
    { OPT_RENAME, "rename", "OLD=NEW", "rename; one * on each side is the same text" },
    { OPT_LIKE, "like", "REF",
      "order, names and types of REF, payloads of the inputs" },
    { OPT_UNTIE, "untie", NULL, "store lm_head.weight; the model becomes untied" },
    { OPT_TIE, "tie", NULL, "do not store the head of a tied model" },
    { OPT_CONFIG, "config", "FILE", "the model's config.json" },
    { 't', "tokenizer", "FILE", "the tokenizer.json that a GGUF takes in" },
    { OPT_SHARD_SIZE, "shard-size", "BYTES",
      "of a model directory's files (default 5G)" },
    { OPT_INIT, "init", "SEED", "instead of inputs: random weights for --config" },
    { OPT_MASTER, "master", "TYPE", "of a new checkpoint: f32 or bf16 (default bf16)" },
    { OPT_MOMENTS, "moments", "TYPE",
      "f32, bf16 or int8 (default int8); with --compat seed: nvfp4, int8" },
    { OPT_QUANT, "quant", "NAME",
      "what makes NVFP4 (default: the checkpoint's, else sweep)" },
    { OPT_VARIANT, "variant", "NAME", "of max: modelopt" },
    { OPT_CRITERION, "criterion", "NAME", "of 4over6: mse or mae" },
    { OPT_SHARE, "share-scale", "LIST",
      "none or qkv,gate_up: one scale for what is fused" },
    { OPT_COMPAT, "compat", "seed", "what the seed's programs can read" },
    { OPT_STRICT, "strict", NULL, "refuse what is merely odd" },
    { 'j', "threads", "N", "threads (default: all processors)" },
    CMD_COMMON,
};

/* Whether --shard-size was given. */
static bool shards_given;

static void
take_rename(struct pack *c, const char *arg)
{
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

static const char *
one_of(const char *option, const char *arg, const char *const *words)
{
    return words[cmd_word(option, arg, words)];
}

/* Checkpoints may train without a quantizer. */
static const char *
quant_or_none(size_t i)
{
    return i == 0 ? "none" : pack_quant(i - 1);
}

static void
take_option(struct pack *c, int opt, const char *arg)
{
    static const char *const dtypes[] = { "keep", "f16", "bf16", "f32", "nvfp4", NULL };
    static const char *const masters[] = { "f32", "bf16", NULL };
    static const char *const moments[] = { "f32", "bf16", "int8", "nvfp4", NULL };
    switch (opt) {
    case 'o':
        c->out = arg;
        break;
    case 'f':
        c->force = true;
        break;
    case 's':
    case 'x':
        if (!select_add(&c->select, opt == 'x', arg))
            misuse("more than %d globs", MAX_GLOBS);
        break;
    case 'j':
        c->threads = cmd_threads(arg);
        break;
    case OPT_TO:
        c->to = cmd_word_of("to", arg, writer_kind);
        break;
    case OPT_DTYPE:
        c->dtype = WISH_KEEP + (enum dtype_wish)cmd_word("dtype", arg, dtypes);
        break;
    case OPT_RENAME:
        take_rename(c, arg);
        break;
    case OPT_LIKE:
        c->like = arg;
        break;
    case OPT_UNTIE:
        c->head = HEAD_UNTIE;
        break;
    case OPT_TIE:
        c->head = HEAD_TIE;
        break;
    case OPT_CONFIG:
        c->config_path = arg;
        break;
    case 't':
        c->tokenizer = arg;
        break;
    case OPT_SHARD_SIZE:
        c->shard_bytes = cmd_bytes("shard-size", arg, 1);
        shards_given = true;
        break;
    case OPT_INIT:
        c->init = true;
        c->init_seed = (uint32_t)cmd_u64("init", arg, 0, UINT32_MAX);
        break;
    case OPT_MASTER:
        c->master = one_of("master", arg, masters);
        break;
    case OPT_MOMENTS:
        c->moments = one_of("moments", arg, moments);
        break;
    case OPT_QUANT:
        c->quant = cmd_word_of("quant", arg, quant_or_none);
        break;
    case OPT_VARIANT:
        c->variant = one_of("variant", arg, pack_variants);
        break;
    case OPT_CRITERION:
        c->criterion = one_of("criterion", arg, pack_criteria);
        break;
    case OPT_SHARE:
        c->share = one_of("share-scale", arg, pack_shares);
        break;
    case OPT_COMPAT:
        one_of("compat", arg, pack_compats);
        c->seed_compat = true;
        break;
    default: // OPT_STRICT
        c->strict = true;
    }
}

static void
check_combination(const struct pack *c, int operands)
{
    const struct traits *kind = writer_traits(c->to);
    bool ckpt = kind->training;
    if (c->init && operands > 0)
        misuse("--init: takes no INPUT");
    if (!c->init && operands < 1)
        misuse("want an INPUT; --help shows how");
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
    bool packed = ckpt && c->seed_compat;
    if (c->moments && strcmp(c->moments, "nvfp4") == 0 && !packed)
        misuse("--moments nvfp4: only with --compat seed");
    if (packed && c->master)
        misuse("--master: with --compat seed it is nvfp4");
    if (packed && c->moments && strcmp(c->moments, "nvfp4") != 0 &&
        strcmp(c->moments, "int8") != 0)
        misuse("--moments %s: with --compat seed they are nvfp4 or int8", c->moments);
    if (shards_given && !c->directory)
        misuse("--shard-size: goes with an OUT that ends in /");
    if (c->seed_compat && !kind->torchsharp_reads)
        misuse("--compat seed: the seed reads .dat files");
}

static struct cmd cmd = {
    .name = "datpack",
    .synopsis = "datpack [OPTION]... -o OUT INPUT...",
    .about = "Put tensors from any container into any other: .dat, "
             ".safetensors, .gguf, .ckpt,\nmodel directories.  Later inputs "
             "replace tensors of earlier ones.",
    .options = options,
    .n_options = sizeof options / sizeof *options
};

static int
parse(struct pack *c, int argc, char **argv)
{
    const char *arg;
    int first;
    for (int opt; (opt = cmd_option(&cmd, argc, argv, &arg, &first)) >= 0;)
        take_option(c, opt, arg);
    if (!c->out)
        misuse("want -o OUT; --help shows how");
    suffix_settle(c->out, &c->to, &c->directory);
    check_combination(c, argc - first);
    return first;
}

int
main(int argc, char **argv)
{
    static struct pack c = { .shard_bytes = (uint64_t)5 << 30 };
    struct err err = { 0 };
    cmd_begin(&cmd);
    cmd_help_words(options, sizeof options / sizeof *options, OPT_TO, writer_kind);
    c.threads = cmd_threads(NULL);
    int first = parse(&c, argc, argv);
    c.io = cmd_io(&cmd);
    if (pack_run(&c, argv + first, (size_t)(argc - first), &err) < 0)
        die_err(&err);
    cmd_close_stdout();
    return EXIT_DONE;
}
