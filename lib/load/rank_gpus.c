/* SPDX-License-Identifier: MIT */
/* rank_gpus: see rank_gpus.h. */
#include "lib/load/rank_gpus.h"

#include "lib/base/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- one for each ----------------------------------------------------------------------- */

static int
choose(const struct ranks *r, int *number, struct err *err)
{
    char why[512];
    unsigned local;
    int n = kernels_cuda_count(why, sizeof why);
    if (ranks_local(r, &local, err) < 0)
        return -1;
    *number = 0;
    if (r->joined && n == 0 && r->own)
        return err_set(err, ERR_USAGE, "%s: %s", ranks_launcher(r), why);
    if (!r->joined || n < 2)
        return 0;
    if (local >= (unsigned)n)
        return err_set(err, ERR_USAGE,
                       "there is no GPU for it: this machine has %d, and it is rank %u "
                       "here, from 0 on: expected at most a rank a GPU",
                       n, local);
    *number = (int)local;
    return 0;
}

/* Fill in the parts of the other ranks in an array of all; -1: *err. */
static int
gather_all(struct ranks *r, void *all, size_t each, struct err *err)
{
    size_t *at = calloc((size_t)r->size + 1, sizeof *at);
    if (!at)
        return err_set(err, ERR_MEMORY, "out of memory for ranks");
    for (unsigned q = 0; q <= r->size; q++)
        at[q] = q * each;
    int rc = comm_gather(&r->comm, all, at);
    free(at);
    return rc < 0 ? err_set(err, r->err.kind, "%s", r->err.msg) : 0;
}

typedef uint8_t uuid[GPU_UUID];

/* Refuse the GPU of a lower rank. */
static int
compare_uuids(const struct ranks *r, uuid *all, int number, struct err *err)
{
    static const uuid unknown;
    for (unsigned q = 0; q < r->rank; q++)
        if (memcmp(all[q], unknown, GPU_UUID) != 0 &&
            memcmp(all[q], all[r->rank], GPU_UUID) == 0)
            return err_set(err, ERR_USAGE,
                           "cuda:%d is the GPU of rank %u, too: expected another for "
                           "each: --device cuda:N, or what the launcher shows to each "
                           "rank",
                           number, q);
    return 0;
}

static int
check(struct ranks *r, int number, struct err *err)
{
    char name[64];
    uuid *all = calloc(r->size, sizeof *all);
    if (!all)
        return err_set(err, ERR_MEMORY, "out of memory for ranks");
    int rc = ranks_wait(r, err);
    kernels_cuda_identity(number, all[r->rank], name, sizeof name);
    if (rc == 0 && r->joined)
        rc = gather_all(r, all, sizeof *all, err);
    if (rc == 0)
        rc = compare_uuids(r, all, number, err);
    free(all);
    return rc < 0 ? rc : ranks_wait(r, err);
}

int
rank_gpus_settle(struct ranks *r, const char *device, int *number, struct err *err)
{
    if (!strchr(device, ':') && choose(r, number, err) < 0)
        return -1;
    return check(r, *number, err);
}

/* ---- exchange ----------------------------------------------------------------------------- */

/* For struct company. */
static bool
gather(void *ctx, void *all, size_t each)
{
    struct rank_gpus *g = ctx;
    return gather_all(g->ranks, all, each, g->k->err) == 0;
}

static int
check_way(struct err *err)
{
    const char *way = getenv("NIBBLE_EXCHANGE");
    char q[TEXT_QUOTE];
    if (way && *way && strcmp(way, "copies") != 0 && strcmp(way, "nccl") != 0)
        return err_set(err, ERR_USAGE,
                       "NIBBLE_EXCHANGE=\"%s\": want copies or nccl, by which ranks "
                       "exchange",
                       text_quote(q, way, strlen(way)));
    return 0;
}

/* Copies into each other's memory.  1: it is so; 0: they cannot. */
static int
join_copies(struct rank_gpus *g, char *why, size_t n, struct err *err)
{
    struct ranks *r = g->ranks;
    struct kernels *k = g->k;
    const struct company all = { r->rank, r->size, gather, g };
    if (ranks_wait(r, err) < 0)
        return -1;
    ranks_begin_work(r);
    int copies = kernels_join_copies(k, &all, why, n);
    if (copies < 0)
        return err_set(err, k->err->kind, "%s", k->err->msg);
    ranks_end_work(r);
    return copies;
}

static int
join_nccl(struct ranks *r, struct kernels *k, struct err *err)
{
    uint8_t id[PEERS_ID] = { 0 };
    char why[512] = "";
    if (r->rank == 0 && !kernels_cuda_peers_id(id, why, sizeof why))
        return err_set(err, ERR_USAGE, "%s", why);
    if (ranks_wait(r, err) < 0)
        return -1;
    ranks_begin_work(r);
    if (comm_broadcast(&r->comm, id, sizeof id) < 0)
        return err_set(err, r->err.kind, "%s", r->err.msg);
    if (kernels_join(k, r->rank, r->size, id) < 0)
        return err_set(err, k->err->kind, "%s", k->err->msg);
    ranks_end_work(r);
    return 0;
}

int
rank_gpus_join(struct rank_gpus *g, struct ranks *r, struct kernels *k,
               const struct host *host, struct err *err)
{
    char why[512] = "";
    *g = (struct rank_gpus){ r, k };
    if (!r->joined || !r->gpus)
        return 0;
    if (check_way(err) < 0)
        return -1;
    int copies = join_copies(g, why, sizeof why, err);
    if (copies < 0)
        return -1;
    if (host->verbose && copies)
        host_warn(host, "GPUs exchange by copies into each other's memory");
    else if (host->verbose)
        host_warn(host, "GPUs exchange by NCCL; not by copies: %s", why);
    return copies ? 0 : join_nccl(r, k, err);
}
