/* SPDX-License-Identifier: MIT */
/* list: one name a file of this folder, for arch.c and for tests. */
#ifndef NIBBLE_MODEL_ARCH_LIST_H
#define NIBBLE_MODEL_ARCH_LIST_H

#include "lib/model/arch/arch.h"

extern const struct arch arch_qwen3;

#endif
