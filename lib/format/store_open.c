/* SPDX-License-Identifier: MIT */
/* store_open: which container a path is, and reading it. */
#include "lib/file/foreign.h"
#include "lib/format/kinds.h"
#include "lib/format/tok.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *
without_slashes(const char *path)
{
    char *p = strdup(path);
    for (size_t n = p ? strlen(p) : 0; n > 1 && p[n - 1] == '/';)
        p[--n] = '\0';
    return p;
}

/* Parse.  A file that shrinks meanwhile shows zeros, which a parser would report: that
 * the file has changed is the better message. */
static int
read_and_check(struct store *s)
{
    struct err *mine = s->err;
    struct err parse = { 0 };
    s->err = &parse;
    int rc = s->kind->read(s);
    s->err = mine;
    if (store_check(s) < 0)
        return -1;
    return rc < 0 ? err_set(mine, parse.kind, "%s", parse.msg) : 0;
}

/* A file that was refused may be of a kind that another program converts: then that is the
 * better message.  -1. */
static int
file_refused(struct store *s)
{
    const struct map *m = &s->files[0];
    const char *shown = strcmp(s->path, "-") == 0 ? s->name : s->path;
    const struct container *c = container_of_bytes(m);
    if (s->err->kind != ERR_FORMAT)
        return -1;
    if (c && c != s->kind && s->kind->sniff) {
        *s->err = (struct err){ 0 };
        return err_set(s->err, ERR_FORMAT,
                       "%s: byte 0: is a %s, and its name says that it is a %s: "
                       "expected a name that ends in .%s",
                       s->name, c->name, s->kind->name, c->name);
    }
    if (foreign_file(shown, m->data, m->size, FOREIGN_FOR_TENSORS, s->err) == 0)
        foreign_part(shown, FOREIGN_FOR_TENSORS, s->err);
    return -1;
}

/* A file of a directory that was refused may be of a kind that another program converts: then that
 * is the better message.  -1. */
static int
directory_refused(struct store *s)
{
    for (size_t i = 0; i < s->n_files && s->err->kind == ERR_FORMAT; i++)
        if (foreign_file(s->files[i].name, s->files[i].data, s->files[i].size,
                         FOREIGN_FOR_TENSORS, s->err) < 0)
            return -1;
    foreign_path(s->path, FOREIGN_FOR_TENSORS, s->err);
    return -1;
}

/* What is no .dat may be a container that cannot be read from standard input: then that
 * is the better message. */
static int
stdin_refused(struct store *s)
{
    const struct container *c = container_of_bytes(&s->files[0]);
    if (s->err->kind != ERR_FORMAT || !c || c == s->kind)
        return file_refused(s);
    *s->err = (struct err){ 0 };
    return err_set(s->err, ERR_FORMAT,
                   "%s: begins like a %s, and standard input is read as a %s; name the "
                   "file instead",
                   s->name, c->name, s->kind->name);
}

/* "-": a file at its beginning is mapped, else it is read as a pipe. */
static int
open_stdin(struct store *s)
{
    struct stat st;
    s->kind = container_of_pipe;
    if (fstat(STDIN_FILENO, &st) == 0 && S_ISREG(st.st_mode) &&
        lseek(STDIN_FILENO, 0, SEEK_CUR) == 0) {
        s->files = calloc(1, sizeof *s->files);
        if (!s->files)
            return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
        s->n_files = 1;
        int fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
            return err_set(s->err, ERR_IO, "%s:", s->name);
        if (map_fd(&s->files[0], fd, "-", s->opt.guard, s->err) < 0)
            return -1;
        s->bytes = s->files[0].size;
        if (s->bytes == 0)
            return err_set(s->err, ERR_FORMAT, "%s: byte 0: the file is empty",
                           s->name);
        return read_and_check(s) < 0 ? stdin_refused(s) : 0;
    }
    return s->kind->read_stream(s, STDIN_FILENO);
}

/* A .dat has no magic, so any file can be taken for one.  Its suffix says that it is to be. */
static bool
is_text(const struct store *s)
{
    enum { LOOK = 64 };
    const struct map *m = &s->files[0];
    return !slice_ends(slice_of(s->path), ".dat") && container_of_bytes(m) == NULL &&
           s->kind == container_of_file(m) && !s->kind->sniff &&
           text_is_plain((const char *)m->data, m->size < LOOK ? m->size : LOOK);
}

static int
open_file(struct store *s)
{
    s->files = calloc(1, sizeof *s->files);
    if (!s->files)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    if (store_add_file(s, s->path) < 0)
        return -1;
    s->kind = container_of_file(&s->files[0]);
    if (tok_sniff(s->files[0].data, s->files[0].size))
        return err_set(
            s->err, ERR_FORMAT,
            "%s: is a .tok: it has samples, no tensors; datcat without options "
            "shows it",
            s->name);
    if (s->bytes == 0)
        return err_set(s->err, ERR_FORMAT, "%s: byte 0: the file is empty", s->name);
    if (!is_text(s))
        return read_and_check(s) < 0 ? file_refused(s) : 0;
    err_fill(s->err, ERR_FORMAT,
             "%s: byte 0: is a text: expected a model or another file of tensors",
             s->name);
    return file_refused(s);
}

int
store_open(struct store *s, const char *path, const struct store_options *opt,
           struct err *err)
{
    struct buf name = { 0 };
    struct stat st;
    *s = (struct store){ .opt = *opt, .err = err };
    s->path = without_slashes(path);
    text_escape(&name, path, strlen(path));
    s->name = name.data;
    if (!s->path || !s->name)
        return err_set(err, ERR_MEMORY, "out of memory for a file name");
    if (strcmp(path, "-") == 0) {
        free(s->name);
        s->name = strdup("<stdin>");
        if (!s->name)
            return err_set(err, ERR_MEMORY, "out of memory");
        return open_stdin(s);
    }
    bool exists = stat(s->path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode)) {
        s->kind = container_of_directory;
        s->is_directory = true;
        return read_and_check(s) < 0 ? directory_refused(s) : 0;
    }
    if (!exists && foreign_path(path, FOREIGN_FOR_TENSORS, err) < 0)
        return -1;
    return open_file(s);
}

#define NOT_HERE                                                                       \
    "expected f32, bf16, f16 or NVFP4; take the model that it was made from"

/* Endings of tensor names that show an adapter or a quantization that is not read. */
static const struct {
    const char *ending, *what;
} partial[] = {
    { ".lora_A.weight",
      "is of a LoRA adapter: expected a whole model; python3 -c \"from peft import "
      "AutoPeftModelForCausalLM as M; M.from_pretrained('DIR', torch_dtype='auto')"
      ".merge_and_unload().save_pretrained('OUT')\" merges the adapter in DIR" },
    { ".absmax", "is of bitsandbytes (NF4 or FP4): " NOT_HERE },
    { ".quant_map", "is of bitsandbytes (NF4 or FP4): " NOT_HERE },
    { ".qzeros", "is of GPTQ or AWQ: " NOT_HERE },
    { ".weight_scale_inv", "is of FP8 in blocks: " NOT_HERE },
};

int
store_check_model(const struct store *s, struct err *err)
{
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < s->n_tensors; i++) {
        struct slice name = { s->tensors[i].name, s->tensors[i].name_len };
        for (size_t k = 0; k < sizeof partial / sizeof *partial; k++)
            if (slice_ends(name, partial[k].ending))
                return err_set(err, ERR_FORMAT, "%s: tensor \"%s\": %s", s->name,
                               text_quote(q, name.p, name.n), partial[k].what);
    }
    return 0;
}
