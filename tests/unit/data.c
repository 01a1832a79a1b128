/* SPDX-License-Identifier: MIT */
/* data: rows to samples by lib/data: what the host hears, and errors that come back with no output
 * left behind. */
#include "lib/data/kind.h"
#include "lib/data/make.h"

#include "lib/file/guard.h"
#include "lib/format/tok.h"
#include "tests/unit/check.h"

static struct guard guard;
static char heard[4096];

static void
hear(void *ctx, const char *line)
{
    (void)ctx;
    size_t n = strlen(heard);
    snprintf(heard + n, sizeof heard - n, "%s\n", line);
}

static struct host host = {
    .program = "unit", .version = "0", .tmpdir = "/tmp", .guard = &guard, .warn = hear
};

/* Ids of a file into out.tok; 0 or the error. */
static int
make(struct data_options *c, const char *text, struct err *err)
{
    static char path[] = "in";
    char *paths[] = { path };
    struct sink sinks[2] = { 0 };
    *err = (struct err){ 0 };
    heard[0] = '\0';
    c->host = &host;
    c->threads = 2;
    if (c->n_out == 0)
        c->out[c->n_out++] = "out.tok";
    check_put("in", text, strlen(text));
    int rc = kind_settle(c, paths, 1, err);
    for (unsigned i = 0; rc == 0 && i < c->n_out; i++)
        rc = sink_open(&sinks[i], c, i, NULL, err);
    if (rc == 0)
        rc = data_make(c, NULL, sinks, paths, 1, err);
    for (unsigned i = 0; i < c->n_out; i++)
        sink_close(&sinks[i]);
    return rc;
}

static struct data_options
ids(void)
{
    return (
        struct data_options){ .input = INPUT_IDS, .input_given = true, .force = true };
}

static void
check_refused(struct data_options *c, const char *text, enum err_kind kind,
              const char *words)
{
    struct err err;
    remove("out.tok");
    CHECK(make(c, text, &err) < 0);
    CHECK_ERR(err, kind, words);
    CHECK(access("out.tok", F_OK) != 0);
    CHECK(access(".out.tok.nibble-tmp", F_OK) != 0);
}

int
main(void)
{
    struct err err;
    check_scratch();
    struct data_options c = ids();
    CHECK(make(&c, "1 2 3\n4 5\n", &err) == 0);
    CHECK(*heard == '\0' && access("out.tok", F_OK) == 0);
    // What is skipped: the first one explains an output without a sample; a verbose host hears all.
    c = ids();
    check_refused(
        &c, "7\n", ERR_FORMAT,
        "in: expected at least one sample, found none: 1 rows, 1 skipped; the "
        "first is in: line 1: expected two ids or more");
    host.verbose = true;
    c = ids();
    CHECK(make(&c, "7\n1 2\n8\n", &err) == 0);
    CHECK(strstr(heard, "in: line 1: skipped: expected two ids or more\n"));
    CHECK(strstr(heard, "in: line 3: skipped: "));
    host.verbose = false;
    c = ids();
    CHECK(make(&c, "7\n1 2\n8\n", &err) == 0);
    CHECK(*heard == '\0');
    c = ids();
    c.strict = true;
    check_refused(&c, "1 2\n7\n", ERR_FORMAT, "in: line 2: expected two ids or more");
    // A byte order mark is a note, which a quiet host does not hear.
    c = ids();
    CHECK(make(&c,
               "\xef\xbb\xbf"
               "1 2\n",
               &err) == 0);
    CHECK(strcmp(heard, "in: a byte order mark was dropped\n") == 0);
    host.quiet = true;
    c = ids();
    CHECK(make(&c,
               "\xef\xbb\xbf"
               "1 2\n",
               &err) == 0);
    CHECK(*heard == '\0');
    host.quiet = false;
    // What is wrong with a row, a file or an output.
    c = ids();
    check_refused(&c, "1 2\n3 x\n", ERR_FORMAT,
                  "in: line 2: byte 6: expected an id of 0..4294967295, found \"x\"");
    c = ids();
    c.input = INPUT_JSONL;
    check_refused(&c, "{\"a\":\"b\"}\n", ERR_FORMAT, "in: line 1: ");
    c = ids();
    c.out[c.n_out++] = "no/out.tok";
    check_refused(&c, "1 2\n", ERR_IO, "no/out.tok: there is no directory no");
    c = ids();
    c.split = true;
    c.fraction = 0.5;
    c.split_text = "0.5:1";
    c.out[c.n_out++] = "a.tok";
    c.out[c.n_out++] = "b.tok";
    check_refused(&c, "1 2\n", ERR_FORMAT,
                  "--split 0.5:1: expected a sample on each side");
    CHECK(access("a.tok", F_OK) != 0 && access("b.tok", F_OK) != 0);
    // Names, and what a JSON array is.
    c = (struct data_options){ .force = true };
    char one[] = "a.tsv", two[] = "b.jsonl", *both[] = { one, two };
    c.host = &host;
    CHECK(kind_settle(&c, both, 2, &err) < 0);
    CHECK_ERR(err, ERR_USAGE, "a.tsv is tsv by its suffix, b.jsonl is jsonl");
    return check_end();
}
