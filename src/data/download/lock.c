/* A lock between processes of this host and of other hosts that see the same directory.
 *
 * The lock is an flock on a file, which ends with its process in any case. If the file system has no flock, the lock is
 * the existence of the file, which only one process can create. The file then names its owner. It is taken away from a
 * process of this host that has ended, or from any other one that gave no sign of life within the timeout. A pid says
 * nothing in another PID namespace, and containers may have the same host name. So the file also names the namespace.
 * The sign of life is the file's time, which the holder sets every second. Only changes of it count, because hosts'
 * clocks differ. */
#define _GNU_SOURCE /* flock */
#include "data/download/download.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct lksi_lock {
    int descriptor;
    char *path;
};

enum { NAME_NBYTES = 128 };
static const int64_t POLL_NS = 100 * 1000000;

typedef struct owner {
    char host[NAME_NBYTES], pid_namespace[NAME_NBYTES]; /* "?": unknown */
    long pid;
} owner;

static void find_self(owner *self) {
    *self = (owner){.host = "?", .pid_namespace = "?", .pid = getpid()};
    (void)gethostname(self->host, sizeof self->host - 1);
    ssize_t length = readlink("/proc/self/ns/pid", self->pid_namespace, sizeof self->pid_namespace - 1);
    if (length > 0) self->pid_namespace[length] = '\0';
}

static void write_owner(int descriptor) {
    char text[2 * NAME_NBYTES + 32];
    owner self;
    find_self(&self);
    int length = snprintf(text, sizeof text, "%s %ld %s\n", self.host, self.pid, self.pid_namespace);
    if (ftruncate(descriptor, 0) == 0 && pwrite(descriptor, text, (size_t)length, 0) != length)
        (void)ftruncate(descriptor, 0); /* an empty file is better than half a name */
}

static void read_owner(const char *path, owner *who) {
    static const owner unknown = {.host = "?", .pid_namespace = "?"};
    *who = unknown;
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    if (fscanf(file, "%127s %ld %127s", who->host, &who->pid, who->pid_namespace) != 3) *who = unknown;
    fclose(file);
}

static bool has_ended(const owner *who) {
    owner self;
    find_self(&self);
    bool is_visible = who->pid > 0 && strcmp(self.host, who->host) == 0 && strcmp(who->pid_namespace, "?") != 0 &&
                      strcmp(self.pid_namespace, who->pid_namespace) == 0;
    return is_visible && kill((pid_t)who->pid, 0) != 0 && errno == ESRCH;
}

/* The result of one attempt. */
typedef enum attempt { TAKEN, HELD, WITHOUT_FLOCK, FAILED } attempt;

/* FAILED with errno EEXIST: the file exists. Every user may write to it, whatever the umask says, because a killed
 * program leaves it. In a sticky directory another user could not remove it, but must name itself in it. */
static attempt make_file(const char *path, int *descriptor) {
    *descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*descriptor < 0) return FAILED;
    (void)fchmod(*descriptor, 0666);
    return TAKEN;
}

/* Without flock only the process that created the file holds the lock, and no other may remove the file here. */
static attempt try_flock(const char *path, int *descriptor) {
    bool is_own = make_file(path, descriptor) == TAKEN;
    if (!is_own) {
        if (errno != EEXIST) return FAILED;
        *descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (*descriptor < 0) return errno == ENOENT ? HELD : FAILED; /* ENOENT: it was just released */
    }
    bool is_locked = flock(*descriptor, LOCK_EX | LOCK_NB) == 0;
    bool has_flock = is_locked || errno == EWOULDBLOCK || errno == EINTR;
    if ((is_locked || (is_own && !has_flock)) && lksi_file_is_still_named(*descriptor, path)) return TAKEN;
    close(*descriptor);
    return has_flock ? HELD : WITHOUT_FLOCK;
}

static attempt try_exclusive(const char *path, int *descriptor) {
    owner who;
    if (make_file(path, descriptor) == TAKEN) return TAKEN;
    if (errno != EEXIST) return FAILED;
    read_owner(path, &who);
    if (has_ended(&who)) unlink(path);
    return HELD;
}

/* State of a wait: the last sign of life of the holder, and when it was first seen. */
typedef struct waiting {
    struct timespec sign;
    int64_t since_ns;
    bool is_told;
} waiting;

static bool is_overdue(waiting *w, const char *path, int64_t timeout_ms) {
    struct stat info = {0};
    int64_t now_ns = lksi_now_ns();
    bool is_there = stat(path, &info) == 0;
    if (w->since_ns == 0 || !is_there || info.st_mtim.tv_sec != w->sign.tv_sec ||
        info.st_mtim.tv_nsec != w->sign.tv_nsec) {
        w->since_ns = now_ns;
        w->sign = info.st_mtim;
    }
    return now_ns - w->since_ns > timeout_ms * 1000000;
}

static lks_status overdue(const char *path, const lksi_lock_options *options) {
    owner who;
    read_owner(path, &who);
    return lksi_error(LKS_ERR_TIMEOUT, "%s: pid %ld on %s holds the lock, but gave no sign of life for %.3g s",
                      options->purpose, who.pid, who.host, (double)options->timeout_ms / 1000);
}

/* Reports once, as soon as the file names its holder. */
static void tell(waiting *w, const char *path, const lksi_lock_options *options, lksi_download_progress *progress) {
    owner who;
    if (w->is_told) return;
    read_owner(path, &who);
    if (who.pid == 0) return;
    w->is_told = true;
    lksi_download_progress_say(progress, "%s: waiting for pid %ld on %s, which holds the lock", options->purpose,
                               who.pid, who.host);
}

static lks_status wait_for(int *descriptor, const char *path, const lksi_lock_options *options,
                           lksi_download_progress *progress) {
    waiting w = {.since_ns = 0};
    bool is_exclusive = false;
    for (;;) {
        attempt result = is_exclusive ? try_exclusive(path, descriptor) : try_flock(path, descriptor);
        if (result == TAKEN) return LKS_OK;
        if (result == FAILED) return lksi_error_file(path);
        if (result == WITHOUT_FLOCK) {
            is_exclusive = true;
            continue;
        }
        if (is_overdue(&w, path, options->timeout_ms)) {
            if (!is_exclusive || (unlink(path) != 0 && errno != ENOENT)) return overdue(path, options);
            w.since_ns = 0;
        }
        tell(&w, path, options, progress);
        if (!lksi_download_progress_tick(progress, 0))
            return lksi_error(LKS_ERR_STATE, "%s: given up", options->purpose);
        lksi_sleep_ns(POLL_NS);
    }
}

lks_status lksi_lock_acquire(lksi_lock **lock, const char *path, const lksi_lock_options *options,
                             lksi_download_progress *progress) {
    lksi_lock *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->path = lksi_strdup(path);
    lks_status status = created->path != NULL ? LKS_OK : LKS_ERR_MEMORY;
    if (status == LKS_OK) status = wait_for(&created->descriptor, path, options, progress);
    if (status != LKS_OK) {
        lksi_free(created->path);
        lksi_free(created);
        return status;
    }
    write_owner(created->descriptor);
    *lock = created;
    return LKS_OK;
}

int lksi_lock_descriptor(const lksi_lock *lock) { return lock->descriptor; }

/* Unlinks before closing. A process that waits on the unlinked file notices that and creates a new one. */
void lksi_lock_release(lksi_lock *lock) {
    if (lock == NULL) return;
    if (lksi_file_is_still_named(lock->descriptor, lock->path)) unlink(lock->path);
    close(lock->descriptor);
    lksi_free(lock->path);
    lksi_free(lock);
}
