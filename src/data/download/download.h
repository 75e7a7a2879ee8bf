/* What the files of data/download/ share. */
#ifndef LKSI_DOWNLOAD_H
#define LKSI_DOWNLOAD_H

#include "base/base.h"

#include <lockstep/data.h>

#include <stdatomic.h>

/* --- what there is (catalogue.c) --- */

/* One file as it lies in a set's directory. What is called NAME.gz may lie there unpacked, as NAME, too. */
typedef struct lksi_content {
    const char *name;
    int64_t nbytes;     /* unpacked */
    const char *sha256; /* of the same */
} lksi_content;

/* One file as the mirrors have it. */
typedef struct lksi_download {
    const char *name;
    int64_t nbytes;           /* a mirror may have packed a single file tighter, but not more loosely */
    const char *archive_root; /* the directory in the archive whose files the contents are; NULL: no archive */
    const char *sha256;       /* of an archive */
    const lksi_content *contents;
    int n_contents; /* 1 where it is no archive */
} lksi_download;

typedef struct lksi_set {
    const char *name, *directory; /* what users call it; what its directory is called */
    const char *title;
    const char *const *mirrors; /* addresses without the file's name; NULL ends them */
    const lksi_download *downloads;
    int n_downloads;
} lksi_set;

/* NULL after the last one. */
const lksi_set *lksi_set_at(int i);
/* By its name or its directory's name; NULL with the error text, which lists all names, where there is none. */
const lksi_set *lksi_set_find(const char *name);
/* Bytes to download. */
int64_t lksi_set_nbytes(const lksi_set *set);

/* --- how far it is (progress.c) --- */

/* Written by the thread that downloads, read by the one that waits for it. */
typedef struct lksi_download_progress {
    atomic_llong nbytes;     /* that are here, of all files */
    atomic_int is_cancelled; /* set by the one that waits */
    bool is_shown;           /* on stderr */
    int lock;                /* a descriptor whose file is touched every second, so that others see us at work; or -1 */
    const char *what;        /* the file that is being worked on; NULL: none */
    int64_t total_nbytes;    /* of it */
    int64_t begun_ns, drawn_ns, touched_ns;
    int64_t begun_nbytes; /* of it, that were here before */
} lksi_download_progress;

void lksi_download_progress_begin(lksi_download_progress *progress, const char *what, int64_t nbytes_done,
                                  int64_t total_nbytes);
/* Called at least once a second. False where the work is to be given up. */
bool lksi_download_progress_tick(lksi_download_progress *progress, int64_t nbytes_done);
/* Removes what was drawn. */
void lksi_download_progress_end(lksi_download_progress *progress);
/* A line on stderr, where that is wanted. */
void lksi_download_progress_say(lksi_download_progress *progress, const char *format, ...) LKS_PRINTF(2, 3);

/* --- one answer of a server (transfer.c) --- */

typedef struct lksi_fetch_limits {
    int64_t connect_ms;
    int64_t stall_s;    /* with less than 1000 bytes a second */
    int64_t backoff_ms; /* before the second try; doubled before each one after it */
    int n_tries;        /* of one mirror, in a row without a byte more */
} lksi_fetch_limits;
extern const lksi_fetch_limits lksi_default_limits;

typedef enum lksi_outcome {
    LKSI_GOT_ALL, /* that the server meant to send */
    LKSI_CUT_OFF, /* the same server may have the rest later */
    LKSI_UNFIT,   /* what it sends does not go on from what is here */
    LKSI_REFUSED, /* it has not got what is wanted */
    LKSI_GIVEN_UP /* for a reason of this side: no space, say, or cancelled */
} lksi_outcome;

typedef struct lksi_download_transfer {
    const char *path;
    int descriptor;     /* of the file `path`, whose first `offset` bytes are here */
    int64_t offset;     /* in and out */
    int64_t max_nbytes; /* of the whole file */
    bool restarts;      /* an answer from the beginning takes the place of what is here; else it is LKSI_UNFIT */
    const lksi_fetch_limits *limits;
    lksi_download_progress *progress;
    int64_t begun_at; /* out: which of the bytes was the answer's first */
    char reason[320]; /* out: why it is not LKSI_GOT_ALL */
} lksi_download_transfer;

/* LKS_ERR_UNSUPPORTED, saying what to install, where this machine or this build lacks libcurl. */
lks_status lksi_download_transfer_available(void);
/* Gets `url` from byte `offset` on. */
lksi_outcome lksi_download_transfer_run(lksi_download_transfer *transfer, const char *url);

/* --- one file from its mirrors (fetch.c) --- */

/* Completes the file `path`, of which a part may be here, and checks it. `mirrors`: as in lksi_set. After an error the
 * part is there still, or more of it, unless it was none of the file. */
lks_status lksi_fetch(const lksi_download *download, const char *const *mirrors, const char *path,
                      const lksi_fetch_limits *limits, lksi_download_progress *progress);

/* --- what lies in a directory (check.c) --- */

typedef enum lksi_presence { LKSI_MISSING, LKSI_PRESENT, LKSI_DIFFERENT } lksi_presence;

/* `verifies`: by its SHA-256; otherwise whatever has the name is taken for it. What differs, or cannot be read, is
 * described in the error text. */
lksi_presence lksi_content_check(const lksi_content *content, const char *directory, bool verifies,
                                 lksi_download_progress *progress);
/* Whether the file is what a mirror has, or the same content packed in another way. */
lks_status lksi_download_check(const lksi_download *download, const char *path, lksi_download_progress *progress,
                               bool *is_right);

/* --- archives (unpack.c) --- */

/* LKS_ERR_UNSUPPORTED, saying what to install, where this machine or this build lacks libarchive. */
lks_status lksi_unpack_available(void);
/* Writes the files of the archive that lie directly in `root` into the directory `to`; refuses an archive that has
 * anything else in it but directories (links, devices, files elsewhere), or more than `max_nbytes`. */
lks_status lksi_unpack(const char *path, const char *root, const char *to, int64_t max_nbytes,
                       lksi_download_progress *progress);

/* --- one at a time (lock.c) --- */

typedef struct lksi_lock lksi_lock;

typedef struct lksi_lock_options {
    int64_t timeout_ms;  /* that the holder may go without a sign of life, its file's time */
    const char *purpose; /* for the message */
} lksi_lock_options;

/* Waits until nobody else holds the lock `path`, a file that is made, and is removed in the end. */
lks_status lksi_lock_acquire(lksi_lock **lock, const char *path, const lksi_lock_options *options,
                             lksi_download_progress *progress);
int lksi_lock_descriptor(const lksi_lock *lock);
void lksi_lock_release(lksi_lock *lock); /* accepts NULL */

/* --- libraries that are loaded when they are needed (library.c) --- */

/* Loads `library` and looks up n_symbols functions in it, names[i] into the function pointer at pointers[i]. */
lks_status lksi_library_load(const char *library, const char *package, const char *const *names, void *const *pointers,
                             int n_symbols);

/* --- all of it, in one process (get.c) --- */

typedef struct lksi_get_options {
    bool verifies, replaces;
    const lksi_fetch_limits *limits; /* NULL: the default ones */
    int64_t lock_timeout_ms;         /* 0: a minute */
} lksi_get_options;

/* Sees to it that `directory` holds the set. *was_there: it did already. */
lks_status lksi_get(const lksi_set *set, const char *directory, const lksi_get_options *options,
                    lksi_download_progress *progress, bool *was_there);
/* Whether the set is there: LKS_OK; LKS_ERR_FILE or LKS_ERR_FORMAT, with the first file that is missing or differs. */
lks_status lksi_set_verify(const lksi_set *set, const char *directory, lksi_download_progress *progress);

#endif
