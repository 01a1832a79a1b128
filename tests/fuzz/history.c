/* SPDX-License-Identifier: MIT */
/* history: the spans in a checkpoint's provenance.  What is read is written, and saving
 * between two steps or not gives the same bytes. */
#include "lib/format/history.h"

#include "tests/fuzz/fuzz.h"

static struct buf
written(const struct history *h)
{
    struct buf b = { 0 };
    history_put(&b, h, "1");
    HOLDS(!b.failed, "out of memory");
    fuzz_object((struct slice){ b.data, b.len }, "provenance");
    return b;
}

/* One more span of the steps [first, last] behind what text has. */
static struct buf
go_on(struct slice text, uint64_t first, uint64_t last)
{
    struct history h;
    struct err err = { 0 };
    struct slice word = slice_of("0");
    HOLDS(history_read(&h, text, &err) == 1, "refused what it wrote: %.*s", (int)text.n,
          text.p);
    HOLDS(history_add(&h, &(struct history_span){ first, last, word, word, word },
                      &err) == 0,
          "%s", err.msg);
    struct buf b = written(&h);
    history_free(&h);
    return b;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct history h;
    struct err err = { 0 };
    struct slice text = { (const char *)data, n };
    if (history_read(&h, text, &err) != 1)
        return 0;
    uint64_t last = h.span[h.n - 1].last;
    struct buf b = written(&h);
    buf_free(&b);
    history_free(&h);
    if (last > INT64_MAX - 2)
        return 0;
    struct buf once = go_on(text, last + 1, last + 2),
               one = go_on(text, last + 1, last + 1);
    struct buf two = go_on((struct slice){ one.data, one.len }, last + 2, last + 2);
    HOLDS(once.len == two.len && memcmp(once.data, two.data, two.len) == 0, "%s\n%s",
          once.data, two.data);
    buf_free(&once);
    buf_free(&one);
    buf_free(&two);
    return 0;
}
