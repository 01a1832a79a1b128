/* SPDX-License-Identifier: MIT */
/* output: the file, its provenance, and what lies beside it. */
#include "lib/io/gguf_vocab.h"
#include "lib/io/pack/plan.h"

#include "lib/core/json.h"
#include "lib/core/lock.h"
#include "lib/core/path.h"
#include "lib/format/provenance.h"

#include <assert.h>
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static bool
quantizes(const struct plan *p)
{
    for (size_t i = 0; i < p->n_nvfp4; i++)
        if (p->nvfp4[i]->quantize)
            return true;
    return false;
}

/* What was asked for, as far as it can change the content; keys sorted. */
static void
put_options(struct buf *b, const struct plan *p)
{
    static const char *const dtypes[] = { NULL, "keep", "f16", "bf16", "f32", "nvfp4" };
    const struct pack *c = p->c;
    bool ckpt = writer_traits(c->to)->training;
    bool quant = ckpt || quantizes(p);
    bool part = c->quantize || c->dequantize;
    const struct select *select = part ? &c->quantized : &c->select;
    buf_char(b, '{');
    put_word(b, "compat", c->seed_compat ? "seed" : NULL);
    put_word(b, "criterion", quant ? c->criterion : NULL);
    if (c->dequantize)
        buf_str(b, "\"dequant\":true,");
    put_word(b, "dtype", dtypes[c->dtype]);
    put_globs(b, "exclude", select->out, select->n_out);
    if (quant && c->exhaustive)
        buf_str(b, "\"exhaustive\":true,");
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
    put_word(b, "quant", quant ? c->quant : NULL);
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
    put_globs(b, "select", select->in, select->n_in);
    put_word(b, "share", quant ? c->share : NULL);
    put_word(b, "to", c->to);
    put_word(b, "variant", quant && *c->variant ? c->variant : NULL);
    b->data[b->len - 1] = '}'; // in place of the last comma: "to" is always there
}

/* Equal in length whatever the hashes are, so that it can be laid out before they are
 * known. */
static int
put_provenance(struct buf *b, const struct plan *p)
{
    b->len = 0;
    provenance_begin(b);
    for (size_t i = 0; i < p->n_inputs + p->has_like; i++) {
        const struct input *in = &p->inputs[i];
        provenance_input(b, slice_of(store_kind(&in->store)), in->store.provenance, 1,
                         in->xxh3);
    }
    provenance_options(b);
    if (!b->failed)
        put_options(b, p);
    provenance_end(b, p->c->io->program, slice_of(p->c->io->version));
    return b->failed ? err_set(p->err, ERR_MEMORY, "out of memory for the provenance")
                     : 0;
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
    for (size_t i = 0; i < p->n_inputs + p->has_like; i++) {
        struct store *s = &p->inputs[i].store;
        if (store_content_hash(s, p->inputs[i].xxh3, 1, &h->err) < 0 ||
            store_check_gaps(s, &h->err) < 0)
            break;
    }
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

/* A file that lies beside the input, if it does. */
static int
copy_file(struct plan *p, struct writer *w, const char *path, const char *leaf)
{
    struct map m;
    int rc = path_exists(path, p->err);
    if (rc <= 0)
        return rc;
    rc = map_open(&m, path, p->c->io->guard, p->err);
    if (rc == 0)
        rc = writer_extra(w, leaf, m.data, m.size);
    if (rc == 0)
        rc = map_check(&m, p->err);
    map_close(&m);
    return rc;
}

/* What serves a model besides its weights. */
static int
copy_companions(struct plan *p, struct writer *w, const struct store *s)
{
    const char *slash = strrchr(s->path, '/'), *leaf;
    int rc = 0;
    for (size_t i = 0; rc == 0 && (leaf = modeldir_companion(i)); i++) {
        struct buf path = { 0 };
        if (s->is_directory)
            buf_printf(&path, "%s/%s", s->path, leaf);
        else
            buf_printf(&path, "%.*s%s", slash ? (int)(slash - s->path) + 1 : 0, s->path,
                       leaf);
        rc = buf_ok(&path, p->err);
        if (rc == 0)
            rc = copy_file(p, w, path.data, leaf);
        buf_free(&path);
    }
    return rc;
}

static int
is_card(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return modeldir_is_card(e->d_name) && utf8_check(e->d_name, n) == n;
}

/* The card and the licenses of a model directory.  Beside a file they can be those of
 * something else, and stay where they are. */
static int
copy_cards(struct plan *p, struct writer *w, const struct store *s)
{
    struct dirent **e;
    int rc = 0, n = s->is_directory ? scandir(s->path, &e, is_card, NULL) : 0;
    if (n < 0)
        return err_set(p->err, ERR_IO, "%s:", s->name);
    for (int i = 0; i < n; i++) {
        struct buf path = { 0 };
        struct stat st;
        buf_printf(&path, "%s/%s", s->path, e[i]->d_name);
        if (rc == 0)
            rc = buf_ok(&path, p->err);
        if (rc == 0 && stat(path.data, &st) == 0 && S_ISREG(st.st_mode))
            rc = copy_file(p, w, path.data, e[i]->d_name);
        buf_free(&path);
        free(e[i]);
    }
    if (s->is_directory)
        free(e);
    return rc;
}

static int
copy_beside(struct plan *p, struct writer *w)
{
    const struct store *s = p->n_inputs ? &p->inputs[0].store : NULL;
    if (!s || strcmp(s->path, "-") == 0)
        return 0;
    return copy_companions(p, w, s) < 0 ? -1 : copy_cards(p, w, s);
}

static int
is_input(const struct plan *p, const char *out)
{
    char q[TEXT_QUOTE];
    return err_set(p->err, ERR_USAGE,
                   "%s: is an input, too, or belongs to one: expected another name",
                   text_quote(q, out, strlen(out)));
}

static int
check_not_input(const struct plan *p, const char *out)
{
    struct stat st;
    for (size_t i = 0; i < p->n_inputs + p->has_like; i++)
        if (store_reads(&p->inputs[i].store, out))
            return is_input(p, out);
    if (p->c->config_path && stat(p->c->config_path, &st) == 0 &&
        (path_is_file(out, st.st_dev, st.st_ino) || path_holds(out, p->c->config_path)))
        return is_input(p, out);
    return 0;
}

/* Neither the output nor the sidecar that may come with it. */
static int
check_output(const struct plan *p)
{
    struct buf sidecar = { 0 };
    if (check_not_input(p, p->c->out) < 0)
        return -1;
    if (p->c->directory || path_is_stream(p->c->out) || p->c->seed_compat)
        return 0;
    buf_printf(&sidecar, "%s.json", p->c->out);
    int rc = buf_ok(&sidecar, p->err);
    if (rc == 0)
        rc = check_not_input(p, sidecar.data);
    buf_free(&sidecar);
    return rc;
}

/* What is beside the tokenizer may go into the file, too. */
static int
check_not_tokenizer(const struct plan *p, const char *out, const char *tokenizer)
{
    const char *slash = strrchr(tokenizer, '/'), *leaf;
    struct stat st;
    int rc = 0;
    if (stat(tokenizer, &st) == 0 && path_is_file(out, st.st_dev, st.st_ino))
        return is_input(p, out);
    for (size_t i = 0; rc == 0 && (leaf = modeldir_companion(i)); i++) {
        struct buf path = { 0 };
        buf_printf(&path, "%.*s%s", slash ? (int)(slash - tokenizer) + 1 : 0, tokenizer,
                   leaf);
        rc = buf_ok(&path, p->err);
        if (rc == 0 && stat(path.data, &st) == 0 &&
            path_is_file(out, st.st_dev, st.st_ino))
            rc = is_input(p, out);
        buf_free(&path);
    }
    return rc;
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
    uint64_t total = 0;
    for (size_t i = 0; i < w->n; i++)
        total += w->t[i].nbytes;
    struct io_progress progress = io_progress_begin(p->c->io, "writing", total);
    struct producer *x = producer_open(p, w, &progress);
    int rc = x ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < w->n; i++)
        rc = producer_item(x, &p->item[w->t[i].tag]);
    producer_close(x);
    io_progress_end(&progress);
    for (size_t i = 0; rc == 0 && i < p->n_inputs + p->has_like; i++)
        rc = store_check(&p->inputs[i].store);
    return rc;
}

/* What a file that takes the tokenizer in has to say of it and of the model. */
static int
gather_vocabulary(const struct plan *p, struct gguf_kv *kv)
{
    const struct pack *c = p->c;
    char *found = NULL, **places = NULL;
    const char *path = c->tokenizer;
    int rc = 0;
    if (!path) {
        places = calloc(p->n_inputs + 1, sizeof *places);
        if (!places)
            return err_set(p->err, ERR_MEMORY, "out of memory");
        for (size_t i = 0; i < p->n_inputs; i++)
            places[i] = p->inputs[i].store.path;
        places[p->n_inputs] = (char *)(uintptr_t)c->config_path;
        rc = gguf_find_tokenizer(&found, places, p->n_inputs + 1, p->err);
        path = found;
    }
    if (rc == 0)
        rc = check_not_tokenizer(p, c->out, path);
    if (rc == 0 && c->report)
        rc = check_not_tokenizer(p, c->report, path);
    if (rc == 0)
        rc = gguf_vocab(kv, &p->model, path, p->c->io->guard, p->err);
    free(places);
    free(found);
    return rc;
}

/* ---- what safetensors inputs say of themselves -------------------------------------------- */

/* Members of __metadata__ that go along: of equal keys the first input's. */
struct foreign {
    struct buf text;
    struct names keys;
};

static int
take_member(struct plan *p, struct foreign *f, struct slice key, struct slice value)
{
    char *name = arena_copy(&p->arena, key.p, key.n);
    int there =
        name ? names_add(&f->keys, (struct slice){ name, key.n }, f->keys.n) : -1;
    if (there < 0)
        return plan_no_memory(p);
    if (there > 0)
        return 0;
    buf_str(&f->text, f->text.len ? "," : "");
    json_put(&f->text, key);
    buf_char(&f->text, ':');
    buf_add(&f->text, value.p, value.n);
    return 0;
}

/* "nibble" is made anew. */
static int
take_metadata(struct plan *p, struct foreign *f, struct store *s)
{
    enum { LIMIT = 16 << 20 }; // it is kept in memory; programs write some KiB
    struct slice key, value;
    struct arena scratch = { 0 };
    struct json j;
    int rc = 0;
    if (!s->metadata.p)
        return 0;
    if (s->metadata.n > LIMIT) {
        io_warn(p->c->io,
                "%s: its __metadata__ of %zu bytes is left out, at most %d are kept",
                s->name, s->metadata.n, LIMIT);
        return 0;
    }
    json_open(&j, s->name, 0, s->metadata, &scratch, p->err);
    json_object(&j);
    while (rc == 0 && json_key(&j, &key) > 0) {
        rc = json_skip(&j, &value);
        if (rc == 0 && !slice_is(key, "nibble"))
            rc = take_member(p, f, key, value);
        arena_clear(&scratch);
    }
    arena_free(&scratch);
    return p->err->kind ? -1 : rc;
}

static int
gather_metadata(struct plan *p, struct foreign *f)
{
    static const char format[] = "format", pt[] = "\"pt\"";
    int rc = 0;
    if (!writer_traits(p->c->to)->keeps_metadata)
        return 0;
    for (size_t i = 0; rc == 0 && i < p->n_inputs; i++)
        rc = take_metadata(p, f, &p->inputs[i].store);
    if (rc == 0) // unless an input has said something else
        rc = take_member(p, f, slice_of(format), slice_of(pt));
    return rc == 0 ? buf_ok(&f->text, p->err) : -1;
}

/* ---- the file ----------------------------------------------------------------------------- */

static int
write_output(const struct pack *c, struct plan *p, struct err *err)
{
    struct foreign foreign = { 0 };
    struct gguf_kv kv = { 0 };
    struct buf text = { 0 };
    struct writer w = { 0 };
    struct hasher hasher;
    struct wtensor *t = wtensors(p);
    if (!t)
        return -1;
    // A stream cannot be patched: its provenance must be known before the first byte.
    // Elsewhere the output comes first: what is wrong with it should be heard at once.
    bool stream = path_is_stream(c->out);
    hasher_start(&hasher, p, stream ? HASH_NOW : HASH_LATER);
    int rc = put_provenance(&text, p);
    struct wmeta meta = { .gguf = &kv,
                          .version = c->io->version,
                          .config = p->config,
                          .provenance = { text.data, text.len },
                          .bare = c->seed_compat && !writer_traits(c->to)->training,
                          .master = c->master,
                          .moments = c->moments,
                          .quant = c->quant,
                          .variant = c->variant,
                          .criterion = c->criterion,
                          .share = c->share };
    struct writer_options opt = { .flags = c->force ? OUT_FORCE : 0,
                                  .directory = c->directory,
                                  .shard_bytes = c->shard_bytes,
                                  .guard = p->c->io->guard };
    if (rc == 0 && !hasher.running)
        rc = hasher_finish(&hasher, err);
    if (rc == 0 && writer_traits(c->to)->embeds_tokenizer)
        rc = gather_vocabulary(p, &kv);
    if (rc == 0)
        rc = gather_metadata(p, &foreign);
    meta.metadata = (struct slice){ foreign.text.data, foreign.text.len };
    if (rc == 0)
        rc = writer_open(&w, c->to, c->out, t, p->n, &meta, &opt, err);
    if (rc == 0 && !stream)
        hasher_start(&hasher, p, HASH_MEANWHILE);
    if (rc == 0)
        rc = write_items(p, &w);
    if (hasher_finish(&hasher, err) < 0)
        rc = -1;
    if (rc == 0)
        rc = put_provenance(&text, p);
    if (rc == 0 && c->directory)
        rc = copy_beside(p, &w);
    if (rc == 0)
        rc = writer_commit(&w, (struct slice){ text.data, text.len });
    writer_close(&w);
    gguf_kv_free(&kv);
    buf_free(&foreign.text);
    names_free(&foreign.keys);
    buf_free(&text);
    free(t);
    return rc;
}

/* A training that advances a checkpoint of that name would replace ours, or find it in its
 * way when it saves. */
static int
write_locked(const struct pack *c, struct plan *p, struct err *err)
{
    struct lock lock = { .fd = -1 };
    bool training = writer_traits(c->to)->training && !path_is_stream(c->out);
    if (training && lock_acquire(&lock, c->out, p->c->io->guard, err) < 0)
        return -1;
    int rc = write_output(c, p, err);
    lock_release(&lock);
    return rc;
}

/* ---- what quantizing cost ------------------------------------------------------------------ */

static double
sqnr(const struct quant_error *e)
{
    return e->noise == 0 ? INFINITY : 10 * log10(e->signal / e->noise);
}

static void
put_db(struct buf *b, double db)
{
    if (isfinite(db))
        buf_printf(b, "%.4f", db);
    else
        buf_str(b, db > 0 ? "inf" : "-inf");
}

/* The report is begun before the output: what is wrong with its name should be heard at
 * once, and an output of that name finds its temporary one taken. */
static int
begin_report(const struct plan *p, struct outfile *o)
{
    const struct pack *c = p->c;
    if (strcmp(c->report, c->out) == 0)
        return err_set(p->err, ERR_USAGE, "--report %s: is the output, too", c->report);
    return check_not_input(p, c->report) < 0
               ? -1
               : out_open(o, c->report, c->force ? OUT_FORCE : 0, p->c->io->guard,
                          p->err);
}

/* A line a quantized tensor. */
static int
write_report(const struct plan *p, struct outfile *o)
{
    struct buf b = { 0 };
    buf_str(&b, "name\tshape\tsqnr_db\tmse\tmax_err\tzero_scales\tsaturated_blocks\n");
    for (size_t i = 0; i < p->n_nvfp4; i++) {
        const struct nvfp4 *t = p->nvfp4[i];
        const struct item *v = &t->source;
        if (!t->quantize)
            continue;
        text_escape(&b, t->name, strlen(t->name));
        buf_printf(&b, "\t%llux%llu\t", (unsigned long long)v->shape[0],
                   (unsigned long long)v->shape[1]);
        put_db(&b, sqnr(&t->error));
        buf_printf(&b, "\t%.9g\t%.9g\t%llu\t%llu\n",
                   v->numel ? t->error.noise / (double)v->numel : 0.0,
                   (double)t->error.max, (unsigned long long)t->error.zero_scales,
                   (unsigned long long)t->error.saturated);
    }
    int rc = buf_ok(&b, p->err);
    if (rc == 0)
        rc = out_write(o, b.data, b.len);
    buf_free(&b);
    return rc == 0 ? out_commit(o) : -1;
}

/* One line: how many, the mean of their SQNR, the worst. */
static void
say_summary(const struct plan *p)
{
    const struct nvfp4 *worst = NULL;
    double sum = 0;
    size_t n = 0, measured = 0;
    uint64_t saturated = 0;
    char q[TEXT_QUOTE];
    const struct io *io = p->c->io;
    for (size_t i = 0; i < p->n_nvfp4; i++) {
        const struct nvfp4 *t = p->nvfp4[i];
        double db = sqnr(&t->error);
        n += t->quantize;
        saturated += t->quantize ? t->error.saturated : 0;
        if (!t->quantize || !isfinite(db))
            continue;
        measured++;
        sum += db;
        if (!worst || db < sqnr(&worst->error))
            worst = t;
    }
    if (n == 0) {
        if (p->c->quantize)
            io_warn(io, "%s: nothing was quantized", p->c->out);
        return;
    }
    const char *plural = n == 1 ? "" : "s";
    if (!worst)
        io_warn(io, "%s: %zu tensor%s by %s, without error", p->c->out, n, plural,
                p->c->quant);
    else
        io_warn(io, "%s: %zu tensor%s by %s: mean %.2f dB, worst %.2f dB \"%s\"",
                p->c->out, n, plural, p->c->quant, sum / (double)measured,
                sqnr(&worst->error), text_quote(q, worst->name, strlen(worst->name)));
    if (saturated)
        io_warn(io, "%s: %llu blocks need a scale above 448 and are clipped", p->c->out,
                (unsigned long long)saturated);
    if (p->requantizes)
        io_warn(
            io,
            "%s: what was NVFP4 before was quantized again, from its rounded values",
            p->c->out);
}

/* One line: how many values became less than they were, and where most of them are. */
static void
say_lost(const struct plan *p)
{
    const struct lost *l = &p->lost;
    char q[TEXT_QUOTE];
    if (l->under == 0)
        return;
    io_warn(p->c->io,
            "%s: %llu value%s underflowed in %s, %llu of them to 0, most in \"%s\" "
            "(%llu)%s",
            p->c->out, (unsigned long long)l->under, l->under == 1 ? "" : "s",
            l->mixed ? "narrower types" : dtype_name(l->dtype),
            (unsigned long long)l->zero, text_quote(q, l->worst, strlen(l->worst)),
            (unsigned long long)l->max, produce_way_out(p, l->dtype, 0));
}

/* ---- all together ------------------------------------------------------------------------- */

int
pack_run(struct pack *c, char **paths, size_t n, struct err *err)
{
    struct plan p;
    struct outfile report = { 0 };
    bool training = writer_traits(c->to)->training;
    assert(c->out);
    if (training && !c->master)
        c->master = c->seed_compat ? "nvfp4" : "bf16";
    if (training && !c->moments)
        c->moments = "int8";
    int rc = plan_open(&p, c, paths, n, err);
    if (rc == 0)
        rc = check_output(&p);
    if (rc == 0 && c->tokenizer && !writer_traits(c->to)->embeds_tokenizer)
        rc = err_set(err, ERR_USAGE, "--tokenizer: goes with --to gguf");
    if (rc == 0 && c->report)
        rc = begin_report(&p, &report);
    if (rc == 0)
        rc = write_locked(c, &p, err);
    if (rc == 0 && c->report)
        rc = write_report(&p, &report);
    if (rc < 0 && report.err) // begun
        out_abandon(&report);
    if (rc == 0) {
        say_summary(&p);
        say_lost(&p);
    }
    if (rc == 0 && c->directory && !p.config.p)
        io_warn(c->io, "%s: no configuration was found, so it has no config.json",
                c->out);
    if (rc == 0 && c->io->verbose)
        io_warn(c->io, "%s: %s, %zu tensors", c->out, c->to, p.n);
    plan_close(&p);
    return rc;
}
