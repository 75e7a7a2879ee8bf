/* Reads the ordinary memory of another process of this host: one copy, where staging takes two.
 *
 *     owner ── line: address ──> reader ── process_vm_readv ──> its own buffer          the owner waits meanwhile
 *
 * The kernel may refuse (Yama, seccomp, containers, another user). So every rank tries it on all others when the group
 * is formed, and shows the result in the lines of the calls that could use it. If one rank cannot read, no rank does.
 *
 * Some memory cannot be read by other processes at all (device memory, memfd_secret). A rank that meets such memory
 * says so at the end of the call. All ranks then stage that call once more, and never try again. For a message the
 * receiver alone decides (segment/frame.c).
 *
 * Nothing is ever written this way. No special rights are requested: no right to trace, no child process.
 */
#define _GNU_SOURCE /* process_vm_readv */
#include "comm/comm_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* The reader checks the abort word after every piece. */
enum { PIECE_NBYTES = 1 << 20 };

static bool read_some(int pid, void *to, uint64_t address, size_t nbytes) {
    struct iovec local = {to, nbytes}, remote = {(void *)(uintptr_t)address, nbytes};
    errno = 0;
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)nbytes;
}

/* The process of `rank` is gone, and this thread notices before the watch does. */
static lks_status refuse_dead(const lks_group *group, int rank) {
    static const char *const how = ": its process is gone";
    lksi_control_lost(group->control, group->seat_of[rank], how);
    LKS_TRY(lksi_refuse_aborted(group, LKSI_CONTEXT_COLLECTIVE));
    return lksi_error(LKS_ERR_PEER, "rank %d has left%s", lksi_world_rank(group, rank), how);
}

bool lksi_try_peek(const lks_group *group, int rank, uint64_t address, void *to, size_t nbytes) {
    int pid = lksi_identity_of(group, rank)->pid;
    for (size_t first = 0; first < nbytes; first += PIECE_NBYTES) {
        size_t piece_nbytes = nbytes - first < PIECE_NBYTES ? nbytes - first : PIECE_NBYTES;
        if (!read_some(pid, (char *)to + first, address + first, piece_nbytes)) return false;
        if (lksi_control_is_aborted_after_reading(group->control)) return false;
    }
    return true;
}

lks_status lksi_peek(lks_group *group, int rank, uint64_t address, void *to, size_t nbytes) {
    if (lksi_try_peek(group, rank, address, to, nbytes)) return LKS_OK;
    int why = errno;
    LKS_TRY(lksi_refuse_aborted(group, LKSI_CONTEXT_COLLECTIVE));
    if (why == ESRCH) return refuse_dead(group, rank);
    atomic_store_explicit(&group->own_seat->could_not_read, true, memory_order_relaxed);
    return LKS_OK;
}

/* A rank writes could_not_read only in a later call, which begins with the lines of all ranks. So all ranks read the
 * same values here. */
bool lksi_have_peeked(lks_group *group) {
    bool have_all = true;
    for (int seat = 0; seat < group->n_seats; seat++)
        have_all &= !atomic_load_explicit(&group->control->seats[seat].could_not_read, memory_order_relaxed);
    if (!have_all) atomic_store_explicit(&group->may_peek, false, memory_order_relaxed);
    return have_all;
}

void lksi_peek_show(lks_group *group) {
    lksi_seat *seat = group->own_seat;
    group->peek_word = lksi_mix(lksi_mix(group->id, (uint64_t)lksi_now_ns()), (uint64_t)getpid());
    seat->peek_word = group->peek_word;
    seat->peek_address = (uint64_t)(uintptr_t)&group->peek_word;
}

void lksi_peek_probe(lks_group *group) {
    group->may_peek = true;
    for (int seat = 0; seat < group->n_seats && group->may_peek; seat++) {
        const lksi_seat *other = &group->control->seats[seat];
        uint64_t word = ~other->peek_word;
        group->may_peek =
            read_some(other->identity.pid, &word, other->peek_address, sizeof word) && word == other->peek_word;
    }
}
