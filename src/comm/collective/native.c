/* native: MPI's own collectives, if all ranks run under MPI (mpirun or transport mpi).
 *
 *     all ranks ── compare the call ──> MPI_Ibcast, MPI_Iallreduce, ... ── MPI_Test under the deadline ──> done
 *
 *     steps, messages: between hosts those of the dissemination barrier, on one host none. MPI's own messages follow.
 *     lks_group_counters does not count those
 *
 * Used only when named. MPI adds floats in its own order, which is the same on repetition. D0 and D1 of
 * docs/determinism.md hold as far as MPI guarantees them.
 *
 * Three kinds of reductions are not offered. MPI has no f16 and bf16. It does not define min and max of floats for NaN.
 * MPI libraries are wrong for 8 bits: Open MPI 4.1.4 adds them with saturation, and MPICH 4.0.2 compares u8 as signed.
 *
 * After an error MPI may still write to the buffers of the call, so they must not be freed.
 */
#include "comm/collective/native.h"
#include "comm/collective/collective.h"
#include "comm/transport/mpi/streams.h"
#include "comm/world.h"

#include <limits.h>
#include <string.h>

enum { REDUCED_NBYTES = 4 << 20 /* the most that is reduced at once; scaled or misaligned input is copied first */ };

size_t lksi_native_most = INT_MAX;

const char *lksi_native_obstacle(const lks_group *group, const lksi_call *call) {
    bool is_float = call->type == LKS_F32 || call->type == LKS_F64;
    if (!group->world->is_mpi) return "MPI does not run in these ranks: start them by mpirun, or srun --mpi";
    if (!lksi_mpi_facts_get()->is_multiple) return "this MPI has no MPI_THREAD_MULTIPLE, which communicators need";
    bool has_own = call->operation->has_own_counts; /* ranks could not agree on a limit before the call */
    bool is_whole = call->counts != NULL && !call->operation->is_reduction; /* reductions are cut into windows */
    if (is_whole && !has_own && call->count > lksi_native_most)
        return "the sum of the counts exceeds what MPI can take";
    if (!call->operation->is_reduction) return NULL;
    if (call->type == LKS_F16 || call->type == LKS_BF16) return "MPI has no reductions of f16 and bf16";
    if (call->type == LKS_I8 || call->type == LKS_U8) return "MPI libraries reduce 8-bit integers incorrectly";
    if (is_float && (call->op == LKS_MIN || call->op == LKS_MAX)) return "MPI's min and max of floats may lose a NaN";
    return NULL;
}

/* Compares the call between hosts and fills in *c. On one host the call has been compared already. */
static lks_status agree(lks_group *group, const lksi_call *call, lksi_mpi_collective *c) {
    if (!lksi_is_on_one_host(group)) LKS_TRY(lksi_barrier_dissemination(group, call));
    *c = (lksi_mpi_collective){.kind = (lksi_mpi_kind)call->algorithm->mpi_kind,
                               .type = call->type,
                               .op = call->op,
                               .rank = group->rank,
                               .root = call->root};
    return lksi_mpi_communicator_of(group, call, &c->communicator);
}

/* After a failure MPI may still use the scratch memory, so the group gives it up without freeing it. */
static lks_status run(lks_group *group, const lksi_call *call, const lksi_mpi_collective *c) {
    lks_status status = lksi_mpi_run(group, c, call->operation->name);
    if (status == LKS_OK) return LKS_OK;
    group->scratch = NULL;
    group->scratch_nbytes = 0;
    return status;
}

lks_status lksi_native_barrier(lks_group *group, const lksi_call *call) {
    lksi_mpi_collective c;
    LKS_TRY(agree(group, call, &c));
    return run(group, call, &c);
}

/* --- reductions --- */

/* Reduces elements [first, first + count). Buffers that need no conversion are used in place. `out` is NULL if this
 * rank gets no result. */
static lks_status reduce_part(lks_group *group, const lksi_call *call, lksi_mpi_collective *c, size_t first,
                              size_t count) {
    size_t each = lksi_type_nbytes(call->type);
    bool has_out = !call->operation->is_rooted || group->rank == call->root;
    unsigned char *scratch, *out = has_out ? lksi_at(call->out, first * each) : NULL;
    size_t room = lksi_least(call->nbytes, REDUCED_NBYTES);
    LKS_TRY(lksi_group_scratch(group, 2 * room, &scratch));
    c->in = lksi_contribution(call, first, count, scratch);
    c->out = lksi_is_aligned(out, call->type) ? out : scratch + room;
    if (c->in == c->out) c->in = NULL;
    c->count = (int)count;
    LKS_TRY(run(group, call, c));
    group->progress.done_nbytes += count * each;
    double divisor = lksi_divisor(call->op, group->size);
    if (has_out && (c->out != out || divisor != 1)) lksi_conclude(out, c->out, divisor, count, call->type);
    return LKS_OK;
}

lks_status lksi_native_reduce(lks_group *group, const lksi_call *call) {
    lksi_mpi_collective c;
    size_t step = lksi_least(REDUCED_NBYTES / lksi_type_nbytes(call->type), lksi_native_most);
    LKS_TRY(agree(group, call, &c));
    for (size_t first = 0, n; first < call->count; first += n) {
        n = lksi_least(call->count - first, step);
        LKS_TRY(reduce_part(group, call, &c, first, n));
    }
    return LKS_OK;
}

/* Reduces the elements of the window. They are packed in scratch memory, because MPI accepts no gaps between blocks and
 * defines in-place differently. */
static lks_status scatter_part(lks_group *group, const lksi_call *call, lksi_mpi_collective *c,
                               const lksi_window *window) {
    size_t each = lksi_type_nbytes(call->type), n = (size_t)group->size, room = window->length * each;
    size_t own_count = lksi_window_count(window, group->rank);
    unsigned char *scratch;
    LKS_TRY(lksi_group_scratch(group, (n + 1) * room + n * sizeof(int), &scratch));
    unsigned char *packed = scratch;                         /* aligned for the type */
    int *counts = (int *)(void *)(scratch + (n + 1) * room); /* elements have at least 4 bytes */
    c->in = scratch, c->count = (int)window->length, c->counts = counts;
    for (int block = 0; block < group->size; block++) {
        size_t count = lksi_window_count(window, block);
        lksi_contribute(packed, lksi_at(call->in, lksi_window_begin(window, block) * each), call->scale, count,
                        call->type);
        packed += count * each;
        counts[block] = (int)count;
    }
    c->out = packed;
    LKS_TRY(run(group, call, c));
    group->progress.done_nbytes += own_count * each;
    size_t begin = lksi_least(window->first, lksi_own_count(group, call));
    lksi_conclude(lksi_at(call->out, begin * each), c->out, lksi_divisor(call->op, group->size), own_count, call->type);
    return LKS_OK;
}

lks_status lksi_native_reduce_scatter(lks_group *group, const lksi_call *call) {
    lksi_mpi_collective c;
    size_t step = REDUCED_NBYTES / lksi_type_nbytes(call->type) / (size_t)group->size;
    size_t longest = lksi_longest_count(group, call);
    LKS_TRY(agree(group, call, &c));
    for (size_t first = 0, n; first < longest; first += n) {
        n = lksi_least(longest - first, lksi_least(step, lksi_native_most));
        lksi_window window = lksi_scatter_window(group, call, first, n);
        LKS_TRY(scatter_part(group, call, &c, &window));
    }
    return LKS_OK;
}

/* --- blocks that are copied unchanged --- */

/* Whether this rank's own block is already at its destination. */
static bool is_in_place(const lks_group *group, const lksi_call *call) {
    const lksi_operation *operation = call->operation;
    lksi_block_layout layout = lksi_block_layout_of(group, call);
    size_t begin = lksi_blocks(&layout, group->rank, 1).begin;
    if (operation->is_rooted && group->rank != call->root) return false;
    if (operation->is_in_blocked && operation->is_out_blocked) return call->in == call->out;
    return operation->is_out_blocked ? call->in == lksi_at(call->out, begin) : call->out == lksi_at(call->in, begin);
}

/* Sets c->in and c->out. NULL means MPI_IN_PLACE to the module, so a NULL buffer without elements is replaced by
 * `nothing`. */
static void place(const lks_group *group, const lksi_call *call, size_t first_nbytes, lksi_mpi_collective *c) {
    static unsigned char nothing[8];
    bool is_scatter = call->operation->is_in_blocked && !call->operation->is_out_blocked;
    c->in = call->in != NULL ? lksi_at(call->in, first_nbytes) : nothing;
    c->out = call->out != NULL ? lksi_at(call->out, first_nbytes) : nothing;
    if (!is_in_place(group, call)) return;
    if (is_scatter)
        c->out = NULL;
    else
        c->in = NULL;
}

/* If blocks have more elements than an MPI count can express, they are sent in parts. The parts of different blocks
 * then have gaps between them. */
lks_status lksi_native_blocks(lks_group *group, const lksi_call *call) {
    lksi_mpi_collective c;
    size_t each = lksi_type_nbytes(call->type);
    LKS_TRY(agree(group, call, &c));
    for (size_t first = 0, n; first < call->count; first += n) {
        n = lksi_least(call->count - first, lksi_native_most);
        size_t stride = n < call->count ? call->count : 0;
        c.in_stride = call->operation->is_in_blocked ? stride : 0;
        c.out_stride = call->operation->is_out_blocked ? stride : 0;
        c.count = (int)n;
        place(group, call, first * each, &c);
        LKS_TRY(run(group, call, &c));
        group->progress.done_nbytes += n * each;
    }
    return LKS_OK;
}

/* Converts the lengths of the blocks to MPI's ints and computes their offsets. */
static void lay_out(const size_t *counts, size_t n, int *lengths, int *begins) {
    int begin = 0;
    for (size_t rank = 0; rank < n; rank++) {
        lengths[rank] = (int)counts[rank], begins[rank] = begin;
        begin += lengths[rank];
    }
}

lks_status lksi_native_uneven_blocks(lks_group *group, const lksi_call *call) {
    lksi_mpi_collective c;
    unsigned char *scratch;
    size_t n = (size_t)group->size;
    LKS_TRY(agree(group, call, &c));
    LKS_TRY(lksi_group_scratch(group, 2 * n * sizeof(int), &scratch));
    int *counts = (int *)(void *)scratch, *begins = counts + n;
    lay_out(call->counts, n, counts, begins);
    c.counts = counts, c.begins = begins;
    place(group, call, 0, &c);
    return run(group, call, &c);
}

/* What each rank sends to each other rank before an all_to_allv, because MPI does not check whether counts agree.
 * is_too_long: the sender's counts exceed what MPI accepts, so all ranks fall back to pairwise.
 */
typedef struct told { /* sent as two i64 */
    size_t count, is_too_long;
} told;

static lks_status tell_counts(lks_group *group, const lksi_call *call, const lksi_mpi_collective *c, told *out,
                              told *heard) {
    size_t in_sum = 0, out_sum = 0;
    for (int rank = 0; rank < group->size; rank++) in_sum += call->counts[rank], out_sum += call->out_counts[rank];
    bool is_too_long = in_sum > lksi_native_most || out_sum > lksi_native_most;
    for (int rank = 0; rank < group->size; rank++) out[rank] = (told){call->counts[rank], is_too_long};
    lksi_mpi_collective tell = *c;
    tell.kind = LKSI_MPI_ALL_TO_ALL, tell.type = LKS_I64, tell.count = 2;
    tell.in = out, tell.out = heard;
    return run(group, call, &tell);
}

/* A buffer without elements is replaced by `no_input` or `no_output`. They are distinct, because Open MPI 4.1.4 treats
 * equal buffers as MPI_IN_PLACE. */
lks_status lksi_native_all_to_allv(lks_group *group, const lksi_call *call) {
    static unsigned char no_input[8], no_output[8];
    lksi_mpi_collective c;
    unsigned char *scratch;
    size_t n = (size_t)group->size, is_too_long = 0, out_sum = 0;
    LKS_TRY(agree(group, call, &c));
    LKS_TRY(lksi_group_scratch(group, n * (2 * sizeof(told) + 4 * sizeof(int)), &scratch));
    told *mine = (told *)(void *)scratch, *heard = mine + n;
    LKS_TRY(tell_counts(group, call, &c, mine, heard));
    LKS_TRY(lksi_check_out_counts(group, call, &heard->count, 2));
    for (size_t rank = 0; rank < n; rank++) is_too_long |= heard[rank].is_too_long, out_sum += call->out_counts[rank];
    if (is_too_long != 0) return lksi_all_to_all_pairwise(group, call);
    int *counts = (int *)(void *)(heard + n), *begins = counts + n, *out_counts = begins + n,
        *out_begins = out_counts + n;
    lay_out(call->counts, n, counts, begins);
    lay_out(call->out_counts, n, out_counts, out_begins);
    c.counts = counts, c.begins = begins, c.out_counts = out_counts, c.out_begins = out_begins;
    c.in = call->count > 0 ? call->in : no_input, c.out = out_sum > 0 ? call->out : no_output;
    return run(group, call, &c);
}
