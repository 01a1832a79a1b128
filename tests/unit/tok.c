/* SPDX-License-Identifier: MIT */
/* tok: streams written and read again, as a file and through a pipe; cut at every byte,
 * with every bit flipped, before they are read and between one reading and the next. */
#include "lib/format/tok.h"

#include "lib/file/map.h"

#include "tests/unit/check.h"

#include <fcntl.h>

static struct guard guard;

static const struct tok_settings settings = {
    .end = true, .shuffled = true, .shuffle = 7, .input = "tsv", .invalid = "error"
};

/* Sample i of a stream: a few ids or many, of two documents where packed. */
struct made {
    uint32_t ids[5000], starts[2], n, n_starts;
    uint8_t mask[5000];
};

static void
make_sample(struct made *m, uint32_t i, bool packed)
{
    m->n = i == 3 ? 5000 : 2 + check_random(i) % 40;
    m->n_starts = packed ? 1 + (m->n > 4) : 0;
    m->starts[0] = 0;
    m->starts[1] = m->n / 2;
    for (uint32_t k = 0; k < m->n; k++) {
        m->ids[k] = check_random(1000 * i + k) % 151669;
        m->mask[k] = check_random(77 * i + k) & 1;
    }
    m->mask[m->n - 1] = 1;
}

static struct tok_header
make_header(bool packed)
{
    struct tok_header h = { .packed = packed,
                            .has_vocab = true,
                            .vocab = 151669,
                            .has_tokenizer = true,
                            .has_seq_len = packed,
                            .seq_len = 4999,
                            .template = slice_of("qwen3"),
                            .version = slice_of("0.1.0") };
    check_fill(h.tokenizer, sizeof h.tokenizer);
    return h;
}

/* A stream of n samples into a file. */
static void
put_stream(const char *path, uint32_t n, bool packed)
{
    static struct made m;
    struct outfile out;
    struct tok_writer w;
    struct err err = { 0 };
    struct tok_header h = make_header(packed);
    uint8_t input[XXH3_BYTES];
    struct tok_end end = {
        .skipped = 4, .truncated = 5, .inputs = input, .n_inputs = 1
    };
    check_fill(input, sizeof input);
    NEED(out_open(&out, path, OUT_FORCE, &guard, &err) == 0);
    NEED(tok_begin(&w, &out, &h, &settings, &err) == 0);
    for (uint32_t i = 0; i < n; i++) {
        struct buf record = { 0 };
        struct tok_counts counts = { 0 };
        make_sample(&m, i, packed);
        tok_encode(&record, &counts, m.ids, m.mask, m.n, packed ? m.starts : NULL,
                   m.n_starts);
        CHECK(counts.samples == 1 && counts.tokens == m.n && counts.longest == m.n);
        NEED(tok_write(&w, record.data, record.len, &counts) == 0);
        buf_free(&record);
    }
    NEED(tok_end(&w, &end) == 0);
    tok_close_writer(&w);
    NEED(out_commit(&out) == 0);
}

static void
compare(const struct tok_sample *s, uint32_t i, bool packed)
{
    static struct made m;
    uint32_t targets = 0;
    make_sample(&m, i, packed);
    CHECK(s->n == m.n && check_equal(s->ids, m.ids, m.n * sizeof *m.ids));
    CHECK(s->n_starts == (packed ? m.n_starts : 1) && s->starts[0] == 0);
    for (uint32_t k = 0; k < m.n && k < s->n; k++) {
        bool start = k == 0 || (m.n_starts == 2 && k == m.starts[1]);
        uint8_t want = (uint8_t)(m.mask[k] | (start ? TOK_START : 0) |
                                 (m.mask[k] && !start ? TOK_TARGET : 0));
        CHECK_SAY(s->flags[k] == want, "sample %u, id %u: flags %u, expected %u", i, k,
                  s->flags[k], want);
        targets += m.mask[k] && !start;
    }
    CHECK(s->targets == targets);
}

static void
check_meta(const struct tok_reader *r, bool packed)
{
    const struct tok_header *h = &r->header, want = make_header(packed);
    CHECK(h->packed == packed && h->has_seq_len == packed && h->vocab == want.vocab);
    CHECK(h->has_tokenizer && check_equal(h->tokenizer, want.tokenizer, SHA256_BYTES));
    CHECK(slice_is(h->template, "qwen3") && slice_is(h->version, "0.1.0"));
    CHECK(slice_is(h->input, "tsv"));
    CHECK(slice_is(h->settings,
                   "{\"end\":true,\"input\":\"tsv\",\"invalid\":\"error\","
                   "\"joint\":false,\"parse_special\":false,\"shuffle\":7}"));
    CHECK(r->end.skipped == 4 && r->end.truncated == 5 && r->end.n_inputs == 1);
}

/* Read all, then all again by their indices. */
static void
check_stream(struct tok_reader *r, uint32_t n, bool packed, struct err *err)
{
    struct tok_sample s;
    int more;
    for (uint32_t i = 0; (more = tok_next(r, &s)) > 0 && i < n; i++) {
        CHECK(s.index == i);
        compare(&s, i, packed);
    }
    CHECK_SAY(more == 0, "%s", err->msg);
    CHECK(tok_next(r, &s) == 0 && r->end.counts.samples == n);
    check_meta(r, packed);
    for (uint32_t i = n; i-- > 0;) {
        CHECK_SAY(tok_at(r, i, &s) == 0, "%s", err->msg);
        CHECK(s.index == i);
        compare(&s, i, packed);
    }
}

static void
both_ways(uint32_t n, bool packed)
{
    struct tok_reader r;
    struct err err = { 0 };
    struct slice none = { NULL, 0 };
    put_stream("s.tok", n, packed);
    CHECK_SAY(tok_open(&r, "s.tok", TOK_KEEP, &err) == 0, "%s", err.msg);
    check_stream(&r, n, packed, &err);
    tok_close(&r);
    err = (struct err){ 0 };
    int fd = open("s.tok", O_RDONLY | O_CLOEXEC);
    NEED(fd >= 0);
    CHECK(tok_stream(&r, fd, "-", none, TOK_KEEP, &err) == 0);
    check_stream(&r, n, packed, &err);
    tok_close(&r);
    close(fd);
}

/* ---- damage ------------------------------------------------------------------------- */

/* Read n bytes as a mapped file or, the first few by hand, through a pipe; whether they
 * were taken to their end. */
static bool
taken(const uint8_t *p, size_t n, bool piped, struct err *err)
{
    struct tok_reader r;
    struct tok_sample s;
    struct slice begun = { (const char *)p, n / 3 };
    int fd[2] = { -1, -1 }, more = -1;
    *err = (struct err){ 0 };
    if (piped) {
        NEED(pipe2(fd, O_CLOEXEC) == 0);
        NEED(write(fd[1], p + begun.n, n - begun.n) == (ssize_t)(n - begun.n));
        close(fd[1]);
    } else {
        check_put("x.tok", p, n);
    }
    int rc = piped ? tok_stream(&r, fd[0], "-", begun, 0, err)
                   : tok_open(&r, "x.tok", 0, err);
    while (rc == 0 && (more = tok_next(&r, &s)) > 0)
        ;
    tok_close(&r);
    if (piped)
        close(fd[0]);
    return rc == 0 && more == 0;
}

static uint8_t *
slurp(const char *path, size_t *n)
{
    struct map m;
    struct err err = { 0 };
    NEED(map_open(&m, path, &guard, &err) == 0);
    *n = m.size;
    uint8_t *p = malloc(m.size + 1);
    NEED(p);
    memcpy(p, m.data, m.size);
    map_close(&m);
    return p;
}

static void
damage(bool packed)
{
    size_t n;
    struct err err;
    put_stream("s.tok", 3, packed);
    uint8_t *p = slurp("s.tok", &n);
    for (int piped = 0; piped < 2; piped++) {
        CHECK_SAY(taken(p, n, piped, &err), "%s", err.msg);
        for (size_t cut = 0; cut < n; cut++) {
            CHECK_SAY(!taken(p, cut, piped, &err), "cut at byte %zu", cut);
            CHECK_ERR(err, ERR_FORMAT, ": byte ");
        }
        p[n] = 0;
        CHECK(!taken(p, n + 1, piped, &err));
        CHECK_ERR(err, ERR_FORMAT, "behind the end");
        for (size_t bit = 0; bit < 8 * n; bit += 1 + 2 * (size_t)piped) {
            p[bit / 8] ^= (uint8_t)(1U << bit % 8);
            CHECK_SAY(!taken(p, n, piped, &err), "bit %zu flipped", bit);
            CHECK(err.kind == ERR_FORMAT);
            p[bit / 8] ^= (uint8_t)(1U << bit % 8);
        }
    }
    free(p);
}

/* A file that becomes shorter while it is open. */
static void
write_byte(int fd, uint64_t at, uint8_t v)
{
    NEED(pwrite(fd, &v, 1, (off_t)at) == 1);
}

/* Whoever writes into a file that is in use, or cuts it, is noticed by tok_at at the
 * sample that he hit, and nowhere else. */
static void
changing(bool packed)
{
    enum { SAMPLES = 5, SECOND = 1 };
    struct tok_reader r;
    struct tok_sample s;
    struct err err = { 0 };
    uint64_t from = 0, to = 0;
    put_stream("s.tok", SAMPLES, packed);
    int fd = open("s.tok", O_RDWR | O_CLOEXEC);
    NEED(fd >= 0 && tok_open(&r, "s.tok", TOK_KEEP, &err) == 0);
    while (tok_next(&r, &s) > 0)
        if (s.index == SECOND) {
            from = s.offset;
            to = s.offset + s.bytes;
        }
    NEED(!err.kind && from > 0);
    for (uint64_t at = from; at < to; at++) {
        uint8_t was;
        NEED(pread(fd, &was, 1, (off_t)at) == 1);
        write_byte(fd, at, was ^ 1);
        CHECK(tok_at(&r, SECOND - 1, &s) == 0 && tok_at(&r, SECOND + 1, &s) == 0);
        CHECK(tok_at(&r, SECOND, &s) < 0);
        CHECK_ERR(err, ERR_IO, "sample 1: was overwritten");
        write_byte(fd, at, was);
        err = (struct err){ 0 };
        CHECK(tok_at(&r, SECOND, &s) == 0 && s.index == SECOND);
    }
    NEED(ftruncate(fd, (off_t)to - 1) == 0);
    CHECK(tok_at(&r, SECOND - 1, &s) == 0);
    CHECK(tok_at(&r, SECOND, &s) < 0);
    CHECK_ERR(err, ERR_IO, "sample 1: was cut off");
    tok_close(&r);
    close(fd);
}

static void
shrinking(void)
{
    enum { MANY = 30000 }; // more than is read at a time
    struct tok_reader r;
    struct tok_sample s;
    struct err err = { 0 };
    put_stream("s.tok", MANY, false);
    CHECK(tok_open(&r, "s.tok", 0, &err) == 0);
    NEED(truncate("s.tok", 1 << 20) == 0);
    while (tok_next(&r, &s) > 0)
        ;
    CHECK_ERR(err, ERR_FORMAT, "the stream was cut");
    tok_close(&r);
    CHECK(tok_open(&r, "none.tok", 0, &err) < 0);
    tok_close(&r);
}

static void
provenance(void)
{
    struct tok_reader r;
    struct tok_sample s;
    struct buf b = { 0 };
    struct err err = { 0 };
    put_stream("s.tok", 1, false);
    CHECK(tok_open(&r, "s.tok", 0, &err) == 0);
    CHECK(tok_next(&r, &s) == 1);
    CHECK(tok_next(&r, &s) == 0);
    tok_put_provenance(&b, &r);
    CHECK(b.data && strncmp(b.data, "{\"inputs\":[{\"kind\":\"tsv\",", 25) == 0);
    CHECK(b.data && strstr(b.data, "\"tool\":\"tokenize\",\"version\":\"0.1.0\"}"));
    buf_free(&b);
    tok_close(&r);
}

static void
fits(void)
{
    static const uint8_t first[] = { 1, 0, 0 }, last[] = { 0, 0, 1 };
    CHECK(!tok_fits(first, 0) && !tok_fits(first, 1) && !tok_fits(first, 3));
    CHECK(tok_fits(last, 3) && !tok_fits(last, 2));
    CHECK(tok_sniff("\x89NIBTK\r\n", 8) && !tok_sniff("\x89NIBTK\r\n", 7));
}

int
main(void)
{
    check_scratch();
    fits();
    for (int packed = 0; packed < 2; packed++) {
        both_ways(0, packed);
        both_ways(1, packed);
        both_ways(3000, packed);
        damage(packed);
        changing(packed);
    }
    shrinking();
    provenance();
    return check_end();
}
