/* SPDX-License-Identifier: MIT */
/* mp: what the reader takes as canonical is what msgpack-c writes for the same value,
 * byte for byte; and its JSON is JSON. */
#include "lib/format/mp.h"

#include "tests/fuzz/fuzz.h"

/* Take one value and pack it again. */
static void
repack(struct mp *m, msgpack_packer *pk) // NOLINT(misc-no-recursion): at most 16 levels
{
    struct mp_value v;
    HOLDS(mp_next(m, &v) == 0, "%s", m->err->msg);
    switch (v.type) {
    case MP_NIL:
        msgpack_pack_nil(pk);
        break;
    case MP_BOOL:
        v.u ? msgpack_pack_true(pk) : msgpack_pack_false(pk);
        break;
    case MP_UINT:
        msgpack_pack_uint64(pk, v.u);
        break;
    case MP_INT:
        HOLDS((int64_t)v.u < 0, "%lld", (long long)v.u);
        msgpack_pack_int64(pk, (int64_t)v.u);
        break;
    case MP_F64:
        msgpack_pack_double(pk, v.f);
        break;
    case MP_STR:
        mp_put_str(pk, v.s);
        break;
    case MP_BIN:
        mp_put_bin(pk, v.s.p, v.s.n);
        break;
    case MP_ARRAY:
        msgpack_pack_array(pk, v.n);
        for (uint32_t i = 0; i < v.n; i++)
            repack(m, pk);
        break;
    case MP_MAP: {
        struct slice key, last = { NULL, 0 };
        msgpack_pack_map(pk, v.n);
        for (uint32_t i = 0; i < v.n; i++) {
            HOLDS(mp_key(m, &key, &last) == 0, "%s", m->err->msg);
            mp_put_str(pk, key);
            repack(m, pk);
        }
        break;
    }
    default:
        HOLDS(false, "type %d", (int)v.type);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err err = { 0 };
    struct buf json = { 0 };
    struct mp m = { .data = data, .len = n, .file = "input", .err = &err };
    if (mp_skip(&m, &json) < 0) {
        fuzz_refused(&err);
        buf_free(&json);
        return 0;
    }
    size_t end = m.pos;
    struct json j;
    struct arena arena = { 0 };
    json_open(&j, "json", 0, (struct slice){ json.data, json.len }, &arena, &err);
    HOLDS(json_skip(&j, NULL) == 0 && json_end(&j) == 0, "%s: %s", err.msg, json.data);
    arena_free(&arena);
    buf_free(&json);

    m.pos = 0;
    HOLDS(mp_skip(&m, NULL) == 0 && m.pos == end, "%s", err.msg);
    msgpack_sbuffer sb;
    msgpack_packer pk;
    msgpack_sbuffer_init(&sb);
    msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
    m.pos = 0;
    repack(&m, &pk);
    HOLDS(m.pos == end && sb.size == end && memcmp(sb.data, data, end) == 0,
          "%zu bytes packed again are %zu others", end, sb.size);
    msgpack_sbuffer_destroy(&sb);
    return 0;
}
