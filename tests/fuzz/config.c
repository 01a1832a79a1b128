/* SPDX-License-Identifier: MIT */
/* config: config.json of a model, and the tensor table that it makes. */
#include "lib/model/config.h"

#include "lib/model/table.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

static void
check_table(const struct config *c, bool with_head)
{
    struct table t;
    struct err err = { 0 };
    unsigned __int128 sum = 0;
    HOLDS(table_open(&t, c, with_head, &err) == 0, "%s", err.msg);
    HOLDS(t.n == 11 * (size_t)c->layers + 2 + with_head, "%zu rows", t.n);
    for (size_t i = 0; i < t.n; i++) {
        const struct row *r = &t.row[i];
        unsigned __int128 numel = r->shape[0];
        if (r->rank == 2)
            numel *= r->shape[1];
        HOLDS(r->rank >= 1 && r->rank <= 2 && r->numel > 0 && numel == r->numel, "%s",
              r->name);
        sum += numel;
    }
    HOLDS(sum == t.parameters, "%llu parameters are not the sum of the rows",
          (unsigned long long)t.parameters);
    HOLDS(table_find(&t, slice_of("model.norm.weight")), "no norm");
    table_close(&t);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct config c;
    struct err err = { 0 };
    struct slice text = { (const char *)data, n };
    if (config_parse(&c, "config.json", text, &err) < 0) {
        fuzz_refused(&err);
        return 0;
    }
    fuzz_object(text, "config.json");
    HOLDS(c.hidden && c.layers && c.heads && c.kv_heads && c.ffn && c.vocab &&
              c.positions,
          "a size of 0");
    HOLDS(c.head_dim >= 2 && c.head_dim % 2 == 0 && c.heads % c.kv_heads == 0, "heads");
    HOLDS(isfinite(c.rms_eps) && c.rms_eps > 0 && isfinite(c.rope_theta) &&
              c.rope_theta > 0 && isfinite(c.init_range) && c.init_range > 0,
          "%g %g %g", c.rms_eps, c.rope_theta, c.init_range);
    HOLDS(c.dtype == DT_BF16 || c.dtype == DT_F16 || c.dtype == DT_F32 ||
              c.dtype == DT_NONE, // one that is not known
          "dtype");
    HOLDS(c.n_eos <= MAX_EOS && c.bos >= -1, "ends");
    check_table(&c, false);
    check_table(&c, true);
    return 0;
}
