/* SPDX-License-Identifier: MIT */
/* state: see state.h. */
#include "lib/format/state.h"

#include "lib/base/num.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { STATE_KEYS = 9 }; // besides "fp8_amax", "teacher" and "teacher_data"

/* ---- reading -------------------------------------------------------------------------- */

/* The next pair of a map with fixed keys. */
static int
field(struct mp *m, const char *want, struct slice *last)
{
    struct slice key;
    size_t at = m->pos;
    if (mp_key(m, &key, last) < 0)
        return -1;
    return slice_is(key, want) ? 0 : mp_fail(m, at, "expected the key \"%s\"", want);
}

static int
read_u64(struct mp *m, const char *key, struct slice *last, uint64_t high, uint64_t *v)
{
    struct mp_value value;
    if (field(m, key, last) < 0)
        return -1;
    size_t at = m->pos;
    if (mp_want(m, MP_UINT, &value, key) < 0)
        return -1;
    *v = value.u;
    return value.u <= high
               ? 0
               : mp_fail(m, at, "\"%s\": expected at most %llu, found %llu", key,
                         (unsigned long long)high, (unsigned long long)value.u);
}

static int
read_bin(struct mp *m, const char *key, struct slice *last, uint8_t *to, size_t n)
{
    struct mp_value value;
    if (field(m, key, last) < 0)
        return -1;
    size_t at = m->pos;
    if (mp_want(m, MP_BIN, &value, key) < 0)
        return -1;
    if (value.s.n != n)
        return mp_fail(m, at, "\"%s\": %zu bytes, expected %zu", key, value.s.n, n);
    memcpy(to, value.s.p, n);
    return 0;
}

/* Whether a nil is next, which is skipped then. */
static bool
is_nil(struct mp *m)
{
    struct mp_value v;
    struct mp look = *m;
    struct err none = { 0 };
    look.err = &none;
    if (mp_next(&look, &v) < 0 || v.type != MP_NIL)
        return false;
    m->pos = look.pos;
    return true;
}

static int
open_map(struct mp *m, const char *what, uint32_t n)
{
    struct mp_value v;
    size_t at = m->pos;
    if (mp_want(m, MP_MAP, &v, what) < 0)
        return -1;
    return v.n == n ? 0 : mp_fail(m, at, "\"%s\": %u keys, expected %u", what, v.n, n);
}

static int
read_routes(struct mp *m, struct state *st)
{
    struct slice last = { 0 };
    struct mp_value v;
    if (is_nil(m))
        return 0;
    size_t at = m->pos;
    if (open_map(m, "routes", 1) < 0 || field(m, "gemm", &last) < 0 ||
        mp_want(m, MP_STR, &v, "gemm") < 0)
        return -1;
    if (v.s.n < 1 || v.s.n >= sizeof st->route || memchr(v.s.p, '\0', v.s.n))
        return mp_fail(m, at, "\"gemm\": expected a name of 1..%zu bytes without NUL",
                       sizeof st->route - 1);
    memcpy(st->route, v.s.p, v.s.n);
    return 0;
}

static int
read_sampler(struct mp *m, struct state *st)
{
    struct slice last = { 0 };
    if (is_nil(m))
        return 0;
    st->has_sampler = true;
    if (open_map(m, "sampler", 3) < 0 ||
        read_bin(m, "data", &last, st->data, XXH3_BYTES) < 0 ||
        read_u64(m, "epoch", &last, INT64_MAX, &st->epoch) < 0)
        return -1;
    return read_u64(m, "index", &last, INT64_MAX, &st->index);
}

/* low: the smallest value allowed.  Values were f32 once, so the largest is FLT_MAX. */
static int
read_window(struct mp *m, const char *key, struct slice *last, double low, double *to,
            size_t *n)
{
    struct mp_value v;
    if (field(m, key, last) < 0)
        return -1;
    size_t at = m->pos;
    if (mp_want(m, MP_ARRAY, &v, key) < 0)
        return -1;
    if (v.n > SPIKE_WINDOW)
        return mp_fail(m, at, "\"%s\": %u steps, at most %d", key, v.n, SPIKE_WINDOW);
    *n = v.n;
    for (size_t i = 0; i < *n; i++) {
        at = m->pos;
        if (mp_want(m, MP_F64, &v, key) < 0)
            return -1;
        if (!(v.f >= low && v.f <= (double)FLT_MAX))
            return mp_fail(m, at, "\"%s\": expected %g..%g, found %g", key, low,
                           (double)FLT_MAX, v.f);
        to[i] = v.f;
    }
    return 0;
}

/* Oldest first. */
static int
read_spike(struct mp *m, struct state *st)
{
    struct slice last = { 0 };
    size_t losses, norms, at = m->pos;
    if (is_nil(m))
        return 0;
    st->has_spike = true;
    if (open_map(m, "spike", 2) < 0 ||
        read_window(m, "loss", &last, -(double)FLT_MAX, st->spike.loss, &losses) < 0 ||
        read_window(m, "norm", &last, 0, st->spike.norm, &norms) < 0)
        return -1;
    if (losses != norms)
        return mp_fail(m, at, "\"spike\": %zu losses, %zu norms", losses, norms);
    st->spike.n = losses;
    st->spike.at = losses % SPIKE_WINDOW;
    return 0;
}

static int
read_norm(struct mp *m, struct state *st)
{
    struct mp_value v;
    st->grad_norm = -1;
    if (is_nil(m))
        return 0;
    size_t at = m->pos;
    if (mp_want(m, MP_F64, &v, "grad_norm") < 0)
        return -1;
    if (!(v.f >= 0) || !isfinite(v.f))
        return mp_fail(m, at, "\"grad_norm\": %g is no norm", v.f);
    st->grad_norm = v.f;
    return 0;
}

static int
read_tokenizer(struct mp *m, struct state *st)
{
    struct mp_value v;
    if (is_nil(m))
        return 0;
    size_t at = m->pos;
    if (mp_want(m, MP_BIN, &v, "tokenizer") < 0)
        return -1;
    if (v.s.n != SHA256_BYTES)
        return mp_fail(m, at, "\"tokenizer\": expected %d bytes, found %zu",
                       SHA256_BYTES, v.s.n);
    st->has_tokenizer = true;
    memcpy(st->tokenizer, v.s.p, SHA256_BYTES);
    return 0;
}

/* A flat map. */
static int
read_settings(struct mp *m, struct slice *settings)
{
    struct mp_value map, v;
    struct slice key, last = { 0 };
    const uint8_t *from = m->data + m->pos;
    if (mp_want(m, MP_MAP, &map, "settings") < 0)
        return -1;
    for (uint32_t i = 0; i < map.n; i++) {
        if (mp_key(m, &key, &last) < 0)
            return -1;
        size_t at = m->pos;
        if (mp_next(m, &v) < 0)
            return -1;
        bool number = v.type == MP_F64 && isfinite(v.f);
        if (v.type != MP_UINT && v.type != MP_STR && !number)
            return mp_fail(m, at,
                           "\"settings\": expected an integer of 0 or more, a "
                           "finite number or a str");
    }
    *settings = (struct slice){ (const char *)from, (size_t)(m->data + m->pos - from) };
    return 0;
}

static int
check_steps(struct mp *m, size_t at, const struct state *st)
{
    if (st->t > st->step)
        return mp_fail(m, at, "\"t\": expected at most \"step\" %llu, found %llu",
                       (unsigned long long)st->step, (unsigned long long)st->t);
    if (st->skips > st->step)
        return mp_fail(m, at, "\"skips\": expected at most \"step\" %llu, found %llu",
                       (unsigned long long)st->step, (unsigned long long)st->skips);
    return 0;
}

/* Whether that key is next. */
static bool
is_next(const struct mp *m, const char *want)
{
    struct slice key, last = { 0 };
    struct mp look = *m;
    struct err none = { 0 };
    look.err = &none;
    return mp_key(&look, &key, &last) == 0 && slice_is(key, want);
}

static int
read_fp8(struct mp *m, struct state *st, struct slice *last)
{
    struct mp_value v;
    if (field(m, "fp8_amax", last) < 0)
        return -1;
    size_t at = m->pos;
    if (mp_want(m, MP_BIN, &v, "fp8_amax") < 0)
        return -1;
    if (v.s.n == 0 || v.s.n % (STATE_FP8 * sizeof(float)))
        return mp_fail(m, at, "\"fp8_amax\": %zu bytes, expected %zu a layer", v.s.n,
                       STATE_FP8 * sizeof(float));
    for (size_t i = 0; i < v.s.n; i += sizeof(float)) {
        float f = num_from_bits_f32(load_le32(v.s.p + i));
        if (!(f >= 0) || !isfinite(f))
            return mp_fail(m, at, "\"fp8_amax\": %g is no magnitude", (double)f);
    }
    st->fp8_amax = v.s;
    return 0;
}

/* "fp8_amax" is there only with delayed scales, "teacher" only if there is one, "teacher_data"
 * only if it has samples of its own, so that other files are as they always were. */
static int
open_state(struct mp *m, struct state *st, struct slice *last)
{
    struct mp_value v;
    size_t at = m->pos;
    if (mp_want(m, MP_MAP, &v, "state") < 0)
        return -1;
    m->depth++;
    bool fp8 = v.n > STATE_KEYS && is_next(m, "fp8_amax");
    uint32_t keys = STATE_KEYS + fp8;
    st->has_teacher = v.n > keys;
    st->has_teacher_data = v.n > keys + 1;
    if (v.n < keys || v.n > keys + 2)
        return mp_fail(m, at, "\"state\": %u keys, expected %u to %u", v.n, STATE_KEYS,
                       STATE_KEYS + 3);
    return fp8 ? read_fp8(m, st, last) : 0;
}

int
state_parse(struct state *st, struct slice *settings, struct mp *m)
{
    struct slice last = { 0 };
    size_t at = m->pos;
    *st = (struct state){ 0 };
    if (open_state(m, st, &last) < 0 || field(m, "grad_norm", &last) < 0 ||
        read_norm(m, st) < 0 || field(m, "routes", &last) < 0 ||
        read_routes(m, st) < 0 || field(m, "sampler", &last) < 0 ||
        read_sampler(m, st) < 0 || field(m, "settings", &last) < 0 ||
        read_settings(m, settings) < 0 ||
        read_u64(m, "skips", &last, UINT32_MAX, &st->skips) < 0 ||
        field(m, "spike", &last) < 0 || read_spike(m, st) < 0 ||
        read_u64(m, "step", &last, UINT32_MAX, &st->step) < 0 ||
        read_u64(m, "t", &last, UINT32_MAX, &st->t) < 0 ||
        (st->has_teacher &&
         read_bin(m, "teacher", &last, st->teacher, XXH3_BYTES) < 0) ||
        (st->has_teacher_data &&
         read_bin(m, "teacher_data", &last, st->teacher_data, XXH3_BYTES) < 0) ||
        field(m, "tokenizer", &last) < 0 || read_tokenizer(m, st) < 0)
        return -1;
    m->depth--;
    return check_steps(m, at, st);
}

/* ---- writing ----------------------------------------------------------------------------- */

static void
put_window(msgpack_packer *pk, const char *key, const struct spike *w, const double *v)
{
    size_t first = w->n < SPIKE_WINDOW ? 0 : w->at;
    mp_put_str(pk, slice_of(key));
    msgpack_pack_array(pk, w->n);
    for (size_t i = 0; i < w->n; i++)
        msgpack_pack_double(pk, v[(first + i) % SPIKE_WINDOW]);
}

static void
put_sampler(msgpack_packer *pk, const struct state *st)
{
    msgpack_pack_map(pk, 3);
    mp_put_str(pk, slice_of("data"));
    mp_put_bin(pk, st->data, XXH3_BYTES);
    mp_put_str(pk, slice_of("epoch"));
    msgpack_pack_uint64(pk, st->epoch);
    mp_put_str(pk, slice_of("index"));
    msgpack_pack_uint64(pk, st->index);
}

void
state_pack(msgpack_packer *pk, const struct state *st, struct slice settings)
{
    bool fp8 = st->fp8_amax.n > 0;
    msgpack_pack_map(pk,
                     (size_t)STATE_KEYS + fp8 + st->has_teacher + st->has_teacher_data);
    if (fp8) {
        mp_put_str(pk, slice_of("fp8_amax"));
        mp_put_bin(pk, (const uint8_t *)st->fp8_amax.p, st->fp8_amax.n);
    }
    mp_put_str(pk, slice_of("grad_norm"));
    st->grad_norm < 0 ? msgpack_pack_nil(pk) : msgpack_pack_double(pk, st->grad_norm);
    mp_put_str(pk, slice_of("routes"));
    if (*st->route) {
        msgpack_pack_map(pk, 1);
        mp_put_str(pk, slice_of("gemm"));
        mp_put_str(pk, slice_of(st->route));
    } else {
        msgpack_pack_nil(pk);
    }
    mp_put_str(pk, slice_of("sampler"));
    if (st->has_sampler)
        put_sampler(pk, st);
    else
        msgpack_pack_nil(pk);
    mp_put_str(pk, slice_of("settings"));
    pk->callback(pk->data, settings.p, settings.n);
    mp_put_str(pk, slice_of("skips"));
    msgpack_pack_uint64(pk, st->skips);
    mp_put_str(pk, slice_of("spike"));
    if (st->has_spike) {
        msgpack_pack_map(pk, 2);
        put_window(pk, "loss", &st->spike, st->spike.loss);
        put_window(pk, "norm", &st->spike, st->spike.norm);
    } else {
        msgpack_pack_nil(pk);
    }
    mp_put_str(pk, slice_of("step"));
    msgpack_pack_uint64(pk, st->step);
    mp_put_str(pk, slice_of("t"));
    msgpack_pack_uint64(pk, st->t);
    if (st->has_teacher) {
        mp_put_str(pk, slice_of("teacher"));
        mp_put_bin(pk, st->teacher, XXH3_BYTES);
    }
    if (st->has_teacher_data) {
        mp_put_str(pk, slice_of("teacher_data"));
        mp_put_bin(pk, st->teacher_data, XXH3_BYTES);
    }
    mp_put_str(pk, slice_of("tokenizer"));
    if (st->has_tokenizer)
        mp_put_bin(pk, st->tokenizer, SHA256_BYTES);
    else
        msgpack_pack_nil(pk);
}
