/* SPDX-License-Identifier: MIT */
/* cuda: opens the device; its memory, queues and the table of operations. */
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/ops.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------- */

bool
cuda_check(struct cuda *c, cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return true;
    err_set(c->k.err, e == cudaErrorMemoryAllocation ? ERR_MEMORY : ERR_IO,
            "cuda:%d: %s: %s (%s)", c->device, what, cudaGetErrorString(e),
            cudaGetErrorName(e));
    return false;
}

bool
cuda_check_blas(struct cuda *c, cublasStatus_t s, const char *what)
{
    if (s == CUBLAS_STATUS_SUCCESS)
        return true;
    err_set(c->k.err, ERR_IO, "cuda:%d: %s: %s", c->device, what,
            cublasLtGetStatusString(s));
    return false;
}

/* ---- profiling ------------------------------------------------------------------- */

enum { MARKS = 4096, NAMES = 512 };

struct trace {
    cudaEvent_t at[MARKS];
    const char *name[MARKS];
    int n;
    struct {
        const char *name;
        double ms, first; // ms: without the first, which may load a kernel
        long count;
    } sum[NAMES];
};

static void
count_marks(struct cuda *c)
{
    struct trace *t = c->trace;
    if (t->n == 0)
        return;
    cudaEventSynchronize(t->at[t->n - 1]);
    for (int i = 1; i < t->n; i++) {
        float ms = 0;
        int k = 0;
        cudaEventElapsedTime(&ms, t->at[i - 1], t->at[i]);
        while (k < NAMES - 1 && t->sum[k].name &&
               strcmp(t->sum[k].name, t->name[i]) != 0)
            k++;
        t->sum[k].name = t->name[i];
        if (t->sum[k].count++ == 0)
            t->sum[k].first = (double)ms;
        else
            t->sum[k].ms += (double)ms;
    }
    cudaEvent_t last = t->at[t->n - 1];
    t->at[t->n - 1] = t->at[0];
    t->at[0] = last;
    t->n = 1;
}

void
cuda_mark(struct cuda *c, const char *name)
{
    struct trace *t = c->trace;
    if (!t || c->k.queue != QUEUE_COMPUTE)
        return;
    if (t->n == MARKS)
        count_marks(c);
    if (!t->at[t->n])
        cudaEventCreate(&t->at[t->n]);
    t->name[t->n] = name;
    cudaEventRecord(t->at[t->n++], c->q.stream);
}

static void
print_times(struct cuda *c)
{
    struct trace *t = c->trace;
    count_marks(c);
    for (int i = 0; i < NAMES && t->sum[i].name; i++)
        fprintf(stderr, "%10.3f ms in %8ld after one of %10.3f: %s\n", t->sum[i].ms,
                t->sum[i].count - 1, t->sum[i].first, t->sum[i].name);
    for (int i = 0; i < MARKS; i++)
        if (t->at[i])
            cudaEventDestroy(t->at[i]);
    free(t);
    c->trace = NULL;
}

/* ---- memory ---------------------------------------------------------------------- */

/* An allocation, in a list. */
struct block {
    void *p;
    enum memory what;
    uint64_t bytes;
    struct block *next;
};

/* Failure injection for tests: the n-th call from now on fails; 0: none. */
struct failure {
    long alloc, launch, wait, stage;
};

struct state { // a struct cuda and this file's private fields
    struct cuda c;
    struct block *blocks;
    struct failure fail;
};

static cudaError_t
inject_failure(long *n, cudaError_t with, cudaError_t e)
{
    return *n && --*n == 0 ? with : e;
}

void
cuda_launched(struct cuda *c, const char *name)
{
    struct state *w = (struct state *)c;
    c->q.early = NOT_EARLY;
    cuda_check(c,
               inject_failure(&w->fail.launch, cudaErrorLaunchOutOfResources,
                              cudaGetLastError()),
               name);
    cuda_mark(c, name);
}

void *
cuda_driver_function(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver ? dlsym(driver, name) : NULL;
}

void *
cuda_alloc(struct kernels *k, enum memory what, size_t bytes)
{
    struct state *w = (struct state *)k;
    struct cuda *c = &w->c;
    void *p = NULL;
    if (!cuda_ready(c))
        return NULL;
    struct block *b = (struct block *)malloc(sizeof *b);
    cudaError_t e =
        inject_failure(&w->fail.alloc, cudaErrorMemoryAllocation, cudaSuccess);
    if (b && e == cudaSuccess)
        e = cudaMalloc(&p, bytes ? bytes : 1);
    if (!b || e != cudaSuccess) {
        if (e == cudaErrorMemoryAllocation || !b)
            err_set(c->k.err, ERR_MEMORY,
                    "cuda:%d: out of memory for %zu bytes; %llu are in use", c->device,
                    bytes, (unsigned long long)k->usage.total);
        else
            cuda_check(c, e, "cudaMalloc");
        cudaGetLastError();
        free(b);
        return NULL;
    }
    *b = (struct block){ p, what, bytes, w->blocks };
    w->blocks = b;
    usage_add(&k->usage, what, (int64_t)bytes);
    c->q.early = NOT_EARLY;
    cuda_check(c, cudaMemsetAsync(p, 0, bytes, c->q.stream), "cudaMemsetAsync");
    return p;
}

void *
cuda_allocation(struct cuda *c, const void *p)
{
    struct block *b = ((struct state *)c)->blocks;
    while (b && b->p != p && (uintptr_t)p - (uintptr_t)b->p >= b->bytes) // 0, perhaps
        b = b->next;
    return b ? b->p : NULL;
}

static void
cuda_free(struct kernels *k, void *p)
{
    struct state *w = (struct state *)k;
    struct block **at = &w->blocks, *b;
    while (p && *at && (*at)->p != p)
        at = &(*at)->next;
    if (!p || !(b = *at))
        return;
    *at = b->next;
    cuda_forget(&w->c);
    usage_add(&k->usage, b->what, -(int64_t)b->bytes);
    cudaFree(p);
    free(b);
}

void *
cuda_scratch(struct cuda *c, size_t bytes)
{
    if (bytes > c->scratch_bytes) {
        cuda_free(&c->k, c->scratch);
        c->scratch = cuda_alloc(&c->k, MEMORY_WORK, bytes);
        c->scratch_bytes = c->scratch ? bytes : 0;
    }
    return c->scratch;
}

static char *
stage(const struct cuda *c, int i)
{
    return c->stages + (size_t)i * STAGE_BYTES;
}

/* Bytes of the i-th stage-sized piece of `bytes`. */
static size_t
piece_of(size_t bytes, size_t i)
{
    size_t left = bytes - i * STAGE_BYTES;
    return left < STAGE_BYTES ? left : STAGE_BYTES;
}

/* The next staging buffer not held by a thread, after its last copy has ended;
 * negative: the error is set. */
static int
acquire_stage(struct cuda *c)
{
    int i = c->stage_at, tries = 0;
    do
        i = (i + 1) % STAGES;
    while (c->stage_out[i] && ++tries < STAGES);
    if (tries == STAGES) {
        err_set(c->k.err, ERR_USAGE, "cuda: more than %d staging buffers", STAGES);
        return -1;
    }
    c->stage_at = i;
    cudaError_t e = cudaEventSynchronize(c->stage_free[i]);
    e = inject_failure(&((struct state *)c)->fail.stage, cudaErrorIllegalAddress, e);
    return cuda_ready(c) && cuda_check(c, e, "cudaEventSynchronize") ? i : -1;
}

/* Staging buffer i is free when what the queue has now has ended. */
static void
end_copy(struct cuda *c, int i)
{
    cuda_check(c, cudaEventRecord(c->stage_free[i], c->q.stream), "cudaEventRecord");
}

/* Start a copy from or to staging buffer i, which is free again when it has ended. */
static void
start_copy(struct cuda *c, void *to, const void *from, int i, size_t bytes,
           cudaMemcpyKind kind, const char *what)
{
    cuda_check(c, cudaMemcpyAsync(to, from, bytes, kind, c->q.stream), what);
    end_copy(c, i);
}

static void
send_stage(struct cuda *c, void *to, int i, size_t bytes)
{
    start_copy(c, to, stage(c, i), i, bytes, cudaMemcpyHostToDevice, "upload");
}

/* Host threads may call uploads in turn; the current device is a setting per thread. */
static bool
begin_upload(struct cuda *c)
{
    bool ready =
        cuda_ready(c) && cuda_check(c, cudaSetDevice(c->device), "cudaSetDevice");
    cuda_mark(c, "waiting for the host");
    c->q.early = NOT_EARLY;
    return ready;
}

void
cuda_upload(struct kernels *k, void *to, const void *from, size_t bytes)
{
    struct cuda *c = cuda_of(k);
    if (!begin_upload(c))
        return;
    for (size_t p = 0; p * STAGE_BYTES < bytes; p++) {
        int i = acquire_stage(c);
        if (i < 0)
            return;
        memcpy(stage(c, i), (const char *)from + p * STAGE_BYTES, piece_of(bytes, p));
        send_stage(c, (char *)to + p * STAGE_BYTES, i, piece_of(bytes, p));
    }
}

static void *
cuda_stage(struct kernels *k)
{
    struct cuda *c = cuda_of(k);
    int i = begin_upload(c) ? acquire_stage(c) : -1;
    if (i < 0)
        return NULL;
    c->stage_out[i] = true;
    return stage(c, i);
}

static void
cuda_stage_upload(struct kernels *k, void *to, void *stage, size_t bytes)
{
    struct cuda *c = cuda_of(k);
    int i = (int)(((char *)stage - c->stages) / STAGE_BYTES);
    c->stage_out[i] = false;
    if (bytes && begin_upload(c))
        send_stage(c, to, i, bytes);
}

void
cuda_copy(struct kernels *k, void *to, const void *from, size_t bytes)
{
    struct cuda *c = cuda_of(k);
    c->q.early = NOT_EARLY;
    if (cuda_ready(c))
        cuda_check(
            c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->q.stream),
            "copy");
}

void
cuda_zero(struct kernels *k, void *p, size_t bytes)
{
    struct cuda *c = cuda_of(k);
    c->q.early = NOT_EARLY;
    if (cuda_ready(c))
        cuda_check(c, cudaMemsetAsync(p, 0, bytes, c->q.stream), "cudaMemsetAsync");
    cuda_mark(c, "zero");
}

/* The copy has ended when its buffer is free. */
static bool
wait_for_stage(struct cuda *c, int i)
{
    cudaError_t e = cudaEventSynchronize(c->stage_free[i]);
    e = inject_failure(&((struct state *)c)->fail.wait, cudaErrorIllegalAddress, e);
    return cuda_check(c, e, "a step");
}

/* Pipelined: one piece is copied from the device while the one before is copied out of
 * its stage. */
static int
cuda_download(struct kernels *k, void *to, const void *from, size_t bytes)
{
    struct cuda *c = cuda_of(k);
    size_t pieces = (bytes + STAGE_BYTES - 1) / STAGE_BYTES;
    int before = -1;
    c->q.early = NOT_EARLY;
    for (size_t i = 0; i < pieces + 1 && cuda_ready(c); i++) {
        int here = -1;
        if (i < pieces && (here = acquire_stage(c)) >= 0)
            start_copy(c, stage(c, here), (const char *)from + i * STAGE_BYTES, here,
                       piece_of(bytes, i), cudaMemcpyDeviceToHost, "download");
        if (before >= 0 && wait_for_stage(c, before))
            memcpy((char *)to + (i - 1) * STAGE_BYTES, stage(c, before),
                   piece_of(bytes, i - 1));
        before = here;
    }
    cuda_mark(c, "download");
    return cuda_ready(c) ? 0 : -1;
}

/* If the memory stays, beside the queue: in it, what follows a copy to the host begins 12 us
 * later. */
static int
cuda_download_begin(struct kernels *k, const void *from, size_t bytes, bool stays)
{
    struct cuda *c = cuda_of(k);
    cudaStream_t queue = c->q.stream;
    if (stays && !c->beside)
        cuda_check(c, cudaStreamCreateWithFlags(&c->beside, cudaStreamNonBlocking),
                   "cudaStreamCreate");
    c->q.early = NOT_EARLY;
    int i = cuda_ready(c) ? acquire_stage(c) : -1;
    if (i < 0)
        return -1;
    if (stays) {
        end_copy(c, i);
        cuda_check(c, cudaStreamWaitEvent(c->beside, c->stage_free[i], 0),
                   "cudaStreamWaitEvent");
        c->q.stream = c->beside;
    }
    start_copy(c, stage(c, i), from, i, bytes, cudaMemcpyDeviceToHost, "download");
    c->q.stream = queue;
    c->stage_out[i] = true;
    return i;
}

static int
cuda_download_end(struct kernels *k, int handle, void *to, size_t bytes)
{
    struct cuda *c = cuda_of(k);
    c->stage_out[handle] = false;
    if (to && wait_for_stage(c, handle))
        memcpy(to, stage(c, handle), bytes);
    cuda_mark(c, "download");
    return cuda_ready(c) ? 0 : -1;
}

/* ---- queues ---------------------------------------------------------------------- */

/* Exchanges go before products where both wait for a multiprocessor: another rank waits. */
static void
create_stream(struct cuda *c, enum queue queue)
{
    int lowest = 0, highest = 0;
    if (cuda_check(c, cudaDeviceGetStreamPriorityRange(&lowest, &highest),
                   "cudaDeviceGetStreamPriorityRange"))
        cuda_check(
            c,
            cudaStreamCreateWithPriority(&c->q.stream, cudaStreamNonBlocking,
                                         queue == QUEUE_EXCHANGE ? highest : lowest),
            "cudaStreamCreate");
}

static void
cuda_queue(struct kernels *k, enum queue queue)
{
    struct cuda *c = cuda_of(k);
    c->queues[k->queue] = c->q;
    c->q = c->queues[queue];
    if (!c->q.stream)
        create_stream(c, queue);
}

static void
cuda_record(struct kernels *k, unsigned e)
{
    struct cuda *c = cuda_of(k);
    c->event_of[e] = k->queue;
    if (c->events[e] ||
        cuda_check(c, cudaEventCreateWithFlags(&c->events[e], cudaEventDisableTiming),
                   "cudaEventCreate"))
        cuda_check(c, cudaEventRecord(c->events[e], c->q.stream), "cudaEventRecord");
}

static void
cuda_wait_event(struct kernels *k, unsigned e)
{
    struct cuda *c = cuda_of(k);
    bool exchange = c->event_of[e] == QUEUE_EXCHANGE && k->queue == QUEUE_COMPUTE;
    c->q.early = NOT_EARLY;
    if (!c->events[e])
        return;
    if (exchange)
        cuda_peers_wait(c, true);
    cuda_check(c, cudaStreamWaitEvent(c->q.stream, c->events[e], 0),
               "cudaStreamWaitEvent");
    if (exchange)
        cuda_peers_wait(c, false);
}

/* ---- open and close -------------------------------------------------------------- */

static void
settle_queues(struct cuda *c)
{
    c->queues[c->k.queue] = c->q;
    for (int i = 0; i < QUEUES; i++)
        if (c->queues[i].stream)
            cudaStreamSynchronize(c->queues[i].stream);
    if (c->beside)
        cudaStreamSynchronize(c->beside);
}

static void
close_queues(struct cuda *c)
{
    for (int i = 0; i < QUEUES; i++)
        if (c->queues[i].stream)
            cudaStreamDestroy(c->queues[i].stream);
    if (c->beside)
        cudaStreamDestroy(c->beside);
    for (int i = 0; i < EVENTS; i++)
        if (c->events[i])
            cudaEventDestroy(c->events[i]);
}

static void
cuda_close(struct kernels *k)
{
    struct state *w = (struct state *)k;
    struct cuda *c = &w->c;
    if (c->trace)
        print_times(c);
    if (cuda_ready(c)) // an exchange that has failed must not be waited for
        settle_queues(c);
    cuda_peers_close(c);
    settle_queues(c);
    cuda_replay_close(c);
    cuda_gemm_close(c);
    cudnn_close(c);
    close_queues(c);
    while (w->blocks)
        cuda_free(k, w->blocks->p);
    cudaFreeHost(c->stages);
    for (int i = 0; i < STAGES; i++)
        if (c->stage_free[i])
            cudaEventDestroy(c->stage_free[i]);
    free(w);
}

static const struct ops cuda_ops = {
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .download_begin = cuda_download_begin,
    .download_end = cuda_download_end,
    .stage = cuda_stage,
    .stage_upload = cuda_stage_upload,
    .queue = cuda_queue,
    .record = cuda_record,
    .wait = cuda_wait_event,
    .replay = cuda_replay,
    .recorded = cuda_recorded,
    .join = cuda_join,
    .join_copies = cuda_join_copies,
    .transfer = cuda_transfer,
    .exchanged = cuda_exchanged,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .gather = cuda_gather,
    .scatter = cuda_scatter,
    .convert = cuda_convert,
    .expand = cuda_expand_weight,
    .linear = cuda_linear,
    .norm_linear = cuda_norm_linear,
    .norm_swiglu = cuda_norm_swiglu,
    .attend = cuda_attend,
    .token = cuda_token,
    .layers = cuda_layers,
    .linear_dx = cuda_linear_dx,
    .linear_dw = cuda_linear_dw,
    .embed = cuda_embed,
    .embed_dw = cuda_embed_dw,
    .norm = cuda_norm,
    .norm_bwd = cuda_norm_bwd,
    .qk_norm_rope = cuda_qk_norm_rope,
    .qk_norm_rope_bwd = cuda_qk_norm_rope_bwd,
    .attention = cuda_attention,
    .attention_bwd = cuda_attention_bwd,
    .attention_rope_bwd = cuda_attention_rope_bwd,
    .swiglu = cuda_swiglu,
    .swiglu_bwd = cuda_swiglu_bwd,
    .cross_entropy = cuda_cross_entropy,
    .distill = cuda_distill,
    .l1 = cuda_l1,
    .argmax = cuda_argmax,
    .block_gram = cuda_block_gram,
    .column_stats = cuda_column_stats,
    .amax = cuda_amax,
    .largest = cuda_largest,
    .quantize = cuda_quantize,
    .to_fp8 = cuda_to_fp8,
    .norm_to_fp8 = cuda_norm_to_fp8,
    .norm_again_to_fp8 = cuda_norm_again_to_fp8,
    .swiglu_to_fp8 = cuda_swiglu_to_fp8,
    .swiglu_bwd_to_fp8 = cuda_swiglu_bwd_to_fp8,
    .sum = cuda_sum,
    .sum_squares = cuda_sum_squares,
    .block_squares = cuda_block_squares,
    .clip = cuda_clip,
    .adamw = cuda_adamw,
};

/* Version of our arithmetic and algorithm choices: increment it whenever a change here
 * changes bits of a model's values, so that a resumed run is warned. */
enum { ARITHMETIC = 7 };

static bool
query_device(struct cuda *c)
{
    cudaDeviceProp p;
    if (!cuda_check(c, cudaSetDevice(c->device), "cudaSetDevice") ||
        !cuda_check(c, cudaGetDeviceProperties(&p, c->device),
                    "cudaGetDeviceProperties"))
        return false;
    c->sms = p.multiProcessorCount;
    c->major = p.major;
    c->minor = p.minor;
    c->shared = p.sharedMemPerBlockOptin;
    snprintf(c->k.route, sizeof c->k.route,
             "cuda %s%s %d sm_%d%d cublasLt %zu cudnn %zu",
             c->k.is.act == DT_F32 ? "f32" : "bf16", c->k.is.any_order ? " fast" : "",
             ARITHMETIC, p.major, p.minor, cublasLtGetVersion(), cudnn_version());
    if (p.major < 9) {
        err_set(c->k.err, ERR_USAGE,
                "cuda:%d: %s has compute capability %d.%d; 9.0 or more is "
                "needed; --device cpu works without",
                c->device, p.name, p.major, p.minor);
        return false;
    }
    return true;
}

static bool
alloc_buffers(struct cuda *c)
{
    struct kernels *k = &c->k;
    if (!cuda_check(c, cudaStreamCreateWithFlags(&c->q.stream, cudaStreamNonBlocking),
                    "cudaStreamCreate"))
        return false;
    c->q.workspace = cuda_alloc(k, MEMORY_OTHER, WORKSPACE);
    c->q.partials = (float *)cuda_alloc(k, MEMORY_OTHER, PARTIALS);
    c->exchange = (char *)cuda_alloc(k, MEMORY_OTHER, EXCHANGE);
    c->q.expanded = cuda_alloc(k, MEMORY_OTHER, EXPANDED);
    c->one_zero = (float *)cuda_alloc(k, MEMORY_OTHER, 256 * sizeof(float));
    if (!cuda_check(c, cudaMallocHost(&c->stages, (size_t)STAGES * STAGE_BYTES),
                    "cudaMallocHost"))
        return false;
    for (int i = 0; i < STAGES; i++)
        if (!cuda_check(
                c, cudaEventCreateWithFlags(&c->stage_free[i], cudaEventDisableTiming),
                "cudaEventCreate"))
            return false;
    if (getenv("NIBBLE_CUDA_TIMES"))
        c->trace = (struct trace *)calloc(1, sizeof *c->trace);
    const float one_zero[2] = { 1, 0 };
    if (c->one_zero)
        cuda_upload(k, c->one_zero, one_zero, sizeof one_zero);
    const unsigned first = 0;
    c->ticket = (unsigned *)(c->one_zero + 64); // in a line of its own
    if (c->one_zero)
        cuda_upload(k, c->ticket, &first, sizeof first);
    return cuda_ready(c);
}

static long
env_num(const char *variable)
{
    const char *text = getenv(variable);
    return text ? atol(text) : 0;
}

/* Entry point for kernels/cuda.c. */
extern "C" __attribute__((visibility("default"))) struct kernels *
nibble_cuda_open_16(size_t size, struct device is, int device, struct err *err)
{
    if (size != sizeof(struct kernels)) {
        err_set(err, ERR_USAGE,
                "libnibble-cuda.so is of another version than this program: build both "
                "again "
                "(make), or name the right one by NIBBLE_CUDA");
        return NULL;
    }
    struct state *w = (struct state *)calloc(1, sizeof *w);
    if (!w) {
        err_set(err, ERR_MEMORY, "out of memory");
        return NULL;
    }
    w->fail =
        (struct failure){ env_num("NIBBLE_FAIL_ALLOC"), env_num("NIBBLE_FAIL_LAUNCH"),
                          env_num("NIBBLE_FAIL_WAIT"), env_num("NIBBLE_FAIL_STAGE") };
    w->c.k.op = &cuda_ops;
    w->c.k.is = is;
    w->c.k.err = err;
    w->c.device = device;
    if (query_device(&w->c) && alloc_buffers(&w->c) && cuda_gemm_open(&w->c))
        return &w->c.k;
    cuda_close(&w->c.k);
    return NULL;
}

extern "C" bool nibble_cuda_native(int device, char *why, size_t n);
typedef void line_fn(void *ctx, const char *what, const char *value);

static void
print_versions(line_fn *line, void *ctx)
{
    char text[64];
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver) // 0: there is no driver
        snprintf(text, sizeof text, "%d.%d", driver / 1000, driver % 1000 / 10);
    else
        snprintf(text, sizeof text, "none");
    line(ctx, "highest CUDA version of the driver", text);
    snprintf(text, sizeof text, "%d.%d", runtime / 1000, runtime % 1000 / 10);
    line(ctx, "CUDA runtime", text);
    size_t lt = cublasLtGetVersion();
    snprintf(text, sizeof text, "%zu.%zu.%zu", lt / 10000, lt / 100 % 100, lt % 100);
    line(ctx, "cuBLASLt", text);
    line(ctx, "cuDNN", cudnn_status());
}

static void
print_device(int i, line_fn *line, void *ctx)
{
    cudaDeviceProp p;
    char what[32], value[1024], why[512];
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess)
        return;
    bool fp4 = nibble_cuda_native(i, why, sizeof why);
    snprintf(what, sizeof what, "cuda:%d", i);
    snprintf(value, sizeof value,
             "%s, sm_%d%d, %d multiprocessors, %.1f GB%s; native NVFP4 products: %s",
             p.name, p.major, p.minor, p.multiProcessorCount,
             (double)p.totalGlobalMem / (1 << 30),
             p.major < 9 ? ", too old: 9.0 is needed" : "", fp4 ? "yes" : why);
    line(ctx, what, value);
}

/* How ranks with these GPUs exchange. */
static void
print_exchange(int n, line_fn *line, void *ctx)
{
    char text[64];
    const char *refused = cuda_copies_refused();
    if (refused) {
        snprintf(text, sizeof text, "by NCCL: %s", refused);
        line(ctx, "exchange of ranks", text);
        return;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            if (i != k && !cuda_has_nvlink(i, k)) {
                snprintf(text, sizeof text,
                         "by NCCL: no NVLink from cuda:%d to cuda:%d", i, k);
                line(ctx, "exchange of ranks", text);
                return;
            }
    line(ctx, "exchange of ranks", "by copies, over NVLink");
}

/* Lines for --diagnose. */
extern "C" __attribute__((visibility("default"))) void
nibble_cuda_diagnose(line_fn *line, void *ctx)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    print_versions(line, ctx);
    if (e != cudaSuccess)
        line(ctx, "cuda", cudaGetErrorString(e));
    for (int i = 0; e == cudaSuccess && i < n; i++)
        print_device(i, line, ctx);
    if (e == cudaSuccess && n > 1)
        print_exchange(n, line, ctx);
}

/* Of the first device; 0: unknown. */
static int
first_major(void)
{
    cudaDeviceProp p;
    static int major;
    if (major == 0 && cudaGetDeviceProperties(&p, 0) == cudaSuccess)
        major = p.major;
    return major;
}

extern "C" __attribute__((visibility("default"))) size_t
nibble_cuda_attention_workspace(const struct heads *h)
{
    return cuda_attention_workspace(h, first_major(), false);
}

extern "C" __attribute__((visibility("default"))) size_t
nibble_cuda_attention_workspace_any(const struct heads *h)
{
    return cuda_attention_workspace(h, first_major(), true);
}

/* Free bytes of a device; 0: unknown. */
extern "C" __attribute__((visibility("default"))) uint64_t
nibble_cuda_free(int device)
{
    size_t free_bytes = 0, all = 0;
    if (cudaSetDevice(device) != cudaSuccess ||
        cudaMemGetInfo(&free_bytes, &all) != cudaSuccess)
        return 0;
    return free_bytes;
}
