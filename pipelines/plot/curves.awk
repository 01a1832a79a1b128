# SPDX-License-Identifier: MIT
# awk -v prefix=P -v smooth=N -f curves.awk TABLE: the columns of what log.awk made, each as
# a file "P.NAME" of lines "step value mean", where mean is that of the finite ones among the
# last N steps; "-" where there is none, which is a gap.  A line of each goes to standard
# output:  NAME finite others first_step last_step lowest highest
#
# A picture has some hundred columns of pixels: of longer runs each group of steps is drawn
# as its lowest and its highest value, in their order, so no spike is lost.
BEGIN {
    FS = "\t"
    columns = split("loss eval_loss lr grad_norm tok_s", name, " ")
    most = 500
}

function finite(v)
{
    return v ~ /^-?[0-9]/ && v - v == 0
}

{
    step[NR] = $1
    for (c = 1; c <= columns; c++)
        value[c, NR] = $(c + 1)
    # What was not counted, to be marked.
    bad[NR] = $8 == 1 || $2 == "nan" || $2 ~ /inf/
}

# Lines from..to of column c are a group.
function put_group(c, from, to,    i, lowest, highest, a, b)
{
    lowest = highest = 0
    for (i = from; i <= to; i++) {
        if (!finite(value[c, i]))
            continue
        if (!lowest || value[c, i] + 0 < value[c, lowest] + 0)
            lowest = i
        if (!highest || value[c, i] + 0 > value[c, highest] + 0)
            highest = i
    }
    if (!lowest) {
        # A gap, unless there never is something in this line.
        if (value[c, from] != "-")
            print step[from], "-", mean[from] >prefix "." name[c]
        return
    }
    a = lowest < highest ? lowest : highest
    b = lowest < highest ? highest : lowest
    print step[a], value[c, a], mean[a] >prefix "." name[c]
    if (a != b)
        print step[b], value[c, b], mean[b] >prefix "." name[c]
}

END {
    group = int((NR + most - 1) / most)
    for (c = 1; c <= columns; c++) {
        printf "" >prefix "." name[c]
        n = others = sum = held = 0
        lowest = highest = first = last = "-"
        for (i = 1; i <= NR; i++) {
            if (finite(value[c, i])) {
                v = value[c, i] + 0
                if (!n++ || v < lowest)
                    lowest = v
                if (n == 1 || v > highest)
                    highest = v
                if (n == 1)
                    first = step[i]
                last = step[i]
                sum += v
                held++
            } else if (value[c, i] != "-")
                others++
            if (i > smooth && finite(value[c, i - smooth])) {
                sum -= value[c, i - smooth]
                held--
            }
            mean[i] = held && finite(value[c, i]) ? sprintf("%.9g", sum / held) : "-"
        }
        # Evaluations are few and far between: each is a point.
        size = name[c] == "eval_loss" ? 1 : group
        for (i = 1; i <= NR; i += size)
            put_group(c, i, i + size - 1 < NR ? i + size - 1 : NR)
        print name[c], n, others, first, last, lowest, highest
    }
    printf "" >prefix ".bad"
    for (i = 1; i <= NR; i += group)
        for (k = i; k < i + group && k <= NR; k++)
            if (bad[k]) {
                print step[k] >prefix ".bad"
                n_bad++
                break
            }
    print "bad", n_bad + 0, 0, "-", "-", "-", "-"
}
