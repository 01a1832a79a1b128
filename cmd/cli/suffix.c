/* SPDX-License-Identifier: MIT */
/* suffix: see suffix.h. */
#include "cmd/cli/suffix.h"

#include "cmd/cli/cmd.h"
#include "lib/base/text.h"
#include "lib/file/path.h"
#include "lib/format/writer.h"

#include <string.h>

/* The container that the suffix of a path names, or NULL. */
static const char *
named(const char *path)
{
    struct slice p = slice_of(path);
    if (slice_ends(p, ".tok"))
        return "tok";
    // These are no suffixes: writer_kind_of has an answer of its own for them.
    bool other = slice_ends(p, "/") || slice_is(p, "-");
    return other ? NULL : writer_kind_of(path);
}

void
suffix_check_directory(const char *option, const char *path, const char *kind)
{
    const char *found = named(path);
    char q[TEXT_QUOTE];
    if (found)
        misuse("%s %s: a %s model is a directory: expected no suffix of a container, "
               "found .%s",
               option, text_quote(q, path, strlen(path)), kind, found);
}

void
suffix_check(const char *option, const char *path, const char *kind)
{
    const char *found = path ? named(path) : NULL;
    char q[TEXT_QUOTE];
    if (!found || (kind && strcmp(found, kind) == 0))
        return;
    text_quote(q, path, strlen(path));
    if (!kind)
        misuse("%s %s: a text is written: expected no suffix of a container, found "
               ".%s",
               option, q, found);
    misuse(
        "%s %s: a %s is written: expected .%s or no suffix of a container, found .%s",
        option, q, kind, kind, found);
}

void
suffix_settle(const char *out, const char **to, bool *directory)
{
    const struct traits *kind;
    char q[TEXT_QUOTE];
    if (!path_has_name(out))
        misuse(
            "-o \"%s\": expected a path that ends in the name of a file or a directory",
            text_quote(q, out, strlen(out)));
    *directory = slice_ends(slice_of(out), "/");
    if (!*to)
        *to = writer_kind_of(out);
    if (!*to)
        misuse("%s: which container? its suffix names none: expected .dat, "
               ".safetensors, .gguf or .ckpt, or a final / for a directory; --to KIND "
               "chooses one",
               text_quote(q, out, strlen(out)));
    kind = writer_traits(*to);
    if (*directory && !kind->to_directory)
        misuse("%s: a %s is a file, not a directory", out, *to);
    *directory |= kind->directory_only;
    if (*directory)
        suffix_check_directory("-o", out, *to);
    else
        suffix_check("-o", out, *to);
    if (strcmp(out, "-") != 0)
        return;
    if (*directory)
        misuse("-: a %s model is a directory, not a stream", *to);
    cmd_refuse_terminal();
}
