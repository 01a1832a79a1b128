/* SPDX-License-Identifier: MIT */
/* tensors: tensors of f32 in a safetensors file. */
#ifndef NIBBLE_INFER_TENSORS_H
#define NIBBLE_INFER_TENSORS_H

#include "lib/format/tok.h"
#include "lib/format/writer.h"
#include "lib/infer/session.h"

struct dump {
    const char *name;
    uint64_t shape[3];   // up to the first that is 0
    const float *values; // NULL: written by the caller
};
int dump_check(const struct session *s, const char *path);
/* A file open for writing: payloads go in the order of t.  q: whose prompt is recorded, or NULL;
 * tok: another input, or NULL.
 * dump_close also after a failure. */
struct dumper {
    struct writer w;
    struct wtensor *t; // tag: index into the list that was given
    struct buf provenance;
};
int dump_open(struct dumper *x, const struct session *s, const struct sequence *q,
              const char *path, const struct dump *d, size_t n,
              const struct tok_reader *tok);
int dump_commit(struct dumper *x) __attribute__((warn_unused_result));
void dump_close(struct dumper *x);
/* Write all of a file. */
int dump_write(const struct session *s, const struct sequence *q, const char *path,
               struct dump *d, size_t n, const struct tok_reader *tok);
/* Hidden states of one prompt. */
struct layers {
    struct session *s;
    const struct sequence *q;
    size_t tokens, at;
    float **h; // (layers) of (tokens, hidden)
};
int layers_open(struct layers *l, struct session *s, const struct sequence *q);
int layers_write(struct layers *l);
void layers_close(struct layers *l);

#endif
