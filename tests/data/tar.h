/* Archives for tests: tar (POSIX.1-1988 ustar), compressed by gzip. */
#ifndef LKSI_TAR_H
#define LKSI_TAR_H

#include "test.h"

#include <stdbool.h>
#include <string.h>
#include <zlib.h>

enum { TAR_BLOCK_NBYTES = 512, TAR_FILE_NBYTES = 1000 };

typedef struct tar_member {
    const char *name;
    char type; /* '0' file, '1' hard link, '2' symbolic link, '3' device, '5' directory */
    const char *target;
} tar_member;

/* Adds a header. For a plain file, also adds its contents: TAR_FILE_NBYTES letters 'x'. */
static inline void tar_add(gzFile archive, const tar_member *m) {
    char block[TAR_BLOCK_NBYTES] = {0}, letters[2 * TAR_BLOCK_NBYTES] = {0};
    bool is_file = m->type == '0';
    unsigned sum = 0;
    snprintf(block, 100, "%s", m->name);
    memcpy(block + 100, "0000644", 7);
    memcpy(block + 108, "0000000", 7);
    memcpy(block + 116, "0000000", 7);
    snprintf(block + 124, 12, "%011o", is_file ? TAR_FILE_NBYTES : 0);
    memcpy(block + 136, "00000000000", 11);
    memset(block + 148, ' ', 8);
    block[156] = m->type;
    if (m->target != NULL) snprintf(block + 157, 100, "%s", m->target);
    memcpy(block + 257, "ustar\00000", 8);
    for (int i = 0; i < TAR_BLOCK_NBYTES; i++) sum += (unsigned char)block[i];
    snprintf(block + 148, 8, "%06o", sum);
    assert_int_equal(gzwrite(archive, block, sizeof block), sizeof block);
    memset(letters, 'x', TAR_FILE_NBYTES);
    if (is_file) assert_int_equal(gzwrite(archive, letters, sizeof letters), sizeof letters);
}

/* The last element of `members` has no name. */
static inline void tar_write(const char *path, const tar_member *members) {
    static const char end[2 * TAR_BLOCK_NBYTES];
    gzFile archive = gzopen(path, "wb");
    assert_non_null(archive);
    for (; members->name != NULL; members++) tar_add(archive, members);
    assert_int_equal(gzwrite(archive, end, sizeof end), sizeof end);
    assert_int_equal(gzclose(archive), Z_OK);
}

#endif
