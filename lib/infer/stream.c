/* SPDX-License-Identifier: MIT */
/* stream: see stream.h. */
#include "lib/infer/stream.h"

#include <string.h>

/* Length of the longest suffix of the text that is a prefix of a stop text. */
static size_t
partial_stop(const struct stream *x)
{
    size_t max = 0;
    for (size_t i = 0; i < x->n_stops; i++) {
        size_t k = x->stop[i].n - 1;
        size_t there = x->text.len - x->printed;
        for (k = k < there ? k : there; k > max; k--)
            if (memcmp(x->text.data + x->text.len - k, x->stop[i].p, k) == 0)
                max = k;
    }
    return max;
}

/* The first position of a stop text from `from` on, or the length of the text. */
static size_t
find_stop(const struct stream *x, size_t from)
{
    size_t best = x->text.len;
    for (size_t i = 0; i < x->n_stops && from < best; i++) {
        const char *at =
            memmem(x->text.data + from, x->text.len - from, x->stop[i].p, x->stop[i].n);
        if (at && (size_t)(at - x->text.data) < best)
            best = (size_t)(at - x->text.data);
    }
    return best;
}

static int
emit(struct stream *x, size_t until, struct err *err)
{
    struct buf part = { 0 };
    bool some = x->print && until > x->printed;
    if (some)
        buf_add(&part, x->text.data + x->printed, until - x->printed);
    int rc = some && x->host->print
                 ? x->host->print(x->host->ctx, &part, HOST_TEXT, err)
                 : 0;
    buf_free(&part);
    x->printed = until;
    return rc;
}

/* Print what is certain of the text; 1 if a stop text is complete, before which the text
 * is cut. */
static int
advance(struct stream *x, bool last, struct err *err)
{
    if (!x->text.data)
        return 0;
    size_t stop = find_stop(x, x->printed);
    bool found = stop < x->text.len;
    if (found) {
        x->text.len = stop;
        x->text.data[stop] = '\0';
        x->decoder.n_held = 0; // these bytes follow the stop text
    }
    size_t sure = found || last ? x->text.len : x->text.len - partial_stop(x);
    // A stop text may begin inside of a character.
    if (!found && !last)
        sure = x->printed + utf8_whole(x->text.data + x->printed, sure - x->printed);
    return emit(x, sure, err) < 0 ? -1 : found;
}

int
stream_push(struct stream *x, uint32_t id, struct err *err)
{
    if (!x->decoder.t)
        return 0;
    if (!tokenizer_bytes(x->decoder.t, id).p) { // a row of the model without a token
        decode_finish(&x->decoder, &x->text);
        buf_str(&x->text, "\xef\xbf\xbd");
    } else if (decode_push(&x->decoder, &x->text, id, err) < 0) {
        return -1;
    }
    return buf_ok(&x->text, err) < 0 ? -1 : advance(x, false, err);
}

int
stream_finish(struct stream *x, struct err *err)
{
    if (!x->decoder.t)
        return 0;
    decode_finish(&x->decoder, &x->text);
    if (buf_ok(&x->text, err) < 0)
        return -1;
    return advance(x, true, err);
}

void
stream_free(struct stream *x)
{
    buf_free(&x->text);
}
