# SPDX-License-Identifier: MIT
# Lines of ids of texts of "task.py train" to samples for "tokenize --input ids".  To be
# learnt is what follows a place: in a record the thing that stands before it, too, which
# teaches a layer to look back by one; in a question the thing that was asked for.  Both
# are the third of three tokens.  Nothing else of the text can be known.
{
    ids = mask = ""
    for (i = 1; i <= NF; i++) {
        ids = ids (i > 1 ? "," : "") $i
        mask = mask (i > 1 ? "," : "") (i % 3 == 0)
    }
    print "{\"ids\":[" ids "],\"mask\":[" mask "]}"
}
