/* SPDX-License-Identifier: MIT */
/* memory_plan: the memory of a run, measured by one step on a device that only counts. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/machine.h"

#include <stdlib.h>
#include <string.h>

enum {
    SAVE_BUFFERS = 4 << 20, // bytes, of saving and the rest
    MANY_TOKENS = 1 << 20   // of a pass
};

/* Whether a pass may have documents of several lengths.  The CPU needs more memory for them:
 * a row of scores is then as long as the pass. */
static bool
is_uneven(const struct run *r)
{
    if (r->data.packed || (r->has_eval && r->eval.packed))
        return true;
    return r->s.batch > 1 &&
           !(course_is_even(&r->data) && (!r->has_eval || course_is_even(&r->eval)));
}

/* Whether there is memory for the inputs of a counted pass of that many tokens. */
static bool
can_count(size_t tokens)
{
    return tokens < machine_free() / 2 / (3 * sizeof(int32_t));
}

/* What a step sends: each of a rank's passes parts of gradients, and the step what it owns. */
static uint64_t
sent_bytes(const struct run *r, const struct comm *before, size_t passes)
{
    const struct comm *c = r->layout.comm;
    if (!c)
        return 0;
    return (c->parts_sent - before->parts_sent) / passes * (r->s.accum / c->size) +
           c->own_sent - before->own_sent;
}

/* The plan of a step has addresses as the step has memory. */
static _Noreturn void
refuse_step(const struct run *r)
{
    if (r->err.kind == ERR_MEMORY)
        die(EXIT_MEMORY,
            "a step of %llu samples, %zu tokens a pass, is too large to plan: %s: "
            "expected a smaller --batch, or shorter samples",
            (unsigned long long)(r->s.batch * r->s.accum), r->max_tokens, r->err.msg);
    die_err(&r->err);
}

/* Count the next step, and one of the other form if the run goes on to quantized steps. */
static void
count_forms(struct run *r, struct train *t, const struct net_batch *b, size_t passes)
{
    struct train_result res;
    bool changes = run_before_quant(r, r->in_step + 1) && !run_before_quant(r, r->end);
    t->step = r->in_step;
    if (train_ready(t) < 0)
        refuse_step(r);
    struct comm before = { 0 };
    if (r->layout.comm)
        before = *r->layout.comm;
    if (train_step(t, b, passes, &res) < 0)
        refuse_step(r);
    r->sent_bytes = sent_bytes(r, &before, passes);
    double flops = t->net.k->usage.flops;
    t->step = r->end - 1;
    if (changes && train_step(t, b, passes, &res) < 0)
        refuse_step(r);
    t->net.k->usage.flops = flops * (double)r->s.accum / (double)passes;
}

/* Count a step of the largest pass.  All passes after the first need the same, so two are
 * enough. */
static void
count_step(struct run *r, struct train *t)
{
    size_t n = r->max_tokens, passes = r->s.accum > 1 ? 2 : 1;
    int32_t *zeros = cmd_alloc(3 * n, sizeof *zeros);
    struct net_batch *b = cmd_alloc(passes, sizeof *b);
    int32_t *label = zeros + n, *first = zeros + 2 * n;
    for (size_t i = r->max_labels; i < n; i++)
        label[i] = -1;
    for (size_t i = 0, length = r->layout.positions; i < n && length; i++)
        first[i] = (int32_t)(i - i % length);
    if (r->device.host && n && is_uneven(r))
        first[n - 1] = (int32_t)(n - 1);
    for (size_t i = 0; i < passes; i++)
        b[i] = (struct net_batch){ n, zeros, label, zeros, first, NULL };
    count_forms(r, t, b, passes);
    free(b);
    free(zeros);
}

static struct kernels *
open_dry(struct run *r)
{
    struct cpu_kind cpu = device_cpu(&r->where);
    struct kernels *k = kernels_dry(&r->device, &cpu, &r->err);
    if (!k)
        die_err(&r->err);
    return k;
}

/* Bytes of course_step's arrays: ids, labels, positions and firsts. */
static uint64_t
sample_bytes(const struct run *r)
{
    return r->s.accum *
           (r->max_tokens * 4 * sizeof(int32_t) + sizeof(struct net_batch));
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

uint64_t
plan_bytes(struct run *r, struct usage *usage)
{
    struct kernels *k = open_dry(r);
    struct train t;
    if (train_open(&t, &r->c, k, &r->layout, &r->err) < 0)
        die_err(&r->err);
    r->largest_rank = largest_rank(&t);
    teacher_load(r, &t);
    count_step(r, &t);
    *usage = k->usage;
    r->file_bytes = save_bytes(r, &t);
    train_close(&t);
    teacher_unload(r);
    kernels_close(k);
    if (!r->device.host)
        return usage->total_peak + r->device.driver;
    return usage->total_peak + sample_bytes(r) + log_rss(false) + SAVE_BUFFERS;
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
is_allowed(const struct run *r, enum recompute want, const struct choice *w)
{
    return (!w->expand || r->device.expands) && (!w->pack_fp8 || r->layout.fp8) &&
           (want == RECOMPUTE_AUTO || w->recompute == (want == RECOMPUTE_BLOCK));
}

/* Bytes of the inputs of the first layer alone. */
static uint64_t
input_bytes(const struct run *r)
{
    return r->max_tokens * (uint64_t)r->c.hidden * (r->device.act == DT_F32 ? 4 : 2);
}

/* Whether a pass is too large by far; it is not counted, since counting needs memory. */
static bool
is_hopeless(const struct run *r, uint64_t limit)
{
    return input_bytes(r) > limit || !can_count(r->max_tokens);
}

/* Choose that layout; its bytes. */
static uint64_t
take_layout(struct run *r, const struct choice *w)
{
    struct usage usage;
    r->layout.expand = w->expand;
    r->layout.pack_fp8 = w->pack_fp8;
    r->layout.recompute = w->recompute;
    return plan_bytes(r, &usage);
}

/* Choose the fastest layout that fits, or the smallest; its bytes. */
static uint64_t
choose_layout(struct run *r, enum recompute want, uint64_t limit)
{
    uint64_t need = 0;
    for (size_t i = 0; i < LAYOUTS && (!need || need > limit); i++)
        if (is_allowed(r, want, &layouts[i]))
            need = take_layout(r, &layouts[i]);
    return need;
}

static bool
fits(struct run *r, enum recompute want, uint64_t limit)
{
    return !is_hopeless(r, limit) && choose_layout(r, want, limit) <= limit;
}

/* ---- what would fit ------------------------------------------------------------------ */

struct trial {
    struct run *r;
    uint64_t limit;
    size_t labels; // of a pass of one sample
};

/* Bytes of the smallest layout; UINT64_MAX: far too many to count. */
static uint64_t
smallest_plan(const struct trial *t)
{
    struct run *r = t->r;
    size_t i = LAYOUTS - 1;
    while (i > 0 && !is_allowed(r, r->o->recompute, &layouts[i]))
        i--;
    return is_hopeless(r, t->limit) ? UINT64_MAX : take_layout(r, &layouts[i]);
}

/* The plans of a run with another batch, with fewer layers to train, with shorter samples. */
typedef uint64_t plan_with(const struct trial *t, uint64_t n);

static uint64_t
plan_with_batch(const struct trial *t, uint64_t batch)
{
    t->r->s.batch = batch;
    run_measure(t->r);
    return smallest_plan(t);
}

static uint64_t
plan_with_layers(const struct trial *t, uint64_t layers)
{
    t->r->layout.last_layers = (uint32_t)layers;
    return smallest_plan(t);
}

static uint64_t
plan_with_length(const struct trial *t, uint64_t length)
{
    struct run *r = t->r;
    r->max_tokens = r->layout.positions = (size_t)length;
    r->max_labels = t->labels < length ? t->labels : (size_t)length;
    return smallest_plan(t);
}

/* Gradients are released then, if a step has one pass. */
static bool
clip_prev_fits(const struct trial *t)
{
    struct run *r = t->r;
    uint64_t mode = r->s.clip_mode;
    r->s.clip_mode = CLIP_PREV;
    run_set_release(r);
    bool does = fits(r, r->o->recompute, t->limit);
    r->s.clip_mode = mode;
    run_set_release(r);
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
static uint64_t
search(const struct trial *t, plan_with *plan, uint64_t above)
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
        now.bytes = plan(t, now.n);
        if (now.bytes > t->limit) {
            high = now.n;
            other = now.bytes < UINT64_MAX ? now : other;
        } else {
            other = low;
            low = now;
        }
    }
    return low.n;
}

/* Suggest other options if not even a pass of one sample fits, each by itself. */
static void
put_alternatives(struct buf *b, const struct trial *t)
{
    struct run *r = t->r;
    uint32_t layers = r->layout.last_layers;
    const char *join = "; with it";
    bool any = false;
    buf_str(b, "not even --batch 1 fits");
    if (r->o->recompute == RECOMPUTE_NONE && fits(r, RECOMPUTE_BLOCK, t->limit)) {
        buf_printf(b, "%s --recompute block does", join);
        join = ", or";
        any = true;
    }
    if (r->s.clip > 0 && r->s.clip_mode == CLIP_GLOBAL && clip_prev_fits(t)) {
        buf_printf(b, "%s --clip-mode prev does", join);
        join = ", or";
        any = true;
    }
    uint64_t max = search(t, plan_with_layers, layers ? layers : r->c.layers);
    r->layout.last_layers = layers;
    if (max) {
        buf_printf(b, "%s --train-last-layers %llu does", join,
                   (unsigned long long)max);
        join = ", or";
        any = true;
    }
    max = search(t, plan_with_length, r->layout.positions);
    if (max)
        buf_printf(b, "%s samples of at most %llu positions do", join,
                   (unsigned long long)max);
    else if (!any)
        buf_str(b, ", nor do shorter samples or fewer layers to train");
}

/* Bytes of the smallest layout, by the line through the plans of a 32nd and a 16th of the batch, or 0
 * for a batch of fewer samples; the settings of the run are restored. */
static uint64_t
estimated_bytes(struct run *r)
{
    const struct trial t = { .r = r, .limit = UINT64_MAX };
    struct train_layout layout = r->layout;
    uint64_t batch = r->s.batch;
    uint64_t n = batch / 32;
    if (n == 0)
        return 0;
    uint64_t few = plan_with_batch(&t, n), twice = plan_with_batch(&t, 2 * n);
    r->s.batch = batch;
    run_measure(r);
    r->layout = layout;
    if (few == UINT64_MAX || twice == UINT64_MAX)
        return 0;
    double slope = twice > few ? (double)(twice - few) / (double)n : 0;
    return few + (uint64_t)(slope * (double)(batch - n));
}

/* Suggest a batch that fits; restores the settings of the run. */
static void
put_advice(struct buf *b, struct run *r, uint64_t limit)
{
    struct trial t = { .r = r, .limit = limit };
    struct train_layout layout = r->layout;
    uint64_t batch = r->s.batch, max = search(&t, plan_with_batch, batch);
    if (max) {
        buf_printf(b, "--batch %llu is the largest that fits", (unsigned long long)max);
    } else {
        r->s.batch = 1;
        run_measure(r);
        t.labels = r->max_labels;
        put_alternatives(b, &t);
    }
    r->s.batch = batch;
    run_measure(r);
    r->layout = layout;
}

/* ---- the choice ---------------------------------------------------------------------- */

/* Bytes available to this run, with those that the process has, which the plan includes. */
static uint64_t
available_bytes(const struct run *r)
{
    if (!r->device.host)
        return r->free_before;
    uint64_t bytes = device_free(&r->where);
    return bytes == UINT64_MAX ? bytes : bytes + log_rss(false);
}

/* Report a plan that does not fit, and end the run unless it may go on.  --overcommit ignores
 * free memory, not --memory-limit.  about: "" if the need was counted, else words before it. */
static void
refuse(struct run *r, uint64_t need, uint64_t free, const char *about)
{
    struct buf b = { 0 };
    uint64_t limit = r->o->memory_limit;
    bool is_free = !limit || need <= limit, exact = *about == '\0';
    bool goes_on = exact && is_free && r->o->overcommit;
    buf_printf(&b, "the plan needs %s%.3f GB, ", about, (double)need / (1 << 30));
    if (is_free)
        buf_printf(
            &b, "%s has %.3f free: ", r->device.host ? "this machine" : r->where.device,
            (double)free / (1 << 30));
    else
        buf_printf(&b, "--memory-limit is %.3f: ", (double)limit / (1 << 30));
    if (goes_on && !r->o->dry_run)
        buf_str(&b, "--overcommit tries it");
    else
        put_advice(&b, r, limit && limit < free ? limit : free);
    if (b.failed)
        die(EXIT_MEMORY, "out of memory for a plan");
    if (!exact || (!r->o->dry_run && !goes_on))
        die(EXIT_MEMORY, "%s%s", b.data,
            is_free && can_count(r->max_tokens) ? "; --overcommit tries it" : "");
    if (!r->o->cmd.quiet)
        warn("%s", b.data);
    buf_free(&b);
}

/* In which form weights of products are kept, if not packed for products of bf16. */
static const char *
weights_words(const struct train_layout *l)
{
    if (l->fp8)
        return l->pack_fp8 ? ", FP8 weights packed" : ", FP8 weights kept";
    return l->expand ? ", weights expanded" : "";
}

/* See trainstep.h. */
void
plan_settle(struct run *r)
{
    uint64_t free = available_bytes(r), limit = r->o->memory_limit;
    enum recompute want = r->o->recompute;
    limit = limit && limit < free ? limit : free;
    bool only_look = r->o->overcommit || r->o->dry_run;
    if (!can_count(r->max_tokens) || (is_hopeless(r, limit) && !only_look))
        refuse(r, input_bytes(r), free, "more than ");
    // A pass of many tokens takes seconds to count; one that is too large by far is not counted.
    uint64_t about = r->max_tokens > MANY_TOKENS && !only_look ? estimated_bytes(r) : 0;
    if (about / 5 * 4 > limit)
        refuse(r, about, free, "about ");
    uint64_t need = choose_layout(r, want, limit);
    r->fits = need > limit ? "no" : limit == UINT64_MAX ? "-" : "yes";
    if (need > limit)
        refuse(r, need, free, "");
    if (r->o->cmd.verbose)
        warn("plan: %.3f GB, --recompute %s%s", (double)need / (1 << 30),
             r->layout.recompute ? "block" : "none", weights_words(&r->layout));
}

static void
row(const char *what, uint64_t bytes)
{
    printf("%s\t%llu\t%.3f\n", what, (unsigned long long)bytes,
           (double)bytes / (1 << 30));
}

/* The plan of the rank whose plan is the largest, which r->layout.comm becomes. */
static uint64_t
largest_plan(struct run *r, struct usage *usage, struct comm *of)
{
    uint64_t bytes = plan_bytes(r, usage);
    if (!r->layout.comm)
        return bytes;
    *of = *r->layout.comm;
    of->rank = r->largest_rank;
    r->layout.comm = of;
    return plan_bytes(r, usage);
}

void
plan_print(struct run *r)
{
    static const char *const names[MEMORIES] = {
        [MEMORY_MASTER] = "master",       [MEMORY_MOMENTS] = "moments",
        [MEMORY_GRADIENTS] = "gradients", [MEMORY_WEIGHTS] = "weights",
        [MEMORY_ACTIVATIONS] = "kept",    [MEMORY_WORK] = "work",
        [MEMORY_LOGITS] = "logits",       [MEMORY_CACHE] = "cache",
        [MEMORY_TEACHER] = "teacher",     [MEMORY_OTHER] = "other",
    };
    struct usage l;
    struct comm of;
    uint64_t all = largest_plan(r, &l, &of), all_else = all - l.total_peak;
    puts("part\tbytes\tGB");
    for (int i = 0; i < MEMORIES; i++)
        if (l.peak[i])
            row(names[i], l.peak[i]);
    if (r->device.host) {
        row("inputs", sample_bytes(r));
        all_else -= sample_bytes(r);
    }
    row(r->device.host ? "program" : "driver", all_else);
    row("total", all);
    row("checkpoint", r->file_bytes);
    if (r->layout.comm) {
        row("sent", r->sent_bytes);
        printf("ranks\t%u\t\nrank\t%u\t\n", of.size, of.rank);
    }
    printf("flops\t%.4g\t\n", l.flops);
    printf("tokens\t%llu\t\n",
           (unsigned long long)(r->max_tokens * (uint64_t)r->s.accum));
    printf("targets\t%llu\t\n",
           (unsigned long long)(r->max_labels * (uint64_t)r->s.accum));
    printf("parameters\t%llu\t\n", (unsigned long long)r->t.net.table.parameters);
    printf("recompute\t%s\t\n", r->layout.recompute ? "block" : "none");
    printf("gradients\t%s\t\n", r->layout.release ? "released" : "kept");
    printf("fits\t%s\t\n", r->fits);
}
