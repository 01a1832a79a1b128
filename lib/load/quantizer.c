/* SPDX-License-Identifier: MIT */
/* quantizer: see quantizer.h. */
#include "lib/load/quantizer.h"

#include <string.h>

static bool
is(const char *word, const char *what)
{
    return word && strcmp(word, what) == 0;
}

bool
quantizer_of(struct quant_spec *spec, bool *share, const struct quant_words *w)
{
    enum quant kind = w->name ? quant_named(w->name) : QUANT_COUNT;
    if (kind == QUANT_COUNT)
        return false;
    *spec = (struct quant_spec){ .kind = kind,
                                 .modelopt = is(w->variant, "modelopt"),
                                 .mae = is(w->criterion, "mae") };
    *share = quant_levels(kind) == 2 &&
             (w->share ? !is(w->share, "none") : quant_shares_scale(kind));
    return true;
}
