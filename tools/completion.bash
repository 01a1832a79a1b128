# SPDX-License-Identifier: MIT
# Bash completion for the programs of nibble.
#
# "make install" puts a copy under each program's name where bash-completion looks for
# it; without that package, source this file.  Options are asked of "PROG --help" at
# the moment they are completed, so they are always those of the program that is run.
# The words of an option's argument stand in _nibble_words; tests/docs.bats compares
# them with what the programs take.  Nothing here needs the package bash-completion.

# _nibble_words PROG OPTION: what the argument of the option can be.  A line: words,
# or a kind of files (see _nibble_argument).  OPTION "FILE" is an operand.
_nibble_words()
{
    case ${1##*/}:$2 in
    tokenize:FILE) echo @file ;;
    datcat:FILE) echo @samples ;;
    trainstep:FILE) echo @tensors ;;
    trainstep:--data | trainstep:-d | trainstep:--eval | trainstep:--teacher-data) echo @file ;;
    trainstep:--from) echo @tensors ;;
    trainstep:--stop-after) echo start model_loaded batch_ready zero_grad_done backward_done optimizer_step_done ;;
    trainstep:--log | trainstep:--dump | trainstep:--memory-report) echo @file ;;
    trainstep:--output | trainstep:-o) echo @file ;;
    trainstep:--order) echo shuffle file ;;
    trainstep:--schedule) echo constant linear cosine wsd ;;
    trainstep:--clip-mode) echo global prev tensor ;;
    trainstep:--loss) echo ce scalar ;;
    trainstep:--recompute) echo auto none block ;;
    trainstep:--compute) echo f32 bf16 fp8 auto ;;
    trainstep:--fp8-scales) echo current delayed ;;
    trainstep:--path) echo native dequant auto ;;
    trainstep:--activations) echo plain nvfp4 ;;
    trainstep:--compat) echo torchsharp ;;
    memguard:FILE | memguard:--report) echo @file ;;
    *:FILE) echo @tensors ;;
    generate:--tokenizer | generate:-t | generate:--config) echo @json ;;
    generate:--input) echo lines jsonl ;;
    generate:--template) echo qwen3 torchsharp none ;;
    generate:--score | generate:--kl | generate:--logits) echo @file ;;
    generate:--history) echo @file ;;
    generate:--kl-model) echo @tensors ;;
    generate:--dump-layers | generate:--dump-importance) echo @file ;;
    generate:--quant) echo none torchao native sweep1 max 4over6 sweep sweepfp8 ;;
    generate:--compute) echo f32 bf16 fp8 auto ;;
    generate:--path) echo native dequant auto ;;
    generate:--activations) echo plain nvfp4 ;;
    generate:--input-scale) echo dynamic static ;;
    generate:--compat) echo torchsharp ;;
    datcat:--hash) echo xxh3 sha256 ;;
    datcat:--verify) echo quick full ;;
    datcat:--check) echo @file ;;
    datcat:--sort) echo bytes absmax diff name ;;
    datpack:--output | datpack:-o) echo @tensors ;;
    datpack:--to) echo dat safetensors gguf ckpt modelopt compressed-tensors ;;
    datpack:--dtype) echo keep f16 bf16 f32 nvfp4 ;;
    datpack:--like) echo @tensors ;;
    datpack:--config | nvquant:--config) echo @json ;;
    datpack:--tokenizer | datpack:-t) echo @json ;;
    datpack:--master) echo f32 bf16 ;;
    datpack:--input-scales | datpack:--importance | nvquant:--importance) echo @tensors ;;
    datpack:--moments) echo f32 bf16 int8 nvfp4 ;;
    datpack:--quant) echo none torchao native sweep1 max 4over6 sweep sweepfp8 ;;
    nvquant:--output | nvquant:-o) echo @outputs ;;
    nvquant:--quant) echo torchao native sweep1 max 4over6 sweep sweepfp8 ;;
    nvquant:--dtype) echo f16 bf16 f32 ;;
    nvquant:--report) echo @file ;;
    datpack:--variant | nvquant:--variant) echo modelopt ;;
    datpack:--criterion | nvquant:--criterion) echo mse mae ;;
    datpack:--share-scale | nvquant:--share-scale) echo none qkv,gate_up ;;
    datpack:--compat | nvquant:--compat | tokenize:--compat) echo torchsharp ;;
    tokenize:--tokenizer | tokenize:-t) echo @json ;;
    tokenize:--output | tokenize:-o) echo @file ;;
    tokenize:--input) echo tsv csv jsonl lines ids ;;
    tokenize:--emit) echo tok ids jsonl ;;
    tokenize:--template) echo qwen3 torchsharp none ;;
    tokenize:--targets) echo answer all ;;
    tokenize:--invalid) echo error replace ;;
    esac
}

# _nibble_options PROG: "OPTION KIND" lines, long and short; KIND is none, needs (an
# argument follows) or may (only after an equals sign).
_nibble_options()
{
    local prog=$1
    # shellcheck disable=SC2088  # a tilde as it was typed
    [[ $prog != '~/'* ]] || prog=$HOME/${prog#'~/'}
    LC_ALL=C "$prog" --help 2>/dev/null </dev/null | awk '
        /^  -[A-Za-z], --[a-z]/ || /^      --[a-z]/ {
            text = substr($0, 3)
            sub(/^ +/, "", text)
            sub(/  .*/, "", text)           # the help, behind two spaces
            kind = text ~ /\[=/ ? "may" : text ~ /[a-z] [A-Za-z]/ ? "needs" : "none"
            n = split(text, part, /, /)
            for (i = 1; i <= n; i++) {
                sub(/[ \[].*/, "", part[i])
                print part[i], kind
            }
        }'
}

# _nibble_files CUR SUFFIX...: directories, and files with one of the suffixes, into
# COMPREPLY.
_nibble_files()
{
    local cur=$1 name suffix
    shift
    compopt -o filenames 2>/dev/null
    while IFS= read -r name; do
        for suffix; do
            if [[ -d $name || $name == *"$suffix" ]]; then
                COMPREPLY+=("$name")
                break
            fi
        done
    done < <(compgen -f -- "$cur")
}

# _nibble_argument CUR WORDS: as _nibble_words gave them.
_nibble_argument()
{
    case $2 in
    @tensors) _nibble_files "$1" .dat .safetensors .gguf .ckpt ;;
    @outputs) _nibble_files "$1" .dat .safetensors ;;
    @samples) _nibble_files "$1" .dat .safetensors .gguf .ckpt .tok ;;
    @json) _nibble_files "$1" .json ;;
    @file) _nibble_files "$1" '' ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$2" -- "$1") ;;
    esac
}

_nibble()
{
    local prog=${COMP_WORDS[0]} cur=${COMP_WORDS[COMP_CWORD]} prev='' i
    local option='' lead='' kind words known
    COMPREPLY=()
    ((COMP_CWORD == 0)) || prev=${COMP_WORDS[COMP_CWORD - 1]}

    # "--opt=val" is three words where = breaks words, as it does by default.
    if [[ $cur == --*=* ]]; then
        option=${cur%%=*} lead=$option= cur=${cur#*=}
    elif [[ $cur == = && $prev == --* ]]; then
        option=$prev cur=
    elif [[ $prev == = ]] && ((COMP_CWORD >= 2)); then
        option=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if [[ -n $option ]]; then
        words=$(_nibble_words "$prog" "$option")
        _nibble_argument "$cur" "$words"
        [[ -z $lead ]] || COMPREPLY=("${COMPREPLY[@]/#/$lead}")
        return
    fi

    # Behind "--" there are only files.
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then
            _nibble_argument "$cur" "$(_nibble_words "$prog" FILE)"
            return
        fi
    done

    known=$(_nibble_options "$prog")
    kind=$(awk -v o="$prev" '$1 == o { print $2 }' <<<"$known")
    if [[ $kind == needs ]]; then
        words=$(_nibble_words "$prog" "$prev")
        [[ -z $words ]] || _nibble_argument "$cur" "$words"
    elif [[ $cur == -* ]]; then
        # One that may take an argument is offered with and without it.
        words=$(awk '/^--/ { print $1 } /^--.* may$/ { print $1 "=" }' <<<"$known")
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    else
        _nibble_argument "$cur" "$(_nibble_words "$prog" FILE)"
    fi
}

complete -F _nibble datcat datpack generate memguard nvquant tokenize trainstep
