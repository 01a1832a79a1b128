/* SPDX-License-Identifier: MIT */
/* options: how a model answers prompts, or is measured on samples. */
#ifndef NIBBLE_INFER_OPTIONS_H
#define NIBBLE_INFER_OPTIONS_H

#include "lib/base/host.h"
#include "lib/load/device.h"
#include "lib/model/sample.h"
#include "lib/text/template.h"

enum { MAX_STOPS = 64, MAX_BATCH = 64, MAX_ANSWERS = 1 << 16 };

struct infer_options {
    const struct host *host;
    const char *model, *tokenizer, *config, *quant;
    const char *system;
    struct template_options how;
    unsigned requests; // prompts are requests in JSON: 1
    bool chat, no_drop, time, ids, json, ignore_eos, no_kv, no_verify, force, hessian;
    const char *history; // a file that a chat writes
    uint32_t max_tokens;
    uint32_t batch;               // prompts at a time
    uint32_t answers;             // to each prompt
    struct sample_options sample; // what was not given is the model's
    struct {
        bool temperature, top_p, top_k, penalty;
    } given;
    struct slice stop[MAX_STOPS];
    size_t n_stops;
    uint32_t top_logprobs;
    const char *score, *logits, *kl, *kl_model, *dump_layers, *dump_importance;
    uint64_t chunk, context; // 0: not given
    enum activations activations;
    enum input_scale { INPUT_SCALE_DYNAMIC, INPUT_SCALE_STATIC } input_scale;
    struct device_options where;
    struct device device; // that `where` is
};

#endif
