/* Confines one tenant's work to what is its own.
 *
 * shim.c calls this in the process that becomes the work, and shim_beside.c and shim_enter.c in that of
 * a command beside it. Rights are given up for good: another user, no groups, no capabilities, no way
 * to gain any, and no abstract sockets of others where Landlock has scopes. Files are hidden in a mount
 * namespace of the work's own: the directories in HIDDEN are covered by empty ones, the work's own
 * directory is mounted back at its place, and /tmp, /var/tmp and /dev/shm are private.
 * docs/adr/0093-isolation-of-processes.md says why.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { JOIN_SESSION_KEYRING = 1 };

/* As in <linux/landlock.h>, which has the scopes since Linux 6.12 only. */
enum { LANDLOCK_ASK_VERSION = 1, LANDLOCK_SCOPES = 6, LANDLOCK_SCOPE_ABSTRACT = 1 };
struct landlock_rules {
    unsigned long long files, network, scoped;
};
#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_restrict_self 446
#endif

/* Each bit is locked; user ids still change capabilities, which is how they are lost below. */
#define NEVER_AGAIN                                                                               \
    (SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED |                       \
     SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED)

/* A /proc that shows only the processes of the work, with the pids that it sees. */
bool see_own_proc(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) == 0 &&
           mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0;
}

/* Rights ---------------------------------------------------------------------------------------*/

static bool bound_capabilities(void)
{
    for (int number = 0; prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0; number++)
        if (prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0)
            return false;
    return prctl(PR_SET_SECUREBITS, NEVER_AGAIN, 0, 0, 0) == 0;
}

static bool drop_capabilities(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    return syscall(SYS_capset, &head, none) == 0;
}

bool become(uid_t uid, const gid_t *groups, int count)
{
    if (!bound_capabilities() || setgroups(count, groups) != 0 ||
        setresgid(groups[0], groups[0], groups[0]) != 0 || setresuid(uid, uid, uid) != 0 ||
        !drop_capabilities())
        return false;
    /* The agent's keys hang on the session that it was started in. */
    return syscall(SYS_keyctl, JOIN_SESSION_KEYRING, NULL) >= 0 || errno == ENOSYS;
}

/* No program with a set-user-id bit gives this process more rights. */
bool never_gain(void)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

bool can_scope_sockets(void)
{
    return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_ASK_VERSION) >= LANDLOCK_SCOPES;
}

/* From now on this process and all that it starts can connect only to abstract sockets that they made:
 * abstract names are shared by the whole network namespace, and no file rights guard them. */
bool scope_sockets(void)
{
    struct landlock_rules rules = {.scoped = LANDLOCK_SCOPE_ABSTRACT};
    int fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    bool is_done = fd >= 0 && syscall(SYS_landlock_restrict_self, fd, 0) == 0;
    if (fd >= 0)
        close(fd);
    return is_done;
}

static void take_user(int pipe)
{
    static gid_t groups[GROUPS_MAX];
    int count = 0;
    char *end;
    uid_t uid = strtoul(user, &end, 10);
    while ((*end == ':' || *end == ',') && count < GROUPS_MAX)
        groups[count++] = strtoul(end + 1, &end, 10);
    if (*end != '\0' || count == 0)
        give_up(pipe, "user", EINVAL);
    /* Work that reopens /dev/stderr opens the pipe, subject to the pipe's file rights. */
    if (fchown(1, uid, groups[0]) != 0 || fchown(2, uid, groups[0]) != 0)
        give_up(pipe, "log", errno);
    if (!become(uid, groups, count))
        give_up(pipe, "user", errno);
}

void become_user(int pipe)
{
    bool is_another = user[0] != '-';
    if (is_another)
        take_user(pipe);
    if (!never_gain())
        give_up(pipe, "privileges", errno);
    /* Where the kernel cannot, the node says so (isolation_levels.py). */
    if (is_another && can_scope_sockets() && !scope_sockets())
        give_up(pipe, "sockets", errno);
}

/* Files ----------------------------------------------------------------------------------------*/

/* The work may have put links below its own directory, and above it, in a mount namespace that it made
 * itself: none of them is followed. */
bool enter(const char *root, const char *cwd)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    int top = (int)syscall(SYS_openat2, AT_FDCWD, root, &how, sizeof how);
    how.resolve |= RESOLVE_BENEATH;
    int fd = top < 0 ? -1 : (int)syscall(SYS_openat2, top, cwd, &how, sizeof how);
    return fd >= 0 && fchdir(fd) == 0;
}

/* Mount an empty directory over this one, if it exists. */
static bool cover(const char *path, const char *options)
{
    return mount("holdfast", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options) == 0 ||
           errno == ENOENT;
}

static bool bind_to(int folder, const char *path)
{
    char source[32];
    snprintf(source, sizeof source, "/proc/self/fd/%d", folder);
    return mount(source, path, NULL, MS_BIND, NULL) == 0;
}

static bool make_way(const char *path)
{
    char so_far[PATH_MAX];
    if (strlen(path) >= sizeof so_far)
        return false;
    strcpy(so_far, path);
    for (char *slash = strchr(so_far + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(so_far, 0755) != 0 && errno != EEXIST)
            return false;
        *slash = '/';
    }
    return mkdir(so_far, 0755) == 0 || errno == EEXIST;
}

static bool see_private_scratch(int tmp)
{
    return bind_to(tmp, "/tmp") && (bind_to(tmp, "/var/tmp") || errno == ENOENT) &&
           cover("/dev/shm", "mode=1777,size=64m");
}

/* The directory of the work, found by its path: a descriptor that the agent opened belongs to a mount
 * of the agent's namespace, which nothing can be bound from here. */
static int open_own(const char *path)
{
    struct stat given, found;
    int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && fstatat(FOLDER, "work", &given, AT_SYMLINK_NOFOLLOW) == 0 &&
        fstat(fd, &found) == 0 && given.st_ino == found.st_ino && given.st_dev == found.st_dev)
        return fd;
    errno = ESTALE;
    return -1;
}

/* The files from Secrets of all tenants share one file system, which none of them may fill. */
static bool see_secrets(const char *path)
{
    unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    return *path == '\0' || mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | flags, NULL) == 0;
}

void confine(int pipe, const char *isolation, char **paths, int count)
{
    bool is_root = isolation[0] == 'p';
    if (count < 3)
        give_up(pipe, "arguments", EINVAL);
    umask(022);
    if (!see_own_proc() || (is_root && unshare(CLONE_NEWIPC) != 0))
        give_up(pipe, "namespace", errno);
    int work = open_own(paths[0]), tmp = -1;
    if (work < 0 || (is_root && (tmp = openat(work, "../tmp", O_PATH | O_NOFOLLOW | O_CLOEXEC)) < 0))
        give_up(pipe, "directory", errno);
    if (is_root && !see_private_scratch(tmp))
        give_up(pipe, "tmp", errno);
    if (!see_secrets(paths[2]))
        give_up(pipe, "secrets", errno);
    for (int i = 3; i < count; i++)
        if (!cover(paths[i], "mode=755,size=64k,nr_inodes=1k"))
            give_up(pipe, "hide", errno);
    if (!make_way(paths[0]) || !bind_to(work, paths[0]))
        give_up(pipe, "hide", errno);
    if (is_root && mount(NULL, paths[0], NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL))
        give_up(pipe, "hide", errno);
    /* By its path and not by CWD, from which `..` would lead to covered directories. */
    if (!enter(paths[0], paths[1]))
        give_up(pipe, "directory", errno);
}

/* Whether all of this works, tried for real by a process that ends with it. */
bool try_confinement(const char *isolation, const char *as)
{
    gid_t number = strtoul(as, NULL, 10);
    if (!see_own_proc() || !cover("/tmp", "mode=755,size=64k"))
        return false;
    if (isolation[0] != 'p')
        return true;
    int tmp = open("/tmp", O_PATH | O_CLOEXEC);
    return tmp >= 0 && unshare(CLONE_NEWIPC) == 0 && see_private_scratch(tmp) &&
           become(number, &number, 1);
}
