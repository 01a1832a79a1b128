#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2119,SC2154  # options are not always there; output, lines, stderr: set by run
# generate --dump-importance measures how much the columns of weights matter; nvquant and
# datpack --importance choose scales by it, and with --hessian let columns make up for the errors
# of others.  importance.py computes all of it once more.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    printf '%s\n' '5 6 7 8 9 10 3' '1 2 3 4 5 9 80 44 0 17' '12 13' >ids
    tokenize -q --input ids -o ids.tok ids
    datpack -q --init 3 --config config.json -o m.safetensors
    generate -q --score ids.tok --dump-importance i.safetensors m.safetensors >/dev/null
}

importance() { python3 "$HERE/importance.py" "$@"; }

# put NAME VALUE... : w.safetensors has another vector of that name.
put() { importance put "$IN/i.safetensors" "$@" w.safetensors; }

# shellcheck disable=SC2120  # options are not always there
# weigh OPTION...: the model quantized with the importance of w.safetensors.
# shellcheck disable=SC2120  # refuse hands options on
weigh() { nvquant -q -o x.dat --importance w.safetensors "$@" "$IN/m.safetensors"; }

@test "mean squares and largest magnitudes are those of a forward pass in double precision" {
    [ "$(importance measured "$IN/m.safetensors" "$IN/config.json" "$IN/ids" "$IN/i.safetensors")" = '30 vectors' ]
    # In pieces of any length, with any number of threads, to the bit.
    for n in 1 3 128; do
        generate -q -j $n --prefill-chunk $n --score "$IN/ids.tok" --dump-importance $n.safetensors \
            "$IN/m.safetensors" >/dev/null
        datcat -q --diff $n.safetensors "$IN/i.safetensors"
    done
    [ "$(datcat --meta 3.safetensors | json "[i['kind'] for i in d['meta']['provenance']['inputs']]")" = \
        "['safetensors', 'tok']" ]
}

@test "codes and scales minimise the weighted error, byte for byte" {
    local q isa
    for q in sweep sweep1 sweepfp8 4over6 4over6:mae; do
        local how=(--quant "${q%:*}")
        [ "${q#*:}" = "$q" ] || how+=(--criterion "${q#*:}")
        nvquant -q -f "${how[@]}" --importance "$IN/i.safetensors" -o x.dat "$IN/m.safetensors"
        importance quantized "$IN/m.safetensors" "$IN/i.safetensors" $q x.dat
        isas
        for isa in $isas; do
            NIBBLE_ISA=$isa nvquant -q -f -j 3 "${how[@]}" --importance "$IN/i.safetensors" \
                -o y.dat "$IN/m.safetensors"
            cmp x.dat y.dat
        done
    done
    # The head, which --untie quantizes, has a vector, too; datpack does the same.
    nvquant -q -f --untie --importance "$IN/i.safetensors" -o x.dat "$IN/m.safetensors"
    [ "$(datcat x.dat | grep -c '^lm_head.weight	nvfp4')" -eq 1 ]
    nvquant -q -f --importance "$IN/i.safetensors" -o x.dat "$IN/m.safetensors"
    datpack -q --dtype nvfp4 --importance "$IN/i.safetensors" -o z.dat "$IN/m.safetensors"
    datcat -q --diff x.dat z.dat
}

@test "weights that are all alike change nothing, nor does what they are multiplied by" {
    local name n
    cp "$IN/i.safetensors" w.safetensors
    for name in $(datcat "$IN/i.safetensors" | awk '$1 ~ /weight$/ { print $1 }'); do
        n=$(datcat -s "$name" "$IN/i.safetensors" | awk -v n="$name" '$1 == n { gsub(/[^0-9]/, "", $3); print $3 }')
        # shellcheck disable=SC2046  # a list of numbers
        importance put w.safetensors "$name" $(awk -v n="$n" 'BEGIN { while (n--) print "8.673617379884035e-19" }') v.safetensors
        mv v.safetensors w.safetensors
    done
    weigh
    nvquant -q -o plain.dat "$IN/m.safetensors"
    cmp x.dat plain.dat
    nvquant -q --importance "$IN/i.safetensors" -o y.dat "$IN/m.safetensors"
    run -1 cmp -s x.dat y.dat
}

@test "the file is part of the provenance" {
    nvquant -q --importance "$IN/i.safetensors" -o x.dat "$IN/m.safetensors"
    [ "$(datcat --meta x.dat | json "[i['kind'] for i in d['meta']['provenance']['inputs']]")" = \
        "['safetensors', 'importance']" ]
}

@test "what cannot weigh is refused" {
    local q=model.layers.1.mlp.up_proj.weight v
    v=$(awk 'BEGIN { for (i = 0; i < 31; i++) printf "1 " }')
    # shellcheck disable=SC2086  # a list of numbers
    put $q $v -1
    refuse 'w.safetensors: "'$q'": element 31: expected a finite number of 0 or more, found -1' weigh
    # shellcheck disable=SC2086
    put $q $v nan
    refuse 'element 31: expected a finite number' weigh
    # shellcheck disable=SC2086
    put $q $v inf
    refuse 'element 31: expected a finite number' weigh
    # shellcheck disable=SC2086
    put $q $v
    refuse '"'$q'": expected f32 [32], a value for each column' weigh
    # shellcheck disable=SC2046
    put $q $(printf '0 %.0s' {1..32})
    refuse '"'$q'": all elements are 0: nothing was measured' weigh
    cp "$IN/m.safetensors" w.safetensors
    refuse '"model.layers.0.self_attn.q_proj.weight": expected f32 [32]' weigh
    datpack -q --rename 'model.*=other.*' -f -o w.safetensors "$IN/i.safetensors"
    refuse 'is missing: of another model?' weigh
    refuse 'none.safetensors' nvquant -q -o x.dat --importance none.safetensors "$IN/m.safetensors"
    cp "$IN/i.safetensors" w.safetensors
    for q in max native torchao; do
        refuse "--importance: $q does not compare errors * sweep" weigh --quant $q
    done
    refuse '--dequant' weigh --dequant
    refuse 'is an input' nvquant -q -f --importance w.safetensors -o w.safetensors "$IN/m.safetensors"
    # Where nothing is quantized it would have been given in vain.
    for o in '-o x.dat' '--dtype bf16 -o x.safetensors'; do
        # shellcheck disable=SC2086  # words
        refuse '--importance: nothing is quantized: --dtype nvfp4' datpack -q --importance w.safetensors $o "$IN/m.safetensors"
    done
    refuse "--importance: a checkpoint's weights are quantized anew at each step" \
        datpack -q --importance w.safetensors --to ckpt -o x.ckpt "$IN/m.safetensors"
    [ ! -e x.dat ]
    [ ! -e x.ckpt ]
    datpack -q --dtype nvfp4 -o n.safetensors "$IN/m.safetensors"
    for o in datpack\ --dtype\ nvfp4 nvquant; do
        # shellcheck disable=SC2086  # words
        refuse '--importance: the input is NVFP4 already' $o -q -o x.safetensors --importance w.safetensors n.safetensors
    done
    # One column of 0 among others is none to care about, and no error.
    # shellcheck disable=SC2086
    put $q $v 0 2>/dev/null || true
    weigh
}

@test "what cannot be measured is refused" {
    m() { generate -q --dump-importance new.safetensors "$@"; }
    refuse '--dump-importance: goes with --score' m -p 1 --ids "$IN/m.safetensors"
    refuse '--dump-importance new.dat: a safetensors is written' generate --score "$IN/ids.tok" --dump-importance new.dat \
        "$IN/m.safetensors"
    : >new.safetensors
    refuse 'new.safetensors: exists; -f' m --score "$IN/ids.tok" "$IN/m.safetensors"
    rm new.safetensors
    refuse 'is an input' generate -f --score "$IN/ids.tok" --dump-importance "$IN/m.safetensors" "$IN/m.safetensors"
    run -0 --separate-stderr generate --score "$IN/ids.tok" --dump-importance new.safetensors "$IN/m.safetensors"
    [[ $stderr == *'16 tokens are few to measure on: 4096 or more are usual'* ]]
}

# hessian: a model with blocks of 16, 64 and 128 columns, two of these a row, and its file.
hessian()
{
    json "json.dumps(dict(d, hidden_size=48, intermediate_size=256, head_dim=16, num_attention_heads=4,
        num_key_value_heads=1, num_hidden_layers=1, max_position_embeddings=128))" <"$IN/config.json" >config.json
    awk 'BEGIN { for (i = 0; i < 90; i++) printf "%d ", 1 + (i * i + 7 * i) % 89 }' >ids
    tokenize -q --input ids -o ids.tok ids
    datpack -q --init 5 --config config.json -o m.safetensors
    generate -q --score ids.tok --dump-importance h.safetensors --hessian m.safetensors >/dev/null
}

feed() { nvquant -q -f -o x.dat --importance h.safetensors --hessian "$@" m.safetensors; }

@test "--hessian: mean products are those of a forward pass in double precision" {
    hessian
    [ "$(importance measured m.safetensors config.json ids h.safetensors)" = '24 vectors' ]
    for n in 1 3 128; do
        generate -q -j $n --prefill-chunk $n --score ids.tok --dump-importance $n.safetensors --hessian m.safetensors >/dev/null
        datcat -q --diff $n.safetensors h.safetensors
    done
    # The rest of the file is what it is without.
    generate -q --score ids.tok --dump-importance i.safetensors m.safetensors >/dev/null
    datpack -q -x '*.hessian' -o y.safetensors h.safetensors
    datcat -q --diff y.safetensors i.safetensors
}

@test "--hessian: codes and scales of a computation in Python, byte for byte" {
    local q
    hessian
    for q in sweep sweep1 sweepfp8; do
        feed --quant $q
        importance feedback m.safetensors h.safetensors $q x.dat
        isas
        for isa in $isas; do
            NIBBLE_ISA=$isa nvquant -q -f -j 3 --quant $q --importance h.safetensors --hessian -o y.dat m.safetensors
            cmp x.dat y.dat
        done
    done
    feed
    datpack -q -f --dtype nvfp4 --importance h.safetensors --hessian -o z.dat m.safetensors
    datcat -q --diff x.dat z.dat
    [ "$(datcat --meta x.dat | json "d['meta']['provenance']['options']['hessian']")" = True ]
    # --report has the errors of the weights, which are larger now.
    feed --report h.tsv
    nvquant -q -f -o p.dat --report p.tsv m.safetensors
    paste h.tsv p.tsv | awk -F '\t' 'NR > 1 { n++; if ($3 >= $10) exit 1 } END { exit n != 8 }'
}

@test "--hessian: sweepfp8 stays exact in E4M3 where errors push values beyond the tensor bound" {
    importance together m.safetensors h.safetensors
    feed --quant sweep
    [ "$(importance feedback m.safetensors h.safetensors sweep x.dat)" != '' ]
    feed --quant sweepfp8
    importance feedback m.safetensors h.safetensors sweepfp8 x.dat
    [ "$(reference inexact x.dat)" = '0 2048' ]
}

@test "--hessian: what products compute is nearer to what it was" {
    hessian
    feed
    nvquant -q -o p.dat m.safetensors
    for f in p x; do
        generate -q --score ids.tok --kl-model m.safetensors $f.dat | tail -n 1 | cut -f 6
    done >kl
    awk 'NR == 1 { plain = $1 } NR == 2 { exit !($1 > 0 && $1 < 0.8 * plain) }' kl
}

@test "--hessian: what cannot be used is refused" {
    local n=model.layers.0.self_attn.v_proj.hessian v
    hessian
    refuse '--hessian: goes with --importance FILE' nvquant -q -f -o x.dat --hessian m.safetensors
    refuse '--hessian: goes with --quant sweep, sweep1 or sweepfp8' feed --quant 4over6
    refuse '--hessian: goes with --quant sweep, sweep1 or sweepfp8, without --exhaustive' feed --exhaustive
    refuse '--hessian: goes with --dump-importance' generate -q --score ids.tok --hessian m.safetensors
    refuse '"model.layers.0.self_attn.q_proj.hessian": expected f32 [1, 32, 32], by the tensor'"'"'s columns' \
        nvquant -q -f -o x.dat --importance h.safetensors --hessian "$IN/m.safetensors"
    cp h.safetensors whole.safetensors
    datpack -q -f -x "$n" -o h.safetensors whole.safetensors
    refuse "\"$n\" is missing: generate --dump-importance writes it with --hessian" feed
    # 3 blocks of 16 by 16: not finite, not symmetric, not of products.
    v=$(awk 'BEGIN { for (i = 0; i < 768; i++) printf("%d ", i % 256 % 17 == 0) }')
    # shellcheck disable=SC2046,SC2086  # lists of numbers
    {
        importance put whole.safetensors $n $v h.safetensors
        feed
        mv x.dat plain.dat
        # Only ratios matter, also at the ends of the range.
        for large in 1.7e38 1e-40; do
            importance put whole.safetensors $n ${v//1 /$large } h.safetensors
            feed
            cmp x.dat plain.dat
        done
        importance put whole.safetensors $n ${v/#1/nan} h.safetensors
        refuse "\"$n\": block 0: expected mean products: a value is not finite" feed
        importance put whole.safetensors $n ${v/#1 0/1 5} h.safetensors
        refuse "\"$n\": block 0: expected mean products: it is not symmetric" feed
        importance put whole.safetensors $n ${v/%1 /-9 } h.safetensors
        refuse "\"$n\": block 2: expected mean products: it is not positive definite" feed
        # No input at all in a block: its columns are for themselves; in all of them: not measured.
        importance put whole.safetensors $n $(printf '0 %.0s' {1..256}) ${v:512} h.safetensors
        feed
        importance put whole.safetensors $n $(printf '0 %.0s' {1..768}) h.safetensors
        refuse "\"$n\": all elements are 0: nothing was measured" feed
    }
}
