/* SPDX-License-Identifier: MIT */
/* container: what the readers and writers of lib/format share.  Private to it.
 *
 * One struct container a kind; the table of all is in store.c.
 */
#ifndef NIBBLE_FORMAT_CONTAINER_H
#define NIBBLE_FORMAT_CONTAINER_H

#include "lib/core/json.h"
#include "lib/format/store.h"
#include "lib/format/writer.h"

struct container {
    const char *name;
    const char *suffix;        // of file names, with the dot; NULL: known otherwise
    const char *reserved_name; // that no tensor can have, or NULL
    struct traits traits;
    /* Whether a file that begins so is one of these; NULL: only the suffix tells. */
    bool (*sniff)(const uint8_t *head, size_t n, uint64_t file_bytes);
    /* Fill s from s->files[0], or from the directory s->path. */
    int (*read)(struct store *s);
    /* Fill s from a pipe; only store.c's `of_pipe` needs it. */
    int (*read_stream)(struct store *s, int fd);
    void (*segments)(const struct store *s, segment_fn fn, void *ctx);
    /* Check recorded checksums, if this kind has them. */
    int (*verify)(struct store *s, unsigned threads, const char **what);
    /* Check what lies between payloads, if that must be zero. */
    int (*check_gaps)(struct store *s, struct err *err);
    /* Content hash without reading the file; NULL: hash the bytes. */
    bool (*carried_hash)(const struct store *s, uint8_t digest[XXH3_BYTES]);
    /* Set s->meta, if read has not. */
    int (*meta)(struct store *s);
    /* Hash of all headers, by which a sidecar FILE.json proves to be that of this file;
     * NULL: this kind has no sidecars. */
    int (*index_hash)(const struct store *s, uint8_t digest[XXH3_BYTES]);
    /* Writing, see writer.c; NULL: this kind is read only. */
    int (*plan)(struct writer *w);
    int (*finish)(struct writer *w);
};

extern const struct container container_dat;
extern const struct container container_safetensors;
extern const struct container container_ckpt;
extern const struct container container_gguf;
extern const struct container container_hf;
extern const struct container container_modelopt, container_compressed;

/* The container of that name, or NULL. */
const struct container *container_named(struct slice name);

/* Append a copy of *t, and of its name and shape; refuse a second of the same name.
 * where is the tensor's place for the message ("entry 17"). */
int store_add(struct store *s, const struct tensor *t, const char *where);
/* The same in two steps, where the tensors must be sorted in between: append, then give
 * all that have no number yet the number of their place. */
int store_append(struct store *s, const struct tensor *t);
int store_number(struct store *s, const char *where);
/* Make room for n more at once. */
int store_reserve(struct store *s, size_t n);
/* Open another tensor file behind the ones that s has. */
int store_add_file(struct store *s, const char *path);
int store_warn(struct store *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* A whole small text file, into s->arena; *text.p == NULL if it does not exist. */
int store_slurp(struct store *s, const char *path, struct slice *text);
/* For store_reads: s has read the file of m. */
int store_note(struct store *s, const struct map *m);

/* Whether a name keeps the rules that hold everywhere. */
bool name_fits(struct slice name);
/* 0, or -1 with what is wrong. */
int check_name(struct store *s, const char *p, uint64_t n, const char *place);

/* The pages of a mapped JSON text: read ahead, and given back behind its reader. */
struct pager {
    struct map *map;
    uint64_t base, end; // of the text
    uint64_t from;      // the first that may still be ours
};
/* Open j on bytes [base, base + n) of m. */
void pager_open(struct pager *p, struct json *j, struct map *m, uint64_t base, size_t n,
                struct arena *arena, struct err *err);
void pager_passed(void *ctx, size_t pos);
/* Whether the object that begins at `start` of j's text has a key before `before`: 1, 0,
 * or -1. */
int pager_has_key(const struct pager *p, const struct json *j, size_t start,
                  struct slice key, size_t before);

/* Take {"format":"nibble-1", ...}; the fields that exist are set in s. */
struct nibble_object {
    struct slice config, provenance, xxh3, index_xxh3, files;
    uint64_t bytes;
    bool has_bytes;
};
int read_nibble_object(struct nibble_object *o, const char *file, struct slice text,
                       struct arena *arena, struct err *err);

/* safetensors.c.  Check s->files[file]; then append its tensors.  safetensors_names only
 * tells the names. */
struct safetensors {
    size_t n;        // tensors
    uint64_t nbytes; // of all
    bool sorted;     // in the header as in the file
    // names of all files so far, or NULL: there is but one file
    struct seen *seen;
    // is told every name, -1 stops; or NULL
    int (*each)(void *ctx, struct slice name);
    void *ctx;
};
int safetensors_check(struct store *s, size_t file, struct safetensors *f);
int safetensors_names(struct store *s, size_t file, struct safetensors *f);
int safetensors_list(struct store *s, size_t file, const struct safetensors *f);
int safetensors_read_file(struct store *s, size_t file); // check and list

#endif
