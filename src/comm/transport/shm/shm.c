/* Ranks that are processes of one host: segments are anonymous memory files that rank 0 makes and hands to the others
 * over their control connections, so nothing has a name and nothing stays behind, whoever is killed when.
 * Their memory is allocated before they are mapped: too little of it is an error here and not a SIGBUS later.
 */
#define _GNU_SOURCE /* memfd_create, seals, fallocate */
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/local_socket.h"
#include "comm/comm_internal.h"
#include "comm/transport/shm/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Rank 0 has a connection to everyone, the others to rank 0; -1 elsewhere. */
typedef struct shm {
    int *connections;
    lksi_watch *watch;
    size_t control_nbytes;
} shm;

/* Goes with the descriptor of symmetric memory. `call` tells it from one that a failed attempt left in the socket. */
typedef struct handover {
    uint64_t call, nbytes;
} handover;

static lks_status map(int descriptor, size_t nbytes, void **base) {
    void *mapped = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    if (mapped == MAP_FAILED) return lksi_error(LKS_ERR_MEMORY, "out of memory: cannot map %zu shared bytes", nbytes);
    *base = mapped;
    return LKS_OK;
}

/* Sealed against shrinking: no process can take the memory away from under the others. */
static lks_status create_segment(size_t nbytes, int *descriptor) {
    LKS_TRY(lksi_memory_check(nbytes));
    int created = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (created < 0) return lksi_error_errno("memfd_create");
    int failed;
    do failed = posix_fallocate(created, 0, (off_t)nbytes);
    while (failed == EINTR);
    if (failed == 0 && fcntl(created, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) failed = errno;
    if (failed != 0) {
        close(created);
        return lksi_error(LKS_ERR_MEMORY, "out of memory: %zu shared bytes were asked for (%s)", nbytes,
                          strerror(failed));
    }
    *descriptor = created;
    return LKS_OK;
}

/* --- symmetric memory --- */

static lks_status memory_make(lks_group *group, size_t nbytes, void **base) {
    const shm *s = group->backing;
    handover record = {.call = group->counters.n_calls, .nbytes = nbytes};
    int descriptor;
    LKS_TRY(create_segment(nbytes, &descriptor));
    lks_status status = map(descriptor, nbytes, base);
    for (int rank = 1; rank < group->size && status == LKS_OK; rank++)
        status = lksi_hand_over(s->connections[rank], &record, sizeof record, descriptor);
    close(descriptor);
    return status;
}

static lks_status memory_attach(lks_group *group, size_t nbytes, void *base_on_0, void **base) {
    (void)base_on_0;
    const shm *s = group->backing;
    int64_t deadline_ns = lksi_now_ns() + group->timeout_ms * 1000000;
    for (;;) {
        handover record;
        int descriptor;
        LKS_TRY(lksi_take_over(s->connections[0], &record, sizeof record, &descriptor, deadline_ns));
        bool is_it = record.call == group->counters.n_calls && record.nbytes == nbytes && descriptor >= 0;
        lks_status status = is_it ? map(descriptor, nbytes, base) : LKS_OK;
        if (descriptor >= 0) close(descriptor);
        if (is_it) return status;
    }
}

static void memory_release(lks_group *group, void *base, size_t nbytes) {
    (void)group;
    munmap(base, nbytes);
}

/* --- joining and leaving --- */

static void close_all(shm *s, int n_ranks, lksi_control *control) {
    lksi_watch_destroy(s->watch);
    for (int rank = 0; rank < n_ranks && s->connections != NULL; rank++)
        if (s->connections[rank] >= 0) close(s->connections[rank]);
    if (control != NULL) munmap(control, s->control_nbytes);
    lksi_free(s->connections);
    lksi_free(s);
}

static void leave(lks_group *group) { close_all(group->backing, group->size, group->control); }

static const lksi_transport shm_transport = {.name = "shm",
                                             .memory_make = memory_make,
                                             .memory_attach = memory_attach,
                                             .memory_release = memory_release,
                                             .close = leave};

static lks_status create_control(shm *s, const lksi_identity *identities, int n_ranks, int *descriptor,
                                 lksi_control **control) {
    void *base = NULL;
    s->control_nbytes = lksi_control_nbytes(n_ranks);
    LKS_TRY(create_segment(s->control_nbytes, descriptor));
    LKS_TRY(map(*descriptor, s->control_nbytes, &base));
    *control = base;
    lksi_control_create(*control, n_ranks);
    for (int rank = 1; rank < n_ranks; rank++) (*control)->seats[rank].identity = identities[rank];
    return LKS_OK;
}

static lks_status welcome_one(const shm *s, int rank, const lksi_welcome *welcome, int descriptor) {
    if (s->connections[rank] < 0) return LKS_OK;
    lks_status status = lksi_hand_over(s->connections[rank], welcome, sizeof *welcome, descriptor);
    return status == LKS_OK ? LKS_OK
                            : lksi_error(LKS_ERR_PEER, "rank %d was lost; lks_init: %s", rank, lks_error_text());
}

/* Whoever has arrived hears how it ended, so that all ranks give the same reason. Returns how it ended. */
static lks_status welcome_all(const shm *s, int n_ranks, lks_status outcome, int descriptor) {
    lksi_welcome welcome = {.magic = LKSI_HELLO_MAGIC, .control_nbytes = s->control_nbytes, .status = (int32_t)outcome};
    snprintf(welcome.text, sizeof welcome.text, "%s", outcome == LKS_OK ? "" : lks_error_text());
    for (int rank = 1; rank < n_ranks; rank++) {
        lks_status status = welcome_one(s, rank, &welcome, descriptor);
        if (outcome == LKS_OK && status != LKS_OK) return status; /* the rest sees our connections end */
    }
    return outcome == LKS_OK ? LKS_OK : lksi_error(outcome, "%s", welcome.text);
}

static lks_status lead(shm *s, const lksi_environment *environment, int64_t deadline_ns, lksi_control **control) {
    lksi_identity *identities = lksi_alloc_array((size_t)environment->size, sizeof *identities);
    if (identities == NULL) return LKS_ERR_MEMORY;
    int descriptor = -1;
    lks_status status = lksi_leader_meet(environment, deadline_ns, s->connections, identities);
    if (status == LKS_OK) status = create_control(s, identities, environment->size, &descriptor, control);
    status = welcome_all(s, environment->size, status, descriptor);
    if (descriptor >= 0) close(descriptor);
    lksi_free(identities);
    return status;
}

/* The leader's verdict comes at its deadline, which may be a little after ours. */
static lks_status follow(shm *s, const lksi_environment *environment, int64_t deadline_ns, lksi_control **control) {
    static const int64_t grace_ns = INT64_C(2) * 1000 * 1000 * 1000;
    lksi_welcome welcome;
    int descriptor;
    void *base = NULL;
    LKS_TRY(lksi_follower_meet(environment, deadline_ns, &s->connections[0]));
    lks_status status =
        lksi_take_over(s->connections[0], &welcome, sizeof welcome, &descriptor, deadline_ns + grace_ns);
    if (status != LKS_OK) return lksi_error(status, "rank 0 was lost; lks_init: %s", lks_error_text());
    welcome.text[sizeof welcome.text - 1] = '\0';
    if (welcome.status != LKS_OK)
        status = lksi_error((lks_status)welcome.status, "%s", welcome.text);
    else if (descriptor < 0)
        status = lksi_error(LKS_ERR_FORMAT, "lks_init: rank 0 handed no segment over");
    if (status == LKS_OK) {
        s->control_nbytes = (size_t)welcome.control_nbytes;
        status = map(descriptor, s->control_nbytes, &base);
        if (status == LKS_OK) *control = base;
    }
    if (descriptor >= 0) close(descriptor);
    return status;
}

lks_status lksi_shm_join(lks_group *group, const lksi_environment *environment) {
    int64_t deadline_ns = lksi_now_ns() + group->timeout_ms * 1000000;
    lksi_control *control = NULL;
    shm *s = lksi_alloc(sizeof *s);
    if (s == NULL) return LKS_ERR_MEMORY;
    s->connections = lksi_alloc_array((size_t)group->size, sizeof *s->connections);
    lks_status status = s->connections == NULL ? LKS_ERR_MEMORY : LKS_OK;
    for (int rank = 0; rank < group->size && status == LKS_OK; rank++) s->connections[rank] = -1;
    if (status == LKS_OK)
        status = group->rank == 0 ? lead(s, environment, deadline_ns, &control)
                                  : follow(s, environment, deadline_ns, &control);
    if (status == LKS_OK) status = lksi_watch_create(&s->watch, control, s->connections);
    if (status != LKS_OK) {
        close_all(s, group->size, control);
        return status;
    }
    group->transport = &shm_transport;
    group->backing = s;
    group->control = control;
    return LKS_OK;
}
