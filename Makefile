# SPDX-License-Identifier: MIT
# The whole build, not recursive.  Lists of sources first, then the settings of
# the machine, then the rules.  A new source file is added to one list, a new
# command to PROGS and to a list of its own; nothing else changes.
#
# Settings may be given on the command line or kept in an untracked .config.mk.

# ---- what there is ----------------------------------------------------------

VERSION = 0.1.0

BASE_SRCS = \
	lib/base/arena.c \
	lib/base/buf.c \
	lib/base/dtype.c \
	lib/base/err.c \
	lib/base/grow.c \
	lib/base/hash.c \
	lib/base/host.c \
	lib/base/isa.c \
	lib/base/json.c \
	lib/base/machine.c \
	lib/base/maths.c \
	lib/base/maths_kernel.c \
	lib/base/names.c \
	lib/base/nearest.c \
	lib/base/num.c \
	lib/base/os.c \
	lib/base/par.c \
	lib/base/plugin.c \
	lib/base/sha256.c \
	lib/base/shuffle.c \
	lib/base/text.c

FILE_SRCS = \
	lib/file/feed.c \
	lib/file/foreign.c \
	lib/file/guard.c \
	lib/file/lock.c \
	lib/file/map.c \
	lib/file/outdir.c \
	lib/file/outfile.c \
	lib/file/path.c \
	lib/file/perms.c \
	lib/file/reader.c \
	lib/file/temp.c

DIST_SRCS = \
	lib/dist/comm.c \
	lib/dist/comm_late.c \
	lib/dist/comm_sockets.c \
	lib/dist/launcher.c \
	lib/dist/meet.c \
	lib/dist/ranks.c

FORMAT_SRCS = \
	lib/format/ckpt.c \
	lib/format/dat.c \
	lib/format/dialect.c \
	lib/format/gguf.c \
	lib/format/gguf_model.c \
	lib/format/hf.c \
	lib/format/history.c \
	lib/format/kinds.c \
	lib/format/modeldir.c \
	lib/format/mp.c \
	lib/format/object.c \
	lib/format/pager.c \
	lib/format/provenance.c \
	lib/format/safetensors.c \
	lib/format/spans.c \
	lib/format/state.c \
	lib/format/store.c \
	lib/format/store_beside.c \
	lib/format/store_open.c \
	lib/format/store_sums.c \
	lib/format/tok.c \
	lib/format/view.c \
	lib/format/writer.c \
	lib/format/writer_open.c

NVFP4_SRCS = \
	lib/nvfp4/codec.c \
	lib/nvfp4/e4m3.c \
	lib/nvfp4/feedback.c \
	lib/nvfp4/gguf.c \
	lib/nvfp4/quant.c \
	lib/nvfp4/quant_kernel.c \
	lib/nvfp4/quant_paths.c

TEXT_SRCS = \
	lib/text/bpe.c \
	lib/text/decode.c \
	lib/text/encode.c \
	lib/text/ids.c \
	lib/text/nfc.c \
	lib/text/split.c \
	lib/text/template.c \
	lib/text/tokenizer.c \
	lib/text/unicode_data.c

ARCH_SRCS = \
	lib/model/arch/arch.c \
	lib/model/arch/qwen3.c

MODEL_SRCS = \
	lib/model/arrays.c \
	lib/model/backward.c \
	lib/model/config.c \
	lib/model/delayed.c \
	lib/model/exchange.c \
	lib/model/forward.c \
	lib/model/gradient.c \
	lib/model/loss.c \
	lib/model/net.c \
	lib/model/optimizer.c \
	lib/model/optimizer_adamw.c \
	lib/model/optimizer_torchsharp.c \
	lib/model/pass.c \
	lib/model/sample.c \
	lib/model/score.c \
	lib/model/shard.c \
	lib/model/squares.c \
	lib/model/table.c \
	lib/model/train.c \
	lib/model/train_open.c \
	lib/model/update.c \
	lib/model/weights.c

KERNEL_SRCS = \
	kernels/cpu/adamw.c \
	kernels/cpu/adamw_kernel.c \
	kernels/cpu/argmax.c \
	kernels/cpu/attention.c \
	kernels/cpu/attention_few_kernel.c \
	kernels/cpu/block_gram.c \
	kernels/cpu/clip.c \
	kernels/cpu/coarse.c \
	kernels/cpu/coarse_kernel.c \
	kernels/cpu/column_stats.c \
	kernels/cpu/convert.c \
	kernels/cpu/cpu.c \
	kernels/cpu/cross_entropy.c \
	kernels/cpu/distill.c \
	kernels/cpu/embed.c \
	kernels/cpu/fp4.c \
	kernels/cpu/fp8.c \
	kernels/cpu/gather.c \
	kernels/cpu/gemm.c \
	kernels/cpu/gemm_kernel.c \
	kernels/cpu/gemv.c \
	kernels/cpu/gemv_kernel.c \
	kernels/cpu/l1.c \
	kernels/cpu/linear.c \
	kernels/cpu/norm.c \
	kernels/cpu/open.c \
	kernels/cpu/quantize.c \
	kernels/cpu/rope.c \
	kernels/cpu/rows_kernel.c \
	kernels/cpu/swiglu.c \
	kernels/cpu/torchsharp.c \
	kernels/cuda.c \
	kernels/dry.c \
	kernels/ops.c

# The CUDA backend: a library that programs open when a GPU is asked for.  Built when
# there is an nvcc.
CUDA_SRCS = $(wildcard kernels/cuda/*.cu)
CUDA_CPP_SRCS = kernels/cuda/attention_cudnn.cpp
CUDA_C_SRCS = kernels/ops.c lib/base/dtype.c lib/base/err.c

# Ranks by MPI: a library that a run of several ranks opens.  Built when there is an mpicc.
MPI_SRCS = lib/dist/comm_mpi.c lib/dist/comm_late.c lib/base/err.c

LOAD_SRCS = \
	lib/load/bulk.c \
	lib/load/device.c \
	lib/load/gguf_vocab.c \
	lib/load/load.c \
	lib/load/pool.c \
	lib/load/quantizer.c \
	lib/load/rank_gpus.c \
	lib/load/saving.c \
	lib/load/select.c \
	lib/load/stats.c \
	lib/load/stats_kernel.c \
	lib/load/stats_paths.c \
	lib/load/training.c \
	lib/load/values.c

CONVERT_SRCS = \
	lib/convert/batches.c \
	lib/convert/beside.c \
	lib/convert/candidates.c \
	lib/convert/checkpoint.c \
	lib/convert/config_text.c \
	lib/convert/groups.c \
	lib/convert/head.c \
	lib/convert/head_match.c \
	lib/convert/importance.c \
	lib/convert/input_scales.c \
	lib/convert/items.c \
	lib/convert/like.c \
	lib/convert/merge.c \
	lib/convert/metadata.c \
	lib/convert/output.c \
	lib/convert/pack.c \
	lib/convert/plan.c \
	lib/convert/plan_open.c \
	lib/convert/planes.c \
	lib/convert/planes_gpu.c \
	lib/convert/produce.c \
	lib/convert/producer.c \
	lib/convert/quantized.c \
	lib/convert/quantizer_choice.c \
	lib/convert/random_kernel.c \
	lib/convert/record.c \
	lib/convert/rounding.c \
	lib/convert/sources.c \
	lib/convert/summary.c \
	lib/convert/target.c

DATA_SRCS = \
	lib/data/array.c \
	lib/data/columns.c \
	lib/data/csv.c \
	lib/data/detokenize.c \
	lib/data/emit.c \
	lib/data/input.c \
	lib/data/kind.c \
	lib/data/learn.c \
	lib/data/lines.c \
	lib/data/make.c \
	lib/data/messages.c \
	lib/data/options.c \
	lib/data/order.c \
	lib/data/rows.c \
	lib/data/samples.c \
	lib/data/shapes.c \
	lib/data/sink.c

INFER_SRCS = \
	lib/infer/answer.c \
	lib/infer/defaults.c \
	lib/infer/importance.c \
	lib/infer/meter.c \
	lib/infer/place.c \
	lib/infer/prompts.c \
	lib/infer/reference.c \
	lib/infer/request.c \
	lib/infer/score.c \
	lib/infer/session.c \
	lib/infer/session_open.c \
	lib/infer/stream.c \
	lib/infer/tensors.c \
	lib/infer/transcript.c

INSPECT_SRCS = \
	lib/inspect/attest.c \
	lib/inspect/compare.c \
	lib/inspect/list.c \
	lib/inspect/list_tok.c \
	lib/inspect/npy.c \
	lib/inspect/order.c \
	lib/inspect/printer.c \
	lib/inspect/scan.c \
	lib/inspect/verify_names.c

TRAIN_SRCS = \
	lib/train/agree.c \
	lib/train/config.c \
	lib/train/copies.c \
	lib/train/course.c \
	lib/train/dump.c \
	lib/train/finished.c \
	lib/train/inputs.c \
	lib/train/keep.c \
	lib/train/log.c \
	lib/train/memory_report.c \
	lib/train/output.c \
	lib/train/plan.c \
	lib/train/record.c \
	lib/train/replay.c \
	lib/train/save.c \
	lib/train/settings.c \
	lib/train/state.c \
	lib/train/teacher.c \
	lib/train/tensorboard.c \
	lib/train/trainer.c \
	lib/train/watch.c

# Shared by all commands; goes into libcmd.a.
CLI_SRCS = \
	cmd/cli/cmd.c \
	cmd/cli/elsewhere.c \
	cmd/cli/number.c \
	cmd/cli/option.c \
	cmd/cli/device_rows.c \
	cmd/cli/ranks.c \
	cmd/cli/spawn.c \
	cmd/cli/suffix.c \
	cmd/cli/unknown.c

# PROGS names the commands; the objects of NAME come from NAME_SRCS.
PROGS = datcat datpack generate memguard nvquant tokenize trainstep
datcat_SRCS = cmd/datcat/datcat.c
datpack_SRCS = cmd/datpack/datpack.c
generate_SRCS = \
	cmd/generate/chat.c \
	cmd/generate/edit.c \
	cmd/generate/generate.c \
	cmd/generate/source.c
memguard_SRCS = \
	cmd/memguard/gpu.c \
	cmd/memguard/memfiles.c \
	cmd/memguard/memguard.c \
	cmd/memguard/report.c \
	cmd/memguard/start.c \
	cmd/memguard/tree.c
nvquant_SRCS = cmd/nvquant/nvquant.c
tokenize_SRCS = cmd/tokenize/tokenize.c
trainstep_SRCS = \
	cmd/trainstep/display.c \
	cmd/trainstep/run.c \
	cmd/trainstep/spark.c \
	cmd/trainstep/stop.c \
	cmd/trainstep/trainstep.c

# Sources that are compiled once for each instruction set in ISAS.  They stay in
# the list of their library or command; x.c becomes x_scalar.o, x_avx2.o, ...,
# each with -DISA=scalar, -DISA=avx2, ...; those in VECTOR_SRCS have no scalar one,
# since their scalar truth is a source of its own.
ISA_SRCS = lib/base/maths_kernel.c lib/load/stats_kernel.c lib/convert/random_kernel.c \
	lib/nvfp4/quant_kernel.c \
	kernels/cpu/adamw_kernel.c kernels/cpu/attention_few_kernel.c kernels/cpu/coarse_kernel.c \
	kernels/cpu/gemm_kernel.c kernels/cpu/gemv_kernel.c kernels/cpu/rows_kernel.c
VECTOR_SRCS = lib/nvfp4/quant_kernel.c

# ---- settings of the machine ------------------------------------------------

-include .config.mk

ifeq ($(origin CC),default)
CC = gcc
endif
ifeq ($(origin AR),default)
AR = ar
endif
INSTALL ?= install
PREFIX ?= /usr/local
DESTDIR ?=
BUILD ?= build
BIN ?= bin
CFLAGS ?= -O2 -g
LDFLAGS ?=
WERROR ?=
FUZZ_CC ?= clang
FUZZ_SECONDS ?= 60

TARGET := $(shell $(CC) -dumpmachine)
ISAS := scalar $(if $(filter x86_64-%,$(TARGET)),avx2 avx512)$(if $(filter aarch64-%,$(TARGET)),neon)
ISA_FLAGS_scalar = -O3
ISA_FLAGS_neon = -O3
ISA_FLAGS_avx2 = -O3 -mavx2 -mfma -mf16c
ISA_FLAGS_avx512 = -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c

WARN = -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wformat=2 $(WERROR)
# No implicit FMA: it would make a result depend on the instruction set.
ALL_CFLAGS = -std=c11 $(WARN) -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 \
	-ffp-contract=off $(CFLAGS)

# One kind of machine code a chip that is named, and PTX for those to come.  sm_90a is
# Hopper (H100, H200), 100a B200, 120a RTX 50, 121a DGX Spark.  SM_90A: whether it is among them.
CUDA_HOME ?= /usr/local/cuda
NVCC ?= $(shell command -v nvcc 2>/dev/null || ls $(CUDA_HOME)/bin/nvcc 2>/dev/null)
NVCC_RELEASE := $(if $(NVCC),$(shell $(NVCC) --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p'))
CUDA_ARCHS ?= $(if $(filter 12,$(NVCC_RELEASE)),90a,90a 100a 120a 121a)
NVCC_FLAGS = -std=c++17 -O3 -I. -lineinfo -fmad=false -Xcompiler -fPIC,-Wall \
	-Xcudafe --diag_suppress=177 -D_GNU_SOURCE \
	-DSM_90A=$(if $(filter 90a,$(CUDA_ARCHS)),1,0) \
	$(foreach a,$(CUDA_ARCHS),-gencode=arch=compute_$a,code=sm_$a) \
	-gencode=arch=compute_90,code=compute_90

# For the machine that this build is for.
MPICC ?= $(if $(filter $(firstword $(subst -, ,$(TARGET)))-%,$(shell mpicc -dumpmachine 2>/dev/null)),mpicc)

# Headers of cudnn-frontend, which tools/cudnn-frontend.sh fetches: without them the
# backend has no cuDNN.  The host's compiler, and C++ from there.
CUDNN_FRONTEND ?= $(patsubst %/cudnn_frontend.h,%,\
	$(wildcard .cache/cudnn-frontend/include/cudnn_frontend.h))
CUDA_CPP_FLAGS = -std=c++17 -O2 -Wall -fPIC -I. \
	$(if $(CUDNN_FRONTEND),-isystem $(CUDNN_FRONTEND)) -isystem $(CUDA_HOME)/include

# msgpack-c renamed its library in version 6.  Asked when linking, not before:
# "make setup test" installs it only after this file has been read.
MSGPACK_LIB ?= $(if $(findstring /,$(shell $(CC) $(LDFLAGS) \
	-print-file-name=libmsgpack-c.so)),-lmsgpack-c,-lmsgpackc)
LDLIBS ?= $(MSGPACK_LIB) -lxxhash -lpthread -lm -ldl

# The line editor of generate --chat, where it can be linked; LIBEDIT= builds without it.
LIBEDIT ?= $(shell printf '%b\n' '\043include <histedit.h>' \
	'int main(void) { return !el_init("", stdin, stdout, stderr); }' | \
	$(CC) $(CFLAGS) $(LDFLAGS) -x c -o /dev/null - -ledit 2>/dev/null && echo -ledit)

# As many jobs as there are processors, unless -j says otherwise.
ifeq ($(MAKELEVEL)$(filter -j% --jobs%,$(shell tr '\0' '\n' </proc/$$PPID/cmdline 2>/dev/null; \
	printenv MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

# One short line a file; V=1 shows the commands.
show = $(if $(V),,@printf '  %-5s %s\n' $1 $@ && )

# ---- derived lists ----------------------------------------------------------

objs = $(foreach s,$1,$(if $(filter $s,$(ISA_SRCS)),\
	$(patsubst %,$(BUILD)/$(s:.c=)_%.o,\
	$(if $(filter $s,$(VECTOR_SRCS)),$(filter-out scalar,$(ISAS)),$(ISAS))),$(BUILD)/$(s:.c=.o)))

# A library comes before those it uses.
LIBS = $(foreach l,train infer data convert inspect load model kernels dist format arch text nvfp4 file base,$(BUILD)/lib$l.a)
LIBCMD = $(BUILD)/libcmd.a
GPU_TESTS = $(patsubst tests/gpu/%.c,%,$(wildcard tests/gpu/*.c))
UNIT = $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/*.c))
FUZZERS = $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/*.c))
SHIMS = $(patsubst tests/%.c,$(BUILD)/%.so,$(wildcard tests/failio.c tests/machine.c tests/nvml.c))
BINS = $(PROGS:%=$(BIN)/%)
OBJS = $(call objs,$(KERNEL_SRCS) $(BASE_SRCS) $(FILE_SRCS) $(DIST_SRCS) $(FORMAT_SRCS) $(ARCH_SRCS) $(TEXT_SRCS) $(NVFP4_SRCS) \
	$(MODEL_SRCS) $(LOAD_SRCS) $(CONVERT_SRCS) $(DATA_SRCS) $(INFER_SRCS) $(INSPECT_SRCS) $(TRAIN_SRCS) $(CLI_SRCS) $(foreach p,$(PROGS),$($p_SRCS)))
TEST_OBJS = $(GPU_TESTS:%=$(BUILD)/tests/gpu/%.o) $(UNIT:%=$(BUILD)/tests/unit/%.o) $(FUZZERS:%=$(BUILD)/tests/fuzz/%.o)

# What must wait when setup was asked for in the same command, also with -j.
SETUP := $(filter setup,$(MAKECMDGOALS))

# ---- targets ----------------------------------------------------------------

.SUFFIXES:
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all setup demo tour whoami check-whoami test check check-long check-interop check-golden check-gpu check-qwen3 check-san \
	check-sanitize-gpu check-emulated vacuous mutants torture lint fuzz fuzz-quick fuzz-keep bench install \
	uninstall arm64 clean cuda mpi emulated help unit-programs gpu-programs fuzz-programs test-programs FORCE

## all         build every program into bin/ (the default)
all: $(BINS) $(LIBS) $(if $(filter-out 8 9 10 11,$(NVCC_RELEASE)),cuda) $(if $(MPICC),mpi)

## cuda        the CUDA backend, bin/libnibble-cuda.so (part of all where nvcc is)
cuda: $(BIN)/libnibble-cuda.so

## mpi         ranks by MPI, bin/libnibble-mpi.so (part of all where mpicc is)
mpi: $(BIN)/libnibble-mpi.so

## setup       install the Debian packages that build, demo and test need
setup:
	tools/setup.sh

## demo        train a tiny Qwen3, quantize it, teach it in NVFP4 who it is; a minute
DEMO = pipelines/demo/out
demo: all
	rm -rf $(DEMO)
	NIBBLE_BIN=$(abspath $(BIN)) pipelines/demo.sh $(DEMO)
	@echo 'The model is kept: $(BIN)/generate $(DEMO)/trained.dat'
	@echo 'It answers single questions, a line each, and remembers none: the capitals of 16 countries,'
	@echo 'colours, opposites, days, months, a few words, sums up to 5+5; others it does not know, or invents.'

## tour        make a small model file, look at it, convert it, compare it
tour: all
	NIBBLE_BIN=$(abspath $(BIN)) pipelines/tour.sh

# A file among the goals was meant as a setting.
STRAY = $(firstword $(filter %.tsv %.csv %.jsonl %.json %.txt %.parquet,$(MAKECMDGOALS)))
ifneq ($(and $(STRAY),$(filter whoami check-whoami,$(MAKECMDGOALS))),)
$(error $(STRAY) is no target: expected make whoami DATA=$(STRAY))
endif

## whoami      teach a small model in 4 bits who it is, three minutes; DATA=my.jsonl: your rows
WHOAMI = $(MAKE) --no-print-directory -C pipelines/whoami BIN=$(abspath $(BIN)) \
	$(foreach v,DATA HELDOUT MODEL TOKENIZER CONFIG OUT,$(if $($v),$v='$(call whole_name,$($v))'))
# What is not one name is left as it is: the experiment says what is wrong with it.
whole_name = $(subst ','\'',$(if $(filter 1,$(words $1)),$(abspath $1),$1))
whoami: all
	+@$(WHOAMI) check

## check-whoami  the same with SEEDS (1 2 3), then KILLS (50) kills of a small run
SEEDS ?= 1 2 3
KILLS ?= 50
check-whoami: all
	+@for s in $(SEEDS); do $(MAKE) -C pipelines/whoami BIN=$(abspath $(BIN)) SEED=$$s \
		OUT=$(abspath out)/whoami-$$s check verify || exit; done
	rm -rf out/whoami-kills
	NIBBLE_BIN=$(abspath $(BIN)) pipelines/whoami/check-kills.sh $(KILLS) out/whoami-kills SMALL=1

## test        the tests: unit programs, bats, layers, a few seconds of fuzzing
test: all test-programs fuzz-programs
	@$(TEST_ENV) tools/test.sh unit bats fuzz

## check       the quick part of test, about a minute
check: all test-programs
	@$(TEST_ENV) tools/test.sh --tags '!slow' unit bats

## check-long  what test leaves out for its length: every cut of a file, the CUDA kernels emulated
check-long: all test-programs $(if $(shell command -v $(CXX)),emulated)
	@$(TEST_ENV) tools/test.sh --tags long bats

## check-qwen3 the tokenizer against Qwen3's own tokenizer.json: QWEN3=path/to/it
check-qwen3: $(BUILD)/unit/qwen3
	@test -n "$(QWEN3)" || { echo 'check-qwen3: say QWEN3=path/to/tokenizer.json' >&2; exit 2; }
	NIBBLE_QWEN3_TOKENIZER=$(abspath $(QWEN3)) $<

## check-golden  train golden models, compare with float64: GOLDEN='dir ...' TEACHER=dir
check-golden: all
	@test -n "$(GOLDEN)" || { echo 'check-golden: say GOLDEN=path/to/models' >&2; exit 2; }
	NIBBLE_BIN=$(abspath $(BIN)) python3 -B tests/golden.py $(GOLDEN)
	NIBBLE_BIN=$(abspath $(BIN)) python3 -B tests/golden.py --compute bf16 $(GOLDEN)
	[ -z "$(TEACHER)" ] || NIBBLE_BIN=$(abspath $(BIN)) python3 -B tests/golden.py \
		--distill $(TEACHER) $(firstword $(GOLDEN))

## check-gpu   on a machine with a GPU: its operations and steps against the CPU's
check-gpu: all gpu-programs
	@$(TEST_ENV) tools/check-gpu.sh

## check-sanitize-gpu  small cases of them under each tool of compute-sanitizer; WHOLE=1: all
check-sanitize-gpu: all gpu-programs
	@$(TEST_ENV) tools/check-gpu.sh --sanitize

## emulated    the CUDA backend for tests on the CPU: no nvcc, no GPU (tests/emulate)
emulated: $(BUILD)/emulate/libnibble-cuda.so $(BUILD)/emulate/libcuda.so.1 $(BUILD)/emulate/libnccl.so.2

## check-emulated  its operations and steps against the CPU's; minutes
check-emulated: all gpu-programs emulated
	@$(TEST_ENV) tests/emulate/check.sh

## check-san   the tests under ASan and UBSan, the unit programs under valgrind
SAN_FLAGS = -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=all
check-san: test-programs | $(SETUP)
	$(MAKE) BUILD=build-san BIN=build-san/bin NVCC= CFLAGS='$(SAN_FLAGS)' all test-programs
	@$(TEST_ENV) NIBBLE_SAN=1 NIBBLE_BUILD=$(abspath build-san) \
		NIBBLE_BIN=$(abspath build-san/bin) NIBBLE_PLAIN=$(abspath $(BUILD)) \
		tools/test.sh --tags '!nosan' --changed unit valgrind bats

## torture     random settings, cuts, signals, damage, options for TORTURE_SECONDS (600), SEED; ASan, TSan
TORTURE_SECONDS ?= 600
SEED ?= 1
TSAN_FLAGS = -O1 -g -fno-omit-frame-pointer -fsanitize=thread
torture:
	+@$(MAKE) --no-print-directory BUILD=build-san BIN=build-san/bin NVCC= CFLAGS='$(SAN_FLAGS)' all
	+@$(MAKE) --no-print-directory BUILD=build-tsan BIN=build-tsan/bin NVCC= CFLAGS='$(TSAN_FLAGS)' all
	NIBBLE_BIN=$(abspath build-san/bin) tools/torture.py -t $(TORTURE_SECONDS) -s $(SEED)
	NIBBLE_BIN=$(abspath build-tsan/bin) tools/torture.py -t $$(($(TORTURE_SECONDS) / 4)) -s $(SEED) train files

## vacuous     tests that pass although the program under them does not work; PROGRAM='datcat ...'
vacuous: all test-programs
	@$(TEST_ENV) tools/vacuous.sh $(PROGRAM)

## mutants     MUTANTS (300) small seeded changes of the code: which ones no test notices; an hour
MUTANTS ?= 300
mutants: all test-programs
	tools/mutants.py cover
	tools/mutants.py run -n $(MUTANTS)

## check-interop  transformers, llm-compressor, ModelOpt, llama.cpp, tokenizers on our files, we on
##             theirs; pip installs them into build-interop; QWEN3=dir of its tokenizer
check-interop: all
	@$(TEST_ENV) QWEN3='$(QWEN3)' tools/interop.sh $(PARTS) || [ $$? -eq 77 ]

## lint        clang-format, clang-tidy, cppcheck, shellcheck, SPDX lines, layers
lint: all | $(SETUP)
	@$(TEST_ENV) MAKE='$(MAKE)' tools/lint.sh

## fuzz        fuzz each parser for FUZZ_SECONDS (60)
fuzz: fuzz-programs
	@$(TEST_ENV) FUZZ_SECONDS=$(FUZZ_SECONDS) tools/test.sh fuzz

## fuzz-quick  fuzz each parser for a few seconds
fuzz-quick: fuzz-programs
	@$(TEST_ENV) tools/test.sh fuzz

## fuzz-keep   add to tests/fuzz/corpus what fuzzing found and it lacks
fuzz-keep: fuzz-programs
	for f in $(FUZZERS); do mkdir -p tests/fuzz/corpus/$$f build-fuzz/corpus/$$f && \
		build-fuzz/fuzz/$$f -merge=1 tests/fuzz/corpus/$$f build-fuzz/corpus/$$f \
		|| exit; done

## bench       run every benchmark under bench/
bench: all
	@for b in bench/*.sh; do NIBBLE_BIN=$(abspath $(BIN)) "$$b" || exit; done

## install     programs, man pages and completion into $(DESTDIR)$(PREFIX)
BINDIR = $(DESTDIR)$(PREFIX)/bin
LIBDIR = $(DESTDIR)$(PREFIX)/lib/nibble
PLUGINS = libnibble-cuda.so libnibble-mpi.so
MANDIR = $(DESTDIR)$(PREFIX)/share/man
COMPDIR = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
MANS = $(notdir $(wildcard man/*.[17]))
SCRIPTS = report plot
SCRIPT_FILES = report/report.py report/report.css plot/plot.py
install: all
	$(INSTALL) -d $(BINDIR) $(MANDIR)/man1 $(MANDIR)/man7 $(COMPDIR)
	$(INSTALL) -m 755 $(BINS) $(BINDIR)
	$(foreach s,$(SCRIPTS),$(INSTALL) -m 755 pipelines/$s/$s.sh $(BINDIR)/nibble-$s &&) :
	$(INSTALL) -d $(LIBDIR) && $(INSTALL) -m 644 $(SCRIPT_FILES:%=pipelines/%) $(LIBDIR)
	$(foreach l,$(wildcard $(PLUGINS:%=$(BIN)/%)),$(INSTALL) -d $(LIBDIR) && $(INSTALL) -m 644 $l $(LIBDIR) &&) :
	$(foreach m,$(MANS),$(INSTALL) -m 644 man/$m $(MANDIR)/man$(subst .,,$(suffix $m)) &&) :
	$(foreach c,$(wildcard tools/completion.bash),$(foreach p,$(PROGS),\
		$(INSTALL) -m 644 $c $(COMPDIR)/$p &&)) :

## uninstall   remove what install put there
uninstall:
	rm -f $(PLUGINS:%=$(LIBDIR)/%) $(PROGS:%=$(BINDIR)/%) $(SCRIPTS:%=$(BINDIR)/nibble-%) \
		$(addprefix $(LIBDIR)/,$(notdir $(SCRIPT_FILES))) $(foreach m,$(MANS),$(MANDIR)/man$(subst .,,$(suffix $m))/$m) $(PROGS:%=$(COMPDIR)/%)

## arm64       cross-build for aarch64 and run the quick tests under qemu-user
arm64: | $(SETUP)
	@MAKE='$(MAKE)' tools/arm64.sh

## clean       remove everything that was built
clean:
	rm -rf $(BUILD) $(BIN) build-san build-fuzz build-lint build-arm64

## help        this list
help:
	@sed -n 's/^## //p' $(firstword $(MAKEFILE_LIST))

# ---- rules ------------------------------------------------------------------

# Rebuild when a command differs from that of the last time: $(call remember,FILE,TEXT) is a
# file that is written anew when TEXT is not what it holds.
define remember
ifneq ($$(file <$1),$2)
$1: FORCE
endif
$1: | $(SETUP)
	@mkdir -p $$(@D)
	@printf '%s\n' '$2' >$$@
endef
FORCE:
$(eval $(call remember,$(BUILD)/flags,$(CC) $(ALL_CFLAGS) $(VERSION) \
	$(foreach i,$(ISAS),$(ISA_FLAGS_$i))))
$(eval $(call remember,$(BUILD)/link-flags,$(CC) $(CFLAGS) $(LDFLAGS) $(value MSGPACK_LIB) $(value LDLIBS)))

COMPILE = $(CC) $(ALL_CFLAGS) $(DEFS) -MMD -MP -c -o $@ $<

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call show,CC)$(COMPILE)

# For --version alone: files that programs write have the version, not the commit.
COMMIT := $(shell git describe --always --dirty --exclude '*' 2>/dev/null)
$(eval $(call remember,$(BUILD)/commit,$(COMMIT)))
$(BUILD)/cmd/cli/cmd.o: $(BUILD)/commit
$(BUILD)/cmd/cli/cmd.o: private DEFS = -DNIBBLE_VERSION='"$(VERSION)"' -DNIBBLE_COMMIT='"$(COMMIT)"'

$(eval $(call remember,$(BUILD)/libedit,$(LIBEDIT)))
$(BUILD)/cmd/generate/edit.o: $(BUILD)/libedit
$(BUILD)/cmd/generate/edit.o: private DEFS = $(if $(LIBEDIT),-DNIBBLE_LIBEDIT)
$(BIN)/generate: private PROG_LIBS = $(LIBEDIT)

# $(call isa_rule,SOURCE,ISA)
define isa_rule
$(BUILD)/$(1:.c=)_$2.o: $1 $(BUILD)/flags
	@mkdir -p $$(@D)
	$$(call show,CC)$$(COMPILE)
$(BUILD)/$(1:.c=)_$2.o: private DEFS = $(ISA_FLAGS_$2) -DISA=$2
endef
$(foreach s,$(ISA_SRCS),$(foreach i,$(ISAS),$(eval $(call isa_rule,$s,$i))))

$(BUILD)/libbase.a: $(call objs,$(BASE_SRCS))
$(BUILD)/libfile.a: $(call objs,$(FILE_SRCS))
$(BUILD)/libdist.a: $(call objs,$(DIST_SRCS))
$(BUILD)/libformat.a: $(call objs,$(FORMAT_SRCS))
$(BUILD)/libarch.a: $(call objs,$(ARCH_SRCS))
$(BUILD)/libtext.a: $(call objs,$(TEXT_SRCS))
$(BUILD)/libnvfp4.a: $(call objs,$(NVFP4_SRCS))
$(BUILD)/libmodel.a: $(call objs,$(MODEL_SRCS))
$(BUILD)/libload.a: $(call objs,$(LOAD_SRCS))
$(BUILD)/libconvert.a: $(call objs,$(CONVERT_SRCS))
$(BUILD)/libdata.a: $(call objs,$(DATA_SRCS))
$(BUILD)/libinfer.a: $(call objs,$(INFER_SRCS))
$(BUILD)/libtrain.a: $(call objs,$(TRAIN_SRCS))
$(BUILD)/libinspect.a: $(call objs,$(INSPECT_SRCS))
$(BUILD)/libkernels.a: $(call objs,$(KERNEL_SRCS))
$(LIBCMD): $(call objs,$(CLI_SRCS))
$(LIBS) $(LIBCMD): Makefile | $(SETUP)
	@mkdir -p $(@D)
	$(call show,AR)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)

# nvcc's own lists of headers; device code is linked into each object.
CUDA_OBJS = $(CUDA_SRCS:%.cu=$(BUILD)/%.o) $(CUDA_CPP_SRCS:%.cpp=$(BUILD)/%.o) \
	$(CUDA_C_SRCS:%.c=$(BUILD)/cuda-c/%.o)

$(eval $(call remember,$(BUILD)/nvcc-flags,$(NVCC) $(NVCC_FLAGS) $(CXX) $(CUDA_CPP_FLAGS)))

$(BUILD)/kernels/cuda/%.o: kernels/cuda/%.cu $(BUILD)/nvcc-flags
	@mkdir -p $(@D)
	$(call show,NVCC)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(BUILD)/kernels/cuda/%.o: kernels/cuda/%.cpp $(BUILD)/nvcc-flags
	@mkdir -p $(@D)
	$(call show,CXX)$(CXX) $(CUDA_CPP_FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/cuda-c/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call show,CC)$(CC) $(ALL_CFLAGS) -fPIC -MMD -MP -c -o $@ $<

$(BIN)/libnibble-cuda.so: $(CUDA_OBJS)
	@mkdir -p $(@D)
	$(call show,LINK)$(NVCC) -shared -cudart static -o $@ $(CUDA_OBJS) -Xlinker --version-script=kernels/cuda/exports \
		-lcublasLt -Xlinker -rpath,$(CUDA_HOME)/lib64
	@chmod 644 $@ # no program

MPI_OBJS = $(MPI_SRCS:%.c=$(BUILD)/mpi/%.o)
MPI_CC = OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(filter-out -fsanitize% -fno-sanitize%,$(ALL_CFLAGS)) -fPIC

$(eval $(call remember,$(BUILD)/mpi-flags,$(MPICC) $(CC) $(ALL_CFLAGS)))

$(BUILD)/mpi/%.o: %.c $(BUILD)/mpi-flags
	@mkdir -p $(@D)
	$(call show,MPICC)$(MPI_CC) -MMD -MP -c -o $@ $<

$(BIN)/libnibble-mpi.so: $(MPI_OBJS)
	@mkdir -p $(@D)
	$(call show,LINK)$(MPI_CC) $(LDFLAGS) -shared -o $@ $(MPI_OBJS)
	@chmod 644 $@

# The same backend by the host's compilers, run on the CPU by tests/emulate.
EMULATE = $(BUILD)/emulate
EMULATE_SRCS = $(wildcard tests/emulate/*.c)
EMULATE_OBJS = $(CUDA_SRCS:kernels/cuda/%.cu=$(EMULATE)/%.o) $(CUDA_CPP_SRCS:%.cpp=$(EMULATE)/%.o) \
	$(patsubst %.c,$(EMULATE)/%.o,$(CUDA_C_SRCS) $(filter-out %/driver.c %/nccl.c,$(EMULATE_SRCS)))
EMULATE_MACHINE ?= -march=native
EMULATE_FLAGS = $(EMULATE_MACHINE) -fPIC $(CFLAGS)
EMULATE_CXX = $(CXX) -std=c++17 -Itests/emulate/include -I. -D_GNU_SOURCE -DSM_90A=1 \
	-ffp-contract=off -fno-strict-aliasing -Wall -Wno-unknown-pragmas \
	-Wno-unused-function -Wno-unused-variable -Wno-maybe-uninitialized -Wno-enum-compare -Wno-psabi $(WERROR)

$(eval $(call remember,$(EMULATE)/flags,$(EMULATE_CXX) $(EMULATE_FLAGS) $(CC) $(ALL_CFLAGS)))

$(EMULATE)/%.cpp: kernels/cuda/%.cu tests/emulate/translate.py | $(SETUP)
	@mkdir -p $(@D)
	$(call show,PY)python3 -B tests/emulate/translate.py $< >$@

$(EMULATE)/%.o: $(EMULATE)/%.cpp $(EMULATE)/flags
	$(call show,CXX)$(EMULATE_CXX) -D__CUDACC__ $(EMULATE_FLAGS) -MMD -MP -c -o $@ $<

$(EMULATE)/%.o: %.cpp $(EMULATE)/flags
	@mkdir -p $(@D)
	$(call show,CXX)$(EMULATE_CXX) $(EMULATE_FLAGS) -MMD -MP -c -o $@ $<

$(EMULATE)/%.o: %.c $(EMULATE)/flags
	@mkdir -p $(@D)
	$(call show,CC)$(CC) $(ALL_CFLAGS) $(EMULATE_FLAGS) -MMD -MP -c -o $@ $<

$(EMULATE)/libnibble-cuda.so: $(EMULATE_OBJS)
	$(call show,LINK)$(CXX) $(CFLAGS) $(LDFLAGS) -shared -o $@ $(EMULATE_OBJS) \
		-Wl,--version-script=kernels/cuda/exports -lpthread -lm

$(EMULATE)/libcuda.so.1: $(EMULATE)/tests/emulate/driver.o
	$(call show,LINK)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $<

$(EMULATE)/libnccl.so.2: $(EMULATE)/tests/emulate/nccl.o
	$(call show,LINK)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libnccl.so.2 -o $@ $<

LINK = $(call show,LINK)$(CC) $(CFLAGS) $(LDFLAGS) $(WRAP) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(PROG_LIBS) $(LDLIBS)

define prog_rule
$(BIN)/$1: $$(call objs,$$($1_SRCS)) $$(LIBCMD) $$(LIBS) $(BUILD)/link-flags
	@mkdir -p $$(@D)
	$$(LINK)
endef
$(foreach p,$(PROGS),$(eval $(call prog_rule,$p)))

# Allocations of our own objects go by the program, which may let one fail.
$(BUILD)/unit/trainer: private WRAP = $(foreach f,malloc calloc realloc strdup,-Wl,--wrap=$f)
$(BUILD)/unit/%: $(BUILD)/tests/unit/%.o $(LIBCMD) $(LIBS) $(BUILD)/link-flags
	@mkdir -p $(@D)
	$(LINK)

$(BUILD)/gpu/%: $(BUILD)/tests/gpu/%.o $(LIBS) $(BUILD)/link-flags
	@mkdir -p $(@D)
	$(LINK)

$(BUILD)/%.so: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call show,CC)$(CC) $(filter-out -fsanitize% -fno-sanitize%,$(ALL_CFLAGS)) \
		-shared -fPIC -MMD -MP -o $@ $< -ldl

## gpu-programs  the tests that need a GPU; check-gpu runs them
gpu-programs: $(GPU_TESTS:%=$(BUILD)/gpu/%)
unit-programs: $(UNIT:%=$(BUILD)/unit/%)
test-programs: unit-programs gpu-programs $(SHIMS)

# The harnesses have a build of their own, by clang.  Without clang none is built
# and the tests say so.  One that does not build is removed, and the tests count
# it as failed; the others still run.
FUZZ_FLAGS = -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=all -fsanitize=fuzzer-no-link
FUZZ_BINS = $(FUZZERS:%=build-fuzz/fuzz/%)
FUZZ_MAKE = $(MAKE) BUILD=build-fuzz BIN=build-fuzz/bin NVCC= CC='$(FUZZ_CC)' \
	CFLAGS='$(FUZZ_FLAGS)'
fuzz-programs: | $(SETUP)
ifneq ($(FUZZERS),)
	+@if command -v $(FUZZ_CC) >/dev/null; then \
		$(FUZZ_MAKE) -k $(FUZZ_BINS) || for f in $(FUZZ_BINS); do \
			$(FUZZ_MAKE) $$f >/dev/null 2>&1 || rm -f $$f; done; \
	fi
endif

$(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(LIBCMD) $(LIBS) $(BUILD)/link-flags
	@mkdir -p $(@D)
	$(LINK) -fsanitize=fuzzer

# Of something that only a command has.
$(BUILD)/unit/memguard: $(patsubst %,$(BUILD)/cmd/memguard/%.o,report tree)

TEST_ENV = NIBBLE_BIN=$(abspath $(BIN)) NIBBLE_BUILD=$(abspath $(BUILD)) CC='$(CC)' FUZZ_CC='$(FUZZ_CC)'

-include $(EMULATE_OBJS:.o=.d) $(EMULATE)/tests/emulate/driver.d $(EMULATE)/tests/emulate/nccl.d
-include $(CUDA_OBJS:.o=.d) $(MPI_OBJS:.o=.d) $(OBJS:.o=.d) $(TEST_OBJS:.o=.d) $(SHIMS:.so=.d)
