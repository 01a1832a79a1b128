/* SPDX-License-Identifier: MIT */
/* config: config.json of the architectures in lib/model/arch.
 *
 * Refuses every other architecture, and every setting that our mathematics does not
 * do.  There are no built-in defaults for what changes numbers.
 */
#ifndef NIBBLE_MODEL_CONFIG_H
#define NIBBLE_MODEL_CONFIG_H

#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/base/text.h"
#include "lib/model/arch/arch.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_EOS = 8 };

struct config {
    const struct arch *arch;
    uint32_t hidden;    // C
    uint32_t layers;    // L
    uint32_t heads;     // H
    uint32_t kv_heads;  // K
    uint32_t head_dim;  // D; H*D need not be C
    uint32_t ffn;       // F
    uint32_t vocab;     // V
    uint32_t positions; // upper bound
    double rms_eps, rope_theta, init_range;
    bool tied;
    enum dtype dtype; // torch_dtype: bf16 (also without one), f16, f32; else DT_NONE
    int64_t bos;      // -1: none
    uint32_t eos[MAX_EOS];
    uint32_t n_eos;
};

/* Read the JSON text; file names it in messages. */
int config_parse(struct config *c, const char *file, struct slice text,
                 struct err *err);

/* Whether the text says that it is of the architecture and settings that are supported:
 * then what config_parse refuses in it is damaged, not of another kind. */
bool config_is_supported(struct slice text);

#endif
