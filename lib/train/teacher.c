/* SPDX-License-Identifier: MIT */
/* teacher: see teacher.h. */
#include "lib/train/teacher.h"

#include "lib/base/sha256.h"
#include "lib/file/map.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* ---- is it a teacher of this model ------------------------------------------------------- */

/* The SHA-256 of a file. */
static int
hash_file(const struct run_config *r, const char *path, uint8_t sha256[SHA256_BYTES])
{
    struct sha256 h;
    struct map m;
    if (map_open(&m, path, r->host->guard, r->err) < 0)
        return -1;
    sha256_init(&h);
    sha256_add(&h, m.data, m.size);
    sha256_end(&h, sha256);
    map_close(&m);
    return 0;
}

/* That of the tokenizer.json of a model directory.  1: it is there. */
static int
hash_of_directory(const struct run_config *r, uint8_t sha256[SHA256_BYTES])
{
    struct buf path = { 0 };
    struct stat st;
    int rc = 0;
    if (!r->in->teacher.store.is_directory)
        return 0;
    buf_printf(&path, "%s/tokenizer.json", r->in->teacher.store.path);
    if (path.failed)
        return err_set(r->err, ERR_MEMORY, "out of memory");
    if (!(stat(path.data, &st) < 0 && errno == ENOENT))
        rc = hash_file(r, path.data, sha256) < 0 ? -1 : 1;
    buf_free(&path);
    return rc;
}

/* The tokenizer that a checkpoint was trained with.  1: it is known. */
static int
hash_of_checkpoint(const struct run_config *r, uint8_t sha256[SHA256_BYTES])
{
    struct state st;
    struct settings unused;
    if (!r->in->teacher.store.training.master)
        return 0;
    if (state_read(&st, &unused, &r->in->teacher.store) < 0)
        return -1;
    memcpy(sha256, st.tokenizer, SHA256_BYTES);
    return st.has_tokenizer;
}

static int
check_tokenizer(const struct run_config *r)
{
    uint8_t sha256[SHA256_BYTES];
    if (!r->st.has_tokenizer)
        return 0;
    int known = hash_of_directory(r, sha256);
    if (known == 0)
        known = hash_of_checkpoint(r, sha256);
    if (known > 0 && memcmp(sha256, r->st.tokenizer, SHA256_BYTES) != 0)
        return err_set(
            r->err, ERR_FORMAT,
            "%s: has another tokenizer than the data: a teacher has the same",
            r->in->teacher.store.name);
    return known < 0 ? -1 : 0;
}

static int
check_model(struct run_config *r)
{
    const struct model *m = &r->in->teacher;
    if (m->config.vocab != r->model.vocab)
        return err_set(
            r->err, ERR_FORMAT,
            "%s: its vocab_size is %u, that of the model to train is %u: a teacher has "
            "the same",
            m->store.name, m->config.vocab, r->model.vocab);
    if (r->layout.positions > m->config.positions)
        return err_set(r->err, ERR_USAGE,
                       "%s: has %u positions, a sample has %zu: --seq-len %u",
                       m->store.name, m->config.positions, r->layout.positions,
                       m->config.positions);
    if (r->target && store_reads(&m->store, r->target))
        return err_set(
            r->err, ERR_USAGE,
            "--teacher: %s is the checkpoint that is written: a teacher stays as it "
            "is; -o OUT writes another",
            m->store.name);
    return config_check_outputs(r, &m->store) < 0 ? -1 : check_tokenizer(r);
}

/* Another teacher than before changes what is learnt, as other data do; it is easily given
 * by mistake. */
static int
check_same(struct run_config *r)
{
    uint8_t hash[XXH3_BYTES];
    struct store *file = &r->in->teacher.store;
    if (store_content_hash(file, hash, r->where.threads, r->err) < 0)
        return -1;
    if (r->st.has_teacher && memcmp(hash, r->st.teacher, XXH3_BYTES) != 0 &&
        !r->o->new_teacher && !config_is_replay(r))
        return err_set(r->err, ERR_USAGE,
                       "%s: is another teacher than the checkpoint was trained with: "
                       "--new-teacher goes on with it",
                       file->name);
    r->st.has_teacher = true;
    memcpy(r->st.teacher, hash, XXH3_BYTES);
    return 0;
}

/* Without samples of its own the teacher teaches all: that is easily forgotten, too.  Others are
 * other data than before, with a message there. */
static int
check_same_data(struct run_config *r)
{
    bool given = r->o->teacher_data != NULL;
    if (r->st.has_teacher_data && !given && !r->o->new_teacher && !config_is_replay(r))
        return err_set(
            r->err, ERR_USAGE,
            "%s: trained with --teacher-data so far: without it the teacher would "
            "teach the samples of -d, too; name it, or go on so with --new-teacher",
            r->in->file.name);
    r->st.has_teacher_data = given;
    if (given)
        memcpy(r->st.teacher_data, r->in->data.taught.end.xxh3, XXH3_BYTES);
    return 0;
}

/* From here on there is none. */
static void
leave_out(struct run_config *r)
{
    if (r->st.has_teacher && !config_is_replay(r))
        host_note(r->host,
                  "%s: trained with a teacher so far, from here on without; --teacher "
                  "MODEL names it",
                  r->in->file.name);
    r->st.has_teacher = r->st.has_teacher_data = false;
}

int
teacher_open(struct run_config *r)
{
    if (!r->o->teacher) {
        leave_out(r);
        return 0;
    }
    if (r->s.loss != LOSS_CE)
        return err_set(r->err, ERR_USAGE,
                       "--teacher: --loss scalar has no logits to compare");
    struct load_options o = { .threads = r->where.threads, .host = r->host };
    r->in->has_teacher = true;
    if (model_open(&r->in->teacher, r->o->teacher, &o, r->err) < 0)
        return -1;
    r->in->teacher.memory = MEMORY_TEACHER;
    if (check_model(r) < 0 || check_same(r) < 0)
        return -1;
    return check_same_data(r);
}

/* ---- on a device ----------------------------------------------------------------------------- */

int
teacher_load(const struct run_config *r, struct train *t)
{
    if (!r->in->has_teacher)
        return 0;
    if (model_load(&r->in->teacher, t->net.k, r->layout.positions) < 0)
        return -1;
    t->net.teacher = &r->in->teacher.net;
    t->net.distill = (struct distill){ (float)r->s.distill, (float)r->s.distill_temp };
    return 0;
}

void
teacher_unload(const struct run_config *r)
{
    if (r->in->has_teacher)
        model_unload(&r->in->teacher);
}
