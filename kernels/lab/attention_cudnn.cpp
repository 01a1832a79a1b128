/* SPDX-License-Identifier: MIT */
/* attention_cudnn: whether cuDNN's attention is right, the same each time, how much
 * memory it takes and how fast it is, by how much of the way back is done at once.
 *
 *   g++ -std=c++17 -O2 -I. -I.cache/cudnn-frontend/include -I/usr/local/cuda/include \
 *       -include kernels/cuda/attention_cudnn.cpp \
 *       kernels/lab/attention_cudnn.cpp -o attention_cudnn \
 *       -L/usr/local/cuda/lib64 -lcudart_static -lpthread -ldl -lrt
 *   ./attention_cudnn
 *
 * The source comes before this one, since room_wanted is its own.
 *
 * Times are the median of 10 on the device; TFLOP/s count 2 products forward and 5 back,
 * of the half of all scores that is seen. */
#include "kernels/cuda/attention_cudnn.h"

#include <algorithm>
#include <stdarg.h>
#include <stdlib.h>

static struct err err;
static struct cuda c;

#define NEED(x)                                                                        \
    do {                                                                               \
        if (!(x)) {                                                                    \
            printf("%d: %s: %s; %s; %s\n", __LINE__, #x, cudnn_words(), err.msg,       \
                   cudaGetErrorString(cudaGetLastError()));                            \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* ---- a device of cudaMalloc alone --------------------------------------------------------- */

static size_t allocated;

static void *
lab_alloc(struct kernels *, size_t bytes)
{
    void *p = NULL;
    allocated = bytes;
    return cudaMalloc(&p, bytes + 1) == cudaSuccess ? p : NULL;
}

static void
lab_release(struct kernels *, void *p)
{
    cudaFree(p);
}

extern "C" void
err_fill(struct err *e, enum err_kind kind, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, args);
    va_end(args);
    e->kind = kind;
}

static void
open_device(void)
{
    cudaDeviceProp p;
    NEED(cudaGetDeviceProperties(&p, 0) == cudaSuccess);
    NEED(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking) == cudaSuccess);
    c.k.is.act = DT_BF16;
    c.k.alloc = lab_alloc;
    c.k.release = lab_release;
    c.err = &err;
    c.major = p.major;
    printf("%s, sm_%d%d, cuDNN %s\n", p.name, p.major, p.minor, cudnn_words());
}

/* ---- a pass -------------------------------------------------------------------------------- */

enum { TENSORS = 8 }; // q key value out dout dq dkey dvalue

struct pass {
    struct heads h;
    size_t length, n[TENSORS];
    __nv_bfloat16 *at[TENSORS];
    float *lse, *work;
};

static float
random_of(uint32_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 1664525 + 1013904223;
        sum += (float)(*state >> 8) / (1 << 24) - 0.5F;
    }
    return sum * 1.7F;
}

static struct pass
open_pass(size_t docs, size_t length, size_t query, size_t kv, size_t dim)
{
    struct pass p = {};
    uint32_t state = 7;
    p.h.tokens = docs * length;
    p.h.query = query;
    p.h.kv = kv;
    p.h.dim = dim;
    p.length = length;
    for (int i = 0; i < TENSORS; i++) {
        bool of_keys = i == 1 || i == 2 || i == 6 || i == 7;
        p.n[i] = p.h.tokens * (of_keys ? kv : query) * dim;
        NEED(cudaMalloc(&p.at[i], p.n[i] * 2) == cudaSuccess);
        std::vector<__nv_bfloat16> x(p.n[i]);
        for (size_t e = 0; e < p.n[i]; e++)
            x[e] = e < 1 << 20 ? __float2bfloat16(random_of(&state))
                               : x[e - (1 << 20) + 7];
        NEED(cudaMemcpy(p.at[i], x.data(), p.n[i] * 2, cudaMemcpyHostToDevice) ==
             cudaSuccess);
    }
    NEED(cudaMalloc(&p.lse, query * p.h.tokens * 4) == cudaSuccess);
    NEED(cudaMalloc(&p.work, query * p.h.tokens * 4) == cudaSuccess);
    return p;
}

static void
close_pass(struct pass *p)
{
    for (int i = 0; i < TENSORS; i++)
        cudaFree(p->at[i]);
    cudaFree(p->lse);
    cudaFree(p->work);
}

static bool
go(const struct pass *p)
{
    return cudnn_attention(&c, p->at[3], p->lse, p->at[0], p->at[1], p->at[2], &p->h,
                           p->length);
}

static bool
go_back(const struct pass *p)
{
    return cudnn_attention_dx(&c, p->at[5], p->at[6], p->at[7], p->at[4], p->at[3],
                              p->lse, p->at[0], p->at[1], p->at[2], p->work, &p->h,
                              p->length);
}

static std::vector<__nv_bfloat16>
get_bits(const struct pass *p, int i)
{
    std::vector<__nv_bfloat16> x(p->n[i]);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    NEED(cudaMemcpy(x.data(), p->at[i], p->n[i] * 2, cudaMemcpyDeviceToHost) ==
         cudaSuccess);
    return x;
}

static std::vector<double>
get(const struct pass *p, int i)
{
    std::vector<double> y;
    for (__nv_bfloat16 x : get_bits(p, i))
        y.push_back((double)__bfloat162float(x));
    return y;
}

/* ---- right --------------------------------------------------------------------------------- */

/* Root mean square of the difference beside that of what is expected. */
static void
compare(const char *what, const std::vector<double> &is,
        const std::vector<double> &want)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < is.size(); i++) {
        off += (is[i] - want[i]) * (is[i] - want[i]);
        all += want[i] * want[i];
    }
    printf("  %s %.2e", what, sqrt(off / all));
}

/* Everything in double, from cuDNN's own bf16 out. */
static void
check(size_t docs, size_t length, size_t query, size_t kv, size_t dim)
{
    struct pass p = open_pass(docs, length, query, kv, dim);
    NEED(go(&p));
    NEED(go_back(&p));
    std::vector<double> q = get(&p, 0), key = get(&p, 1), value = get(&p, 2),
                        y = get(&p, 3), dout = get(&p, 4);
    std::vector<double> out(y.size()), dq(y.size()), dkey(key.size()),
        dvalue(key.size());
    std::vector<double> lse(query * p.h.tokens), s(length);
    double scale = 1 / sqrt((double)dim);
    auto dot = [&](const double *a, const double *b) {
        double sum = 0;
        for (size_t i = 0; i < dim; i++)
            sum += a[i] * b[i];
        return sum;
    };
    for (size_t t = 0; t < p.h.tokens; t++)
        for (size_t head = 0; head < query; head++) {
            size_t first = t / length * length, at = (t * query + head) * dim;
            double sum = 0, mean = dot(&dout[at], &y[at]);
            for (size_t k = first; k <= t; k++) {
                size_t to = (k * kv + head / (query / kv)) * dim;
                sum += s[k - first] = exp(scale * dot(&q[at], &key[to]));
            }
            lse[head * p.h.tokens + t] = log(sum);
            for (size_t k = first; k <= t; k++) {
                size_t to = (k * kv + head / (query / kv)) * dim;
                double w = s[k - first] / sum;
                double ds = w * (dot(&dout[at], &value[to]) - mean) * scale;
                for (size_t i = 0; i < dim; i++) {
                    out[at + i] += w * value[to + i];
                    dvalue[to + i] += w * dout[at + i];
                    dq[at + i] += ds * key[to + i];
                    dkey[to + i] += ds * q[at + i];
                }
            }
        }
    std::vector<float> l(lse.size());
    NEED(cudaMemcpy(l.data(), p.lse, l.size() * 4, cudaMemcpyDeviceToHost) ==
         cudaSuccess);
    printf("%zux%zu %zu/%zu %zu:", docs, length, query, kv, dim);
    compare("out", y, out);
    compare("lse", std::vector<double>(l.begin(), l.end()), lse);
    compare("dq", get(&p, 5), dq);
    compare("dkey", get(&p, 6), dkey);
    compare("dvalue", get(&p, 7), dvalue);
    printf("\n");
    close_pass(&p);
}

/* ---- the same, and fast -------------------------------------------------------------------- */

static void
forget_graphs(void)
{
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    cudnn_close(&c);
}

template <typename F>
static double
time_of(F f)
{
    std::vector<double> t;
    cudaEvent_t from, to;
    NEED(cudaEventCreate(&from) == cudaSuccess && cudaEventCreate(&to) == cudaSuccess);
    for (int i = 0; i < 13; i++) {
        float ms = 0;
        cudaEventRecord(from, c.stream);
        NEED(f());
        cudaEventRecord(to, c.stream);
        NEED(cudaEventSynchronize(to) == cudaSuccess);
        cudaEventElapsedTime(&ms, from, to);
        if (i > 2)
            t.push_back((double)ms);
    }
    std::sort(t.begin(), t.end());
    return t[t.size() / 2];
}

static bool
same_bits(const struct pass *p)
{
    std::vector<__nv_bfloat16> first[3];
    for (int i = 0; i < 5; i++) {
        NEED(go_back(p));
        for (int j = 0; j < 3; j++) {
            std::vector<__nv_bfloat16> x = get_bits(p, 5 + j);
            if (i == 0)
                first[j] = x;
            else if (memcmp(x.data(), first[j].data(), x.size() * sizeof x[0]) != 0)
                return false;
        }
    }
    return true;
}

static void
measure(size_t docs, size_t length, size_t query, size_t kv, size_t dim)
{
    struct pass p = open_pass(docs, length, query, kv, dim);
    double triangle =
        (double)(docs * length) * (double)(length * query * dim) / 2 * 1e-9;
    allocated = 0;
    forget_graphs();
    double ms = time_of([&] { return go(&p); });
    printf("%zux%zu %zu/%zu %zu: forward %.3f ms, %.0f TFLOP/s, room %zu\n", docs,
           length, query, kv, dim, ms, 4 * triangle / ms, allocated);
    for (int mib = 64; mib <= 4096; mib *= 2) {
        bool in_order = mib < 4096;
        c.k.is.any_order = !in_order;
        room_wanted = in_order ? (size_t)mib << 20 : SIZE_MAX;
        forget_graphs();
        allocated = 0;
        struct share part = share_of(&p.h, length, true, !in_order);
        ms = time_of([&] { return go_back(&p); });
        printf(
            "  back, %s, %d MiB: %lld documents, %lld heads: %.3f ms, %.0f TFLOP/s, ",
            in_order ? "in order" : "in any order", mib, (long long)part.docs,
            (long long)part.heads, ms, 10 * triangle / ms);
        printf("room %zu (%zu expected), %s\n", allocated, cudnn_room(&p.h, length, !in_order),
               same_bits(&p) ? "the same bits" : "OTHER BITS");
        fflush(stdout);
    }
    c.k.is.any_order = false;
    room_wanted = (size_t)512 << 20;
    forget_graphs();
    close_pass(&p);
}

int
main(void)
{
    open_device();
    check(1, 256, 4, 2, 128);
    check(3, 384, 8, 2, 128);
    check(2, 256, 4, 4, 64);
    room_wanted = 1 << 20; // in parts: documents, and heads of one
    forget_graphs();
    check(3, 384, 8, 2, 128);
    forget_graphs();
    room_wanted = (size_t)512 << 20;
    measure(8, 2048, 32, 8, 128);
    measure(1, 8192, 32, 8, 128);
    measure(2, 8192, 32, 8, 128);
    measure(8, 2048, 16, 8, 128);
    measure(32, 512, 32, 8, 128);
    measure(16, 1024, 32, 8, 64);
    return 0;
}
