/* SPDX-License-Identifier: MIT */
/* table: see table.h. */
#include "lib/model/table.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tensors of a layer, in the order of the Hugging Face module.  A dimension is a
 * letter: C hidden, Q heads * head_dim, K kv_heads * head_dim, D head_dim, F ffn,
 * V vocabulary, 0 none. */
static const struct {
    const char *name;
    enum role role;
    char dims[2];
    bool quantized;
} layer_rows[] = {
    { "self_attn.q_proj.weight", ROLE_Q, { 'Q', 'C' }, true },
    { "self_attn.k_proj.weight", ROLE_K, { 'K', 'C' }, true },
    { "self_attn.v_proj.weight", ROLE_V, { 'K', 'C' }, true },
    { "self_attn.o_proj.weight", ROLE_O, { 'C', 'Q' }, true },
    { "self_attn.q_norm.weight", ROLE_Q_NORM, { 'D', 0 }, false },
    { "self_attn.k_norm.weight", ROLE_K_NORM, { 'D', 0 }, false },
    { "mlp.gate_proj.weight", ROLE_GATE, { 'F', 'C' }, true },
    { "mlp.up_proj.weight", ROLE_UP, { 'F', 'C' }, true },
    { "mlp.down_proj.weight", ROLE_DOWN, { 'C', 'F' }, true },
    { "input_layernorm.weight", ROLE_INPUT_NORM, { 'C', 0 }, false },
    { "post_attention_layernorm.weight", ROLE_POST_NORM, { 'C', 0 }, false },
};

enum { LAYER_ROWS = sizeof layer_rows / sizeof *layer_rows };
_Static_assert(LAYER_ROWS == ROLE_FINAL_NORM - ROLE_Q, "a role for each row");

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
add(struct table *t, const struct config *c, const char *name, enum role role,
    int layer, const char dims[2], bool quantized)
{
    struct row *r = &t->row[t->n++];
    char full[96];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    *r = (struct row){
        .role = role, .layer = layer, .quantized = quantized, .numel = 1
    };
    r->name = arena_copy(&t->arena, full, strlen(full));
    for (; r->rank < 2 && dims[r->rank]; r->rank++) {
        r->shape[r->rank] = dim(c, dims[r->rank]);
        r->numel *= r->shape[r->rank];
    }
    if (t->parameters <= MOST_PARAMETERS) // a sum above it stays above it
        t->parameters += r->numel;
    return r->name ? 0 : -1;
}

int
table_open(struct table *t, const struct config *c, bool with_head, struct err *err)
{
    int bad = 0;
    *t = (struct table){ 0 };
    t->row = calloc((size_t)c->layers * LAYER_ROWS + 3, sizeof *t->row);
    if (!t->row)
        return err_set(err, ERR_MEMORY, "out of memory for the tensor table");
    bad |= add(t, c, TABLE_EMBED, ROLE_EMBED, -1, "VC", false);
    for (uint32_t l = 0; l < c->layers; l++)
        for (int i = 0; i < LAYER_ROWS; i++)
            bad |= add(t, c, layer_rows[i].name, layer_rows[i].role, (int)l,
                       layer_rows[i].dims, layer_rows[i].quantized);
    t->final_norm = t->n;
    bad |= add(t, c, "model.norm.weight", ROLE_FINAL_NORM, -1, "C", false);
    if (with_head)
        bad |= add(t, c, TABLE_HEAD, ROLE_HEAD, -1, "VC", false);
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
    if (layer >= 0)
        i = 1 + (size_t)layer * LAYER_ROWS + (role - ROLE_Q);
    else if (role != ROLE_EMBED)
        i = t->final_norm + (role - ROLE_FINAL_NORM);
    assert(i >= t->n || (t->row[i].role == role && t->row[i].layer == layer));
    return i < t->n ? i : t->n;
}

uint64_t
table_place(struct slice name)
{
    static const char prefix[] = "model.layers.";
    enum { STRIDE = LAYER_ROWS + 1 };
    const uint64_t after = UINT64_MAX - 8;
    if (slice_is(name, TABLE_EMBED))
        return 0;
    if (slice_is(name, "model.norm.weight"))
        return after;
    if (slice_is(name, TABLE_HEAD))
        return after + 1;
    if (!slice_starts(name, prefix))
        return after + 2;
    uint64_t layer = 0;
    size_t i = sizeof prefix - 1;
    for (; i < name.n && name.p[i] >= '0' && name.p[i] <= '9' && layer < 1U << 24; i++)
        layer = 10 * layer + (uint64_t)(name.p[i] - '0');
    struct slice rest = { name.p + i, name.n - i };
    if (!slice_starts(rest, "."))
        return after + 2;
    rest = (struct slice){ rest.p + 1, rest.n - 1 };
    uint64_t row = 0;
    while (row < LAYER_ROWS && !slice_is(rest, layer_rows[row].name))
        row++;
    return 1 + layer * STRIDE + row; // unknown ones at the end of their layer
}

/* The text between the dots before ".weight", of a row like "mlp.up_proj.weight". */
static struct slice
module_name(const char *row)
{
    struct slice s = slice_of(row);
    const char *dot = memchr(s.p, '.', s.n);
    size_t from = dot ? (size_t)(dot - s.p) + 1 : 0;
    return (struct slice){ s.p + from, s.n - from - strlen(".weight") };
}

static bool
holds(struct slice name, struct slice part)
{
    return memmem(name.p, name.n, part.p, part.n) != NULL;
}

bool
table_is_head(struct slice name)
{
    return holds(name, slice_of("lm_head"));
}

bool
table_quantizes(struct slice name)
{
    if (holds(name, slice_of("embed_tokens")) || holds(name, slice_of("norm")))
        return false;
    for (size_t i = 0; i < LAYER_ROWS; i++)
        if (layer_rows[i].quantized && holds(name, module_name(layer_rows[i].name)))
            return true;
    return table_is_head(name);
}

enum fused
table_fused(struct slice name, struct slice *prefix)
{
    for (size_t i = 0; i < LAYER_ROWS; i++) {
        enum role role = layer_rows[i].role;
        bool qkv = role == ROLE_Q || role == ROLE_K || role == ROLE_V;
        if (!qkv && role != ROLE_GATE && role != ROLE_UP)
            continue;
        struct slice module = module_name(layer_rows[i].name);
        const char *full = layer_rows[i].name + strlen(layer_rows[i].name) - module.n -
                           strlen(".weight");
        if (!slice_ends(name, full))
            continue;
        *prefix = (struct slice){ name.p, name.n - strlen(full) };
        return qkv ? FUSED_QKV : FUSED_GATE_UP;
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
