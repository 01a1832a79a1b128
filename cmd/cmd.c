/* SPDX-License-Identifier: MIT */
/* cmd: see cmd.h. */
#include "cmd/cmd.h"

#include "lib/core/machine.h"
#include "lib/core/num.h"
#include "lib/core/os.h"
#include "lib/core/path.h"
#include "lib/core/par.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_OPTIONS = 64 };

struct guard cmd_guard;
static const char *program = "nibble";

static void
on_sigbus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (guard_repair(&cmd_guard, info->si_addr))
        return;
    signal(sig, SIG_DFL); // a fault of our own: let it be seen
    raise(sig);
}

void
cmd_end_by(int sig)
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

/* A standard descriptor that is closed would become that of a data file, and a message
 * would go into it.  Take its number by something that cannot be used. */
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
    struct sigaction end = { .sa_handler = cmd_end_by };
    program = c->name;
    hold_standard_files();
    sigaction(SIGBUS, &bus, NULL);
    sigfillset(&end.sa_mask);
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++) {
        struct sigaction old;
        // What the parent ignores (nohup) stays ignored; a pipe that closes does not.
        if (sigaction(deadly[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN &&
            deadly[i] != SIGPIPE)
            continue;
        sigaction(deadly[i], &end, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); // EFBIG from write, with words
}

const char *
cmd_version(void)
{
    return NIBBLE_VERSION;
}

static void say(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

static void
say(const char *fmt, va_list ap)
{
    struct buf b = { 0 }, line = { 0 };
    int saved = errno;
    buf_printf(&b, "%s: ", program);
    buf_vprintf(&b, fmt, ap);
    size_t n = strlen(fmt);
    if (n && fmt[n - 1] == ':')
        buf_printf(&b, " %s", strerror(saved));
    if (!b.failed)
        text_harmless(&line, b.data, b.len); // one line, whatever a name holds
    buf_char(&line, '\n');
    progress_clear();
    if (!line.failed)
        fwrite(line.data, 1, line.len, stderr);
    buf_free(&b);
    buf_free(&line);
}

void
die(int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
    exit(status);
}

void
misuse(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
    exit(EXIT_TROUBLE);
}

void
warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

void
warn_lines(const struct buf *lines)
{
    const char *p = lines->data;
    for (const char *end; p && (end = strchr(p, '\n')); p = end + 1)
        warn("%.*s", (int)(end - p), p);
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

/* ---- options ---------------------------------------------------------------- */

static void
help(const struct cmd *c)
{
    printf("usage: %s\n\n%s\n\n", c->synopsis, c->about);
    for (size_t i = 0; i < c->n_options; i++) {
        const struct cmd_option *o = &c->options[i];
        char left[80];
        int n = o->letter < 256 ? snprintf(left, sizeof left, "  -%c, ", o->letter)
                                : snprintf(left, sizeof left, "      ");
        const char *arg = o->arg ? o->arg : "";
        snprintf(left + n, sizeof left - (size_t)n, "--%s%s%s", o->name,
                 o->arg && *o->arg != '[' ? " " : "", arg);
        if (strlen(left) > 30)
            printf("%s\n%*s%s\n", left, 32, "", o->help);
        else
            printf("%-32s%s\n", left, o->help);
    }
    cmd_close_stdout();
    exit(EXIT_DONE);
}

/* How many letters must be put in, left out, changed or swapped with their neighbour to
 * make b of the n letters of a; SIZE_MAX if either is too long for an option. */
static size_t
distance(const char *a, size_t n, const char *b)
{
    enum { MAX_LETTERS = 32 };
    size_t row[3][MAX_LETTERS + 1]; // of a's prefixes: two before, one before, this
    size_t m = strlen(b);
    if (n > MAX_LETTERS || m > MAX_LETTERS)
        return SIZE_MAX;
    for (size_t k = 0; k <= m; k++)
        row[0][k] = k;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *last = row[(i + 2) % 3], *older = row[(i + 1) % 3];
        now[0] = i;
        for (size_t k = 1; k <= m; k++) {
            size_t d = last[k - 1] + (a[i - 1] != b[k - 1]);
            d = last[k] + 1 < d ? last[k] + 1 : d;
            d = now[k - 1] + 1 < d ? now[k - 1] + 1 : d;
            bool swapped =
                i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
            now[k] = swapped && older[k - 2] + 1 < d ? older[k - 2] + 1 : d;
        }
    }
    return row[n % 3][m];
}

/* A long option that is none, or the beginning of several: which was meant? */
static _Noreturn void
unknown_option(const struct cmd *c, const char *word)
{
    const char *name = word + 2, *nearest = NULL;
    // A third of the letters may be wrong, one always.
    size_t n = strcspn(name, "="), best = (n < 6 ? 1 : n / 3) + 1, begun = 0;
    struct buf list = { 0 };
    char q[TEXT_QUOTE];
    text_quote(q, word, strlen(word));
    for (size_t i = 0; i < c->n_options; i++) {
        const char *o = c->options[i].name;
        size_t d = distance(name, n, o);
        if (strncmp(o, name, n) == 0)
            buf_printf(&list, "%s--%s", begun++ ? ", " : "", o);
        if (d < best && d < n) {
            best = d;
            nearest = o;
        }
    }
    if (begun > 1 && n && !list.failed)
        misuse("%s: is the beginning of %s: expected one of them", q, list.data);
    if (nearest)
        misuse("%s: unknown option: expected --%s? --help lists all", q, nearest);
    misuse("%s: unknown option; --help lists them", q);
}

/* What getopt_long stumbled over, as a name for the message. */
static _Noreturn void
bad_option(const struct cmd *c, int what, char **argv)
{
    const char *word = argv[optind - 1];
    char q[TEXT_QUOTE];
    if (what == ':')
        misuse("%s: needs an argument; --help tells which", word);
    if (optopt >= 256) // a long option that takes no argument was given one
        misuse("%s: takes no argument", text_quote(q, word, strlen(word)));
    if (optopt && strncmp(word, "--", 2) != 0)
        misuse("-%c: unknown option; --help lists them", optopt);
    for (size_t i = 0; i < c->n_options; i++)
        if (optopt && optopt == c->options[i].letter)
            misuse("%s: takes no argument", text_quote(q, word, strlen(word)));
    unknown_option(c, word);
}

int
cmd_option(struct cmd *c, int argc, char **argv, const char **arg, int *first)
{
    struct option longs[MAX_OPTIONS + 1] = { { 0 } };
    char shorts[3 * MAX_OPTIONS + 3];
    size_t n = 0;
    if (c->operands_end)
        shorts[n++] = '+';
    shorts[n++] = ':';
    for (size_t i = 0; i < c->n_options && i < MAX_OPTIONS; i++) {
        const struct cmd_option *o = &c->options[i];
        int kind = !o->arg          ? no_argument
                   : *o->arg == '[' ? optional_argument
                                    : required_argument;
        longs[i] = (struct option){ o->name, kind, NULL, o->letter };
        if (o->letter >= 256)
            continue;
        shorts[n++] = (char)o->letter;
        if (kind == required_argument)
            shorts[n++] = ':';
    }
    shorts[n] = '\0';
    opterr = 0;
    for (;;) {
        int got = getopt_long(argc, argv, shorts, longs, NULL);
        *arg = optarg;
        switch (got) {
        case -1:
            *first = optind;
            return -1;
        case '?':
        case ':':
            bad_option(c, got, argv);
        case 'h':
            help(c);
            break;
        case 'V':
            printf("%s (nibble) %s%s\n", c->name, cmd_version(),
                   *NIBBLE_COMMIT ? " " NIBBLE_COMMIT : "");
            cmd_close_stdout();
            exit(EXIT_DONE);
        case 'q':
            c->quiet = true;
            break;
        case 'v':
            c->verbose = true;
            break;
        default:
            return got;
        }
    }
}

uint64_t
cmd_u64(const char *option, const char *arg, uint64_t low, uint64_t high)
{
    uint64_t v;
    char q[TEXT_QUOTE];
    if (!num_u64(&v, arg) || v < low || v > high)
        misuse("--%s: %s: want %llu..%llu", option, text_quote(q, arg, strlen(arg)),
               (unsigned long long)low, (unsigned long long)high);
    return v;
}

unsigned
cmd_threads(const char *arg)
{
    // Each worker has megabytes of its own; beyond this number none goes faster.
    enum { MOST = 32 };
    uint64_t n = arg ? cmd_u64("threads", arg, 1, 1024) : par_cpus();
    return n < MOST ? (unsigned)n : MOST;
}

/* amx has no loops of its own here and takes those below it. */
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
        die(EXIT_TROUBLE, "NIBBLE_ISA=%s: want scalar, avx2, avx512 or amx",
            text_quote(q, want, strlen(want)));
    if (!isa_have(isa) || (amx && !have_amx()))
        die(EXIT_TROUBLE, "NIBBLE_ISA=%s: this CPU does not have it", want);
    return isa;
}

double
cmd_number(const char *option, const char *arg, double low)
{
    double v;
    char q[TEXT_QUOTE];
    if (!num_double(&v, arg) || v < low)
        misuse("--%s: %s: want a number of at least %g", option,
               text_quote(q, arg, strlen(arg)), low);
    return v;
}

uint64_t
cmd_bytes(const char *option, const char *arg, uint64_t low)
{
    uint64_t v;
    char q[TEXT_QUOTE];
    if (!num_bytes(&v, arg) || v < low || v > INT64_MAX)
        misuse("--%s: %s: want a number of bytes of at least %llu; K, M and G may "
               "follow it",
               option, text_quote(q, arg, strlen(arg)), (unsigned long long)low);
    return v;
}

int
cmd_word(const char *option, const char *arg, const char *const *words)
{
    struct buf list = { 0 };
    char q[TEXT_QUOTE];
    for (int i = 0; words[i]; i++) {
        if (strcmp(arg, words[i]) == 0) {
            buf_free(&list);
            return i;
        }
        buf_printf(&list, "%s%s", i ? ", " : "", words[i]);
    }
    misuse("--%s: %s: want one of %s", option, text_quote(q, arg, strlen(arg)),
           list.data ? list.data : "");
}

const char *
cmd_word_of(const char *option, const char *arg, const char *(*word)(size_t i))
{
    enum { MOST = 63 };
    const char *words[MOST + 1] = { NULL };
    for (size_t n = 0; n < MOST && word(n); n++)
        words[n] = word(n);
    return words[cmd_word(option, arg, words)];
}

void
cmd_help_words(struct cmd_option *options, size_t n, int letter,
               const char *(*word)(size_t i))
{
    struct buf b = { 0 };
    struct cmd_option *o = options;
    while (o < options + n - 1 && o->letter != letter)
        o++;
    for (size_t i = 0; word(i); i++)
        buf_printf(&b, "%s%s", i == 0 ? "" : word(i + 1) ? ", " : " or ", word(i));
    buf_printf(&b, "%s%s", *o->help ? " " : "", o->help);
    if (b.failed)
        die(EXIT_MEMORY, "out of memory for the help");
    o->help = b.data; // for the life of the program
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

static void
flush_text(struct buf *b, bool json)
{
    struct buf shown = { 0 };
    const struct buf *out = b;
    if (b->len && isatty(STDOUT_FILENO)) {
        text_screen(&shown, b->data, b->len, json);
        out = &shown;
    }
    if (b->failed || shown.failed)
        die(EXIT_MEMORY, "out of memory for the output");
    if (out->len && fwrite(out->data, 1, out->len, stdout) != out->len)
        die(EXIT_TROUBLE, "standard output:");
    buf_free(&shown);
    b->len = 0;
}

void
cmd_flush(struct buf *b)
{
    flush_text(b, false);
}

void
cmd_flush_json(struct buf *b)
{
    flush_text(b, true);
}

void *
cmd_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p)
        die(EXIT_MEMORY, "out of memory");
    return p;
}

uint64_t
cmd_available(void)
{
    int64_t bytes = machine_available("");
    return bytes < 0 ? UINT64_MAX : (uint64_t)bytes;
}

bool
cmd_same_file(const char *a, const char *b)
{
    struct stat x, y;
    if (!a || !b)
        return false;
    if (stat(a, &x) != 0 || stat(b, &y) != 0)
        return strcmp(a, b) == 0;
    return x.st_ino == y.st_ino && x.st_dev == y.st_dev && !S_ISCHR(x.st_mode);
}

void
cmd_check_outputs(const char *const *outputs, size_t n, const char *const *inputs,
                  size_t n_inputs)
{
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < n; i++) {
        if (outputs[i] && path_is_reserved(outputs[i]))
            misuse("%s: %s", text_quote(q, outputs[i], strlen(outputs[i])),
                   path_reserved);
        for (size_t k = 0; k < n_inputs; k++)
            if (cmd_same_file(outputs[i], inputs[k]))
                misuse("%s: is an input, too",
                       text_quote(q, outputs[i], strlen(outputs[i])));
        for (size_t k = 0; k < i; k++)
            if (cmd_same_file(outputs[i], outputs[k]))
                misuse("%s: is another output, too",
                       text_quote(q, outputs[i], strlen(outputs[i])));
    }
}

char *
cmd_copy(const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        die(EXIT_MEMORY, "out of memory");
    return copy;
}

const char *
cmd_tmpdir(void)
{
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/var/tmp";
}

/* ---- progress --------------------------------------------------------------- */

static atomic_bool stands; // a line of progress, on the terminal

void
progress_stands(void)
{
    atomic_store(&stands, true);
}

void
progress_clear(void)
{
    if (atomic_exchange(&stands, false))
        fputs("\r\033[K", stderr);
}

void
progress_begin(struct progress *p, const struct cmd *c, const char *what,
               uint64_t total)
{
    *p = (struct progress){ .what = what, .total = total };
    p->active = !c->quiet && total > 0 && isatty(STDERR_FILENO);
    p->started = p->shown = os_seconds();
}

void
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
    progress_stands();
}

void
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

static const struct cmd loud; // who is quiet does not get here

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

const struct io *
cmd_io(const struct cmd *c)
{
    static struct io io;
    static struct progress shown;
    io = (struct io){ .program = c->name,
                      .version = cmd_version(),
                      .tmpdir = cmd_tmpdir(),
                      .guard = &cmd_guard,
                      .isa = cmd_isa(),
                      .verbose = c->verbose && !c->quiet,
                      .warn = c->quiet ? NULL : warn_line,
                      .progress = c->quiet ? NULL : show_progress,
                      .ctx = &shown };
    return &io;
}
