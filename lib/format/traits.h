/* SPDX-License-Identifier: MIT */
/* traits: how kinds of containers differ, apart from their bytes.
 *
 * Each kind has its own in its struct container; false is the plain case.  Programs use
 * store_traits and writer_traits, and compare no names.
 */
#ifndef NIBBLE_FORMAT_TRAITS_H
#define NIBBLE_FORMAT_TRAITS_H

#include <stdbool.h>

struct traits {
    // as an output
    bool to_directory;   // OUT/ is a model directory of such files
    bool directory_only; // and OUT alone is nothing
    // expected by its readers
    bool own_pairs; // NVFP4 entries are X.weight.qdata and X.weight.scale, no others
    bool packed_vectors; // NVFP4 entries may have one dimension: moments of norms do
    bool head_copy;      // lm_head.weight is there even if it is the embedding
    bool model_order; // entries are in the order of a model; a file that is rewritten
                      // keeps its own
    bool by_width;    // wide elements come first, so that the order of a file has
                      // no meaning
    bool no_bf16;     // f16 in its place, by default
    bool torchsharp_reads; // TorchSharp can read it: --compat is allowed
    // what it is
    bool embeds_tokenizer;  // the tokenizer is in the file
    bool needs_model;       // cannot be written without a Qwen3 configuration
    const char *dialect;    // of its NVFP4 tensors, see view.h; NULL: the built-in one
    bool f32_norms;         // norms are f32, all else f16 or bf16
    unsigned nvfp4_columns; // rows of those are a multiple of it; 0: of 16
    bool keeps_metadata;    // the __metadata__ of a safetensors input is copied
    bool training; // just the weights of a configuration, and the optimizer's state
};

#endif
