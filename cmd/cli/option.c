/* SPDX-License-Identifier: MIT */
/* option: see option.h. */
#include "cmd/cli/option.h"

#include "cmd/cli/cmd.h"
#include "cmd/cli/elsewhere.h"
#include "cmd/cli/unknown.h"
#include "lib/file/path.h"
#include "lib/load/select.h"

#include <assert.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- values ----------------------------------------------------------------------- */

/* Whether arg is that word; "seed" is an older name of torchsharp. */
static bool
is_word(const char *arg, const char *word)
{
    return strcmp(arg, word) == 0 ||
           (strcmp(arg, "seed") == 0 && strcmp(word, "torchsharp") == 0);
}

void
cmd_refuse_word(const char *option, const char *arg, const char *want)
{
    struct buf here = { 0 };
    char q[TEXT_QUOTE];
    text_quote(q, arg, strlen(arg));
    if (elsewhere_value(&here, cmd_program(), option, arg))
        misuse("--%s: %s: %s; want %s", option, q, here.data, want);
    misuse("--%s: %s: want %s", option, q, want);
}

unsigned
cmd_word(const char *option, const char *arg, const char *const *words)
{
    struct buf list = { 0 };
    buf_str(&list, "one of ");
    for (unsigned i = 0; words[i]; i++) {
        if (is_word(arg, words[i])) {
            buf_free(&list);
            return i;
        }
        buf_printf(&list, "%s%s", i ? ", " : "", words[i]);
    }
    cmd_refuse_word(option, arg, list.failed ? "another word" : list.data);
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
        longs[i] = (struct option){ o->name, argument_kind(o), NULL, CMD_ROW + (int)i };
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
    if (got >= CMD_ROW)
        return (size_t)(got - CMD_ROW);
    while (c->options[i].letter != got)
        i++;
    return i;
}

bool
cmd_one_file(const char *a, const char *b)
{
    if (strcmp(a, b) == 0 || path_same_file(a, b))
        return true;
    char *x = path_target(a), *y = path_target(b);
    char *p = x ? strrchr(x, '/') : NULL, *q = y ? strrchr(y, '/') : NULL;
    bool same = x && y && strcmp(p ? p + 1 : x, q ? q + 1 : y) == 0;
    if (p)
        p[1] = '\0';
    if (q)
        q[1] = '\0';
    same = same && path_same_file(p ? x : ".", q ? y : ".");
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

/* A page's typography makes one dash of two hyphens. */
static void
check_dash(const char *word)
{
    static const char *const dashes[] = { "\xe2\x80\x93", "\xe2\x80\x94",
                                          "\xe2\x88\x92" };
    for (size_t i = 0; i < sizeof dashes / sizeof *dashes; i++) {
        const char *rest = word;
        while (strncmp(rest, dashes[i], 3) == 0)
            rest += 3;
        if (rest > word && *rest && access(word, F_OK) < 0)
            misuse("%s: begins with a dash that is no hyphen: expected %s%s?", word,
                   rest[1] ? "--" : "-", rest);
    }
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
            unknown_option(c, got, argv);
        size_t i = row_of(c, got);
        unknown_check(c, got, argv);
        note_argument(&replaced[i], &c->options[i], optarg);
        c->given[i] = true;
        take(&c->options[i], optarg);
    }
    for (size_t i = 0; i < n && c->verbose && !c->quiet; i++)
        report_replaced(&replaced[i], &options[i]);
    for (int i = optind; i < argc; i++)
        check_dash(argv[i]);
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
