/* SPDX-License-Identifier: MIT */
/* device_rows: see device_rows.h. */
#include "cmd/cli/device_rows.h"

#include "lib/base/machine.h"

#include <stdio.h>
#include <string.h>

static const struct cmd loud; // what is asked for is shown

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

/* ---- what there is ------------------------------------------------------------------ */

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
        if (!k)
            die_err(&err);
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
    uint64_t available = machine_free();
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
    settled.host = cmd_host(&loud);
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
