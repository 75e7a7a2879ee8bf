/* Files that replace an existing file only when they are complete.
 *
 * A file is written as PATH.tmp, one name per target, so that the next writer overwrites what a dead writer has left.
 * The writer holds a lock on it, which ends with its process. A second writer at the same time, or a writer on a file
 * system without locks, creates a new PATH.tmp.<n>. So no writer writes into the file of another, and the last complete
 * file stays. Symbolic links are kept: the target is the file that the link leads to, whether it exists or not.
 *
 * Files larger than a piece bypass the page cache if the file system supports that (O_DIRECT). Copying them to the page
 * cache, only to sync and forget them, would take CPU time from the training. */
#define _GNU_SOURCE /* flock, O_DIRECT */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STAGE_NBYTES = LKSI_NEW_FILE_PIECE_NBYTES, BLOCK_NBYTES = 4096 }; /* the largest block size of a disk */

struct lksi_new_file {
    int descriptor;
    bool is_direct;
    char *path, *temporary;
    char *stage; /* data that is not written yet; it follows whole blocks */
    size_t n_staged;
};

static void release(lksi_new_file *file) {
    if (file->descriptor >= 0) close(file->descriptor);
    lksi_free(file->stage);
    lksi_free(file->path);
    lksi_free(file->temporary);
    lksi_free(file);
}

/* A device or a directory must not be replaced by a file. */
static lks_status check_target(const char *path) {
    struct stat info;
    if (path[0] == '\0') {
        errno = ENOENT;
        return lksi_error_file(path);
    }
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return lksi_error(LKS_ERR_FILE, "%s: not a regular file", path);
    return LKS_OK;
}

/* Follows the link `path` one step. *next is NULL, with LKS_OK, if it is not a link. */
static lks_status read_link(const char *path, char **next) {
    char text[4096];
    *next = NULL;
    ssize_t n = readlink(path, text, sizeof text);
    if (n < 0) return LKS_OK; /* not a link, or an error that creating the file will report */
    if (n == (ssize_t)sizeof text) return lksi_error(LKS_ERR_FILE, "%s: a link to a name that is too long", path);
    const char *slash = strrchr(path, '/');
    size_t n_directory = text[0] != '/' && slash != NULL ? (size_t)(slash - path) + 1 : 0;
    *next = lksi_alloc(n_directory + (size_t)n + 1);
    if (*next == NULL) return LKS_ERR_MEMORY;
    memcpy(*next, path, n_directory);
    memcpy(*next + n_directory, text, (size_t)n);
    return LKS_OK;
}

static lks_status follow_links(const char *path, char **target) {
    enum { MAX_LINKS = 40 }; /* the kernel's own limit */
    char *at = lksi_strdup(path);
    if (at == NULL) return LKS_ERR_MEMORY;
    for (int i = 0; i <= MAX_LINKS; i++) {
        char *next;
        lks_status status = read_link(at, &next);
        if (status == LKS_OK && next == NULL) {
            *target = at;
            return LKS_OK;
        }
        lksi_free(at);
        LKS_TRY(status);
        at = next;
    }
    lksi_free(at);
    return lksi_error(LKS_ERR_FILE, "%s: %s", path, strerror(ELOOP));
}

/* Opens without truncating, because the file may be another writer's. Refuses anything but a regular file. */
static int open_temporary(const char *name, mode_t mode) {
    struct stat info;
    int descriptor = open(name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
    if (descriptor < 0 || (fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode))) return descriptor;
    close(descriptor);
    errno = EEXIST;
    return -1;
}

/* Opens and locks the file. -1: another writer has it, or it cannot be locked. */
static int open_locked(const char *name, mode_t mode) {
    enum { MAX_TRIES = 16 };
    for (int i = 0; i < MAX_TRIES; i++) {
        int descriptor = open_temporary(name, mode);
        if (descriptor < 0) return -1;
        bool is_locked = flock(descriptor, LOCK_EX | LOCK_NB) == 0;
        if (is_locked && lksi_file_is_still_named(descriptor, name)) return descriptor;
        /* A file system without locks: no writer can hold the lock, so none is writing this file. */
        if (!is_locked && errno != EWOULDBLOCK) unlink(name);
        close(descriptor);
        if (!is_locked) return -1;
    }
    return -1;
}

/* Creates a new PATH.tmp.<n>. -1 with errno set on failure. */
static int open_own(char *name, size_t name_nbytes, const char *path, mode_t mode) {
    enum { MAX_NAMES = 1000 };
    int descriptor = -1;
    errno = EEXIST;
    for (int i = 1; i <= MAX_NAMES && descriptor < 0 && errno == EEXIST; i++) {
        snprintf(name, name_nbytes, "%s.tmp.%d", path, i);
        descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    }
    return descriptor;
}

/* A file that is replaced passes on its permissions, which may hide it from others, and its owner and group where this
 * process may give them. */
static lks_status keep_permissions(const lksi_new_file *file) {
    struct stat old, own;
    const int descriptor = file->descriptor;
    if (stat(file->path, &old) != 0 || fstat(descriptor, &own) != 0) return LKS_OK;
    const bool is_of_group = fchown(descriptor, old.st_uid, old.st_gid) == 0 ||
                             fchown(descriptor, (uid_t)-1, old.st_gid) == 0 || own.st_gid == old.st_gid;
    const mode_t mode = old.st_mode & (is_of_group ? ACCESSPERMS : ACCESSPERMS & ~S_IRWXG);
    if ((own.st_mode & ACCESSPERMS) == mode) return LKS_OK; /* a file system may have only one mode */
    return fchmod(descriptor, mode) == 0 ? LKS_OK : lksi_error_file(file->path);
}

static lks_status open_file(lksi_new_file *file, size_t name_nbytes) {
    struct stat old;
    const mode_t mode = stat(file->path, &old) == 0 ? S_IRUSR | S_IWUSR : DEFFILEMODE;
    snprintf(file->temporary, name_nbytes, "%s.tmp", file->path);
    file->descriptor = open_locked(file->temporary, mode);
    if (file->descriptor < 0) file->descriptor = open_own(file->temporary, name_nbytes, file->path, mode);
    if (file->descriptor < 0) return lksi_error_file(file->path);
    lks_status status = ftruncate(file->descriptor, 0) == 0 ? keep_permissions(file) : lksi_error_file(file->path);
    if (status != LKS_OK) unlink(file->temporary);
    return status;
}

lks_status lksi_new_file_create(lksi_new_file **file, const char *path) {
    LKS_TRY(check_target(path));
    lksi_new_file *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->descriptor = -1;
    lks_status status;
    LKS_TRY_GOTO(follow_links(path, &created->path), release_file);
    size_t nbytes = strlen(created->path) + 32;
    created->temporary = lksi_alloc(nbytes);
    created->stage = lksi_alloc(STAGE_NBYTES);
    status = LKS_ERR_MEMORY;
    if (created->temporary == NULL || created->stage == NULL) goto release_file;
    LKS_TRY_GOTO(open_file(created, nbytes), release_file);
    *file = created;
    return LKS_OK;
release_file:
    release(created);
    return status;
}

static void set_direct(lksi_new_file *file, bool is_wanted) {
    const int flags = fcntl(file->descriptor, F_GETFL);
    if (flags < 0 || file->is_direct == is_wanted) return;
    if (fcntl(file->descriptor, F_SETFL, is_wanted ? flags | O_DIRECT : flags & ~O_DIRECT) == 0)
        file->is_direct = is_wanted;
}

static lks_status write_out(lksi_new_file *file, const char *data, size_t nbytes) {
    while (nbytes > 0) {
        ssize_t n_written = write(file->descriptor, data, nbytes);
        if (n_written >= 0)
            data += n_written, nbytes -= (size_t)n_written;
        else if (errno == EINVAL && file->is_direct) /* another block size, or a partial block is left */
            set_direct(file, false);
        else if (errno != EINTR)
            return lksi_error_file(file->path);
    }
    return LKS_OK;
}

static lks_status write_stage(lksi_new_file *file) {
    const size_t nbytes = file->n_staged;
    file->n_staged = 0;
    return write_out(file, file->stage, nbytes);
}

/* Bytes of `data` that can be written without staging: whole pieces, if the stage and `data` are aligned to blocks. */
static size_t count_unstaged(const lksi_new_file *file, const char *data, size_t nbytes) {
    const bool is_aligned = file->n_staged % BLOCK_NBYTES == 0 && (uintptr_t)data % BLOCK_NBYTES == 0;
    return is_aligned ? nbytes / STAGE_NBYTES * STAGE_NBYTES : 0;
}

lks_status lksi_new_file_write(lksi_new_file *file, const void *data, size_t nbytes) {
    const char *next = data;
    while (nbytes > 0) {
        const size_t n_unstaged = count_unstaged(file, next, nbytes), room = STAGE_NBYTES - file->n_staged;
        const size_t n_taken = n_unstaged > 0 ? n_unstaged : nbytes < room ? nbytes : room;
        if (n_unstaged == 0) {
            memcpy(file->stage + file->n_staged, next, n_taken);
            file->n_staged += n_taken;
        }
        if (n_unstaged > 0 || file->n_staged == STAGE_NBYTES) {
            set_direct(file, true);
            LKS_TRY(write_stage(file));
            LKS_TRY(write_out(file, next, n_unstaged));
        }
        next += n_taken;
        nbytes -= n_taken;
    }
    return LKS_OK;
}

/* Writes the stage without O_DIRECT, because the end of the file may be a partial block. */
static lks_status write_rest(lksi_new_file *file) {
    set_direct(file, false);
    return write_stage(file);
}

lks_status lksi_new_file_overwrite(lksi_new_file *file, uint64_t offset, const void *data, size_t nbytes) {
    const char *next = data;
    LKS_TRY(write_rest(file));
    while (nbytes > 0) {
        ssize_t n_written = pwrite(file->descriptor, next, nbytes, (off_t)offset);
        if (n_written < 0 && errno == EINTR) continue;
        if (n_written < 0) return lksi_error_file(file->path);
        next += n_written;
        offset += (uint64_t)n_written;
        nbytes -= (size_t)n_written;
    }
    return LKS_OK;
}

static int sync_descriptor(int descriptor) {
    while (fsync(descriptor) != 0)
        if (errno != EINTR) return -1;
    return 0;
}

/* Makes the new name durable: it is stored in the directory. Some file systems cannot sync directories. */
static lks_status sync_directory(const char *path) {
    char *directory = lksi_strdup(path);
    if (directory == NULL) return LKS_ERR_MEMORY;
    char *slash = strrchr(directory, '/');
    if (slash != NULL) slash[slash == directory] = '\0';
    int descriptor = open(slash != NULL ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    lksi_free(directory);
    if (descriptor < 0) return LKS_OK; /* the directory may be writable but not readable */
    lks_status status =
        sync_descriptor(descriptor) == 0 || errno == EINVAL || errno == EROFS ? LKS_OK : lksi_error_file(path);
    close(descriptor);
    return status;
}

lks_status lksi_new_file_commit(lksi_new_file *file) {
    lks_status status = write_rest(file);
    if (status == LKS_OK && (sync_descriptor(file->descriptor) != 0 || rename(file->temporary, file->path) != 0))
        status = lksi_error_file(file->path);
    if (status == LKS_OK)
        status = sync_directory(file->path);
    else
        unlink(file->temporary);
    release(file);
    return status;
}

void lksi_new_file_discard(lksi_new_file *file) {
    if (file == NULL) return;
    unlink(file->temporary);
    release(file);
}
