/* SPDX-License-Identifier: MIT */
/* object: nibble's JSON object, alone and as the sidecar of a .dat; what follows a NUL is
 * the config.json beside it.  The seeds hold the size and the hashes of that file, so
 * that a sidecar can fit. */
#include "lib/format/object.h"

#include "tests/fuzz/fuzz.h"

/* One entry "a", u8 [3]. */
static const uint8_t dat[] = { 1, 1, 'a', 0, 1, 3, 7, 8, 9 };

static void
as_sidecar(const char *path)
{
    struct store_options opt = { .guard = &fuzz_guard, .tmpdir = fuzz_dir };
    struct err err = { 0 };
    struct store s;
    HOLDS(store_open(&s, path, &opt, &err) == 0, "%s", err.msg);
    if (store_load_beside(&s) < 0)
        fuzz_refused(&err);
    err = (struct err){ 0 };
    fuzz_store(&s);
    store_close(&s);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct nibble_object o;
    struct err err = { 0 };
    struct arena arena = { 0 };
    const uint8_t *nul = memchr(data, '\0', n);
    struct slice text = { (const char *)data, nul ? (size_t)(nul - data) : n };
    if (object_read(&o, "x.json", text, &arena, &err) < 0) {
        fuzz_refused(&err);
    } else {
        fuzz_object(text, "the object");
        fuzz_object(o.config, "config");
        fuzz_object(o.provenance, "provenance");
    }
    arena_free(&arena);
    fuzz_put("x.dat", dat, sizeof dat);
    fuzz_put("x.dat.json", text.p, text.n);
    if (nul)
        fuzz_put("config.json", nul + 1, n - text.n - 1);
    else
        remove(fuzz_path("config.json"));
    as_sidecar(fuzz_path("x.dat"));
    return 0;
}
