/* SPDX-License-Identifier: MIT */
/* run_config: what options and a checkpoint come to (lib/train/config.h), without a device: each
 * combination that cannot be trained is refused with its words. */
#include "lib/train/config.h"

#include "lib/train/plan.h"
#include "tests/unit/model_files.h"
#include "tests/unit/run_options.h"
#include "tests/unit/samples.h"

#include <sys/stat.h>

static struct ranks ranks;
static struct inputs in;
static struct run_config run;
static struct err err;

/* Open what the options name; `refused` closes it. */
static int
begin(struct train_options *o)
{
    struct device device = device_settle(&o->where);
    err = (struct err){ 0 };
    heard = (struct heard){ 0 };
    if (config_begin(&run, o, &ranks, &in, &err) < 0)
        return -1;
    run.device = device;
    if (config_settle_target(&run) < 0 || config_open(&run, o->checkpoint) < 0)
        return -1;
    return config_take_options(&run);
}

static int
settle(struct train_options *o)
{
    return begin(o) < 0 ? -1 : config_settle(&run);
}

static void
refused(int rc, enum err_kind kind, const char *words)
{
    CHECK(rc < 0);
    CHECK_ERR(err, kind, words);
    config_close(&run);
}

static void
accepted(int rc)
{
    CHECK_SAY(rc == 0, "%s", err.msg);
    config_close(&run);
}

/* ---- names of files ------------------------------------------------------------------------ */

static void
check_files(void)
{
    struct train_options o = options("m.ckpt", 1);
    o.log = "-";
    refused(begin(&o), ERR_USAGE, "--log: standard output has the lines");
    o = options("m.ckpt", 1);
    o.teacher_data = "-";
    refused(begin(&o), ERR_USAGE, "--teacher-data: expected a file");
    o = options("m.ckpt", 1);
    o.memory_report = "-";
    refused(begin(&o), ERR_USAGE, "--memory-report: standard output has a line");
    o = options("-", 1);
    refused(begin(&o), ERR_USAGE, "CHECKPOINT is a file, no pipe");
    o = options("m.ckpt", 1);
    o.out = "./m.ckpt";
    refused(begin(&o), ERR_USAGE, "-o ./m.ckpt: is the checkpoint itself");
    o = options("m.ckpt", 1);
    o.log = "s.tok";
    refused(begin(&o), ERR_USAGE, "s.tok");
    o = options(".m.ckpt.nibble-tmp", 1);
    refused(begin(&o), ERR_USAGE, ".m.ckpt.nibble-tmp: ");
    o = options("m.ckpt", 1);
    o.out = "";
    refused(begin(&o), ERR_USAGE, "-o : want the name of a file");
    o.out = "new/";
    refused(begin(&o), ERR_USAGE, "-o new/: want the name of a file");
    o.out = "/dev/null";
    refused(begin(&o), ERR_USAGE, "-o /dev/null: a checkpoint cannot be written to");
    o.out = "plain.ckpt";
    refused(begin(&o), ERR_USAGE, "plain.ckpt: exists; -f replaces it");
    o.force = true;
    accepted(begin(&o));
}

static void
check_checkpoint(void)
{
    struct train_options o = options("none.ckpt", 1);
    refused(begin(&o), ERR_IO, "none.ckpt: No such file");
    o = options("model.safetensors", 1);
    refused(begin(&o), ERR_FORMAT,
            "model.safetensors: not a checkpoint: expected one; datpack --to ckpt");
    check_put("text.ckpt", "hello\n", 6);
    o = options("text.ckpt", 1);
    refused(begin(&o), ERR_FORMAT, "text.ckpt: ");
    o = options("config.json", 1);
    refused(begin(&o), ERR_FORMAT, "config.json: ");
    // A plan takes a model, or what describes one.
    o.dry_run = true;
    o.data = NULL;
    accepted(settle(&o));
    CHECK(
        strstr(heard.warnings, "no samples: the plan is for samples of 64 positions"));
    o = options("model.safetensors", 1);
    o.dry_run = true;
    accepted(settle(&o));
}

/* ---- how far ------------------------------------------------------------------------------- */

static void
check_last_step(void)
{
    struct train_options o = options("m.ckpt", 1);
    CHECK(begin(&o) == 0 && run.in_step == 0 && run.end == 1);
    config_close(&run);
    o.has_until = true;
    o.until = 7;
    CHECK(begin(&o) == 0 && run.end == 7 && !config_is_finished(&run));
    config_close(&run);
    o.until = 0;
    CHECK(begin(&o) == 0 && config_is_finished(&run));
    config_close(&run);
    o.has_until = false;
    o.epochs = 1.5; // of 7 samples: 10.5
    CHECK(begin(&o) == 0 && run.end == 11);
    config_close(&run);
    o.epochs = 1e9;
    refused(begin(&o), ERR_USAGE, "--epochs: step 7000000000 is the last one");
    o.epochs = 0;
    o.steps = (uint64_t)UINT32_MAX + 1;
    refused(begin(&o), ERR_USAGE, "-n: step 4294967296 is the last one: expected at");
}

static void
check_schedule(void)
{
    struct train_options o = options("m.ckpt", 1);
    o.steps = 9;
    give(&o, "schedule", LR_COSINE);
    give(&o, "total-steps", 5);
    CHECK(settle(&o) == 0);
    refused(
        config_check_steps(&run), ERR_USAGE,
        "m.ckpt: the schedule ends with step 5; later ones, up to 9, would have the "
        "learning rate 0");
    o.allow_zero_lr = true;
    CHECK(settle(&o) == 0 && config_check_steps(&run) == 0);
    CHECK(strstr(heard.warnings, "later ones, up to 9, have the learning rate 0"));
    config_close(&run);
    o = options("m.ckpt", 1);
    give(&o, "lr", 0);
    give(&o, "batch", 20);
    CHECK(settle(&o) == 0 && config_check_steps(&run) == 0);
    CHECK(strstr(heard.warnings, "--lr 0: steps change no weight"));
    CHECK(strstr(heard.warnings, "--batch 20: a step takes 20 samples, and the data "
                                 "have 7: each is taken 2 times or more"));
    config_close(&run);
    // What comes first has its own total.
    o = options("m.ckpt", 1);
    give(&o, "schedule", LR_LINEAR);
    refused(settle(&o), ERR_USAGE, "--schedule linear: needs --total-steps");
    o.has_until = true;
    o.until = 4;
    CHECK(settle(&o) == 0 && run.s.total_steps == 4);
    config_close(&run);
}

/* ---- settings ------------------------------------------------------------------------------ */

static void
check_passes(void)
{
    struct train_options o = options("m.ckpt", 1);
    ranks.size = 3;
    CHECK(settle(&o) == 0 && run.s.accum == 3);
    CHECK(strstr(heard.warnings, "m.ckpt: a step has 3 passes from here on"));
    config_close(&run);
    give(&o, "accum", 4);
    refused(settle(&o), ERR_USAGE,
            "--accum: 4 passes of a step cannot be divided among 3 ranks: expected "
            "--accum 6, or another multiple of 3");
    o = options("m.ckpt", 1);
    o.data = "/dev/null";
    refused(settle(&o), ERR_USAGE, "-d /dev/null: a pipe would reach one of 3 ranks");
    ranks.size = 1;
}

static void
check_layers(void)
{
    struct train_options o = options("m.ckpt", 1);
    give(&o, "train-last-layers", 3);
    refused(settle(&o), ERR_USAGE, "--train-last-layers: 3, the model has 2 layers");
    give(&o, "train-last-layers", 1);
    CHECK(settle(&o) == 0 && run.layout.last_layers == 1);
    config_close(&run);
    o = options("m.ckpt", 1);
    CHECK(begin(&o) == 0);
    in.file.training.moments = "nvfp4";
    refused(config_settle(&run), ERR_FORMAT,
            "m.ckpt: moments \"nvfp4\" do not go with a master \"bf16\"");
}

static void
check_quantizer(void)
{
    struct train_options o = options("m.ckpt", 1);
    CHECK(settle(&o) == 0 && run.layout.quant && strcmp(run.quantizer, "sweep") == 0);
    CHECK(!config_before_quant(&run, 1));
    config_close(&run);
    o.steps = 9;
    give(&o, "quant-from", 4);
    CHECK(settle(&o) == 0 && run.layout.quant && run.layout.quant_from == 4);
    CHECK(config_before_quant(&run, 3) && !config_before_quant(&run, 4));
    config_close(&run);
    o.steps = 2; // which end before it
    CHECK(settle(&o) == 0 && !run.layout.quant);
    config_close(&run);
    o.checkpoint = "plain.ckpt";
    refused(settle(&o), ERR_FORMAT,
            "plain.ckpt: --quant-from: its projections are never quantized");
    o.checkpoint = "packed.ckpt";
    refused(settle(&o), ERR_FORMAT,
            "packed.ckpt: --quant-from: its optimizer keeps packed weights");
    o = options("plain.ckpt", 1);
    give(&o, "activations", ACTIVATIONS_NVFP4);
    refused(settle(&o), ERR_FORMAT,
            "plain.ckpt: --activations nvfp4: its projections are not quantized");
    o.checkpoint = "m.ckpt";
    CHECK(settle(&o) == 0 && run.layout.activations == &run.activations);
    config_close(&run);
    o.torchsharp = true;
    CHECK(settle(&o) == 0 && run.s.activations == ACTIVATIONS_TORCHSHARP);
    config_close(&run);
}

static void
check_fp8(void)
{
    struct train_options o = options("m.ckpt", 1);
    give(&o, "fp8-scales", SCALES_DELAYED);
    refused(settle(&o), ERR_USAGE, "--fp8-scales: goes with --compute fp8");
    o.where.compute = COMPUTE_FP8;
    CHECK(settle(&o) == 0 && run.layout.fp8 && run.layout.delayed);
    config_close(&run);
    o = options("plain.ckpt", 1);
    o.where.compute = COMPUTE_FP8;
    refused(settle(&o), ERR_FORMAT,
            "plain.ckpt: --compute fp8: its projections are not quantized");
    o = options("m.ckpt", 1);
    o.where.compute = COMPUTE_FP8;
    give(&o, "activations", ACTIVATIONS_NVFP4);
    refused(settle(&o), ERR_USAGE, "m.ckpt: --compute fp8: rounds inputs of products");
}

static void
check_release(void)
{
    struct train_options o = options("m.ckpt", 1);
    CHECK(settle(&o) == 0 && !run.layout.release);
    config_close(&run);
    give(&o, "clip-mode", CLIP_PREV);
    CHECK(settle(&o) == 0 && run.layout.release);
    config_close(&run);
    o.dump = "dump.safetensors";
    CHECK(settle(&o) == 0 && !run.layout.release);
    config_close(&run);
    o.dump = NULL;
    give(&o, "accum", 2);
    CHECK(settle(&o) == 0 && !run.layout.release);
    config_close(&run);
}

/* ---- samples ------------------------------------------------------------------------------- */

static void
check_samples(void)
{
    struct train_options o = options("m.ckpt", 1);
    uint8_t own[SHA256_BYTES] = { 1 };
    o.data = "none.tok";
    refused(settle(&o), ERR_IO, "none.tok: No such file");
    o.data = "s.tok";
    o.eval = "none.tok";
    refused(settle(&o), ERR_IO, "none.tok: No such file");
    put_samples_of("own.tok", 3, 96, own);
    own[0] = 2;
    put_samples_of("other.tok", 3, 96, own);
    o.data = "own.tok";
    o.eval = "other.tok";
    refused(settle(&o), ERR_FORMAT, "other.tok: made with another tokenizer than");
    o.eval = "own.tok";
    CHECK(settle(&o) == 0 && run.st.has_tokenizer && in.has_eval);
    CHECK(run.max_tokens == 3 && run.layout.positions == 3);
    config_close(&run);
    o.eval = NULL;
    o.teacher = "model.safetensors";
    o.teacher_data = "other.tok";
    refused(settle(&o), ERR_FORMAT, "other.tok: made with another tokenizer than");
    o = options("m.ckpt", 1);
    CHECK(begin(&o) == 0);
    run.st.has_sampler = true; // of others
    CHECK(config_settle(&run) == 0);
    CHECK(strstr(heard.warnings, "s.tok: other data than before"));
    config_close(&run);
    o = options("m.ckpt", 1);
    give(&o, "batch", (double)(1u << 30));
    refused(settle(&o), ERR_USAGE, "--batch: 1073741824 samples are a pass of ");
}

/* ---- teachers ------------------------------------------------------------------------------ */

static void
check_teacher(void)
{
    struct train_options o = options("m.ckpt", 1);
    o.teacher = "none.safetensors";
    refused(settle(&o), ERR_IO, "none.safetensors: No such file");
    o.teacher = "model.safetensors";
    CHECK(settle(&o) == 0 && in.has_teacher && run.st.has_teacher);
    config_close(&run);
    CHECK(begin(&o) == 0);
    run.st.has_teacher = true; // another one
    refused(config_settle(&run), ERR_USAGE,
            "model.safetensors: is another teacher than the checkpoint was trained "
            "with: --new-teacher");
    CHECK(begin(&o) == 0);
    run.st.has_teacher_data = true;
    refused(config_settle(&run), ERR_USAGE, "m.ckpt: trained with --teacher-data so");
    o.new_teacher = true;
    CHECK(begin(&o) == 0);
    run.st.has_teacher = run.st.has_teacher_data = true;
    accepted(config_settle(&run));
    o.data = "any.tok";
    CHECK(begin(&o) == 0);
    run.model.vocab = 95;
    refused(
        config_settle(&run), ERR_FORMAT,
        "model.safetensors: its vocab_size is 96, that of the model to train is 95");
    o.teacher = "short.safetensors";
    refused(settle(&o), ERR_USAGE,
            "short.safetensors: has 2 positions, a sample has 3: --seq-len 2");
    o.teacher = "model.safetensors";
    give(&o, "loss", LOSS_SCALAR);
    refused(settle(&o), ERR_USAGE, "--teacher: --loss scalar has no logits");
    o = options("m.ckpt", 1);
    CHECK(begin(&o) == 0);
    run.st.has_teacher = true;
    CHECK(config_settle(&run) == 0 && !run.st.has_teacher);
    CHECK(
        strstr(heard.warnings, "m.ckpt: trained with a teacher so far, from here on"));
    config_close(&run);
    o.teacher = "m.ckpt";
    refused(settle(&o), ERR_USAGE, "--teacher: m.ckpt is the checkpoint that is");
    o.out = "new.ckpt";
    accepted(settle(&o));
    o.teacher = "model";
    check_put("model/tokenizer.json", "{}", 2);
    o.data = "own.tok";
    refused(settle(&o), ERR_FORMAT, "model: has another tokenizer than the data");
    o.data = "s.tok";
    o.log = "model/tokenizer.json";
    refused(settle(&o), ERR_USAGE, "model/tokenizer.json: is an input, too");
}

/* ---- the plan ------------------------------------------------------------------------------ */

static void
check_plan(void)
{
    struct train_options o = options("m.ckpt", 1);
    struct buf b = { 0 };
    CHECK(settle(&o) == 0 && plan_settle(&run) == 0 && plan_put(&run, &b) == 0);
    buf_char(&b, '\0');
    CHECK(!b.failed && strncmp(b.data, "part\tbytes\tGB\nmaster\t", 21) == 0);
    CHECK(strstr(b.data, "\nfits\tyes\t\n"));
    buf_free(&b);
    config_close(&run);
    o.memory_limit = 1 << 20;
    CHECK(settle(&o) == 0);
    refused(plan_settle(&run), ERR_MEMORY,
            "GB, --memory-limit is 0.001: not even --batch 1 fits, nor do shorter "
            "samples or fewer layers to train");
    o.overcommit = true; // is of free memory
    CHECK(settle(&o) == 0);
    refused(plan_settle(&run), ERR_MEMORY, "--memory-limit is 0.001");
    o.dry_run = true;
    CHECK(settle(&o) == 0 && plan_settle(&run) == 0 && plan_put(&run, &b) == 0);
    CHECK(strstr(heard.warnings, "--memory-limit is 0.001"));
    buf_free(&b);
    config_close(&run);
}

/* A checkpoint of model.safetensors. */
static void
make_checkpoint(const char *out, const char *quant, bool torchsharp)
{
    char input[] = "model.safetensors", *inputs[] = { input };
    struct pack c = pack_to(out);
    c.quant = quant;
    c.torchsharp = torchsharp;
    NEED(pack_run(&c, inputs, 1, &err) == 0);
}

/* A model with fewer positions than samples have. */
static void
make_short(void)
{
    char text[1024] = "";
    struct pack c = pack_to("short.safetensors");
    FILE *f = fopen("config.json", "r");
    NEED(f && fgets(text, sizeof text, f) && fclose(f) == 0);
    char *positions = strstr(text, "_embeddings\":64");
    NEED(positions);
    memcpy(positions, "_embeddings\": 2", 15);
    check_put("short.json", text, strlen(text));
    c.config_path = "short.json";
    c.init = true;
    NEED(pack_run(&c, NULL, 0, &err) == 0);
}

static void
make_files(void)
{
    put_samples("s.tok", 7, 96);
    put_samples("any.tok", 7, 0);
    make_model("m.ckpt", true);
    make_model("model.safetensors", true);
    make_short();
    NEED(mkdir("model", 0777) == 0);
    make_model("model/model.safetensors", true);
    NEED(link("config.json", "model/config.json") == 0);
    make_checkpoint("plain.ckpt", "none", false);
    make_checkpoint("packed.ckpt", NULL, true);
}

int
main(void)
{
    static const struct comm_ending none;
    check_scratch();
    NEED(ranks_find(&ranks, &none, &err) == 0 && ranks.size == 1);
    make_files();
    check_files();
    check_checkpoint();
    check_last_step();
    check_schedule();
    check_passes();
    check_layers();
    check_quantizer();
    check_fp8();
    check_release();
    check_samples();
    check_teacher();
    check_plan();
    return check_end();
}
