/* SPDX-License-Identifier: MIT */
/* datcat: look into any tensor file. */
#include "cmd/cli/cmd.h"

#include "lib/format/tok.h"
#include "lib/inspect/inspect.h"
#include "lib/load/training.h"

#include <stdlib.h>
#include <string.h>

struct config_datcat {
    struct cmd cmd;
    struct inspect i;
};

static struct config_datcat cfg = {
    .cmd = { .name = "datcat",
             .synopsis = "datcat [OPTION]... FILE...",
             .about =
                 "Look into tensor files: .dat, .safetensors, .ckpt, a model "
                 "directory, or - for a .dat\non standard input.  Without options: "
                 "one line for each tensor, then a total." },
};

/* One of the forms of output, and its argument. */
static void
take_action(const struct cmd_option *o, const char *arg)
{
    static const char *const hashes[] = { "xxh3", "sha256", NULL };
    static const char *const depths[] = { "quick", "full", NULL };
    struct config_datcat *c = o->to.any;
    enum action a = (enum action)o->low;
    if (c->i.action != LIST && c->i.action != a)
        misuse("--%s: cannot be combined with another form of output", o->name);
    c->i.action = a;
    if (a == HIST)
        c->i.bins = arg ? cmd_u64(o->name, arg, 1, 100000) : 20;
    else if (a == HASH)
        c->i.hash =
            arg && cmd_word(o->name, arg, hashes) == 1 ? HASH_SHA256 : HASH_XXH3;
    else if (a == VERIFY)
        c->i.full = !arg || cmd_word(o->name, arg, depths) == 1;
    else
        c->i.target = arg;
}

static const char *const sorts[] = { "bytes", "absmax", "diff", "name", NULL };

#define ACTION(a) CMD_CALL_WITH(&cfg, take_action, a)

static const struct cmd_option options[] = {
    { 'l', "names", NULL, "names only", ACTION(NAMES) },
    { 0, "json", NULL, "one JSON document", ACTION(JSON) },
    { 0, "ndjson", NULL, "one JSON object a tensor", ACTION(NDJSON) },
    { 0, "tsv", NULL, "the same as tab-separated columns with a header", ACTION(TSV) },
    { CMD_SELECT(&cfg.i.select, "only these tensors (repeatable)") },
    { CMD_EXCLUDE(&cfg.i.select) },
    { 0, "group", NULL, "one line for the tensors that differ in layer number",
      CMD_FLAG(&cfg.i.group) },
    { 0, "stats", NULL, "min max mean std absmax zeros nan inf of the values",
      CMD_FLAG(&cfg.i.stats) },
    { 0, "all", NULL, "with --stats: of a checkpoint the optimizer's arrays, too",
      CMD_FLAG(&cfg.i.all) },
    { 0, "sort", "KEY", "rows by bytes, absmax or diff (largest first) or name",
      CMD_CHOICE(&cfg.i.sort, sorts, SORT_BYTES) },
    { 0, "top", "N", "only the first N rows", CMD_U64(&cfg.i.top, 1, UINT32_MAX) },
    { 0, "hist", "[=BINS]", "histogram of the values (20 bins)", ACTION(HIST) },
    { 0, "values", "NAME[:COUNT]", "decoded values, one a line", ACTION(VALUES) },
    { 0, "payload", "NAME", "raw bytes of an entry to standard output",
      ACTION(PAYLOAD) },
    { 0, "npy", "NAME", "a decoded tensor as a NumPy array to standard output",
      ACTION(NPY) },
    { 0, "hash", "[=xxh3|sha256]", "hash of each entry and of the file", ACTION(HASH) },
    { 0, "check", "MANIFEST", "compare with the output of --hash", ACTION(CHECK),
      .file = true },
    { 0, "diff", NULL, "compare two files; 1 if they differ", ACTION(DIFF) },
    { 0, "atol", "X", "with --diff: values may differ by X + rtol*|b|",
      CMD_NUMBER(&cfg.i.atol, 0) },
    { 0, "rtol", "X", "with --diff: see --atol", CMD_NUMBER(&cfg.i.rtol, 0) },
    { 0, "verify", "[=quick|full]", "check structure and checksums; 1 if damaged",
      ACTION(VERIFY) },
    { 0, "map", NULL, "account for every byte", ACTION(MAP) },
    { 0, "meta", NULL, "configuration, training state, provenance as JSON",
      ACTION(META) },
    { 0, "attest", NULL, "how it was made, as an in-toto statement", ACTION(ATTEST) },
    { 0, "raw-entries", NULL, "show NVFP4 codes and scales as the entries they are",
      CMD_FLAG(&cfg.i.raw) },
    { CMD_STRICT(&cfg.i.strict) },
    { CMD_THREADS(&cfg.i.threads) },
    CMD_COMMON(cfg.cmd),
};

static void
check_combination(const struct config_datcat *c, int operands)
{
    enum action a = c->i.action;
    bool listing = a == LIST || a == JSON || a == NDJSON || a == TSV;
    bool rows = listing || a == NAMES || a == DIFF;
    if (operands < 1)
        cmd_refuse_without("FILE", &c->cmd);
    if (a == DIFF && operands != 2)
        misuse("--diff: want two files, found %d", operands);
    if (operands > 1 &&
        (a == VALUES || a == PAYLOAD || a == NPY || a == CHECK || a == ATTEST))
        misuse("want one FILE, found %d", operands);
    if (a == ATTEST && (c->i.select.n_in || c->i.select.n_out))
        misuse("--attest: takes whole files: expected neither -s nor -x");
    if (c->i.stats && !listing)
        misuse("--stats: goes with a listing, --json, --ndjson or --tsv");
    if (c->i.all && !c->i.stats)
        misuse("--all: goes with --stats");
    if (c->i.group && a != LIST)
        misuse("--group: goes with the plain listing");
    if ((c->i.sort != SORT_NONE || c->i.top) && (!rows || c->i.group))
        misuse("--sort and --top: go with a listing of tensors or --diff");
    if (c->i.sort == SORT_ABSMAX && !c->i.stats)
        misuse("--sort absmax: needs --stats, which computes it");
    if (c->i.sort == SORT_DIFF && a != DIFF)
        misuse("--sort diff: goes with --diff");
    if (c->i.tolerant && a != DIFF)
        misuse("--atol and --rtol go with --diff");
}

static int
parse_options(struct config_datcat *c, int argc, char **argv)
{
    int first =
        cmd_parse(&c->cmd, options, sizeof options / sizeof *options, argc, argv);
    c->i.tolerant = cmd_given(&c->cmd, "atol") || cmd_given(&c->cmd, "rtol");
    check_combination(c, argc - first);
    c->i.many = argc - first > 1;
    return first;
}

/* A -s that matched nothing is an error. */
static int
check_selection(const struct inspect *c, const char *where, struct err *err)
{
    const char *unused = select_unused(&c->select);
    char q[TEXT_QUOTE];
    if (unused)
        return err_set(err, ERR_USAGE, "%s: no tensor matches \"%s\"", where,
                       text_quote(q, unused, strlen(unused)));
    return 0;
}

/* Keep the views that -s and -x select. */
static int
select_views(struct inspect *c, struct subject *f, struct err *err)
{
    size_t kept = 0;
    // Statistics are those of the weights, unless arrays of the optimizer were asked for.
    bool weights = c->stats && !c->all && c->select.n_in == 0;
    for (size_t i = 0; i < f->views.n; i++)
        if (select_matches(&c->select, f->views.v[i].name) &&
            !(weights && f->views.v[i].entry->state))
            f->views.v[kept++] = f->views.v[i];
    f->views.n = kept;
    // Of several files one that matches is enough.
    return c->many ? 0 : check_selection(c, f->store.name, err);
}

static int
subject_open(struct inspect *c, struct subject *f, const char *path, struct err *err)
{
    enum action a = c->action;
    const struct host *host = c->printer->host;
    struct store_options opt = { .guard = host->guard,
                                 .strict = c->strict,
                                 .tmpdir = host->tmpdir,
                                 .list_only = !c->stats && (a <= TSV || a == MAP) };
    // Hashes are of raw entries, and --payload names one.
    bool raw = c->raw || a == HASH || a == CHECK || a == PAYLOAD;
    *f = (struct subject){ .host = host };
    if (store_open(&f->store, path, &opt, err) < 0)
        return -1;
    if ((a == JSON || a == META || a == VERIFY || a == ATTEST) &&
        store_load_beside(&f->store) < 0)
        return -1;
    if ((a == JSON || a == META) && store_meta(&f->store) < 0)
        return -1;
    if (views_open(&f->views, &f->store, raw) < 0 || select_views(c, f, err) < 0)
        return -1;
    if (!host->quiet)
        warn_lines(&f->store.warnings);
    if (host->verbose && !host->quiet)
        warn("%s: %s, %zu files, %zu entries, %llu bytes", f->store.name,
             store_kind(&f->store), f->store.n_files, f->store.n_tensors,
             (unsigned long long)f->store.bytes);
    if (c->stats && scan_stats(c, f, err) < 0)
        return -1;
    return c->action == DIFF ? 0 : order_views(c, f, err);
}

static void
subject_close(struct subject *f)
{
    free(f->stats);
    views_close(&f->views);
    store_close(&f->store);
}

static int
print_hashes(const struct inspect *c, struct subject *f, struct err *err)
{
    uint8_t *digests;
    struct buf out = { 0 };
    char hex[2 * HASH_MAX + 1];
    size_t n = hash_bytes(c->hash);
    if (scan_hash(c, f, c->hash, &digests, err) < 0)
        return -1;
    for (size_t i = 0; i < f->views.n; i++) {
        size_t entry = (size_t)(f->views.v[i].entry - f->store.tensors);
        hash_hex(hex, digests + entry * HASH_MAX, n);
        buf_printf(&out, "%s  ", hex);
        text_escape(&out, f->views.v[i].name, f->views.v[i].name_len);
        buf_char(&out, '\n');
    }
    // The file as a whole is meant only where all of it was asked for.
    if (c->select.n_in == 0 && c->select.n_out == 0) {
        hash_hex(hex, digests + f->store.n_tensors * HASH_MAX, n);
        buf_printf(&out, "%s  *\n", hex);
    }
    free(digests);
    printer_put(c->printer, &out, HOST_TEXT);
    buf_free(&out);
    return printer_end(c->printer);
}

/* The answer: an exit code, or -1 with *err. */
static int
act(const struct inspect *c, struct subject *f, struct err *err)
{
    switch (c->action) {
    case LIST:
        return list_text(c, f);
    case NAMES:
        return list_names(c, f);
    case JSON:
        return list_json(c, f);
    case NDJSON:
    case TSV:
        return list_lines(c, f);
    case MAP:
        return list_map(c, f);
    case META:
        return list_meta(c, f);
    case HIST:
        return scan_hist(c, f, err);
    case VALUES:
        return scan_values(c, f, err);
    case PAYLOAD:
        return scan_payload(c, f, err);
    case NPY:
        return npy_write(c, f, err);
    case ATTEST:
        return attest_store(c, f, err);
    case HASH:
        return print_hashes(c, f, err);
    case CHECK:
        return compare_check(c, f, err);
    default: // VERIFY
        return compare_verify(c, f, err);
    }
}

static int
one_tensor_file(struct inspect *c, const char *path, struct err *err)
{
    struct subject f;
    int answer = subject_open(c, &f, path, err);
    if (answer == 0 && c->many &&
        (c->action == LIST || c->action == NAMES || c->action == HASH ||
         c->action == HIST || c->action == MAP))
        printer_line(c->printer, "==> %s <==\n", f.store.name);
    if (answer == 0)
        answer = act(c, &f, err);
    // A checkpoint with a wrong list of arrays is shown all the same, and then refused.
    if (answer == EXIT_DONE && training_check(&f.store, err) < 0)
        answer = -1;
    if (answer >= 0 && store_check(&f.store) < 0)
        answer = -1;
    subject_close(&f);
    return answer;
}

/* N[:COUNT] of --values, which counts samples of a .tok. */
static void
take_samples(struct inspect *c)
{
    char *text = cmd_copy(c->target);
    char *colon = strchr(text, ':');
    if (colon)
        *colon = '\0';
    c->values.first = cmd_u64("values", text, 0, INT64_MAX);
    c->values.count = colon ? cmd_u64("values", colon + 1, 0, INT64_MAX) : UINT64_MAX;
    free(text);
}

static int
one_tok(struct inspect *c, const char *path, struct err *err)
{
    if (tok_check_action(c, path, err) < 0)
        return -1;
    if (c->action == VALUES)
        take_samples(c);
    return tok_file(c, path, err);
}

static int
one_file(struct inspect *c, const char *path, struct err *err)
{
    int answer =
        tok_is_file(path) ? one_tok(c, path, err) : one_tensor_file(c, path, err);
    // Damage is an answer of --verify; trouble with reading is not.
    if (answer < 0 && c->action == VERIFY && err->kind == ERR_FORMAT) {
        warn("%s", err->msg);
        return EXIT_NO;
    }
    return answer;
}

static int
two_files(struct inspect *c, char **paths, struct err *err)
{
    struct subject a, b = { 0 };
    int answer = subject_open(c, &a, paths[0], err);
    if (answer == 0)
        answer = subject_open(c, &b, paths[1], err);
    if (answer == 0)
        answer = check_selection(c, "both files", err);
    if (answer == 0)
        answer = compare_diff(c, &a, &b, err);
    if (answer >= 0 &&
        (training_check(&a.store, err) < 0 || training_check(&b.store, err) < 0 ||
         store_check(&a.store) < 0 || store_check(&b.store) < 0))
        answer = -1;
    subject_close(&a);
    subject_close(&b);
    return answer;
}

/* Whether values are computed. */
static bool
decodes(const struct inspect *c)
{
    enum action a = c->action;
    return c->stats || a == HIST || a == VALUES || a == NPY || a == DIFF || a == VERIFY;
}

int
main(int argc, char **argv)
{
    struct err err = { 0 };
    struct printer printer = { .err = &err };
    struct inspect *c = &cfg.i;
    int answer = EXIT_DONE;
    cmd_begin(&cfg.cmd);
    c->threads = cmd_threads(NULL);
    int first = parse_options(&cfg, argc, argv);
    printer.host = decodes(c) ? cmd_host(&cfg.cmd) : cmd_host_of(&cfg.cmd, ISA_SCALAR);
    c->printer = &printer;
    if (c->action == DIFF)
        answer = two_files(c, argv + first, &err);
    for (int i = first; i < argc && c->action != DIFF && err.kind == ERR_NONE; i++) {
        int one = one_file(c, argv[i], &err);
        if (one > answer)
            answer = one;
        if (c->action == VERIFY && cmd_status(&err) == EXIT_TROUBLE &&
            err.kind == ERR_FORMAT)
            err = (struct err){ 0 }; // reported; go on to the next file
    }
    if (err.kind == ERR_NONE && c->action != DIFF && c->many)
        check_selection(c, "the files", &err);
    if (err.kind)
        die_err(&err);
    cmd_close_stdout();
    return answer;
}
