/* SPDX-License-Identifier: MIT */
/* tokenize: text to tokens, and back. */
#include "cmd/cli/cmd.h"
#include "cmd/cli/suffix.h"
#include "lib/base/num.h"
#include "lib/data/kind.h"
#include "lib/data/make.h"
#include "lib/file/foreign.h"
#include "lib/file/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SEQ_LEN = 1 << 24 };

enum targets { TARGETS_ANSWER, TARGETS_ALL };

struct config_tokenize {
    struct cmd cmd;
    const char *tokenizer;
    enum targets targets;
    bool torchsharp; // --compat
    struct data_options data;
};

static struct config_tokenize cfg = {
    .cmd = { .name = "tokenize",
             .synopsis = "tokenize [OPTION]... [FILE]...",
             .about = "Make tokens of text: TSV (prompt, TAB, target), CSV, JSONL, "
                      "lines or ids become a .tok\nstream for trainstep, or lines of "
                      "ids; --decode turns ids into text." },
};

static const char *const emit_kinds[] = { "tok", "ids", "jsonl", NULL };

static const char *const targets_words[] = { "answer", "all", NULL };

static void
take_output(const struct cmd_option *o, const char *arg)
{
    struct config_tokenize *c = o->to.any;
    if (c->data.n_out == sizeof c->data.out / sizeof *c->data.out)
        misuse("-o %s: expected at most two outputs", arg);
    c->data.out[c->data.n_out++] = arg;
}

/* The number in the fewest digits that give it back. */
static const char *
split_text(double fraction, uint32_t seed)
{
    char text[64];
    double back = -1;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, fraction);
        if (num_double(&back, text) && back >= fraction && back <= fraction)
            break;
    }
    size_t n = strlen(text);
    snprintf(text + n, sizeof text - n, ":%u", seed);
    return cmd_copy(text);
}

/* FRACTION:SEED */
static void
take_split(const struct cmd_option *o, const char *arg)
{
    struct config_tokenize *c = o->to.any;
    char *text = cmd_copy(arg), *colon = strchr(text, ':'), q[TEXT_QUOTE];
    uint64_t seed;
    if (colon)
        *colon = '\0';
    if (!colon || !num_double(&c->data.fraction, text) || !(c->data.fraction > 0) ||
        !(c->data.fraction < 1) || !num_u64(&seed, colon + 1) || seed > UINT32_MAX)
        misuse("--split: %s: want FRACTION:SEED, a fraction between 0 and 1 and a "
               "random seed of 0..%u",
               text_quote(q, arg, strlen(arg)), UINT32_MAX);
    c->data.split = true;
    c->data.split_seed = (uint32_t)seed;
    c->data.split_text = split_text(c->data.fraction, c->data.split_seed);
    free(text);
}

static const struct cmd_option options[] = {
    { 't', "tokenizer", "FILE", "tokenizer.json (default: the one beside FILE)",
      CMD_FILE(&cfg.tokenizer) },
    { 0, "input", "KIND",
      "tsv, csv, jsonl, lines or ids (default: by the suffix, else tsv)",
      CMD_CHOICE(&cfg.data.input, data_inputs, INPUT_TSV) },
    { 0, "prompt-key", "NAME", "JSONL, CSV: the key or column of the prompt",
      CMD_TEXT(&cfg.data.names.prompt) },
    { 0, "answer-key", "NAME", "the key or column of its answer",
      CMD_TEXT(&cfg.data.names.answer) },
    { 0, "emit", "KIND", "tok, ids or jsonl (default: ids on a terminal, else tok)",
      CMD_CHOICE(&cfg.data.emit, emit_kinds, EMIT_TOK) },
    { 'o', "output", "OUT", "write here instead of standard output",
      CMD_EACH(&cfg, take_output) },
    { 'f', "force", NULL, "replace OUT if it exists", CMD_FLAG(&cfg.data.force) },
    { CMD_TEMPLATE(&cfg.data.how.kind) },
    { 0, "no-end", NULL, "no end token after a target",
      CMD_FLAG(&cfg.data.how.no_end) },
    { 0, "joint", NULL, "tokenize prompt and target in one piece",
      CMD_FLAG(&cfg.data.how.joint) },
    { 0, "parse-special", NULL, "recognise added tokens inside text",
      CMD_FLAG(&cfg.data.how.parse_special) },
    { 0, "targets", "WORD", "what is learnt: answer (default) or all, prompts too",
      CMD_CHOICE(&cfg.targets, targets_words, TARGETS_ANSWER) },
    { 0, "seq-len", "N", "keep the last N+1 ids of a sample",
      CMD_U32(&cfg.data.seq_len, 2, MAX_SEQ_LEN) },
    { 0, "chunk", "N", "cut documents into samples of N+1 ids that overlap by one",
      CMD_U32(&cfg.data.chunk, 2, MAX_SEQ_LEN) },
    { 0, "split", "FRACTION:SEED", "that share of the rows to a second -o, by a hash",
      CMD_CALL(&cfg, take_split) },
    { 0, "shuffle", "SEED", "put samples into an order drawn by SEED",
      CMD_U32(&cfg.data.shuffle_seed, 0, UINT32_MAX) },
    { 0, "pack", NULL, "fill samples of --seq-len with whole documents",
      CMD_FLAG(&cfg.data.pack) },
    { 0, "decode", NULL, "a .tok or lines of ids back to text",
      CMD_FLAG(&cfg.data.decode) },
    { 0, "invalid", "HOW", "bad UTF-8: error or replace (default error)",
      CMD_CHOICE(&cfg.data.invalid, data_invalids, INVALID_ERROR) },
    { 0, "strict", NULL, "a line that would be skipped is an error",
      CMD_FLAG(&cfg.data.strict) },
    { 0, "count", NULL, "totals only", CMD_FLAG(&cfg.data.count) },
    { CMD_COMPAT(&cfg.torchsharp,
                 "--template torchsharp --joint --no-end --parse-special") },
    { CMD_THREADS(&cfg.data.threads) },
    CMD_COMMON(cfg.cmd),
};

static void
settle_decode(struct config_tokenize *c)
{
    if (c->data.input_given && c->data.input != INPUT_IDS)
        misuse("--decode: reads a .tok or --input ids");
    if (c->data.emit_given && c->data.emit != EMIT_JSONL)
        misuse("--decode: gives text, or --emit jsonl");
    if (c->data.seq_len || c->data.chunk || c->data.split || c->data.shuffle ||
        c->data.pack || c->data.count || cmd_given(&c->cmd, "template") ||
        c->data.how.no_end || c->data.how.joint || c->data.how.parse_special ||
        cmd_given(&c->cmd, "targets") || c->data.named)
        misuse("--decode: goes with --emit jsonl and files, not with what makes ids");
    c->data.input = INPUT_IDS;
    c->data.emit = c->data.emit_given ? EMIT_TEXT_JSONL : EMIT_TEXT;
}

static void
settle_length(const struct config_tokenize *c)
{
    if (c->data.pack && !c->data.seq_len)
        misuse("--pack: needs --seq-len, the size of a bin");
    if (c->data.chunk && c->data.seq_len && c->data.chunk > c->data.seq_len)
        misuse("--chunk %u: want at most --seq-len, which is %u", c->data.chunk,
               c->data.seq_len);
}

/* At the end there is one output or, with --split, there are two. */
static void
settle_outputs(struct config_tokenize *c)
{
    bool stream = false;
    for (unsigned i = 0; i < c->data.n_out; i++)
        stream |= strcmp(c->data.out[i], "-") == 0;
    if (c->data.count && (c->data.n_out || c->data.split))
        misuse("--count: writes its table to standard output, not to -o");
    if (c->data.split && (c->data.n_out != 2 || stream))
        misuse("--split: want two files, -o TRAIN -o EVAL");
    if (!c->data.split && c->data.n_out > 1 &&
        cmd_one_file(c->data.out[0], c->data.out[1]))
        c->data.n_out = 1;
    if (!c->data.split && c->data.n_out > 1)
        misuse("-o %s: a second output besides %s: want one, or --split, which has two",
               c->data.out[1], c->data.out[0]);
    if (c->data.n_out == 0)
        c->data.out[c->data.n_out++] = "-";
}

/* Names of a prompt and its answer: both or none. */
static void
settle_names(struct config_tokenize *c)
{
    const char *prompt = c->data.names.prompt, *answer = c->data.names.answer;
    char q[TEXT_QUOTE];
    if (!prompt != !answer)
        misuse("--%s: needs --%s: a row has a prompt and an answer",
               prompt ? "prompt-key" : "answer-key",
               prompt ? "answer-key" : "prompt-key");
    if (!prompt || !answer)
        return;
    if (!*prompt || !*answer || strcmp(prompt, answer) == 0)
        misuse("--prompt-key, --answer-key: \"%s\": expected two names",
               text_quote(q, answer, strlen(answer)));
    for (size_t i = 0; i < 2; i++) {
        const char *name = i ? answer : prompt;
        if (utf8_check(name, strlen(name)) != strlen(name))
            misuse("--%s: %s: expected UTF-8", i ? "answer-key" : "prompt-key",
                   text_quote(q, name, strlen(name)));
    }
    c->data.named = &c->data.names;
}

static void
settle_options(struct config_tokenize *c)
{
    c->data.host = cmd_host(&c->cmd);
    c->data.input_given = cmd_given(&c->cmd, "input");
    c->data.emit_given = cmd_given(&c->cmd, "emit");
    settle_names(c);
    c->data.shuffle = cmd_given(&c->cmd, "shuffle");
    c->data.how.all_targets = c->targets == TARGETS_ALL;
    if (c->torchsharp)
        c->data.how.joint = c->data.how.no_end = c->data.how.parse_special = true;
    if (c->torchsharp && !cmd_given(&c->cmd, "template"))
        c->data.how.kind = TEMPLATE_TORCHSHARP;
    settle_length(c);
    settle_outputs(c);
    bool to_stdout = strcmp(c->data.out[0], "-") == 0;
    if (c->data.decode)
        settle_decode(c);
    else if (!c->data.emit_given)
        c->data.emit = to_stdout && isatty(STDOUT_FILENO) ? EMIT_IDS : EMIT_TOK;
    if (c->data.emit == EMIT_TOK && to_stdout && !c->data.count)
        cmd_refuse_terminal();
    for (unsigned i = 0; i < c->data.n_out; i++)
        suffix_check("-o", c->data.out[i], c->data.emit == EMIT_TOK ? "tok" : NULL);
}

/* ---- files ----------------------------------------------------------------------------- */

static bool
is_file(const char *out)
{
    return strcmp(out, "-") != 0;
}

static int
check_outputs(const struct config_tokenize *c, struct err *err)
{
    char q[TEXT_QUOTE];
    if (!c->data.split || !cmd_one_file(c->data.out[0], c->data.out[1]))
        return 0;
    return err_set(err, ERR_USAGE, "%s: is the other output, too: expected two files",
                   text_quote(q, c->data.out[1], strlen(c->data.out[1])));
}

static int
check_operands(const struct config_tokenize *c, char **paths, size_t n, struct err *err)
{
    unsigned stdins = 0;
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        bool is_stdin = strcmp(paths[i], "-") == 0;
        char q[TEXT_QUOTE];
        stdins += is_stdin;
        if (stdins > 1)
            return err_set(err, ERR_USAGE, "-: standard input can be read once");
        if (i > 0 && i + 1 == n && !cmd_given(&c->cmd, "output") &&
            slice_ends(slice_of(paths[i]), ".tok") && access(paths[i], F_OK) < 0)
            cmd_refuse_without_output((int)n, paths);
        if (!is_stdin && foreign_path(paths[i], FOREIGN_FOR_TEXT, err) < 0)
            return -1;
        if ((is_stdin ? fstat(STDIN_FILENO, &st) : stat(paths[i], &st)) < 0)
            return err_set(err, ERR_IO,
                           "%s:", text_quote(q, paths[i], strlen(paths[i])));
        for (unsigned k = 0; k < c->data.n_out; k++)
            if (S_ISREG(st.st_mode) && is_file(c->data.out[k]) &&
                path_is_file(c->data.out[k], st.st_dev, st.st_ino))
                return err_set(err, ERR_USAGE, "%s: is an input, too",
                               text_quote(q, c->data.out[k], strlen(c->data.out[k])));
    }
    return check_outputs(c, err);
}

/* DIR/tokenizer.json, where DIR is that of a file. */
static char *
tokenizer_beside(const char *path)
{
    struct buf b = { 0 };
    const char *slash = strrchr(path, '/');
    if (slash)
        buf_add(&b, path, (size_t)(slash - path));
    buf_str(&b, slash ? "/tokenizer.json" : "./tokenizer.json");
    if (b.failed)
        die(EXIT_MEMORY, "out of memory");
    return b.data;
}

/* -t FILE, or tokenizer.json in -t DIRECTORY. */
static char *
given_tokenizer(const char *path)
{
    struct buf b = { 0 };
    struct stat st;
    buf_str(&b, path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        buf_str(&b, "/tokenizer.json");
    if (b.failed)
        die(EXIT_MEMORY, "out of memory");
    return b.data;
}

static struct tokenizer *
open_tokenizer(const struct config_tokenize *c, const char *first, struct err *err)
{
    char q[TEXT_QUOTE];
    const char *taken = NULL; // an output
    char *path = c->tokenizer ? given_tokenizer(c->tokenizer) : tokenizer_beside(first);
    struct tokenizer *t = NULL;
    for (unsigned i = 0; i < c->data.n_out; i++)
        if (is_file(c->data.out[i]) && path_same_file(c->data.out[i], path))
            taken = c->data.out[i];
    if (!c->tokenizer && access(path, F_OK) < 0 && errno == ENOENT)
        err_set(err, ERR_USAGE,
                "want -t tokenizer.json: none was given, and there is no %s; it comes "
                "with the model",
                text_quote(q, path, strlen(path)));
    else if (taken)
        err_set(err, ERR_USAGE, "%s: is the tokenizer, too: expected another name",
                text_quote(q, taken, strlen(taken)));
    else
        t = tokenizer_open(path, &cmd_guard, err);
    free(path);
    return t;
}

/* ---- the work ---------------------------------------------------------------------------- */

static void
put_totals(const struct tally *s)
{
    printf("samples\ttokens\ttargets\tskipped\ttruncated\n");
    printf("%llu\t%llu\t%llu\t%llu\t%llu\n", (unsigned long long)s->counts.samples,
           (unsigned long long)s->counts.tokens, (unsigned long long)s->counts.targets,
           (unsigned long long)s->skipped, (unsigned long long)s->truncated);
}

static void
put_summary(const struct sink *s)
{
    const struct tally *sum = &s->sum;
    struct buf b = { 0 };
    if (s->side) {
        text_escape(&b, s->path, strlen(s->path));
        buf_str(&b, ": ");
    }
    buf_printf(&b, "%llu rows", (unsigned long long)sum->rows);
    if (s->c->chunk && !s->c->pack)
        buf_printf(&b, ", %llu samples", (unsigned long long)sum->counts.samples);
    if (s->c->pack)
        buf_printf(&b, ", %llu documents in %llu samples",
                   (unsigned long long)s->documents,
                   (unsigned long long)sum->counts.samples);
    buf_printf(&b, ", %llu tokens", (unsigned long long)sum->counts.tokens);
    if (!s->c->decode)
        buf_printf(&b, " (%llu targets), %llu skipped, %llu truncated",
                   (unsigned long long)sum->counts.targets,
                   (unsigned long long)sum->skipped,
                   (unsigned long long)sum->truncated);
    if (s->c->invalid == INVALID_REPLACE)
        buf_printf(&b, ", %llu bad sequences replaced",
                   (unsigned long long)sum->repaired);
    double capacity = (double)sum->counts.samples * ((double)s->c->seq_len + 1);
    if (s->c->pack && capacity > 0)
        buf_printf(&b, ", %.2f %% padding",
                   100 * (1 - (double)sum->counts.tokens / capacity));
    if (!b.failed)
        warn("%s", b.data);
    if (*sum->first && !s->c->host->verbose)
        warn("skipped%s %s; -v shows all, --strict refuses them",
             sum->skipped > 1 ? ", the first:" : ":", sum->first);
    buf_free(&b);
}

/* A .tok under the name of a text would be read as one. */
static int
check_suffix(const struct config_tokenize *c, const char *out, struct err *err)
{
    static const char *const texts[] = { ".jsonl", ".json", ".tsv", ".csv", ".txt" };
    char q[TEXT_QUOTE];
    for (size_t i = 0; c->data.emit == EMIT_TOK && i < sizeof texts / sizeof *texts;
         i++)
        if (slice_ends(slice_of(out), texts[i]))
            return err_set(err, ERR_USAGE,
                           "-o %s: a .tok is written: expected no suffix of a text; "
                           "--emit jsonl or ids writes a text",
                           text_quote(q, out, strlen(out)));
    return 0;
}

static int
make_samples(struct config_tokenize *c, char **paths, size_t n, struct err *err)
{
    struct tokenizer *t = NULL;
    struct sink sinks[2] = { 0 };
    int rc = check_operands(c, paths, n, err);
    if (rc == 0)
        rc = kind_settle(&c->data, paths, n, err);
    if (rc == 0 && (c->data.input != INPUT_IDS || c->data.decode || c->tokenizer)) {
        t = open_tokenizer(c, paths[0], err);
        rc = t ? 0 : -1;
    }
    for (unsigned i = 0; rc == 0 && i < c->data.n_out; i++)
        rc = check_suffix(c, c->data.out[i], err);
    for (unsigned i = 0; rc == 0 && i < c->data.n_out; i++)
        rc = sink_open(&sinks[i], &c->data, i, t, err);
    if (rc == 0)
        rc = data_make(&c->data, t, sinks, paths, n, err);
    if (rc == 0 && c->data.count)
        put_totals(&sinks->sum);
    for (unsigned i = 0; i < c->data.n_out; i++) {
        if (rc == 0 && !c->cmd.quiet)
            put_summary(&sinks[i]);
        sink_close(&sinks[i]);
    }
    if (t)
        tokenizer_close(t);
    return rc;
}

int
main(int argc, char **argv)
{
    static char dash[] = "-";
    char *standard_input[] = { dash };
    struct err err = { 0 };
    cmd_begin(&cfg.cmd);
    cfg.data.threads = cmd_threads(NULL);
    int first =
        cmd_parse(&cfg.cmd, options, sizeof options / sizeof *options, argc, argv);
    settle_options(&cfg);
    char **paths = first < argc ? argv + first : standard_input;
    if (first == argc && !cfg.cmd.quiet && isatty(STDIN_FILENO) &&
        isatty(STDERR_FILENO))
        warn("rows are read from the terminal, Ctrl-D ends; a FILE is read in its "
             "place");
    if (make_samples(&cfg, paths, first < argc ? (size_t)(argc - first) : 1, &err) < 0)
        die_err(&err);
    cmd_close_stdout();
    return EXIT_DONE;
}
