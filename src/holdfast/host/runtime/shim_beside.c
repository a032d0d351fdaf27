/* Runs a command beside running work: in its namespaces, as its user, for a limited time.
 *
 *   beside ISOLATION USER TIMEOUT ARGC ENVC TEXT WORK ROOT CWD [JOIN…]
 *
 * host/runtime starts one for each probe and each pre-stop that is a command. TEXT is a file of
 * ARGC + ENVC strings and WORK the work's pidfd, both as open descriptors; CWD is the directory of
 * the command below ROOT, and each JOIN the open cgroup.procs of a group that the work is in. The
 * answer is one line on standard output, followed by the beginning of the command's output:
 *
 *   code N, or signal N, or timeout, or failed ERRNO STEP
 *
 * Everything that the command started is gone before the answer comes. An overseer inside the
 * namespace is the subreaper of the command alone, so the work next to it is never touched. The
 * command does not outlive the work: in a namespace the kernel ensures that, elsewhere the overseer.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEPT_BYTES = 1024, JOINS_FROM = 11, COPIES_FROM = 64 };

static char kept[KEPT_BYTES];
static size_t kept_used;

static int answer(const char *what, int number, const char *step)
{
    char text[64 + KEPT_BYTES];
    int length = snprintf(text, 64, "%s %d %s\n", what, number, step);
    memcpy(text + length, kept, kept_used);
    return write(1, text, length + kept_used) > 0 ? 0 : 1;
}

void become_command(int report, const int files[3], bool is_terminal, const char *root,
                    const char *cwd)
{
    static char *strings[STRINGS_MAX + 2];
    setsid();
    for (int fd = 0; fd <= 2; fd++)
        if (dup2(files[fd], fd) < 0)
            give_up(report, "log", errno);
    if (is_terminal && ioctl(0, TIOCSCTTY, 0) != 0)
        give_up(report, "terminal", errno);
    if (!enter(root, cwd))
        give_up(report, "directory", errno);
    become_user(report);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        give_up(report, "parent", errno);
    forget_signals();
    umask(022);
    take_strings(report, strings);
    environ = strings + argument_count + 1;
    execvp(strings[0], strings);
    give_up(report, "exec", errno);
}

/* Keep the beginning and discard the rest; an unread pipe must not block the command. */
static bool drain(int output)
{
    char text[4096];
    ssize_t length = read(output, text, sizeof text);
    if (length <= 0)
        return length < 0 && (errno == EAGAIN || errno == EINTR);
    size_t taken = KEPT_BYTES - kept_used < (size_t)length ? KEPT_BYTES - kept_used : (size_t)length;
    memcpy(kept + kept_used, text, taken);
    kept_used += taken;
    return true;
}

static void oversee(long long timeout_ms, const char *root, const char *cwd)
{
    int report[2], output[2], status = 0;
    sigset_t all, ends;
    struct failure failed = {0};
    long long until_ms = clock_ms(CLOCK_BOOTTIME) + timeout_ms;
    bool is_over = false, is_late = false, is_alone = false;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    int signals = signalfd(-1, &ends, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ||
        prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || pipe2(report, O_CLOEXEC) != 0 ||
        pipe2(output, O_CLOEXEC | O_NONBLOCK) != 0)
        _exit(answer("failed", errno, "overseer"));
    pid_t command = fork();
    if (command < 0)
        _exit(answer("failed", errno, "fork"));
    if (command == 0) {
        fcntl(output[1], F_SETFL, 0);
        become_command(report[1], (const int[3]){NOTHING, output[1], output[1]}, false, root, cwd);
    }
    close(report[1]);
    close(output[1]);
    for (;;) {
        struct pollfd on[3] = {{.fd = signals, .events = POLLIN},
                               {.fd = output[0], .events = POLLIN},
                               {.fd = is_alone ? -1 : WORK, .events = POLLIN}};
        long long left_ms = until_ms - clock_ms(CLOCK_BOOTTIME);
        if (is_over || is_late || is_alone)
            left_ms = KILL_AGAIN_MS;
        poll(on, 3, left_ms > 0 ? (left_ms > 1000000 ? 1000000 : (int)left_ms) : 0);
        struct signalfd_siginfo one;
        while (read(signals, &one, sizeof one) == sizeof one)
            continue;
        if (on[1].revents && !drain(output[0])) {
            close(output[0]);
            output[0] = -1;
        }
        int how;
        pid_t pid;
        while ((pid = waitpid(-1, &how, WNOHANG)) > 0)
            if (pid == command) {
                is_over = true;
                status = how;
            }
        if (pid < 0 && errno == ECHILD)
            break;
        is_late = is_late || (!is_over && clock_ms(CLOCK_BOOTTIME) >= until_ms);
        is_alone = is_alone || on[2].revents != 0;
        if ((is_late || is_alone) && !is_over)
            kill(-command, SIGKILL);
        if (is_late || is_alone || is_over)
            signal_children(SIGKILL);
    }
    for (int rounds = 0; output[0] >= 0 && kept_used < KEPT_BYTES && rounds < 64; rounds++)
        if (!drain(output[0]))
            break;
    if (is_late)
        _exit(answer("timeout", 0, "-"));
    if (read(report[0], &failed, sizeof failed) == sizeof failed)
        _exit(answer("failed", failed.error, failed.step));
    bool by_signal = WIFSIGNALED(status);
    _exit(answer(by_signal ? "signal" : "code", by_signal ? WTERMSIG(status) : WEXITSTATUS(status),
                 "-"));
}

/* Join the groups and the namespaces of the work, and put the given descriptors, LINE (or -1), TEXT and
 * WORK, where they belong. NULL, or the step that failed with errno. NOTHING is opened before: inside,
 * /dev is under the work's control, and this process still has the rights of root. */
const char *step_beside(const char *isolation, const int files[3], char **joins, int count)
{
    int copies[3], places[3] = {LINE, TEXT, WORK}, flags = 0;
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (isolation[0] != 's')
        flags = CLONE_NEWPID | CLONE_NEWNS | (isolation[0] == 'u' ? CLONE_NEWUSER : CLONE_NEWIPC);
    for (int i = 0; i < 3; i++)
        if ((copies[i] = files[i] < 0 ? -1 : fcntl(files[i], F_DUPFD_CLOEXEC, COPIES_FROM)) < 0 &&
            files[i] >= 0)
            return "arguments";
    if (nothing < 0 || (nothing = fcntl(nothing, F_DUPFD_CLOEXEC, COPIES_FROM)) < 0)
        return "arguments";
    for (int i = 0; i < count; i++)
        if (write(atoi(joins[i]), "0", 1) != 1)
            return "group";
    if (flags != 0 && setns(copies[2], flags) != 0)
        return "namespace";
    for (int i = 0; i < 3; i++)
        if (copies[i] < 0)
            close(places[i]);
        else if (dup3(copies[i], places[i], O_CLOEXEC) < 0)
            return "arguments";
    if (dup3(nothing, NOTHING, O_CLOEXEC) < 0)
        return "arguments";
    syscall(SYS_close_range, NOTHING + 1, ~0U, 0);
    close(LOCK);
    return NULL;
}

int beside(int count, char **words)
{
    long long timeout_ms, arguments, variables, text, work;
    int status;
    if (count < JOINS_FROM || !parse(words[4], &timeout_ms) || !parse(words[5], &arguments) ||
        !parse(words[6], &variables) || !parse(words[7], &text) || !parse(words[8], &work) ||
        arguments < 1 || arguments + variables > STRINGS_MAX)
        return 2;
    user = words[3];
    argument_count = (int)arguments;
    variable_count = (int)variables;
    const int files[3] = {-1, (int)text, (int)work};
    const char *step = step_beside(words[2], files, words + JOINS_FROM, count - JOINS_FROM);
    if (step != NULL)
        return answer("failed", errno, step);
    pid_t overseer = fork();
    if (overseer < 0)
        return answer("failed", errno, "fork");
    if (overseer == 0)
        oversee(timeout_ms, words[9], words[10]);
    return waitpid(overseer, &status, 0) == overseer && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
