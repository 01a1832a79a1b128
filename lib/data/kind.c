/* SPDX-License-Identifier: MIT */
/* kind: what an input is, by its name or by its first lines. */
#include "lib/data/kind.h"

#include "lib/data/columns.h"
#include "lib/data/lines.h"

#include <string.h>

static const struct {
    const char *suffix;
    enum input kind;
} suffixes[] = {
    { ".tsv", INPUT_TSV },    { ".csv", INPUT_CSV },   { ".jsonl", INPUT_JSONL },
    { ".json", INPUT_JSONL }, { ".txt", INPUT_LINES },
};

static bool
kind_of_name(const char *path, enum input *kind)
{
    struct slice name = slice_of(path);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (slice_ends(name, suffixes[i].suffix)) {
            *kind = suffixes[i].kind;
            return true;
        }
    return false;
}

/* --chunk cuts what consists of targets, and only objects and tables have names. */
static int
check_options(const struct data_options *c, struct err *err)
{
    if (c->named && c->input != INPUT_JSONL && c->input != INPUT_CSV)
        return err_set(err, ERR_USAGE,
                       "--prompt-key: names keys of JSONL and columns of CSV, and the "
                       "input is %s: expected --input jsonl or csv",
                       data_inputs[c->input]);
    if (c->chunk && c->input == INPUT_TSV && !c->how.all_targets)
        return err_set(
            err, ERR_USAGE,
            "--chunk: cuts documents, and rows of TSV have prompts: expected "
            "JSONL, lines or ids (--input), or --targets all");
    return 0;
}

int
kind_settle(struct data_options *c, char **paths, size_t n, struct err *err)
{
    const char *first = NULL; // the first file with a known suffix
    char q[TEXT_QUOTE], r[TEXT_QUOTE];
    if (c->decode || c->input_given)
        return check_options(c, err);
    for (size_t i = 0; i < n; i++) {
        enum input kind;
        if (!kind_of_name(paths[i], &kind))
            continue;
        if (first && kind != c->input)
            return err_set(err, ERR_USAGE,
                           "%s is %s by its suffix, %s is %s: expected files of one "
                           "kind; make a .tok of each, or overrule with --input",
                           text_quote(q, first, strlen(first)), data_inputs[c->input],
                           text_quote(r, paths[i], strlen(paths[i])),
                           data_inputs[kind]);
        first = paths[i];
        c->input = kind;
    }
    if (first && c->input == INPUT_LINES)
        host_note(
            c->host,
            "%s: is read as lines, each a document, because of its suffix; --input "
            "tsv reads it as TSV",
            text_quote(q, first, strlen(first)));
    return check_options(c, err);
}

/* ---- by content -------------------------------------------------------------------- */

static bool
only_numbers(struct slice line)
{
    for (size_t i = 0; i < line.n; i++)
        if (line.p[i] != ' ' && (line.p[i] < '0' || line.p[i] > '9'))
            return false;
    return true;
}

static enum input
kind_of_json(struct slice line)
{
    static const char ids[] = "\"ids\"";
    return line.p[0] == '{' && memmem(line.p, line.n, ids, sizeof ids - 1)
               ? INPUT_IDS
               : INPUT_JSONL;
}

/* Whether the line begins an object or an array, as "[a link](to a page)" does not. */
static bool
begins_json(struct slice line)
{
    size_t i = 1;
    if (line.n == 0 || line.p[0] != '[')
        return line.n > 0 && line.p[0] == '{';
    while (i < line.n && line.p[i] == ' ')
        i++;
    return i == line.n || strchr("{[\"]-0123456789tfn", line.p[i]);
}

/* The kind of a text whose line is the first with content, no JSON and no comment. */
static enum input
kind_of_line(struct slice text, struct slice line, const struct shape_names *names)
{
    if (memchr(line.p, '\t', line.n))
        return INPUT_TSV;
    if (only_numbers(line))
        return INPUT_IDS;
    return columns_likely(text, names) ? INPUT_CSV : INPUT_LINES;
}

enum input
kind_of_text(struct slice text, const struct shape_names *names, enum input otherwise)
{
    struct slice whole, line;
    for (size_t begin = 0, at = 0; line_next(text, &at, &whole); begin = at) {
        line = line_trim(whole);
        if (memchr(line.p, '\0', line.n) || utf8_check(line.p, line.n) != line.n)
            return otherwise;
        if (begins_json(line))
            return kind_of_json(line);
        if (line.n && line.p[0] != '#')
            return kind_of_line((struct slice){ text.p + begin, text.n - begin }, whole,
                                names);
    }
    return otherwise;
}

bool
kind_hint(const struct data_options *c, enum input likely, bool blanks, struct err *err)
{
    static const char *const looks[] = { [INPUT_TSV] = "TSV",
                                         [INPUT_JSONL] = "JSON",
                                         [INPUT_LINES] = "lines of text",
                                         [INPUT_IDS] = "ids",
                                         [INPUT_CSV] = "CSV" };
    struct buf b = { 0 };
    if (likely == c->input || c->decode || err->kind != ERR_FORMAT)
        return false;
    // A bad table would be read as lines without an error, and learnt.
    if (likely == INPUT_LINES && c->input == INPUT_CSV)
        return false;
    if (blanks && likely == INPUT_LINES)
        buf_printf(&b,
                   "%s; line 1 has several blanks in place of a TAB: "
                   "sed -E 's/ {2,}/\\t/' FILE >NEW makes it one",
                   err->msg);
    else
        buf_printf(&b, "%s; it looks like %s: try --input %s", err->msg, looks[likely],
                   data_inputs[likely]);
    if (!b.failed) {
        *err = (struct err){ 0 };
        err_fill(err, ERR_FORMAT, "%s", b.data);
    }
    buf_free(&b);
    return true;
}
