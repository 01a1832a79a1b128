/* SPDX-License-Identifier: MIT */
/* tokenize: text to tokens, and back. */
#include "cmd/tokenize/tokenize.h"

#include "cmd/cli/suffix.h"
#include "lib/base/num.h"
#include "lib/file/foreign.h"
#include "lib/file/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SEQ_LEN = 1 << 24 };

static struct config_tokenize cfg = {
    .cmd = { .name = "tokenize",
             .synopsis = "tokenize [OPTION]... [FILE]...",
             .about = "Make tokens of text: TSV (prompt, TAB, target), CSV, JSONL, "
                      "lines or ids become a .tok\nstream for trainstep, or lines of "
                      "ids; --decode turns ids into text." },
};

const char *const tokenize_inputs[] = { "tsv", "jsonl", "lines", "ids", "csv", NULL };
static const char *const emit_kinds[] = { "tok", "ids", "jsonl", NULL };
const char *const tokenize_invalids[] = { "error", "replace", NULL };

static const char *const targets_words[] = { "answer", "all", NULL };

static void
take_output(const struct cmd_option *o, const char *arg)
{
    struct config_tokenize *c = o->to.any;
    if (c->n_out == sizeof c->out / sizeof *c->out)
        misuse("-o %s: expected at most two outputs", arg);
    c->out[c->n_out++] = arg;
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
    if (!colon || !num_double(&c->fraction, text) || !(c->fraction > 0) ||
        !(c->fraction < 1) || !num_u64(&seed, colon + 1) || seed > UINT32_MAX)
        misuse("--split: %s: want FRACTION:SEED, a fraction between 0 and 1 and a "
               "random seed of 0..%u",
               text_quote(q, arg, strlen(arg)), UINT32_MAX);
    c->split = true;
    c->split_seed = (uint32_t)seed;
    c->split_text = split_text(c->fraction, c->split_seed);
    free(text);
}

static const struct cmd_option options[] = {
    { 't', "tokenizer", "FILE", "tokenizer.json (default: the one beside FILE)",
      CMD_FILE(&cfg.tokenizer) },
    { 0, "input", "KIND",
      "tsv, csv, jsonl, lines or ids (default: by the suffix, else tsv)",
      CMD_CHOICE(&cfg.input, tokenize_inputs, INPUT_TSV) },
    { 0, "prompt-key", "NAME", "JSONL, CSV: the key or column of the prompt",
      CMD_TEXT(&cfg.names.prompt) },
    { 0, "answer-key", "NAME", "the key or column of its answer",
      CMD_TEXT(&cfg.names.answer) },
    { 0, "emit", "KIND", "tok, ids or jsonl (default: ids on a terminal, else tok)",
      CMD_CHOICE(&cfg.emit, emit_kinds, EMIT_TOK) },
    { 'o', "output", "OUT", "write here instead of standard output",
      CMD_EACH(&cfg, take_output) },
    { 'f', "force", NULL, "replace OUT if it exists", CMD_FLAG(&cfg.force) },
    { CMD_TEMPLATE(&cfg.how.kind) },
    { 0, "no-end", NULL, "no end token after a target", CMD_FLAG(&cfg.how.no_end) },
    { 0, "joint", NULL, "tokenize prompt and target in one piece",
      CMD_FLAG(&cfg.how.joint) },
    { 0, "parse-special", NULL, "recognise added tokens inside text",
      CMD_FLAG(&cfg.how.parse_special) },
    { 0, "targets", "WORD", "what is learnt: answer (default) or all, prompts too",
      CMD_CHOICE(&cfg.targets, targets_words, TARGETS_ANSWER) },
    { 0, "seq-len", "N", "keep the last N+1 ids of a sample",
      CMD_U32(&cfg.seq_len, 2, MAX_SEQ_LEN) },
    { 0, "chunk", "N", "cut documents into samples of N+1 ids that overlap by one",
      CMD_U32(&cfg.chunk, 2, MAX_SEQ_LEN) },
    { 0, "split", "FRACTION:SEED", "that share of the rows to a second -o, by a hash",
      CMD_CALL(&cfg, take_split) },
    { 0, "shuffle", "SEED", "put samples into an order drawn by SEED",
      CMD_U32(&cfg.shuffle_seed, 0, UINT32_MAX) },
    { 0, "pack", NULL, "fill samples of --seq-len with whole documents",
      CMD_FLAG(&cfg.pack) },
    { 0, "decode", NULL, "a .tok or lines of ids back to text", CMD_FLAG(&cfg.decode) },
    { 0, "invalid", "HOW", "bad UTF-8: error or replace (default error)",
      CMD_CHOICE(&cfg.invalid, tokenize_invalids, INVALID_ERROR) },
    { 0, "strict", NULL, "a line that would be skipped is an error",
      CMD_FLAG(&cfg.strict) },
    { 0, "count", NULL, "totals only", CMD_FLAG(&cfg.count) },
    { CMD_COMPAT(&cfg.torchsharp,
                 "--template torchsharp --joint --no-end --parse-special") },
    { CMD_THREADS(&cfg.threads) },
    CMD_COMMON(cfg.cmd),
};

static void
settle_decode(struct config_tokenize *c)
{
    if (cmd_given(&c->cmd, "input") && c->input != INPUT_IDS)
        misuse("--decode: reads a .tok or --input ids");
    if (cmd_given(&c->cmd, "emit") && c->emit != EMIT_JSONL)
        misuse("--decode: gives text, or --emit jsonl");
    if (c->seq_len || c->chunk || c->split || c->shuffle || c->pack || c->count ||
        cmd_given(&c->cmd, "template") || c->how.no_end || c->how.joint ||
        c->how.parse_special || cmd_given(&c->cmd, "targets") || c->named)
        misuse("--decode: goes with --emit jsonl and files, not with what makes ids");
    c->input = INPUT_IDS;
    c->emit = cmd_given(&c->cmd, "emit") ? EMIT_TEXT_JSONL : EMIT_TEXT;
}

static void
settle_length(const struct config_tokenize *c)
{
    if (c->pack && !c->seq_len)
        misuse("--pack: needs --seq-len, the size of a bin");
    if (c->chunk && c->seq_len && c->chunk > c->seq_len)
        misuse("--chunk %u: want at most --seq-len, which is %u", c->chunk, c->seq_len);
}

/* At the end there is one output or, with --split, there are two. */
static void
settle_outputs(struct config_tokenize *c)
{
    bool stream = false;
    for (unsigned i = 0; i < c->n_out; i++)
        stream |= strcmp(c->out[i], "-") == 0;
    if (c->count && (c->n_out || c->split))
        misuse("--count: writes its table to standard output, not to -o");
    if (c->split && (c->n_out != 2 || stream))
        misuse("--split: want two files, -o TRAIN -o EVAL");
    if (!c->split && c->n_out > 1 && cmd_one_file(c->out[0], c->out[1]))
        c->n_out = 1;
    if (!c->split && c->n_out > 1)
        misuse("-o %s: a second output besides %s: want one, or --split, which has two",
               c->out[1], c->out[0]);
    if (c->n_out == 0)
        c->out[c->n_out++] = "-";
}

/* Names of a prompt and its answer: both or none. */
static void
settle_names(struct config_tokenize *c)
{
    const char *prompt = c->names.prompt, *answer = c->names.answer;
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
    c->named = &c->names;
}

static void
settle(struct config_tokenize *c)
{
    settle_names(c);
    c->shuffle = cmd_given(&c->cmd, "shuffle");
    c->how.all_targets = c->targets == TARGETS_ALL;
    if (c->torchsharp)
        c->how.joint = c->how.no_end = c->how.parse_special = true;
    if (c->torchsharp && !cmd_given(&c->cmd, "template"))
        c->how.kind = TEMPLATE_TORCHSHARP;
    settle_length(c);
    settle_outputs(c);
    bool to_stdout = strcmp(c->out[0], "-") == 0;
    if (c->decode)
        settle_decode(c);
    else if (!cmd_given(&c->cmd, "emit"))
        c->emit = to_stdout && isatty(STDOUT_FILENO) ? EMIT_IDS : EMIT_TOK;
    if (c->emit == EMIT_TOK && to_stdout && !c->count)
        cmd_refuse_terminal();
    for (unsigned i = 0; i < c->n_out; i++)
        suffix_check("-o", c->out[i], c->emit == EMIT_TOK ? "tok" : NULL);
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
    if (!c->split || !cmd_one_file(c->out[0], c->out[1]))
        return 0;
    return err_set(err, ERR_USAGE, "%s: is the other output, too: expected two files",
                   text_quote(q, c->out[1], strlen(c->out[1])));
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
        for (unsigned k = 0; k < c->n_out; k++)
            if (S_ISREG(st.st_mode) && is_file(c->out[k]) &&
                path_is_file(c->out[k], st.st_dev, st.st_ino))
                return err_set(err, ERR_USAGE, "%s: is an input, too",
                               text_quote(q, c->out[k], strlen(c->out[k])));
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
    for (unsigned i = 0; i < c->n_out; i++)
        if (is_file(c->out[i]) && cmd_same_file(c->out[i], path))
            taken = c->out[i];
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

static uint64_t
total_bytes(char **paths, size_t n)
{
    uint64_t sum = 0;
    struct stat st;
    for (size_t i = 0; i < n; i++) {
        bool ok = strcmp(paths[i], "-") == 0 ? fstat(STDIN_FILENO, &st) == 0
                                             : stat(paths[i], &st) == 0;
        if (!ok || !S_ISREG(st.st_mode))
            return 0; // unknown
        sum += (uint64_t)st.st_size;
    }
    return sum;
}

/* ---- the work ---------------------------------------------------------------------------- */

static int
read_all(struct config_tokenize *c, const struct tokenizer *t, struct sink *sinks,
         char **paths, size_t n, struct err *err)
{
    struct progress progress;
    uint8_t *inputs = malloc(n * XXH3_BYTES);
    struct input_reader *f = input_open(c, t, sinks, &progress, err);
    int rc = f ? 0 : -1;
    if (rc == 0 && !inputs)
        rc = err_set(err, ERR_MEMORY, "out of memory for %zu inputs", n);
    progress_begin(&progress, &c->cmd, "reading", total_bytes(paths, n));
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = input_read(f, paths[i], inputs + i * XXH3_BYTES);
    progress_end(&progress);
    if (rc == 0)
        rc = sink_finish(sinks, n == 1 ? paths[0] : "all inputs together", inputs, n);
    if (rc < 0 && f && sinks[0].sum.counts.samples + sinks[1].sum.counts.samples == 0)
        kind_hint(c, input_likely(f), err);
    input_close(f);
    free(inputs);
    return rc;
}

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
    buf_free(&b);
}

/* A .tok under the name of a text would be read as one. */
static int
check_suffix(const struct config_tokenize *c, const char *out, struct err *err)
{
    static const char *const texts[] = { ".jsonl", ".json", ".tsv", ".csv", ".txt" };
    char q[TEXT_QUOTE];
    for (size_t i = 0; c->emit == EMIT_TOK && i < sizeof texts / sizeof *texts; i++)
        if (slice_ends(slice_of(out), texts[i]))
            return err_set(err, ERR_USAGE,
                           "-o %s: a .tok is written: expected no suffix of a text; "
                           "--emit jsonl or ids writes a text",
                           text_quote(q, out, strlen(out)));
    return 0;
}

static int
run(struct config_tokenize *c, char **paths, size_t n, struct err *err)
{
    struct tokenizer *t = NULL;
    struct sink sinks[2] = { 0 };
    int rc = check_operands(c, paths, n, err);
    if (rc == 0)
        rc = kind_settle(c, paths, n, err);
    if (rc == 0 && (c->input != INPUT_IDS || c->decode || c->tokenizer)) {
        t = open_tokenizer(c, paths[0], err);
        rc = t ? 0 : -1;
    }
    for (unsigned i = 0; rc == 0 && i < c->n_out; i++)
        rc = check_suffix(c, c->out[i], err);
    for (unsigned i = 0; rc == 0 && i < c->n_out; i++)
        rc = sink_open(&sinks[i], c, i, t, err);
    if (rc == 0)
        rc = read_all(c, t, sinks, paths, n, err);
    if (rc == 0 && c->count)
        put_totals(&sinks->sum);
    for (unsigned i = 0; i < c->n_out; i++) {
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
    cfg.threads = cmd_threads(NULL);
    int first =
        cmd_parse(&cfg.cmd, options, sizeof options / sizeof *options, argc, argv);
    settle(&cfg);
    char **paths = first < argc ? argv + first : standard_input;
    if (first == argc && !cfg.cmd.quiet && isatty(STDIN_FILENO) &&
        isatty(STDERR_FILENO))
        warn("rows are read from the terminal, Ctrl-D ends; a FILE is read in its "
             "place");
    if (run(&cfg, paths, first < argc ? (size_t)(argc - first) : 1, &err) < 0)
        die_err(&err);
    cmd_close_stdout();
    return EXIT_DONE;
}
