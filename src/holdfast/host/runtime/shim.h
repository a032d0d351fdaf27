/* What the parts of the shim share. shim.c enforces the deadline, shim_logs.c writes the work's logs,
 * shim_confine.c confines it, shim_beside.c and shim_enter.c run commands beside running work,
 * shim_layers.c and shim_publish.c are for containers.
 */
#ifndef HOLDFAST_SHIM_H
#define HOLDFAST_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

enum {
    STRINGS_MAX = 2048, /* a template has at most 1,024 arguments and 512 variables */
    GROUPS_MAX = 64,
    DIGITS_MAX = 15, /* in milliseconds that is 30,000 years */
    KILL_AGAIN_MS = 100 /* how often a tree that forks faster than it dies is killed again */
};
enum { LINE = 3, LOCK, TEXT, FOLDER, CWD, FIRST_FREE }; /* where the given descriptors go */
enum { WORK = TEXT + 1, NOTHING };                      /* that of work that runs already, /dev/null */

struct failure {
    int error;
    char step[28];
};

extern int argument_count, variable_count, path_count; /* of the strings in TEXT */
extern const char *user;

long long clock_ms(clockid_t which);
bool parse(const char *text, long long *number);
void read_small(const char *path, char *text, size_t size);
bool write_small(const char *path, const char *text);
void signal_children(int signal);
void give_up(int pipe, const char *step, int error) __attribute__((noreturn));
void forget_signals(void);
void take_strings(int pipe, char **strings);

/* Become the named user for good, without capabilities and without access to other users' abstract
 * sockets. */
void become_user(int pipe);
bool never_gain(void);
bool can_scope_sockets(void);
bool scope_sockets(void);
bool become(uid_t uid, const gid_t *groups, int count);
/* Hide everything that these paths do not give back; `isolation` is that of the shim. */
void confine(int pipe, const char *isolation, char **paths, int count);
bool try_confinement(const char *isolation, const char *as);
bool see_own_proc(void);
bool enter(const char *root, const char *cwd);

/* Make the pipes that the work writes to; `ends` are its standard output and error. */
bool logs_open(int folder, int ends[2]);
/* Read and write the logs in a thread of its own: nothing may fork after this. */
bool logs_begin(void);
/* Wait until all output is in the files, at most this long. */
void logs_end(int patience_ms);
/* Remove the oldest files that are left, to make room for something more important. */
void logs_make_room(int step);

int beside(int count, char **words);
int enter_work(int count, char **words);
int mount_layers(int count, char **words);
int publish(int count, char **words);
const char *step_beside(const char *isolation, const int files[3], char **joins, int count);
void become_command(int report, const int files[3], bool is_terminal, const char *root,
                    const char *cwd) __attribute__((noreturn));

#endif
