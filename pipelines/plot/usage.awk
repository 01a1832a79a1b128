# SPDX-License-Identifier: MIT
# awk -f usage.awk FILE: samples of a report of memguard, as lines "seconds host gpu" in MiB,
# "-" where it has not looked at a GPU.
BEGIN {
    RS = "{"
}

function number(key,    at, s)
{
    at = index($0, "\"" key "\":")
    s = at ? substr($0, at + length(key) + 3, 24) : ""
    sub(/[,}].*/, "", s)
    return s ~ /^[0-9]+$/ ? s : "-"
}

/"ElapsedMs":/ {
    if (number("ElapsedMs") != "-")
        print number("ElapsedMs") / 1000, number("HostRssMiB"), number("GpuMiB")
}
