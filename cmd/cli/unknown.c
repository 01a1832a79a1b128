/* SPDX-License-Identifier: MIT */
/* unknown: see unknown.h. */
#include "cmd/cli/unknown.h"

#include "cmd/cli/cmd.h"
#include "cmd/cli/elsewhere.h"
#include "lib/base/nearest.h"

#include <getopt.h>
#include <string.h>

enum { MAX_NAME = 64 };

/* The option of another program is misuse; the message names ours. */
static void
check_elsewhere(const struct cmd *c, const char *word)
{
    struct buf here = { 0 };
    size_t n = strcspn(word, "=");
    if (elsewhere_option(&here, c, word, n))
        misuse("%.*s: %s", (int)n, word, here.data);
    buf_free(&here);
}

/* The word with a letter that has no argument: that before, or in the middle of it the next. */
static const char *
word_of_letter(char **argv, int letter)
{
    const char *word = argv[optind - 1];
    bool last = word[0] == '-' && word[1] != '-' && word[strlen(word) - 1] == letter;
    return last || !argv[optind] ? word : argv[optind];
}

void
unknown_check(const struct cmd *c, int got, char **argv)
{
    const char *word = argv[optind - 1];
    if (optarg == word)
        word = argv[optind - 2];
    else if (!optarg && got < CMD_ROW)
        word = word_of_letter(argv, got);
    if (word[0] == '-' && word[1])
        check_elsewhere(c, word);
}

/* ---- guesses ---------------------------------------------------------------------- */

/* The next of the words of name, which hyphens part; false at its end. */
static bool
next_word(const char *name, size_t *at, struct slice *word)
{
    *at += name[*at] == '-';
    *word = (struct slice){ name + *at, strcspn(name + *at, "-") };
    *at += word->n;
    return word->n > 0;
}

static bool
has_word(const char *name, struct slice word)
{
    struct slice w;
    for (size_t at = 0; next_word(name, &at, &w);)
        if (slice_eq(w, word))
            return true;
    return false;
}

/* A word that does not change what the others mean. */
static bool
is_filler(struct slice word)
{
    static const char *const fillers[] = { "num",  "max",   "total", "train", "size",
                                           "path", "file",  "dir",   "name",  "mode",
                                           "type", "value", "output" };
    for (size_t i = 0; i < sizeof fillers / sizeof *fillers; i++)
        if (slice_is(word, fillers[i]))
            return true;
    return false;
}

/* Whether all words of part are in whole, and one of them is telling. */
static bool
has_words(const char *whole, const char *part)
{
    enum { FEWEST = 3 };
    struct slice w;
    bool telling = false;
    for (size_t at = 0; next_word(part, &at, &w);) {
        if (!has_word(whole, w))
            return false;
        telling |= w.n >= FEWEST && !is_filler(w);
    }
    return telling;
}

/* Whether all words of name that are not in option are fillers. */
static bool
adds_fillers(const char *name, const char *option)
{
    struct slice w;
    for (size_t at = 0; next_word(name, &at, &w);)
        if (!has_word(option, w) && !is_filler(w))
            return false;
    return true;
}

/* The only option whose name has all words of name, or is made of words of it where the others
 * are fillers; or NULL. */
static const char *
by_words(const struct cmd *c, const char *name)
{
    const char *found = NULL;
    for (size_t i = 0; i < c->n_options; i++) {
        const char *o = c->options[i].name;
        if (!has_words(o, name) && !(has_words(name, o) && adds_fillers(name, o)))
            continue;
        if (found)
            return NULL;
        found = o;
    }
    return found;
}

/* Whether both are the same without their hyphens. */
static bool
joins(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += *a == '-';
        b += *b == '-';
        if (*a != *b || !*a)
            return *a == *b;
    }
}

static const char *
guess(const struct cmd *c, const char *name)
{
    struct nearest near = nearest_to(name, strlen(name));
    for (size_t i = 0; i < c->n_options; i++)
        if (joins(c->options[i].name, name))
            return c->options[i].name;
    for (size_t i = 0; i < c->n_options; i++)
        nearest_try(&near, c->options[i].name);
    return near.word ? near.word : by_words(c, name);
}

/* The option that a number follows without a blank, or NULL. */
static const char *
joined(const struct cmd *c, const char *name)
{
    size_t n = strcspn(name, "0123456789");
    if (!name[n])
        return NULL;
    for (size_t i = 0; i < c->n_options; i++) {
        const struct cmd_option *o = &c->options[i];
        if (o->arg && strlen(o->name) == n && strncmp(o->name, name, n) == 0)
            return o->name;
    }
    return NULL;
}

/* ---- messages --------------------------------------------------------------------- */

/* A long option that is unknown, or the beginning of several. */
static _Noreturn void
unknown_long(const struct cmd *c, const char *word)
{
    size_t n = strcspn(word + 2, "="), begun = 0;
    char name[MAX_NAME] = "", q[TEXT_QUOTE];
    struct buf list = { 0 };
    text_quote(q, word, strlen(word));
    check_elsewhere(c, word);
    for (size_t i = 0; i < c->n_options; i++)
        if (strncmp(c->options[i].name, word + 2, n) == 0)
            buf_printf(&list, "%s--%s", begun++ ? ", " : "", c->options[i].name);
    if (begun > 1 && n && !list.failed)
        misuse("%s: is the beginning of %s: expected one of them", q, list.data);
    if (n < MAX_NAME)
        elsewhere_fold(name, word + 2, n);
    const char *before = joined(c, word + 2);
    if (before)
        misuse("%s: unknown option: expected --%s %s?", q, before,
               word + 2 + strlen(before));
    const char *meant = guess(c, name);
    if (meant)
        misuse("%s: unknown option: expected --%s? --help lists all", q, meant);
    misuse("%s: unknown option; --help lists them", q);
}

/* -word, where --word is an option. */
static bool
lacks_hyphen(const struct cmd *c, const char *word)
{
    size_t n = word[0] == '-' && word[1] != '-' ? strcspn(word + 1, "=") : 0;
    for (size_t i = 0; i < c->n_options && n > 1; i++)
        if (strncmp(c->options[i].name, word + 1, n) == 0 && !c->options[i].name[n])
            return true;
    return false;
}

static _Noreturn void
unknown_letter(const struct cmd *c, char **argv)
{
    const char letter[] = { '-', (char)optopt, '\0' };
    const char *word = argv[optind];
    char q[TEXT_QUOTE];
    if (!word || !lacks_hyphen(c, word))
        word = argv[optind - 1];
    if (lacks_hyphen(c, word)) {
        text_quote(q, word, strlen(word));
        misuse("%s: unknown option: expected -%s?", q, q);
    }
    check_elsewhere(c, word_of_letter(argv, optopt));
    check_elsewhere(c, letter);
    misuse("-%c: unknown option; --help lists them", optopt);
}

void
unknown_option(const struct cmd *c, int what, char **argv)
{
    const char *word = argv[optind - 1];
    char q[TEXT_QUOTE];
    if (what == ':') {
        check_elsewhere(c, word);
        misuse("%s: needs an argument; --help tells which", word);
    }
    if (optopt >= CMD_ROW) // a long option that takes no argument was given one
        misuse("%s: takes no argument", text_quote(q, word, strlen(word)));
    if (optopt)
        unknown_letter(c, argv);
    unknown_long(c, word);
}
