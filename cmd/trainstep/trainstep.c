/* SPDX-License-Identifier: MIT */
/* trainstep: run N training steps from a checkpoint. */
#include "cmd/trainstep/trainstep.h"

#include <string.h>

enum {
    OPT_UNTIL = 256,
    OPT_RECOMPUTE,
    OPT_CHUNK_ROWS,
    OPT_COMPUTE,
    OPT_DEVICE,
    OPT_PATH,
    OPT_FAST,
    OPT_MAX_SKIPS,
    OPT_EVAL,
    OPT_EVAL_EVERY,
    OPT_SAVE_EVERY,
    OPT_LOG,
    OPT_TENSORBOARD,
    OPT_MEMORY_REPORT,
    OPT_MEMORY_LIMIT,
    OPT_OVERCOMMIT,
    OPT_DRY_RUN,
    OPT_DUMP,
    OPT_DIAGNOSE,
    OPT_COMPAT,
    OPT_SETTING, // and SETTINGS - 1 more: the rows of settings_table
};

enum { SET_HERE = OPT_SETTING };

static const struct cmd_option options[] = {
    { 'd', "data", "FILE", "samples, a .tok (default: standard input)" },
    { 'n', "steps", "N", "steps to take (default 1)" },
    { OPT_UNTIL, "until", "STEP", "steps up to this one; none: nothing happens" },
    { 'o', "output", "OUT", "save there, and leave CHECKPOINT as it is" },
    { 'f', "force", NULL, "replace OUT and files of --dump, --memory-report" },
    { SET_HERE + 2, "batch", "B", "samples of a pass (1)" },
    { SET_HERE + 0, "accum", "A", "passes of a step (1)" },
    { SET_HERE + 15, "seq-len", "T", "most input positions of a sample" },
    { SET_HERE + 12, "order", "WORD", "shuffle (default) or file" },
    { SET_HERE + 14, "seed", "N", "of all randomness (0)" },
    { SET_HERE + 10, "lr", "X", "learning rate (1e-5)" },
    { SET_HERE + 13, "schedule", "WORD", "constant (default), linear, cosine or wsd" },
    { SET_HERE + 19, "warmup", "N", "steps up to the full rate (0)" },
    { SET_HERE + 17, "total-steps", "N", "where the schedule ends" },
    { SET_HERE + 7, "decay", "N", "wsd: steps down (a tenth of the total)" },
    { SET_HERE + 11, "min-lr", "X", "rate at the end of a schedule (0)" },
    { SET_HERE + 3, "beta1", "X", "of AdamW (0.9)" },
    { SET_HERE + 4, "beta2", "X", "(0.999)" },
    { SET_HERE + 8, "eps", "X", "(1e-8)" },
    { SET_HERE + 20, "weight-decay", "X", "of matrices (0)" },
    { SET_HERE + 5, "clip", "X", "largest gradient norm (1; 0: off)" },
    { SET_HERE + 6, "clip-mode", "WORD",
      "global (default); prev or tensor keep no gradients" },
    { SET_HERE + 9, "loss", "WORD", "ce (default) or scalar" },
    { SET_HERE + 18, "train-last-layers", "N", "freeze all else" },
    { SET_HERE + 16, "spike", "Z", "skip steps Z deviations off (0: off)" },
    { OPT_MAX_SKIPS, "max-skips", "N", "skipped steps in a row that end a run (5)" },
    { OPT_RECOMPUTE, "recompute", "WORD", "none, block or auto (default): memory" },
    { OPT_CHUNK_ROWS, "chunk-rows", "N", "rows that the optimizer takes at a time" },
    { OPT_COMPUTE, "compute", "WORD", "f32, bf16 or auto (default)" },
    { OPT_DEVICE, "device", "NAME", "cpu, cuda, cuda:N or auto (default)" },
    { OPT_PATH, "path", "WORD", "of products: native, dequant or auto (default)" },
    { SET_HERE + 1, "activations", "WORD", "plain (default) or nvfp4" },
    { OPT_FAST, "fast", NULL, "give up equal bytes where that is faster" },
    { OPT_EVAL, "eval", "FILE", "a .tok to evaluate with" },
    { OPT_EVAL_EVERY, "eval-every", "N", "steps (default: after the last)" },
    { OPT_SAVE_EVERY, "save-every", "N", "steps (default: at the end)" },
    { OPT_LOG, "log", "FILE", "a line of JSON a step" },
    { OPT_TENSORBOARD, "tensorboard", "DIR", "events for TensorBoard" },
    { OPT_MEMORY_REPORT, "memory-report", "FILE", "memory by phase, as JSON" },
    { OPT_MEMORY_LIMIT, "memory-limit", "GB", "end with 3 rather than need more" },
    { OPT_OVERCOMMIT, "overcommit", NULL, "try a plan above what is free" },
    { OPT_DRY_RUN, "dry-run", NULL, "print the plan and stop" },
    { OPT_DUMP, "dump", "FILE", "loss, logits and gradients of the first step" },
    { OPT_DIAGNOSE, "diagnose", NULL, "what this machine and build can do" },
    { OPT_COMPAT, "compat", "seed", "the seed's habits" },
    { 'j', "threads", "N", "threads (default: all processors)" },
    CMD_COMMON,
};

int run(const struct options *o);

static uint64_t
take_gb(const char *option, const char *arg)
{
    double gb = cmd_number(option, arg, 0);
    if (gb > 1e9 || !(gb > 0))
        misuse("--%s: %s: want a number of GB above 0", option, arg);
    return (uint64_t)(gb * (double)(1 << 30)) + 1;
}

static void
take_file(struct options *o, int opt, const char *arg)
{
    const char **to = opt == 'd'                 ? &o->data
                      : opt == 'o'               ? &o->out
                      : opt == OPT_EVAL          ? &o->eval
                      : opt == OPT_LOG           ? &o->log
                      : opt == OPT_TENSORBOARD   ? &o->tensorboard
                      : opt == OPT_MEMORY_REPORT ? &o->memory_report
                                                 : &o->dump;
    *to = arg;
}

static void
take_option(struct options *o, int opt, const char *arg)
{
    static const char *const recomputes[] = { "auto", "none", "block", NULL };
    static const char *const compats[] = { "seed", NULL };
    switch (opt) {
    case 'n':
        o->steps = cmd_u64("steps", arg, 0, UINT32_MAX);
        o->has_steps = true;
        break;
    case 'f':
        o->force = true;
        break;
    case 'j':
        o->where.threads = cmd_threads(arg);
        break;
    case OPT_UNTIL:
        o->until = cmd_u64("until", arg, 0, UINT32_MAX);
        o->has_until = true;
        break;
    case OPT_RECOMPUTE:
        o->recompute = cmd_word("recompute", arg, recomputes);
        break;
    case OPT_CHUNK_ROWS:
        o->chunk_rows = cmd_u64("chunk-rows", arg, 1, 1 << 30);
        break;
    case OPT_COMPUTE:
        device_take_compute(&o->where, arg);
        break;
    case OPT_DEVICE:
        device_take(&o->where, arg);
        break;
    case OPT_PATH:
        device_take_path(&o->where, arg);
        break;
    case OPT_FAST:
        o->where.fast = true;
        break;
    case OPT_MAX_SKIPS:
        o->max_skips = cmd_u64("max-skips", arg, 1, UINT32_MAX);
        break;
    case OPT_EVAL_EVERY:
        o->eval_every = cmd_u64("eval-every", arg, 1, UINT32_MAX);
        break;
    case OPT_SAVE_EVERY:
        o->save_every = cmd_u64("save-every", arg, 1, UINT32_MAX);
        break;
    case OPT_MEMORY_LIMIT:
        o->memory_limit = take_gb("memory-limit", arg);
        break;
    case OPT_OVERCOMMIT:
        o->overcommit = true;
        break;
    case OPT_DRY_RUN:
        o->dry_run = true;
        break;
    case OPT_DIAGNOSE:
        o->diagnose = true;
        break;
    case OPT_COMPAT:
        cmd_word("compat", arg, compats);
        o->seed_compat = true;
        break;
    default:
        if (opt < OPT_SETTING) {
            take_file(o, opt, arg);
            break;
        }
        settings_take(&o->given, (size_t)(opt - OPT_SETTING), arg);
        o->is_given[opt - OPT_SETTING] = true;
    }
}

static void
check_combination(const struct options *o)
{
    if (o->has_steps && o->has_until)
        misuse("-n and --until: one of them");
    if (o->eval_every && !o->eval)
        misuse("--eval-every: needs --eval");
}

int
main(int argc, char **argv)
{
    static struct options o = {
        .cmd = { .name = "trainstep",
                 .synopsis = "trainstep [OPTION]... CHECKPOINT",
                 .about =
                     "Train: take steps from a checkpoint and save the result in its "
                     "place.\nSettings that touch numbers are kept in it; those "
                     "given hold from here on.",
                 .options = options,
                 .n_options = sizeof options / sizeof *options },
        .where = { .device = "auto" },
        .max_skips = 5,
    };
    const char *arg;
    int first;
    cmd_begin(&o.cmd);
    o.where.threads = cmd_threads(NULL);
    for (int opt; (opt = cmd_option(&o.cmd, argc, argv, &arg, &first)) >= 0;)
        take_option(&o, opt, arg);
    check_combination(&o);
    if (o.diagnose) {
        device_diagnose(&o.where);
        cmd_close_stdout();
        return EXIT_DONE;
    }
    if (argc - first != 1)
        misuse("want one CHECKPOINT; --help shows how");
    o.checkpoint = argv[first];
    int status = run(&o);
    cmd_close_stdout();
    return status;
}
