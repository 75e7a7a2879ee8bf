/* Going on from a directory: rank 0 looks for the newest checkpoint in it that is whole. */
#include "train/checkpoint.h"
#include "train/checkpoint_directory.h"

#include <sys/stat.h>

static bool is_of_kind(const char *path, mode_t kind) {
    struct stat info;
    return stat(path, &info) == 0 && (info.st_mode & S_IFMT) == kind;
}

/* Damage is passed over. A file of another run is an error: what is older will be that run's as well; so is one that
 * may be whole and cannot be read (permission, descriptors, the disk): it would be removed behind the next one. */
static lks_status open_one(const lks_trainer *trainer, const lksi_checkpoint *c, const char *path,
                           const lks_position *expected, lksi_safetensors **file, lksi_checkpoint_head *head) {
    lks_status status = lksi_checkpoint_open(trainer, c, path, expected, file, head);
    bool is_unread = status == LKS_ERR_FILE && is_of_kind(path, S_IFREG);
    if (is_unread || (status != LKS_ERR_FILE && status != LKS_ERR_FORMAT)) return status;
    lksi_log(LKS_LOG_WARNING, "%s; it is passed over", lks_error_text());
    return LKS_OK;
}

/* To begin anew is for a directory that has none: who has checkpoints would rather look into what became of them. */
static lks_status find_newest(const lks_trainer *trainer, const lksi_checkpoint *c, const char *path,
                              const lks_position *expected, lksi_safetensors **file, lksi_checkpoint_head *head) {
    int64_t *steps;
    size_t count;
    if (!is_of_kind(path, S_IFDIR)) return lksi_checkpoint_open(trainer, c, path, expected, file, head);
    LKS_TRY(lksi_checkpoint_list(path, &steps, &count));
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

/* Directories are remembered by what they are, not by how they are called. */
static lksi_searched identity_of(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return (lksi_searched){0};
    return (lksi_searched){.is_any = true, .device = (uint64_t)info.st_dev, .inode = (uint64_t)info.st_ino};
}

bool lksi_checkpoint_was_searched(const lks_trainer *trainer, const char *directory) {
    lksi_searched it = identity_of(directory), last = trainer->searched;
    return last.is_any && it.is_any && it.device == last.device && it.inode == last.inode;
}

lks_status lks_trainer_resume(lks_trainer *trainer, const char *path, lks_position *position, char *taken,
                              size_t taken_nbytes) {
    LKS_TRY(lksi_checkpoint_check_given("trainer_resume", "trainer", trainer, path, position));
    LKS_TRY(lksi_checkpoint_load(trainer, path, position, find_newest, taken, taken_nbytes));
    trainer->searched = identity_of(path);
    return LKS_OK;
}
