/* SPDX-License-Identifier: MIT */
/* replay: see replay.h. */
#include "lib/train/replay.h"

#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/base/os.h"
#include "lib/format/history.h"
#include "lib/load/training.h"
#include "lib/train/record.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- where the two checkpoints are ------------------------------------------------------- */

static int
no_memory(const struct run_config *r)
{
    return err_set(r->err, ERR_MEMORY, "out of memory");
}

/* "run.ckpt.step120": a checkpoint of that step that was kept beside run.ckpt.  NULL: no memory. */
static char *
kept_name(const char *checkpoint, uint64_t step)
{
    struct buf b = { 0 };
    buf_printf(&b, "%s.step%llu", checkpoint, (unsigned long long)step);
    if (b.failed)
        buf_free(&b);
    return b.data;
}

static int
open_claim(struct replay *p, const struct run_config *r, const char *path)
{
    p->open = true;
    if (checkpoint_open(&p->claim, path, r->host->guard, r->err) < 0)
        return -1;
    if (!p->claim.training.master)
        return err_set(r->err, ERR_FORMAT,
                       "%s: not a checkpoint: expected one that trainstep saved",
                       p->claim.name);
    return state_read(&p->st, &p->s, &p->claim);
}

/* Open the copy of the last step, since the checkpoint itself has gone on. */
static int
open_kept(struct replay *p, const struct run_config *r, const char *kept)
{
    unsigned long long at = p->st.step, from = r->o->replay.from, to = r->o->replay.to;
    if (access(kept, F_OK) != 0)
        return err_set(
            r->err, ERR_USAGE,
            "%s: is at step %llu: expected step %llu, or a checkpoint of that step as "
            "%s.step%llu; --replay %llu..%llu ends where this one is",
            p->claim.name, at, to, p->claim.name, to, from < at ? from : 0, at);
    store_close(&p->claim);
    if (open_claim(p, r, kept) < 0)
        return -1;
    if (p->st.step != to)
        return err_set(r->err, ERR_USAGE, "%s: is at step %llu: expected step %llu",
                       p->claim.name, (unsigned long long)p->st.step, to);
    return 0;
}

/* The claim is CHECKPOINT, or one that was kept beside it if that has gone on. */
static int
find_claim(struct replay *p, const struct run_config *r)
{
    if (open_claim(p, r, r->o->checkpoint) < 0)
        return -1;
    if (p->st.step == r->o->replay.to)
        return 0;
    char *kept = kept_name(r->o->checkpoint, r->o->replay.to);
    int rc = kept ? open_kept(p, r, kept) : no_memory(r);
    free(kept);
    return rc;
}

static int
find_earlier(struct replay *p, const struct run_config *r)
{
    const struct train_options *o = r->o;
    char q[TEXT_QUOTE];
    p->earlier = o->from ? strdup(o->from) : kept_name(o->checkpoint, o->replay.from);
    if (!p->earlier)
        return no_memory(r);
    if (!o->from && access(p->earlier, F_OK) != 0)
        return err_set(
            r->err, ERR_USAGE,
            "%s: is not there: expected a checkpoint of step %llu to begin with; "
            "--from FILE names it",
            text_quote(q, p->earlier, strlen(p->earlier)),
            (unsigned long long)o->replay.from);
    return 0;
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

static int
check_span(const struct replay *p, const struct run_config *r, const struct history *h)
{
    char steps[64];
    unsigned long long from = r->o->replay.from, to = r->o->replay.to;
    if (h->n == 0 || h->span[h->n - 1].last != to)
        return err_set(r->err, ERR_FORMAT,
                       "%s: its record has no step %llu: expected one of trainstep",
                       p->claim.name, to);
    unsigned long long first = h->span[h->n - 1].first;
    if (first > from + 1)
        return err_set(
            r->err, ERR_USAGE,
            "%s: %s had other settings, data or route than what follows: expected "
            "--replay %llu..%llu, with a checkpoint of step %llu",
            p->claim.name, name_steps(steps, from, first - 1), first - 1, to,
            first - 1);
    return 0;
}

/* The last span of the record must hold all steps: before it something else was in use, of
 * which the checkpoint has no more than the record. */
static int
check_record(const struct replay *p, const struct run_config *r)
{
    struct history h;
    int rc = history_read(&h, p->claim.provenance, r->err);
    if (rc == 0)
        h.n = 0;
    if (rc >= 0)
        rc = check_span(p, r, &h);
    history_free(&h);
    return rc;
}

static int
read_version(const struct replay *p, struct slice *version, struct arena *arena,
             struct err *err)
{
    struct json j;
    struct slice key;
    json_open(&j, p->claim.name, 0, p->claim.provenance, arena, err);
    if (json_object(&j) == 0)
        while (json_key(&j, &key) > 0)
            if ((slice_is(key, "version") ? json_string(&j, version)
                                          : json_skip(&j, NULL)) < 0)
                break;
    return err->kind ? -1 : 0;
}

static int
check_version(const struct replay *p, const struct run_config *r)
{
    struct arena arena = { 0 };
    struct slice version = { 0 };
    char q[TEXT_QUOTE];
    int rc = read_version(p, &version, &arena, r->err);
    if (rc == 0 && !slice_is(version, r->host->version))
        rc = err_set(
            r->err, ERR_USAGE,
            "%s: was written by version %s, this is %s, whose bytes may differ: replay "
            "it with that version",
            p->claim.name, text_quote(q, version.p, version.n), r->host->version);
    arena_free(&arena);
    return rc;
}

/* What was done with all bytes of the claim, and how long that took, for a verbose host. */
static void
report_time(const struct replay *p, const struct run_config *r, const char *done,
            double start)
{
    if (r->host->verbose)
        host_warn(r->host, "%s: %s %.1f GB in %.2f s", p->claim.name, done,
                  (double)p->claim.bytes / (1 << 30), os_seconds() - start);
}

int
replay_open(struct replay *p, const struct run_config *r)
{
    const char *what;
    *p = (struct replay){ .open = false };
    if (find_claim(p, r) < 0 || check_record(p, r) < 0 || check_version(p, r) < 0 ||
        find_earlier(p, r) < 0)
        return -1;
    // Damage is no answer to the question, and it is cheaper to hear of it now.
    double start = os_seconds();
    if (store_verify(&p->claim, true, r->where.threads, &what) < 0)
        return -1;
    report_time(p, r, "verified", start);
    return 0;
}

void
replay_close(struct replay *p)
{
    if (p->open)
        store_close(&p->claim);
    free(p->earlier);
    *p = (struct replay){ .open = false };
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
static int
check_origin(const struct replay *p, const struct run_config *r)
{
    struct history h;
    struct buf origin = { 0 };
    int rc = history_read(&h, p->claim.provenance, r->err);
    if (rc >= 0)
        rc = record_origin(&r->in->file, &origin, r->err);
    if (rc == 0 && !slice_eq(h.inputs, (struct slice){ origin.data, origin.len }))
        rc = err_set(
            r->err, ERR_FORMAT,
            "%s: is of another training than %s: its record begins with other weights; "
            "--from FILE names the right one",
            r->in->file.name, p->claim.name);
    buf_free(&origin);
    history_free(&h);
    return rc;
}

int
replay_begin(const struct replay *p, struct run_config *r)
{
    const char *name = r->in->file.name;
    if (r->in_step != r->o->replay.from)
        return err_set(r->err, ERR_USAGE, "%s: is at step %llu: expected step %llu",
                       name, (unsigned long long)r->in_step,
                       (unsigned long long)r->o->replay.from);
    if (!same_kind(&r->in->file, &p->claim))
        return err_set(
            r->err, ERR_FORMAT,
            "%s: has another configuration, quantizer or optimizer than %s: --from "
            "FILE names the right one",
            name, p->claim.name);
    if (check_origin(p, r) < 0)
        return -1;
    r->s = p->s;
    r->end = r->o->replay.to;
    return 0;
}

static int
check_data(const struct replay *p, const struct run_config *r)
{
    char want[2 * XXH3_BYTES + 1], found[2 * XXH3_BYTES + 1];
    if (memcmp(r->st.data, p->st.data, XXH3_BYTES) == 0)
        return 0;
    hash_hex(want, p->st.data, XXH3_BYTES);
    hash_hex(found, r->st.data, XXH3_BYTES);
    return err_set(
        r->err, ERR_USAGE,
        "%s: other data than %s was trained on: their hash is %s, expected %s: name "
        "them by -d%s",
        r->in->data.tok.name, p->claim.name, found, want,
        p->st.has_teacher_data ? " and --teacher-data" : "");
}

static int
check_teacher(const struct replay *p, const struct run_config *r)
{
    char want[2 * XXH3_BYTES + 1];
    const char *name = p->claim.name;
    if (r->st.has_teacher == p->st.has_teacher &&
        (!p->st.has_teacher || memcmp(r->st.teacher, p->st.teacher, XXH3_BYTES) == 0))
        return 0;
    if (!p->st.has_teacher)
        return err_set(r->err, ERR_USAGE,
                       "%s: was trained without a teacher: leave --teacher out", name);
    hash_hex(want, p->st.teacher, XXH3_BYTES);
    return err_set(r->err, ERR_USAGE,
                   "%s: was trained with %s teacher: name the one of hash %s by "
                   "--teacher",
                   name, r->st.has_teacher ? "another" : "a", want);
}

int
replay_check_inputs(const struct replay *p, const struct run_config *r)
{
    return check_data(p, r) < 0 ? -1 : check_teacher(p, r);
}

int
replay_check_route(const struct replay *p, const struct trainer *t)
{
    char q[TEXT_QUOTE];
    if (strcmp(t->st.route, p->st.route) == 0)
        return 0;
    return err_set(
        t->err, ERR_USAGE,
        "%s: was computed by \"%s\", here it would be by \"%s\", whose bytes differ: "
        "expected that device (--device, --compute, --path)",
        p->claim.name, text_quote(q, p->st.route, strlen(p->st.route)), t->st.route);
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

/* How the state and the record of the replay differ from the claim's; arrays are equal. */
static int
compare_texts(const struct replay *p, struct trainer *t, struct buf *words)
{
    struct buf record = { 0 }, state = { 0 };
    int rc = record_describe(t, &record, &state);
    const char *part = state_difference(&t->st, &p->st);
    if (rc == 0 && !same_text(&record, p->claim.provenance))
        buf_str(words,
                "all arrays are equal, but not the record of how it was made, which "
                "datcat --meta prints");
    else if (rc == 0 && !same_text(&state, p->claim.training.state))
        buf_printf(words,
                   "all arrays are equal, but not the training state: %s differs",
                   part ? part : "a setting or the window of --spike");
    buf_free(&record);
    buf_free(&state);
    return rc;
}

/* What differs, in words; none: nothing. */
static int
compare(struct replay *p, struct trainer *t, struct buf *words)
{
    struct training_diff d;
    double start = os_seconds();
    if (training_compare(&t->train, &t->in->file, &p->claim, t->run->where.threads,
                         &d) < 0)
        return -1;
    report_time(p, t->run, "compared", start);
    if (!d.differing)
        return compare_texts(p, t, words);
    put_difference(words, &t->train, &d);
    return 0;
}

int
replay_answer(struct replay *p, struct trainer *t, bool *differs)
{
    const struct run_config *r = t->run;
    struct buf words = { 0 };
    char steps[64];
    unsigned long long from = r->o->replay.from, to = r->o->replay.to;
    const char *claim = p->claim.name, *file = r->in->file.name;
    *differs = false;
    if (t->train.step < r->end || t->ranks->rank > 0)
        return 0; // stopped, or rank 0 answers
    int rc = compare(p, t, &words);
    if (rc == 0 && words.failed)
        rc = err_set(t->err, ERR_MEMORY, "out of memory for the answer");
    *differs = rc == 0 && words.len;
    bool one = to - from == 1;
    name_steps(steps, from, to);
    if (*differs)
        host_warn(r->host, "%s: %s from %s %s lead to it: %s", claim, steps, file,
                  one ? "does not" : "do not", words.data);
    else if (rc == 0)
        host_note(r->host,
                  "%s: %s from %s %s to it: all %zu arrays, state and record "
                  "are equal",
                  claim, steps, file, one ? "leads" : "lead", t->train.arrays.n);
    buf_free(&words);
    return rc;
}
