# SPDX-License-Identifier: MIT
# What "trainstep --diagnose" tells of the device that settles a result's bits, as one word or a few:
# the first GPU with the libraries that compute there, or cpu.
$1 ~ /^cuda:[0-9]+$/ && gpu == "" {
    sub(/,.*/, "", $2)
    gpu = $2
}
$1 == "cuBLASLt" || $1 == "cuDNN" {
    sub(/[,:;].*/, "", $2)
    libraries = libraries ", " $1 " " $2
}
END { print gpu == "" ? "cpu" : gpu libraries }
