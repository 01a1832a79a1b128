/* SPDX-License-Identifier: MIT */
/* score: see score.h.  The other model is known by its logits in a file, or is there itself. */
#include "lib/infer/score.h"

#include "lib/base/grow.h"
#include "lib/base/json.h"
#include "lib/base/maths.h"
#include "lib/base/os.h"
#include "lib/format/tok.h"
#include "lib/infer/defaults.h"
#include "lib/infer/importance.h"
#include "lib/infer/reference.h"
#include "lib/infer/tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128, CHUNK_GPU = 2048 }; // positions a pass; where logits stay on a GPU

/* What was found of a sample.  Samples' sums are added in their order, so that no number of ranks, which
 * take samples in turn, changes a bit. */
struct sums {
    double loss, reference_loss, divergence;
    uint64_t tokens, targets, agree;
};

struct score {
    struct session *s;
    struct ranks *ranks;
    struct sequence q; // whose cache is used
    struct tok_reader tok;
    uint32_t *length; // (n) ids
    size_t n, cap;
    uint64_t longest; // document
    size_t chunk;
    float *
        logits; // (chunk, vocab) for --logits and --kl; else NULL: they stay on the device
    float *other;            // (vocab) of --kl
    int32_t *label;          // (chunk) -1: none
    struct net_scores found; // (chunk)
    struct store kl;
    bool has_kl;
    struct reference reference; // of --kl-model
    bool has_reference;
    float *divergences; // (targets) of --kl and --kl-model
    struct dump *dump;  // (n) of --logits
    char (*names)[32];  // (n)
    struct dumper out;
    bool has_out;
    struct sums *of_sample; // (n) those of a rank behind those of the one before
    size_t *at;             // (ranks + 1) where they begin
    struct sums *now;       // of the sample that is scored
    struct sums all;
    uint64_t n_divergences; // so far
};

/* ---- the samples ---------------------------------------------------------------------------- */

static int
check_header(struct score *x)
{
    const struct tok_header *h = &x->tok.header;
    uint32_t vocab = x->s->model.config.vocab;
    if (h->has_vocab && h->vocab > vocab)
        return err_set(x->s->err, ERR_FORMAT,
                       "%s: made for a vocabulary of %llu, the model's vocab_size is "
                       "%u",
                       x->tok.name, (unsigned long long)h->vocab, vocab);
    bool other = false;
    if (h->has_tokenizer && defaults_tokenizer(x->s, h->tokenizer, &other) < 0)
        return -1;
    if (other)
        return err_set(x->s->err, ERR_FORMAT,
                       "%s: made with another tokenizer than the data that the "
                       "checkpoint was trained on: "
                       "make it again with that one (tokenize -t)",
                       x->tok.name);
    return 0;
}

/* The end of the document that begins at `from`. */
static uint32_t
document_end(const struct tok_sample *t, uint32_t from)
{
    uint32_t end = from + 1;
    while (end < t->n && !(t->flags[end] & TOK_START))
        end++;
    return end;
}

static int
check_sample(struct score *x, const struct tok_sample *t)
{
    const struct session *s = x->s;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->ids[i] >= s->model.config.vocab)
            return err_set(s->err, ERR_FORMAT,
                           "%s: sample %llu: id %u at position %u: the model's "
                           "vocab_size is %u",
                           x->tok.name, (unsigned long long)t->index, t->ids[i], i,
                           s->model.config.vocab);
    for (uint32_t from = 0, end; from < t->n; from = end) {
        end = document_end(t, from);
        uint64_t length = end - from - (end == t->n);
        if (length > s->limit)
            return err_set(
                s->err, ERR_USAGE,
                "%s: sample %llu: %llu positions, the context has %zu: tokenize "
                "--chunk cuts documents, --seq-len shortens samples",
                x->tok.name, (unsigned long long)t->index, (unsigned long long)length,
                s->limit);
        x->longest = length > x->longest ? length : x->longest;
    }
    return 0;
}

static int
add_length(struct score *x, const struct tok_sample *t)
{
    if (!GROW(x->length, x->n, x->cap, 1024))
        return err_set(x->s->err, ERR_MEMORY, "out of memory for %zu samples", x->n);
    x->length[x->n++] = t->n;
    return 0;
}

/* Read all of the stream, so that damage is reported before the work. */
static int
read_samples(struct score *x)
{
    struct tok_sample t;
    int more;
    if (tok_open(&x->tok, x->s->c->score, TOK_KEEP, x->s->err) < 0 ||
        check_header(x) < 0)
        return -1;
    while ((more = tok_next(&x->tok, &t)) > 0)
        if (check_sample(x, &t) < 0 || add_length(x, &t) < 0)
            return -1;
    return more;
}

/* ---- other files ------------------------------------------------------------------------------ */

static int
open_out(struct score *x)
{
    const struct session *s = x->s;
    if (!s->c->logits)
        return 0;
    x->dump = calloc(x->n + 1, sizeof *x->dump);
    x->names = calloc(x->n + 1, sizeof *x->names);
    if (!x->dump || !x->names)
        return err_set(s->err, ERR_MEMORY, "out of memory for %zu samples", x->n);
    for (size_t i = 0; i < x->n; i++) {
        snprintf(x->names[i], sizeof x->names[i], "logits.%zu", i);
        x->dump[i] = (struct dump){ x->names[i],
                                    { x->length[i] - 1, s->model.config.vocab },
                                    NULL };
    }
    x->has_out = true;
    return dump_open(&x->out, s, NULL, s->c->logits, x->dump, x->n, &x->tok);
}

/* The logits of a sample in the file of --kl. */
static const struct tensor *
find_kl(struct score *x, size_t i, uint32_t positions)
{
    const struct session *s = x->s;
    char name[32];
    uint32_t vocab = s->model.config.vocab;
    snprintf(name, sizeof name, "logits.%zu", i);
    const struct tensor *t = store_find(&x->kl, slice_of(name));
    if (!t)
        err_set(s->err, ERR_FORMAT, "%s: \"%s\" is missing", x->kl.name, name);
    else if (t->dtype != DT_F32 || t->rank != 2 || t->shape[0] != positions ||
             t->shape[1] != vocab)
        err_set(s->err, ERR_FORMAT, "%s: \"%s\": expected f32 [%u, %u]", x->kl.name,
                name, positions, vocab);
    return s->err->kind ? NULL : t;
}

/* Open the file of --kl; shapes must be those of the samples. */
static int
open_kl(struct score *x)
{
    struct session *s = x->s;
    struct store_options o = { .guard = x->s->c->host->guard,
                               .tmpdir = x->s->c->host->tmpdir };
    if (!s->c->kl)
        return 0;
    x->has_kl = true;
    x->other = malloc(s->model.config.vocab * sizeof *x->other);
    if (!x->other)
        return err_set(s->err, ERR_MEMORY, "out of memory for logits");
    if (store_open(&x->kl, s->c->kl, &o, s->err) < 0)
        return -1;
    for (size_t i = 0; i < x->n; i++)
        if (!find_kl(x, i, x->length[i] - 1))
            return -1;
    if (x->kl.n_tensors != x->n)
        return err_set(s->err, ERR_FORMAT, "%s: has %zu tensors for %zu samples",
                       x->kl.name, x->kl.n_tensors, x->n);
    return 0;
}

/* ---- the work ----------------------------------------------------------------------------------- */

/* A sample.  With --logits in the order of the writer's tensors, which are sorted by name. */
struct at {
    const struct tok_sample *t;
    size_t sample; // its index in the file
    const struct tensor *kl;
};

/* What is known of the target that was just counted, beside the other model. */
static void
add_compared(struct score *x, double kl, double reference_loss, bool agree)
{
    x->now->divergence += kl;
    x->now->reference_loss += reference_loss;
    x->now->agree += agree;
    x->divergences[x->n_divergences++] = (float)kl;
}

static bool
is_target(const struct tok_sample *t, uint32_t i)
{
    return !(t->flags[i] & TOK_START) && t->flags[i] & TOK_TARGET;
}

static int
not_finite(const struct score *x, const struct at *at, uint32_t i)
{
    return err_set(x->s->err, ERR_NONFINITE,
                   "%s: sample %zu: logits of position %u are not finite", x->tok.name,
                   at->sample, i);
}

/* KL(file || model) at one position. */
static int
compare(struct score *x, const struct at *at, uint32_t position, const float *logits,
        double sum)
{
    size_t vocab = x->s->model.config.vocab, bytes = vocab * sizeof *x->other;
    double kl = 0;
    if (store_read(&x->kl, at->kl, position * (uint64_t)bytes, x->other, bytes,
                   x->s->err) < 0)
        return -1;
    if (!logits_finite(x->other, vocab))
        return err_set(x->s->err, ERR_NONFINITE,
                       "%s: logits.%zu, position %u: not finite", x->kl.name,
                       at->sample, position);
    double their_sum = logits_log_sum(x->other, vocab);
    for (size_t i = 0; i < vocab; i++) {
        double theirs = (double)x->other[i] - their_sum;
        if (theirs > -690)
            kl += maths_exp(theirs) * (theirs - ((double)logits[i] - sum));
    }
    add_compared(x, kl, their_sum - (double)x->other[at->t->ids[position + 1]],
                 logits_best(x->other, vocab) == logits_best(logits, vocab));
    return 0;
}

/* Add position i of a sample to the sums. */
static int
score_position(struct score *x, const struct at *at, uint32_t i, const float *logits)
{
    struct session *s = x->s;
    size_t vocab = s->model.config.vocab;
    if (!logits_finite(logits, vocab))
        return not_finite(x, at, i);
    if (x->has_out && writer_write(&x->out.w, logits, vocab * sizeof *logits) < 0)
        return -1;
    if (!is_target(at->t, i + 1))
        return 0;
    double sum = logits_log_sum(logits, vocab);
    x->now->loss += sum - (double)logits[at->t->ids[i + 1]];
    x->now->targets++;
    return x->has_kl ? compare(x, at, i, logits, sum) : 0;
}

/* Add what the device has found of position i of a sample, its row r. */
static int
add_row(struct score *x, const struct at *at, uint32_t i, uint32_t r)
{
    const struct net_scores *found = &x->found;
    if (found->best[r] < 0)
        return not_finite(x, at, i);
    if (x->has_reference && found->teacher_best[r] < 0)
        return err_set(x->s->err, ERR_NONFINITE,
                       "%s: logits of position %u of sample %zu are not finite",
                       x->reference.model.store.name, i, at->sample);
    if (x->label[r] < 0)
        return 0;
    x->now->targets++;
    x->now->loss += (double)found->ce[r];
    if (x->has_reference)
        add_compared(x, (double)found->kl[r], (double)found->teacher_ce[r],
                     found->best[r] == found->teacher_best[r]);
    return 0;
}

/* Positions from .. end - 1, the last `rows` of which are scored where they are computed. */
static int
score_on_device(struct score *x, const struct at *at, uint32_t from, uint32_t end,
                uint32_t rows)
{
    struct session *s = x->s;
    struct net *net = &s->model.net;
    const struct tok_sample *t = at->t;
    const int32_t *ids = (const int32_t *)t->ids + from;
    uint32_t first = end - rows;
    for (uint32_t i = 0; i < rows; i++)
        x->label[i] = is_target(t, first + i + 1) ? (int32_t)t->ids[first + i + 1] : -1;
    if (net_extend(net, &x->q.cache, ids, end - from, rows, NULL, NULL, NULL) < 0)
        return -1;
    if (x->has_reference && net_extend(net->teacher, &x->reference.cache, ids,
                                       end - from, rows, NULL, NULL, NULL) < 0)
        return -1;
    if (net_score(net, x->label, rows, &x->found) < 0)
        return -1;
    for (uint32_t i = 0; i < rows; i++)
        if (add_row(x, at, first + i, i) < 0)
            return -1;
    return 0;
}

/* Run positions from .. end - 1; logits are needed from `want` on. */
static int
run_chunk(struct score *x, const struct at *at, uint32_t from, uint32_t end,
          uint32_t want)
{
    struct session *s = x->s;
    size_t vocab = s->model.config.vocab;
    if (want < from)
        want = from;
    uint32_t rows = want < end ? end - want : 0;
    if (!x->logits)
        return score_on_device(x, at, from, end, rows);
    if (session_extend(s, &x->q, at->t->ids + from, end - from, rows, x->logits) < 0)
        return -1;
    for (uint32_t i = 0; i < rows; i++)
        if (score_position(x, at, want + i, x->logits + i * vocab) < 0)
            return -1;
    return 0;
}

/* The first position whose logits are needed. */
static uint32_t
first_wanted(const struct score *x, const struct tok_sample *t, uint32_t from,
             uint32_t end)
{
    if (x->has_out || x->s->c->dump_importance) // which measures the head, too
        return from;
    for (uint32_t i = from; i < end; i++)
        if (is_target(t, i + 1))
            return i;
    return end;
}

static int
score_sample(struct score *x, const struct at *at)
{
    const struct tok_sample *t = at->t;
    for (uint32_t from = 0, end; from < t->n; from = end) {
        end = document_end(t, from);
        uint32_t stop = end - (end == t->n), want = first_wanted(x, t, from, stop);
        x->q.cache.used = x->reference.cache.used = 0;
        for (uint32_t i = from, n; i < stop; i += n) {
            n = stop - i < x->chunk ? stop - i : (uint32_t)x->chunk;
            if (run_chunk(x, at, i, i + n, want) < 0)
                return -1;
        }
        x->now->tokens += stop - from;
    }
    return 0;
}

/* Ranks take samples in turn. */
static struct sums *
sums_of(struct score *x, size_t sample)
{
    unsigned ranks = x->ranks->size;
    return &x->of_sample[x->at[sample % ranks] + sample / ranks];
}

static int
score_all(struct score *x)
{
    struct session *s = x->s;
    for (size_t k = x->ranks->rank; k < x->n; k += x->ranks->size) {
        struct tok_sample t;
        struct at at = { &t, x->has_out ? x->out.t[k].tag : k, NULL };
        x->now = sums_of(x, at.sample);
        if (tok_at(&x->tok, at.sample, &t) < 0)
            return -1;
        if (x->has_kl && !(at.kl = find_kl(x, at.sample, t.n - 1)))
            return -1;
        if (score_sample(x, &at) < 0)
            return -1;
    }
    if (x->has_out && dump_commit(&x->out) < 0)
        return -1;
    if (x->has_reference && store_check(&x->reference.model.store) < 0)
        return -1;
    return store_check(&s->model.store);
}

/* ---- several ranks ---------------------------------------------------------------------------------- */

static int
no_memory(const struct score *x)
{
    return err_set(x->s->err, ERR_MEMORY, "out of memory for --score");
}

static int
alloc_sums(struct score *x)
{
    unsigned ranks = x->ranks->size;
    x->of_sample = calloc(x->n + 1, sizeof *x->of_sample);
    x->at = calloc((size_t)ranks + 1, sizeof *x->at);
    if (!x->of_sample || !x->at)
        return no_memory(x);
    for (unsigned q = 0; q < ranks; q++)
        x->at[q + 1] = x->at[q] + x->n / ranks + (q < x->n % ranks);
    return 0;
}

enum { OF_EACH = 4096 };

/* A name and a value that tell a file's contents from others: configuration, names of tensors and
 * how each begins, since not every container has checksums. */
static int
put_store(struct buf *facts, const char *name, struct store *from, struct err *err)
{
    struct buf b = { 0 };
    uint8_t first[OF_EACH], digest[XXH3_BYTES];
    char hex[2 * XXH3_BYTES + 1];
    int rc = 0;
    if (from->config.p)
        buf_add(&b, from->config.p, from->config.n);
    for (size_t i = 0; i < from->n_tensors && rc == 0; i++) {
        const struct tensor *t = &from->tensors[i];
        size_t n = t->nbytes < OF_EACH ? (size_t)t->nbytes : OF_EACH;
        rc = store_read(from, t, 0, first, n, err);
        xxh3_128(digest, first, rc < 0 ? 0 : n);
        buf_add(&b, t->name, t->name_len);
        buf_add(&b, digest, sizeof digest);
    }
    if (rc == 0)
        rc = buf_ok(&b, err);
    if (rc == 0) {
        xxh3_128(digest, b.data, b.len);
        hash_hex(hex, digest, sizeof digest);
        buf_printf(facts, "%s\t%s\n", name, hex);
    }
    buf_free(&b);
    return rc;
}

/* Whether they score the same, and alike. */
static int
compare_ranks(struct score *x)
{
    struct session *s = x->s;
    int rc;
    if (x->ranks->size == 1)
        return 0;
    const struct infer_options *c = s->c;
    struct buf b = { 0 };
    char hex[2 * XXH3_BYTES + 1];
    hash_hex(hex, x->tok.end.xxh3, XXH3_BYTES);
    buf_printf(&b, "version\t%s %s\n", c->host->version, c->host->commit);
    buf_printf(&b, "the hash of --score\t%s\n", hex);
    buf_printf(&b, "--kl\t%d\n", x->has_kl);
    buf_printf(&b, "--kl-model\t%d\n", x->has_reference);
    rc = put_store(&b, "the model", &s->model.store, s->err);
    if (rc == 0 && x->has_kl)
        rc = put_store(&b, "the file of --kl", &x->kl, s->err);
    if (rc == 0 && x->has_reference)
        rc =
            put_store(&b, "the model of --kl-model", &x->reference.model.store, s->err);
    buf_printf(&b, "--quant\t%s\n", c->quant ? c->quant : "as in MODEL");
    buf_printf(&b, "--activations\t%s\n", device_activations[c->activations]);
    buf_printf(&b, "--input-scale\t%s\n",
               c->input_scale == INPUT_SCALE_STATIC ? "static" : "dynamic");
    buf_printf(&b, "the instruction set\t%s\n", isa_name(c->host->isa));
    buf_printf(&b, "the route of products\t%s\n", s->k->route);
    if (rc == 0)
        rc = ranks_compare(x->ranks, &b, s->err);
    buf_free(&b);
    return rc;
}

/* The parts of p, of `size` bytes an item, to all. */
static int
gather_parts(struct score *x, void *p, size_t *at, size_t size)
{
    struct comm *c = ranks_comm(x->ranks);
    for (unsigned q = 0; q <= x->ranks->size; q++)
        at[q] *= size;
    return c && comm_gather(c, p, at) < 0
               ? err_set(x->s->err, c->err->kind, "%s", c->err->msg)
               : 0;
}

/* Refuse counts of other ranks by which memory would not be enough. */
static int
check_counts(struct score *x)
{
    for (size_t k = 0; k < x->n; k++)
        if (sums_of(x, k)->targets > x->length[k])
            return err_set(x->s->err, ERR_FORMAT,
                           "a rank has sent %llu targets of sample %zu, which has %lu "
                           "tokens: expected ranks of one program",
                           (unsigned long long)sums_of(x, k)->targets, k,
                           (unsigned long)x->length[k]);
    return 0;
}

/* How many divergences the ranks before q have found. */
static uint64_t
divergences_before(const struct score *x, const size_t *at, unsigned q)
{
    uint64_t n = 0;
    for (size_t i = 0; i < at[q]; i++)
        n += x->of_sample[i].targets;
    return n;
}

/* What all ranks have found, to x->all and x->divergences. */
static int
gather_all(struct score *x)
{
    unsigned ranks = x->ranks->size, rank = x->ranks->rank;
    size_t *at = calloc((size_t)ranks + 1, sizeof *at);
    if (!at)
        return no_memory(x);
    memcpy(at, x->at, (ranks + (size_t)1) * sizeof *at);
    int rc = gather_parts(x, x->of_sample, at, sizeof *x->of_sample);
    if (rc == 0)
        rc = check_counts(x);
    for (size_t k = 0; k < x->n; k++) {
        const struct sums *of = sums_of(x, k);
        x->all.loss += of->loss;
        x->all.reference_loss += of->reference_loss;
        x->all.divergence += of->divergence;
        x->all.tokens += of->tokens;
        x->all.targets += of->targets;
        x->all.agree += of->agree;
    }
    for (unsigned q = 0; q <= ranks; q++)
        at[q] = (size_t)divergences_before(x, x->at, q);
    if (rc == 0 && x->divergences) {
        memmove(x->divergences + at[rank], x->divergences,
                (size_t)x->n_divergences * sizeof *x->divergences);
        rc = gather_parts(x, x->divergences, at, sizeof *x->divergences);
    }
    free(at);
    return rc;
}

/* ---- the answer ------------------------------------------------------------------------------------ */

static int
ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* The least divergence that 99 of 100 targets do not exceed. */
static double
percentile_99(struct score *x)
{
    uint64_t n = x->all.targets;
    if (!x->divergences || n == 0)
        return NAN;
    qsort(x->divergences, n, sizeof *x->divergences, ascending);
    return (double)x->divergences[n - n / 100 - 1];
}

static double
perplexity(double loss)
{
    return loss < 690 ? maths_exp(loss) : loss;
}

static int
put_result(struct score *x)
{
    bool json = x->s->c->json;
    double n = (double)x->all.targets, loss = x->all.targets ? x->all.loss / n : NAN,
           theirs = x->all.targets ? x->all.reference_loss / n : NAN;
    const struct {
        const char *name;
        double v;
        bool count;
    } column[] = { { "samples", (double)x->n, true },
                   { "tokens", (double)x->all.tokens, true },
                   { "targets", n, true },
                   { "loss", loss, false },
                   { "perplexity", perplexity(loss), false },
                   { "kl", x->all.divergence > 0 ? x->all.divergence / n : 0, false },
                   { "top1", (double)x->all.agree / n, false },
                   { "kl_p99", percentile_99(x), false },
                   { "reference_loss", theirs, false },
                   { "reference_perplexity", perplexity(theirs), false } };
    size_t all = sizeof column / sizeof *column;
    size_t columns = x->has_kl || x->has_reference ? all : 5;
    struct buf b = { 0 };
    for (size_t i = 0; i < columns && !json; i++)
        buf_printf(&b, "%s%s", i ? "\t" : "", column[i].name);
    buf_str(&b, json ? "{" : "\n");
    for (size_t i = 0; i < columns; i++) {
        if (json)
            buf_printf(&b, "%s\"%s\":", i ? "," : "", column[i].name);
        else
            buf_str(&b, i ? "\t" : "");
        if (column[i].count)
            buf_u64(&b, (uint64_t)column[i].v);
        else if (json)
            json_put_number(&b, column[i].v, 9);
        else
            buf_printf(&b, "%.9g", column[i].v);
    }
    buf_str(&b, json ? "}\n" : "\n");
    const struct host *host = x->s->c->host;
    int rc = host->print(host->ctx, &b, (json ? HOST_JSON : HOST_TEXT) | HOST_LATER,
                         x->s->err);
    buf_free(&b);
    return rc;
}

/* Memory for a chunk: of logits, or of what the device finds of them. */
static int
alloc_chunk(struct score *x)
{
    size_t n = x->chunk;
    if (x->s->c->logits || x->s->c->kl) {
        x->logits = malloc(n * x->s->model.config.vocab * sizeof *x->logits);
        return x->logits ? 0 : no_memory(x);
    }
    x->label = calloc(n, sizeof *x->label);
    x->found = (struct net_scores){ .ce = calloc(n, sizeof *x->found.ce),
                                    .best = calloc(n, sizeof *x->found.best),
                                    .teacher_ce = calloc(n, sizeof *x->found.ce),
                                    .kl = calloc(n, sizeof *x->found.kl),
                                    .teacher_best = calloc(n, sizeof *x->found.best) };
    return x->label && x->found.ce && x->found.best && x->found.teacher_ce &&
                   x->found.kl && x->found.teacher_best
               ? 0
               : no_memory(x);
}

static int
open_reference(struct score *x)
{
    if (!x->s->c->kl_model)
        return 0;
    x->has_reference = true;
    if (reference_open(&x->reference, x->s) < 0)
        return -1;
    return reference_reserve(&x->reference, (size_t)x->longest);
}

static int
alloc_divergences(struct score *x)
{
    uint64_t n = 0;
    if (!x->has_kl && !x->has_reference)
        return 0;
    for (size_t i = 0; i < x->n; i++)
        n += x->length[i];
    x->divergences = malloc((n + 1) * sizeof *x->divergences);
    return x->divergences ? 0 : no_memory(x);
}

static int
prepare(struct score *x)
{
    struct session *s = x->s;
    bool stays = !s->c->logits && !s->c->kl;
    if (read_samples(x) < 0 || open_kl(x) < 0)
        return -1;
    x->chunk = s->c->chunk ? s->c->chunk : stays && !s->k->is.host ? CHUNK_GPU : CHUNK;
    if (x->chunk > x->longest)
        x->chunk = x->longest ? (size_t)x->longest : 1;
    if (alloc_chunk(x) < 0 || session_reserve(s, &x->q, (size_t)x->longest) < 0 ||
        open_reference(x) < 0 || alloc_divergences(x) < 0 || alloc_sums(x) < 0)
        return -1;
    if (compare_ranks(x) < 0)
        return -1;
    return s->c->dump_importance && importance_begin(s) < 0 ? -1 : open_out(x);
}

/* What all ranks have found, of which this one scores its own samples. */
static int
score_own(struct score *x)
{
    ranks_begin_work(x->ranks);
    if (score_all(x) < 0 || gather_all(x) < 0)
        return -1;
    ranks_end_work(x->ranks);
    return 0;
}

/* Note a loss that ids of another tokenizer would have. */
static void
check_loss(const struct score *x)
{
    static const double worse = 1.5;
    double loss = x->all.loss / (double)x->all.targets,
           guessing = log((double)x->s->model.config.vocab);
    if (x->all.targets && loss > worse * guessing)
        host_note(x->s->c->host,
                  "%s: the loss is far above %.4g, that of equal probabilities for all "
                  "tokens: expected samples that this model's tokenizer has made",
                  x->s->c->score, guessing);
}

int
score_file(struct session *s, struct ranks *ranks)
{
    struct score x = { .s = s, .ranks = ranks };
    double start = os_seconds();
    int rc = prepare(&x);
    if (rc == 0)
        rc = score_own(&x);
    if (rc == 0 && s->c->dump_importance)
        rc = importance_write(s, &x.tok, x.all.tokens);
    if (rc == 0)
        rc = put_result(&x);
    if (rc == 0)
        check_loss(&x);
    if (rc == 0 && s->c->host->verbose)
        host_warn(s->c->host, "%llu tokens, %.1f tok/s",
                  (unsigned long long)x.all.tokens,
                  (double)x.all.tokens / (os_seconds() - start));
    importance_end(s);
    if (x.has_reference)
        reference_close(&x.reference);
    if (x.has_out)
        dump_close(&x.out);
    if (x.has_kl)
        store_close(&x.kl);
    tok_close(&x.tok);
    sequence_free(&x.q);
    free(x.length);
    free(x.of_sample);
    free(x.at);
    free(x.logits);
    free(x.other);
    free(x.divergences);
    free(x.label);
    free(x.found.ce);
    free(x.found.best);
    free(x.found.teacher_ce);
    free(x.found.kl);
    free(x.found.teacher_best);
    free(x.dump);
    free(x.names);
    return rc;
}
