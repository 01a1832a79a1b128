/* SPDX-License-Identifier: MIT */
/* convert: rows of the options that datpack and nvquant share; c is a struct pack. */
#ifndef NIBBLE_CMD_CLI_CONVERT_H
#define NIBBLE_CMD_CLI_CONVERT_H

#include "cmd/cli/cmd.h"
#include "lib/convert/pack.h"

#define PACK_UNTIE(c)                                                                  \
    0, "untie", NULL, "store lm_head.weight; the model becomes untied",                \
        CMD_SET(&(c).head, HEAD_UNTIE)
#define PACK_TIE(c)                                                                    \
    0, "tie", NULL, "do not store the head of a tied model",                           \
        CMD_SET(&(c).head, HEAD_TIE)
#define PACK_VARIANT(c)                                                                \
    0, "variant", "NAME", "of max: modelopt", CMD_WORD(&(c).variant, pack_variants)
#define PACK_CRITERION(c, help)                                                        \
    0, "criterion", "NAME", help, CMD_WORD(&(c).criterion, pack_criteria)
#define PACK_SHARE_SCALE(c)                                                            \
    0, "share-scale", "LIST", "none or qkv,gate_up: one scale for what is fused",      \
        CMD_WORD(&(c).share, pack_shares)
#define PACK_IMPORTANCE(c)                                                             \
    0, "importance", "FILE",                                                           \
        "columns count by generate --dump-importance: all sweeps, 4over6",             \
        CMD_FILE(&(c).importance)
#define PACK_HESSIAN(c)                                                                \
    0, "hessian", NULL,                                                                \
        "columns make up for errors of others, by that file's Hessian",                \
        CMD_FLAG(&(c).hessian)
#define PACK_COMPAT(c)                                                                 \
    CMD_COMPAT(&(c).torchsharp, "what the TorchSharp programs can read")

#endif
