/* SPDX-License-Identifier: MIT */
/* produce: the payloads of a plan's items. */
#ifndef NIBBLE_CONVERT_PRODUCE_H
#define NIBBLE_CONVERT_PRODUCE_H

#include "lib/convert/plan.h"
#include "lib/convert/random.h"
#include "lib/load/pool.h"

enum { COPY_BYTES = 1 << 20 };

/* Values of a tensor that its new type does not hold. */
struct range {
    uint64_t over, first; // too large: how many, the first of them
    double value;         // of the first
    double max;           // the largest magnitude among them that is finite
    bool infinite;        // some are not
    uint64_t under, zero; // rounded below the smallest normal number; of these to 0
};

/* A chunk of an item on its way to the writer. */
struct chunk {
    uint8_t *out; // (VALUES_CHUNK * 4)
    size_t bytes;
    struct quant_error error; // of NVFP4
    struct range range;       // of anything else
};

struct batch {
    struct chunk *chunk; // (capacity)
    uint64_t first;      // number of the first chunk
    size_t n;
};

struct producer;

/* Make a chunk: n elements of the item at work from `first` on. */
typedef int chunk_fn(struct producer *x, struct chunk *c, uint64_t first, size_t n,
                     struct values_scratch *w, struct err *err);

struct producer {
    struct plan *p;
    struct writer *w;
    struct host_progress *progress;
    unsigned threads;
    struct values_scratch *scratch; // (threads)
    struct batch batch[2];          // one is made while the other is written
    size_t capacity;                // of a batch, in chunks
    random_fn *random;
    uint8_t *copy; // (COPY_BYTES)
    // the item at work
    const struct item *it; // for NVFP4 its source
    struct values values;
    chunk_fn *make;
    struct batch *making, *writing;
    struct range range;
    // NVFP4
    struct nvfp4 *nvfp4; // NULL: an item of another kind
    struct quant_spec spec;
    struct quant_scale scale;
    bool measure;     // the errors are wanted
    bool discard;     // only scales are wanted now
    float *amax;      // of chunks
    struct pool pool; // memory of the GPU
};

/* ---- produce.c: the payload of one item into the writer */
int producer_item(struct producer *x, const struct item *it);

/* ---- producer.c */
struct producer *producer_open(struct plan *p, struct writer *w,
                               struct host_progress *progress);
void producer_close(struct producer *x);
/* The values of it are next.  begin: the checksums of what they are made of are compared
 * before. */
int producer_values(struct producer *x, const struct item *it);
int producer_begin(struct producer *x, const struct item *it);
/* Chunks of the item at work, and values in a chunk. */
uint64_t producer_chunks(const struct producer *x);
size_t producer_chunk(const struct producer *x, uint64_t chunk);
/* n elements from `first` on, as floats in w.  r: of an item that may be f64, which is not
 * quantized. */
int producer_floats(const struct producer *x, uint64_t first, size_t n,
                    struct values_scratch *w, struct range *r, struct err *err);
/* The type of the item's values if they are floats as they lie in the file; else
 * DT_NONE. */
enum dtype item_file_floats(const struct item *it);
/* A chunk of the item's values: those floats, else f32. */
const void *producer_read(const struct producer *x, uint64_t chunk,
                          struct values_scratch *w, enum dtype *d, struct err *err);
/* n bytes into the file. */
int producer_write(struct producer *x, const uint8_t *bytes, size_t n);
/* A tensor scale into the file. */
int producer_scale(struct producer *x, float f);
/* A scale as another dialect has it. */
float scale_swapped(const struct view_dialect *from, float f);
/* Blocks of zeros as another program's dialect has them. */
void producer_settle_zeros(const struct view_dialect *d, uint8_t *codes,
                           uint8_t *scales, size_t blocks);
void producer_add_error(struct quant_error *sum, const struct quant_error *e);

/* ---- batches.c: all of the item, made and written */
int producer_convert(struct producer *x, chunk_fn *make);

/* ---- rounding.c */
/* The file that an item's values are from, and their name there: a head that is made of
 * the embedding has another. */
const char *item_source(const struct item *it);
const char *item_source_name(const struct item *it);
/* n floats as the dtype of the item. */
void item_encode(const struct item *it, uint64_t first, const float *f, size_t n,
                 uint8_t *out, struct range *r);
/* The doubles in w (f64 tensors) as floats, checked against the item's dtype. */
void item_narrow(const struct item *it, uint64_t first, struct values_scratch *w,
                 size_t n, struct range *r);
void range_add(struct range *sum, const struct range *r);
/* After the item: an error if values are too large; underflows are reported at the end. */
int range_settle(struct plan *p, const struct item *it, const struct range *r);
/* The end of a message about values that `d` cannot hold: the option that avoids it, if
 * there is one for values up to max. */
const char *range_way_out(const struct plan *p, enum dtype d, double max);

/* ---- planes.c: one plane of an NVFP4 tensor that is made here */
int producer_plane(struct producer *x, const struct item *it);

/* ---- planes_gpu.c */
/* t->amax: NaN if a value is not finite.  keep: the values stay for planes_gpu_make. */
int planes_gpu_amax(struct producer *x, struct nvfp4 *t, bool keep);
/* Make and write the codes of the NVFP4 tensor at work, and make its scales. */
int planes_gpu_make(struct producer *x);

#endif
