/* SPDX-License-Identifier: MIT */
/* attention_cudnn: attention of whole documents by cuDNN's fused kernels, where there is
 * a cuDNN of 9.12 or later and a GPU of Hopper's kind or later.
 *
 * The library is opened when it is first needed, by the loader's ordinary search; it is
 * spoken to by NVIDIA's header-only frontend, which tools/cudnn-frontend.sh fetches.
 * Without either, all of this says no.
 *
 * "No" is false with no error kept: what the operation writes is then undefined, and the
 * caller's own kernels do it.  The answer depends on sizes and on the cuDNN alone, and so
 * do the bits of a result.  Where it was yes, no memory or a failure is an error: false,
 * and kept. */
#ifndef NIBBLE_KERNELS_CUDA_ATTENTION_CUDNN_H
#define NIBBLE_KERNELS_CUDA_ATTENTION_CUDNN_H

#include "kernels/cuda/cuda.h"

/* Where the gradients of queries, keys and values go, and the elements from a token to the
 * next. */
struct attention_grads {
    void *dq, *dkey, *dvalue;
    size_t q_stride, kv_stride;
};

/* As cuda_attention, of documents of h->length tokens, one after another, with no past;
 * bf16 of dim 64 or 128.  lse is what it always is, in natural logarithms: what one side
 * wrote the other may read. */
bool cudnn_attention(struct cuda *c, void *out, float *lse, const void *q,
                     const void *key, const void *value, const struct heads *h);
/* As cuda_attention_bwd, of the same.  Every run gives the same bits, unless the device's
 * is.any_order. */
bool cudnn_attention_bwd(struct cuda *c, const struct attention_grads *d,
                         const void *dout, const void *out, const float *lse,
                         const void *q, const void *key, const void *value, float *work,
                         const struct heads *h);

/* Bytes that the two allocate, about; 0 if they would say no. */
size_t cudnn_workspace(const struct heads *h, bool any_order);

/* Before the device's memory and its stream go. */
void cudnn_close(struct cuda *c);

/* 91400 is 9.14.0; 0: not used. */
size_t cudnn_version(void);
/* Which cuDNN, and what it last said no to, or why none is used; valid until the next
 * call. */
const char *cudnn_words(void);

#endif
