/* SPDX-License-Identifier: MIT */
/* course: see course.h.  Ids stay in the file (those of a pipe in memory) and are read again
 * for each step, when tok_at verifies their hash.  In memory are the lengths of samples and
 * the order of the current epoch. */
#include "lib/train/course.h"

#include "lib/base/grow.h"
#include "lib/base/shuffle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- reading -------------------------------------------------------------------------- */

static int
no_memory(struct err *err)
{
    return err_set(err, ERR_MEMORY, "out of memory for the data");
}

static int
add_sample(struct course *d, const struct tok_sample *s, struct err *err)
{
    if (!GROW(d->sample, d->n, d->cap, 1024))
        return no_memory(err);
    d->sample[d->n++] = (struct length){ s->n, s->targets };
    d->packed |= s->n_starts > 1;
    return 0;
}

static int
check_sample(const struct tok_reader *t, const struct tok_sample *s,
             const struct config *c, struct err *err)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->ids[i] >= c->vocab)
            return err_set(
                err, ERR_FORMAT,
                "%s: sample %llu: id %u at position %u, the model's vocabulary is %u: "
                "expected samples made with this model's tokenizer (tokenize -t)",
                t->name, (unsigned long long)s->index, s->ids[i], i, c->vocab);
    return 0;
}

/* Of an empty standard input, that -d names a file. */
static int
open_stream(struct tok_reader *t, const char *path, struct err *err)
{
    struct err why = { 0 };
    if (tok_open(t, path, TOK_KEEP, &why) == 0) {
        t->err = err;
        return 0;
    }
    bool nothing = strcmp(path, "-") == 0 && t->have == 0 && why.kind == ERR_FORMAT;
    return err_set(err, why.kind, "%s%s", why.msg,
                   nothing ? ", or -d FILE, which takes one" : "");
}

static int
read_samples(struct course *d, struct tok_reader *t, const char *path,
             const struct config *c, struct err *err)
{
    struct tok_sample s;
    size_t before = d->n;
    int rc;
    if (open_stream(t, path, err) < 0)
        return -1;
    const struct tok_header *h = &t->header;
    if (h->has_vocab && h->vocab > c->vocab)
        return err_set(err, ERR_FORMAT,
                       "%s: made for a vocabulary of %llu, the model has %u: expected "
                       "samples made with this model's tokenizer (tokenize -t)",
                       t->name, (unsigned long long)h->vocab, c->vocab);
    while ((rc = tok_next(t, &s)) > 0)
        if (check_sample(t, &s, c, err) < 0 || add_sample(d, &s, err) < 0)
            return -1;
    if (rc == 0 && d->n == before)
        return err_set(err, ERR_FORMAT,
                       "%s: there are no samples: expected at least one; tokenize says "
                       "on standard error which lines it skips",
                       t->name);
    return rc;
}

int
course_check_file(const char *path, struct err *err)
{
    struct tok_reader t;
    struct stat st;
    if (!path || (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) ||
        strcmp(path, "-") == 0)
        return 0;
    int rc = tok_open(&t, path, 0, err);
    tok_close(&t);
    return rc;
}

int
course_check(const struct course *d, const struct config *c, struct err *err)
{
    if (d->vocab != c->vocab)
        return err_set(
            err, ERR_FORMAT,
            "%s: was read for a vocabulary of %u, and the checkpoint that another "
            "process has put there meanwhile has one of %u: start again",
            d->tok.name, d->vocab, c->vocab);
    return 0;
}

int
course_open(struct course *d, const char *path, const struct config *c, struct err *err)
{
    *d = (struct course){ .vocab = c->vocab };
    int rc = read_samples(d, &d->tok, path, c, err);
    d->by_label = d->n;
    return rc;
}

int
course_assume(struct course *d, uint32_t positions, const struct config *c,
              struct err *err)
{
    const struct tok_sample one = { .n = positions + 1, .targets = positions };
    *d = (struct course){ .vocab = c->vocab, .by_label = 1 };
    return add_sample(d, &one, err);
}

int
course_open_taught(struct course *d, const char *path, const struct config *c,
                   struct err *err)
{
    d->has_taught = true;
    return read_samples(d, &d->taught, path, c, err);
}

/* Of one stream its own hash, of two the hash of both. */
void
course_hash(const struct course *d, uint8_t xxh3[XXH3_BYTES])
{
    uint8_t both[2 * XXH3_BYTES];
    memcpy(xxh3, d->tok.end.xxh3, XXH3_BYTES);
    if (!d->has_taught)
        return;
    memcpy(both, d->tok.end.xxh3, XXH3_BYTES);
    memcpy(both + XXH3_BYTES, d->taught.end.xxh3, XXH3_BYTES);
    xxh3_128(xxh3, both, sizeof both);
}

/* The stream of a sample, whose index there it makes *i. */
static struct tok_reader *
stream_of(struct course *d, size_t *i)
{
    if (*i < d->by_label)
        return &d->tok;
    *i -= d->by_label;
    return &d->taught;
}

void
course_close(struct course *d)
{
    tok_close(&d->tok);
    if (d->has_taught)
        tok_close(&d->taught);
    free(d->sample);
    free(d->ticket);
    free(d->batch);
    free(d->ids.v);
    free(d->label.v);
    free(d->position.v);
    free(d->first.v);
    free(d->is_taught.v);
}

size_t
course_length(const struct course *d)
{
    size_t max = 0;
    for (size_t i = 0; i < d->n; i++)
        max = d->sample[i].ids > max ? d->sample[i].ids : max;
    return max ? max - 1 : 0;
}

bool
course_is_even(const struct course *d)
{
    for (size_t i = 1; i < d->n; i++)
        if (d->sample[i].ids != d->sample[0].ids)
            return false;
    return !d->packed;
}

/* The line of a sample in the text that it was made of, from 1; 0: unknown. */
static unsigned long long
line_of(const struct tok_reader *t, uint64_t sample)
{
    static const char *const moves[] = { "\"shuffle\":null", "\"invalid\"" };
    const struct tok_header *h = &t->header;
    bool moved = h->packed || t->end.skipped || t->end.n_inputs != 1;
    struct slice s = h->settings;
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++)
        moved |= !memmem(s.p, s.n, moves[i], strlen(moves[i]));
    moved |= memmem(s.p, s.n, "\"chunk\"", 7) || memmem(s.p, s.n, "\"split\"", 7);
    return moved ? 0 : (unsigned long long)sample + 1;
}

/* " (line 7 of its text)", or where that is not known what shows the sample. */
static const char *
put_line(char out[64], const struct tok_reader *t, uint64_t sample)
{
    unsigned long long line = line_of(t, sample);
    if (line)
        snprintf(out, 64, " (line %llu of its text)", line);
    else
        snprintf(out, 64, " (tokenize --decode shows it, datcat --values %llu its ids)",
                 (unsigned long long)sample);
    return out;
}

static int
refuse_long(const struct tok_reader *t, size_t sample, uint32_t ids, uint64_t seq_len,
            uint64_t limit, const struct config *c, struct err *err)
{
    char line[64], longer[64] = "";
    unsigned long long n = limit;
    if (seq_len && ids - 1 <= c->positions)
        snprintf(longer, sizeof longer, "--seq-len %u takes it, ", ids - 1);
    return err_set(
        err, ERR_FORMAT,
        "%s: sample %zu%s has %u ids, %s %llu allows %llu: %stokenize --chunk %llu "
        "cuts documents, tokenize --seq-len %llu keeps the last ids of a sample",
        t->name, sample, put_line(line, t, sample), ids,
        seq_len ? "--seq-len" : "the model's context of", n, n + 1, longer, n, n);
}

int
course_settle(struct course *d, const struct settings *s, const struct config *c,
              struct err *err)
{
    uint64_t limit = s->seq_len ? s->seq_len : c->positions;
    d->s = s;
    for (size_t i = 0; i < d->n; i++)
        if (d->sample[i].ids > limit + 1) {
            size_t in_stream = i;
            const struct tok_reader *t = stream_of(d, &in_stream);
            return refuse_long(t, in_stream, d->sample[i].ids, s->seq_len, limit, c,
                               err);
        }
    if (limit > c->positions)
        return err_set(
            err, ERR_USAGE,
            "--seq-len: %llu, the model's context is %u: expected at most %u",
            (unsigned long long)limit, c->positions, c->positions);
    return 0;
}

/* ---- order ------------------------------------------------------------------------------ */

/* Half of what a checkpoint can hold, so that no run reaches its end. */
static const uint64_t max_epoch = (uint64_t)1 << 62;

static int
make_order(struct course *d, struct err *err)
{
    if (d->ticket && d->ordered == d->epoch)
        return 0;
    if (!d->ticket && !(d->ticket = malloc(d->n * sizeof *d->ticket)))
        return no_memory(err);
    shuffle(d->ticket, d->n, (uint32_t)d->s->seed, (uint32_t)d->epoch);
    d->ordered = d->epoch;
    return 0;
}

int
course_seek(struct course *d, uint64_t epoch, uint64_t index, struct err *err)
{
    if (index > d->n)
        return err_set(
            err, ERR_FORMAT,
            "%s: the checkpoint goes on at sample %llu: expected at most %zu, as many "
            "as there are",
            d->tok.name, (unsigned long long)index, d->n);
    if (epoch >= max_epoch)
        return err_set(
            err, ERR_FORMAT,
            "%s: the checkpoint goes on in epoch %llu: expected less than %llu",
            d->tok.name, (unsigned long long)epoch, (unsigned long long)max_epoch);
    d->epoch = epoch;
    d->index = index;
    return 0;
}

/* *at: the index of the next sample in the file. */
static int
next_sample(struct course *d, size_t *at, struct err *err)
{
    if (d->index >= d->n) {
        d->epoch++;
        d->index = 0;
    }
    *at = (size_t)d->index++;
    if (d->s->order == ORDER_FILE)
        return 0;
    if (make_order(d, err) < 0)
        return -1;
    *at = (size_t)d->ticket[*at].index;
    return 0;
}

/* ---- passes ----------------------------------------------------------------------------- */

static void
push(struct buf32 *b, int32_t v)
{
    if (GROW(b->v, b->n, b->cap, 4096))
        b->v[b->n++] = v;
    else
        b->failed = true;
}

/* All ids but the last are inputs, whose labels are the ids that follow.  Attention does not
 * cross the documents of a packed sample. */
static void
add_inputs(struct course *d, const struct tok_sample *s, size_t base, bool taught)
{
    int32_t start = 0;
    uint32_t doc = 0;
    for (uint32_t i = 0; i + 1 < s->n; i++) {
        if (doc < s->n_starts && s->starts[doc] == i) {
            start = (int32_t)i;
            doc++;
        }
        push(&d->ids, (int32_t)s->ids[i]);
        push(&d->label, s->flags[i + 1] & TOK_TARGET ? (int32_t)s->ids[i + 1] : -1);
        push(&d->position, (int32_t)i - start);
        push(&d->first, (int32_t)(d->ids.n - 1 - base) - ((int32_t)i - start));
        push(&d->is_taught, taught);
    }
}

static bool
has_failed(const struct course *d)
{
    return d->ids.failed || d->label.failed || d->position.failed || d->first.failed ||
           d->is_taught.failed;
}

static int
add_to_pass(struct course *d, size_t sample, size_t base, struct err *err)
{
    struct tok_sample s;
    bool taught = sample >= d->by_label;
    struct tok_reader *t = stream_of(d, &sample);
    t->err = err;
    if (tok_at(t, sample, &s) < 0)
        return -1;
    add_inputs(d, &s, base, taught);
    return has_failed(d) ? no_memory(err) : 0;
}

static void
clear(struct course *d)
{
    d->ids.n = d->label.n = d->position.n = d->first.n = d->is_taught.n = 0;
}

/* Set the pointers of the passes; the arrays grow no more. */
static void
set_pointers(struct course *d)
{
    size_t at = 0;
    for (size_t i = 0; i < d->n_batches; i++) {
        struct net_batch *b = &d->batch[i];
        b->ids = d->ids.v + at;
        b->label = d->label.v + at;
        b->position = d->position.v + at;
        b->first = d->first.v + at;
        b->taught = d->has_taught ? d->is_taught.v + at : NULL;
        at += b->tokens;
    }
}

static int
alloc_passes(struct course *d, size_t passes, struct err *err)
{
    struct net_batch *v = realloc(d->batch, passes * sizeof *v);
    if (!v)
        return no_memory(err);
    d->batch = v;
    d->n_batches = passes;
    return 0;
}

int
course_step(struct course *d, struct err *err)
{
    size_t i;
    if (alloc_passes(d, (size_t)d->s->accum, err) < 0)
        return -1;
    clear(d);
    for (size_t a = 0; a < d->n_batches; a++) {
        size_t base = d->ids.n;
        for (uint64_t b = 0; b < d->s->batch; b++)
            if (next_sample(d, &i, err) < 0 || add_to_pass(d, i, base, err) < 0)
                return -1;
        d->batch[a] = (struct net_batch){ .tokens = d->ids.n - base };
    }
    set_pointers(d);
    return 0;
}

int
course_skip(struct course *d, struct err *err)
{
    size_t at;
    for (uint64_t i = 0; i < d->s->accum * d->s->batch; i++)
        if (next_sample(d, &at, err) < 0)
            return -1;
    return 0;
}

int
course_range(struct course *d, size_t from, size_t n, struct err *err)
{
    if (alloc_passes(d, 1, err) < 0)
        return -1;
    clear(d);
    for (size_t i = from; i < from + n && i < d->n; i++)
        if (add_to_pass(d, i, 0, err) < 0)
            return -1;
    d->batch[0] = (struct net_batch){ .tokens = d->ids.n };
    set_pointers(d);
    return 0;
}

int
course_max(struct course *d, uint64_t steps, size_t *tokens, size_t *labels,
           struct err *err)
{
    enum { WALK = 1 << 22 }; // samples to look ahead; beyond that a bound
    uint64_t epoch = d->epoch, index = d->index, pass = d->s->batch;
    *tokens = *labels = 0;
    if (steps > WALK || steps * d->s->accum > WALK / pass) {
        for (size_t i = 0; i < d->n; i++) {
            size_t t = (d->sample[i].ids - 1) * (size_t)pass;
            size_t l = d->sample[i].targets * (size_t)pass;
            *tokens = t > *tokens ? t : *tokens;
            *labels = l > *labels ? l : *labels;
        }
        return 0;
    }
    for (uint64_t i = 0; i < steps * d->s->accum; i++) {
        size_t t = 0, l = 0, at;
        for (uint64_t b = 0; b < d->s->batch; b++) {
            if (next_sample(d, &at, err) < 0)
                return -1;
            t += d->sample[at].ids - 1;
            l += d->sample[at].targets;
        }
        *tokens = t > *tokens ? t : *tokens;
        *labels = l > *labels ? l : *labels;
    }
    d->epoch = epoch;
    d->index = index;
    return 0;
}
