/* SPDX-License-Identifier: MIT */
/* rounding: floats to the type of the output, and a count of values that it cannot hold. */
#include "lib/convert/produce.h"

#include "lib/base/num.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *
item_source(const struct item *it)
{
    const struct store *s = it->nvfp4 ? it->nvfp4->source.s : it->s;
    return s ? s->name : "--init";
}

const char *
item_source_name(const struct item *it)
{
    const struct item *from = it->nvfp4 ? &it->nvfp4->source : it;
    return from->view ? from->view->name : it->name;
}

/* The largest number of a dtype that values are converted to. */
static double
largest(enum dtype d)
{
    return d == DT_F16 ? 65504 : d == DT_BF16 ? 0x1.fep127 : (double)FLT_MAX;
}

const char *
range_way_out(const struct plan *p, enum dtype d, double max)
{
    const struct pack *c = p->c;
    bool bf16 = d == DT_F16 && max <= largest(DT_BF16) && !c->torchsharp;
    if (d == DT_F32 || c->like || plan_target(p)->dialect || max > largest(DT_F32))
        return "";
    if (plan_target(p)->training)
        return "; --master f32 keeps them";
    return bf16 ? "; --dtype bf16 or f32 keeps them" : "; --dtype f32 keeps them";
}

/* Whether an item's values are those of an NVFP4 tensor: each is finite, but decoded it
 * can be too large for a float. */
static bool
item_is_nvfp4(const struct item *it)
{
    return it->how == HOW_CONVERT && it->view->dtype == DT_NVFP4;
}

static void
note_over(struct range *r, uint64_t index, double value)
{
    if (r->over++ == 0) {
        r->first = index;
        r->value = value;
    }
    if (!isfinite(value))
        r->infinite = true;
    else if (fabs(value) > r->max)
        r->max = fabs(value);
}

void
range_add(struct range *sum, const struct range *r)
{
    if (sum->over == 0) {
        sum->first = r->first;
        sum->value = r->value;
    }
    sum->max = fmax(sum->max, r->max);
    sum->infinite |= r->infinite;
    sum->over += r->over;
    sum->under += r->under;
    sum->zero += r->zero;
}

static int
out_of_range(const struct plan *p, const struct item *it, const struct range *r)
{
    char q[TEXT_QUOTE], value[32] = "too large for a float";
    double max = r->infinite && item_is_nvfp4(it) ? INFINITY : r->max;
    if (isfinite(r->value) || !item_is_nvfp4(it))
        snprintf(value, sizeof value, "%.9g", r->value);
    return err_set(p->err, ERR_FORMAT,
                   "%s: \"%s\": element %llu is %s, which %s cannot hold; %llu of "
                   "%llu values are too large%s",
                   item_source(it),
                   text_quote(q, item_source_name(it), strlen(item_source_name(it))),
                   (unsigned long long)r->first, value, dtype_name(it->dtype),
                   (unsigned long long)r->over, (unsigned long long)it->numel,
                   range_way_out(p, it->dtype, max));
}

int
range_settle(struct plan *p, const struct item *it, const struct range *r)
{
    struct lost *lost = &p->lost;
    if (r->over)
        return out_of_range(p, it, r);
    if (it->how != HOW_CONVERT || r->under == 0) // random weights are not converted
        return 0;
    lost->mixed |= lost->under && lost->dtype != it->dtype;
    if (r->under > lost->max) {
        lost->max = r->under;
        lost->worst = it->name;
        lost->dtype = it->dtype;
    }
    lost->under += r->under;
    lost->zero += r->zero;
    return 0;
}

/* The float next to d that keeps a second rounding right: inexact results get an odd
 * last bit (rounding to odd), so that the second rounding sees no false tie. */
static float
narrow(double d)
{
    float f = (float)d;
    if ((double)f == d || !isfinite(f) || !isfinite(d))
        return f;
    uint32_t bits;
    if (fabs((double)f) > fabs(d))
        f = nextafterf(f, 0);
    memcpy(&bits, &f, sizeof bits);
    bits |= 1;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void
note_under(struct range *r, bool zero)
{
    r->under++;
    r->zero += zero;
}

static void
encode_f16(uint64_t first, const float *f, size_t n, uint8_t *out, struct range *r)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t bits = num_to_f16(f[i]);
        float a = fabsf(f[i]);
        if (a > 65504.0F)
            note_over(r, first + i, (double)f[i]);
        else if (a < 0x1p-14F && num_from_f16(bits) != f[i])
            note_under(r, !(bits & 0x7fff));
        store_le16(out + 2 * i, bits);
    }
}

/* packed: an infinity is a finite value that was too large. */
static void
encode_bf16(uint64_t first, const float *f, size_t n, bool packed, uint8_t *out,
            struct range *r)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t bits = num_to_bf16(f[i]);
        float a = fabsf(f[i]);
        if (a >= 0x1.ffp127F && (packed || isfinite(f[i])))
            note_over(r, first + i, (double)f[i]);
        else if (a < 0x1p-126F && num_from_bf16(bits) != f[i])
            note_under(r, !(bits & 0x7fff));
        store_le16(out + 2 * i, bits);
    }
}

void
item_encode(const struct item *it, uint64_t first, const float *f, size_t n,
            uint8_t *out, struct range *r)
{
    if (it->dtype == DT_F16) {
        encode_f16(first, f, n, out, r);
        return;
    }
    if (it->dtype == DT_BF16) {
        encode_bf16(first, f, n, item_is_nvfp4(it), out, r);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        if (isinf(f[i]) && item_is_nvfp4(it))
            note_over(r, first + i, (double)f[i]);
        memcpy(&bits, &f[i], sizeof bits);
        store_le32(out + 4 * i, bits);
    }
}

void
item_narrow(const struct item *it, uint64_t first, struct values_scratch *w, size_t n,
            struct range *r)
{
    assert(r);
    for (size_t i = 0; i < n; i++) {
        double value = w->f64[i];
        bool last = it->dtype == DT_F32;
        float target = last ? (float)value : narrow(value);
        if (isinf(target) && !isinf(value)) {
            note_over(r, first + i, value);
            target = 0; // it is counted
        } else if (last && fabs(value) < 0x1p-126 && (double)target != value) {
            note_under(r, target == 0);
        }
        // Float i is before double i: no unread double is overwritten.
        w->f32[i] = target;
    }
}
