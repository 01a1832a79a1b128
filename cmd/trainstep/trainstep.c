/* SPDX-License-Identifier: MIT */
/* trainstep: run N training steps from a checkpoint. */
#include "cmd/trainstep/trainstep.h"

#include "cmd/cli/device_rows.h"
#include "lib/base/num.h"
#include "lib/file/path.h"
#include "lib/load/rank_gpus.h"

#include <stdlib.h>
#include <string.h>

struct options {
    struct cmd cmd;
    struct train_options o;
    bool diagnose;
    double rank_timeout; // seconds
    uint64_t gpus;       // 0: not given
    const char *rendezvous;
};

static struct options cfg = {
    .cmd = { .name = "trainstep",
             .synopsis = "trainstep [OPTION]... CHECKPOINT",
             .about =
                 "Train: take steps from a checkpoint and save the result in its "
                 "place.\nSettings that change results are kept in it; one that is "
                 "given holds from here on.\nUnder mpirun several processes share "
                 "a step, with the same result." },
    .o = { .where = { .device = "auto" }, .steps = 1, .max_skips = 5, .log_every = 1 },
    .rank_timeout = 600,
};

static const char *const recomputes[] = { "auto", "none", "block", NULL };

static void
take_gb(const struct cmd_option *o, const char *arg)
{
    *o->to.u64 = cmd_gb(o->name, arg);
    if (*o->to.u64 == 0)
        misuse("--%s: %s: want a number of GB above 0", o->name, arg);
}

static void
take_epochs(const struct cmd_option *o, const char *arg)
{
    double epochs = cmd_number(o->name, arg, 0);
    if (epochs > 1e9 || !(epochs > 0))
        misuse("--%s: %s: expected a number of epochs above 0, up to 1e9, as 3 or 0.5",
               o->name, arg);
    *o->to.number = epochs;
}

/* A step, or with a decimal point a fraction of --total-steps.  1.0 is refused: it would not
 * be 1, and no step would be quantized. */
static double
take_quant_from(const struct setting *t, const char *arg)
{
    char q[TEXT_QUOTE];
    uint64_t step;
    double fraction;
    if (!strchr(arg, '.') && num_u64(&step, arg) && (double)step <= t->high)
        return (double)step;
    if (strchr(arg, '.') && num_double(&fraction, arg) && fraction >= 0 && fraction < 1)
        return fraction;
    misuse("--%s: %s: want a step, 0..%.0f, or with a decimal point a fraction of "
           "--total-steps below 1.0",
           t->option, text_quote(q, arg, strlen(arg)), t->high);
}

/* A rate that is so large leaves no weight as it is, and is saved: a minus is missing, most likely. */
static void
check_rate(const char *arg, double v)
{
    static const double most = 1e4;
    const char *e = strpbrk(arg, "eE");
    if (!(v > most))
        return;
    if (e && e[1] != '-' && e[1] != '+')
        misuse("--lr: %s: expected at most %g: is %.*se-%s meant?", arg, most,
               (int)(e - arg), arg, e + 1);
    misuse("--lr: %s: expected at most %g, as 1e-5", arg, most);
}

/* The argument of an option that changes results. */
static void
take_value(struct settings *s, const char *option, const char *arg)
{
    struct err err = { 0 };
    size_t i = settings_row(option);
    const struct setting *t = &settings_table[i];
    double v;
    if (t->kind == SET_WORD) {
        settings_set_count(s, i, (uint64_t)cmd_word(t->option, arg, t->given));
        return;
    }
    if (t->kind == SET_U64) {
        settings_set_count(
            s, i, cmd_u64(t->option, arg, (uint64_t)t->low, (uint64_t)t->high));
        return;
    }
    if (strcmp(option, "quant-from") == 0) {
        v = take_quant_from(t, arg);
    } else {
        v = cmd_number(t->option, arg, t->low);
        if (strcmp(option, "lr") == 0)
            check_rate(arg, v);
        if (!(v <= t->high))
            misuse("--%s: %s: want a number of at most %g", t->option, arg, t->high);
    }
    if (settings_set_number(s, i, v, &err) < 0)
        die_err(&err);
}

static void
take_setting(const struct cmd_option *o, const char *arg)
{
    take_value(o->to.any, o->name, arg);
}

/* A..B */
static void
take_range(const struct cmd_option *o, const char *arg)
{
    struct train_options *c = o->to.any;
    char *copy = cmd_copy(arg), *dots = strstr(copy, ".."), q[TEXT_QUOTE];
    uint64_t from = 0, to = 0;
    if (dots)
        *dots = '\0';
    if (!dots || !num_u64(&from, copy) || !num_u64(&to, dots + 2) || from >= to ||
        to > UINT32_MAX)
        misuse("--%s: %s: want A..B, the steps of two checkpoints, A below B", o->name,
               text_quote(q, arg, strlen(arg)));
    c->replay.from = from;
    c->replay.to = to;
    free(copy);
}

/* A row of settings_table. */
#define SETTING CMD_CALL(&cfg.o.given, take_setting)

static const struct cmd_option options[] = {
    { 'd', "data", "FILE", "samples, a .tok (default: standard input)",
      CMD_FILE(&cfg.o.data) },
    { 'n', "steps", "N", "steps to take (default 1)",
      CMD_U64(&cfg.o.steps, 0, UINT32_MAX) },
    { 0, "until", "STEP", "train up to this step; past it: do nothing",
      CMD_U64(&cfg.o.until, 0, UINT32_MAX) },
    { 0, "epochs", "E", "train until the samples were seen E times, as 3 or 0.5",
      CMD_CALL(&cfg.o.epochs, take_epochs) },
    { 'o', "output", "OUT", "save there, and leave CHECKPOINT as it is",
      CMD_FILE(&cfg.o.out) },
    { 'f', "force", NULL, "replace OUT and files of --dump, --memory-report",
      CMD_FLAG(&cfg.o.force) },
    { 0, "batch", "B", "samples of a pass (1)", SETTING },
    { 0, "accum", "A", "passes of a step (1; with mpirun as many as ranks)", SETTING },
    { 0, "seq-len", "T", "max input positions of a sample", SETTING },
    { 0, "order", "WORD", "shuffle (default) or file", SETTING },
    { 0, "seed", "N", "random seed (0)", SETTING },
    { 0, "lr", "X", "learning rate (1e-5)", SETTING },
    { 0, "schedule", "WORD", "constant (default), linear, cosine or wsd", SETTING },
    { 0, "warmup", "N", "steps in which the rate rises to --lr (0)", SETTING },
    { 0, "total-steps", "N", "the schedule's last step (that of --until, --epochs)",
      SETTING },
    { 0, "decay", "N", "wsd: steps in which the rate falls (total/10)", SETTING },
    { 0, "min-lr", "X", "rate at the end of a schedule (0)", SETTING },
    { 0, "allow-zero-lr", NULL, "take steps behind a schedule that ended at rate 0",
      CMD_FLAG(&cfg.o.allow_zero_lr) },
    { 0, "beta1", "X", "of AdamW (0.9)", SETTING },
    { 0, "beta2", "X", "(0.999)", SETTING },
    { 0, "eps", "X", "(1e-8)", SETTING },
    { 0, "weight-decay", "X", "of matrices (0)", SETTING },
    { 0, "clip", "X", "max gradient norm (1; 0: no clipping)", SETTING },
    { 0, "clip-mode", "WORD", "global (default); prev or tensor keep no gradients",
      SETTING },
    { 0, "loss", "WORD", "ce (default) or scalar", SETTING },
    { 0, "teacher", "MODEL", "learn from its logits, too: distillation",
      CMD_FILE(&cfg.o.teacher) },
    { 0, "teacher-data", "FILE", "samples for the teacher; -d keeps its labels",
      CMD_FILE(&cfg.o.teacher_data) },
    { 0, "distill", "A", "share of the KL divergence in the loss (1)", SETTING },
    { 0, "distill-temp", "T", "temperature of both models' logits (1)", SETTING },
    { 0, "new-teacher", NULL, "go on with another teacher than before",
      CMD_FLAG(&cfg.o.new_teacher) },
    { 0, "train-last-layers", "N", "freeze all other weights (0: train all)", SETTING },
    { 0, "quant-from", "N", "first quantized step, or 0.x of --total-steps (0)",
      SETTING },
    { 0, "spike", "Z", "skip steps Z deviations above the mean (0: off)", SETTING },
    { 0, "max-skips", "N", "skipped steps in a row that end a run (5)",
      CMD_U64(&cfg.o.max_skips, 1, UINT32_MAX) },
    { 0, "recompute", "WORD", "activations: none, block or auto (default)",
      CMD_CHOICE(&cfg.o.recompute, recomputes, RECOMPUTE_AUTO) },
    { 0, "chunk-rows", "N", "rows that the optimizer takes at a time",
      CMD_U64(&cfg.o.chunk_rows, 1, 1 << 30) },
    { 0, "compute", "WORD", "f32, bf16, fp8 or auto (default)",
      DEVICE_COMPUTE(cfg.o.where, device_computes) },
    { 0, "fp8-scales", "WORD", "of --compute fp8: current (default) or delayed",
      SETTING },
    { 0, "device", "NAME", "cpu, cuda, cuda:N or auto (default)",
      DEVICE_NAME(cfg.o.where) },
    { 0, "path", "WORD", "matrix products: native, dequant, auto (default)",
      DEVICE_PATH(cfg.o.where) },
    { 0, "activations", "WORD", "plain (default) or nvfp4", SETTING },
    { 0, "fast", NULL, "give up equal bytes where that is faster",
      DEVICE_FAST(cfg.o.where) },
    { 0, "eval", "FILE", "a .tok to evaluate with", CMD_FILE(&cfg.o.eval) },
    { 0, "eval-every", "N", "evaluate every N steps (default: after the last)",
      CMD_U64(&cfg.o.eval_every, 1, UINT32_MAX) },
    { 0, "eval-first", NULL, "evaluate before the first step, too",
      CMD_FLAG(&cfg.o.eval_first) },
    { 0, "patience", "N", "end after N evaluations without a lower loss",
      CMD_U64(&cfg.o.patience, 1, UINT32_MAX) },
    { 0, "save-every", "N", "save every N steps (default: at the end)",
      CMD_U64(&cfg.o.save_every, 1, UINT32_MAX) },
    { 0, "keep-last", "K", "copies of the last K saves, CHECKPOINT.stepN",
      CMD_U64(&cfg.o.keep_last, 1, UINT32_MAX) },
    { 0, "keep-every", "N", "save and keep a copy every N steps",
      CMD_U64(&cfg.o.keep_every, 1, UINT32_MAX) },
    { 0, "keep-best", NULL, "a copy of the lowest --eval loss, CHECKPOINT.best",
      CMD_FLAG(&cfg.o.keep_best) },
    { 0, "stop-if-worse", "X", "end if ten losses in a row are X times the lowest",
      CMD_NUMBER(&cfg.o.stop_if_worse, 1) },
    { 0, "log-every", "N", "print a line of the table every N steps (1)",
      CMD_U64(&cfg.o.log_every, 1, UINT32_MAX) },
    { 0, "log", "FILE", "one line of JSON for each step", CMD_FILE(&cfg.o.log) },
    { 0, "tensorboard", "DIR", "events for TensorBoard", CMD_FILE(&cfg.o.tensorboard) },
    { 0, "memory-report", "FILE", "memory by phase, as JSON",
      CMD_FILE(&cfg.o.memory_report) },
    { 0, "stop-after", "PHASE", "end there, and save nothing (see --memory-report)",
      CMD_WORD(&cfg.o.stop_after, trainer_phases) },
    { 0, "memory-limit", "GB", "refuse or end a run that needs more (status 3)",
      CMD_CALL(&cfg.o.memory_limit, take_gb) },
    { 0, "overcommit", NULL, "try a plan that is larger than free memory",
      CMD_FLAG(&cfg.o.overcommit) },
    { 0, "gpus", "N", "train on N GPUs of this machine, a process each",
      CMD_U64(&cfg.gpus, 1, 1024) },
    { 0, "rendezvous", "HOST:PORT", "address of rank 0, for ranks with GPUs",
      CMD_TEXT(&cfg.rendezvous) },
    { 0, "rank-timeout", "SECONDS", "end if a rank sends nothing for this long (600)",
      CMD_NUMBER(&cfg.rank_timeout, 1) },
    { 0, "dry-run", NULL, "print the plan and stop", CMD_FLAG(&cfg.o.dry_run) },
    { 0, "replay", "A..B", "repeat these steps and compare with CHECKPOINT",
      CMD_CALL(&cfg.o, take_range) },
    { 0, "from", "FILE", "--replay: checkpoint of step A (CHECKPOINT.stepA)",
      CMD_FILE(&cfg.o.from) },
    { 0, "dump", "FILE", "loss, logits and gradients of the first step",
      CMD_FILE(&cfg.o.dump) },
    { 0, "diagnose", NULL, "print what this machine and build can do",
      CMD_FLAG(&cfg.diagnose) },
    { CMD_COMPAT(&cfg.o.torchsharp, "compute as the TorchSharp programs do") },
    { CMD_THREADS(&cfg.o.where.threads) },
    CMD_COMMON(cfg.cmd),
};

/* It repeats what was done, and writes nothing. */
static void
check_replay(const struct options *o)
{
    static const char *const others[] = {
        "steps",         "until",         "epochs",     "output",      "eval",
        "eval-every",    "eval-first",    "patience",   "save-every",  "keep-last",
        "keep-every",    "keep-best",     "dry-run",    "log",         "memory-report",
        "dump",          "tensorboard",   "stop-after", "new-teacher", "force",
        "stop-if-worse", "allow-zero-lr",
    };
    if (o->o.from && !o->o.replay.to)
        misuse("--from: goes with --replay");
    for (size_t i = 0; i < SETTINGS && o->o.replay.to; i++)
        if (cmd_given(&o->cmd, settings_table[i].option))
            misuse(
                "--replay: takes the settings of the steps from CHECKPOINT: expected "
                "no --%s",
                settings_table[i].option);
    for (size_t i = 0; i < sizeof others / sizeof *others && o->o.replay.to; i++)
        if (cmd_given(&o->cmd, others[i]))
            misuse("--replay: repeats steps and writes nothing: expected no --%s",
                   others[i]);
}

/* It saves nothing, so there is nothing to copy. */
static void
check_stop(const struct options *o)
{
    static const char *const others[] = { "eval-first", "patience",  "keep-last",
                                          "keep-every", "keep-best", "stop-if-worse" };
    for (size_t i = 0; i < sizeof others / sizeof *others && o->o.stop_after; i++)
        if (cmd_given(&o->cmd, others[i]))
            misuse("--stop-after: saves nothing, so it goes with nothing that keeps "
                   "or decides: expected no --%s",
                   others[i]);
}

static void
check_combination(const struct options *o)
{
    check_replay(o);
    check_stop(o);
    if (cmd_given(&o->cmd, "steps") + cmd_given(&o->cmd, "until") +
            cmd_given(&o->cmd, "epochs") >
        1)
        misuse("-n, --until and --epochs: expected one of them");
    const char *const evaluates[] = { "eval-every", "eval-first", "keep-best",
                                      "patience" };
    for (size_t i = 0; i < sizeof evaluates / sizeof *evaluates && !o->o.eval; i++)
        if (cmd_given(&o->cmd, evaluates[i]))
            misuse("--%s: needs --eval", evaluates[i]);
    const char *const taught[] = { "distill", "distill-temp", "new-teacher",
                                   "teacher-data" };
    for (size_t i = 0; i < sizeof taught / sizeof *taught && !o->o.teacher; i++)
        if (cmd_given(&o->cmd, taught[i]))
            misuse("--%s: needs --teacher", taught[i]);
}

/* Samples in the place of the checkpoint: say what goes where. */
static void
check_operands(const struct options *o, int n, char **operand)
{
    char a[TEXT_QUOTE], b[TEXT_QUOTE];
    int samples = 0;
    while (samples < n && !tok_is_file(operand[samples]))
        samples++;
    if (samples < n)
        text_quote(a, operand[samples], strlen(operand[samples]));
    if (samples < n && n == 2)
        misuse("%s: holds samples, which -d takes: expected -d %s %s", a, a,
               text_quote(b, operand[1 - samples], strlen(operand[1 - samples])));
    if (samples < n && o->o.data && !tok_is_file(o->o.data))
        misuse("%s: holds samples, and -d %s does not: expected -d %s %s", a,
               text_quote(b, o->o.data, strlen(o->o.data)), a, b);
    if (samples < n)
        misuse("%s: holds samples: expected a CHECKPOINT, and -d %s", a, a);
    if (n == 0)
        misuse("no CHECKPOINT: expected %s; datpack --to ckpt -o run.ckpt MODEL makes "
               "one",
               o->cmd.synopsis);
    if (n > 1)
        misuse("found %d operands: expected one CHECKPOINT; -d FILE takes samples", n);
}

/* FILE, or another rank's: m.json, m.rank1.json. */
static const char *
own_report(const char *file, unsigned rank)
{
    struct buf b = { 0 };
    const char *slash = strrchr(file, '/'), *dot = strrchr(file, '.');
    if (!dot || dot == file || (slash && dot < slash + 2))
        dot = file + strlen(file);
    buf_printf(&b, "%.*s.rank%u%s", (int)(dot - file), file, rank, dot);
    if (b.failed)
        die(EXIT_MEMORY, "out of memory");
    return b.data;
}

/* On a rank that is not 0, clear the options that rank 0 alone obeys. */
static void
leave_to_first(struct options *o, unsigned rank)
{
    const char *report = o->o.memory_report;
    bool is_file = report && !path_is_stream(report);
    o->o.memory_report = is_file ? own_report(report, rank) : NULL;
    o->cmd.quiet = true;
    o->cmd.verbose = false;
    o->o.log = o->o.tensorboard = o->o.dump = NULL;
}

/* --gpus: this program once a GPU; from here on each is a process. */
static void
start_ranks(struct options *o)
{
    cmd_ranks_want_gpus(&o->o.where.device, o->rendezvous);
    cmd_ranks_start((unsigned)o->gpus, o->o.dry_run);
    if (!cmd_given(&o->cmd, "threads"))
        o->o.where.threads = ranks_threads(cmd_ranks(), o->o.where.threads);
}

static void
note_given(struct options *o)
{
    for (size_t i = 0; i < SETTINGS; i++)
        o->o.is_given[i] = cmd_given(&o->cmd, settings_table[i].option);
    o->o.has_until = cmd_given(&o->cmd, "until");
    o->o.dumps = o->o.dump != NULL;
}

/* This process among the ranks, and the device that it computes on. */
static struct device
join_ranks(struct options *o)
{
    struct err err = { 0 };
    struct ranks *ranks = cmd_ranks();
    struct device_options *where = &o->o.where;
    struct device device = device_settle(where);
    cmd_ranks_join(o->rank_timeout, o->rank_timeout, where->cuda, o->rendezvous);
    if (!o->cmd.quiet)
        cmd_ranks_report();
    // Ranks have a GPU each: the one that was named, or as their number on the machine is.
    if (where->cuda && ranks->size > 1 && !o->o.dry_run &&
        rank_gpus_settle(ranks, where->device, &where->number, &err) < 0)
        cmd_ranks_die(&err);
    return device;
}

int
main(int argc, char **argv)
{
    cmd_begin(&cfg.cmd);
    struct ranks *ranks = cmd_ranks();
    cfg.o.where.threads = ranks_threads(ranks, cmd_threads(NULL));
    int first =
        cmd_parse(&cfg.cmd, options, sizeof options / sizeof *options, argc, argv);
    check_combination(&cfg);
    if (cfg.diagnose) {
        device_diagnose(&cfg.o.where);
        cmd_close_stdout();
        return EXIT_DONE;
    }
    check_operands(&cfg, argc - first, argv + first);
    cfg.o.checkpoint = argv[first];
    note_given(&cfg);
    if (cfg.gpus)
        start_ranks(&cfg);
    if (ranks->rank > 0)
        leave_to_first(&cfg, ranks->rank);
    cfg.o.host = cfg.o.where.host = cmd_host(&cfg.cmd);
    struct device device = join_ranks(&cfg);
    int status = run(&cfg.o, &device);
    cmd_ranks_leave();
    cmd_close_stdout();
    return status;
}
