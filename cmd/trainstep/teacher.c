/* SPDX-License-Identifier: MIT */
/* teacher: the model of --teacher, from whose logits the run learns. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/sha256.h"
#include "lib/file/map.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* ---- is it a teacher of this model ------------------------------------------------------- */

/* SHA-256 of the tokenizer.json of a model directory; false: there is none. */
static bool
hash_of_directory(struct run *r, uint8_t sha256[SHA256_BYTES])
{
    struct buf path = { 0 };
    struct stat st;
    struct map m;
    if (!r->teacher.store.is_directory)
        return false;
    buf_printf(&path, "%s/tokenizer.json", r->teacher.store.path);
    if (path.failed)
        die(EXIT_MEMORY, "out of memory");
    bool there = !(stat(path.data, &st) < 0 && errno == ENOENT);
    if (there) {
        struct sha256 h;
        if (map_open(&m, path.data, &cmd_guard, &r->err) < 0)
            die_err(&r->err);
        sha256_init(&h);
        sha256_add(&h, m.data, m.size);
        sha256_end(&h, sha256);
        map_close(&m);
    }
    buf_free(&path);
    return there;
}

/* The tokenizer that a checkpoint was trained with. */
static bool
hash_of_checkpoint(struct run *r, uint8_t sha256[SHA256_BYTES])
{
    struct state st;
    struct settings unused;
    if (!r->teacher.store.training.master)
        return false;
    if (state_read(&st, &unused, &r->teacher.store) < 0)
        die_err(&r->err);
    memcpy(sha256, st.tokenizer, SHA256_BYTES);
    return st.has_tokenizer;
}

static void
check_tokenizer(struct run *r)
{
    uint8_t sha256[SHA256_BYTES];
    if (!r->st.has_tokenizer ||
        !(hash_of_directory(r, sha256) || hash_of_checkpoint(r, sha256)))
        return;
    if (memcmp(sha256, r->st.tokenizer, SHA256_BYTES) != 0)
        die(EXIT_TROUBLE,
            "%s: has another tokenizer than the data: a teacher has the same",
            r->teacher.store.name);
}

static void
check_model(struct run *r)
{
    const struct model *m = &r->teacher;
    if (m->config.vocab != r->c.vocab)
        die(EXIT_TROUBLE,
            "%s: its vocab_size is %u, that of the model to train is %u: a teacher has "
            "the same",
            m->store.name, m->config.vocab, r->c.vocab);
    if (r->layout.positions > m->config.positions)
        die(EXIT_TROUBLE, "%s: has %u positions, a sample has %zu: --seq-len %u",
            m->store.name, m->config.positions, r->layout.positions,
            m->config.positions);
    if (r->target && store_reads(&m->store, r->target))
        misuse("--teacher: %s is the checkpoint that is written: a teacher stays as it "
               "is; "
               "-o OUT writes another",
               m->store.name);
    run_check_outputs(r, &m->store);
    check_tokenizer(r);
}

/* Another teacher than before changes what is learnt, as other data do; it is easily given
 * by mistake. */
static void
check_same(struct run *r)
{
    uint8_t hash[XXH3_BYTES];
    if (store_content_hash(&r->teacher.store, hash, r->o->where.threads, &r->err) < 0)
        die_err(&r->err);
    if (r->st.has_teacher && memcmp(hash, r->st.teacher, XXH3_BYTES) != 0 &&
        !r->o->new_teacher && !r->replay)
        die(EXIT_TROUBLE,
            "%s: is another teacher than the checkpoint was trained with: "
            "--new-teacher goes on with it",
            r->teacher.store.name);
    r->st.has_teacher = true;
    memcpy(r->st.teacher, hash, XXH3_BYTES);
}

/* Without samples of its own the teacher teaches all: that is easily forgotten, too.  Others are
 * other data than before, with a message there. */
static void
check_same_data(struct run *r)
{
    bool given = r->o->teacher_data != NULL;
    if (r->st.has_teacher_data && !given && !r->o->new_teacher && !r->replay)
        die(EXIT_TROUBLE,
            "%s: trained with --teacher-data so far: without it the teacher would "
            "teach "
            "the samples of -d, too; name it, or go on so with --new-teacher",
            r->in.name);
    r->st.has_teacher_data = given;
    if (given)
        memcpy(r->st.teacher_data, r->data.taught.end.xxh3, XXH3_BYTES);
}

void
teacher_open(struct run *r)
{
    const char *path = r->o->teacher;
    if (!path) {
        if (r->st.has_teacher && !r->o->cmd.quiet && !r->replay)
            warn("%s: trained with a teacher so far, from here on without; --teacher "
                 "MODEL names it",
                 r->in.name);
        r->st.has_teacher = r->st.has_teacher_data = false;
        return;
    }
    if (r->s.loss != LOSS_CE)
        misuse("--teacher: --loss scalar has no logits to compare");
    struct load_options o = { .threads = r->o->where.threads,
                              .host = cmd_host(&r->o->cmd) };
    if (model_open(&r->teacher, path, &o, &r->err) < 0)
        die_err(&r->err);
    r->teacher.memory = MEMORY_TEACHER;
    r->has_teacher = true;
    check_model(r);
    check_same(r);
    check_same_data(r);
}

/* ---- on a device ----------------------------------------------------------------------------- */

void
teacher_load(struct run *r, struct train *t)
{
    if (!r->has_teacher)
        return;
    if (model_load(&r->teacher, t->net.k, r->layout.positions) < 0)
        die_err(&r->err);
    t->net.teacher = &r->teacher.net;
    t->net.distill = (struct distill){ (float)r->s.distill, (float)r->s.distill_temp };
}

void
teacher_unload(struct run *r)
{
    if (r->has_teacher)
        model_unload(&r->teacher);
}

void
teacher_close(struct run *r)
{
    if (r->has_teacher)
        model_close(&r->teacher);
}
