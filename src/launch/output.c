/* Forwards the ranks' output to the terminal or to log files, in whole lines of up to 1 MiB.
 *
 * With a log directory alone, a rank's stdout and stderr are one pipe, so that its file has them in the order in which
 * they were written. With prefixes they are two pipes, which are forwarded to this process's stdout and stderr. */
#define _GNU_SOURCE /* pipe2 */
#include "launch/launch_internal.h"
#include "launch/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_NBYTES = 65536, LINE_MAX_NBYTES = 1 << 20, TAIL_NBYTES = 2048, TAIL_LINES = 5 };

typedef struct stream {
    int read_end, write_end; /* -1: closed */
    FILE *terminal;          /* NULL: not shown */
    char *pending;           /* an incomplete line */
    size_t pending_nbytes, pending_capacity;
} stream;

typedef struct rank_output {
    stream streams[2]; /* stdout and stderr; or both in the first */
    FILE *log;         /* NULL: none */
    char tag[16];
    char tail[TAIL_NBYTES + 1]; /* the end of its output */
    size_t tail_nbytes;
} rank_output;

struct lksi_output {
    int n_ranks, n_streams;
    rank_output *ranks;
};

static void close_end(int *descriptor) {
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
}

static lks_status open_stream(stream *opened) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return lksi_error_errno("cannot make a pipe for a rank's output");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    opened->read_end = ends[0];
    opened->write_end = ends[1];
    opened->pending_capacity = 2 * CHUNK_NBYTES;
    opened->pending = lksi_alloc(opened->pending_capacity);
    return opened->pending != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

static bool ends_in_mid_line(const char *path) {
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    int last = fseek(file, -1, SEEK_END) == 0 ? fgetc(file) : '\n';
    fclose(file);
    return last != '\n';
}

static lks_status open_rank(lksi_output *output, const lksi_job *job, bool is_tagged, int rank) {
    rank_output *opened = &output->ranks[rank];
    const int number = job->first_rank + rank;
    if (is_tagged) snprintf(opened->tag, sizeof opened->tag, "[%d] ", number);
    for (int i = 0; i < output->n_streams; i++) {
        LKS_TRY(open_stream(&opened->streams[i]));
        if (job->prefix) opened->streams[i].terminal = i == 0 ? stdout : stderr;
    }
    if (job->log_dir == NULL) return LKS_OK;
    char path[LKSI_PATH_NBYTES];
    LKS_TRY(lksi_path(path, "%s/rank-%d.log", job->log_dir, number));
    const bool appends = job->generation > 0; /* after a restart */
    const bool is_torn = appends && ends_in_mid_line(path);
    LKS_TRY(lksi_file_open_output(path, appends, &opened->log));
    if (is_torn) fputc('\n', opened->log); /* an error shows when the rank's first line is written */
    return LKS_OK;
}

lks_status lksi_output_create(lksi_output **output, const lksi_job *job, bool is_tagged) {
    *output = NULL;
    if (!job->prefix && job->log_dir == NULL) return LKS_OK;
    if (job->log_dir != NULL) LKS_TRY(lksi_make_parents(job->log_dir));
    if (job->log_dir != NULL && mkdir(job->log_dir, 0777) != 0 && errno != EEXIST)
        return lksi_error(LKS_ERR_FILE, "cannot create directory '%s': %s", job->log_dir, strerror(errno));
    lksi_output *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    lks_status status = LKS_OK;
    created->n_streams = job->prefix ? 2 : 1;
    created->ranks = lksi_alloc_array((size_t)job->n_ranks, sizeof *created->ranks);
    if (created->ranks == NULL) {
        status = LKS_ERR_MEMORY;
        goto destroy_output;
    }
    created->n_ranks = job->n_ranks;
    for (int rank = 0; rank < job->n_ranks; rank++)
        for (int i = 0; i < 2; i++)
            created->ranks[rank].streams[i].read_end = created->ranks[rank].streams[i].write_end = -1;
    for (int rank = 0; rank < job->n_ranks; rank++)
        LKS_TRY_GOTO(open_rank(created, job, is_tagged, rank), destroy_output);
    *output = created;
    return LKS_OK;
destroy_output:
    lksi_output_destroy(created);
    return status;
}

void lksi_output_connect(const lksi_output *output, int rank) {
    if (output == NULL) return;
    const stream *streams = output->ranks[rank].streams;
    dup2(streams[0].write_end, STDOUT_FILENO);
    dup2(streams[output->n_streams - 1].write_end, STDERR_FILENO);
}

void lksi_output_was_connected(lksi_output *output, int rank) {
    if (output == NULL) return;
    for (int i = 0; i < output->n_streams; i++) close_end(&output->ranks[rank].streams[i].write_end);
}

int lksi_output_poll_count(const lksi_output *output) {
    return output != NULL ? output->n_ranks * output->n_streams : 0;
}

static stream *stream_at(const lksi_output *output, int index) {
    return &output->ranks[index / output->n_streams].streams[index % output->n_streams];
}

void lksi_output_poll_fill(const lksi_output *output, struct pollfd *polled) {
    const int waiting = lksi_terminal_descriptor();
    for (int i = 0; i < lksi_output_poll_count(output); i++) {
        const stream *from = stream_at(output, i);
        if (from->terminal != NULL && waiting >= 0)
            polled[i] = (struct pollfd){.fd = waiting, .events = POLLOUT};
        else
            polled[i] = (struct pollfd){.fd = from->read_end, .events = POLLIN};
    }
}

static void keep_tail(rank_output *rank, const char *text, size_t nbytes) {
    if (nbytes > TAIL_NBYTES) {
        text += nbytes - TAIL_NBYTES;
        nbytes = TAIL_NBYTES;
    }
    size_t kept = rank->tail_nbytes + nbytes > TAIL_NBYTES ? TAIL_NBYTES - nbytes : rank->tail_nbytes;
    memmove(rank->tail, rank->tail + rank->tail_nbytes - kept, kept);
    for (size_t i = 0; i < nbytes; i++) rank->tail[kept + i] = text[i] != '\0' ? text[i] : ' ';
    rank->tail_nbytes = kept + nbytes;
    rank->tail[rank->tail_nbytes] = '\0';
}

/* Writes the tag before each line. Adds a newline to the last one if it has none. */
static void show_tagged(const rank_output *rank, FILE *terminal, const char *text, size_t nbytes) {
    const char *end = text + nbytes;
    for (const char *line = text; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const size_t line_nbytes = (size_t)((newline != NULL ? newline : end) - line);
        lksi_terminal_add(terminal, rank->tag, strlen(rank->tag));
        lksi_terminal_add(terminal, line, line_nbytes);
        lksi_terminal_add(terminal, "\n", 1);
        line += line_nbytes + 1;
    }
}

static void lose_log(const rank_output *rank, int reason) {
    lksi_terminal_lose("the log of rank %.*s cannot be written: %s", (int)strcspn(rank->tag + 1, "]"), rank->tag + 1,
                       strerror(reason));
}

/* On a network file system a full disk may be reported only by fclose. */
static void close_log(rank_output *rank) {
    if (rank->log != NULL && fclose(rank->log) != 0) lose_log(rank, errno);
    rank->log = NULL;
}

/* Writes whole lines, or a part of a line that is too long or has no end. A log, and a terminal without tags, get the
 * rank's own bytes, but for a newline after an incomplete last line: on the terminal at the end, in the log at a
 * restart. */
static void write_text(rank_output *rank, FILE *terminal, const char *text, size_t nbytes) {
    keep_tail(rank, text, nbytes);
    if (terminal != NULL) {
        if (rank->tag[0] != '\0')
            show_tagged(rank, terminal, text, nbytes);
        else
            lksi_terminal_add(terminal, text, nbytes);
        lksi_terminal_write();
    }
    if (rank->log != NULL && (fwrite(text, 1, nbytes, rank->log) != nbytes || fflush(rank->log) != 0)) {
        lose_log(rank, errno);
        fclose(rank->log);
        rank->log = NULL;
    }
}

/* The terminal may also show other hosts, whose next line must not continue this one. */
static void end_stream(rank_output *rank, stream *ended) {
    if (ended->pending_nbytes > 0) {
        write_text(rank, ended->terminal, ended->pending, ended->pending_nbytes);
        if (ended->terminal != NULL && rank->tag[0] == '\0') lksi_terminal_add(ended->terminal, "\n", 1);
        lksi_terminal_write();
    }
    ended->pending_nbytes = 0;
    close_end(&ended->read_end);
}

/* Reads once. Returns false if there is nothing more now, or at the end. */
static bool read_stream(rank_output *rank, stream *from) {
    if (from->read_end < 0) return false;
    void *grown = from->pending;
    bool is_full = lksi_grow(&grown, &from->pending_capacity, from->pending_nbytes + CHUNK_NBYTES, 1) != LKS_OK;
    from->pending = grown;
    if (is_full || from->pending_nbytes >= LINE_MAX_NBYTES) { /* a line that is too long is split */
        write_text(rank, from->terminal, from->pending, from->pending_nbytes);
        from->pending_nbytes = 0;
    }
    ssize_t n_read;
    do n_read = read(from->read_end, from->pending + from->pending_nbytes, CHUNK_NBYTES);
    while (n_read < 0 && errno == EINTR);
    if (n_read < 0) return false;
    if (n_read == 0) {
        end_stream(rank, from);
        return false;
    }
    const char *fresh = from->pending + from->pending_nbytes;
    from->pending_nbytes += (size_t)n_read;
    const char *last_newline = memrchr(fresh, '\n', (size_t)n_read);
    if (last_newline == NULL) return true;
    size_t whole_nbytes = (size_t)(last_newline + 1 - from->pending);
    write_text(rank, from->terminal, from->pending, whole_nbytes);
    from->pending_nbytes -= whole_nbytes;
    memmove(from->pending, from->pending + whole_nbytes, from->pending_nbytes);
    return true;
}

bool lksi_output_take(lksi_output *output, const struct pollfd *polled) {
    bool is_any_read = false;
    for (int i = 0; i < lksi_output_poll_count(output); i++) {
        if (polled[i].revents == 0) continue;
        if (stream_at(output, i)->terminal != NULL && lksi_terminal_descriptor() >= 0)
            lksi_terminal_write();
        else if (read_stream(&output->ranks[i / output->n_streams], stream_at(output, i)))
            is_any_read = true;
    }
    return is_any_read;
}

bool lksi_output_is_open(const lksi_output *output) {
    for (int i = 0; i < lksi_output_poll_count(output); i++)
        if (stream_at(output, i)->read_end >= 0) return true;
    return false;
}

void lksi_output_take_rank(lksi_output *output, int rank) {
    if (output == NULL) return;
    rank_output *from = &output->ranks[rank];
    for (int i = 0; i < output->n_streams; i++)
        /* Limited to what a pipe holds, because a descendant may write for ever. */
        for (int n_reads = 0; n_reads < 32 && read_stream(from, &from->streams[i]);) n_reads++;
}

const char *lksi_output_last_lines(lksi_output *output, int rank) {
    if (output == NULL) return "";
    rank_output *from = &output->ranks[rank];
    for (int i = 0; i < output->n_streams; i++) {
        if (from->streams[i].pending_nbytes == 0) continue;
        keep_tail(from, from->streams[i].pending, from->streams[i].pending_nbytes);
        keep_tail(from, "\n", 1);
    }
    const char *start = from->tail + from->tail_nbytes;
    if (start > from->tail && start[-1] == '\n') start--;
    for (int n_lines = 0; start > from->tail; start--)
        if (start[-1] == '\n' && ++n_lines == TAIL_LINES) break;
    return start;
}

void lksi_output_destroy(lksi_output *output) {
    if (output == NULL) return;
    for (int rank = 0; output->ranks != NULL && rank < output->n_ranks; rank++) {
        rank_output *ended = &output->ranks[rank];
        lksi_output_take_rank(output, rank);
        for (int i = 0; i < output->n_streams; i++) {
            end_stream(ended, &ended->streams[i]);
            close_end(&ended->streams[i].write_end);
            lksi_free(ended->streams[i].pending);
        }
        close_log(ended);
    }
    lksi_free(output->ranks);
    lksi_free(output);
}
