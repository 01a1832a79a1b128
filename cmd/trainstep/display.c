/* SPDX-License-Identifier: MIT */
/* display: a line a step on standard output, in columns on a terminal and as TSV elsewhere; and
 * the status line on standard error, which a terminal shows below the table. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/os.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Columns of that terminal, which may have been resized; 0: unknown. */
static size_t
known_width(int fd)
{
    struct winsize w = { 0 };
    return ioctl(fd, TIOCGWINSZ, &w) == 0 ? w.ws_col : 0;
}

static size_t
terminal_width(int fd)
{
    size_t width = known_width(fd);
    return width ? width : 80;
}

/* Open MPI gives rank 0 a terminal without a size, whatever its own output is. */
static bool
is_terminal(int fd, unsigned ranks)
{
    return isatty(fd) && (ranks == 1 || known_width(fd));
}

/* ---- the table ------------------------------------------------------------------------- */

static const struct {
    const char *name;
    bool fixed;      // decimals are behind the point; else digits in all
    int tsv, shown;  // decimals in TSV and on a terminal
    int width;       // on a terminal
    unsigned narrow; // of those with the lowest number, narrow terminals have none
} columns[COLUMNS] = {
    [STEP] = { "step", true, 0, 0, 7, 9 },
    [LOSS] = { "loss", false, 6, 5, 8, 8 },
    [TOKENS] = { "tokens", true, 0, 0, 7, 3 },
    [LR] = { "lr", false, 6, 3, 9, 6 },
    [NORM] = { "grad_norm", false, 6, 4, 9, 5 },
    [TOK_S] = { "tok_s", false, 6, 5, 8, 7 },
    [MFU] = { "mfu", true, 0, 0, 5, 0 },
    [MEM] = { "mem_gb", true, 3, 3, 7, 2 },
    [MS] = { "ms", true, 3, 1, 9, 4 },
    [SKIPPED] = { "skipped", true, 0, 0, 7, 1 },
};

/* The columns from that number on fit a terminal. */
static unsigned
narrowest(size_t width)
{
    for (unsigned from = 0; from < 9; from++) {
        size_t need = 0;
        for (size_t i = 0; i < COLUMNS; i++)
            if (columns[i].narrow >= from)
                need += (size_t)columns[i].width + (need ? 1 : 0);
        if (need < width)
            return from;
    }
    return 9;
}

static int
format_value(char text[32], size_t i, double v, int decimals)
{
    return columns[i].fixed ? snprintf(text, 32, "%.*f", decimals, v)
                            : snprintf(text, 32, "%.*g", decimals, v);
}

/* On a terminal as many decimals as the column has space for. */
static void
put_value(struct buf *b, size_t i, double v, bool terminal)
{
    char text[32] = "-"; // MFU is unknown
    if (isnan(v))
        v = NAN; // the sign of one depends on the arithmetic
    int decimals = terminal ? columns[i].shown : columns[i].tsv;
    if (i != MFU)
        while (format_value(text, i, v, decimals) > columns[i].width && terminal &&
               decimals > 0)
            decimals--;
    buf_printf(b, "%*s", terminal ? columns[i].width : 0, text);
}

/* A row, or with v NULL the names. */
static void
put_row(struct buf *b, const double *v, bool terminal, unsigned from)
{
    for (size_t i = 0, n = 0; i < COLUMNS; i++) {
        if (columns[i].narrow < from)
            continue;
        if (n++)
            buf_char(b, terminal ? ' ' : '\t');
        if (v)
            put_value(b, i, v[i], terminal);
        else
            buf_printf(b, "%*s", terminal ? columns[i].width : 0, columns[i].name);
    }
    buf_char(b, '\n');
}

/* A terminal that has become wider or narrower gets other columns, and their names. */
static int
show_row(struct display *t, const double *v, struct err *err)
{
    struct buf b = { 0 };
    unsigned from = t->terminal ? narrowest(terminal_width(STDOUT_FILENO)) : 0;
    if (!t->head || from != t->from)
        put_row(&b, NULL, t->terminal, from);
    t->head = true;
    t->from = from;
    put_row(&b, v, t->terminal, from);
    if (b.failed)
        return err_set(err, ERR_MEMORY, "out of memory for a line");
    if (t->terminal)
        progress_clear();
    output_put(&t->out, b.data, b.len);
    buf_free(&b);
    return 0;
}

/* ---- the status line -------------------------------------------------------------------- */

/* Whether the user's locale is UTF-8; the program's own stays "C". */
static bool
locale_is_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    bool utf8 = locale && strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    if (locale)
        freelocale(locale);
    return utf8;
}

static void
put_bar(struct buf *b, double share, size_t cells, bool utf8)
{
    size_t full = (size_t)(share * (double)cells);
    buf_char(b, '[');
    for (size_t i = 0; i < cells; i++)
        buf_str(b, i < full ? (utf8 ? "█" : "#") : (utf8 ? "░" : "."));
    buf_str(b, "] ");
}

static void
put_time(struct buf *b, double seconds)
{
    double minutes = floor(seconds / 60);
    if (seconds < 100)
        buf_printf(b, "%.0f s left", seconds);
    else if (minutes < 100)
        buf_printf(b, "%.0f min %02.0f s left", minutes, seconds - 60 * minutes);
    else
        buf_printf(b, "%.0f h %02.0f min left", floor(minutes / 60),
                   minutes - 60 * floor(minutes / 60));
}

/* What counts most comes first; a bar and the course of the loss need space.  Never wider than
 * the terminal: a wrapped line cannot be erased. */
static void
put_status(struct buf *b, const struct display *d, const struct trainer *t, double loss,
           size_t width)
{
    enum { SHORT = 10, LONG = 20, WIDE = 110, FEWEST = 5 };
    struct buf head = { 0 }, tail = { 0 };
    uint64_t step = t->train.step, end = t->run->end;
    double past = os_seconds() - d->started, steps = (double)(step - d->first_step);
    size_t bar = width < WIDE ? SHORT : LONG;
    buf_printf(&head, "step %llu of %llu ", (unsigned long long)step,
               (unsigned long long)end);
    buf_printf(&tail, "loss %.4f, %.0f tokens/s, ", loss, (double)d->tokens / past);
    put_time(&tail, ceil(past / steps * (double)(end - step)));
    size_t used = head.len + tail.len, with_bar = used + bar + 3;
    buf_add(b, head.data, head.len);
    if (with_bar <= width) {
        put_bar(b, (double)step / (double)end, bar, d->utf8);
        used = with_bar;
    }
    buf_add(b, tail.data, tail.len);
    if (used > width)
        b->len = width; // of ASCII
    else if (width - used > FEWEST) {
        buf_char(b, ' ');
        spark_draw(b, &d->spark, width - used - 1, d->utf8);
    }
    b->failed |= head.failed || tail.failed;
    buf_free(&head);
    buf_free(&tail);
}

/* Drawn again below a row of the table, else five times a second at most. */
static void
show_status(struct display *d, const struct trainer *t, double loss, bool row)
{
    double now = os_seconds();
    if (!d->progress)
        return;
    spark_add(&d->spark, loss);
    if (!(row && d->terminal) && now - d->drawn < 0.2 && t->train.step < t->run->end)
        return;
    d->drawn = now;
    struct buf b = { 0 };
    // One for the cursor, two for the ^C that a terminal shows of Ctrl-C there.
    size_t width = terminal_width(STDERR_FILENO);
    put_status(&b, d, t, loss, width > 3 ? width - 3 : 1);
    if (!b.failed)
        fprintf(stderr, "\r%.*s\033[K", (int)b.len, b.data);
    progress_shown();
    buf_free(&b);
}

/* ---- both -------------------------------------------------------------------------------- */

static int
on_step(void *ctx, const struct trainer *t, const struct step_event *e)
{
    struct display *d = ctx;
    const struct train_result *res = e->result;
    uint64_t step = t->train.step;
    const double v[COLUMNS] = {
        [STEP] = (double)step,
        [LOSS] = res->loss,
        [TOKENS] = (double)res->tokens,
        [LR] = e->rate,
        [NORM] = res->grad_norm,
        [TOK_S] = e->ms > 0 ? (double)res->tokens / e->ms * 1000 : 0,
        [MEM] = (double)trainer_memory(t, true) / (double)(1 << 30),
        [MS] = e->ms,
        [SKIPPED] = res->outcome != TRAIN_DONE,
    };
    if (e->repeated)
        return 0;
    bool row = step % t->run->o->log_every == 0 || step == t->run->end ||
               res->outcome != TRAIN_DONE;
    d->tokens += res->tokens;
    memcpy(d->row, v, sizeof v);
    d->owed = !row;
    if (row && show_row(d, v, t->err) < 0)
        return -1;
    show_status(d, t, res->loss, row);
    return 0;
}

/* The row of the last step, if it was left out. */
static int
on_rest(void *ctx, const struct trainer *t)
{
    struct display *d = ctx;
    bool owed = d->owed;
    d->owed = false;
    return owed ? show_row(d, d->row, t->err) : 0;
}

void
display_open(struct display *d, const struct run_config *r, struct stop *stop)
{
    unsigned ranks = r->ranks->size;
    *d = (struct display){ .observer = { .ctx = d, .step = on_step, .rest = on_rest },
                           .out = { STDOUT_FILENO, "standard output", r->host, stop,
                                    false },
                           .started = os_seconds(),
                           .first_step = r->in_step };
    d->progress = !r->host->quiet && is_terminal(STDERR_FILENO, ranks);
    d->utf8 = d->progress && locale_is_utf8();
    d->terminal = is_terminal(STDOUT_FILENO, ranks);
}
