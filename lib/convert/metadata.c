/* SPDX-License-Identifier: MIT */
/* metadata: __metadata__ of safetensors inputs. */
#include "lib/convert/output.h"

#include "lib/base/json.h"

static int
add_member_of(struct plan *p, struct metadata *f, struct slice key, struct slice value)
{
    char *name = arena_copy(&p->arena, key.p, key.n);
    int there =
        name ? names_add(&f->keys, (struct slice){ name, key.n }, f->keys.n) : -1;
    if (there < 0)
        return plan_no_memory(p);
    if (there > 0)
        return 0;
    buf_str(&f->text, f->text.len ? "," : "");
    json_put(&f->text, key);
    buf_char(&f->text, ':');
    buf_add(&f->text, value.p, value.n);
    return 0;
}

/* All members but "nibble", which is written anew. */
static int
add_metadata(struct plan *p, struct metadata *f, struct store *s)
{
    enum { LIMIT = 16 << 20 }; // it is kept in memory; programs write some KiB
    struct slice key, value;
    struct arena scratch = { 0 };
    struct json j;
    int rc = 0;
    if (!s->metadata.p)
        return 0;
    if (s->metadata.n > LIMIT) {
        host_note(p->c->host,
                  "%s: its __metadata__ of %zu bytes is left out, at most %d are kept",
                  s->name, s->metadata.n, LIMIT);
        return 0;
    }
    json_open(&j, s->name, 0, s->metadata, &scratch, p->err);
    json_object(&j);
    while (rc == 0 && json_key(&j, &key) > 0) {
        rc = json_skip(&j, &value);
        if (rc == 0 && !slice_is(key, "nibble"))
            rc = add_member_of(p, f, key, value);
        arena_clear(&scratch);
    }
    arena_free(&scratch);
    return p->err->kind ? -1 : rc;
}

int
metadata_gather(struct plan *p, struct metadata *f)
{
    static const char format[] = "format", pt[] = "\"pt\"";
    int rc = 0;
    if (!plan_target(p)->keeps_metadata)
        return 0;
    for (size_t i = 0; rc == 0 && i < p->n_inputs; i++)
        rc = add_metadata(p, f, &p->inputs[i].store);
    if (rc == 0) // unless an input has another
        rc = add_member_of(p, f, slice_of(format), slice_of(pt));
    return rc == 0 ? buf_ok(&f->text, p->err) : -1;
}

void
metadata_free(struct metadata *f)
{
    buf_free(&f->text);
    names_free(&f->keys);
}
