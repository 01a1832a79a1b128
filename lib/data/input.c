/* SPDX-License-Identifier: MIT */
/* input: an operand, read in order, as groups of whole lines; all threads process a group,
 * and its samples go to the sink in order.
 *
 * A group has a few MiB, or one longer line, which bounds the memory of a stream.  When a
 * pipe pauses, the lines that have arrived are a group, so that a slow producer is followed
 * line by line.
 */
#include "lib/data/input.h"

#include "lib/base/par.h"
#include "lib/data/array.h"
#include "lib/data/columns.h"
#include "lib/data/csv.h"
#include "lib/data/detokenize.h"
#include "lib/data/kind.h"
#include "lib/data/lines.h"
#include "lib/data/samples.h"
#include "lib/file/foreign.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    READ_BYTES = 256 << 10,
    GROUP_BYTES = 4 << 20,
    PART_BYTES = 32 << 10,
    MAX_PARTS = GROUP_BYTES / PART_BYTES + 1,
    KEEP_BYTES = 1 << 20, // a part's larger buffer is freed
    MAX_LINE = 256 << 20,
};

struct input_reader {
    const struct data_options *c;
    const struct tokenizer *t;
    struct sink *sinks; // (c->n_out)
    struct host_progress *progress;
    struct worker *workers; // (c->threads)
    struct part parts[MAX_PARTS];
    char *text;
    size_t cap, have, whole; // of text: capacity, bytes read, bytes of complete lines
    struct err *err;
    // of the file
    char *name;
    int fd;
    bool waits, eof; // reading may block
    bool remarked;   // on a row
    bool blanks;     // the first line has several where a TAB is expected
    uint64_t base, line;
    struct hash *hash;
    enum input likely;
    enum csv_state csv; // behind the bytes that were read
    struct columns columns;
    bool is_array;
    struct array array;
    struct err array_err; // reported behind the rows before it
};

struct input_reader *
input_open(const struct data_options *c, const struct tokenizer *t, struct sink *sinks,
           struct host_progress *progress, struct err *err)
{
    struct input_reader *f = calloc(1, sizeof *f);
    if (f) {
        f->c = c;
        f->t = t;
        f->sinks = sinks;
        f->progress = progress;
        f->err = err;
        f->workers = calloc(c->threads, sizeof *f->workers);
    }
    if (!f || !f->workers) {
        err_set(err, ERR_MEMORY, "out of memory for %u threads", c->threads);
        input_close(f);
        return NULL;
    }
    for (unsigned i = 0; t && i < c->threads; i++) {
        f->workers[i].encoder = encoder_open(t, err);
        if (!f->workers[i].encoder) {
            input_close(f);
            return NULL;
        }
    }
    return f;
}

void
input_close(struct input_reader *f)
{
    if (!f)
        return;
    for (unsigned i = 0; f->workers && i < f->c->threads; i++) {
        struct worker *w = &f->workers[i];
        if (w->encoder)
            encoder_close(w->encoder);
        rendered_free(&w->rendered);
        row_free(&w->row);
        buf_free(&w->repaired);
        buf_free(&w->content);
    }
    for (size_t i = 0; i < MAX_PARTS; i++) {
        struct part *p = &f->parts[i];
        for (size_t k = 0; k < sizeof p->piles / sizeof *p->piles; k++) {
            buf_free(&p->piles[k].out);
            free(p->piles[k].sizes.v);
        }
        buf_free(&p->notes);
        buf_free(&p->remark);
    }
    columns_free(&f->columns);
    free(f->workers);
    free(f->text);
    free(f);
}

/* ---- reading ----------------------------------------------------------------------- */

static const char *
unit_of(const struct input_reader *f)
{
    return f->is_array ? "item" : "line";
}

static int
grow_buffer(struct input_reader *f)
{
    if (f->whole == 0 && f->have > MAX_LINE)
        return err_set(f->err, ERR_FORMAT,
                       "%s: %s %llu: longer than %d bytes, which is the limit%s",
                       f->name, unit_of(f), (unsigned long long)f->line, (int)MAX_LINE,
                       f->csv == CSV_QUOTED ? ": a quote is open" : "");
    if (f->cap - f->have >= READ_BYTES)
        return 0;
    size_t cap = f->cap ? 2 * f->cap : 2 * READ_BYTES;
    char *text = realloc(f->text, cap);
    if (!text)
        return err_set(f->err, ERR_MEMORY, "%s: %s %llu: out of memory for %zu bytes",
                       f->name, unit_of(f), (unsigned long long)f->line, cap);
    f->text = text;
    f->cap = cap;
    return 0;
}

/* Split the bytes from there on into lines, up to the first error. */
static void
split_array(struct input_reader *f, size_t from)
{
    size_t n = f->have - from, good = array_lines(&f->array, f->text + from, n);
    char q[TEXT_QUOTE];
    if (good == n && !(f->eof && f->array.state != ARRAY_DONE))
        return;
    f->have = from + good;
    f->eof = true;
    if (good == n)
        err_set(&f->array_err, ERR_FORMAT,
                "%s: byte %llu: expected %s, found the end of the file", f->name,
                (unsigned long long)(f->base + f->have), array_wants(&f->array));
    else
        err_set(&f->array_err, ERR_FORMAT, "%s: byte %llu: expected %s, found %s",
                f->name, (unsigned long long)(f->base + f->have),
                array_wants(&f->array), text_quote(q, f->text + f->have, 1));
}

/* Length of the complete lines, of CSV records, in n bytes. */
static size_t
whole_of(struct input_reader *f, const char *p, size_t n)
{
    if (f->c->input == INPUT_CSV)
        return csv_whole(&f->csv, p, n);
    const char *lf = n ? memrchr(p, '\n', n) : NULL;
    return lf ? (size_t)(lf - p) + 1 : 0;
}

/* Find the end of the last complete line in the bytes from there on. */
static void
find_whole(struct input_reader *f, size_t from)
{
    size_t n = whole_of(f, f->text + from, f->have - from);
    if (n)
        f->whole = from + n;
    if (f->eof)
        f->whole = f->have;
}

/* Read once. */
static int
fill(struct input_reader *f)
{
    ssize_t got;
    if (grow_buffer(f) < 0)
        return -1;
    char *to = f->text + f->have;
    do
        got = read(f->fd, to, READ_BYTES);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return err_set(f->err, ERR_IO, "%s: byte %llu: read:", f->name,
                       (unsigned long long)(f->base + f->have));
    hash_add(f->hash, to, (size_t)got);
    host_progress_add(f->progress, (uint64_t)got);
    f->have += (size_t)got;
    f->eof = got == 0;
    if (f->is_array)
        split_array(f, (size_t)(to - f->text));
    find_whole(f, (size_t)(to - f->text));
    return 0;
}

/* Whether a read would block now. */
static bool
would_wait(const struct input_reader *f)
{
    struct pollfd p = { .fd = f->fd, .events = POLLIN };
    return f->waits && poll(&p, 1, 0) == 0;
}

static int
fill_group(struct input_reader *f)
{
    while (!f->eof && (f->whole == 0 || (f->have < GROUP_BYTES && !would_wait(f))))
        if (fill(f) < 0)
            return -1;
    return 0;
}

/* ---- a group ----------------------------------------------------------------------- */

/* Where a part ends that begins there: behind a line, of CSV a record, and PART_BYTES later or
 * more. */
static size_t
part_end(const struct group *g, size_t at)
{
    struct slice record;
    size_t end = at;
    if (g->text.n - at <= PART_BYTES || g->n_parts + 1 == MAX_PARTS)
        return g->text.n;
    if (g->form.kind == INPUT_CSV) {
        while (end - at <= PART_BYTES && csv_next(g->text, &end, &record))
            ;
        return end;
    }
    const char *lf =
        memchr(g->text.p + at + PART_BYTES, '\n', g->text.n - at - PART_BYTES);
    return lf ? (size_t)(lf - g->text.p) + 1 : g->text.n;
}

/* No part of an earlier group has failed: nothing is read after that. */
static void
cut_parts(struct input_reader *f, struct group *g)
{
    size_t end;
    for (size_t at = 0; at < g->text.n; at = end) {
        end = part_end(g, at);
        struct part *p = &f->parts[g->n_parts++];
        p->begin = at;
        p->end = end;
        p->notes.len = p->remark.len = 0;
        for (unsigned k = 0; k < f->c->n_out; k++) {
            p->piles[k].out.len = p->piles[k].sizes.n = 0;
            p->piles[k].tally = (struct tally){ 0 };
        }
    }
}

static int
sink_pile(struct sink *s, struct pile *p)
{
    if (!p->out.failed && sink_add(s, &p->out, &p->sizes, &p->tally) < 0)
        return -1;
    if (p->out.cap > KEEP_BYTES)
        buf_free(&p->out);
    return 0;
}

/* Parts in order, up to the first error; samples before it are written. */
static int
sink_parts(struct input_reader *f, const struct group *g)
{
    for (size_t i = 0; i < g->n_parts; i++) {
        struct part *p = &f->parts[i];
        host_note_lines(f->c->host, &p->notes);
        if (!f->remarked)
            host_note_lines(f->c->host, &p->remark);
        f->remarked |= p->remark.len > 0;
        for (unsigned k = 0; k < f->c->n_out; k++)
            if (sink_pile(&f->sinks[k], &p->piles[k]) < 0)
                return -1;
        if (p->failed)
            return err_set(f->err, p->err.kind, "%s", p->err.msg);
    }
    return 0;
}

static uint64_t
count_lines(struct slice text)
{
    uint64_t n = 0;
    const char *p = text.p, *end = p + text.n;
    while (p < end && (p = memchr(p, '\n', (size_t)(end - p)))) {
        n++;
        p++;
    }
    return n;
}

static int
work_group(struct input_reader *f)
{
    struct err ignored = { 0 }; // each part has its own
    struct group g = { .c = f->c,
                       .t = f->t,
                       .workers = f->workers,
                       .form = { f->c->input, f->c->named, &f->columns },
                       .name = f->name,
                       .unit = unit_of(f),
                       .base = f->base,
                       .first_line = f->line,
                       .text = { f->text, f->whole },
                       .parts = f->parts };
    cut_parts(f, &g);
    par_for(f->c->threads, g.n_parts, samples_of_part, &g, &ignored);
    int rc = sink_parts(f, &g);
    f->line += count_lines(g.text);
    f->base += f->whole;
    f->have -= f->whole;
    memmove(f->text, f->text + f->whole, f->have);
    f->whole = 0;
    return rc;
}

/* ---- a file ------------------------------------------------------------------------ */

static void
drop_bytes(struct input_reader *f, size_t n)
{
    f->have -= n;
    f->whole -= f->whole < n ? f->whole : n;
    f->base += n;
    memmove(f->text, f->text + n, f->have);
}

/* Whether the line of a TSV has the names of a pair in place of one. */
static bool
is_header(struct slice line)
{
    static const char *const prompts[] = { "prompt", "instruction", "question",
                                           "input",  "query",       "user" },
                             *const answers[] = { "target", "completion", "response",
                                                  "output", "answer",     "assistant" };
    struct slice prompt, answer;
    bool is_prompt = false, is_answer = false;
    if (line_tsv(line, &prompt, &answer) != TSV_PAIR)
        return false;
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        is_prompt |= slice_is(prompt, prompts[i]);
        is_answer |= slice_is(answer, answers[i]);
    }
    return is_prompt && is_answer;
}

/* Handle a byte order mark and a header at the beginning of a file. */
static int
look_at_start(struct input_reader *f)
{
    struct slice line;
    size_t at = 0;
    if (f->have >= 3 && memcmp(f->text, "\xef\xbb\xbf", 3) == 0) {
        drop_bytes(f, 3);
        host_note(f->c->host, "%s: a byte order mark was dropped", f->name);
    }
    f->likely =
        kind_of_text((struct slice){ f->text, f->have }, f->c->named, f->c->input);
    if (f->c->input != INPUT_TSV ||
        !line_next((struct slice){ f->text, f->have }, &at, &line))
        return 0;
    line = line_trim(line);
    f->blanks = !memchr(line.p, '\t', line.n) && memmem(line.p, line.n, "  ", 2);
    if (!is_header(line))
        return 0;
    if (f->c->strict)
        return err_set(f->err, ERR_FORMAT,
                       "%s: line 1: the names of columns: expected a prompt, TAB, its "
                       "answer; a # before it makes it a comment",
                       f->name);
    host_note(f->c->host,
              "%s: line 1: looks like the names of columns, and is learnt as a row: "
              "delete it, or put a # before it",
              f->name);
    return 0;
}

static bool
is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* JSON whose first character is a bracket is one array, not lines. */
static int
look_for_array(struct input_reader *f)
{
    size_t i = 0;
    while (f->c->input == INPUT_JSONL) {
        while (i < f->have && is_space(f->text[i]))
            i++;
        if (i < f->have || f->eof)
            break;
        if (fill(f) < 0)
            return -1;
    }
    if (i < f->have && f->c->input == INPUT_JSONL && f->text[i] == '[') {
        f->is_array = true;
        f->whole = 0;
        split_array(f, 0);
        find_whole(f, 0);
    }
    return 0;
}

/* The first record of a CSV, as UTF-8. */
static int
parse_header(struct input_reader *f, struct slice header)
{
    struct buf repaired = { 0 };
    struct err why = { 0 };
    const char *nul = memchr(header.p, '\0', header.n);
    size_t bad = utf8_check(header.p, header.n);
    int rc = 0;
    if (nul)
        rc = err_set(&why, ERR_FORMAT, ": byte %llu: expected text, found a NUL byte",
                     (unsigned long long)(f->base + (size_t)(nul - header.p)));
    else if (bad < header.n && f->c->invalid == INVALID_ERROR)
        rc = err_set(&why, ERR_FORMAT, ": byte %llu: expected UTF-8, found byte 0x%02x",
                     (unsigned long long)(f->base + bad), (uint8_t)header.p[bad]);
    else if (bad < header.n) {
        f->sinks->sum.repaired += utf8_repair(&repaired, header);
        rc = buf_ok(&repaired, &why);
        header = (struct slice){ repaired.data, repaired.len };
    }
    if (rc == 0)
        rc = columns_read(&f->columns, header, f->base, f->c->named, &why);
    buf_free(&repaired);
    if (rc < 0)
        err_set(f->err, why.kind, "%s: line %llu%s%s", f->name,
                (unsigned long long)f->line, *why.msg == ':' ? "" : ": ", why.msg);
    return rc;
}

/* The header of a CSV, which is the first record of each file. */
static int
read_header(struct input_reader *f)
{
    struct slice header;
    size_t at = 0;
    f->csv = CSV_BEGIN; // what was read before began with a byte order mark, perhaps
    f->whole = 0;
    find_whole(f, 0);
    while (!f->eof && f->whole == 0)
        if (fill(f) < 0)
            return -1;
    if (!csv_next((struct slice){ f->text, f->whole }, &at, &header))
        return err_set(f->err, ERR_FORMAT,
                       "%s: line 1: expected a header with the names of the columns, "
                       "found the end of the file",
                       f->name);
    columns_free(&f->columns);
    if (parse_header(f, header) < 0)
        return -1;
    f->line += count_lines((struct slice){ f->text, at });
    drop_bytes(f, at);
    return 0;
}

static int
open_input(struct input_reader *f, const char *path)
{
    struct stat st;
    struct buf name = { 0 };
    bool is_stdin = strcmp(path, "-") == 0;
    const char *shown = is_stdin ? "<stdin>" : path;
    text_escape(&name, shown, strlen(shown));
    f->name = name.data;
    f->fd = -1;
    f->base = 0;
    f->line = 1;
    f->have = f->whole = 0;
    f->csv = CSV_BEGIN;
    f->eof = f->is_array = f->remarked = false;
    f->array = (struct array){ 0 };
    f->hash = hash_begin(HASH_XXH3);
    if (!f->name || !f->hash)
        return err_set(f->err, ERR_MEMORY, "out of memory");
    f->fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0)
        return err_set(f->err, ERR_IO, "%s:", f->name);
    f->waits = fstat(f->fd, &st) < 0 || !S_ISREG(st.st_mode);
    return 0;
}

static int
read_lines(struct input_reader *f)
{
    if (look_at_start(f) < 0 || look_for_array(f) < 0 ||
        (f->c->input == INPUT_CSV && read_header(f) < 0))
        return -1;
    while (!f->eof || f->have)
        if (fill_group(f) < 0 || (f->whole && work_group(f) < 0))
            return -1;
    if (f->array_err.kind)
        return err_set(f->err, f->array_err.kind, "%s", f->array_err.msg);
    return 0;
}

static int
read_input(struct input_reader *f, const char *path)
{
    // Enough to recognize a byte order mark, a header, or a .tok.
    while (!f->eof && f->whole == 0 && f->have < TOK_PROLOGUE)
        if (fill(f) < 0)
            return -1;
    // An empty stream is an error: its producer may have died.
    if (f->have == 0 && f->c->decode && !f->c->input_given)
        return err_set(f->err, ERR_FORMAT,
                       "%s: byte 0: expected a .tok or lines of ids, found the end",
                       f->name);
    if (foreign_file(f->name, f->text, f->have, FOREIGN_FOR_TEXT, f->err) < 0)
        return -1;
    if (!tok_sniff(f->text, f->have))
        return read_lines(f);
    if (!f->c->decode)
        return err_set(f->err, ERR_USAGE,
                       "%s: is a .tok already; --decode makes text of it", f->name);
    return detokenize(f->sinks, f->t, f->fd, path, (struct slice){ f->text, f->have },
                      f->progress, f->err);
}

int
input_read(struct input_reader *f, const char *path, uint8_t xxh3[XXH3_BYTES])
{
    int rc = open_input(f, path);
    if (rc == 0)
        rc = read_input(f, path);
    hash_end(f->hash, xxh3);
    f->hash = NULL;
    if (f->fd > STDIN_FILENO)
        close(f->fd);
    free(f->name);
    f->name = NULL;
    return rc;
}

enum input
input_likely(const struct input_reader *f)
{
    return f->likely;
}

bool
input_has_blanks(const struct input_reader *f)
{
    return f->blanks;
}
