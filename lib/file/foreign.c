/* SPDX-License-Identifier: MIT */
/* foreign: see foreign.h. */
#include "lib/file/foreign.h"

#include "lib/base/buf.h"
#include "lib/base/nearest.h"
#include "lib/base/text.h"
#include "lib/file/path.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* Commands; @ stands for the path. */
#define PARQUET_TO_JSONL                                                               \
    "python3 -c \"from datasets import Dataset; "                                      \
    "Dataset.from_parquet('@').to_json('@.jsonl')\""
#define FEATHER_TO_JSONL                                                               \
    "python3 -c \"import pandas; pandas.read_feather('@').to_json('@.jsonl', "         \
    "orient='records', lines=True)\""
#define ARROW_TO_JSONL                                                                 \
    "python3 -c \"from datasets import Dataset; "                                      \
    "Dataset.from_file('@').to_json('@.jsonl')\""
#define SAVED_TO_JSONL                                                                 \
    "python3 -c \"from datasets import load_from_disk; "                               \
    "load_from_disk('@').to_json('@.jsonl')\""
#define SAVED_SPLITS_TO_JSONL                                                          \
    "python3 -c \"from datasets import load_from_disk; "                               \
    "load_from_disk('@')['train'].to_json('@.jsonl')\""
#define SPLIT_TO_JSONL                                                                 \
    "python3 -c \"from datasets import load_dataset; "                                 \
    "load_dataset('@', split='train').to_json('@.jsonl')\""
#define TORCH_TO_SAFETENSORS                                                           \
    "python3 -c \"import torch; from safetensors.torch import save_file; "             \
    "save_file({k: v.clone().contiguous() for k, v in torch.load('@').items()}, "      \
    "'@.safetensors')\" converts a state dictionary"
#define TORCH_TO_DIRECTORY                                                             \
    "python3 -c \"from transformers import AutoModelForCausalLM as M; "                \
    "M.from_pretrained('@', torch_dtype='auto').save_pretrained('@-st')\" converts it"
#define ADAPTER_TO_MODEL                                                               \
    "python3 -c \"from peft import AutoPeftModelForCausalLM as M; "                    \
    "M.from_pretrained('@', torch_dtype='auto').merge_and_unload()"                    \
    ".save_pretrained('@-merged')\" merges it with its model"
#define DOWNLOAD "hf download OWNER/NAME --local-dir DIR fetches a model"

/* What a command converts: then it is of use to some only. */
enum use { FOR_ALL, FOR_DATA, FOR_WEIGHTS, FOR_NONE };

static const char *const wanted[] = {
    [FOREIGN_FOR_TENSORS] = "a model or another file of tensors",
    [FOREIGN_FOR_SAMPLES] = "a .tok of samples, which tokenize makes of a text",
    [FOREIGN_FOR_TEXT] = "JSONL, CSV, TSV, lines of text or ids",
    [FOREIGN_FOR_TOKENIZER] = "a tokenizer.json",
};

/* Whether a shell and Python take the path as it is. */
static bool
is_plain(const char *path)
{
    enum { LONGEST = 100 };
    size_t n = strlen(path);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)path[i] < 0x80 && !isalnum((unsigned char)path[i]) &&
            !strchr("._-/+=,:%", path[i]))
            return false;
    return n > strspn(path, "./") && n <= LONGEST && *path != '-' &&
           utf8_check(path, n) == n;
}

static void
put_command(struct buf *b, const char *how, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (!is_plain(path)) {
        path = "FILE";
        n = 4;
    }
    for (; *how; how++)
        if (*how == '@')
            buf_add(b, path, n);
        else
            buf_char(b, *how);
}

static int
fill(struct err *err, const char *path, const char *what, enum foreign_want want,
     enum use use, const char *how)
{
    struct buf b = { 0 };
    char q[TEXT_QUOTE];
    bool data = want == FOREIGN_FOR_TEXT || want == FOREIGN_FOR_SAMPLES;
    buf_printf(&b, "%s: is %s: expected %s", text_quote(q, path, strlen(path)), what,
               wanted[want]);
    if (use == FOR_ALL || (use == FOR_DATA && want != FOREIGN_FOR_TOKENIZER) ||
        (use == FOR_WEIGHTS && want == FOREIGN_FOR_TENSORS)) {
        buf_str(&b, "; ");
        put_command(&b, how, path);
    }
    if (use == FOR_DATA && data)
        buf_str(&b, " writes JSONL");
    if (use == FOR_DATA && want == FOREIGN_FOR_TENSORS)
        buf_str(&b, " writes JSONL, of which tokenize makes samples");
    *err = (struct err){ 0 };
    err_fill(err, b.failed ? ERR_MEMORY : ERR_FORMAT, "%s",
             b.failed ? "out of memory for a message" : b.data);
    buf_free(&b);
    return -1;
}

/* ---- files ------------------------------------------------------------------------ */

static const struct magic {
    const char *bytes;
    size_t n;
    enum use use;
    const char *what, *how;
} magics[] = {
    { "PAR1", 4, FOR_DATA, "a Parquet file", PARQUET_TO_JSONL },
    { "ARROW1\0", 7, FOR_DATA, "a file of Arrow (Feather)", FEATHER_TO_JSONL },
    { "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14, FOR_WEIGHTS,
      "an old file of PyTorch (a pickle)", TORCH_TO_SAFETENSORS },
    { "\x89PNG\r\n\x1a\n", 8, FOR_NONE, "an image (PNG)", "" },
    { "\xff\xd8\xff", 3, FOR_NONE, "an image (JPEG)", "" },
    { "%PDF-", 5, FOR_NONE, "a PDF", "" },
    { "ID3", 3, FOR_NONE, "a sound (MP3)", "" },
    { "RIFF", 4, FOR_NONE, "a sound or a film (RIFF)", "" },
    { "\x7f"
      "ELF",
      4, FOR_NONE, "a program (ELF)", "" },
    { "7z\xbc\xaf\x27\x1c", 6, FOR_ALL, "an archive of 7z", "7z x @ unpacks it" },
};

static const struct packer {
    const char *bytes;
    size_t n;
    const char *name, *suffix;
} packers[] = {
    { "\x1f\x8b\x08", 3, "gzip", ".gz" },
    { "\x28\xb5\x2f\xfd", 4, "zstd", ".zst" },
    { "\xfd\x37zXZ", 5, "xz", ".xz" },
    { "BZh", 3, "bzip2", ".bz2" },
};

static bool
ends(const char *path, const char *suffix)
{
    return slice_ends(slice_of(path), suffix);
}

static int
packed_file(const struct packer *p, const char *path, enum foreign_want want,
            struct err *err)
{
    char what[64], how[64], tar[16];
    snprintf(tar, sizeof tar, ".tar%s", p->suffix);
    snprintf(what, sizeof what, "compressed by %s", p->name);
    if (ends(path, tar) || ends(path, ".tgz"))
        snprintf(how, sizeof how, "tar -xf @ unpacks it");
    else if (ends(path, p->suffix))
        snprintf(how, sizeof how, "%s -d @ unpacks it", p->name);
    else
        snprintf(how, sizeof how, "%s -dc <@ >NEW unpacks it", p->name);
    return fill(err, path, what, want, FOR_ALL, how);
}

/* The first block of an archive of tar: the sum of its bytes, where the eight digits of the
 * sum count as blanks. */
static bool
is_tar(const uint8_t *head, size_t n)
{
    enum { BLOCK = 512, SUM = 148, DIGITS = 8, MAGIC = 257 };
    unsigned long sum = 0;
    char digits[DIGITS + 1] = "";
    if (n < BLOCK || memcmp(head + MAGIC, "ustar", 5) != 0)
        return false;
    for (size_t i = 0; i < BLOCK; i++)
        sum += i - SUM < DIGITS ? ' ' : head[i];
    memcpy(digits, head + SUM, DIGITS);
    return strtoul(digits, NULL, 8) == sum;
}

/* layer_0000.pt */
static bool
is_layer(const char *path)
{
    const char *slash = strrchr(path, '/'), *leaf = slash ? slash + 1 : path;
    if (strncmp(leaf, "layer_", 6) != 0)
        return false;
    size_t n = strspn(leaf + 6, "0123456789");
    return n > 0 && strcmp(leaf + 6 + n, ".pt") == 0;
}

/* torch.save writes a zip archive whose first member is NAME/data.pkl. */
static int
zip_file(const char *path, const uint8_t *head, size_t n, enum foreign_want want,
         struct err *err)
{
    enum { NAME_BYTES = 26, NAME = 30 };
    static const char *const suffixes[] = { ".pt", ".pth", ".bin", ".ckpt" };
    size_t len = n > NAME ? (size_t)(head[NAME_BYTES] | head[NAME_BYTES + 1] << 8) : 0;
    bool torch =
        len && len <= n - NAME &&
        slice_ends((struct slice){ (const char *)head + NAME, len }, "/data.pkl");
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        torch |= ends(path, suffixes[i]);
    if (ends(path, ".xlsx") || ends(path, ".docx") || ends(path, ".ods"))
        return fill(err, path, "a file of an office program", want, FOR_ALL,
                    "save its table as CSV in UTF-8");
    if (!torch)
        return fill(err, path, "a zip archive", want, FOR_ALL, "unzip @ unpacks it");
    if (is_layer(path))
        return fill(err, path, "a layer that a TorchSharp script has saved", want,
                    FOR_WEIGHTS,
                    "it has no optimizer state: begin from the last .dat that was "
                    "exported");
    return fill(err, path, "a file of PyTorch (a zip archive)", want, FOR_WEIGHTS,
                TORCH_TO_SAFETENSORS);
}

/* An Arrow stream: a mark, then the length of the schema, which is a flatbuffer. */
static bool
is_arrow_stream(const uint8_t *head, size_t n)
{
    return n >= 12 && memcmp(head, "\xff\xff\xff\xff", 4) == 0 && head[6] == 0 &&
           head[7] == 0 && head[4] % 8 == 0 && memcmp(head + 8, "\x10\0\0\0", 4) == 0;
}

static int
pointer_file(const char *path, enum foreign_want want, struct err *err)
{
    const char *slash = strrchr(path, '/');
    struct buf how = { 0 };
    buf_printf(&how, "git -C %.*s lfs pull fetches the file",
               slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (how.failed || !is_plain(path)) {
        buf_free(&how);
        how = (struct buf){ 0 };
        buf_str(&how, "git lfs pull fetches the file");
    }
    int rc = fill(err, path, "a pointer of git-lfs, not the file itself", want, FOR_ALL,
                  how.failed ? "git lfs pull fetches the file" : how.data);
    buf_free(&how);
    return rc;
}

/* The length of the header, which is a JSON object. */
static bool
is_safetensors(const uint8_t *head, size_t n)
{
    return n > 9 && head[5] == 0 && head[6] == 0 && head[7] == 0 && head[8] == '{';
}

static bool
is_web_page(const char *head, size_t n)
{
    return (n >= 9 && strncasecmp(head, "<!DOCTYPE", 9) == 0) ||
           (n >= 5 && strncasecmp(head, "<html", 5) == 0);
}

int
foreign_file(const char *path, const void *data, size_t n, enum foreign_want want,
             struct err *err)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/";
    const uint8_t *head = data;
    // A text may begin with the letters of a kind.
    bool text = text_is_plain(data, n < FOREIGN_HEAD ? n : FOREIGN_HEAD);
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        const struct magic *m = &magics[i];
        if (!text && n >= m->n && memcmp(head, m->bytes, m->n) == 0)
            return fill(err, path, m->what, want, m->use, m->how);
    }
    for (size_t i = 0; i < sizeof packers / sizeof *packers; i++)
        if (!text && n > packers[i].n &&
            memcmp(head, packers[i].bytes, packers[i].n) == 0)
            return packed_file(&packers[i], path, want, err);
    if (!text && n >= 12 && memcmp(head + 4, "ftyp", 4) == 0)
        return fill(err, path, "a film or a sound (MP4)", want, FOR_NONE, "");
    if (want == FOREIGN_FOR_TEXT && n >= 2 &&
        (memcmp(head, "\xff\xfe", 2) == 0 || memcmp(head, "\xfe\xff", 2) == 0))
        return fill(err, path, "a text in UTF-16", want, FOR_ALL,
                    "iconv -f UTF-16 -t UTF-8 <@ >NEW makes it UTF-8");
    if (is_tar(head, n))
        return fill(err, path, "an archive of tar", want, FOR_ALL,
                    "tar -xf @ unpacks it");
    if (n >= 4 && memcmp(head, "PK\3\4", 4) == 0)
        return zip_file(path, head, n, want, err);
    if (is_arrow_stream(head, n))
        return fill(err, path, "a file of Arrow", want, FOR_DATA, ARROW_TO_JSONL);
    if (n >= sizeof pointer && memcmp(head, pointer, sizeof pointer - 1) == 0)
        return pointer_file(path, want, err);
    if (want == FOREIGN_FOR_TEXT && n >= 4 && memcmp(head, "GGUF", 4) == 0)
        return fill(err, path, "a model (GGUF)", want, FOR_WEIGHTS, "");
    if ((want == FOREIGN_FOR_TEXT || want == FOREIGN_FOR_TOKENIZER) &&
        is_safetensors(head, n))
        return fill(err, path, "a file of tensors (safetensors)", want, FOR_WEIGHTS,
                    "");
    if (want != FOREIGN_FOR_TEXT && is_web_page(data, n))
        return fill(err, path, "a web page", want, FOR_ALL, DOWNLOAD);
    if (want == FOREIGN_FOR_TOKENIZER && n && *head != '{' && !text)
        return fill(err, path, "no text", want, FOR_ALL,
                    "the directory of the model that was downloaded has one");
    return 0;
}

/* ---- directories ------------------------------------------------------------------ */

enum { MAX_LEAF = 256 };

/* What a directory has. */
struct contents {
    bool weights, adapter, torch, info, splits, arrow, parquet, snapshots;
    char other[MAX_LEAF]; // a file or directory that was meant, perhaps
    char text[8];         // the suffix of texts
};

static void
note_name(struct contents *c, const char *leaf, enum foreign_want want)
{
    static const char *const models[] = { ".gguf", ".ckpt", ".dat", ".safetensors" },
                             *const texts[] = { ".jsonl", ".tsv", ".txt" };
    c->weights |= strcmp(leaf, "model.safetensors") == 0 ||
                  strcmp(leaf, "model.safetensors.index.json") == 0;
    c->adapter |= strcmp(leaf, "adapter_config.json") == 0;
    c->torch |= strncmp(leaf, "pytorch_model", 13) == 0 && strstr(leaf, ".bin");
    c->info |= strcmp(leaf, "dataset_info.json") == 0;
    c->splits |= strcmp(leaf, "dataset_dict.json") == 0;
    c->arrow |= ends(leaf, ".arrow");
    c->parquet |= ends(leaf, ".parquet");
    c->snapshots |= strcmp(leaf, "snapshots") == 0;
    bool other = want == FOREIGN_FOR_TENSORS && strncmp(leaf, "checkpoint-", 11) == 0;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        other |= want == FOREIGN_FOR_TENSORS && ends(leaf, models[i]);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (ends(leaf, texts[i]) && !c->text[0])
            snprintf(c->text, sizeof c->text, "%s", texts[i]);
    // The last in order: of checkpoints the newest, if their numbers have equal lengths.
    if (other && strlen(leaf) < MAX_LEAF && strcmp(leaf, c->other) > 0)
        snprintf(c->other, sizeof c->other, "%s", leaf);
}

static int
look_into(struct contents *c, const char *path, enum foreign_want want)
{
    DIR *d = opendir(path);
    if (!d)
        return -1;
    for (const struct dirent *e; (e = readdir(d));)
        note_name(c, e->d_name, want);
    closedir(d);
    return 0;
}

/* A directory of a repository has its Parquet files in data/. */
static bool
has_parquet_inside(const char *path)
{
    struct contents c = { 0 };
    struct buf inside = { 0 };
    buf_printf(&inside, "%s/data", path);
    bool there = !inside.failed && look_into(&c, inside.data, FOREIGN_FOR_TEXT) == 0;
    buf_free(&inside);
    return there && c.parquet;
}

static int
name_other(const struct contents *c, const char *path, enum foreign_want want,
           struct err *err)
{
    struct buf how = { 0 };
    char q[TEXT_QUOTE];
    text_quote(q, c->other, strlen(c->other));
    buf_printf(&how, "it holds %s: name that instead", q);
    int rc = how.failed ? 0
                        : fill(err, path, "a directory without a model.safetensors",
                               want, FOR_ALL, how.data);
    buf_free(&how);
    return rc;
}

static int
foreign_directory(const char *path, enum foreign_want want, struct err *err)
{
    struct contents c = { 0 };
    bool text = want == FOREIGN_FOR_TEXT, tensors = want == FOREIGN_FOR_TENSORS;
    if (look_into(&c, path, want) < 0 || (tensors && c.weights))
        return 0;
    if (c.splits)
        return fill(err, path, "a datasets directory with several splits", want,
                    FOR_DATA, SAVED_SPLITS_TO_JSONL);
    if (c.info || c.arrow)
        return fill(err, path, "a datasets directory", want, FOR_DATA, SAVED_TO_JSONL);
    if (c.parquet || has_parquet_inside(path))
        return fill(err, path, "a directory of Parquet files", want, FOR_DATA,
                    SPLIT_TO_JSONL);
    if (tensors && c.adapter)
        return fill(err, path, "a LoRA adapter, not a whole model", want, FOR_WEIGHTS,
                    ADAPTER_TO_MODEL);
    if (tensors && c.torch)
        return fill(err, path, "a model in files of PyTorch (pytorch_model.bin)", want,
                    FOR_WEIGHTS, TORCH_TO_DIRECTORY);
    if (tensors && c.snapshots)
        return fill(err, path, "a repository in the cache of Hugging Face", want,
                    FOR_ALL, "name the directory below @/snapshots");
    if (tensors && c.other[0])
        return name_other(&c, path, want, err);
    if (text && c.weights)
        return fill(err, path, "a model directory", want, FOR_ALL,
                    "-t @ takes its tokenizer");
    if (text && c.text[0]) {
        char how[32];
        snprintf(how, sizeof how, "name its files: @/*%s", c.text);
        return fill(err, path, "a directory", want, FOR_ALL, how);
    }
    return want == FOREIGN_FOR_TENSORS
               ? 0
               : fill(err, path, "a directory", want, FOR_ALL, "name a file in it");
}

/* ---- names of files that models have ---------------------------------------------- */

int
foreign_part(const char *path, enum foreign_want want, struct err *err)
{
    static const char *const names[] = {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
        "added_tokens.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "generation_config.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
    };
    const char *slash = strrchr(path, '/'), *leaf = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(leaf, names[i]) == 0)
            return fill(err, path, "a file that belongs to a model", want, FOR_ALL,
                        want != FOREIGN_FOR_TENSORS ? "it may be in the same directory"
                        : strcmp(leaf, "tokenizer.json") == 0
                            ? "the option -t takes this one; name the model's directory"
                            : "name the directory that it is in");
    return 0;
}

/* ---- what does not exist ---------------------------------------------------------- */

/* OWNER/NAME, where NAME has no suffix and no directory OWNER is here. */
static bool
is_repository(const char *path)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";
    const char *slash = strchr(path, '/'), *dot = strrchr(path, '.');
    char owner[MAX_LEAF];
    struct stat st;
    if (!slash || slash == path || !slash[1] || strchr(slash + 1, '/') ||
        slash - path >= MAX_LEAF || path[strspn(path, letters)] ||
        strchr(".-", path[0]) || strchr(".-", slash[1]))
        return false;
    size_t suffix = dot && dot > slash ? strlen(dot + 1) : 0, i = 0;
    while (i < suffix && isalpha((unsigned char)dot[1 + i]))
        i++;
    snprintf(owner, sizeof owner, "%.*s", (int)(slash - path), path);
    return (suffix == 0 || i < suffix) && stat(owner, &st) < 0;
}

/* Append a name of the same directory that is near to that of the path. */
static void
put_near_name(struct buf *b, const char *path)
{
    const char *slash = strrchr(path, '/'), *leaf = slash ? slash + 1 : path;
    struct buf dir = { 0 };
    struct dirent **entries;
    char q[TEXT_QUOTE];
    buf_printf(&dir, "%.*s", slash ? (int)(slash - path) + 1 : 2, slash ? path : "./");
    // Sorted, so that the message has always the same one of two equally near names.
    int n = dir.failed ? -1 : scandir(dir.data, &entries, NULL, alphasort);
    struct nearest near = nearest_to(leaf, strlen(leaf));
    for (int i = 0; i < n; i++)
        nearest_try(&near, entries[i]->d_name);
    if (near.word)
        buf_printf(b, "; there is %s%s", slash ? dir.data : "",
                   text_quote(q, near.word, strlen(near.word)));
    for (int i = 0; i < n; i++)
        free(entries[i]);
    if (n >= 0)
        free(entries);
    buf_free(&dir);
}

static int
foreign_absent(const char *path, enum foreign_want want, struct err *err)
{
    char q[TEXT_QUOTE];
    bool data = want == FOREIGN_FOR_TEXT || want == FOREIGN_FOR_SAMPLES;
    struct buf b = { 0 };
    // The prefix by which llama.cpp and others name a repository.
    if (strncmp(path, "hf:", 3) == 0 && is_repository(path + 3))
        path += 3;
    text_quote(q, path, strlen(path));
    if (strncmp(path, "https://", 8) == 0 || strncmp(path, "http://", 7) == 0)
        return fill(err, path, "an address, from which nothing is downloaded", want,
                    FOR_ALL, DOWNLOAD);
    buf_printf(&b, "%s: No such file or directory", *path ? q : "\"\"");
    bool repository = is_repository(path);
    char *missing = repository ? NULL : path_missing_directory(path);
    if (missing)
        buf_printf(&b, ": there is no directory %s", missing);
    buf_printf(&b, ": expected %s", wanted[want]);
    if (want == FOREIGN_FOR_TOKENIZER && *path && !path[strspn(path, "0123456789")])
        buf_printf(&b, "; -j %s sets the number of threads", q);
    else if (repository)
        buf_printf(&b,
                   "; if it is a repository of Hugging Face, hf download %s%s "
                   "--local-dir %s fetches it",
                   q, data ? " --repo-type dataset" : "", strchr(path, '/') + 1);
    else if (!missing && is_plain(path))
        put_near_name(&b, path);
    free(missing);
    *err = (struct err){ 0 };
    err_fill(err, b.failed ? ERR_MEMORY : ERR_IO, "%s",
             b.failed ? "out of memory for a message" : b.data);
    buf_free(&b);
    return -1;
}

/* ---- whatever it is --------------------------------------------------------------- */

static int
look_at_file(const char *path, enum foreign_want want, struct err *err)
{
    uint8_t head[FOREIGN_HEAD];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : pread(fd, head, sizeof head, 0);
    if (fd >= 0)
        close(fd);
    // What cannot be read is the reader's to report.
    return n > 0 ? foreign_file(path, head, (size_t)n, want, err) : 0;
}

int
foreign_path(const char *path, enum foreign_want want, struct err *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return errno == ENOENT ? foreign_absent(path, want, err) : 0;
    if (S_ISDIR(st.st_mode))
        return foreign_directory(path, want, err);
    return S_ISREG(st.st_mode) ? look_at_file(path, want, err) : 0;
}
