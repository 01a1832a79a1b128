# SPDX-License-Identifier: MIT
# Means over seeds of runs.tsv, and gaps in percent, by pairs of equal seed: to f32 without
# a quantizer ("gap"), and to f32 with the same quantizer ("own_gap").  "sd" is the
# deviation over seeds, the error of a mean is sd / sqrt(seeds).
BEGIN {
    FS = OFS = "\t"
}
NR == 1 {
    next
}
{
    name = $1 FS $2 FS $3 FS $4
    if (!(name in count))
        order[++names] = name
    seeds[name, ++count[name]] = $5
    loss[name, $5, 1] = $6
    loss[name, $5, 2] = $7
}
# mean and sd of the gaps of a loss to those of another variant
function gaps(name, ref, what,    i, s, g, sum, squares, n) {
    for (i = 1; i <= count[name]; i++) {
        s = seeds[name, i]
        if (!((ref, s, what) in loss))
            continue
        g = 100 * (loss[name, s, what] / loss[ref, s, what] - 1)
        n++
        sum += g
        squares += g * g
    }
    mean = sum / n
    sd = n > 1 ? sqrt((squares - n * mean * mean) / (n - 1)) : 0
}
END {
    print "master", "moments", "quant", "order", "seeds", "loss", "mean", "gap", "gap_sd", "own_gap", "own_gap_sd"
    for (what = 1; what <= 2; what++)
        for (v = 1; v <= names; v++) {
            name = order[v]
            split(name, part, FS)
            sum = 0
            for (i = 1; i <= count[name]; i++)
                sum += loss[name, seeds[name, i], what]
            gaps(name, "f32" FS "f32" FS "none" FS "same", what)
            all = sprintf("%+.2f" OFS "%.2f", mean, sd)
            gaps(name, "f32" FS "f32" FS part[3] FS "same", what)
            own = sprintf("%+.2f" OFS "%.2f", mean, sd)
            print name, count[name], what == 1 ? "train" : "heldout", sprintf("%.5f", sum / count[name]), all, own
        }
}
