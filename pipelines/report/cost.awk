# SPDX-License-Identifier: MIT
# awk -f cost.awk FILE: what a report of nvquant says in short, as lines of NAME, a tab and
# VALUE.
BEGIN {
    FS = "\t"
}
NR == 1 {
    for (i = 1; i <= NF; i++)
        if ($i == "sqnr_db")
            column = i
    next
}
{
    tensors++
}
column && $column ~ /^-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$/ {
    sum += $column
    if (!n++ || $column + 0 < worst)
        worst = $column + 0
}
END {
    print "tensors\t" tensors + 0
    if (n) {
        printf "signal to noise, mean\t%.2f dB\n", sum / n
        printf "signal to noise, worst\t%.2f dB\n", worst
    }
}
