/* SPDX-License-Identifier: MIT */
/* inputs: see inputs.h and config.h. */
#include "lib/train/inputs.h"

#include "lib/base/num.h"
#include "lib/file/path.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the checkpoint ---------------------------------------------------------------------- */

/* --dry-run of a model plans for the checkpoint that datpack makes of it by default. */
static void
plan_for_model(struct run_config *r)
{
    r->in->file.training = (struct training){ .master = "bf16", .moments = "int8" };
    r->in->file.quant = (struct quant_words){
        .name = "sweep", .criterion = "mse", .variant = "", .share = "qkv,gate_up"
    };
    settings_begin(&r->s);
}

/* Whether --dry-run is given a config.json in place of a model. */
static bool
is_config(const struct train_options *o)
{
    return o->dry_run && slice_ends(slice_of(o->checkpoint), ".json");
}

/* Open a model of which there is nothing but a config.json. */
static int
open_config(struct run_config *r, const char *path)
{
    char q[TEXT_QUOTE];
    r->in->file = (struct store){ .opt = { .guard = r->host->guard }, .err = r->err };
    r->in->file.name = strdup(text_quote(q, path, strlen(path)));
    if (!r->in->file.name)
        return err_set(r->err, ERR_MEMORY, "out of memory");
    return store_load_config(&r->in->file, path);
}

static int
open_file(struct run_config *r, const char *path)
{
    if (checkpoint_open(&r->in->file, path, r->host->guard, r->err) < 0)
        return -1;
    bool alone = !r->in->file.training.master && r->o->dry_run;
    return alone ? store_load_beside(&r->in->file) : 0;
}

static int
check_file(struct run_config *r)
{
    struct store *f = &r->in->file;
    if (!f->training.master && store_check_model(f, r->err) < 0)
        return -1;
    if (!f->training.master)
        return err_set(
            r->err, ERR_FORMAT,
            "%s: not a checkpoint: expected one; datpack --to ckpt -o run.ckpt %s "
            "makes it",
            f->name, f->name);
    if (!f->config.p)
        return err_set(r->err, ERR_FORMAT, "%s: it holds no configuration", f->name);
    return config_parse(&r->model, f->name, f->config, r->err);
}

int
config_check_outputs(const struct run_config *r, const struct store *in)
{
    const struct train_options *o = r->o;
    const char *outputs[] = { o->out, o->dump, o->log, o->memory_report };
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (outputs[i] && store_reads(in, outputs[i]))
            return err_set(
                r->err, ERR_USAGE,
                "%s: is an input, too, or belongs to one: expected another name",
                text_quote(q, outputs[i], strlen(outputs[i])));
    return 0;
}

static void
close_file(struct run_config *r)
{
    if (r->in->has_file)
        store_close(&r->in->file);
    r->in->has_file = false;
}

int
config_open(struct run_config *r, const char *path)
{
    close_file(r);
    r->st = (struct state){ 0 };
    r->in->has_file = true;
    if ((is_config(r->o) ? open_config(r, path) : open_file(r, path)) < 0)
        return -1;
    bool is_model = !r->in->file.training.master && r->o->dry_run;
    if (is_model)
        plan_for_model(r);
    if (check_file(r) < 0 ||
        (!is_model && state_read(&r->st, &r->s, &r->in->file) < 0) ||
        config_check_outputs(r, &r->in->file) < 0)
        return -1;
    r->in_step = r->st.step;
    return 0;
}

/* ---- samples ----------------------------------------------------------------------------- */

static int
check_tokenizer(const struct run_config *r, const struct tok_reader *t)
{
    const struct tok_header *h = &t->header;
    if (h->has_tokenizer && r->st.has_tokenizer &&
        memcmp(r->st.tokenizer, h->tokenizer, SHA256_BYTES) != 0)
        return err_set(
            r->err, ERR_FORMAT,
            "%s: made with another tokenizer than the data that the checkpoint was "
            "trained on: make it again with that one (tokenize -t)",
            t->name);
    return 0;
}

/* Record the tokenizer of the training data in the state. */
static void
record_tokenizer(struct run_config *r)
{
    const struct tok_header *h = &r->in->data.tok.header;
    if (!h->has_tokenizer)
        return;
    r->st.has_tokenizer = true;
    memcpy(r->st.tokenizer, h->tokenizer, SHA256_BYTES);
}

/* Whether --dry-run has no samples to plan for.  With a config.json, samples must be named by -d: the
 * standard input of a script may be a pipe that never ends. */
static bool
assumes_samples(const struct train_options *o)
{
    struct stat st;
    if (!o->dry_run || o->data || o->teacher_data)
        return false;
    return is_config(o) || fstat(STDIN_FILENO, &st) != 0 || S_ISCHR(st.st_mode);
}

/* Plan for samples as long as --seq-len. */
static int
assume_data(struct run_config *r)
{
    enum { POSITIONS = 2048 };
    uint64_t n = r->s.seq_len                     ? r->s.seq_len
                 : r->model.positions < POSITIONS ? r->model.positions
                                                  : POSITIONS;
    r->in->has_data = true;
    if (course_assume(&r->in->data, (uint32_t)n, &r->model, r->err) < 0)
        return -1;
    host_note(r->host,
              "no samples: the plan is for samples of %llu positions%s that are all "
              "targets; -d FILE.tok plans for samples",
              (unsigned long long)n,
              r->s.seq_len ? "" : " (--seq-len sets another length)");
    return 0;
}

static int
read_data(struct run_config *r)
{
    const char *path = r->o->data ? r->o->data : "-";
    if (assumes_samples(r->o))
        return assume_data(r);
    if (!r->o->data && isatty(STDIN_FILENO))
        return err_set(
            r->err, ERR_USAGE,
            "want samples on standard input or -d FILE.tok; tokenize makes them");
    if (r->ranks->size > 1 && path_is_stream(path))
        return err_set(
            r->err, ERR_USAGE,
            "-d %s: a pipe would reach one of %u ranks only: expected a file", path,
            r->ranks->size);
    r->in->has_data = true;
    if (course_open(&r->in->data, path, &r->model, r->err) < 0)
        return -1;
    if (r->o->teacher_data &&
        course_open_taught(&r->in->data, r->o->teacher_data, &r->model, r->err) < 0)
        return -1;
    course_hash(&r->in->data, r->in->data_hash);
    return 0;
}

/* Whether the checkpoint was trained on these samples last. */
static bool
is_same_data(const struct run_config *r)
{
    return r->st.has_sampler && memcmp(r->in->data_hash, r->st.data, XXH3_BYTES) == 0;
}

/* Go on behind the last sample of the checkpoint, if these are its samples. */
static int
seek_data(struct run_config *r)
{
    if (is_same_data(r))
        return course_seek(&r->in->data, r->st.epoch, r->st.index, r->err);
    if (r->st.has_sampler && !config_is_replay(r))
        host_note(r->host, "%s: other data than before: they start at their beginning",
                  r->in->data.tok.name);
    return 0;
}

int
inputs_open_data(struct run_config *r)
{
    struct course *d = &r->in->data;
    if (!r->in->has_data && read_data(r) < 0)
        return -1;
    if (course_check(d, &r->model, r->err) < 0 || check_tokenizer(r, &d->tok) < 0)
        return -1;
    record_tokenizer(r);
    if (r->o->teacher_data && check_tokenizer(r, &d->taught) < 0)
        return -1;
    if (course_settle(d, &r->s, &r->model, r->err) < 0)
        return -1;
    if (assumes_samples(r->o))
        return 0;
    if (seek_data(r) < 0)
        return -1;
    r->st.has_sampler = true;
    memcpy(r->st.data, r->in->data_hash, XXH3_BYTES);
    return 0;
}

int
config_open_eval(struct run_config *r)
{
    if (!r->o->eval || r->in->has_eval)
        return 0;
    struct course *e = &r->in->eval;
    struct settings free_length = r->s;
    free_length.seq_len = 0;
    r->in->has_eval = true;
    if (course_open(e, r->o->eval, &r->model, r->err) < 0 ||
        check_tokenizer(r, &e->tok) < 0 ||
        course_settle(e, &free_length, &r->model, r->err) < 0)
        return -1;
    e->s = &r->s;
    return 0;
}

/* ---- how far ----------------------------------------------------------------------------- */

/* Steps until the samples were seen --epochs times, counted from the first time that the
 * checkpoint was trained on them; the last step is whole. */
static double
epochs_left(const struct run_config *r)
{
    double n = (double)r->in->data.n, wanted = r->o->epochs * n,
           near = nearbyint(wanted);
    // 0.07 of 100 samples are 7, though the product is above that.
    wanted = fabs(wanted - near) < 1e-9 * wanted ? near : ceil(wanted);
    double seen = is_same_data(r) ? (double)r->st.epoch * n + (double)r->st.index : 0.0;
    uint64_t passes = r->s.has_accum ? r->s.accum : r->ranks->size;
    double left = ceil((wanted - seen) / ((double)passes * (double)r->s.batch));
    return left > 0 ? left : 0;
}

int
inputs_settle_end(struct run_config *r)
{
    double end = (double)r->in_step + (double)r->o->steps;
    if (r->o->has_until) {
        end = (double)r->o->until;
    } else if (r->o->epochs > 0) {
        if (!r->in->has_data && read_data(r) < 0)
            return -1;
        end = (double)r->in_step + epochs_left(r);
    }
    if (end > UINT32_MAX)
        return err_set(r->err, ERR_USAGE,
                       "%s: step %.0f is the last one: expected at most %u",
                       r->o->epochs > 0 ? "--epochs" : "-n", end, UINT32_MAX);
    r->end = (uint64_t)end;
    return 0;
}

/* An evaluation may have larger passes than steps have. */
static void
measure_eval(struct run_config *r)
{
    const struct course *e = &r->in->eval;
    for (size_t at = 0; at < e->n; at += (size_t)r->s.batch) {
        size_t tokens = 0, labels = 0;
        for (size_t i = at; i < e->n && i < at + r->s.batch; i++) {
            tokens += e->sample[i].ids - 1;
            labels += e->sample[i].targets;
        }
        r->max_tokens = tokens > r->max_tokens ? tokens : r->max_tokens;
        r->max_labels = labels > r->max_labels ? labels : r->max_labels;
    }
}

int
config_measure(struct run_config *r)
{
    size_t length = course_length(&r->in->data);
    if (course_max(&r->in->data, r->end - r->in_step, &r->max_tokens, &r->max_labels,
                   r->err) < 0)
        return -1;
    if (r->in->has_eval)
        measure_eval(r);
    // Kernels count positions of a pass in 32 bits.
    if (r->max_tokens > INT32_MAX)
        return err_set(
            r->err, ERR_USAGE,
            "--batch: %llu samples are a pass of %zu positions: expected at most %d; "
            "--accum takes them in several",
            (unsigned long long)r->s.batch, r->max_tokens, INT32_MAX);
    if (r->in->has_eval && course_length(&r->in->eval) > length)
        length = course_length(&r->in->eval);
    r->layout.positions = length;
    return 0;
}

void
config_close(struct run_config *r)
{
    struct inputs *in = r->in;
    if (in->has_teacher)
        model_close(&in->teacher);
    if (in->has_data)
        course_close(&in->data);
    if (in->has_eval)
        course_close(&in->eval);
    close_file(r);
    in->has_teacher = in->has_data = in->has_eval = false;
    free(r->target);
    r->target = NULL;
}
