/* SPDX-License-Identifier: MIT */
/* edit: see edit.h.  NIBBLE_LIBEDIT: libedit's header and library are there (Makefile). */
#include "cmd/generate/edit.h"

#include "lib/core/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#ifdef NIBBLE_LIBEDIT
#include <histedit.h>
#endif

enum { LINE_BYTES = 16 << 20, HISTORY_LINES = 1000 };

static const int signals[] = { SIGINT, SIGCONT, SIGWINCH, SIGTERM, SIGHUP, SIGQUIT };
enum { N_SIGNALS = sizeof signals / sizeof *signals };

struct edit {
    char prompt[4];
    bool shown; // standard error is a terminal, which shows the prompt
    int history_fd;
    struct reader reader; // without libedit
    struct sigaction before[N_SIGNALS];
#ifdef NIBBLE_LIBEDIT
    EditLine *el; // NULL: not on this terminal
    History *history;
#endif
};

/* ---- signals ----------------------------------------------------------------------- */

volatile sig_atomic_t edit_interrupted;
static volatile sig_atomic_t
    redraw;                     // the program was stopped, or the window has changed
static struct termios terminal; // as it was before lines were edited

static void
on_signal(int sig)
{
    if (sig == SIGINT) {
        edit_interrupted = 1;
    } else if (sig == SIGCONT || sig == SIGWINCH) {
        redraw = 1;
    } else {
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
        cmd_die_by_signal(sig);
    }
}

/* Writes of an answer are restarted; poll, which waits for a key, is not. */
static void
catch_signals(struct edit *e)
{
    struct sigaction catch = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigfillset(&catch.sa_mask);
    for (size_t i = 0; i < N_SIGNALS; i++)
        if (sigaction(signals[i], NULL, &e->before[i]) == 0 &&
            (e->before[i].sa_handler != SIG_IGN || signals[i] == SIGINT))
            sigaction(signals[i], &catch, NULL);
}

static void
release_signals(struct edit *e)
{
    for (size_t i = 0; i < N_SIGNALS; i++)
        sigaction(signals[i], &e->before[i], NULL);
}

/* Wait for something to read; false: a signal came before it. */
static bool
wait_for_key(void)
{
    struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
    return poll(&p, 1, -1) >= 0 || errno != EINTR;
}

/* ---- history in a file -------------------------------------------------------------- */

static void remember(struct edit *e, const char *line);

static int
open_history(struct edit *e, const char *path, struct err *err)
{
    struct stat st;
    struct slice line;
    char q[TEXT_QUOTE];
    int more;
    text_quote(q, path, strlen(path));
    e->history_fd =
        open(path, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (e->history_fd < 0)
        return err_set(err, ERR_IO, "%s:", q);
    if (fstat(e->history_fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_USAGE, "%s: is no regular file", q);
    struct reader r = { .fd = e->history_fd, .name = q, .limit = LINE_BYTES };
    while ((more = reader_line(&r, &line, err)) > 0)
        if (line.n && utf8_check(line.p, line.n) == line.n)
            remember(e, line.p);
    reader_free(&r);
    return more;
}

static int
write_history(const struct edit *e, struct slice line, struct err *err)
{
    struct buf b = { 0 };
    buf_add(&b, line.p, line.n);
    buf_char(&b, '\n');
    if (buf_ok(&b, err) < 0)
        return -1;
    ssize_t put = write(e->history_fd, b.data, b.len);
    int rc = put == (ssize_t)b.len ? 0 : err_set(err, ERR_IO, "--history: write:");
    buf_free(&b);
    return rc;
}

/* ---- with libedit ------------------------------------------------------------------- */

#ifdef NIBBLE_LIBEDIT

const char *
edit_name(size_t i)
{
    return i == 0 ? "libedit" : NULL;
}

static void
remember(struct edit *e, const char *line)
{
    HistEvent event;
    if (e->history)
        history(e->history, &event, H_ENTER, line);
}

static char *
show_prompt(EditLine *el)
{
    void *e = NULL;
    el_get(el, EL_CLIENTDATA, &e);
    return ((struct edit *)e)->prompt;
}

/* The line once more, by the terminal's new size, after another program has changed its mode:
 * libedit believes that the mode is set and that the cursor is at the beginning. */
static void
draw_again(EditLine *el)
{
    redraw = 0;
    el_resize(el);
    el_set(el, EL_PREP_TERM, 0);
    el_set(el, EL_PREP_TERM, 1);
    fputs("\r\033[J", stderr);
    el_set(el, EL_REFRESH);
}

/* The next character.  libedit's own reader goes on after a signal. */
static int
get_char(EditLine *el, wchar_t *c)
{
    mbstate_t state = { 0 };
    char byte;
    for (;;) {
        while (!wait_for_key()) {
            if (edit_interrupted)
                return -1;
            if (redraw)
                draw_again(el);
        }
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got <= 0)
            return (int)got;
        size_t n = mbrtowc(c, &byte, 1, &state);
        if (n == (size_t)-1)
            memset(&state, 0, sizeof state); // not UTF-8: dropped
        else if (n != (size_t)-2)
            return 1;
    }
}

/* The line editor counts columns of characters, which it learns from the locale. */
static void
choose_locale(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

static int
open_lines(struct edit *e, const struct cmd *c, struct err *err)
{
    const char *term = getenv("TERM");
    HistEvent event;
    if (!e->shown || !term || !*term || strcmp(term, "dumb") == 0)
        return 0;
    choose_locale();
    e->el = el_init(c->name, stdin, stderr, stderr);
    e->history = history_init();
    if (!e->el || !e->history)
        return err_set(err, ERR_MEMORY, "out of memory for the line editor");
    history(e->history, &event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_SIGNAL, 0);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_PROMPT, show_prompt);
    el_set(e->el, EL_HIST, history, e->history);
    el_set(e->el, EL_GETCFN, get_char);
    el_source(e->el, NULL); // the user's .editrc
    return 0;
}

static void
close_lines(struct edit *e)
{
    if (e->el)
        el_end(e->el);
    if (e->history)
        history_end(e->history);
}

static bool
edits(const struct edit *e)
{
    return e->el != NULL;
}

static int
edited_line(struct edit *e, struct slice *line)
{
    int n = 0;
    const char *text = el_gets(e->el, &n);
    if (text && n > 0)
        *line = (struct slice){ text, (size_t)n - (text[n - 1] == '\n') };
    return text && n > 0 ? 1 : n;
}

#else // ---- without it

const char *
edit_name(size_t i)
{
    return i == 0 ? "the terminal" : NULL;
}

static void
remember(struct edit *e, const char *line)
{
    (void)e;
    (void)line;
}

static int
open_lines(struct edit *e, const struct cmd *c, struct err *err)
{
    (void)e;
    (void)c;
    (void)err;
    return 0;
}

static void
close_lines(struct edit *e)
{
    (void)e;
}

static bool
edits(const struct edit *e)
{
    (void)e;
    return false;
}

static int
edited_line(struct edit *e, struct slice *line)
{
    (void)e;
    (void)line;
    return 0;
}

#endif

/* ---- lines --------------------------------------------------------------------------- */

struct edit *
edit_open(const struct cmd *c, const char *history_file, struct err *err)
{
    struct edit *e = cmd_alloc(1, sizeof *e);
    *e = (struct edit){
        .shown = isatty(STDERR_FILENO),
        .history_fd = -1,
        .reader = { .fd = STDIN_FILENO, .name = "<stdin>", .limit = LINE_BYTES }
    };
    if (!c->quiet)
        memcpy(e->prompt, "> ", sizeof "> ");
    tcgetattr(STDIN_FILENO, &terminal);
    catch_signals(e);
    if (open_lines(e, c, err) == 0 &&
        (!history_file || open_history(e, history_file, err) == 0))
        return e;
    edit_close(e);
    return NULL;
}

void
edit_close(struct edit *e)
{
    close_lines(e);
    release_signals(e);
    if (e->history_fd >= 0)
        close(e->history_fd);
    reader_free(&e->reader);
    free(e);
}

static int
plain_line(struct edit *e, struct slice *line, struct err *err)
{
    const struct reader *r = &e->reader;
    if (e->shown)
        fputs(e->prompt, stderr);
    while (r->from == r->have && !wait_for_key())
        if (edit_interrupted)
            return -1;
    return reader_line(&e->reader, line, err);
}

int
edit_line(struct edit *e, struct slice *line, struct err *err)
{
    int rc = 0;
    do {
        edit_interrupted = 0;
        rc = edits(e) ? edited_line(e, line) : plain_line(e, line, err);
        if (rc <= 0 && e->shown && err->kind == ERR_NONE)
            fputc('\n', stderr);
    } while (rc < 0 && edit_interrupted && err->kind == ERR_NONE);
    if (rc < 0 && err->kind == ERR_NONE)
        return err_set(err, ERR_IO, "<stdin>: read:");
    if (rc <= 0 || line->n == 0)
        return rc;
    if (edits(e)) {
        char *copy = cmd_copy(line->p);
        copy[line->n] = '\0';
        remember(e, copy);
        free(copy);
    }
    return e->history_fd >= 0 && write_history(e, *line, err) < 0 ? -1 : 1;
}
