/* SPDX-License-Identifier: MIT */
/* config: see config.h. */
#include "lib/train/config.h"

#include "lib/base/text.h"
#include "lib/file/path.h"
#include "lib/load/quantizer.h"
#include "lib/load/training.h"
#include "lib/train/inputs.h"
#include "lib/train/teacher.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- names of files ---------------------------------------------------------------------- */

/* Inputs and outputs must be different files. */
static int
check_files(const struct train_options *o, struct err *err)
{
    const char *outputs[] = { o->out, o->dump, o->log, o->memory_report,
                              o->tensorboard };
    const char *inputs[] = { o->data, o->eval, o->checkpoint, o->teacher,
                             o->teacher_data };
    if (o->log && strcmp(o->log, "-") == 0)
        return err_set(err, ERR_USAGE,
                       "--log: standard output has the lines of --log as TSV");
    if (o->teacher_data && strcmp(o->teacher_data, "-") == 0)
        return err_set(err, ERR_USAGE,
                       "--teacher-data: expected a file; -d reads standard input");
    if (o->memory_report && strcmp(o->memory_report, "-") == 0)
        return err_set(
            err, ERR_USAGE,
            "--memory-report: standard output has a line a step: want a file");
    if (strcmp(o->checkpoint, "-") == 0)
        return err_set(err, ERR_USAGE, "CHECKPOINT is a file, no pipe");
    if (path_same_file(o->out, o->checkpoint))
        return err_set(err, ERR_USAGE,
                       "-o %s: is the checkpoint itself; without -o it is advanced",
                       o->out);
    return path_check_outputs(outputs, sizeof outputs / sizeof *outputs, inputs,
                              sizeof inputs / sizeof *inputs, err);
}

int
config_begin(struct run_config *r, const struct train_options *o, struct ranks *ranks,
             struct inputs *in, struct err *err)
{
    *in = (struct inputs){ .has_file = false };
    *r = (struct run_config){ .o = o,
                              .host = o->host,
                              .ranks = ranks,
                              .err = err,
                              .in = in,
                              .where = o->where,
                              .free_before = UINT64_MAX };
    return check_files(o, err);
}

/* The run's own checkpoint is replaced without -f, another file is not. */
int
config_settle_target(struct run_config *r)
{
    const char *out = r->o->out, *name = out ? out : r->o->checkpoint;
    struct stat st;
    if (!out && path_is_reserved(name))
        return err_set(r->err, ERR_USAGE, "%s: %s", name, path_reserved);
    bool there = out && stat(out, &st) == 0;
    if (out &&
        (*out == '\0' || out[strlen(out) - 1] == '/' || (there && S_ISDIR(st.st_mode))))
        return err_set(r->err, ERR_USAGE, "-o %s: want the name of a file", out);
    if (out && path_is_stream(out))
        return err_set(r->err, ERR_USAGE,
                       "-o %s: a checkpoint cannot be written to a pipe or a device",
                       out);
    if (there && !r->o->force)
        return err_set(
            r->err, ERR_USAGE,
            "%s: exists; -f replaces it; as CHECKPOINT, without -o, it goes on from "
            "the step that it has",
            out);
    r->target = strdup(name); // messages have the user's name
    return r->target ? 0 : err_set(r->err, ERR_MEMORY, "out of memory");
}

/* ---- settings ---------------------------------------------------------------------------- */

int
config_take_options(struct run_config *r)
{
    for (size_t i = 0; i < SETTINGS; i++)
        if (r->o->is_given[i])
            settings_copy(&r->s, &r->o->given, i);
    return inputs_settle_end(r);
}

void
config_drop_spike(const struct run_config *r, struct state *st)
{
    if (r->s.spike > 0)
        return;
    st->has_spike = false;
    st->spike = (struct spike){ 0 };
}

/* Each rank takes as many passes.  The number of a step's passes decides about bits, that of ranks
 * does not, so only the first is kept. */
static int
settle_passes(struct run_config *r)
{
    unsigned ranks = r->ranks->size;
    if (ranks > 1 && !r->s.has_accum) {
        r->s.accum = ranks;
        host_note(r->host,
                  "%s: a step has %u passes from here on, as many as there are ranks "
                  "now: --accum %u",
                  r->in->file.name, ranks, ranks);
    }
    if (r->s.accum % ranks)
        return err_set(
            r->err, ERR_USAGE,
            "--accum: %llu passes of a step cannot be divided among %u ranks: expected "
            "--accum %llu, or another multiple of %u",
            (unsigned long long)r->s.accum, ranks,
            (unsigned long long)(r->s.accum / ranks + 1) * ranks, ranks);
    return 0;
}

/* A schedule without an end ends with the run, if the user named the last step. */
static void
settle_total(struct run_config *r)
{
    bool fraction = r->s.quant_from > 0 && r->s.quant_from < 1;
    bool absolute = r->o->has_until || r->o->epochs > 0;
    if (absolute && r->s.total_steps == 0 && (r->s.schedule != LR_CONSTANT || fraction))
        r->s.total_steps = r->end;
}

static int
settle_settings(struct run_config *r)
{
    settle_total(r);
    if (r->s.activations == ACTIVATIONS_NVFP4 && r->o->torchsharp)
        r->s.activations = ACTIVATIONS_TORCHSHARP;
    if (settings_check(&r->s, r->err) < 0 || settle_passes(r) < 0)
        return -1;
    config_drop_spike(r, &r->st);
    if (r->s.last_layers > r->model.layers)
        return err_set(r->err, ERR_USAGE,
                       "--train-last-layers: %llu, the model has %u layers",
                       (unsigned long long)r->s.last_layers, r->model.layers);
    return 0;
}

/* ---- what is computed -------------------------------------------------------------------- */

static void
settle_quantizer(struct run_config *r)
{
    if (quantizer_of(&r->quant, &r->layout.share, &r->in->file.quant))
        r->layout.quant = &r->quant;
}

/* The types of master weights and moments; packed ones need no quantizer. */
static int
choose_dtypes(struct run_config *r)
{
    const struct training *t = &r->in->file.training;
    if (!training_layout(&r->layout.arrays, t->master, t->moments))
        return err_set(r->err, ERR_FORMAT,
                       "%s: moments \"%s\" do not go with a master \"%s\"",
                       r->in->file.name, t->moments, t->master);
    if (!r->layout.arrays.packed)
        settle_quantizer(r);
    return 0;
}

bool
config_before_quant(const struct run_config *r, uint64_t step)
{
    return r->quantizer && step < settings_quant_from(&r->s);
}

static int
check_quant_from(const struct run_config *r)
{
    if (settings_quant_from(&r->s) <= 1)
        return 0;
    if (r->layout.arrays.packed)
        return err_set(
            r->err, ERR_FORMAT,
            "%s: --quant-from: its optimizer keeps packed weights from the first step: "
            "expected 0, or a checkpoint without --compat torchsharp",
            r->in->file.name);
    if (!r->layout.quant)
        return err_set(
            r->err, ERR_FORMAT,
            "%s: --quant-from: its projections are never quantized; datpack --to ckpt "
            "--quant NAME makes a checkpoint of which they are",
            r->in->file.name);
    return 0;
}

/* A run that ends before the switch needs no memory for quantized weights. */
static int
settle_quant_from(struct run_config *r)
{
    if (check_quant_from(r) < 0)
        return -1;
    if (r->layout.quant)
        r->quantizer = r->in->file.quant.name;
    // A run that begins behind the switch never needs the earlier form.  An evaluation of the step
    // that the checkpoint is at has that step's.
    uint64_t first = r->o->eval && r->in_step > 0 ? r->in_step : r->in_step + 1;
    bool before = config_before_quant(r, first);
    r->layout.quant_from = before ? settings_quant_from(&r->s) : 0;
    if (config_before_quant(r, r->end))
        r->layout.quant = r->layout.activations = NULL;
    return 0;
}

/* Activations in NVFP4 are multiplied with NVFP4 weights only. */
static int
settle_activations(struct run_config *r)
{
    enum activations a = (enum activations)r->s.activations;
    if (a != ACTIVATIONS_PLAIN && !r->layout.quant && !r->layout.arrays.packed)
        return err_set(
            r->err, ERR_FORMAT,
            "%s: --activations nvfp4: its projections are not quantized; datpack --to "
            "ckpt --quant NAME makes a checkpoint of which they are",
            r->in->file.name);
    return device_products(&r->where, &r->device, a, &r->model, &r->activations,
                           &r->layout.activations, r->err);
}

/* Only quantized weights have products in FP8. */
static int
settle_fp8(struct run_config *r)
{
    r->layout.fp8 = r->where.compute == COMPUTE_FP8;
    r->layout.delayed = r->layout.fp8 && r->s.fp8_scales == SCALES_DELAYED;
    if (!r->layout.fp8 && train_is_given(r->o, "fp8-scales"))
        return err_set(r->err, ERR_USAGE, "--fp8-scales: goes with --compute fp8");
    if (r->layout.fp8 && !r->layout.quant)
        return err_set(
            r->err, ERR_FORMAT,
            "%s: --compute fp8: its projections are not quantized; datpack --to ckpt "
            "--quant NAME makes a checkpoint of which they are",
            r->in->file.name);
    if (r->layout.fp8 && r->layout.activations)
        return err_set(
            r->err, ERR_USAGE,
            "%s: --compute fp8: rounds inputs of products to FP8, --activations nvfp4 "
            "to NVFP4: expected --activations plain, or another --compute",
            r->in->file.name);
    return 0;
}

void
config_set_release(struct run_config *r)
{
    bool whole = r->s.clip > 0 && r->s.clip_mode == CLIP_GLOBAL;
    r->layout.release = !whole && r->s.accum == 1 && !r->o->dump;
}

static int
settle_layout(struct run_config *r)
{
    r->layout.last_layers = (uint32_t)r->s.last_layers;
    r->layout.loss = r->s.loss == LOSS_CE ? NET_CE
                     : r->o->torchsharp   ? NET_TORCHSHARP
                                          : NET_SCALAR;
    config_set_release(r);
    r->layout.one_pass = r->s.accum == 1;
    r->layout.comm = ranks_comm(r->ranks);
    if (choose_dtypes(r) < 0 || settle_activations(r) < 0 || settle_fp8(r) < 0)
        return -1;
    // Native products take scales in tiles, which are made of whole tensors; of a replay rank 0
    // compares all arrays.
    r->layout.whole = r->o->dumps || config_is_replay(r) || r->device.fp4 == FP4_NATIVE;
    return settle_quant_from(r);
}

int
config_settle(struct run_config *r)
{
    if (settle_settings(r) < 0 || settle_layout(r) < 0 || inputs_open_data(r) < 0 ||
        config_open_eval(r) < 0 || config_measure(r) < 0)
        return -1;
    return teacher_open(r);
}

/* ---- what is most likely not meant ------------------------------------------------------- */

/* Steps behind the end of a schedule have its last rate.  At a rate of 0 they would take their
 * time and change nothing. */
static int
check_past_schedule(const struct run_config *r)
{
    unsigned long long total = r->s.total_steps;
    if (r->s.schedule == LR_CONSTANT || r->end <= total)
        return 0;
    if (r->s.min_lr == 0 && !r->o->allow_zero_lr)
        return err_set(
            r->err, ERR_USAGE,
            "%s: the schedule ends with step %llu; later ones, up to %llu, would have "
            "the learning rate 0: --total-steps moves its end, --min-lr sets the rate "
            "behind it, --allow-zero-lr takes such steps",
            r->in->file.name, total, (unsigned long long)r->end);
    host_note(r->host,
              "%s: the schedule ends with step %llu; later ones, up to %llu, have the "
              "learning rate %g: --total-steps moves its end",
              r->in->file.name, total, (unsigned long long)r->end, r->s.min_lr);
    return 0;
}

/* A step whose samples are not all there takes some of them several times. */
static void
check_batch(const struct run_config *r)
{
    uint64_t each = r->s.batch * r->s.accum, n = r->in->data.n;
    if (n && each / n >= 2)
        host_note(
            r->host,
            "--batch %llu%s: a step takes %llu samples, and the data have %llu: each "
            "is taken %llu times or more",
            (unsigned long long)r->s.batch,
            train_is_given(r->o, "batch") ? "" : ", kept in the checkpoint",
            (unsigned long long)each, (unsigned long long)n,
            (unsigned long long)(each / n));
}

static void
check_rate(const struct run_config *r)
{
    if (r->s.lr == 0 && !r->o->allow_zero_lr)
        host_warn(
            r->host,
            "--lr 0%s: steps change no weight; --allow-zero-lr says that this is meant",
            train_is_given(r->o, "lr") ? "" : ", kept in the checkpoint");
}

/* A rate that never reaches --lr. */
static void
check_warmup(const struct run_config *r)
{
    if (train_is_given(r->o, "warmup") && r->s.warmup > r->end && r->s.lr > 0)
        host_note(r->host,
                  "--warmup %llu: the run ends with step %llu, where the rate is %.3g "
                  "of --lr %g",
                  (unsigned long long)r->s.warmup, (unsigned long long)r->end,
                  settings_rate(&r->s, r->end) / r->s.lr, r->s.lr);
}

int
config_check_steps(const struct run_config *r)
{
    check_rate(r);
    check_warmup(r);
    check_batch(r);
    return check_past_schedule(r);
}
