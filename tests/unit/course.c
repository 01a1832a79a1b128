/* SPDX-License-Identifier: MIT */
/* course: settings and samples of lib/train: each refusal is an error that comes back, and samples
 * come in the order that seed and epoch determine, wherever a run was cut. */
#include "lib/train/course.h"

#include "tests/unit/samples.h"

static const struct config model = { .vocab = 50, .positions = 8 };

enum { SAMPLES = 7 };

/* ---- settings ------------------------------------------------------------------------------ */

static struct settings
first_settings(void)
{
    struct settings s;
    settings_begin(&s);
    return s;
}

static void
refused(const struct settings *s, const char *words)
{
    struct err err = { 0 };
    CHECK(settings_check(s, &err) < 0);
    CHECK_ERR(err, ERR_USAGE, words);
}

static void
check_settings(void)
{
    struct err err = { 0 };
    struct settings s = first_settings();
    CHECK(settings_check(&s, &err) == 0);
    s.schedule = LR_COSINE;
    refused(&s, "--schedule cosine: needs --total-steps, or --until or --epochs");
    s.total_steps = 10;
    CHECK(settings_check(&s, &err) == 0);
    s.warmup = 11;
    refused(&s, "--warmup: 11 steps, --total-steps are 10");
    s.warmup = 0;
    s.schedule = LR_WSD;
    s.decay = 11;
    refused(&s, "--decay: 11 steps, --total-steps are 10");
    s.decay = 0;
    s.min_lr = 1;
    refused(&s, "--min-lr: 1 is above --lr 1e-05");
    s.min_lr = 0;
    s.quant_from = 0.99;
    refused(&s, "--quant-from: 0.99 of 10 steps leaves none that is quantized");
    s.total_steps = 0;
    s.schedule = LR_CONSTANT;
    refused(&s,
            "--quant-from: 0.99 is a fraction of --total-steps, which is not given");
    s = first_settings();
    CHECK(settings_set_number(&s, settings_row("lr"), 1e-50, &err) < 0);
    CHECK_ERR(err, ERR_USAGE, "--lr: 1e-50: is 0 in f32");
    err = (struct err){ 0 };
    CHECK(settings_set_number(&s, settings_row("eps"), 0, &err) < 0);
    CHECK_ERR(err, ERR_USAGE, "--eps: 0: expected a number above 0");
    err = (struct err){ 0 };
    CHECK(settings_set_number(&s, settings_row("distill-temp"), 0, &err) < 0);
    CHECK_ERR(err, ERR_USAGE, "--distill-temp: 0: expected a number above 0");
    settings_set_count(&s, settings_row("batch"), 3);
    CHECK(s.batch == 3);
}

/* ---- samples ------------------------------------------------------------------------------- */

static void
not_opened(const char *path, enum err_kind kind, const char *words)
{
    struct course d;
    struct err err = { 0 };
    CHECK(course_open(&d, path, &model, &err) < 0);
    CHECK_ERR(err, kind, words);
    course_close(&d);
}

static void
check_files(void)
{
    struct err err = { 0 };
    not_opened("none.tok", ERR_IO, "none.tok: No such file");
    check_put("text.tok", "hello\n", 6);
    not_opened("text.tok", ERR_FORMAT, "text.tok: byte 0: is a text");
    put_samples("other.tok", 2, 51);
    not_opened("other.tok", ERR_FORMAT,
               "other.tok: made for a vocabulary of 51, the model has 50");
    put_samples("wide.tok", 30, 0);
    not_opened(
        "wide.tok", ERR_FORMAT,
        "wide.tok: sample 20: id 50 at position 3, the model's vocabulary is 50");
    CHECK(course_check_file(NULL, &err) == 0 && course_check_file("-", &err) == 0);
    CHECK(course_check_file("other.tok", &err) == 0);
    CHECK(course_check_file("text.tok", &err) < 0);
    CHECK_ERR(err, ERR_FORMAT, "text.tok: byte 0: is a text");
}

static void
check_places(void)
{
    const struct config smaller = { .vocab = 40, .positions = 8 },
                        shorter = { .vocab = 50, .positions = 2 };
    struct course d;
    struct err err = { 0 };
    struct settings s = first_settings();
    NEED(course_open(&d, "s.tok", &model, &err) == 0);
    CHECK(d.n == SAMPLES && course_length(&d) == 3 && !course_is_even(&d));
    CHECK(course_check(&d, &model, &err) == 0);
    CHECK(course_check(&d, &smaller, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT, "s.tok: was read for a vocabulary of 50");
    err = (struct err){ 0 };
    CHECK(course_settle(&d, &s, &shorter, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT,
              "its ids) has 4 ids, the model's context of "
              "2 allows 3");
    err = (struct err){ 0 };
    s.seq_len = 9;
    CHECK(course_settle(&d, &s, &model, &err) < 0);
    CHECK_ERR(err, ERR_USAGE,
              "--seq-len: 9, the model's context is 8: expected at most 8");
    err = (struct err){ 0 };
    s.seq_len = 0;
    CHECK(course_settle(&d, &s, &model, &err) == 0);
    CHECK(course_seek(&d, 0, SAMPLES + 1, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT,
              "s.tok: the checkpoint goes on at sample 8: expected at most 7");
    err = (struct err){ 0 };
    CHECK(course_seek(&d, (uint64_t)1 << 62, 0, &err) < 0);
    CHECK_ERR(err, ERR_FORMAT,
              "s.tok: the checkpoint goes on in epoch 4611686018427387904");
    course_close(&d);
}

/* The first ids of the samples of the next step. */
static size_t
step(struct course *d, int32_t *first)
{
    struct err err = { 0 };
    size_t n = 0;
    NEED(course_step(d, &err) == 0);
    for (size_t a = 0; a < d->n_batches; a++)
        for (size_t t = 0; t < d->batch[a].tokens; t++)
            if (d->batch[a].position[t] == 0)
                first[n++] = d->batch[a].ids[t];
    return n;
}

/* Two epochs have each sample twice; from any step on they are the same as in one go. */
static void
check_order(enum order order)
{
    enum { STEPS = 7, EACH = 2 }; // 14 samples
    struct course d, other;
    struct err err = { 0 };
    struct settings s = first_settings();
    int32_t whole[STEPS * EACH], again[EACH];
    unsigned seen[SAMPLES] = { 0 };
    s.batch = EACH;
    s.order = order;
    s.seed = 3;
    NEED(course_open(&d, "s.tok", &model, &err) == 0);
    NEED(course_open(&other, "s.tok", &model, &err) == 0);
    NEED(course_settle(&d, &s, &model, &err) == 0 &&
         course_settle(&other, &s, &model, &err) == 0);
    for (size_t i = 0; i < STEPS; i++) {
        CHECK(course_seek(&other, d.epoch, d.index, &err) == 0);
        NEED(step(&d, whole + i * EACH) == EACH && step(&other, again) == EACH);
        CHECK(check_equal(whole + i * EACH, again, sizeof again));
    }
    for (size_t i = 0; i < STEPS * EACH; i++)
        seen[whole[i]]++;
    for (size_t i = 0; i < SAMPLES; i++)
        CHECK(seen[i] == 2);
    // Steps that are skipped take their samples along.
    CHECK(course_seek(&other, 0, 0, &err) == 0 && course_skip(&other, &err) == 0);
    NEED(step(&other, again) == EACH);
    CHECK(check_equal(whole + EACH, again, sizeof again));
    course_close(&d);
    course_close(&other);
}

int
main(void)
{
    check_scratch();
    put_samples("s.tok", SAMPLES, 50);
    check_settings();
    check_files();
    check_places();
    check_order(ORDER_FILE);
    check_order(ORDER_SHUFFLE);
    return check_end();
}
