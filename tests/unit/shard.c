/* SPDX-License-Identifier: MIT */
/* shard: parts of a tensor's elements for any number of ranks cover it once, in order, in whole
 * units; one rank's communicator gives back what it is given. */
#include "lib/model/shard.h"
#include "lib/dist/comm.h"

#include "tests/unit/check.h"

enum { RANKS = 9, BLOCK = 16384 };

static struct row
row_of(uint64_t rows, uint64_t cols)
{
    return rows ? (struct row){ .rank = 2,
                                .shape = { rows, cols },
                                .numel = rows * cols }
                : (struct row){ .rank = 1, .shape = { cols }, .numel = cols };
}

static void
check_parts(void)
{
    static const uint64_t sizes[][2] = { { 0, 128 },   { 0, 40000 },   { 7, 16 },
                                         { 97, 5120 }, { 1000, 2560 }, { 333, 48 } };
    enum { ROWS = sizeof sizes / sizeof *sizes };
    struct row *rows = calloc(ROWS, sizeof *rows);
    struct table t = { .row = rows, .n = ROWS };
    NEED(rows);
    for (size_t i = 0; i < t.n; i++)
        rows[i] = row_of(sizes[i][0], sizes[i][1]);
    for (size_t i = 0; i < t.n; i++)
        for (unsigned ranks = 1; ranks <= RANKS; ranks++) {
            size_t at[RANKS + 1], numel = (size_t)rows[i].numel, most = 0, owners = 0;
            size_t cols = (size_t)rows[i].shape[rows[i].rank - 1];
            shard_parts(at, &t, i, ranks);
            CHECK(at[0] == 0 && at[ranks] == numel);
            for (unsigned q = 0; q < ranks; q++) {
                size_t n = at[q + 1] - at[q];
                CHECK(at[q + 1] >= at[q]);
                CHECK_SAY(n == 0 || (at[q] % BLOCK == 0 && at[q] % cols == 0),
                          "row %zu, %u ranks: part %u begins at %zu", i, ranks, q,
                          at[q]);
                most = n > most ? n : most;
                owners += n > 0;
            }
            // A tensor of less than a unit has one owner, another one for another row.
            if (numel <= BLOCK && rows[i].rank == 2)
                CHECK(owners == 1 && at[i % ranks + 1] - at[i % ranks] == numel);
            if (rows[i].rank == 1)
                CHECK(owners == 1);
            if (cols == 2560) // 39 units of 32 rows, the last one shorter
                CHECK(most <= ((size_t)32 / ranks + 1) * 32 * 2560);
        }
    free(rows);
}

static void
check_alone(void)
{
    struct err err = { 0 };
    struct comm c;
    char from[] = "abcdefgh", to[8] = "";
    const size_t at[] = { 2, 6 };
    comm_one(&c, &err);
    CHECK(c.rank == 0 && c.size == 1);
    CHECK(comm_exchange(&c, to, from, at) == 0 && memcmp(to, "\0\0", 2) == 0);
    CHECK(comm_gather(&c, from, at) == 0 && comm_broadcast(&c, from, 8) == 0);
    CHECK(strcmp(from, "abcdefgh") == 0);
    err_fill(&err, ERR_IO, "lost");
    CHECK(comm_gather(&c, from, at) < 0 && comm_broadcast(&c, from, 8) < 0 &&
          comm_exchange(&c, to, from, at) < 0);
    comm_close(&c);
}

int
main(void)
{
    check_parts();
    check_alone();
    return check_end();
}
