/* SPDX-License-Identifier: MIT */
/* record: the provenance of the output: inputs and options. */
#include "lib/convert/output.h"

#include "lib/base/json.h"
#include "lib/format/provenance.h"

static void
put_globs(struct buf *b, const char *key, const struct glob *glob, size_t n)
{
    if (n == 0)
        return;
    buf_printf(b, "\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_char(b, ',');
        json_put(b, slice_of(glob[i].pattern));
    }
    buf_str(b, "],");
}

static void
put_word(struct buf *b, const char *key, const char *value)
{
    if (!value)
        return;
    buf_printf(b, "\"%s\":", key);
    json_put(b, slice_of(value));
    buf_char(b, ',');
}

static void
put_renames(struct buf *b, const struct pack *c)
{
    for (size_t i = 0; i < c->n_renames; i++) {
        buf_str(b, i ? ",[" : "\"rename\":[[");
        json_put(b, slice_of(c->rename[i].old));
        buf_char(b, ',');
        json_put(b, slice_of(c->rename[i].new));
        buf_char(b, ']');
    }
    if (c->n_renames)
        buf_str(b, "],");
}

static bool
quantizes(const struct plan *p)
{
    for (size_t i = 0; i < p->n_nvfp4; i++)
        if (p->nvfp4[i]->quantize)
            return true;
    return false;
}

/* The options that can change the content; keys sorted. */
static void
put_options(struct buf *b, const struct plan *p)
{
    static const char *const dtypes[] = { NULL, "keep", "f16", "bf16", "f32", "nvfp4" };
    static const char *const heads[] = { NULL, "tie", "untie" };
    const struct pack *c = p->c;
    bool ckpt = plan_target(p)->training;
    bool quant = ckpt || quantizes(p);
    bool part = c->quantize || c->dequantize;
    const struct select *select = part ? &c->quantized : &c->select;
    buf_char(b, '{');
    put_word(b, "compat", c->torchsharp ? "seed" : NULL);
    put_word(b, "criterion", quant ? c->criterion : NULL);
    if (c->dequantize)
        buf_str(b, "\"dequant\":true,");
    put_word(b, "dtype", dtypes[c->dtype]);
    put_globs(b, "exclude", select->out, select->n_out);
    if (quant && c->exhaustive)
        buf_str(b, "\"exhaustive\":true,");
    put_word(b, "head", heads[c->head]);
    if (quant && c->hessian)
        buf_str(b, "\"hessian\":true,");
    if (c->init)
        buf_printf(b, "\"init\":%u,", c->init_seed);
    if (c->like)
        buf_str(b, "\"like\":true,");
    put_word(b, "master", ckpt ? c->master : NULL);
    put_word(b, "moments", ckpt ? c->moments : NULL);
    put_word(b, "quant", quant ? c->quant : NULL);
    put_renames(b, c);
    put_globs(b, "select", select->in, select->n_in);
    put_word(b, "share", quant ? c->share : NULL);
    put_word(b, "to", c->to);
    put_word(b, "variant", quant && *c->variant ? c->variant : NULL);
    b->data[b->len - 1] = '}'; // in place of the last comma: "to" is always there
}

int
record_put(struct buf *b, const struct plan *p)
{
    b->len = 0;
    provenance_begin(b);
    for (size_t i = 0; i < p->n_inputs + p->has_like; i++) {
        const struct input *in = &p->inputs[i];
        provenance_input(b, slice_of(store_kind(&in->store)), in->store.provenance, 1,
                         in->xxh3);
    }
    if (p->has_importance && quantizes(p))
        provenance_input(b, slice_of("importance"), p->importance.store.provenance, 1,
                         p->importance.xxh3);
    if (p->has_input_scales)
        provenance_input(b, slice_of("input-scales"), p->input_scales.store.provenance,
                         1, p->input_scales.xxh3);
    provenance_options(b);
    if (!b->failed)
        put_options(b, p);
    provenance_end(b, p->c->host->program, slice_of(p->c->host->version));
    return b->failed ? err_set(p->err, ERR_MEMORY, "out of memory for the provenance")
                     : 0;
}
