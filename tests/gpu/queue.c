/* SPDX-License-Identifier: MIT */
/* queue: uploads in a separate queue, concurrent with products and ordered by events:
 * each product gets the input that was uploaded for it. */
#include "tests/gpu/pair.h"

enum { ROUNDS = 40, BUFFERS = 2, TOKENS = 64, IN = 256, OUT = 128 };

/* Events: a buffer has been filled; the product that reads it has ended. */
enum { FILLED = 0, USED = BUFFERS };

int
main(int argc, char **argv)
{
    const size_t n = TOKENS * IN, n_out = TOKENS * OUT;
    pair_options(argc, argv);
    pair_open(DT_F32);
    float *w = pair_random(OUT * IN, 0.1F, DT_F32, 1), *x[ROUNDS];
    struct matrix weight = matrix_of(DT_F32, pair_put(w, DT_F32, OUT * IN), OUT, IN),
                  here = matrix_of(DT_F32, w, OUT, IN);
    float *in[BUFFERS], *y = pair_poisoned(ROUNDS * n_out * sizeof *y);
    float *want = calloc(n_out + 1, sizeof *want);
    NEED(want);
    for (unsigned b = 0; b < BUFFERS; b++) {
        in[b] = pair_poisoned(n * sizeof *in[b]);
        kernels_record(gpu, USED + b); // the poison has been written
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned b = i % BUFFERS;
        x[i] = pair_random(n, 1, DT_F32, 10 + i);
        kernels_queue(gpu, QUEUE_COPY);
        kernels_wait(gpu, USED + b);
        kernels_upload(gpu, in[b], x[i], n * sizeof **x);
        kernels_record(gpu, FILLED + b);
        kernels_queue(gpu, QUEUE_COMPUTE);
        kernels_wait(gpu, FILLED + b);
        pair_linear(gpu, y + i * n_out, in[b], &weight, TOKENS, NULL);
        kernels_record(gpu, USED + b);
    }
    float *found = pair_get(y, DT_F32, ROUNDS * n_out);
    for (unsigned i = 0; i < ROUNDS; i++) {
        pair_linear(cpu, want, x[i], &here, TOKENS, NULL);
        PAIR_NEAR("product", found + i * n_out, want, n_out, 1e-5);
        free(x[i]);
    }
    for (unsigned b = 0; b < BUFFERS; b++)
        kernels_free(gpu, in[b]);
    kernels_free(gpu, weight.data);
    kernels_free(gpu, y);
    free(found);
    free(want);
    free(w);
    pair_close();
    return check_end();
}
