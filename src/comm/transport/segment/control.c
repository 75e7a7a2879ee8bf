/* The control segment: its layout, the abort record and the bells. */
#define _GNU_SOURCE /* syscall */
#include "comm/transport/segment/control.h"

#include "base/cache.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    LARGE_CACHE_NBYTES = 2 << 20,
    CHUNK_NBYTES = 64 << 10,
    STAGING_NBYTES = 8 << 20 /* all staging areas together; more if two chunks per rank take more */
};

static size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/* Size of the second-level cache of the core that asks first. It is read once, because cores may differ. */
static size_t second_cache_nbytes(void) {
    static _Atomic size_t found;
    size_t nbytes = atomic_load_explicit(&found, memory_order_relaxed);
    if (nbytes != 0) return nbytes;
    nbytes = lksi_second_cache_nbytes();
    if (nbytes == 0) nbytes = 1;
    atomic_store_explicit(&found, nbytes, memory_order_relaxed);
    return nbytes;
}

/* The number of rings grows with the square of the number of ranks. All rings together get 4 MiB, but each one holds at
 * least a few small messages. With two ranks and a large second-level cache a ring has 256 KiB: a line has then left
 * the first-level caches before it is written again, which makes that write cheaper (collective.h, lksi_place_in_slot).
 */
static size_t ring_capacity(int n_ranks) {
    size_t budget = 4u << 20, capacity = second_cache_nbytes() >= LARGE_CACHE_NBYTES ? 256 * 1024 : 64 * 1024;
    size_t n_rings = LKSI_N_CONTEXTS * (size_t)n_ranks * (size_t)n_ranks;
    while (capacity > 1024 && capacity * n_rings > budget) capacity /= 2;
    return capacity;
}

/* A chunk should stay in the second-level cache together with its source and destination buffers. The rank that makes
 * the segment decides for all ranks. */
static size_t chunk_nbytes(void) {
    return second_cache_nbytes() >= LARGE_CACHE_NBYTES ? LKSI_LARGE_CHUNK_NBYTES : CHUNK_NBYTES;
}

/* A wide chunk should leave the second-level cache: the two areas of a rank together fill it. The result is a multiple
 * of the chunk size. */
static size_t wide_chunk_nbytes(int n_ranks) {
    size_t chunk = chunk_nbytes(), room = STAGING_NBYTES / 2 / (size_t)n_ranks, wide = second_cache_nbytes() / 2;
    if (wide > room) wide = room;
    return wide < chunk ? chunk : wide / chunk * chunk;
}

static size_t staging_offset(int n_ranks) {
    return round_up(sizeof(lksi_control) + (size_t)n_ranks * sizeof(lksi_seat), 4096);
}

static size_t rings_offset(int n_ranks, size_t each_nbytes) {
    return staging_offset(n_ranks) + (size_t)n_ranks * 2 * each_nbytes;
}

size_t lksi_control_nbytes(int n_ranks) {
    size_t n_rings = LKSI_N_CONTEXTS * (size_t)n_ranks * (size_t)n_ranks;
    return round_up(rings_offset(n_ranks, wide_chunk_nbytes(n_ranks)) +
                        n_rings * (sizeof(lksi_ring) + ring_capacity(n_ranks)),
                    4096);
}

void lksi_control_create(lksi_control *control, int n_ranks) {
    control->n_ranks = n_ranks;
    control->chunk_nbytes = chunk_nbytes();
    control->wide_chunk_nbytes = wide_chunk_nbytes(n_ranks);
    control->ring_nbytes = ring_capacity(n_ranks);
    for (int rank = 0; rank < n_ranks; rank++) {
        lksi_identity *identity = &control->seats[rank].identity;
        identity->pid = (int32_t)getpid();
        lksi_host_name(identity->host, sizeof identity->host);
    }
}

unsigned char *lksi_control_staging(lksi_control *control, int rank, unsigned parity) {
    size_t index = 2 * (size_t)rank + (parity & 1);
    return (unsigned char *)control + staging_offset(control->n_ranks) + index * control->wide_chunk_nbytes;
}

lksi_ring *lksi_control_ring(lksi_control *control, lksi_context context, int from, int to) {
    size_t n = (size_t)control->n_ranks, index = ((size_t)context * n + (size_t)from) * n + (size_t)to;
    unsigned char *rings = (unsigned char *)control + rings_offset(control->n_ranks, control->wide_chunk_nbytes);
    return (lksi_ring *)(void *)(rings + index * (sizeof(lksi_ring) + control->ring_nbytes));
}

void lksi_ring_bell(lksi_control *control, lksi_context context, int seat) {
    lksi_bell *bell = &control->seats[seat].bells[context];
    atomic_fetch_add(&bell->rings, 1);
    syscall(SYS_futex, &bell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool lksi_abort_write(lksi_abort *record, const lksi_reason *reason) {
    uint32_t none = LKSI_ABORT_NONE;
    if (!atomic_compare_exchange_strong(&record->state, &none, LKSI_ABORT_WRITING)) return false;
    record->reason = *reason;
    atomic_store(&record->state, LKSI_ABORT_WRITTEN);
    return true;
}

/* The text follows within microseconds, or when the kernel schedules its writer again. If the writer has died it never
 * follows, so the wait is bounded. */
const lksi_reason *lksi_abort_read(const lksi_abort *record) {
    enum { PATIENCE_NS = 500 * 1000 * 1000, PAUSE_NS = 100 * 1000 };
    const int64_t until_ns = lksi_now_ns() + PATIENCE_NS;
    while (atomic_load(&record->state) == LKSI_ABORT_WRITING && lksi_now_ns() < until_ns) lksi_sleep_ns(PAUSE_NS);
    return atomic_load(&record->state) == LKSI_ABORT_WRITTEN ? &record->reason : NULL;
}

bool lksi_control_abort_for(lksi_control *control, const lksi_reason *reason) {
    if (!lksi_abort_write(&control->abort, reason)) return false;
    for (int seat = 0; seat < control->n_ranks; seat++)
        for (int context = 0; context < LKSI_N_CONTEXTS; context++)
            lksi_ring_bell(control, (lksi_context)context, seat);
    return true;
}

bool lksi_control_abort(lksi_control *control, lks_status status, const char *format, ...) {
    lksi_reason reason = {.status = (int32_t)status};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason.text, sizeof reason.text, format, arguments);
    va_end(arguments);
    return lksi_control_abort_for(control, &reason);
}

void lksi_control_lost(lksi_control *control, int index, const char *how) {
    const lksi_seat *seat = &control->seats[index];
    if (atomic_load(&seat->presence.value) == LKSI_LEFT) return;
    lksi_reason reason = {.status = LKS_ERR_PEER, .lost = seat->identity.rank + 1};
    snprintf(reason.text, sizeof reason.text, "rank %d (host %s, pid %d) was lost%s", seat->identity.rank,
             seat->identity.host, (int)seat->identity.pid, how);
    lksi_control_abort_for(control, &reason);
}

/* The connections of a dying process close a moment before its exit is visible, so this looks for 20 ms. */
static bool is_alive(int pid) {
    enum { LOOKS = 10, PAUSE_NS = 2000000 };
    lksi_process_stat stat;
    for (int i = 0; i < LOOKS; i++) {
        if (!lksi_process_read_stat(pid, &stat) || stat.is_exiting) return false;
        lksi_sleep_ns(PAUSE_NS);
    }
    return true;
}

/* If both processes live, it is unknown which of them was cut off, so the text names both. A rank in another pid
 * namespace cannot be examined and counts as lost. */
void lksi_control_disconnected(lksi_control *control, int mine, int other) {
    const lksi_identity *a = &control->seats[mine].identity, *b = &control->seats[other].identity;
    if (atomic_load(&control->seats[other].presence.value) == LKSI_LEFT) return;
    if (!lksi_control_knows_pid(control, mine, other) || !is_alive(b->pid)) {
        lksi_control_lost(control, other, "");
        return;
    }
    lksi_control_abort(control, LKS_ERR_PEER,
                       "the control connection of rank %d (host %s, pid %d) and rank %d (host %s, pid %d) was cut",
                       a->rank, a->host, (int)a->pid, b->rank, b->host, (int)b->pid);
}

lks_status lksi_control_abort_error(const lksi_control *control, const char *doing) {
    const lksi_reason *reason = lksi_abort_read(&control->abort);
    return reason != NULL ? lksi_reason_error(reason, doing) : lksi_error(LKS_ERR_PEER, "a rank was lost; %s", doing);
}

lks_status lksi_reason_error(const lksi_reason *reason, const char *doing) {
    size_t length = strlen(reason->text), tail = strlen(doing);
    bool is_said = tail <= length && strcmp(reason->text + length - tail, doing) == 0; /* by a rank in the same call */
    return lksi_error((lks_status)reason->status, is_said ? "%s" : "%s; %s", reason->text, doing);
}
