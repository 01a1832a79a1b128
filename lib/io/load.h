/* SPDX-License-Identifier: MIT */
/* load: a model of any container as weights on a device.
 *
 * The CPU takes payloads where they are mapped, if they are aligned; all else is copied.
 * NVFP4 stays NVFP4.  Tensors that the configuration does not know, that are missing or
 * that have another shape are refused by name.
 */
#ifndef NIBBLE_IO_LOAD_H
#define NIBBLE_IO_LOAD_H

#include "lib/format/view.h"
#include "lib/io/io.h"
#include "lib/io/values.h"
#include "lib/model/weights.h"

struct load_options {
    unsigned threads;   // that read
    const char *config; // the file of --config, or NULL
    const char *quant; // how the seven projections are seen: the name of a quantizer or
                       // "none"; NULL: as a checkpoint says, else as they are stored
    bool no_verify;    // do not read the file once for its checksums
    const struct io *io;
};

struct model {
    struct load_options o;
    struct store store; // weights may lie in its mapping
    struct views views;
    struct config config; // tied: the head is the embedding, whatever the file says
    struct net net;
    struct kernels *k;
    bool quantizes; // projections are quantized here
    struct quant_spec spec;
    bool share;                           // one tensor scale for what is fused
    const struct quant_spec *activations; // of the net; set between open and load
    // private
    struct weights weights;
    void **owned; // on the device
    size_t n_owned, cap_owned;
    bool host; // the device reads our memory
    struct values_scratch scratch;
    struct err *err;
};

/* Open the file and understand its configuration; then put the weights on the device,
 * with room for documents of so many positions.  model_close is right whatever
 * happened; the device is the caller's and outlives it. */
int model_open(struct model *m, const char *path, const struct load_options *o,
               struct err *err);
int model_load(struct model *m, struct kernels *k, size_t positions);
void model_close(struct model *m);

/* Longer documents from now on. */
int model_stretch(struct model *m, size_t positions);

#endif
