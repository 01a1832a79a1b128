/* SPDX-License-Identifier: MIT */
/* verify_names: whether a file holds the tensors of its configuration, and no others. */
#include "lib/inspect/inspect.h"

#include "lib/format/dialect.h"
#include "lib/model/table.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 20 }; // of a file that lacks thousands

struct comparison {
    const struct subject *f;
    struct table table;
    struct names rows; // of the table, by number
    bool *found;       // (table.n)
    uint64_t n;        // differences
};

/* "m.dat: "NAME": what is wrong", of the first ones. */
static void
say(struct comparison *x, const char *name, size_t n, const char *what)
{
    char q[TEXT_QUOTE];
    if (x->n++ < MAX_LINES)
        host_warn(x->f->host, "%s: \"%s\": %s", x->f->store.name,
                  text_quote(q, name, n), what);
}

/* How many more there are; whether there were any. */
static bool
say_rest(const struct comparison *x)
{
    if (x->n > MAX_LINES)
        host_warn(x->f->host, "%s: and %llu more", x->f->store.name,
                  (unsigned long long)(x->n - MAX_LINES));
    return x->n > 0;
}

static int
compare_shape(struct comparison *x, const struct view *v, const struct row *r,
              struct err *err)
{
    struct buf b = { 0 };
    if (v->rank == r->rank &&
        memcmp(v->shape, r->shape, r->rank * sizeof *r->shape) == 0)
        return 0;
    buf_str(&b, "shape ");
    buf_shape(&b, v->shape, v->rank, ",");
    buf_str(&b, ", the configuration expects ");
    buf_shape(&b, r->shape, r->rank, ",");
    int rc = buf_ok(&b, err);
    if (rc == 0)
        say(x, v->name, v->name_len, b.data);
    buf_free(&b);
    return rc;
}

/* The head of a tied model may be there, as a copy of the embedding or quantized. */
static int
compare_view(struct comparison *x, const struct view *v, bool tied, struct err *err)
{
    struct slice name = { v->name, v->name_len };
    int64_t i = names_find(&x->rows, name);
    if (v->aside || v->entry->state)
        return 0;
    if (v->lacks_input)
        say(x, v->name, v->name_len,
            "has no activation scale, and the other NVFP4 tensors have one");
    if (i >= 0)
        x->found[i] = true;
    else if (tied && slice_is(name, TABLE_HEAD))
        i = 0; // the shape of the embedding
    else
        say(x, v->name, v->name_len, "is not in the configuration");
    return i < 0 ? 0 : compare_shape(x, v, &x->table.row[i], err);
}

static int
open_comparison(struct comparison *x, const struct config *c, struct err *err)
{
    if (table_open(&x->table, c, !c->tied, err) < 0)
        return -1;
    x->found = calloc(x->table.n, sizeof *x->found);
    for (size_t i = 0; i < x->table.n && x->found; i++)
        if (names_add(&x->rows, slice_of(x->table.row[i].name), i) < 0)
            return err_set(err, ERR_MEMORY, "out of memory for names");
    return x->found ? 0 : err_set(err, ERR_MEMORY, "out of memory for names");
}

static int
compare_all(struct comparison *x, const struct views *views, const struct config *c,
            struct err *err)
{
    int rc = open_comparison(x, c, err);
    for (size_t i = 0; i < views->n && rc == 0; i++)
        rc = compare_view(x, &views->v[i], c->tied, err);
    for (size_t i = 0; i < x->table.n && rc == 0; i++)
        if (!x->found[i])
            say(x, x->table.row[i].name, strlen(x->table.row[i].name),
                "is missing, the configuration expects it");
    if (rc == 0)
        say_rest(x);
    table_close(&x->table);
    names_free(&x->rows);
    free(x->found);
    return rc;
}

/* Whatever the file is: an NVFP4 tensor that lacks one of its entries is not whole. */
static int
verify_entries(struct subject *f)
{
    struct comparison x = { .f = f };
    struct views all = { 0 };
    int rc = views_open(&all, &f->store, false);
    for (size_t i = 0; i < all.n && rc == 0; i++)
        if (all.v[i].incomplete)
            say(&x, all.v[i].name, all.v[i].name_len,
                "is one part of an NVFP4 tensor, and another part is missing");
    views_close(&all);
    return rc < 0 ? -1 : say_rest(&x) ? ANSWER_NO : ANSWER_YES;
}

/* ANSWER_YES; ANSWER_NO: it is broken, which was said; -1.  A configuration of another kind
 * leaves *known false and its reason in *what. */
static int
read_config(struct config *c, const struct subject *f, bool *known, struct buf *what,
            struct err *err)
{
    const struct store *s = &f->store;
    struct err why = { 0 };
    struct buf name = { 0 };
    buf_printf(&name, "%s: configuration", s->name);
    int rc = buf_ok(&name, err);
    *known = rc == 0 && config_parse(c, name.data, s->config, &why) == 0;
    if (rc == 0 && why.kind == ERR_MEMORY) {
        rc = err_set(err, ERR_MEMORY, "%s", why.msg);
    } else if (rc == 0 && why.kind && config_is_supported(s->config)) {
        host_warn(f->host, "%s", why.msg);
        rc = ANSWER_NO;
    } else if (rc == 0 && why.kind) {
        buf_printf(what, "; names were not compared: %s", why.msg);
    }
    buf_free(&name);
    return rc;
}

int
names_verify(struct subject *f, struct buf *what, struct err *err)
{
    struct store *s = &f->store;
    struct comparison x = { .f = f };
    struct config c;
    struct views all = { 0 };
    bool known;
    if (!s->config.p || s->config_beside)
        return verify_entries(f);
    int rc = read_config(&c, f, &known, what, err);
    if (rc != ANSWER_YES || !known)
        return rc == ANSWER_YES ? verify_entries(f) : rc;
    s->opt.whole_pairs = true; // a part of an NVFP4 tensor is no tensor
    rc = dialect_views(&all, s, true);
    if (rc == 0 && all.unknown_quantization)
        buf_str(what,
                "; names were not compared: its quantization is another program's");
    else if (rc == 0)
        rc = compare_all(&x, &all, &c, err);
    if (rc == 0 && !all.unknown_quantization)
        buf_str(what, "; names and shapes are those of the configuration");
    views_close(&all);
    return rc < 0 ? -1 : x.n ? ANSWER_NO : ANSWER_YES;
}
