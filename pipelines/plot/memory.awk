# SPDX-License-Identifier: MIT
# awk -f memory.awk FILE: a memory report of trainstep as a table without a header, a line a
# phase in their first order:  PHASE SAMPLES PROCESS DEVICE, the most of each in MiB, "-" where
# the report says nothing of a device.  Also those that the older programs wrote, whose
# samples are {"ts", "phase", "pid_mem_mib", ...}.
BEGIN {
    RS = "{"
}

function field(key,    at, s)
{
    at = index($0, "\"" key "\":")
    if (!at)
        return "-"
    s = substr($0, at + length(key) + 3)
    sub(/^ *"?/, "", s)
    sub(/[",}].*/, "", s)
    return s
}

function mib(key,    s)
{
    s = field(key)
    return s ~ /^[0-9]+(\.[0-9]+)?$/ ? s : "-"
}

function most(a, b)
{
    return a == "-" || (b != "-" && b + 0 > a + 0) ? b : a
}

/"[Pp]hase":/ {
    phase = field("Phase")
    old = phase == "-"
    if (old)
        phase = field("phase")
    gsub(/[^A-Za-z0-9_.-]/, "?", phase)
    phase = substr(phase, 1, 40)
    if (phase == "")
        next
    if (!(phase in samples)) {
        order[++phases] = phase
        process[phase] = device[phase] = "-"
    }
    samples[phase]++
    process[phase] = most(process[phase], mib(old ? "pid_mem_mib" : "PidMemoryMiB"))
    device[phase] = most(device[phase], mib(old ? "cuda_used_mib" : "DeviceUsedMiB"))
}

END {
    for (i = 1; i <= phases; i++)
        print order[i] "\t" samples[order[i]] "\t" process[order[i]] "\t" device[order[i]]
}
