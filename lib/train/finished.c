/* SPDX-License-Identifier: MIT */
/* finished: see finished.h. */
#include "lib/train/finished.h"

#include <string.h>
#include <unistd.h>

static bool
same_kind(const struct store *a, const struct store *b)
{
    return strcmp(a->training.master, b->training.master) == 0 &&
           strcmp(a->training.moments, b->training.moments) == 0 &&
           strcmp(a->quant.name, b->quant.name) == 0 && slice_eq(a->config, b->config);
}

/* 1: the same arrays, configuration and the like. */
static int
same_content(struct store *a, struct store *b, struct err *err)
{
    uint8_t x[XXH3_BYTES], y[XXH3_BYTES];
    if (store_content_hash(a, x, 1, err) < 0 || store_content_hash(b, y, 1, err) < 0)
        return -1;
    return memcmp(x, y, XXH3_BYTES) == 0;
}

static int
check_content(const struct run_config *r, struct store *out, const struct state *st)
{
    struct store *in = &r->in->file;
    int same = st->step == r->in_step ? same_content(out, in, r->err) : 1;
    if (same == 0)
        return err_set(
            r->err, ERR_USAGE,
            "%s: differs from %s, which is at step %llu already; nothing was done: "
            "leave -o out, or remove it",
            out->name, in->name, (unsigned long long)st->step);
    return same < 0 ? -1 : 0;
}

static int
check_out(const struct run_config *r, struct store *out)
{
    struct state st;
    struct settings s;
    unsigned long long at = r->in_step;
    const struct store *in = &r->in->file;
    if (!out->training.master || !out->config.p || !same_kind(out, in))
        return err_set(
            r->err, ERR_USAGE,
            "%s: not a checkpoint of the kind of %s, which is at step %llu already; "
            "nothing was done: leave -o out, or remove it",
            out->name, in->name, at);
    if (state_read(&st, &s, out) < 0)
        return -1;
    if (st.step < r->end)
        return err_set(
            r->err, ERR_USAGE,
            "%s: is at step %llu, and %s at step %llu already; nothing was done: "
            "leave -o out, or remove it",
            out->name, (unsigned long long)st.step, in->name, at);
    return check_content(r, out, &st);
}

/* Nothing is written to -o, so an existing file there must be a result of this run. */
static int
open_out(const struct run_config *r)
{
    struct store out;
    int rc = checkpoint_open(&out, r->o->out, r->host->guard, r->err);
    if (rc == 0)
        rc = check_out(r, &out);
    store_close(&out);
    return rc;
}

int
finished_check(const struct run_config *r)
{
    const struct train_options *o = r->o;
    const char *files[] = { o->out, o->dump }, *name = r->in->file.name;
    unsigned long long at = r->in_step;
    for (size_t i = 0; !o->dry_run && i < sizeof files / sizeof *files; i++)
        if (files[i] && access(files[i], F_OK) != 0)
            return err_set(r->err, ERR_USAGE,
                           "%s: is at step %llu: nothing to do, and %s is not made",
                           name, at, files[i]);
    if (o->out && !o->dry_run && open_out(r) < 0)
        return -1;
    if (course_check_file(o->data, r->err) < 0 ||
        course_check_file(o->eval, r->err) < 0)
        return -1;
    host_note(r->host,
              "%s: at step %llu: nothing to do; -n, --until or --epochs takes more "
              "steps from it",
              name, at);
    return 0;
}

void
finished_by_patience(const struct run_config *r, const struct keep *k)
{
    struct buf b = { 0 };
    keep_report_patience(&b, k);
    if (!b.failed)
        host_note(r->host,
                  "%s: at step %llu: nothing to do: %s; without --patience, or with a "
                  "larger one, it goes on",
                  r->in->file.name, (unsigned long long)r->in_step, b.data);
    buf_free(&b);
}
