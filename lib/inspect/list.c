/* SPDX-License-Identifier: MIT */
/* list: the listings of datcat, for people and for programs. */
#include "lib/inspect/inspect.h"

#include "lib/base/json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 16, FLUSH_AT = 1 << 16 };

static const char *const stat_names[] = { "min",    "max",   "mean", "std",
                                          "absmax", "zeros", "nan",  "inf" };

enum { STATS = sizeof stat_names / sizeof *stat_names };

static double
stat_value(const struct stats *s, int which)
{
    switch (which) {
    case 0:
        return s->min;
    case 1:
        return s->max;
    case 2:
        return s->mean;
    case 3:
        return stats_std(s);
    default:
        return stats_absmax(s);
    }
}

static uint64_t
stat_count(const struct stats *s, int which)
{
    return which == 5 ? s->zeros : which == 6 ? s->nans : s->infs;
}

/* Statistics of one tensor can be missing: of types that are only listed. */
static bool
has_stats(const struct subject *f, size_t i)
{
    return f->stats && values_kind(f->views.v[i].dtype) != VALUES_NONE;
}

static int
no_memory(const struct printer *p)
{
    return err_set(p->err, ERR_MEMORY, "out of memory for the listing");
}

/* ---- a table of text: aligned on a terminal, else tab-separated --------------- */

struct cells {
    struct buf text; // aligned: NUL-terminated cells; else lines to be written
    size_t n, columns;
    bool aligned;
    struct printer *p;
    bool stats; // the last columns count NaN and infinities
};

static struct cells
cells_begin(const struct inspect *c, size_t columns)
{
    return (struct cells){ .columns = columns,
                           .aligned = c->printer->host->terminal,
                           .p = c->printer };
}

static void
cell_end(struct cells *t)
{
    t->n++;
    if (t->aligned) {
        buf_char(&t->text, '\0');
        return;
    }
    bool last = t->n % t->columns == 0;
    buf_char(&t->text, last ? '\n' : '\t');
    if (last && t->text.len > FLUSH_AT)
        printer_put(t->p, &t->text, HOST_TEXT);
}

static void
cell(struct cells *t, const char *text)
{
    buf_str(&t->text, text);
    cell_end(t);
}

static void
cell_u64(struct cells *t, uint64_t v)
{
    buf_u64(&t->text, v);
    cell_end(t);
}

/* Displayed columns: continuation bytes have none. */
static size_t
width(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += (*s & 0xc0) != 0x80;
    return n;
}

/* Colours of a cell: quantized dtypes stand out, and so do values that are not finite. */
static const char *
colour_of(const struct cells *t, size_t i, const char *text)
{
    static const struct {
        const char *begins, *code;
    } dtypes[] = { { "nvfp4", "\033[32m" },
                   { "f4_", "\033[32m" },
                   { "f8_", "\033[36m" } };
    size_t row = i / t->columns, column = i % t->columns;
    bool last_row = row + 1 == t->n / t->columns; // the totals
    for (size_t k = 0; column == 1 && !last_row && k < sizeof dtypes / sizeof *dtypes;
         k++)
        if (strncmp(text, dtypes[k].begins, strlen(dtypes[k].begins)) == 0)
            return dtypes[k].code;
    bool some = *text >= '1' && *text <= '9';
    return t->stats && some && column + 2 >= t->columns ? "\033[1;31m" : NULL;
}

/* A cell is harmless before colour is put around it. */
static void
put_cell(struct buf *out, const struct cells *t, size_t i, const char *text,
         bool colours)
{
    const char *colour = colours ? colour_of(t, i, text) : NULL;
    if (colour)
        buf_str(out, colour);
    text_screen(out, text, strlen(text), false);
    if (colour)
        buf_str(out, "\033[0m");
}

static int
cells_print(struct cells *t)
{
    bool colours = t->p->host->colours;
    size_t widths[MAX_COLUMNS] = { 0 };
    struct buf out = { 0 };
    const char *p = t->text.data;
    if (!t->aligned)
        printer_put(t->p, &t->text, HOST_TEXT);
    if (t->text.failed)
        no_memory(t->p);
    if (!t->aligned || t->text.failed)
        t->n = 0;
    for (size_t i = 0; i < t->n; i++, p += strlen(p) + 1)
        if (width(p) > widths[i % t->columns])
            widths[i % t->columns] = width(p);
    p = t->text.data;
    for (size_t i = 0; i < t->n; i++, p += strlen(p) + 1) {
        size_t column = i % t->columns;
        bool last = column + 1 == t->columns;
        size_t pad = widths[column] - width(p);
        // Numbers, which begin in the fourth column, stand to the right.
        if (column >= 3)
            buf_fill(&out, ' ', pad);
        put_cell(&out, t, i, p, colours);
        if (column < 3 && !last)
            buf_fill(&out, ' ', pad);
        buf_str(&out, last ? "\n" : "  ");
        if (out.len > FLUSH_AT)
            printer_put(t->p, &out, HOST_HARMLESS);
    }
    printer_put(t->p, &out, HOST_HARMLESS);
    buf_free(&out);
    buf_free(&t->text);
    return printer_end(t->p);
}

static void
put_stat_cells(struct cells *t, const struct stats *s)
{
    for (int k = 0; k < STATS; k++) {
        if (!s || (k < 5 && s->n == 0))
            cell(t, "-");
        else if (k < 5) {
            buf_printf(&t->text, "%.6g", stat_value(s, k));
            cell_end(t);
        } else {
            cell_u64(t, stat_count(s, k));
        }
    }
}

/* "145 f16, 253 nvfp4" in the order of the dtype table. */
static void
put_dtype_counts(struct buf *b, const struct subject *f)
{
    size_t counts[DT_COUNT] = { 0 };
    bool some = false;
    for (size_t i = 0; i < f->views.n; i++)
        counts[f->views.v[i].dtype]++;
    for (enum dtype d = 0; d < DT_COUNT; d++) {
        if (!counts[d])
            continue;
        buf_printf(b, "%s%zu %s", some ? ", " : "", counts[d], dtype_name(d));
        some = true;
    }
    if (!some)
        buf_char(b, '-');
}

static uint64_t
total_bytes(const struct subject *f)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < f->views.n; i++)
        sum += f->views.v[i].nbytes;
    return sum;
}

static void
put_total(struct cells *t, const struct subject *f, size_t more)
{
    cell(t, "total");
    put_dtype_counts(&t->text, f);
    cell_end(t);
    buf_printf(&t->text, "%zu tensors", f->views.n);
    cell_end(t);
    cell_u64(t, total_bytes(f));
    while (more--)
        cell(t, "");
}

/* ---- groups: names that differ in a layer number ------------------------------- */

struct group {
    char *key; // name with its numbers as *, dtype and shape
    size_t first, members;
    uint64_t bytes;
    struct stats stats;
    bool has_stats;
};

/* The name with * for each of its parts that is a number. */
static void
put_starred(struct buf *b, const char *name, size_t n)
{
    const char *end = name + n;
    for (const char *part = name; part <= end;) {
        const char *dot = memchr(part, '.', (size_t)(end - part));
        size_t len = (size_t)((dot ? dot : end) - part);
        bool number = len > 0 && strspn(part, "0123456789") >= len;
        if (number)
            buf_char(b, '*');
        else
            text_escape(b, part, len);
        if (!dot)
            break;
        buf_char(b, '.');
        part = dot + 1;
    }
}

/* The group of that key, a new one perhaps; NULL: no memory. */
static struct group *
group_of(struct group *groups, size_t *n, struct names *keys, const char *key)
{
    int64_t known = names_find(keys, slice_of(key));
    if (known >= 0)
        return &groups[known];
    struct group *g = &groups[*n];
    *g = (struct group){ .key = strdup(key) };
    if (!g->key || names_add(keys, slice_of(g->key), *n) < 0) {
        free(g->key);
        return NULL;
    }
    (*n)++;
    return g;
}

static int
add_member(const struct subject *f, size_t i, struct group *groups, size_t *n,
           struct names *keys)
{
    const struct view *v = &f->views.v[i];
    struct buf key = { 0 };
    put_starred(&key, v->name, v->name_len);
    buf_printf(&key, "\t%s\t", dtype_name(v->dtype));
    buf_shape(&key, v->shape, v->rank, ",");
    struct group *g = key.failed ? NULL : group_of(groups, n, keys, key.data);
    buf_free(&key);
    if (!g)
        return -1;
    if (g->members++ == 0)
        g->first = i;
    g->bytes += v->nbytes;
    if (has_stats(f, i)) {
        stats_merge(&g->stats, &f->stats[i]);
        g->has_stats = true;
    }
    return 0;
}

static void
put_group(struct cells *t, const struct inspect *c, const struct subject *f,
          const struct group *g)
{
    const struct view *v = &f->views.v[g->first];
    buf_add(&t->text, g->key, strcspn(g->key, "\t"));
    cell_end(t);
    cell(t, dtype_name(v->dtype));
    buf_shape(&t->text, v->shape, v->rank, ",");
    cell_end(t);
    cell_u64(t, g->bytes);
    buf_printf(&t->text, "x%zu", g->members);
    cell_end(t);
    if (c->stats)
        put_stat_cells(t, g->has_stats ? &g->stats : NULL);
}

static int
list_groups(const struct inspect *c, const struct subject *f)
{
    struct cells t = cells_begin(c, 5 + (c->stats ? STATS : 0));
    struct group *groups = calloc(f->views.n ? f->views.n : 1, sizeof *groups);
    struct names keys = { 0 };
    size_t n = 0;
    int rc = groups ? 0 : -1;
    t.stats = c->stats;
    for (size_t i = 0; rc == 0 && i < f->views.n; i++)
        rc = add_member(f, i, groups, &n, &keys);
    for (size_t g = 0; g < n; g++) {
        put_group(&t, c, f, &groups[g]);
        free(groups[g].key);
    }
    if (rc < 0)
        no_memory(c->printer);
    put_total(&t, f, t.columns - 4);
    names_free(&keys);
    free(groups);
    return cells_print(&t);
}

int
list_text(const struct inspect *c, const struct subject *f)
{
    struct cells t = cells_begin(c, 4 + (c->stats ? STATS : 0));
    t.stats = c->stats;
    if (c->group)
        return list_groups(c, f);
    if (c->stats) { // so many numbers need their names
        static const char *const head[] = { "name", "dtype", "shape", "bytes" };
        for (size_t i = 0; i < 4; i++)
            cell(&t, head[i]);
        for (size_t k = 0; k < STATS; k++)
            cell(&t, stat_names[k]);
    }
    for (size_t i = 0; i < f->shown; i++) {
        const struct view *v = &f->views.v[i];
        text_escape(&t.text, v->name, v->name_len);
        cell_end(&t);
        cell(&t, dtype_name(v->dtype));
        buf_shape(&t.text, v->shape, v->rank, ",");
        cell_end(&t);
        cell_u64(&t, v->nbytes);
        if (c->stats)
            put_stat_cells(&t, has_stats(f, i) ? &f->stats[i] : NULL);
    }
    put_total(&t, f, t.columns - 4);
    return cells_print(&t);
}

int
list_names(const struct inspect *c, const struct subject *f)
{
    struct buf out = { 0 };
    for (size_t i = 0; i < f->shown; i++) {
        text_escape(&out, f->views.v[i].name, f->views.v[i].name_len);
        buf_char(&out, '\n');
        if (out.len > FLUSH_AT)
            printer_put(c->printer, &out, HOST_TEXT);
    }
    printer_put(c->printer, &out, HOST_TEXT);
    buf_free(&out);
    return printer_end(c->printer);
}

/* ---- JSON and TSV --------------------------------------------------------------- */

/* The file that a tensor stands in, where there can be several. */
static const char *
file_of(const struct inspect *c, const struct subject *f, const struct view *v)
{
    const struct store *s = &f->store;
    if (s->is_directory && !c->many)
        return strrchr(s->files[v->entry->file].path, '/') + 1;
    if (s->is_directory)
        return s->files[v->entry->file].path;
    return c->many ? s->path : NULL;
}

static void
put_stats_json(struct buf *b, const struct stats *s)
{
    for (int k = 0; k < STATS; k++) {
        buf_printf(b, ",\"%s\":", stat_names[k]);
        if (!s || (k < 5 && s->n == 0))
            buf_str(b, "null");
        else if (k < 5)
            json_put_number(b, stat_value(s, k), 17);
        else
            buf_printf(b, "%llu", (unsigned long long)stat_count(s, k));
    }
}

static void
put_tensor(struct buf *b, const struct inspect *c, const struct subject *f, size_t i)
{
    const struct view *v = &f->views.v[i];
    const char *file = file_of(c, f, v);
    buf_str(b, "{\"name\":");
    json_put(b, (struct slice){ v->name, v->name_len });
    buf_printf(b, ",\"dtype\":\"%s\",\"shape\":", dtype_name(v->dtype));
    buf_shape(b, v->shape, v->rank, ",");
    buf_printf(b, ",\"offset\":%llu,\"nbytes\":%llu",
               (unsigned long long)v->entry->offset, (unsigned long long)v->nbytes);
    if (v->dtype == DT_NVFP4)
        buf_printf(b, ",\"levels\":%d", view_levels(v));
    if (file) {
        buf_str(b, ",\"file\":");
        json_put(b, slice_of(file));
    }
    if (f->stats)
        put_stats_json(b, has_stats(f, i) ? &f->stats[i] : NULL);
    buf_char(b, '}');
}

static void
put_tsv(struct buf *b, const struct inspect *c, const struct subject *f, size_t i)
{
    const struct view *v = &f->views.v[i];
    const char *file = file_of(c, f, v);
    bool known = has_stats(f, i) && f->stats[i].n;
    text_escape(b, v->name, v->name_len);
    buf_printf(b, "\t%s\t", dtype_name(v->dtype));
    buf_shape(b, v->shape, v->rank, ",");
    buf_printf(b, "\t%llu\t%llu\t", (unsigned long long)v->entry->offset,
               (unsigned long long)v->nbytes);
    if (v->dtype == DT_NVFP4)
        buf_printf(b, "%d", view_levels(v));
    if (file) {
        buf_char(b, '\t');
        text_escape(b, file, strlen(file));
    }
    for (int k = 0; f->stats && k < STATS; k++) {
        buf_char(b, '\t');
        if (k < 5 && known)
            buf_printf(b, "%.17g", stat_value(&f->stats[i], k));
        else if (k >= 5 && has_stats(f, i))
            buf_printf(b, "%llu", (unsigned long long)stat_count(&f->stats[i], k));
    }
}

static void
put_tsv_header(const struct inspect *c, const struct subject *f, struct buf *out)
{
    bool file = c->many || f->store.is_directory;
    buf_str(out, "name\tdtype\tshape\toffset\tnbytes\tlevels");
    if (file)
        buf_str(out, "\tfile");
    for (int k = 0; f->stats && k < STATS; k++)
        buf_printf(out, "\t%s", stat_names[k]);
    buf_char(out, '\n');
}

int
list_lines(const struct inspect *c, const struct subject *f)
{
    struct buf out = { 0 };
    struct printer *p = c->printer;
    bool tsv = c->action == TSV;
    enum host_text kind = tsv ? HOST_TEXT : HOST_JSON;
    if (tsv && !p->headed)
        put_tsv_header(c, f, &out);
    p->headed = true;
    for (size_t i = 0; i < f->shown; i++) {
        if (tsv)
            put_tsv(&out, c, f, i);
        else
            put_tensor(&out, c, f, i);
        buf_char(&out, '\n');
        if (out.len > FLUSH_AT)
            printer_put(p, &out, kind);
    }
    printer_put(p, &out, kind);
    buf_free(&out);
    return printer_end(p);
}

static void
put_totals(struct buf *b, const struct subject *f)
{
    size_t counts[DT_COUNT] = { 0 };
    const char *comma = "";
    for (size_t i = 0; i < f->views.n; i++)
        counts[f->views.v[i].dtype]++;
    buf_printf(b, "{\"tensors\":%zu,\"bytes\":%llu,\"dtypes\":{", f->views.n,
               (unsigned long long)total_bytes(f));
    for (enum dtype d = 0; d < DT_COUNT; d++)
        if (counts[d]) {
            buf_printf(b, "%s\"%s\":%zu", comma, dtype_name(d), counts[d]);
            comma = ",";
        }
    buf_str(b, "}}");
}

static void
put_raw(struct buf *b, const char *key, struct slice json)
{
    buf_printf(b, ",\"%s\":", key);
    if (json.p)
        buf_add(b, json.p, json.n);
    else
        buf_str(b, "null");
}

/* What the container tells, and the provenance as one more member. */
static void
put_meta(struct buf *b, const struct store *s)
{
    buf_str(b, ",\"meta\":{\"provenance\":");
    if (s->provenance.p)
        buf_add(b, s->provenance.p, s->provenance.n);
    else
        buf_str(b, "null");
    if (s->meta.n > 2) { // more than {}
        buf_char(b, ',');
        buf_add(b, s->meta.p + 1, s->meta.n - 1);
    } else {
        buf_char(b, '}');
    }
}

int
list_json(const struct inspect *c, struct subject *f)
{
    struct buf out = { 0 };
    const struct store *s = &f->store;
    buf_str(&out, "{\"file\":");
    json_put(&out, slice_of(s->path));
    buf_printf(&out, ",\"container\":\"%s\",\"bytes\":%llu,\"tensors\":[",
               store_kind(s), (unsigned long long)s->bytes);
    for (size_t i = 0; i < f->shown; i++) {
        buf_str(&out, i ? ",\n" : "\n");
        put_tensor(&out, c, f, i);
        if (out.len > FLUSH_AT)
            printer_put(c->printer, &out, HOST_JSON);
    }
    buf_str(&out, "],\n\"totals\":");
    put_totals(&out, f);
    put_raw(&out, "config", s->config);
    put_meta(&out, s);
    buf_str(&out, "}\n");
    printer_put(c->printer, &out, HOST_JSON);
    buf_free(&out);
    return printer_end(c->printer);
}

int
list_meta(const struct inspect *c, const struct subject *f)
{
    struct buf out = { 0 };
    const struct store *s = &f->store;
    buf_str(&out, "{\"file\":");
    json_put(&out, slice_of(s->path));
    buf_printf(&out, ",\"container\":\"%s\"", store_kind(s));
    put_raw(&out, "config", s->config);
    put_meta(&out, s);
    buf_str(&out, "}\n");
    printer_put(c->printer, &out, HOST_JSON);
    buf_free(&out);
    return printer_end(c->printer);
}

/* ---- the map -------------------------------------------------------------------- */

struct map_out {
    struct printer *p;
    const struct store *s;
    struct buf out;
    size_t file;
    uint64_t at;
};

static void
put_segment(void *ctx, size_t file, uint64_t offset, uint64_t n, const char *what,
            const struct tensor *t)
{
    struct map_out *m = ctx;
    if (file != m->file) {
        m->file = file;
        m->at = 0;
    }
    if (offset != m->at) // a reader of ours that cannot account for its bytes
        err_set(m->p->err, ERR_FORMAT, "%s: byte %llu: not accounted for", m->s->name,
                (unsigned long long)m->at);
    if (printer_end(m->p) < 0)
        return;
    m->at = offset + n;
    buf_printf(&m->out, "%llu\t%llu\t%s\t", (unsigned long long)offset,
               (unsigned long long)n, what);
    if (t)
        text_escape(&m->out, t->name, t->name_len);
    if (m->s->is_directory) {
        const char *path = m->s->files[file].path;
        const char *leaf = strrchr(path, '/') + 1;
        buf_char(&m->out, '\t');
        text_escape(&m->out, leaf, strlen(leaf));
    }
    buf_char(&m->out, '\n');
    if (m->out.len > FLUSH_AT)
        printer_put(m->p, &m->out, HOST_TEXT);
}

int
list_map(const struct inspect *c, const struct subject *f)
{
    struct map_out m = { .s = &f->store, .p = c->printer };
    buf_str(&m.out, "offset\tbytes\twhat\tname");
    buf_str(&m.out, m.s->is_directory ? "\tfile\n" : "\n");
    store_segments(m.s, put_segment, &m);
    printer_put(m.p, &m.out, HOST_TEXT);
    buf_free(&m.out);
    return printer_end(m.p);
}
