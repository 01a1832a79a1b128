/* SPDX-License-Identifier: MIT */
/* modeldir: which files of a model directory are ours to replace. */
#include "lib/format/modeldir.h"

#include "tests/unit/check.h"

#include <sys/stat.h>

static struct guard guard;

static void
check_names(void)
{
    static const char *const written[] = {
        "model.safetensors",   "model-00001-of-00002.safetensors",
        "config.json",         "nibble.json",
        "tokenizer.json",      "model.safetensors.index.json",
        "README.md",           "LICENSE.txt",
        "chat_template.jinja", "model-100000-of-100001.safetensors",
    };
    static const char *const foreign[] = {
        "",
        "weights.bin",
        "model.safetensors.bak",
        "model-1-of-2.safetensors",
        "model-00001-of-00002.safetensors.tmp",
        "model-00001-of-.safetensors",
        "xmodel-00001-of-00002.safetensors",
        "readme.md",
    };
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        CHECK_SAY(modeldir_writes(NULL, written[i]), "%s", written[i]);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        CHECK_SAY(!modeldir_writes(NULL, foreign[i]), "%s", foreign[i]);
    size_t n = 0;
    for (const char *name; (name = modeldir_companion(n)); n++)
        CHECK(modeldir_is_companion(name) && modeldir_writes(NULL, name));
    CHECK(n > 0 && !modeldir_is_companion("config.json"));
    CHECK(modeldir_is_card("README.md") && !modeldir_is_card("config.json"));
}

/* Open "dir" with that nibble.json, NULL: none. */
static int
open_with(struct modeldir *d, const char *text, struct err *err)
{
    *err = (struct err){ 0 };
    remove("dir/nibble.json");
    if (text)
        check_put("dir/nibble.json", text, strlen(text));
    return modeldir_open(d, "dir", &guard, err);
}

static void
check_ours(void)
{
    struct modeldir d;
    struct err err;
    NEED(mkdir("dir", 0777) == 0);
    CHECK(modeldir_open(&d, "missing/", &guard, &err) == 0 && !d.ours);
    modeldir_close(&d);
    CHECK(open_with(&d, NULL, &err) == 0 && !d.ours);
    CHECK(!modeldir_replaces(&d, "model.safetensors"));
    modeldir_close(&d);

    // With a list just what it names.
    CHECK(open_with(&d,
                    "{\"format\":\"nibble-1\",\"files\":[\"model.safetensors\","
                    "\"notes.txt\"]}",
                    &err) == 0 &&
          d.ours && d.listed);
    CHECK(modeldir_replaces(&d, "model.safetensors") &&
          modeldir_replaces(&d, "notes.txt") && !modeldir_replaces(&d, "config.json"));
    modeldir_close(&d);

    // Without one, weights and what describes them; a tokenizer may be the user's.
    CHECK(open_with(&d, "{\"format\":\"nibble-1\"}", &err) == 0 && d.ours && !d.listed);
    CHECK(modeldir_replaces(&d, "model.safetensors") &&
          modeldir_replaces(&d, "config.json") &&
          !modeldir_replaces(&d, "tokenizer.json") &&
          !modeldir_replaces(&d, "README.md"));
    modeldir_close(&d);

    // Another program's.
    CHECK(open_with(&d, "{\"format\":\"other\"}", &err) == 0 && !d.ours);
    modeldir_close(&d);
    CHECK(open_with(&d, "[1]", &err) == 0 && !d.ours);
    modeldir_close(&d);
}

/* What cannot be understood may list files: nothing is replaced. */
static void
check_damaged(void)
{
    static const char *const bad[] = {
        "",
        "{\"format\":\"nibble-1\"",
        "{\"format\":\"nibble-1\",\"files\":5}",
        "{\"format\":\"nibble-1\",\"files\":[1]}",
        "{\"format\":\"nibble-1\",\"files\":[\"\"]}",
    };
    struct modeldir d;
    struct err err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_SAY(open_with(&d, bad[i], &err) == -1, "%s", bad[i]);
        CHECK_ERR(err, ERR_FORMAT, "it is damaged");
        CHECK(!modeldir_replaces(&d, "model.safetensors"));
        modeldir_close(&d);
    }
    NEED(remove("dir/nibble.json") == 0 && mkdir("dir/nibble.json", 0777) == 0);
    err = (struct err){ 0 };
    CHECK(modeldir_open(&d, "dir", &guard, &err) == 0 && !d.ours);
    modeldir_close(&d);
}

int
main(void)
{
    check_scratch();
    check_names();
    check_ours();
    check_damaged();
    return check_end();
}
