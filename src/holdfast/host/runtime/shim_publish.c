/* Publishes ports of a container, which has a network of its own, on an address of the node.
 *
 *   publish USER HOST FILE IDLE PORT… [GROUP…]
 *
 * The script of a container starts this before runc and reads one line from it, "ok" or a reason. HOST
 * is where to listen, each PORT is t or u, for TCP or UDP, and a number, which is the port inside as
 * well. FILE has the container's address, once it has one. Ports are bound before the container
 * begins, so that no endpoint ever leads to another tenant's listener, and they are marked as its
 * tenant's. From then on this process is USER and has no rights; it ends with the parent that started
 * it, which by then is runc.
 *
 * It copies bytes without reading them. Everything has a fixed size: what comes when all is in use
 * waits in the kernel's queue (TCP), or replaces the peer that was silent for longest (UDP). What it
 * uses is charged to the container: each GROUP is the cgroup.procs of one of its groups, which this
 * joins with the first connection, because runc accepts no group that has a process in it. A
 * connection that is closed in one direction is closed when nothing moves on the other for IDLE ms.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    PORTS_MAX = 64,
    GROUPS_JOINED_MAX = 8,
    PAIRS_MAX = 512, /* connections, and likewise peers of UDP, at once */
    BUFFER_BYTES = 16 * 1024,
    /* The kernel's buffers, for each direction. Without a limit the kernel gives a client that reads
     * nothing some 3 MB. The path to a client may be long; that to the container is not. */
    NEAR_BYTES = 128 * 1024,
    FAR_BYTES = 32 * 1024,
    DATAGRAM_BYTES = 65536,
    BACKLOG = 128,
    EVENTS_MAX = 64,
    FILES_MAX = 3 * PAIRS_MAX + PORTS_MAX + 16
};
enum kind { PARENT = 1, LISTENER, PEER, NEAR, FAR };

struct port {
    int fd, number;
    bool is_stream;
};
/* One direction of a connection: bytes that were read and not yet written. */
struct flow {
    char *text;
    size_t from, to;
    bool is_ended, is_passed; /* the reader saw the end; it was passed to the writer */
};
struct pair {
    int near, far; /* -1 when free */
    bool is_connected;
    long long moved_ms;  /* when a byte or an end last came through */
    struct flow out, in; /* near to far, far to near */
};
struct peer {
    int fd; /* -1 when free */
    struct port *port;
    struct sockaddr_storage address;
    socklen_t size;
    long long used_ms;
};

static struct port ports[PORTS_MAX];
static struct pair pairs[PAIRS_MAX];
static char texts[PAIRS_MAX][2][BUFFER_BYTES]; /* apart, so that a connection without bytes has none */
static struct peer peers[PAIRS_MAX];
static int groups[GROUPS_JOINED_MAX];
static int port_count, used_pairs, poller, group_count;
static long long idle_ms;
static const char *address_file;
static bool is_paused; /* whether no connection is accepted until one ends */

static int refuse(const char *what, const char *which)
{
    printf("%s %s: %s\n", what, which, strerror(errno));
    fflush(stdout);
    return 1;
}

static bool watch(int fd, enum kind kind, int index, unsigned events, int how)
{
    struct epoll_event event = {.events = events, .data.u64 = (unsigned long long)kind << 32 | index};
    return epoll_ctl(poller, how, fd, &event) == 0;
}

/* Fixed, which also keeps the kernel from growing them. Accepted sockets have those of the listener. */
static void bound_buffers(int fd, int bytes)
{
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

/* Listening ------------------------------------------------------------------------------------*/

static socklen_t address_of(const char *host, int number, struct sockaddr_storage *found)
{
    struct sockaddr_in *four = (void *)found;
    struct sockaddr_in6 *six = (void *)found;
    memset(found, 0, sizeof *found);
    if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(number);
        return sizeof *four;
    }
    if (inet_pton(AF_INET6, host, &six->sin6_addr) != 1)
        return 0;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(number);
    return sizeof *six;
}

static bool listen_on(struct port *of, const char *host, uid_t owner)
{
    struct sockaddr_storage address;
    int on = 1, kind = (of->is_stream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK | SOCK_CLOEXEC;
    socklen_t size = address_of(host, of->number, &address);
    if (size == 0) {
        errno = EINVAL;
        return false;
    }
    of->fd = socket(address.ss_family, kind, 0);
    if (of->fd < 0 || fchown(of->fd, owner, owner) != 0)
        return false;
    /* A connection of an earlier attempt may linger; another user's listener still prevents this. */
    if (of->is_stream)
        setsockopt(of->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bound_buffers(of->fd, NEAR_BYTES);
    int refused = bind(of->fd, (struct sockaddr *)&address, size);
    if (refused != 0 && errno == EADDRNOTAVAIL) {
        /* The node is reached by an address that it does not have itself, as behind a translation. */
        size = address_of(address.ss_family == AF_INET ? "0.0.0.0" : "::", of->number, &address);
        refused = bind(of->fd, (struct sockaddr *)&address, size);
    }
    if (refused != 0)
        return false;
    return !of->is_stream || listen(of->fd, BACKLOG) == 0;
}

/* Charge this process to the container from now on. Without that, connections are not served. */
static bool join_groups(void)
{
    while (group_count > 0 && write(groups[group_count - 1], "0", 1) == 1)
        close(groups[--group_count]);
    return group_count == 0;
}

/* A socket that connects to this port of the container; -1 while that has no address. */
static int connect_inside(const struct port *to)
{
    char text[64];
    struct sockaddr_storage address;
    read_small(address_file, text, sizeof text);
    text[strcspn(text, "\n")] = '\0';
    socklen_t size = address_of(text, to->number, &address);
    if (size == 0 || !join_groups())
        return -1;
    int kind = (to->is_stream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK | SOCK_CLOEXEC;
    int fd = socket(address.ss_family, kind, 0);
    bound_buffers(fd, FAR_BYTES);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, size) != 0 && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    return fd;
}

/* TCP ------------------------------------------------------------------------------------------*/

static void pause_listeners(bool is_full)
{
    if (is_paused == is_full)
        return;
    is_paused = is_full;
    for (int i = 0; i < port_count; i++)
        if (ports[i].is_stream)
            watch(ports[i].fd, LISTENER, i, is_full ? 0 : EPOLLIN, EPOLL_CTL_MOD);
}

static void end_pair(struct pair *of, bool is_failed)
{
    struct linger now = {.l_onoff = 1};
    unsigned patience_ms = (unsigned)idle_ms;
    if (is_failed) /* The client sees a refusal, and not an empty connection. */
        setsockopt(of->near, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    /* Bytes that were not yet read stay in the kernel, and no longer than they would stay here. */
    setsockopt(of->near, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms);
    setsockopt(of->far, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms);
    close(of->near);
    close(of->far);
    of->near = of->far = -1;
    used_pairs--;
    pause_listeners(false);
}

static void accept_from(struct port *of)
{
    int near = accept4(of->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (near < 0)
        return;
    int index = 0;
    while (pairs[index].near >= 0)
        index++;
    struct pair *one = &pairs[index];
    *one = (struct pair){.near = near,
                         .far = connect_inside(of),
                         .moved_ms = clock_ms(CLOCK_BOOTTIME),
                         .out.text = texts[index][0],
                         .in.text = texts[index][1]};
    used_pairs++;
    if (one->far < 0) {
        end_pair(one, true);
        return;
    }
    watch(near, NEAR, index, 0, EPOLL_CTL_ADD);
    watch(one->far, FAR, index, EPOLLOUT, EPOLL_CTL_ADD);
    pause_listeners(used_pairs == PAIRS_MAX);
}

/* Move all bytes that can be moved. False when the connection is broken. */
static bool pump(struct flow *of, int from, int to, long long *moved_ms)
{
    for (int rounds = 0; rounds < 4; rounds++) {
        if (of->from == of->to && !of->is_ended) {
            ssize_t got = read(from, of->text, BUFFER_BYTES);
            if (got < 0)
                return errno == EAGAIN || errno == EINTR;
            of->from = 0;
            of->to = got;
            of->is_ended = got == 0;
            *moved_ms = clock_ms(CLOCK_BOOTTIME);
        }
        if (of->from < of->to) {
            ssize_t put = send(to, of->text + of->from, of->to - of->from, MSG_NOSIGNAL);
            if (put < 0)
                return errno == EAGAIN || errno == EINTR;
            of->from += put;
            *moved_ms = clock_ms(CLOCK_BOOTTIME);
        }
        if (of->is_ended && of->from == of->to) {
            if (!of->is_passed)
                shutdown(to, SHUT_WR);
            of->is_passed = true;
            return true;
        }
    }
    return true;
}

/* Watch one end of a connection for what it has to do next. If that is nothing, and the other's end was
 * passed on to it, it is not watched at all: once its own peer sends no more, the kernel would report
 * that for ever. */
static void update_events(int fd, enum kind side, int index, const struct flow *reads,
                          const struct flow *writes)
{
    unsigned events = reads->from == reads->to && !reads->is_ended ? EPOLLIN : 0;
    events |= writes->from < writes->to ? EPOLLOUT : 0;
    if (events == 0 && writes->is_passed)
        watch(fd, side, index, 0, EPOLL_CTL_DEL);
    else if (!watch(fd, side, index, events, EPOLL_CTL_MOD))
        watch(fd, side, index, events, EPOLL_CTL_ADD);
}

static void serve_pair(int index, enum kind side, unsigned events)
{
    struct pair *of = &pairs[index];
    if (of->near < 0)
        return;
    if (!of->is_connected) {
        int error = 0;
        socklen_t size = sizeof error;
        if (side == NEAR) {
            if (events & (EPOLLERR | EPOLLHUP))
                end_pair(of, true);
            return;
        }
        if (getsockopt(of->far, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
            end_pair(of, true);
            return;
        }
        of->is_connected = true;
    }
    bool is_broken = (events & EPOLLERR) != 0;
    if (is_broken || !pump(&of->out, of->near, of->far, &of->moved_ms) ||
        !pump(&of->in, of->far, of->near, &of->moved_ms)) {
        end_pair(of, true);
        return;
    }
    if (of->out.is_passed && of->in.is_passed) {
        end_pair(of, false);
        return;
    }
    update_events(of->near, NEAR, index, &of->out, &of->in);
    update_events(of->far, FAR, index, &of->in, &of->out);
}

/* End connections that are half closed and idle. Called after each event, and at the latest after the
 * time that it returns; it checks all of them four times in IDLE at most. */
static int end_idle(void)
{
    static long long next_ms;
    long long now_ms = clock_ms(CLOCK_BOOTTIME);
    if (now_ms < next_ms)
        return used_pairs > 0 ? (int)(next_ms - now_ms) : -1;
    next_ms = now_ms + idle_ms / 4 + 1;
    for (int i = 0; i < PAIRS_MAX; i++) {
        struct pair *one = &pairs[i];
        bool is_half = one->near >= 0 && (one->out.is_ended || one->in.is_ended);
        if (is_half && one->moved_ms + idle_ms <= now_ms)
            end_pair(one, true);
    }
    return used_pairs > 0 ? (int)(next_ms - now_ms) : -1;
}

/* UDP ------------------------------------------------------------------------------------------*/

static struct peer *peer_of(struct port *port, const struct sockaddr_storage *from, socklen_t size)
{
    struct peer *oldest = &peers[0];
    for (int i = 0; i < PAIRS_MAX; i++) {
        struct peer *one = &peers[i];
        if (one->fd >= 0 && one->port == port && one->size == size &&
            memcmp(&one->address, from, size) == 0)
            return one;
        if (one->fd < 0 ? oldest->fd >= 0 : oldest->fd >= 0 && one->used_ms < oldest->used_ms)
            oldest = one;
    }
    if (oldest->fd >= 0)
        close(oldest->fd);
    *oldest = (struct peer){.fd = connect_inside(port), .port = port, .size = size};
    memcpy(&oldest->address, from, size);
    if (oldest->fd >= 0)
        watch(oldest->fd, PEER, (int)(oldest - peers), EPOLLIN, EPOLL_CTL_ADD);
    return oldest;
}

static void take_datagram(struct port *of)
{
    static char text[DATAGRAM_BYTES];
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    ssize_t length = recvfrom(of->fd, text, sizeof text, 0, (struct sockaddr *)&from, &size);
    if (length < 0)
        return;
    struct peer *one = peer_of(of, &from, size);
    one->used_ms = clock_ms(CLOCK_BOOTTIME);
    if (one->fd >= 0)
        send(one->fd, text, length, MSG_NOSIGNAL);
}

static void answer_peer(struct peer *of)
{
    static char text[DATAGRAM_BYTES];
    ssize_t length = of->fd < 0 ? -1 : recv(of->fd, text, sizeof text, 0);
    if (length < 0)
        return;
    of->used_ms = clock_ms(CLOCK_BOOTTIME);
    sendto(of->port->fd, text, length, MSG_NOSIGNAL, (struct sockaddr *)&of->address, of->size);
}

/* The main loop --------------------------------------------------------------------------------*/

static void serve(enum kind kind, int index, unsigned events)
{
    if (kind == PARENT)
        _exit(0);
    else if (kind == LISTENER && !ports[index].is_stream)
        take_datagram(&ports[index]);
    else if (kind == LISTENER && used_pairs < PAIRS_MAX)
        accept_from(&ports[index]);
    else if (kind == PEER)
        answer_peer(&peers[index]);
    else if (kind == NEAR || kind == FAR)
        serve_pair(index, kind, events);
}

static void run(void)
{
    struct epoll_event events[EVENTS_MAX];
    for (;;) {
        int count = epoll_wait(poller, events, EVENTS_MAX, end_idle());
        /* Listeners last: an event may be about the connection whose place the next one takes. */
        for (int round = 0; round < 2; round++)
            for (int i = 0; i < count; i++) {
                enum kind kind = events[i].data.u64 >> 32;
                if ((kind == LISTENER) == (round == 1))
                    serve(kind, (int)(events[i].data.u64 & 0xffffffff), events[i].events);
            }
    }
}

static bool open_group(const char *path)
{
    int fd = group_count < GROUPS_JOINED_MAX ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    if (fd >= 0)
        groups[group_count++] = fd;
    return fd >= 0;
}

static bool add_port(const char *word, const char *host, uid_t owner)
{
    long long number;
    errno = EINVAL;
    if (port_count == PORTS_MAX || !parse(word + 1, &number) || number < 1 || number > 65535)
        return false;
    struct port *one = &ports[port_count++];
    *one = (struct port){.number = (int)number, .is_stream = word[0] == 't'};
    if (!listen_on(one, host, owner))
        return false;
    watch(one->fd, LISTENER, port_count - 1, EPOLLIN, EPOLL_CTL_ADD);
    return true;
}

int publish(int count, char **words)
{
    long long owner;
    struct rlimit files = {.rlim_cur = FILES_MAX, .rlim_max = FILES_MAX};
    int parent = (int)syscall(SYS_pidfd_open, getppid(), 0);
    if (count < 7 || !parse(words[2], &owner) || !parse(words[5], &idle_ms) || idle_ms > INT_MAX)
        return 2;
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (parent < 0 || poller < 0 || setrlimit(RLIMIT_NOFILE, &files) != 0)
        return refuse("parent", "-");
    address_file = words[4];
    for (int i = 0; i < PAIRS_MAX; i++)
        pairs[i].near = pairs[i].far = peers[i].fd = -1;
    for (int i = 6; i < count; i++)
        if (words[i][0] == '/' && !open_group(words[i]))
            return refuse("group", words[i]);
        else if (words[i][0] != '/' && !add_port(words[i], words[3], (uid_t)owner))
            return refuse("port", words[i] + 1);
    /* Out of memory, the container should lose one of its own processes and not its ports. Where even
     * root may not set this, this is still the smallest of its processes. */
    if (group_count > 0)
        (void)write_small("/proc/self/oom_score_adj", "-1000");
    watch(parent, PARENT, 0, EPOLLIN, EPOLL_CTL_ADD);
    /* The container may continue to serve while it stops; its end ends this. */
    for (int each = 1; each < NSIG; each++)
        if (each != SIGKILL && each != SIGSTOP)
            signal(each, SIG_IGN);
    gid_t group = (gid_t)owner;
    if (owner != 0 && (!become((uid_t)owner, &group, 1) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
        return refuse("user", words[2]);
    puts("ok");
    fflush(stdout);
    for (int fd = 0; fd <= 2; fd++)
        close(fd);
    run();
    return 0;
}
