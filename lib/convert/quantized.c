/* SPDX-License-Identifier: MIT */
/* quantized: which tensors of the output are quantized, and the planes that they become. */
#include "lib/convert/plan.h"

#include "lib/base/grow.h"

#include <stdlib.h>
#include <string.h>

static bool
is_float(enum dtype d)
{
    return d == DT_F16 || d == DT_BF16 || d == DT_F32;
}

bool
quantize_wants(const struct plan *p, const struct candidate *c)
{
    const struct pack *k = p->c;
    struct select *select = &p->c->quantized;
    bool by_name = c->rank == 2 && table_quantizes(slice_of(c->name));
    if (c->dtype == DT_NVFP4) // only if another quantizer is asked for
        return k->quantize && p->asked && select_matches(select, c->name) &&
               (select->n_in || by_name);
    if (k->quantize)
        return select_matches(select, c->name) && (select->n_in || by_name);
    if (plan_target(p)->dialect)
        return by_name && !table_is_head(slice_of(c->name)) &&
               (!p->keeps_plain || c->fused || k->dtype == WISH_NVFP4);
    return k->dtype == WISH_NVFP4 && by_name;
}

int
quantize_check(struct plan *p, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    unsigned unit =
        plan_target(p)->nvfp4_columns ? plan_target(p)->nvfp4_columns : NVFP4_BLOCK;
    const char *where = c->in ? c->in->store.name : "--init";
    text_quote(q, c->name, strlen(c->name));
    if (!is_float(c->dtype) && c->dtype != DT_NVFP4)
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\" is %s: expected f16, bf16 or f32 to quantize", where,
                       q, dtype_name(c->dtype));
    if (c->rank != 2)
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\" has %u dimensions: expected two to quantize; -x "
                       "leaves it as it is",
                       where, q, c->rank);
    if (c->shape[1] % unit || c->shape[1] == 0)
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\" has rows of %llu columns, expected a multiple of %u",
                       where, q, (unsigned long long)c->shape[1], unit);
    return quantize_check_target(p);
}

static struct nvfp4 *
new_nvfp4(struct plan *p)
{
    if (!GROW(p->nvfp4, p->n_nvfp4, p->cap_nvfp4, 256))
        return NULL;
    struct nvfp4 *t = calloc(1, sizeof *t);
    if (t)
        p->nvfp4[p->n_nvfp4++] = t;
    return t;
}

static int
add_plane(struct plan *p, struct nvfp4 *t, const struct candidate *c,
          enum view_plane plane, const struct tensor *ref, enum dtype dtype,
          unsigned per_value, const char *suffix)
{
    struct item *it = item_new(p);
    uint64_t *shape = arena_alloc(&p->arena, 2 * sizeof *shape);
    if (!it || !shape)
        return plan_no_memory(p);
    bool one = plane == PLANE_SCALE2;
    unsigned last = c->rank - 1;
    shape[0] = one ? 1 : c->shape[0];
    shape[1] = 1;
    shape[last] = one ? 1 : c->shape[last] / per_value;
    *it = (struct item){ .name = ref ? ref->name : item_plane_name(p, c->name, suffix),
                         .dtype = ref ? (enum dtype)ref->dtype : dtype,
                         .rank = ref   ? ref->rank
                                 : one ? t->dialect->scale2_rank
                                       : c->rank,
                         .shape = ref ? ref->shape : shape,
                         .numel = ref ? ref->numel : shape[0] * shape[1],
                         .how = HOW_NVFP4,
                         .nvfp4 = t,
                         .plane = plane,
                         .place = c->place };
    return it->name ? 0 : -1;
}

int
quantize_add(struct plan *p, const struct candidate *c, bool quantize,
             const struct view_dialect *dialect, const struct view *ref)
{
    struct nvfp4 *t = new_nvfp4(p);
    if (!t)
        return plan_no_memory(p);
    int levels = quantize ? quant_levels(p->spec.kind) : view_levels(c->view);
    *t = (struct nvfp4){ .name =
                             ref ? ref->name : c->name, // a head may be the embedding
                         .source = item_values(c, c->name, DT_F32),
                         .dialect = dialect,
                         .quantize = quantize,
                         .cols = c->shape[c->rank - 1],
                         .group = t };
    if (importance_load(p, t) < 0)
        return -1;
    bool has_scale2 = ref ? ref->scale2 != NULL : levels == 2 || dialect->foreign;
    if (dialect->blocks) { // codes and scales are one entry
        if (add_plane(p, t, c, PLANE_CODES, NULL, DT_NVFP4_GGUF, 1, dialect->codes) < 0)
            return -1;
    } else if (add_plane(p, t, c, PLANE_CODES, ref ? ref->entry : NULL, DT_U8, 2,
                         dialect->codes) < 0 ||
               add_plane(p, t, c, PLANE_SCALES, ref ? ref->scale : NULL, DT_F8_E4M3,
                         NVFP4_BLOCK, dialect->scale) < 0) {
        return -1;
    }
    return has_scale2 ? add_plane(p, t, c, PLANE_SCALE2, ref ? ref->scale2 : NULL,
                                  DT_F32, 1, dialect->scale2)
                      : 0;
}
