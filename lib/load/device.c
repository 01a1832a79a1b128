/* SPDX-License-Identifier: MIT */
/* device: see device.h. */
#include "lib/load/device.h"

#include "lib/base/machine.h"
#include "lib/model/weights.h"

#include <stdio.h>
#include <string.h>

const char *const device_computes[] = { "auto", "f32", "bf16", "fp8", NULL };
const char *const device_paths[] = { "auto", "native", "dequant", NULL };

/* If both are given, --compute determines the type, not --fast. */
static void
settle_compute(struct device_options *o)
{
    if (o->cuda) {
        o->faster = o->fast && !o->decodes && o->compute != COMPUTE_F32;
        o->why = o->decodes ? "a GPU knows no faster way to decode"
                            : "in f32 a GPU has no faster way";
    } else {
        o->faster =
            o->fast && o->compute == COMPUTE_AUTO && kernels_cpu_pairs(o->host->isa);
        o->why = o->decodes ? "this CPU, or NIBBLE_ISA, knows no faster way to decode"
                 : o->compute != COMPUTE_AUTO
                     ? "--compute says what is computed with"
                     : "this CPU, or NIBBLE_ISA, has no products of bf16";
        o->coarse = o->fast && o->decodes && kernels_cpu_coarse_pays(o->host->isa);
    }
    o->unlike = o->faster || o->compute == COMPUTE_FP8 ||
                o->compute == (o->cuda ? COMPUTE_F32 : COMPUTE_BF16);
    if (o->compute == COMPUTE_AUTO)
        o->compute = o->cuda || o->faster ? COMPUTE_BF16 : COMPUTE_F32;
}

/* With fp8: of all that is not. */
static enum dtype
compute_of(const struct device_options *o)
{
    bool fp8_on_cpu = o->compute == COMPUTE_FP8 && !o->cuda;
    return o->compute == COMPUTE_F32 || fp8_on_cpu ? DT_F32 : DT_BF16;
}

static struct device
device_of(const struct device_options *o)
{
    struct device d =
        o->cuda ? kernels_cuda_device(compute_of(o), o->faster) : kernels_cpu_device;
    d.trains = !o->decodes;
    return d;
}

void
device_report_speed(const struct device_options *o)
{
    if (o->compute == COMPUTE_FP8 && !o->cuda)
        host_note(o->host,
                  "--compute fp8: this CPU emulates it, which is slower than f32");
    if (o->faster)
        host_note(o->host, "--fast: %s",
                  o->cuda
                      ? "attention's gradients are added in any order: two runs differ"
                      : "products of bf16 in place of f32");
    if (o->coarse)
        host_note(
            o->host,
            "--fast: inputs of NVFP4 products of few tokens are rounded to 16 bits");
    else if (o->fast && !o->faster)
        host_note(o->host, "--fast: no effect: %s", o->why);
}

void
device_report_inexact(const struct host *host, uint64_t inexact, uint64_t n)
{
    unsigned long long some = inexact, all = n;
    if (some == 0)
        host_note(host,
                  "--compute fp8: all %llu weights of its products are exact in E4M3",
                  all);
    else
        host_note(
            host,
            "--compute fp8: %llu of %llu weights of its products are not exact in "
            "E4M3 and are rounded; those of --quant sweepfp8 are exact",
            some, all);
}

void
device_report_not_fp8(const struct host *host, const struct table *t)
{
    const struct row *odd = weights_not_fp8(t);
    if (odd)
        host_note(host,
                  "%s is %llu x %llu: it and projections with the same input are not "
                  "multiplied in "
                  "FP8, which needs multiples of %d",
                  odd->name, (unsigned long long)odd->shape[0],
                  (unsigned long long)odd->shape[1], FP8_UNIT);
}

struct device
device_settle(struct device_options *o)
{
    o->cuda = strncmp(o->device, "cuda", 4) == 0;
    char why[512];
    if (strcmp(o->device, "auto") == 0 && kernels_cuda_count(why, sizeof why) > 0) {
        o->cuda = kernels_cuda_there(why, sizeof why);
        if (!o->cuda)
            host_warn(o->host, "there is a GPU, but %s", why);
    }
    settle_compute(o);
    return device_of(o);
}

/* ---- products of NVFP4 with NVFP4 ----------------------------------------------------- */

const char *const device_activations[] = { "plain", "nvfp4", "nvfp4-seed", NULL };
const char *const device_activations_given[] = { "plain", "nvfp4", NULL };

/* Whether the chip has native products; if not, why.  -1: an error. */
static int
has_native(const struct device_options *o, const struct config *c, char *why, size_t n,
           struct err *err)
{
    struct table t;
    if (!o->cuda) {
        snprintf(why, n, "the CPU has no 4-bit products");
        return 0;
    }
    if (!kernels_cuda_native(o->number, why, n))
        return 0;
    if (table_open(&t, c, !c->tied, err) < 0)
        return -1;
    const struct row *odd = weights_odd(&t);
    if (odd)
        snprintf(why, n, "%s is %llu x %llu, they take multiples of %d", odd->name,
                 (unsigned long long)odd->shape[0], (unsigned long long)odd->shape[1],
                 FP4_NATIVE_UNIT);
    table_close(&t);
    return !odd;
}

/* On the CPU: products of a narrow model are mostly packing, which bf16 makes slower. */
static void
settle_fast(struct device_options *o, const struct config *c)
{
    enum { WIDE = 256 };
    if (o->cuda || !o->faster || c->hidden >= WIDE)
        return;
    o->faster = o->unlike = false;
    o->compute = COMPUTE_F32;
    o->why = "a model less than 256 wide is faster in f32";
}

int
device_products(struct device_options *o, struct device *d,
                enum activations activations, const struct config *c,
                struct quant_spec *spec, const struct quant_spec **chosen,
                struct err *err)
{
    char why[512];
    settle_fast(o, c);
    o->fp4 = activations != ACTIVATIONS_PLAIN;
    *chosen = NULL;
    if (!o->fp4 && o->path == PATH_NATIVE)
        return err_set(err, ERR_USAGE,
                       "--path native: multiplies NVFP4 with NVFP4: it needs "
                       "--activations nvfp4; dequant takes plain ones");
    if (!o->fp4)
        return 0;
    int native = o->path == PATH_DEQUANT ? 0 : has_native(o, c, why, sizeof why, err);
    if (native < 0)
        return -1;
    o->native = native > 0;
    if (o->path == PATH_NATIVE && !o->native)
        return err_set(err, ERR_USAGE,
                       "--path native: %s; --path dequant emulates them", why);
    if (o->path == PATH_AUTO && o->cuda)
        host_note(o->host, "--path %s%s%s", o->native ? "native" : "dequant",
                  o->native ? "" : ": ", o->native ? "" : why);
    if (o->native)
        d->fp4 = FP4_NATIVE;
    bool torchsharp = activations == ACTIVATIONS_TORCHSHARP;
    *spec = (struct quant_spec){ .kind = torchsharp ? QUANT_NATIVE : QUANT_MAX,
                                 .source = d->act };
    *chosen = spec;
    return 0;
}

/* ---- open ------------------------------------------------------------------------------- */

/* Results of a GPU depend on how products are computed, so the route names it. */
static void
choose_products(struct kernels *k, const struct device_options *o)
{
    if (o->native)
        k->is.fp4 = FP4_NATIVE;
    if (o->coarse)
        kernels_cpu_coarse(k);
    size_t n = strlen(k->route);
    if (o->fp4 && o->cuda)
        snprintf(k->route + n, sizeof k->route - n, " fp4 %s",
                 o->native ? "native" : "dequant");
    if (o->compute == COMPUTE_FP8)
        snprintf(k->route + n, sizeof k->route - n, " fp8 1");
}

struct kernels *
device_open(const struct device_options *o, struct err *err)
{
    struct device is = device_of(o);
    const struct cpu_kind cpu = device_cpu(o);
    struct kernels *k =
        o->cuda ? kernels_cuda(&is, o->number, err) : kernels_cpu(&cpu, err);
    if (k) {
        choose_products(k, o);
        return k;
    }
    struct err why = *err;
    *err = (struct err){ 0 };
    err_fill(err, why.kind == ERR_MEMORY ? ERR_MEMORY : ERR_IO, "--device %s: %s",
             o->device, why.msg);
    return NULL;
}

void
device_describe(char *to, size_t n, const struct device_options *o)
{
    const char *type = device_computes[o->compute];
    if (o->cuda)
        snprintf(to, n, "cuda:%d, %s", o->number, type);
    else
        snprintf(to, n, "cpu, %s, %s, %u thread%s", type, isa_name(o->host->isa),
                 o->threads, o->threads == 1 ? "" : "s");
}

struct cpu_kind
device_cpu(const struct device_options *o)
{
    return (struct cpu_kind){ compute_of(o), o->host->isa, o->threads };
}

uint64_t
device_free(const struct device_options *o)
{
    if (o->cuda) {
        uint64_t bytes = kernels_cuda_free(o->number);
        return bytes ? bytes : UINT64_MAX;
    }
    return machine_free();
}

uint64_t
device_used(const struct device_options *o)
{
    return o->cuda ? kernels_cuda_used(o->number) : 0;
}

bool
device_unified(const struct device_options *o)
{
    return o->cuda && kernels_cuda_integrated(o->number);
}
