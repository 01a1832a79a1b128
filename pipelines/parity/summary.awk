# SPDX-License-Identifier: MIT
# The table in short: for each container and device how many runs there were, how many were
# equal to the family's measure, the first layer that is too far off, how far the farthest was, and whether all is as it must be.
BEGIN {
    FS = OFS = "\t"
    print "family", "container", "device", "compute", "runs", "equal", "first_bad", "hidden_off", "mean_abs", "cosine", "logits_off", "top10", "as_must_be"
}
NR > 1 {
    name = $1 OFS $2 OFS $3 OFS $6
    if (!(name in runs)) {
        order[++names] = name
        top[name] = 10
        bad[name] = "-"
        cosine[name] = 1
        good[name] = "yes"
    }
    runs[name]++
    equal[name] += $9 == 0 && $12 == 0
    if ($8 != "-" && (bad[name] == "-" || $8 + 0 < bad[name] + 0))
        bad[name] = $8
    if ($9 + 0 > hidden[name] + 0)
        hidden[name] = $9
    if ($10 + 0 > mean[name] + 0)
        mean[name] = $10
    if ($11 + 0 < cosine[name] + 0)
        cosine[name] = $11
    if ($12 + 0 > logits[name] + 0)
        logits[name] = $12
    if ($13 < top[name])
        top[name] = $13
    if ($15 != "yes")
        good[name] = "NO"
}
END {
    for (i = 1; i <= names; i++) {
        name = order[i]
        print name, runs[name], equal[name], bad[name], hidden[name] + 0, mean[name] + 0, cosine[name], logits[name] + 0, top[name], good[name]
    }
}
