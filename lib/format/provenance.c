/* SPDX-License-Identifier: MIT */
/* provenance: see provenance.h. */
#include "lib/format/provenance.h"

#include "lib/base/json.h"

void
provenance_begin(struct buf *b)
{
    buf_str(b, "{\"inputs\":[");
}

void
provenance_input(struct buf *b, struct slice kind, struct slice provenance,
                 uint64_t count, const uint8_t xxh3[XXH3_BYTES])
{
    char hex[2 * XXH3_BYTES + 1];
    bool first = b->len == 0 || b->data[b->len - 1] == '[';
    hash_hex(hex, xxh3, XXH3_BYTES);
    buf_str(b, first ? "{" : ",{");
    if (count > 1)
        buf_printf(b, "\"count\":%llu,", (unsigned long long)count);
    buf_str(b, "\"kind\":");
    json_put(b, kind);
    buf_str(b, ",\"provenance\":");
    if (provenance.p)
        buf_add(b, provenance.p, provenance.n);
    else
        buf_str(b, "null");
    buf_printf(b, ",\"xxh3\":\"%s\"}", hex);
}

void
provenance_options(struct buf *b)
{
    buf_str(b, "],\"options\":");
}

void
provenance_end(struct buf *b, const char *tool, struct slice version)
{
    buf_printf(b, ",\"tool\":\"%s\",\"version\":", tool);
    json_put(b, version);
    buf_char(b, '}');
}
