/* SPDX-License-Identifier: MIT */
/* writer_open: what is to be written, checked and measured before any of it is. */
#include "lib/base/num.h"
#include "lib/format/kinds.h"
#include "lib/format/view.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t MAX_OUTPUT = (uint64_t)1 << 62;

/* Why the name of a tensor cannot be written, or NULL; names has those before it. */
static const char *
name_misfit(const struct writer *w, struct names *names, size_t i)
{
    struct slice name = slice_of(w->t[i].name);
    if (name.n < 1 || name.n > MAX_NAME)
        return "is empty or longer than 65536 bytes";
    if (utf8_check(name.p, name.n) < name.n)
        return "is not UTF-8";
    if (w->kind->reserved_name && slice_is(name, w->kind->reserved_name))
        return "means something else there";
    int there = names_add(names, name, i);
    if (there < 0)
        err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    return there > 0 ? "would stand there twice" : NULL;
}

/* Whether the entry has the codes of an NVFP4 pair beside which a plain tensor has the pair's name. */
static bool
has_plain_twin(const struct names *names, struct slice name)
{
    static const char codes[] = ".weight.qdata";
    if (!slice_ends(name, codes))
        return false;
    name.n -= strlen(".qdata");
    return names_find(names, name) >= 0;
}

/* Whether the NVFP4 pair of that name has the other spelling, too. */
static bool
is_spelt_twice(const struct names *names, struct slice name)
{
    static const char *const parts[] = { ".weight.qdata", ".weight.scale" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (slice_ends(name, parts[i])) {
            name.n -= strlen(parts[i]);
            return view_spelt_twice(names, name);
        }
    return false;
}

/* What is written must be readable: the rules for names that readers enforce. */
static int
check_names(struct writer *w)
{
    struct names names = { 0 };
    char q[TEXT_QUOTE];
    const char *why = NULL, *bad = NULL;
    for (size_t i = 0; i < w->n && !why && !w->err->kind; i++) {
        bad = w->t[i].name;
        why = name_misfit(w, &names, i);
    }
    for (size_t i = 0; i < w->n && !why; i++) {
        bad = w->t[i].name;
        if (is_spelt_twice(&names, slice_of(bad)))
            why = "would stand beside the other spelling of its NVFP4 pair";
        else if (has_plain_twin(&names, slice_of(bad)))
            why = "would stand beside a plain tensor of its NVFP4 pair's name";
    }
    names_free(&names);
    if (w->err->kind || !why)
        return w->err->kind ? -1 : 0;
    return err_set(w->err, ERR_USAGE, "%s: the name \"%s\" %s", w->name,
                   text_quote(q, bad, strlen(bad)), why);
}

/* The size of each tensor.  Their sum, with all that a plan can put between and around
 * them, is kept below 2^63: then no offset of any plan overflows. */
static int
measure_tensors(struct writer *w)
{
    enum { BETWEEN = 2 * (MAX_NAME + (64 << 10)) }; // alignment, and a name in a header
    uint64_t total = 0;
    for (size_t i = 0; i < w->n; i++) {
        struct wtensor *t = &w->t[i];
        char q[TEXT_QUOTE];
        uint64_t numel;
        // A rank 0 f4 in a .dat is one byte: two values that no shape can describe.
        enum dtype d = t->dtype == DT_F4_E2M1 && t->rank == 0 ? DT_U8 : t->dtype;
        if (!dtype_size(&numel, &t->nbytes, d, t->shape, t->rank))
            return err_set(
                w->err, ERR_USAGE,
                "%s: \"%s\" is too large, or its size is no whole number of bytes",
                w->name, text_quote(q, t->name, strlen(t->name)));
        if (!add_fits(&total, total, t->nbytes, MAX_OUTPUT) ||
            !add_fits(&total, total, BETWEEN, MAX_OUTPUT))
            return err_set(w->err, ERR_USAGE,
                           "%s: the tensors up to \"%s\" have more than 2^62 bytes, "
                           "the largest size of a file",
                           w->name, text_quote(q, t->name, strlen(t->name)));
    }
    return 0;
}

int
writer_plan(struct writer *w, const char *kind, const char *path, struct wtensor *t,
            size_t n, const struct wmeta *meta, const struct writer_options *opt,
            struct err *err)
{
    struct buf name = { 0 };
    *w = (struct writer){ .t = t,
                          .n = n,
                          .meta = *meta,
                          .shard_bytes = opt->shard_bytes,
                          .is_dir = opt->directory,
                          .guard = opt->guard,
                          .flags = opt->flags,
                          .n_files = 1,
                          .err = err };
    w->out.fd = w->sidecar.fd = w->dir.lock = -1;
    text_escape(&name, path, strlen(path));
    w->name = name.data;
    w->path = strdup(path);
    w->files = calloc(1, sizeof *w->files);
    if (!w->name || !w->path || !w->files)
        return err_set(err, ERR_MEMORY, "%s: out of memory", path);
    w->kind = container_named(slice_of(kind));
    if (!w->kind || !w->kind->plan)
        return err_set(err, ERR_USAGE, "%s: cannot be written as %s", w->name, kind);
    return measure_tensors(w) < 0 || check_names(w) < 0 ? -1 : w->kind->plan(w);
}

int
writer_open(struct writer *w, const char *kind, const char *path, struct wtensor *t,
            size_t n, const struct wmeta *meta, const struct writer_options *opt,
            struct err *err)
{
    return writer_plan(w, kind, path, t, n, meta, opt, err) < 0 ? -1 : writer_begin(w);
}
