/* SPDX-License-Identifier: MIT */
/* detokenize: a .tok as text. */
#include "lib/data/detokenize.h"

#include "lib/data/emit.h"

#include <string.h>

enum { FLUSH_AT = 256 << 10 };

/* The .tok must have been made with this tokenizer. */
static int
check_tokenizer(const struct tok_reader *r, const struct tokenizer *t, struct err *err)
{
    uint8_t mine[SHA256_BYTES];
    char want[2 * SHA256_BYTES + 1], found[2 * SHA256_BYTES + 1];
    tokenizer_sha256(t, mine);
    if (!r->header.has_tokenizer ||
        memcmp(mine, r->header.tokenizer, SHA256_BYTES) == 0)
        return 0;
    hash_hex(want, r->header.tokenizer, SHA256_BYTES);
    hash_hex(found, mine, SHA256_BYTES);
    return err_set(err, ERR_FORMAT,
                   "%s: was made with the tokenizer.json of SHA-256 %s, found %s",
                   r->name, want, found);
}

static int
put_sample(struct sink *sink, struct buf *out, struct tally *tally,
           const struct tok_sample *s, const struct tokenizer *t, const char *name,
           struct err *err)
{
    struct err why = { 0 };
    struct sample sample = { .ids = s->ids, .n = s->n };
    tally->rows++;
    if (emit_sample(out, &tally->counts, sink_format(sink->c), &sample, t, &why) < 0)
        return err_set(err, why.kind, "%s: sample %llu: %s", name,
                       (unsigned long long)s->index, why.msg);
    return 0;
}

static int
put_samples(struct sink *sink, struct tok_reader *r, const struct tokenizer *t,
            struct host_progress *progress, struct err *err)
{
    struct buf out = { 0 };
    struct tally tally = { 0 };
    struct tok_sample s;
    int more;
    while ((more = tok_next(r, &s)) > 0) {
        host_progress_add(progress, s.bytes);
        if (put_sample(sink, &out, &tally, &s, t, r->name, err) < 0)
            break;
        if (out.failed || out.len >= FLUSH_AT) {
            if (sink_add(sink, &out, NULL, &tally) < 0)
                break;
            out.len = 0;
            tally = (struct tally){ 0 };
        }
    }
    int rc = more == 0 || err->kind ? 0 : -1;
    struct err kept = *err; // samples before an error are written
    *err = (struct err){ 0 };
    if (sink_add(sink, &out, NULL, &tally) < 0)
        rc = -1;
    if (kept.kind)
        *err = kept;
    buf_free(&out);
    return err->kind ? -1 : rc;
}

int
detokenize(struct sink *sink, const struct tokenizer *t, int fd, const char *path,
           struct slice begun, struct host_progress *progress, struct err *err)
{
    struct tok_reader r;
    int rc = tok_stream(&r, fd, path, begun, 0, err);
    if (rc == 0)
        rc = check_tokenizer(&r, t, err);
    if (rc == 0)
        rc = put_samples(sink, &r, t, progress, err);
    tok_close(&r);
    return rc;
}
