/* SPDX-License-Identifier: MIT */
/* edit: see edit.h.  NIBBLE_LIBEDIT: libedit's header and library are there (Makefile). */
#include "cmd/generate/edit.h"

#include "lib/file/reader.h"

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

/* Bracketed paste, mode 2004 of terminals, sends two marks around a paste. */
static const char paste_on[] = "\033[?2004h", paste_off[] = "\033[?2004l",
                  paste_begin[] = "\033[200~", paste_end[] = "\033[201~";

static const int signals[] = { SIGINT, SIGCONT, SIGWINCH, SIGTERM, SIGHUP, SIGQUIT };
enum { N_SIGNALS = sizeof signals / sizeof *signals };

struct edit {
    const char *prompt;
    const char *more; // the prompt of a message's further lines
    bool shown;       // standard error is a terminal, which shows the prompt
    bool capable;     // and obeys control sequences
    struct buf message;
    bool pasting; // the end of what is pasted has not come yet
    bool ended;   // the input has ended
    int history_fd;
    struct reader reader; // without libedit
    int keys;             // with libedit
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
static volatile sig_atomic_t is_set;       // it has been changed
static volatile sig_atomic_t marks_pastes; // the terminal was asked to

/* Ask the terminal to mark pastes, once more after a stop: a shell may have ended that. */
static void
mark_pastes(void)
{
    if (marks_pastes)
        fputs(paste_on, stderr);
}

/* Restore what was set.  Called in handlers, too. */
static void
leave_terminal(void)
{
    if (is_set)
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
    if (marks_pastes && write(STDERR_FILENO, paste_off, strlen(paste_off)) < 0)
        return; // the terminal is gone
    is_set = marks_pastes = 0;
}

static void
on_signal(int sig)
{
    if (sig == SIGINT) {
        edit_interrupted = 1;
    } else if (sig == SIGCONT || sig == SIGWINCH) {
        redraw = 1;
    } else {
        leave_terminal();
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

/* Wait for something to read; false: a signal came before it.  Signals are blocked until the wait
 * has begun, so that one just before it ends it, too. */
static bool
wait_for_key(void)
{
    struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
    sigset_t block, before;
    sigemptyset(&block);
    for (size_t i = 0; i < N_SIGNALS; i++)
        sigaddset(&block, signals[i]);
    sigprocmask(SIG_BLOCK, &block, &before);
    bool came = edit_interrupted || redraw;
    if (!came)
        came = ppoll(&p, 1, NULL, &before) < 0 && errno == EINTR;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = EINTR;
    return !came;
}

/* The prompt of the next line.  It is empty inside of a paste, whose lines come at once. */
static const char *
prompt_of(const struct edit *e)
{
    return e->pasting ? "" : e->message.len ? e->more : e->prompt;
}

/* ---- messages ----------------------------------------------------------------------- */

/* Whether a typed line ends in a single backslash, so that the message goes on behind it. */
static bool
continues(struct slice line)
{
    return line.n > 0 && line.p[line.n - 1] == '\\' &&
           !(line.n > 1 && line.p[line.n - 2] == '\\');
}

/* Append a line, as the terminal gave it, without the marks of a paste. */
static void
add_marked(struct edit *e, struct slice line)
{
    for (;;) {
        const char *mark = e->pasting ? paste_end : paste_begin;
        const char *at = memmem(line.p, line.n, mark, strlen(mark));
        size_t n = at ? (size_t)(at - line.p) : line.n;
        buf_add(&e->message, line.p, n);
        if (!at)
            return;
        e->pasting = !e->pasting;
        n += strlen(mark);
        line = (struct slice){ line.p + n, line.n - n };
    }
}

/* Append a line to the message; whether another one follows. */
static bool
add_line(struct edit *e, struct slice line)
{
    struct buf *b = &e->message;
    size_t from = b->len;
    add_marked(e, line);
    bool open = b->len > from && !e->pasting &&
                continues((struct slice){ b->data + from, b->len - from });
    if (open)
        b->len--;
    if (open || e->pasting)
        buf_char(b, '\n');
    return open || e->pasting;
}

/* ---- history in a file: a line that ends in a backslash goes on in the next one ------ */

static void remember(struct edit *e, const char *message);

static int
read_history(struct edit *e, const char *name, struct err *err)
{
    struct reader r = { .fd = e->history_fd, .name = name, .limit = LINE_BYTES };
    struct slice line;
    struct buf b = { 0 };
    int more;
    while ((more = reader_line(&r, &line, err)) > 0) {
        bool open = continues(line);
        buf_add(&b, line.p, line.n - open);
        if (open)
            buf_char(&b, '\n');
        if (open || b.failed)
            continue;
        if (b.len && utf8_check(b.data, b.len) == b.len)
            remember(e, b.data);
        b.len = 0;
    }
    if (more == 0)
        more = buf_ok(&b, err);
    reader_free(&r);
    buf_free(&b);
    return more;
}

static int
open_history(struct edit *e, const char *path, struct err *err)
{
    struct stat st;
    char q[TEXT_QUOTE];
    text_quote(q, path, strlen(path));
    // O_NONBLOCK: a FIFO or a device is refused, not waited for.
    e->history_fd = open(path,
                         O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK |
                             O_NOCTTY | O_CLOEXEC,
                         0600);
    if (e->history_fd < 0)
        return err_set(err, ERR_IO, "--history: %s:", q);
    if (fstat(e->history_fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_USAGE,
                       "--history: %s: is no regular file: expected one, or a new name",
                       q);
    return read_history(e, q, err);
}

/* A backslash of the message at the end of a line gets a space behind it, since the file has a meaning
 * for it. */
static void
put_history(struct buf *b, const char *message)
{
    for (;;) {
        size_t n = strcspn(message, "\n");
        buf_add(b, message, n);
        if (n && message[n - 1] == '\\')
            buf_char(b, ' ');
        buf_str(b, message[n] ? "\\\n" : "\n");
        if (!message[n])
            return;
        message += n + 1;
    }
}

static int
write_history(const struct edit *e, const char *message, struct err *err)
{
    struct buf b = { 0 };
    put_history(&b, message);
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
remember(struct edit *e, const char *message)
{
    HistEvent event;
    if (e->history)
        history(e->history, &event, H_ENTER, message);
}

static const struct edit *
edit_of(EditLine *el)
{
    void *e = NULL;
    el_get(el, EL_CLIENTDATA, &e);
    return e;
}

static char *
show_prompt(EditLine *el)
{
    return (char *)(uintptr_t)prompt_of(edit_of(el));
}

static int
keys_of(EditLine *el)
{
    return edit_of(el)->keys;
}

/* The line once more, by the terminal's new size, after another program has changed its mode:
 * libedit believes that the mode is set and that the cursor is at the beginning. */
static void
draw_again(void *ctx)
{
    EditLine *el = ctx;
    redraw = 0;
    mark_pastes();
    el_resize(el);
    el_set(el, EL_PREP_TERM, 0);
    el_set(el, EL_PREP_TERM, 1);
    fputs("\r\033[J", stderr);
    el_set(el, EL_REFRESH);
}

/* Another description of the terminal, from which a read never waits: Ctrl-C may have discarded
 * the key that came. */
static int
open_keys(void)
{
    int fd = open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return fd < 0 ? STDIN_FILENO : fd;
}

/* The next byte; 0 at the end, -1 after Ctrl-C or with errno.  restore is called after a stop. */
static int
next_byte(int keys, char *byte, void (*restore)(void *ctx), void *ctx)
{
    for (;;) {
        if (edit_interrupted)
            return -1;
        ssize_t got = wait_for_key() ? read(keys, byte, 1) : -1;
        if (got >= 0 || (errno != EINTR && errno != EAGAIN))
            return (int)got;
        if (redraw)
            restore(ctx);
    }
}

/* The next character.  libedit's own reader goes on after a signal. */
static int
get_char(EditLine *el, wchar_t *c)
{
    mbstate_t state = { 0 };
    char byte;
    for (;;) {
        int got = next_byte(keys_of(el), &byte, draw_again, el);
        if (got <= 0)
            return got;
        size_t n = mbrtowc(c, &byte, 1, &state);
        if (n == (size_t)-1)
            memset(&state, 0, sizeof state); // not UTF-8: dropped
        else if (n != (size_t)-2)
            return 1;
    }
}

/* Read what is pasted, up to its mark, with line feeds for the carriage returns of a terminal. */
static bool
read_paste(EditLine *el, struct buf *b)
{
    size_t n = strlen(paste_end);
    char byte;
    while (next_byte(keys_of(el), &byte, draw_again, el) > 0) {
        if (byte)
            buf_char(b, byte == '\r' ? '\n' : byte);
        if (b->failed || b->len > LINE_BYTES)
            return false;
        if (b->len >= n && memcmp(b->data + b->len - n, paste_end, n) == 0) {
            b->len -= n;
            return true;
        }
    }
    return false;
}

/* Insert it into the line, which thereby has several. */
static unsigned char
insert_paste(EditLine *el, wint_t key)
{
    struct buf raw = { 0 }, text = { 0 };
    (void)key;
    bool whole = read_paste(el, &raw);
    utf8_repair(&text, (struct slice){ raw.data ? raw.data : "", raw.len });
    whole = whole && !text.failed && (!text.len || el_insertstr(el, text.data) == 0);
    buf_free(&raw);
    buf_free(&text);
    return whole ? CC_REFRESH : CC_REFRESH_BEEP;
}

/* The line editor counts columns of characters, which it learns from the locale. */
static void
choose_locale(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* Keys that are typed while no line is read, during an answer, are kept as they are: the terminal's
 * own editing would erase a part of a paste, marks and all. */
static void
keep_keys(void)
{
    struct termios now;
    if (tcgetattr(STDIN_FILENO, &now) < 0)
        return;
    now.c_lflag &= ~(tcflag_t)ICANON;
    now.c_cc[VMIN] = 1;
    now.c_cc[VTIME] = 0;
    is_set = 1;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &now);
}

static int
open_lines(struct edit *e, const struct cmd *c, struct err *err)
{
    HistEvent event;
    if (!e->capable)
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
    // el_set would leak copies of its words.
    el_wset(e->el, EL_ADDFN, L"nibble-paste", L"insert what is pasted", insert_paste);
    el_set(e->el, EL_BIND, paste_begin, "nibble-paste", NULL);
    e->keys = open_keys();
    keep_keys();
    return 0;
}

static void
close_lines(struct edit *e)
{
    if (e->el)
        el_end(e->el);
    if (e->history)
        history_end(e->history);
    if (e->keys > STDIN_FILENO)
        close(e->keys);
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
    keep_keys();
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
remember(struct edit *e, const char *message)
{
    (void)e;
    (void)message;
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

/* Whether standard error is a terminal that obeys control sequences. */
static bool
is_capable(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

struct edit *
edit_open(const struct cmd *c, const char *history_file, struct err *err)
{
    struct edit *e = cmd_alloc(1, sizeof *e);
    *e = (struct edit){
        .prompt = c->quiet ? "" : "> ",
        .more = c->quiet ? "" : "| ",
        .shown = isatty(STDERR_FILENO),
        .capable = is_capable(),
        .history_fd = -1,
        .keys = -1,
        .reader = { .fd = STDIN_FILENO, .name = "<stdin>", .limit = LINE_BYTES }
    };
    tcgetattr(STDIN_FILENO, &terminal);
    catch_signals(e);
    atexit(leave_terminal); // the end may be that of an error
    if (open_lines(e, c, err) == 0 &&
        (!history_file || open_history(e, history_file, err) == 0)) {
        marks_pastes = e->capable;
        mark_pastes();
        return e;
    }
    edit_close(e);
    return NULL;
}

void
edit_close(struct edit *e)
{
    close_lines(e);
    leave_terminal();
    release_signals(e);
    if (e->history_fd >= 0)
        close(e->history_fd);
    reader_free(&e->reader);
    buf_free(&e->message);
    free(e);
}

static void
after_stop(void *ctx)
{
    (void)ctx;
    redraw = 0;
    mark_pastes();
}

static int
plain_line(struct edit *e, struct slice *line, struct err *err)
{
    const struct reader *r = &e->reader;
    if (e->shown)
        fputs(prompt_of(e), stderr);
    while (r->from == r->have && !wait_for_key()) {
        if (edit_interrupted)
            return -1;
        if (redraw)
            after_stop(NULL);
    }
    return reader_line(&e->reader, line, err);
}

/* The lines of a message; the end of the input ends it, too. */
static int
read_message(struct edit *e, struct err *err)
{
    struct slice line;
    int rc;
    bool more = true;
    e->message.len = 0;
    e->pasting = false;
    edit_interrupted = 0;
    for (size_t lines = 0; more; lines++) {
        rc = edits(e) ? edited_line(e, &line) : plain_line(e, &line, err);
        e->ended = rc == 0;
        if (rc <= 0 && e->shown && err->kind == ERR_NONE)
            fputc('\n', stderr);
        if (rc < 0 || (rc == 0 && lines == 0))
            return rc;
        more = rc > 0 && add_line(e, line);
    }
    return buf_ok(&e->message, err) < 0 ? -1 : 1;
}

/* Without the ends of lines behind the message: they are pasted by accident. */
static struct slice
trimmed(struct buf *b)
{
    while (b->len && b->data[b->len - 1] == '\n')
        b->data[--b->len] = '\0';
    return (struct slice){ b->data ? b->data : "", b->len };
}

int
edit_message(struct edit *e, struct slice *message, struct err *err)
{
    int rc;
    if (e->ended)
        return 0;
    do
        rc = read_message(e, err);
    while (rc < 0 && edit_interrupted && err->kind == ERR_NONE);
    if (rc < 0 && err->kind == ERR_NONE)
        return err_set(err, ERR_IO, "<stdin>: read:");
    if (rc <= 0)
        return rc;
    *message = trimmed(&e->message);
    if (message->n == 0)
        return 1;
    remember(e, message->p);
    return e->history_fd >= 0 && write_history(e, message->p, err) < 0 ? -1 : 1;
}
