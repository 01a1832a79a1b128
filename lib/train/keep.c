/* SPDX-License-Identifier: MIT */
/* keep: see keep.h. */
#include "lib/train/keep.h"

#include "lib/base/json.h"
#include "lib/base/text.h"
#include "lib/file/path.h"
#include "lib/file/reader.h"
#include "lib/train/copies.h"
#include "lib/train/output.h"
#include "lib/train/record.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether NAME.eval.jsonl is read and written. */
static bool
has_evaluations(const struct train_options *o)
{
    return o->keep_best || o->patience || o->stop_if_worse > 0;
}

bool
keep_is_on(const struct train_options *o)
{
    return has_evaluations(o) || o->keep_last || o->keep_every;
}

/* ---- evaluations of earlier runs ------------------------------------------------------- */

static void
count(struct keep *k, uint64_t step, double loss)
{
    bool better = isfinite(loss) && (!isfinite(k->loss) || loss < k->loss);
    k->n++;
    k->last = step;
    k->since++;
    if (better) {
        k->loss = loss;
        k->best = step;
        k->since = 0;
    }
}

/* A loss is a number, or a string where it is not finite. */
static int
read_loss(struct json *j, double *loss)
{
    *loss = NAN;
    return json_peek(j) == '"' ? json_string(j, NULL) : json_number(j, loss);
}

/* A line of the file: an evaluation, or what --stop-if-worse knew of a saved step. */
struct line {
    uint64_t step, worse;
    double loss, best;
    struct slice data, origin;
    bool evaluation;
};

static int
parse_line(struct json *j, struct line *l)
{
    struct slice key;
    int more = 0, rc = 0;
    json_object(j);
    while (rc == 0 && (more = json_key(j, &key)) > 0) {
        l->evaluation |= slice_is(key, "eval_loss");
        rc = slice_is(key, "step")        ? json_u63(j, &l->step)
             : slice_is(key, "eval_loss") ? read_loss(j, &l->loss)
             : slice_is(key, "data")      ? json_string(j, &l->data)
             : slice_is(key, "best_loss") ? read_loss(j, &l->best)
             : slice_is(key, "worse")     ? json_u63(j, &l->worse)
             : slice_is(key, "origin")    ? json_string(j, &l->origin)
                                          : json_skip(j, NULL);
    }
    return rc < 0 || more < 0 || json_end(j) < 0 ? -1 : 0;
}

/* A line of a step that the checkpoint does not have is dropped. */
static void
take_line(struct keep *k, struct slice text, const struct line *l)
{
    if (l->step > k->run->in_step || !slice_is(l->origin, k->origin))
        return;
    buf_add(&k->lines, text.p, text.n);
    buf_char(&k->lines, '\n');
    if (l->evaluation && slice_is(l->data, k->data)) {
        count(k, l->step, l->loss);
        if ((int64_t)l->step == k->kept && isfinite(l->loss))
            k->kept_loss = l->loss;
    }
    if (l->best > 0 && l->step == k->run->in_step)
        watch_restore(k->watch, l->best, l->worse);
}

static int
read_line(struct keep *k, const char *name, struct slice text, struct err *err)
{
    struct arena arena = { 0 };
    struct json j;
    struct line l = { .step = UINT64_MAX, .loss = NAN, .best = NAN };
    json_open(&j, name, 0, text, &arena, err);
    int rc = parse_line(&j, &l);
    if (rc == 0)
        take_line(k, text, &l);
    arena_free(&arena);
    return rc;
}

static int
read_lines(struct keep *k, struct reader *f, struct err *err)
{
    struct slice line;
    struct err wrong = { 0 };
    int more = 0, rc = 0;
    while (rc == 0 && (more = reader_line(f, &line, err)) > 0)
        rc = read_line(k, f->name, line, &wrong);
    if (rc < 0)
        return err_set(
            err, wrong.kind,
            "%s; it is the list of evaluations of --keep-best, --patience and "
            "--stop-if-worse: remove it to begin a new one",
            wrong.msg);
    return more < 0 ? -1 : 0;
}

static int
read_file(struct keep *k, const char *path)
{
    enum { LINE = 1 << 16 };
    struct reader f = { .name = path, .limit = LINE };
    f.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f.fd < 0 && errno == ENOENT)
        return 0;
    if (f.fd < 0)
        return err_set(k->run->err, ERR_IO, "%s:", path);
    int rc = read_lines(k, &f, k->run->err);
    reader_free(&f);
    close(f.fd);
    return rc;
}

static int
read_evaluations(struct keep *k)
{
    char *path = copies_name(k->run, COPY_EVALS);
    int rc = path ? read_file(k, path) : -1;
    free(path);
    return rc;
}

/* A list that cannot be written ends the run, but not before its steps are saved. */
static int
write_evaluations(struct keep *k)
{
    const struct run_config *r = k->run;
    struct err err = { 0 };
    if (r->ranks->rank)
        return 0;
    char *path = copies_name(r, COPY_EVALS);
    if (!path)
        return -1;
    if (copies_write_text(r, path, &k->lines, &err) < 0)
        output_failed(r->host, k->stop, &err);
    free(path);
    return 0;
}

/* ---- the best one ---------------------------------------------------------------------- */

/* Copy the checkpoint of that step, whose evaluation is the best one. */
static int
copy_best(struct keep *k, const char *from, uint64_t step)
{
    const struct run_config *r = k->run;
    if (r->ranks->rank == 0 && copies_make(r, from, COPY_BEST, step) < 0)
        return -1;
    k->kept = (int64_t)step;
    k->kept_loss = k->owed_loss;
    k->owes_best = false;
    return 0;
}

/* Refuse a run that would write its copies over its inputs. */
static int
check_names(const struct run_config *r)
{
    const struct train_options *o = r->o;
    const char *const inputs[] = { o->data, o->eval, o->teacher, o->teacher_data };
    char *best = copies_name(r, COPY_BEST), *evals = copies_name(r, COPY_EVALS);
    const char *const outputs[] = { best, evals, o->log, o->dump, o->memory_report };
    int rc = best && evals
                 ? path_check_outputs(outputs, sizeof outputs / sizeof *outputs, inputs,
                                      sizeof inputs / sizeof *inputs, r->err)
                 : -1;
    free(best);
    free(evals);
    return rc;
}

/* The hash of the inputs of the training: another training under the same file name has another. */
static int
name_origin(struct store *in, char name[2 * XXH3_BYTES + 1], struct err *err)
{
    struct buf origin = { 0 };
    uint8_t hash[XXH3_BYTES];
    int rc = record_origin(in, &origin, err);
    if (rc == 0) {
        xxh3_128(hash, origin.data, origin.len);
        hash_hex(name, hash, XXH3_BYTES);
    }
    buf_free(&origin);
    return rc;
}

/* Whether NAME.best, which is open, holds the same bytes as the checkpoint at the start. */
static bool
is_input(struct keep *k, struct store *best)
{
    uint8_t a[XXH3_BYTES], b[XXH3_BYTES];
    struct err err = { 0 };
    return store_content_hash(best, a, 1, &err) == 0 &&
           store_content_hash(&k->run->in->file, b, 1, &err) == 0 &&
           memcmp(a, b, XXH3_BYTES) == 0;
}

/* Find out which step of this training NAME.best is, if it is one. */
static int
read_best(struct keep *k)
{
    const struct run_config *r = k->run;
    char origin[2 * XXH3_BYTES + 1], *path = copies_name(r, COPY_BEST);
    struct err err = { 0 };
    struct store best;
    int rc = 0;
    if (!path)
        return -1;
    k->kept = copies_open(r, &best, path, &err);
    if (k->kept >= 0) {
        rc = name_origin(&best, origin, r->err);
        if (rc == 0 && strcmp(origin, k->origin) != 0)
            k->kept = -1;
    }
    store_close(&best);
    free(path);
    return rc;
}

/* Whether an earlier run ended between an evaluation and the copy of its checkpoint. */
static int
find_debt(struct keep *k)
{
    const struct run_config *r = k->run;
    struct err err = { 0 };
    struct store best;
    if (!r->o->keep_best || !k->n || !isfinite(k->loss) || k->best != r->in_step)
        return 0;
    char *path = copies_name(r, COPY_BEST);
    if (!path)
        return -1;
    k->owes_best = !(copies_open(r, &best, path, &err) >= 0 && is_input(k, &best));
    k->owed_loss = k->loss;
    store_close(&best);
    free(path);
    return 0;
}

/* ---- what happens in a run ------------------------------------------------------------- */

static int
on_step(void *ctx, const struct trainer *t, const struct step_event *e)
{
    (void)ctx;
    (void)e;
    return copies_due(t->run, t->train.step) ? WISH_SAVE : 0;
}

static void
put_evaluation(struct keep *k, uint64_t step, double loss, uint64_t targets)
{
    buf_printf(&k->lines, "{\"step\":%llu,\"eval_loss\":", (unsigned long long)step);
    json_put_number(&k->lines, loss, 17);
    buf_printf(&k->lines, ",\"eval_tokens\":%llu,\"data\":\"%s\",\"origin\":\"%s\"}\n",
               (unsigned long long)targets, k->data, k->origin);
}

static int
on_eval(void *ctx, const struct trainer *t, const struct eval_event *e)
{
    struct keep *k = ctx;
    double loss = train_loss(&t->train, e->sums);
    bool repeated = k->n && k->last >= t->train.step;
    if (!k->remembers)
        return 0;
    if (!repeated)
        count(k, t->train.step, loss);
    int patience = keep_is_out_of_patience(k) ? WISH_END : 0;
    if (repeated)
        return patience;
    put_evaluation(k, t->train.step, loss, e->sums->targets);
    // The line comes first, so that a later run finds out that the copy is missing.
    if (write_evaluations(k) < 0)
        return -1;
    k->owes_best = t->run->o->keep_best && loss < k->kept_loss;
    k->owed_loss = loss;
    return patience | (k->owes_best ? WISH_SAVE : 0);
}

/* Record what --stop-if-worse knows of the step that is about to be saved. */
static int
on_saving(void *ctx, const struct trainer *t)
{
    struct keep *k = ctx;
    if (!k->remembers || t->run->o->stop_if_worse <= 0)
        return 0;
    buf_printf(&k->lines,
               "{\"step\":%llu,\"best_loss\":", (unsigned long long)t->train.step);
    json_put_number(&k->lines, k->watch->now.best, 17);
    buf_printf(&k->lines, ",\"worse\":%llu,\"origin\":\"%s\"}\n",
               (unsigned long long)k->watch->now.worse, k->origin);
    return write_evaluations(k);
}

static int
on_saved(void *ctx, const struct trainer *t, bool now)
{
    (void)ctx;
    return now && t->ranks->rank == 0 ? copies_saved(t->run, t->train.step) : 0;
}

static int
on_saved_best(void *ctx, const struct trainer *t, bool now)
{
    struct keep *k = ctx;
    const struct run_config *r = t->run;
    bool has_target = t->saved || !r->o->out;
    (void)now;
    if (!k->owes_best || k->last != t->train.step)
        return 0;
    return copy_best(k, has_target ? r->target : r->o->checkpoint, t->train.step);
}

/* ---- open and close -------------------------------------------------------------------- */

static int
remember(struct keep *k)
{
    const struct run_config *r = k->run;
    k->remembers = true;
    k->loss = k->kept_loss = INFINITY;
    k->kept = -1;
    if (r->in->has_eval)
        hash_hex(k->data, r->in->eval.tok.end.xxh3, XXH3_BYTES);
    if (name_origin(&r->in->file, k->origin, r->err) < 0 || check_names(r) < 0)
        return -1;
    if (r->o->keep_best && read_best(k) < 0)
        return -1;
    return read_evaluations(k) < 0 ? -1 : find_debt(k);
}

int
keep_open(struct keep *k, const struct run_config *r, struct stop *stop,
          struct watch *watch)
{
    if (k->open)
        return 0;
    *k = (struct keep){ .observer = { .ctx = k,
                                      .step = on_step,
                                      .eval = on_eval,
                                      .saving = on_saving,
                                      .saved = on_saved },
                        .at_last = { .ctx = k, .saved = on_saved_best },
                        .run = r,
                        .stop = stop,
                        .watch = watch,
                        .open = true };
    return has_evaluations(r->o) ? remember(k) : 0;
}

void
keep_close(struct keep *k)
{
    buf_free(&k->lines);
    *k = (struct keep){ .open = false };
}

/* ---- what an earlier run owes ---------------------------------------------------------- */

int
keep_owes_copies(const struct keep *k)
{
    int owed = copies_owed(k->run);
    return owed ? owed : k->owes_best;
}

int
keep_pay_copies(struct keep *k)
{
    const struct run_config *r = k->run;
    if (r->ranks->rank == 0 && copies_pay(r) < 0)
        return -1;
    // Nothing is saved yet in this run.
    const char *from = r->o->out ? r->o->checkpoint : r->target;
    return k->owes_best ? copy_best(k, from, r->in_step) : 0;
}

bool
keep_has_evaluated(const struct keep *k)
{
    return k->remembers && k->n > 0;
}

bool
keep_owes_evaluation(const struct keep *k)
{
    const struct run_config *r = k->run;
    uint64_t every = r->o->eval_every, step = r->in_step;
    bool due = every && step && step % every == 0;
    bool last = step == r->end; // the evaluation at the end of a run
    return k->remembers && r->in->has_eval && (due || last) &&
           !(k->n && k->last == step);
}

/* ---- words ----------------------------------------------------------------------------- */

void
keep_facts(struct buf *b, const struct keep *k)
{
    if (k->remembers)
        buf_printf(
            b,
            "evaluations before\t%llu\nthe best one\t%llu\nthe step of " COPY_BEST
            "\t%lld\n",
            (unsigned long long)k->n, (unsigned long long)k->best, (long long)k->kept);
}

bool
keep_is_out_of_patience(const struct keep *k)
{
    return k->remembers && k->run->o->patience && k->since >= k->run->o->patience;
}

void
keep_report_patience(struct buf *b, const struct keep *k)
{
    buf_printf(b, "%llu evaluation%s in a row did not improve on ",
               (unsigned long long)k->since, k->since == 1 ? "" : "s");
    if (isfinite(k->loss))
        buf_printf(b, "the loss %.6g of step %llu", k->loss,
                   (unsigned long long)k->best);
    else
        buf_str(b, "a loss that is not finite");
}

void
keep_report_best(struct buf *b, const struct keep *k)
{
    char q[TEXT_QUOTE];
    if (!k->remembers || !k->run->o->keep_best || !isfinite(k->loss))
        return;
    text_quote(q, k->run->target, strlen(k->run->target));
    if (k->kept == (int64_t)k->best)
        buf_printf(b, "; the lowest loss, %.6g of step %llu, is that of %s" COPY_BEST,
                   k->loss, (unsigned long long)k->best, q);
    else if (isfinite(k->kept_loss))
        buf_printf(b,
                   "; %s" COPY_BEST " is step %llu, of loss %.6g: step %llu had the "
                   "lowest loss, %.6g, in a run without --keep-best",
                   q, (unsigned long long)k->kept, k->kept_loss,
                   (unsigned long long)k->best, k->loss);
}
