/* The shim: it starts one attempt's work, enforces its deadline, and records how it ended.
 *
 * host/runtime starts one for each attempt of a replica. An agent could not enforce a deadline
 * while it is paused or dead, so this independent process does: it gets a reading of
 * CLOCK_BOOTTIME, and unless the agent moves that later, the work and everything it started is gone
 * `grace` after it. Where the kernel allows, the shim is init of a PID namespace; then its own
 * death, too, ends the whole tree.
 *
 * It gets everything as arguments and parses nothing but numbers:
 *
 *   run ISOLATION BOOT DEADLINE GRACE USER ARGC ENVC PATHC LINE LOCK TEXT FOLDER CWD NAME [JOIN…]
 *
 * DEADLINE is a reading in ms or "none"; USER is "-" or uid:gid[,gid…]; LINE is a socket to the
 * agent, LOCK a file that is locked as long as the shim lives, TEXT a file of ARGC + ENVC + PATHC
 * strings, FOLDER the directory of the attempt and CWD that of the work, all as open descriptors.
 * With paths the work is confined (shim_confine.c): they are its own directory, the working
 * directory below that, the mount of files from Secrets (empty if there is none), and those that
 * are hidden from it. NAME is for people who read the process table. Each JOIN is the open
 * cgroup.procs of a group for the work: the work joins it, and the shim does not, so that no limit
 * can end the shim.
 *
 * Requests are lines, on LINE and on the socket "control" in FOLDER, and so are the answers:
 *
 *   status             status starting|running|stopping PID/START DEADLINE KILL-AT PROTOCOL
 *   extend BOOT MS     extended DEADLINE, or refused boot|earlier|stopping|none
 *   stop GRACE         stopping KILL-AT
 *
 * Anything else is answered with "unknown": an agent of a later version may send other requests, and
 * must not lose its connection by that. PROTOCOL is in the file "state" as well; it grows when an
 * agent has to know what a shim can do. Shims before protocol 2 do not send it, and close the
 * connection on unknown requests.
 *
 * -1 is no deadline, or no end yet. "started" and "exited" are sent to all clients, when exec has
 * succeeded and when the file "exit" is on disk. Nothing is allocated, and every buffer has a fixed
 * size.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SHIM_SOURCE
#define SHIM_SOURCE "unknown"
#endif

enum {
    JOINS_MAX = 8,
    PROTOCOL = 2,
    CLIENTS_MAX = 8,
    WAITING_MAX = 64,
    LINE_BYTES = 128,
    RECORD_BYTES = 1024,
    PERSIST_TRIES_MAX = 30, /* one a second: a disk may be full for a moment */
    ROOM_STEPS = 3,         /* before that, how often logs are removed to make room */
    LAST_OUTPUT_MS = 1000    /* how long the logs may take to be complete at the end */
};

#define NONE (-1LL)

struct identity {
    int pid; /* as the machine sees it, which inside a namespace is not getpid() */
    unsigned long long start;
};
struct client {
    int fd;
    size_t used;
    char text[LINE_BYTES];
};

static const char *isolation, *boot;
const char *user;
static long long deadline_ms, grace_ms, started_wall_ms;
static long long asked_ms = NONE; /* by when a stop request wants it gone */
static long long kill_ms = NONE;  /* when it is killed: the earlier of that and deadline + grace */
int argument_count, variable_count, join_count, path_count;
static const char *reason;      /* why it is being stopped; NULL while it is not */
static bool has_passed;         /* whether the deadline has come; from then on it does not move */
static bool killed, is_started; /* whether SIGKILL was needed; whether exec succeeded */
static struct failure failed;   /* why exec did not succeed */
static struct identity self, work;
static pid_t work_pid; /* as this process sees it */
static bool work_gone;
static int work_status;
static int start_pipe = -1, signals = -1, timer = -1, listener = -1;
static struct client clients[CLIENTS_MAX]; /* the oldest first */
static int client_count;

/* Clocks, numbers and small files --------------------------------------------------------------*/

long long clock_ms(clockid_t which)
{
    struct timespec now;
    clock_gettime(which, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static bool is_late(void)
{
    return deadline_ms != NONE && clock_ms(CLOCK_BOOTTIME) >= deadline_ms;
}

bool parse(const char *text, long long *number)
{
    size_t length = strspn(text, "0123456789");
    if (length == 0 || length > DIGITS_MAX || text[length] != '\0')
        return false;
    *number = strtoll(text, NULL, 10);
    return true;
}

/* The beginning of a small file of the kernel's; empty when it cannot be read. */
void read_small(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, text, size - 1);
    text[length > 0 ? length : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

bool write_small(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return done;
}

/* This process's identity on the machine: /proc/self is a link to its pid in that /proc. */
static bool identify(struct identity *who)
{
    char text[1024];
    ssize_t length = readlink("/proc/self", text, sizeof text - 1);
    if (length <= 0)
        return false;
    text[length] = '\0';
    who->pid = atoi(text);
    read_small("/proc/self/stat", text, sizeof text);
    /* Field 2 is the program's name in parentheses, and the name may contain parentheses. */
    char *field = strrchr(text, ')');
    for (int number = 2; field != NULL && number < 22; number++)
        field = strchr(field + 1, ' ');
    return field != NULL && sscanf(field, " %llu", &who->start) == 1;
}

/* Write a file atomically, also in case of a power cut with `is_synced`. */
static bool persist(const char *name, const char *text, bool is_synced)
{
    char draft[32];
    snprintf(draft, sizeof draft, ".%s.new", name);
    unlink(draft);
    int fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    errno = ENOSPC; /* A partial write means that there is no room. */
    bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    done = done && (!is_synced || fsync(fd) == 0);
    done = close(fd) == 0 && done;
    return done && rename(draft, name) == 0 && (!is_synced || fsync(FOLDER) == 0);
}

/* Clients --------------------------------------------------------------------------------------*/

static void drop(int index)
{
    close(clients[index].fd);
    client_count--;
    memmove(&clients[index], &clients[index + 1], sizeof *clients * (client_count - index));
}

__attribute__((format(printf, 2, 3))) static bool reply(int fd, const char *form, ...)
{
    char text[256];
    va_list values;
    va_start(values, form);
    int length = vsnprintf(text, sizeof text, form, values);
    va_end(values);
    /* A client that does not read its answers loses them: the shim never waits for a client. */
    return send(fd, text, length, MSG_NOSIGNAL | MSG_DONTWAIT) == length;
}

static void add_client(int fd)
{
    if (client_count == CLIENTS_MAX)
        drop(0); /* A paused agent must not block its successor. */
    clients[client_count++] = (struct client){.fd = fd};
}

/* The work's tree ------------------------------------------------------------------------------*/

static bool is_init(void)
{
    return isolation[0] != 's';
}

/* The pid in this process's namespace of another process, whose /proc entry lists its pid in each
 * namespace: /proc may be that of an outer namespace. */
static int own_number(const char *status, int depth)
{
    const char *names = strstr(status, "\nNSpid:");
    int number = 0, used = 0;
    if (names == NULL)
        return 0;
    for (names += 7; depth >= 0; depth--, names += used)
        if (sscanf(names, " %d%n", &number, &used) != 1)
            return 0;
    return number;
}

static int depth_of_proc(void)
{
    char status[2048];
    int depth = 0;
    read_small("/proc/self/status", status, sizeof status);
    while (own_number(status, depth) != getpid())
        if (own_number(status, depth++) == 0)
            return 0;
    return depth;
}

/* Every child of this thread; a process that loses its parent becomes a child of the subreaper. */
void signal_children(int signal)
{
    char path[64], text[4096], status[2048], *rest = text;
    int depth = depth_of_proc();
    read_small("/proc/thread-self/children", text, sizeof text);
    char *last = strrchr(text, ' ');
    if (last != NULL)
        *last = '\0'; /* After it comes nothing, or a truncated number. */
    for (char *pid = strtok_r(text, " ", &rest); pid; pid = strtok_r(NULL, " ", &rest)) {
        snprintf(path, sizeof path, "/proc/%d/status", atoi(pid));
        read_small(path, status, sizeof status);
        int number = own_number(status, depth);
        if (number > 0)
            kill(number, signal);
    }
}

/* As init, everything but this process. Otherwise the work's own process group while its number is
 * certainly its own, and every child. */
static void signal_tree(int signal)
{
    if (is_init()) {
        kill(-1, signal);
        return;
    }
    if (!work_gone)
        kill(-work_pid, signal);
    signal_children(signal);
}

static void arm(void)
{
    long long at = reason != NULL ? kill_ms : deadline_ms;
    if (killed)
        at = clock_ms(CLOCK_BOOTTIME) + KILL_AGAIN_MS;
    struct itimerspec when = {0};
    if (at != NONE) {
        when.it_value.tv_sec = at / 1000;
        when.it_value.tv_nsec = at % 1000 * 1000000 + 1; /* all zero would mean never */
    }
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* When it has to be killed. A requested end never moves later, and is never after deadline + grace:
 * fencing relies on that. */
static void settle_end(void)
{
    kill_ms = asked_ms;
    if (deadline_ms != NONE && kill_ms > deadline_ms + grace_ms)
        kill_ms = deadline_ms + grace_ms;
    arm();
}

/* Begin to stop, or stop sooner. */
static void stop(const char *why, long long from_ms, long long within_ms)
{
    long long end = from_ms + within_ms;
    if (asked_ms == NONE || end < asked_ms)
        asked_ms = end;
    if (reason == NULL) {
        reason = why;
        signal_tree(SIGTERM);
        signal_tree(SIGCONT); /* A stopped process could not handle the signal. */
    }
    settle_end();
}

/* Act on the clock. Called before any request is read, so that no request can be too late. */
static void check_time(void)
{
    if (!has_passed && is_late()) {
        has_passed = true;
        stop("DeadlinePassed", deadline_ms, grace_ms);
    }
    if (kill_ms != NONE && clock_ms(CLOCK_BOOTTIME) >= kill_ms) {
        killed = true;
        signal_tree(SIGKILL);
        arm();
    }
}

static void finish(void)
{
    bool by_signal = WIFSIGNALED(work_status);
    char text[RECORD_BYTES];
    if (failed.error == ETIME)
        reason = "DeadlinePassed";
    else if (failed.error != 0)
        reason = "NotStarted";
    else if (reason == NULL)
        reason = by_signal ? "Killed" : "Exited";
    snprintf(text, sizeof text,
             "reason %s\nis_started %d\ncode %d\nsignal %d\nis_killed %d\nboot %s\nwork %d/%llu\n"
             "started_ms %lld\nended_ms %lld\nerror %d\nstep %s\nend\n",
             reason, is_started, is_started && !by_signal ? WEXITSTATUS(work_status) : -1,
             is_started && by_signal ? WTERMSIG(work_status) : 0, killed, boot, work.pid,
             work.start, started_wall_ms, clock_ms(CLOCK_REALTIME), failed.error, failed.step);
    logs_end(LAST_OUTPUT_MS);
    for (int tries = 0; tries < ROOM_STEPS + PERSIST_TRIES_MAX; tries++) {
        if (persist("exit", text, true)) {
            for (int i = 0; i < client_count; i++)
                reply(clients[i].fd, "exited\n");
            break;
        }
        /* If there is no room for both, the exit record is worth more than logs. */
        if (errno == ENOSPC || errno == EDQUOT)
            logs_make_room(tries);
        if (tries >= ROOM_STEPS)
            sleep(1);
    }
    unlink("control");
    /* Without a record the free lock says that nothing runs, and how it ended is unknown. */
    _exit(0);
}

/* Whether exec succeeded: the pipe closes with it, or brings the reason why not. */
static void read_start(void)
{
    ssize_t length = read(start_pipe, &failed, sizeof failed);
    if (length < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    close(start_pipe);
    start_pipe = -1;
    if (length == 0) {
        is_started = true;
        for (int i = 0; i < client_count; i++)
            reply(clients[i].fd, "started\n");
    }
}

static void reap(void)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == work_pid) {
            work_gone = true;
            work_status = status;
        }
    if (!work_gone)
        return;
    while (start_pipe >= 0)
        read_start();
    if (pid < 0 && errno == ECHILD)
        finish();
    /* The rest of the tree does not outlive the process that was started. */
    if (reason == NULL)
        stop(WIFSIGNALED(work_status) ? "Killed" : "Exited", clock_ms(CLOCK_BOOTTIME), grace_ms);
}

/* Requests -------------------------------------------------------------------------------------*/

static bool extend(int fd, const char *of_boot, const char *until)
{
    long long ms;
    if (!parse(until, &ms))
        return false;
    if (strcmp(of_boot, boot) != 0)
        return reply(fd, "refused boot\n");
    if (deadline_ms == NONE)
        return reply(fd, "refused none\n");
    if (has_passed)
        return reply(fd, "refused stopping\n");
    if (ms < deadline_ms)
        return reply(fd, "refused earlier\n");
    deadline_ms = ms;
    if (reason != NULL)
        settle_end(); /* A requested stop may take as long as the request allows. */
    else
        arm();
    return reply(fd, "extended %lld\n", deadline_ms);
}

/* One line of a client. False when it is a known request in a wrong form. */
static bool serve(int fd, char *line)
{
    char *rest = line, *verb = strtok_r(line, " ", &rest);
    char *first = strtok_r(NULL, " ", &rest), *second = strtok_r(NULL, " ", &rest);
    long long within;
    if (verb == NULL)
        return false;
    if (strcmp(verb, "status") == 0)
        return reply(fd, "status %s %d/%llu %lld %lld %d\n",
                     reason != NULL ? "stopping" : is_started ? "running" : "starting", work.pid,
                     work.start, deadline_ms, kill_ms, PROTOCOL);
    if (strcmp(verb, "extend") == 0 && first != NULL && second != NULL)
        return extend(fd, first, second);
    if (strcmp(verb, "stop") == 0 && first != NULL && parse(first, &within)) {
        stop("Stopped", clock_ms(CLOCK_BOOTTIME), within);
        return reply(fd, "stopping %lld\n", kill_ms);
    }
    if (strcmp(verb, "extend") == 0 || strcmp(verb, "stop") == 0)
        return false;
    return reply(fd, "unknown\n");
}

static bool read_requests(struct client *from)
{
    ssize_t length = read(from->fd, from->text + from->used, LINE_BYTES - from->used);
    if (length < 0)
        return errno == EINTR || errno == EAGAIN;
    if (length == 0)
        return false;
    from->used += length;
    char *end;
    while ((end = memchr(from->text, '\n', from->used)) != NULL) {
        *end = '\0';
        size_t taken = end + 1 - from->text;
        if (!serve(from->fd, from->text))
            return false;
        from->used -= taken;
        memmove(from->text, end + 1, from->used);
    }
    return from->used < LINE_BYTES;
}

/* Becoming the work ----------------------------------------------------------------------------*/

void give_up(int pipe, const char *step, int error)
{
    struct failure why = {.error = error};
    snprintf(why.step, sizeof why.step, "%s", step);
    ssize_t written = write(pipe, &why, sizeof why);
    _exit(written == sizeof why ? 127 : 126);
}

/* The strings of TEXT, one after the other, as exec wants them: a null pointer ends the arguments, and
 * one the variables. The paths come behind those. */
void take_strings(int pipe, char **strings)
{
    struct stat about;
    if (fstat(TEXT, &about) != 0 || about.st_size == 0)
        give_up(pipe, "arguments", EINVAL);
    char *text = mmap(NULL, about.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, TEXT, 0);
    if (text == MAP_FAILED)
        give_up(pipe, "arguments", errno);
    char *end = text + about.st_size;
    if (end[-1] != '\0')
        give_up(pipe, "arguments", EINVAL);
    for (int i = 0; i < argument_count + variable_count + path_count; i++) {
        if (text >= end)
            give_up(pipe, "arguments", EINVAL);
        strings[i + (i >= argument_count) + (i >= argument_count + variable_count)] = text;
        text += strlen(text) + 1;
    }
}

void forget_signals(void)
{
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void become_work(int pipe, int go, const int outputs[2])
{
    static char *strings[STRINGS_MAX + 2]; /* with the null pointers */
    struct identity who;
    char word;
    if (!identify(&who) || write(pipe, &who, sizeof who) != sizeof who || read(go, &word, 1) != 1)
        _exit(126);
    for (int i = 0; i < join_count; i++)
        if (write(FIRST_FREE + i, "0", 1) != 1)
            give_up(pipe, "group", errno);
    setsid();
    int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (input < 0 || dup2(input, 0) < 0 || dup2(outputs[0], 1) < 0 || dup2(outputs[1], 2) < 0)
        give_up(pipe, "log", errno);
    take_strings(pipe, strings);
    if (path_count > 0)
        confine(pipe, isolation, strings + argument_count + variable_count + 2, path_count);
    else if (is_init())
        (void)see_own_proc(); /* `probe` has reported whether this works. */
    if (path_count == 0 && fchdir(CWD) != 0)
        give_up(pipe, "directory", errno);
    become_user(pipe);
    /* After the change of user, which would undo it. */
    if (!is_init() && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != self.pid))
        give_up(pipe, "parent", ESRCH);
    forget_signals();
    umask(022);
    environ = strings + argument_count + 1;
    if (is_late())
        give_up(pipe, "deadline", ETIME);
    execvp(strings[0], strings);
    give_up(pipe, "exec", errno);
}

/* The main loop of the shim --------------------------------------------------------------------*/

/* Report that nothing was started, and exit. */
static void refuse(const char *step, int error)
{
    reply(LINE, "failed %d %s\n", error, step);
    _exit(1);
}

static void start_work(void)
{
    int report[2], go[2], outputs[2];
    char text[RECORD_BYTES];
    if (pipe2(report, O_CLOEXEC) != 0 || pipe2(go, O_CLOEXEC) != 0 || !logs_open(FOLDER, outputs))
        refuse("pipe", errno);
    work_pid = fork();
    if (work_pid < 0)
        refuse("fork", errno);
    if (work_pid == 0)
        become_work(report[1], go[0], outputs);
    if (!logs_begin())
        refuse("logs", errno);
    close(report[1]);
    close(go[0]);
    close(TEXT);
    close(CWD);
    for (int i = 0; i < join_count; i++)
        close(FIRST_FREE + i);
    if (read(report[0], &work, sizeof work) != sizeof work)
        refuse("identity", EIO);
    started_wall_ms = clock_ms(CLOCK_REALTIME);
    snprintf(text, sizeof text,
             "boot %s\nshim %d/%llu\nwork %d/%llu\nisolation %s\nstarted_ms %lld\n"
             "protocol %d\nend\n",
             boot, self.pid, self.start, work.pid, work.start, isolation, started_wall_ms, PROTOCOL);
    /* Another agent must find the work by this. A power cut takes the work as well as the file,
     * so that nothing has to be synced before the work may start. */
    if (!persist("state", text, false))
        refuse("state", errno);
    if (write(go[1], "g", 1) != 1)
        refuse("go", errno);
    close(go[1]);
    start_pipe = report[0];
}

static void listen_here(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "control"};
    unlink(name.sun_path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&name, sizeof name) != 0 ||
        chmod(name.sun_path, 0600) != 0 || listen(listener, WAITING_MAX) != 0)
        refuse("control", errno);
}

static void read_signals(void)
{
    struct signalfd_siginfo one;
    while (read(signals, &one, sizeof one) == sizeof one)
        if (one.ssi_signo != SIGCHLD)
            stop("Stopped", clock_ms(CLOCK_BOOTTIME), grace_ms);
}

static void turn(void)
{
    struct pollfd on[4 + CLIENTS_MAX] = {
        {.fd = signals, .events = POLLIN},
        {.fd = timer, .events = POLLIN},
        {.fd = listener, .events = POLLIN},
        {.fd = start_pipe, .events = POLLIN},
    };
    for (int i = 0; i < client_count; i++)
        on[4 + i] = (struct pollfd){.fd = clients[i].fd, .events = POLLIN};
    int count = client_count;
    unsigned long long rung;
    if (poll(on, 4 + count, -1) < 0)
        return; /* SIGCONT interrupts it. */
    if (on[1].revents && read(timer, &rung, sizeof rung) < 0)
        rung = 0; /* It was set again meanwhile; the clock itself is read below. */
    check_time();
    if (on[3].revents)
        read_start();
    if (on[0].revents)
        read_signals();
    reap();
    /* From the last one, since dropping a client moves the later ones up. */
    for (int i = count - 1; i >= 0; i--)
        if (on[4 + i].revents && !read_requests(&clients[i]))
            drop(i);
    if (on[2].revents) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            add_client(fd);
    }
}

static void live(void)
{
    char now_boot[64];
    sigset_t taken;
    umask(077);
    prctl(PR_SET_DUMPABLE, 0); /* Work with the same user must not trace the shim; exec resets it. */
    if (fchdir(FOLDER) != 0 || !identify(&self))
        refuse("folder", errno);
    read_small("/proc/sys/kernel/random/boot_id", now_boot, sizeof now_boot);
    now_boot[strcspn(now_boot, "\n")] = '\0';
    if (strcmp(now_boot, boot) != 0)
        failed = (struct failure){ETIME, "boot"};
    else if (is_late())
        failed = (struct failure){ETIME, "deadline"};
    clients[client_count++] = (struct client){.fd = LINE};
    if (failed.error != 0)
        finish();
    sigfillset(&taken);
    sigprocmask(SIG_SETMASK, &taken, NULL);
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    sigaddset(&taken, SIGTERM);
    sigaddset(&taken, SIGINT);
    sigaddset(&taken, SIGHUP);
    signals = signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC);
    timer = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    if (signals < 0 || timer < 0)
        refuse("timer", errno);
    if (!is_init() && prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        refuse("subreaper", errno);
    listen_here();
    arm();
    start_work();
    for (;;)
        turn();
}

/* Make the namespaces in which the next child will live. */
static bool isolate(const char *how)
{
    char map[64];
    unsigned uid = geteuid(), gid = getegid();
    if (how[0] == 's')
        return true;
    if (how[0] == 'p')
        return unshare(CLONE_NEWPID) == 0;
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
        return false;
    /* The shim's own user keeps its number; no other exists in there. */
    if (!write_small("/proc/self/setgroups", "deny"))
        return false;
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    if (!write_small("/proc/self/uid_map", map))
        return false;
    snprintf(map, sizeof map, "%u %u 1", gid, gid);
    return write_small("/proc/self/gid_map", map);
}

/* Put the given descriptors where they belong and close all others. */
static bool take_descriptors(char **numbers, char **joins)
{
    int copies[FIRST_FREE + JOINS_MAX], end = FIRST_FREE + join_count;
    for (int i = LINE; i < end; i++) {
        const char *number = i < FIRST_FREE ? numbers[i - LINE] : joins[i - FIRST_FREE];
        if ((copies[i] = fcntl(atoi(number), F_DUPFD_CLOEXEC, FIRST_FREE + JOINS_MAX)) < 0)
            return false;
    }
    for (int i = LINE; i < end; i++)
        if (dup3(copies[i], i, O_CLOEXEC) < 0)
            return false;
    syscall(SYS_close_range, end, ~0U, 0);
    return fcntl(LINE, F_SETFL, O_NONBLOCK) == 0;
}

/* Whether this isolation works here, tried for real: 0, or 3 when /proc stays the host's. With `as`,
 * the number of a user, whether work can be confined as well. */
static int probe(const char *how, const char *as)
{
    int status = 1;
    if (!isolate(how))
        return 1;
    pid_t child = fork();
    if (child == 0)
        _exit((as != NULL ? try_confinement(how, as) : see_own_proc()) ? 0 : 3);
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 1;
    return how[0] == 's' ? 0 : WEXITSTATUS(status);
}

int main(int count, char **words)
{
    long long arguments, variables, paths;
    /* If the agent ignores SIGCHLD, the kernel would discard how the work ended. */
    forget_signals();
    if (count > 1 && strcmp(words[1], "beside") == 0)
        return beside(count, words);
    if (count > 1 && strcmp(words[1], "enter") == 0)
        return enter_work(count, words);
    if (count > 1 && strcmp(words[1], "layers") == 0)
        return mount_layers(count, words);
    if (count > 1 && strcmp(words[1], "publish") == 0)
        return publish(count, words);
    if ((count == 3 || count == 4) && strcmp(words[1], "probe") == 0)
        return probe(words[2], words[3]);
    if (count == 2 && strcmp(words[1], "scope") == 0)
        return can_scope_sockets() && never_gain() && scope_sockets() ? 0 : 1;
    if (count == 2 && strcmp(words[1], "version") == 0) {
        puts(SHIM_SOURCE);
        return 0;
    }
    join_count = count - 16;
    if (join_count < 0 || join_count > JOINS_MAX || strcmp(words[1], "run") != 0 ||
        !take_descriptors(words + 10, words + 16))
        return 2;
    isolation = words[2];
    boot = words[3];
    user = words[6];
    deadline_ms = NONE;
    if ((strcmp(words[4], "none") != 0 && !parse(words[4], &deadline_ms)) ||
        !parse(words[5], &grace_ms) || !parse(words[7], &arguments) ||
        !parse(words[8], &variables) || !parse(words[9], &paths) || arguments < 1 ||
        arguments + variables + paths > STRINGS_MAX)
        refuse("numbers", EINVAL);
    argument_count = (int)arguments;
    variable_count = (int)variables;
    path_count = (int)paths;
    setsid();
    if (!isolate(isolation))
        refuse("isolation", errno);
    pid_t child = fork();
    if (child < 0)
        refuse("fork", errno);
    if (child == 0)
        live();
    return 0;
}
