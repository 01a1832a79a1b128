/* SPDX-License-Identifier: MIT */
/* attention_cudnn: attention of whole documents by cuDNN's fused kernels, with cuDNN
 * 9.12 or later on Hopper or later.
 *
 * The library is opened on first use, by the loader's usual search, and called through
 * NVIDIA's header-only frontend, which tools/cudnn-frontend.sh downloads.  Without
 * either, all functions return false or 0.
 *
 * False without an error means unsupported: the outputs are then undefined, and the
 * caller uses its own kernels.  Whether it is supported depends only on sizes and the
 * version of cuDNN, and so do the bits of the result.  If it is, failures such as out
 * of memory are errors: false, with the error set. */
#ifndef NIBBLE_KERNELS_CUDA_ATTENTION_CUDNN_H
#define NIBBLE_KERNELS_CUDA_ATTENTION_CUDNN_H

#include "kernels/cuda/cuda.h"

/* Gradients of queries, keys and values, and their token strides in elements. */
struct attention_grads {
    void *dq, *dkey, *dvalue;
    size_t q_stride, kv_stride;
};

/* As cuda_attention, for consecutive documents of h->length tokens without past; bf16,
 * dim 64 or 128. lse is the same as from our own kernels (natural logarithm), so
 * forward and backward may differ in which implementation they use. */
bool cudnn_attention(struct cuda *c, void *out, float *lse, const void *q,
                     const void *key, const void *value, const struct heads *h);
/* As cuda_attention_bwd, for the same sizes.  Deterministic unless the device has
 * is.any_order. */
bool cudnn_attention_bwd(struct cuda *c, const struct attention_grads *d,
                         const void *dout, const void *out, const float *lse,
                         const void *q, const void *key, const void *value, float *work,
                         const struct heads *h);

/* Approximate bytes of workspace of both; 0 if unsupported. */
size_t cudnn_workspace(const struct heads *h, bool any_order);

/* Call before the device's memory and stream are freed. */
void cudnn_close(struct cuda *c);

/* 91400 is 9.14.0; 0: cuDNN is not used. */
size_t cudnn_version(void);
/* Version of cuDNN and what it last did not support, or why it is not used; valid until
 * the next call. */
const char *cudnn_status(void);

#endif
