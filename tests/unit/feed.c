/* SPDX-License-Identifier: MIT */
/* feed: the bytes of a file, alone and with a reader, around its chunk size (512 KiB)
 * and the size of its ring (8 chunks); a file that shrinks is heard. */
#include "lib/file/feed.h"

#include "tests/unit/check.h"

enum { CHUNK = 512 << 10, RING = 8 * CHUNK, LARGEST = RING + 2 * CHUNK + 5 };

static struct guard guard;
static uint8_t pattern[LARGEST];

/* Bytes [offset, offset+n) arrive whole, in order, once. */
static void
check_range(struct map *m, uint64_t offset, uint64_t n, unsigned threads)
{
    struct err err = { 0 };
    struct feed *f = feed_open(m, offset, n, threads, &err);
    const uint8_t *p;
    size_t part;
    uint64_t at = offset;
    int rc;
    NEED(f);
    while ((rc = feed_next(f, &p, &part)) > 0) {
        CHECK_SAY(part > 0 && at + part <= offset + n &&
                      memcmp(p, pattern + at, part) == 0,
                  "bytes %llu+%zu of [%llu,+%llu), %u threads", (unsigned long long)at,
                  part, (unsigned long long)offset, (unsigned long long)n, threads);
        at += part;
    }
    CHECK(rc == 0 && err.kind == ERR_NONE);
    CHECK_SAY(at == offset + n, "%llu bytes of %llu, %u threads",
              (unsigned long long)(at - offset), (unsigned long long)n, threads);
    CHECK(feed_next(f, &p, &part) == 0); // the end stays
    feed_close(f);
}

/* Closed before the end, after so many chunks. */
static void
check_early(struct map *m, unsigned threads, int chunks)
{
    struct err err = { 0 };
    struct feed *f = feed_open(m, 0, m->size, threads, &err);
    const uint8_t *p;
    size_t part;
    NEED(f);
    for (int i = 0; i < chunks; i++)
        CHECK(feed_next(f, &p, &part) == 1);
    feed_close(f);
    CHECK(err.kind == ERR_NONE);
}

static void
check_short(unsigned threads, off_t left)
{
    struct err err = { 0 };
    struct map m;
    const uint8_t *p;
    size_t part;
    uint64_t got = 0;
    int rc;
    check_put("shrinks", pattern, LARGEST);
    NEED(map_open(&m, "shrinks", &guard, &err) == 0);
    NEED(truncate("shrinks", left) == 0);
    struct feed *f = feed_open(&m, 0, m.size, threads, &err);
    NEED(f);
    while ((rc = feed_next(f, &p, &part)) > 0) {
        CHECK(memcmp(p, pattern + got, part) == 0);
        got += part;
    }
    CHECK_SAY(rc == -1 && got <= (uint64_t)left, "%u threads, %lld bytes left: %d",
              threads, (long long)left, rc);
    CHECK_ERR(err, ERR_IO, "changed while being read");
    CHECK(feed_next(f, &p, &part) == -1);
    feed_close(f);
    map_close(&m);
}

int
main(void)
{
    static const uint64_t sizes[] = { 0,
                                      1,
                                      17,
                                      4096,
                                      CHUNK - 1,
                                      CHUNK,
                                      CHUNK + 1,
                                      2 * CHUNK - 1,
                                      2 * CHUNK,
                                      RING - 1,
                                      RING,
                                      RING + 1,
                                      RING + CHUNK,
                                      LARGEST };
    static const uint64_t offsets[] = { 0, 1, 4095, CHUNK };
    struct err err = { 0 };
    struct map m;
    check_scratch();
    check_fill(pattern, sizeof pattern);
    check_put("file", pattern, sizeof pattern);
    NEED(map_open(&m, "file", &guard, &err) == 0);
    for (unsigned threads = 1; threads <= 2; threads++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t k = 0; k < sizeof offsets / sizeof *offsets; k++)
                if (offsets[k] + sizes[i] <= LARGEST)
                    check_range(&m, offsets[k], sizes[i], threads);
        for (int chunks = 0; chunks < 4; chunks++)
            check_early(&m, threads, chunks);
        check_short(threads, 0);
        check_short(threads, CHUNK + 1);
        check_short(threads, LARGEST - 1);
    }
    map_close(&m);
    return check_end();
}
