/* SPDX-License-Identifier: MIT */
/* fuzz: what the harnesses share: a directory for input files, what must hold of every
 * message of the library, and of every file that it has opened. */
#ifndef NIBBLE_TESTS_FUZZ_FUZZ_H
#define NIBBLE_TESTS_FUZZ_FUZZ_H

#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/format/store.h"
#include "lib/format/view.h"
#include "lib/load/values.h"

#include <fcntl.h>
#include <ftw.h>
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void fuzz_remove(void);

/* What must hold whatever the input was; a crash with these words if it does not. */
#define HOLDS(cond, ...)                                                               \
    do {                                                                               \
        if (!(cond)) {                                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                 \
            fprintf(stderr, __VA_ARGS__);                                              \
            fprintf(stderr, "\n");                                                     \
            fuzz_remove();                                                             \
            abort();                                                                   \
        }                                                                              \
    } while (0)

static struct guard fuzz_guard;

/* ---- mapped files end where they end ---------------------------------------- */

/* A file that is mapped goes on with zeros to the end of its last page, and ASan lets
 * them be read.  So these stand in for the two calls and poison that rest. */
static inline size_t
fuzz_whole_pages(size_t n)
{
    return (size_t)round_up(n, (uint64_t)sysconf(_SC_PAGESIZE));
}

void *
mmap(void *addr, size_t n, int prot, int flags, int fd, off_t offset)
{
    // NOLINTNEXTLINE(performance-no-int-to-ptr): that is what the call returns
    void *p = (void *)syscall(SYS_mmap, addr, n, prot, flags, fd, offset);
    if (p != MAP_FAILED && fd >= 0)
        ASAN_POISON_MEMORY_REGION((char *)p + n, fuzz_whole_pages(n) - n);
    return p;
}

int
munmap(void *addr, size_t len)
{
    ASAN_UNPOISON_MEMORY_REGION(addr, fuzz_whole_pages(len));
    return (int)syscall(SYS_munmap, addr, len);
}

/* ---- input files ------------------------------------------------------------- */

static char fuzz_dir[64];

static inline int
fuzz_remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void
fuzz_remove(void)
{
    if (*fuzz_dir)
        nftw(fuzz_dir, fuzz_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* DIR/LEAF in a directory of this process, in memory where the machine has /dev/shm;
 * it goes with the process, unless a sanitizer ends that. */
static inline const char *
fuzz_path(const char *leaf)
{
    static char path[4][128];
    static unsigned next;
    if (!*fuzz_dir) {
        snprintf(fuzz_dir, sizeof fuzz_dir, "%s/nibble-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        HOLDS(mkdtemp(fuzz_dir), "cannot make a directory");
        atexit(fuzz_remove);
    }
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", fuzz_dir, leaf);
    return p;
}

static inline const char *
fuzz_put(const char *leaf, const void *bytes, size_t n)
{
    const char *path = fuzz_path(leaf);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    HOLDS(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "%s: cannot be written", path);
    close(fd);
    return path;
}

/* ---- words -------------------------------------------------------------------- */

/* UTF-8 that may go to a terminal; newlines where lines are wanted. */
static inline void
fuzz_words(const char *p, size_t n, bool lines)
{
    uint32_t cp = 0;
    for (size_t i = 0, len; i < n; i += len) {
        len = utf8_char(&cp, p + i, n - i);
        HOLDS(len > 0, "byte %zu of \"%.*s\" is not UTF-8", i, (int)n, p);
        HOLDS(!text_unsafe(cp) || (lines && cp == '\n'), "U+%04X in \"%.*s\"", cp,
              (int)n, p);
    }
}

/* An input was refused: for its bytes, with words, and nothing else. */
static inline void
fuzz_refused(const struct err *err)
{
    HOLDS(err->kind == ERR_FORMAT, "kind %d: %s", (int)err->kind, err->msg);
    HOLDS(*err->msg, "no words");
    fuzz_words(err->msg, strlen(err->msg), false);
}

/* A JSON object, as the slices of a store promise. */
static inline void
fuzz_object(struct slice text, const char *what)
{
    struct json j;
    struct err err = { 0 };
    struct arena arena = { 0 };
    if (!text.p)
        return;
    json_open(&j, what, 0, text, &arena, &err);
    HOLDS(json_peek(&j) == '{' && json_skip(&j, NULL) == 0 && json_end(&j) == 0,
          "%s is no JSON object: %.*s", err.msg, (int)text.n, text.p);
    arena_free(&arena);
}

/* ---- what must hold of an open store ------------------------------------------ */

static inline uint64_t
fuzz_file_bytes(const struct store *s, size_t file)
{
    return s->n_files ? s->files[file].size
                      : s->bytes; // a pipe of which only a list is
}

static inline void
fuzz_tensor(struct store *s, const struct tensor *t)
{
    uint64_t numel = 0, nbytes = 0;
    struct slice name = { t->name, t->name_len };
    HOLDS(t->name_len >= 1 && t->name_len <= MAX_NAME && strlen(t->name) == t->name_len,
          "name of %u bytes", t->name_len);
    HOLDS(utf8_check(t->name, t->name_len) == t->name_len, "name");
    HOLDS(store_find(s, name) == t, "%s is not found", t->name);
    HOLDS(t->rank <= MAX_RANK && t->dtype > DT_NONE && t->dtype < DT_NVFP4, "%s",
          t->name);
    // The 4-bit scalar of a .dat is a byte: two values that no shape can tell.
    if (t->dtype == DT_F4_E2M1 && t->rank == 0)
        HOLDS(t->numel == 2 && t->nbytes == 1, "%s", t->name);
    else
        HOLDS(dtype_size(&numel, &nbytes, t->dtype, t->shape, t->rank) &&
                  numel == t->numel && nbytes == t->nbytes,
              "%s: %llu elements, %llu bytes", t->name, (unsigned long long)t->numel,
              (unsigned long long)t->nbytes);
    HOLDS(s->n_files == 0 || t->file < s->n_files, "%s", t->name);
    uint64_t bytes = fuzz_file_bytes(s, t->file);
    HOLDS(t->head <= t->offset && t->offset <= bytes && t->nbytes <= bytes - t->offset,
          "%s: %llu+%llu of %llu", t->name, (unsigned long long)t->offset,
          (unsigned long long)t->nbytes, (unsigned long long)bytes);
    if (s->n_files == 0 || t->nbytes == 0) {
        HOLDS(!store_data(s, t), "%s: data without bytes", t->name);
        return;
    }
    struct err err = { 0 };
    uint8_t ends[2], past;
    HOLDS(store_read(s, t, 0, &ends[0], 1, &err) == 0 &&
              store_read(s, t, t->nbytes - 1, &ends[1], 1, &err) == 0,
          "%s", err.msg);
    HOLDS(store_read(s, t, t->nbytes, &past, 1, &err) < 0, "%s: read past its end",
          t->name);
    const uint8_t *data = store_data(s, t);
    if (data)
        HOLDS(data[0] == ends[0] && data[t->nbytes - 1] == ends[1],
              "%s: data is elsewhere", t->name);
}

struct fuzz_tiles {
    const struct store *s;
    size_t file;
    uint64_t at;
};

static inline void
fuzz_tile(void *ctx, size_t file, uint64_t offset, uint64_t n, const char *what,
          const struct tensor *t)
{
    struct fuzz_tiles *x = ctx;
    if (file != x->file) {
        HOLDS(file == x->file + 1 && x->at == fuzz_file_bytes(x->s, x->file),
              "%s: file %zu after byte %llu of file %zu", what, file,
              (unsigned long long)x->at, x->file);
        *x = (struct fuzz_tiles){ x->s, file, 0 };
    }
    HOLDS(n > 0 && offset == x->at, "%s: %llu+%llu, expected it at %llu", what,
          (unsigned long long)offset, (unsigned long long)n, (unsigned long long)x->at);
    HOLDS(n <= fuzz_file_bytes(x->s, file) - offset, "%s: beyond the file", what);
    HOLDS(!t || t->file == file, "%s: tensor of another file", what);
    x->at += n;
}

static inline void
fuzz_segments(const struct store *s)
{
    struct fuzz_tiles x = { s, 0, 0 };
    store_segments(s, fuzz_tile, &x);
    if (s->bytes)
        HOLDS(x.file + 1 >= s->n_files && x.at == fuzz_file_bytes(s, x.file),
              "segments end at byte %llu of file %zu", (unsigned long long)x.at,
              x.file);
}

static inline void
fuzz_values(struct store *s, const struct view *v)
{
    static struct values_scratch scratch;
    struct values x;
    struct stats all = { 0 };
    struct err err = { 0 };
    if (!scratch.f64)
        HOLDS(values_scratch(&scratch, &err) == 0, "%s", err.msg);
    if (values_kind(v->dtype) == VALUES_NONE || s->n_files == 0)
        return;
    int rc = values_open(&x, s, v, isa_best(), &err);
    for (uint64_t i = 0; rc == 0 && i < values_chunks(v); i++) {
        struct stats part;
        rc = values_stats(&x, i, &scratch, &part, &err);
        if (rc == 0)
            stats_merge(&all, &part);
    }
    if (rc < 0) {
        HOLDS(v->dtype == DT_NVFP4, "%s", err.msg); // the only one with bad values
        fuzz_refused(&err);
        return;
    }
    HOLDS(all.n + all.nans + all.infs == v->numel && all.zeros <= all.n,
          "%s: %llu of %llu", v->name, (unsigned long long)all.n,
          (unsigned long long)v->numel);
    HOLDS(all.n == 0 || all.min <= all.max, "%s", v->name);
}

static inline void
fuzz_views(struct store *s, bool raw)
{
    struct views w;
    uint64_t numel = 1;
    if (views_open(&w, s, raw) < 0) {
        HOLDS(!raw, "%s", s->err->msg);
        fuzz_refused(s->err);
        *s->err = (struct err){ 0 };
        views_close(&w);
        return;
    }
    HOLDS(raw ? w.n == s->n_tensors : w.n <= s->n_tensors, "%zu views", w.n);
    for (size_t i = 0; i < w.n; i++) {
        const struct view *v = &w.v[i];
        uint64_t nbytes = v->entry->nbytes + (v->scale ? v->scale->nbytes : 0) +
                          (v->scale2 ? v->scale2->nbytes : 0);
        HOLDS(strlen(v->name) == v->name_len && v->nbytes == nbytes, "%s", v->name);
        bool blocks = view_in_blocks(v);
        HOLDS((v->dtype == DT_NVFP4) == (v->scale != NULL || blocks), "%s", v->name);
        if (v->dtype == DT_NVFP4)
            HOLDS(v->rank == 2 &&
                      mul_fits(&numel, v->shape[0], v->shape[1], INT64_MAX) &&
                      numel == v->numel &&
                      (blocks ? numel / 64 * 36 == v->entry->nbytes
                              : numel / 2 == v->entry->nbytes &&
                                    numel / 16 == v->scale->nbytes),
                  "%s", v->name);
        fuzz_values(s, v);
    }
    views_close(&w);
}

/* All that is done with an open store; its error is empty before and after. */
static inline void
fuzz_store(struct store *s)
{
    uint8_t digest[XXH3_BYTES];
    const char *what = NULL;
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->n_files; i++)
        bytes += s->files[i].size;
    HOLDS(s->n_files == 0 || bytes == s->bytes, "%llu bytes",
          (unsigned long long)s->bytes);
    for (size_t i = 0; i < s->n_tensors; i++)
        fuzz_tensor(s, &s->tensors[i]);
    fuzz_segments(s);
    fuzz_views(s, true);
    fuzz_views(s, false);
    fuzz_object(s->config, "config");
    fuzz_object(s->provenance, "provenance");
    HOLDS(store_meta(s) == 0, "%s", s->err->msg);
    fuzz_object(s->meta, "meta");
    HOLDS(store_check(s) == 0, "%s", s->err->msg);
    if (s->n_files && store_content_hash(s, digest, 1, s->err) < 0) {
        HOLDS(s->side_xxh3.p, "%s", s->err->msg); // which knows other bytes
        fuzz_refused(s->err);
        *s->err = (struct err){ 0 };
    }
    HOLDS(store_verify(s, false, 1, &what) == 0 && *what, "%s", s->err->msg);
    if (store_verify(s, true, 1, &what) < 0)
        fuzz_refused(s->err);
    *s->err = (struct err){ 0 };
    fuzz_words(s->warnings.data, s->warnings.len, true);
}

/* Open a path and do it all; whether it was taken. */
static inline bool
fuzz_open(const char *path, bool strict)
{
    struct store_options opt = { .guard = &fuzz_guard,
                                 .strict = strict,
                                 .tmpdir = fuzz_dir };
    struct err err = { 0 };
    struct store s;
    bool ok = store_open(&s, path, &opt, &err) == 0;
    if (ok)
        fuzz_store(&s);
    else
        fuzz_refused(&err);
    store_close(&s);
    return ok;
}

#endif
