/* SPDX-License-Identifier: MIT */
/* target: the type of a candidate in the target, and whether its NVFP4 is kept. */
#include "lib/convert/plan.h"

#include <string.h>

/* In models for other programs NVFP4 is kept, and the rest is bf16 by default. */
static enum dtype
served_dtype(const struct plan *p, const struct candidate *c)
{
    struct slice name = slice_of(c->name);
    bool wide = is_wide_float(c->dtype);
    if (c->dtype == DT_NVFP4 && table_quantizes(name))
        return DT_NVFP4;
    if (!wide && c->dtype != DT_NVFP4)
        return c->dtype;
    if (plan_target(p)->f32_norms && c->rank == 1)
        return DT_F32;
    bool keeps =
        plan_target(p)->f32_norms ? c->dtype == DT_F16 : p->c->dtype == WISH_KEEP;
    return keeps && wide ? c->dtype : DT_BF16;
}

enum dtype
target_dtype(const struct plan *p, const struct candidate *c)
{
    static const enum dtype wished[] = {
        [WISH_F16] = DT_F16, [WISH_BF16] = DT_BF16, [WISH_F32] = DT_F32
    };
    const struct pack *cfg = p->c;
    bool wide = is_wide_float(c->dtype);
    if (cfg->dequantize) {
        bool widen = c->dtype == DT_NVFP4 && select_matches(&p->c->quantized, c->name);
        return widen ? wished[cfg->dtype] : c->dtype;
    }
    if (plan_wishes_wide(p))
        return wide || c->dtype == DT_NVFP4 ? wished[cfg->dtype] : c->dtype;
    if (plan_target(p)->dialect)
        return served_dtype(p, c);
    // What only TorchSharp's optimizer packs: floats that f16 and bf16 hold exactly.
    if (c->dtype == DT_NVFP4 && c->in && c->in->store.training.master &&
        !table_quantizes(slice_of(c->name)))
        return cfg->torchsharp || plan_target(p)->no_bf16 ? DT_F16 : DT_BF16;
    if (cfg->torchsharp && wide)
        return DT_F16;
    if (plan_target(p)->no_bf16 && c->dtype == DT_BF16 && !cfg->quantize)
        return DT_F16;
    return c->dtype;
}

/* A .scale of floats beside codes is the work of a faulty writer; a copy would be read as
 * bytes. */
static int
check_pair_parts(struct plan *p, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    struct slice name = slice_of(c->name);
    bool codes = slice_ends(name, ".qdata"), scale = slice_ends(name, ".scale");
    if (!plan_target(p)->own_pairs || c->dtype == DT_NVFP4)
        return 0;
    if ((scale && is_wide_float(c->dtype)) || (codes && is_wide_float(c->dtype)))
        return err_set(
            p->err, ERR_FORMAT,
            "\"%s\" is %s, but by its name readers would take it for a part of an "
            "NVFP4 pair; --rename gives it another name",
            text_quote(q, c->name, name.n), dtype_name(c->dtype));
    return 0;
}

int
target_quantized(struct plan *p, const struct candidate *c, const struct view *ref)
{
    if (quantize_check(p, c) < 0)
        return -1;
    p->requantizes |= c->dtype == DT_NVFP4;
    if (c->dtype == DT_NVFP4 && item_check_scale2(p, c) < 0)
        return -1;
    return quantize_add(
        p, c, true, ref ? ref->dialect : view_dialect(plan_target(p)->dialect), ref);
}

/* NVFP4 that is kept: as the same entries if possible. */
static int
add_nvfp4(struct plan *p, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    const struct view_dialect *d = view_dialect(plan_target(p)->dialect);
    const struct view_dialect *from = c->view->dialect;
    if (p->c->torchsharp && c->view->scale2) {
        if (p->asked)
            return target_quantized(p, c, NULL);
        return err_set(
            p->err, ERR_USAGE,
            "--compat torchsharp: \"%s\" has two levels of scales, which "
            "TorchSharp's readers do not know; --quant torchao, native or sweep1 "
            "asks for requantization",
            text_quote(q, c->name, strlen(c->name)));
    }
    // Fused tensors must share a scale: quantize_group checks that.
    if (plan_target(p)->dialect || from->blocks) {
        if (plan_target(p)->dialect && quantize_check(p, c) < 0)
            return -1;
        return item_check_scale2(p, c) < 0 ? -1 : quantize_add(p, c, false, d, NULL);
    }
    return item_planes(p, c, NULL);
}

int
target_add(struct plan *p, const struct candidate *c)
{
    if (check_pair_parts(p, c) < 0)
        return -1;
    bool made = c->quantize || quantize_wants(p, c);
    enum dtype d = target_dtype(p, c);
    if (!made && d != DT_NVFP4)
        return item_plain(p, c, c->name, d);
    int rc = made ? target_quantized(p, c, NULL) : add_nvfp4(p, c);
    return rc == 0 && p->w4a4 ? item_input_scale(p, c) : rc;
}
