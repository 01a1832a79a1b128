/* SPDX-License-Identifier: MIT */
/* output: the file of a plan, what goes with it and what is reported of it. */
#ifndef NIBBLE_CONVERT_OUTPUT_H
#define NIBBLE_CONVERT_OUTPUT_H

#include "lib/convert/plan.h"
#include "lib/file/outfile.h"
#include "lib/format/gguf.h"

/* ---- output.c: write all of it */
int output_write(struct plan *p);

/* ---- record.c */
/* Set b to the provenance.  Its length does not depend on the hashes of the inputs, so that
 * it can be laid out before they are computed. */
int record_put(struct buf *b, const struct plan *p);

/* ---- metadata.c: members of __metadata__ that go along */
struct metadata {
    struct buf text;
    struct names keys;
};
/* Of equal keys the first input's. */
int metadata_gather(struct plan *p, struct metadata *f);
void metadata_free(struct metadata *f);

/* ---- beside.c */
/* Set p->tokenizer: that file, or tokenizer.json of that directory, must be a tokenizer. */
int beside_find_tokenizer(struct plan *p);
/* Copy the model files beside the first input: tokenizer, card, licenses. */
int beside_copy(struct plan *p, struct writer *w);
/* After the output: a warning if a model directory has no configuration or no tokenizer. */
void beside_report(const struct plan *p);
/* An output, or a sidecar of it, that is an input is an error. */
int beside_check_output(const struct plan *p);
int beside_check(const struct plan *p, const char *out);
/* The key-value pairs of a container that embeds its tokenizer. */
int beside_vocabulary(const struct plan *p, struct gguf_kv *kv);

/* ---- summary.c */
/* The table of --report.  It is begun before the output: a bad name is reported at once,
 * and an output of that name finds its temporary one taken. */
int report_begin(const struct plan *p, struct outfile *o);
int report_write(const struct plan *p, struct outfile *o);
/* A warning each: quantizer and errors; values that underflowed. */
void report_summary(const struct plan *p);
void report_lost(const struct plan *p);

/* ---- merge.c */
/* A line about what each of several inputs gave. */
void report_merged(const struct plan *p);

#endif
