/* SPDX-License-Identifier: MIT */
/* settings: one table of what changes results, for options, checkpoints and provenance; sorted
 * by key, as in a checkpoint. */
#include "lib/train/settings.h"

#include "lib/base/json.h"
#include "lib/base/maths.h"
#include "lib/base/num.h"
#include "lib/load/device.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

static const char *const orders[] = { "shuffle", "file", NULL };
static const char *const schedules[] = { "constant", "linear", "cosine", "wsd", NULL };
static const char *const clip_modes[] = { "global", "prev", "tensor", NULL };
static const char *const fp8_scales[] = { "current", "delayed", NULL };
static const char *const losses[] = { "ce", "scalar", NULL };

#define AT(member) offsetof(struct settings, member)
#define COUNT(key, option, member, low, high, first)                                   \
    {                                                                                  \
        key, option, SET_U64, false, false, AT(member), NULL, NULL, low, high, first   \
    }
#define NUMBER(key, option, member, low, high, first)                                  \
    {                                                                                  \
        key, option, SET_F64, true, false, AT(member), NULL, NULL, low, high, first    \
    }
#define LATE(key, option, member, low, high, first)                                    \
    {                                                                                  \
        key, option, SET_F64, true, true, AT(member), NULL, NULL, low, high, first     \
    }
#define WORD(key, option, member, words)                                               \
    {                                                                                  \
        key, option, SET_WORD, false, false, AT(member), words, words, 0, 0, 0         \
    }
#define LATE_WORD(key, option, member, words)                                          \
    {                                                                                  \
        key, option, SET_WORD, false, true, AT(member), words, words, 0, 0, 0          \
    }

const struct setting settings_table[] = {
    COUNT("accum", "accum", accum, 1, 1 << 20, 1),
    { "activations", "activations", SET_WORD, false, false, AT(activations),
      device_activations, device_activations_given, 0, 0, 0 },
    COUNT("batch", "batch", batch, 1, 1 << 20, 1),
    NUMBER("beta1", "beta1", beta1, 0, 0.999999, 0.9),
    NUMBER("beta2", "beta2", beta2, 0, 0.999999, 0.999),
    NUMBER("clip", "clip", clip, 0, 1e30, 1),
    WORD("clip_mode", "clip-mode", clip_mode, clip_modes),
    COUNT("decay", "decay", decay, 0, 1e15, 0),
    LATE("distill", "distill", distill, 0, 1, 1),
    LATE("distill_temp", "distill-temp", distill_temp, 0, 1000, 1),
    NUMBER("eps", "eps", eps, 0, 1, 1e-8),
    LATE_WORD("fp8_scales", "fp8-scales", fp8_scales, fp8_scales),
    WORD("loss", "loss", loss, losses),
    NUMBER("lr", "lr", lr, 0, 1e6, 1e-5),
    NUMBER("min_lr", "min-lr", min_lr, 0, 1e6, 0),
    WORD("order", "order", order, orders),
    { "quant_from", "quant-from", SET_F64, false, true, AT(quant_from), NULL, NULL, 0,
      4294967295.0, 0 },
    WORD("schedule", "schedule", schedule, schedules),
    COUNT("seed", "seed", seed, 0, 4294967295.0, 0),
    COUNT("seq_len", "seq-len", seq_len, 0, 1 << 24, 0),
    { "spike", "spike", SET_F64, false, false, AT(spike), NULL, NULL, 0, 1e6, 0 },
    COUNT("total_steps", "total-steps", total_steps, 0, 4294967295.0, 0),
    COUNT("train_last_layers", "train-last-layers", last_layers, 0, 1 << 20, 0),
    COUNT("warmup", "warmup", warmup, 0, 4294967295.0, 0),
    NUMBER("weight_decay", "weight-decay", weight_decay, 0, 1e6, 0),
};

_Static_assert(sizeof settings_table / sizeof *settings_table == SETTINGS,
               "SETTINGS is the length of the table");

static uint64_t *
count_at(struct settings *s, size_t i)
{
    return (uint64_t *)(void *)((char *)s + settings_table[i].offset);
}

static double *
number_at(struct settings *s, size_t i)
{
    return (double *)(void *)((char *)s + settings_table[i].offset);
}

void
settings_begin(struct settings *s)
{
    *s = (struct settings){ 0 };
    for (size_t i = 0; i < SETTINGS; i++)
        if (settings_table[i].kind == SET_F64)
            *number_at(s, i) = settings_table[i].first;
        else
            *count_at(s, i) = (uint64_t)settings_table[i].first;
}

void
settings_copy(struct settings *to, const struct settings *from, size_t i)
{
    struct settings copy = *from;
    to->has_accum |= settings_table[i].offset == AT(accum);
    if (settings_table[i].kind == SET_F64)
        *number_at(to, i) = *number_at(&copy, i);
    else
        *count_at(to, i) = *count_at(&copy, i);
}

size_t
settings_row(const char *option)
{
    size_t i = 0;
    while (strcmp(settings_table[i].option, option) != 0)
        i++;
    return i;
}

void
settings_set_count(struct settings *s, size_t i, uint64_t v)
{
    *count_at(s, i) = v;
}

/* A value must not become 0 in f32, since 0 has a meaning of its own. */
static int
check_number(const struct setting *t, double v, struct err *err)
{
    if (t->f32 && v > 0 && (float)v == 0)
        return err_set(err, ERR_USAGE,
                       "--%s: %g: is 0 in f32: expected 0 or at least %g", t->option, v,
                       (double)FLT_TRUE_MIN);
    if (t->offset == AT(eps) && v == 0)
        return err_set(err, ERR_USAGE,
                       "--%s: 0: expected a number above 0: an update divides by "
                       "sqrt(v) + eps, and v is 0 where no gradient was",
                       t->option);
    if (t->offset == AT(distill_temp) && v == 0)
        return err_set(err, ERR_USAGE,
                       "--%s: 0: expected a number above 0: logits are divided by it",
                       t->option);
    return 0;
}

int
settings_set_number(struct settings *s, size_t i, double v, struct err *err)
{
    *number_at(s, i) = v;
    return check_number(&settings_table[i], v, err);
}

int
settings_check(const struct settings *s, struct err *err)
{
    struct settings copy = *s;
    for (size_t i = 0; i < SETTINGS; i++)
        if (settings_table[i].kind == SET_F64 &&
            check_number(&settings_table[i], *number_at(&copy, i), err) < 0)
            return -1;
    if (s->schedule != LR_CONSTANT && s->total_steps == 0)
        return err_set(
            err, ERR_USAGE,
            "--schedule %s: needs --total-steps, or --until or --epochs, whose end "
            "it is then",
            schedules[s->schedule]);
    if (s->total_steps && s->warmup > s->total_steps)
        return err_set(err, ERR_USAGE, "--warmup: %llu steps, --total-steps are %llu",
                       (unsigned long long)s->warmup,
                       (unsigned long long)s->total_steps);
    if (s->schedule == LR_WSD && s->decay > s->total_steps)
        return err_set(err, ERR_USAGE, "--decay: %llu steps, --total-steps are %llu",
                       (unsigned long long)s->decay,
                       (unsigned long long)s->total_steps);
    if (s->quant_from > 0 && s->quant_from < 1 && s->total_steps == 0)
        return err_set(
            err, ERR_USAGE,
            "--quant-from: %g is a fraction of --total-steps, which is not given: "
            "expected that, too, or --until or --epochs, or a step",
            s->quant_from);
    if (s->quant_from > 0 && s->quant_from < 1 &&
        settings_quant_from(s) > s->total_steps)
        return err_set(
            err, ERR_USAGE,
            "--quant-from: %g of %llu steps leaves none that is quantized: expected "
            "a smaller fraction",
            s->quant_from, (unsigned long long)s->total_steps);
    if (s->min_lr > s->lr)
        return err_set(err, ERR_USAGE, "--min-lr: %g is above --lr %g", s->min_lr,
                       s->lr);
    return 0;
}

/* ---- in a checkpoint ----------------------------------------------------------------- */

static int
read_value(struct mp *m, struct settings *s, size_t i)
{
    const struct setting *t = &settings_table[i];
    struct mp_value v;
    size_t at = m->pos;
    if (t->kind == SET_WORD) {
        if (mp_want(m, MP_STR, &v, t->key) < 0)
            return -1;
        for (uint64_t w = 0; t->words[w]; w++)
            if (slice_is(v.s, t->words[w])) {
                *count_at(s, i) = w;
                return 0;
            }
        return mp_fail(m, at, "\"%s\": an unknown word", t->key);
    }
    if (mp_want(m, t->kind == SET_U64 ? MP_UINT : MP_F64, &v, t->key) < 0)
        return -1;
    double value = t->kind == SET_U64 ? (double)v.u : v.f;
    if (!(value == t->first || (value >= t->low && value <= t->high)))
        return mp_fail(m, at, "\"%s\": %g is out of range", t->key, value);
    if (t->offset == AT(quant_from) && value > 1 && value != floor(value))
        return mp_fail(m, at, "\"%s\": %g is neither a step nor a fraction", t->key,
                       value);
    if (t->kind == SET_U64)
        *count_at(s, i) = v.u;
    else
        *number_at(s, i) = v.f;
    return 0;
}

int
settings_read(struct mp *m, struct settings *s)
{
    struct mp_value v;
    struct slice key, last = { 0 };
    if (mp_want(m, MP_MAP, &v, "settings") < 0)
        return -1;
    for (uint32_t n = 0; n < v.n; n++) {
        size_t at = m->pos, i = 0;
        char q[TEXT_QUOTE];
        if (mp_key(m, &key, &last) < 0)
            return -1;
        while (i < SETTINGS && !slice_is(key, settings_table[i].key))
            i++;
        if (i == SETTINGS)
            return mp_fail(m, at, "\"settings\": \"%s\" is unknown",
                           text_quote(q, key.p, key.n));
        if (read_value(m, s, i) < 0)
            return -1;
        s->has_accum |= settings_table[i].offset == AT(accum);
    }
    return 0;
}

/* Files of a run that does not use a later setting are those of older versions. */
static bool
is_left_out(struct settings *s, size_t i)
{
    const struct setting *t = &settings_table[i];
    bool first = t->kind == SET_F64 ? *number_at(s, i) == t->first
                                    : (double)*count_at(s, i) == t->first;
    return t->late && first;
}

void
settings_put(msgpack_packer *pk, const struct settings *s)
{
    struct settings copy = *s;
    size_t n = 0;
    for (size_t i = 0; i < SETTINGS; i++)
        n += !is_left_out(&copy, i);
    msgpack_pack_map(pk, n);
    for (size_t i = 0; i < SETTINGS; i++) {
        const struct setting *t = &settings_table[i];
        if (is_left_out(&copy, i))
            continue;
        mp_put_str(pk, slice_of(t->key));
        if (t->kind == SET_F64)
            msgpack_pack_double(pk, *number_at(&copy, i));
        else if (t->kind == SET_U64)
            msgpack_pack_uint64(pk, *count_at(&copy, i));
        else
            mp_put_str(pk, slice_of(t->words[*count_at(&copy, i)]));
    }
}

static void
put_value(struct buf *b, struct settings *s, size_t i)
{
    const struct setting *t = &settings_table[i];
    if (t->kind == SET_F64)
        json_put_number(b, *number_at(s, i), 17);
    else if (t->kind == SET_U64)
        buf_printf(b, "%llu", (unsigned long long)*count_at(s, i));
    else
        buf_printf(b, "\"%s\"", t->words[*count_at(s, i)]);
}

void
settings_json(struct buf *b, const struct settings *s, const struct settings_hash *hash,
              size_t n)
{
    const struct settings_hash *end = hash + n;
    struct settings copy = *s;
    for (size_t i = 0; i < SETTINGS; i++) {
        const struct setting *t = &settings_table[i];
        if (is_left_out(&copy, i))
            continue;
        for (; hash < end && strcmp(t->key, hash->key) > 0; hash++)
            if (hash->xxh3) {
                char hex[2 * XXH3_BYTES + 1];
                hash_hex(hex, hash->xxh3, XXH3_BYTES);
                buf_printf(b, ",\"%s\":\"%s\"", hash->key, hex);
            }
        buf_printf(b, "%c\"%s\":", i ? ',' : '{', t->key);
        put_value(b, &copy, i);
    }
    buf_char(b, '}');
}

void
settings_lines(struct buf *b, const struct settings *s)
{
    struct settings copy = *s;
    for (size_t i = 0; i < SETTINGS; i++) {
        buf_printf(b, "--%s\t", settings_table[i].option);
        put_value(b, &copy, i);
        buf_char(b, '\n');
    }
}

/* ---- functions of the step ------------------------------------------------------------- */

/* Of a fraction f the first f * total_steps steps, rounded to the nearest number, are not
 * quantized: rounding down would take 0.29 of 100 to be 28. */
uint64_t
settings_quant_from(const struct settings *s)
{
    if (s->quant_from <= 0 || s->quant_from >= 1)
        return (uint64_t)s->quant_from;
    return 1 + (uint64_t)floor(s->quant_from * (double)s->total_steps + 0.5);
}

double
settings_rate(const struct settings *s, uint64_t t)
{
    double from = (double)s->warmup, to = (double)s->total_steps, now = (double)t;
    if (t <= s->warmup)
        return s->lr * now / from;
    if (s->schedule == LR_CONSTANT)
        return s->lr;
    double p = to > from ? (now - from) / (to - from) : 1;
    p = p < 1 ? p : 1;
    if (s->schedule == LR_LINEAR)
        return s->lr - (s->lr - s->min_lr) * p;
    if (s->schedule == LR_COSINE) {
        double sine, cosine;
        maths_sincos(p * 3.14159265358979323846, &sine, &cosine);
        return s->min_lr + (s->lr - s->min_lr) * 0.5 * (1 + cosine);
    }
    double tail = (double)(s->decay ? s->decay : (s->total_steps + 9) / 10);
    double left = to - now;
    if (left >= tail)
        return s->lr;
    return s->min_lr + (s->lr - s->min_lr) * (left > 0 ? left / tail : 0);
}
