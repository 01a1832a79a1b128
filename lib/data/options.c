/* SPDX-License-Identifier: MIT */
/* options: see options.h. */
#include "lib/data/options.h"

const char *const data_inputs[] = { "tsv", "jsonl", "lines", "ids", "csv", NULL };
const char *const data_invalids[] = { "error", "replace", NULL };
