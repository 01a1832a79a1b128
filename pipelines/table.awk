# SPDX-License-Identifier: MIT
# Tab-separated lines as columns: numbers to the right, words to the left.
BEGIN {
    FS = "\t"
}
{
    line[NR] = $0
    for (i = 1; i <= NF; i++) {
        if (length($i) > width[i])
            width[i] = length($i)
        if (NR > 1 && $i !~ /^-?[0-9.]*(e[-+]?[0-9]+)?%?$/)
            words[i] = 1
    }
}
END {
    for (n = 1; n <= NR; n++) {
        columns = split(line[n], field, FS)
        text = ""
        for (i = 1; i <= columns; i++)
            text = text sprintf(words[i] ? "%-*s  " : "%*s  ", width[i], field[i])
        sub(/ +$/, "", text)
        print text
    }
}
