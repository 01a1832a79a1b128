/* SPDX-License-Identifier: MIT */
/* emulate: threads as fibers, their scheduling, barriers, asynchronous copies, warp
 * operations. */
#include "tests/emulate/emulate.h"

#include "tests/emulate/include/runtime.h"
#include "tests/emulate/memory.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
enum { STACK = 512 << 10 };
#else
enum { STACK = 128 << 10 };
#endif

enum {
    LANES = 32,
    MAX_THREADS = 1024, // of a block
    MAX_WARPS = 192,    // of a cluster
    MAX_CLUSTER = 8,
    WORD = 64,      // bits
    COPIES = 256,   // in flight, per thread
    BULKS = 512,    // bulk copies in flight, per block
    MBARRIERS = 64, // mbarriers of a block
    NUMBERS = 16,   // of barriers of some warps
    VARIABLES = 64, // in shared memory
    GUARD = 4096,
    DYNAMIC = 1024,            // offset of dynamic shared memory
    DEFAULT_SHARED = 48 << 10, // its limit in bytes, unless a kernel is allowed more
};

/* ---- state of a launch ----------------------------------------------------------- */

struct copy {
    char *to;
    const void *from;
    unsigned copied, bytes, group;
};

struct fiber {
    struct emulate_thread self; // first: emulate_now points to it
    void *sp;
    char *stack; // NULL: not allocated yet
    void *fake;  // stack of ASan
    struct warp *warp;
    unsigned lane, arrived; // arrived: cluster phase + 1; 0: not arrived
    const char *waits;
    struct copy *copies;
    unsigned first_copy, n_copies, groups;
    unsigned n_fences; // proxy fences so far
};

struct warp {
    uint32_t ready, alive;  // lanes
    uint32_t arrived, mask; // at a warp operation
    const char *what;
    void *data[LANES];
    struct fiber *first;
    struct block *block;
    unsigned at, in; // index in the cluster, and in the block
};

struct barrier {
    unsigned arrived;
    int line;
    uint32_t waits[LANES]; // lanes of each warp
};

/* A phase completes when `threads` threads have arrived and the expected bytes are
 * copied. */
struct mbarrier {
    const char *at; // NULL: unused
    bool seen;      // initialization is visible to other threads
    unsigned ended, threads, arrived, expected;
    uint32_t here[LANES], waits[LANES]; // lanes of each warp
};

struct bulk {
    char *to;
    const char *from;
    unsigned bytes;
    struct emulate_map map; // of a box; else bytes in a row
    int column, row;
    const struct mbarrier *ends; // of a load
    const struct fiber *of;      // of a store
    bool committed, add;         // add: f32 to what is there
    bool done;                   // it has been copied, and is not known to be
};

struct block { // a block of the cluster
    struct barrier barrier, numbered[NUMBERS];
    struct mbarrier mbarrier[MBARRIERS];
    struct bulk bulk[BULKS];
    unsigned n_bulk;
    unsigned groups; // of stores
    unsigned threads, ended, warps;
    struct warp *warp;
    char *shared;
};

struct variable {
    size_t at, bytes;
};

struct emulate_thread *emulate_now;
struct emulate_xyz emulate_blocks, emulate_threads;

static struct {
    const struct emulate_launch *launch;
    uint64_t number;
    const char *name;
    bool reverse;                     // reverse the order of threads and blocks
    bool early;                       // loads of mbarriers come at once
    bool together;                    // so do blocks, if they are few
    uint64_t ready[MAX_WARPS / WORD]; // a bit for each warp
    unsigned blocks, warps, alive;
    unsigned arrived, phase; // of the cluster's barrier
    bool stored;             // for other blocks, since pollers were last woken
    size_t used;             // of shared memory
    struct variable variable[VARIABLES];
    unsigned n_variables;
    struct block block[MAX_CLUSTER];
    struct warp warp[MAX_WARPS];
    void *main_sp, *main_fake;
    const void *main_stack;
    size_t main_size;
} now;

static struct fiber *fibers; // MAX_WARPS * LANES
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static struct fiber *
self(void)
{
    return (struct fiber *)emulate_now;
}

/* ---- errors ---------------------------------------------------------------------- */

void
emulate_fail(const char *fmt, ...)
{
    va_list ap;
    fflush(stdout);
    fprintf(stderr, "emulation: %s", now.name ? now.name : "a kernel");
    if (emulate_now)
        fprintf(stderr, "\n  block (%u, %u, %u), thread (%u, %u, %u)",
                emulate_now->block.x, emulate_now->block.y, emulate_now->block.z,
                emulate_now->thread.x, emulate_now->thread.y, emulate_now->thread.z);
    fputs(": ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_print_stack_trace();
#endif
    abort();
}

/* No thread can continue: print where all wait. */
static void
deadlock(void)
{
    unsigned n = now.warps * LANES, lines = 0;
    for (unsigned i = 0, from = 0; i < n && lines < 20; i++) {
        struct fiber *f = &fibers[i], *next = i + 1 < n ? f + 1 : NULL;
        bool alive = f->warp->alive >> f->lane & 1;
        if (next && alive && (next->warp->alive >> next->lane & 1) &&
            f->waits == next->waits && f->warp->block == next->warp->block)
            continue;
        if (alive) {
            struct warp *first = fibers[from].warp;
            fprintf(stderr, "emulation: block %u, threads %u to %u wait at %s\n",
                    f->self.block.x, first->in * LANES + from % LANES,
                    f->warp->in * LANES + f->lane, f->waits ? f->waits : "nothing");
            lines++;
        }
        from = i + 1;
    }
    emulate_now = NULL;
    emulate_fail("deadlock: all threads that have not ended wait");
}

/* ---- fibers ---------------------------------------------------------------------- */

/* Save callee-saved registers and *sp, switch to the stack `other`. */
void emulate_switch(void **sp, void *other);

#if defined __x86_64__
__asm__(".text\n.globl emulate_switch\n.hidden emulate_switch\n"
        ".type emulate_switch,@function\nemulate_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emulate_switch,.-emulate_switch\n");

static void *
new_stack(char *top, void (*entry)(void))
{
    void **sp = (void **)top - 8;
    memset(sp, 0, 8 * sizeof *sp);
    memcpy(&sp[6], &entry, sizeof entry); // stack aligned as after a call
    return sp;
}
#elif defined __aarch64__
__asm__(".text\n.globl emulate_switch\n.hidden emulate_switch\n"
        ".type emulate_switch,%function\nemulate_switch:\n"
        "sub sp,sp,#160\n"
        "stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\n"
        "stp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
        "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\n"
        "stp d14,d15,[sp,#144]\n"
        "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\n"
        "ldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
        "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\n"
        "ldp d14,d15,[sp,#144]\n"
        "add sp,sp,#160\nret\n"
        ".size emulate_switch,.-emulate_switch\n");

static void *
new_stack(char *top, void (*entry)(void))
{
    void **sp = (void **)top - 20;
    memset(sp, 0, 20 * sizeof *sp);
    memcpy(&sp[11], &entry, sizeof entry);
    return sp;
}
#else
#error "emulate: fibers are not written for this processor"
#endif

static unsigned
pick(uint64_t from)
{
    return now.reverse ? 63U - (unsigned)__builtin_clzll(from)
                       : (unsigned)__builtin_ctzll(from);
}

/* A warp that is ready, or NULL. */
static const struct warp *
ready_warp(void)
{
    enum { WORDS = MAX_WARPS / WORD };
    for (unsigned i = 0; i < WORDS; i++) {
        unsigned at = now.reverse ? WORDS - 1 - i : i;
        if (now.ready[at])
            return &now.warp[at * WORD + pick(now.ready[at])];
    }
    return NULL;
}

/* The next fiber to run, of the same warp if possible; NULL: none is ready. */
static struct fiber *
next_of(const struct warp *w)
{
    if (!w || !w->ready)
        w = ready_warp();
    return w ? w->first + pick(w->ready) : NULL;
}

/* Switch fibers; NULL is the caller of emulate_run. */
static void
switch_to(struct fiber *from, struct fiber *to, bool ends)
{
    void **sp = from ? &from->sp : &now.main_sp;
#ifdef __SANITIZE_ADDRESS__
    void **fake = from ? &from->fake : &now.main_fake;
    __sanitizer_start_switch_fiber(ends ? NULL : fake, to ? to->stack : now.main_stack,
                                   to ? STACK : now.main_size);
#else
    (void)ends;
#endif
    emulate_now = to ? &to->self : NULL;
    emulate_switch(sp, to ? to->sp : now.main_sp);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(*fake, NULL, NULL);
#endif
}

static void
unready(struct warp *w, uint32_t lanes)
{
    w->ready &= ~lanes;
    if (!w->ready)
        now.ready[w->at / WORD] &= ~((uint64_t)1 << w->at % WORD);
}

static void
make_ready(struct warp *w, uint32_t lanes)
{
    w->ready |= lanes;
    if (w->ready)
        now.ready[w->at / WORD] |= (uint64_t)1 << w->at % WORD;
}

static void
wait_at(const char *what)
{
    struct fiber *f = self();
    f->waits = what;
    unready(f->warp, 1U << f->lane);
    switch_to(f, next_of(f->warp), false);
    f->waits = NULL;
}

/* Let the first that can run go on before this one. */
static void
let_others(void)
{
    struct fiber *f = self();
    unready(f->warp, 1U << f->lane);
    struct fiber *other = next_of(NULL);
    make_ready(f->warp, 1U << f->lane);
    if (other)
        switch_to(f, other, false);
}

/* ---- barriers -------------------------------------------------------------------- */

/* Release the block barrier if all threads that have not ended have arrived. */
static bool
release(struct block *p)
{
    struct barrier *b = &p->barrier;
    if (b->arrived + p->ended < p->threads)
        return false;
    for (unsigned i = 0; i < p->warps; i++)
        make_ready(&p->warp[i], b->waits[i]);
    memset(b, 0, sizeof *b);
    return true;
}

void
emulate_numbered(unsigned number, unsigned threads)
{
    struct fiber *f = self();
    struct block *p = f->warp->block;
    struct barrier *b = &p->numbered[number % NUMBERS];
    if (number >= NUMBERS || threads % LANES)
        emulate_fail("barrier.sync %u of %u threads", number, threads);
    b->waits[f->warp->in] |= 1U << f->lane;
    if (++b->arrived < threads) {
        wait_at("barrier.sync of some warps");
        return;
    }
    b->waits[f->warp->in] &= ~(1U << f->lane);
    for (unsigned i = 0; i < p->warps; i++)
        make_ready(&p->warp[i], b->waits[i]);
    memset(b, 0, sizeof *b);
}

static const char polls[] = "a load that is repeated";

void
emulate_poll(void)
{
    wait_at(polls);
}

void
emulate_stored(void)
{
    now.stored = true;
}

/* Nobody can run: pollers look again, if there is anything new. */
static bool
wake_pollers(void)
{
    if (!now.stored)
        return false;
    now.stored = false;
    for (unsigned i = 0; i < now.warps * LANES; i++)
        if (fibers[i].waits == polls && fibers[i].warp->alive >> fibers[i].lane & 1)
            make_ready(fibers[i].warp, 1U << fibers[i].lane);
    return ready_warp() != NULL;
}

void
emulate_barrier(const char *what, int line)
{
    struct fiber *f = self();
    struct warp *w = f->warp;
    struct barrier *b = &w->block->barrier;
    if (b->arrived && b->line != line)
        emulate_fail("%s of line %d, while others of its block are at that of line %d",
                     what, line, b->line);
    b->line = line;
    b->arrived++;
    if (!release(w->block)) {
        b->waits[w->in] |= 1U << f->lane;
        wait_at(what);
    }
}

static void
all_arrived(void)
{
    now.arrived = 0;
    now.phase++;
    for (unsigned i = 0; i < now.warps; i++)
        for (unsigned l = 0; l < LANES; l++) {
            struct fiber *f = &now.warp[i].first[l];
            if (f->waits && strcmp(f->waits, "barrier.cluster.wait") == 0)
                make_ready(&now.warp[i], 1U << l);
        }
}

void
emulate_cluster_arrive(void)
{
    struct fiber *f = self();
    if (f->arrived)
        emulate_fail("barrier.cluster.arrive twice without a wait");
    f->arrived = now.phase + 1;
    if (++now.arrived == now.alive)
        all_arrived();
}

void
emulate_cluster_wait(void)
{
    struct fiber *f = self();
    if (!f->arrived)
        emulate_fail("barrier.cluster.wait before arrive");
    if (f->arrived == now.phase + 1)
        wait_at("barrier.cluster.wait");
    f->arrived = 0;
}

/* ---- warps ----------------------------------------------------------------------- */

unsigned
emulate_lane(void)
{
    return self()->lane;
}

void
emulate_warp_sync(const char *what, uint32_t mask, void *data, emulate_all_fn *all)
{
    struct fiber *f = self();
    struct warp *w = f->warp;
    uint32_t bit = 1U << f->lane;
    if (!w->arrived) {
        w->what = what;
        w->mask = mask;
        if (!(mask & bit))
            emulate_fail("%s: the mask %08x does not have its own lane", what, mask);
        if (mask & ~w->alive)
            emulate_fail(
                "%s: the mask %08x has lanes that have ended or never were: %08x", what,
                mask, mask & ~w->alive);
    } else if (mask != w->mask || (w->what != what && strcmp(w->what, what) != 0)) {
        emulate_fail("%s with mask %08x, while others of its warp are at %s with %08x",
                     what, mask, w->what, w->mask);
    }
    w->data[f->lane] = data;
    w->arrived |= bit;
    if (w->arrived != mask) {
        wait_at(what);
        return;
    }
    w->arrived = 0;
    if (all)
        all(w->data, mask);
    make_ready(w, mask);
}

/* ---- asynchronous copies --------------------------------------------------------- */

static char *
shared_at(uint32_t at, unsigned bytes)
{
    if (at % bytes || at < DYNAMIC || at + bytes > now.used)
        emulate_fail("%u bytes of shared memory at %u, of %zu", bytes, at, now.used);
    return self()->warp->block->shared + at;
}

void
emulate_copy(uint32_t to, const void *from, unsigned copied, unsigned bytes)
{
    struct fiber *f = self();
    if ((uintptr_t)from % bytes)
        emulate_fail("cp.async of %u bytes from %p, which is not aligned", bytes, from);
    if (f->n_copies == COPIES)
        emulate_fail("more than %d copies on their way", COPIES);
    unsigned at = (f->first_copy + f->n_copies++) % COPIES;
    f->copies[at] =
        (struct copy){ shared_at(to, bytes), from, copied, bytes, f->groups };
}

void
emulate_copies_commit(void)
{
    self()->groups++;
}

static void
copy_until(struct fiber *f, unsigned group)
{
    for (; f->n_copies; f->n_copies--) {
        struct copy *c = &f->copies[f->first_copy];
        if (c->group >= group)
            return;
        memcpy(c->to, c->from, c->copied);
        memset(c->to + c->copied, 0, c->bytes - c->copied);
        f->first_copy = (f->first_copy + 1) % COPIES;
    }
}

void
emulate_copies_wait(unsigned but)
{
    struct fiber *f = self();
    if (f->groups > but)
        copy_until(f, f->groups - but);
}

/* Bulk copies.  They are done as late as possible: loads when a thread waits for their
 * mbarrier, stores when their source may change. */

/* NULL: not found. */
static struct mbarrier *
find_mbarrier(const char *at)
{
    struct block *p = self()->warp->block;
    for (int i = 0; i < MBARRIERS; i++)
        if (p->mbarrier[i].at == at)
            return &p->mbarrier[i];
    return NULL;
}

static struct mbarrier *
mbarrier_at(uint32_t barrier)
{
    struct mbarrier *x = find_mbarrier(shared_at(barrier, 8));
    if (!x)
        emulate_fail("a barrier that was not opened");
    if (!x->seen)
        emulate_fail("a barrier that was opened, and is not seen yet");
    return x;
}

void
emulate_mbarrier_init(uint32_t barrier, unsigned threads)
{
    const char *at = shared_at(barrier, 8);
    struct mbarrier *x = find_mbarrier(NULL);
    if (find_mbarrier(at))
        emulate_fail("a barrier is opened twice");
    if (!x)
        emulate_fail("more than %d barriers with phases", MBARRIERS);
    x->at = at;
    x->threads = threads;
}

void
emulate_mbarrier_init_fence(void)
{
    struct block *p = self()->warp->block;
    for (int i = 0; i < MBARRIERS; i++)
        p->mbarrier[i].seen = p->mbarrier[i].at != NULL;
}

static void
wake(struct mbarrier *x)
{
    struct block *p = self()->warp->block;
    for (unsigned i = 0; i < p->warps; i++)
        make_ready(&p->warp[i], x->waits[i]);
    memset(x->waits, 0, sizeof x->waits);
}

static void
arrive(struct mbarrier *x)
{
    const struct fiber *f = self();
    uint32_t bit = 1U << f->lane;
    if (x->arrived == x->threads)
        emulate_fail("more than %u threads come to a phase", x->threads);
    if (x->here[f->warp->in] & bit)
        emulate_fail("a thread comes to one phase twice");
    x->here[f->warp->in] |= bit;
    x->arrived++;
    wake(x);
}

static void
end_phase(struct mbarrier *x)
{
    x->arrived = x->expected = 0;
    memset(x->here, 0, sizeof x->here);
    x->ended++;
    wake(x);
}

void
emulate_mbarrier_arrive(uint32_t barrier)
{
    struct mbarrier *x = mbarrier_at(barrier);
    arrive(x);
    if (x->arrived == x->threads && !x->expected) {
        end_phase(x);
        if (now.early) // what it ends may let others copy
            let_others();
    }
}

void
emulate_mbarrier_expect(uint32_t barrier, unsigned bytes)
{
    struct mbarrier *x = mbarrier_at(barrier);
    arrive(x);
    x->expected += bytes;
}

/* A box, with the swizzle of 128 bytes; what the matrix does not have is 0. */
static void
copy_box(const struct bulk *b)
{
    const struct emulate_map *m = &b->map;
    for (int r = 0; r < (int)m->box_rows; r++)
        for (int c = 0; c < (int)m->box_columns; c++) {
            int64_t row = b->row + r, column = b->column + c;
            bool is = row >= 0 && row < (int64_t)m->rows && column >= 0 &&
                      column < (int64_t)m->columns;
            char *to = b->to + r * 128 + ((c / 8 ^ r % 8) << 4) + c % 8 * 2;
            if (is)
                memcpy(to, b->from + row * (int64_t)m->stride + column * 2, 2);
            else
                memset(to, 0, 2);
        }
}

static void
bulk_do(const struct bulk *b)
{
    if (b->add)
        for (unsigned k = 0; k < b->bytes / sizeof(float); k++)
            ((float *)(void *)b->to)[k] += ((const float *)(const void *)b->from)[k];
    else if (b->map.is)
        copy_box(b);
    else
        memcpy(b->to, b->from, b->bytes);
}

/* Bytes of the pending loads of an mbarrier, or of a thread's committed stores; really:
 * do them, too. */
static unsigned
bulk_copy(struct block *p, const struct mbarrier *ends, const struct fiber *of,
          bool really)
{
    unsigned bytes = 0, kept = 0;
    for (unsigned i = 0; i < p->n_bulk; i++) {
        struct bulk b = p->bulk[i];
        bool is = ends ? b.ends == ends : b.of == of && b.committed;
        if (is)
            bytes += b.bytes;
        if (is && really && !b.done)
            bulk_do(&b);
        if (is && really)
            continue;
        p->bulk[kept++] = b;
    }
    p->n_bulk = kept;
    return bytes;
}

void
emulate_mbarrier_wait(uint32_t barrier, unsigned phase)
{
    struct fiber *f = self();
    struct block *p = f->warp->block;
    struct mbarrier *x = mbarrier_at(barrier);
    while (x->ended % 2 == phase) {
        unsigned bytes = bulk_copy(p, x, NULL, false);
        if (bytes > x->expected && x->arrived == x->threads)
            emulate_fail("%u bytes come, and %u are expected", bytes, x->expected);
        if (x->arrived == x->threads && bytes == x->expected) {
            bulk_copy(p, x, NULL, true);
            end_phase(x);
        } else {
            x->waits[f->warp->in] |= 1U << f->lane;
            wait_at("the end of a phase");
        }
    }
}

static void
bulk_start(struct bulk b)
{
    struct block *p = self()->warp->block;
    if ((uintptr_t)b.to % 16 || (uintptr_t)b.from % 16 || b.bytes % 16 || !b.bytes)
        emulate_fail("cp.async.bulk of %u bytes from %p to %p: all are multiples of 16",
                     b.bytes, (const void *)b.from, (void *)b.to);
    if (p->n_bulk == BULKS)
        emulate_fail("more than %d copies on their way", BULKS);
    b.done = now.early && b.ends;
    if (b.done)
        bulk_do(&b);
    p->bulk[p->n_bulk++] = b;
}

/* The range must lie in one variable or in dynamic shared memory. */
static void
check_shared(const void *p, unsigned bytes)
{
    size_t at = emulate_address(p);
    bool is = at >= DYNAMIC && at + bytes <= DYNAMIC + now.launch->shared;
    for (unsigned i = 0; i < now.n_variables; i++)
        is = is || (at >= now.variable[i].at &&
                    at + bytes <= now.variable[i].at + now.variable[i].bytes);
    if (!is)
        emulate_fail("cp.async.bulk of %u bytes at %zu of shared memory", bytes, at);
}

void
emulate_bulk_load(void *to, const void *from, unsigned bytes, uint32_t barrier)
{
    struct mbarrier *x = mbarrier_at(barrier);
    check_shared(to, bytes);
    bulk_start((struct bulk){ .to = to, .from = from, .bytes = bytes, .ends = x });
    wake(x);
}

void
emulate_box_load(uint32_t to, const void *map, int column, int row, uint32_t barrier)
{
    struct mbarrier *x = mbarrier_at(barrier);
    const struct emulate_map *m = map;
    unsigned bytes = m->box_rows * m->box_columns * 2;
    char *p = shared_at(to, 16);
    if (m->is != EMULATE_MAP)
        emulate_fail("a box of what is no tensor map");
    if (to % 1024)
        emulate_fail("a box at %u: with this swizzle it begins at a multiple of 1024",
                     to);
    check_shared(p, bytes);
    bulk_start((struct bulk){ .to = p,
                              .from = m->data,
                              .bytes = bytes,
                              .map = *m,
                              .column = column,
                              .row = row,
                              .ends = x });
    wake(x);
}

void
emulate_bulk_fence(void)
{
    self()->n_fences++;
}

/* Any thread may have written the source since the last group, so all need a fence. */
void
emulate_bulk_store(void *to, const void *from, unsigned bytes)
{
    struct block *p = self()->warp->block;
    for (unsigned i = 0; i < p->warps * LANES; i++) {
        const struct fiber *f = &p->warp->first[i];
        if (f->warp->alive >> f->lane & 1 && f->n_fences <= p->groups)
            emulate_fail("what thread %u wrote may not be read by copies yet", i);
    }
    check_shared(from, bytes);
    bulk_start((struct bulk){ .to = to, .from = from, .bytes = bytes, .of = self() });
}

/* Who wrote the source is the kernel's affair: a barrier of some threads orders it. */
void
emulate_bulk_add(void *to, const void *from, unsigned bytes, bool add)
{
    check_shared(from, bytes);
    bulk_start((struct bulk){
        .to = to, .from = from, .bytes = bytes, .of = self(), .add = add });
}

void
emulate_bulk_commit(void)
{
    struct block *p = self()->warp->block;
    for (unsigned i = 0; i < p->n_bulk; i++)
        p->bulk[i].committed = p->bulk[i].committed || p->bulk[i].of == self();
    p->groups++;
}

void
emulate_bulk_wait_read(void)
{
    bulk_copy(self()->warp->block, NULL, self(), true);
}

/* ---- ldmatrix and mma ------------------------------------------------------------ */

struct load {
    const char *from;
    uint32_t *to;
};

static void
load_all(void *const *data, bool trans)
{
    for (unsigned m = 0; m < 4; m++) {
        uint16_t v[8][8];
        for (unsigned r = 0; r < 8; r++)
            memcpy(v[r], ((const struct load *)data[8 * m + r])->from, sizeof v[r]);
        for (unsigned l = 0; l < LANES; l++) {
            unsigned g = l / 4, t = 2 * (l % 4);
            uint32_t low = trans ? v[t][g] : v[g][t];
            uint32_t high = trans ? v[t + 1][g] : v[g][t + 1];
            ((const struct load *)data[l])->to[m] = high << 16 | low;
        }
    }
}

static void
load_plain(void *const *data, uint32_t mask)
{
    (void)mask;
    load_all(data, false);
}

static void
load_trans(void *const *data, uint32_t mask)
{
    (void)mask;
    load_all(data, true);
}

static void
store_all(void *const *data, uint32_t mask)
{
    (void)mask;
    for (unsigned m = 0; m < 4; m++)
        for (unsigned l = 0; l < LANES; l++) {
            char *row =
                (char *)(uintptr_t)((const struct load *)data[8 * m + l / 4])->from;
            memcpy(row + l % 4 * 4, &((const struct load *)data[l])->to[m], 4);
        }
}

void
emulate_load_matrices(uint32_t r[4], uint32_t at, bool trans)
{
    struct load l = { shared_at(at, 16), r };
    emulate_warp_sync(trans ? "ldmatrix.trans" : "ldmatrix", 0xffffffffU, &l,
                      trans ? load_trans : load_plain);
}

typedef float eight __attribute__((vector_size(32), aligned(4)));

struct operands {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

static float
half_of(uint32_t two, unsigned which)
{
    uint32_t bits = which ? two & 0xffff0000U : two << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Register layout: see ptx.h. a is transposed, so that 8 rows are summed as a
 * vector. */
__attribute__((no_sanitize_address, no_sanitize_undefined, optimize("O3"))) static void
multiply(void *const *data, uint32_t mask)
{
    float a[16][16], b[16][8], c[16][8];
    (void)mask;
    for (unsigned l = 0; l < LANES; l++) {
        const struct operands *f = data[l];
        unsigned g = l / 4, t = 2 * (l % 4);
        for (unsigned i = 0; i < 2; i++) {
            for (unsigned h = 0; h < 2; h++) {
                a[t + 8 * i + h][g] = half_of(f->a[2 * i], h);
                a[t + 8 * i + h][g + 8] = half_of(f->a[2 * i + 1], h);
                b[t + 8 * i + h][g] = half_of(f->b[i], h);
            }
            memcpy(&c[g + 8 * i][t], f->c + 2 * i, 2 * sizeof(float));
        }
    }
    for (unsigned from = 0; from < 16; from += 8) {
        eight sum[8], x;
        memcpy(sum, c[from], sizeof sum);
        for (unsigned k = 0; k < 16; k++) {
            memcpy(&x, b[k], sizeof x);
#pragma GCC unroll 8
            for (unsigned i = 0; i < 8; i++)
                sum[i] += a[k][from + i] * x;
        }
        memcpy(c[from], sum, sizeof sum);
    }
    for (unsigned l = 0; l < LANES; l++) {
        const struct operands *f = data[l];
        unsigned g = l / 4, t = 2 * (l % 4);
        memcpy(f->c, &c[g][t], 2 * sizeof(float));
        memcpy(f->c + 2, &c[g + 8][t], 2 * sizeof(float));
    }
}

void
emulate_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    struct operands f = { c, a, { b0, b1 } };
    emulate_warp_sync("mma", 0xffffffffU, &f, multiply);
}

/* ---- wgmma ----------------------------------------------------------------------- */

enum { WIDE = 128 }; // max. columns

struct wide {
    float *c;
    const uint32_t *a; // NULL: in shared memory
    struct emulate_wgmma of;
};

/* Element of a matrix with 128-byte swizzle: k runs along the 128 bytes, or `other` does
 * if trans. */
static float
element(uint64_t descriptor, bool trans, unsigned other, unsigned k)
{
    unsigned from = (unsigned)(descriptor & 0x3fff) << 4;
    unsigned leading = (unsigned)(descriptor >> 16 & 0x3fff) << 4;
    unsigned stride = (unsigned)(descriptor >> 32 & 0x3fff) << 4;
    unsigned at = from + (trans ? other / 64 * leading + k / 8 * stride + k % 8 * 128 +
                                      other % 64 * 2
                                : other / 8 * stride + other % 8 * 128 + k * 2);
    uint16_t bits;
    if (descriptor >> 62 != 1)
        emulate_fail("wgmma: only the swizzle of 128 bytes is emulated");
    memcpy(&bits, shared_at(at ^ (at >> 7 & 7) << 4, sizeof bits), sizeof bits);
    return half_of(bits, 0);
}

/* The 16 rows of a warp. */
static void
multiply_wide(void *const *data, uint32_t mask)
{
    const struct wide *f = data[0];
    const struct emulate_wgmma *w = &f->of;
    unsigned row = self()->warp->in % 4 * 16;
    float a[16][16], b[16][WIDE];
    (void)mask;
    for (unsigned k = 0; k < 16; k++)
        for (unsigned n = 0; n < w->columns; n++)
            b[k][n] = element(w->b, w->b_trans, n, k);
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned i = 0; i < 8; i++) {
            unsigned r = l / 4 + i / 2 % 2 * 8, k = l % 4 * 2 + i / 4 * 8 + i % 2;
            const uint32_t *own = ((const struct wide *)data[l])->a;
            a[r][k] = own ? half_of(own[i / 2], i % 2)
                          : element(w->a, w->a_trans, row + r, k);
        }
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned i = 0; i < w->columns / 2; i++) {
            unsigned r = l / 4 + i / 2 % 2 * 8, n = i / 4 * 8 + l % 4 * 2 + i % 2;
            float *c = ((const struct wide *)data[l])->c + i;
            float sum = w->add ? *c : 0;
            for (unsigned k = 0; k < 16; k++)
                sum += a[r][k] * b[k][n];
            *c = sum;
        }
}

void
emulate_wgmma(float *c, const uint32_t *a, const struct emulate_wgmma *of)
{
    struct wide f = { c, a, *of };
    emulate_warp_sync("wgmma", 0xffffffffU, &f, multiply_wide);
}

void
emulate_store_matrices(uint32_t at, const uint32_t r[4])
{
    struct load l = { shared_at(at, 16), (uint32_t *)(uintptr_t)r };
    emulate_warp_sync("stmatrix", 0xffffffffU, &l, store_all);
}

/* ---- shared memory --------------------------------------------------------------- */

void *
emulate_dynamic(void)
{
    return self()->warp->block->shared + DYNAMIC;
}

static void
fill(struct block *p, size_t at, size_t bytes)
{
    UNPOISON(p->shared + at, bytes);
    memset(p->shared + at, NAN_BYTE, bytes);
}

void *
emulate_variable(struct emulate_place *id, size_t bytes)
{
    if (id->launch != now.number) {
        size_t all = 0;
        id->launch = now.number;
        id->at = (now.used + 127) / 128 * 128 + 128;
        now.used = id->at + bytes;
        if (now.n_variables == VARIABLES)
            emulate_fail("more than %d variables in shared memory", VARIABLES);
        now.variable[now.n_variables++] = (struct variable){ id->at, bytes };
        for (unsigned i = 0; i < now.n_variables; i++)
            all += now.variable[i].bytes;
        if (all + now.launch->shared > emulate_device()->sharedMemPerBlockOptin ||
            now.used > EMULATE_SHARED || all > DEFAULT_SHARED)
            emulate_fail("%zu and %zu bytes of shared memory are too many", all,
                         now.launch->shared);
        for (unsigned i = 0; i < now.blocks; i++)
            fill(&now.block[i], id->at, bytes);
    }
    return self()->warp->block->shared + id->at;
}

uint32_t
emulate_address(const void *p)
{
    const char *base = self()->warp->block->shared;
    if ((const char *)p < base || (const char *)p > base + now.used)
        emulate_fail("%p is not in shared memory", p);
    return (uint32_t)((const char *)p - base);
}

void *
emulate_of_rank(const void *p, unsigned rank)
{
    if (rank >= now.blocks)
        emulate_fail("block %u of a cluster of %u", rank, now.blocks);
    return now.block[rank].shared + emulate_address(p);
}

/* ---- launches -------------------------------------------------------------------- */

void
emulate_begin(const char *name, unsigned max_threads)
{
    unsigned threads = emulate_threads.x * emulate_threads.y * emulate_threads.z;
    now.name = name;
    if (threads > max_threads)
        emulate_fail("%u threads, and it was compiled for %u at most", threads,
                     max_threads);
}

static void
entry(void)
{
#ifdef __SANITIZE_ADDRESS__
    const void *stack;
    size_t size;
    __sanitizer_finish_switch_fiber(NULL, &stack, &size);
    if (!now.main_stack) {
        now.main_stack = stack;
        now.main_size = size;
    }
#endif
    now.launch->body(now.launch->with);
    struct fiber *f = self();
    struct warp *w = f->warp;
    struct block *p = w->block;
    uint32_t bit = 1U << f->lane;
    copy_until(f, f->groups + 1);
    if (w->arrived && w->mask & bit)
        emulate_fail("ends while lanes of its warp wait for it at %s", w->what);
    w->alive &= ~bit;
    if (++p->ended == p->threads && p->n_bulk)
        emulate_fail(
            "the block ends while copies from or to its memory are on their way");
    now.alive--;
    if (p->barrier.arrived)
        release(p);
    if (now.arrived && now.arrived == now.alive)
        all_arrived();
    unready(w, bit);
    switch_to(f, next_of(w), true);
    abort();
}

static void
make_fiber(struct fiber *f)
{
    if (!f->stack) {
        f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        f->copies = malloc(COPIES * sizeof *f->copies);
        if (f->stack == MAP_FAILED || !f->copies ||
            mprotect(f->stack, GUARD, PROT_NONE) != 0)
            emulate_fail("no memory for a thread");
    }
    UNPOISON(f->stack + GUARD, STACK - GUARD);
    f->sp = new_stack(f->stack + STACK, entry);
    f->first_copy = f->n_copies = f->groups = f->n_fences = f->arrived = 0;
    f->waits = NULL;
}

/* Set up a block of the cluster, whose warps start at index `warp`. */
static void
make_block(struct block *p, unsigned warp, struct emulate_xyz block)
{
    const struct emulate_launch *l = now.launch;
    struct emulate_xyz at = { 0, 0, 0 };
    memset(&p->barrier, 0, sizeof p->barrier);
    memset(p->numbered, 0, sizeof p->numbered);
    memset(p->mbarrier, 0, sizeof p->mbarrier);
    p->n_bulk = 0;
    p->groups = 0;
    p->threads = l->threads.x * l->threads.y * l->threads.z;
    p->warps = (p->threads + LANES - 1) / LANES;
    p->ended = 0;
    p->warp = &now.warp[warp];
    for (unsigned i = 0; i < p->warps; i++) {
        struct warp *w = &p->warp[i];
        unsigned n = p->threads - i * LANES;
        *w = (struct warp){ 0 };
        w->alive = w->ready = n >= LANES ? 0xffffffffU : (1U << n) - 1;
        w->first = &fibers[(warp + i) * LANES];
        w->block = p;
        w->at = warp + i;
        w->in = i;
        now.ready[w->at / WORD] |= (uint64_t)1 << w->at % WORD;
        for (unsigned lane = 0; lane < LANES; lane++) {
            struct fiber *f = &w->first[lane];
            f->warp = w;
            f->lane = lane;
            f->waits = NULL;
            if (lane >= n)
                continue;
            make_fiber(f);
            f->self = (struct emulate_thread){ at, block };
            if (++at.x == l->threads.x) {
                at.x = 0;
                at.y++;
            }
            if (at.y == l->threads.y) {
                at.y = 0;
                at.z++;
            }
        }
    }
    if (l->shared)
        fill(p, DYNAMIC, l->shared);
    for (unsigned i = 0; i < now.n_variables; i++)
        fill(p, now.variable[i].at, now.variable[i].bytes);
}

static void
run_cluster(struct emulate_xyz block)
{
    unsigned warps = 0;
    memset(now.ready, 0, sizeof now.ready);
    now.arrived = now.phase = now.alive = 0;
    for (unsigned i = 0; i < now.blocks; i++, block.x++) {
        make_block(&now.block[i], warps, block);
        warps += now.block[i].warps;
        now.alive += now.block[i].threads;
    }
    now.warps = warps;
    do
        switch_to(NULL, next_of(NULL), false);
    while (now.alive && wake_pollers());
    if (now.alive)
        deadlock();
}

static bool
set_up(void)
{
    const char *order = getenv("NIBBLE_EMULATE_ORDER");
    const char *copies = getenv("NIBBLE_EMULATE_COPIES"),
               *blocks = getenv("NIBBLE_EMULATE_BLOCKS");
    now.reverse = order && strcmp(order, "back") == 0;
    now.early = copies && strcmp(copies, "early") == 0;
    now.together = blocks && strcmp(blocks, "together") == 0;
    fibers = calloc(MAX_WARPS * LANES, sizeof *fibers);
    for (unsigned i = 0; i < MAX_CLUSTER && fibers; i++) {
        now.block[i].shared = aligned_alloc(1024, EMULATE_SHARED);
        if (!now.block[i].shared)
            return false;
        POISON(now.block[i].shared, EMULATE_SHARED);
    }
    return fibers != NULL;
}

/* Kernels with a raised limit of dynamic shared memory. */
static struct allowed {
    const void *kernel;
    size_t bytes;
} * allowed;
static size_t n_allowed;

static size_t
allowed_of(const void *kernel)
{
    for (size_t i = 0; i < n_allowed; i++)
        if (allowed[i].kernel == kernel)
            return allowed[i].bytes;
    return 0;
}

void
emulate_allow_shared(const void *kernel, size_t bytes)
{
    for (size_t i = 0; i < n_allowed; i++)
        if (allowed[i].kernel == kernel) {
            allowed[i].bytes = bytes;
            return;
        }
    struct allowed *more = realloc(allowed, (n_allowed + 1) * sizeof *more);
    if (!more)
        emulate_fail("out of memory");
    allowed = more;
    allowed[n_allowed++] = (struct allowed){ kernel, bytes };
}

/* The error that a device would return for the launch. */
static cudaError_t
refuse(const struct emulate_launch *l)
{
    uint64_t threads = (uint64_t)l->threads.x * l->threads.y * l->threads.z;
    if (!l->blocks.x || !l->blocks.y || !l->blocks.z || l->blocks.x > INT32_MAX ||
        l->blocks.y > 65535 || l->blocks.z > 65535 || !threads ||
        threads > MAX_THREADS || l->cluster > MAX_CLUSTER || l->blocks.x % l->cluster ||
        (threads + LANES - 1) / LANES * l->cluster > MAX_WARPS)
        return cudaErrorInvalidConfiguration;
    if (l->shared > emulate_device()->sharedMemPerBlockOptin ||
        (l->shared > DEFAULT_SHARED && l->shared > allowed_of(l->kernel)))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

/* How many blocks run at a time. */
static unsigned
blocks_at_once(const struct emulate_launch *l)
{
    unsigned warps = (l->threads.x * l->threads.y * l->threads.z + LANES - 1) / LANES;
    bool all = now.together && l->cluster == 1 && l->blocks.y * l->blocks.z == 1 &&
               l->blocks.x <= MAX_CLUSTER && l->blocks.x * warps <= MAX_WARPS;
    return all ? l->blocks.x : l->cluster;
}

int
emulate_run(const struct emulate_launch *l)
{
    cudaError_t e = refuse(l);
    uint64_t n = (uint64_t)l->blocks.x * l->blocks.y * l->blocks.z;
    if (e != cudaSuccess)
        return e;
    pthread_mutex_lock(&one_at_a_time);
    if (!fibers && !set_up())
        emulate_fail("out of memory");
    now.launch = l;
    now.number++;
    now.name = NULL;
    now.blocks = blocks_at_once(l);
    now.used = DYNAMIC + l->shared;
    now.n_variables = 0;
    now.main_stack = NULL;
    emulate_blocks = l->blocks;
    emulate_threads = l->threads;
    for (uint64_t i = 0; i < n; i += now.blocks) {
        uint64_t at = now.reverse ? n - now.blocks - i : i;
        run_cluster((struct emulate_xyz){ (unsigned)(at % l->blocks.x),
                                          (unsigned)(at / l->blocks.x % l->blocks.y),
                                          (unsigned)(at / l->blocks.x / l->blocks.y) });
    }
    for (unsigned i = 0; i < now.blocks; i++)
        POISON(now.block[i].shared, EMULATE_SHARED);
    now.launch = NULL;
    pthread_mutex_unlock(&one_at_a_time);
    return cudaSuccess;
}
