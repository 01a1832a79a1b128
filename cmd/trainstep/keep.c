/* SPDX-License-Identifier: MIT */
/* keep: copies of some saves (--keep-last, --keep-every, --keep-best), and the evaluations by
 * which --keep-best and --patience decide.
 *
 * A copy is a reflink or a hard link: a later save replaces the checkpoint by renaming, so the link keeps the
 * bytes.  The evaluations are in a file of their own, NAME.eval.jsonl, since the bytes of a
 * checkpoint do not depend on them; lines of other samples do not count, and those
 * of another training, or of steps that the checkpoint does not have, are dropped. */
#include "cmd/trainstep/trainstep.h"

#include "lib/core/json.h"
#include "lib/core/num.h"
#include "lib/core/outfile.h"
#include "lib/core/path.h"
#include "lib/core/reader.h"

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

static void
write_beside(struct run *r, const char *path, const struct buf *b)
{
    struct outfile o;
    if (b->failed)
        die(EXIT_MEMORY, "out of memory for %s", path);
    int rc = out_open(&o, path, OUT_FORCE, &cmd_guard, &r->err);
    if (rc == 0)
        rc = out_write(&o, b->data, b->len);
    if (rc == 0)
        rc = out_commit(&o);
    else
        out_abandon(&o);
    if (rc < 0)
        die_err(&r->err);
}

/* ---- copies -------------------------------------------------------------------------- */

/* The step of the checkpoint at path, or -1 if there is none. */
static int64_t
step_of(const char *path)
{
    struct store_options opt = { .guard = &cmd_guard };
    struct err err = { 0 };
    struct settings s;
    struct state st;
    struct store file;
    int64_t step = -1;
    if (access(path, F_OK) == 0 && store_open(&file, path, &opt, &err) == 0) {
        if (file.training.master && state_read(&st, &s, &file) == 0)
            step = (int64_t)st.step;
        store_close(&file);
    }
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

/* The name of the copy of that step; to be freed. */
static char *
name_copy(const struct run *r, uint64_t step)
{
    char suffix[sizeof STEP_SUFFIX + 20];
    snprintf(suffix, sizeof suffix, STEP_SUFFIX "%llu", (unsigned long long)step);
    return beside(r, suffix);
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

/* Of the copies that --keep-last made, remove all but the newest. */
static void
remove_older(struct run *r, const struct buf *list)
{
    size_t n;
    uint64_t *steps = list_copies(r, &n);
    for (size_t i = (size_t)r->o->keep_last; i < n; i++) {
        char *path = name_copy(r, steps[i]);
        if (is_listed(list, steps[i]) && !is_kept(r->o, steps[i]) &&
            step_of(path) == (int64_t)steps[i])
            unlink(path);
        free(path);
    }
    free(steps);
}

/* List the copies that still exist. */
static void
write_list(struct run *r, const char *path, const struct buf *list)
{
    struct buf lines = { 0 };
    uint64_t step;
    for (size_t i = 0; i < list->len; i += sizeof step) {
        memcpy(&step, (const char *)list->data + i, sizeof step);
        if (!is_kept(r->o, step) && has_copy(r, step))
            buf_printf(&lines, "%llu\n", (unsigned long long)step);
    }
    write_beside(r, path, &lines);
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
    copy_checkpoint(r, r->target, to);
    if (!had && !keep_due(r) && !is_listed(&list, step))
        buf_add(&list, &step, sizeof step);
    if (list.failed)
        die(EXIT_MEMORY, "out of memory for names of copies");
    // A copy of a run that is killed before this stays: it could be the user's.
    remove_older(r, &list);
    write_list(r, path, &list);
    buf_free(&list);
    free(path);
}

void
keep_saved(struct run *r)
{
    char suffix[sizeof STEP_SUFFIX + 20];
    snprintf(suffix, sizeof suffix, STEP_SUFFIX "%llu", (unsigned long long)r->t.step);
    if (r->o->keep_last)
        copy_last(r, suffix);
    else if (keep_due(r))
        copy_checkpoint(r, r->target, suffix);
}

/* What is no list is heard of before the first step. */
static void
check_list(struct run *r)
{
    struct buf list = { 0 };
    char *path = beside(r, LIST_SUFFIX);
    if (r->o->keep_last)
        read_list(r, path, &list);
    buf_free(&list);
    free(path);
}

/* A run that ended between a save and its copy, or could not make it, makes it now. */
static void
make_up_copy(struct run *r)
{
    bool has_target = !r->o->out && r->in_step;
    check_list(r);
    if (ranks_number() == 0 && has_target && !has_copy(r, r->in_step))
        keep_saved(r);
}

/* ---- evaluations ----------------------------------------------------------------------- */

static bool
in_use(const struct options *o)
{
    return o->keep_best || o->patience;
}

/* Count one; whether it is better than all before. */
static bool
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
    return better;
}

/* A loss is a number, or a string where it is not finite. */
static int
read_loss(struct json *j, double *loss)
{
    *loss = NAN;
    return json_peek(j) == '"' ? json_string(j, NULL) : json_number(j, loss);
}

static int
read_line(struct keep *k, const char *name, struct slice line, uint64_t upto,
          struct err *err)
{
    struct arena arena = { 0 };
    struct json j;
    struct slice key, data = { 0 }, origin = { 0 };
    uint64_t step = UINT64_MAX;
    double loss = NAN;
    int more = 0, rc = 0;
    json_open(&j, name, 0, line, &arena, err);
    json_object(&j);
    while (rc == 0 && (more = json_key(&j, &key)) > 0)
        rc = slice_is(key, "step")        ? json_u63(&j, &step)
             : slice_is(key, "eval_loss") ? read_loss(&j, &loss)
             : slice_is(key, "data")      ? json_string(&j, &data)
             : slice_is(key, "origin")    ? json_string(&j, &origin)
                                          : json_skip(&j, NULL);
    rc = rc < 0 || more < 0 || json_end(&j) < 0 ? -1 : 0;
    if (rc == 0 && step <= upto && slice_is(origin, k->origin)) {
        buf_add(&k->lines, line.p, line.n);
        buf_char(&k->lines, '\n');
        if (slice_is(data, k->data))
            count(k, step, loss);
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
        rc = read_line(k, path, line, r->in_step, &r->err);
    if (rc < 0)
        die(EXIT_TROUBLE,
            "%s; it is the list of evaluations of --keep-best and --patience: remove "
            "it to begin a new one",
            r->err.msg);
    if (more < 0)
        die_err(&r->err);
    reader_free(&f);
    close(f.fd);
}

static void
write_evaluations(struct run *r)
{
    char *path = beside(r, EVALS_SUFFIX);
    write_beside(r, path, &r->keep->lines);
    free(path);
}

/* The checkpoint of the current step. */
static void
copy_best(struct run *r)
{
    bool has_target = r->saved || !r->o->out;
    if (ranks_number() == 0)
        copy_checkpoint(r, has_target ? r->target : r->o->checkpoint, BEST_SUFFIX);
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

/* A run that ended between an evaluation and the copy of its checkpoint makes it now. */
static void
make_up_best(struct run *r)
{
    const struct keep *k = r->keep;
    // Also where there is one of that step: it may be of another training.
    if (r->o->keep_best && k->n && isfinite(k->loss) && k->best == r->in_step)
        copy_best(r);
}

/* What the record of the training begins with tells it from others of the same name. */
static void
name_origin(struct run *r)
{
    struct buf origin = { 0 };
    uint8_t hash[XXH3_BYTES];
    save_origin(r, &origin);
    if (origin.failed)
        die(EXIT_MEMORY, "out of memory for the provenance");
    xxh3_128(hash, origin.data, origin.len);
    hash_hex(r->keep->origin, hash, XXH3_BYTES);
    buf_free(&origin);
}

void
keep_open(struct run *r)
{
    if (!in_use(r->o))
        return;
    struct keep *k = r->keep = cmd_alloc(1, sizeof *k);
    char *path = beside(r, EVALS_SUFFIX);
    hash_hex(k->data, r->eval.tok.end.xxh3, XXH3_BYTES);
    name_origin(r);
    k->loss = INFINITY;
    check_names(r);
    read_evaluations(r, path);
    free(path);
}

void
keep_begin(struct run *r)
{
    if (!r->replay)
        make_up_copy(r);
    if (r->keep)
        make_up_best(r);
}

bool
keep_owes_evaluation(const struct run *r)
{
    const struct keep *k = r->keep;
    return k && r->o->eval_every && r->in_step && r->in_step % r->o->eval_every == 0 &&
           !(k->n && k->last == r->in_step);
}

void
keep_facts(struct buf *b, const struct run *r)
{
    const struct keep *k = r->keep;
    if (k)
        buf_printf(b, "evaluations before\t%llu\nthe best one\t%llu\n",
                   (unsigned long long)k->n, (unsigned long long)k->best);
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
    if (k && r->o->keep_best && isfinite(k->loss))
        buf_printf(b, "; the lowest loss, %.6g of step %llu, is that of %s" BEST_SUFFIX,
                   k->loss, (unsigned long long)k->best,
                   text_quote(q, r->target, strlen(r->target)));
}

void
keep_evaluated(struct run *r, double loss, uint64_t targets)
{
    struct keep *k = r->keep;
    if (!k || (k->n && k->last >= r->t.step))
        return;
    bool better = count(k, r->t.step, loss);
    buf_printf(&k->lines,
               "{\"step\":%llu,\"eval_loss\":", (unsigned long long)r->t.step);
    json_put_number(&k->lines, loss, 17);
    buf_printf(&k->lines, ",\"eval_tokens\":%llu,\"data\":\"%s\",\"origin\":\"%s\"}\n",
               (unsigned long long)targets, k->data, k->origin);
    // The line comes first: make_up_best makes up for a copy that is missing.
    if (ranks_number() == 0)
        write_evaluations(r);
    if (!better || !r->o->keep_best)
        return;
    if ((r->saved ? r->saved_step : r->in_step) < r->t.step)
        save_write(r);
    copy_best(r);
}

void
keep_close(struct run *r)
{
    if (r->keep)
        buf_free(&r->keep->lines);
    free(r->keep);
    r->keep = NULL;
}
