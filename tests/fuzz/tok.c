/* SPDX-License-Identifier: MIT */
/* tok: a stream as a file and through a descriptor, which must come to the same samples;
 * what was taken is written again as the same records, and read again it is the same.  The second run puts the right
 * hash at the end, which no mutation finds.  Seeds: "tests/tok.py make" and "bad". */
#include "lib/format/tok.h"

#include "tests/fuzz/fuzz.h"

/* The samples of a reader as records again; whether it came to its end. */
static bool
drain(struct tok_reader *r, struct buf *records, struct err *err)
{
    struct tok_sample s;
    struct tok_counts counts = { 0 };
    struct buf mask = { 0 };
    uint64_t at = r->start;
    int more;
    while ((more = tok_next(r, &s)) > 0) {
        size_t before = records->len;
        HOLDS(s.offset == at && s.index == counts.samples, "sample %llu",
              (unsigned long long)s.index);
        mask.len = 0;
        for (uint32_t i = 0; i < s.n; i++)
            buf_char(&mask, s.flags[i] & TOK_MASK);
        HOLDS(s.n >= 2 && s.targets >= 1 && s.n_starts >= 1 && s.starts[0] == 0, "%u",
              s.n);
        HOLDS(r->header.packed || tok_fits((const uint8_t *)mask.data, s.n), "%u", s.n);
        tok_encode(records, &counts, s.ids, (const uint8_t *)mask.data, s.n,
                   r->header.packed ? s.starts : NULL, s.n_starts);
        HOLDS(records->len - before == s.bytes, "%zu", records->len - before);
        at += s.bytes;
    }
    buf_free(&mask);
    if (more < 0)
        return false;
    HOLDS(memcmp(&counts, &r->end.counts, sizeof counts) == 0, "counts");
    HOLDS(r->end_offset == at, "end at %llu", (unsigned long long)r->end_offset);
    HOLDS(tok_next(r, &s) == 0, "%s", err->msg);
    for (uint64_t i = counts.samples; i-- > 0;)
        HOLDS(tok_at(r, i, &s) == 0 && s.index == i, "%s", err->msg);
    return true;
}

static void
check_provenance(const struct tok_reader *r)
{
    struct buf b = { 0 };
    tok_put_provenance(&b, r);
    fuzz_object((struct slice){ b.data, b.len }, "provenance");
    fuzz_object(r->header.settings, "settings");
    buf_free(&b);
}

static bool
read_one(const uint8_t *data, size_t n, bool file, struct buf *records)
{
    struct err err = { 0 };
    struct tok_reader r;
    struct slice begun = { (const char *)data, n % 7 < n ? n % 7 : 0 };
    const char *path = fuzz_put("x.tok", data, n);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    HOLDS(fd >= 0 && lseek(fd, (off_t)begun.n, SEEK_SET) >= 0, "open");
    int rc = file ? tok_open(&r, path, TOK_KEEP, &err)
                  : tok_stream(&r, fd, path, begun, TOK_KEEP, &err);
    bool ok = rc == 0 && drain(&r, records, &err);
    if (ok) {
        HOLDS(r.bytes == n, "%llu bytes of %zu", (unsigned long long)r.bytes, n);
        HOLDS(records->len == r.end_offset - r.start &&
                  (records->len == 0 ||
                   memcmp(records->data, data + r.start, records->len) == 0),
              "%zu bytes of records", records->len);
        check_provenance(&r);
    } else {
        fuzz_refused(&err);
    }
    tok_close(&r);
    close(fd);
    return ok;
}

static void
both_ways(const uint8_t *data, size_t n)
{
    struct buf a = { 0 }, b = { 0 };
    bool file = read_one(data, n, true, &a), streamed = read_one(data, n, false, &b);
    HOLDS(file == streamed, "file %d, streamed %d", file, streamed);
    HOLDS(a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0),
          "%zu bytes of records, %zu", a.len, b.len);
    buf_free(&a);
    buf_free(&b);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    both_ways(data, n);
    if (n < XXH3_BYTES)
        return 0;
    uint8_t *sealed = malloc(n);
    HOLDS(sealed, "malloc");
    memcpy(sealed, data, n);
    xxh3_128(sealed + n - XXH3_BYTES, data, n - XXH3_BYTES);
    both_ways(sealed, n);
    free(sealed);
    return 0;
}
