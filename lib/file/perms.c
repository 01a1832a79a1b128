/* SPDX-License-Identifier: MIT */
/* perms: see perms.h. */
#include "lib/file/perms.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/xattr.h>
#include <unistd.h>

/* The access control lists of old for fd: false if one could not be set. */
static bool
copy_lists(int fd, const char *old)
{
    static const char *const lists[] = { "system.posix_acl_access",
                                         "system.posix_acl_default" };
    bool all = true;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char list[4096];
        ssize_t n = getxattr(old, lists[i], list, sizeof list);
        if (n > 0)
            all &= fsetxattr(fd, lists[i], list, (size_t)n, 0) == 0;
        else if (n < 0 && errno == ENODATA) // what fd has is from its directory
            all &= fremovexattr(fd, lists[i]) == 0 || errno == ENODATA;
        else if (n < 0 && errno == ERANGE)
            all = false;
    }
    return all;
}

int
perms_copy(int fd, const struct stat *old, const char *old_path, const char *name,
           struct err *err)
{
    struct stat now;
    mode_t mode = old->st_mode & (S_ISDIR(old->st_mode) ? 03777 : 0777);
    if (fstat(fd, &now) < 0)
        return err_set(err, ERR_IO, "%s:", name);
    bool ours = now.st_uid == old->st_uid && now.st_gid == old->st_gid;
    bool group = ours || fchown(fd, old->st_uid, old->st_gid) == 0 ||
                 fchown(fd, (uid_t)-1, old->st_gid) == 0;
    // Another group than before must not get what only that one had, by a list neither;
    // nor must the group get what was meant for the names of a list.
    if (!group || (old_path && !copy_lists(fd, old_path)))
        mode &= ~(mode_t)02070 | (mode & 07) << 3;
    if (fstat(fd, &now) < 0 || ((now.st_mode & 07777) != mode && fchmod(fd, mode) < 0))
        return err_set(err, ERR_IO, "%s: cannot set its permissions:", name);
    return 0;
}

mode_t
perms_common(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    struct stat st;
    mode_t mode = 0777;
    while (d && (e = readdir(d)))
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            mode &= st.st_mode;
    if (d)
        closedir(d);
    return mode | 0700;
}
