/* SPDX-License-Identifier: MIT */
/* state: what trainstep reads of a checkpoint besides its arrays: the training state with
 * its settings, and the order of data that follows.  The input is the state's msgpack;
 * the hashes of prologue and header are made to fit, so that any mutation comes to the
 * parsers; what they take is written, and read again it is the same. */
#include "lib/train/state.h"
#include "lib/format/writer.h"
#include "lib/train/course.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

enum { PROLOGUE = 64, PAGE = 4096, VOCAB = 97, SAMPLES = 5 };

static const struct config model = { .vocab = VOCAB, .positions = 64 };

/* ---- the checkpoint ------------------------------------------------------------------- */

static void
put_header(msgpack_packer *pk, struct slice state)
{
    static const char *const before[] = { "config",  "",    "master",     "f32",
                                          "moments", "f32", "provenance", "" };
    static const char *const quant[] = { "criterion", "mse",  "name",    "none",
                                         "share",     "none", "variant", "" };
    msgpack_pack_map(pk, 7);
    mp_put_str(pk, slice_of("arrays"));
    msgpack_pack_array(pk, 0);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        mp_put_str(pk, slice_of(before[i]));
    mp_put_str(pk, slice_of("quant"));
    msgpack_pack_map(pk, 4);
    for (size_t i = 0; i < sizeof quant / sizeof *quant; i++)
        mp_put_str(pk, slice_of(quant[i]));
    mp_put_str(pk, slice_of("state"));
    pk->callback(pk->data, state.p, state.n);
}

static void
put_checkpoint(struct slice state)
{
    static const uint8_t magic[8] = { 0x89, 'N', 'I', 'B', 'C', 'K', '\r', '\n' };
    msgpack_sbuffer sb;
    msgpack_packer pk;
    msgpack_sbuffer_init(&sb);
    msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
    put_header(&pk, state);
    size_t size = (size_t)round_up(PROLOGUE + sb.size, PAGE);
    uint8_t *p = calloc(1, size);
    HOLDS(p && sb.data, "out of memory");
    memcpy(p, magic, sizeof magic);
    store_le32(p + 8, 1);
    store_le64(p + 16, size);
    store_le64(p + 24, sb.size);
    memcpy(p + PROLOGUE, sb.data, sb.size);
    xxh3_128(p + 32, sb.data, sb.size);
    xxh3_128(p + 48, p, 48);
    fuzz_put("x.ckpt", p, size);
    free(p);
    msgpack_sbuffer_destroy(&sb);
}

/* Whether a checkpoint with that state is taken. */
static bool
read_back(struct state *st, struct settings *s, struct slice state)
{
    struct store_options opt = { .guard = &fuzz_guard };
    struct err err = { 0 };
    struct store store;
    put_checkpoint(state);
    bool ok = store_open(&store, fuzz_path("x.ckpt"), &opt, &err) == 0;
    if (ok)
        fuzz_store(&store);
    ok = ok && state_read(st, s, &store) == 0;
    if (!ok)
        fuzz_refused(&err);
    else if (st->fp8_amax.n) // it is the store's
        st->fp8_amax.p = memcpy(malloc(st->fp8_amax.n), st->fp8_amax.p, st->fp8_amax.n);
    store_close(&store);
    return ok;
}

static void
check_ranges(const struct state *st, const struct settings *s)
{
    HOLDS(st->step <= UINT32_MAX && st->t <= st->step && st->skips <= st->step,
          "steps");
    HOLDS(st->epoch <= INT64_MAX && st->index <= INT64_MAX, "sampler");
    HOLDS(isfinite(st->grad_norm) && memchr(st->route, '\0', sizeof st->route), "%g",
          st->grad_norm);
    HOLDS(st->spike.n <= SPIKE_WINDOW && st->spike.at < SPIKE_WINDOW, "window");
    HOLDS(s->batch >= 1 && s->accum >= 1 && s->batch <= 1 << 20 && s->accum <= 1 << 20,
          "%llu x %llu", (unsigned long long)s->batch, (unsigned long long)s->accum);
    for (uint64_t t = 1; t <= UINT32_MAX; t *= 7)
        HOLDS(isfinite(settings_rate(s, t)), "step %llu", (unsigned long long)t);
}

static void
check_spike(struct spike *w)
{
    for (int i = 0; i < 3; i++) {
        spike_fits(w, 3, 1, 1);
        spike_add(w, i, i);
    }
    HOLDS(w->n <= SPIKE_WINDOW && w->at < SPIKE_WINDOW, "window");
}

/* ---- the order of data ---------------------------------------------------------------- */

static void
put_data(const char *path)
{
    static const struct tok_settings settings = { .input = "ids", .invalid = "error" };
    const struct tok_header h = { .template = slice_of("none"),
                                  .version = slice_of("1") };
    struct outfile out;
    struct tok_writer w;
    struct err err = { 0 };
    HOLDS(out_open(&out, path, OUT_FORCE, &fuzz_guard, &err) == 0 &&
              tok_begin(&w, &out, &h, &settings, &err) == 0,
          "%s", err.msg);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        const uint32_t ids[] = { i, i + 10, i + 20, i + 30 };
        const uint8_t mask[] = { 1, 1, 1, 1 };
        struct buf record = { 0 };
        struct tok_counts counts = { 0 };
        tok_encode(&record, &counts, ids, mask, 2 + i % 3, NULL, 0);
        HOLDS(tok_write(&w, record.data, record.len, &counts) == 0, "%s", err.msg);
        buf_free(&record);
    }
    HOLDS(tok_end(&w, &(struct tok_end){ 0 }) == 0 && out_commit(&out) == 0, "%s",
          err.msg);
    tok_close_writer(&w);
}

static struct course *
open_data(void)
{
    static struct course d;
    struct err err = { 0 };
    const char *path = fuzz_path("x.tok");
    if (d.n == 0) {
        put_data(path);
        HOLDS(course_open(&d, path, &model, &err) == 0, "%s", err.msg);
    }
    free(d.ticket);
    d.ticket = NULL;
    return &d;
}

static void
check_order(const struct state *st, const struct settings *kept)
{
    struct settings s = *kept;
    struct course *d = open_data();
    size_t tokens, labels;
    struct err err = { 0 };
    d->s = &s;
    if (course_seek(d, st->epoch, st->index, &err) < 0)
        return;
    HOLDS(st->index <= SAMPLES && st->epoch < (uint64_t)1 << 62, "it is refused");
    HOLDS(course_max(d, UINT32_MAX, &tokens, &labels, &err) == 0, "%s", err.msg);
    s.seq_len = 0;
    s.batch = 1 + s.batch % 3;
    s.accum = 1 + s.accum % 3;
    HOLDS(course_settle(d, &s, &model, &err) == 0 &&
              course_max(d, 4, &tokens, &labels, &err) == 0,
          "%s", err.msg);
    HOLDS(d->epoch == st->epoch && d->index == st->index, "it only looks ahead");
    for (int step = 0; step < 4; step++) {
        HOLDS(course_step(d, &err) == 0, "%s", err.msg);
        for (size_t i = 0; i < d->n_batches; i++) {
            const struct net_batch *b = &d->batch[i];
            HOLDS(b->tokens >= 1 && b->tokens <= tokens, "%zu of %zu", b->tokens,
                  tokens);
            for (size_t t = 0; t < b->tokens; t++)
                HOLDS(b->ids[t] >= 0 && b->ids[t] < VOCAB && b->label[t] < VOCAB &&
                          b->first[t] >= 0 && (size_t)b->first[t] <= t,
                      "token %zu", t);
        }
    }
}

static void
check_state(struct slice text)
{
    struct state st, again;
    struct settings s, same;
    struct buf b = { 0 }, c = { 0 };
    if (!read_back(&st, &s, text))
        return;
    check_ranges(&st, &s);
    state_put(&b, &st, &s);
    HOLDS(read_back(&again, &same, (struct slice){ b.data, b.len }),
          "written, refused");
    state_put(&c, &again, &same);
    HOLDS(b.len == c.len && memcmp(b.data, c.data, b.len) == 0, "another state");
    check_order(&st, &s);
    check_spike(&st.spike);
    if (st.fp8_amax.n)
        free((void *)(uintptr_t)st.fp8_amax.p);
    if (again.fp8_amax.n)
        free((void *)(uintptr_t)again.fp8_amax.p);
    buf_free(&b);
    buf_free(&c);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    check_state((struct slice){ (const char *)data, n });
    return 0;
}
