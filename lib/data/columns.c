/* SPDX-License-Identifier: MIT */
/* columns: see columns.h. */
#include "lib/data/columns.h"

#include "lib/base/grow.h"
#include "lib/data/csv.h"
#include "lib/data/lines.h"
#include "lib/data/shapes.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct column {
    char *name;
    size_t len;
    enum shape_key key; // SHAPE_KEYS if the column belongs to no shape
};

void
columns_free(struct columns *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->v[i].name);
    free(c->v);
    *c = (struct columns){ 0 };
}

static struct slice
name_of(const struct column *c)
{
    return (struct slice){ c->name, c->len };
}

/* ---- the header -------------------------------------------------------------------- */

static struct column *
add_column(struct columns *c, struct slice field)
{
    if (!GROW(c->v, c->n, c->cap, 16))
        return NULL;
    char *name = malloc(field.n + 1);
    if (!name)
        return NULL;
    struct column *new = &c->v[c->n++];
    *new = (struct column){ .name = name, .len = csv_undouble(name, field) };
    return new;
}

/* Another column that has the key. */
static bool
has_key(const struct columns *c, enum shape_key key)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->v[i].key == key)
            return true;
    return false;
}

static int
fail_field(const struct csv_fields *f, uint64_t offset, struct err *err)
{
    char q[TEXT_QUOTE];
    struct slice r = f->record;
    return err_set(err, ERR_FORMAT, ": byte %llu: expected %s, found %s",
                   (unsigned long long)(offset + f->at), f->wants,
                   text_quote(q, r.p + f->at, r.n - f->at < 24 ? r.n - f->at : 24));
}

static int
read_names(struct columns *c, struct slice header, uint64_t offset,
           const struct shape_names *names, struct err *err)
{
    struct csv_fields f;
    struct slice field;
    bool doubled;
    char q[TEXT_QUOTE];
    csv_open(&f, header);
    while (csv_field(&f, &field, &doubled)) {
        struct column *new = add_column(c, field);
        if (!new)
            return err_set(err, ERR_MEMORY, "out of memory for %zu columns", c->n);
        struct slice name = name_of(new);
        enum shape_key key = shape_key(name, names);
        new->key = SHAPE_KEYS;
        if (key != SHAPE_KEYS && has_key(c, key))
            return err_set(err, ERR_FORMAT, "a second column \"%s\"",
                           text_quote(q, name.p, name.n));
        new->key = key;
    }
    return f.wants ? fail_field(&f, offset, err) : 0;
}

static unsigned
keys_of(const struct columns *c)
{
    unsigned has = 0;
    for (size_t i = 0; i < c->n; i++)
        if (c->v[i].key != SHAPE_KEYS)
            has |= 1U << c->v[i].key;
    return has;
}

static void
put_found(struct buf *b, const struct columns *c)
{
    enum { MAX_SHOWN = 10, MAX_NAME = 40 };
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < c->n && i <= MAX_SHOWN; i++) {
        struct slice name = name_of(&c->v[i]);
        buf_str(b, i ? ", " : "; found ");
        if (i == MAX_SHOWN)
            buf_str(b, "...");
        else
            buf_printf(b, "\"%s\"",
                       text_quote(q, name.p, name.n < MAX_NAME ? name.n : MAX_NAME));
    }
    // No NUL ends a name.
    const struct column *only = c->n == 1 ? c->v : NULL;
    if (only &&
        (memchr(only->name, ';', only->len) || memchr(only->name, '\t', only->len)))
        buf_str(b, ": fields are separated by commas");
}

static int
fail_header(const struct columns *c, const struct shape_names *names, struct err *err)
{
    struct buf b = { 0 };
    shape_put_wanted(&b, true, names);
    put_found(&b, c);
    if (!names)
        buf_str(&b, "; the first line names the columns, and --prompt-key and "
                    "--answer-key read a pair under other names");
    int rc = buf_ok(&b, err);
    if (rc == 0)
        rc = err_set(err, ERR_FORMAT, "%s", b.data);
    buf_free(&b);
    return rc;
}

int
columns_read(struct columns *c, struct slice header, uint64_t offset,
             const struct shape_names *names, struct err *err)
{
    if (read_names(c, header, offset, names, err) < 0)
        return -1;
    return shape_fits_table(keys_of(c)) ? 0 : fail_header(c, names, err);
}

/* ---- what looks like a header ------------------------------------------------------- */

/* Whether the cell looks like the name of a column, which a sentence does not. */
static bool
is_name(const struct column *c)
{
    for (size_t i = 0; i < c->len; i++)
        if (!isalnum((unsigned char)c->name[i]) && !strchr("_-.", c->name[i]))
            return false;
    return c->len > 0;
}

/* Fields of a record; 0: it is none. */
static size_t
count_fields(struct slice record)
{
    struct csv_fields f;
    struct slice field;
    bool doubled;
    size_t n = 0;
    csv_open(&f, record);
    while (csv_field(&f, &field, &doubled))
        n++;
    return f.wants ? 0 : n;
}

bool
columns_likely(struct slice text, const struct shape_names *names)
{
    struct columns c = { 0 };
    struct err ignored = { 0 };
    struct slice header, row;
    size_t at = 0;
    bool likely =
        csv_next(text, &at, &header) && read_names(&c, header, 0, names, &ignored) == 0;
    if (likely && !shape_fits_table(keys_of(&c))) {
        likely = c.n > 1 && csv_next(text, &at, &row) && count_fields(row) == c.n;
        for (size_t i = 0; i < c.n; i++)
            likely = likely && is_name(&c.v[i]);
    }
    columns_free(&c);
    return likely;
}

/* ---- a record ---------------------------------------------------------------------- */

static int
take_field(struct object *o, const struct column *c, struct slice field, bool doubled)
{
    char q[TEXT_QUOTE];
    if (doubled) {
        char *text = arena_alloc(o->j->arena, field.n);
        if (!text)
            return err_set(o->j->err, ERR_MEMORY, "out of memory for a field");
        field = (struct slice){ text, csv_undouble(text, field) };
    }
    if (c->key != SHAPE_KEYS) {
        o->value[c->key] = field;
        return 0;
    }
    struct learn l = learn_judge(LEARN_ROW, name_of(c), field);
    if (l.verdict == LEARN_EXCLUDED)
        o->excluded = l;
    if (l.verdict != LEARN_REFUSED)
        return 0;
    return err_set(o->j->err, ERR_FORMAT, "column \"%s\": expected %s, found %s", l.key,
                   l.wants, text_quote(q, field.p, field.n));
}

static int
take_fields(struct object *o, const struct columns *c, struct csv_fields *f,
            uint64_t offset)
{
    struct slice field;
    bool doubled;
    size_t n = 0;
    for (; csv_field(f, &field, &doubled); n++)
        if (n < c->n && take_field(o, &c->v[n], field, doubled) < 0)
            return -1;
    if (f->wants)
        return fail_field(f, offset, o->j->err);
    if (n != c->n)
        return err_set(o->j->err, ERR_FORMAT,
                       "expected as many fields as the header has, %zu, found %zu%s",
                       c->n, n,
                       n > c->n ? ": a field with a comma needs quotes around it" : "");
    return 0;
}

static bool
is_blank(struct slice s)
{
    return line_trim(s).n == 0;
}

/* An empty cell is a row that nobody has filled in. */
static void
skip_blank(struct row *r)
{
    if (r->kind == ROW_TEXT && is_blank(r->text))
        r->why = "expected a text: it is empty";
    else if (r->kind == ROW_PAIR && (is_blank(r->prompt) || is_blank(r->target)))
        r->why = "expected a prompt and an answer: one of them is empty";
    else
        return;
    r->kind = ROW_SKIPPED;
}

int
columns_parse(struct row *r, const struct columns *c, struct slice record,
              uint64_t offset, struct err *err)
{
    struct json j;
    struct csv_fields f;
    struct object o = { .row = r, .j = &j, .table = true };
    r->kind = ROW_NOTHING;
    if (record.n == 0)
        return 0;
    json_open(&j, "", offset, record, &r->arena, err);
    csv_open(&f, record);
    if (take_fields(&o, c, &f, offset) < 0 || shape_settle(&o) < 0)
        return -1;
    skip_blank(r);
    return 0;
}
