/* SPDX-License-Identifier: MIT */
/* plan: what a run will need, by running one step of it on a device that only counts. */
#include "cmd/trainstep/trainstep.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 4 << 20 }; // of saving, and what else there is at a time

/* Whether a pass may have documents of several lengths, for which the CPU works in more:
 * a row of scores is then as long as the pass. */
static bool
is_uneven(const struct run *r)
{
    if (r->data.packed || (r->has_eval && r->eval.packed))
        return true;
    return r->s.batch > 1 &&
           !(data_is_even(&r->data) && (!r->has_eval || data_is_even(&r->eval)));
}

/* A step of the largest pass.  The second pass needs what all that follow it need: with
 * it all has been seen, however many the settings say. */
static void
count_step(struct run *r, struct train *t)
{
    size_t n = r->most_tokens, passes = r->s.accum > 1 ? 2 : 1;
    int32_t *zeros = cmd_alloc(3 * n, sizeof *zeros);
    struct net_batch *b = cmd_alloc(passes, sizeof *b);
    struct train_result res;
    int32_t *label = zeros + n, *first = zeros + 2 * n;
    for (size_t i = r->most_labels; i < n; i++)
        label[i] = -1;
    for (size_t i = 0, length = r->layout.positions; i < n && length; i++)
        first[i] = (int32_t)(i - i % length);
    if (r->device.host && n && is_uneven(r))
        first[n - 1] = (int32_t)(n - 1);
    for (size_t i = 0; i < passes; i++)
        b[i] = (struct net_batch){ n, zeros, label, zeros, first };
    if (train_ready(t) < 0 || train_step(t, b, passes, &res) < 0)
        die_err(&r->err);
    t->net.k->ledger.flops *= (double)r->s.accum / (double)passes;
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

/* What data_step holds of a step: ids, labels, positions and firsts of its tokens. */
static uint64_t
sample_bytes(const struct run *r)
{
    return r->s.accum *
           (r->most_tokens * 4 * sizeof(int32_t) + sizeof(struct net_batch));
}

uint64_t
plan_bytes(struct run *r, struct ledger *ledger)
{
    struct kernels *k = open_dry(r);
    struct train t;
    if (train_open(&t, &r->c, k, &r->layout, &r->err) < 0)
        die_err(&r->err);
    count_step(r, &t);
    *ledger = k->ledger;
    r->file_bytes = save_bytes(r, &t);
    train_close(&t);
    k->close(k);
    if (!r->device.host)
        return ledger->most + r->device.driver;
    return ledger->most + sample_bytes(r) + log_rss(false) + BUFFERS;
}

/* The ways to spend memory that change no number, the fastest first. */
static const struct way {
    bool expand, recompute;
} ways[] = { { true, false }, { false, false }, { true, true }, { false, true } };

static bool
is_open(const struct run *r, const struct way *w)
{
    int want = r->o->recompute;
    return (!w->expand || r->device.expands) &&
           (want == RECOMPUTE_AUTO || w->recompute == (want == RECOMPUTE_BLOCK));
}

/* Choose what --recompute auto means; refuse what does not fit. */
void
plan_settle(struct run *r)
{
    struct ledger ledger;
    uint64_t there_is = r->device.host ? device_free(&r->where) : r->free_before;
    uint64_t limit = r->o->memory_limit ? r->o->memory_limit : there_is, need = 0;
    const char *place = r->device.host ? "this machine" : r->where.device;
    for (size_t i = 0; i < sizeof ways / sizeof *ways && (!need || need > limit); i++) {
        if (!is_open(r, &ways[i]))
            continue;
        r->layout.expand = ways[i].expand;
        r->layout.recompute = ways[i].recompute;
        need = plan_bytes(r, &ledger);
    }
    if (need > limit && r->o->memory_limit && !r->o->dry_run)
        die(EXIT_MEMORY, "the plan needs %.3f GB, --memory-limit is %.3f%s",
            (double)need / (1 << 30), (double)limit / (1 << 30),
            r->layout.recompute ? "" : "; --recompute block needs less");
    if (need > limit && !r->o->dry_run)
        warn("the plan needs %.1f GB, %s has %.1f free", (double)need / (1 << 30),
             place, (double)limit / (1 << 30));
    if (r->o->cmd.verbose)
        warn("plan: %.3f GB, --recompute %s%s", (double)need / (1 << 30),
             r->layout.recompute ? "block" : "none",
             r->layout.expand ? ", weights expanded" : "");
}

static void
row(const char *what, uint64_t bytes)
{
    printf("%s\t%llu\t%.3f\n", what, (unsigned long long)bytes,
           (double)bytes / (1 << 30));
}

void
plan_print(struct run *r)
{
    static const char *const names[PARTS] = {
        [PART_MASTER] = "master",       [PART_MOMENTS] = "moments",
        [PART_GRADIENTS] = "gradients", [PART_WEIGHTS] = "weights",
        [PART_KEPT] = "kept",           [PART_WORK] = "work",
        [PART_LOGITS] = "logits",       [PART_CACHE] = "cache",
        [PART_OTHER] = "other",
    };
    struct ledger l;
    uint64_t all = plan_bytes(r, &l), all_else = all - l.most;
    puts("part\tbytes\tGB");
    for (int i = 0; i < PARTS; i++)
        if (l.peak[i])
            row(names[i], l.peak[i]);
    if (r->device.host) {
        row("inputs", sample_bytes(r));
        all_else -= sample_bytes(r);
    }
    row(r->device.host ? "program" : "driver", all_else);
    row("total", all);
    row("checkpoint", r->file_bytes);
    printf("flops\t%.4g\t\n", l.flops);
    printf("tokens\t%llu\t\n",
           (unsigned long long)(r->most_tokens * (uint64_t)r->s.accum));
    printf("targets\t%llu\t\n",
           (unsigned long long)(r->most_labels * (uint64_t)r->s.accum));
    printf("parameters\t%llu\t\n", (unsigned long long)r->t.net.table.parameters);
    printf("recompute\t%s\t\n", r->layout.recompute ? "block" : "none");
    printf("gradients\t%s\t\n", r->layout.release ? "released" : "kept");
}
