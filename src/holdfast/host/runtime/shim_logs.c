/* Writes the logs of the work: each line with the time at which it came, in bounded files.
 *
 *   2026-11-16T00:29:27.123456789Z stdout F a whole line
 *   2026-11-16T00:29:27.123456789Z stdout P a piece; the line goes on in the next record
 *   2026-11-16T00:29:27.123456789Z stdout L 4711
 *
 * L says how many bytes were lost here. The files are "stdout", "stdout.1" and so on, from the
 * newest to the oldest, and the same for "stderr": neither stream displaces the other's lines.
 *
 * A disk may be full, slow or dead. That must not affect the work: what cannot be written is counted
 * and dropped. Nor the deadline: this is a thread, and the thread that enforces the deadline waits for
 * it only within a limit. docs/adr/0050-logs.md says why.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    LOG_FILE_BYTES = 4 << 20,
    LOG_FILES = 3, /* of each stream; with LOG_FILE_BYTES this bounds its size */
    LINE_BYTES_MAX = 16 << 10,
    BATCH_BYTES = 64 << 10,
    HEAD_BYTES = 48,
    NAME_BYTES = 16,
    STACK_BYTES = 64 << 10
};

struct stream {
    const char *name;
    int in, out;
    long long size; /* of the file that is being written */
    unsigned long long lost;
    size_t used;
    char text[LINE_BYTES_MAX];
};

static struct stream streams[2] = {{.name = "stdout", .in = -1, .out = -1},
                                   {.name = "stderr", .in = -1, .out = -1}};
static int folder = -1, given[2] = {-1, -1}, done[2] = {-1, -1};
/* What goes to one file with the next write, and how much of it is the work's output. */
static char batch[BATCH_BYTES];
static size_t held, held_text;
static char moment[HEAD_BYTES]; /* when that came */

/* The Gregorian calendar, by days since 1970: the C library's own reads time zones from disk. */
static void read_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    long long days = now.tv_sec / 86400, rest = now.tv_sec % 86400;
    long long shifted = days + 719468, era = shifted / 146097, of_era = shifted - era * 146097;
    long long year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    long long of_year = of_era - (365 * year + year / 4 - year / 100);
    long long month = (5 * of_year + 2) / 153, day = of_year - (153 * month + 2) / 5 + 1;
    month += month < 10 ? 3 : -9;
    year += era * 400 + (month <= 2);
    snprintf(moment, sizeof moment, "%04u-%02u-%02uT%02u:%02u:%02u.%09luZ", (unsigned)year % 10000,
             (unsigned)month % 100, (unsigned)day % 100, (unsigned)(rest / 3600),
             (unsigned)(rest / 60 % 60), (unsigned)(rest % 60), (unsigned long)now.tv_nsec);
}

static void file_name(char *name, const struct stream *of, int age)
{
    if (age == 0)
        snprintf(name, NAME_BYTES, "%s", of->name);
    else
        snprintf(name, NAME_BYTES, "%s.%d", of->name, age);
}

static void open_file(struct stream *of)
{
    /* Only a new file is opened: the work's user might have put a pipe or a link there. */
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
    of->out = openat(folder, of->name, flags, 0600);
    of->size = 0;
}

static void rotate(struct stream *of)
{
    char from[NAME_BYTES], to[NAME_BYTES];
    if (of->out >= 0)
        close(of->out);
    for (int age = LOG_FILES - 1; age > 0; age--) {
        file_name(from, of, age - 1);
        file_name(to, of, age);
        renameat(folder, from, folder, to); /* This removes the oldest. */
    }
    open_file(of);
}

/* Write completely or not at all: half a record would corrupt the next one. */
static bool put(struct stream *of, const char *text, size_t length)
{
    if (of->out < 0 || of->size + (long long)length > LOG_FILE_BYTES)
        rotate(of);
    if (of->out < 0)
        return false;
    ssize_t written = write(of->out, text, length);
    if (written == (ssize_t)length) {
        of->size += written;
        return true;
    }
    if (written > 0 && ftruncate(of->out, of->size) != 0)
        of->size += written;
    return false;
}

static void flush(struct stream *of)
{
    char head[HEAD_BYTES + 32];
    if (of->lost > 0) {
        int length = snprintf(head, sizeof head, "%s %s L %llu\n", moment, of->name, of->lost);
        if (put(of, head, length))
            of->lost = 0;
    }
    /* While a loss cannot be recorded, nothing that came after it is written. */
    if (held > 0 && (of->lost > 0 || !put(of, batch, held)))
        of->lost += held_text;
    held = held_text = 0;
}

static void record(struct stream *of, char kind, const char *text, size_t length)
{
    if (held + HEAD_BYTES + length + 1 > BATCH_BYTES)
        flush(of);
    held += snprintf(batch + held, HEAD_BYTES, "%s %s %c ", moment, of->name, kind);
    memcpy(batch + held, text, length);
    held += length;
    batch[held++] = '\n';
    held_text += length + (kind == 'F');
}

static void take(struct stream *of)
{
    ssize_t length = read(of->in, of->text + of->used, LINE_BYTES_MAX - of->used);
    if (length < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    read_clock();
    if (length <= 0) {
        if (of->used > 0)
            record(of, 'P', of->text, of->used);
        flush(of);
        close(of->in);
        if (of->out >= 0)
            close(of->out); /* Otherwise removing it would not free its space. */
        of->in = of->out = -1;
        return;
    }
    of->used += length;
    char *start = of->text, *end = of->text + of->used, *stop;
    while ((stop = memchr(start, '\n', end - start)) != NULL) {
        record(of, 'F', start, stop - start);
        start = stop + 1;
    }
    if (start == of->text && of->used == LINE_BYTES_MAX) {
        record(of, 'P', start, of->used);
        start = end;
    }
    of->used = end - start;
    memmove(of->text, start, of->used);
    flush(of);
}

static void *pump(void *nothing)
{
    while (streams[0].in >= 0 || streams[1].in >= 0) {
        struct pollfd on[2] = {{.fd = streams[0].in, .events = POLLIN},
                               {.fd = streams[1].in, .events = POLLIN}};
        if (poll(on, 2, -1) < 0)
            continue;
        for (int i = 0; i < 2; i++)
            if (on[i].revents)
                take(&streams[i]);
    }
    close(done[1]);
    return nothing;
}

bool logs_open(int of_folder, int ends[2])
{
    int pipes[2];
    folder = of_folder;
    for (int i = 0; i < 2; i++) {
        if (pipe2(pipes, O_CLOEXEC) != 0)
            return false;
        streams[i].in = pipes[0];
        ends[i] = given[i] = pipes[1];
        open_file(&streams[i]);
    }
    return pipe2(done, O_CLOEXEC) == 0;
}

bool logs_begin(void)
{
    pthread_t thread;
    pthread_attr_t wishes;
    close(given[0]);
    close(given[1]);
    pthread_attr_init(&wishes);
    pthread_attr_setstacksize(&wishes, STACK_BYTES);
    errno = pthread_create(&thread, &wishes, pump, NULL);
    return errno == 0;
}

void logs_end(int patience_ms)
{
    struct pollfd on = {.fd = done[0], .events = POLLIN};
    if (done[0] >= 0)
        poll(&on, 1, patience_ms);
}

void logs_make_room(int step)
{
    char name[NAME_BYTES];
    for (int i = 0; i < 2 && step < LOG_FILES; i++) {
        file_name(name, &streams[i], LOG_FILES - 1 - step);
        unlinkat(folder, name, 0);
    }
}
