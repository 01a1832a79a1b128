/* SPDX-License-Identifier: MIT */
/* plugin: a library of ours that a program opens only when it needs it, because of what that
 * library itself depends on. */
#ifndef NIBBLE_BASE_PLUGIN_H
#define NIBBLE_BASE_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>

struct plugin {
    const char *file; // its name: in the program's directory, or where it was installed
    const char *variable; // of the environment: another path
    const char *without;  // what the build had not, if there is none
    bool global; // what it depends on opens libraries that look for its symbols
};

/* A symbol of it; NULL: the reason is in why.  It stays open. */
void *plugin_find(const struct plugin *p, const char *symbol, char *why, size_t n);

#endif
