#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Says what is wrong with the settings that an experiment was given: make takes any name without
# a word.
#
#   settings.sh GIVEN FILE...     GIVEN: $(MAKEOVERRIDES); FILE: Makefiles, those of experiments
#                                 with a line "#: NAME  what it is" for each setting
#
# It prints the first name that is no setting, and the setting that may be meant.
set -euo pipefail
set -f # a value may have a *

given=$1 files=("${@:2}")
settings=$(sed -nE 's/^#: ([A-Z][A-Z0-9_]*(, [A-Z][A-Z0-9_]*)*) .*/\1/p' "${files[@]}" | tr -d ' ' | tr ',' '\n')
# What the Makefiles set, and what that of the project (the first FILE) uses, such as NVCC.
# shellcheck disable=SC2016  # $(NAME) is what a Makefile has
others=$(sed -nE 's/^([A-Z][A-Z0-9_]*) *[?:]?=.*/\1/p' "${files[@]}" &&
    grep -oE '\$\([A-Z][A-Z0-9_]*\)' "${files[0]}" | tr -d '$()')

# is_setting NAME: of MIX3, EPOCHS2 and the like any number will do.
is_setting()
{
    grep -qxF -e "$1" <<<"$settings"$'\n'"$others" && return
    [[ $1 == *[0-9] ]] && sed -E 's/[0-9]+$//' <<<"$settings" | grep -qxF -e "$(sed -E 's/[0-9]+$//' <<<"$1")"
}

letters() { grep -o . <<<"$1" | sort | tr -d '\n'; }

# guess NAME: one that begins so, with which it begins, or that has its letters.
guess()
{
    local s
    for s in $settings; do
        if [[ $s == "$1"* || ${#s} -ge 4 && $1 == "$s"* || $(letters "$s") == "$(letters "$1")" ]]; then
            echo ": want $s=?"
            return
        fi
    done
}

# A space of a value has a backslash before it.
for word in ${given//'\ '/}; do
    [[ $word == *=* ]] || continue
    name=${word%%=*}
    name=${name%[:+?]}
    if [[ $name == [a-z]* && $name != *[^a-z0-9_]* ]]; then
        echo "$name=: settings have capitals: want ${name^^}="
        exit
    fi
    # V=1 is for all experiments; the others are variables that programs look at.
    case $name in
    V | NIBBLE_* | MAKE* | TMPDIR | HOME | PATH | LANG | LC_* | CUDA_* | NCCL_* | OMP_* | PYTHON*) continue ;;
    [!A-Z]* | *[!A-Z0-9_]*) continue ;;
    esac
    is_setting "$name" && continue
    echo "$name=: there is no such setting$(guess "$name"); \"make help\" lists them"
    exit
done
