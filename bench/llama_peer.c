/* SPDX-License-Identifier: MIT */
/* llama_peer: llama.cpp beside "generate", by its library alone.  bench/prefill.sh builds
 * both.
 *
 *   llama_peer speed MODEL PREFILL DECODE THREADS
 *       two numbers: tokens a second of a prompt of PREFILL ids, and of DECODE tokens one
 *       by one from an empty cache.  Done as its own llama-bench does, with its default
 *       settings; before each, the same is done a first time without a clock
 *   llama_peer tokens MODEL TOKENS THREADS <PROMPTS
 *       of prompts that are lines of ids: the most likely token each time, the lowest of
 *       equal ones, a colon, and its log-probability.  Keys and values are kept in f32, and
 *       attention is not the fused one
 *   llama_peer quantize MODEL OUT TYPE THREADS
 *       TYPE: q8_0 or q4_0
 */
#include "llama.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_IDS = 4096 };

static llama_token ids[MAX_IDS];

static void
quiet(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static void
fail(const char *what)
{
    fprintf(stderr, "llama_peer: %s\n", what);
    exit(2);
}

static int
number(const char *text)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1 || n > MAX_IDS)
        fail("want whole numbers from 1 to 4096");
    return (int)n;
}

/* exact: nothing is rounded that need not be. */
static struct llama_context *
open_model(const char *path, int threads, bool exact)
{
    struct llama_model *m =
        llama_model_load_from_file(path, llama_model_default_params());
    struct llama_context_params p = llama_context_default_params();
    if (!m)
        fail("the model does not load");
    p.n_threads = p.n_threads_batch = threads;
    if (exact) {
        p.type_k = p.type_v = GGML_TYPE_F32;
        p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        p.n_ctx = (uint32_t)llama_model_n_ctx_train(m);
    } else {
        p.n_ctx = 1024;
    }
    struct llama_context *c = llama_init_from_model(m, p);
    if (!c)
        fail("no context");
    return c;
}

static int
vocabulary(struct llama_context *c)
{
    return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(c)));
}

static void
put(struct llama_context *c, llama_token *from, int n)
{
    if (llama_decode(c, llama_batch_get_one(from, n)) != 0)
        fail("llama_decode failed");
}

/* ---- tokens ---------------------------------------------------------------------- */

static llama_token
most_likely(const float *logits, int n, double *logprob)
{
    llama_token most = 0;
    double sum = 1; // its own share
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[most])
            most = i;
    for (int i = 0; i < n; i++)
        if (i != most)
            sum += exp((double)logits[i] - (double)logits[most]);
    *logprob = -log(sum);
    return most;
}

static void
tokens(const char *model, int n, int threads)
{
    struct llama_context *c = open_model(model, threads, true);
    static char line[MAX_IDS * 8];
    while (fgets(line, sizeof line, stdin)) {
        int length = 0;
        for (char *s = strtok(line, " \n"); s && length < MAX_IDS;
             s = strtok(NULL, " \n"))
            ids[length++] = (llama_token)strtol(s, NULL, 10);
        llama_memory_clear(llama_get_memory(c), true);
        put(c, ids, length);
        for (int i = 0; i < n; i++) {
            double logprob;
            ids[0] = most_likely(llama_get_logits_ith(c, -1), vocabulary(c), &logprob);
            printf("%s%d:%.9g", i ? " " : "", ids[0], logprob);
            if (i + 1 < n)
                put(c, ids, 1);
        }
        puts("");
    }
}

/* ---- speed ------------------------------------------------------------------------ */

static double
seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n tokens, `step` at a time; a second run of the same is what counts. */
static double
rate(struct llama_context *c, int n, int step)
{
    double start = 0;
    for (int run = 0; run < 2; run++) {
        llama_memory_clear(llama_get_memory(c), true);
        start = seconds();
        for (int i = 0; i < n; i += step) {
            put(c, ids + i, step);
            llama_synchronize(c);
        }
    }
    return n / (seconds() - start);
}

static void
speed(const char *model, int prefill, int decode, int threads)
{
    struct llama_context *c = open_model(model, threads, false);
    for (int i = 0; i < MAX_IDS; i++)
        ids[i] = (llama_token)((i + 1) * 7919LL % vocabulary(c));
    double first = rate(c, prefill, prefill);
    printf("%.2f %.2f\n", first, rate(c, decode, 1));
}

/* ---- quantize --------------------------------------------------------------------- */

static void
quantize(const char *from, const char *to, const char *type, int threads)
{
    struct llama_model_quantize_params p = llama_model_quantize_default_params();
    p.nthread = threads;
    if (strcmp(type, "q8_0") == 0)
        p.ftype = LLAMA_FTYPE_MOSTLY_Q8_0;
    else if (strcmp(type, "q4_0") == 0)
        p.ftype = LLAMA_FTYPE_MOSTLY_Q4_0;
    else
        fail("want q8_0 or q4_0");
    if (llama_model_quantize(from, to, &p) != 0)
        fail("cannot quantize");
}

int
main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    llama_log_set(quiet, NULL);
    llama_backend_init();
    if (strcmp(what, "speed") == 0 && argc == 6)
        speed(argv[2], number(argv[3]), number(argv[4]), number(argv[5]));
    else if (strcmp(what, "tokens") == 0 && argc == 5)
        tokens(argv[2], number(argv[3]), number(argv[4]));
    else if (strcmp(what, "quantize") == 0 && argc == 6)
        quantize(argv[2], argv[3], argv[4], number(argv[5]));
    else
        fail("usage: llama_peer speed|tokens|quantize ..., see its source");
    return fflush(stdout) || ferror(stdout) ? 2 : 0;
}
