/* SPDX-License-Identifier: MIT */
/* tuned: products for which another algorithm of cuBLASLt's list than its first is
 * faster, on one kind of device with one version of the library.
 *
 * With 16384 tokens they were chosen to make a whole step of Qwen3-4B shorter, by a
 * regression over steps with algorithms drawn at random: at its power limit a chip
 * slows down for all kernels, and some algorithms that are faster alone cost more than
 * they gain.  With 8192 tokens they were 3 to 11 percent faster within ordinary steps,
 * with fewer tokens faster alone.  Gradients of q, k and v together (6144 rows), and of
 * gate and up (19456), were 1 to 5 percent faster than the first within steps.  Those
 * of the head, of 4096 tokens, come from 61 steps with random algorithms, and gain a
 * millisecond or less each. */
#ifndef NIBBLE_KERNELS_CUDA_TUNED_H
#define NIBBLE_KERNELS_CUDA_TUNED_H

#define TUNED_MAJOR  9 // H100 and H200
#define TUNED_SMS    132
#define TUNED_CUBLAS 130100

enum trans { TN, NN, NT }; // forward, dx, dw

static const struct tuning {
    enum trans trans;
    bool wide; // the result is f32
    size_t m, n, k;
    int algorithm;
} tunings[] = {
    { TN, false, 4096, 16384, 2560, 5 },  { TN, false, 1024, 16384, 2560, 9 },
    { TN, false, 9728, 16384, 2560, 7 },  { TN, false, 2560, 16384, 9728, 1 },
    { TN, false, 151936, 4096, 2560, 6 }, { NN, false, 9728, 16384, 2560, 1 },
    { NN, false, 2560, 16384, 9728, 2 },  { NN, false, 4096, 16384, 2560, 5 },
    { NN, false, 2560, 16384, 4096, 3 },  { NN, false, 2560, 16384, 1024, 4 },
    { NT, false, 9728, 2560, 16384, 9 },  { NT, false, 2560, 9728, 16384, 1 },
    { NT, false, 4096, 2560, 16384, 8 },  { NT, true, 2560, 151936, 4096, 8 },
    { TN, false, 4096, 8192, 2560, 5 },   { TN, false, 9728, 8192, 2560, 7 },
    { NN, false, 4096, 8192, 2560, 5 },   { NN, false, 2560, 8192, 1024, 3 },
    { TN, false, 4096, 4096, 2560, 5 },   { TN, false, 1024, 4096, 2560, 8 },
    { TN, false, 9728, 4096, 2560, 2 },   { TN, false, 2560, 4096, 4096, 8 },
    { NN, false, 2560, 4096, 4096, 8 },   { NN, false, 2560, 4096, 1024, 1 },
    { NN, false, 4096, 4096, 2560, 8 },   { NN, false, 9728, 4096, 2560, 2 },
    { NT, false, 4096, 2560, 4096, 6 },   { TN, false, 4096, 2048, 2560, 9 },
    { TN, false, 1024, 2048, 2560, 8 },   { TN, false, 9728, 2048, 2560, 6 },
    { NN, false, 2560, 2048, 4096, 8 },   { NN, false, 2560, 2048, 1024, 1 },
    { NN, false, 4096, 2048, 2560, 8 },   { NN, false, 9728, 2048, 2560, 7 },
    { NT, false, 4096, 2560, 2048, 2 },   { NN, false, 2560, 16384, 6144, 4 },
    { NT, false, 2560, 6144, 16384, 8 },  { NN, false, 2560, 8192, 6144, 1 },
    { NT, false, 2560, 6144, 8192, 5 },   { NN, false, 2560, 4096, 6144, 1 },
    { NT, false, 2560, 6144, 4096, 5 },   { NT, false, 2560, 6144, 2048, 5 },
    { NN, false, 2560, 16384, 19456, 2 }, { NN, false, 2560, 4096, 151936, 8 },
};

#endif
