/* SPDX-License-Identifier: MIT */
/* dat: TorchSharp state dictionaries, doc/FORMAT.md section 1.
 *
 * One parser reads a file and a pipe: it asks a struct source for bytes.  It runs
 * twice: first to check all of it, which takes some ten bytes of memory an entry, and
 * only of a good file again, to make the list.  Of a file it reads the pages that hold
 * headers; not through the mapping, where a page fault can map 2 MB of the page cache.
 * Of a pipe the headers are kept for the second time; all of it is copied to an unnamed
 * temporary file on the way (unless only a listing is wanted), and mapped there.
 */
#include "lib/base/num.h"
#include "lib/format/container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_LEB = 10,
    STREAM_BUF = 1 << 20,
    MAX_ENTRIES = 1 << 20,   // ten times what the largest models have
    MAX_HEADERS = 100000000, // bytes of all headers, as in safetensors
    MAX_RUN = 5,             // see file_chunk
};

static const uint8_t dtype_of_code[102] = {
    [0] = DT_U8,        [1] = DT_I8,        [2] = DT_I16,   [3] = DT_I32,
    [4] = DT_I64,       [5] = DT_F16,       [6] = DT_F32,   [7] = DT_F64,
    [9] = DT_C64,       [10] = DT_C128,     [11] = DT_BOOL, [15] = DT_BF16,
    [100] = DT_F4_E2M1, [101] = DT_F8_E4M3,
};

/* Bytes in order: of a file, of a pipe, or of the headers that were kept of a pipe. */
struct source {
    struct store *s;
    const uint8_t *p; // (have) bytes at hand, `at` of them used
    size_t at, have;
    uint64_t pos;      // in the file
    uint64_t size;     // of a file, else 0
    bool second;       // all of it was checked, now make the list
    bool headers_only; // payloads are not among the bytes
    struct map *map;   // the file, or NULL
    uint64_t end;      // of what was read last of the file, and how often on end
    unsigned run;
    int fd, keep; // the pipe; the file that keeps it; or -1
    uint8_t *buf; // what was read: of a pipe (STREAM_BUF), of a file MAX_RUN's pages
    uint8_t *scratch; // (MAX_NAME) the current name
    struct buf *log;  // of a pipe: its headers
    struct seen seen;
    uint64_t headers; // bytes of all so far
    // the current entry
    uint64_t entry;    // its number, from 1; 0 before the first
    uint64_t hash;     // of its name
    struct slice name; // p == NULL: not read yet
    uint64_t dims[MAX_RANK];
};

/* "m.dat: entry 3 "name": byte 17: ..." */
static void report(struct source *src, uint64_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define fail(...) (report(__VA_ARGS__), err_minus_one())

static void
report(struct source *src, uint64_t at, const char *fmt, ...)
{
    char quoted[TEXT_QUOTE];
    char words[400];
    struct buf place = { 0 };
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    buf_printf(&place, "%s: ", src->s->name);
    if (src->entry)
        buf_printf(&place, "entry %llu", (unsigned long long)src->entry);
    if (src->entry && src->name.p)
        buf_printf(&place, " \"%s\"", text_quote(quoted, src->name.p, src->name.n));
    if (src->entry)
        buf_str(&place, ": ");
    err_set(src->s->err, ERR_FORMAT, "%sbyte %llu: %s", place.data ? place.data : "",
            (unsigned long long)at, words);
    buf_free(&place);
}

/* How much to read of a file: to the end of the page, so that a listing brings in no
 * page without a header; more where the headers of page after page follow each
 * other. */
static size_t
file_chunk(struct source *src)
{
    if (src->end != src->pos)
        src->run = 0;
    else if (src->run < MAX_RUN)
        src->run++;
    uint64_t pages = src->run < 2 ? 1 : 1U << (src->run - 1);
    uint64_t n = pages * src->map->page - src->pos % src->map->page;
    return (size_t)(n < src->size - src->pos ? n : src->size - src->pos);
}

/* Read more, of a pipe or a file: 1, or 0 at its end, or -1. */
static int
refill(struct source *src)
{
    ssize_t got = 0;
    if (src->map) {
        got = (ssize_t)file_chunk(src);
        src->end = src->pos + (uint64_t)got;
        if (map_read(src->map, src->buf, (size_t)got, src->pos, src->s->err) < 0)
            return -1;
    } else if (src->fd >= 0) {
        do
            got = read(src->fd, src->buf, STREAM_BUF);
        while (got < 0 && errno == EINTR);
    } else {
        return 0;
    }
    if (got < 0)
        return err_set(src->s->err, ERR_IO, "%s: byte %llu: read:", src->s->name,
                       (unsigned long long)src->pos);
    src->p = src->buf;
    src->at = 0;
    src->have = (size_t)got;
    for (ssize_t done = 0; src->keep >= 0 && done < got;) {
        ssize_t put = write(src->keep, src->buf + done, (size_t)(got - done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_set(src->s->err, ERR_IO, "%s: keeping it in %s:", src->s->name,
                           src->s->opt.tmpdir);
        done += put;
    }
    return got > 0;
}

/* Read n bytes of a header; how many there were, or -1. */
static int64_t
read_bytes(struct source *src, uint8_t *dst, uint64_t n)
{
    uint64_t done = 0;
    while (done < n) {
        int more = src->at < src->have ? 1 : refill(src);
        if (more < 0)
            return -1;
        if (more == 0)
            break;
        size_t part = src->have - src->at;
        if (part > n - done)
            part = (size_t)(n - done);
        memcpy(dst + done, src->p + src->at, part);
        if (src->log)
            buf_add(src->log, src->p + src->at, part);
        src->at += part;
        src->pos += part;
        done += part;
    }
    return (int64_t)done;
}

/* Skip n bytes of payload; how many there were, or -1. */
static int64_t
skip(struct source *src, uint64_t n)
{
    if (src->headers_only) {
        src->pos += n;
        return (int64_t)n;
    }
    if (src->map && n > src->size - src->pos)
        n = src->size - src->pos;
    uint64_t done = n < src->have - src->at ? n : src->have - src->at;
    src->at += (size_t)done;
    if (src->map)
        done = n; // what is not at hand need not be read
    src->pos += done;
    while (done < n) {
        int more = refill(src);
        if (more < 0)
            return -1;
        if (more == 0)
            break;
        src->at = n - done < src->have ? (size_t)(n - done) : src->have;
        src->pos += src->at;
        done += src->at;
    }
    return (int64_t)done;
}

static int
read_leb(struct source *src, uint64_t *v, const char *what)
{
    uint64_t start = src->pos;
    *v = 0;
    for (unsigned i = 0; i < MAX_LEB; i++) {
        uint8_t b;
        int64_t got = read_bytes(src, &b, 1);
        if (got < 0)
            return -1;
        if (got == 0)
            return fail(src, start, "expected %s, the file ends at byte %llu", what,
                        (unsigned long long)src->pos);
        if (i == 9 && b > 0) // bits 63 and up
            return fail(src, start, "%s above 2^63-1", what);
        *v |= (uint64_t)(b & 0x7f) << (7 * i);
        if (b & 0x80)
            continue;
        if (b == 0 && i > 0 && src->s->opt.strict)
            return fail(src, start, "%s is not in its shortest form", what);
        if (b == 0 && i > 0 && !src->second)
            store_warn(src->s, "byte %llu: %s is not in its shortest form",
                       (unsigned long long)start, what);
        return 0;
    }
    return fail(src, start, "%s longer than %d bytes", what, MAX_LEB);
}

static int
read_name(struct source *src)
{
    uint64_t n;
    uint64_t start = src->pos;
    if (read_leb(src, &n, "the length of a name") < 0)
        return -1;
    if (n < 1 || n > MAX_NAME)
        return fail(src, start, "a name of %llu bytes, expected 1..%d",
                    (unsigned long long)n, MAX_NAME);
    uint64_t at = src->pos;
    int64_t got = read_bytes(src, src->scratch, n);
    if (got < 0)
        return -1;
    if ((uint64_t)got < n)
        return fail(src, at, "a name of %llu bytes, the file ends at byte %llu",
                    (unsigned long long)n, (unsigned long long)src->pos);
    struct slice name = { (const char *)src->scratch, (size_t)n };
    size_t bad = utf8_check(name.p, name.n);
    const char *nul = memchr(name.p, '\0', name.n);
    if (bad < n)
        return fail(src, at + bad, "a name that is not UTF-8");
    if (nul)
        return fail(src, at + (uint64_t)(nul - name.p), "a name with a NUL byte");
    src->name = name;
    if (!src->second)
        src->hash = seen_hash(&src->seen, name);
    return 0;
}

static int
read_dtype(struct source *src, struct tensor *t)
{
    uint64_t start = src->pos;
    uint64_t code;
    if (read_leb(src, &code, "a dtype") < 0)
        return -1;
    if (code < sizeof dtype_of_code)
        t->dtype = dtype_of_code[code];
    if (t->dtype != DT_NONE)
        return 0;
    const char *hint = "";
    if (code == 24 || code == 45)
        hint =
            " (a number of another enumeration; this one has 101 for f8_e4m3, 100 for "
            "f4_e2m1)";
    else if (code == 4711)
        hint = " (a Python writer's mark for a type that it did not support)";
    return fail(src, start, "dtype code %llu is unknown%s", (unsigned long long)code,
                hint);
}

static int
read_shape(struct source *src, struct tensor *t)
{
    uint64_t start = src->pos;
    uint64_t rank;
    uint64_t *dims = src->dims;
    if (read_leb(src, &rank, "a rank") < 0)
        return -1;
    if (rank > MAX_RANK)
        return fail(src, start, "rank %llu, expected 0..%d", (unsigned long long)rank,
                    MAX_RANK);
    uint64_t dims_at = src->pos;
    for (uint64_t i = 0; i < rank; i++)
        if (read_leb(src, &dims[i], "a dimension") < 0)
            return -1;
    t->shape = dims;
    t->rank = (uint8_t)rank;
    // The dims of code 100 are those of the packed bytes; ours count values.
    bool packed = t->dtype == DT_F4_E2M1;
    if (!dtype_size(&t->numel, &t->nbytes, packed ? DT_U8 : t->dtype, dims,
                    (unsigned)rank) ||
        (packed && !mul_fits(&t->numel, t->numel, 2, INT64_MAX)))
        return fail(src, dims_at, "the product of the dimensions does not fit 63 bits");
    if (packed && rank > 0 && !mul_fits(&dims[rank - 1], dims[rank - 1], 2, INT64_MAX))
        return fail(src, dims_at, "a dimension does not fit 63 bits");
    return 0;
}

static int
skip_payload(struct source *src, struct tensor *t)
{
    t->offset = src->pos;
    uint64_t end;
    if (!add_fits(&end, src->pos, t->nbytes, INT64_MAX))
        return fail(src, src->pos, "payload of %llu bytes ends beyond 2^63-1",
                    (unsigned long long)t->nbytes);
    int64_t got = skip(src, t->nbytes);
    if (got < 0)
        return -1;
    if ((uint64_t)got < t->nbytes)
        return fail(src, t->offset,
                    "payload ends at byte %llu, file has %llu" ERR_FILE_CUT,
                    (unsigned long long)end, (unsigned long long)src->pos);
    return 0;
}

/* The next entry.  Its name and shape stay until the one after it is read. */
static int
read_entry(struct source *src, struct tensor *t)
{
    *t = (struct tensor){ .head = src->pos };
    src->entry++;
    src->name = (struct slice){ 0 };
    if (read_name(src) < 0 || read_dtype(src, t) < 0 || read_shape(src, t) < 0 ||
        skip_payload(src, t) < 0)
        return -1;
    t->name = src->name.p;
    t->name_len = (uint32_t)src->name.n;
    src->headers += t->offset - t->head;
    if (src->headers > MAX_HEADERS)
        return fail(src, t->head,
                    "headers of %llu bytes up to here, at most %d are read",
                    (unsigned long long)src->headers, MAX_HEADERS);
    return 0;
}

/* The same bytes from the beginning, with another buffer for names; of a pipe its
 * headers. */
static struct source
rewound(const struct source *src, uint8_t *scratch)
{
    struct source again = { .s = src->s,
                            .size = src->size,
                            .second = true,
                            .map = src->map,
                            .end = UINT64_MAX,
                            .fd = -1,
                            .keep = -1,
                            .buf = src->buf,
                            .scratch = scratch };
    if (src->log) {
        again.p = (const uint8_t *)src->log->data;
        again.have = src->log->len;
        again.headers_only = true;
    }
    return again;
}

/* Whether an entry before the current one has its name: 1, 0 or -1. */
static int
is_second(struct source *src)
{
    uint8_t *scratch = malloc(MAX_NAME);
    if (!scratch)
        return NAME_NO_MEMORY;
    struct source again = rewound(src, scratch);
    struct tensor t;
    uint64_t n;
    int found = 0;
    if (read_leb(&again, &n, "the number of entries") < 0)
        found = -1;
    while (found == 0 && again.entry + 1 < src->entry)
        found = read_entry(&again, &t) < 0 ? -1 : slice_eq(again.name, src->name);
    free(scratch);
    if (src->map) // its buffer was used for another place
        src->at = src->have = 0;
    return found;
}

/* Nothing is kept of an entry that was checked but its name's hash. */
static int
note(struct source *src, const struct tensor *t)
{
    int there = seen_put(&src->seen, src->hash);
    if (there > 0)
        there = is_second(src);
    if (there > 0)
        return fail(src, t->head, "a second tensor of that name");
    if (there == NAME_NO_MEMORY)
        return err_set(src->s->err, ERR_MEMORY, "%s: out of memory for a name",
                       src->s->name);
    return there;
}

static int
read_entries(struct source *src)
{
    uint64_t n;
    struct tensor t;
    if (read_leb(src, &n, "the number of entries") < 0)
        return -1;
    if (src->size && n > (src->size - src->pos) / 5)
        return fail(src, 0, "%llu entries announced, %llu bytes follow",
                    (unsigned long long)n, (unsigned long long)(src->size - src->pos));
    if (n > MAX_ENTRIES)
        return fail(src, 0, "%llu entries announced, at most %d are read",
                    (unsigned long long)n, MAX_ENTRIES);
    if (src->second && store_reserve(src->s, (size_t)n) < 0)
        return -1;
    for (uint64_t i = 0; i < n; i++) {
        if (read_entry(src, &t) < 0)
            return -1;
        int rc =
            src->second ? store_add(src->s, &t, "changed meanwhile") : note(src, &t);
        if (rc < 0)
            return -1;
    }
    src->entry = 0;
    uint64_t end = src->pos;
    uint8_t extra;
    int64_t more = read_bytes(src, &extra, 1);
    if (more < 0)
        return -1;
    if (more > 0 && src->size)
        return fail(src, end, "%llu bytes after the last entry",
                    (unsigned long long)(src->size - end));
    if (more > 0)
        return fail(src, end, "bytes after the last entry");
    return 0;
}

static int
read_twice(struct source *src)
{
    int rc = read_entries(src);
    seen_free(&src->seen);
    if (rc == 0 && src->log)
        rc = buf_ok(src->log, src->s->err);
    if (rc < 0)
        return -1;
    struct source again = rewound(src, src->scratch);
    return read_entries(&again);
}

/* Check, then list. */
static int
read_source(struct source *src)
{
    size_t n = src->map ? src->map->page << (MAX_RUN - 1) : STREAM_BUF;
    src->buf = malloc(n + MAX_NAME);
    if (!src->buf)
        return err_set(src->s->err, ERR_MEMORY, "%s: out of memory", src->s->name);
    src->scratch = src->buf + n;
    int rc = read_twice(src);
    free(src->buf);
    return rc;
}

static int
dat_read(struct store *s)
{
    struct map *m = &s->files[0];
    struct source src = {
        .s = s, .size = m->size, .map = m, .end = UINT64_MAX, .fd = -1, .keep = -1
    };
    map_scatter(m, true);
    int rc = read_source(&src);
    map_scatter(m, false);
    return rc;
}

/* An unnamed file in s->opt.tmpdir. */
static int
unnamed_file(struct store *s)
{
    int fd = open(s->opt.tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) { // not every file system has O_TMPFILE
        struct buf path = { 0 };
        sigset_t before;
        buf_printf(&path, "%s/nibble-XXXXXX", s->opt.tmpdir);
        guard_hold(s->opt.guard, &before);
        fd = path.data ? mkstemp(path.data) : -1;
        if (fd >= 0)
            unlink(path.data);
        guard_release(s->opt.guard, &before);
        buf_free(&path);
    }
    if (fd < 0)
        err_set(s->err, ERR_IO, "%s: cannot keep it in %s:", s->name, s->opt.tmpdir);
    return fd;
}

static int
dat_read_stream(struct store *s, int fd)
{
    struct buf log = { 0 };
    struct source src = { .s = s, .fd = fd, .keep = -1, .log = &log };
    s->files = calloc(1, sizeof *s->files);
    if (!s->files)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    s->files[0].fd = -1;
    int rc = 0;
    if (!s->opt.list_only) {
        src.keep = unnamed_file(s);
        if (src.keep < 0)
            rc = -1;
    }
    if (rc == 0)
        rc = read_source(&src);
    buf_free(&log);
    s->bytes = src.pos;
    if (rc == 0 && src.keep >= 0) {
        s->n_files = 1;
        return map_fd(&s->files[0], src.keep, s->path, s->opt.guard, s->err);
    }
    if (src.keep >= 0)
        close(src.keep);
    return rc;
}

static void
dat_segments(const struct store *s, segment_fn fn, void *ctx)
{
    uint64_t at = 0;
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct tensor *t = &s->tensors[i];
        if (i == 0)
            fn(ctx, 0, 0, t->head, "number of entries", NULL);
        fn(ctx, 0, t->head, t->offset - t->head, "entry header", t);
        if (t->nbytes)
            fn(ctx, 0, t->offset, t->nbytes, "payload", t);
        at = t->offset + t->nbytes;
    }
    if (at < s->bytes)
        fn(ctx, 0, at, s->bytes - at, "number of entries", NULL);
}

static int
dat_index_hash(const struct store *s, uint8_t digest[XXH3_BYTES])
{
    struct hash *h = hash_begin(HASH_XXH3);
    if (!h)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    const uint8_t *data = s->files[0].data;
    size_t n = s->n_tensors;
    hash_add(h, data, (size_t)(n ? s->tensors[0].head : s->bytes));
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = &s->tensors[i];
        hash_add(h, data + t->head, (size_t)(t->offset - t->head));
    }
    hash_end(h, digest);
    return 0;
}

static void
put_leb(struct buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        buf_char(b, (char)(v | 0x80));
    buf_char(b, (char)v);
}

static int
code_of_dtype(enum dtype t)
{
    for (unsigned i = 0; i < sizeof dtype_of_code; i++)
        if (dtype_of_code[i] == t && t != DT_NONE)
            return (int)i;
    return -1;
}

static int
dat_plan(struct writer *w)
{
    struct buf head = { 0 };
    uint64_t at = 0;
    put_leb(&head, w->n);
    for (size_t i = 0; i < w->n; i++) {
        struct wtensor *t = &w->t[i];
        char quoted[TEXT_QUOTE];
        int code = code_of_dtype(t->dtype);
        if (code < 0) {
            buf_free(&head);
            return err_set(w->err, ERR_USAGE, "%s: \"%s\": a .dat file cannot hold %s",
                           w->name, text_quote(quoted, t->name, strlen(t->name)),
                           dtype_name(t->dtype));
        }
        put_leb(&head, strlen(t->name));
        buf_str(&head, t->name);
        put_leb(&head, (uint64_t)code);
        put_leb(&head, t->rank);
        for (unsigned d = 0; d < t->rank; d++) {
            bool packed = t->dtype == DT_F4_E2M1 && d + 1 == t->rank;
            put_leb(&head, packed ? t->shape[d] / 2 : t->shape[d]);
        }
        if (writer_literal(w, 0, at, &head) < 0) {
            buf_free(&head);
            return -1;
        }
        at += head.len;
        head.len = 0;
        t->offset = at;
        at += t->nbytes;
    }
    int rc = head.len ? writer_literal(w, 0, at, &head) : 0; // a file without entries
    at += head.len;
    buf_free(&head);
    if (rc < 0)
        return -1;
    w->files[0].bytes = at;
    w->wants_sidecar = !w->meta.bare;
    return 0;
}

const struct container container_dat = {
    .name = "dat",
    .suffix = ".dat",
    .traits = { .own_pairs = true,
                .head_copy = true,
                .model_order = true,
                .no_bf16 = true,
                .torchsharp_reads = true },
    .read = dat_read,
    .read_stream = dat_read_stream,
    .segments = dat_segments,
    .index_hash = dat_index_hash,
    .plan = dat_plan,
};
