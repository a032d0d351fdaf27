/* Mounts the layers of an image for one tenant's containers, read-only and with shifted owners.
 *
 *   layers FIRST COUNT SOURCE TARGET [SOURCE TARGET…]
 *
 * The script of a container runs this (containers.py) in the mount namespace of its own. The files of
 * an image belong to the users 0 and up, which inside the container's user namespace are FIRST and up:
 * an idmapped mount shows them that way, without a changed file or a copy for each tenant. With a
 * COUNT of 0 the owners do not change. The kernel supports this for some file systems; elsewhere the
 * container is not started, and its log says why.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static bool write_map(pid_t of, const char *file, const char *first, const char *count)
{
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/%s", of, file);
    int length = snprintf(text, sizeof text, "0 %s %s\n", first, count);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, length) == length;
    if (fd >= 0)
        close(fd);
    return done;
}

/* A user namespace with this mapping, as an open file; only a process can create one. */
static int open_mapping(const char *first, const char *count)
{
    int ready[2];
    char word, path[64];
    if (pipe2(ready, O_CLOEXEC) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER) != 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    snprintf(path, sizeof path, "/proc/%d/ns/user", child);
    int found = -1, status;
    if (child > 0 && read(ready[0], &word, 1) == 1 && write_map(child, "uid_map", first, count) &&
        write_map(child, "gid_map", first, count))
        found = open(path, O_RDONLY | O_CLOEXEC);
    int error = errno;
    close(ready[0]);
    if (child > 0 && kill(child, SIGKILL) == 0)
        waitpid(child, &status, 0);
    errno = error;
    return found;
}

static bool mount_layer(const char *source, const char *target, int mapping)
{
    struct mount_attr how = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    if (mapping >= 0) {
        how.attr_set |= MOUNT_ATTR_IDMAP;
        how.userns_fd = mapping;
    }
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    bool done = tree >= 0 &&
                syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &how, sizeof how) == 0 &&
                syscall(SYS_move_mount, tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) == 0;
    if (tree >= 0)
        close(tree);
    return done;
}

int mount_layers(int count, char **words)
{
    int mapping = -1;
    if (count < 6 || count % 2 != 0)
        return 2;
    if (strcmp(words[3], "0") != 0 && (mapping = open_mapping(words[2], words[3])) < 0) {
        fprintf(stderr, "holdfast: a user namespace cannot be created: %s\n", strerror(errno));
        return 1;
    }
    for (int i = 4; i < count; i += 2)
        if (!mount_layer(words[i], words[i + 1], mapping)) {
            fprintf(stderr, "holdfast: a layer of the image cannot be mounted: %s\n",
                    strerror(errno));
            return 1;
        }
    return 0;
}
