# SPDX-License-Identifier: MIT
# awk -f log.awk FILE: a log of trainstep, its --log or what it prints, as a table of
#
#   step loss eval_loss lr grad_norm tok_s mem_gb skipped
#
# without a header, a line a step, in order.  What a line lacks is "-"; what is no finite
# number is nan, inf or -inf.  A log that goes back to a step begins again there, as the run
# did.  A last line that was cut is left out.
BEGIN {
    FS = "\t"
    columns = split("loss lr grad_norm tok_s mem_gb skipped", column, " ")
}

function number(s)
{
    if (s ~ /^-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$/)
        return s
    if (s == "" || s == "-" || s == "null")
        return "-"
    if (s ~ /^-?[iI]nf/)
        return s ~ /^-/ ? "-inf" : "inf"
    return "nan"
}

# What lies behind this step belongs to a run that was lost.
function begin_step(step)
{
    while (steps && order[steps] > step)
        steps--
    if (steps && order[steps] == step)
        return
    order[++steps] = step
    loss[steps] = evaluated[steps] = "-"
    rest[steps] = "-\t-\t-\t-\t-"
}

function take(    c, line)
{
    loss[steps] = number(field["loss"])
    evaluated[steps] = "-"
    line = number(field[column[2]])
    for (c = 3; c <= columns; c++)
        line = line "\t" number(field[column[c]])
    rest[steps] = line
}

/^\{"step":[0-9]+,.*\}$/ {
    # Keys and values in turn.  What comes in words, why a step was skipped, comes last: of
    # two that have the same key the first counts.
    n = split($0, part, /[{},:"]+/)
    split("", field)
    for (i = 2; i < n; i++)
        if (!(part[i] in field))
            field[part[i]] = part[i + 1]
    begin_step(field["step"] + 0)
    # An evaluation is a line of its own and comes behind its step.
    if (index($0, "\"eval_loss\":"))
        evaluated[steps] = number(field["eval_loss"])
    else
        take()
    next
}
$1 == "step" {
    split("", at)
    for (i = 1; i <= NF; i++)
        at[$i] = i
    fields = NF
    next
}
$1 ~ /^[0-9]+$/ && NF == fields {
    split("", field)
    for (c = 1; c <= columns; c++)
        if (column[c] in at)
            field[column[c]] = $at[column[c]]
    begin_step($1 + 0)
    take()
}
END {
    for (s = 1; s <= steps; s++)
        print order[s] "\t" loss[s] "\t" evaluated[s] "\t" rest[s]
}
