/* SPDX-License-Identifier: MIT */
/* device: see device.h. */
#include "cmd/cli/device.h"

#include "lib/model/weights.h"

#include <stdio.h>
#include <string.h>

void
device_take_name(const struct cmd_option *row, const char *arg)
{
    struct device_options *o = row->to.any;
    bool cuda = strncmp(arg, "cuda", 4) == 0 && (arg[4] == '\0' || arg[4] == ':');
    if (!cuda && strcmp(arg, "cpu") != 0 && strcmp(arg, "auto") != 0)
        cmd_refuse_word(row->name, arg, "cpu, cuda, cuda:N or auto");
    o->number = cuda && arg[4] ? (int)cmd_u64("device cuda", arg + 5, 0, 1023) : 0;
    o->device = arg;
}

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
            o->fast && o->compute == COMPUTE_AUTO && kernels_cpu_pairs(cmd_isa());
        o->why = o->decodes ? "this CPU, or NIBBLE_ISA, knows no faster way to decode"
                 : o->compute != COMPUTE_AUTO
                     ? "--compute says what is computed with"
                     : "this CPU, or NIBBLE_ISA, has no products of bf16";
        o->coarse = o->fast && o->decodes && kernels_cpu_coarse_pays(cmd_isa());
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
        warn("--compute fp8: this CPU emulates it, which is slower than f32");
    if (o->faster)
        warn("--fast: %s",
             o->cuda ? "attention's gradients are added in any order: two runs differ"
                     : "products of bf16 in place of f32");
    if (o->coarse)
        warn("--fast: inputs of NVFP4 products of few tokens are rounded to 16 bits");
    else if (o->fast && !o->faster)
        warn("--fast: no effect: %s", o->why);
}

void
device_report_inexact(uint64_t inexact, uint64_t n)
{
    unsigned long long some = inexact, all = n;
    if (some == 0)
        warn("--compute fp8: all %llu weights of its products are exact in E4M3", all);
    else
        warn("--compute fp8: %llu of %llu weights of its products are not exact in "
             "E4M3 and are rounded; those of --quant sweepfp8 are exact",
             some, all);
}

void
device_report_not_fp8(const struct table *t)
{
    const struct row *odd = weights_not_fp8(t);
    if (odd)
        warn("%s is %llu x %llu: it and projections with the same input are not "
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
            warn("there is a GPU, but %s", why);
    }
    settle_compute(o);
    return device_of(o);
}

/* ---- products of NVFP4 with NVFP4 ----------------------------------------------------- */

const char *const device_activations[] = { "plain", "nvfp4", "nvfp4-seed", NULL };
const char *const device_activations_given[] = { "plain", "nvfp4", NULL };

/* Whether the chip has native products; if not, why. */
static bool
has_native(const struct device_options *o, const struct config *c, char *why, size_t n)
{
    struct err err = { 0 };
    struct table t;
    if (!o->cuda) {
        snprintf(why, n, "the CPU has no 4-bit products");
        return false;
    }
    if (!kernels_cuda_native(o->number, why, n))
        return false;
    if (table_open(&t, c, !c->tied, &err) < 0)
        die_err(&err);
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

const struct quant_spec *
device_products(struct device_options *o, struct device *d,
                enum activations activations, const struct config *c,
                struct quant_spec *spec, bool quiet)
{
    char why[512];
    settle_fast(o, c);
    o->fp4 = activations != ACTIVATIONS_PLAIN;
    if (!o->fp4) {
        if (o->path == PATH_NATIVE)
            die(EXIT_TROUBLE, "--path native: multiplies NVFP4 with NVFP4: it needs "
                              "--activations nvfp4; dequant takes plain ones");
        return NULL;
    }
    o->native = o->path != PATH_DEQUANT && has_native(o, c, why, sizeof why);
    if (o->path == PATH_NATIVE && !o->native)
        die(EXIT_TROUBLE, "--path native: %s; --path dequant emulates them", why);
    if (o->path == PATH_AUTO && o->cuda && !quiet)
        warn("--path %s%s%s", o->native ? "native" : "dequant", o->native ? "" : ": ",
             o->native ? "" : why);
    if (o->native)
        d->fp4 = FP4_NATIVE;
    bool torchsharp = activations == ACTIVATIONS_TORCHSHARP;
    *spec = (struct quant_spec){ .kind = torchsharp ? QUANT_NATIVE : QUANT_MAX,
                                 .source = d->act };
    return spec;
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
    die(err->kind == ERR_MEMORY ? EXIT_MEMORY : EXIT_TROUBLE, "--device %s: %s",
        o->device, err->msg);
}

void
device_describe(char *to, size_t n, const struct device_options *o)
{
    const char *type = device_computes[o->compute];
    if (o->cuda)
        snprintf(to, n, "cuda:%d, %s", o->number, type);
    else
        snprintf(to, n, "cpu, %s, %s, %u thread%s", type, isa_name(cmd_isa()),
                 o->threads, o->threads == 1 ? "" : "s");
}

struct cpu_kind
device_cpu(const struct device_options *o)
{
    return (struct cpu_kind){ compute_of(o), cmd_isa(), o->threads };
}

uint64_t
device_free(const struct device_options *o)
{
    if (!o->cuda)
        return cmd_available();
    uint64_t bytes = kernels_cuda_free(o->number);
    return bytes ? bytes : UINT64_MAX;
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

static void
say(void *ctx, const char *what, const char *value)
{
    (void)ctx;
    printf("%s\t%s\n", what, value);
}

/* Exit 2 if a device or path that was named is missing. */
static void
refuse_missing(const struct device_options *o, const char *not_native)
{
    struct err err = { 0 };
    bool asked = o->cuda && strcmp(o->device, "auto") != 0;
    if (fflush(stdout) != 0)
        die(EXIT_TROUBLE, "standard output:");
    if (asked) {
        struct kernels *k = device_open(o, &err);
        kernels_close(k);
    }
    if (o->path == PATH_NATIVE && (!o->cuda || not_native))
        die(EXIT_TROUBLE, "--path native: %s",
            o->cuda ? not_native : "the CPU has no 4-bit products");
}

static void
diagnose_cpu(const struct device_options *o, enum isa isa)
{
    printf("isa\t%s\n", isa_name(isa));
    for (int i = 0; i < ISA_COUNT; i++)
        printf("isa.%s\t%s\n", isa_name((enum isa)i),
               isa_have((enum isa)i) ? "yes" : "this CPU lacks it");
    printf("threads\t%u\n", o->threads);
    uint64_t available = cmd_available();
    if (available == UINT64_MAX)
        puts("memory_available\t-");
    else
        printf("memory_available\t%llu\n", (unsigned long long)available);
    puts("cpu.f32\tyes: one fused sum an element, in order; equal for all threads");
    puts("cpu.bf16\tyes: operands of products are rounded; else as f32");
    printf("cpu.bf16.pairs\t%s\n", kernels_cpu_pairs(isa)
                                       ? "yes: AVX512_BF16, what --fast takes"
                                       : "no: bf16 is no faster than f32 here");
    printf("cpu.coarse\t%s\n", kernels_cpu_coarse_pays(isa)
                                   ? "yes: what generate --fast decodes NVFP4 with"
                                   : "no: it is no faster here");
}

void
device_diagnose(const struct device_options *o)
{
    enum isa isa = cmd_isa();
    char words[64], why[512];
    struct device_options settled = *o;
    puts("what\tvalue");
    printf("version\t%s\n", cmd_version());
    device_settle(&settled);
    device_describe(words, sizeof words, &settled);
    printf("device\t%s\n", words);
    diagnose_cpu(o, isa);
    puts("path.dequant\tyes: products of exactly dequantized weights, and of "
         "activations in NVFP4");
    bool native = kernels_cuda_native(settled.number, why, sizeof why);
    if (native)
        printf("path.native\tyes: cuda:%d, with --activations nvfp4; make check-gpu "
               "compares it with emulation\n",
               settled.number);
    else
        printf("path.native\tno: %s\n", why);
    kernels_cuda_diagnose(say, NULL);
    refuse_missing(&settled, native ? NULL : why);
}
