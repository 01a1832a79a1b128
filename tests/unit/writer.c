/* SPDX-License-Identifier: MIT */
/* writer: plans of tensors whose sizes do not add up to a file, and more than was planned. */
#include "lib/format/writer.h"

#include "lib/format/gguf.h"
#include "tests/unit/check.h"

#include <dirent.h>

enum { MOST = 1100 };

static struct guard guard;

static int
entries(void)
{
    DIR *d = opendir(".");
    int n = 0;
    NEED(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

/* n tensors of that many f32 each: the plan is refused before a file is begun. */
static void
check_refused(const char *kind, const char *path, bool directory, size_t n,
              uint64_t numel)
{
    static char names[MOST][40];
    struct wtensor t[MOST] = { 0 };
    struct writer w;
    struct err err = { 0 };
    struct gguf_kv kv = { 0 };
    struct wmeta meta = { .bare = true, .version = "0", .gguf = &kv };
    struct writer_options opt = { .guard = &guard, .directory = directory };
    opt.shard_bytes = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.%zu.mlp.up_proj.weight", i);
        t[i] = (struct wtensor){
            .name = names[i], .dtype = DT_F32, .rank = 1, .shape = &numel
        };
    }
    CHECK_SAY(writer_open(&w, kind, path, t, n, &meta, &opt, &err) == -1,
              "%s: %zu tensors of %llu are begun", kind, n, (unsigned long long)numel);
    CHECK_ERR(err, ERR_USAGE, "have more than 2^62 bytes");
    writer_close(&w);
    CHECK(entries() == 0);
}

/* No more bytes are taken than were planned, by a tensor or behind the last one. */
static void
check_surplus(void)
{
    static const uint8_t bytes[16];
    const uint64_t numel = 2;
    for (int whole = 0; whole < 2; whole++) {
        struct wtensor t = { .name = "a", .dtype = DT_F32, .rank = 1, .shape = &numel };
        struct writer w;
        struct err err = { 0 };
        struct wmeta meta = { .bare = true, .version = "0" };
        struct writer_options opt = { .guard = &guard };
        NEED(writer_open(&w, "dat", "m.dat", &t, 1, &meta, &opt, &err) == 0);
        CHECK(writer_write(&w, bytes, 4) == 0);
        if (whole)
            CHECK(writer_write(&w, bytes, 4) == 0);
        CHECK(writer_write(&w, bytes, whole ? 1 : 5) == -1);
        CHECK_ERR(err, ERR_USAGE, "m.dat: more payload than planned");
        CHECK(writer_commit(&w, (struct slice){ 0 }) == -1);
        writer_close(&w);
        CHECK(entries() == 0);
    }
}

int
main(void)
{
    static const struct {
        const char *kind, *path;
        bool directory;
    } rows[] = { { "dat", "m.dat", false },
                 { "safetensors", "m.safetensors", false },
                 { "safetensors", "m", true },
                 { "gguf", "m.gguf", false },
                 { "ckpt", "m.ckpt", false } };
    check_scratch();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *kind = rows[i].kind, *path = rows[i].path;
        // Sums that wrap to 0, to a small number, past 2^63; one tensor alone.
        check_refused(kind, path, rows[i].directory, 8, (uint64_t)1 << 59);
        check_refused(kind, path, rows[i].directory, 1025, (uint64_t)1 << 52);
        check_refused(kind, path, rows[i].directory, 9, ((uint64_t)1 << 61) / 9 + 100);
        check_refused(kind, path, rows[i].directory, 2, (uint64_t)1 << 59);
        check_refused(kind, path, rows[i].directory, 1, ((uint64_t)1 << 60) + 1);
    }
    check_surplus();
    return check_end();
}
