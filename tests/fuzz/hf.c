/* SPDX-License-Identifier: MIT */
/* hf: a model directory.  The input is the text of its index; what follows a NUL is its
 * nibble.json, what follows another its config.json, and all that follows a third its
 * model.safetensors.  The shards are always the same two: a.safetensors holds "a" and
 * "b", b.safetensors "c" and an NVFP4 tensor. */
#include "tests/fuzz/fuzz.h"

static void
put_shard(const char *leaf, const char *header, size_t data)
{
    uint8_t file[1024] = { 0 };
    size_t n = strlen(header);
    HOLDS(8 + n + data <= sizeof file, "shard");
    store_le64(file, n);
    memcpy(file + 8, header, n);
    fuzz_put(leaf, file, 8 + n + data);
}

static void
put_shards(void)
{
    static bool done;
    if (done)
        return;
    done = true;
    put_shard("a.safetensors",
              "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
              "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]}}",
              8);
    put_shard("b.safetensors",
              "{\"__metadata__\":{\"format\":\"pt\"},\"c\":{\"dtype\":\"BF16\","
              "\"shape\":[],\"data_offsets\":[0,2]},"
              "\"x.weight\":{\"dtype\":\"U8\",\"shape\":[1,8],\"data_offsets\":[2,10]},"
              "\"x.weight_scale\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1],"
              "\"data_offsets\":[10,11]},"
              "\"x.weight_scale_2\":{\"dtype\":\"F32\",\"shape\":[],"
              "\"data_offsets\":[11,15]}}",
              15);
}

/* The part up to a NUL as a file, or no file; the rest. */
static const uint8_t *
put_part(const char *leaf, const uint8_t *p, const uint8_t *end)
{
    const uint8_t *nul = p < end ? memchr(p, '\0', (size_t)(end - p)) : NULL;
    if (p > end)
        remove(fuzz_path(leaf));
    else
        fuzz_put(leaf, p, (size_t)((nul ? nul : end) - p));
    return nul ? nul + 1 : end + 1;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *end = data + n;
    put_shards();
    const uint8_t *nibble = put_part("model.safetensors.index.json", data, end);
    const uint8_t *config = put_part("nibble.json", nibble, end);
    const uint8_t *single = put_part("config.json", config, end);
    if (single < end)
        fuzz_put("model.safetensors", single, (size_t)(end - single));
    else
        remove(fuzz_path("model.safetensors"));
    bool strict = fuzz_open(fuzz_dir, true);
    bool ok = fuzz_open(fuzz_dir, false);
    HOLDS(ok || !strict, "taken by the stricter reader only");
    return 0;
}
