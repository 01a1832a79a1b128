/* SPDX-License-Identifier: MIT */
/* elsewhere: see elsewhere.h. */
#include "cmd/cli/elsewhere.h"

#include <ctype.h>
#include <string.h>

/* The programs that a row is for. */
enum {
    DATCAT = 1,
    DATPACK = 2,
    GENERATE = 4,
    MEMGUARD = 8,
    NVQUANT = 16,
    TOKENIZE = 32,
    TRAINSTEP = 64,
    CONVERTERS = DATPACK | NVQUANT,
    ALL = 127,
};

static const struct {
    const char *name;
    unsigned bit;
} programs[] = {
    { "datcat", DATCAT },       { "datpack", DATPACK }, { "generate", GENERATE },
    { "memguard", MEMGUARD },   { "nvquant", NVQUANT }, { "tokenize", TOKENIZE },
    { "trainstep", TRAINSTEP },
};

/* Answers of several rows. */
#define NO_ADAPTER                                                                     \
    "nibble trains all weights, without adapters; --train-last-layers N trains fewer"
#define NO_DOWNLOAD                                                                    \
    "nothing is downloaded; hf download OWNER/NAME --local-dir DIR fetches a model"
#define NO_CODE   "no code of a model is run"
#define NO_BEAMS  "answers are greedy, or drawn with --temp X"
#define NO_SPLIT  "an answer is computed on one GPU; --gpus N goes with --score"
#define NO_LAYERS "all layers are on the device of --device"
#define NO_SERVER                                                                      \
    "nothing is served; servers read what datpack --to compressed-tensors writes"
#define NO_MERGE                                                                       \
    "merge the adapter first, by merge_and_unload() of PEFT and save_pretrained()"
#define NO_F16 "f16 ends at 65504, so that gradients overflow; --compute bf16 or f32"
#define NO_REPORT                                                                      \
    "--tensorboard DIR writes events, --log FILE a line of JSON for each step"
#define NO_PACKING   "tokenize --pack --seq-len N makes samples of whole documents"
#define NO_TOKENIZER "samples hold ids already; tokenize -t tokenizer.json makes them"
#define NO_OTHER_ADAM                                                                  \
    "AdamW is the only optimizer; datpack --to ckpt --moments TYPE stores its moments"
#define NO_RESUME                                                                      \
    "name the checkpoint as CHECKPOINT: the same command goes on where it has ended"
#define NO_CHECKPOINT                                                                  \
    "CHECKPOINT is an operand, a file that is read and replaced; -o OUT saves another"
#define NO_FSDP "--gpus N trains on N GPUs of this machine, a process each"
#define NO_MODEL                                                                       \
    "CHECKPOINT is an operand; datpack --to ckpt -o run.ckpt MODEL makes one"
#define NO_FORMAT                                                                      \
    "the suffix of OUT tells the container; datpack --to KIND makes all of them"
#define NO_OTHER_BITS "NVFP4 has 4 bits a value and a scale for each 16 values"
#define NO_ALWAYS     "only the answers are learnt, unless --targets all is given"

struct row {
    unsigned programs;
    const char *word; // folded: an option with its hyphens, or "option=value"
    const char *ours; // the option of this program that does it, or NULL
    const char *text; // a remark; NULL stands for the words of --help
};

/* No word here is an option of its program. */
static const struct row options[] = {
    /* Training. */
    { TRAINSTEP, "--learning-rate", "lr", NULL },
    { TRAINSTEP, "--lr-scheduler-type", "schedule", NULL },
    { TRAINSTEP, "--lr-scheduler", "schedule", NULL },
    { TRAINSTEP, "--lr-schedule", "schedule", NULL },
    { TRAINSTEP, "--scheduler", "schedule", NULL },
    { TRAINSTEP, "--warmup-steps", "warmup", NULL },
    { TRAINSTEP, "--lr-warmup-steps", "warmup", NULL },
    { TRAINSTEP, "--num-warmup-steps", "warmup", NULL },
    { TRAINSTEP, "--warmup-ratio", "warmup", "steps: the ratio times --total-steps" },
    { TRAINSTEP, "--max-steps", "until", NULL },
    { TRAINSTEP, "--num-steps", "until", NULL },
    { TRAINSTEP, "--num-train-epochs", "epochs", NULL },
    { TRAINSTEP, "--num-epochs", "epochs", NULL },
    { TRAINSTEP, "--max-epochs", "epochs", NULL },
    { TRAINSTEP, "--per-device-train-batch-size", "batch", NULL },
    { TRAINSTEP, "--per-device-batch-size", "batch", NULL },
    { TRAINSTEP, "--per-gpu-train-batch-size", "batch", NULL },
    { TRAINSTEP, "--train-batch-size", "batch", NULL },
    { TRAINSTEP, "--micro-batch-size", "batch", NULL },
    { TRAINSTEP, "--batch-size", "batch", NULL },
    { TRAINSTEP, "--per-device-eval-batch-size", "batch", "evaluations use it, too" },
    { TRAINSTEP, "--eval-batch-size", "batch", "evaluations use it, too" },
    { TRAINSTEP, "--gradient-accumulation-steps", "accum", NULL },
    { TRAINSTEP, "--gradient-accumulation", "accum", NULL },
    { TRAINSTEP, "--accumulation-steps", "accum", NULL },
    { TRAINSTEP, "--grad-accum", "accum", NULL },
    { TRAINSTEP, "--grad-accum-steps", "accum", NULL },
    { TRAINSTEP, "--max-grad-norm", "clip", NULL },
    { TRAINSTEP, "--gradient-clipping", "clip", NULL },
    { TRAINSTEP, "--gradient-clip-val", "clip", NULL },
    { TRAINSTEP, "--clip-grad-norm", "clip", NULL },
    { TRAINSTEP, "--grad-clip", "clip", NULL },
    { TRAINSTEP, "--max-seq-length", "seq-len", NULL },
    { TRAINSTEP, "--max-seq-len", "seq-len", NULL },
    { TRAINSTEP, "--max-length", "seq-len", NULL },
    { TRAINSTEP, "--sequence-length", "seq-len", NULL },
    { TRAINSTEP, "--sequence-len", "seq-len", NULL },
    { TRAINSTEP, "--cutoff-len", "seq-len", NULL },
    { TRAINSTEP, "--block-size", "seq-len", NULL },
    { TRAINSTEP, "--context-length", "seq-len", NULL },
    { TRAINSTEP, "--ctx-size", "seq-len", NULL },
    { TRAINSTEP, "--model-max-length", "seq-len", NULL },
    { TRAINSTEP, "--save-steps", "save-every", NULL },
    { TRAINSTEP, "--save-every-steps", "save-every", NULL },
    { TRAINSTEP, "--save-interval", "save-every", NULL },
    { TRAINSTEP, "--save-strategy", "save-every", NULL },
    { TRAINSTEP, "--checkpoint-every", "save-every", NULL },
    { TRAINSTEP, "--save-total-limit", "keep-last", NULL },
    { TRAINSTEP, "--load-best-model-at-end", "keep-best", NULL },
    { TRAINSTEP, "--logging-steps", "log-every", NULL },
    { TRAINSTEP, "--log-interval", "log-every", NULL },
    { TRAINSTEP, "--eval-steps", "eval-every", NULL },
    { TRAINSTEP, "--eval-interval", "eval-every", NULL },
    { TRAINSTEP, "--eval-strategy", "eval-every", NULL },
    { TRAINSTEP, "--evaluation-strategy", "eval-every", NULL },
    { TRAINSTEP, "--do-eval", "eval", NULL },
    { TRAINSTEP, "--eval-dataset", "eval", NULL },
    { TRAINSTEP, "--eval-data", "eval", NULL },
    { TRAINSTEP, "--eval-file", "eval", NULL },
    { TRAINSTEP, "--val-data", "eval", NULL },
    { TRAINSTEP, "--validation-file", "eval", NULL },
    { TRAINSTEP, "--val-set-size", NULL,
      "tokenize --split FRACTION:SEED makes a second file, for --eval" },
    { TRAINSTEP, "--eval-on-start", "eval-first", NULL },
    { TRAINSTEP, "--early-stopping-patience", "patience", NULL },
    { TRAINSTEP, "--dataset", "data",
      "a .tok, which tokenize makes of JSONL, CSV or TSV" },
    { TRAINSTEP, "--datasets", "data",
      "a .tok, which tokenize makes of JSONL, CSV or TSV" },
    { TRAINSTEP, "--dataset-name", "data",
      "a .tok, which tokenize makes of JSONL, CSV or TSV" },
    { TRAINSTEP, "--dataset-path", "data",
      "a .tok, which tokenize makes of JSONL, CSV or TSV" },
    { TRAINSTEP, "--data-path", "data",
      "a .tok, which tokenize makes of JSONL, CSV or TSV" },
    { TRAINSTEP, "--train-data", "data",
      "a .tok, which tokenize makes of JSONL, CSV or TSV" },
    { TRAINSTEP, "--train-file", "data",
      "a .tok, which tokenize makes of JSONL, CSV or TSV" },
    { TRAINSTEP, "--input", "data",
      "a .tok, which tokenize makes of JSONL, CSV or TSV" },
    { TRAINSTEP, "--adam-beta1", "beta1", NULL },
    { TRAINSTEP, "--adam-beta2", "beta2", NULL },
    { TRAINSTEP, "--adam-epsilon", "eps", NULL },
    { TRAINSTEP, "--adam-eps", "eps", NULL },
    { TRAINSTEP, "--epsilon", "eps", NULL },
    { TRAINSTEP, "--wd", "weight-decay", NULL },
    { TRAINSTEP, "--optim", NULL, NO_OTHER_ADAM },
    { TRAINSTEP, "--optimizer", NULL, NO_OTHER_ADAM },
    { TRAINSTEP, "--gradient-checkpointing", "recompute", NULL },
    { TRAINSTEP, "--use-gradient-checkpointing", "recompute", NULL },
    { TRAINSTEP, "--activation-checkpointing", "recompute", NULL },
    { TRAINSTEP, "--recompute-activations", "recompute", NULL },
    { TRAINSTEP, "--lora", NULL, NO_ADAPTER },
    { TRAINSTEP, "--lora-r", NULL, NO_ADAPTER },
    { TRAINSTEP, "--lora-rank", NULL, NO_ADAPTER },
    { TRAINSTEP, "--lora-alpha", NULL, NO_ADAPTER },
    { TRAINSTEP, "--lora-dropout", NULL, NO_ADAPTER },
    { TRAINSTEP, "--lora-target-modules", NULL, NO_ADAPTER },
    { TRAINSTEP, "--target-modules", NULL, NO_ADAPTER },
    { TRAINSTEP, "--use-rslora", NULL, NO_ADAPTER },
    { TRAINSTEP, "--use-lora", NULL, NO_ADAPTER },
    { TRAINSTEP, "--use-peft", NULL, NO_ADAPTER },
    { TRAINSTEP, "--qlora", NULL, NO_ADAPTER },
    { TRAINSTEP, "--adapter", NULL, NO_ADAPTER },
    { TRAINSTEP, "--load-in-4bit", NULL,
      "datpack --to ckpt --quant NAME makes a checkpoint whose projections are NVFP4" },
    { TRAINSTEP, "--load-in-8bit", NULL,
      "datpack --to ckpt --quant NAME makes a checkpoint whose projections are NVFP4" },
    { TRAINSTEP, "--quant", NULL,
      "the checkpoint has its quantizer; datpack --to ckpt --quant NAME makes one with "
      "another" },
    { TRAINSTEP, "--bf16", "compute", "--compute bf16" },
    { TRAINSTEP, "--fp8", "compute", "--compute fp8" },
    { TRAINSTEP, "--fp16", NULL, NO_F16 },
    { TRAINSTEP, "--mixed-precision", "compute", NULL },
    { TRAINSTEP, "--precision", "compute", NULL },
    { TRAINSTEP | GENERATE, "--dtype", "compute", NULL },
    { TRAINSTEP | GENERATE, "--torch-dtype", "compute", NULL },
    { TRAINSTEP, "--output-dir", "output", NULL },
    { TRAINSTEP, "--out-dir", "output", NULL },
    { TRAINSTEP, "--save-dir", "output", NULL },
    { TRAINSTEP, "--save-path", "output", NULL },
    { TRAINSTEP, "--resume", NULL, NO_RESUME },
    { TRAINSTEP, "--resume-from", NULL, NO_RESUME },
    { TRAINSTEP, "--resume-from-checkpoint", NULL, NO_RESUME },
    { TRAINSTEP, "--auto-resume", NULL, NO_RESUME },
    { TRAINSTEP, "--checkpoint", NULL, NO_CHECKPOINT },
    { TRAINSTEP, "--checkpoint-dir", NULL, NO_CHECKPOINT },
    { TRAINSTEP, "--checkpoint-path", NULL, NO_CHECKPOINT },
    { TRAINSTEP, "--ckpt", NULL, NO_CHECKPOINT },
    { TRAINSTEP, "--ckpt-path", NULL, NO_CHECKPOINT },
    { TRAINSTEP, "--step-chunk-rows", "chunk-rows", NULL },
    { TRAINSTEP, "-b", "batch", NULL },
    { TRAINSTEP, "-e", "epochs", NULL },
    { TRAINSTEP, "--iters", "steps", NULL },
    { TRAINSTEP, "--moments", NULL,
      "datpack --to ckpt --moments TYPE makes a checkpoint that has them" },
    { TRAINSTEP, "--config", NULL,
      "settings are options, and the checkpoint has the model's configuration" },
    { TRAINSTEP, "--finetuning-type", NULL, NO_ADAPTER },
    { TRAINSTEP, "--train-on-responses-only", NULL,
      "tokenize --targets says what is learnt, by default the answers" },
    { TRAINSTEP, "--neftune-noise-alpha", NULL, "embeddings are learnt without noise" },
    { TRAINSTEP | CONVERTERS, "--push-to-hub", NULL,
      "hf upload does that with the directory of datpack -o DIR/" },
    { TRAINSTEP | GENERATE | NVQUANT, "--cpu", "device", "--device cpu" },
    { TRAINSTEP | GENERATE, "--attn-implementation", NULL,
      "attention has one form, which needs no option" },
    { TRAINSTEP | GENERATE, "--fast-inference", NULL,
      "decoding has one form; --fast gives up equal bits where that is faster" },
    { GENERATE, "--min-p", "top-p", NULL },
    { TRAINSTEP, "--model", NULL, NO_MODEL },
    { TRAINSTEP, "-m", NULL, NO_MODEL },
    { TRAINSTEP, "--model-path", NULL, NO_MODEL },
    { TRAINSTEP, "--model-name", NULL, NO_MODEL },
    { TRAINSTEP, "--model-name-or-path", NULL, NO_MODEL },
    { TRAINSTEP, "--base-model", NULL, NO_MODEL },
    { TRAINSTEP, "--tokenizer", NULL, NO_TOKENIZER },
    { TRAINSTEP, "-t", NULL, NO_TOKENIZER },
    { TRAINSTEP, "--chat-template", NULL, NO_TOKENIZER },
    { TRAINSTEP, "--template", NULL, NO_TOKENIZER },
    { TRAINSTEP, "--packing", NULL, NO_PACKING },
    { TRAINSTEP, "--pack", NULL, NO_PACKING },
    { TRAINSTEP, "--sample-packing", NULL, NO_PACKING },
    { TRAINSTEP, "--report-to", NULL, NO_REPORT },
    { TRAINSTEP, "--wandb", NULL, NO_REPORT },
    { TRAINSTEP, "--wandb-project", NULL, NO_REPORT },
    { TRAINSTEP, "--run-name", NULL, NO_REPORT },
    { TRAINSTEP, "--logging-dir", "tensorboard", NULL },
    { TRAINSTEP, "--log-dir", "tensorboard", NULL },
    { TRAINSTEP, "--deepspeed", NULL, NO_FSDP },
    { TRAINSTEP, "--fsdp", NULL, NO_FSDP },
    { TRAINSTEP, "--num-gpus", "gpus", NULL },
    { TRAINSTEP, "--n-gpus", "gpus", NULL },
    { TRAINSTEP, "--nproc-per-node", "gpus", NULL },
    { TRAINSTEP, "--num-processes", "gpus", NULL },
    { TRAINSTEP, "--devices", "gpus", NULL },
    { TRAINSTEP | GENERATE, "--gpu", "device", NULL },
    { TRAINSTEP | GENERATE | NVQUANT, "--cuda", "device", NULL },
    { TRAINSTEP | GENERATE | NVQUANT, "--device-map", "device", NULL },
    { TRAINSTEP, "--use-cpu", "device", "--device cpu" },
    { TRAINSTEP, "--no-cuda", "device", "--device cpu" },
    { TRAINSTEP, "--data-seed", "seed", NULL },
    { TRAINSTEP | GENERATE, "--random-seed", "seed", NULL },
    { TRAINSTEP, "--shuffle", "order", NULL },
    { TRAINSTEP, "--no-shuffle", "order", "--order file" },
    { TRAINSTEP, "--freeze-layers", "train-last-layers", NULL },
    { TRAINSTEP, "--train-last-n-layers", "train-last-layers", NULL },
    { TRAINSTEP, "--loss-type", "loss", NULL },
    { TRAINSTEP, "--teacher-model", "teacher", NULL },
    { TRAINSTEP, "--temperature", "distill-temp", NULL },
    { TRAINSTEP, "--teacher-temp", "distill-temp", NULL },
    { TRAINSTEP, "--teacher-temperature", "distill-temp", NULL },
    { TRAINSTEP, "--max-memory", "memory-limit", NULL },
    { TRAINSTEP, "--memory", "memory-limit", NULL },
    { TRAINSTEP, "--synthetic", NULL,
      "datpack --init SEED --config config.json --to ckpt makes a small random model" },

    /* Answers. */
    { GENERATE, "--model", NULL, "MODEL is an operand: generate -p TEXT MODEL" },
    { GENERATE, "-m", NULL, "MODEL is an operand: generate -p TEXT MODEL" },
    { GENERATE, "--model-path", NULL, "MODEL is an operand: generate -p TEXT MODEL" },
    { GENERATE, "--model-name", NULL, "MODEL is an operand: generate -p TEXT MODEL" },
    { GENERATE, "--model-name-or-path", NULL,
      "MODEL is an operand: generate -p TEXT MODEL" },
    { GENERATE, "--max-new-tokens", "max-tokens", NULL },
    { GENERATE, "--n-predict", "max-tokens", NULL },
    { GENERATE, "--predict", "max-tokens", NULL },
    { GENERATE, "--num-predict", "max-tokens", NULL },
    { GENERATE, "--max-length", "max-tokens", NULL },
    { GENERATE, "--ctx-size", "context", NULL },
    { GENERATE, "-c", "context", NULL },
    { GENERATE, "--n-ctx", "context", NULL },
    { GENERATE, "--num-ctx", "context", NULL },
    { GENERATE, "--context-size", "context", NULL },
    { GENERATE, "--context-length", "context", NULL },
    { GENERATE, "--max-model-len", "context", NULL },
    { GENERATE, "--max-seq-len", "context", NULL },
    { GENERATE, "--max-seq-length", "context", NULL },
    { GENERATE, "--temperature", "temp", NULL },
    { GENERATE, "--do-sample", "temp", "above 0 tokens are drawn" },
    { GENERATE, "--greedy", "temp", "0, the default, takes the most likely token" },
    { GENERATE, "--stream", NULL,
      "the text of one prompt is printed while it is generated" },
    { GENERATE, "--jinja", NULL,
      "the template of Qwen3 is built in: --template qwen3" },
    { GENERATE, "--num-beams", NULL, NO_BEAMS },
    { GENERATE, "--beam-size", NULL, NO_BEAMS },
    { GENERATE, "--repetition-penalty", "repeat-penalty", NULL },
    { GENERATE, "--presence-penalty", "repeat-penalty", NULL },
    { GENERATE, "--frequency-penalty", "repeat-penalty", NULL },
    { GENERATE, "-s", "seed", NULL },
    { GENERATE, "--n-gpu-layers", NULL, NO_LAYERS },
    { GENERATE, "--gpu-layers", NULL, NO_LAYERS },
    { GENERATE, "-ngl", NULL, NO_LAYERS },
    { GENERATE, "--tensor-parallel-size", NULL, NO_SPLIT },
    { GENERATE, "--pipeline-parallel-size", NULL, NO_SPLIT },
    { GENERATE, "--tensor-split", NULL, NO_SPLIT },
    { GENERATE, "-tp", NULL, NO_SPLIT },
    { GENERATE, "--gpu-memory-utilization", NULL,
      "memory is used as --context and --batch need it" },
    { GENERATE, "--bf16", "compute", "--compute bf16" },
    { GENERATE, "--fp16", "compute", "--compute bf16 or f32" },
    { GENERATE, "--load-in-4bit", "quant", NULL },
    { GENERATE, "--load-in-8bit", "quant", NULL },
    { GENERATE, "--quantization", "quant", NULL },
    { GENERATE, "--system-prompt", "system", NULL },
    { GENERATE, "-sys", "system", NULL },
    { GENERATE, "--interactive", "chat", NULL },
    { GENERATE, "--conversation", "chat", NULL },
    { GENERATE, "-i", "chat", NULL },
    { GENERATE, "-cnv", "chat", NULL },
    { GENERATE | TOKENIZE, "--chat-template", "template", NULL },
    { GENERATE, "--enable-thinking", "think", NULL },
    { GENERATE, "--prompt-file", NULL,
      "prompts are lines of standard input: generate MODEL <FILE" },
    { GENERATE, "--file", NULL,
      "prompts are lines of standard input: generate MODEL <FILE" },
    { GENERATE, "--reverse-prompt", "stop", NULL },
    { GENERATE, "--stop-sequences", "stop", NULL },
    { GENERATE, "-r", "stop", NULL },
    { GENERATE, "--logprobs", "top-logprobs", NULL },
    { GENERATE, "--n-probs", "top-logprobs", NULL },
    { GENERATE, "--output", NULL, "answers go to standard output: generate ... >FILE" },
    { GENERATE, "-o", NULL, "answers go to standard output: generate ... >FILE" },
    { GENERATE, "--batch-size", "batch", NULL },
    { GENERATE, "-b", "batch", NULL },
    { GENERATE, "--max-num-seqs", "batch", NULL },
    { GENERATE, "--ubatch-size", "prefill-chunk", NULL },
    { GENERATE, "-ub", "prefill-chunk", NULL },
    { GENERATE, "--perplexity", "score", NULL },
    { GENERATE, "--eval", "score", NULL },
    { GENERATE, "-d", "score", NULL },
    { GENERATE, "--data", "score", NULL },
    { GENERATE, "--use-cache", "no-kv", "the cache is always used but with --no-kv" },
    { GENERATE, "--no-display-prompt", NULL, "the prompt is never repeated" },
    { GENERATE, "--flash-attn", NULL, "attention has one form, which needs no option" },
    { GENERATE, "-fa", NULL, "attention has one form, which needs no option" },
    { GENERATE, "--mlock", NULL, "the file is mapped, and the kernel keeps it" },
    { GENERATE, "--no-mmap", NULL, "the file is mapped, and the kernel keeps it" },
    { GENERATE, "--host", NULL, NO_SERVER },
    { GENERATE, "--port", NULL, NO_SERVER },
    { GENERATE, "--serve", NULL, NO_SERVER },
    { GENERATE | CONVERTERS, "--lora", NULL, NO_MERGE },
    { GENERATE | CONVERTERS, "--adapter", NULL, NO_MERGE },

    /* Samples. */
    { TOKENIZE, "--max-seq-length", "seq-len", NULL },
    { TOKENIZE, "--max-seq-len", "seq-len", NULL },
    { TOKENIZE, "--max-length", "seq-len", NULL },
    { TOKENIZE, "--max-len", "seq-len", NULL },
    { TOKENIZE, "--sequence-len", "seq-len", NULL },
    { TOKENIZE, "--cutoff-len", "seq-len", NULL },
    { TOKENIZE, "--truncation", "seq-len", NULL },
    { TOKENIZE, "--model-max-length", "seq-len", NULL },
    { TOKENIZE, "--block-size", "chunk", NULL },
    { TOKENIZE, "--packing", "pack", NULL },
    { TOKENIZE, "--sample-packing", "pack", NULL },
    { TOKENIZE, "--train-on-inputs", "targets", "--targets all" },
    { TOKENIZE, "--train-on-prompt", "targets", "--targets all" },
    { TOKENIZE, "--assistant-only-loss", NULL, NO_ALWAYS },
    { TOKENIZE, "--completion-only-loss", NULL, NO_ALWAYS },
    { TOKENIZE, "--mask-prompt", NULL, NO_ALWAYS },
    { TOKENIZE, "--dataset", NULL, "FILE is an operand: tokenize -o OUT FILE" },
    { TOKENIZE, "--data", NULL, "FILE is an operand: tokenize -o OUT FILE" },
    { TOKENIZE, "-d", NULL, "FILE is an operand: tokenize -o OUT FILE" },
    { TOKENIZE, "--input-file", NULL, "FILE is an operand: tokenize -o OUT FILE" },
    { TOKENIZE, "--train-file", NULL, "FILE is an operand: tokenize -o OUT FILE" },
    { TOKENIZE, "--text", NULL, "text is a file or standard input" },
    { TOKENIZE, "--val-set-size", "split", NULL },
    { TOKENIZE, "--test-size", "split", NULL },
    { TOKENIZE, "--validation-split", "split", NULL },
    { TOKENIZE, "--num-proc", "threads", NULL },
    { TOKENIZE, "--dataset-num-proc", "threads", NULL },
    { TOKENIZE, "--preprocessing-num-workers", "threads", NULL },
    { TOKENIZE, "--tokenizer-name", "tokenizer", NULL },
    { TOKENIZE, "--tokenizer-path", "tokenizer", NULL },
    { GENERATE, "--tokenizer-path", "tokenizer", NULL },
    { TOKENIZE, "--model", "tokenizer", NULL },
    { TOKENIZE, "-m", "tokenizer", NULL },
    { TOKENIZE, "--model-name-or-path", "tokenizer", NULL },
    { TOKENIZE, "--vocab", "tokenizer", NULL },
    { TOKENIZE, "--format", "input", NULL },
    { TOKENIZE, "--input-format", "input", NULL },
    { TOKENIZE, "--output-format", "emit", NULL },
    { TOKENIZE, "--seed", "shuffle", NULL },
    { TOKENIZE, "--shuffle-seed", "shuffle", NULL },
    { TOKENIZE, "--ids", "emit", "--emit ids writes ids, --input ids reads them" },
    { TOKENIZE, "--detokenize", "decode", NULL },
    { TOKENIZE, "--add-eos", "no-end", "an end token is added but with --no-end" },
    { TOKENIZE, "--append-eos", "no-end", "an end token is added but with --no-end" },
    { TOKENIZE, "--no-eos", "no-end", NULL },
    { TOKENIZE, "--add-special-tokens", "template",
      "it adds them; --parse-special takes those inside text" },
    { TOKENIZE, "--stats", "count", NULL },

    /* Containers. */
    { CONVERTERS | TOKENIZE, "--outfile", "output", NULL },
    { CONVERTERS | TOKENIZE, "--output-file", "output", NULL },
    { CONVERTERS | TOKENIZE, "--output-dir", "output", NULL },
    { CONVERTERS, "--save-path", "output", NULL },
    { CONVERTERS, "--save-directory", "output", NULL },
    { CONVERTERS, "--model", NULL, "INPUT is an operand, behind the options" },
    { CONVERTERS, "-m", NULL, "INPUT is an operand, behind the options" },
    { CONVERTERS, "--model-path", NULL, "INPUT is an operand, behind the options" },
    { CONVERTERS, "--model-dir", NULL, "INPUT is an operand, behind the options" },
    { CONVERTERS, "--model-name-or-path", NULL,
      "INPUT is an operand, behind the options" },
    { CONVERTERS, "-i", NULL, "INPUT is an operand, behind the options" },
    { DATPACK, "--input", NULL, "INPUT is an operand, behind the options" },
    { NVQUANT, "--input", NULL, "INPUT is an operand, behind the options" },
    { DATPACK, "--outtype", "dtype", NULL },
    { DATPACK, "--torch-dtype", "dtype", NULL },
    { DATPACK, "--format", "to", NULL },
    { DATPACK, "--output-format", "to", NULL },
    { NVQUANT, "--format", NULL, NO_FORMAT },
    { NVQUANT, "--to", NULL, NO_FORMAT },
    { DATPACK, "--max-shard-size", "shard-size", NULL },
    { CONVERTERS, "--quantization", "quant", NULL },
    { CONVERTERS, "--qformat", "quant", NULL },
    { CONVERTERS, "--scheme", "quant", NULL },
    { CONVERTERS, "--quantize", "quant", NULL },
    { CONVERTERS, "--qtype", "quant", NULL },
    { NVQUANT, "--method", "quant", NULL },
    { NVQUANT, "--algorithm", "quant", NULL },
    { NVQUANT, "--bits", NULL, NO_OTHER_BITS },
    { NVQUANT, "--group-size", NULL, NO_OTHER_BITS },
    { NVQUANT, "--block-size", NULL, NO_OTHER_BITS },
    { CONVERTERS, "--imatrix", "importance", NULL },
    { CONVERTERS, "--calib", "importance", NULL },
    { CONVERTERS, "--calib-data", "importance", NULL },
    { CONVERTERS, "--calib-dataset", "importance", NULL },
    { CONVERTERS, "--ignore", "exclude", NULL },
    { CONVERTERS, "--modules-to-not-convert", "exclude", NULL },
    { CONVERTERS | DATCAT, "--include", "select", NULL },
    { NVQUANT, "--targets", "select", NULL },
    { NVQUANT, "--output-dtype", "dtype", "the type of --dequant" },
    { DATPACK, "--seed", "init", NULL },
    { DATPACK, "--tie-word-embeddings", "tie", NULL },

    /* Listings. */
    { DATCAT, "--keys", "names", NULL },
    { DATCAT, "--metadata", "meta", NULL },
    { DATCAT, "--header", "meta", NULL },
    { DATCAT, "--head", "top", NULL },
    { DATCAT, "--limit", "top", NULL },
    { DATCAT, "--list", "names", NULL },
    { DATCAT, "--checksum", "hash", NULL },
    { DATCAT, "--sha256", "hash", "--hash=sha256" },
    { DATCAT, "--compare", "diff", NULL },
    { DATCAT, "--tolerance", "atol", NULL },
    { DATCAT, "--numpy", "npy", NULL },
    { DATCAT, "--histogram", "hist", NULL },
    { DATCAT, "--dump", "values", NULL },
    { DATCAT, "--tensor", "select", NULL },
    { DATCAT, "--filter", "select", NULL },
    { DATCAT, "--model", NULL, "FILE is an operand: datcat FILE" },
    { DATCAT, "-m", NULL, "FILE is an operand: datcat FILE" },
    { DATCAT, "--output", NULL, "data goes to standard output: datcat ... >FILE" },
    { DATCAT, "-o", NULL, "data goes to standard output: datcat ... >FILE" },

    /* Limits. */
    { MEMGUARD, "--memory", "limit", NULL },
    { MEMGUARD, "--max", "limit", NULL },
    { MEMGUARD, "--mem", "limit", NULL },
    { MEMGUARD, "--max-memory", "limit", NULL },
    { MEMGUARD, "--max-mem", "limit", NULL },
    { MEMGUARD, "-m", "limit", NULL },
    { MEMGUARD, "--timeout", NULL,
      "timeout(1) ends a command after a time: timeout 1h memguard ..." },
    { MEMGUARD, "--gpu-memory", "gpu-limit", NULL },
    { MEMGUARD, "--vram", "gpu-limit", NULL },
    { MEMGUARD, "--min-free", "available", NULL },
    { MEMGUARD, "--interval", "poll", NULL },
    { MEMGUARD, "--grace", "term-first", NULL },
    { MEMGUARD, "--kill-after", "term-first", NULL },
    { MEMGUARD, "--output", "report", NULL },
    { MEMGUARD, "-o", "report", NULL },
    { MEMGUARD, "--log", "report", NULL },

    /* Everywhere. */
    { ALL & ~DATCAT, "--overwrite", "force", NULL },
    { ALL & ~DATCAT, "--overwrite-output-dir", "force", NULL },
    { ALL & ~DATCAT, "-y", "force", NULL },
    { ALL & ~MEMGUARD, "--num-threads", "threads", NULL },
    { ALL & ~MEMGUARD, "--num-workers", "threads", NULL },
    { ALL & ~MEMGUARD, "--dataloader-num-workers", "threads", NULL },
    { ALL & ~MEMGUARD, "--trust-remote-code", NULL, NO_CODE },
    { ALL & ~MEMGUARD, "--revision", NULL, NO_DOWNLOAD },
    { ALL & ~MEMGUARD, "--hf-repo", NULL, NO_DOWNLOAD },
    { ALL & ~MEMGUARD, "--hf-token", NULL, NO_DOWNLOAD },
    { ALL & ~MEMGUARD, "-hf", NULL, NO_DOWNLOAD },
    { ALL, "--silent", "quiet", NULL },
    { ALL, "--debug", "verbose", NULL },
    { ALL, "--log-level", "verbose", NULL },
};

#define NO_OTHER_TYPE                                                                  \
    "NVFP4 is the only type below 8 bits; its values are quantized by --quant"
#define NO_OTHER_QUANT "weights are quantized to NVFP4 only"
#define NO_OTHER_CHIP  "it computes on CPUs and on GPUs of NVIDIA"
#define NO_OTHER_CHAT  "the models are Qwen3, whose template is qwen3"

/* ours is the word that the option takes here, or words that begin with it. */
static const struct row values[] = {
    { TRAINSTEP, "loss=l1", "scalar", NULL },
    { TRAINSTEP, "loss=token-ce", "ce", NULL },
    { TRAINSTEP, "loss=cross-entropy", "ce", NULL },
    { TRAINSTEP, "loss=nll", "ce", NULL },
    { TRAINSTEP, "schedule=cosine-with-warmup", "cosine, with --warmup N", NULL },
    { TRAINSTEP, "schedule=linear-with-warmup", "linear, with --warmup N", NULL },
    { TRAINSTEP, "schedule=constant-with-warmup", "constant, with --warmup N", NULL },
    { TRAINSTEP, "schedule=cosine-with-min-lr", "cosine, with --min-lr X", NULL },
    { TRAINSTEP, "schedule=cosine-annealing", "cosine", NULL },
    { TRAINSTEP, "schedule=warmup-stable-decay", "wsd", NULL },
    { TRAINSTEP, "schedule=none", "constant", NULL },
    { TRAINSTEP, "order=random", "shuffle", NULL },
    { TRAINSTEP, "order=sequential", "file", NULL },
    { TRAINSTEP, "recompute=true", "block", NULL },
    { TRAINSTEP, "recompute=full", "block", NULL },
    { TRAINSTEP, "recompute=unsloth", "block", NULL },
    { TRAINSTEP, "recompute=false", "none", NULL },
    { TRAINSTEP, "clip-mode=norm", "global", NULL },
    { TRAINSTEP | GENERATE | NVQUANT, "device=gpu", "cuda", NULL },
    { TRAINSTEP | GENERATE | NVQUANT, "device=gpu:0", "cuda:0", NULL },
    { TRAINSTEP | GENERATE | NVQUANT, "device=cuda0", "cuda:0", NULL },
    { TRAINSTEP | GENERATE | NVQUANT, "device=0", "cuda:0", NULL },
    { TRAINSTEP | GENERATE | NVQUANT, "device=cpu:0", "cpu", NULL },
    { TRAINSTEP | GENERATE | NVQUANT, "device=mps", NULL, NO_OTHER_CHIP },
    { TRAINSTEP | GENERATE | NVQUANT, "device=metal", NULL, NO_OTHER_CHIP },
    { TRAINSTEP | GENERATE | NVQUANT, "device=rocm", NULL, NO_OTHER_CHIP },
    { TRAINSTEP | GENERATE | NVQUANT, "device=xpu", NULL, NO_OTHER_CHIP },
    { TRAINSTEP | GENERATE, "compute=float32", "f32", NULL },
    { TRAINSTEP | GENERATE, "compute=fp32", "f32", NULL },
    { TRAINSTEP | GENERATE, "compute=bfloat16", "bf16", NULL },
    { TRAINSTEP | GENERATE, "compute=float16", NULL,
      "f16 ends at 65504; bf16 does not" },
    { TRAINSTEP | GENERATE, "compute=fp16", NULL, "f16 ends at 65504; bf16 does not" },
    { TRAINSTEP | GENERATE, "compute=f16", NULL, "f16 ends at 65504; bf16 does not" },
    { TRAINSTEP | GENERATE, "compute=nvfp4", NULL,
      "--activations nvfp4 multiplies in NVFP4" },
    { TRAINSTEP | GENERATE, "compute=fp4", NULL,
      "--activations nvfp4 multiplies in NVFP4" },
    { TRAINSTEP | GENERATE, "activations=fp4", "nvfp4", NULL },
    { TRAINSTEP | GENERATE, "activations=none", "plain", NULL },
    { CONVERTERS, "dtype=float16", "f16", NULL },
    { CONVERTERS, "dtype=fp16", "f16", NULL },
    { CONVERTERS, "dtype=half", "f16", NULL },
    { CONVERTERS, "dtype=bfloat16", "bf16", NULL },
    { CONVERTERS, "dtype=float32", "f32", NULL },
    { CONVERTERS, "dtype=fp32", "f32", NULL },
    { DATPACK, "dtype=auto", "keep", NULL },
    { DATPACK, "dtype=fp4", "nvfp4", NULL },
    { DATPACK, "dtype=int4", NULL, NO_OTHER_TYPE },
    { DATPACK, "dtype=nf4", NULL, NO_OTHER_TYPE },
    { DATPACK, "dtype=q4-k-m", NULL, NO_OTHER_TYPE },
    { DATPACK, "dtype=q8-0", NULL, NO_OTHER_TYPE },
    { DATPACK, "master=float32", "f32", NULL },
    { DATPACK, "master=fp32", "f32", NULL },
    { DATPACK, "master=bfloat16", "bf16", NULL },
    { DATPACK, "moments=8bit", "int8", NULL },
    { DATPACK, "moments=adamw-8bit", "int8", NULL },
    { DATPACK, "moments=float32", "f32", NULL },
    { DATPACK, "moments=bfloat16", "bf16", NULL },
    { CONVERTERS | GENERATE, "quant=nvfp4", "sweep, the default", NULL },
    { CONVERTERS | GENERATE, "quant=nf4", NULL, NO_OTHER_QUANT },
    { CONVERTERS | GENERATE, "quant=fp8", NULL, NO_OTHER_QUANT },
    { CONVERTERS | GENERATE, "quant=int4", NULL, NO_OTHER_QUANT },
    { CONVERTERS | GENERATE, "quant=int8", NULL, NO_OTHER_QUANT },
    { CONVERTERS | GENERATE, "quant=awq", NULL, NO_OTHER_QUANT },
    { CONVERTERS, "quant=gptq", NULL,
      "--importance FILE --hessian rounds as GPTQ does; generate --score FILE.tok "
      "--dump-importance FILE --hessian MODEL makes that FILE" },
    { GENERATE, "quant=gptq", NULL, NO_OTHER_QUANT },
    { CONVERTERS | GENERATE, "quant=q4-k-m", NULL, NO_OTHER_QUANT },
    { CONVERTERS | GENERATE, "quant=q4-0", NULL, NO_OTHER_QUANT },
    { CONVERTERS | GENERATE, "quant=q8-0", NULL, NO_OTHER_QUANT },
    { DATPACK, "to=checkpoint", "ckpt", NULL },
    { DATPACK, "to=hf", "safetensors, with an OUT that ends in a slash", NULL },
    { DATPACK, "to=huggingface", "safetensors, with an OUT that ends in a slash",
      NULL },
    { DATPACK, "to=safetensor", "safetensors", NULL },
    { DATPACK, "to=llama.cpp", "gguf", NULL },
    { DATPACK, "to=vllm", "compressed-tensors", NULL },
    { DATPACK, "to=tensorrt-llm", "modelopt", NULL },
    { DATPACK, "to=nvfp4", "modelopt or compressed-tensors", NULL },
    { GENERATE | TOKENIZE, "template=chatml", "qwen3", NULL },
    { GENERATE | TOKENIZE, "template=qwen", "qwen3", NULL },
    { GENERATE | TOKENIZE, "template=qwen-3", "qwen3", NULL },
    { GENERATE | TOKENIZE, "template=qwen2.5", "qwen3", NULL },
    { GENERATE | TOKENIZE, "template=llama3", NULL, NO_OTHER_CHAT },
    { GENERATE | TOKENIZE, "template=llama-3", NULL, NO_OTHER_CHAT },
    { GENERATE | TOKENIZE, "template=mistral", NULL, NO_OTHER_CHAT },
    { GENERATE | TOKENIZE, "template=gemma", NULL, NO_OTHER_CHAT },
    { GENERATE | TOKENIZE, "input=json", "jsonl", NULL },
    { TOKENIZE, "input=messages", "jsonl", NULL },
    { TOKENIZE, "input=chat", "jsonl", NULL },
    { TOKENIZE, "input=sharegpt", "jsonl", NULL },
    { TOKENIZE, "input=alpaca", "jsonl", NULL },
    { GENERATE | TOKENIZE, "input=txt", "lines", NULL },
    { TOKENIZE, "targets=assistant", "answer", NULL },
    { TOKENIZE, "targets=completion", "answer", NULL },
    { TOKENIZE, "targets=prompt", "all", NULL },
};

static char
folded(char c)
{
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

void
elsewhere_fold(char *to, const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = folded(name[i]);
    to[n] = '\0';
}

/* Whether the n bytes of name are that word, when folded. */
static bool
is_word(const char *name, size_t n, const char *word)
{
    if (strlen(word) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (folded(name[i]) != word[i])
            return false;
    return true;
}

static unsigned
bit_of(const char *program)
{
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (strcmp(programs[i].name, program) == 0)
            return programs[i].bit;
    return 0;
}

static const struct row *
find_row(const struct row *rows, size_t n_rows, const char *program, const char *name,
         size_t n)
{
    unsigned bit = bit_of(program);
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i].programs & bit && is_word(name, n, rows[i].word))
            return &rows[i];
    return NULL;
}

/* "--lr X: learning rate (1e-5)", or with other words behind the colon. */
static void
put_option(struct buf *out, const struct cmd *c, const struct row *r)
{
    size_t i = 0;
    while (i + 1 < c->n_options && strcmp(c->options[i].name, r->ours) != 0)
        i++;
    const struct cmd_option *o = &c->options[i];
    const char *words = r->text ? r->text : o->help, *mark = strstr(words, "%s");
    buf_printf(out, "unknown option: here it is --%s%s%s", o->name,
               o->arg && *o->arg != '[' ? " " : "", o->arg ? o->arg : "");
    if (!mark)
        buf_printf(out, ": %s", words);
}

bool
elsewhere_option(struct buf *out, const struct cmd *c, const char *name, size_t n)
{
    const struct row *r =
        find_row(options, sizeof options / sizeof *options, c->name, name, n);
    if (!r)
        return false;
    if (r->ours)
        put_option(out, c, r);
    else
        buf_printf(out, "no such option here: %s", r->text);
    return !out->failed;
}

bool
elsewhere_value(struct buf *out, const char *program, const char *option,
                const char *value)
{
    struct buf name = { 0 };
    buf_printf(&name, "%s=%s", option, value);
    const struct row *r = name.failed ? NULL
                                      : find_row(values, sizeof values / sizeof *values,
                                                 program, name.data, name.len);
    buf_free(&name);
    if (!r)
        return false;
    buf_printf(out, "%s%s",
               r->ours ? "here it is " : "unknown here: ", r->ours ? r->ours : r->text);
    return !out->failed;
}
