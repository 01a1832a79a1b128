/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/tensor_map.h"

#include "kernels/cuda/cuda.h"

/* cuTensorMapEncodeTiled, whose types are in a header that nothing else here needs. */
enum { BFLOAT16 = 9, NOT_INTERLEAVED = 0, SWIZZLE_128 = 3, L2_256 = 3, ZEROS = 0 };
typedef int encode_fn(struct tensor_map *to, int type, uint32_t rank, void *data,
                      const uint64_t *size, const uint64_t *stride, const uint32_t *box,
                      const uint32_t *step, int interleave, int swizzle, int promotion,
                      int fill);

bool
tensor_map_of(struct cuda *c, struct tensor_map *m, const void *data, size_t rows,
              size_t columns, unsigned box_rows)
{
    const uint64_t size[2] = { columns, rows }, stride = columns * sizeof(uint16_t);
    const uint32_t box[2] = { BOX_COLUMNS, box_rows }, step[2] = { 1, 1 };
    encode_fn *encode;
    if (!c->encode)
        c->encode = cuda_driver_function("cuTensorMapEncodeTiled");
    if (!c->encode) {
        err_set(
            c->k.err, ERR_USAGE,
            "cuda:%d: the driver has no cuTensorMapEncodeTiled: a driver for CUDA 12 "
            "or later is needed",
            c->device);
        return false;
    }
    memcpy(&encode, &c->encode, sizeof encode);
    int e = encode(m, BFLOAT16, 2, (void *)(uintptr_t)data, size, &stride, box, step,
                   NOT_INTERLEAVED, SWIZZLE_128, L2_256, ZEROS);
    if (e)
        err_set(c->k.err, ERR_IO,
                "cuda:%d: cuTensorMapEncodeTiled: error %d for %zu rows of %zu",
                c->device, e, rows, columns);
    return e == 0;
}
