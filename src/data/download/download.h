/* Declarations that the files of data/download/ share. */
#ifndef LKSI_DOWNLOAD_H
#define LKSI_DOWNLOAD_H

#include "base/base.h"

#include <lockstep/data.h>

#include <stdatomic.h>

/* --- the known sets (catalogue.c) --- */

/* A file in the directory of a set. A file NAME.gz may also be there uncompressed, as NAME. */
typedef struct lksi_content {
    const char *name;
    int64_t nbytes;     /* uncompressed */
    const char *sha256; /* of the uncompressed content */
} lksi_content;

/* A file on the mirrors. */
typedef struct lksi_download {
    const char *name;
    int64_t nbytes; /* exact for an archive; an upper limit for a single file, which may be compressed better */
    const char *archive_root; /* directory in the archive that holds the contents; NULL: not an archive */
    const char *sha256;       /* of an archive */
    const lksi_content *contents;
    int n_contents; /* 1 if it is not an archive */
} lksi_download;

typedef struct lksi_set {
    const char *name, *directory; /* the name for users; the name of its directory */
    const char *title;
    const char *const *mirrors; /* URLs without the file name, terminated by NULL */
    const lksi_download *downloads;
    int n_downloads;
    /* Other files that the set's readers accept instead of all of the above, terminated by NULL. Nothing is known of
     * their contents. NULL: none. */
    const char *const *substitutes;
} lksi_set;

/* Returns NULL after the last one. */
const lksi_set *lksi_set_at(int i);
/* Finds a set by its name or the name of its directory. Returns NULL, with an error text that lists all names. */
const lksi_set *lksi_set_find(const char *name);
/* Bytes to download. */
int64_t lksi_set_nbytes(const lksi_set *set);

/* --- progress (progress.c) --- */

/* Written by the thread that downloads. Its owner may set is_cancelled from another thread. */
typedef struct lksi_download_progress {
    atomic_int is_cancelled; /* set by the thread that waits */
    bool is_shown;           /* on stderr */
    int lock;                /* descriptor whose file is touched every second as a sign of life; -1: none */
    const char *what;        /* the current file; NULL: none */
    int64_t total_nbytes;    /* of the current file */
    int64_t begun_ns, drawn_ns, touched_ns;
    int64_t begun_nbytes; /* bytes of the current file that were present before */
} lksi_download_progress;

void lksi_download_progress_begin(lksi_download_progress *progress, const char *what, int64_t nbytes_done,
                                  int64_t total_nbytes);
/* Called at least once a second. Returns false if the work must be cancelled. */
bool lksi_download_progress_tick(lksi_download_progress *progress, int64_t nbytes_done);
/* Erases the progress line. */
void lksi_download_progress_end(lksi_download_progress *progress);
/* Prints a line to stderr if is_shown. */
void lksi_download_progress_say(lksi_download_progress *progress, const char *format, ...) LKS_PRINTF(2, 3);

/* --- one response of a server (transfer.c) --- */

typedef struct lksi_fetch_limits {
    int64_t connect_ms;
    int64_t stall_s;    /* limit for a rate below 1000 bytes per second */
    int64_t backoff_ms; /* before the second attempt; doubled before each further one */
    int n_tries;        /* consecutive attempts on one mirror without progress */
} lksi_fetch_limits;
extern const lksi_fetch_limits lksi_default_limits;

typedef enum lksi_outcome {
    LKSI_GOT_ALL, /* everything that the server meant to send */
    LKSI_ENDED,   /* an answer without a length has ended: LKSI_GOT_ALL or LKSI_CUT_OFF */
    LKSI_CUT_OFF, /* the same server may send the rest later */
    LKSI_UNFIT,   /* the response does not continue the partial file */
    LKSI_REFUSED, /* the server does not have the file */
    LKSI_GIVEN_UP /* a reason on this side, such as a full disk or cancellation */
} lksi_outcome;

typedef struct lksi_download_transfer {
    const char *path;
    int descriptor;     /* of the file `path`, whose first `offset` bytes are present */
    int64_t offset;     /* in and out */
    int64_t max_nbytes; /* of the whole file */
    bool restarts;      /* whether a response from the beginning replaces the partial file; if not, it is LKSI_UNFIT */
    const lksi_fetch_limits *limits;
    lksi_download_progress *progress;
    int64_t begun_at; /* out: position of the first byte of the response */
    char reason[320]; /* out: why it is not LKSI_GOT_ALL */
} lksi_download_transfer;

/* LKS_ERR_UNSUPPORTED: this machine or build has no libcurl. The text says what to install. */
lks_status lksi_download_transfer_available(void);
/* Requests `url` from byte `offset` on. */
lksi_outcome lksi_download_transfer_run(lksi_download_transfer *transfer, const char *url);

/* --- one file from its mirrors (fetch.c) --- */

/* Completes the file `path`, which may be partly present, and checks it. `mirrors` is as in lksi_set. After an error
 * the partial file remains, unless it is not a part of the file. */
lks_status lksi_fetch(const lksi_download *download, const char *const *mirrors, const char *path,
                      const lksi_fetch_limits *limits, lksi_download_progress *progress);

/* --- files in a directory (check.c) --- */

typedef enum lksi_presence { LKSI_MISSING, LKSI_PRESENT, LKSI_DIFFERENT } lksi_presence;

/* With `verifies` the SHA-256 decides, otherwise the name. A file that differs or cannot be read is described in the
 * error text. */
lksi_presence lksi_content_check(const lksi_content *content, const char *directory, bool verifies,
                                 lksi_download_progress *progress);
/* Whether the file is the one on the mirrors, or has the same content, compressed differently. */
lks_status lksi_download_check(const lksi_download *download, const char *path, lksi_download_progress *progress,
                               bool *is_right);

/* --- archives (unpack.c) --- */

/* LKS_ERR_UNSUPPORTED: this machine or build has no libarchive. The text says what to install. */
lks_status lksi_unpack_available(void);
/* Extracts the files directly in `root` to the directory `to`. It refuses an archive with anything else but directories
 * (links, devices, files in other places), or with more than `max_nbytes`. */
lks_status lksi_unpack(const char *path, const char *root, const char *to, int64_t max_nbytes,
                       lksi_download_progress *progress);

/* --- mutual exclusion of processes (lock.c) --- */

typedef struct lksi_lock lksi_lock;

typedef struct lksi_lock_options {
    int64_t timeout_ms;  /* how long the holder may give no sign of life, which is the file's time */
    const char *purpose; /* for messages */
} lksi_lock_options;

/* Waits until no other process holds the lock `path`. It creates this file, and removes it at release. */
lks_status lksi_lock_acquire(lksi_lock **lock, const char *path, const lksi_lock_options *options,
                             lksi_download_progress *progress);
int lksi_lock_descriptor(const lksi_lock *lock);
void lksi_lock_release(lksi_lock *lock); /* accepts NULL */

/* --- libraries that are loaded on demand (library.c) --- */

/* Loads `library` and looks up n_symbols functions: names[i] is stored in the function pointer at pointers[i]. */
lks_status lksi_library_load(const char *library, const char *package, const char *const *names, void *const *pointers,
                             int n_symbols);

/* --- getting a set, in one process (get.c) --- */

typedef struct lksi_get_options {
    bool verifies, replaces;
    const lksi_fetch_limits *limits; /* NULL: the defaults */
    int64_t lock_timeout_ms;         /* 0: one minute */
} lksi_get_options;

/* Ensures that `directory` holds the set. *was_there: whether it did before. */
lks_status lksi_get(const lksi_set *set, const char *directory, const lksi_get_options *options,
                    lksi_download_progress *progress, bool *was_there);
/* Checks that the set is complete, as lksi_content_check. LKS_ERR_FILE, LKS_ERR_FORMAT: the text names the first file
 * that is missing or differs. */
lks_status lksi_set_check(const lksi_set *set, const char *directory, bool verifies, lksi_download_progress *progress);

#endif
