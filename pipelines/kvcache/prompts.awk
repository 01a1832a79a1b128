# SPDX-License-Identifier: MIT
# From lines of ids, one prompt for each of `lengths`: that many ids in a row, each
# prompt from another place.  The text begins again when it ends.
{
    for (i = 1; i <= NF; i++)
        id[n++] = $i
}

END {
    if (!n)
        exit 2
    many = split(lengths, length_of, " ")
    for (p = 1; p <= many; p++) {
        for (i = 0; i < length_of[p]; i++)
            printf "%s%s", i ? " " : "", id[(389 * p + i) % n]
        printf "\n"
    }
}
