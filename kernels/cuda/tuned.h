/* SPDX-License-Identifier: MIT */
/* tuned: products whose fastest algorithm is not the first of cuBLASLt's list, on one kind
 * of device with one version of it.  Made by kernels/lab/tuned.awk from steps of Qwen3-4B;
 * the numbers behind the lines are TFLOP/s of it and of the first. */
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
    { TN, false, 4096, 16384, 2560, 5 },  // 750, 680
    { TN, false, 1024, 16384, 2560, 3 },  // 691, 662
    { TN, false, 2560, 16384, 4096, 3 },  // 704, 677
    { TN, false, 9728, 16384, 2560, 6 },  // 756, 728
    { TN, false, 2560, 16384, 9728, 1 },  // 734, 721
    { TN, false, 151936, 2048, 2560, 5 }, // 741, 691
    { NT, true, 2560, 151936, 2048, 5 },  // 678, 609
    { NN, false, 9728, 16384, 2560, 6 },  // 740, 689
    { NT, false, 9728, 2560, 16384, 6 },  // 721, 697
    { NN, false, 2560, 16384, 9728, 4 },  // 721, 705
    { NN, false, 4096, 16384, 2560, 5 },  // 728, 642
    { NT, false, 4096, 2560, 16384, 6 },  // 712, 691
    { NN, false, 2560, 16384, 4096, 3 },  // 709, 667
    { NT, false, 2560, 4096, 16384, 2 },  // 706, 692
    { NN, false, 2560, 16384, 1024, 6 },  // 558, 487
    { NT, false, 2560, 1024, 16384, 1 },  // 657, 587
    { TN, false, 4096, 8192, 2560, 5 },   // 730, 689
    { TN, false, 2560, 8192, 4096, 1 },   // 702, 688
    { TN, false, 9728, 8192, 2560, 7 },   // 777, 718
    { NN, false, 9728, 8192, 2560, 7 },   // 726, 671
    { NT, false, 2560, 9728, 8192, 6 },   // 715, 707
    { NN, false, 4096, 8192, 2560, 5 },   // 687, 667
    { NN, false, 2560, 8192, 4096, 7 },   // 686, 666
    { NT, false, 2560, 4096, 8192, 1 },   // 700, 692
    { NN, false, 2560, 8192, 1024, 3 },   // 521, 472
    { NT, false, 2560, 1024, 8192, 11 },  // 630, 622
    { TN, false, 4096, 4096, 2560, 4 },   // 740, 623
    { TN, false, 1024, 4096, 2560, 9 },   // 630, 618
    { TN, false, 9728, 4096, 2560, 2 },   // 806, 717
    { NN, false, 9728, 4096, 2560, 2 },   // 747, 663
    { NT, false, 9728, 2560, 4096, 5 },   // 730, 712
    { NT, false, 2560, 9728, 4096, 5 },   // 727, 716
    { NN, false, 4096, 4096, 2560, 3 },   // 688, 674
    { NT, false, 4096, 2560, 4096, 1 },   // 710, 694
    { NT, false, 2560, 4096, 4096, 2 },   // 708, 695
    { NN, false, 2560, 4096, 1024, 1 },   // 481, 460
    { NT, false, 2560, 1024, 4096, 9 },   // 583, 569
    { TN, false, 4096, 2048, 2560, 3 },   // 730, 538
    { TN, false, 1024, 2048, 2560, 9 },   // 551, 489
    { TN, false, 9728, 2048, 2560, 3 },   // 778, 708
    { NN, false, 9728, 2048, 2560, 3 },   // 717, 681
    { NT, false, 2560, 9728, 2048, 5 },   // 742, 726
    { NN, false, 4096, 2048, 2560, 2 },   // 714, 701
    { NT, false, 4096, 2560, 2048, 1 },   // 704, 670
    { NN, false, 2560, 2048, 4096, 1 },   // 712, 700
    { NT, false, 2560, 4096, 2048, 2 },   // 669, 652
    { NN, false, 2560, 2048, 1024, 1 },   // 437, 403
    { NT, false, 2560, 1024, 2048, 11 },  // 515, 498
};

#endif
