# SPDX-License-Identifier: MIT
# Counts the rows that are as they must be; fails if one is not.
BEGIN {
    FS = "\t"
}
NR > 1 {
    n++
    if ($(NF - 1) == $NF)
        good++
    else
        print "not as it must be: " $1 " " $2 " " $3 ": " $(NF - 1)
}
END {
    printf "%d of %d as they must be\n", good, n
    exit !(n > 0 && good == n)
}
