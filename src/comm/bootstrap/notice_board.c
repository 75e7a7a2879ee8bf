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

struct lksi_notice {
    uint64_t magic;
    lksi_abort lost;
};

enum { NAME_NBYTES = 48 }; /* of "PORT:FILE" */

static const char variable[] = "LOCKSTEP_NOTICE_BOARD";

static struct lksi_notice *map(int descriptor, int protection) {
    void *mapped = mmap(NULL, sizeof(struct lksi_notice), protection, MAP_SHARED, descriptor, 0);
    return mapped != MAP_FAILED ? mapped : NULL;
}

/* --- the launcher's side --- */

void lksi_notice_board_create(lksi_notice_board *board) {
    *board = (lksi_notice_board){.descriptor = memfd_create("lockstep-notice", MFD_CLOEXEC)};
    if (board->descriptor < 0) return;
    if (ftruncate(board->descriptor, sizeof(struct lksi_notice)) == 0)
        board->notice = map(board->descriptor, PROT_READ | PROT_WRITE);
    if (board->notice != NULL)
        board->notice->magic = MAGIC;
    else
        lksi_notice_board_destroy(board);
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

void lksi_notice_board_destroy(lksi_notice_board *board) {
    if (board->notice != NULL) munmap(board->notice, sizeof *board->notice);
    if (board->descriptor >= 0) close(board->descriptor);
    *board = (lksi_notice_board){.descriptor = -1};
}

/* --- a rank's side --- */

/* The mapping is cached with its name. The name changes in a rank that starts ranks of its own, because it is then
 * their launcher. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char found_name[NAME_NBYTES];
static const struct lksi_notice *found;

/* The launcher may have ended and its pid may be reused, so size and magic are checked. */
static const struct lksi_notice *find(const char *file) {
    off_t nbytes = sizeof(struct lksi_notice);
    int descriptor = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return NULL;
    struct lksi_notice *opened = lseek(descriptor, 0, SEEK_END) == nbytes ? map(descriptor, PROT_READ) : NULL;
    close(descriptor);
    if (opened == NULL || opened->magic == MAGIC) return opened;
    munmap(opened, sizeof *opened);
    return NULL;
}

/* Returns the file of a board for the world at MASTER_PORT, or NULL. A world that meets elsewhere, or was started by
 * mpirun, may be inside a rank of the launcher's world. */
static const char *file_of(const char *name) {
    const char *port = lksi_variable("MASTER_PORT");
    if (name == NULL || strlen(name) >= NAME_NBYTES || port == NULL || !lksi_begins_with(name, port)) return NULL;
    return name[strlen(port)] == ':' ? name + strlen(port) + 1 : NULL;
}

static const struct lksi_notice *look_up(void) {
    const char *name = getenv(variable), *file = file_of(name);
    if (file == NULL) return NULL;
    pthread_mutex_lock(&mutex);
    if (strcmp(name, found_name) != 0) {
        found = find(file);
        snprintf(found_name, sizeof found_name, "%s", name);
    }
    const struct lksi_notice *notice = found;
    pthread_mutex_unlock(&mutex);
    return notice;
}

lks_status lksi_notice_board_check(void) {
    const struct lksi_notice *notice = look_up();
    const lksi_reason *reason = notice != NULL ? lksi_abort_read(&notice->lost) : NULL;
    return reason == NULL ? LKS_OK : lksi_error(LKS_ERR_PEER, "%s; lks_init", reason->text);
}
