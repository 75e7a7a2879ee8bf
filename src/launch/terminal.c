/* Queued output to stdout and stderr that never blocks. */
#include "launch/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_NBYTES = 65536 };

typedef struct chunk {
    struct chunk *next;
    FILE *to;
    int descriptor;
    size_t capacity, nbytes, n_written;
    char text[];
} chunk;

static chunk *first, *last;
static bool has_lost, is_said;
static int stdout_errno; /* errno of the first lost write to stdout; 0: none */

/* Opens a pipe or terminal again. Other processes share the inherited file description, so it must not become
 * non-blocking. */
static int open_anew(int descriptor) {
    struct stat about;
    char path[32];
    if (fstat(descriptor, &about) != 0 || (!S_ISFIFO(about.st_mode) && !S_ISCHR(about.st_mode))) return descriptor;
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    const int opened = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return opened >= 0 ? opened : descriptor;
}

static bool append(FILE *to, size_t nbytes) {
    const size_t capacity = nbytes > CHUNK_NBYTES ? nbytes : CHUNK_NBYTES;
    chunk *appended = lksi_alloc(sizeof *appended + capacity);
    if (appended == NULL) return false;
    fflush(to); /* output of this process itself comes first */
    *appended = (chunk){.to = to, .descriptor = open_anew(fileno(to)), .capacity = capacity};
    if (first == NULL)
        first = appended;
    else
        last->next = appended;
    last = appended;
    return true;
}

static void remove_first(void) {
    chunk *removed = first;
    first = removed->next;
    if (removed->descriptor != fileno(removed->to)) close(removed->descriptor);
    lksi_free(removed);
}

void lksi_terminal_add(FILE *to, const char *text, size_t nbytes) {
    const bool has_room = first != NULL && last->to == to && last->capacity - last->nbytes >= nbytes;
    if (!has_room && !append(to, nbytes)) { /* without memory for a queue it has to block */
        lksi_terminal_drain();
        fwrite(text, 1, nbytes, to);
        fflush(to);
        return;
    }
    memcpy(last->text + last->nbytes, text, nbytes);
    last->nbytes += nbytes;
}

void lksi_terminal_lose(const char *format, ...) {
    char why[448], text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "lockstep run: %s; output was lost\n", why);
    has_lost = true;
    lksi_terminal_add(stderr, text, strlen(text));
}

bool lksi_terminal_has_lost(void) { return has_lost; }

/* Discards a chunk that can never be written. If stderr itself is broken, nothing can be reported. */
static void give_up(chunk *c, int reason) {
    c->n_written = c->nbytes;
    if (reason == EPIPE) return;
    has_lost = true;
    if (c->to == stdout && stdout_errno == 0) stdout_errno = reason;
}

/* Returns false if it would block. A descriptor that poll reports ready accepts PIPE_BUF bytes without blocking, even
 * if it could not be opened again. */
static bool write_some(chunk *c) {
    struct pollfd ready = {.fd = c->descriptor, .events = POLLOUT};
    if (poll(&ready, 1, 0) <= 0) return false;
    const size_t nbytes = c->nbytes - c->n_written;
    const ssize_t n_written = write(c->descriptor, c->text + c->n_written, nbytes < PIPE_BUF ? nbytes : PIPE_BUF);
    if (n_written < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n_written < 0)
        give_up(c, errno);
    else
        c->n_written += (size_t)n_written;
    return true;
}

void lksi_terminal_write(void) {
    while (first != NULL && write_some(first))
        if (first->n_written == first->nbytes) remove_first();
    if (stdout_errno == 0 || is_said) return;
    is_said = true;
    lksi_terminal_lose("standard output cannot be written: %s", strerror(stdout_errno));
}

int lksi_terminal_descriptor(void) { return first != NULL ? first->descriptor : -1; }

void lksi_terminal_drain(void) {
    for (lksi_terminal_write(); first != NULL; lksi_terminal_write()) {
        struct pollfd ready = {.fd = first->descriptor, .events = POLLOUT};
        (void)poll(&ready, 1, -1);
    }
}
