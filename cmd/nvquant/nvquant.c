/* SPDX-License-Identifier: MIT */
/* nvquant: quantize tensors to NVFP4, or back. */
#include "cmd/cli/convert.h"
#include "cmd/cli/device_rows.h"
#include "cmd/cli/suffix.h"

#include "lib/format/writer.h"

#include <string.h>

static struct pack cfg = { .shard_bytes = (uint64_t)5 << 30 };
static struct cmd cmd = {
    .name = "nvquant",
    .synopsis = "nvquant [OPTION]... -o OUT INPUT",
    .about = "Quantize tensors to NVFP4: 4 bits an element, an FP8 scale "
             "for each 16 of them.\nOther tensors are copied.  --dequant "
             "decodes NVFP4 to floats."
};
static struct device_options where = { .device = "cpu" };

static const char *const dtypes[] = { "f16", "bf16", "f32", NULL };

static const struct cmd_option options[] = {
    { 'o', "output", "OUT", "write here: a .dat or .safetensors", CMD_FILE(&cfg.out) },
    { 'f', "force", NULL, "replace OUT if it exists", CMD_FLAG(&cfg.force) },
    { 0, "quant", "NAME", "%s (sweep)", CMD_WORD_OF(&cfg.quant, pack_quant) },
    { CMD_SELECT(&cfg.quantized,
                 "quantize these (default: projections and the head)") },
    { CMD_EXCLUDE(&cfg.quantized) },
    { PACK_SHARE_SCALE(cfg) },
    { PACK_VARIANT(cfg) },
    { PACK_CRITERION(cfg, "of 4over6: mse (default) or mae") },
    { 0, "exhaustive", NULL, "of the sweeps: try all 126 scales, of sweepfp8 all 42",
      CMD_FLAG(&cfg.exhaustive) },
    { 0, "report", "FILE", "a TSV line a tensor: what quantizing cost",
      CMD_FILE(&cfg.report) },
    { 0, "dequant", NULL, "decode NVFP4 tensors to --dtype",
      CMD_FLAG(&cfg.dequantize) },
    { 0, "dtype", "TYPE", "of --dequant: f16 (default), bf16 or f32",
      CMD_CHOICE(&cfg.dtype, dtypes, WISH_F16) },
    { PACK_UNTIE(cfg) },
    { PACK_TIE(cfg) },
    { CMD_CONFIG(&cfg.config_path) },
    { 0, "device", "NAME", "cpu (default), cuda, cuda:N or auto", DEVICE_NAME(where) },
    { PACK_IMPORTANCE(cfg) },
    { PACK_HESSIAN(cfg) },
    { PACK_COMPAT(cfg) },
    { CMD_STRICT(&cfg.strict) },
    { CMD_THREADS(&cfg.threads) },
    CMD_COMMON(cmd),
};

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
    bool quants = c->quant || c->share || c->variant || c->criterion || c->exhaustive ||
                  c->importance || c->hessian;
    if (operands < 1)
        cmd_refuse_without("INPUT", &cmd);
    if (operands > 1)
        misuse("want one INPUT, found %d operands: -o OUT names the output", operands);
    if (c->dequantize && (quants || c->report || c->torchsharp))
        misuse("--dequant: goes with --dtype, not with what quantizes");
    if (!c->dequantize && c->dtype)
        misuse("--dtype: goes with --dequant");
    if (c->torchsharp && !kind->torchsharp_reads)
        misuse("--compat torchsharp: the TorchSharp programs read .dat files");
}

static int
parse_options(struct pack *c, int argc, char **argv)
{
    int first = cmd_parse(&cmd, options, sizeof options / sizeof *options, argc, argv);
    if (!c->out)
        cmd_refuse_without_output(argc - first, argv + first);
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
    struct err err = { 0 };
    cmd_begin(&cmd);
    cfg.threads = cmd_threads(NULL);
    int first = parse_options(&cfg, argc, argv);
    where.threads = cfg.threads;
    where.host = cfg.host = cmd_host(&cmd);
    device_settle(&where);
    if (where.cuda && !(cfg.gpu = device_open(&where, &err)))
        die_err(&err);
    if (pack_run(&cfg, argv + first, (size_t)(argc - first), &err) < 0)
        die_err(&err);
    if (cfg.gpu)
        kernels_close(cfg.gpu);
    cmd_close_stdout();
    return EXIT_DONE;
}
