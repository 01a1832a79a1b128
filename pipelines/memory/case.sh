#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One case: plans a run, does two steps of it and writes three small tables into OUT:
# table.tsv (a row), phases.tsv (memory at each phase) and plans.tsv (parts of the plan).
#
#   case.sh BATCH LENGTH ACCUM MASTER MOMENTS QUANT RECOMPUTE CLIP OUT
#
# All samples have LENGTH input positions, all of them targets, so that each step is the
# largest one, as the plan takes it.  Environment: MODEL_DIR, RUN_FLAGS, TOLERANCE, SLACK.
set -euo pipefail

batch=$1 length=$2 accum=$3 master=$4 moments=$5 quant=$6 recompute=$7 clip=$8 out=$9
name="$batch\t$length\t$accum\t$master\t$moments\t$quant\t$recompute\t$clip"
names='batch\tlength\taccum\tmaster\tmoments\tquant\trecompute\tclip'
read -ra flags <<<"$RUN_FLAGS"
rm -rf "$out"
mkdir "$out"
trap 'rm -rf "$out"/work.*' EXIT

vocab=$(sed -n 's/.*"vocab_size" *: *\([0-9]*\).*/\1/p' "$MODEL_DIR/config.json" | head -n 1)
awk -v n=$((batch * accum)) -v ids=$((length + 1)) -v vocab="$vocab" 'BEGIN {
    for (x = 1; n > 0; n--)
        for (i = 0; i < ids; i++) {
            x = (x * 1103515245 + 12345) % 2147483648
            printf "%d%s", int(x / 2147483648 * vocab), i + 1 < ids ? " " : "\n"
        }
}' >"$out/work.ids"
tokenize -q --input ids -o "$out/work.tok" "$out/work.ids"
datpack -q --to ckpt --master "$master" --moments "$moments" --quant "$quant" -o "$out/work.ckpt" \
    "$MODEL_DIR"

train=(trainstep -q "${flags[@]}" -d "$out/work.tok" --batch "$batch" --accum "$accum"
    --clip-mode "$clip" --recompute "$recompute")
"${train[@]}" --dry-run "$out/work.ckpt" >"$out/work.plan"
"${train[@]}" -n 2 --memory-report "$out/work.report" --log "$out/work.log" "$out/work.ckpt" \
    >"$out/work.steps"

{
    printf '%b\tpart\tbytes\n' "$names"
    awk -F '\t' -v name="$name" 'NR > 1 && $3 != "" { print name "\t" $1 "\t" $2 }' "$out/work.plan"
} >"$out/plans.tsv"

# A sample of the report a line.
{
    printf '%b\tstep\tphase\tprocess_mib\tdevice_mib\tdevice_peak_mib\tms\n' "$names"
    sed 's/{"TimestampUtc"/\n&/g' "$out/work.report" | awk -v name="$name" '
        function value(key,    s) {
            if (!match($0, "\"" key "\":\"?[^,}\"]*"))
                return "-"
            s = substr($0, RSTART, RLENGTH)
            sub(/.*:"?/, "", s)
            return s
        }
        /^{"TimestampUtc"/ {
            print name "\t" value("Step") "\t" value("Phase") "\t" value("HostRssMiB") "\t" \
                value("DeviceUsedMiB") "\t" value("DevicePeakMiB") "\t" value("ElapsedMs")
        }'
} >"$out/phases.tsv"

# What was planned and the most that there was, and the device (without one of its own the
# process) in MiB at each phase of the second step, when all that stays is there.
own=1
[[ $RUN_FLAGS == *cuda* ]] || own=
peak=$(sed -n 's/.*"mem_gb":\([0-9.e+-]*\).*/\1/p' "$out/work.log" | tail -n 1)
{
    printf '%b\tstart\tloaded\tbatch\tbackward\tupdate\tplan_mib\tpeak_mib\tplan_is\tkept\n' "$names"
    awk -F '\t' -v name="$name" -v peak="$peak" -v tolerance="$TOLERANCE" -v slack="$SLACK" \
        -v own="$own" '
        NR == FNR {
            if ($1 == "total")
                plan = $2 / 1048576
            next
        }
        FNR > 1 {
            at[$10] = own ? $12 : $11
        }
        END {
            peak *= 1024
            kept = plan >= peak * (1 - tolerance / 100) && plan <= peak * (1 + tolerance / 100) + slack
            printf "%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%.1f\t%+.1f%%\t%s\n", name, at["start"], at["model_loaded"],
                at["batch_ready"], at["backward_done"], at["optimizer_step_done"], plan, peak,
                100 * (plan / peak - 1), kept ? "yes" : "no"
        }' "$out/work.plan" "$out/phases.tsv"
} >"$out/table.tsv"
