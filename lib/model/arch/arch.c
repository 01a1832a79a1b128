/* SPDX-License-Identifier: MIT */
/* arch: see arch.h. */
#include "lib/model/arch/list.h"

const struct arch *const arch_all[] = { &arch_qwen3, NULL };

const struct arch *
arch_of_type(struct slice model_type)
{
    for (size_t i = 0; arch_all[i]; i++)
        if (slice_is(model_type, arch_all[i]->model_type))
            return arch_all[i];
    return NULL;
}

const struct arch *
arch_of_gguf(struct slice architecture)
{
    for (size_t i = 0; arch_all[i]; i++)
        if (slice_is(architecture, arch_all[i]->gguf))
            return arch_all[i];
    return NULL;
}

const struct arch_row *
arch_row_of(struct slice module, bool layer, const struct arch **arch)
{
    for (size_t i = 0; arch_all[i]; i++)
        for (size_t r = 0; r < arch_all[i]->n_rows; r++) {
            const struct arch_row *row = &arch_all[i]->row[r];
            if (row->layer != layer || !slice_is(module, row->name))
                continue;
            *arch = arch_all[i];
            return row;
        }
    return NULL;
}
