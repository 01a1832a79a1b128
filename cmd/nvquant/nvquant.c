/* SPDX-License-Identifier: MIT */
/* nvquant: quantize tensors to NVFP4, or back. */
#include "cmd/cmd.h"
#include "cmd/device.h"
#include "cmd/suffix.h"
#include "lib/io/pack/pack.h"

#include "lib/format/writer.h"

#include <string.h>

enum {
    OPT_QUANT = 256,
    OPT_SHARE,
    OPT_VARIANT,
    OPT_CRITERION,
    OPT_EXHAUSTIVE,
    OPT_REPORT,
    OPT_DEQUANT,
    OPT_DTYPE,
    OPT_UNTIE,
    OPT_TIE,
    OPT_CONFIG,
    OPT_DEVICE,
    OPT_COMPAT,
    OPT_STRICT,
};

static struct cmd_option options[] = {
    { 'o', "output", "OUT", "write here: a .dat or .safetensors" },
    { 'f', "force", NULL, "replace OUT if it exists" },
    { OPT_QUANT, "quant", "NAME", "(default sweep)" }, // main adds the words
    { 's', "select", "GLOB", "quantize these (default: projections and the head)" },
    { 'x', "exclude", "GLOB", "not these (repeatable, wins over -s)" },
    { OPT_SHARE, "share-scale", "LIST",
      "none or qkv,gate_up: one scale for what is fused" },
    { OPT_VARIANT, "variant", "NAME", "of max: modelopt" },
    { OPT_CRITERION, "criterion", "NAME", "of 4over6: mse (default) or mae" },
    { OPT_EXHAUSTIVE, "exhaustive", NULL, "of sweep and sweep1: try all 126 scales" },
    { OPT_REPORT, "report", "FILE", "a TSV line a tensor: what quantizing cost" },
    { OPT_DEQUANT, "dequant", NULL, "the way back: NVFP4 to --dtype" },
    { OPT_DTYPE, "dtype", "TYPE", "of --dequant: f16 (default), bf16 or f32" },
    { OPT_UNTIE, "untie", NULL, "store lm_head.weight; the model becomes untied" },
    { OPT_TIE, "tie", NULL, "do not store the head of a tied model" },
    { OPT_CONFIG, "config", "FILE", "the model's config.json" },
    { OPT_DEVICE, "device", "NAME", "cpu (default), cuda, cuda:N or auto" },
    { OPT_COMPAT, "compat", "seed", "what the seed's programs can read" },
    { OPT_STRICT, "strict", NULL, "refuse what is merely odd" },
    { 'j', "threads", "N", "threads (default: all processors)" },
    CMD_COMMON,
};

static const char *
one_of(const char *option, const char *arg, const char *const *words)
{
    return words[cmd_word(option, arg, words)];
}

static struct device_options where = { .device = "cpu" };

static void
take_option(struct pack *c, int opt, const char *arg)
{
    static const char *const dtypes[] = { "f16", "bf16", "f32", NULL };
    switch (opt) {
    case 'o':
        c->out = arg;
        break;
    case 'f':
        c->force = true;
        break;
    case 's':
    case 'x':
        if (!select_add(&c->quantized, opt == 'x', arg))
            misuse("more than %d globs", MAX_GLOBS);
        break;
    case 'j':
        c->threads = cmd_threads(arg);
        break;
    case OPT_QUANT:
        c->quant = cmd_word_of("quant", arg, pack_quant);
        break;
    case OPT_SHARE:
        c->share = one_of("share-scale", arg, pack_shares);
        break;
    case OPT_VARIANT:
        c->variant = one_of("variant", arg, pack_variants);
        break;
    case OPT_CRITERION:
        c->criterion = one_of("criterion", arg, pack_criteria);
        break;
    case OPT_EXHAUSTIVE:
        c->exhaustive = true;
        break;
    case OPT_REPORT:
        c->report = arg;
        break;
    case OPT_DEQUANT:
        c->dequantize = true;
        break;
    case OPT_DTYPE:
        c->dtype = WISH_F16 + (enum dtype_wish)cmd_word("dtype", arg, dtypes);
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
    case OPT_DEVICE:
        device_take(&where, arg);
        break;
    case OPT_COMPAT:
        one_of("compat", arg, pack_compats);
        c->seed_compat = true;
        break;
    default: // OPT_STRICT
        c->strict = true;
    }
}

/* There is no --to: the suffix tells. */
static void
settle_target(struct pack *c)
{
    const char *to = writer_kind_of(c->out);
    if (!to)
        misuse("%s: want a .dat or a .safetensors", c->out);
    const struct traits *kind = writer_traits(to);
    if (kind->dialect || kind->training)
        misuse("%s: want a .dat or a .safetensors; datpack writes %s", c->out, to);
    suffix_settle(c->out, &c->to, &c->directory);
}

static void
check_combination(const struct pack *c, int operands)
{
    const struct traits *kind = writer_traits(c->to);
    bool quants = c->quant || c->share || c->variant || c->criterion || c->exhaustive;
    if (operands != 1)
        misuse("want one INPUT; --help shows how");
    if (c->dequantize && (quants || c->report || c->seed_compat))
        misuse("--dequant: goes with --dtype, not with what quantizes");
    if (!c->dequantize && c->dtype)
        misuse("--dtype: goes with --dequant");
    if (c->seed_compat && !kind->torchsharp_reads)
        misuse("--compat seed: the seed reads .dat files");
}

static struct cmd cmd = {
    .name = "nvquant",
    .synopsis = "nvquant [OPTION]... -o OUT INPUT",
    .about = "Quantize tensors to NVFP4: 4 bits an element, an FP8 scale "
             "for each 16 of them.\nWhat is not quantized is copied.  The "
             "way back is --dequant.",
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
    settle_target(c);
    check_combination(c, argc - first);
    c->quantize = !c->dequantize;
    if (c->dequantize && !c->dtype)
        c->dtype = WISH_F16;
    return first;
}

int
main(int argc, char **argv)
{
    static struct pack c = { .shard_bytes = (uint64_t)5 << 30 };
    struct err err = { 0 };
    cmd_begin(&cmd);
    cmd_help_words(options, sizeof options / sizeof *options, OPT_QUANT, pack_quant);
    c.threads = cmd_threads(NULL);
    int first = parse(&c, argc, argv);
    where.threads = c.threads;
    device_settle(&where);
    if (where.cuda)
        c.gpu = device_open(&where, &err);
    c.io = cmd_io(&cmd);
    if (pack_run(&c, argv + first, (size_t)(argc - first), &err) < 0)
        die_err(&err);
    if (c.gpu)
        kernels_close(c.gpu);
    cmd_close_stdout();
    return EXIT_DONE;
}
