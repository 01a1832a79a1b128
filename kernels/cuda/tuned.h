/* SPDX-License-Identifier: MIT */
/* tuned: products whose fastest algorithm is not the first of cuBLASLt's list, on one kind
 * of device with one version of it.  Made by kernels/lab/tune; the numbers behind the lines
 * are TFLOP/s of it and of the first. */
#ifndef NIBBLE_KERNELS_CUDA_TUNED_H
#define NIBBLE_KERNELS_CUDA_TUNED_H

#define TUNED_MAJOR  9 // H100 and H200
#define TUNED_SMS    132
#define TUNED_CUBLAS 130100

enum way { TN, NN, NT }; // forward, dx, dw

static const struct tuning {
    enum way way;
    bool wide; // the result is f32
    size_t m, n, k;
    int algorithm;
} tunings[] = {
    { TN, false, 0, 0, 0, 0 },
};

#endif
