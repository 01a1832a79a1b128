/* SPDX-License-Identifier: MIT */
/* gguf: one file, with and without strictness, and without its suffix. */
#include "tests/fuzz/fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *path = fuzz_put("x.gguf", data, n);
    bool strict = fuzz_open(path, true);
    bool ok = fuzz_open(path, false);
    HOLDS(ok || !strict, "taken by the stricter reader only");
    if (ok) { // known by its first bytes, too
        HOLDS(rename(path, fuzz_path("x")) == 0, "rename");
        HOLDS(fuzz_open(fuzz_path("x"), false), "refused without its suffix");
    }
    return 0;
}
