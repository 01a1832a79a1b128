/* SPDX-License-Identifier: MIT */
/* table: see table.h. */
#include "lib/model/table.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With 32 bytes a weight and more that is still a number of bytes. */
static const uint64_t MOST_PARAMETERS = (uint64_t)1 << 56;

static uint64_t
dim(const struct config *c, char letter)
{
    switch (letter) {
    case 'C':
        return c->hidden;
    case 'Q':
        return (uint64_t)c->heads * c->head_dim;
    case 'K':
        return (uint64_t)c->kv_heads * c->head_dim;
    case 'D':
        return c->head_dim;
    case 'F':
        return c->ffn;
    default:
        return c->vocab;
    }
}

static int
add(struct table *t, const struct config *c, const struct arch_row *of, int layer)
{
    struct row *r = &t->row[t->n++];
    char full[96];
    if (layer < 0)
        snprintf(full, sizeof full, "%s" ARCH_WEIGHT, of->name);
    else
        snprintf(full, sizeof full, ARCH_LAYER "%d.%s" ARCH_WEIGHT, layer, of->name);
    *r = (struct row){
        .role = of->role, .layer = layer, .quantized = of->quantized, .numel = 1
    };
    r->name = arena_copy(&t->arena, full, strlen(full));
    for (; r->rank < 2 && of->dims[r->rank]; r->rank++) {
        r->shape[r->rank] = dim(c, of->dims[r->rank]);
        r->numel *= r->shape[r->rank];
    }
    if (t->parameters <= MOST_PARAMETERS) // a sum above it stays above it
        t->parameters += r->numel;
    return r->name ? 0 : -1;
}

/* Find the rows of a layer, which stand together: the first one. */
static size_t
find_layer(struct table *t, const struct arch *arch)
{
    size_t first = 0;
    for (size_t i = 0; i < ROLES; i++)
        t->at[i] = -1;
    while (!arch->row[first].layer)
        first++;
    while (arch->row[first + t->layer_rows].layer) {
        t->at[arch->row[first + t->layer_rows].role] = (int)t->layer_rows;
        t->layer_rows++;
    }
    return first;
}

int
table_open(struct table *t, const struct config *c, bool with_head, struct err *err)
{
    int bad = 0;
    *t = (struct table){ 0 };
    const struct arch_row *row = c->arch->row;
    size_t first = find_layer(t, c->arch), behind = first + t->layer_rows;
    t->row =
        calloc((size_t)c->layers * t->layer_rows + c->arch->n_rows, sizeof *t->row);
    if (!t->row)
        return err_set(err, ERR_MEMORY, "out of memory for the tensor table");
    bad |= add(t, c, &row[0], -1);
    for (uint32_t l = 0; l < c->layers; l++)
        for (size_t i = 0; i < t->layer_rows; i++)
            bad |= add(t, c, &row[first + i], (int)l);
    t->final_norm = t->n;
    bad |= add(t, c, &row[behind], -1);
    if (with_head)
        bad |= add(t, c, &row[behind + 1], -1);
    if (t->parameters > MOST_PARAMETERS)
        return err_set(
            err, ERR_USAGE,
            "the configuration asks for more than 2^56 weights: expected sizes "
            "of a model that a machine can hold");
    return bad ? err_set(err, ERR_MEMORY, "out of memory for the tensor table") : 0;
}

void
table_close(struct table *t)
{
    free(t->row);
    arena_free(&t->arena);
    *t = (struct table){ 0 };
}

const struct row *
table_find(const struct table *t, struct slice name)
{
    for (size_t i = 0; i < t->n; i++)
        if (slice_is(name, t->row[i].name))
            return &t->row[i];
    return NULL;
}

size_t
table_index(const struct table *t, enum role role, int layer)
{
    size_t i = 0;
    if (layer >= 0 && t->at[role] < 0)
        return t->n;
    if (layer >= 0)
        i = 1 + (size_t)layer * t->layer_rows + (size_t)t->at[role];
    else if (role != ROLE_EMBED)
        i = t->final_norm + (role - ROLE_FINAL_NORM);
    assert(i >= t->n || (t->row[i].role == role && t->row[i].layer == layer));
    return i < t->n ? i : t->n;
}

/* ---- names without a configuration ------------------------------------------------------- */

/* name without ".weight"; false: it has another end. */
static bool
cut_weight(struct slice *name)
{
    if (!slice_ends(*name, ARCH_WEIGHT))
        return false;
    name->n -= strlen(ARCH_WEIGHT);
    return true;
}

uint64_t
table_place(struct slice name)
{
    enum { STRIDE = 64 }; // more than a layer has rows
    const uint64_t after = UINT64_MAX - 8;
    const struct arch *arch;
    if (slice_is(name, TABLE_EMBED))
        return 0;
    if (slice_is(name, ARCH_FINAL_NORM ARCH_WEIGHT))
        return after;
    if (slice_is(name, TABLE_HEAD))
        return after + 1;
    if (!slice_starts(name, ARCH_LAYER))
        return after + 2;
    uint64_t layer = 0;
    size_t i = strlen(ARCH_LAYER);
    for (; i < name.n && name.p[i] >= '0' && name.p[i] <= '9' && layer < 1U << 24; i++)
        layer = 10 * layer + (uint64_t)(name.p[i] - '0');
    struct slice rest = { name.p + i, name.n - i };
    if (!slice_starts(rest, "."))
        return after + 2;
    rest = (struct slice){ rest.p + 1, rest.n - 1 };
    const struct arch_row *row =
        cut_weight(&rest) ? arch_row_of(rest, true, &arch) : NULL;
    // Unknown ones are at the end of their layer.
    return 1 + layer * STRIDE + (row ? (uint64_t)(row - arch->row) : STRIDE - 1);
}

/* The text behind the dot of a module like "mlp.up_proj". */
static struct slice
last_part(const char *module)
{
    const char *dot = strchr(module, '.');
    return slice_of(dot ? dot + 1 : module);
}

static bool
holds(struct slice name, struct slice part)
{
    return memmem(name.p, name.n, part.p, part.n) != NULL;
}

bool
table_is_head(struct slice name)
{
    return holds(name, slice_of(ARCH_HEAD));
}

bool
table_quantizes(struct slice name)
{
    if (holds(name, slice_of("embed_tokens")) || holds(name, slice_of("norm")))
        return false;
    for (size_t a = 0; arch_all[a]; a++)
        for (size_t i = 0; i < arch_all[a]->n_rows; i++)
            if (arch_all[a]->row[i].quantized &&
                holds(name, last_part(arch_all[a]->row[i].name)))
                return true;
    return table_is_head(name);
}

/* What engines run with other rows of that role as one. */
static enum fused
fused_role(enum role role)
{
    if (role == ROLE_Q || role == ROLE_K || role == ROLE_V)
        return FUSED_QKV;
    return role == ROLE_GATE || role == ROLE_UP ? FUSED_GATE_UP : FUSED_NONE;
}

enum fused
table_fused(struct slice name, struct slice *prefix)
{
    struct slice stem = name;
    if (!cut_weight(&stem))
        return FUSED_NONE;
    for (size_t a = 0; arch_all[a]; a++)
        for (size_t i = 0; i < arch_all[a]->n_rows; i++) {
            const struct arch_row *row = &arch_all[a]->row[i];
            enum fused kind = fused_role(row->role);
            struct slice module = last_part(row->name);
            if (kind == FUSED_NONE || stem.n < module.n ||
                memcmp(stem.p + stem.n - module.n, module.p, module.n) != 0)
                continue;
            *prefix = (struct slice){ name.p, stem.n - module.n };
            return kind;
        }
    return FUSED_NONE;
}

size_t
table_fused_rows(const struct table *t, size_t i)
{
    struct slice first, next;
    enum fused kind = table_fused(slice_of(t->row[i].name), &first);
    size_t n = 1;
    while (kind != FUSED_NONE && i + n < t->n &&
           table_fused(slice_of(t->row[i + n].name), &next) == kind &&
           slice_eq(first, next))
        n++;
    return n;
}
