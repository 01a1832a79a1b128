/* SPDX-License-Identifier: MIT */
/* plugin: see plugin.h. */
#include "lib/base/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *
open_at(const struct plugin *p, const char *path, char *why, size_t n)
{
    void *lib = dlopen(path, RTLD_NOW | (p->global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!lib)
        snprintf(why, n, "%s", dlerror());
    return lib;
}

static void *
open_plugin(const struct plugin *p, char *why, size_t n)
{
    static const char *const places[] = { "", "../lib/nibble/", "../lib/" };
    const char *given = getenv(p->variable);
    char self[4000], path[4200];
    if (given)
        return open_at(p, given, why, n);
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    self[len > 0 ? len : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        slash[1] = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s%s%s", self, places[i], p->file);
        if (access(path, R_OK) == 0)
            return open_at(p, path, why, n);
    }
    snprintf(why, n, "there is no %s beside the program: it was built without %s",
             p->file, p->without);
    return NULL;
}

void *
plugin_find(const struct plugin *p, const char *symbol, char *why, size_t n)
{
    void *lib = open_plugin(p, why, n), *f = lib ? dlsym(lib, symbol) : NULL;
    if (lib && !f)
        snprintf(why, n, "%s is of another version", p->file);
    return f;
}
