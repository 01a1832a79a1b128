/* SPDX-License-Identifier: MIT */
/* run: from a checkpoint to a later one. */
#include "cmd/trainstep/trainstep.h"

#include "cmd/cli/suffix.h"
#include "cmd/trainstep/step_dump.h"
#include "lib/base/num.h"
#include "lib/base/os.h"
#include "lib/file/path.h"
#include "lib/load/quantizer.h"
#include "lib/load/training.h"
#include "lib/nvfp4/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void
must(const struct run *r, int rc)
{
    if (rc < 0)
        die_err(&r->err);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* --dry-run of a model plans for the checkpoint that datpack makes of it by default. */
static void
plan_for_model(struct run *r)
{
    r->in.training = (struct training){ .master = "bf16", .moments = "int8" };
    r->in.quant = (struct quant_words){
        .name = "sweep", .criterion = "mse", .variant = "", .share = "qkv,gate_up"
    };
    settings_begin(&r->s);
}

void
run_check_outputs(const struct run *r, const struct store *in)
{
    const struct options *o = r->o;
    const char *outputs[] = { o->out, o->dump, o->log, o->memory_report };
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (outputs[i] && store_reads(in, outputs[i]))
            misuse("%s: is an input, too, or belongs to one: expected another name",
                   text_quote(q, outputs[i], strlen(outputs[i])));
}

/* Whether --dry-run is given a config.json in place of a model. */
static bool
is_config(const struct options *o)
{
    return o->dry_run && slice_ends(slice_of(o->checkpoint), ".json");
}

/* Open a model of which there is nothing but a config.json. */
static void
open_config(struct run *r, const char *path)
{
    char q[TEXT_QUOTE];
    r->in = (struct store){ .opt = { .guard = &cmd_guard },
                            .name = cmd_copy(text_quote(q, path, strlen(path))),
                            .err = &r->err };
    if (store_load_config(&r->in, path) < 0)
        die_err(&r->err);
}

static void
open_file(struct run *r, const char *path)
{
    if (checkpoint_open(&r->in, path, &cmd_guard, &r->err) < 0)
        die_err(&r->err);
    if (!r->in.training.master && r->o->dry_run && store_load_beside(&r->in) < 0)
        die_err(&r->err);
}

static void
open_checkpoint(struct run *r, const char *path)
{
    if (is_config(r->o))
        open_config(r, path);
    else
        open_file(r, path);
    bool is_model = !r->in.training.master && r->o->dry_run;
    if (is_model)
        plan_for_model(r);
    if (!r->in.training.master && store_check_model(&r->in, &r->err) < 0)
        die_err(&r->err);
    if (!r->in.training.master)
        die(EXIT_TROUBLE,
            "%s: not a checkpoint: expected one; datpack --to ckpt -o run.ckpt %s "
            "makes it",
            r->in.name, r->in.name);
    if (!r->in.config.p)
        die(EXIT_TROUBLE, "%s: it holds no configuration", r->in.name);
    if (config_parse(&r->c, r->in.name, r->in.config, &r->err) < 0 ||
        (!is_model && state_read(&r->st, &r->s, &r->in) < 0))
        die_err(&r->err);
    run_check_outputs(r, &r->in);
    r->in_step = r->t.step = r->st.step;
}

/* Without --spike the window is dropped. */
static void
drop_spike(struct run *r)
{
    if (r->s.spike > 0)
        return;
    r->st.has_spike = false;
    r->st.spike = (struct spike){ 0 };
}

/* Each rank takes as many passes.  The number of a step's passes decides about bits, that of ranks
 * does not, so only the first is kept. */
static void
settle_passes(struct run *r)
{
    unsigned ranks = ranks_count();
    if (ranks > 1 && !r->s.has_accum) {
        r->s.accum = ranks;
        if (!r->o->cmd.quiet)
            warn("%s: a step has %u passes from here on, as many as there are ranks "
                 "now: "
                 "--accum %u",
                 r->in.name, ranks, ranks);
    }
    if (r->s.accum % ranks)
        misuse(
            "--accum: %llu passes of a step cannot be divided among %u ranks: expected "
            "--accum %llu, or another multiple of %u",
            (unsigned long long)r->s.accum, ranks,
            (unsigned long long)(r->s.accum / ranks + 1) * ranks, ranks);
}

static void
take_given(struct run *r)
{
    for (size_t i = 0; i < SETTINGS; i++)
        if (cmd_given(&r->o->cmd, settings_table[i].option))
            settings_copy(&r->s, &r->o->given, i);
}

/* The end that was asked for is that of a schedule which has none yet. */
static void
settle_total(struct run *r)
{
    bool fraction = r->s.quant_from > 0 && r->s.quant_from < 1;
    bool absolute = cmd_given(&r->o->cmd, "until") || r->o->epochs > 0;
    if (absolute && r->s.total_steps == 0 && (r->s.schedule != LR_CONSTANT || fraction))
        r->s.total_steps = r->end;
}

/* Steps behind the end of a schedule have its last rate.  At a rate of 0 they would take their
 * time and change nothing. */
static void
check_past_schedule(const struct run *r)
{
    unsigned long long total = r->s.total_steps;
    if (r->s.schedule == LR_CONSTANT || r->end <= total)
        return;
    if (r->s.min_lr == 0 && !r->o->allow_zero_lr)
        die(EXIT_TROUBLE,
            "%s: the schedule ends with step %llu; later ones, up to %llu, would have "
            "the learning rate 0: --total-steps moves its end, --min-lr sets the rate "
            "behind it, --allow-zero-lr takes such steps",
            r->in.name, total, (unsigned long long)r->end);
    if (!r->o->cmd.quiet)
        warn("%s: the schedule ends with step %llu; later ones, up to %llu, have the "
             "learning rate %g: --total-steps moves its end",
             r->in.name, total, (unsigned long long)r->end, r->s.min_lr);
}

/* A step whose samples are not all there takes some of them several times. */
static void
check_batch(const struct run *r)
{
    uint64_t each = r->s.batch * r->s.accum;
    if (r->has_data && r->data.n && each / r->data.n >= 2 && !r->o->cmd.quiet)
        warn(
            "--batch %llu%s: a step takes %llu samples, and the data have %zu: each is "
            "taken %llu times or more",
            (unsigned long long)r->s.batch,
            cmd_given(&r->o->cmd, "batch") ? "" : ", kept in the checkpoint",
            (unsigned long long)each, r->data.n,
            (unsigned long long)(each / r->data.n));
}

static void
check_rate(const struct run *r)
{
    if (r->s.lr == 0 && !r->o->allow_zero_lr)
        warn(
            "--lr 0%s: steps change no weight; --allow-zero-lr says that this is meant",
            cmd_given(&r->o->cmd, "lr") ? "" : ", kept in the checkpoint");
}

static void
settle_settings(struct run *r)
{
    settle_total(r);
    if (r->s.activations == ACTIVATIONS_NVFP4 && r->o->torchsharp)
        r->s.activations = ACTIVATIONS_TORCHSHARP;
    must(r, settings_check(&r->s, &r->err));
    settle_passes(r);
    drop_spike(r);
    if (r->s.last_layers > r->c.layers)
        misuse("--train-last-layers: %llu, the model has %u layers",
               (unsigned long long)r->s.last_layers, r->c.layers);
}

static void
settle_quantizer(struct run *r)
{
    if (quantizer_of(&r->quant, &r->layout.share, &r->in.quant))
        r->layout.quant = &r->quant;
}

/* The types of master weights and moments; packed ones need no quantizer. */
static void
choose_dtypes(struct run *r)
{
    const struct training *t = &r->in.training;
    if (!training_layout(&r->layout.arrays, t->master, t->moments))
        die(EXIT_TROUBLE, "%s: moments \"%s\" do not go with a master \"%s\"",
            r->in.name, t->moments, t->master);
    if (r->layout.arrays.torchsharp == TORCHSHARP_NONE)
        settle_quantizer(r);
}

bool
run_before_quant(const struct run *r, uint64_t step)
{
    return r->quantizer && step < settings_quant_from(&r->s);
}

/* A run that ends before the switch needs no memory for quantized weights. */
static void
settle_quant_from(struct run *r)
{
    bool packed = r->layout.arrays.torchsharp != TORCHSHARP_NONE;
    if (settings_quant_from(&r->s) > 1 && packed)
        die(EXIT_TROUBLE,
            "%s: --quant-from: its optimizer keeps packed weights from the first step: "
            "expected 0, or a checkpoint without --compat torchsharp",
            r->in.name);
    if (settings_quant_from(&r->s) > 1 && !r->layout.quant)
        die(EXIT_TROUBLE,
            "%s: --quant-from: its projections are never quantized; datpack --to ckpt "
            "--quant NAME makes a checkpoint of which they are",
            r->in.name);
    if (r->layout.quant)
        r->quantizer = r->in.quant.name;
    // A run that begins behind the switch never needs the earlier form.  An evaluation of the step
    // that the checkpoint is at has that step's.
    uint64_t first = r->o->eval && r->in_step > 0 ? r->in_step : r->in_step + 1;
    bool before = run_before_quant(r, first);
    r->layout.quant_from = before ? settings_quant_from(&r->s) : 0;
    if (run_before_quant(r, r->end))
        r->layout.quant = r->layout.activations = NULL;
}

/* Activations in NVFP4 are multiplied with NVFP4 weights only. */
static void
settle_activations(struct run *r)
{
    enum activations a = (enum activations)r->s.activations;
    if (a != ACTIVATIONS_PLAIN && !r->layout.quant &&
        r->layout.arrays.torchsharp == TORCHSHARP_NONE)
        die(EXIT_TROUBLE,
            "%s: --activations nvfp4: its projections are not quantized; datpack --to "
            "ckpt --quant NAME makes a checkpoint of which they are",
            r->in.name);
    if (device_products(&r->where, &r->device, a, &r->c, &r->activations,
                        &r->layout.activations, &r->err) < 0)
        die_err(&r->err);
}

/* Products of FP8 are those of weights that are quantized. */
static void
settle_fp8(struct run *r)
{
    r->layout.fp8 = r->where.compute == COMPUTE_FP8;
    r->layout.delayed = r->layout.fp8 && r->s.fp8_scales == SCALES_DELAYED;
    if (!r->layout.fp8 && cmd_given(&r->o->cmd, "fp8-scales"))
        misuse("--fp8-scales: goes with --compute fp8");
    if (r->layout.fp8 && !r->layout.quant)
        die(EXIT_TROUBLE,
            "%s: --compute fp8: its projections are not quantized; datpack --to ckpt "
            "--quant NAME makes a checkpoint of which they are",
            r->in.name);
    if (r->layout.fp8 && r->layout.activations)
        die(EXIT_TROUBLE,
            "%s: --compute fp8: rounds inputs of products to FP8, --activations nvfp4 "
            "to NVFP4: expected --activations plain, or another --compute",
            r->in.name);
}

void
run_set_release(struct run *r)
{
    bool whole = r->s.clip > 0 && r->s.clip_mode == CLIP_GLOBAL;
    r->layout.release = !whole && r->s.accum == 1 && !r->o->dump;
}

static void
settle_layout(struct run *r)
{
    r->layout.last_layers = (uint32_t)r->s.last_layers;
    r->layout.loss = r->s.loss == LOSS_CE ? NET_CE
                     : r->o->torchsharp   ? NET_TORCHSHARP
                                          : NET_SCALAR;
    run_set_release(r);
    r->layout.one_pass = r->s.accum == 1;
    r->layout.comm = ranks_comm();
    choose_dtypes(r);
    settle_activations(r);
    settle_fp8(r);
    // Native products take scales in tiles, which are made of whole tensors; of a replay rank 0
    // compares all arrays.
    r->layout.whole = r->o->dumps || r->replay || r->device.fp4 == FP4_NATIVE;
    settle_quant_from(r);
}

/* Inputs and outputs must be different files. */
static void
check_files(const struct options *o)
{
    const char *outputs[] = { o->out, o->dump, o->log, o->memory_report,
                              o->tensorboard };
    const char *inputs[] = { o->data, o->eval, o->checkpoint, o->teacher,
                             o->teacher_data };
    if (o->log && strcmp(o->log, "-") == 0)
        misuse("--log: standard output has the lines of --log as TSV");
    if (o->teacher_data && strcmp(o->teacher_data, "-") == 0)
        misuse("--teacher-data: expected a file; -d reads standard input");
    if (o->memory_report && strcmp(o->memory_report, "-") == 0)
        misuse("--memory-report: standard output has a line a step: want a file");
    if (strcmp(o->checkpoint, "-") == 0)
        misuse("CHECKPOINT is a file, no pipe");
    if (path_same_file(o->out, o->checkpoint))
        misuse("-o %s: is the checkpoint itself; without -o it is advanced", o->out);
    cmd_check_outputs(outputs, sizeof outputs / sizeof *outputs, inputs,
                      sizeof inputs / sizeof *inputs);
    suffix_check("-o", o->out, "ckpt");
    suffix_check("--dump", o->dump, "safetensors");
}

/* The run's own checkpoint is replaced without -f, another file is not. */
static void
settle_target(struct run *r)
{
    const char *out = r->o->out;
    struct stat st;
    if (!out) {
        r->target = cmd_copy(r->o->checkpoint); // messages have the user's name
        if (path_is_reserved(r->target))
            misuse("%s: %s", r->o->checkpoint, path_reserved);
        return;
    }
    bool there = stat(out, &st) == 0;
    if (*out == '\0' || out[strlen(out) - 1] == '/' || (there && S_ISDIR(st.st_mode)))
        misuse("-o %s: want the name of a file", out);
    if (path_is_stream(out))
        misuse("-o %s: a checkpoint cannot be written to a pipe or a device", out);
    if (there && !r->o->force)
        die(EXIT_TROUBLE,
            "%s: exists; -f replaces it; as CHECKPOINT, without -o, it goes on from "
            "the "
            "step that it has",
            out);
    r->target = cmd_copy(out);
}

/* ---- data ---------------------------------------------------------------------------------------- */

static void
check_tokenizer(const struct run *r, const struct tok_reader *t)
{
    const struct tok_header *h = &t->header;
    if (h->has_tokenizer && r->st.has_tokenizer &&
        memcmp(r->st.tokenizer, h->tokenizer, SHA256_BYTES) != 0)
        die(EXIT_TROUBLE,
            "%s: made with another tokenizer than the data that the checkpoint was "
            "trained "
            "on: make it again with that one (tokenize -t)",
            t->name);
}

/* Record the tokenizer of the training data in the state. */
static void
record_tokenizer(struct run *r)
{
    const struct tok_header *h = &r->data.tok.header;
    if (!h->has_tokenizer)
        return;
    r->st.has_tokenizer = true;
    memcpy(r->st.tokenizer, h->tokenizer, SHA256_BYTES);
}

/* Whether --dry-run has no samples to plan for.  With a config.json, samples must be named by -d: the
 * standard input of a script may be a pipe that never ends. */
static bool
assumes_samples(const struct options *o)
{
    struct stat st;
    if (!o->dry_run || o->data || o->teacher_data)
        return false;
    return is_config(o) || fstat(STDIN_FILENO, &st) != 0 || S_ISCHR(st.st_mode);
}

/* Plan for samples as long as --seq-len. */
static void
assume_data(struct run *r)
{
    enum { POSITIONS = 2048 };
    uint64_t n = r->s.seq_len                 ? r->s.seq_len
                 : r->c.positions < POSITIONS ? r->c.positions
                                              : POSITIONS;
    must(r, course_assume(&r->data, (uint32_t)n, &r->c, &r->err));
    r->has_data = true;
    if (!r->o->cmd.quiet)
        warn("no samples: the plan is for samples of %llu positions%s that are all "
             "targets; -d FILE.tok plans for samples",
             (unsigned long long)n,
             r->s.seq_len ? "" : " (--seq-len sets another length)");
}

static void
read_data(struct run *r)
{
    const char *path = r->o->data ? r->o->data : "-";
    if (assumes_samples(r->o)) {
        assume_data(r);
        return;
    }
    if (!r->o->data && isatty(STDIN_FILENO))
        misuse("want samples on standard input or -d FILE.tok; tokenize makes them");
    if (ranks_count() > 1 && path_is_stream(path))
        misuse("-d %s: a pipe would reach one of %u ranks only: expected a file", path,
               ranks_count());
    must(r, course_open(&r->data, path, &r->c, &r->err));
    if (r->o->teacher_data)
        must(r, course_open_taught(&r->data, r->o->teacher_data, &r->c, &r->err));
    course_hash(&r->data, r->data_hash);
    r->has_data = true;
}

/* Whether the checkpoint was trained on these samples last. */
static bool
is_same_data(const struct run *r)
{
    return r->st.has_sampler && memcmp(r->data_hash, r->st.data, XXH3_BYTES) == 0;
}

static void
open_data(struct run *r)
{
    if (!r->has_data)
        read_data(r);
    must(r, course_check(&r->data, &r->c, &r->err));
    check_tokenizer(r, &r->data.tok);
    record_tokenizer(r);
    if (r->o->teacher_data)
        check_tokenizer(r, &r->data.taught);
    must(r, course_settle(&r->data, &r->s, &r->c, &r->err));
    if (assumes_samples(r->o))
        return;
    if (is_same_data(r)) {
        must(r, course_seek(&r->data, r->st.epoch, r->st.index, &r->err));
    } else if (r->st.has_sampler && !r->o->cmd.quiet && !r->replay) {
        warn("%s: other data than before: they start at their beginning",
             r->data.tok.name);
    }
    r->st.has_sampler = true;
    memcpy(r->st.data, r->data_hash, XXH3_BYTES);
}

/* Steps until the samples were seen --epochs times, counted from the first time that the
 * checkpoint was trained on them; the last step is whole. */
static double
epochs_left(const struct run *r)
{
    double n = (double)r->data.n, wanted = r->o->epochs * n, near = nearbyint(wanted);
    // 0.07 of 100 samples are 7, though the product is above that.
    wanted = fabs(wanted - near) < 1e-9 * wanted ? near : ceil(wanted);
    double seen = is_same_data(r) ? (double)r->st.epoch * n + (double)r->st.index : 0.0;
    uint64_t passes = r->s.has_accum ? r->s.accum : ranks_count();
    double left = ceil((wanted - seen) / ((double)passes * (double)r->s.batch));
    return left > 0 ? left : 0;
}

static void
settle_end(struct run *r)
{
    double end = (double)r->in_step + (double)r->o->steps;
    if (cmd_given(&r->o->cmd, "until")) {
        end = (double)r->o->until;
    } else if (r->o->epochs > 0) {
        if (!r->has_data)
            read_data(r);
        end = (double)r->in_step + epochs_left(r);
    }
    if (end > UINT32_MAX)
        misuse("%s: step %.0f is the last one: expected at most %u",
               r->o->epochs > 0 ? "--epochs" : "-n", end, UINT32_MAX);
    r->end = (uint64_t)end;
}

static void
open_eval(struct run *r)
{
    if (!r->o->eval || r->has_eval)
        return;
    must(r, course_open(&r->eval, r->o->eval, &r->c, &r->err));
    r->has_eval = true;
    check_tokenizer(r, &r->eval.tok);
    struct settings free_length = r->s;
    free_length.seq_len = 0;
    must(r, course_settle(&r->eval, &free_length, &r->c, &r->err));
    r->eval.s = &r->s;
}

void
run_measure(struct run *r)
{
    size_t length = course_length(&r->data);
    must(r, course_max(&r->data, r->end - r->in_step, &r->max_tokens, &r->max_labels,
                       &r->err));
    for (size_t at = 0; r->has_eval && at < r->eval.n; at += (size_t)r->s.batch) {
        size_t tokens = 0, labels = 0;
        for (size_t i = at; i < r->eval.n && i < at + r->s.batch; i++) {
            tokens += r->eval.sample[i].ids - 1;
            labels += r->eval.sample[i].targets;
        }
        r->max_tokens = tokens > r->max_tokens ? tokens : r->max_tokens;
        r->max_labels = labels > r->max_labels ? labels : r->max_labels;
    }
    // Kernels count positions of a pass in 32 bits.
    if (r->max_tokens > INT32_MAX)
        misuse(
            "--batch: %llu samples are a pass of %zu positions: expected at most %d; "
            "--accum takes them in several",
            (unsigned long long)r->s.batch, r->max_tokens, INT32_MAX);
    if (r->has_eval && course_length(&r->eval) > length)
        length = course_length(&r->eval);
    r->layout.positions = length;
}

/* ---- the model ----------------------------------------------------------------------------------- */

static void
open_device(struct run *r)
{
    char words[64];
    r->k = device_open(&r->where, &r->err);
    if (!r->k)
        die_err(&r->err);
    device_describe(words, sizeof words, &r->where);
    if (!r->o->cmd.quiet && strcmp(r->where.device, "auto") == 0)
        warn("device: %s", words);
    device_report_speed(&r->where);
}

/* Say once which share of the weights FP8 rounds; with --quant-from that is known late. */
static void
report_inexact(struct run *r)
{
    const struct weights *w = &r->t.weights;
    if (r->inexact_said || w->n_fp8 == 0)
        return;
    r->inexact_said = true;
    device_report_inexact(r->where.host, w->n_inexact, w->n_fp8);
}

/* Steps that were not of FP8, or had current scales, have left no magnitudes: the next one takes
 * current scales. */
static void
restore_scales(struct run *r)
{
    const struct net_delayed *d = r->t.net.delayed;
    size_t n = train_n_magnitudes(&r->t), bytes = n * sizeof(float);
    struct slice kept = r->st.fp8_amax;
    r->st.fp8_amax = (struct slice){ 0 };
    if (!d)
        return;
    if (kept.n && kept.n != bytes)
        die(EXIT_TROUBLE, "%s: \"fp8_amax\": %zu bytes, the model has %zu", r->in.name,
            kept.n, bytes);
    for (size_t i = 0; i < n; i++)
        d->magnitude[i] =
            kept.n ? num_from_bits_f32(load_le32(kept.p + i * sizeof(float))) : 0;
}

static void
restore_counters(struct run *r)
{
    restore_scales(r);
    r->t.step = r->st.step;
    r->t.t = r->st.t;
    r->t.last_norm = r->st.grad_norm;
}

/* The names are those of --memory-report; trainstep.c has the list. */
static void
phase(struct run *r, const char *name)
{
    log_phase(r, name);
    if (r->o->cmd.verbose && r->t.step == r->in_step)
        warn("%s: %.3f GB in use", name, (double)log_memory(r, false) / (1 << 30));
    if (!r->o->stop_after || strcmp(name, r->o->stop_after) != 0)
        return;
    if (!r->o->cmd.quiet)
        warn("stopped after %s of step %llu; nothing was saved", name,
             (unsigned long long)r->t.step);
    log_close(r);
    save_unlock();
    ranks_leave();
    cmd_close_stdout();
    exit(EXIT_DONE);
}

static bool
before_update(void *ctx, double loss, double norm)
{
    struct run *r = ctx;
    phase(r, "backward_done");
    if (r->o->dump && r->t.step == r->in_step)
        dump_write(r, loss);
    return r->s.spike == 0 || spike_fits(&r->st.spike, r->s.spike, loss, norm);
}

static void
open_model(struct run *r)
{
    double start = os_seconds();
    if (train_open(&r->t, &r->c, r->k, &r->layout, &r->err) < 0 ||
        training_load(&r->t, &r->in, r->o->where.threads) < 0)
        die_err(&r->err);
    if (r->t.net.fp8 && !r->o->cmd.quiet)
        device_report_not_fp8(r->where.host, &r->t.net.table);
    teacher_load(r, &r->t);
    r->t.judge = before_update;
    r->t.judge_ctx = r;
    restore_counters(r);
    ranks_meet(0);
    ranks_begin_work();
    if (train_ready(&r->t) < 0 ||
        net_reserve(&r->t.net, r->max_tokens, r->max_labels, true) < 0)
        die_err(&r->err);
    ranks_end_work();
    report_inexact(r);
    if (r->o->cmd.verbose)
        warn("%s: loaded %.1f GB in %.2f s", r->in.name,
             (double)r->file_bytes / (1 << 30), os_seconds() - start);
    char was[TEXT_QUOTE];
    if (*r->st.route && strcmp(r->st.route, r->k->route) != 0 && !r->replay)
        warn("%s: trained by \"%s\" so far, from here on by \"%s\"", r->in.name,
             text_quote(was, r->st.route, strlen(r->st.route)), r->k->route);
    snprintf(r->st.route, sizeof r->st.route, "%s", r->k->route);
}

/* ---- steps ----------------------------------------------------------------------------------------- */

static struct train_numbers
numbers(const struct run *r, double rate)
{
    const struct settings *s = &r->s;
    return (struct train_numbers){ .lr = (float)rate,
                                   .beta1 = (float)s->beta1,
                                   .beta2 = (float)s->beta2,
                                   .eps = (float)s->eps,
                                   .decay = (float)s->weight_decay,
                                   .clip = (float)s->clip,
                                   .mode = (enum clip_mode)s->clip_mode,
                                   .seed = (uint32_t)s->seed,
                                   .chunk_rows = (size_t)r->o->chunk_rows };
}

/* Whether one of the ranks was asked to stop; all are between the same steps. */
static bool
stopped(void)
{
    int sig = ranks_meet(stop_signal());
    if (sig)
        stop_request(sig);
    return sig != 0;
}

/* Each rank takes a batch in turn.  false: a signal stopped it. */
static bool
evaluate(struct run *r)
{
    double start = os_seconds();
    struct train_sums sums = { 0 };
    size_t batch = (size_t)r->s.batch, own = ranks_number() * batch;
    for (size_t at = 0; at < r->eval.n; at += ranks_count() * batch) {
        bool has_own = at + own < r->eval.n;
        if (stopped())
            return false;
        if (has_own)
            must(r, course_range(&r->eval, at + own, batch, &r->err));
        ranks_begin_work();
        if (train_eval(&r->t, has_own ? r->eval.batch : NULL, &sums) < 0)
            die_err(&r->err);
        ranks_end_work();
    }
    log_eval(r, &sums, (os_seconds() - start) * 1000);
    r->evaluated = r->t.step;
    keep_evaluated(r, train_loss(&r->t, &sums), sums.targets);
    return true;
}

static bool
is_bad(const struct run *r, uint64_t step)
{
    for (size_t i = 0; i < r->n_bad; i++)
        if (r->bad[i] == step)
            return true;
    return false;
}

/* A step that must not count has changed tensors: go back to the last save and repeat the
 * steps without it. */
static void
undo(struct run *r, const struct train_result *res)
{
    uint64_t *bad = realloc(r->bad, (r->n_bad + 1) * sizeof *bad);
    struct store from, *source = &r->in;
    struct settings kept;
    if (!bad)
        die(EXIT_MEMORY, "out of memory");
    r->bad = bad;
    r->bad[r->n_bad++] = r->t.step;
    warn("step %llu is undone: %s", (unsigned long long)r->t.step, res->reason);
    if (r->saved) {
        if (checkpoint_open(&from, r->target, &cmd_guard, &r->err) < 0)
            die_err(&r->err);
        source = &from;
    }
    struct state was = r->st;
    if (training_load(&r->t, source, r->o->where.threads) < 0 ||
        state_read(&r->st, &kept, source) < 0)
        die_err(&r->err);
    bool same = r->st.has_sampler && memcmp(r->st.data, was.data, XXH3_BYTES) == 0;
    must(r, course_seek(&r->data, same ? r->st.epoch : 0, same ? r->st.index : 0,
                        &r->err));
    restore_counters(r);
    r->watch = r->watch_saved;
    memcpy(r->st.data, was.data, XXH3_BYTES);
    memcpy(r->st.tokenizer, was.tokenizer, SHA256_BYTES);
    memcpy(r->st.route, was.route, sizeof was.route);
    memcpy(r->st.teacher, was.teacher, XXH3_BYTES);
    memcpy(r->st.teacher_data, was.teacher_data, XXH3_BYTES);
    r->st.has_teacher = was.has_teacher;
    r->st.has_teacher_data = was.has_teacher_data;
    r->st.has_sampler = true;
    r->st.has_tokenizer = was.has_tokenizer;
    drop_spike(r);
    ranks_meet(0);
    ranks_begin_work();
    if (train_ready(&r->t) < 0)
        die_err(&r->err);
    ranks_end_work();
    if (r->saved)
        store_close(&from);
    if (!r->o->out) // the checkpoint is as it was saved last, and a stop may leave it so
        stop_saved();
}

static void
count_outcome(struct run *r, const struct train_result *res)
{
    if (res->outcome == TRAIN_DONE) {
        r->st.skips = 0;
        if (r->s.spike > 0) {
            r->st.has_spike = true;
            spike_add(&r->st.spike, res->loss, res->grad_norm);
        }
        return;
    }
    if (++r->st.skips >= r->o->max_skips)
        die(EXIT_NONFINITE,
            "step %llu: %s; %llu steps in a row were skipped; the checkpoint is that "
            "of "
            "step %llu",
            (unsigned long long)r->t.step, res->reason, (unsigned long long)r->st.skips,
            (unsigned long long)run_saved_step(r));
}

/* Say which steps are quantized, and when the first one comes; an undone one comes again. */
static void
report_quant(struct run *r)
{
    enum { UNSAID, BEFORE, AFTER } now;
    uint64_t from = settings_quant_from(&r->s);
    now = run_before_quant(r, r->t.step + 1) ? BEFORE : AFTER;
    if (r->o->cmd.quiet || from <= 1 || from <= r->in_step || r->quant_said >= now)
        return;
    r->quant_said = now;
    if (now == BEFORE)
        warn("steps before %llu are not quantized", (unsigned long long)from);
    else
        warn("from step %llu on the forward pass uses NVFP4 weights (%s)",
             (unsigned long long)from, r->quantizer);
}

/* Seconds in which exchanges have kept this rank from computing so far. */
static double
exchanged(const struct run *r)
{
    const struct comm *c = ranks_comm();
    return c ? c->waited + kernels_exchanged(r->k) : 0;
}

/* false: the step was undone. */
static bool
step(struct run *r)
{
    struct train_result res = { .outcome = TRAIN_SKIPPED };
    double rate = settings_rate(&r->s, r->t.step + 1), start = os_seconds();
    double before = exchanged(r);
    r->t.numbers = numbers(r, rate);
    report_quant(r);
    if (is_bad(r, r->t.step + 1)) {
        must(r, course_skip(&r->data, &r->err));
        train_pass_over(&r->t);
        res.loss = res.grad_norm = NAN;
        snprintf(res.reason, sizeof res.reason, "a gradient was not finite");
    } else {
        must(r, course_step(&r->data, &r->err));
        phase(r, "batch_ready");
        phase(r, "zero_grad_done");
        ranks_begin_work();
        if (train_step(&r->t, r->data.batch, r->data.n_batches, &res) < 0)
            die_err(&r->err);
        ranks_end_work();
    }
    if (res.outcome == TRAIN_SPOILT) {
        undo(r, &res);
        return false;
    }
    double ms = (os_seconds() - start) * 1000;
    r->wait_ms = (exchanged(r) - before) * 1000;
    log_driver(r);
    report_inexact(r);
    phase(r, "optimizer_step_done");
    log_step(r, &res, rate, ms);
    count_outcome(r, &res);
    watch_step(r, &res);
    return true;
}

static void
check_memory(struct run *r)
{
    uint64_t limit = r->o->memory_limit, used = limit ? log_memory(r, false) : 0;
    if (used <= limit)
        return;
    // On a GPU memory of other processes looks like the driver's: no reason to end.
    if (r->device.host || r->k->usage.total + r->device.driver > limit)
        die(EXIT_MEMORY, "step %llu: %.3f GB in use, --memory-limit is %.3f",
            (unsigned long long)r->t.step, (double)used / (1 << 30),
            (double)limit / (1 << 30));
    if (!r->over_limit)
        warn("%.3f GB in use, driver and libraries have %.3f of them, or others of the "
             "same GPU; --memory-limit is %.3f",
             (double)used / (1 << 30), (double)r->driver / (1 << 30),
             (double)limit / (1 << 30));
    r->over_limit = true;
}

static bool
is_save_due(const struct run *r)
{
    bool due = r->o->save_every && r->t.step % r->o->save_every == 0;
    return (due || keep_due(r)) && r->t.step < r->end && run_saved_step(r) < r->t.step;
}

static void
train(struct run *r)
{
    bool evaluated = false;
    if (!r->replay)
        keep_pay_copies(r);
    // A run that was cut and goes on has had its first evaluation.
    bool first = r->o->eval_first && !keep_has_evaluated(r);
    if (r->has_eval && (first || keep_owes_evaluation(r)))
        evaluate(r);
    while (r->t.step < r->end && !stopped() && !keep_is_out_of_patience(r)) {
        if (!step(r))
            continue;
        check_memory(r);
        // Steps that are repeated after an undone one have been evaluated.
        evaluated = r->has_eval && r->o->eval_every &&
                    r->t.step % r->o->eval_every == 0 &&
                    (r->t.step <= r->evaluated || evaluate(r));
        if (is_save_due(r))
            save_write(r);
    }
    display_end(r);
    if (r->replay)
        return;
    if (r->has_eval && !evaluated && r->evaluated != r->t.step &&
        !keep_is_out_of_patience(r))
        evaluate(r);
    if (run_saved_step(r) < r->t.step)
        save_write(r);
}

/* Close all; the exit status.  The message about the end comes last. */
static int
close_run(struct run *r)
{
    struct buf words = { 0 };
    stop_report(&words, r);
    log_close(r);
    keep_close(r);
    train_close(&r->t);
    teacher_unload(r);
    kernels_close(r->k);
    teacher_close(r);
    course_close(&r->data);
    if (r->has_eval)
        course_close(&r->eval);
    store_close(&r->in);
    save_unlock();
    free(r->bad);
    free(r->fp8_amax);
    free(r->target);
    int status = stop_end(r, &words);
    buf_free(&words);
    return status;
}

/* ---- nothing to do ---------------------------------------------------------------- */

static bool
same_kind(const struct store *a, const struct store *b)
{
    return strcmp(a->training.master, b->training.master) == 0 &&
           strcmp(a->training.moments, b->training.moments) == 0 &&
           strcmp(a->quant.name, b->quant.name) == 0 && a->config.n == b->config.n &&
           memcmp(a->config.p, b->config.p, a->config.n) == 0;
}

static bool
same_content(struct run *r, struct store *a, struct store *b)
{
    uint8_t x[XXH3_BYTES], y[XXH3_BYTES];
    if (store_content_hash(a, x, 1, &r->err) < 0 ||
        store_content_hash(b, y, 1, &r->err) < 0)
        die_err(&r->err);
    return memcmp(x, y, XXH3_BYTES) == 0;
}

/* Nothing is written to -o, so an existing file there must be a result of this run. */
static void
check_out(struct run *r)
{
    struct store out;
    struct state st;
    struct settings s;
    if (checkpoint_open(&out, r->o->out, &cmd_guard, &r->err) < 0)
        die_err(&r->err);
    if (!out.training.master || !out.config.p || !same_kind(&out, &r->in))
        die(EXIT_TROUBLE,
            "%s: not a checkpoint of the kind of %s, which is at step %llu already; "
            "nothing was done: leave -o out, or remove it",
            out.name, r->in.name, (unsigned long long)r->in_step);
    if (state_read(&st, &s, &out) < 0)
        die_err(&r->err);
    if (st.step < r->end)
        die(EXIT_TROUBLE,
            "%s: is at step %llu, and %s at step %llu already; nothing was done: "
            "leave -o out, or remove it",
            out.name, (unsigned long long)st.step, r->in.name,
            (unsigned long long)r->in_step);
    if (st.step == r->in_step && !same_content(r, &out, &r->in))
        die(EXIT_TROUBLE,
            "%s: differs from %s, which is at step %llu already; nothing was done: "
            "leave -o out, or remove it",
            out.name, r->in.name, (unsigned long long)st.step);
    store_close(&out);
}

/* Requested files that do not exist are an error. */
static int
end_at_once(struct run *r)
{
    const char *files[] = { r->o->out, r->o->dump };
    for (size_t i = 0; !r->o->dry_run && i < sizeof files / sizeof *files; i++)
        if (files[i] && access(files[i], F_OK) != 0)
            die(EXIT_TROUBLE, "%s: is at step %llu: nothing to do, and %s is not made",
                r->in.name, (unsigned long long)r->in_step, files[i]);
    if (r->o->out && !r->o->dry_run)
        check_out(r);
    must(r, course_check_file(r->o->data, &r->err));
    must(r, course_check_file(r->o->eval, &r->err));
    if (!r->o->cmd.quiet)
        warn(
            "%s: at step %llu: nothing to do; -n, --until or --epochs takes more steps "
            "from it",
            r->in.name, (unsigned long long)r->in_step);
    save_unlock();
    return EXIT_DONE;
}

static int
end_without_patience(struct run *r)
{
    struct buf b = { 0 };
    keep_report_patience(&b, r);
    if (!r->o->cmd.quiet && !b.failed)
        warn("%s: at step %llu: nothing to do: %s; without --patience, or with a "
             "larger one, it goes on",
             r->in.name, (unsigned long long)r->in_step, b.data);
    buf_free(&b);
    save_unlock();
    return EXIT_DONE;
}

static void
open_input(struct run *r)
{
    if (r->o->replay.to) {
        open_checkpoint(r, replay_open(r));
        replay_begin(r);
        return;
    }
    open_checkpoint(r, r->o->checkpoint);
    take_given(r);
    settle_end(r);
}

/* ---- several ranks ---------------------------------------------------------------- */

static void
put_hash(struct buf *b, const char *name, bool there, const uint8_t *digest)
{
    char hex[2 * XXH3_BYTES + 1] = "none";
    if (there)
        hash_hex(hex, digest, XXH3_BYTES);
    buf_printf(b, "%s\t%s\n", name, hex);
}

static void
put_count(struct buf *b, const char *name, uint64_t n)
{
    buf_printf(b, "%s\t%llu\n", name, (unsigned long long)n);
}

/* Whether all ranks run the same program on the same checkpoint. */
static void
compare_input(const struct run *r)
{
    struct buf b = { 0 };
    uint8_t header[XXH3_BYTES];
    xxh3_128(header, r->in.header, (size_t)r->in.header_bytes);
    buf_printf(&b, "version\t%s %s\n", cmd_version(), cmd_commit());
    put_count(&b, "the version of libxxhash", hash_library());
    put_count(&b, "the checkpoint's step", r->in_step);
    put_hash(&b, "the checkpoint's hash", true, header);
    put_count(&b, "the last step", r->end);
    put_count(&b, "--replay", r->o->replay.to);
    ranks_compare(&b);
    buf_free(&b);
}

/* Kinds of GPUs may differ in bits; --fast takes that. */
static void
put_gpu(struct buf *b, const struct run *r)
{
    uint8_t uuid[GPU_UUID];
    char name[64] = "unknown";
    if (r->where.cuda)
        kernels_cuda_identity(r->where.number, uuid, name, sizeof name);
    buf_printf(b, "the kind of GPU (--fast takes others)\t%s\n", name);
}

/* Whether they compute the same, and do things at the same steps. */
static void
compare_run(const struct run *r)
{
    const struct options *o = r->o;
    struct buf b = { 0 };
    settings_lines(&b, &r->s);
    put_hash(&b, "the hash of -d", true, r->data.tok.end.xxh3);
    put_hash(&b, "the hash of --eval", r->has_eval, r->eval.tok.end.xxh3);
    put_hash(&b, "the hash of --teacher-data", r->data.has_taught,
             r->data.taught.end.xxh3);
    put_hash(&b, "the hash of --teacher", r->has_teacher, r->st.teacher);
    put_count(&b, "--eval-every", o->eval_every);
    put_count(&b, "--save-every", o->save_every);
    put_count(&b, "--max-skips", o->max_skips);
    put_count(&b, "--eval-first", o->eval_first);
    put_count(&b, "--keep-every", o->keep_every);
    put_count(&b, "--keep-best", o->keep_best);
    put_count(&b, "--patience", o->patience);
    buf_printf(&b, "--stop-if-worse\t%.17g\n", o->stop_if_worse);
    keep_facts(&b, r);
    put_count(&b, "--compat torchsharp", o->torchsharp);
    put_count(&b, "--dump", o->dumps);
    buf_printf(&b, "--stop-after\t%s\n", o->stop_after ? o->stop_after : "none");
    buf_printf(&b, "the instruction set\t%s\n", isa_name(cmd_isa()));
    buf_printf(&b, "the route of products\t%s\n", r->k->route);
    if (!o->where.fast)
        put_gpu(&b, r);
    ranks_compare(&b);
    buf_free(&b);
}

static bool
is_finished(const struct run *r)
{
    return r->end <= r->in_step;
}

/* Whether an earlier run owes an evaluation or a copy of a finished checkpoint. */
static bool
owes(struct run *r)
{
    if (r->o->out || !keep_is_on(r->o))
        return false;
    open_eval(r);
    keep_open(r);
    bool owed = keep_owes_evaluation(r) || keep_owes_copies(r);
    keep_close(r);
    return owed;
}

/* A finished checkpoint of which nothing is owed needs no lock.  Another run may have replaced
 * the file before we got the lock, so it is opened again. */
static void
open_locked(struct run *r)
{
    open_input(r);
    if (is_finished(r) && !owes(r))
        return;
    save_lock(r);
    store_close(&r->in);
    r->st = (struct state){ 0 };
    open_input(r);
}

/* Rank 0 holds the lock and writes; the others read what it has locked. */
static void
open_shared(struct run *r)
{
    if (!r->o->replay.to)
        settle_target(r);
    if (ranks_number() == 0 && !r->o->replay.to)
        open_locked(r);
    ranks_meet(0);
    if (ranks_number() > 0 || r->o->replay.to)
        open_input(r);
    compare_input(r);
}

static int
dry_run(struct run *r)
{
    plan_settle(r);
    if (table_open(&r->t.net.table, &r->c, !r->c.tied, &r->err) < 0)
        die_err(&r->err);
    plan_print(r);
    return EXIT_DONE;
}

/* Ranks have a GPU each: the one that was named, or as their number on the machine is. */
static void
settle_gpu(struct run *r)
{
    if (r->where.cuda && ranks_count() > 1 && !r->o->dry_run)
        ranks_settle_gpu(r->where.device, &r->where.number);
}

/* Pay what an earlier run owes of a finished checkpoint.  true: an evaluation is owed, too, for
 * which the model is needed. */
static bool
pays_evaluation(struct run *r)
{
    if (r->o->out || r->o->dry_run || r->replay || !keep_is_on(r->o))
        return false;
    open_eval(r);
    keep_open(r);
    if (keep_owes_evaluation(r))
        return true;
    ranks_meet(0); // all know what is owed
    if (ranks_number() > 0 || r->lock.fd >= 0)
        keep_pay_copies(r);
    return false;
}

static int
run_rank(struct run *r)
{
    const struct options *o = r->o;
    check_files(o);
    if (o->dry_run)
        open_input(r);
    else
        open_shared(r);
    warn_lines(&r->in.warnings);
    if (is_finished(r) && !pays_evaluation(r))
        return ranks_number() ? EXIT_DONE : end_at_once(r);
    // After the lock: a run that was killed has freed its memory by now.
    r->free_before = r->device.host ? UINT64_MAX : device_free(&r->where);
    settle_settings(r);
    settle_layout(r);
    open_data(r);
    open_eval(r);
    run_measure(r);
    teacher_open(r);
    if (r->replay)
        replay_check_inputs(r);
    if (o->dry_run)
        return ranks_number() ? EXIT_DONE : dry_run(r);
    keep_open(r);
    if (keep_is_out_of_patience(r)) {
        ranks_meet(0);
        keep_pay_copies(r);
        return ranks_number() ? EXIT_DONE : end_without_patience(r);
    }
    // Settings of a replay are not the user's to change.
    if (!r->replay && !is_finished(r)) {
        check_rate(r);
        check_batch(r);
        check_past_schedule(r);
    }
    plan_settle(r);
    open_device(r);
    compare_run(r);
    if (!r->replay)
        save_check_place(r);
    ranks_join_gpus(r->k, o->cmd.verbose);
    open_model(r);
    if (r->replay)
        replay_check_route(r);
    else if (ranks_number() == 0 && !is_finished(r))
        save_check(r);
    log_open(r);
    phase(r, "start");
    phase(r, "model_loaded");
    stop_catch();
    train(r);
    int answer = r->replay ? replay_answer(r) : EXIT_DONE;
    int status = close_run(r);
    return status ? status : answer;
}

int
run(const struct options *o)
{
    static struct run r = { .lock = { .fd = -1 }, .locked_file = -1 };
    r.o = o;
    r.where = o->where;
    r.where.host = cmd_host(&o->cmd);
    r.device = device_settle(&r.where);
    ranks_join(o->rank_timeout, o->rank_timeout, r.where.cuda, o->rendezvous);
    if (!o->cmd.quiet)
        ranks_report();
    settle_gpu(&r);
    int status = run_rank(&r);
    ranks_leave();
    return status;
}
