/* SPDX-License-Identifier: MIT */
/* option: see option.h. */
#include "cmd/option.h"

#include "cmd/cmd.h"
#include "cmd/nearest.h"
#include "lib/core/path.h"
#include "lib/io/select.h"

#include <assert.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

/* What getopt_long returns for row i of a table: no letter. */
enum { ROW = 256 };

/* ---- help ------------------------------------------------------------------------- */

static void
put_words(const char *(*word)(size_t i))
{
    for (size_t i = 0; word(i); i++)
        printf("%s%s", i == 0 ? "" : word(i + 1) ? ", " : " or ", word(i));
}

/* The help of a row, behind its spelling. */
static void
put_help(const struct cmd_option *o)
{
    const char *words = strstr(o->help, "%s");
    if (words) {
        printf("%.*s", (int)(words - o->help), o->help);
        put_words(o->word);
    }
    puts(words ? words + 2 : o->help);
}

void
cmd_take_help(const struct cmd_option *o, const char *arg)
{
    const struct cmd *c = o->to.any;
    (void)arg;
    printf("usage: %s\n\n%s\n\n", c->synopsis, c->about);
    for (size_t i = 0; i < c->n_options; i++) {
        char left[80];
        o = &c->options[i];
        int n = o->letter ? snprintf(left, sizeof left, "  -%c, ", o->letter)
                          : snprintf(left, sizeof left, "      ");
        snprintf(left + n, sizeof left - (size_t)n, "--%s%s%s", o->name,
                 o->arg && *o->arg != '[' ? " " : "", o->arg ? o->arg : "");
        if (strlen(left) > 30)
            printf("%s\n%*s", left, 32, "");
        else
            printf("%-32s", left);
        put_help(o);
    }
    cmd_close_stdout();
    exit(EXIT_DONE);
}

/* Whether the n letters of name, with spaces for hyphens, are words of a help text. */
static bool
help_has(const char *help, const char *name, size_t n)
{
    for (const char *at = help; *at; at++) {
        size_t i = 0;
        bool begins = at == help || at[-1] == ' ';
        while (begins && i < n && at[i] == (strchr("-_", name[i]) ? ' ' : name[i]))
            i++;
        if (begins && i == n && (at[n] == '\0' || strchr(" ,;:", at[n])))
            return true;
    }
    return false;
}

static bool
is_one_of(const char *word, size_t n, const char *const *list)
{
    for (; *list; list++)
        if (strlen(*list) == n && memcmp(word, *list, n) == 0)
            return true;
    return false;
}

/* Whether the n letters of name are an option with an ending, or with words before it that
 * do not change what it means. */
static bool
holds_option(const char *name, size_t n, const char *option)
{
    enum { FEWEST = 4 };
    static const char *const before[] = { "num-",   "max-",       "total-",
                                          "train-", "num-train-", NULL },
                             *const behind[] = { "-size",   "-steps", "-path", "-file",
                                                 "-dir",    "-name",  "-mode", "-type",
                                                 "-output", NULL };
    size_t m = strlen(option);
    if (m < FEWEST || m >= n)
        return false;
    if (memcmp(name, option, m) == 0)
        return !memchr(name + m, '-', n - m) || is_one_of(name + m, n - m, behind);
    return memcmp(name + n - m, option, m) == 0 && is_one_of(name, n - m, before);
}

/* Another program's word for an option: one that is longer than ours (--batch-size,
 * --num-epochs), or that our help has (--learning-rate). */
static const char *
other_word(const struct cmd *c, const char *name, size_t n)
{
    enum { FEWEST = 4 };
    const char *longest = NULL, *described = NULL;
    for (size_t i = 0; i < c->n_options; i++) {
        const struct cmd_option *o = &c->options[i];
        if (holds_option(name, n, o->name) &&
            (!longest || strlen(o->name) > strlen(longest)))
            longest = o->name;
        if (n >= FEWEST && !described && help_has(o->help, name, n))
            described = o->name;
    }
    return longest ? longest : described;
}

/* A long option that is unknown, or the beginning of several: suggest one. */
static _Noreturn void
unknown_option(const struct cmd *c, const char *word)
{
    const char *name = word + 2;
    size_t n = strcspn(name, "="), begun = 0;
    struct nearest near = nearest_to(name, n);
    struct buf list = { 0 };
    char q[TEXT_QUOTE];
    text_quote(q, word, strlen(word));
    for (size_t i = 0; i < c->n_options; i++) {
        const char *o = c->options[i].name;
        if (strncmp(o, name, n) == 0)
            buf_printf(&list, "%s--%s", begun++ ? ", " : "", o);
        nearest_try(&near, o);
    }
    if (begun > 1 && n && !list.failed)
        misuse("%s: is the beginning of %s: expected one of them", q, list.data);
    const char *meant = near.word ? near.word : other_word(c, name, n);
    if (meant)
        misuse("%s: unknown option: expected --%s? --help lists all", q, meant);
    misuse("%s: unknown option; --help lists them", q);
}

/* What getopt_long refused, as a name for the message. */
static _Noreturn void
bad_option(const struct cmd *c, int what, char **argv)
{
    const char *word = argv[optind - 1];
    char q[TEXT_QUOTE];
    if (what == ':')
        misuse("%s: needs an argument; --help tells which", word);
    if (optopt >= ROW) // a long option that takes no argument was given one
        misuse("%s: takes no argument", text_quote(q, word, strlen(word)));
    if (optopt)
        misuse("-%c: unknown option; --help lists them", optopt);
    unknown_option(c, word);
}

/* ---- values ----------------------------------------------------------------------- */

/* Whether arg is that word; "seed" is an older name of torchsharp. */
static bool
is_word(const char *arg, const char *word)
{
    return strcmp(arg, word) == 0 ||
           (strcmp(arg, "seed") == 0 && strcmp(word, "torchsharp") == 0);
}

unsigned
cmd_word(const char *option, const char *arg, const char *const *words)
{
    struct buf list = { 0 };
    char q[TEXT_QUOTE];
    for (unsigned i = 0; words[i]; i++) {
        if (is_word(arg, words[i])) {
            buf_free(&list);
            return i;
        }
        buf_printf(&list, "%s%s", i ? ", " : "", words[i]);
    }
    misuse("--%s: %s: want one of %s", option, text_quote(q, arg, strlen(arg)),
           list.data ? list.data : "");
}

static const char *
take_word(const struct cmd_option *o, const char *arg)
{
    enum { MAX_WORDS = 63 };
    const char *words[MAX_WORDS + 1] = { NULL };
    if (o->words)
        return o->words[cmd_word(o->name, arg, o->words)];
    for (size_t n = 0; n < MAX_WORDS && o->word(n); n++)
        words[n] = o->word(n);
    return words[cmd_word(o->name, arg, words)];
}

void
cmd_take_threads(const struct cmd_option *o, const char *arg)
{
    *(unsigned *)o->to.any = cmd_threads(arg);
}

void
cmd_take_glob(const struct cmd_option *o, const char *arg)
{
    if (!select_add(o->to.any, o->low != 0, arg))
        misuse("more than %d globs", MAX_GLOBS);
}

void
cmd_take_compat(const struct cmd_option *o, const char *arg)
{
    static const char *const words[] = { "torchsharp", NULL };
    cmd_word(o->name, arg, words);
    *(bool *)o->to.any = true;
}

static void
take(const struct cmd_option *o, const char *arg)
{
    switch (o->type) {
    case CMD_IS_FLAG:
        *o->to.flag = true;
        break;
    case CMD_IS_SET:
        *o->to.choice = (unsigned)o->low;
        break;
    case CMD_IS_TEXT:
        *o->to.text = o->words || o->word ? take_word(o, arg) : arg;
        break;
    case CMD_IS_CHOICE:
        *o->to.choice = (unsigned)o->low + cmd_word(o->name, arg, o->words);
        break;
    case CMD_IS_U32:
        *o->to.u32 =
            (uint32_t)cmd_u64(o->name, arg, (uint64_t)o->low, (uint64_t)o->high);
        break;
    case CMD_IS_U64:
        *o->to.u64 = cmd_u64(o->name, arg, (uint64_t)o->low, (uint64_t)o->high);
        break;
    case CMD_IS_NUMBER:
        *o->to.number = cmd_number(o->name, arg, o->low);
        break;
    case CMD_IS_CALL:
        o->call(o, arg);
        break;
    }
}

/* ---- the command line ------------------------------------------------------------- */

static int
argument_kind(const struct cmd_option *o)
{
    if (!o->arg)
        return no_argument;
    return *o->arg == '[' ? optional_argument : required_argument;
}

/* What getopt_long wants of a table. */
static void
spell(const struct cmd *c, struct option *longs, char *shorts)
{
    assert(c->n_options <= CMD_MAX_OPTIONS);
    if (c->operands_end)
        *shorts++ = '+';
    *shorts++ = ':';
    for (size_t i = 0; i < c->n_options; i++) {
        const struct cmd_option *o = &c->options[i];
        longs[i] = (struct option){ o->name, argument_kind(o), NULL, ROW + (int)i };
        if (o->letter)
            *shorts++ = o->letter;
        if (o->letter && longs[i].has_arg == required_argument)
            *shorts++ = ':';
    }
    *shorts = '\0';
}

static size_t
row_of(const struct cmd *c, int got)
{
    size_t i = 0;
    if (got >= ROW)
        return (size_t)(got - ROW);
    while (c->options[i].letter != got)
        i++;
    return i;
}

/* The word that getopt_long took for row i may be the name of what another program has. */
static void
check_other(const struct cmd_option *o, char **argv)
{
    const char *word = argv[optind - 1],
               *colon = o->other ? strchr(o->other, ':') : NULL;
    if (optarg == word)
        word = argv[optind - 2];
    size_t n = colon ? (size_t)(colon - o->other) : 0;
    if (n && strncmp(word, "--", 2) == 0 && strncmp(word + 2, o->other, n) == 0 &&
        strcspn(word + 2, "=") == n)
        misuse("--%s", o->other);
}

bool
cmd_one_file(const char *a, const char *b)
{
    if (strcmp(a, b) == 0 || cmd_same_file(a, b))
        return true;
    char *x = path_target(a), *y = path_target(b);
    char *p = x ? strrchr(x, '/') : NULL, *q = y ? strrchr(y, '/') : NULL;
    bool same = x && y && strcmp(p ? p + 1 : x, q ? q + 1 : y) == 0;
    if (p)
        p[1] = '\0';
    if (q)
        q[1] = '\0';
    same = same && cmd_same_file(p ? x : ".", q ? y : ".");
    free(x);
    free(y);
    return same;
}

/* The arguments of an option that was given again. */
struct replaced {
    const char *before, *last;
};

static void
note_argument(struct replaced *r, const struct cmd_option *o, const char *arg)
{
    char q[TEXT_QUOTE], p[TEXT_QUOTE];
    if (!arg || o->repeatable)
        return;
    if (o->file && r->last && !cmd_one_file(r->last, arg))
        misuse("--%s: given as %s and as %s: want one %s", o->name,
               text_quote(q, r->last, strlen(r->last)), text_quote(p, arg, strlen(arg)),
               o->arg);
    if (r->last && strcmp(r->last, arg) != 0)
        r->before = r->last;
    r->last = arg;
}

static void
report_replaced(const struct replaced *r, const struct cmd_option *o)
{
    char q[TEXT_QUOTE], p[TEXT_QUOTE];
    if (r->before && !o->file)
        warn("--%s: %s has no effect: it is given again as %s", o->name,
             text_quote(q, r->before, strlen(r->before)),
             text_quote(p, r->last, strlen(r->last)));
}

int
cmd_parse(struct cmd *c, const struct cmd_option *options, size_t n, int argc,
          char **argv)
{
    struct option longs[CMD_MAX_OPTIONS + 1] = { { 0 } };
    struct replaced replaced[CMD_MAX_OPTIONS] = { { 0 } };
    char shorts[2 * CMD_MAX_OPTIONS + 3];
    c->options = options;
    c->n_options = n;
    spell(c, longs, shorts);
    opterr = 0;
    for (int got; (got = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (got == '?' || got == ':')
            bad_option(c, got, argv);
        size_t i = row_of(c, got);
        check_other(&c->options[i], argv);
        note_argument(&replaced[i], &c->options[i], optarg);
        c->given[i] = true;
        take(&c->options[i], optarg);
    }
    for (size_t i = 0; i < n && c->verbose && !c->quiet; i++)
        report_replaced(&replaced[i], &options[i]);
    return optind;
}

bool
cmd_given(const struct cmd *c, const char *name)
{
    size_t i = 0;
    while (strcmp(c->options[i].name, name) != 0) {
        i++;
        assert(i < c->n_options);
    }
    return c->given[i];
}
