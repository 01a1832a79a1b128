/* SPDX-License-Identifier: MIT */
/* optimizer_list: one name an optimizer, for optimizer.c. */
#ifndef NIBBLE_MODEL_OPTIMIZER_LIST_H
#define NIBBLE_MODEL_OPTIMIZER_LIST_H

#include "lib/model/optimizer.h"

extern const struct optimizer optimizer_adamw, optimizer_torchsharp;

#endif
