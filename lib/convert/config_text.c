/* SPDX-License-Identifier: MIT */
/* config_text: the configuration that the output gets: the text of the input's, in which
 * only what the conversion changes is replaced. */
#include "lib/convert/plan.h"

#include "lib/base/json.h"
#include "lib/format/dialect.h"

#include <string.h>

/* Replace the configuration by the text of b, which is freed. */
static int
set_config(struct plan *p, struct buf *b)
{
    size_t n = b->len;
    p->config = (struct slice){ plan_text(p, b), n };
    return p->config.p ? 0 : -1;
}

/* Replace n bytes of the configuration. */
static int
replace_in_config(struct plan *p, size_t at, size_t n, const char *with)
{
    struct buf b = { 0 };
    buf_add(&b, p->config.p, at);
    buf_str(&b, with);
    buf_add(&b, p->config.p + at + n, p->config.n - at - n);
    return set_config(p, &b);
}

/* Replace the value of a member.  1, or 0 if there is no such member; -1. */
static int
set_member(struct plan *p, const char *name, const char *value)
{
    struct json j;
    struct slice key, raw;
    json_open(&j, "config", 0, p->config, &p->arena, p->err);
    json_object(&j);
    while (json_key(&j, &key) > 0) {
        if (json_skip(&j, &raw) < 0)
            return -1;
        if (slice_is(key, name))
            return replace_in_config(p, (size_t)(raw.p - p->config.p), raw.n, value) < 0
                       ? -1
                       : 1;
    }
    return p->err->kind ? -1 : 0;
}

/* Append a member, on a new line if the text has lines. */
static int
add_member(struct plan *p, const char *name, const char *value)
{
    struct json j;
    struct slice key, raw = { 0 };
    struct buf b = { 0 };
    json_open(&j, "config", 0, p->config, &p->arena, p->err);
    json_object(&j);
    while (json_key(&j, &key) > 0)
        if (json_skip(&j, &raw) < 0)
            return -1;
    if (p->err->kind)
        return -1;
    // After the last value; in an empty object before the brace.
    size_t at = raw.p ? (size_t)(raw.p + raw.n - p->config.p) : j.pos - 1;
    bool lines = memchr(p->config.p, '\n', at) != NULL;
    buf_printf(&b, "%s%s\"%s\": %s", raw.p ? "," : "",
               lines   ? "\n  "
               : raw.p ? " "
                       : "",
               name, value);
    int rc = buf_ok(&b, p->err);
    if (rc == 0)
        rc = replace_in_config(p, at, 0, b.data);
    buf_free(&b);
    return rc;
}

int
config_text_untie(struct plan *p)
{
    if (!p->is_model || !p->model.tied)
        return 0;
    p->model.tied = false;
    return set_member(p, "tie_word_embeddings", "false") < 0 ? -1 : 0;
}

/* Whether an input holds another program's NVFP4 tensors. */
static bool
has_foreign(const struct plan *p)
{
    for (size_t i = 0; i < p->n_inputs; i++)
        for (size_t k = 0; k < p->inputs[i].views.n; k++) {
            const struct view *v = &p->inputs[i].views.v[k];
            if (v->dtype == DT_NVFP4 && v->dialect->foreign)
                return true;
        }
    return false;
}

/* Whether quantization_config stays true: the output is a copy of one input, or of some of
 * its tensors. */
static bool
keeps_claims(const struct plan *p)
{
    bool copy = plan_keeps_foreign(p) && p->n_inputs == 1 && !p->has_like &&
                p->c->n_renames == 0;
    for (size_t i = 0; i < p->n && copy; i++)
        copy = p->item[i].how == HOW_COPY || p->item[i].how == HOW_SCALES;
    return copy;
}

/* Remove quantization_config if it is no longer true. */
static int
plain_config(struct plan *p)
{
    struct buf b = { 0 };
    if (keeps_claims(p) || !(p->is_model || has_foreign(p)))
        return 0;
    if (!p->config.p ||
        !memmem(p->config.p, p->config.n, "\"quantization_config\"", 21))
        return 0;
    if (dialect_plain_config(&b, p->config, p->err) == 0)
        return set_config(p, &b);
    buf_free(&b);
    return -1;
}

/* torch_dtype of the output: as in transformers that of the embedding, else the most
 * frequent one; NVFP4 and its scales do not count.  DT_NONE: no floats. */
static enum dtype
main_dtype(const struct plan *p)
{
    uint64_t count[DT_COUNT] = { 0 };
    enum dtype most = DT_NONE;
    for (size_t i = 0; i < p->n; i++) {
        const struct item *it = &p->item[i];
        bool plane = it->nvfp4 || (it->view && it->view->dtype == DT_NVFP4 &&
                                   it->how != HOW_CONVERT);
        if (!is_wide_float(it->dtype) || plane)
            continue;
        if (strcmp(it->name, TABLE_EMBED) == 0)
            return it->dtype;
        count[it->dtype] += it->numel;
        if (most == DT_NONE || count[it->dtype] > count[most])
            most = it->dtype;
    }
    return most;
}

/* Other programs load a directory by its config.json: set the type of its weights there. */
static int
name_dtype(struct plan *p)
{
    static const char *const names[DT_COUNT] = { [DT_F16] = "\"float16\"",
                                                 [DT_BF16] = "\"bfloat16\"",
                                                 [DT_F32] = "\"float32\"",
                                                 [DT_F64] = "\"float64\"" };
    const char *name = names[main_dtype(p)];
    if (!p->c->directory || !p->config.p || !name)
        return 0;
    int old = set_member(p, "torch_dtype", name);
    int new = old < 0 ? -1 : set_member(p, "dtype", name);
    if (new < 0)
        return -1;
    return old || new ? 0 : add_member(p, "torch_dtype", name);
}

int
config_text_settle(struct plan *p)
{
    return plain_config(p) < 0 ? -1 : name_dtype(p);
}
