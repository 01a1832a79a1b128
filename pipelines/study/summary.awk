# SPDX-License-Identifier: MIT
# Means over seeds of runs.tsv, and gaps in percent, by pairs of equal seed: to f32 without
# a quantizer ("gap"), and to f32 with the same quantizer ("own_gap").  Of recipes.tsv they are
# to the same optimizer and schedule without a quantizer, and with it from the first step.  "sd"
# is the deviation over seeds, the error of a mean is sd / sqrt(seeds).
BEGIN {
    FS = OFS = "\t"
}
# The fields before the seed, which has two losses behind it.
function fields(    i, text) {
    text = $1
    for (i = 2; i < NF - 2; i++)
        text = text FS $i
    return text
}
NR == 1 {
    head = fields()
    next
}
{
    name = fields()
    seed = $(NF - 2)
    if (!(name in count))
        order[++names] = name
    seeds[name, ++count[name]] = seed
    loss[name, seed, 1] = $(NF - 1)
    loss[name, seed, 2] = $NF
}
# what a variant is compared with, of that quantizer
function reference(name, quant,    part) {
    split(name, part, FS)
    if (5 in part)
        return part[1] FS part[2] FS quant FS part[4] FS 0
    return "f32" FS "f32" FS quant FS "same"
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
    print head, "seeds", "loss", "mean", "gap", "gap_sd", "own_gap", "own_gap_sd"
    for (what = 1; what <= 2; what++)
        for (v = 1; v <= names; v++) {
            name = order[v]
            split(name, part, FS)
            sum = 0
            for (i = 1; i <= count[name]; i++)
                sum += loss[name, seeds[name, i], what]
            gaps(name, reference(name, "none"), what)
            all = sprintf("%+.2f" OFS "%.2f", mean, sd)
            gaps(name, reference(name, part[3]), what)
            own = sprintf("%+.2f" OFS "%.2f", mean, sd)
            print name, count[name], what == 1 ? "train" : "heldout", sprintf("%.5f", sum / count[name]), all, own
        }
}
