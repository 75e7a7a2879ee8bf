/* A timeline in the format of Chrome's trace events, which Perfetto and chrome://tracing show.
 *
 *     threads of a rank   section ── section ─┐
 *                         section ────────────┴─> recorder of the rank: 4096 events ──> DIR/rank<R>.json
 *
 * A rank writes its events when the recorder is full, at the first event that is a second later than the last write,
 * when its world ends or fails, and when the process exits. After each of these the file is complete JSON. The events
 * are formatted in memory and written by one call, so a rank that is killed almost never leaves half of one.
 *
 * A process is no rank before lks_init, and its events wait in the recorder. If they fill it, or if the process exits,
 * they go to DIR/process<PID>.json. So do those of a launcher and of whatever a rank forks, which must not replace the
 * file of the rank that it comes from.
 *
 * Source:     "Trace Event Format", the description with Chrome's trace viewer. */
#define _GNU_SOURCE /* gettid */
#include "base/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    N_BUFFERED = 4096,
    N_MOST = 300000, /* events of a rank, some 40 MB of text; a viewer handles little more */
    NAME_NBYTES = 80,
    ARGUMENTS_NBYTES = 80,
    FLUSH_NS = 1000000000
};

static const char ENDING[] = "\n]\n";

typedef struct event {
    int64_t began_ns, duration_ns;
    const char *category; /* NULL: `name` is the thread's name */
    int thread;
    char name[NAME_NBYTES], arguments[ARGUMENTS_NBYTES];
} event;

/* Of one rank. A process has one, and another one for each of its threads that is a rank. */
typedef struct recorder {
    struct recorder *next;
    int thread_rank; /* lksi_own_rank of its threads; -1: the process's */
    pthread_mutex_t mutex;
    event *events;
    int n_events, n_recorded;
    int64_t flushed_ns;
    int rank;  /* in the world that was first; -1: in none yet */
    int file;  /* -1: not open */
    off_t end; /* of its events; ENDING follows */
    char path[LKSI_PATH_NBYTES];
    bool is_in_world; /* from lks_init until the world is destroyed */
    bool has_ended;   /* full, or the file cannot be written */
} recorder;

atomic_int lksi_timeline_state = LKSI_TIMELINE_UNKNOWN;
static const char *directory; /* of LOCKSTEP_TIMELINE, absolute */
static int64_t zero_ns;       /* by lksi_now_ns: where the timeline's clock is 0 */
static recorder *recorders;
static pthread_mutex_t recorders_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static _Thread_local recorder *own_recorder;
static _Thread_local int own_thread_rank;
static bool is_child_of_rank; /* a process that a rank of a living world has forked; it is never a rank itself */

/* --- the environment --- */

/* The timeline's clock is the real time, so that hosts with synchronised clocks agree. It counts from 2026: a double,
 * in which viewers store microseconds, would round the time since 1970 to 250 ns. */
static int64_t find_zero_ns(void) {
    enum { BEGIN_OF_2026_S = 1767225600 };
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return lksi_now_ns() - ((now.tv_sec - BEGIN_OF_2026_S) * 1000000000 + now.tv_nsec);
}

/* A forked child must not write its parent's events again, nor its parent's file. */
static void forget_all(void) {
    if (lksi_own_rank() >= 0) is_child_of_rank = true;
    for (const recorder *r = recorders; r != NULL; r = r->next)
        if (r->is_in_world) is_child_of_rank = true;
    pthread_mutex_init(&recorders_mutex, NULL);
    recorders = NULL;
    own_recorder = NULL;
}

/* The program may change its working directory before it opens a file. */
static const char *find_directory(void) {
    static char absolute[2 * LKSI_PATH_NBYTES];
    char here[LKSI_PATH_NBYTES];
    const char *given = lksi_variable("LOCKSTEP_TIMELINE");
    if (given == NULL || given[0] == '/' || getcwd(here, sizeof here) == NULL) return given;
    snprintf(absolute, sizeof absolute, "%s/%s", here, given);
    return absolute;
}

static void read_environment(void) {
    directory = find_directory();
    zero_ns = find_zero_ns();
    if (directory != NULL) {
        pthread_atfork(NULL, NULL, forget_all);
        atexit(lksi_timeline_flush);
    }
    atomic_store(&lksi_timeline_state, directory != NULL ? LKSI_TIMELINE_ON : LKSI_TIMELINE_OFF);
}

static bool is_on(void) {
    pthread_once(&environment_once, read_environment);
    return directory != NULL;
}

/* --- the file --- */

/* What viewers group threads by. */
static int process_of(const recorder *r) { return r->rank >= 0 ? r->rank : getpid(); }

static void put_text(FILE *file, const char *text) {
    size_t n;
    for (; *text != '\0'; text += n) {
        n = lksi_utf8_nbytes(text, strlen(text));
        bool is_plain = n > 0 && (unsigned char)*text >= ' ' && *text != '"' && *text != '\\';
        if (is_plain)
            (void)fwrite(text, 1, n, file);
        else
            (void)fputc(n == 1 && (unsigned char)*text >= ' ' ? '\'' : '?', file);
        if (n == 0) n = 1;
    }
}

static void put_metadata(FILE *file, const recorder *r, int thread, const char *kind, const char *value) {
    fprintf(file, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":\"", process_of(r), thread,
            kind);
    put_text(file, value);
    fputs("\"}}", file);
}

/* As microseconds. Not by %f, which writes a comma in some locales. */
static void put_time(FILE *file, const char *key, int64_t ns) {
    fprintf(file, ",\"%s\":%s%lld.%03d", key, ns < 0 ? "-" : "", llabs((long long)ns / 1000), abs((int)(ns % 1000)));
}

static void put_event(FILE *file, const recorder *r, const event *e) {
    fputs(",\n", file);
    if (e->category == NULL) {
        put_metadata(file, r, e->thread, "thread_name", e->name);
        return;
    }
    fprintf(file, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d", process_of(r), e->thread);
    put_time(file, "ts", e->began_ns - zero_ns);
    put_time(file, "dur", e->duration_ns);
    fprintf(file, ",\"cat\":\"%s\",\"name\":\"", e->category);
    put_text(file, e->name);
    fprintf(file, e->arguments[0] != '\0' ? "\",\"args\":{%s}}" : "\"}%s", e->arguments);
}

static void put_title(FILE *file, const recorder *r) {
    char host[256], title[300];
    lksi_host_name(host, sizeof host);
    snprintf(title, sizeof title, "%s %d on %s", r->rank >= 0 ? "rank" : "process", process_of(r), host);
    fputs("[\n", file);
    put_metadata(file, r, 0, "process_name", title);
}

static lks_status find_path(recorder *r) {
    const char *generation = lksi_variable("LOCKSTEP_GENERATION");
    bool is_first = generation == NULL || strcmp(generation, "0") == 0;
    if (r->rank < 0) return lksi_path(r->path, "%s/process%d.json", directory, process_of(r));
    return lksi_path(r->path, "%s/rank%d%s%s.json", directory, r->rank, is_first ? "" : ".generation",
                     is_first ? "" : generation);
}

/* A file that exists is replaced, not written: it may be one that another process writes, or a FIFO without a reader.
 */
static lks_status open_file(recorder *r) {
    LKS_TRY(find_path(r));
    if (mkdir(directory, 0777) != 0 && errno != EEXIST) return lksi_error_file(directory);
    do {
        if (unlink(r->path) != 0 && errno != ENOENT) return lksi_error_file(r->path);
        r->file = open(r->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (r->file < 0 && errno == EEXIST); /* a process that opens it at the same time */
    return r->file >= 0 ? LKS_OK : lksi_error_file(r->path);
}

static lks_status check_file(const recorder *r) {
    if (lksi_file_is_still_named(r->file, r->path)) return LKS_OK;
    return lksi_error(LKS_ERR_FILE, "%s: removed, or replaced by another process", r->path);
}

static bool write_at(const recorder *r, off_t at, const char *text, size_t nbytes) {
    while (nbytes > 0) {
        ssize_t n = pwrite(r->file, text, nbytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        text += n, at += n, nbytes -= (size_t)n;
    }
    return true;
}

/* Overwrites the ending. If the events cannot be written whole, the file remains as it was: its ending needs no more
 * space than before. */
static lks_status append(recorder *r, const char *text, size_t nbytes) {
    if (write_at(r, r->end, text, nbytes)) {
        r->end += (off_t)(nbytes - strlen(ENDING));
        return LKS_OK;
    }
    lks_status status = lksi_error_file(r->path);
    if (r->end == 0 || !write_at(r, r->end, ENDING, strlen(ENDING))) return status;
    return ftruncate(r->file, r->end + (off_t)strlen(ENDING)) == 0 ? status : LKS_ERR_FILE;
}

/* Writes the events of the recorder, with the file's title first if the file is new. */
static lks_status write_events(recorder *r) {
    char *text = NULL;
    size_t nbytes = 0;
    LKS_TRY(r->file < 0 ? open_file(r) : check_file(r));
    FILE *memory = open_memstream(&text, &nbytes);
    if (memory == NULL) return lksi_error_file(r->path);
    if (r->end == 0) put_title(memory, r);
    for (int i = 0; i < r->n_events; i++) put_event(memory, r, &r->events[i]);
    fputs(ENDING, memory);
    bool is_whole = ferror(memory) == 0;
    lks_status status = fclose(memory) == 0 && is_whole ? append(r, text, nbytes) : lksi_error_file(r->path);
    free(text);
    r->n_events = 0;
    r->flushed_ns = lksi_now_ns();
    return status;
}

static bool is_full(const recorder *r) { return r->n_recorded + 2 > N_MOST; }

static void end(recorder *r) {
    r->has_ended = true;
    free(r->events);
    r->events = NULL;
    r->n_events = 0;
}

/* The caller holds the mutex. The program goes on if a file cannot be written, and its error text remains. */
static void flush(recorder *r) {
    char text[LKSI_ERROR_TEXT_NBYTES];
    if (r->n_events == 0) return;
    lksi_error_keep(text);
    lks_status status = write_events(r);
    if (status != LKS_OK) {
        lksi_log(LKS_LOG_WARNING, "the timeline ends: %s", lksi_error_text());
        end(r);
    } else if (is_full(r)) {
        lksi_log(LKS_LOG_WARNING, "%s: the timeline ends after %d events", r->path, r->n_recorded);
        end(r);
    }
    lksi_error_restore(text);
}

void lksi_timeline_flush(void) {
    if (atomic_load(&lksi_timeline_state) != LKSI_TIMELINE_ON) return;
    pthread_mutex_lock(&recorders_mutex);
    for (recorder *r = recorders; r != NULL; r = r->next) {
        pthread_mutex_lock(&r->mutex);
        flush(r);
        pthread_mutex_unlock(&r->mutex);
    }
    pthread_mutex_unlock(&recorders_mutex);
}

/* --- recording --- */

/* A recorder stays until the process exits, so it is not counted memory. */
static recorder *create_recorder(int thread_rank) {
    recorder *created = calloc(1, sizeof *created);
    if (created == NULL) return NULL;
    created->events = calloc(N_BUFFERED, sizeof *created->events);
    if (created->events == NULL) {
        free(created);
        return NULL;
    }
    created->thread_rank = thread_rank;
    created->rank = thread_rank;
    created->file = -1;
    created->flushed_ns = lksi_now_ns();
    pthread_mutex_init(&created->mutex, NULL);
    created->next = recorders;
    recorders = created;
    return created;
}

static recorder *find_recorder(int thread_rank) {
    pthread_mutex_lock(&recorders_mutex);
    recorder *r = recorders;
    while (r != NULL && r->thread_rank != thread_rank) r = r->next;
    if (r == NULL) r = create_recorder(thread_rank);
    pthread_mutex_unlock(&recorders_mutex);
    return r;
}

/* The caller holds the mutex. */
static event *next_event(recorder *r) {
    event *e = &r->events[r->n_events++];
    r->n_recorded++;
    *e = (event){.thread = gettid()};
    return e;
}

static void name_thread(recorder *r) {
    event *e = next_event(r);
    if (e->thread == getpid())
        snprintf(e->name, sizeof e->name, "main");
    else
        (void)pthread_getname_np(pthread_self(), e->name, sizeof e->name);
}

/* The recorder of this thread's rank, locked and with room for two events. NULL: none. */
static recorder *lock_recorder(bool *is_new) {
    int rank = is_child_of_rank ? -1 : lksi_own_rank();
    *is_new = own_recorder == NULL || own_thread_rank != rank;
    if (*is_new) own_recorder = find_recorder(rank);
    own_thread_rank = rank;
    if (own_recorder == NULL) return NULL;
    pthread_mutex_lock(&own_recorder->mutex);
    if (own_recorder->n_events + 2 > N_BUFFERED || is_full(own_recorder)) flush(own_recorder);
    if (!own_recorder->has_ended) return own_recorder;
    pthread_mutex_unlock(&own_recorder->mutex);
    return NULL;
}

void lksi_timeline_add(int64_t began_ns, const char *category, const char *name, const char *arguments, ...) {
    bool is_new;
    int64_t now_ns = lksi_now_ns();
    if (began_ns == 0 || !is_on()) return;
    recorder *r = lock_recorder(&is_new);
    if (r == NULL) return;
    if (is_new) name_thread(r);
    event *e = next_event(r);
    e->began_ns = began_ns;
    e->duration_ns = now_ns - began_ns;
    e->category = category;
    snprintf(e->name, sizeof e->name, "%s", name);
    if (arguments != NULL) {
        va_list list;
        va_start(list, arguments);
        vsnprintf(e->arguments, sizeof e->arguments, arguments, list);
        va_end(list);
    }
    if (r->rank >= 0 && now_ns - r->flushed_ns > FLUSH_NS) flush(r);
    pthread_mutex_unlock(&r->mutex);
}

int64_t lks_timeline_begin(void) { return is_on() ? lksi_now_ns() : 0; }

void lks_timeline_end(int64_t began_ns, const char *name) {
    if (lksi_check_given("timeline_end", "name", name) == LKS_OK) lksi_timeline_end(began_ns, "user", name);
}

/* The file of a recorder that had no rank remains, with what was written to it. */
static void set_rank(recorder *r) {
    int rank = r->thread_rank >= 0 ? r->thread_rank : lksi_process_rank();
    if (r->rank >= 0 || is_child_of_rank) return;
    r->rank = rank >= 0 ? rank : 0;
    if (r->file < 0) return;
    close(r->file);
    r->file = -1;
    r->end = 0;
    name_thread(r);
}

lks_status lksi_timeline_open(void) {
    bool is_new;
    lks_status status = LKS_OK;
    if (!is_on()) return LKS_OK;
    recorder *r = lock_recorder(&is_new);
    if (r == NULL) return LKS_OK;
    if (is_new) name_thread(r);
    set_rank(r);
    r->is_in_world = true;
    if (r->end == 0) status = write_events(r);
    if (status != LKS_OK) r->n_events = 0; /* otherwise the write at exit would fail, too, and warn */
    pthread_mutex_unlock(&r->mutex);
    return status == LKS_OK ? LKS_OK : lksi_error(status, "LOCKSTEP_TIMELINE: %s", lksi_error_text());
}

/* What the process forks from now on may be ranks, of another world. */
void lksi_timeline_leave(void) {
    if (atomic_load(&lksi_timeline_state) != LKSI_TIMELINE_ON) return;
    pthread_mutex_lock(&recorders_mutex);
    for (recorder *r = recorders; r != NULL; r = r->next)
        if (r->thread_rank == lksi_own_rank()) r->is_in_world = false;
    pthread_mutex_unlock(&recorders_mutex);
    lksi_timeline_flush();
}
