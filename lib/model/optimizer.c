/* SPDX-License-Identifier: MIT */
/* optimizer: see optimizer.h. */
#include "lib/model/optimizer_list.h"

const struct optimizer *const optimizers[OPTIMIZERS] = {
    [OPTIMIZER_ADAMW] = &optimizer_adamw,
    [OPTIMIZER_TORCHSHARP] = &optimizer_torchsharp,
};
