/* SPDX-License-Identifier: MIT */
/* store: an open tensor file of any container.
 *
 * All containers become the same thing: a list of tensors {name, dtype, shape, offset,
 * bytes} over mapped files, a configuration and a provenance, if they hold one.  The
 * table of them is in kinds.c; a new one is a file and a line there.
 *
 * Every rule of doc/FORMAT.md is checked on the way in.  Memory grows with bytes that
 * are really there, never with counts that a file announces; and the list is made only
 * of a file that was found to be good, so that a bad one costs little.
 */
#ifndef NIBBLE_FORMAT_STORE_H
#define NIBBLE_FORMAT_STORE_H

#include "lib/base/arena.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/base/hash.h"
#include "lib/base/names.h"
#include "lib/base/text.h"
#include "lib/file/guard.h"
#include "lib/file/map.h"
#include "lib/format/traits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_RANK = 64 };

struct tensor {
    const char *name; // NUL-terminated, no NUL inside
    uint32_t name_len;
    uint32_t file;          // index into store.files
    const uint64_t *shape;  // (rank)
    uint64_t numel, nbytes; // of the payload
    uint64_t offset;        // of the payload, from the start of its file
    uint64_t head;          // of the entry's own header, if it has one, else == offset
    const uint8_t *xxh3;    // (XXH3_BYTES) as the container records it, or NULL
    uint8_t dtype;          // enum dtype
    uint8_t rank;
    bool state; // optimizer state of a checkpoint, no weight
};

struct store_options {
    struct guard *guard; // never NULL
    bool strict;         // refuse what is unusual but harmless
    bool whole_pairs;    // refuse parts of NVFP4 tensors that do not fit each other
    bool list_only;      // payloads will not be read: a pipe need not be kept
    const char *tmpdir;  // where a pipe is kept
};

/* How the forward pass of a training sees its weights; name == NULL: unset.  The
 * words are those of doc/FORMAT.md section 4. */
struct quant_words {
    const char *criterion, *name, *share, *variant;
};

/* What a checkpoint keeps of a training besides its arrays: words of doc/FORMAT.md
 * section 4, and the map `state`, checked, as msgpack.  master == NULL: no
 * checkpoint. */
struct training {
    const char *master, *moments;
    struct slice state;
};

struct container;

/* A file that was read besides those of the tensors. */
struct text_file {
    dev_t dev;
    ino_t ino;
    const struct text_file *next;
};

struct store {
    const struct container *kind;
    bool is_directory; // path is one; files lie in it
    char *path;        // as given, without trailing slashes
    char *name;        // escaped, for messages
    struct map *files;
    size_t n_files;
    struct tensor *tensors; // in file order, shards in the order of their names
    size_t n_tensors;
    uint64_t bytes;          // of all tensor files
    struct slice config;     // JSON text of config.json, p == NULL if there is none
    bool config_beside;      // it is a config.json beside the file, not in it
    struct slice provenance; // JSON text, likewise
    struct slice meta;       // JSON object of its other metadata; see store_meta
    struct slice metadata;   // of safetensors: __metadata__, an object of strings
    struct quant_words quant;
    struct training training;
    struct buf warnings; // one per line
    struct store_options opt;
    struct err *err;
    // private
    struct arena arena;
    size_t cap_tensors;
    struct names names;
    // configurations, sidecars, lists of shards
    const struct text_file *texts;
    struct slice side_xxh3; // of a sidecar that fits, hex
    bool *passed;           // (n_tensors) of a checkpoint: its checksum was right
    const uint8_t *header;  // of a checkpoint: (header_bytes)
    uint64_t header_bytes;  // of a checkpoint or a GGUF
    uint64_t infos;         // of a GGUF: where the list of its tensors begins
    bool known_names;       // of a GGUF: they have names of ours, too
};

/* Open a file, a model directory or "-" (a .dat on standard input).  store_close is
 * right after success and failure alike. */
int store_open(struct store *s, const char *path, const struct store_options *opt,
               struct err *err);
void store_close(struct store *s);
/* 0, or -1 if tensor names show a LoRA adapter or a quantization that is not read.  Programs that
 * need a model call it; others accept such tensors. */
int store_check_model(const struct store *s, struct err *err);
const char *store_kind(const struct store *s);
const struct traits *store_traits(const struct store *s);

/* NULL if there is none of that name. */
const struct tensor *store_find(const struct store *s, struct slice name);
/* The mapped payload, borrowed: any alignment; NULL when empty or not kept. */
const uint8_t *store_data(const struct store *s, const struct tensor *t);
/* Read n payload bytes of t from the given offset. */
int store_read(struct store *s, const struct tensor *t, uint64_t offset, void *dst,
               size_t n, struct err *err);
/* 0, or -1 if a file was lost or changed its size since it was opened. */
int store_check(struct store *s);

/* Fill config and provenance from files beside it, where the container itself had none:
 * the sidecar of a .dat, then config.json.  What does not fit is a warning. */
int store_load_beside(struct store *s);

/* Make meta, which not every caller needs. */
int store_meta(struct store *s);

/* Set config from a file that must exist, in place of what there was. */
int store_load_config(struct store *s, const char *path);

/* Account for every byte: called in file order, ranges touch. */
typedef void (*segment_fn)(void *ctx, size_t file, uint64_t offset, uint64_t n,
                           const char *what, const struct tensor *t);
void store_segments(const struct store *s, segment_fn fn, void *ctx);

/* The content hash that names the input in a provenance: the one that the container
 * carries, or XXH3 of its files' bytes, read here.  -1 with ERR_FORMAT if a sidecar
 * expects other bytes. */
int store_content_hash(struct store *s, uint8_t digest[XXH3_BYTES], unsigned threads,
                       struct err *err);

/* Whether the container, or a sidecar, has checksums of the payloads. */
bool store_has_sums(const struct store *s);

/* Structure was checked by store_open; this checks what the container can prove about
 * the payloads.  *what describes what was checked.  -1: ERR_FORMAT if damaged. */
int store_verify(struct store *s, bool full, unsigned threads, const char **what);

/* Checksums of payloads, for all that compute with them or copy them.  The first
 * compares the digest of what was read of t anyway, the second reads t, the third all
 * of t[0 .. n), on several threads, and what lies between payloads; of a file with a
 * sidecar it reads everything, since that has one checksum for the whole.  A payload
 * without a checksum always passes, one that has passed is not read again.  -1:
 * ERR_FORMAT, it is damaged. */
int store_check_digest(const struct store *s, const struct tensor *t,
                       const uint8_t digest[XXH3_BYTES], struct err *err);
int store_check_payload(struct store *s, const struct tensor *t, struct err *err);
int store_check_payloads(struct store *s, const struct tensor *const *t, size_t n,
                         unsigned threads, struct err *err);
/* That alone: bytes between payloads that must be zero. */
int store_check_gaps(struct store *s, struct err *err);

/* Whether path must not be replaced while s is an input: it is one of the files that s
 * has read, by any name, or a directory that holds one; or it belongs to the same
 * model, as a tokenizer.json does.  False if it does not exist. */
bool store_reads(const struct store *s, const char *path);

#endif
