/* SPDX-License-Identifier: MIT */
/* keep: copies of some saves (--keep-last, --keep-every, --keep-best), and the evaluations by
 * which --keep-best and --patience decide.
 *
 * A copy is a reflink or a hard link: a later save replaces the checkpoint by renaming, so the link keeps the
 * bytes.  The evaluations are in a file of their own, NAME.eval.jsonl, since the bytes of a
 * checkpoint do not depend on them; lines of other samples do not count, and those
 * of another training, or of steps that the checkpoint does not have, are dropped. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/file/outfile.h"
#include "lib/file/path.h"
#include "lib/file/reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/fs.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEST_SUFFIX  ".best"
#define STEP_SUFFIX  ".step"
#define EVALS_SUFFIX ".eval.jsonl"
#define LIST_SUFFIX  ".keep-last"

struct keep {
    struct buf lines;                // of the evaluations up to the current step
    char data[2 * XXH3_BYTES + 1];   // of --eval, as a line names it
    char origin[2 * XXH3_BYTES + 1]; // of the weights that the training began with
    uint64_t n, last, best, since; // how many count; steps; how many after the best one
    double loss;                   // of the best one
    int64_t kept;                  // step of the checkpoint NAME.best, -1: unknown
    double
        kept_loss; // its evaluation; INFINITY: NAME.best is missing, or not of this training
    bool
        owes_best; // an earlier run ended between an evaluation and the copy of its checkpoint
};

/* NAME and the suffix; to be freed. */
static char *
beside(const struct run *r, const char *suffix)
{
    struct buf b = { 0 };
    buf_printf(&b, "%s%s", r->target, suffix);
    if (b.failed)
        die(EXIT_MEMORY, "out of memory for a name");
    return b.data;
}

static int
write_beside(const char *path, const struct buf *b, struct err *err)
{
    struct outfile o;
    if (b->failed)
        return err_set(err, ERR_MEMORY, "out of memory for %s", path);
    int rc = out_open(&o, path, OUT_FORCE, &cmd_guard, err);
    if (rc == 0)
        rc = out_write(&o, b->data, b->len);
    if (rc == 0)
        rc = out_commit(&o);
    else
        out_abandon(&o);
    return rc;
}

/* ---- copies -------------------------------------------------------------------------- */

/* Open the checkpoint at path; its step, or -1 if there is none.  The caller closes *file. */
static int64_t
open_copy(struct store *file, const char *path, struct err *err)
{
    struct settings s;
    struct state st;
    *file = (struct store){ 0 };
    if (access(path, F_OK) != 0 || checkpoint_open(file, path, &cmd_guard, err) < 0 ||
        !file->training.master || state_read(&st, &s, file) < 0)
        return -1;
    return (int64_t)st.step;
}

static int64_t
step_of(const char *path)
{
    struct err err = { 0 };
    struct store file;
    int64_t step = open_copy(&file, path, &err);
    store_close(&file);
    return step;
}

/* A file of its own that shares the bytes, where the file system can: what writes into the
 * checkpoint does not change it. */
static bool
clone_as(const char *from, const char *temp)
{
    struct stat st;
    bool done = false;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
    if (in >= 0 && fstat(in, &st) == 0)
        out = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out >= 0)
        done = ioctl(out, FICLONE, in) == 0 && fchmod(out, st.st_mode & 0777) == 0 &&
               fsync(out) == 0;
    if (out >= 0)
        close(out);
    if (out >= 0 && !done)
        unlink(temp);
    if (in >= 0)
        close(in);
    return done;
}

/* Whole or not at all: by a second name that is renamed.  false: this filesystem cannot. */
static bool
link_as(const char *from, const char *to)
{
    char *temp = path_beside(to, PATH_TEMP);
    sigset_t before;
    if (!temp)
        die(EXIT_MEMORY, "out of memory for a name");
    guard_hold(&cmd_guard, &before);
    unlink(temp); // of a run that was killed
    // A checkpoint's name may be a symbolic link; the copy is one of the file.
    bool done = (clone_as(from, temp) ||
                 linkat(AT_FDCWD, from, AT_FDCWD, temp, AT_SYMLINK_FOLLOW) == 0) &&
                rename(temp, to) == 0;
    unlink(temp); // it stays where both were one file already
    guard_release(&cmd_guard, &before);
    free(temp);
    return done;
}

static void
copy_as(struct run *r, const char *from, const char *to)
{
    enum { CHUNK = 1 << 20 };
    struct outfile o;
    ssize_t n = 0;
    char *bytes = cmd_alloc(1, CHUNK);
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        die(EXIT_TROUBLE, "%s:", from);
    int rc = out_open(&o, to, OUT_FORCE, &cmd_guard, &r->err);
    while (rc == 0 && (n = read(fd, bytes, CHUNK)) > 0)
        rc = out_write(&o, bytes, (size_t)n);
    if (n < 0)
        rc = err_set(&r->err, ERR_IO, "%s:", from);
    if (rc == 0)
        rc = out_commit(&o);
    else
        out_abandon(&o);
    close(fd);
    free(bytes);
    if (rc < 0)
        die_err(&r->err);
}

static void
copy_checkpoint(struct run *r, const char *from, const char *suffix)
{
    char *to = beside(r, suffix);
    if (access(to, F_OK) == 0 && step_of(to) < 0)
        die(EXIT_TROUBLE,
            "%s: exists and is not a checkpoint: expected no file of that name, or a "
            "copy "
            "of an earlier save; remove it",
            to);
    if (!link_as(from, to))
        copy_as(r, from, to);
    else if (path_sync_parent(to, to, &r->err) < 0)
        die_err(&r->err);
    if (r->o->cmd.verbose)
        warn("%s: a copy of step %llu", to, (unsigned long long)r->t.step);
    free(to);
}

/* The step in the name of a copy; 0: it is none. */
static uint64_t
copy_step(const char *name, const char *leaf)
{
    size_t n = strlen(leaf), suffix = strlen(STEP_SUFFIX);
    uint64_t step;
    if (strncmp(name, leaf, n) != 0 || strncmp(name + n, STEP_SUFFIX, suffix) != 0 ||
        name[n + suffix] == '0' || !num_u64(&step, name + n + suffix))
        return 0;
    return step;
}

static int
later_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* Steps up to this one of which there are copies, the last one first; to be freed. */
static uint64_t *
list_copies(const struct run *r, size_t *n)
{
    char *copy = cmd_copy(r->target), *leaf = cmd_copy(r->target);
    uint64_t *v = NULL, step;
    DIR *dir = opendir(dirname(copy));
    *n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        step = copy_step(e->d_name, basename(leaf));
        if (step == 0 || step > r->t.step)
            continue;
        uint64_t *more = realloc(v, (*n + 1) * sizeof *v);
        if (more)
            more[(*n)++] = step;
        else
            die(EXIT_MEMORY, "out of memory for names of copies");
        v = more;
    }
    if (dir)
        closedir(dir);
    if (*n)
        qsort(v, *n, sizeof *v, later_first);
    free(copy);
    free(leaf);
    return v;
}

static bool
is_kept(const struct options *o, uint64_t step)
{
    return o->keep_every && step % o->keep_every == 0;
}

enum { COPY_SUFFIX = sizeof STEP_SUFFIX + 20 };

static const char *
copy_suffix(char suffix[COPY_SUFFIX], uint64_t step)
{
    snprintf(suffix, COPY_SUFFIX, STEP_SUFFIX "%llu", (unsigned long long)step);
    return suffix;
}

/* The name of the copy of that step; to be freed. */
static char *
name_copy(const struct run *r, uint64_t step)
{
    char suffix[COPY_SUFFIX];
    return beside(r, copy_suffix(suffix, step));
}

static bool
has_copy(const struct run *r, uint64_t step)
{
    char *path = name_copy(r, step);
    bool has = step_of(path) == (int64_t)step;
    free(path);
    return has;
}

/* The lines of the list of --keep-last, each the step of a copy. */
static void
read_list(struct run *r, const char *path, struct buf *list)
{
    enum { LINE = 20 };
    struct reader f = { .name = path, .limit = LINE };
    struct slice line;
    uint64_t step;
    int more = 0;
    f.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f.fd < 0 && errno == ENOENT)
        return;
    if (f.fd < 0)
        die(EXIT_TROUBLE, "%s:", path);
    while ((more = reader_line(&f, &line, &r->err)) > 0 && num_u64(&step, line.p))
        buf_add(list, &step, sizeof step);
    if (more > 0)
        die(EXIT_TROUBLE,
            "%s: line %llu: expected a step; it is the list of copies that --keep-last "
            "may remove: remove it to begin a new one",
            path, (unsigned long long)f.number);
    if (more < 0)
        die_err(&r->err);
    reader_free(&f);
    close(f.fd);
}

static bool
is_listed(const struct buf *list, uint64_t step)
{
    const char *p = list->data;
    for (size_t i = 0; i < list->len; i += sizeof step)
        if (memcmp(p + i, &step, sizeof step) == 0)
            return true;
    return false;
}

static bool
remove_copy(const char *path)
{
    char q[TEXT_QUOTE];
    if (unlink(path) == 0)
        return true;
    warn("%s: an older copy cannot be removed:", text_quote(q, path, strlen(path)));
    return false;
}

/* Whether there are more copies that --keep-last made than it keeps; with `remove` the older ones
 * are removed. */
static bool
has_older(const struct run *r, const struct buf *list, bool remove)
{
    size_t n;
    bool has = false;
    uint64_t *steps = list_copies(r, &n);
    for (size_t i = (size_t)r->o->keep_last; i < n; i++) {
        char *path = name_copy(r, steps[i]);
        bool is_older = is_listed(list, steps[i]) && !is_kept(r->o, steps[i]) &&
                        step_of(path) == (int64_t)steps[i];
        has |= is_older && (!remove || remove_copy(path));
        free(path);
    }
    free(steps);
    return has;
}

/* Whether the list names a copy that does not exist. */
static bool
names_missing(const struct run *r, const struct buf *list)
{
    uint64_t step;
    bool missing = false;
    for (size_t i = 0; i < list->len && !missing; i += sizeof step) {
        memcpy(&step, (const char *)list->data + i, sizeof step);
        missing = !has_copy(r, step);
    }
    return missing;
}

/* List the copies that exist, and the one that is about to be made. */
static void
write_list(struct run *r, const char *path, const struct buf *list)
{
    struct buf lines = { 0 };
    uint64_t step;
    for (size_t i = 0; i < list->len; i += sizeof step) {
        memcpy(&step, (const char *)list->data + i, sizeof step);
        if (!is_kept(r->o, step) && (step == r->t.step || has_copy(r, step)))
            buf_printf(&lines, "%llu\n", (unsigned long long)step);
    }
    if (write_beside(path, &lines, &r->err) < 0)
        die_err(&r->err);
    buf_free(&lines);
}

bool
keep_due(const struct run *r)
{
    return is_kept(r->o, r->t.step);
}

/* Copies that others made, the user or an earlier --keep-every, are not listed. */
static void
copy_last(struct run *r, const char *to)
{
    struct buf list = { 0 };
    uint64_t step = r->t.step;
    char *path = beside(r, LIST_SUFFIX);
    bool had = has_copy(r, step);
    read_list(r, path, &list);
    if (!had && !keep_due(r) && !is_listed(&list, step))
        buf_add(&list, &step, sizeof step);
    if (list.failed)
        die(EXIT_MEMORY, "out of memory for names of copies");
    // The list comes first: a copy that is in no list could be the user's and would stay.
    write_list(r, path, &list);
    copy_checkpoint(r, r->target, to);
    if (has_older(r, &list, true))
        write_list(r, path, &list);
    buf_free(&list);
    free(path);
}

/* Whether a killed run left an older copy, or a list that is not of the copies; with `tidy` both
 * are mended.  Refuses a file that is no list. */
static bool
is_untidy(struct run *r, bool tidy)
{
    struct buf list = { 0 };
    char *path = beside(r, LIST_SUFFIX);
    if (r->o->keep_last)
        read_list(r, path, &list);
    bool untidy = r->o->keep_last && has_older(r, &list, tidy);
    untidy |= names_missing(r, &list);
    if (untidy && tidy)
        write_list(r, path, &list);
    buf_free(&list);
    free(path);
    return untidy;
}

void
keep_saved(struct run *r)
{
    char suffix[COPY_SUFFIX];
    copy_suffix(suffix, r->t.step);
    if (r->o->keep_last)
        copy_last(r, suffix);
    else if (keep_due(r))
        copy_checkpoint(r, r->target, suffix);
}

/* Whether an earlier run ended between the save of this step and its copy. */
static bool
owes_copy(const struct run *r)
{
    bool wanted = r->o->keep_last || is_kept(r->o, r->in_step);
    return wanted && r->in_step && !r->o->out && !has_copy(r, r->in_step);
}

/* ---- evaluations ----------------------------------------------------------------------- */

/* Whether NAME.eval.jsonl is read and written. */
static bool
has_evaluations(const struct options *o)
{
    return o->keep_best || o->patience || o->stop_if_worse > 0;
}

bool
keep_is_on(const struct options *o)
{
    return has_evaluations(o) || o->keep_last || o->keep_every;
}

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

/* A line of a step after `upto` is dropped: the checkpoint does not have that step. */
static int
read_line(struct keep *k, const char *name, struct slice line, uint64_t upto,
          struct watch *saved, struct err *err)
{
    struct arena arena = { 0 };
    struct json j;
    struct slice key, data = { 0 }, origin = { 0 };
    uint64_t step = UINT64_MAX;
    double loss = NAN;
    struct watch watch = { .best = NAN };
    bool evaluation = false;
    int more = 0, rc = 0;
    json_open(&j, name, 0, line, &arena, err);
    json_object(&j);
    while (rc == 0 && (more = json_key(&j, &key)) > 0) {
        evaluation |= slice_is(key, "eval_loss");
        rc = slice_is(key, "step")        ? json_u63(&j, &step)
             : slice_is(key, "eval_loss") ? read_loss(&j, &loss)
             : slice_is(key, "data")      ? json_string(&j, &data)
             : slice_is(key, "best_loss") ? read_loss(&j, &watch.best)
             : slice_is(key, "worse")     ? json_u63(&j, &watch.worse)
             : slice_is(key, "origin")    ? json_string(&j, &origin)
                                          : json_skip(&j, NULL);
    }
    rc = rc < 0 || more < 0 || json_end(&j) < 0 ? -1 : 0;
    if (rc == 0 && step <= upto && slice_is(origin, k->origin)) {
        buf_add(&k->lines, line.p, line.n);
        buf_char(&k->lines, '\n');
        if (evaluation && slice_is(data, k->data)) {
            count(k, step, loss);
            if ((int64_t)step == k->kept && isfinite(loss))
                k->kept_loss = loss;
        }
        if (watch.best > 0 && step == upto)
            *saved = watch;
    }
    arena_free(&arena);
    return rc;
}

static void
read_evaluations(struct run *r, const char *path)
{
    enum { LINE = 1 << 16 };
    struct keep *k = r->keep;
    struct reader f = { .name = path, .limit = LINE };
    struct slice line;
    int more = 0, rc = 0;
    f.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f.fd < 0 && errno == ENOENT)
        return;
    if (f.fd < 0)
        die(EXIT_TROUBLE, "%s:", path);
    while (rc == 0 && (more = reader_line(&f, &line, &r->err)) > 0)
        rc = read_line(k, path, line, r->in_step, &r->watch, &r->err);
    if (rc < 0)
        die(EXIT_TROUBLE,
            "%s; it is the list of evaluations of --keep-best, --patience and "
            "--stop-if-worse: remove it to begin a new one",
            r->err.msg);
    if (more < 0)
        die_err(&r->err);
    reader_free(&f);
    close(f.fd);
}

/* A list that cannot be written ends the run, but not before its steps are saved. */
static void
write_evaluations(struct run *r)
{
    char *path = beside(r, EVALS_SUFFIX);
    struct err err = { 0 };
    if (ranks_number() == 0 && write_beside(path, &r->keep->lines, &err) < 0)
        stop_for_output(&err);
    free(path);
}

/* Copy the checkpoint of the current step, whose evaluation is `loss`. */
static void
copy_best(struct run *r, double loss)
{
    struct keep *k = r->keep;
    bool has_target = r->saved || !r->o->out;
    if (ranks_number() == 0)
        copy_checkpoint(r, has_target ? r->target : r->o->checkpoint, BEST_SUFFIX);
    k->kept = (int64_t)r->t.step;
    k->kept_loss = loss;
    k->owes_best = false;
}

/* Names that this run will write must not be those of its inputs. */
static void
check_names(struct run *r)
{
    const struct options *o = r->o;
    const char *const inputs[] = { o->data, o->eval, o->teacher, o->teacher_data };
    char *best = beside(r, BEST_SUFFIX), *evals = beside(r, EVALS_SUFFIX);
    const char *const outputs[] = { best, evals, o->log, o->dump, o->memory_report };
    cmd_check_outputs(outputs, sizeof outputs / sizeof *outputs, inputs,
                      sizeof inputs / sizeof *inputs);
    free(best);
    free(evals);
}

/* The hash of the inputs of the training: another training under the same file name has another. */
static void
name_origin(struct store *in, char name[2 * XXH3_BYTES + 1], struct err *err)
{
    struct buf origin = { 0 };
    uint8_t hash[XXH3_BYTES];
    if (save_origin(in, &origin, err) < 0)
        die_err(err);
    if (origin.failed)
        die(EXIT_MEMORY, "out of memory for the provenance");
    xxh3_128(hash, origin.data, origin.len);
    hash_hex(name, hash, XXH3_BYTES);
    buf_free(&origin);
}

/* Find out which step of this training NAME.best is, if it is one. */
static void
read_best(struct run *r)
{
    struct keep *k = r->keep;
    char origin[2 * XXH3_BYTES + 1];
    char *path = beside(r, BEST_SUFFIX);
    struct err err = { 0 };
    struct store best;
    k->kept = open_copy(&best, path, &err);
    if (k->kept >= 0) {
        name_origin(&best, origin, &r->err);
        if (strcmp(origin, k->origin) != 0)
            k->kept = -1;
    }
    store_close(&best);
    free(path);
}

/* Whether NAME.best holds the same bytes as the checkpoint at the start. */
static bool
best_is_input(struct run *r)
{
    uint8_t a[XXH3_BYTES], b[XXH3_BYTES];
    char *path = beside(r, BEST_SUFFIX);
    struct err err = { 0 };
    struct store best;
    bool same = open_copy(&best, path, &err) >= 0 &&
                store_content_hash(&best, a, 1, &err) == 0 &&
                store_content_hash(&r->in, b, 1, &err) == 0 &&
                memcmp(a, b, XXH3_BYTES) == 0;
    store_close(&best);
    free(path);
    return same;
}

void
keep_open(struct run *r)
{
    if (r->keep || !has_evaluations(r->o))
        return;
    struct keep *k = r->keep = cmd_alloc(1, sizeof *k);
    char *path = beside(r, EVALS_SUFFIX);
    if (r->has_eval)
        hash_hex(k->data, r->eval.tok.end.xxh3, XXH3_BYTES);
    name_origin(&r->in, k->origin, &r->err);
    k->loss = k->kept_loss = INFINITY;
    k->kept = -1;
    check_names(r);
    if (r->o->keep_best)
        read_best(r);
    read_evaluations(r, path);
    r->watch_saved =
        r->watch; // an undone step goes back to it before the first save, too
    k->owes_best = r->o->keep_best && k->n && isfinite(k->loss) &&
                   k->best == r->in_step && !best_is_input(r);
    free(path);
}

/* ---- what an earlier run owes --------------------------------------------------------- */

/* Whether a killed run left its temporary file beside that copy or list; with `remove` it is
 * removed. */
static bool
has_leftover(const struct run *r, const char *suffix, bool remove)
{
    char *path = beside(r, suffix), *temp = path_beside(path, PATH_TEMP);
    if (!temp)
        die(EXIT_MEMORY, "out of memory for a name");
    bool has = access(temp, F_OK) == 0;
    if (has && remove)
        unlink(temp);
    free(temp);
    free(path);
    return has;
}

static bool
has_leftovers(const struct run *r, bool remove)
{
    static const char *const suffixes[] = { BEST_SUFFIX, EVALS_SUFFIX, LIST_SUFFIX };
    char copy[COPY_SUFFIX];
    bool has = has_leftover(r, copy_suffix(copy, r->in_step), remove);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        has |= has_leftover(r, suffixes[i], remove);
    return has;
}

bool
keep_owes_copies(struct run *r)
{
    return owes_copy(r) || is_untidy(r, false) || (r->keep && r->keep->owes_best) ||
           has_leftovers(r, false);
}

void
keep_pay_copies(struct run *r)
{
    if (ranks_number() == 0) {
        has_leftovers(r, true);
        is_untidy(r, true);
        if (owes_copy(r))
            keep_saved(r);
    }
    if (r->keep && r->keep->owes_best)
        copy_best(r, r->keep->loss);
}

bool
keep_has_evaluated(const struct run *r)
{
    return r->keep && r->keep->n > 0;
}

bool
keep_owes_evaluation(const struct run *r)
{
    const struct keep *k = r->keep;
    bool due = r->o->eval_every && r->in_step && r->in_step % r->o->eval_every == 0;
    bool last = r->in_step == r->end; // the evaluation at the end of a run
    return k && r->has_eval && (due || last) && !(k->n && k->last == r->in_step);
}

void
keep_facts(struct buf *b, const struct run *r)
{
    const struct keep *k = r->keep;
    if (k)
        buf_printf(
            b,
            "evaluations before\t%llu\nthe best one\t%llu\nthe step of " BEST_SUFFIX
            "\t%lld\n",
            (unsigned long long)k->n, (unsigned long long)k->best, (long long)k->kept);
}

bool
keep_is_out_of_patience(const struct run *r)
{
    return r->keep && r->o->patience && r->keep->since >= r->o->patience;
}

void
keep_report_patience(struct buf *b, const struct run *r)
{
    const struct keep *k = r->keep;
    buf_printf(b, "%llu evaluation%s in a row did not improve on ",
               (unsigned long long)k->since, k->since == 1 ? "" : "s");
    if (isfinite(k->loss))
        buf_printf(b, "the loss %.6g of step %llu", k->loss,
                   (unsigned long long)k->best);
    else
        buf_str(b, "a loss that is not finite");
}

void
keep_report_best(struct buf *b, const struct run *r)
{
    const struct keep *k = r->keep;
    char q[TEXT_QUOTE];
    if (!k || !r->o->keep_best || !isfinite(k->loss))
        return;
    text_quote(q, r->target, strlen(r->target));
    if (k->kept == (int64_t)k->best)
        buf_printf(b, "; the lowest loss, %.6g of step %llu, is that of %s" BEST_SUFFIX,
                   k->loss, (unsigned long long)k->best, q);
    else if (isfinite(k->kept_loss))
        buf_printf(b,
                   "; %s" BEST_SUFFIX " is step %llu, of loss %.6g: step %llu had the "
                   "lowest loss, %.6g, in a run without --keep-best",
                   q, (unsigned long long)k->kept, k->kept_loss,
                   (unsigned long long)k->best, k->loss);
}

void
keep_evaluated(struct run *r, double loss, uint64_t targets)
{
    struct keep *k = r->keep;
    if (!k || (k->n && k->last >= r->t.step))
        return;
    count(k, r->t.step, loss);
    buf_printf(&k->lines,
               "{\"step\":%llu,\"eval_loss\":", (unsigned long long)r->t.step);
    json_put_number(&k->lines, loss, 17);
    buf_printf(&k->lines, ",\"eval_tokens\":%llu,\"data\":\"%s\",\"origin\":\"%s\"}\n",
               (unsigned long long)targets, k->data, k->origin);
    // The line comes first, so that a later run finds out that the copy is missing.
    write_evaluations(r);
    if (!r->o->keep_best || !(loss < k->kept_loss))
        return;
    if (run_saved_step(r) < r->t.step)
        save_write(r);
    copy_best(r, loss);
}

void
keep_saving(struct run *r)
{
    struct keep *k = r->keep;
    if (!k || r->o->stop_if_worse <= 0)
        return;
    buf_printf(&k->lines,
               "{\"step\":%llu,\"best_loss\":", (unsigned long long)r->t.step);
    json_put_number(&k->lines, r->watch.best, 17);
    buf_printf(&k->lines, ",\"worse\":%llu,\"origin\":\"%s\"}\n",
               (unsigned long long)r->watch.worse, k->origin);
    write_evaluations(r);
}

/* Give the checkpoint that the next save replaces a second name, unless a copy of its step exists. */
void
keep_sound(struct run *r)
{
    uint64_t step = run_saved_step(r);
    char suffix[COPY_SUFFIX], from[TEXT_QUOTE], to[TEXT_QUOTE];
    char *path = beside(r, copy_suffix(suffix, step));
    const char *file = r->target;
    text_quote(from, file, strlen(file));
    text_quote(to, path, strlen(path));
    bool there = access(path, F_OK) == 0;
    if (there ? step_of(path) == (int64_t)step : link_as(file, path))
        warn("%s: step %llu, from before the training diverged, is kept as %s", from,
             (unsigned long long)step, to);
    else
        warn("%s: step %llu, from before the training diverged, is not kept: %s %s",
             from, (unsigned long long)step, to,
             there ? "is another file" : "cannot be made as a link");
    free(path);
}

void
keep_close(struct run *r)
{
    if (r->keep)
        buf_free(&r->keep->lines);
    free(r->keep);
    r->keep = NULL;
}
