/* SPDX-License-Identifier: MIT */
/* sink: writes or buffers samples. */
#include "lib/data/sink.h"

#include "lib/base/grow.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void
tally_add(struct tally *sum, const struct tally *part)
{
    tok_add_counts(&sum->counts, &part->counts);
    sum->rows += part->rows;
    sum->skipped += part->skipped;
    sum->truncated += part->truncated;
    sum->repaired += part->repaired;
    if (!*sum->first)
        memcpy(sum->first, part->first, sizeof sum->first);
}

void
sizes_add(struct sizes *s, size_t n)
{
    s->failed |= !GROW(s->v, s->n, s->cap, 256);
    if (!s->failed)
        s->v[s->n++] = n;
}

bool
sink_buffers(const struct data_options *c)
{
    return c->pack || (c->shuffle && !c->count); // counts have no order
}

enum emit
sink_format(const struct data_options *c)
{
    return c->pack ? EMIT_TOK : c->count ? EMIT_NOTHING : c->emit;
}

int
sink_open(struct sink *s, const struct data_options *c, unsigned which,
          const struct tokenizer *t, struct err *err)
{
    *s = (struct sink){ .c = c, .t = t, .err = err, .path = c->out[which] };
    s->side = c->split ? which + 1 : 0;
    if (c->count)
        return 0;
    s->opened = true;
    return out_open(&s->out, s->path, c->force ? OUT_FORCE : 0, c->host->guard, err);
}

/* Lines and ids of the input have no template and none of its settings, so that equal
 * content is equal bytes. */
static int
begin_tok(struct sink *s)
{
    const struct data_options *c = s->c;
    bool rendered = c->input != INPUT_LINES && c->input != INPUT_IDS;
    bool encoded = c->input != INPUT_IDS;
    const char *template = template_name(rendered ? c->how.kind : TEMPLATE_NONE);
    struct tok_header h = { .packed = c->pack,
                            .has_seq_len = c->seq_len || c->chunk,
                            .seq_len = c->seq_len ? c->seq_len : c->chunk,
                            .has_vocab = encoded,
                            .has_tokenizer = encoded,
                            .template = slice_of(template),
                            .version = slice_of(c->host->version) };
    struct tok_settings settings = { .end = encoded && !c->how.no_end,
                                     .joint = rendered && c->how.joint,
                                     .parse_special = encoded && c->how.parse_special,
                                     .shuffled = c->shuffle,
                                     .shuffle = c->shuffle_seed,
                                     .chunk = c->chunk,
                                     .side = s->side,
                                     .split = c->split_text,
                                     .all_targets = rendered && c->how.all_targets,
                                     .input = data_inputs[c->input],
                                     .prompt_key = c->names.prompt,
                                     .answer_key = c->names.answer,
                                     .invalid = data_invalids[c->invalid] };
    if (encoded) {
        h.vocab = tokenizer_vocab(s->t);
        tokenizer_sha256(s->t, h.tokenizer);
    }
    return tok_begin(&s->tok, &s->out, &h, &settings, s->err);
}

/* Text, with control characters escaped on a terminal. */
static int
write_text(struct sink *s, const char *text, size_t n)
{
    struct buf shown = { 0 };
    if (!s->out.direct || !isatty(s->out.fd))
        return out_write(&s->out, text, n);
    text_screen(&shown, text, n, s->c->emit == EMIT_JSONL);
    int rc = buf_ok(&shown, s->err);
    if (rc == 0)
        rc = out_write(&s->out, shown.data, shown.len);
    buf_free(&shown);
    return rc;
}

int
sink_write(struct sink *s, const void *bytes, size_t n, const struct tok_counts *counts)
{
    if (s->c->count)
        return 0;
    if (s->c->emit != EMIT_TOK)
        return n ? write_text(s, bytes, n) : 0;
    // The header waits for the first sample: input without one leaves no bytes.
    if (!s->begun && counts->samples) {
        s->begun = true;
        if (begin_tok(s) < 0)
            return -1;
    }
    return s->begun ? tok_write(&s->tok, bytes, n, counts) : 0;
}

int
sink_add(struct sink *s, const struct buf *bytes, const struct sizes *sizes,
         const struct tally *tally)
{
    tally_add(&s->sum, tally);
    if (buf_ok(bytes, s->err) < 0)
        return -1;
    if (!sink_buffers(s->c))
        return sink_write(s, bytes->data, bytes->len, &tally->counts);
    buf_add(&s->kept, bytes->data, bytes->len);
    for (size_t i = 0; i < sizes->n; i++)
        sizes_add(&s->sizes, sizes->v[i]);
    if (s->sizes.failed)
        return err_set(s->err, ERR_MEMORY, "out of memory for %zu samples", s->sizes.n);
    return buf_ok(&s->kept, s->err);
}

void
sink_close(struct sink *s)
{
    tok_close_writer(&s->tok);
    if (s->opened)
        out_abandon(&s->out);
    buf_free(&s->kept);
    free(s->sizes.v);
}
