/* SPDX-License-Identifier: MIT */
/* container: what the readers and writers of lib/format share.  Private to it.
 *
 * One struct container a kind; the table of all is in kinds.c.
 */
#ifndef NIBBLE_FORMAT_CONTAINER_H
#define NIBBLE_FORMAT_CONTAINER_H

#include "lib/base/json.h"
#include "lib/format/store.h"
#include "lib/format/writer.h"

struct container {
    const char *name;
    const char *suffix;        // of file names, with the dot, or NULL
    const char *reserved_name; // that no tensor can have, or NULL
    struct traits traits;
    /* Whether a file that begins so is one of these; NULL: only the suffix tells. */
    bool (*sniff)(const uint8_t *head, size_t n, uint64_t file_bytes);
    /* Fill s from s->files[0], or from the directory s->path. */
    int (*read)(struct store *s);
    /* Fill s from a pipe; only container_of_pipe has it. */
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
    /* Hash of all headers, which a sidecar FILE.json must have;
     * NULL: this kind has no sidecars. */
    int (*index_hash)(const struct store *s, uint8_t digest[XXH3_BYTES]);
    /* Writing, see writer.c; NULL: this kind is read only. */
    int (*plan)(struct writer *w);
    int (*finish)(struct writer *w);
};

extern const struct container container_dat, container_safetensors, container_ckpt,
    container_gguf, container_hf, container_modelopt, container_compressed;

/* Append a copy of *t, and of its name and shape; refuse a second of the same name.
 * where is the tensor's place for the message ("entry 17"). */
int store_add(struct store *s, const struct tensor *t, const char *where);
/* The same in two steps, where the tensors must be sorted in between: append, then
 * index the new ones by name. */
int store_append(struct store *s, const struct tensor *t);
int store_number(struct store *s, const char *where);
/* Reserve memory for n more at once. */
int store_reserve(struct store *s, size_t n);
/* Open another tensor file of s. */
int store_add_file(struct store *s, const char *path);
int store_warn(struct store *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* A whole small text file, into s->arena; *text.p == NULL if it does not exist. */
int store_slurp(struct store *s, const char *path, struct slice *text);
/* Move the text of b into s->arena. */
int store_keep(struct store *s, struct slice *text, struct buf *b);
/* Read config.json of a directory, or beside a file, if there is one. */
int store_find_config(struct store *s);
/* For store_reads: s has read the file of m. */
int store_note(struct store *s, const struct map *m);

/* 0, or -1 with what is wrong. */
int check_name(struct store *s, const char *p, uint64_t n, const char *place);

/* Writing, for plan and finish: bytes at an offset of a file ... */
int writer_literal(struct writer *w, uint32_t file, uint64_t offset,
                   const struct buf *bytes);
/* ... and our JSON object (object.h); of a directory after its last file but
 * nibble.json, since it lists all of them. */
void writer_object(const struct writer *w, struct buf *out, bool sidecar);
/* Begin to write what was planned. */
int writer_begin(struct writer *w);

#endif
