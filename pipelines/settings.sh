#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Says what is wrong with the settings that an experiment was given: make takes any name without
# a word.
#
#   settings.sh GIVEN FILE...     GIVEN: $(MAKEOVERRIDES); FILE: Makefiles, those of experiments
#                                 with a line "#: NAME  what it is" for each setting
#
# The first name that is none is printed, with the one that may be meant.
set -euo pipefail

given=$1 files=("${@:2}")
settings=$(sed -nE 's/^#: ([A-Z][A-Z0-9_]*(, [A-Z][A-Z0-9_]*)*) .*/\1/p' "${files[@]}" | tr -d ' ' | tr ',' '\n')
# Those of the project's Makefile, such as NVCC, come along.
others=$(sed -nE 's/^([A-Z][A-Z0-9_]*) *[?:]?=.*/\1/p' "${files[@]}")

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
    # What make, a shell and the tests define is no setting of an experiment, and V=1 is for all.
    [[ $name == [A-Z]* && $name != *[^A-Z0-9_]* && $name != NIBBLE_* && $name != MAKE* && $name != V ]] || continue
    is_setting "$name" && continue
    echo "$name=: there is no such setting$(guess "$name"); \"make help\" lists them"
    exit
done
