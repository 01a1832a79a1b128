/* SPDX-License-Identifier: MIT */
/* kinds: see kinds.h. */
#include "lib/format/kinds.h"

#include "lib/format/writer.h"

#include <string.h>

/* In the order in which help lists them.  No file begins like two of them. */
static const struct container *const containers[] = {
    &container_dat, &container_safetensors, &container_gguf,       &container_ckpt,
    &container_hf,  &container_modelopt,    &container_compressed,
};

/* What reads a pipe, a directory, and a file that none claims: .dat has no magic. */
const struct container *const container_of_pipe = &container_dat;
const struct container *const container_of_directory = &container_hf;
static const struct container *const of_unclaimed = &container_dat;

enum { N_CONTAINERS = sizeof containers / sizeof *containers, SNIFF_BYTES = 16 };

const struct container *
container_named(struct slice name)
{
    for (size_t i = 0; i < N_CONTAINERS; i++)
        if (slice_is(name, containers[i]->name))
            return containers[i];
    return NULL;
}

const char *
writer_kind(size_t i)
{
    for (size_t k = 0; k < N_CONTAINERS; k++)
        if (containers[k]->plan && i-- == 0)
            return containers[k]->name;
    return NULL;
}

const struct traits *
writer_traits(const char *kind)
{
    const struct container *c = container_named(slice_of(kind));
    return c && c->plan ? &c->traits : NULL;
}

const char *
writer_kind_of(const char *path)
{
    struct slice p = slice_of(path);
    if (slice_is(p, "-"))
        return container_of_pipe->name;
    for (size_t i = 0; i < N_CONTAINERS; i++) {
        const struct container *c = containers[i];
        if (c->plan && (slice_ends(p, "/") ? c->traits.to_directory
                                           : c->suffix && slice_ends(p, c->suffix)))
            return c->name;
    }
    return NULL;
}

const struct container *
container_of_bytes(const struct map *m)
{
    uint8_t head[SNIFF_BYTES] = { 0 };
    size_t n = m->size < SNIFF_BYTES ? m->size : SNIFF_BYTES;
    if (n)
        memcpy(head, m->data, n);
    for (size_t i = 0; i < N_CONTAINERS; i++)
        if (containers[i]->sniff && containers[i]->sniff(head, n, m->size))
            return containers[i];
    return NULL;
}

const struct container *
container_of_file(const struct map *m)
{
    struct slice path = slice_of(m->path);
    // The suffix decides between kinds without a magic number: a damaged file should
    // be measured by the rules of what it claims to be.
    for (size_t i = 0; i < N_CONTAINERS; i++)
        if (containers[i]->suffix && slice_ends(path, containers[i]->suffix))
            return containers[i];
    const struct container *c = container_of_bytes(m);
    return c ? c : of_unclaimed;
}
