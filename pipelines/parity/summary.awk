# SPDX-License-Identifier: MIT
# The table in short: for each container and device how many runs there were, how many were
# equal to the family's measure, how far the farthest was, and whether all is as it must be.
BEGIN {
    FS = OFS = "\t"
    print "family", "container", "device", "compute", "runs", "equal", "hidden_off", "logits_off", "top10", "as_must_be"
}
NR > 1 {
    name = $1 OFS $2 OFS $3 OFS $6
    if (!(name in runs)) {
        order[++names] = name
        top[name] = 10
        good[name] = "yes"
    }
    runs[name]++
    equal[name] += $8 == 0 && $9 == 0
    if ($8 + 0 > hidden[name] + 0)
        hidden[name] = $8
    if ($9 + 0 > logits[name] + 0)
        logits[name] = $9
    if ($10 < top[name])
        top[name] = $10
    if ($12 != "yes")
        good[name] = "NO"
}
END {
    for (i = 1; i <= names; i++) {
        name = order[i]
        print name, runs[name], equal[name], hidden[name] + 0, logits[name] + 0, top[name], good[name]
    }
}
