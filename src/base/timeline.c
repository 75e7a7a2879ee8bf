/* A timeline in the format of Chrome's trace events, which Perfetto and chrome://tracing show.
 *
 *     threads of a rank   section ── section ─┐
 *                         section ────────────┴─> recorder of the rank: 4096 events ──> DIR/rank<R>.json
 *
 * A rank writes its events when the recorder is full, once a second, when its world ends or fails, and when the process
 * exits. After each of these the file is complete JSON, so that a killed rank leaves what it did up to its last second.
 *
 * Source:     "Trace Event Format", the description with Chrome's trace viewer. */
#define _GNU_SOURCE /* gettid */
#include "base/timeline.h"

#include <errno.h>
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
    FILE *file;
    char path[LKSI_PATH_NBYTES];
    bool has_ended; /* full, or the file cannot be written */
} recorder;

atomic_int lksi_timeline_state = LKSI_TIMELINE_UNKNOWN;
static const char *directory; /* of LOCKSTEP_TIMELINE */
static int64_t zero_ns;       /* by lksi_now_ns: where the timeline's clock is 0 */
static recorder *recorders;
static pthread_mutex_t recorders_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static _Thread_local recorder *own_recorder;
static _Thread_local int own_thread_rank;

/* --- the environment --- */

/* The timeline's clock is the real time, so that hosts with synchronised clocks agree. It counts from the last multiple
 * of 10^6 s (11 days): a double, in which viewers store microseconds, would round the time since 1970 to 250 ns. */
static int64_t find_zero_ns(void) {
    enum { PERIOD_S = 1000000 };
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return lksi_now_ns() - (now.tv_sec % PERIOD_S * 1000000000 + now.tv_nsec);
}

/* A forked child must not write its parent's events again. */
static void forget_all(void) {
    pthread_mutex_init(&recorders_mutex, NULL);
    recorders = NULL;
    own_recorder = NULL;
}

static void read_environment(void) {
    directory = lksi_variable("LOCKSTEP_TIMELINE");
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

static int rank_of(const recorder *r) {
    int rank = r->thread_rank >= 0 ? r->thread_rank : lksi_process_rank();
    return rank >= 0 ? rank : 0;
}

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

static void put_metadata(const recorder *r, int thread, const char *kind, const char *value) {
    fprintf(r->file, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":\"", rank_of(r), thread,
            kind);
    put_text(r->file, value);
    fputs("\"}}", r->file);
}

static void put_event(const recorder *r, const event *e) {
    fputs(",\n", r->file);
    if (e->category == NULL) {
        put_metadata(r, e->thread, "thread_name", e->name);
        return;
    }
    fprintf(r->file, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",\"name\":\"",
            rank_of(r), e->thread, (double)(e->began_ns - zero_ns) / 1e3, (double)e->duration_ns / 1e3, e->category);
    put_text(r->file, e->name);
    fprintf(r->file, e->arguments[0] != '\0' ? "\",\"args\":{%s}}" : "\"}%s", e->arguments);
}

static lks_status find_path(recorder *r) {
    const char *generation = lksi_variable("LOCKSTEP_GENERATION");
    bool is_first = generation == NULL || strcmp(generation, "0") == 0;
    return lksi_path(r->path, "%s/rank%d%s%s.json", directory, rank_of(r), is_first ? "" : ".generation",
                     is_first ? "" : generation);
}

static lks_status open_file(recorder *r) {
    char host[256], title[300];
    LKS_TRY(find_path(r));
    if (mkdir(directory, 0777) != 0 && errno != EEXIST) return lksi_error_file(directory);
    r->file = fopen(r->path, "we");
    if (r->file == NULL) return lksi_error_file(r->path);
    lksi_host_name(host, sizeof host);
    snprintf(title, sizeof title, "rank %d on %s", rank_of(r), host);
    fputs("[\n", r->file);
    put_metadata(r, 0, "process_name", title);
    fputs("\n]\n", r->file);
    return fflush(r->file) == 0 ? LKS_OK : lksi_error_file(r->path);
}

/* Overwrites the "]" with which the file has ended so far. */
static lks_status append_events(recorder *r) {
    if (r->file == NULL) LKS_TRY(open_file(r));
    bool is_written = fseek(r->file, -3, SEEK_END) == 0;
    for (int i = 0; i < r->n_events && is_written; i++) {
        put_event(r, &r->events[i]);
        is_written = ferror(r->file) == 0;
    }
    fputs("\n]\n", r->file);
    return fflush(r->file) == 0 && is_written ? LKS_OK : lksi_error_file(r->path);
}

static bool is_full(const recorder *r) { return r->n_recorded + 2 > N_MOST; }

static void end(recorder *r) {
    r->has_ended = true;
    free(r->events);
    r->events = NULL;
}

/* The caller holds the mutex. The program goes on if a file cannot be written, and its error text remains. */
static void flush(recorder *r) {
    char text[LKSI_ERROR_TEXT_NBYTES];
    if (r->n_events == 0) return;
    lksi_error_keep(text);
    lks_status status = append_events(r);
    r->n_events = 0;
    r->flushed_ns = lksi_now_ns();
    if (status != LKS_OK) {
        lksi_log(LKS_LOG_WARNING, "the timeline ends: %s", lks_error_text());
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
    int rank = lksi_own_rank();
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
    if (now_ns - r->flushed_ns > FLUSH_NS) flush(r);
    pthread_mutex_unlock(&r->mutex);
}

int64_t lks_timeline_begin(void) { return is_on() ? lksi_now_ns() : 0; }

void lks_timeline_end(int64_t began_ns, const char *name) {
    if (lksi_check_given("timeline_end", "name", name) == LKS_OK) lksi_timeline_end(began_ns, "user", name);
}

lks_status lksi_timeline_open(void) {
    bool is_new;
    lks_status status = LKS_OK;
    if (!is_on()) return LKS_OK;
    recorder *r = lock_recorder(&is_new);
    if (r == NULL) return LKS_OK;
    if (is_new) name_thread(r);
    if (r->file == NULL) status = open_file(r);
    pthread_mutex_unlock(&r->mutex);
    return status == LKS_OK ? LKS_OK : lksi_error(status, "LOCKSTEP_TIMELINE: %s", lks_error_text());
}
