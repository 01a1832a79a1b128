/* SPDX-License-Identifier: MIT */
/* memguard: lines of /proc, who belongs to the tree, who is told first, what a control
 * group leaves, samples that are thinned out. */
#include "cmd/memguard/report.h"
#include "cmd/memguard/tree.h"
#include "lib/base/machine.h"
#include "tests/unit/check.h"

#include <sys/stat.h>
#include <sys/wait.h>

/* ---- lines -------------------------------------------------------------------------- */

static void
lines(void)
{
    struct tree_proc p;
    CHECK(tree_parse(&p,
                     "71 (python3) S 70 71 1 34816 71 4194304 9 0 0 0 1 2 0 0 20 0 5 0 "
                     "123456 40960000 2500 18446744073709551615 1 1",
                     4096));
    CHECK(p.pid == 71 && p.parent == 70 && p.start == 123456 && p.rss == 2500 * 4096);
    CHECK(p.alive && !p.stopped && strcmp(p.name, "python3") == 0);
    // A name that looks like the rest of the line.
    CHECK(tree_parse(
        &p, "8 (a) S 1 (b) T 7 8 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 -3 0", 4096));
    CHECK(p.parent == 7 && p.start == 99 && p.rss == 0 && p.stopped);
    CHECK(strcmp(p.name, "a) S 1 (b") == 0);
    // Zombies: one that is dead, one whose other threads live.
    CHECK(tree_parse(&p, "9 (x) Z 7 8 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0 0", 1));
    CHECK(!p.alive);
    CHECK(tree_parse(&p, "9 (x) Z 7 8 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 99 0 0 0", 1));
    CHECK(p.alive);
    CHECK(!tree_parse(&p, "", 1));
    CHECK(!tree_parse(&p, "9 (x", 1));
    CHECK(!tree_parse(&p, ")9( S 1", 1));
    CHECK(!tree_parse(&p, "9 (x) S 7 8 1 0", 1));
}

/* ---- kin ---------------------------------------------------------------------------- */

static void
kin(void)
{
    // memguard is 50, its command 60; 20 is a former child of 50, 30 a stranger.
    static const struct tree_proc procs[] = {
        { .pid = 1, .parent = 0 },
        { .pid = 20, .parent = 50, .start = 5 },
        { .pid = 21, .parent = 20 },
        { .pid = 40, .parent = 1 },
        { .pid = 50, .parent = 40 },
        { .pid = 51, .parent = 50 },
        { .pid = 60, .parent = 50, .start = 7 },
        { .pid = 61, .parent = 62 },
        { .pid = 62, .parent = 60 },
        { .pid = 70, .parent = 99 },
        { .pid = 71, .parent = 70 },
        { .pid = 80, .parent = 30 },
        { .pid = 90, .parent = 51 },
    };
    enum { N = sizeof procs / sizeof *procs };
    enum tree_kin is[N];
    pid_t strangers[] = { 30 };
    struct tree t = { .self = 50,
                      .command = { .pid = 60, .start = 7 },
                      .witness = 51,
                      .adopts = true,
                      .strangers = strangers,
                      .n_strangers = 1 };
    static const enum tree_kin adopting[N] = {
        TREE_STRANGER, TREE_OURS,     TREE_OURS,     TREE_STRANGER, TREE_STRANGER,
        TREE_STRANGER, TREE_OURS,     TREE_OURS,     TREE_OURS,     TREE_LOST,
        TREE_LOST,     TREE_STRANGER, TREE_STRANGER,
    };
    tree_kin(&t, procs, N, is);
    for (size_t i = 0; i < N; i++)
        CHECK_SAY(is[i] == adopting[i], "process %d: %d", (int)procs[i].pid, is[i]);
    // With children that are not the command's only what is below the command counts.
    t.adopts = false;
    tree_kin(&t, procs, N, is);
    for (size_t i = 0; i < N; i++)
        CHECK_SAY(is[i] == (procs[i].pid == 20 || procs[i].pid == 21 ? TREE_STRANGER
                                                                     : adopting[i]),
                  "process %d: %d", (int)procs[i].pid, is[i]);
    // Its number was given to another one.
    t.command.start = 6;
    tree_kin(&t, procs, N, is);
    for (size_t i = 0; i < N; i++)
        CHECK(is[i] != TREE_OURS);
}

/* Nothing is signalled that is not below us: here, not one of these has such a start. */
static void
refusals(void)
{
    struct tree t;
    const char *why = "";
    if (tree_open(&t, &why) < 0) {
        // valgrind and old emulators do not know the call; then memguard does not start.
        CHECK_SAY(strstr(why, "pidfd_open"), "%s", why);
        return;
    }
    static const pid_t pids[] = { -1, 0, 1, -2147483647 - 1 };
    struct tree_proc p = { .pid = 0 };
    for (size_t i = 0; i < sizeof pids / sizeof *pids; i++) {
        p.pid = pids[i];
        CHECK(tree_signal(&t, &p, 0) < 0); // 0 would say "could be signalled"
    }
    p.pid = getpid();
    CHECK(tree_signal(&t, &p, 0) < 0);
    p.pid = getppid(); // there, but not below
    CHECK(tree_signal(&t, &p, 0) < 0);
    // A child may be, by its start only; and no more once it is gone.
    int hold[2];
    char c;
    NEED(pipe(hold) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(hold[1]);
        _exit(read(hold[0], &c, 1) < 0);
    }
    close(hold[0]);
    NEED(tree_command(&t, child) == 0);
    p = t.command;
    CHECK(tree_signal(&t, &p, 0) == 0);
    t.witness = child; // not that one, wherever it is
    CHECK(tree_signal(&t, &p, 0) < 0);
    t.witness = 0;
    p.start++;
    CHECK(tree_signal(&t, &p, 0) < 0);
    p.start--;
    t.self = INT32_MAX; // its parent is another one
    t.command.pid = 0;
    CHECK(tree_signal(&t, &p, 0) < 0);
    t.self = getpid();
    t.command = p;
    close(hold[1]);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(tree_signal(&t, &p, 0) < 0);
    free(t.procs);
    close(t.proc);
}

/* ---- who is told -------------------------------------------------------------------- */

static void
turns(void)
{
    // make, sh, trainer, tee; and a second trainer of much less
    struct tree_proc procs[] = {
        { .pid = 10, .parent = 5, .rss = 90, .alive = true },
        { .pid = 11, .parent = 10, .rss = 2, .alive = true },
        { .pid = 12, .parent = 11, .rss = 100, .alive = true },
        { .pid = 13, .parent = 11, .rss = 1, .alive = true },
        { .pid = 14, .parent = 11, .rss = 40, .gpu = 9, .alive = true },
    };
    bool told[5] = { false }, pick[5];
    // make is as large, but the trainer is below it
    CHECK(tree_pick(procs, told, 5, false, pick) == 1 && pick[2]);
    told[2] = true;
    CHECK(tree_pick(procs, told, 5, false, pick) == 0); // it saves
    procs[2].alive = false;
    CHECK(tree_pick(procs, told, 5, false, pick) == 1 && pick[0]);
    told[0] = true, procs[0].alive = false;
    CHECK(tree_pick(procs, told, 5, false, pick) == 1 && pick[4]);
    procs[4].alive = false;
    CHECK(tree_pick(procs, told, 5, false, pick) == 1 && pick[3]);
    procs[3].alive = procs[1].alive = false;
    CHECK(tree_pick(procs, told, 5, false, pick) == 0);
    // By the memory of the GPU the small one is the one.
    for (size_t i = 0; i < 5; i++)
        procs[i].alive = true, told[i] = false;
    CHECK(tree_pick(procs, told, 5, true, pick) == 1 && pick[4]);
    CHECK(tree_pick(procs, told, 0, true, pick) == 0);
    // Workers of one size hear together.
    for (size_t i = 1; i < 5; i++)
        procs[i].parent = 10, procs[i].rss = 60 + i;
    CHECK(tree_pick(procs, told, 5, false, pick) == 4 && !pick[0]);
}

/* ---- what is left ------------------------------------------------------------------- */

static void __attribute__((format(printf, 2, 3)))
put(const char *name, const char *fmt, ...)
{
    char path[1024];
    va_list ap;
    snprintf(path, sizeof path, "%s/%s", check_dir, name);
    for (char *p = path + strlen(check_dir) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(path, 0777);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    NEED(f);
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fclose(f);
}

static void
available(void)
{
    const int64_t gib = 1 << 30;
    CHECK(machine_available(check_dir) == -1);
    put("proc/meminfo", "MemTotal: 99 kB\nMemAvailable: %lld kB\n", 8LL << 20);
    CHECK(machine_available(check_dir) == 8 * gib);
    // Version 2: no limit at the group, one above it.
    put("proc/self/cgroup", "0::/user/job\n");
    put("sys/fs/cgroup/user/job/memory.max", "max\n");
    put("sys/fs/cgroup/user/job/memory.current", "%lld\n", 3LL << 30);
    CHECK(machine_available(check_dir) == 8 * gib);
    put("sys/fs/cgroup/user/memory.max", "%lld\n", 6LL << 30);
    put("sys/fs/cgroup/user/memory.current", "%lld\n", 5LL << 30);
    put("sys/fs/cgroup/user/memory.stat",
        "anon 1\ninactive_file %lld\nactive_file %lld\nslab 7\n", 1LL << 30, 2LL << 30);
    CHECK(machine_available(check_dir) == 4 * gib);
    put("sys/fs/cgroup/user/job/memory.max", "%lld\n", 2LL << 30); // lowered below it
    CHECK(machine_available(check_dir) == 0);
    // In a container, where the path is the host's and the limit stands at the root.
    put("proc/self/cgroup", "0::/../../elsewhere\n");
    CHECK(machine_available(check_dir) == 8 * gib);
    put("sys/fs/cgroup/memory.max", "%lld\n", 4LL << 30);
    put("sys/fs/cgroup/memory.current", "%lld\n", 1LL << 30);
    CHECK(machine_available(check_dir) == 3 * gib);
    // Version 1, whose "no limit" is a number, beside an unlimited version 2.
    put("sys/fs/cgroup/memory.max", "max\n");
    put("proc/self/cgroup", "7:cpu:/x\n4:memory:/box\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "%lld\n", 5LL << 30);
    CHECK(machine_available(check_dir) == 8 * gib);
    put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "%lld\n", 3LL << 30);
    put("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "%lld\n", 2LL << 30);
    put("sys/fs/cgroup/memory/box/memory.stat",
        "inactive_file 5\ntotal_inactive_file %lld\n", 1LL << 29);
    CHECK(machine_available(check_dir) == gib + gib / 2);
}

/* ---- samples ------------------------------------------------------------------------ */

static void
thinning(void)
{
    static struct samples all;
    const size_t n = 1000000;
    for (size_t i = 0; i < n; i++) {
        struct sample s = { .elapsed = (double)i, .host = 1, .available = 9 };
        if (i == 777777)
            s.host = 5, s.gpu = 6, s.processes = 7, s.available = 2;
        samples_add(&all, &s);
        CHECK(all.n <= REPORT_SAMPLES);
    }
    CHECK(all.n > REPORT_SAMPLES / 2);
    CHECK((size_t)all.each * (all.n - 1) + all.open == n);
    size_t peaks = 0;
    for (size_t i = 0; i < all.n; i++) {
        const struct sample *s = &all.kept[i];
        CHECK((size_t)s->elapsed == i * all.each); // begins with its first
        if (s->host == 5) {
            CHECK(s->gpu == 6 && s->processes == 7 && s->available == 2);
            CHECK(s->elapsed <= 777777 && s->elapsed + all.each > 777777);
            peaks++;
        }
    }
    CHECK(peaks == 1);
    struct sample a = { .available = -1 }, b = { .available = 3 };
    sample_worst(&a, &b);
    CHECK(a.available == 3);
    b.available = -1;
    sample_worst(&a, &b);
    CHECK(a.available == 3);
}

int
main(void)
{
    check_scratch();
    lines();
    kin();
    refusals();
    turns();
    available();
    thinning();
    return check_end();
}
