# SPDX-License-Identifier: MIT
# Counts the plans that were kept; fails if one was not.
NR > 1 {
    n++
    kept += $NF == "yes"
}
END {
    printf "%d of %d plans were kept\n", kept, n
    exit !(n > 0 && kept == n)
}
