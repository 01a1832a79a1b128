/* SPDX-License-Identifier: MIT */
/* datpack: put tensors from any container into any other. */
#include "cmd/datpack/datpack.h"

#include "lib/core/feed.h"
#include "lib/core/par.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    OPT_TO = 256,
    OPT_DTYPE,
    OPT_RENAME,
    OPT_LIKE,
    OPT_UNTIE,
    OPT_TIE,
    OPT_CONFIG,
    OPT_SHARD_SIZE,
    OPT_STRICT,
    OPT_QUANT,
    OPT_VARIANT,
    OPT_CRITERION,
    OPT_SHARE,
    OPT_INIT,
    OPT_MASTER,
    OPT_MOMENTS,
    OPT_COMPAT
};

static struct cmd_option options[] = {
    { 'o', "output", "OUT", "write here; a name that ends in / is a model directory" },
    { OPT_TO, "to", "KIND", "(default: by the suffix of OUT)" }, // main adds the words
    { 'f', "force", NULL, "replace OUT if it exists" },
    { OPT_DTYPE, "dtype", "TYPE", "f16, bf16, f32, nvfp4 or keep (default keep)" },
    { 's', "select", "GLOB", "only these tensors (repeatable)" },
    { 'x', "exclude", "GLOB", "not these (repeatable, wins over -s)" },
    { OPT_RENAME, "rename", "OLD=NEW", "rename; one * on each side is the same text" },
    { OPT_LIKE, "like", "REF",
      "order, names and types of REF, payloads of the inputs" },
    { OPT_UNTIE, "untie", NULL, "store lm_head.weight; the model becomes untied" },
    { OPT_TIE, "tie", NULL, "do not store the head of a tied model" },
    { OPT_CONFIG, "config", "FILE", "the model's config.json" },
    { OPT_SHARD_SIZE, "shard-size", "BYTES",
      "of a model directory's files (default 5G)" },
    { OPT_INIT, "init", "SEED", "instead of inputs: random weights for --config" },
    { OPT_MASTER, "master", "TYPE", "of a new checkpoint: f32 or bf16 (default bf16)" },
    { OPT_MOMENTS, "moments", "TYPE", "f32, bf16 or int8 (default int8)" },
    { OPT_QUANT, "quant", "NAME", "how a checkpoint's forward pass sees its weights" },
    { OPT_VARIANT, "variant", "NAME", "of that quantizer: modelopt" },
    { OPT_CRITERION, "criterion", "NAME", "of that quantizer: mse or mae" },
    { OPT_SHARE, "share-scale", "LIST", "none or qkv,gate_up" },
    { OPT_COMPAT, "compat", "seed", "what the seed's programs can read" },
    { OPT_STRICT, "strict", NULL, "refuse what is merely odd" },
    { 'j', "threads", "N", "threads (default: all processors)" },
    CMD_COMMON,
};

static void
take_rename(struct config_datpack *c, const char *arg)
{
    size_t at = strcspn(arg, "=");
    if (at == 0 || arg[at] == '\0' || arg[at + 1] == '\0')
        misuse("--rename: %s: want OLD=NEW", arg);
    char *text = cmd_copy(arg);
    char *eq = text + at;
    *eq = '\0';
    const char *a = strchr(text, '*'), *b = strchr(eq + 1, '*');
    if (!a != !b || (a && strchr(a + 1, '*')) || (b && strchr(b + 1, '*')))
        misuse("--rename: %s: want one * on each side, or none", arg);
    if (c->n_renames == MAX_RENAMES)
        misuse("--rename: more than %d", MAX_RENAMES);
    c->rename[c->n_renames++] = (struct rename){ text, eq + 1, false };
}

static bool
writes_ckpt(const struct config_datpack *c)
{
    return writer_traits(c->to)->training;
}

static const char *
one_of(const char *option, const char *arg, const char *const *words)
{
    return words[cmd_word(option, arg, words)];
}

static void
take_option(struct config_datpack *c, int opt, const char *arg)
{
    static const char *const dtypes[] = { "keep", "f16", "bf16", "f32", "nvfp4", NULL };
    static const char *const masters[] = { "f32", "bf16", NULL };
    static const char *const moments[] = { "f32", "bf16", "int8", "nvfp4", NULL };
    static const char *const quants[] = { "none", "torchao", "native", "sweep1",
                                          "max",  "4over6",  "sweep",  NULL };
    static const char *const variants[] = { "modelopt", NULL };
    static const char *const criteria[] = { "mse", "mae", NULL };
    static const char *const shares[] = { "none", "qkv,gate_up", NULL };
    static const char *const compats[] = { "seed", NULL };
    switch (opt) {
    case 'o':
        c->out = arg;
        break;
    case 'f':
        c->force = true;
        break;
    case 's':
    case 'x':
        select_add(&c->select, opt == 'x', arg);
        break;
    case 'j':
        c->threads = cmd_threads(arg);
        break;
    case OPT_TO:
        c->to = cmd_word_of("to", arg, writer_kind);
        break;
    case OPT_DTYPE:
        c->dtype = (enum dtype_wish)cmd_word("dtype", arg, dtypes);
        c->dtype_given = c->dtype != WISH_KEEP;
        break;
    case OPT_RENAME:
        take_rename(c, arg);
        break;
    case OPT_LIKE:
        c->like = arg;
        break;
    case OPT_UNTIE:
        c->head = HEAD_UNTIE;
        break;
    case OPT_TIE:
        c->head = HEAD_TIE;
        break;
    case OPT_CONFIG:
        c->config_path = arg;
        break;
    case OPT_SHARD_SIZE:
        c->shard_bytes = cmd_bytes("shard-size", arg, 1);
        c->shards_given = true;
        break;
    case OPT_INIT:
        c->init = true;
        c->init_seed = (uint32_t)cmd_u64("init", arg, 0, UINT32_MAX);
        break;
    case OPT_MASTER:
        c->master = one_of("master", arg, masters);
        break;
    case OPT_MOMENTS:
        c->moments = one_of("moments", arg, moments);
        break;
    case OPT_QUANT:
        c->quant = one_of("quant", arg, quants);
        break;
    case OPT_VARIANT:
        c->variant = one_of("variant", arg, variants);
        break;
    case OPT_CRITERION:
        c->criterion = one_of("criterion", arg, criteria);
        break;
    case OPT_SHARE:
        c->share = one_of("share-scale", arg, shares);
        break;
    case OPT_COMPAT:
        one_of("compat", arg, compats);
        c->seed_compat = true;
        break;
    default: // OPT_STRICT
        c->strict = true;
    }
}

/* The container by --to or by the suffix of OUT. */
static void
settle_target(struct config_datpack *c)
{
    c->directory = slice_ends(slice_of(c->out), "/");
    if (!c->to)
        c->to = writer_kind_of(c->out);
    if (!c->to)
        misuse("%s: which container? its suffix does not tell; --to does", c->out);
    if (c->directory && !writer_traits(c->to)->to_directory)
        misuse("%s: a %s is a file, not a directory", c->out, c->to);
    if (!c->directory && writer_traits(c->to)->directory_only)
        misuse("%s: %s is a model directory: want a name that ends in /", c->out,
               c->to);
}

static void
check_combination(const struct config_datpack *c, int operands)
{
    bool ckpt = writes_ckpt(c);
    if (c->init && operands > 0)
        misuse("--init: takes no INPUT");
    if (!c->init && operands < 1)
        misuse("want an INPUT; --help shows how");
    if (c->like && (c->init || ckpt))
        misuse("--like: goes with inputs and a .dat or safetensors output");
    if (c->like && (c->dtype_given || c->n_renames))
        misuse("--like: names and types are those of the reference");
    if (ckpt && c->dtype_given)
        misuse("--dtype: a checkpoint's type is --master");
    if (!ckpt && (c->master || c->moments))
        misuse("--master, --moments: go with --to ckpt");
    if (!ckpt && (c->quant || c->variant || c->criterion || c->share))
        misuse("--quant and its options: only --to ckpt keeps them; nothing can be "
               "quantized yet");
    if (c->moments && strcmp(c->moments, "nvfp4") == 0 && !c->seed_compat)
        misuse("--moments nvfp4: only with --compat seed");
    if (c->shards_given && !c->directory)
        misuse("--shard-size: goes with an OUT that ends in /");
    if (c->seed_compat && !writer_traits(c->to)->seed_reads)
        misuse("--compat seed: the seed reads .dat files");
}

static int
parse(struct config_datpack *c, int argc, char **argv)
{
    const char *arg;
    int first;
    for (int opt; (opt = cmd_option(&c->cmd, argc, argv, &arg, &first)) >= 0;)
        take_option(c, opt, arg);
    if (!c->out)
        misuse("want -o OUT; --help shows how");
    settle_target(c);
    check_combination(c, argc - first);
    if (strcmp(c->out, "-") == 0)
        cmd_refuse_terminal();
    return first;
}

/* ---- the settings of a new checkpoint ---------------------------------------------------- */

/* The quantizer of the first input that tells one, where none was asked for. */
static void
settle_quant(struct config_datpack *c, const struct plan *p)
{
    struct quant_words old = { 0 };
    if (!writes_ckpt(c))
        return;
    for (size_t i = 0; i < p->n_inputs && !c->quant && !old.name; i++)
        old = p->inputs[i].store.quant;
    if (!c->quant)
        c->quant = old.name ? old.name : "sweep";
    bool shares = strcmp(c->quant, "sweep") == 0 || strcmp(c->quant, "4over6") == 0;
    if (!c->criterion)
        c->criterion = old.name ? old.criterion : "mse";
    if (!c->share)
        c->share = old.name ? old.share : shares ? "qkv,gate_up" : "none";
    if (!c->variant)
        c->variant = old.name ? old.variant : "";
}

/* ---- provenance --------------------------------------------------------------------------- */

static void
put_globs(struct buf *b, const char *key, const struct glob *glob, size_t n)
{
    if (n == 0)
        return;
    buf_printf(b, "\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_char(b, ',');
        json_put(b, slice_of(glob[i].pattern));
    }
    buf_str(b, "],");
}

static void
put_word(struct buf *b, const char *key, const char *value)
{
    if (!value)
        return;
    buf_printf(b, "\"%s\":", key);
    json_put(b, slice_of(value));
    buf_char(b, ',');
}

/* What was asked for, as far as it can change the content; keys sorted. */
static void
put_options(struct buf *b, const struct config_datpack *c)
{
    static const char *const dtypes[] = { NULL, "f16", "bf16", "f32", "nvfp4" };
    bool ckpt = writes_ckpt(c);
    buf_char(b, '{');
    put_word(b, "compat", c->seed_compat ? "seed" : NULL);
    put_word(b, "criterion", ckpt ? c->criterion : NULL);
    put_word(b, "dtype", dtypes[c->dtype]);
    put_globs(b, "exclude", c->select.out, c->select.n_out);
    put_word(b, "head",
             c->head == HEAD_TIE     ? "tie"
             : c->head == HEAD_UNTIE ? "untie"
                                     : NULL);
    if (c->init)
        buf_printf(b, "\"init\":%u,", c->init_seed);
    if (c->like)
        buf_str(b, "\"like\":true,");
    put_word(b, "master", ckpt ? c->master : NULL);
    put_word(b, "moments", ckpt ? c->moments : NULL);
    put_word(b, "quant", ckpt ? c->quant : NULL);
    if (c->n_renames) {
        buf_str(b, "\"rename\":[");
        for (size_t i = 0; i < c->n_renames; i++) {
            buf_str(b, i ? ",[" : "[");
            json_put(b, slice_of(c->rename[i].old));
            buf_char(b, ',');
            json_put(b, slice_of(c->rename[i].new));
            buf_char(b, ']');
        }
        buf_str(b, "],");
    }
    put_globs(b, "select", c->select.in, c->select.n_in);
    put_word(b, "share", ckpt ? c->share : NULL);
    put_word(b, "to", c->to);
    put_word(b, "variant", ckpt && *c->variant ? c->variant : NULL);
    b->data[b->len - 1] = '}'; // in place of the last comma: "to" is always there
}

/* Equal in length whatever the hashes are, so that it can be laid out before they are
 * known. */
static void
put_provenance(struct buf *b, const struct plan *p)
{
    char hex[2 * XXH3_BYTES + 1];
    b->len = 0;
    buf_str(b, "{\"inputs\":[");
    for (size_t i = 0; i < p->n_inputs + p->has_like; i++) {
        const struct input *in = &p->inputs[i];
        hash_hex(hex, in->xxh3, XXH3_BYTES);
        buf_printf(b, "%s{\"kind\":\"%s\",\"provenance\":", i ? "," : "",
                   store_kind(&in->store));
        if (in->store.provenance.p)
            buf_add(b, in->store.provenance.p, in->store.provenance.n);
        else
            buf_str(b, "null");
        buf_printf(b, ",\"xxh3\":\"%s\"}", hex);
    }
    buf_str(b, "],\"options\":");
    if (!b->failed)
        put_options(b, p->c);
    buf_printf(b, ",\"tool\":\"datpack\",\"version\":\"%s\"}", cmd_version());
    if (b->failed)
        die(EXIT_MEMORY, "out of memory for the provenance");
}

/* The inputs are hashed while the output is written. */
enum hash_when { HASH_NOW, HASH_MEANWHILE, HASH_LATER };

struct hasher {
    struct plan *p;
    struct err err;
    pthread_t thread;
    bool running;
};

static void *
hash_inputs(void *arg)
{
    struct hasher *h = arg;
    struct plan *p = h->p;
    for (size_t i = 0; i < p->n_inputs + p->has_like && !h->err.kind; i++)
        store_content_hash(&p->inputs[i].store, p->inputs[i].xxh3, 1, &h->err);
    return NULL;
}

static void
hasher_start(struct hasher *h, struct plan *p, enum hash_when when)
{
    *h = (struct hasher){ .p = p };
    if (when == HASH_LATER)
        return;
    h->running = when == HASH_MEANWHILE && p->c->threads > 1 &&
                 pthread_create(&h->thread, NULL, hash_inputs, h) == 0;
    if (!h->running)
        hash_inputs(h);
}

static int
hasher_finish(struct hasher *h, struct err *err)
{
    if (h->running)
        pthread_join(h->thread, NULL);
    h->running = false;
    return h->err.kind ? err_set(err, h->err.kind, "%s", h->err.msg) : 0;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* What serves a model besides its weights. */
static const char *const companions[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
};

static int
copy_companions(struct plan *p, struct writer *w)
{
    struct store *s = p->n_inputs ? &p->inputs[0].store : NULL;
    if (!s || strcmp(s->path, "-") == 0)
        return 0;
    const char *slash = strrchr(s->path, '/');
    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++) {
        struct buf path = { 0 };
        struct map m;
        if (s->is_directory)
            buf_printf(&path, "%s/%s", s->path, companions[i]);
        else
            buf_printf(&path, "%.*s%s", slash ? (int)(slash - s->path) + 1 : 0, s->path,
                       companions[i]);
        int rc = buf_ok(&path, p->err);
        if (rc == 0 && access(path.data, F_OK) == 0) {
            rc = map_open(&m, path.data, &cmd_guard, p->err);
            if (rc == 0)
                rc = writer_extra(w, companions[i], m.data, m.size);
            if (rc == 0)
                rc = map_check(&m, p->err);
            map_close(&m);
        }
        buf_free(&path);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int
check_not_input(const struct plan *p, const char *out)
{
    struct stat st;
    for (size_t i = 0; i < p->n_inputs + p->has_like; i++)
        if (store_reads(&p->inputs[i].store, out))
            return err_set(p->err, ERR_USAGE, "%s: is an input, too", out);
    if (p->c->config_path && stat(p->c->config_path, &st) == 0 &&
        (out_is_file(out, st.st_dev, st.st_ino) || out_holds(out, p->c->config_path)))
        return err_set(p->err, ERR_USAGE, "%s: is an input, too", out);
    return 0;
}

static struct wtensor *
wtensors(const struct plan *p)
{
    struct wtensor *t = calloc(p->n ? p->n : 1, sizeof *t);
    for (size_t i = 0; t && i < p->n; i++)
        t[i] = (struct wtensor){ .name = p->item[i].name,
                                 .dtype = p->item[i].dtype,
                                 .rank = p->item[i].rank,
                                 .shape = p->item[i].shape,
                                 .tag = i };
    if (!t)
        err_set(p->err, ERR_MEMORY, "out of memory for the plan");
    return t;
}

static int
write_items(struct plan *p, struct writer *w)
{
    struct progress progress;
    uint64_t total = 0;
    for (size_t i = 0; i < w->n; i++)
        total += w->t[i].nbytes;
    progress_begin(&progress, &p->c->cmd, "writing", total);
    struct producer *x = producer_open(p, w, &progress);
    int rc = x ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < w->n; i++)
        rc = producer_item(x, &p->item[w->t[i].tag]);
    producer_close(x);
    progress_end(&progress);
    for (size_t i = 0; rc == 0 && i < p->n_inputs + p->has_like; i++)
        rc = store_check(&p->inputs[i].store);
    return rc;
}

static int
write_output(const struct config_datpack *c, struct plan *p, struct err *err)
{
    struct buf text = { 0 };
    struct writer w = { 0 };
    struct hasher hasher;
    struct wtensor *t = wtensors(p);
    if (!t)
        return -1;
    // A stream cannot be patched: its provenance must be known before the first byte.
    // Elsewhere the output comes first: what is wrong with it should be heard at once.
    bool stream = out_is_stream(c->out);
    hasher_start(&hasher, p, stream ? HASH_NOW : HASH_LATER);
    put_provenance(&text, p);
    struct wmeta meta = { .config = p->config,
                          .provenance = { text.data, text.len },
                          .bare = c->seed_compat,
                          .master = c->master,
                          .moments = c->moments,
                          .quant = c->quant,
                          .variant = c->variant,
                          .criterion = c->criterion,
                          .share = c->share };
    struct writer_options opt = { .flags = c->force ? OUT_FORCE : 0,
                                  .directory = c->directory,
                                  .shard_bytes = c->shard_bytes,
                                  .guard = &cmd_guard };
    int rc = writer_open(&w, c->to, c->out, t, p->n, &meta, &opt, err);
    if (rc == 0 && !stream)
        hasher_start(&hasher, p, HASH_MEANWHILE);
    if (rc == 0)
        rc = write_items(p, &w);
    if (hasher_finish(&hasher, err) < 0)
        rc = -1;
    if (rc == 0) {
        put_provenance(&text, p);
        if (c->directory)
            rc = copy_companions(p, &w);
    }
    if (rc == 0)
        rc = writer_commit(&w, (struct slice){ text.data, text.len });
    writer_close(&w);
    buf_free(&text);
    free(t);
    return rc;
}

static int
pack(struct config_datpack *c, char **paths, size_t n, struct err *err)
{
    struct plan p;
    bool ckpt = writes_ckpt(c);
    assert(c->out);
    if (ckpt && !c->master)
        c->master = "bf16";
    if (ckpt && !c->moments)
        c->moments = "int8";
    int rc = plan_open(&p, c, paths, n, err);
    if (rc == 0)
        settle_quant(c, &p);
    if (rc == 0)
        rc = check_not_input(&p, c->out);
    if (rc == 0)
        rc = write_output(c, &p, err);
    if (rc == 0 && c->directory && !p.config.p && !c->cmd.quiet)
        warn("%s: no configuration was found, so it has no config.json", c->out);
    if (rc == 0 && c->cmd.verbose && !c->cmd.quiet)
        warn("%s: %s, %zu tensors", c->out, c->to, p.n);
    plan_close(&p);
    return rc;
}

int
main(int argc, char **argv)
{
    static struct config_datpack c = {
        .cmd = { .name = "datpack",
                 .synopsis = "datpack [OPTION]... -o OUT INPUT...",
                 .about =
                     "Put tensors from any container into any other: .dat, "
                     ".safetensors, .ckpt, model\ndirectories.  Later inputs replace "
                     "tensors of earlier ones.",
                 .options = options,
                 .n_options = sizeof options / sizeof *options },
        .shard_bytes = (uint64_t)5 << 30,
    };
    struct err err = { 0 };
    cmd_begin(&c.cmd);
    cmd_help_words(options, sizeof options / sizeof *options, OPT_TO, writer_kind);
    c.threads = cmd_threads(NULL);
    int first = parse(&c, argc, argv);
    if (pack(&c, argv + first, (size_t)(argc - first), &err) < 0)
        die_err(&err);
    cmd_close_stdout();
    return EXIT_DONE;
}
