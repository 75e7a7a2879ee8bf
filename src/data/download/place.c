/* Directories of a set: where it is prepared, and how it is installed. */
#include "data/download/place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

lks_status lksi_place_make(const char *directory) {
    struct stat info;
    if (mkdir(directory, 0777) == 0) return LKS_OK;
    if (errno != EEXIST) return lksi_error_file(directory);
    if (lstat(directory, &info) == 0 && S_ISDIR(info.st_mode)) return LKS_OK;
    errno = ENOTDIR;
    return lksi_error_file(directory);
}

/* Writes PREFIXdownload, PREFIXnew and PREFIXlock. */
static lks_status name_places(lksi_place *place, const char *prefix) {
    LKS_TRY(lksi_path(place->downloads, "%sdownload", prefix));
    LKS_TRY(lksi_path(place->staged, "%snew", prefix));
    return lksi_path(place->lock, "%slock", prefix);
}

static lks_status find_existing(lksi_place *place, const char *directory) {
    char prefix[LKSI_PATH_NBYTES];
    struct stat info;
    if (stat(directory, &info) != 0) return lksi_error_file(directory);
    if (!S_ISDIR(info.st_mode)) return lksi_error(LKS_ERR_FILE, "%s: not a directory", directory);
    place->is_there = true;
    if (realpath(directory, place->directory) == NULL) return lksi_error_file(directory);
    LKS_TRY(lksi_path(prefix, "%s/.lockstep-", place->directory));
    return name_places(place, prefix);
}

static lks_status find_new(lksi_place *place, const char *directory) {
    char parent[LKSI_PATH_NBYTES], real[LKSI_PATH_NBYTES], prefix[LKSI_PATH_NBYTES];
    struct stat info;
    if (lstat(directory, &info) == 0) return lksi_error(LKS_ERR_FILE, "%s: a dangling symbolic link", directory);
    LKS_TRY(lksi_make_parents(directory));
    const char *slash = strrchr(directory, '/'), *name = slash != NULL ? slash + 1 : directory;
    if (slash == NULL)
        snprintf(parent, sizeof parent, ".");
    else
        snprintf(parent, sizeof parent, "%.*s", slash == directory ? 1 : (int)(slash - directory), directory);
    if (realpath(parent, real) == NULL) return lksi_error_file(parent);
    LKS_TRY(lksi_path(place->directory, "%s/%s", real, name));
    LKS_TRY(lksi_path(prefix, "%s/.%s.lockstep-", real, name));
    return name_places(place, prefix);
}

lks_status lksi_place_find(lksi_place *place, const char *directory) {
    char bare[LKSI_PATH_NBYTES];
    size_t length = strlen(directory);
    *place = (lksi_place){.is_there = false};
    if (length == 0 || length >= sizeof bare)
        return lksi_error(LKS_ERR_FILE, "a directory's path of %zu bytes is empty or too long", length);
    while (length > 1 && directory[length - 1] == '/') length--;
    memcpy(bare, directory, length);
    bare[length] = '\0';
    return lksi_file_exists(bare) ? find_existing(place, bare) : find_new(place, bare);
}

bool lksi_place_has_files(const char *directory) {
    DIR *stream = opendir(directory);
    bool has_files = false;
    if (stream == NULL) return false;
    for (struct dirent *entry; !has_files && (entry = readdir(stream)) != NULL;) has_files = entry->d_name[0] != '.';
    closedir(stream);
    return has_files;
}

lks_status lksi_place_move(const char *from, const char *to) {
    return rename(from, to) == 0 ? LKS_OK : lksi_error_file(to);
}

typedef lks_status (*file_function)(const char *path, const char *name, const lksi_place *place);

static lks_status for_each_file(const char *directory, file_function function, const lksi_place *place) {
    char path[LKSI_PATH_NBYTES];
    DIR *stream = opendir(directory);
    if (stream == NULL) return lksi_error_file(directory);
    lks_status status = LKS_OK;
    for (struct dirent *entry; status == LKS_OK && (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        status = lksi_path(path, "%s/%s", directory, entry->d_name);
        if (status == LKS_OK) status = function(path, entry->d_name, place);
    }
    closedir(stream);
    return status;
}

lks_status lksi_place_remove_file(const char *path) {
    return unlink(path) == 0 || errno == ENOENT ? LKS_OK : lksi_error_file(path);
}

static lks_status remove_file(const char *path, const char *name, const lksi_place *place) {
    (void)name, (void)place;
    return lksi_place_remove_file(path);
}

lks_status lksi_place_remove(const char *directory) {
    if (!lksi_file_exists(directory)) return LKS_OK;
    LKS_TRY(for_each_file(directory, remove_file, NULL));
    return rmdir(directory) == 0 ? LKS_OK : lksi_error_file(directory);
}

/* NAME.gz also replaces NAME, because readers prefer an uncompressed file. */
static lks_status install_file(const char *path, const char *name, const lksi_place *place) {
    char target[LKSI_PATH_NBYTES];
    LKS_TRY(lksi_path(target, "%s/%s", place->directory, name));
    LKS_TRY(lksi_place_move(path, target));
    size_t length = strlen(target);
    if (length > 3 && strcmp(target + length - 3, ".gz") == 0) {
        target[length - 3] = '\0';
        LKS_TRY(lksi_place_remove_file(target));
    }
    return LKS_OK;
}

/* Makes the renames durable, so that the directory is consistent after a power failure. */
static void sync_directory(const char *path) {
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    (void)fsync(descriptor);
    close(descriptor);
}

lks_status lksi_place_install(const lksi_place *place) {
    sync_directory(place->staged);
    if (!place->is_there) {
        if (rename(place->staged, place->directory) == 0) return LKS_OK;
        if (errno != EEXIST && errno != ENOTEMPTY)
            return lksi_error_file(place->directory); /* otherwise another process has just created it */
    }
    LKS_TRY(for_each_file(place->staged, install_file, place));
    sync_directory(place->directory);
    return rmdir(place->staged) == 0 ? LKS_OK : lksi_error_file(place->staged);
}
