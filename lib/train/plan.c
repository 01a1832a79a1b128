/* SPDX-License-Identifier: MIT */
/* plan: see plan.h. */
#include "lib/train/plan.h"

#include "lib/base/machine.h"
#include "lib/train/teacher.h"

#include <stdlib.h>
#include <string.h>

static double
gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

enum {
    SAVE_BUFFERS = 4 << 20, // bytes, of saving and the rest
    MANY_TOKENS = 1 << 20   // of a pass
};

/* Whether a pass may have documents of several lengths.  The CPU needs more memory for them:
 * a row of scores is then as long as the pass. */
static bool
is_uneven(const struct run_config *r)
{
    if (r->in->data.packed || (r->in->has_eval && r->in->eval.packed))
        return true;
    return r->s.batch > 1 && !(course_is_even(&r->in->data) &&
                               (!r->in->has_eval || course_is_even(&r->in->eval)));
}

/* Whether there is memory for the inputs of a counted pass of that many tokens. */
static bool
can_count(size_t tokens)
{
    return tokens < machine_free() / 2 / (3 * sizeof(int32_t));
}

/* Bytes that a step sends: each of a rank's passes sends parts of gradients, and the step what the
 * rank owns. */
static uint64_t
sent_bytes(const struct run_config *r, const struct comm *before, size_t passes)
{
    const struct comm *c = r->layout.comm;
    if (!c)
        return 0;
    return (c->parts_sent - before->parts_sent) / passes * (r->s.accum / c->size) +
           c->own_sent - before->own_sent;
}

/* The plan of a step has addresses as the step has memory. */
static int
refuse_step(struct run_config *r, const struct err *err)
{
    if (err->kind != ERR_MEMORY)
        return err_set(r->err, err->kind, "%s", err->msg);
    return err_set(r->err, ERR_MEMORY,
                   "a step of %llu samples, %zu tokens a pass, is too large to plan: "
                   "%s: expected a smaller --batch, or shorter samples",
                   (unsigned long long)(r->s.batch * r->s.accum), r->max_tokens,
                   err->msg);
}

/* Count the next step, and one of the other form if the run goes on to quantized steps. */
static int
count_forms(struct run_config *r, struct train *t, const struct net_batch *b,
            size_t passes)
{
    struct train_result res;
    bool changes =
        config_before_quant(r, r->in_step + 1) && !config_before_quant(r, r->end);
    t->step = r->in_step;
    if (train_ready(t) < 0)
        return -1;
    struct comm before = { 0 };
    if (r->layout.comm)
        before = *r->layout.comm;
    if (train_step(t, b, passes, &res) < 0)
        return -1;
    r->plan.sent_bytes = sent_bytes(r, &before, passes);
    double flops = t->net.k->usage.flops;
    t->step = r->end - 1;
    if (changes && train_step(t, b, passes, &res) < 0)
        return -1;
    t->net.k->usage.flops = flops * (double)r->s.accum / (double)passes;
    return 0;
}

/* Fill in passes of the largest size: n tokens each, of documents of the greatest length. */
static void
fill_passes(const struct run_config *r, struct net_batch *b, size_t passes,
            int32_t *zeros)
{
    size_t n = r->max_tokens, length = r->layout.positions;
    int32_t *label = zeros + n, *first = zeros + 2 * n;
    for (size_t i = r->max_labels; i < n; i++)
        label[i] = -1;
    for (size_t i = 0; i < n && length; i++)
        first[i] = (int32_t)(i - i % length);
    if (r->device.host && n && is_uneven(r))
        first[n - 1] = (int32_t)(n - 1);
    for (size_t i = 0; i < passes; i++)
        b[i] = (struct net_batch){ n, zeros, label, zeros, first, NULL };
}

/* Count a step of the largest pass.  All passes after the first need the same, so two are
 * enough. */
static int
count_step(struct run_config *r, struct train *t)
{
    enum { PASSES = 2 };
    size_t n = r->max_tokens, passes = r->s.accum > 1 ? PASSES : 1;
    struct net_batch b[PASSES];
    int32_t *zeros = calloc(3 * n + 1, sizeof *zeros);
    if (!zeros)
        return err_set(t->err, ERR_MEMORY, "out of memory");
    fill_passes(r, b, passes, zeros);
    int rc = count_forms(r, t, b, passes);
    free(zeros);
    return rc;
}

/* Bytes of course_step's arrays: ids, labels, positions and firsts. */
static uint64_t
sample_bytes(const struct run_config *r)
{
    return r->s.accum *
           (r->max_tokens * 4 * sizeof(int32_t) + sizeof(struct net_batch));
}

/* Estimate of the bytes of a checkpoint of t. */
static uint64_t
file_bytes(const struct run_config *r, const struct train *t)
{
    enum { PAGE = 4096 };
    uint64_t bytes = (uint64_t)r->in->file.header_bytes + 64 + 2 * PAGE;
    for (size_t i = 0; i < t->arrays.n; i++)
        bytes += (t->arrays.v[i].bytes + PAGE - 1) / PAGE * PAGE;
    return bytes;
}

/* Parts differ. */
static unsigned
largest_rank(const struct train *t)
{
    uint64_t most = 0;
    unsigned largest = 0;
    for (unsigned q = 0; t->layout.comm && q < t->layout.comm->size; q++) {
        uint64_t bytes = train_part_bytes(t, q);
        largest = bytes > most ? q : largest;
        most = bytes > most ? bytes : most;
    }
    return largest;
}

/* Count a step of the run on k, whose error is *err. */
static int
count_on(struct run_config *r, struct kernels *k, struct err *err)
{
    struct train t;
    int rc = train_open(&t, &r->model, k, &r->layout, err);
    if (rc == 0)
        rc = teacher_load(r, &t);
    if (rc < 0) {
        err_set(r->err, err->kind, "%s", err->msg);
    } else {
        r->plan.largest_rank = largest_rank(&t);
        r->plan.file_bytes = file_bytes(r, &t);
        rc = count_step(r, &t) < 0 ? refuse_step(r, err) : 0;
    }
    train_close(&t);
    return rc;
}

/* Peak bytes of the device in this run. */
static int
plan_bytes(struct run_config *r, struct usage *usage, uint64_t *bytes)
{
    struct err err = { 0 };
    struct cpu_kind cpu = device_cpu(&r->where);
    struct kernels *k = kernels_dry(&r->device, &cpu, &err);
    if (!k)
        return err_set(r->err, err.kind, "%s", err.msg);
    int rc = count_on(r, k, &err);
    *usage = k->usage;
    teacher_unload(r);
    kernels_close(k);
    *bytes = usage->total_peak + r->device.driver;
    if (r->device.host)
        *bytes = usage->total_peak + sample_bytes(r) + machine_resident(false) +
                 SAVE_BUFFERS;
    return rc;
}

/* Layouts that give the same results, the fastest first, the smallest last. */
static const struct choice {
    bool expand, pack_fp8, recompute;
} layouts[] = {
    { true, false, false }, { false, false, false }, { false, true, false },
    { true, false, true },  { false, false, true },  { false, true, true }
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static bool
is_allowed(const struct run_config *r, enum recompute want, const struct choice *w)
{
    return (!w->expand || r->device.expands) && (!w->pack_fp8 || r->layout.fp8) &&
           (want == RECOMPUTE_AUTO || w->recompute == (want == RECOMPUTE_BLOCK));
}

/* Bytes of the inputs of the first layer alone. */
static uint64_t
input_bytes(const struct run_config *r)
{
    return r->max_tokens * (uint64_t)r->model.hidden *
           (r->device.act == DT_F32 ? 4 : 2);
}

/* Whether a pass is too large by far; it is not counted, since counting needs memory. */
static bool
is_hopeless(const struct run_config *r, uint64_t limit)
{
    return input_bytes(r) > limit || !can_count(r->max_tokens);
}

/* Choose that layout; its bytes. */
static int
take_layout(struct run_config *r, const struct choice *w, uint64_t *bytes)
{
    struct usage usage;
    r->layout.expand = w->expand;
    r->layout.pack_fp8 = w->pack_fp8;
    r->layout.recompute = w->recompute;
    return plan_bytes(r, &usage, bytes);
}

/* Choose the fastest layout that fits, or the smallest; its bytes. */
static int
choose_layout(struct run_config *r, enum recompute want, uint64_t limit, uint64_t *need)
{
    *need = 0;
    for (size_t i = 0; i < LAYOUTS && (!*need || *need > limit); i++)
        if (is_allowed(r, want, &layouts[i]) && take_layout(r, &layouts[i], need) < 0)
            return -1;
    return 0;
}

/* 1: it fits. */
static int
fits(struct run_config *r, enum recompute want, uint64_t limit)
{
    uint64_t need;
    if (is_hopeless(r, limit))
        return 0;
    if (choose_layout(r, want, limit, &need) < 0)
        return -1;
    return need <= limit;
}

/* ---- what would fit ------------------------------------------------------------------ */

struct trial {
    struct run_config *r;
    uint64_t limit;
    size_t labels; // of a pass of one sample
};

/* Bytes of the smallest layout; UINT64_MAX: far too many to count. */
static int
smallest_plan(const struct trial *t, uint64_t *bytes)
{
    struct run_config *r = t->r;
    size_t i = LAYOUTS - 1;
    while (i > 0 && !is_allowed(r, r->o->recompute, &layouts[i]))
        i--;
    *bytes = UINT64_MAX;
    return is_hopeless(r, t->limit) ? 0 : take_layout(r, &layouts[i], bytes);
}

/* The plans of a run with another batch, with fewer layers to train, with shorter samples. */
typedef int plan_with(const struct trial *t, uint64_t n, uint64_t *bytes);

static int
plan_with_batch(const struct trial *t, uint64_t batch, uint64_t *bytes)
{
    t->r->s.batch = batch;
    return config_measure(t->r) < 0 ? -1 : smallest_plan(t, bytes);
}

static int
plan_with_layers(const struct trial *t, uint64_t layers, uint64_t *bytes)
{
    t->r->layout.last_layers = (uint32_t)layers;
    return smallest_plan(t, bytes);
}

static int
plan_with_length(const struct trial *t, uint64_t length, uint64_t *bytes)
{
    struct run_config *r = t->r;
    r->max_tokens = r->layout.positions = (size_t)length;
    r->max_labels = t->labels < length ? t->labels : (size_t)length;
    return smallest_plan(t, bytes);
}

/* Gradients are released then, if a step has one pass. */
static int
clip_prev_fits(const struct trial *t)
{
    struct run_config *r = t->r;
    uint64_t mode = r->s.clip_mode;
    r->s.clip_mode = CLIP_PREV;
    config_set_release(r);
    int does = fits(r, r->o->recompute, t->limit);
    r->s.clip_mode = mode;
    config_set_release(r);
    return does;
}

/* A number n and the bytes of its plan. */
struct point {
    uint64_t n, bytes;
};

/* The n at which the line through two points meets the limit, from low.n + 1 to high - 1. */
static uint64_t
meets_limit(struct point low, struct point other, uint64_t limit, uint64_t high)
{
    double slope =
        ((double)other.bytes - (double)low.bytes) / ((double)other.n - (double)low.n);
    double n = (double)low.n + (double)(limit - low.bytes) / slope;
    if (!(n < (double)high - 1))
        return high - 1;
    return n > (double)low.n + 1 ? (uint64_t)n : low.n + 1;
}

/* The largest n below `above` that fits, or 0.  Memory is about linear in n, so the line through
 * the last two plans names the next n: a step of the largest batch is counted three or four
 * times, not once for each bit of n.  Where it is not linear, halves follow. */
static int
search(const struct trial *t, plan_with *plan, uint64_t above, uint64_t *n)
{
    enum { GUESSES = 6 };
    struct point low = { 0, 0 }, other = low, now = { 1, 0 };
    uint64_t high = above;
    for (int i = 0; high - low.n > 1; i++) {
        if (i == 1)
            now.n = 2;
        else if (i > 1)
            now.n = i < GUESSES ? meets_limit(low, other, t->limit, high)
                                : low.n + (high - low.n) / 2;
        if (plan(t, now.n, &now.bytes) < 0)
            return -1;
        if (now.bytes > t->limit) {
            high = now.n;
            other = now.bytes < UINT64_MAX ? now : other;
        } else {
            other = low;
            low = now;
        }
    }
    *n = low.n;
    return 0;
}

/* Other options with which the run would fit, each by itself. */
struct alternatives {
    bool recompute, clip_prev;
    uint64_t layers, length; // the most; 0: none
};

static int
find_alternatives(const struct trial *t, struct alternatives *a)
{
    struct run_config *r = t->r;
    uint32_t layers = r->layout.last_layers;
    int block = 0, prev = 0;
    if (r->o->recompute == RECOMPUTE_NONE)
        block = fits(r, RECOMPUTE_BLOCK, t->limit);
    if (block >= 0 && r->s.clip > 0 && r->s.clip_mode == CLIP_GLOBAL)
        prev = clip_prev_fits(t);
    *a = (struct alternatives){ .recompute = block > 0, .clip_prev = prev > 0 };
    if (block < 0 || prev < 0 ||
        search(t, plan_with_layers, layers ? layers : r->model.layers, &a->layers) < 0)
        return -1;
    r->layout.last_layers = layers;
    return search(t, plan_with_length, r->layout.positions, &a->length);
}

/* Suggest other options if not even a pass of one sample fits. */
static int
put_alternatives(struct buf *b, const struct trial *t)
{
    struct alternatives a;
    const char *join = "; with it";
    if (find_alternatives(t, &a) < 0)
        return -1;
    buf_str(b, "not even --batch 1 fits");
    if (a.recompute) {
        buf_printf(b, "%s --recompute block does", join);
        join = ", or";
    }
    if (a.clip_prev) {
        buf_printf(b, "%s --clip-mode prev does", join);
        join = ", or";
    }
    if (a.layers) {
        buf_printf(b, "%s --train-last-layers %llu does", join,
                   (unsigned long long)a.layers);
        join = ", or";
    }
    if (a.length)
        buf_printf(b, "%s samples of at most %llu positions do", join,
                   (unsigned long long)a.length);
    else if (!a.recompute && !a.clip_prev && !a.layers)
        buf_str(b, ", nor do shorter samples or fewer layers to train");
    return 0;
}

/* The settings of the run, which trials change. */
struct settled {
    struct train_layout layout;
    uint64_t batch;
};

static int
restore(struct run_config *r, const struct settled *was)
{
    r->s.batch = was->batch;
    if (config_measure(r) < 0)
        return -1;
    r->layout = was->layout;
    return 0;
}

/* Bytes of the smallest layout, by the line through the plans of a 32nd and a 16th of the batch, or 0
 * for a batch of fewer samples. */
static int
estimate_bytes(struct run_config *r, uint64_t *bytes)
{
    const struct trial t = { .r = r, .limit = UINT64_MAX };
    const struct settled was = { r->layout, r->s.batch };
    uint64_t n = was.batch / 32, few, twice;
    *bytes = 0;
    if (n == 0)
        return 0;
    if (plan_with_batch(&t, n, &few) < 0 || plan_with_batch(&t, 2 * n, &twice) < 0 ||
        restore(r, &was) < 0)
        return -1;
    if (few == UINT64_MAX || twice == UINT64_MAX)
        return 0;
    double slope = twice > few ? (double)(twice - few) / (double)n : 0;
    *bytes = few + (uint64_t)(slope * (double)(was.batch - n));
    return 0;
}

/* Suggest a batch that fits. */
static int
put_advice(struct buf *b, struct run_config *r, uint64_t limit)
{
    struct trial t = { .r = r, .limit = limit };
    const struct settled was = { r->layout, r->s.batch };
    uint64_t max;
    if (search(&t, plan_with_batch, was.batch, &max) < 0)
        return -1;
    if (max) {
        buf_printf(b, "--batch %llu is the largest that fits", (unsigned long long)max);
        return restore(r, &was);
    }
    r->s.batch = 1;
    if (config_measure(r) < 0)
        return -1;
    t.labels = r->max_labels;
    return put_alternatives(b, &t) < 0 ? -1 : restore(r, &was);
}

/* ---- the choice ---------------------------------------------------------------------- */

/* Bytes available to this run, with those that the process has, which the plan includes. */
static uint64_t
available_bytes(const struct run_config *r)
{
    if (!r->device.host)
        return r->free_before;
    uint64_t bytes = device_free(&r->where);
    return bytes == UINT64_MAX ? bytes : bytes + machine_resident(false);
}

/* Bytes that a plan needs, and what there is. */
struct lack {
    uint64_t need, free;
    const char *about; // "" if the need was counted, else words before it
};

static int
put_lack(struct buf *b, struct run_config *r, const struct lack *l, bool goes_on)
{
    uint64_t limit = r->o->memory_limit;
    bool is_free = !limit || l->need <= limit;
    buf_printf(b, "the plan needs %s%.3f GB, ", l->about, gib(l->need));
    if (is_free)
        buf_printf(b, "%s has %.3f free: ",
                   r->device.host ? "this machine" : r->where.device, gib(l->free));
    else
        buf_printf(b, "--memory-limit is %.3f: ", gib(limit));
    if (!goes_on || r->o->dry_run)
        return put_advice(b, r, limit && limit < l->free ? limit : l->free);
    buf_str(b, "--overcommit tries it");
    return 0;
}

/* Report a plan that does not fit, and fail unless the run may go on.  --overcommit ignores free
 * memory, not --memory-limit. */
static int
refuse(struct run_config *r, const struct lack *l)
{
    struct buf b = { 0 };
    bool is_free = !r->o->memory_limit || l->need <= r->o->memory_limit;
    bool exact = *l->about == '\0', goes_on = exact && is_free && r->o->overcommit;
    int rc = put_lack(&b, r, l, goes_on);
    if (rc == 0 && b.failed)
        rc = err_set(r->err, ERR_MEMORY, "out of memory for a plan");
    else if (rc == 0 && (!exact || (!r->o->dry_run && !goes_on)))
        rc = err_set(r->err, ERR_MEMORY, "%s%s", b.data,
                     is_free && can_count(r->max_tokens) ? "; --overcommit tries it"
                                                         : "");
    else if (rc == 0)
        host_note(r->host, "%s", b.data);
    buf_free(&b);
    return rc;
}

/* In which form weights of products are kept, if not packed for products of bf16. */
static const char *
weights_words(const struct train_layout *l)
{
    if (l->fp8)
        return l->pack_fp8 ? ", FP8 weights packed" : ", FP8 weights kept";
    return l->expand ? ", weights expanded" : "";
}

/* Refuse a plan that is too large by far without counting it.  A pass of many tokens takes seconds to
 * count. */
static int
refuse_hopeless(struct run_config *r, uint64_t free, uint64_t limit)
{
    bool only_look = r->o->overcommit || r->o->dry_run;
    const struct lack far = { input_bytes(r), free, "more than " };
    if (!can_count(r->max_tokens) || (is_hopeless(r, limit) && !only_look))
        return refuse(r, &far);
    struct lack estimated = { 0, free, "about " };
    if (r->max_tokens > MANY_TOKENS && !only_look &&
        estimate_bytes(r, &estimated.need) < 0)
        return -1;
    return estimated.need / 5 * 4 > limit ? refuse(r, &estimated) : 0;
}

int
plan_settle(struct run_config *r)
{
    uint64_t free = available_bytes(r), limit = r->o->memory_limit;
    struct lack counted = { 0, free, "" };
    limit = limit && limit < free ? limit : free;
    if (refuse_hopeless(r, free, limit) < 0 ||
        choose_layout(r, r->o->recompute, limit, &counted.need) < 0)
        return -1;
    r->plan.fits = counted.need > limit ? "no" : limit == UINT64_MAX ? "-" : "yes";
    if (counted.need > limit && refuse(r, &counted) < 0)
        return -1;
    if (r->host->verbose)
        host_warn(r->host, "plan: %.3f GB, --recompute %s%s", gib(counted.need),
                  r->layout.recompute ? "block" : "none", weights_words(&r->layout));
    return 0;
}

/* ---- as TSV -------------------------------------------------------------------------- */

static void
put_row(struct buf *b, const char *what, uint64_t bytes)
{
    buf_printf(b, "%s\t%llu\t%.3f\n", what, (unsigned long long)bytes, gib(bytes));
}

static void
put_count(struct buf *b, const char *what, uint64_t n)
{
    buf_printf(b, "%s\t%llu\t\n", what, (unsigned long long)n);
}

/* The plan of the rank whose plan is the largest, which r->layout.comm becomes. */
static int
largest_plan(struct run_config *r, struct usage *usage, struct comm *of,
             uint64_t *bytes)
{
    if (plan_bytes(r, usage, bytes) < 0)
        return -1;
    if (!r->layout.comm)
        return 0;
    *of = *r->layout.comm;
    of->rank = r->plan.largest_rank;
    r->layout.comm = of;
    return plan_bytes(r, usage, bytes);
}

static void
put_parts(struct buf *b, const struct run_config *r, const struct usage *l,
          uint64_t all)
{
    static const char *const names[MEMORIES] = {
        [MEMORY_MASTER] = "master",       [MEMORY_MOMENTS] = "moments",
        [MEMORY_GRADIENTS] = "gradients", [MEMORY_WEIGHTS] = "weights",
        [MEMORY_ACTIVATIONS] = "kept",    [MEMORY_WORK] = "work",
        [MEMORY_LOGITS] = "logits",       [MEMORY_CACHE] = "cache",
        [MEMORY_TEACHER] = "teacher",     [MEMORY_OTHER] = "other",
    };
    uint64_t all_else = all - l->total_peak;
    buf_str(b, "part\tbytes\tGB\n");
    for (int i = 0; i < MEMORIES; i++)
        if (l->peak[i])
            put_row(b, names[i], l->peak[i]);
    if (r->device.host) {
        put_row(b, "inputs", sample_bytes(r));
        all_else -= sample_bytes(r);
    }
    put_row(b, r->device.host ? "program" : "driver", all_else);
    put_row(b, "total", all);
    put_row(b, "checkpoint", r->plan.file_bytes);
}

int
plan_put(struct run_config *r, struct buf *b)
{
    struct usage l;
    struct comm of = { 0 }, *own = r->layout.comm;
    struct table table;
    uint64_t all;
    int rc = largest_plan(r, &l, &of, &all);
    if (rc == 0)
        put_parts(b, r, &l, all);
    r->layout.comm = own;
    if (rc < 0 || table_open(&table, &r->model, !r->model.tied, r->err) < 0)
        return -1;
    if (own) {
        put_row(b, "sent", r->plan.sent_bytes);
        put_count(b, "ranks", of.size);
        put_count(b, "rank", of.rank);
    }
    buf_printf(b, "flops\t%.4g\t\n", l.flops);
    put_count(b, "tokens", r->max_tokens * (uint64_t)r->s.accum);
    put_count(b, "targets", r->max_labels * (uint64_t)r->s.accum);
    put_count(b, "parameters", table.parameters);
    table_close(&table);
    buf_printf(b, "recompute\t%s\t\n", r->layout.recompute ? "block" : "none");
    buf_printf(b, "gradients\t%s\t\n", r->layout.release ? "released" : "kept");
    buf_printf(b, "fits\t%s\t\n", r->plan.fits);
    return b->failed ? err_set(r->err, ERR_MEMORY, "out of memory for a plan") : 0;
}
