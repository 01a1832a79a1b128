# SPDX-License-Identifier: MIT
# Counts the runs that are as they must be; fails if one is not.
NR > 1 {
    n++
    good += $NF == "yes"
}
END {
    printf "%d of %d runs are as they must be\n", good, n
    exit !(n > 0 && good == n)
}
