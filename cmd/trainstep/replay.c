/* SPDX-License-Identifier: MIT */
/* replay: whether steps that a checkpoint claims to be made of lead to it.  They are computed
 * again from an earlier checkpoint, and every byte is compared; nothing is written.
 *
 * Settings, data, teacher and route are the claim's, as its state and its record have them, so
 * steps of one span of the record can be replayed at a time. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/num.h"
#include "lib/base/os.h"
#include "lib/format/history.h"
#include "lib/load/training.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct replay {
    struct store claim;
    struct state st; // its state
    struct settings s;
    char *earlier; // the name of the checkpoint to begin with
};

/* ---- where the two checkpoints are ------------------------------------------------------- */

/* "run.ckpt.step120": a checkpoint of that step that was kept beside run.ckpt. */
static char *
kept_name(const char *checkpoint, uint64_t step)
{
    struct buf b = { 0 };
    buf_printf(&b, "%s.step%llu", checkpoint, (unsigned long long)step);
    if (b.failed)
        die(EXIT_MEMORY, "out of memory");
    return b.data;
}

static void
open_claim(struct run *r, struct replay *p, const char *path)
{
    if (checkpoint_open(&p->claim, path, &cmd_guard, &r->err) < 0)
        die_err(&r->err);
    if (!p->claim.training.master)
        die(EXIT_TROUBLE, "%s: not a checkpoint: expected one that trainstep saved",
            p->claim.name);
    if (state_read(&p->st, &p->s, &p->claim) < 0)
        die_err(&r->err);
}

/* The claim is CHECKPOINT, or one that was kept beside it if that has gone on. */
static void
find_claim(struct run *r, struct replay *p)
{
    const struct options *o = r->o;
    open_claim(r, p, o->checkpoint);
    if (p->st.step == o->replay.to)
        return;
    unsigned long long at = p->st.step, to = o->replay.to;
    char *kept = kept_name(o->checkpoint, o->replay.to);
    if (access(kept, F_OK) != 0)
        die(EXIT_TROUBLE,
            "%s: is at step %llu: expected step %llu, or a checkpoint of that step as "
            "%s.step%llu; --replay %llu..%llu ends where this one is",
            p->claim.name, at, to, p->claim.name, to,
            (unsigned long long)(o->replay.from < at ? o->replay.from : 0), at);
    store_close(&p->claim);
    open_claim(r, p, kept);
    if (p->st.step != o->replay.to)
        die(EXIT_TROUBLE, "%s: is at step %llu: expected step %llu", p->claim.name,
            (unsigned long long)p->st.step, to);
    free(kept);
}

static void
find_earlier(struct run *r, struct replay *p)
{
    const struct options *o = r->o;
    p->earlier = o->from ? cmd_copy(o->from) : kept_name(o->checkpoint, o->replay.from);
    char q[TEXT_QUOTE];
    if (!o->from && access(p->earlier, F_OK) != 0)
        die(EXIT_TROUBLE,
            "%s: is not there: expected a checkpoint of step %llu to begin with; "
            "--from "
            "FILE names it",
            text_quote(q, p->earlier, strlen(p->earlier)),
            (unsigned long long)o->replay.from);
}

/* "step 5" or "steps 4..5": those after `from` up to `to`. */
static const char *
name_steps(char text[64], unsigned long long from, unsigned long long to)
{
    if (to - from == 1)
        snprintf(text, 64, "step %llu", to);
    else
        snprintf(text, 64, "steps %llu..%llu", from + 1, to);
    return text;
}

/* ---- what was claimed -------------------------------------------------------------------- */

/* The last span of the record must hold all steps: before it something else was in use, of
 * which the checkpoint has no more than the record. */
static void
check_record(struct run *r, struct replay *p)
{
    struct history h;
    char steps[64];
    unsigned long long from = r->o->replay.from, to = r->o->replay.to;
    int rc = history_read(&h, p->claim.provenance, &r->err);
    if (rc < 0)
        die_err(&r->err);
    if (rc == 0 || h.span[h.n - 1].last != r->o->replay.to)
        die(EXIT_TROUBLE, "%s: its record has no step %llu: expected one of trainstep",
            p->claim.name, to);
    unsigned long long first = h.span[h.n - 1].first;
    if (first > from + 1)
        die(EXIT_TROUBLE,
            "%s: %s had other settings, data or route than what follows: expected "
            "--replay %llu..%llu, with a checkpoint of step %llu",
            p->claim.name, name_steps(steps, from, first - 1), first - 1, to,
            first - 1);
    history_free(&h);
}

static void
check_version(struct run *r, const struct replay *p)
{
    struct json j;
    struct arena arena = { 0 };
    struct slice key, version = { 0 };
    json_open(&j, p->claim.name, 0, p->claim.provenance, &arena, &r->err);
    if (json_object(&j) == 0)
        while (json_key(&j, &key) > 0)
            if ((slice_is(key, "version") ? json_string(&j, &version)
                                          : json_skip(&j, NULL)) < 0)
                break;
    if (r->err.kind)
        die_err(&r->err);
    char q[TEXT_QUOTE];
    if (!slice_is(version, cmd_version()))
        die(EXIT_TROUBLE,
            "%s: was written by version %s, this is %s, whose bytes may differ: replay "
            "it "
            "with that version",
            p->claim.name, text_quote(q, version.p, version.n), cmd_version());
    arena_free(&arena);
}

/* -v: what was done with all bytes of the claim, and how long that took. */
static void
report_time(const struct run *r, const struct replay *p, const char *done, double start)
{
    if (r->o->cmd.verbose)
        warn("%s: %s %.1f GB in %.2f s", p->claim.name, done,
             (double)p->claim.bytes / (1 << 30), os_seconds() - start);
}

const char *
replay_open(struct run *r)
{
    static struct replay p;
    const char *what;
    r->replay = &p;
    find_claim(r, &p);
    check_record(r, &p);
    check_version(r, &p);
    find_earlier(r, &p);
    // Damage is no answer to the question, and it is cheaper to hear of it now.
    double start = os_seconds();
    if (store_verify(&p.claim, true, r->o->where.threads, &what) < 0)
        die_err(&r->err);
    report_time(r, &p, "verified", start);
    return p.earlier;
}

/* ---- what it is replayed with ------------------------------------------------------------ */

static bool
same_word(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

static bool
same_kind(const struct store *a, const struct store *b)
{
    struct slice x = a->config, y = b->config;
    return same_word(a->training.master, b->training.master) &&
           same_word(a->training.moments, b->training.moments) &&
           same_word(a->quant.name, b->quant.name) &&
           same_word(a->quant.variant, b->quant.variant) &&
           same_word(a->quant.criterion, b->quant.criterion) &&
           same_word(a->quant.share, b->quant.share) && slice_eq(x, y);
}

/* Both began with the same weights. */
static void
check_origin(struct run *r, const struct replay *p)
{
    struct history h;
    struct buf origin = { 0 };
    if (history_read(&h, p->claim.provenance, &r->err) < 0 ||
        save_origin(&r->in, &origin, &r->err) < 0)
        die_err(&r->err);
    if (!slice_eq(h.inputs, (struct slice){ origin.data, origin.len }))
        die(EXIT_TROUBLE,
            "%s: is of another training than %s: its record begins with other weights; "
            "--from FILE names the right one",
            r->in.name, p->claim.name);
    buf_free(&origin);
    history_free(&h);
}

void
replay_begin(struct run *r)
{
    struct replay *p = r->replay;
    if (r->in_step != r->o->replay.from)
        die(EXIT_TROUBLE, "%s: is at step %llu: expected step %llu", r->in.name,
            (unsigned long long)r->in_step, (unsigned long long)r->o->replay.from);
    if (!same_kind(&r->in, &p->claim))
        die(EXIT_TROUBLE,
            "%s: has another configuration, quantizer or optimizer than %s: --from "
            "FILE "
            "names the right one",
            r->in.name, p->claim.name);
    check_origin(r, p);
    r->s = p->s;
    r->end = r->o->replay.to;
}

static void
check_data(const struct run *r, const struct replay *p)
{
    char want[2 * XXH3_BYTES + 1], found[2 * XXH3_BYTES + 1];
    if (memcmp(r->st.data, p->st.data, XXH3_BYTES) == 0)
        return;
    hash_hex(want, p->st.data, XXH3_BYTES);
    hash_hex(found, r->st.data, XXH3_BYTES);
    die(EXIT_TROUBLE,
        "%s: other data than %s was trained on: their hash is %s, expected %s: name "
        "them "
        "by -d%s",
        r->data.tok.name, p->claim.name, found, want,
        p->st.has_teacher_data ? " and --teacher-data" : "");
}

void
replay_check_inputs(struct run *r)
{
    const struct replay *p = r->replay;
    char want[2 * XXH3_BYTES + 1];
    check_data(r, p);
    if (r->st.has_teacher == p->st.has_teacher &&
        (!p->st.has_teacher || memcmp(r->st.teacher, p->st.teacher, XXH3_BYTES) == 0))
        return;
    if (!p->st.has_teacher)
        die(EXIT_TROUBLE, "%s: was trained without a teacher: leave --teacher out",
            p->claim.name);
    hash_hex(want, p->st.teacher, XXH3_BYTES);
    die(EXIT_TROUBLE,
        "%s: was trained with %s teacher: name the one of hash %s by --teacher",
        p->claim.name, r->st.has_teacher ? "another" : "a", want);
}

void
replay_check_route(const struct run *r)
{
    const struct replay *p = r->replay;
    char q[TEXT_QUOTE];
    if (strcmp(r->st.route, p->st.route) != 0)
        die(EXIT_TROUBLE,
            "%s: was computed by \"%s\", here it would be by \"%s\", whose bytes "
            "differ: "
            "expected that device (--device, --compute, --path)",
            p->claim.name, text_quote(q, p->st.route, strlen(p->st.route)),
            r->st.route);
}

/* ---- the answer -------------------------------------------------------------------------- */

static void
put_element(struct buf *b, enum dtype type, const uint8_t *e, size_t n)
{
    uint32_t bits = 0;
    float f;
    if (type == DT_F32)
        bits = load_le32(e);
    else if (type == DT_BF16)
        bits = (uint32_t)load_le16(e) << 16;
    memcpy(&f, &bits, sizeof f);
    if (type == DT_F32 || type == DT_BF16)
        buf_printf(b, "%.9g (", (double)f);
    buf_str(b, "0x");
    for (size_t i = n; i > 0; i--)
        buf_printf(b, "%02x", e[i - 1]);
    buf_str(b, type == DT_F32 || type == DT_BF16 ? ")" : "");
}

static void
put_difference(struct buf *b, const struct train *t, const struct training_diff *d)
{
    const struct array *a = &t->arrays.v[d->array];
    buf_printf(b, "array \"%s\": element %llu: the replay has ", a->name,
               (unsigned long long)d->element);
    put_element(b, a->dtype, d->own, d->bytes);
    buf_str(b, ", the checkpoint ");
    put_element(b, a->dtype, d->other, d->bytes);
    buf_printf(b, "; %zu of %zu arrays differ", d->differing, t->arrays.n);
}

/* The first part of the state that is not the claim's; NULL: none of these. */
static const char *
state_difference(const struct state *a, const struct state *b)
{
    const struct {
        bool same;
        const char *what;
    } part[] = {
        { a->step == b->step && a->t == b->t, "the count of updates" },
        { a->epoch == b->epoch && a->index == b->index, "the place in the data" },
        { a->grad_norm == b->grad_norm, "the last gradient norm" },
        { a->skips == b->skips, "the count of skipped steps" },
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (!part[i].same)
            return part[i].what;
    return NULL;
}

static bool
same_text(const struct buf *b, struct slice s)
{
    return slice_eq((struct slice){ b->data, b->len }, s);
}

/* What differs, in words; false: nothing. */
static bool
compare(struct run *r, struct buf *words)
{
    struct replay *p = r->replay;
    struct training_diff d;
    struct buf record = { 0 }, state = { 0 };
    double start = os_seconds();
    if (training_compare(&r->t, &r->in, &p->claim, r->o->where.threads, &d) < 0)
        die_err(&r->err);
    report_time(r, p, "compared", start);
    save_describe(r, &record, &state);
    const char *part = state_difference(&r->st, &p->st);
    bool same_record = same_text(&record, p->claim.provenance);
    bool same =
        d.differing == 0 && same_record && same_text(&state, p->claim.training.state);
    if (d.differing)
        put_difference(words, &r->t, &d);
    else if (!same_record)
        buf_str(words,
                "all arrays are equal, but not the record of how it was made, which "
                "datcat --meta prints");
    else if (!same)
        buf_printf(words,
                   "all arrays are equal, but not the training state: %s differs",
                   part ? part : "a setting or the window of --spike");
    buf_free(&record);
    buf_free(&state);
    return !same;
}

int
replay_answer(struct run *r)
{
    struct replay *p = r->replay;
    struct buf words = { 0 };
    char steps[64];
    unsigned long long from = r->o->replay.from, to = r->o->replay.to;
    if (r->t.step < r->end || ranks_number() > 0)
        return EXIT_DONE; // stopped, or rank 0 answers
    bool differs = compare(r, &words), one = to - from == 1;
    if (words.failed)
        die(EXIT_MEMORY, "out of memory for the answer");
    if (differs)
        warn("%s: %s from %s %s lead to it: %s", p->claim.name,
             name_steps(steps, from, to), r->in.name, one ? "does not" : "do not",
             words.data);
    else if (!r->o->cmd.quiet)
        warn("%s: %s from %s %s to it: all %zu arrays, state and record are equal",
             p->claim.name, name_steps(steps, from, to), r->in.name,
             one ? "leads" : "lead", r->t.arrays.n);
    buf_free(&words);
    store_close(&p->claim);
    return differs ? EXIT_NO : EXIT_DONE;
}
