/* Runs a person's command beside running work, with input and outputs of its own.
 *
 *   enter ISOLATION USER TERMINAL ARGC ENVC TEXT WORK LINE ROOT CWD [JOIN…]
 *
 * host/runtime starts one for each exec. The arguments are those of `beside`; standard input, output
 * and error become the command's, and with TERMINAL 1 they are a terminal, which becomes its own. LINE
 * is a socket to the agent. The answer of `beside` is sent there when the command has ended; when the
 * agent closes it, or is gone, the command is ended.
 *
 * As with `beside` nothing that the command started outlives it, and it does not outlive the work.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { JOINS_FROM = 12 };

static int line; /* the current descriptor of the socket to the agent */

static int answer(const char *what, int number, const char *step)
{
    char text[64];
    int length = snprintf(text, sizeof text, "%s %d %s\n", what, number, step);
    return send(line, text, length, MSG_NOSIGNAL) == length ? 0 : 1;
}

/* The reader of the command's output must see its end when the command has ended, not later. */
static void close_outputs(void)
{
    for (int fd = 0; fd <= 2; fd++)
        dup3(NOTHING, fd, O_CLOEXEC);
}

static void oversee(bool is_terminal, const char *root, const char *cwd)
{
    int report[2], status = 0;
    sigset_t all, ends;
    struct failure failed = {0};
    bool is_over = false, is_alone = false, has_agent = true;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    int signals = signalfd(-1, &ends, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ||
        prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || pipe2(report, O_CLOEXEC) != 0)
        _exit(answer("failed", errno, "overseer"));
    pid_t command = fork();
    if (command < 0)
        _exit(answer("failed", errno, "fork"));
    if (command == 0)
        become_command(report[1], (const int[3]){0, 1, 2}, is_terminal, root, cwd);
    close(report[1]);
    close_outputs();
    for (;;) {
        struct pollfd on[3] = {{.fd = signals, .events = POLLIN},
                               {.fd = has_agent ? LINE : -1, .events = POLLIN},
                               {.fd = is_alone ? -1 : WORK, .events = POLLIN}};
        poll(on, 3, is_over || is_alone || !has_agent ? KILL_AGAIN_MS : -1);
        struct signalfd_siginfo one;
        char word;
        while (read(signals, &one, sizeof one) == sizeof one)
            continue;
        if (on[1].revents && read(LINE, &word, 1) <= 0)
            has_agent = false;
        int how;
        pid_t pid;
        while ((pid = waitpid(-1, &how, WNOHANG)) > 0)
            if (pid == command) {
                is_over = true;
                status = how;
            }
        if (pid < 0 && errno == ECHILD)
            break;
        is_alone = is_alone || on[2].revents != 0;
        if ((is_alone || !has_agent) && !is_over)
            kill(-command, SIGKILL);
        if (is_alone || !has_agent || is_over)
            signal_children(SIGKILL);
    }
    if (is_alone)
        _exit(answer("alone", 0, "-"));
    if (read(report[0], &failed, sizeof failed) == sizeof failed)
        _exit(answer("failed", failed.error, failed.step));
    bool by_signal = WIFSIGNALED(status);
    _exit(answer(by_signal ? "signal" : "code", by_signal ? WTERMSIG(status) : WEXITSTATUS(status),
                 "-"));
}

int enter_work(int count, char **words)
{
    long long terminal, arguments, variables, text, work, given;
    int status;
    if (count < JOINS_FROM || !parse(words[4], &terminal) || !parse(words[5], &arguments) ||
        !parse(words[6], &variables) || !parse(words[7], &text) || !parse(words[8], &work) ||
        !parse(words[9], &given) || arguments < 1 || arguments + variables > STRINGS_MAX)
        return 2;
    user = words[3];
    argument_count = (int)arguments;
    variable_count = (int)variables;
    line = (int)given;
    const int files[3] = {line, (int)text, (int)work};
    const char *step = step_beside(words[2], files, words + JOINS_FROM, count - JOINS_FROM);
    if (step != NULL)
        return answer("failed", errno, step);
    line = LINE;
    pid_t overseer = fork();
    if (overseer < 0)
        return answer("failed", errno, "fork");
    if (overseer == 0)
        oversee(terminal != 0, words[10], words[11]);
    close_outputs();
    close(LINE);
    return waitpid(overseer, &status, 0) == overseer && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
