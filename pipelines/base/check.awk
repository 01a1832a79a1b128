# SPDX-License-Identifier: MIT
# Compares base.hash with expected.tsv, whose rows are: variant, what, device, hash.
#
# Another corpus, tokenizer or setting makes another checkpoint: then that is said and the
# checkpoint is not judged.  Exit status 1 if a checkpoint is not the expected one.
NR == FNR {
    if (FNR > 1 && $1 == variant) {
        want[$2, $3] = $4
        known[$2] = 1
    }
    next
}
FNR == 1 { next }
!(($1, $2) in want) {
    printf "%s: %s on %s: no hash is expected; it is %s\n", variant, $1, $2, $3
    next
}
$3 == want[$1, $2] {
    printf "%s: %s: as expected\n", variant, $1
    next
}
$1 != "checkpoint" {
    printf "%s: %s: %s, not %s: another one\n", variant, $1, $3, want[$1, $2]
    other = 1
    next
}
other {
    printf "%s: checkpoint: not compared, since what it is made of is another\n", variant
    next
}
{
    printf "%s: checkpoint: %s on %s, expected is %s\n", variant, $3, $2, want[$1, $2] >"/dev/stderr"
    bad = 1
}
END { exit bad }
