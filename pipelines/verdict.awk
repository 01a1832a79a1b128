# SPDX-License-Identifier: MIT
# Counts the rows of a table whose last column is "yes"; fails if one is not, or there is none.
#
#   awk -v what='plans were kept' -f verdict.awk TABLE.tsv
BEGIN {
    FS = "\t"
}
NR > 1 {
    n++
    yes += $NF == "yes"
}
END {
    printf "%d of %d %s\n", yes, n, what
    exit !(n > 0 && yes == n)
}
