/* SPDX-License-Identifier: MIT */
/* data: see trainstep.h.  Ids stay in the file (those of a pipe in memory) and are read again
 * for each step, when tok_at verifies their hash.  In memory are the lengths of samples and
 * the order of the current epoch. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/shuffle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- reading -------------------------------------------------------------------------- */

static void
no_memory(void)
{
    die(EXIT_MEMORY, "out of memory for the data");
}

static void
add_sample(struct data *d, const struct tok_sample *s)
{
    if (d->n == d->cap) {
        d->cap = d->cap ? 2 * d->cap : 1024;
        struct sample *v = realloc(d->sample, d->cap * sizeof *v);
        if (!v)
            no_memory();
        d->sample = v;
    }
    d->sample[d->n++] = (struct sample){ s->n, s->targets };
    d->packed |= s->n_starts > 1;
}

static void
check_sample(const struct tok_reader *t, const struct tok_sample *s,
             const struct config *c)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->ids[i] >= c->vocab)
            die(EXIT_TROUBLE,
                "%s: sample %llu: id %u at position %u, the model's vocabulary is %u: "
                "expected samples made with this model's tokenizer (tokenize -t)",
                t->name, (unsigned long long)s->index, s->ids[i], i, c->vocab);
}

static void
read_samples(struct data *d, struct tok_reader *t, const char *path,
             const struct config *c)
{
    struct err err = { 0 };
    struct tok_sample s;
    size_t before = d->n;
    int rc;
    if (tok_open(t, path, TOK_KEEP, &err) < 0) {
        bool nothing = strcmp(path, "-") == 0 && t->have == 0 && err.kind == ERR_FORMAT;
        die(cmd_status(&err), "%s%s", err.msg,
            nothing ? ", or -d FILE, which takes one" : "");
    }
    const struct tok_header *h = &t->header;
    if (h->has_vocab && h->vocab > c->vocab)
        die(EXIT_TROUBLE,
            "%s: made for a vocabulary of %llu, the model has %u: expected samples "
            "made "
            "with this model's tokenizer (tokenize -t)",
            t->name, (unsigned long long)h->vocab, c->vocab);
    while ((rc = tok_next(t, &s)) > 0) {
        check_sample(t, &s, c);
        add_sample(d, &s);
    }
    if (rc < 0)
        die_err(&err);
    if (d->n == before)
        die(EXIT_TROUBLE,
            "%s: there are no samples: expected at least one; tokenize says on "
            "standard "
            "error which lines it skips",
            t->name);
}

void
data_check_file(const char *path)
{
    struct err err = { 0 };
    struct tok_reader t;
    struct stat st;
    if (!path || (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) ||
        strcmp(path, "-") == 0)
        return;
    if (tok_open(&t, path, 0, &err) < 0)
        die_err(&err);
    tok_close(&t);
}

void
data_check(const struct data *d, const struct config *c)
{
    if (d->vocab != c->vocab)
        die(EXIT_TROUBLE,
            "%s: was read for a vocabulary of %u, and the checkpoint that another "
            "process has put there meanwhile has one of %u: start again",
            d->tok.name, d->vocab, c->vocab);
}

void
data_open(struct data *d, const char *path, const struct config *c)
{
    *d = (struct data){ .vocab = c->vocab };
    read_samples(d, &d->tok, path, c);
    d->by_label = d->n;
}

void
data_assume(struct data *d, uint32_t positions, const struct config *c)
{
    *d = (struct data){ .vocab = c->vocab, .by_label = 1 };
    add_sample(d, &(struct tok_sample){ .n = positions + 1, .targets = positions });
}

void
data_open_taught(struct data *d, const char *path, const struct config *c)
{
    d->has_taught = true;
    read_samples(d, &d->taught, path, c);
}

/* Of one stream its own hash, of two the hash of both. */
void
data_hash(const struct data *d, uint8_t xxh3[XXH3_BYTES])
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
stream_of(struct data *d, size_t *i)
{
    if (*i < d->by_label)
        return &d->tok;
    *i -= d->by_label;
    return &d->taught;
}

void
data_close(struct data *d)
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
data_length(const struct data *d)
{
    size_t max = 0;
    for (size_t i = 0; i < d->n; i++)
        max = d->sample[i].ids > max ? d->sample[i].ids : max;
    return max ? max - 1 : 0;
}

bool
data_is_even(const struct data *d)
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

static _Noreturn void
refuse_long(const struct tok_reader *t, size_t sample, uint32_t ids, uint64_t seq_len,
            uint64_t limit, const struct config *c)
{
    char line[64], longer[64] = "";
    unsigned long long n = limit;
    if (seq_len && ids - 1 <= c->positions)
        snprintf(longer, sizeof longer, "--seq-len %u takes it, ", ids - 1);
    die(EXIT_TROUBLE,
        "%s: sample %zu%s has %u ids, %s %llu allows %llu: %stokenize --chunk %llu "
        "cuts documents, tokenize --seq-len %llu keeps the last ids of a sample",
        t->name, sample, put_line(line, t, sample), ids,
        seq_len ? "--seq-len" : "the model's context of", n, n + 1, longer, n, n);
}

void
data_settle(struct data *d, const struct settings *s, const struct config *c)
{
    uint64_t limit = s->seq_len ? s->seq_len : c->positions;
    d->s = s;
    for (size_t i = 0; i < d->n; i++)
        if (d->sample[i].ids > limit + 1) {
            size_t in_stream = i;
            const struct tok_reader *t = stream_of(d, &in_stream);
            refuse_long(t, in_stream, d->sample[i].ids, s->seq_len, limit, c);
        }
    if (limit > c->positions)
        die(EXIT_TROUBLE,
            "--seq-len: %llu, the model's context is %u: expected at most %u",
            (unsigned long long)limit, c->positions, c->positions);
}

/* ---- order ------------------------------------------------------------------------------ */

/* Half of what a checkpoint can hold, so that no run reaches its end. */
static const uint64_t max_epoch = (uint64_t)1 << 62;

static void
make_order(struct data *d)
{
    if (d->ticket && d->ordered == d->epoch)
        return;
    if (!d->ticket && !(d->ticket = malloc(d->n * sizeof *d->ticket)))
        no_memory();
    shuffle(d->ticket, d->n, (uint32_t)d->s->seed, (uint32_t)d->epoch);
    d->ordered = d->epoch;
}

void
data_seek(struct data *d, uint64_t epoch, uint64_t index)
{
    if (index > d->n)
        die(EXIT_TROUBLE,
            "%s: the checkpoint goes on at sample %llu: expected at most %zu, as many "
            "as there are",
            d->tok.name, (unsigned long long)index, d->n);
    if (epoch >= max_epoch)
        die(EXIT_TROUBLE,
            "%s: the checkpoint goes on in epoch %llu: expected less than %llu",
            d->tok.name, (unsigned long long)epoch, (unsigned long long)max_epoch);
    d->epoch = epoch;
    d->index = index;
}

/* The index of the next sample in the file. */
static size_t
next_sample(struct data *d)
{
    if (d->index >= d->n) {
        d->epoch++;
        d->index = 0;
    }
    size_t i = (size_t)d->index++;
    if (d->s->order == ORDER_FILE)
        return i;
    make_order(d);
    return (size_t)d->ticket[i].index;
}

/* ---- passes ----------------------------------------------------------------------------- */

static void
push(struct buf32 *b, int32_t v)
{
    if (b->n == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 4096;
        int32_t *p = realloc(b->v, b->cap * sizeof *p);
        if (!p)
            no_memory();
        b->v = p;
    }
    b->v[b->n++] = v;
}

/* All ids but the last are inputs, whose labels are the ids that follow.  Attention does not
 * cross the documents of a packed sample. */
static void
add_inputs(struct data *d, const struct tok_sample *s, size_t base, bool taught)
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

static void
add_to_pass(struct data *d, size_t sample, size_t base)
{
    struct tok_sample s;
    struct err err = { 0 };
    bool taught = sample >= d->by_label;
    struct tok_reader *t = stream_of(d, &sample);
    t->err = &err;
    if (tok_at(t, sample, &s) < 0)
        die_err(&err);
    add_inputs(d, &s, base, taught);
}

static void
clear(struct data *d)
{
    d->ids.n = d->label.n = d->position.n = d->first.n = d->is_taught.n = 0;
}

/* Set the pointers of the passes; the arrays grow no more. */
static void
set_pointers(struct data *d)
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

static void
alloc_passes(struct data *d, size_t passes)
{
    struct net_batch *v = realloc(d->batch, passes * sizeof *v);
    if (!v)
        no_memory();
    d->batch = v;
    d->n_batches = passes;
}

void
data_step(struct data *d)
{
    alloc_passes(d, (size_t)d->s->accum);
    clear(d);
    for (size_t a = 0; a < d->n_batches; a++) {
        size_t base = d->ids.n;
        for (uint64_t b = 0; b < d->s->batch; b++)
            add_to_pass(d, next_sample(d), base);
        d->batch[a] = (struct net_batch){ .tokens = d->ids.n - base };
    }
    set_pointers(d);
}

void
data_skip(struct data *d)
{
    for (uint64_t i = 0; i < d->s->accum * d->s->batch; i++)
        next_sample(d);
}

void
data_range(struct data *d, size_t from, size_t n)
{
    alloc_passes(d, 1);
    clear(d);
    for (size_t i = from; i < from + n && i < d->n; i++)
        add_to_pass(d, i, 0);
    d->batch[0] = (struct net_batch){ .tokens = d->ids.n };
    set_pointers(d);
}

void
data_max(struct data *d, uint64_t steps, size_t *tokens, size_t *labels)
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
        return;
    }
    for (uint64_t i = 0; i < steps * d->s->accum; i++) {
        size_t t = 0, l = 0;
        for (uint64_t b = 0; b < d->s->batch; b++) {
            const struct sample *s = &d->sample[next_sample(d)];
            t += s->ids - 1;
            l += s->targets;
        }
        *tokens = t > *tokens ? t : *tokens;
        *labels = l > *labels ? l : *labels;
    }
    d->epoch = epoch;
    d->index = index;
}
