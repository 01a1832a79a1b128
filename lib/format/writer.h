/* SPDX-License-Identifier: MIT */
/* writer: make a tensor file of any container, whole or not at all.
 *
 * The caller lists the tensors, then hands over their payloads in the order of the
 * plan.  Headers are laid out first, so that a full disk and a type that the container
 * lacks are errors before any work is done; hashes and provenance are filled in at the
 * end.
 */
#ifndef NIBBLE_FORMAT_WRITER_H
#define NIBBLE_FORMAT_WRITER_H

#include "lib/base/buf.h"
#include "lib/base/dtype.h"
#include "lib/base/hash.h"
#include "lib/file/outdir.h"
#include "lib/format/modeldir.h"
#include "lib/format/traits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wtensor {
    const char *name; // borrowed until the writer is closed, like shape
    enum dtype dtype;
    unsigned rank;
    const uint64_t *shape; // (rank)
    size_t tag;            // the caller's: which of its tensors this is
    uint64_t nbytes;       // the rest is the writer's
    uint64_t offset;       // of the payload in its file
    uint32_t file;
    uint8_t xxh3[XXH3_BYTES];
};

struct gguf_kv;

struct wmeta {
    struct slice config;     // text of config.json, p == NULL: none
    struct slice provenance; // JSON; at commit it may differ from that at open only in
                             // bytes, not in length
    struct slice metadata; // of safetensors: members of __metadata__ besides "nibble";
                           // p == NULL: "format":"pt"
    bool bare;             // no sidecar, no provenance
    const char *version;   // of the program
    // checkpoints only
    const char *master, *moments, *quant, *variant, *criterion, *share;
    struct slice state; // canonical msgpack; p == NULL: of a run that has not begun
    // a GGUF only: all pairs about the model and its tokenizer, see gguf.h
    const struct gguf_kv *gguf;
};

struct wliteral {
    uint64_t offset;
    uint32_t file;
    uint8_t *bytes;
    size_t n;
};

struct wfile {
    char *leaf; // name inside the directory; NULL: the file itself
    uint64_t bytes;
};

struct container;

struct writer {
    const struct container *kind;
    char *name; // escaped
    struct wtensor *t;
    size_t n;
    struct wmeta meta;
    uint64_t shard_bytes;
    // what the plan asks for
    bool wants_sidecar; // beside the file
    bool hash_tensors;  // fill wtensor.xxh3
    bool needs_seek;    // cannot be written to a pipe
    struct err *err;
    // the plan
    struct wfile *files;
    size_t n_files;
    struct wliteral *literals; // in file order
    size_t n_literals, cap_literals;
    // writing
    bool is_dir;
    char *path;
    struct guard *guard;
    unsigned flags;
    struct outdir dir;
    struct modeldir old; // the directory in its place
    char **extras;       // (n_extras) names of what writer_extra wrote
    size_t n_extras;
    struct outfile out;     // the file being written
    struct outfile sidecar; // ready before the file is renamed
    size_t at_file, at_tensor, at_literal;
    uint64_t at_byte; // of the current tensor
    struct hash *tensor_hash, *file_hash, *index_hash;
    uint8_t file_xxh3[XXH3_BYTES], index_xxh3[XXH3_BYTES];
};

/* The containers that can be written, by index in the order of the table in kinds.c;
 * NULL behind the last. */
const char *writer_kind(size_t i);
/* The one for a path: by its suffix, by a / at its end (a model directory), or
 * "-" (what can be read from a pipe again); or NULL. */
const char *writer_kind_of(const char *path);
/* NULL: no container of that name can be written. */
const struct traits *writer_traits(const char *kind);

struct writer_options {
    unsigned flags; // OUT_FORCE
    bool directory; // write a model directory (safetensors)
    uint64_t shard_bytes;
    struct guard *guard;
};

/* Plan and begin.  kind is a name of that table.  The tensors are sorted into file
 * order (stable); payloads must be given in that order.  writer_close is right
 * in any case. */
int writer_open(struct writer *w, const char *kind, const char *path, struct wtensor *t,
                size_t n, const struct wmeta *meta, const struct writer_options *opt,
                struct err *err);
/* Plan alone: whether the container can hold this, and w->files[].bytes.  writer_close
 * then; nothing was written. */
int writer_plan(struct writer *w, const char *kind, const char *path, struct wtensor *t,
                size_t n, const struct wmeta *meta, const struct writer_options *opt,
                struct err *err);
/* The next n bytes of payload; may not run past the current tensor. */
int writer_write(struct writer *w, const void *bytes, size_t n);
/* The same for zeros, of which a file has holes. */
int writer_zero(struct writer *w, uint64_t n);
/* All payloads, in place of the two above, are written by writer_pieces to w->out, and their hashes put
 * into w->t, before writer_commit: of a file whose headers come first and whose hashes are those
 * of its tensors (a checkpoint). */
int writer_by_pieces(struct writer *w);
/* Some bytes of a payload. */
struct writer_piece {
    size_t tag;        // the caller's: which payload
    uint64_t at, n;    // bytes of it
    uint64_t offset;   // of the payload in its file
    struct hash *hash; // gets the bytes, too, in their order
};
typedef const void *writer_read_fn(void *ctx, size_t tag, uint64_t at, void *buffer,
                                   size_t n, struct err *err);
/* By several threads.  read: n bytes of that payload from `at` on, in `buffer` or elsewhere; NULL:
 * an error. */
int writer_pieces(const struct outfile *out, const struct writer_piece *p, size_t n,
                  unsigned threads, writer_read_fn *read, void *ctx, struct err *err);
/* Fill in provenance and hashes, sync, rename. */
int writer_commit(struct writer *w, struct slice provenance)
    __attribute__((warn_unused_result));
/* Whether the target is a pipe or a device: then the provenance at open must be the
 * final one.  Known after writer_open. */
bool writer_is_stream(const struct writer *w);
/* In a directory, before writer_commit: one more small file. */
int writer_extra(struct writer *w, const char *leaf, const void *bytes, size_t n);
void writer_close(struct writer *w);

#endif
