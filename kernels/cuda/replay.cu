/* SPDX-License-Identifier: MIT */
/* replay: operations that come again with the same arguments, as a CUDA graph: a launch of
 * the whole costs the host as much as one of them. */
#include "kernels/cuda/ops.h"

#include <stdlib.h>
#include <string.h>

/* Operations are called as usual the first time, which loads their kernels; recorded the
 * second, and launched as a whole from then on. */
struct recording {
    char key[REPLAY_KEY];
    size_t bytes; // of the key; 0: nothing is known
    bool known;   // they have been called once, and can be recorded
    bool open;    // what the stream is given is recorded
    cudaGraphExec_t whole;
};

void
cuda_forget(struct cuda *c)
{
    struct recording *r = c->recording;
    if (!r)
        return;
    if (r->whole)
        cudaGraphExecDestroy(r->whole);
    *r = (struct recording){};
}

void
cuda_replay_close(struct cuda *c)
{
    cuda_forget(c);
    free(c->recording);
    c->recording = NULL;
}

static void
launch(struct cuda *c, struct recording *r)
{
    c->q.early = NOT_EARLY;
    cuda_check(c, cudaGraphLaunch(r->whole, c->q.stream), "cudaGraphLaunch");
}

bool
cuda_replay(struct kernels *k, const void *key, size_t bytes)
{
    struct cuda *c = cuda_of(k);
    if (!c->recording)
        c->recording = (struct recording *)calloc(1, sizeof *c->recording);
    struct recording *r = c->recording;
    if (!r || c->trace || bytes > sizeof r->key)
        return false;
    if (r->bytes != bytes || memcmp(r->key, key, bytes) != 0) {
        cuda_forget(c);
        memcpy(r->key, key, bytes);
        r->bytes = bytes;
    } else if (r->whole) {
        launch(c, r);
        return true;
    } else if (r->known) {
        c->q.early = NOT_EARLY;
        r->open = cudaStreamBeginCapture(
                      c->q.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
        if (!r->open)
            cudaGetLastError(); // they are called as usual
    }
    return false;
}

void
cuda_recorded(struct kernels *k, bool repeats)
{
    struct cuda *c = cuda_of(k);
    struct recording *r = c->recording;
    cudaGraph_t graph = NULL;
    if (!r)
        return;
    r->known = repeats;
    if (!r->open)
        return;
    r->open = false;
    c->q.early = NOT_EARLY;
    if (cuda_check(c, cudaStreamEndCapture(c->q.stream, &graph),
                   "cudaStreamEndCapture") &&
        cuda_check(c, cudaGraphInstantiate(&r->whole, graph, 0),
                   "cudaGraphInstantiate"))
        launch(c, r);
    if (graph)
        cudaGraphDestroy(graph);
}
