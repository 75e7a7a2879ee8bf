/* Files that take the place of what was there only once they are complete. */
#define _GNU_SOURCE /* gettid */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct lksi_new_file {
    int descriptor;
    char *path, *temporary;
};

static void release(lksi_new_file *file) {
    if (file->descriptor >= 0) close(file->descriptor);
    lksi_free(file->path);
    lksi_free(file->temporary);
    lksi_free(file);
}

/* For the message; `path` is what the user named, whatever the temporary file is called. */
static lks_status fail(const char *path) { return lksi_error(LKS_ERR_FILE, "%s: %s", path, strerror(errno)); }

/* A device or a directory is not to be replaced by a file. */
static lks_status check_target(const char *path) {
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return lksi_error(LKS_ERR_FILE, "%s: not a regular file", path);
    return LKS_OK;
}

lks_status lksi_new_file_create(lksi_new_file **file, const char *path) {
    LKS_TRY(check_target(path));
    lksi_new_file *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->descriptor = -1;
    size_t nbytes = strlen(path) + 32;
    lks_status status = LKS_ERR_MEMORY;
    created->path = lksi_strdup(path);
    created->temporary = lksi_alloc(nbytes);
    if (created->path == NULL || created->temporary == NULL) goto release_file;
    snprintf(created->temporary, nbytes, "%s.%d.tmp", path, (int)gettid());
    created->descriptor = open(created->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (created->descriptor < 0) {
        status = fail(path);
        goto release_file;
    }
    *file = created;
    return LKS_OK;
release_file:
    release(created);
    return status;
}

lks_status lksi_new_file_write(lksi_new_file *file, const void *data, size_t nbytes) {
    const char *next = data;
    while (nbytes > 0) {
        ssize_t n_written = write(file->descriptor, next, nbytes);
        if (n_written < 0 && errno == EINTR) continue;
        if (n_written < 0) return fail(file->path);
        next += n_written;
        nbytes -= (size_t)n_written;
    }
    return LKS_OK;
}

lks_status lksi_new_file_overwrite(lksi_new_file *file, uint64_t offset, const void *data, size_t nbytes) {
    const char *next = data;
    while (nbytes > 0) {
        ssize_t n_written = pwrite(file->descriptor, next, nbytes, (off_t)offset);
        if (n_written < 0 && errno == EINTR) continue;
        if (n_written < 0) return fail(file->path);
        next += n_written;
        offset += (uint64_t)n_written;
        nbytes -= (size_t)n_written;
    }
    return LKS_OK;
}

lks_status lksi_new_file_commit(lksi_new_file *file) {
    lks_status status = LKS_OK;
    if (fsync(file->descriptor) != 0 || rename(file->temporary, file->path) != 0) {
        status = fail(file->path);
        unlink(file->temporary);
    }
    release(file);
    return status;
}

void lksi_new_file_discard(lksi_new_file *file) {
    if (file == NULL) return;
    unlink(file->temporary);
    release(file);
}
