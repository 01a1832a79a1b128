/* SPDX-License-Identifier: MIT */
/* infer: sessions and prompts of lib/infer with a host, a source and outputs that fail: each failure
 * is an error that comes back, and no output is lost or written twice before it. */
#include "lib/infer/prompts.h"

#include "lib/infer/defaults.h"
#include "tests/unit/model_files.h"

/* ---- a source of prompts, and a host that prints ------------------------------------------ */

struct lines {
    struct source source; // first
    const char *const *line;
    size_t n, at,
        fails; // fails: the prompt in place of which there is an error; SIZE_MAX: none
};

static int
next_line(struct source *source, struct slice *text, struct err *err)
{
    struct lines *x = (struct lines *)source;
    if (x->at == x->fails)
        return err_set(err, ERR_IO, "the source has failed");
    if (x->at == x->n)
        return 0;
    *text = slice_of(x->line[x->at++]);
    source->line = x->at;
    return 1;
}

static bool
waits(struct source *source)
{
    (void)source;
    return false;
}

static struct {
    char text[4096];
    size_t n;
    unsigned calls, fails; // fails: the call that fails, from 1; 0: none
} printed;

static int
print(void *ctx, struct buf *text, enum host_text kind, struct err *err)
{
    (void)ctx;
    (void)kind;
    if (++printed.calls == printed.fails)
        return err_set(err, ERR_IO, "the host cannot print");
    NEED(printed.n + text->len < sizeof printed.text);
    memcpy(printed.text + printed.n, text->data, text->len);
    printed.n += text->len;
    text->len = 0;
    return 0;
}

static unsigned shown, ended; // lines of status

static void
status(void *ctx, const char *line)
{
    (void)ctx;
    shown += line != NULL;
    ended += line == NULL;
}

static struct infer_options
options(const char *model)
{
    host.print = print;
    host.status = status;
    host.isa = isa_best();
    struct infer_options o = {
        .host = &host,
        .model = model,
        .ids = true,
        .max_tokens = 4,
        .batch = 1,
        .answers = 1,
        .ignore_eos = true,
        .sample = { .top_p = 1, .penalty = 1 },
        .where = { .host = &host, .device = "cpu", .threads = 2, .decodes = true },
    };
    o.device = device_settle(&o.where);
    return o;
}

static const char *const prompts[] = { "1 2 3", "4 5", "6 7 8 9", "10 11" };
enum { PROMPTS = sizeof prompts / sizeof *prompts };

/* Answer them; 0 or the error. */
static int
answer(struct infer_options *o, size_t source_fails, unsigned print_fails,
       uint64_t *all, uint64_t *refused, struct err *err)
{
    struct session s;
    struct lines x = { .source = { .next = next_line, .waits = waits },
                       .line = prompts,
                       .n = PROMPTS,
                       .fails = source_fails };
    memset(&printed, 0, sizeof printed);
    printed.fails = print_fails;
    *err = (struct err){ 0 };
    int rc = session_open(&s, o, err);
    CHECK_SAY(rc == 0, "%s", err->msg);
    if (rc == 0)
        rc = prompts_answer(&s, &x.source, true, all, refused);
    session_close(&s);
    return rc;
}

/* ---- what fails ---------------------------------------------------------------------------- */

static size_t
count_lines(const char *text)
{
    size_t n = 0;
    while ((text = strchr(text, '\n'))) {
        n++;
        text++;
    }
    return n;
}

/* Whatever fails, what was printed is the beginning of what all prompts give. */
static void
check_failures(uint32_t batch)
{
    struct err err;
    struct infer_options o = options("model.safetensors");
    uint64_t all = 0, refused = 0;
    char whole[sizeof printed.text];
    o.batch = batch;
    CHECK(answer(&o, SIZE_MAX, 0, &all, &refused, &err) == 0);
    CHECK(all == PROMPTS && refused == 0);
    memcpy(whole, printed.text, sizeof whole);
    CHECK(count_lines(whole) == PROMPTS);
    unsigned calls = printed.calls;
    CHECK(calls >= PROMPTS);
    for (unsigned i = 1; i <= calls; i++) {
        CHECK(answer(&o, SIZE_MAX, i, &all, &refused, &err) < 0);
        CHECK_ERR(err, ERR_IO, "the host cannot print");
        CHECK(printed.calls == i);
        CHECK(strncmp(whole, printed.text, printed.n) == 0);
        CHECK(printed.n < strlen(whole));
    }
    for (size_t i = 0; i < PROMPTS; i++) {
        CHECK(answer(&o, i, 0, &all, &refused, &err) < 0);
        CHECK_ERR(err, ERR_IO, "the source has failed");
        CHECK(count_lines(printed.text) <= i);
        CHECK(strncmp(whole, printed.text, printed.n) == 0);
    }
}

/* A prompt that cannot be answered has its error in place of an answer; the others are as ever. */
static void
check_refused(void)
{
    static const char *const some[] = { "1 2 3", "4 96", "6 x", "10 11" };
    struct err err = { 0 };
    struct infer_options o = options("model.safetensors");
    struct session s;
    struct lines x = { .source = { .next = next_line, .waits = waits },
                       .line = some,
                       .n = 4,
                       .fails = SIZE_MAX };
    uint64_t all = 0, refused = 0;
    memset(&printed, 0, sizeof printed);
    heard.warnings[0] = '\0';
    CHECK(session_open(&s, &o, &err) == 0);
    CHECK(prompts_answer(&s, &x.source, true, &all, &refused) == 0);
    session_close(&s);
    CHECK(all == 4 && refused == 2);
    CHECK(count_lines(printed.text) == 4 && strstr(printed.text, "\n\n\n"));
    CHECK(strstr(heard.warnings,
                 "line 2: id 96 at position 1: the model's vocab_size is 96\n"));
    CHECK(strstr(heard.warnings, "line 3: expected ids, found \"x\"\n"));
}

/* A session that cannot be opened says why, and is closed like any other. */
static void
check_open(const struct infer_options *o, enum err_kind kind, const char *words)
{
    struct infer_options mine = *o;
    struct session s;
    struct err err = { 0 };
    CHECK(session_open(&s, &mine, &err) < 0);
    CHECK_ERR(err, kind, words);
    session_close(&s);
}

static void
check_openings(void)
{
    struct infer_options o = options("none.safetensors");
    check_open(&o, ERR_IO, "none.safetensors: No such file");
    o = options("model.safetensors");
    o.context = 65;
    check_open(&o, ERR_USAGE, "--context: 65: the model has 64 positions");
    o = options("model.safetensors");
    o.ids = false;
    check_open(&o, ERR_USAGE, "want -t tokenizer.json");
    o = options("model.safetensors");
    o.answers = 2;
    check_open(&o, ERR_USAGE, "--answers: at temperature 0 all answers are equal");
    o = options("model.safetensors");
    o.logits = "model.safetensors";
    check_open(&o, ERR_USAGE, "model.safetensors: is an input, too");
    o = options("model.safetensors");
    o.logits = "no/where.safetensors";
    check_open(&o, ERR_IO, "no/where.safetensors: ");
    o = options("model.safetensors");
    o.where.path = PATH_NATIVE;
    check_open(&o, ERR_USAGE, "--path native: multiplies NVFP4 with NVFP4");
    o.activations = ACTIVATIONS_NVFP4;
    check_open(&o, ERR_USAGE, "--path native: the CPU has no 4-bit products");
    o = options("model.safetensors");
    o.where.compute = COMPUTE_FP8;
    o.activations = ACTIVATIONS_NVFP4;
    check_open(&o, ERR_USAGE, "--compute fp8: rounds inputs of products to FP8");
    check_put("generation_config.json", "{\"top_p\":7}", 11);
    o = options("model.safetensors");
    check_open(&o, ERR_FORMAT,
               "generation_config.json: byte 9: expected a number of 0 to 1");
    o.given.top_p = true; // what is given is checked all the same
    check_open(&o, ERR_FORMAT, "generation_config.json: byte 9");
    remove("generation_config.json");
}

/* The line of status is shown while prompts are answered, and ended once. */
static void
check_status(void)
{
    struct err err;
    struct infer_options o = options("model.safetensors");
    uint64_t all = 0, refused = 0;
    ended = 0;
    CHECK(answer(&o, SIZE_MAX, 0, &all, &refused, &err) == 0);
    CHECK(ended == 1);
    CHECK(answer(&o, 1, 0, &all, &refused, &err) < 0);
    CHECK(ended == 2);
    host.status = NULL;
    o.host = &host;
    CHECK(answer(&o, SIZE_MAX, 0, &all, &refused, &err) == 0);
    CHECK(ended == 2);
}

/* What a verbose host asked for it hears, be it quiet otherwise. */
static void
check_verbose(void)
{
    static const char *const alike[] = { "1 2 3 4", "1 2 3 5" };
    struct err err = { 0 };
    struct infer_options o = options("model.safetensors");
    struct session s;
    struct lines x = { .source = { .next = next_line, .waits = waits },
                       .line = alike,
                       .n = 2,
                       .fails = SIZE_MAX };
    uint64_t all = 0, refused = 0;
    o.chunk = 2;
    host.verbose = host.quiet = true;
    heard.warnings[0] = '\0';
    NEED(session_open(&s, &o, &err) == 0);
    CHECK(prompts_answer(&s, &x.source, true, &all, &refused) == 0);
    session_close(&s);
    host.verbose = host.quiet = false;
    CHECK(strstr(heard.warnings, "model.safetensors: loaded in "));
    CHECK(strstr(heard.warnings, "prompt 1: prefill "));
    CHECK(strstr(heard.warnings,
                 "prompts: 8 tokens, 5 computed: an earlier prompt began "));
}

int
main(void)
{
    check_scratch();
    make_model("model.safetensors", true);
    check_failures(1);
    check_failures(3);
    check_refused();
    check_openings();
    check_status();
    check_verbose();
    return check_end();
}
