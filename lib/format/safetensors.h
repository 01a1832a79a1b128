/* SPDX-License-Identifier: MIT */
/* safetensors: what model directories share with a single file. */
#ifndef NIBBLE_FORMAT_SAFETENSORS_H
#define NIBBLE_FORMAT_SAFETENSORS_H

#include "lib/format/container.h"

struct safetensors {
    size_t n;        // tensors
    uint64_t nbytes; // of all
    bool sorted;     // in the header as in the file
    // names of all files so far, or NULL: there is but one file
    struct seen *seen;
    // called with every name, -1 stops; or NULL
    int (*each)(void *ctx, struct slice name);
    void *ctx;
};
/* Check s->files[file]; then append its tensors.  safetensors_names only calls
 * f->each. */
int safetensors_check(struct store *s, size_t file, struct safetensors *f);
int safetensors_names(struct store *s, size_t file, struct safetensors *f);
int safetensors_list(struct store *s, size_t file, const struct safetensors *f);
int safetensors_read_file(struct store *s, size_t file); // check and list
void safetensors_segments(const struct store *s, segment_fn fn, void *ctx);
/* Writing; config.json and nibble.json of a directory too. */
int safetensors_plan(struct writer *w);
int safetensors_finish(struct writer *w);

#endif
