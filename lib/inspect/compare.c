/* SPDX-License-Identifier: MIT */
/* compare: the questions that datcat answers with yes or no. */
#include "lib/inspect/inspect.h"

#include "lib/base/arena.h"
#include "lib/base/grow.h"
#include "lib/base/par.h"
#include "lib/file/reader.h"
#include "lib/load/training.h"
#include "lib/model/table.h"
#include "lib/nvfp4/codec.h"

#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- --check ------------------------------------------------------------------------- */

struct line {
    const char *hex, *name; // NUL-terminated, name escaped as --hash writes it
    bool used;
};

enum {
    MANIFEST_LINE = 1 << 20,   // bytes
    MANIFEST_TEXT = 256 << 20, // of all lines
};

struct manifest {
    struct arena arena;
    struct line *line; // (n, cap)
    size_t n, cap, bytes;
    const char *whole; // the file's own line, the last one called *
    enum hash_kind kind;
};

static int
keep_line(struct manifest *m, char *hex, size_t digits, struct err *err)
{
    if (!GROW(m->line, m->n, m->cap, 64))
        return err_set(err, ERR_MEMORY, "out of memory for the manifest");
    hex[digits] = '\0';
    m->line[m->n++] = (struct line){ hex, hex + digits + 2, false };
    return 0;
}

/* "HEX  NAME" */
static int
take_line(struct manifest *m, struct slice s, const struct reader *r, struct err *err)
{
    size_t digits = strspn(s.p, "0123456789abcdef");
    enum hash_kind kind = digits == 2 * SHA256_BYTES ? HASH_SHA256 : HASH_XXH3;
    if (digits != 2 * hash_bytes(kind) || strncmp(s.p + digits, "  ", 2) != 0 ||
        s.p[digits + 2] == '\0')
        return err_set(err, ERR_FORMAT,
                       "%s: line %llu: expected HEX  NAME as --hash writes", r->name,
                       (unsigned long long)r->number);
    if (m->n > 0 && kind != m->kind)
        return err_set(err, ERR_FORMAT,
                       "%s: line %llu: another hash than on the first line", r->name,
                       (unsigned long long)r->number);
    m->bytes += s.n;
    if (m->bytes > MANIFEST_TEXT)
        return err_set(err, ERR_FORMAT,
                       "%s: line %llu: more than %d bytes, which is the limit of a "
                       "manifest",
                       r->name, (unsigned long long)r->number, (int)MANIFEST_TEXT);
    m->kind = kind;
    char *copy = arena_copy(&m->arena, s.p, s.n);
    if (!copy)
        return err_set(err, ERR_MEMORY, "%s: line %llu: out of memory", r->name,
                       (unsigned long long)r->number);
    return keep_line(m, copy, digits, err);
}

static int
by_line_name(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int
manifest_read(struct manifest *m, int fd, const char *name, struct err *err)
{
    struct reader r = { .fd = fd, .name = name, .limit = MANIFEST_LINE };
    struct slice line;
    int more;
    while ((more = reader_line(&r, &line, err)) > 0)
        if (take_line(m, line, &r, err) < 0) {
            more = -1;
            break;
        }
    reader_free(&r);
    if (more == 0 && m->n == 0)
        return err_set(err, ERR_FORMAT, "%s: no lines", name);
    return more;
}

static int
manifest_open(struct manifest *m, const char *file, struct err *err)
{
    char q[TEXT_QUOTE];
    bool standard = strcmp(file, "-") == 0;
    const char *name = standard ? "<stdin>" : text_quote(q, file, strlen(file));
    int fd = standard ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_IO, "%s:", name);
    int rc = manifest_read(m, fd, name, err);
    if (!standard)
        close(fd);
    if (rc < 0)
        return -1;
    // A tensor may be called *, too: the file's line is the last.
    if (strcmp(m->line[m->n - 1].name, "*") == 0)
        m->whole = m->line[--m->n].hex;
    if (m->n)
        qsort(m->line, m->n, sizeof *m->line, by_line_name);
    return 0;
}

/* Compare one computed line; want is NULL if the manifest lacks it. */
static bool
check_line(struct printer *p, const char *name, const char *want, const char *hex)
{
    bool same = want && strcmp(want, hex) == 0;
    if (!same)
        printer_line(p, "%s: %s\n", name,
                     want ? "FAILED" : "FAILED, not in the manifest");
    else if (!p->host->quiet)
        printer_line(p, "%s: OK\n", name);
    return same;
}

/* The manifest's hash of an entry, or NULL. */
static const char *
wanted(struct manifest *m, const char *name)
{
    struct line key = { NULL, name, false };
    struct line *l =
        m->n ? bsearch(&key, m->line, m->n, sizeof *m->line, by_line_name) : NULL;
    if (l)
        l->used = true;
    return l ? l->hex : NULL;
}

int
compare_check(const struct inspect *c, struct subject *f, struct err *err)
{
    struct manifest m = { 0 };
    uint8_t *digests = NULL;
    char hex[2 * HASH_MAX + 1];
    struct buf name = { 0 };
    bool same = true;
    int rc = manifest_open(&m, c->target, err);
    if (rc == 0)
        rc = scan_hash(c, f, m.kind, &digests, err);
    bool whole = c->select.n_in == 0 && c->select.n_out == 0;
    for (size_t i = 0; rc == 0 && i < f->views.n + whole; i++) {
        bool last = i == f->views.n;
        size_t entry = last ? f->store.n_tensors
                            : (size_t)(f->views.v[i].entry - f->store.tensors);
        name.len = 0;
        if (last)
            buf_char(&name, '*');
        else
            text_escape(&name, f->views.v[i].name, f->views.v[i].name_len);
        rc = buf_ok(&name, err);
        hash_hex(hex, digests + entry * HASH_MAX, hash_bytes(m.kind));
        if (rc == 0)
            same &= check_line(c->printer, name.data,
                               last ? m.whole : wanted(&m, name.data), hex);
    }
    for (size_t i = 0; rc == 0 && whole && i < m.n; i++)
        if (!m.line[i].used) {
            name.len = 0;
            text_harmless(&name, m.line[i].name, strlen(m.line[i].name));
            printer_line(c->printer, "%s: FAILED, not in the file\n",
                         name.data ? name.data : "");
            same = false;
        }
    free(digests);
    free(m.line);
    arena_free(&m.arena);
    buf_free(&name);
    if (rc == 0)
        rc = printer_end(c->printer);
    return rc < 0 ? -1 : same ? ANSWER_YES : ANSWER_NO;
}

/* ---- --diff -------------------------------------------------------------------------- */

struct pair {
    const struct view *a, *b;
};

struct distance {
    double max_abs, max_rel;
    double sum_abs;     // of all elements
    double ab, aa, bb;  // sums of products, where both values are finite
    uint64_t different; // elements that are too far apart
    bool bytes;         // payloads differ in bytes
};

struct diff {
    const struct inspect *c;
    struct store *sa, *sb;
    struct values xa, xb;
    struct values_scratch *wa, *wb; // (threads)
    struct distance *part;          // (chunks)
    unsigned threads;
    // with --sort or --top: lines of differences, which wait for the others
    struct waiting *waiting;
    size_t n_waiting, cap_waiting;
    struct buf lines;
};

/* A line of d->lines and what it is sorted by. */
struct waiting {
    const char *name;
    size_t begin, end;
    double gap;
    uint64_t bytes;
};

static double
value_at(const struct values *x, const struct values_scratch *w, size_t i)
{
    return x->kind == VALUES_F32 ? (double)w->f32[i] : w->f64[i];
}

/* NaN is equal to NaN, an infinity to itself.  rest: what a - b lacks because an
 * integer was rounded to a double. */
static void
measure_distance(struct distance *d, double a, double b, double rest, double atol,
                 double rtol)
{
    if (isfinite(a) && isfinite(b)) {
        d->ab += a * b;
        d->aa += a * a;
        d->bb += b * b;
    }
    if ((isnan(a) && isnan(b)) || (a == b && rest == 0))
        return;
    double gap = fabs(a - b + rest);
    if (isnan(gap))
        gap = INFINITY;
    double rel = b != 0 && isfinite(gap) ? gap / fabs(b) : INFINITY;
    d->sum_abs += gap;
    if (gap > d->max_abs)
        d->max_abs = gap;
    if (rel > d->max_rel)
        d->max_rel = rel;
    // An infinite b must not make everything close to it.
    if (!(isfinite(gap) && gap <= atol + rtol * fabs(b)))
        d->different++;
}

static int
diff_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct diff *d = ctx;
    const struct view *v = d->xa.v;
    uint64_t first = (uint64_t)i * VALUES_CHUNK;
    uint64_t left = v->numel - first;
    size_t n = left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
    struct values_scratch *wa = &d->wa[worker], *wb = &d->wb[worker];
    if (values_read(&d->xa, first, n, wa, err) < 0 ||
        values_read(&d->xb, first, n, wb, err) < 0)
        return -1;
    for (size_t k = 0; k < n; k++)
        measure_distance(&d->part[i], value_at(&d->xa, wa, k), value_at(&d->xb, wb, k),
                         values_rest(&d->xa, wa, k) - values_rest(&d->xb, wb, k),
                         d->c->tolerant ? d->c->atol : 0,
                         d->c->tolerant ? d->c->rtol : 0);
    return 0;
}

/* Distances of decoded values, in chunks. */
static int
diff_values(struct diff *d, struct distance *sum, struct err *err)
{
    uint64_t chunks = values_chunks(d->xa.v);
    d->part = calloc(chunks + 1, sizeof *d->part);
    if (!d->part)
        return err_set(err, ERR_MEMORY, "out of memory for a comparison");
    int rc = par_for(d->threads, chunks, diff_chunk, d, err);
    for (uint64_t i = 0; i < chunks; i++) {
        sum->max_abs = fmax(sum->max_abs, d->part[i].max_abs);
        sum->max_rel = fmax(sum->max_rel, d->part[i].max_rel);
        sum->different += d->part[i].different;
        sum->sum_abs += d->part[i].sum_abs;
        sum->ab += d->part[i].ab;
        sum->aa += d->part[i].aa;
        sum->bb += d->part[i].bb;
    }
    free(d->part);
    return rc;
}

struct equal {
    struct store *sa, *sb;
    const struct tensor *ta, *tb;
    struct values_scratch *wa, *wb;
    atomic_bool differs;
};

enum { EQUAL_CHUNK = VALUES_CHUNK * 8 }; // bytes, what a scratch holds

static int
equal_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct equal *e = ctx;
    uint64_t at = (uint64_t)i * EQUAL_CHUNK;
    uint64_t left = e->ta->nbytes - at;
    size_t n = left < EQUAL_CHUNK ? (size_t)left : EQUAL_CHUNK;
    uint8_t *a = e->wa[worker].bytes, *b = e->wb[worker].bytes;
    if (atomic_load(&e->differs))
        return 0;
    if (store_read(e->sa, e->ta, at, a, n, err) < 0 ||
        store_read(e->sb, e->tb, at, b, n, err) < 0)
        return -1;
    if (memcmp(a, b, n) != 0)
        atomic_store(&e->differs, true);
    return 0;
}

/* 1: equal bytes in both payloads; 0: not. */
static int
payloads_equal(struct diff *d, const struct tensor *ta, const struct tensor *tb,
               struct err *err)
{
    struct equal e = { d->sa, d->sb, ta, tb, d->wa, d->wb, false };
    if (!ta || !tb)
        return ta == tb;
    if (ta->nbytes != tb->nbytes || ta->dtype != tb->dtype)
        return 0;
    size_t chunks = (size_t)((ta->nbytes + EQUAL_CHUNK - 1) / EQUAL_CHUNK);
    if (par_for(d->threads, chunks, equal_chunk, &e, err) < 0)
        return -1;
    return !atomic_load(&e.differs);
}

struct planes {
    struct diff *d;
    atomic_bool differs;
};

static int
planes_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct planes *e = ctx;
    struct diff *d = e->d;
    struct values_scratch *a = &d->wa[worker], *b = &d->wb[worker];
    uint64_t first = (uint64_t)i * VALUES_CHUNK;
    uint64_t left = d->xa.v->numel - first;
    size_t n = left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
    if (atomic_load(&e->differs))
        return 0;
    if (values_planes(&d->xa, first, n, a->bytes, a->scales, a, err) < 0 ||
        values_planes(&d->xb, first, n, b->bytes, b->scales, b, err) < 0)
        return -1;
    if (memcmp(a->bytes, b->bytes, n / 2) != 0 ||
        memcmp(a->scales, b->scales, n / 16) != 0)
        atomic_store(&e->differs, true);
    return 0;
}

/* 1: equal codes and scales of two nvfp4 tensors of one shape, laid out differently. */
static int
planes_equal(struct diff *d, const struct view *a, const struct view *b,
             struct err *err)
{
    struct planes e = { .d = d };
    if (values_open(&d->xa, d->sa, a, d->c->printer->host->isa, err) < 0 ||
        values_open(&d->xb, d->sb, b, d->c->printer->host->isa, err) < 0 ||
        par_for(d->threads, values_chunks(a), planes_chunk, &e, err) < 0)
        return -1;
    return !atomic_load(&e.differs);
}

static int
codes_equal(struct diff *d, const struct view *a, const struct view *b, struct err *err)
{
    if (a->dtype == DT_NVFP4 && view_in_blocks(a) != view_in_blocks(b))
        return planes_equal(d, a, b, err);
    int same = payloads_equal(d, a->entry, b->entry, err);
    return same > 0 ? payloads_equal(d, a->scale, b->scale, err) : same;
}

/* A tensor scale that is not there is 1. */
static int
tensor_scales_equal(struct diff *d, const struct view *a, const struct view *b,
                    struct err *err)
{
    if (!a->scale2 == !b->scale2)
        return payloads_equal(d, a->scale2, b->scale2, err);
    if (values_open(&d->xa, d->sa, a, d->c->printer->host->isa, err) < 0 ||
        values_open(&d->xb, d->sb, b, d->c->printer->host->isa, err) < 0)
        return -1;
    return d->xa.scale2 == d->xb.scale2;
}

/* The two are of one dtype and shape. */
static int
views_equal(struct diff *d, const struct view *a, const struct view *b, struct err *err)
{
    // A multiplier and a divisor of the same bytes mean different values.
    if (a->scale2 && b->scale2 && a->dialect->divides != b->dialect->divides)
        return 0;
    int same = codes_equal(d, a, b, err);
    return same > 0 ? tensor_scales_equal(d, a, b, err) : same;
}

/* ---- equal values in other bytes ---- */

/* Blocks of two NVFP4 tensors that differ in bytes. */
struct blocks {
    uint64_t zero_scales; // zeros in both, with another scale
    uint64_t zero_signs;  // one scale, and some 0 is -0 in the other
    uint64_t others;      // codes and scales of the same products
};

struct alike {
    struct diff *d;
    struct blocks *part; // (chunks)
};

static bool
all_zeros(const uint8_t *codes)
{
    for (unsigned i = 0; i < NVFP4_BLOCK / 2; i++)
        if (codes[i] & 0x77)
            return false;
    return true;
}

static void
count_block(struct blocks *n, const uint8_t *a, const uint8_t *b, bool scales)
{
    if (scales && all_zeros(a) && all_zeros(b))
        n->zero_scales++;
    else if (scales)
        n->others++;
    else
        n->zero_signs += memcmp(a, b, NVFP4_BLOCK / 2) != 0;
}

static int
alike_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct alike *e = ctx;
    struct diff *d = e->d;
    struct values_scratch *a = &d->wa[worker], *b = &d->wb[worker];
    uint64_t first = (uint64_t)i * VALUES_CHUNK;
    uint64_t left = d->xa.v->numel - first;
    size_t n = left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
    if (values_planes(&d->xa, first, n, a->bytes, a->scales, a, err) < 0 ||
        values_planes(&d->xb, first, n, b->bytes, b->scales, b, err) < 0)
        return -1;
    for (size_t k = 0; k < n / NVFP4_BLOCK; k++)
        count_block(&e->part[i], a->bytes + k * (NVFP4_BLOCK / 2),
                    b->bytes + k * (NVFP4_BLOCK / 2), a->scales[k] != b->scales[k]);
    return 0;
}

static int
count_blocks(struct diff *d, struct blocks *sum, struct err *err)
{
    uint64_t chunks = values_chunks(d->xa.v);
    struct alike e = { d, calloc(chunks + 1, sizeof *e.part) };
    if (!e.part)
        return err_set(err, ERR_MEMORY, "out of memory for a comparison");
    int rc = par_for(d->threads, chunks, alike_chunk, &e, err);
    for (uint64_t i = 0; i < chunks; i++) {
        sum->zero_scales += e.part[i].zero_scales;
        sum->zero_signs += e.part[i].zero_signs;
        sum->others += e.part[i].others;
    }
    free(e.part);
    return rc;
}

static void
put_blocks(struct buf *out, uint64_t n, const char *kind, const char *what)
{
    if (n)
        buf_printf(out, "%s%llu %sblock%s %s",
                   slice_ends((struct slice){ out->data, out->len }, "(") ? "" : ", ",
                   (unsigned long long)n, kind, n == 1 ? "" : "s", what);
}

/* What differs between tensors of equal values, which d->xa and d->xb show. */
static int
put_alike(struct diff *d, struct buf *out, struct err *err)
{
    struct blocks n = { 0 };
    bool nvfp4 = d->xa.v->dtype == DT_NVFP4;
    buf_str(out, "\tbytes differ, values equal (");
    if (nvfp4 && count_blocks(d, &n, err) < 0)
        return -1;
    put_blocks(out, n.zero_scales, "zero ", "with other scales");
    put_blocks(out, n.zero_signs, "", "with zeros of another sign");
    put_blocks(out, n.others, "", "with other codes and scales");
    if (!nvfp4)
        buf_str(out, "zeros of another sign or NaNs of other bits");
    else if (!n.zero_scales && !n.zero_signs && !n.others)
        buf_str(out, "another tensor scale");
    buf_str(out, ")\t\t");
    return 0;
}

static bool
same_shape(const struct view *a, const struct view *b)
{
    return a->rank == b->rank &&
           (a->rank == 0 ||
            memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0);
}

/* The numbers of a line; the cosine of a tensor of zeros does not exist. */
static void
put_distance(struct buf *out, const struct distance *s, uint64_t numel)
{
    double cosine = s->ab / (sqrt(s->aa) * sqrt(s->bb));
    buf_printf(out, "\t%.9g\t%.9g\t%.9g\t", s->max_abs, s->max_rel,
               numel ? s->sum_abs / (double)numel : 0);
    if (isfinite(cosine))
        buf_printf(out, "%.9g", cosine);
    buf_char(out, '\n');
}

/* 1: the two agree; 0: they differ, a line was put, and *gap is its largest difference. */
static int
diff_pair(struct diff *d, const struct view *a, const struct view *b, struct buf *out,
          double *gap, struct err *err)
{
    struct distance sum = { 0 };
    int same = 0;
    bool shapes = same_shape(a, b);
    bool dtypes = a->dtype == b->dtype;
    if (shapes && dtypes && (same = views_equal(d, a, b, err)) != 0)
        return same;
    if (view_check_payloads(d->sa, a, err) < 0 ||
        view_check_payloads(d->sb, b, err) < 0) // damage is no difference
        return -1;
    bool numbers = shapes && values_kind(a->dtype) != VALUES_NONE &&
                   values_kind(b->dtype) != VALUES_NONE;
    if (numbers && (values_open(&d->xa, d->sa, a, d->c->printer->host->isa, err) < 0 ||
                    values_open(&d->xb, d->sb, b, d->c->printer->host->isa, err) < 0 ||
                    diff_values(d, &sum, err) < 0))
        return -1;
    if (d->c->tolerant && numbers && sum.different == 0)
        return 1;
    *gap = numbers ? sum.max_abs : INFINITY;
    text_escape(out, a->name, a->name_len);
    if (!shapes) {
        buf_str(out, "\tshape\t");
        buf_shape(out, a->shape, a->rank, ",");
        buf_char(out, '\t');
        buf_shape(out, b->shape, b->rank, ",");
    } else if (!dtypes && !d->c->tolerant) {
        buf_printf(out, "\tdtype\t%s\t%s", dtype_name(a->dtype), dtype_name(b->dtype));
    } else if (numbers && !d->c->tolerant && sum.different == 0) {
        if (put_alike(d, out, err) < 0)
            return -1;
    } else {
        buf_str(out, "\tvalues\t\t");
    }
    if (numbers)
        put_distance(out, &sum, a->numel);
    else
        buf_str(out, "\t\t\t\t\n");
    return 0;
}

/* A head beside the embedding that it copies is no difference. */
static int
head_is_copy(struct diff *d, const struct subject *f, const struct view *v,
             struct err *err)
{
    const struct view *embed = NULL;
    if (strcmp(v->name, TABLE_HEAD) != 0)
        return 0;
    for (size_t i = 0; i < f->views.n; i++)
        if (strcmp(f->views.v[i].name, TABLE_EMBED) == 0)
            embed = &f->views.v[i];
    if (!embed || embed->dtype != v->dtype || !same_shape(embed, v))
        return 0;
    struct diff within = *d;
    within.sa = within.sb = (struct store *)&f->store;
    return views_equal(&within, v, embed, err);
}

static int
by_view_name(const void *a, const void *b)
{
    const struct view *x = *(const struct view *const *)a;
    const struct view *y = *(const struct view *const *)b;
    return strcmp(x->name, y->name);
}

/* The views by name; optimizer states of a checkpoint are left out. */
static const struct view **
sorted(const struct subject *f, size_t *n, struct err *err)
{
    const struct view **list = malloc((f->views.n + 1) * sizeof *list);
    *n = 0;
    if (!list) {
        err_set(err, ERR_MEMORY, "out of memory for a comparison");
        return NULL;
    }
    for (size_t i = 0; i < f->views.n; i++)
        if (!f->views.v[i].entry->state)
            list[(*n)++] = &f->views.v[i];
    qsort(list, *n, sizeof *list, by_view_name);
    return list;
}

static const struct view *
find_sorted(const struct view **list, size_t n, const struct view *v)
{
    const struct view **p = bsearch(&v, list, n, sizeof *list, by_view_name);
    return p ? *p : NULL;
}

/* Colours of the second column: what keeps two tensors from being compared stands out most. */
static const char *
difference_colour(struct slice what)
{
    static const struct {
        const char *begins, *code;
    } kinds[] = { { "values", "\033[33m" },
                  { "dtype", "\033[1;33m" },
                  { "shape", "\033[1;31m" },
                  { "only in", "\033[1;31m" } };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (slice_starts(what, kinds[i].begins))
            return kinds[i].code;
    return "";
}

/* A line for a terminal: harmless, with colour around its second cell. */
static void
colour_line(struct printer *p, struct buf *line)
{
    const char *tab = line->len ? memchr(line->data, '\t', line->len) : NULL;
    if (!tab)
        return;
    size_t name = (size_t)(tab - line->data), n = strcspn(tab + 1, "\t");
    struct slice what = { tab + 1, n };
    struct buf out = { 0 };
    text_screen(&out, line->data, name + 1, false);
    buf_str(&out, difference_colour(what));
    buf_add(&out, what.p, what.n);
    buf_str(&out, "\033[0m");
    text_screen(&out, what.p + n, line->len - name - 1 - n, false);
    printer_put(p, &out, HOST_HARMLESS);
    buf_free(&out);
    line->len = 0;
}

/* Equal files print nothing, so the header comes with the first difference. */
static void
flush_differences(struct printer *p, struct buf *out)
{
    if (out->len && !p->headed)
        printer_line(p,
                     "name\twhat\tfirst\tsecond\tmax_abs\tmax_rel\tmean_abs\tcosine\n");
    p->headed |= out->len > 0;
    if (p->host->colours && !out->failed)
        colour_line(p, out);
    printer_put(p, out, HOST_TEXT);
}

static bool
waits(const struct inspect *c)
{
    return c->sort != SORT_NONE || c->top;
}

/* Write the line in out, or keep it until all are there. */
static int
put_difference(struct diff *d, const struct view *v, double gap, struct buf *out,
               struct err *err)
{
    if (!waits(d->c)) {
        flush_differences(d->c->printer, out);
        return printer_end(d->c->printer);
    }
    if (!GROW(d->waiting, d->n_waiting, d->cap_waiting, 64))
        return err_set(err, ERR_MEMORY, "out of memory for differences");
    struct waiting *w = &d->waiting[d->n_waiting++];
    *w = (struct waiting){ v->name, d->lines.len, 0, gap, v->nbytes };
    buf_add(&d->lines, out->data, out->len);
    out->len = 0;
    w->end = d->lines.len;
    return buf_ok(&d->lines, err);
}

/* The lines that waited, in the order that was asked for. */
static int
put_waiting(struct diff *d, struct buf *out, struct err *err)
{
    size_t n = d->n_waiting;
    struct ranked *rows = calloc(n + 1, sizeof *rows);
    if (!rows)
        return err_set(err, ERR_MEMORY, "out of memory for differences");
    for (size_t i = 0; i < n; i++)
        rows[i] =
            (struct ranked){ d->waiting[i].name,
                             d->c->sort == SORT_BYTES ? (double)d->waiting[i].bytes
                                                      : d->waiting[i].gap,
                             i };
    order_rank(rows, n, d->c->sort);
    if (d->c->top && d->c->top < n)
        n = (size_t)d->c->top;
    for (size_t i = 0; i < n; i++) {
        const struct waiting *w = &d->waiting[rows[i].index];
        buf_add(out, d->lines.data + w->begin, w->end - w->begin);
        flush_differences(d->c->printer, out);
    }
    free(rows);
    return 0;
}

/* Tensors of f that the other lacks; returns their number, -1 on error. */
static int64_t
diff_missing(struct diff *d, const struct subject *f, const struct view **other,
             size_t n, const char *what, struct buf *out, struct err *err)
{
    int64_t found = 0;
    for (size_t i = 0; i < f->views.n; i++) {
        const struct view *v = &f->views.v[i];
        if (v->entry->state || find_sorted(other, n, v))
            continue;
        int copy = head_is_copy(d, f, v, err);
        if (copy < 0)
            return -1;
        if (copy)
            continue;
        text_escape(out, v->name, v->name_len);
        buf_printf(out, "\t%s\t\t\t\t\t\t\n", what);
        if (put_difference(d, v, INFINITY, out, err) < 0)
            return -1;
        found++;
    }
    return found;
}

static int64_t
diff_all(struct diff *d, const struct subject *a, const struct subject *b,
         const struct view **la, size_t na, const struct view **lb, size_t nb,
         struct buf *out, struct err *err)
{
    int64_t differ = 0;
    for (size_t i = 0; i < a->views.n; i++) {
        const struct view *v = &a->views.v[i];
        const struct view *w = v->entry->state ? NULL : find_sorted(lb, nb, v);
        if (!w)
            continue;
        double gap = 0;
        int same = diff_pair(d, v, w, out, &gap, err);
        if (same < 0 || (!same && put_difference(d, v, gap, out, err) < 0))
            return -1;
        differ += !same;
    }
    int64_t only_a = diff_missing(d, a, lb, nb, "only in the first", out, err);
    int64_t only_b = diff_missing(d, b, la, na, "only in the second", out, err);
    return only_a < 0 || only_b < 0 ? -1 : differ + only_a + only_b;
}

int
compare_diff(const struct inspect *c, struct subject *a, struct subject *b,
             struct err *err)
{
    struct diff d = { .c = c, .sa = &a->store, .sb = &b->store, .threads = c->threads };
    struct buf out = { 0 };
    size_t na = 0, nb = 0;
    int64_t differ = -1;
    const struct view **la = sorted(a, &na, err);
    const struct view **lb = sorted(b, &nb, err);
    const unsigned n = 2 * c->threads;
    struct values_scratch *w = calloc(n, sizeof *w); // of both files
    if (!w)
        err_set(err, ERR_MEMORY, "out of memory for a comparison");
    for (unsigned i = 0; i < n && err->kind == ERR_NONE; i++)
        values_scratch(&w[i], err);
    if (err->kind == ERR_NONE) {
        d.wa = w;
        d.wb = w + c->threads;
        differ = diff_all(&d, a, b, la, na, lb, nb, &out, err);
        if (differ > 0 && put_waiting(&d, &out, err) < 0)
            differ = -1;
    }
    for (unsigned i = 0; w && i < n; i++)
        values_scratch_free(&w[i]);
    free(w);
    free(la);
    free(lb);
    free(d.waiting);
    buf_free(&d.lines);
    buf_free(&out);
    if (printer_end(c->printer) < 0)
        return -1;
    return differ < 0 ? -1 : differ ? ANSWER_NO : ANSWER_YES;
}

/* ---- --verify ------------------------------------------------------------------------ */

/* Scales among codes: all is read. */
static int
verify_blocks(const struct values *x, struct err *err)
{
    struct values_scratch w = { 0 };
    int rc = values_scratch(&w, err);
    for (uint64_t at = 0; at < x->v->numel && rc == 0; at += VALUES_CHUNK) {
        uint64_t left = x->v->numel - at;
        size_t n = left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
        rc = values_planes(x, at, n, w.bytes, w.scales, &w, err);
    }
    values_scratch_free(&w);
    return rc;
}

static int
verify_scales(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct subject *f = ctx;
    const struct view *v = &f->views.v[i];
    struct values x;
    (void)worker;
    if (v->dtype != DT_NVFP4)
        return 0;
    if (values_open(&x, &f->store, v, f->host->isa, err) < 0)
        return -1;
    if (view_in_blocks(v))
        return verify_blocks(&x, err);
    uint8_t buf[4096];
    for (uint64_t at = 0; at < v->scale->nbytes; at += sizeof buf) {
        uint64_t left = v->scale->nbytes - at;
        size_t n = left < sizeof buf ? (size_t)left : sizeof buf;
        if (store_read(&f->store, v->scale, at, buf, n, err) < 0 ||
            values_check_scales(&x, at * 16, buf, n, err) < 0)
            return -1;
    }
    return 0;
}

int
compare_verify(const struct inspect *c, struct subject *f, struct err *err)
{
    const char *what;
    if (store_verify(&f->store, c->full, c->threads, &what) < 0)
        return -1;
    if (c->full && par_for(c->threads, f->views.n, verify_scales, f, err) < 0)
        return -1;
    struct buf more = { 0 };
    int answer = names_verify(f, &more, err);
    if (answer >= 0 && buf_ok(&more, err) < 0)
        answer = -1;
    if (answer == ANSWER_YES && training_check(&f->store, err) < 0)
        answer = -1;
    if (answer == ANSWER_YES && !c->printer->host->quiet)
        printer_line(c->printer, "%s: OK (%s%s)\n", f->store.name, what,
                     more.len ? more.data : "");
    buf_free(&more);
    return answer;
}
