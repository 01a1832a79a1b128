# SPDX-License-Identifier: MIT
# What all experiments share: where programs, inputs and outputs are, and the promises
# that their rules keep.  An experiment's Makefile sets "name" and its own settings,
# includes this, and has its rules between "ifdef under_lock" and "endif".
#
#   make -C pipelines/NAME [target] [VARIABLE=value]...
#
# The promises.  A rule writes its output whole or not at all: our programs do so by
# themselves, and what a script prints goes through $(whole).  Only one make works in an
# OUT at a time: a second one waits, and so does a new one for children that a killed one
# left behind.  Settings are checked before anything is done.

# ---- settings that every experiment has --------------------------------------

#: OUT         where everything is written (default: out/NAME at the project's root)
#: BIN         where the programs are (default: bin at the project's root)
#: DEVICE      cpu, cuda or auto: where models are trained and run (cpu)
#: THREADS     -j of the programs (default: as many as the machine has)
#: MEMORY      GB that training may take of this machine, watched by memguard (no limit)
#: FREE        GB that it must leave free, likewise (no limit)

ROOT := $(patsubst %/,%,$(dir $(patsubst %/,%,$(dir $(realpath $(lastword $(MAKEFILE_LIST)))))))
PIPELINES := $(ROOT)/pipelines

# Names with spaces are no names to make, and some characters are more than themselves to it or
# to a shell: say so, not what follows from it.
hash := \#
odd := ' " ` $$ $(hash) % : ; * ? [ ] ( ) { } < > & | \ ! ~
# $(call odd_name,TEXT): what is not plain about it as one name, or nothing.
odd_name = $(filter-out 1,$(words $1))$(strip $(foreach c,$(odd),$(findstring $c,$1)))
# $(call plain,NAME...): each of these settings is such a name.
plain = $(foreach n,$1,$(if $(call odd_name,$($n)),$(error $n=$($n): want a name \
	without space, quote and any of $(wordlist 3,99,$(odd)))))
ifneq ($(call odd_name,$(CURDIR)),)
$(error make cannot work in a directory with such a name, for its space or sign: $(CURDIR))
endif

# $(call path,NAME): a name that the user gave, from where the user is, also with make -C.
# The make under the lock is started by a shell, whose place is another: it is told.
here_is := $(or $(NIBBLE_FROM),$(PWD),$(CURDIR))
path = $(abspath $(if $(filter /%,$1),$1,$(here_is)/$1))

BIN ?= $(or $(NIBBLE_BIN),$(ROOT)/bin)
OUT ?= $(ROOT)/out/$(name)
DEVICE ?= cpu
THREADS ?=
$(call plain,OUT BIN)
override BIN := $(call path,$(BIN))
override OUT := $(call path,$(OUT))

# $(call quoted,TEXT): one word to a shell.
quoted = '$(subst ','\'',$1)'
# Names that are no settings: make takes any without a word.
wrong := $(if $(strip $(MAKEOVERRIDES)),$(shell $(PIPELINES)/settings.sh $(call quoted,$(MAKEOVERRIDES)) $(ROOT)/Makefile \
	$(wildcard $(PIPELINES)/*.mk) $(CURDIR)/Makefile))
$(if $(wrong),$(error $(wrong)))
# $(call number,NAME...,MOST): each of these settings is a whole number from 1 to MOST, without
# which it is the largest that programs take.  numbers: each of their words is.
number = $(foreach n,$1,$(call check_number,$n,$($n),$(or $2,4294967295),a whole number))
numbers = $(foreach n,$1,$(foreach v,$(or $($n),none),$(call check_number,$n,$v,$(or $2,4294967295),whole numbers)))
check_number = $(if $(shell v=$(call quoted,$2); case $$v in ('' | *[!0-9]* | 0* | ???????????*) echo bad;; \
	(*) [ "$$v" -le $3 ] || echo bad;; esac),$(error $1=$($1): want $4 from 1 to $3))
# $(call decimal,NAME...,MOST): each is a number above 0, as programs read it, up to MOST (1e9).
decimal = $(foreach n,$1,$(call decimal_to,$n,$(or $2,1e9)))
decimal_to = $(if $(shell printf '%s\n' $(call quoted,$($1)) | grep -xE '[0-9]*[.]?[0-9]+(e-?[0-9]+)?' | \
	awk '0 < $$1 + 0 && $$1 + 0 <= $2 { print "good" }'),,$(error $1=$($1): want a number above 0 and up to $2))
# $(call input_files,NAME...): these settings, if set, are files; their names become absolute.
input_files = $(foreach n,$1,$(if $($n),$(call input_file,$n)))
input_file = $(call plain,$1)$(if $(wildcard $(call path,$($1))),,$(error $1=$($1): no such file))$(eval \
	override $1 := $(call path,$($1)))
# $(call input_list,NAME): each word of this setting is a file; their names become absolute.
input_list = $(foreach f,$($1),$(if $(call odd_name,$f),$(error $1=$($1): want names \
	without space, quote and any of $(wordlist 3,99,$(odd)), apart from each other by spaces))$(if \
	$(wildcard $(call path,$f)),,$(error $1: $f: no such file)))$(eval override $1 := $(foreach f,$($1),$(call path,$f)))
# $(call needed,NAME...): these settings are not empty.
needed = $(foreach n,$1,$(if $(strip $($n)),,$(error $n is empty: see "make help")))
# $(check_model): MODEL, if it is set, is a model directory; its name becomes absolute.
check_model = $(if $(MODEL),$(call plain,MODEL)$(if $(wildcard $(call path,$(MODEL))/config.json),,$(error \
	MODEL=$(MODEL): no config.json is there: want a model directory; hf download OWNER/NAME --local-dir DIR fetches one))$(eval \
	override MODEL := $(call path,$(MODEL))))
# $(call one_of,NAME,WORD...)
one_of = $(if $(and $(filter 1,$(words $($1))),$(filter $2,$($1))),,$(error $1=$($1): want one of $2))
$(call one_of,DEVICE,cpu cuda auto)
$(call number,$(if $(THREADS),THREADS),1024)
$(call decimal,$(if $(MEMORY),MEMORY) $(if $(FREE),FREE))

# Tools and scripts see the same settings whatever the user's locale and make are.
export PATH := $(BIN):$(PATH)
export LC_ALL = C.UTF-8
export NIBBLE_BIN = $(BIN)
export PYTHONDONTWRITEBYTECODE = 1
SHELL = /bin/bash
.SHELLFLAGS = -euo pipefail -c
MAKEFLAGS += --no-print-directory --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# Options of programs that compute.
run_flags = --device $(DEVICE)$(if $(THREADS), -j $(THREADS))

# $(guard) COMMAND: memguard before it, if a limit was set.
ifneq ($(MEMORY)$(FREE),)
guard = memguard$(if $(MEMORY), -l $(MEMORY))$(if $(FREE), -a $(FREE)) --
programs += memguard
endif

# COMMAND $(whole): what it prints becomes the target, if it ends well.  No "&&" before mv: behind
# one the shell would no longer end (-e) with the first command in braces or a loop that fails.
whole = >$@.part; mv $@.part $@

# $(eval $(call settings_file,FILE,NAME...)): FILE holds these settings and is written when
# one has changed, so what depends on it is made again.
define settings_file
$1: FORCE
	@mkdir -p $$(@D); printf '%s\n' $$(foreach n,$2,'$$n=$$($$n)') >$$@.part
	@if cmp -s $$@.part $$@; then rm $$@.part; else mv $$@.part $$@; fi
endef
.PHONY: FORCE
FORCE:

# ---- one make at a time in an OUT ---------------------------------------------

# What an experiment runs must be there, and the GPU, if it is to compute: what only plans or
# reads (dry_goals) needs none.
programs += datcat datpack generate nvquant tokenize trainstep
no_gpu = $(BIN)/trainstep --diagnose | awk -F '\t' '$$1 == "cuda" { why = $$2 } /^cuda:[0-9]/ && !/too old/ { there = 1 } \
	END { if (!there) print why == "" ? "there is no GPU that it can use" : why }'

# The outer make has one rule, which calls make again under a lock that all
# its children hold, too.  Goals that write nothing need no lock; an experiment may
# have more of them.
free_goals += help clean
ifneq ($(if $(NIBBLE_LOCKED),,$(filter-out $(free_goals),$(or $(MAKECMDGOALS),all))),)
.PHONY: all locked $(MAKECMDGOALS)
$(or $(MAKECMDGOALS),all): locked ;
locked:
	+@for p in $(sort $(programs)); do [ -x $(BIN)/$$p ] || \
		{ echo "no $$p in $(BIN): make in $(ROOT) builds the programs" >&2; exit 2; }; done
ifeq ($(DEVICE),cuda)
ifneq ($(filter-out $(dry_goals),$(or $(MAKECMDGOALS),all)),)
	+@why=$$($(no_gpu)); [ -z "$$why" ] || { echo "DEVICE=cuda: $$why" >&2; exit 2; }
endif
endif
	+@mkdir -p '$(OUT)'
	+@exec 9>'$(OUT)/.lock'; flock -n 9 || { \
		echo 'waiting for another make in $(OUT)' >&2; flock 9; }; \
	NIBBLE_LOCKED=1 NIBBLE_FROM=$(call quoted,$(here_is)) $(MAKE) -f $(firstword $(MAKEFILE_LIST)) $(MAKECMDGOALS)
else
under_lock = 1

.PHONY: all clean help
## clean       remove OUT
# What has no lock was made by something else, and is not ours to remove: the user's home, say.
clean:
	@[ ! -e '$(OUT)' ] || [ -e '$(OUT)/.lock' ] || { \
		echo 'clean: $(OUT) was not made by an experiment (it has no .lock): left as it is' >&2; exit 2; }
	rm -rf '$(OUT)'

## help        targets and settings
help:
	@echo 'targets:'; sed -n 's/^## /  /p' $(MAKEFILE_LIST)
	@echo 'settings:'; sed -n 's/^#: /  /p' $(MAKEFILE_LIST)

# ---- the small trained model ---------------------------------------------------

# Of those experiments that need some model that has learnt something, and were given
# none: the model of "make demo" before it is told who it is.  It is the same for all of
# them and on every machine, and made once.
TINY = $(ROOT)/out/tiny
tiny_model = $(TINY)/model/config.json

$(TINY)/model/config.json: $(PIPELINES)/tiny.sh $(PIPELINES)/demo/pretrain.tsv
	$(PIPELINES)/tiny.sh '$(TINY)'
$(TINY)/model/tokenizer.json: $(TINY)/model/config.json ;
endif
