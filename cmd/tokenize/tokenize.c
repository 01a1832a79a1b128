/* SPDX-License-Identifier: MIT */
/* tokenize: text to tokens, and back. */
#include "cmd/tokenize/tokenize.h"

#include "cmd/suffix.h"
#include "lib/core/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SEQ_LEN = 1 << 24 };

static struct config_tokenize cfg = {
    .cmd = { .name = "tokenize",
             .synopsis = "tokenize [OPTION]... [FILE]...",
             .about = "Make tokens of text: TSV (prompt, TAB, target), JSONL, lines "
                      "or ids become a .tok\nstream for trainstep, or lines of ids; "
                      "--decode turns ids into text." },
};

const char *const tokenize_inputs[] = { "tsv", "jsonl", "lines", "ids", NULL };
static const char *const emit_kinds[] = { "tok", "ids", "jsonl", NULL };
const char *const tokenize_invalids[] = { "error", "replace", NULL };

static const char *const targets_words[] = { "answer", "all", NULL };

static const struct cmd_option options[] = {
    { 't', "tokenizer", "FILE", "tokenizer.json (default: the one beside FILE)",
      CMD_TEXT(&cfg.tokenizer) },
    { 0, "input", "KIND", "tsv, jsonl, lines or ids (default: by the suffix, else tsv)",
      CMD_CHOICE(&cfg.input, tokenize_inputs, INPUT_TSV) },
    { 0, "emit", "KIND", "tok, ids or jsonl (default: ids on a terminal, else tok)",
      CMD_CHOICE(&cfg.emit, emit_kinds, EMIT_TOK) },
    { 'o', "output", "OUT", "write here instead of standard output",
      CMD_TEXT(&cfg.out) },
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
    if (c->seq_len || c->shuffle || c->pack || c->count ||
        cmd_given(&c->cmd, "template") || c->how.no_end || c->how.joint ||
        c->how.parse_special || cmd_given(&c->cmd, "targets"))
        misuse("--decode: goes with --emit jsonl and files, not with what makes ids");
    c->input = INPUT_IDS;
    c->emit = cmd_given(&c->cmd, "emit") ? EMIT_TEXT_JSONL : EMIT_TEXT;
}

static void
settle(struct config_tokenize *c)
{
    bool to_stdout = !c->out || strcmp(c->out, "-") == 0;
    c->shuffle = cmd_given(&c->cmd, "shuffle");
    c->how.all_targets = c->targets == TARGETS_ALL;
    if (c->torchsharp)
        c->how.joint = c->how.no_end = c->how.parse_special = true;
    if (c->torchsharp && !cmd_given(&c->cmd, "template"))
        c->how.kind = TEMPLATE_TORCHSHARP;
    if (c->pack && !c->seq_len)
        misuse("--pack: needs --seq-len, the size of a bin");
    if (c->count && c->out)
        misuse("--count: writes its table to standard output, not to -o");
    if (c->decode)
        settle_decode(c);
    else if (!cmd_given(&c->cmd, "emit"))
        c->emit = to_stdout && isatty(STDOUT_FILENO) ? EMIT_IDS : EMIT_TOK;
    if (c->emit == EMIT_TOK && to_stdout && !c->count)
        cmd_refuse_terminal();
    suffix_check("-o", c->out, c->emit == EMIT_TOK ? "tok" : NULL);
    if (!c->out)
        c->out = "-";
}

/* ---- files ----------------------------------------------------------------------------- */

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
        if ((is_stdin ? fstat(STDIN_FILENO, &st) : stat(paths[i], &st)) < 0)
            return err_set(err, ERR_IO,
                           "%s:", text_quote(q, paths[i], strlen(paths[i])));
        if (S_ISREG(st.st_mode) && strcmp(c->out, "-") != 0 &&
            path_is_file(c->out, st.st_dev, st.st_ino))
            return err_set(err, ERR_USAGE, "%s: is an input, too",
                           text_quote(q, c->out, strlen(c->out)));
    }
    return 0;
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
    char *path = c->tokenizer ? given_tokenizer(c->tokenizer) : tokenizer_beside(first);
    struct tokenizer *t = NULL;
    if (!c->tokenizer && access(path, F_OK) < 0 && errno == ENOENT)
        err_set(err, ERR_USAGE,
                "want -t tokenizer.json: none was given, and there is no %s",
                text_quote(q, path, strlen(path)));
    else if (c->out && strcmp(c->out, "-") != 0 && cmd_same_file(c->out, path))
        err_set(err, ERR_USAGE, "%s: is the tokenizer, too: expected another name",
                text_quote(q, c->out, strlen(c->out)));
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
read_all(struct config_tokenize *c, const struct tokenizer *t, struct sink *sink,
         char **paths, size_t n, struct err *err)
{
    struct progress progress;
    uint8_t *inputs = malloc(n * XXH3_BYTES);
    struct input_reader *f = input_open(c, t, sink, &progress, err);
    int rc = f ? 0 : -1;
    if (rc == 0 && !inputs)
        rc = err_set(err, ERR_MEMORY, "out of memory for %zu inputs", n);
    progress_begin(&progress, &c->cmd, "reading", total_bytes(paths, n));
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = input_read(f, paths[i], inputs + i * XXH3_BYTES);
    progress_end(&progress);
    if (rc == 0)
        rc = sink_finish(sink, n == 1 ? paths[0] : "all inputs together", inputs, n);
    if (rc < 0 && f && sink->sum.counts.samples == 0)
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
    buf_printf(&b, "%llu rows", (unsigned long long)sum->rows);
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

static int
run(struct config_tokenize *c, char **paths, size_t n, struct err *err)
{
    struct tokenizer *t = NULL;
    struct sink sink = { 0 };
    int rc = check_operands(c, paths, n, err);
    if (rc == 0)
        rc = kind_settle(c, paths, n, err);
    if (rc == 0 && (c->input != INPUT_IDS || c->decode || c->tokenizer)) {
        t = open_tokenizer(c, paths[0], err);
        rc = t ? 0 : -1;
    }
    if (rc == 0)
        rc = sink_open(&sink, c, t, err);
    if (rc == 0)
        rc = read_all(c, t, &sink, paths, n, err);
    if (rc == 0 && c->count)
        put_totals(&sink.sum);
    if (rc == 0 && !c->cmd.quiet)
        put_summary(&sink);
    sink_close(&sink);
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
    if (run(&cfg, paths, first < argc ? (size_t)(argc - first) : 1, &err) < 0)
        die_err(&err);
    cmd_close_stdout();
    return EXIT_DONE;
}
