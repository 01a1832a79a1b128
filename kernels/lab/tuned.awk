# SPDX-License-Identifier: MIT
# tuned: lines for kernels/cuda/tuned.h, from times of products in steps as they are.
#
#   NIBBLE_CUDA_TIMES=algorithms trainstep --device cuda ... 2>times
#   awk -f kernels/lab/tuned.awk times...
#
# In a step a chip has the clocks, heat and caches of real work, which a product on its own
# has not: the algorithms of cuBLASLt's list take turns there, layer by layer.  A line for
# each product whose fastest one differs from the list's first by more than 1 %; behind it
# TFLOP/s of both.

match($0, /^ *[0-9.]+ ms in +[0-9]+ after one of +[0-9.]+: product /) {
    rest = substr($0, RLENGTH + 1)
    split($0, t)
    split(rest, w, /[ ,]+/) # TN bf16 m n k algorithm N
    ms = t[1]
    times = t[4]
    if (times == 0 || w[7] < 0)
        next
    key = w[1] " " w[2] " " w[3] " " w[4] " " w[5]
    us = ms / times * 1000
    if (!(key in least))
        order[++n] = key
    if (w[7] == 0)
        first[key] = us
    if (!(key in least) || us < least[key]) {
        least[key] = us
        best[key] = w[7]
    }
}

END {
    for (i = 1; i <= n; i++) {
        key = order[i]
        split(key, w)
        if (!(key in first) || least[key] > 0.99 * first[key])
            continue
        flops = 2e-6 * w[3] * w[4] * w[5]
        printf "    { %s, %s, %d, %d, %d, %d }, // %.0f, %.0f\n", w[1],
            w[2] == "f32" ? "true" : "false", w[3], w[4], w[5], best[key],
            flops / least[key], flops / first[key]
    }
}
