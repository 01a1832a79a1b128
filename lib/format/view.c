/* SPDX-License-Identifier: MIT */
/* view: see view.h. */
#include "lib/format/view.h"

#include "lib/base/num.h"
#include "lib/format/container.h"
#include "lib/format/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OURS, OLDER, COMPRESSED, MODELOPT, GGUF, N_DIALECTS };

/* The names of the parts of X.weight.  The first whose codes suffix fits a name is the
 * dialect of that name. */
static const struct view_dialect dialects[N_DIALECTS] = {
    [OURS] = { .name = "nibble",
               .codes = ".weight.qdata",
               .scale = ".weight.scale",
               .scale2 = ".weight.scale2",
               .scale2_rank = 1 },
    [OLDER] = { .name = "nibble, older",
                .codes = ".qdata",
                .scale = ".scale",
                .scale2 = ".scale2",
                .scale2_rank = 1 },
    [COMPRESSED] = { .name = "compressed-tensors",
                     .codes = ".weight_packed",
                     .scale = ".weight_scale",
                     .scale2 = ".weight_global_scale",
                     .input = ".input_global_scale",
                     .divides = true,
                     .foreign = true,
                     .zero_scale = 0x20,
                     .scale2_rank = 1 },
    [MODELOPT] = { .name = "modelopt",
                   .codes = ".weight",
                   .scale = ".weight_scale",
                   .scale2 = ".weight_scale_2",
                   .input = ".input_scale",
                   .foreign = true,
                   .zero_scale = 0x38 },
    // Never found by its codes: the container's traits name it.
    [GGUF] = { .name = "gguf",
               .codes = ".weight",
               .scale2 = ".scale",
               .input = ".input_scale",
               .foreign = true,
               .scale2_rank = 1,
               .blocks = true },
};

const struct view_dialect *
view_dialect(const char *name)
{
    for (size_t i = 0; name && i < N_DIALECTS; i++)
        if (strcmp(dialects[i].name, name) == 0)
            return &dialects[i];
    return name ? NULL : &dialects[OURS];
}

static const struct tensor *
part(const struct store *s, struct slice prefix, const char *suffix)
{
    struct buf b = { 0 };
    buf_add(&b, prefix.p, prefix.n);
    buf_str(&b, suffix);
    const struct tensor *t =
        b.failed ? NULL : store_find(s, (struct slice){ b.data, b.len });
    buf_free(&b);
    return t;
}

/* Why codes and scales make no NVFP4 tensor, or NULL.  vectors: one dimension will
 * do. */
static const char *
shapes_misfit(const struct tensor *codes, const struct tensor *scale, bool vectors)
{
    if (codes->dtype != DT_U8 && codes->dtype != DT_F4_E2M1)
        return "the codes are not bytes";
    if (scale->dtype == DT_F16 || scale->dtype == DT_F32)
        return "the scales are floats: made by a faulty writer";
    if (scale->dtype != DT_U8 && scale->dtype != DT_F8_E4M3)
        return "the scales are not E4M3 bytes";
    unsigned rank = vectors && codes->rank == 1 ? 1 : 2;
    if (codes->rank != rank || scale->rank != rank)
        return "codes and scales must have two dimensions";
    uint64_t in = codes->shape[rank - 1];
    if (codes->dtype == DT_U8 && !mul_fits(&in, in, 2, INT64_MAX))
        return "too many columns";
    if (in == 0 || in % 16)
        return "the number of columns is not a multiple of 16";
    if (rank == 2 && codes->shape[0] != scale->shape[0])
        return "codes and scales have different numbers of rows";
    if (scale->shape[rank - 1] != in / 16)
        return "one scale is needed for each 16 columns";
    return NULL;
}

static int
complain(struct store *s, struct slice prefix, const char *why)
{
    char q[TEXT_QUOTE];
    text_quote(q, prefix.p, prefix.n);
    if (s->opt.strict || s->opt.whole_pairs)
        return err_set(s->err, ERR_FORMAT, "%s: NVFP4 pair of \"%s\": %s", s->name, q,
                       why);
    return store_warn(s, "NVFP4 pair of \"%s\" is shown as plain entries: %s", q, why);
}

static bool
has_name(const struct names *names, struct slice prefix, const char *suffix)
{
    struct buf b = { 0 };
    buf_add(&b, prefix.p, prefix.n);
    buf_str(&b, suffix);
    bool found =
        !b.failed && names_find(names, (struct slice){ b.data, b.len }) != NAME_NONE;
    buf_free(&b);
    return found;
}

bool
view_spelt_twice(const struct names *names, struct slice prefix)
{
    bool ours = has_name(names, prefix, ".weight.qdata") ||
                has_name(names, prefix, ".weight.scale");
    bool older = has_name(names, prefix, ".qdata") || has_name(names, prefix, ".scale");
    return ours && older;
}

/* Both spellings of a .dat for one prefix are refused, even if they are equal. */
static int
check_spelling(struct store *s, struct slice prefix)
{
    char q[TEXT_QUOTE];
    if (view_spelt_twice(&s->names, prefix))
        return err_set(s->err, ERR_FORMAT,
                       "%s: \"%s\" is spelt both .weight.qdata/.weight.scale and "
                       ".qdata/.scale",
                       s->name, text_quote(q, prefix.p, prefix.n));
    return 0;
}

/* The dialect in which t can be the codes of the NVFP4 tensor *prefix, or NULL. */
static const struct view_dialect *
dialect_of_codes(const struct store *s, const struct tensor *t, struct slice *prefix)
{
    const struct view_dialect *d = dialects;
    *prefix = (struct slice){ t->name, t->name_len };
    while (d < dialects + N_DIALECTS && !slice_ends(*prefix, d->codes))
        d++;
    if (d == dialects + N_DIALECTS)
        return NULL;
    prefix->n -= strlen(d->codes);
    bool plain_weight =
        d == &dialects[MODELOPT] && (t->dtype != DT_U8 || !part(s, *prefix, d->scale));
    return plain_weight ? NULL : d;
}

/* Why the entries of v make no NVFP4 tensor, or NULL. */
static const char *
misfit(const struct store *s, struct slice prefix, struct view *v)
{
    v->incomplete = !v->scale;
    if (!v->scale)
        return "it has no scales";
    const char *why = shapes_misfit(v->entry, v->scale, s->kind->traits.packed_vectors);
    if (why)
        return why;
    if (v->dialect != &dialects[MODELOPT] && has_name(&s->names, prefix, ".weight"))
        return "there is a plain tensor of the same name, too";
    v->incomplete = v->dialect->foreign && !v->scale2;
    if (v->incomplete)
        return "it has no tensor scale";
    if (v->scale2 && (v->scale2->dtype != DT_F32 || v->scale2->numel != 1))
        return "its tensor scale is not one f32";
    return NULL;
}

/* Make v, whose entry has the codes, the tensor prefix.weight. */
static int
make_pair(struct views *w, struct store *s, struct slice prefix, struct view *v)
{
    const struct tensor *t = v->entry;
    uint64_t *shape = arena_alloc(&w->arena, 2 * sizeof *shape);
    struct buf b = { 0 };
    buf_add(&b, prefix.p, prefix.n);
    buf_str(&b, ".weight");
    v->name = b.failed ? NULL : arena_copy(&w->arena, b.data, b.len);
    v->name_len = (uint32_t)b.len;
    buf_free(&b);
    if (!shape || !v->name)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    unsigned last = t->rank - 1U;
    shape[0] = t->shape[0];
    shape[last] = t->shape[last] * (t->dtype == DT_U8 ? 2 : 1);
    v->dtype = DT_NVFP4;
    v->shape = shape;
    v->numel = shape[0] * (last ? shape[1] : 1);
    v->nbytes = t->nbytes + v->scale->nbytes + (v->scale2 ? v->scale2->nbytes : 0);
    return 1;
}

/* If the entry of v holds the codes of an NVFP4 tensor, make v that tensor: 1.  0: it
 * does not. */
static int
find_pair(struct views *w, struct store *s, struct view *v)
{
    struct slice prefix;
    const struct view_dialect *d = dialect_of_codes(s, v->entry, &prefix);
    if (!d)
        return 0;
    if ((d == &dialects[OURS] || d == &dialects[OLDER]) &&
        check_spelling(s, prefix) < 0)
        return -1;
    struct view pair = *v;
    pair.dialect = d;
    pair.scale = part(s, prefix, d->scale);
    pair.scale2 = part(s, prefix, d->scale2);
    pair.input = d->input ? part(s, prefix, d->input) : NULL;
    const char *why = misfit(s, prefix, &pair);
    v->incomplete = pair.incomplete;
    if (why)
        return complain(s, prefix, why);
    *v = pair;
    return make_pair(w, s, prefix, v);
}

/* Show an entry of a GGUF under our name for it.  A file that has that name already
 * keeps both as they are. */
static int
use_our_name(struct views *w, struct store *s, struct view *v)
{
    struct buf b = { 0 };
    int rc = 0;
    if (s->known_names &&
        gguf_name_to_ours(&b, (struct slice){ v->name, v->name_len }) &&
        (b.failed || !store_find(s, (struct slice){ b.data, b.len }))) {
        v->name = b.failed ? NULL : arena_copy(&w->arena, b.data, b.len);
        v->name_len = (uint32_t)b.len;
        if (!v->name)
            rc = err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    }
    buf_free(&b);
    return rc;
}

/* The entry of a GGUF that v shows, with the scale of the tensor and that of its
 * activations. */
static int
find_blocks(struct views *w, struct store *s, struct view *v, bool *used)
{
    const struct tensor *t = v->entry;
    struct slice prefix = { t->name, t->name_len };
    if (slice_ends(prefix, ".weight"))
        prefix.n -= strlen(".weight");
    const struct tensor *scale2 = part(s, prefix, dialects[GGUF].scale2);
    const struct tensor *input = part(s, prefix, dialects[GGUF].input);
    if (t->dtype != DT_NVFP4_GGUF)
        return use_our_name(w, s, v);
    if (t->rank != 2)
        return complain(s, prefix, "it has not two dimensions");
    if (scale2 && (scale2->dtype != DT_F32 || scale2->numel != 1))
        return complain(s, prefix, "its tensor scale is not one f32");
    if (input)
        used[input - s->tensors] = true;
    if (scale2)
        used[scale2 - s->tensors] = true;
    v->dtype = DT_NVFP4;
    v->scale2 = scale2;
    v->input = input;
    v->dialect = &dialects[GGUF];
    v->nbytes += scale2 ? scale2->nbytes : 0;
    return use_our_name(w, s, v);
}

static struct view
plain(const struct tensor *t)
{
    return (struct view){ .name = t->name,
                          .name_len = t->name_len,
                          .dtype = t->dtype,
                          .rank = t->rank,
                          .shape = t->shape,
                          .numel = t->numel,
                          .nbytes = t->nbytes,
                          .entry = t };
}

/* Whether t, called prefix and suffix, is a scale of that kind: E4M3 bytes, or one
 * f32. */
static bool
is_scale(const struct tensor *t, const char *suffix, bool one, struct slice *prefix)
{
    *prefix = (struct slice){ t->name, t->name_len };
    if (!slice_ends(*prefix, suffix))
        return false;
    prefix->n -= strlen(suffix);
    return one ? t->dtype == DT_F32 && t->numel == 1
               : t->dtype == DT_F8_E4M3 || t->dtype == DT_U8;
}

/* The dialect of a scale that no codes have claimed, if it can be only that of an NVFP4
 * tensor, whose name is *prefix, or NULL.  What has a plain tensor beside it, as in
 * another quantization, cannot; where there are codes, there was a warning. */
static const struct view_dialect *
lonely(const struct store *s, const struct tensor *t, struct slice *prefix)
{
    for (const struct view_dialect *d = dialects; d < dialects + N_DIALECTS; d++) {
        if (d == &dialects[OLDER] || d->blocks) // names that other tensors have, too
            continue;
        if (!is_scale(t, d->scale, false, prefix) &&
            !is_scale(t, d->scale2, true, prefix))
            continue;
        bool beside = has_name(&s->names, *prefix, d->codes) ||
                      has_name(&s->names, *prefix, ".weight") ||
                      has_name(&s->names, *prefix, ".weight_packed");
        return beside ? NULL : d;
    }
    return NULL;
}

/* A scale that no codes have claimed; where whole tensors are wanted, also with other
 * entries beside it.  A moment of the optimizer has scales of its own. */
static int
check_lonely(struct store *s, struct view *v)
{
    const struct tensor *t = v->entry;
    struct slice prefix = { t->name, t->name_len };
    if (t->state)
        return 0;
    if (s->opt.whole_pairs && slice_ends(prefix, dialects[OURS].scale)) {
        prefix.n -= strlen(dialects[OURS].scale);
        return complain(s, prefix, "it has no codes");
    }
    const struct view_dialect *d = lonely(s, t, &prefix);
    v->incomplete = d != NULL;
    if (!d || (t->dtype == DT_F32 && has_name(&s->names, prefix, d->scale)))
        return 0; // there was a warning of its block scales
    return complain(s, prefix, "it has no codes");
}

int
views_open(struct views *w, struct store *s, bool raw)
{
    size_t n = s->n_tensors;
    bool blocks = view_dialect(s->kind->traits.dialect)->blocks;
    *w = (struct views){ 0 };
    w->v = malloc((n ? n : 1) * sizeof *w->v);
    bool *used = calloc(n ? n : 1, sizeof *used); // is a scale of a pair
    int rc = 0;
    if (!w->v || !used) {
        free(used);
        return err_set(s->err, ERR_MEMORY, "%s: out of memory for %zu tensors", s->name,
                       n);
    }
    for (size_t i = 0; i < n && rc >= 0; i++) {
        struct view *v = &w->v[i];
        *v = plain(&s->tensors[i]);
        if (!raw)
            rc = blocks ? find_blocks(w, s, v, used) : find_pair(w, s, v);
        if (rc > 0) {
            used[v->scale - s->tensors] = true;
            if (v->scale2)
                used[v->scale2 - s->tensors] = true;
        }
    }
    for (size_t i = 0; i < n && rc >= 0; i++)
        if (!used[i]) {
            if (!raw && w->v[i].dtype != DT_NVFP4 && !w->v[i].incomplete)
                rc = check_lonely(s, &w->v[i]);
            w->v[w->n++] = w->v[i];
        }
    free(used);
    return rc < 0 ? -1 : 0;
}

int
view_check_payloads(struct store *s, const struct view *v, struct err *err)
{
    const struct tensor *const t[] = { v->entry, v->scale, v->scale2 };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (t[i] && store_check_payload(s, t[i], err) < 0)
            return -1;
    return 0;
}

void
views_close(struct views *w)
{
    free(w->v);
    arena_free(&w->arena);
    *w = (struct views){ 0 };
}
