/* SPDX-License-Identifier: MIT */
/* cuda: finds and opens libnibble-cuda.so, when a program first asks for a GPU.
 * Nothing else in the programs depends on CUDA. */
#include "kernels/cuda_sizes.h"
#include "kernels/kernels.h"

#include "lib/base/nvml.h"
#include "lib/base/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* GPU memory in use besides our allocations, measured on an H200: the context, and what
 * cuBLASLt, cuDNN and loaded kernels hold. */
enum { CONTEXT = 523 << 20, LIBRARIES = 704 << 20 };

typedef struct kernels *open_fn(size_t size, struct device is, int device,
                                struct err *err);
typedef void diagnose_fn(kernels_line_fn *say, void *ctx);

/* A function of the library; NULL: the reason is in why. */
static void *
find_backend(const char *name, char *why, size_t n)
{
    static const struct plugin cuda = { "libnibble-cuda.so", "NIBBLE_CUDA", "nvcc",
                                        false };
    return plugin_find(&cuda, name, why, n);
}

struct device
kernels_cuda_device(enum dtype act, bool any_order)
{
    const char *name = any_order ? "nibble_cuda_attention_workspace_any"
                                 : "nibble_cuda_attention_workspace";
    char why[512];
    size_t (*workspace)(const struct heads *) = NULL;
    if (act == DT_BF16)
        *(void **)&workspace = find_backend(name, why, sizeof why);
    return (struct device){ .name = "cuda",
                            .attention_workspace = workspace,
                            .act = act,
                            .grad = act,
                            .max_logits = 297 << 21, // 4,096 tokens of 4B
                            .expands = act == DT_BF16,
                            .any_order = any_order,
                            .alike = GEMV_MAX,
                            .cut = ATTENTION_CUT,
                            .transposes = true,
                            .fixed = WORKSPACE + PARTIALS + EXCHANGE + EXPANDED,
                            .driver = (uint64_t)CONTEXT + LIBRARIES,
                            .fp4 = FP4_EXPANDED,
                            .fp4_sums = 128U << 20 }; // 3,000 tokens of 4B
}

/* ---- the driver, asked first: without a GPU nothing large is loaded -------------- */

static bool
find_all(void *lib, void *const *to, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *f = lib ? dlsym(lib, names[i]) : NULL;
        if (!f)
            return false;
        memcpy(to[i], &f, sizeof f);
    }
    return true;
}

static void *
open_driver(void)
{
    return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

int
kernels_cuda_count(char *why, size_t size)
{
    enum { NO_DEVICE = 100 }; // CUDA_ERROR_NO_DEVICE
    static const char *const names[] = { "cuInit", "cuDeviceGetCount" };
    int (*init)(unsigned), (*count)(int *), n = 0, rc;
    void *driver = open_driver();
    if (!driver) {
        snprintf(why, size, "no NVIDIA GPU or driver here: there is no libcuda.so.1");
        return 0;
    }
    if (!find_all(driver, (void *[]){ &init, &count }, names, 2)) {
        snprintf(why, size, "libcuda.so.1 is no driver of NVIDIA's");
        return 0;
    }
    rc = init(0);
    if (rc == 0)
        rc = count(&n);
    if (rc == NO_DEVICE || (rc == 0 && n <= 0))
        snprintf(why, size,
                 "no NVIDIA GPU here: the driver finds none (in a container: was it "
                 "given one? is CUDA_VISIBLE_DEVICES right?)");
    else if (rc != 0)
        snprintf(why, size,
                 "the NVIDIA driver does not start: CUDA error %d; does nvidia-smi "
                 "work?",
                 rc);
    return rc == 0 && n > 0 ? n : 0;
}

bool
kernels_cuda_there(char *why, size_t n)
{
    return find_backend("nibble_cuda_open_16", why, n) != NULL;
}

/* ---- free memory, by NVML, which needs no context -------------------------------- */

/* PCI bus id, by which driver and NVML agree on a GPU, and total memory. */
static bool
describe(int device, char *bus, int n, size_t *all)
{
    int (*init)(unsigned), (*get)(int *, int), (*place)(char *, int, int);
    int (*total)(size_t *, int), d = 0;
    static const char *const names[] = { "cuInit", "cuDeviceGet", "cuDeviceGetPCIBusId",
                                         "cuDeviceTotalMem_v2" };
    return find_all(open_driver(), (void *[]){ &init, &get, &place, &total }, names,
                    4) &&
           init(0) == 0 && get(&d, device) == 0 && place(bus, n, d) == 0 &&
           total(all, d) == 0;
}

/* 0: there is no NVML, it does not report (a GPU that shares the machine's memory), or
 * it reports the whole of a GPU of which we have a part.  NVML is not shut down: the next time
 * it is open already, and to open it takes 10 ms. */
static uint64_t
free_by_nvml(int device)
{
    int (*init)(void), (*handle)(const char *, nvml_device *);
    int (*memory)(nvml_device, struct nvml_memory *);
    static const char *const names[] = { "nvmlInit_v2",
                                         "nvmlDeviceGetHandleByPciBusId_v2",
                                         "nvmlDeviceGetMemoryInfo" };
    struct nvml_memory m = { 0 };
    nvml_device d = NULL;
    char bus[32];
    size_t all = 0;
    bool known = describe(device, bus, sizeof bus, &all) &&
                 find_all(dlopen(NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL),
                          (void *[]){ &init, &handle, &memory }, names, 3) &&
                 init() == NVML_SUCCESS && handle(bus, &d) == NVML_SUCCESS &&
                 memory(d, &m) == NVML_SUCCESS && m.total / 8 * 7 < all;
    return known ? m.free : 0;
}

uint64_t
kernels_cuda_free(int device)
{
    char why[512];
    uint64_t (*f)(int) = NULL, free_bytes = free_by_nvml(device);
    if (free_bytes)
        return free_bytes;
    *(void **)&f = find_backend("nibble_cuda_free", why, sizeof why);
    return f ? f(device) : 0;
}

/* Whether a device is integrated, and its total memory; false: the driver does not
 * report. */
static bool
ask_driver(int device, int *integrated, size_t *all)
{
    enum { INTEGRATED = 18 }; // CU_DEVICE_ATTRIBUTE_INTEGRATED
    int (*init)(unsigned), (*get)(int *, int), (*attribute)(int *, int, int);
    int (*total)(size_t *, int), d = 0;
    static const char *const names[] = { "cuInit", "cuDeviceGet",
                                         "cuDeviceGetAttribute",
                                         "cuDeviceTotalMem_v2" };
    return find_all(open_driver(), (void *[]){ &init, &get, &attribute, &total }, names,
                    4) &&
           init(0) == 0 && get(&d, device) == 0 &&
           attribute(integrated, INTEGRATED, d) == 0 && total(all, d) == 0;
}

bool
kernels_cuda_integrated(int device)
{
    int integrated = 0;
    size_t all;
    return ask_driver(device, &integrated, &all) && integrated != 0;
}

uint64_t
kernels_cuda_used(int device)
{
    char why[512];
    int integrated;
    size_t all;
    uint64_t (*f)(int) = NULL, free = 0;
    *(void **)&f = find_backend("nibble_cuda_free", why, sizeof why);
    if (!f || !ask_driver(device, &integrated, &all))
        return 0;
    free = f(device);
    return free && free < all ? all - free : 0;
}

bool
kernels_cuda_native(int device, char *why, size_t n)
{
    bool (*f)(int, char *, size_t) = NULL;
    if (kernels_cuda_count(why, n) == 0)
        return false;
    *(void **)&f = find_backend("nibble_cuda_native", why, n);
    return f && f(device, why, n);
}

bool
kernels_cuda_peers_id(void *id, char *why, size_t n)
{
    bool (*f)(void *, char *, size_t) = NULL;
    *(void **)&f = find_backend("nibble_cuda_peers_id", why, n);
    return f && f(id, why, n);
}

bool
kernels_cuda_identity(int device, uint8_t *uuid, char *name, size_t n)
{
    int (*init)(unsigned), (*get)(int *, int), (*named)(char *, int, int);
    int (*identify)(void *, int), d = 0;
    static const char *const names[] = { "cuInit", "cuDeviceGet", "cuDeviceGetName",
                                         "cuDeviceGetUuid_v2" };
    return find_all(open_driver(), (void *[]){ &init, &get, &named, &identify }, names,
                    4) &&
           init(0) == 0 && get(&d, device) == 0 && named(name, (int)n, d) == 0 &&
           identify(uuid, d) == 0;
}

void
kernels_cuda_diagnose(kernels_line_fn *say, void *ctx)
{
    char why[512];
    diagnose_fn *f = NULL;
    if (kernels_cuda_count(why, sizeof why) == 0) {
        say(ctx, "cuda", why);
        return;
    }
    *(void **)&f = find_backend("nibble_cuda_diagnose", why, sizeof why);
    if (f)
        f(say, ctx);
    else
        say(ctx, "cuda", why);
}

struct kernels *
kernels_cuda(const struct device *is, int device, struct err *err)
{
    char why[512];
    open_fn *f = NULL;
    int n = kernels_cuda_count(why, sizeof why);
    if (n == 0 || device >= n) {
        if (n)
            snprintf(why, sizeof why, "there is no GPU %d: there are %d, from 0 on",
                     device, n);
        err_set(err, ERR_USAGE, "%s", why);
        return NULL;
    }
    *(void **)&f = find_backend("nibble_cuda_open_16", why, sizeof why);
    if (!f) {
        err_set(err, ERR_USAGE, "%s", why);
        return NULL;
    }
    return f(sizeof(struct kernels), *is, device, err);
}
