/* Small files in a directory of the test's own. */
#ifndef LKSI_FILES_H
#define LKSI_FILES_H

#include "test.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[] = "/tmp/lockstep_data_XXXXXX";

static inline int make_directory(void **state) {
    (void)state;
    strcpy(strrchr(directory, '_'), "_XXXXXX");
    return mkdtemp(directory) != NULL ? 0 : -1;
}

static inline int remove_directory(void **state) {
    (void)state;
    char path[600];
    DIR *entries = opendir(directory);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (entry->d_name[0] != '.') unlink(path);
    }
    closedir(entries);
    return rmdir(directory);
}

static inline void write_bytes(const char *name, const void *data, size_t nbytes) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(data, 1, nbytes, stream), nbytes);
    assert_int_equal(fclose(stream), 0);
}

static inline void cut_file(const char *name, off_t nbytes_left) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    assert_int_equal(truncate(path, nbytes_left), 0);
}

#endif
