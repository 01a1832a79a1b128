# SPDX-License-Identifier: MIT
# awk -f facts.awk TABLE: what a log of trainstep says in short, from what log.awk made of it,
# as lines of NAME, a tab and VALUE.
BEGIN {
    FS = "\t"
}

function finite(v)
{
    return v ~ /^-?[0-9]/ && v - v == 0
}

function fact(name, value)
{
    print name "\t" value
}

{
    last = $1
    if ($2 != "-") {
        steps++
        if (finite($2)) {
            if (!losses++)
                first_loss = $2
            last_loss = $2
        }
        skipped += $8 == 1
    }
    if ($3 != "-") {
        evals++
        if (finite($3)) {
            if (!good_evals++ || $3 + 0 < lowest + 0)
                lowest = $3
            last_eval = $3
        }
    }
    if (finite($7) && $7 + 0 > memory + 0)
        memory = $7
    if (finite($6)) {
        sum += $6
        rates++
    }
}

END {
    fact("last step", NR ? last : "none")
    if (steps && !losses)
        fact("loss", "none of " steps " is finite")
    else if (steps) {
        fact("first loss", sprintf("%.4g", first_loss))
        fact("last loss", sprintf("%.4g", last_loss))
        if (losses < steps)
            fact("losses not finite", steps - losses " of " steps)
    }
    if (evals && !good_evals)
        fact("evaluation", "none of " evals " is finite")
    else if (evals) {
        fact("evaluation, last", sprintf("%.4g", last_eval))
        if (evals > 1)
            fact("evaluation, lowest", sprintf("%.4g", lowest))
    }
    fact("skipped steps", skipped + 0)
    if (rates)
        fact("tokens/s, mean of steps", sprintf("%.0f", sum / rates))
    if (memory)
        fact("memory, peak", sprintf("%.3g GB", memory))
}
