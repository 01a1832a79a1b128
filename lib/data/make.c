/* SPDX-License-Identifier: MIT */
/* make: see make.h. */
#include "lib/data/make.h"

#include "lib/data/input.h"
#include "lib/data/kind.h"
#include "lib/data/order.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- inputs ------------------------------------------------------------------------ */

/* 0: unknown. */
static uint64_t
total_bytes(char **paths, size_t n)
{
    uint64_t sum = 0;
    struct stat st;
    for (size_t i = 0; i < n; i++) {
        bool ok = strcmp(paths[i], "-") == 0 ? fstat(STDIN_FILENO, &st) == 0
                                             : stat(paths[i], &st) == 0;
        if (!ok || !S_ISREG(st.st_mode))
            return 0;
        sum += (uint64_t)st.st_size;
    }
    return sum;
}

/* ---- outputs ----------------------------------------------------------------------- */

static int
check_usable(const struct sink *sinks, const char *what)
{
    const struct data_options *c = sinks->c;
    struct tally sum = { 0 };
    const char *empty = NULL; // side
    char q[TEXT_QUOTE];
    for (unsigned i = 0; i < c->n_out; i++) {
        tally_add(&sum, &sinks[i].sum);
        if (sinks[i].sum.counts.samples == 0)
            empty = sinks[i].path;
    }
    if (strcmp(what, "-") == 0)
        what = "<stdin>";
    bool wants = c->input == INPUT_TSV || c->input == INPUT_CSV ||
                 (c->emit == EMIT_TOK && !c->count) || c->split;
    if (c->decode || !empty || !wants)
        return 0;
    if (sum.counts.samples)
        return err_set(sinks->err, ERR_FORMAT,
                       "--split %s: expected a sample on each side, found none of %llu "
                       "for %s: try another FRACTION or SEED",
                       c->split_text, (unsigned long long)sum.counts.samples,
                       text_quote(q, empty, strlen(empty)));
    return err_set(sinks->err, ERR_FORMAT,
                   "%s: expected at least one sample, found none: %llu rows, %llu "
                   "skipped",
                   text_quote(q, what, strlen(what)), (unsigned long long)sum.rows,
                   (unsigned long long)sum.skipped);
}

static int
write_rest(struct sink *s, const uint8_t *inputs, size_t n_inputs)
{
    struct tok_end end = { .skipped = s->sum.skipped,
                           .truncated = s->sum.truncated,
                           .inputs = inputs,
                           .n_inputs = n_inputs };
    if (sink_buffers(s->c) && order_put(s) < 0)
        return -1;
    return s->begun ? tok_end(&s->tok, &end) : 0;
}

/* Write what is left of all of them and commit the outputs.  what: the input's name for
 * the error that it had no sample. */
static int
finish_samples(struct sink *sinks, const char *what, const uint8_t *inputs,
               size_t n_inputs)
{
    unsigned n = sinks->c->n_out;
    if (check_usable(sinks, what) < 0)
        return -1;
    for (unsigned i = 0; i < n; i++)
        if (write_rest(&sinks[i], inputs, n_inputs) < 0 ||
            (sinks[i].opened && out_seal(&sinks[i].out) < 0))
            return -1;
    for (unsigned i = 0; i < n && sinks[i].opened; i++) {
        sinks[i].opened = false;
        if (out_commit(&sinks[i].out) < 0)
            return -1;
    }
    return 0;
}

/* Say why nothing came of the inputs: what they look like, or the first row that was skipped. */
static void
explain(const struct sink *sinks, const struct input_reader *f, struct err *err)
{
    struct tally sum = { 0 };
    struct buf b = { 0 };
    for (unsigned i = 0; i < sinks->c->n_out; i++)
        tally_add(&sum, &sinks[i].sum);
    if (sum.counts.samples || err->kind != ERR_FORMAT ||
        kind_hint(sinks->c, input_likely(f), input_has_blanks(f), err))
        return;
    buf_printf(&b, "%s; the first is %s", err->msg, sum.first);
    if (*sum.first && !b.failed) {
        *err = (struct err){ 0 };
        err_fill(err, ERR_FORMAT, "%s", b.data);
    }
    buf_free(&b);
}

int
data_make(const struct data_options *c, const struct tokenizer *t, struct sink *sinks,
          char **paths, size_t n, struct err *err)
{
    struct host_progress progress =
        host_progress_begin(c->host, "reading", total_bytes(paths, n));
    uint8_t *inputs = malloc(n * XXH3_BYTES);
    struct input_reader *f = input_open(c, t, sinks, &progress, err);
    int rc = f ? 0 : -1;
    if (rc == 0 && !inputs)
        rc = err_set(err, ERR_MEMORY, "out of memory for %zu inputs", n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = input_read(f, paths[i], inputs + i * XXH3_BYTES);
    host_progress_end(&progress);
    if (rc == 0)
        rc =
            finish_samples(sinks, n == 1 ? paths[0] : "all inputs together", inputs, n);
    if (rc < 0 && f)
        explain(sinks, f, err);
    input_close(f);
    free(inputs);
    return rc;
}
