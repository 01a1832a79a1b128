# SPDX-License-Identifier: MIT
# Lines of ids of texts of "task.py train" to samples for "tokenize --input ids".  To be
# learnt are the second key of a record, and each answer: nothing else can be known.
# question: the id of "?".
{
    ids = mask = ""
    asked = 0
    for (i = 1; i <= NF; i++) {
        target = asked ? (i - asked) % 2 == 0 : i % 3 == 0
        if ($i == question) {
            asked = i
            target = 0
        }
        ids = ids (i > 1 ? "," : "") $i
        mask = mask (i > 1 ? "," : "") target
    }
    print "{\"ids\":[" ids "],\"mask\":[" mask "]}"
}
