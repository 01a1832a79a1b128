# SPDX-License-Identifier: MIT
# What experiments with some model share: which one it is, and that results are made again
# when a setting has changed.  An experiment includes this behind "ifdef under_lock", and
# its rules depend on $(model_there) and on $(OUT)/settings.

#: MODEL       Hugging Face directory (default: a small one, trained once in out/tiny)
#: TOKENIZER   its tokenizer.json (default: the one in MODEL)

MODEL ?=
ifeq ($(strip $(MODEL)),)
model = $(TINY)/model
model_there = $(tiny_model)
else
$(check_model)
model = $(MODEL)
model_there = $(wildcard $(MODEL)/config.json $(MODEL)/*.safetensors)
endif
TOKENIZER ?= $(model)/tokenizer.json
ifneq ($(filter command environment override,$(firstword $(origin TOKENIZER))),)
$(call needed,TOKENIZER)
$(call input_files,TOKENIZER)
endif

# Scripts find what they need here.
export MODEL_DIR = $(model)
export RUN_FLAGS = $(run_flags)

# The names of an experiment's settings.  The file is written only when one is another.
settings = BIN MODEL TOKENIZER DEVICE
$(eval $(call settings_file,$(OUT)/settings,$$(settings)))

# $(call table,FILE): the command that shows a table for people.
table = awk -f $(PIPELINES)/table.awk $1
