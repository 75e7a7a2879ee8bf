/* A directory of checkpoints: listing, pruning, and the lock. */
#define _GNU_SOURCE /* flock */
#include "train/checkpoint_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "step-"
#define SUFFIX ".safetensors"

enum { NAME_NBYTES = 64 };

static void name_of(char name[NAME_NBYTES], int64_t step) {
    snprintf(name, NAME_NBYTES, PREFIX "%012lld" SUFFIX, (long long)step);
}

void lksi_checkpoint_path(char path[LKSI_PATH_NBYTES], const char *directory, int64_t step) {
    char name[NAME_NBYTES];
    name_of(name, step);
    snprintf(path, LKSI_PATH_NBYTES, "%s/%s", directory, name);
}

/* --- listing --- */

/* The step whose file has this name; -1 for any other name. */
static int64_t step_of(const char *name) {
    char again[NAME_NBYTES];
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0) return -1;
    long long step = strtoll(name + sizeof PREFIX - 1, NULL, 10);
    name_of(again, step);
    return step >= 0 && strcmp(name, again) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* *entry is NULL, with LKS_OK, behind the last one. An error must not pass for the end: a directory that cannot be read
 * would count as empty. */
static lks_status read_entry(DIR *entries, const char *directory, struct dirent **entry) {
    errno = 0;
    *entry = readdir(entries);
    return *entry != NULL || errno == 0 ? LKS_OK : lksi_error_file(directory);
}

lks_status lksi_checkpoint_list(const char *directory, int64_t **steps, size_t *count) {
    int64_t *found = NULL;
    struct dirent *entry;
    size_t n = 0, capacity = 0;
    DIR *entries = opendir(directory);
    if (entries == NULL) return lksi_error_file(directory);
    lks_status status;
    while ((status = read_entry(entries, directory, &entry)) == LKS_OK && entry != NULL) {
        int64_t step = step_of(entry->d_name);
        if (step < 0) continue;
        status = lksi_grow((void **)&found, &capacity, n + 1, sizeof *found);
        if (status != LKS_OK) break;
        found[n++] = step;
    }
    closedir(entries);
    if (status != LKS_OK) {
        lksi_free(found);
        return status;
    }
    if (n > 0) qsort(found, n, sizeof *found, newest_first);
    *steps = found;
    *count = n;
    return LKS_OK;
}

/* --- removing --- */

static void remove_file(const char *path) {
    if (unlink(path) != 0 && errno != ENOENT)
        lksi_log(LKS_LOG_WARNING, "%s: an old checkpoint cannot be removed: %s", path, strerror(errno));
}

void lksi_checkpoint_prune(const char *directory, int64_t previous, int64_t newest, int64_t keep) {
    int64_t *steps, n_kept = 0;
    size_t count;
    if (lksi_checkpoint_list(directory, &steps, &count) != LKS_OK) {
        lksi_log(LKS_LOG_WARNING, "%s; old checkpoints are not removed for now", lksi_error_text());
        return;
    }
    for (size_t i = 0; i < count; i++) {
        char path[LKSI_PATH_NBYTES];
        bool is_of_this_run = steps[i] == newest || (steps[i] < newest && steps[i] <= previous);
        if (is_of_this_run && n_kept++ < keep) continue;
        lksi_checkpoint_path(path, directory, steps[i]);
        remove_file(path);
    }
    lksi_free(steps);
}

static bool is_partial(const char *name) {
    return strncmp(name, PREFIX, sizeof PREFIX - 1) == 0 && strstr(name, SUFFIX ".tmp") != NULL;
}

/* The caller holds the lock, so no other run is writing these files. */
static lks_status remove_partial(const char *directory) {
    DIR *entries = opendir(directory);
    struct dirent *entry;
    lks_status status;
    if (entries == NULL) return lksi_error_file(directory);
    while ((status = read_entry(entries, directory, &entry)) == LKS_OK && entry != NULL)
        if (is_partial(entry->d_name) && unlinkat(dirfd(entries), entry->d_name, 0) != 0)
            lksi_log(LKS_LOG_WARNING, "%s/%s: cannot be removed: %s", directory, entry->d_name, strerror(errno));
    closedir(entries);
    return status;
}

/* --- the lock --- */

static lks_status is_taken(const char *path, int descriptor) {
    char owner[128] = "";
    ssize_t n_read = pread(descriptor, owner, sizeof owner - 1, 0);
    owner[n_read > 0 ? strcspn(owner, "\n") : 0] = '\0';
    return lksi_error(LKS_ERR_STATE, "%s: another run writes its checkpoints there: %s", path,
                      owner[0] != '\0' ? owner : "its name is unknown");
}

/* Writes the owner to the lock file, for the error text of a second run. Nothing else depends on it. */
static void sign(int descriptor) {
    char host[256], line[320];
    lksi_host_name(host, sizeof host);
    int length = snprintf(line, sizeof line, "pid %d on %s\n", (int)getpid(), host);
    if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, line, (size_t)length, 0) != length)
        lksi_log(LKS_LOG_DEBUG, "the lock of the checkpoints is not signed: %s", strerror(errno));
}

static lks_status lock(const char *directory, int *descriptor) {
    char path[LKSI_PATH_NBYTES];
    snprintf(path, sizeof path, "%s/lock", directory);
    int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (opened < 0) return lksi_error_file(path);
    if (flock(opened, LOCK_EX | LOCK_NB) == 0) {
        sign(opened);
        *descriptor = opened;
        return LKS_OK;
    }
    lks_status status = LKS_OK;
    if (errno == EWOULDBLOCK)
        status = is_taken(path, opened);
    else
        lksi_log(LKS_LOG_WARNING, "%s: %s: nothing keeps a second run from writing there", path, strerror(errno));
    close(opened);
    return status;
}

lks_status lksi_checkpoint_take_directory(const char *directory, int *descriptor) {
    *descriptor = -1;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST) return lksi_error_file(directory);
    LKS_TRY(lock(directory, descriptor));
    return remove_partial(directory);
}

lks_status lksi_checkpoint_check_directory(const char *directory, int descriptor) {
    char path[LKSI_PATH_NBYTES];
    snprintf(path, sizeof path, "%s/lock", directory);
    if (descriptor < 0 || lksi_file_is_still_named(descriptor, path) || !lksi_file_exists(path)) return LKS_OK;
    return lksi_error(LKS_ERR_STATE, "%s: it was removed and made anew while this run wrote its checkpoints there",
                      directory);
}
