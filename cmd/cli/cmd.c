/* SPDX-License-Identifier: MIT */
/* cmd: see cmd.h. */
#include "cmd/cli/cmd.h"

#include "lib/base/os.h"
#include "lib/file/path.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct guard cmd_guard;
static const char *program = "nibble";

static void
on_sigbus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (guard_repair(&cmd_guard, info->si_addr))
        return;
    signal(sig, SIG_DFL); // our own bug
    raise(sig);
}

void
cmd_die_by_signal(int sig)
{
    sigset_t one;
    guard_end(&cmd_guard);
    signal(sig, SIG_DFL);
    sigemptyset(&one);
    sigaddset(&one, sig);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(sig);
    _exit(128 + sig); // never
}

/* Open closed standard descriptors, or a data file would get their number, and messages would
 * go into it. */
static void
hold_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

void
cmd_begin(struct cmd *c)
{
    static const int deadly[] = { SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                                  SIGPIPE, SIGXFSZ, SIGXCPU };
    struct sigaction bus = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };
    struct sigaction end = { .sa_handler = cmd_die_by_signal };
    program = c->name;
    hold_standard_files();
    sigaction(SIGBUS, &bus, NULL);
    sigfillset(&end.sa_mask);
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++) {
        struct sigaction old;
        // Signals that the parent ignores (nohup) stay ignored, but SIGPIPE.
        if (sigaction(deadly[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN &&
            deadly[i] != SIGPIPE)
            continue;
        sigaction(deadly[i], &end, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); // EFBIG from write, with words
}

const char *
cmd_program(void)
{
    return program;
}

const char *
cmd_version(void)
{
    return NIBBLE_VERSION;
}

static const char *
build_commit(void)
{
    return NIBBLE_COMMIT;
}

void
cmd_take_version(const struct cmd_option *o, const char *arg)
{
    const struct cmd *c = o->to.any;
    (void)arg;
    printf("%s (nibble) %s%s\n", c->name, cmd_version(),
           *NIBBLE_COMMIT ? " " NIBBLE_COMMIT : "");
    cmd_close_stdout();
    exit(EXIT_DONE);
}

static unsigned own_rank;
static cmd_end_fn *at_end;

void
cmd_set_rank(unsigned rank)
{
    own_rank = rank;
}

void
cmd_set_end(cmd_end_fn *fn)
{
    at_end = fn;
}

void
cmd_print(const char *words)
{
    struct buf b = { 0 }, line = { 0 };
    buf_printf(&b, "%s: ", program);
    if (own_rank)
        buf_printf(&b, "rank %u: ", own_rank);
    buf_str(&b, words);
    if (!b.failed)
        text_harmless(&line, b.data, b.len); // one line, whatever a name holds
    buf_char(&line, '\n');
    progress_clear();
    if (!line.failed)
        fwrite(line.data, 1, line.len, stderr);
    buf_free(&b);
    buf_free(&line);
}

static void make_words(struct buf *b, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

static void
make_words(struct buf *b, const char *fmt, va_list ap)
{
    int saved = errno;
    buf_vprintf(b, fmt, ap);
    size_t n = strlen(fmt);
    if (n && fmt[n - 1] == ':')
        buf_printf(b, " %s", strerror(saved));
}

static _Noreturn void
end_program(int status, const struct buf *b)
{
    const char *words = b->failed || !b->data ? "out of memory" : b->data;
    if (at_end)
        at_end(&status, words);
    else
        cmd_print(words);
    exit(status);
}

void
die(int status, const char *fmt, ...)
{
    struct buf b = { 0 };
    va_list ap;
    va_start(ap, fmt);
    make_words(&b, fmt, ap);
    va_end(ap);
    end_program(status, &b);
}

void
misuse(const char *fmt, ...)
{
    struct buf b = { 0 };
    va_list ap;
    va_start(ap, fmt);
    make_words(&b, fmt, ap);
    va_end(ap);
    end_program(EXIT_TROUBLE, &b);
}

void
warn(const char *fmt, ...)
{
    struct buf b = { 0 };
    va_list ap;
    if (own_rank)
        return;
    va_start(ap, fmt);
    make_words(&b, fmt, ap);
    va_end(ap);
    if (!b.failed && b.data)
        cmd_print(b.data);
    buf_free(&b);
}

void
warn_lines(const struct buf *lines)
{
    const char *p = lines->data;
    for (const char *end; p && (end = strchr(p, '\n')); p = end + 1)
        warn("%.*s", (int)(end - p), p);
}

bool
cmd_fails_by(int status)
{
    static const int statuses[] = { EXIT_NO, EXIT_TROUBLE, EXIT_MEMORY, EXIT_NONFINITE,
                                    EXIT_PREEMPTED };
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (status == statuses[i])
            return true;
    return false;
}

int
cmd_status(const struct err *err)
{
    switch (err->kind) {
    case ERR_NONE:
        return EXIT_DONE;
    case ERR_MEMORY:
        return EXIT_MEMORY;
    case ERR_NONFINITE:
        return EXIT_NONFINITE;
    default:
        return EXIT_TROUBLE;
    }
}

void
die_err(const struct err *err)
{
    die(cmd_status(err), "%s", err->msg);
}

/* ---- the machine ------------------------------------------------------------- */

/* amx uses the best vector loops. */
static bool
have_amx(void)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[4096];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = strstr(line, "amx_tile") != NULL;
    if (f)
        fclose(f);
    return found;
}

enum isa
cmd_isa(void)
{
    const char *want = getenv("NIBBLE_ISA");
    char q[TEXT_QUOTE];
    if (!want || !*want)
        return isa_best();
    bool amx = strcmp(want, "amx") == 0;
    enum isa isa = amx ? isa_best() : isa_named(want);
    if (isa == ISA_COUNT)
        die(EXIT_TROUBLE, "NIBBLE_ISA=%s: want " ISA_CHOICES,
            text_quote(q, want, strlen(want)));
    if (!isa_have(isa) || (amx && !have_amx()))
        die(EXIT_TROUBLE, "NIBBLE_ISA=%s: this CPU does not have it", want);
    return isa;
}

/* ---- output ----------------------------------------------------------------- */

void
cmd_close_stdout(void)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        die(EXIT_TROUBLE, "standard output:");
    // Closed from the start and not used: no trouble.
    if (fclose(stdout) != 0 && errno != EBADF)
        die(EXIT_TROUBLE, "standard output:");
}

void
cmd_refuse_terminal(void)
{
    if (isatty(STDOUT_FILENO))
        misuse("binary data is not written to a terminal; redirect standard output");
}

/* Whether standard output is a terminal that shows colours, and NO_COLOR does not forbid them. */
static bool
shows_colours(void)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

static int
put_harmless(struct buf *b, struct err *err)
{
    if (b->failed)
        return err_set(err, ERR_MEMORY, "out of memory for the output");
    if (b->len && fwrite(b->data, 1, b->len, stdout) != b->len)
        return err_set(err, ERR_IO, "standard output:");
    b->len = 0;
    return 0;
}

/* Text, screened on a terminal. */
static int
put_text(struct buf *b, bool json, struct err *err)
{
    struct buf shown = { 0 };
    bool screen = b->len && isatty(STDOUT_FILENO);
    if (screen)
        text_screen(&shown, b->data, b->len, json);
    shown.failed |= b->failed;
    int rc = put_harmless(screen ? &shown : b, err);
    buf_free(&shown);
    b->len = 0;
    return rc;
}

void
cmd_flush(struct buf *b)
{
    struct err err = { 0 };
    if (put_text(b, false, &err) < 0)
        die_err(&err);
}

void *
cmd_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p)
        die(EXIT_MEMORY, "out of memory");
    return p;
}

void
cmd_refuse_without_output(int n_operands, char **operand)
{
    const char *last = n_operands > 1 ? operand[n_operands - 1] : NULL;
    char q[TEXT_QUOTE];
    if (last && access(last, F_OK) < 0)
        misuse("no output: expected -o %s?", text_quote(q, last, strlen(last)));
    misuse("no output: expected -o OUT, as in %s -o OUT %s", program,
           n_operands ? text_quote(q, operand[0], strlen(operand[0])) : "FILE");
}

void
cmd_refuse_without(const char *operand, const struct cmd *c)
{
    misuse("no %s: expected %s", operand, c->synopsis);
}

char *
cmd_copy(const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        die(EXIT_MEMORY, "out of memory");
    return copy;
}

/* Where large temporary data may go. */
static const char *
temporary_directory(void)
{
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/var/tmp";
}

/* ---- progress --------------------------------------------------------------- */

static atomic_bool line_shown; // a progress line is on the terminal

void
progress_shown(void)
{
    atomic_store(&line_shown, true);
}

void
progress_clear(void)
{
    if (atomic_exchange(&line_shown, false))
        fputs("\r\033[K", stderr);
}

/* A progress line on stderr, if that is a terminal: rate, percent, time left. */
struct progress {
    const char *what;
    uint64_t total, done;
    double started, shown;
    bool active;
};

static void
progress_begin(struct progress *p, const struct cmd *c, const char *what,
               uint64_t total)
{
    *p = (struct progress){ .what = what, .total = total };
    p->active = !c->quiet && total > 0 && isatty(STDERR_FILENO);
    p->started = p->shown = os_seconds();
}

static void
progress_add(struct progress *p, uint64_t bytes)
{
    p->done += bytes;
    if (!p->active)
        return;
    double t = os_seconds();
    if (t - p->shown < 0.2)
        return;
    p->shown = t;
    double rate = (double)p->done / (t - p->started);
    double left = (double)(p->total - p->done) / rate;
    fprintf(stderr, "\r%s: %s %3.0f %%, %.2f GB/s, %.0f s left \033[K", program,
            p->what, 100.0 * (double)p->done / (double)p->total, rate / 1e9,
            ceil(left));
    progress_shown();
}

static void
progress_end(struct progress *p)
{
    if (p->active)
        progress_clear();
    p->active = false;
}

static void
warn_line(void *ctx, const char *line)
{
    (void)ctx;
    warn("%s", line);
}

static const struct cmd loud; // with -q this is not called

static void
show_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct progress *p = ctx;
    if (done == 0)
        progress_begin(p, &loud, what, total);
    progress_add(p, done - p->done);
    if (done == total)
        progress_end(p);
}

static void
show_status(void *ctx, const char *line)
{
    (void)ctx;
    if (!line) {
        progress_clear();
        return;
    }
    fprintf(stderr, "\r%s: %s\033[K", program, line);
    progress_shown();
}

static int
print_text(void *ctx, struct buf *text, enum host_text kind, struct err *err)
{
    enum host_text how = (enum host_text)((unsigned)kind & ~(unsigned)HOST_LATER);
    (void)ctx;
    int rc = how == HOST_TEXT || how == HOST_JSON
                 ? put_text(text, how == HOST_JSON, err)
                 : put_harmless(text, err);
    if (rc < 0 || kind & HOST_LATER)
        return rc;
    return fflush(stdout) == 0 ? 0 : err_set(err, ERR_IO, "standard output:");
}

/* A line of status would come between the words of an answer on a terminal. */
static bool
shows_status(const struct cmd *c)
{
    return !c->quiet && isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO);
}

const struct host *
cmd_host(const struct cmd *c)
{
    return cmd_host_of(c, cmd_isa());
}

const struct host *
cmd_host_of(const struct cmd *c, enum isa isa)
{
    static struct host host;
    static struct progress shown;
    host = (struct host){ .program = c->name,
                          .version = cmd_version(),
                          .commit = build_commit(),
                          .tmpdir = temporary_directory(),
                          .guard = &cmd_guard,
                          .isa = isa,
                          .verbose = c->verbose,
                          .quiet = c->quiet,
                          .terminal = isatty(STDOUT_FILENO),
                          .colours = shows_colours(),
                          .warn = warn_line,
                          .progress = c->quiet ? NULL : show_progress,
                          .status = shows_status(c) ? show_status : NULL,
                          .print = print_text,
                          .ctx = &shown };
    return &host;
}
