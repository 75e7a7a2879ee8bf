/* Resuming from a directory: rank 0 finds the newest intact checkpoint in it. */
#include "train/checkpoint.h"
#include "train/checkpoint_directory.h"

#include <errno.h>
#include <sys/stat.h>

static bool is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Whether it is certain that `path` leads to no file that could be read at another time. */
static bool is_no_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? !S_ISREG(info.st_mode) : errno == ENOENT || errno == ELOOP;
}

/* Skips a damaged file. A file of another run is an error, because the older files belong to that run too. An
 * unreadable file (permissions, descriptors, disk) is also an error: it may be intact, and the next checkpoint would
 * remove it. */
static lks_status open_one(const lks_trainer *trainer, const lksi_checkpoint *c, const char *path,
                           const lks_position *expected, lksi_safetensors **file, lksi_checkpoint_head *head) {
    lks_status status = lksi_checkpoint_open(trainer, c, path, expected, file, head);
    bool is_useless = status == LKS_ERR_FORMAT || (status == LKS_ERR_FILE && is_no_file(path));
    if (!is_useless) return status;
    lksi_log(LKS_LOG_WARNING, "%s; it is passed over", lksi_error_text());
    return LKS_OK;
}

/* Starts from the beginning only if the directory has no checkpoint. If it has only unusable ones, the user should know
 * before they are replaced. */
static lks_status find_newest(const lks_trainer *trainer, const lksi_checkpoint *c, const char *path,
                              const lks_position *expected, lksi_safetensors **file, lksi_checkpoint_head *head) {
    int64_t *steps;
    size_t count;
    head->newest = -1;
    if (!is_directory(path)) return lksi_checkpoint_open(trainer, c, path, expected, file, head);
    LKS_TRY(lksi_checkpoint_list(path, &steps, &count));
    if (count > 0) head->newest = steps[0];
    lks_status status = LKS_OK;
    for (size_t i = 0; i < count && status == LKS_OK && *file == NULL; i++) {
        char candidate[LKSI_PATH_NBYTES];
        lksi_checkpoint_path(candidate, path, steps[i]);
        status = open_one(trainer, c, candidate, expected, file, head);
    }
    lksi_free(steps);
    if (status == LKS_OK && count > 0 && *file == NULL)
        return lksi_error(LKS_ERR_FORMAT,
                          "%s: none of the %zu checkpoints in it can be used; without them the run would begin anew",
                          path, count);
    return status;
}

/* A directory is identified by device and inode, because it may have several names. */
static lksi_searched identity_of(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return (lksi_searched){0};
    return (lksi_searched){.is_any = true, .device = (uint64_t)info.st_dev, .inode = (uint64_t)info.st_ino};
}

int64_t lksi_checkpoint_newest_known(const lks_trainer *trainer, const char *directory) {
    lksi_searched it = identity_of(directory), last = trainer->searched;
    bool is_same = last.is_any && it.is_any && it.device == last.device && it.inode == last.inode;
    return is_same ? last.newest : -1;
}

lks_status lks_trainer_resume(lks_trainer *trainer, const char *path, lks_position *position, char *taken,
                              size_t taken_nbytes) {
    LKS_TRY(lksi_checkpoint_check_given("trainer_resume", "trainer", trainer, path, position));
    lksi_checkpoint_head head = {0};
    LKS_TRY(lksi_checkpoint_load(trainer, path, position, find_newest, &head));
    if (taken != NULL) snprintf(taken, taken_nbytes, "%s", head.path);
    trainer->searched = identity_of(path);
    trainer->searched.newest = head.newest;
    return LKS_OK;
}
