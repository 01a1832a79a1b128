# SPDX-License-Identifier: MIT
# Lines of ids of texts of "task.py train" to samples for "tokenize --input ids".  To be
# learnt is the second token behind each "?", whose id is `question`: the place that is
# asked for stands between, and nothing else of the text can be known.
{
    ids = mask = ""
    for (i = 1; i <= NF; i++) {
        ids = ids (i > 1 ? "," : "") $i
        mask = mask (i > 1 ? "," : "") (i > 2 && $(i - 2) == question)
    }
    print "{\"ids\":[" ids "],\"mask\":[" mask "]}"
}
