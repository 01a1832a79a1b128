/* SPDX-License-Identifier: MIT */
/* option: the options of a command.
 *
 * A command has one table, a row an option: how it is spelled, what --help says of it and,
 * by one of the macros below, what it sets:
 *
 *     { 'n', "steps", "N", "steps to take", CMD_U64(&o.steps, 0, UINT32_MAX) },
 *     { 'd', "data", "FILE", "samples", CMD_FILE(&o.data) },
 *     { CMD_THREADS(&o.threads) },
 *     CMD_COMMON(o.cmd),
 *
 * The table feeds getopt_long, --help and the parser alike.
 *
 * If an option is given twice, the last number or word holds, and -v reports the one that has no
 * effect.  Two different files of one option are misuse.  Options that are repeatable say so.
 */
#ifndef NIBBLE_CMD_CLI_OPTION_H
#define NIBBLE_CMD_CLI_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cmd_type {
    CMD_IS_FLAG,
    CMD_IS_SET,
    CMD_IS_TEXT,
    CMD_IS_CHOICE,
    CMD_IS_U32,
    CMD_IS_U64,
    CMD_IS_NUMBER,
    CMD_IS_CALL
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): rows begin with the letter
struct cmd_option {
    char letter;            // the short form, or 0
    const char *name, *arg; // arg NULL: takes none; "[=X]": an optional one
    const char *help;       // "%s" stands for the words that word() counts out
    enum cmd_type type;
    union {
        bool *flag;
        const char **text;
        unsigned *choice; // an enum
        uint32_t *u32;
        uint64_t *u64;
        double *number;
        void *any;
    } to;
    double low, high; // of numbers; of a choice low is what the first word means
    const char *const *words;      // of a text or choice, NULL behind the last
    const char *(*word)(size_t i); // or word i, NULL behind the last
    void (*call)(const struct cmd_option *o, const char *arg);
    bool file;       // the argument is the name of a file or directory
    bool repeatable; // each argument counts
};

/* true */
#define CMD_FLAG(p) .type = CMD_IS_FLAG, .to.flag = (p)
/* An enum, to that value. */
#define CMD_SET(p, value) .type = CMD_IS_SET, .to.choice = (p), .low = (value)
/* The argument: any, one of a list of words, or one that a function counts out. */
#define CMD_TEXT(p)              .type = CMD_IS_TEXT, .to.text = (p)
#define CMD_WORD(p, list)        CMD_TEXT(p), .words = (list)
#define CMD_WORD_OF(p, function) CMD_TEXT(p), .word = (function)
/* The name of a file or directory. */
#define CMD_FILE(p) CMD_TEXT(p), .file = true
/* The index of the argument in a list, plus first: an enum. */
#define CMD_CHOICE(p, list, first)                                                     \
    .type = CMD_IS_CHOICE, .to.choice = (p), .words = (list), .low = (first)
/* An integer of low..high; a number of at least low. */
#define CMD_U32(p, from, upto)                                                         \
    .type = CMD_IS_U32, .to.u32 = (p), .low = (from), .high = (upto)
#define CMD_U64(p, from, upto)                                                         \
    .type = CMD_IS_U64, .to.u64 = (p), .low = (from), .high = (upto)
#define CMD_NUMBER(p, from) .type = CMD_IS_NUMBER, .to.number = (p), .low = (from)
/* Anything else: the function gets the row, and in it p and a value. */
#define CMD_CALL(p, function)             .type = CMD_IS_CALL, .to.any = (p), .call = (function)
#define CMD_CALL_WITH(p, function, value) CMD_CALL(p, function), .low = (value)
/* CMD_CALL for a repeatable option: each argument counts. */
#define CMD_EACH(p, function) CMD_CALL(p, function), .repeatable = true

/* Whole rows, of options that several commands have. */
#define CMD_THREADS(p)                                                                 \
    'j', "threads", "N", "threads (default: all processors)",                          \
        CMD_CALL(p, cmd_take_threads)
#define CMD_SELECT(p, help)                                                            \
    's', "select", "GLOB", help, CMD_EACH(p, cmd_take_glob), .low = false
#define CMD_EXCLUDE(p)                                                                 \
    'x', "exclude", "GLOB", "not these (repeatable, wins over -s)",                    \
        CMD_EACH(p, cmd_take_glob), .low = true
#define CMD_STRICT(p) 0, "strict", NULL, "refuse unusual input, too", CMD_FLAG(p)
#define CMD_CONFIG(p) 0, "config", "FILE", "the model's config.json", CMD_FILE(p)
#define CMD_TEMPLATE(p)                                                                \
    0, "template", "NAME", "qwen3, torchsharp or none (default qwen3)",                \
        CMD_CHOICE(p, template_words, TEMPLATE_QWEN3)
#define CMD_COMPAT(p, help)                                                            \
    0, "compat", "torchsharp", help, CMD_CALL(p, cmd_take_compat)
/* The rows that every command has, last. */
#define CMD_COMMON(cmd)                                                                \
    { 'q', "quiet", NULL, "say nothing on success", CMD_FLAG(&(cmd).quiet) },          \
        { 'v', "verbose", NULL, "say more on stderr", CMD_FLAG(&(cmd).verbose) },      \
        { 'h', "help", NULL, "show this and exit", CMD_CALL(&(cmd), cmd_take_help) },  \
    {                                                                                  \
        'V', "version", NULL, "show the version and exit",                             \
            CMD_CALL(&(cmd), cmd_take_version)                                         \
    }

void cmd_take_threads(const struct cmd_option *o, const char *arg); // unsigned
void cmd_take_glob(const struct cmd_option *o, const char *arg);    // struct select
void cmd_take_compat(const struct cmd_option *o, const char *arg);  // bool
void cmd_take_help(const struct cmd_option *o, const char *arg);    // struct cmd
void cmd_take_version(const struct cmd_option *o, const char *arg); // struct cmd

/* CMD_ROW + i is what getopt_long returns for row i of a table, which is no letter. */
enum { CMD_MAX_OPTIONS = 96, CMD_ROW = 256 };

struct cmd {
    const char *name;     // of the program, for messages
    const char *synopsis; // behind "usage: "
    const char *about;    // a sentence or two
    bool operands_end;    // options end at the first operand: what follows is another's
    bool quiet, verbose;
    // of cmd_parse
    const struct cmd_option *options;
    size_t n_options;
    bool given[CMD_MAX_OPTIONS]; // by row
};

/* Parse the options by a table of n rows; the index of the first operand. */
int cmd_parse(struct cmd *c, const struct cmd_option *options, size_t n, int argc,
              char **argv);
/* Whether the option of that name, which the table has, was given. */
bool cmd_given(const struct cmd *c, const char *name);

/* Whether two paths name one file, which may not exist yet. */
bool cmd_one_file(const char *a, const char *b);

/* The argument of an option as a number, or misuse. */
uint64_t cmd_u64(const char *option, const char *arg, uint64_t low, uint64_t high);
double cmd_number(const char *option, const char *arg, double low);
uint64_t cmd_gb(const char *option, const char *arg); // bytes, of GB or with a suffix
uint64_t cmd_bytes(const char *option, const char *arg, uint64_t low);
/* The argument of -j, or with NULL all processors; at most 32 are used. */
unsigned cmd_threads(const char *arg);
/* Misuse: the option does not take that word.  The message names our word for it, if another
 * program has it, then the words that are wanted. */
_Noreturn void cmd_refuse_word(const char *option, const char *arg, const char *want);
/* Index of arg among the NULL-terminated words, or misuse. */
unsigned cmd_word(const char *option, const char *arg, const char *const *words);

#endif
