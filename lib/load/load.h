/* SPDX-License-Identifier: MIT */
/* load: a model of any container as weights on a device.  On a dry one they are counted.
 *
 * On the CPU aligned payloads are used where they are mapped; all else is copied.  NVFP4
 * stays NVFP4.  A tensor that is missing, has another shape or is not in the configuration
 * is an error with its name.
 */
#ifndef NIBBLE_LOAD_LOAD_H
#define NIBBLE_LOAD_LOAD_H

#include "lib/base/host.h"
#include "lib/format/view.h"
#include "lib/load/values.h"
#include "lib/model/weights.h"

struct load_options {
    unsigned threads;   // to read with
    const char *config; // the file of --config, or NULL
    const char
        *quant;     // quantizer of the seven projections, or "none"; NULL: that of the
                    // checkpoint, else as they are stored
    bool no_verify; // do not verify the checksums first
    const struct host *host;
};

struct model {
    struct load_options o;
    struct store store; // weights may be in its mapping
    struct views views;
    struct config config; // tied: the head is the embedding, also if the file has one
    struct net net;
    struct kernels *k;
    bool quantizes; // projections are quantized here
    struct quant_spec spec;
    bool share;                           // one tensor scale for fused projections
    const struct quant_spec *activations; // of the net; set between open and load
    bool fp8; // projections in E4M3, too, for products of many tokens; likewise
    uint64_t n_fp8, n_inexact; // how many weights those are, and how many are rounded
    bool input_scales;         // activations by the scales that the file has; likewise
    enum memory memory;        // what its weights count as; likewise
    // private
    struct weights weights;
    void **owned; // on the device
    size_t n_owned, cap_owned;
    bool host; // the device uses host memory
    struct values_scratch scratch;
    struct err *err;
};

/* Open the file and parse its configuration; then put the weights on the device, for
 * documents of at most so many positions.  Call model_close in any case; the device is the
 * caller's and outlives the model. */
int model_open(struct model *m, const char *path, const struct load_options *o,
               struct err *err);
int model_load(struct model *m, struct kernels *k, size_t positions);
/* The reverse of model_load, before its device is closed: it may be loaded on another. */
void model_unload(struct model *m);
void model_close(struct model *m);

/* Allow longer documents from now on. */
int model_stretch(struct model *m, size_t positions);

#endif
