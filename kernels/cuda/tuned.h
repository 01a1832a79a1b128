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
    { TN, false, 4096, 16384, 2560, 5 },  // 797, 754
    { TN, false, 1024, 16384, 2560, 8 },  // 730, 659
    { TN, false, 9728, 16384, 2560, 7 },  // 723, 700
    { TN, false, 2560, 16384, 4096, 1 },  // 663, 640
    { TN, false, 2560, 16384, 9728, 1 },  // 700, 689
    { NN, false, 2560, 16384, 4096, 3 },  // 769, 676
    { NN, false, 2560, 16384, 1024, 4 },  // 576, 531
    { NN, false, 4096, 16384, 2560, 5 },  // 707, 635
    { NT, false, 2560, 4096, 16384, 8 },  // 729, 695
    { NT, false, 2560, 1024, 16384, 1 },  // 716, 633
    { NT, false, 2560, 9728, 16384, 1 },  // 732, 720
    { NT, false, 4096, 2560, 16384, 6 },  // 725, 685
    { NT, false, 9728, 2560, 16384, 6 },  // 744, 688
    { TN, false, 4096, 4096, 2560, 5 },   // 686, 662
    { TN, false, 1024, 4096, 2560, 8 },   // 682, 665
    { TN, false, 9728, 4096, 2560, 2 },   // 738, 690
    { TN, false, 2560, 4096, 4096, 8 },   // 690, 646
    { NN, false, 2560, 4096, 4096, 8 },   // 720, 677
    { NN, false, 2560, 4096, 1024, 1 },   // 529, 506
    { NN, false, 4096, 4096, 2560, 8 },   // 744, 665
    { NN, false, 9728, 4096, 2560, 2 },   // 700, 620
    { NT, false, 2560, 4096, 4096, 1 },   // 707, 680
    { NT, false, 4096, 2560, 4096, 6 },   // 697, 659
    { TN, false, 4096, 2048, 2560, 9 },   // 696, 657
    { TN, false, 1024, 2048, 2560, 8 },   // 643, 618
    { TN, false, 9728, 2048, 2560, 6 },   // 707, 672
    { NN, false, 2560, 2048, 4096, 8 },   // 702, 665
    { NN, false, 2560, 2048, 1024, 1 },   // 545, 518
    { NN, false, 4096, 2048, 2560, 8 },   // 704, 664
    { NN, false, 9728, 2048, 2560, 7 },   // 684, 632
    { NT, false, 2560, 4096, 2048, 2 },   // 700, 664
    { NT, false, 2560, 1024, 2048, 8 },   // 617, 582
    { NT, false, 4096, 2560, 2048, 2 },   // 695, 652
    { TN, false, 151936, 2048, 2560, 5 }, // 825, 786
    { NN, false, 2560, 2048, 151936, 2 }, // 778, 724
    { NT, true, 2560, 151936, 2048, 5 },  // 694, 673
    { TN, false, 151936, 3328, 2560, 6 }, // 745, 720
    { NN, false, 2560, 3328, 151936, 8 }, // 913, 834
    { NT, true, 2560, 151936, 3328, 5 },  // 836, 747
};

#endif
