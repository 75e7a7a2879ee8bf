#define _GNU_SOURCE /* memfd_create */
#include "comm/bootstrap/notice_board.h"

#include "comm/transport/segment/control.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x4c4f434b4e4f5445) /* "LOCKNOTE" */

enum { ERROR_NBYTES = 400 };

/* Written by the rank that it is of, read after that rank has ended. */
typedef struct last_error {
    atomic_bool is_whole; /* the rank was not killed while it wrote it */
    char text[ERROR_NBYTES];
} last_error;

struct lksi_notice {
    uint64_t magic;
    lksi_abort lost;
    int32_t first_rank, n_ranks;
    last_error errors[]; /* of the launcher's ranks */
};

enum { NAME_NBYTES = 48 }; /* of "PORT:FILE" */

static const char variable[] = "LOCKSTEP_NOTICE_BOARD";

static size_t notice_nbytes(int n_ranks) { return sizeof(struct lksi_notice) + (size_t)n_ranks * sizeof(last_error); }

static struct lksi_notice *map(int descriptor, size_t nbytes) {
    void *mapped = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return mapped != MAP_FAILED ? mapped : NULL;
}

static last_error *error_of(struct lksi_notice *notice, int rank) {
    if (notice == NULL || rank < notice->first_rank || rank - notice->first_rank >= notice->n_ranks) return NULL;
    return &notice->errors[rank - notice->first_rank];
}

/* --- the launcher's side --- */

void lksi_notice_board_create(lksi_notice_board *board, int first_rank, int n_ranks) {
    const size_t nbytes = notice_nbytes(n_ranks);
    *board = (lksi_notice_board){.descriptor = memfd_create("lockstep-notice", MFD_CLOEXEC)};
    if (board->descriptor < 0) return;
    if (ftruncate(board->descriptor, (off_t)nbytes) == 0) board->notice = map(board->descriptor, nbytes);
    if (board->notice == NULL) {
        lksi_notice_board_destroy(board);
        return;
    }
    board->notice->first_rank = first_rank, board->notice->n_ranks = n_ranks;
    board->notice->magic = MAGIC;
}

void lksi_notice_board_name(const lksi_notice_board *board, pid_t launcher, const char *master_port) {
    char name[NAME_NBYTES];
    snprintf(name, sizeof name, "%s:/proc/%d/fd/%d", master_port, (int)launcher, board->descriptor);
    if (board->notice != NULL)
        setenv(variable, name, 1);
    else
        unsetenv(variable);
}

void lksi_notice_board_write(const lksi_notice_board *board, const char *text) {
    lksi_reason reason = {.status = LKS_ERR_PEER};
    snprintf(reason.text, sizeof reason.text, "%s", text);
    if (board->notice != NULL) (void)lksi_abort_write(&board->notice->lost, &reason);
}

const char *lksi_notice_board_error_of(const lksi_notice_board *board, int rank) {
    const last_error *error = error_of(board->notice, rank);
    return error != NULL && atomic_load(&error->is_whole) ? error->text : NULL;
}

void lksi_notice_board_destroy(lksi_notice_board *board) {
    if (board->notice != NULL) munmap(board->notice, notice_nbytes(board->notice->n_ranks));
    if (board->descriptor >= 0) close(board->descriptor);
    *board = (lksi_notice_board){.descriptor = -1};
}

/* --- a rank's side --- */

/* The mapping is cached with its name. The name changes in a rank that starts ranks of its own, because it is then
 * their launcher. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char found_name[NAME_NBYTES];
static struct lksi_notice *found;

/* The launcher may have ended and its pid may be reused, so size and magic are checked. */
static struct lksi_notice *find(const char *file) {
    int descriptor = open(file, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return NULL;
    const off_t nbytes = lseek(descriptor, 0, SEEK_END);
    const bool may_be = nbytes >= (off_t)sizeof(struct lksi_notice);
    struct lksi_notice *opened = may_be ? map(descriptor, (size_t)nbytes) : NULL;
    close(descriptor);
    if (opened == NULL) return NULL;
    if (opened->magic == MAGIC && notice_nbytes(opened->n_ranks) == (size_t)nbytes) return opened;
    munmap(opened, (size_t)nbytes);
    return NULL;
}

/* Returns the file of a board for the world at MASTER_PORT, or NULL. A world that meets elsewhere, or was started by
 * mpirun, may be inside a rank of the launcher's world. */
static const char *file_of(const char *name) {
    const char *port = lksi_variable("MASTER_PORT");
    if (name == NULL || strlen(name) >= NAME_NBYTES || port == NULL || !lksi_begins_with(name, port)) return NULL;
    return name[strlen(port)] == ':' ? name + strlen(port) + 1 : NULL;
}

static struct lksi_notice *look_up(void) {
    const char *name = getenv(variable), *file = file_of(name);
    if (file == NULL) return NULL;
    pthread_mutex_lock(&mutex);
    if (strcmp(name, found_name) != 0) {
        found = find(file);
        snprintf(found_name, sizeof found_name, "%s", name);
    }
    struct lksi_notice *notice = found;
    pthread_mutex_unlock(&mutex);
    return notice;
}

lks_status lksi_notice_board_check(void) {
    const struct lksi_notice *notice = look_up();
    const lksi_reason *reason = notice != NULL ? lksi_abort_read(&notice->lost) : NULL;
    return reason == NULL ? LKS_OK : lksi_error(LKS_ERR_PEER, "%s; lks_init", reason->text);
}

void lksi_notice_board_leave_error(int rank, lks_status status) {
    last_error *error = error_of(look_up(), rank);
    if (error == NULL) return;
    const char *text = lksi_error_text();
    atomic_store(&error->is_whole, false);
    if (status == LKS_OK) return;
    snprintf(error->text, sizeof error->text, "%.*s", (int)strcspn(text, "\n"), text); /* further lines are a table */
    atomic_store(&error->is_whole, true);
}
