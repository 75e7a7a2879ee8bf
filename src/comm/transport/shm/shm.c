/* Transport "shm": ranks are processes of one host. Segments are anonymous memory files. Rank 0 makes them and sends
 * their descriptors to the others over the control connections. Segments have no names, so nothing remains when a rank
 * is killed. Their memory is allocated before they are mapped: a lack of memory is an error here, not a SIGBUS later.
 */
#define _GNU_SOURCE /* memfd_create, seals, fallocate, struct ucred */
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/local_socket.h"
#include "comm/comm_internal.h"
#include "comm/world.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What a watch needs to report the end of a rank. */
typedef struct control_end {
    lksi_control *control;
    int mine, other; /* seats */
} control_end;

/* The first seat has a connection to every other seat. The others have one to the first seat. */
typedef struct shm {
    int *connections;  /* by seat; -1: none */
    int *processes;    /* by seat: a pidfd; -1: none */
    control_end *ends; /* by seat */
    int *names;        /* by seat: rank in the world */
    size_t control_nbytes;
} shm;

/* Sent with the descriptor of symmetric memory. `call` distinguishes it from one that a failed attempt left in the
 * socket. */
typedef struct handover {
    uint64_t call, nbytes;
} handover;

static lks_status map(int descriptor, size_t nbytes, void **base) {
    void *mapped = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    if (mapped == MAP_FAILED) return lksi_error(LKS_ERR_MEMORY, "out of memory: cannot map %zu shared bytes", nbytes);
    *base = mapped;
    return LKS_OK;
}

/* Allocates in pieces. Older kernels undo an allocation that a signal interrupts, and a periodic timer may interrupt a
 * large one every time. */
static int reserve(int descriptor, size_t nbytes) {
    enum { PIECE_NBYTES = 4 << 20 };
    size_t done = 0;
    while (done < nbytes) {
        size_t piece = nbytes - done < PIECE_NBYTES ? nbytes - done : PIECE_NBYTES;
        int failed = posix_fallocate(descriptor, (off_t)done, (off_t)piece);
        if (failed == 0) done += piece;
        if (failed != 0 && failed != EINTR) return failed;
    }
    return 0;
}

/* RLIMIT_FSIZE also applies to memory files. A process that exceeds it is killed by SIGXFSZ, so the limit is checked
 * before. */
static lks_status check_limit(size_t nbytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || nbytes <= limit.rlim_cur) return LKS_OK;
    return lksi_error(
        LKS_ERR_MEMORY,
        "out of memory: %zu shared bytes were asked for, the limit on the size of files (ulimit -f) is %llu", nbytes,
        (unsigned long long)limit.rlim_cur);
}

/* The file is sealed against shrinking, so that no process can remove the memory under the others. */
static lks_status create_segment(size_t nbytes, int *descriptor) {
    LKS_TRY(lksi_memory_check(nbytes));
    LKS_TRY(check_limit(nbytes));
    int created = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (created < 0) return lksi_error_errno("memfd_create");
    int failed = reserve(created, nbytes);
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
    handover record = {.call = lksi_n_calls(group), .nbytes = nbytes};
    int descriptor;
    LKS_TRY(create_segment(nbytes, &descriptor));
    lks_status status = map(descriptor, nbytes, base);
    for (int seat = 1; seat < group->n_seats && status == LKS_OK; seat++)
        status = lksi_hand_over(s->connections[seat], &record, sizeof record, descriptor);
    close(descriptor);
    return status;
}

static lks_status memory_attach(lks_group *group, size_t nbytes, void *base_on_0, void **base) {
    (void)base_on_0;
    const shm *s = group->backing;
    int64_t deadline_ns = lksi_deadline_ns(group, LKSI_CONTEXT_COLLECTIVE);
    for (;;) {
        handover record;
        int descriptor;
        LKS_TRY(lksi_take_over(s->connections[0], &record, sizeof record, &descriptor, deadline_ns));
        bool is_it = record.call == lksi_n_calls(group) && record.nbytes == nbytes;
        if (is_it && descriptor < 0) { /* this process has no descriptor left */
            errno = EMFILE;
            return lksi_error_errno("%zu shared bytes", nbytes);
        }
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

/* The control connection has ended. Data on it is read by the rank itself, not by the watch. */
static bool notice_end(void *opaque, int descriptor) {
    const control_end *end = opaque;
    (void)descriptor;
    lksi_control_disconnected(end->control, end->mine, end->other);
    return false;
}

static void close_one(const lks_group *group, const int *descriptors, int seat) {
    if (descriptors == NULL || descriptors[seat] < 0) return;
    lksi_watch_remove(group->world->watch, descriptors[seat]);
    close(descriptors[seat]);
}

static void close_all(shm *s, const lks_group *group) {
    for (int seat = 0; seat < group->n_seats; seat++) {
        close_one(group, s->connections, seat);
        close_one(group, s->processes, seat);
    }
    if (group->control != NULL) munmap(group->control, s->control_nbytes);
    lksi_free(s->names);
    lksi_free(s->ends);
    lksi_free(s->processes);
    lksi_free(s->connections);
    lksi_free(s);
}

static void leave(lks_group *group) { close_all(group->backing, group); }

static bool notice_exit(void *opaque, int descriptor) {
    const control_end *end = opaque;
    (void)descriptor;
    lksi_control_lost(end->control, end->other, "");
    return false;
}

/* The pid of the peer in our pid namespace. In another namespace it knows itself by another pid. 0: unknown. */
static pid_t peer_of(int connection) {
    struct ucred peer;
    socklen_t nbytes = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &nbytes) == 0 ? peer.pid : 0;
}

/* The pid of the rank in `seat`. 0: unknown. */
static pid_t process_of(const shm *s, const lks_group *group, int seat) {
    const lksi_control *control = s->ends[seat].control;
    if (s->connections[seat] >= 0) return peer_of(s->connections[seat]);
    return lksi_control_knows_pid(control, group->seat, seat) ? control->seats[seat].identity.pid : 0;
}

/* Watches the process of a rank by a pidfd. The control connections do not suffice: the first seat may leave before the
 * others, which then have no connection left, and a forked child may keep a connection open. If there is no pidfd
 * (Linux before 5.3, another pid namespace), the lost rank is noticed at the deadline. */
static lks_status watch_process(const shm *s, const lks_group *group, int seat) {
    s->processes[seat] = (int)syscall(SYS_pidfd_open, process_of(s, group, seat), 0);
    if (s->processes[seat] < 0 && (errno == EMFILE || errno == ENFILE))
        return lksi_error_errno("%s: cannot watch rank %d", group->progress.name,
                                lksi_world_rank(group, group->rank_of[seat]));
    if (s->processes[seat] < 0) return LKS_OK;
    return lksi_watch_add(group->world->watch, s->processes[seat], LKSI_WATCH_INPUT, notice_exit, &s->ends[seat]);
}

static lks_status watch_ends(const shm *s, const lks_group *group) {
    for (int seat = 0; seat < group->n_seats; seat++) {
        s->ends[seat] = (control_end){group->control, group->seat, seat};
        if (seat == group->seat) continue;
        LKS_TRY(watch_process(s, group, seat));
        if (s->connections[seat] < 0) continue;
        LKS_TRY(lksi_watch_add(group->world->watch, s->connections[seat], LKSI_WATCH_END, notice_end, &s->ends[seat]));
    }
    return LKS_OK;
}

static const lksi_transport shm_transport = {.name = "shm",
                                             .memory_make = memory_make,
                                             .memory_attach = memory_attach,
                                             .memory_release = memory_release,
                                             .close = leave};

static lks_status create_control(shm *s, const lks_group *group, const lksi_identity *identities, int *descriptor,
                                 lksi_control **control) {
    void *base = NULL;
    s->control_nbytes = lksi_control_nbytes(group->n_seats);
    LKS_TRY(create_segment(s->control_nbytes, descriptor));
    LKS_TRY(map(*descriptor, s->control_nbytes, &base));
    *control = base;
    lksi_control_create(*control, group->n_seats);
    (*control)->group_id = group->id;
    for (int seat = 0; seat < group->n_seats; seat++) {
        lksi_identity *identity = &(*control)->seats[seat].identity;
        if (seat > 0) *identity = identities[seat];
        identity->rank = lksi_world_rank(group, group->rank_of[seat]);
        (*control)->seats[seat].is_pid_common = seat == 0 || peer_of(s->connections[seat]) == identity->pid;
    }
    return LKS_OK;
}

/* Sends the outcome to all ranks that have arrived, so that all return the same error. Returns the outcome. `control`
 * exists if the outcome is LKS_OK: a rank that is lost meanwhile is reported to the others in its abort record. */
static lks_status welcome_all(const shm *s, const lks_group *group, lks_status outcome, int descriptor,
                              lksi_control *control) {
    lksi_welcome welcome = {.magic = LKSI_HELLO_MAGIC, .control_nbytes = s->control_nbytes, .status = (int32_t)outcome};
    char text[LKSI_ERROR_TEXT_NBYTES];
    lksi_error_keep(text);
    if (outcome != LKS_OK) {
        const lksi_reason reason = lksi_reason_for_others(group, outcome);
        snprintf(welcome.text, sizeof welcome.text, "%s", reason.text); /* which rank's error it is */
    }
    for (int seat = 1; seat < group->n_seats; seat++) {
        if (s->connections[seat] < 0) continue;
        lks_status status = lksi_hand_over(s->connections[seat], &welcome, sizeof welcome, descriptor);
        if (outcome == LKS_OK && status != LKS_OK) lksi_control_lost(control, seat, "");
    }
    if (outcome != LKS_OK) return lksi_error(outcome, "%s", text);
    return lksi_control_is_aborted(control) ? lksi_control_abort_error(control, group->progress.name) : LKS_OK;
}

/* The error of a part of a group whose rank(s) did not come to its meeting. The parent knows for whom they wait. */
static lks_status refuse_late(const lks_group *group, const int *ranks, int n_ranks) {
    char awaited[512];
    lksi_describe_awaited(group, true, ranks, n_ranks, awaited, sizeof awaited);
    if (lksi_control_is_aborted(group->parent->control))
        return lksi_control_abort_error(group->parent->control, group->progress.name);
    return lksi_error(LKS_ERR_TIMEOUT, "rank %d waited %lld ms for %s; %s", lksi_world_rank(group, group->rank),
                      (long long)group->timeout_ms, awaited, group->progress.name);
}

static lks_status refuse_missing(const shm *s, const lks_group *group) {
    int n_missing = 0, *missing = lksi_alloc_array((size_t)group->n_seats, sizeof *missing);
    if (missing == NULL) return LKS_ERR_MEMORY;
    for (int seat = 1; seat < group->n_seats; seat++)
        if (s->connections[seat] < 0) missing[n_missing++] = group->rank_of[seat];
    lks_status status = refuse_late(group, missing, n_missing);
    lksi_free(missing);
    return status;
}

static lks_status lead(shm *s, const lks_group *group, const lksi_meeting *meeting, int64_t deadline_ns,
                       lksi_control **control) {
    lksi_identity *identities = lksi_alloc_array((size_t)group->n_seats, sizeof *identities);
    if (identities == NULL) return LKS_ERR_MEMORY;
    int descriptor = -1;
    lks_status status = lksi_leader_meet(&group->world->environment, meeting, deadline_ns, s->connections, identities);
    if (status == LKS_ERR_TIMEOUT && group->parent != NULL) status = refuse_missing(s, group);
    if (status == LKS_OK) status = create_control(s, group, identities, &descriptor, control);
    status = welcome_all(s, group, status, descriptor, *control);
    if (descriptor >= 0) close(descriptor);
    lksi_free(identities);
    return status;
}

static lks_status enter(shm *s, lks_group *group, const lksi_welcome *welcome, int descriptor, lksi_control **control) {
    void *base = NULL;
    if (welcome->status != LKS_OK) return lksi_error((lks_status)welcome->status, "%s", welcome->text);
    if (descriptor < 0) { /* this process has no descriptor left */
        errno = EMFILE;
        return lksi_error_errno("%s: no segment for rank %d", group->progress.name,
                                lksi_world_rank(group, group->rank));
    }
    s->control_nbytes = (size_t)welcome->control_nbytes;
    LKS_TRY(map(descriptor, s->control_nbytes, &base));
    *control = base;
    group->id = (*control)->group_id; /* the own count differs if an earlier lks_init failed on this rank only */
    return LKS_OK;
}

static bool is_leader_stopped(const shm *s) {
    pid_t pid = peer_of(s->connections[0]);
    lksi_process_stat stat;
    return pid > 0 && lksi_process_read_stat(pid, &stat) && stat.is_stopped;
}

static lks_status explain_silence(const shm *s, const lks_group *group, lks_status status) {
    const char *call = group->progress.name;
    int leader = lksi_world_rank(group, group->rank_of[0]);
    if (status == LKS_ERR_TIMEOUT && is_leader_stopped(s))
        return lksi_error(status, "%s: rank %d (pid %d) is stopped", call, leader, (int)peer_of(s->connections[0]));
    if (status == LKS_ERR_TIMEOUT && group->parent != NULL) return refuse_late(group, &group->rank_of[0], 1);
    if (status == LKS_ERR_TIMEOUT)
        return lksi_error(status,
                          "%s: rank %d is there, but did not say in time that all are: it still waits for others, or "
                          "was stopped",
                          call, leader);
    return lksi_error(status, "rank %d was lost; %s: %s", leader, call, lksi_error_text());
}

/* Whether the leader says something before `until_ns`. */
static bool is_heard(const shm *s, int64_t until_ns) {
    for (int64_t left_ms; (left_ms = (until_ns - lksi_running_ns()) / 1000000) >= 0;) {
        struct pollfd ready = {.fd = s->connections[0], .events = POLLIN};
        if (lksi_poll(&ready, 1, left_ms > 1000 ? 1000 : (int)left_ms + 1) > 0) return true;
    }
    return false;
}

/* The leader reports a timeout at its own deadline, which is later than ours if it started later. A stopped leader
 * reports nothing. */
static lks_status follow(shm *s, lks_group *group, const lksi_meeting *meeting, int64_t deadline_ns,
                         lksi_control **control) {
    static const int64_t grace_ns = INT64_C(2) * 1000 * 1000 * 1000;
    lksi_welcome welcome;
    int descriptor;
    lks_status status = lksi_follower_meet(&group->world->environment, meeting, deadline_ns, &s->connections[0]);
    if (status == LKS_ERR_TIMEOUT && group->parent != NULL) return refuse_late(group, &group->rank_of[0], 1);
    LKS_TRY(status);
    if (!is_heard(s, deadline_ns) && is_leader_stopped(s)) return explain_silence(s, group, LKS_ERR_TIMEOUT);
    status = lksi_take_over(s->connections[0], &welcome, sizeof welcome, &descriptor, deadline_ns + grace_ns);
    if (status != LKS_OK) return explain_silence(s, group, status);
    welcome.text[sizeof welcome.text - 1] = '\0';
    status = enter(s, group, &welcome, descriptor, control);
    if (descriptor >= 0) close(descriptor);
    return status;
}

static lks_status meet(shm *s, lks_group *group, lks_status (*check)(void *), void *argument, lksi_control **control) {
    int64_t deadline_ns = lksi_deadline_ns(group, LKSI_CONTEXT_COLLECTIVE);
    for (int seat = 0; seat < group->n_seats; seat++) s->names[seat] = lksi_world_rank(group, group->rank_of[seat]);
    lksi_meeting part = {.call = group->progress.name,
                         /* unique per host of the group: several of these may be one machine (LOCKSTEP_HOST_ID) */
                         .id = lksi_mix(group->id, (uint64_t)group->rank_of[0]),
                         .rank = group->seat,
                         .size = group->n_seats,
                         .names = s->names,
                         .check = check,
                         .argument = argument};
    const lksi_meeting *meeting = group->is_world && group->n_seats == group->size ? NULL : &part;
    return group->seat == 0 ? lead(s, group, meeting, deadline_ns, control)
                            : follow(s, group, meeting, deadline_ns, control);
}

/* Excludes the staging areas and rings from core dumps. They say nothing useful, and a dump without them takes less
 * time. */
static void leave_out_of_dumps(lksi_control *control, size_t control_nbytes) {
    unsigned char *begin = lksi_control_staging(control, 0, 0);
    (void)madvise(begin, control_nbytes - (size_t)(begin - (unsigned char *)control), MADV_DONTDUMP);
}

lks_status lksi_shm_join(lks_group *group, lks_status (*check)(void *), void *argument) {
    shm *s = lksi_alloc(sizeof *s);
    if (s == NULL) return LKS_ERR_MEMORY;
    s->connections = lksi_alloc_array((size_t)group->n_seats, sizeof *s->connections);
    s->processes = lksi_alloc_array((size_t)group->n_seats, sizeof *s->processes);
    s->ends = lksi_alloc_array((size_t)group->n_seats, sizeof *s->ends);
    s->names = lksi_alloc_array((size_t)group->n_seats, sizeof *s->names);
    bool is_whole = s->connections != NULL && s->processes != NULL && s->ends != NULL && s->names != NULL;
    for (int seat = 0; seat < group->n_seats && s->connections != NULL; seat++) s->connections[seat] = -1;
    for (int seat = 0; seat < group->n_seats && s->processes != NULL; seat++) s->processes[seat] = -1;
    lks_status status = is_whole ? LKS_OK : LKS_ERR_MEMORY;
    if (status == LKS_OK) status = meet(s, group, check, argument, &group->control);
    if (status == LKS_OK) status = watch_ends(s, group);
    if (status != LKS_OK && group->control != NULL) { /* before the others see the connections end */
        const lksi_reason reason = lksi_reason_for_others(group, status);
        lksi_control_abort_for(group->control, &reason);
    }
    if (status != LKS_OK) {
        close_all(s, group);
        group->control = NULL;
        return status;
    }
    leave_out_of_dumps(group->control, s->control_nbytes);
    group->transport = &shm_transport;
    group->backing = s;
    return LKS_OK;
}
