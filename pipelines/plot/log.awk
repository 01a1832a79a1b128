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
    columns = split("loss eval_loss lr grad_norm tok_s mem_gb skipped", column, " ")
}

function number(s)
{
    if (s == "")
        return "-"
    if (s ~ /^-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$/)
        return s
    if (s ~ /^-?[iI]nf/)
        return s ~ /^-/ ? "-inf" : "inf"
    return s == "-" ? s : "nan"
}

# The value of a key in a line of JSON: a number or a word in quotes.
function json(line, key,    at)
{
    at = index(line, "\"" key "\":")
    if (!at)
        return ""
    line = substr(line, at + length(key) + 3)
    gsub(/^"/, "", line)
    sub(/[",}].*/, "", line)
    return line == "null" ? "-" : line
}

# What lies behind this step belongs to a run that was lost.
function begin_step(step)
{
    while (steps && order[steps] + 0 > step + 0)
        steps--
    if (!steps || order[steps] + 0 != step + 0)
        order[++steps] = step
    else
        return
    for (c = 1; c <= columns; c++)
        value[steps, c] = "-"
}

/^\{/ {
    step = json($0, "step")
    if ($0 !~ /\}$/ || step !~ /^[0-9]+$/)
        next
    # An evaluation is a line of its own and comes behind its step.
    evaluation = index($0, "\"eval_loss\":")
    begin_step(step)
    if (evaluation)
        value[steps, 2] = number(json($0, "eval_loss"))
    else
        for (c = 1; c <= columns; c++)
            value[steps, c] = c == 2 ? "-" : number(json($0, column[c]))
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
    begin_step($1)
    for (c = 1; c <= columns; c++)
        value[steps, c] = column[c] in at ? number($at[column[c]]) : "-"
}
END {
    for (s = 1; s <= steps; s++) {
        line = order[s]
        for (c = 1; c <= columns; c++)
            line = line "\t" value[s, c]
        print line
    }
}
