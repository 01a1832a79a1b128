/* SPDX-License-Identifier: MIT */
/* agree: see agree.h. */
#include "lib/train/agree.h"

#include "lib/base/isa.h"

static void
put_hash(struct buf *b, const char *name, bool there, const uint8_t *digest)
{
    char hex[2 * XXH3_BYTES + 1] = "none";
    if (there)
        hash_hex(hex, digest, XXH3_BYTES);
    buf_printf(b, "%s\t%s\n", name, hex);
}

static void
put_count(struct buf *b, const char *name, uint64_t n)
{
    buf_printf(b, "%s\t%llu\n", name, (unsigned long long)n);
}

int
agree_on_input(const struct run_config *r)
{
    struct buf b = { 0 };
    uint8_t header[XXH3_BYTES];
    xxh3_128(header, r->in->file.header, (size_t)r->in->file.header_bytes);
    buf_printf(&b, "version\t%s %s\n", r->host->version, r->host->commit);
    put_count(&b, "the version of libxxhash", hash_library());
    put_count(&b, "the checkpoint's step", r->in_step);
    put_hash(&b, "the checkpoint's hash", true, header);
    put_count(&b, "the last step", r->end);
    put_count(&b, "--replay", r->o->replay.to);
    int rc = ranks_compare(r->ranks, &b, r->err);
    buf_free(&b);
    return rc;
}

/* Kinds of GPUs may differ in bits; --fast takes that. */
static void
put_gpu(struct buf *b, const struct run_config *r)
{
    uint8_t uuid[GPU_UUID];
    char name[64] = "unknown";
    if (r->where.cuda)
        kernels_cuda_identity(r->where.number, uuid, name, sizeof name);
    buf_printf(b, "the kind of GPU (--fast takes others)\t%s\n", name);
}

static void
put_inputs(struct buf *b, const struct run_config *r)
{
    const struct inputs *in = r->in;
    settings_lines(b, &r->s);
    put_hash(b, "the hash of -d", true, in->data.tok.end.xxh3);
    put_hash(b, "the hash of --eval", in->has_eval, in->eval.tok.end.xxh3);
    put_hash(b, "the hash of --teacher-data", in->data.has_taught,
             in->data.taught.end.xxh3);
    put_hash(b, "the hash of --teacher", in->has_teacher, r->st.teacher);
}

static void
put_options(struct buf *b, const struct train_options *o)
{
    put_count(b, "--eval-every", o->eval_every);
    put_count(b, "--save-every", o->save_every);
    put_count(b, "--max-skips", o->max_skips);
    put_count(b, "--eval-first", o->eval_first);
    put_count(b, "--keep-every", o->keep_every);
    put_count(b, "--keep-best", o->keep_best);
    put_count(b, "--patience", o->patience);
    buf_printf(b, "--stop-if-worse\t%.17g\n", o->stop_if_worse);
}

static void
put_arithmetic(struct buf *b, const struct trainer *t)
{
    const struct train_options *o = t->run->o;
    put_count(b, "--compat torchsharp", o->torchsharp);
    put_count(b, "--dump", o->dumps);
    buf_printf(b, "--stop-after\t%s\n", o->stop_after ? o->stop_after : "none");
    buf_printf(b, "the instruction set\t%s\n", isa_name(t->run->host->isa));
    buf_printf(b, "the route of products\t%s\n", t->k->route);
    if (!o->where.fast)
        put_gpu(b, t->run);
}

int
agree_on_run(const struct trainer *t, const struct keep *k)
{
    struct buf b = { 0 };
    put_inputs(&b, t->run);
    put_options(&b, t->run->o);
    keep_facts(&b, k);
    put_arithmetic(&b, t);
    int rc = ranks_compare(t->ranks, &b, t->err);
    buf_free(&b);
    return rc;
}
