# SPDX-License-Identifier: MIT
# prefix=P awk -v smooth=N -f curves.awk TABLE: the columns of what log.awk made, each as a
# file "P.NAME" of lines "step value mean", where mean is that of the finite ones among the
# last N steps; "-" where there is none, which is a gap.  A line of each goes to standard
# output:  NAME finite others first_step last_step lowest highest
# "P.bad" has the steps that were skipped or have no finite loss.
#
# A picture has some hundred columns of pixels: of longer runs each group of steps is drawn
# as its lowest and its highest value, in their order, so no spike is lost.
BEGIN {
    FS = "\t"
    most = 500
    prefix = ENVIRON["prefix"]
}

# Into v what is finite, into gap where something else stands.
function keep(v, gap, s)
{
    if (s ~ /^-?[0-9]/ && s - s == 0)
        v[NR] = s + 0
    else if (s != "-")
        gap[NR] = 1
}

{
    step[NR] = $1
    keep(loss, loss_gap, $2)
    keep(evaluated, evaluated_gap, $3)
    keep(lr, lr_gap, $4)
    keep(grad_norm, grad_norm_gap, $5)
    keep(tok_s, tok_s_gap, $6)
    if ($8 == 1 || NR in loss_gap)
        bad[NR] = 1
}

function put(name, v, mean, i)
{
    printf "%s %.9g %.9g\n", step[i], v[i], mean[i] >(prefix "." name)
}

# Lines from..to are a group.
function put_group(name, v, gap, mean, from, to,    i, lowest, highest, a)
{
    for (i = from; i <= to; i++) {
        if (i in gap)
            a = i
        if (!(i in v))
            continue
        if (!lowest || v[i] < v[lowest])
            lowest = i
        if (!highest || v[i] > v[highest])
            highest = i
    }
    if (!lowest) {
        if (a)
            print step[a], "-", "-" >(prefix "." name)
    } else {
        put(name, v, mean, lowest < highest ? lowest : highest)
        if (lowest != highest)
            put(name, v, mean, lowest < highest ? highest : lowest)
    }
}

# size: steps of a group.
function column(name, v, gap, size,    i, n, others, sum, held, mean, low, high, first, last)
{
    printf "" >(prefix "." name)
    low = high = first = last = "-"
    for (i = 1; i <= NR; i++) {
        others += i in gap
        if (i > smooth && i - smooth in v) {
            sum -= v[i - smooth]
            held--
        }
        if (!(i in v))
            continue
        sum += v[i]
        mean[i] = sum / ++held
        if (!n++) {
            first = step[i]
            low = high = v[i]
        }
        last = step[i]
        if (v[i] < low)
            low = v[i]
        if (v[i] > high)
            high = v[i]
    }
    for (i = 1; i <= NR; i += size)
        put_group(name, v, gap, mean, i, i + size - 1 < NR ? i + size - 1 : NR)
    print name, n + 0, others + 0, first, last, low, high
}

END {
    group = int((NR + most - 1) / most)
    column("loss", loss, loss_gap, group)
    # Evaluations are few and far between: each is a point.
    column("eval_loss", evaluated, evaluated_gap, 1)
    column("lr", lr, lr_gap, group)
    column("grad_norm", grad_norm, grad_norm_gap, group)
    column("tok_s", tok_s, tok_s_gap, group)
    printf "" >(prefix ".bad")
    for (i = 1; i <= NR; i++)
        if (i in bad) {
            print step[i] >(prefix ".bad")
            i += group - 1
        }
}
