/* SPDX-License-Identifier: MIT */
/* state: the map of that name in a checkpoint, doc/FORMAT.md section 4, and the window of
 * accepted steps by which a spike is told. */
#include "cmd/trainstep/trainstep.h"

#include "lib/format/mp.h"

#include <math.h>
#include <string.h>

/* ---- reading -------------------------------------------------------------------------- */

static struct mp
open_state(const struct store *file, struct err *err)
{
    struct slice s = file->training.state;
    return (struct mp){ .data = (const uint8_t *)s.p,
                        .len = s.n,
                        .base = (uint64_t)((const uint8_t *)s.p - file->header) + 64,
                        .file = file->name,
                        .depth = 2,
                        .err = err };
}

/* The next pair of a map whose keys are known. */
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
take_u64(struct mp *m, const char *key, struct slice *last, uint64_t *v)
{
    struct mp_value value;
    if (field(m, key, last) < 0 || mp_want(m, MP_UINT, &value, key) < 0)
        return -1;
    *v = value.u;
    return 0;
}

static int
take_bin(struct mp *m, const char *key, struct slice *last, uint8_t *to, size_t n)
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

/* Whether a nil stands here, which is taken. */
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
    if (v.s.n >= sizeof st->route)
        return mp_fail(m, at, "\"routes\": a name of %zu bytes", v.s.n);
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
        take_bin(m, "data", &last, st->data, XXH3_BYTES) < 0 ||
        take_u64(m, "epoch", &last, &st->epoch) < 0)
        return -1;
    return take_u64(m, "index", &last, &st->index);
}

static int
read_window(struct mp *m, const char *key, struct slice *last, double *to, size_t *n)
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
        if (!isfinite(v.f))
            return mp_fail(m, at, "\"%s\": a number that is not finite", key);
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
        read_window(m, "loss", &last, st->spike.loss, &losses) < 0 ||
        read_window(m, "norm", &last, st->spike.norm, &norms) < 0)
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
    if (mp_want(m, MP_BIN, &v, "tokenizer") < 0)
        return -1;
    st->has_tokenizer = true;
    memcpy(st->tokenizer, v.s.p, SHA256_BYTES); // its length was checked
    return 0;
}

static int
read_state(struct mp *m, struct state *st, struct settings *s)
{
    struct slice last = { 0 };
    struct mp_value v;
    if (mp_want(m, MP_MAP, &v, "state") < 0 || field(m, "grad_norm", &last) < 0 ||
        read_norm(m, st) < 0 || field(m, "routes", &last) < 0 ||
        read_routes(m, st) < 0 || field(m, "sampler", &last) < 0 ||
        read_sampler(m, st) < 0 || field(m, "settings", &last) < 0 ||
        settings_read(m, s) < 0 || take_u64(m, "skips", &last, &st->skips) < 0 ||
        field(m, "spike", &last) < 0 || read_spike(m, st) < 0 ||
        take_u64(m, "step", &last, &st->step) < 0 ||
        take_u64(m, "t", &last, &st->t) < 0 || field(m, "tokenizer", &last) < 0)
        return -1;
    return read_tokenizer(m, st);
}

int
state_read(struct state *st, struct settings *s, const struct store *file)
{
    struct mp m = open_state(file, file->err);
    *st = (struct state){ 0 };
    settings_begin(s);
    return read_state(&m, st, s);
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

static void
put_fields(msgpack_packer *pk, const struct state *st, const struct settings *s)
{
    msgpack_pack_map(pk, 9);
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
    settings_put(pk, s);
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
    mp_put_str(pk, slice_of("tokenizer"));
    if (st->has_tokenizer)
        mp_put_bin(pk, st->tokenizer, SHA256_BYTES);
    else
        msgpack_pack_nil(pk);
}

void
state_put(struct buf *b, const struct state *st, const struct settings *s)
{
    msgpack_sbuffer sb;
    msgpack_packer pk;
    msgpack_sbuffer_init(&sb);
    msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
    put_fields(&pk, st, s);
    buf_add(b, sb.data, sb.size);
    msgpack_sbuffer_destroy(&sb);
}

/* ---- spikes -------------------------------------------------------------------------------- */

/* How many deviations x lies above the mean of n values. */
static double
score(const double *v, size_t n, double x)
{
    double mean = 0, square = 0;
    for (size_t i = 0; i < n; i++)
        mean += v[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        square += (v[i] - mean) * (v[i] - mean);
    double deviation = sqrt(square / (double)n);
    // Values that hardly differ make everything a spike.
    double least = 1e-3 * fabs(mean);
    deviation = deviation > least ? deviation : least;
    return deviation > 0 ? (x - mean) / deviation : 0;
}

bool
spike_fits(const struct spike *w, double z, double loss, double norm)
{
    enum { ENOUGH = SPIKE_WINDOW / 4 };
    if (isnan(loss) || isnan(norm))
        return false;
    if (w->n < ENOUGH)
        return true;
    return score(w->loss, w->n, loss) <= z && score(w->norm, w->n, norm) <= z;
}

void
spike_add(struct spike *w, double loss, double norm)
{
    w->loss[w->at] = loss;
    w->norm[w->at] = norm;
    w->at = (w->at + 1) % SPIKE_WINDOW;
    w->n += w->n < SPIKE_WINDOW;
}
