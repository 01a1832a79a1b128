/* SPDX-License-Identifier: MIT */
/* meter: run a command and say what it took.
 *
 *   meter FILE COMMAND [ARGUMENT]...
 *
 * Appends one line to FILE: "SECONDS USER SYSTEM RSS_KIB FOREIGN STATUS".  SECONDS is
 * from before the start of the process to after its end.  RSS_KIB is the peak of the
 * largest process.  FOREIGN is the processor time that others used meanwhile: seconds in
 * user mode and stolen by the hypervisor, of all processors, without those of the
 * command.  (System time cannot be told apart: the kernel writes back for us.)
 *
 * Exit: that of the command.
 */
#include "lib/base/os.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static double
seconds(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

/* User, nice and steal of all processors, in seconds. */
static double
machine(void)
{
    enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, FIELDS };
    unsigned long long v[FIELDS] = { 0 };
    char line[512] = "";
    FILE *f = fopen("/proc/stat", "r");
    if (f && !fgets(line, sizeof line, f))
        line[0] = '\0';
    if (f)
        fclose(f);
    char *p = line + strcspn(line, " "); // behind "cpu"
    for (int i = 0; i < FIELDS; i++)
        v[i] = strtoull(p, &p, 10);
    return (double)(v[USER] + v[NICE] + v[STEAL]) / (double)sysconf(_SC_CLK_TCK);
}

int
main(int argc, char **argv)
{
    extern char **environ;
    struct rusage use;
    pid_t pid;
    int status;
    if (argc < 3) {
        fputs("usage: meter FILE COMMAND [ARGUMENT]...\n", stderr);
        return 2;
    }
    double before = machine(), start = os_seconds();
    int rc = posix_spawnp(&pid, argv[2], NULL, NULL, argv + 2, environ);
    if (rc != 0) {
        fprintf(stderr, "meter: %s: %s\n", argv[2], strerror(rc));
        return 127;
    }
    while (wait4(pid, &status, 0, &use) < 0)
        if (errno != EINTR)
            return 127;
    double wall = os_seconds() - start, user = seconds(use.ru_utime);
    double foreign = machine() - before - user;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    FILE *out = fopen(argv[1], "a");
    if (!out) {
        perror("meter");
        return 127;
    }
    fprintf(out, "%.6f %.3f %.3f %ld %.3f %d\n", wall, user, seconds(use.ru_stime),
            use.ru_maxrss, foreign > 0 ? foreign : 0, code);
    return fclose(out) == 0 ? code : 127;
}
