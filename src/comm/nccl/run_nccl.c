/* The NCCL backend: NCCL's own collectives, and sends and receives where NCCL has no collective or not the requested
 * order.
 *
 * A reduction in canonical order of 3 ranks. Slice j goes to rank j:
 *
 *     rank 0   a0 a1 a2 ──────> a0 b0 c0 ── add ──> s0 ──────> s0 s1 s2
 *     rank 1   b0 b1 b2 ──────> a1 b1 c1 ── add ──> s1 ──────> s0 s1 s2      (reduce: to the root alone;
 *     rank 2   c0 c1 c2 ──────> a2 b2 c2 ── add ──> s2 ──────> s0 s1 s2       reduce_scatter: not at all)
 *
 *     Two rounds of concurrent sends, and one kernel between them. Each rank transfers 2 (n-1)/n of the data, like
 *     in a ring.
 *
 * A non-blocking communicator uses threads of NCCL for what waits for other ranks: its creation, and the connections
 * that a first operation needs. Until they are done the state is PENDING, and this rank checks the group meanwhile.
 * Later launches are made by such a thread too. NCCL 2.28 uses one thread per group of calls.
 */
#include "comm/collective/collective.h"
#include "comm/nccl/gpu_internal.h"

enum { ALIGNMENT = 128 /* of slices in bytes, so that GPUs copy whole lines */ };

/* --- sends and receives --- */

static lks_status send(lks_gpu_group *gpus, const lksi_gpu_call *c, void *data, size_t count, int to) {
    if (count == 0) return LKS_OK; /* the peer does not receive either */
    return lksi_gpu_check(gpus, gpus->module->send(gpus->communicator, data, count, c->call.type, to, c->stream));
}

static lks_status receive(lks_gpu_group *gpus, const lksi_gpu_call *c, void *data, size_t count, int from) {
    if (count == 0) return LKS_OK;
    return lksi_gpu_check(gpus, gpus->module->receive(gpus->communicator, data, count, c->call.type, from, c->stream));
}

/* NCCL's group of calls belongs to the thread, and takes in its calls on all communicators. So it is ended before
 * anything else is done, also after an error. */
static lks_status end_calls(lks_gpu_group *gpus, lks_status status) {
    lksi_nccl_state state = gpus->module->end();
    LKS_TRY(status);
    LKSI_GPU_TRY(gpus, state);
    return lksi_gpu_settle(gpus);
}

static lks_status put_messages(lks_gpu_group *gpus) {
    for (size_t i = 0; i < gpus->n_messages; i++) {
        const lksi_gpu_message *m = &gpus->messages[i];
        lksi_gpu_call like = {.call.type = m->type, .stream = m->stream};
        LKS_TRY((m->is_send ? send : receive)(gpus, &like, m->data, m->count, m->peer));
    }
    return LKS_OK;
}

lks_status lksi_gpu_messages_nccl(lks_gpu_group *gpus) {
    LKSI_GPU_TRY(gpus, gpus->module->begin());
    return end_calls(gpus, put_messages(gpus));
}

/* --- rounds of sends and receives --- */

enum { EVERYONE = -1, NOBODY = -2 };

/* One side of a round: what is sent to or received from `peers`, at data + peer * stride bytes. The data of all ranks
 * together is cut into slices. The length of a message is that of the peer's slice, or of this rank's. */
typedef struct side {
    unsigned char *data;
    size_t stride;
    bool is_peers_slice;
    int peers;
} side;

typedef struct slices {
    size_t step, count; /* the last slices may be shorter or empty */
} slices;

static size_t slice_count(const slices *cut, int rank) {
    size_t left = cut->count - lksi_least((size_t)rank * cut->step, cut->count);
    return lksi_least(cut->step, left);
}

typedef lks_status (*mover)(lks_gpu_group *gpus, const lksi_gpu_call *c, void *data, size_t count, int peer);

static lks_status move(lks_gpu_group *gpus, const lksi_gpu_call *c, const side *s, const slices *cut, int peer,
                       mover to_move) {
    if (s->peers != EVERYONE && s->peers != peer) return LKS_OK;
    size_t count = slice_count(cut, s->is_peers_slice ? peer : gpus->group->rank);
    return to_move(gpus, c, s->data + (size_t)peer * s->stride, count, peer);
}

static lks_status put_round(lks_gpu_group *gpus, const lksi_gpu_call *c, const side *sent, const side *received,
                            const slices *cut) {
    for (int distance = 1; distance < gpus->group->size; distance++) {
        int to = (gpus->group->rank + distance) % gpus->group->size;
        int from = (gpus->group->rank + gpus->group->size - distance) % gpus->group->size;
        LKS_TRY(move(gpus, c, sent, cut, to, send));
        LKS_TRY(move(gpus, c, received, cut, from, receive));
    }
    return LKS_OK;
}

static lks_status exchange(lks_gpu_group *gpus, const lksi_gpu_call *c, const side *sent, const side *received,
                           const slices *cut) {
    LKSI_GPU_TRY(gpus, gpus->module->begin());
    return end_calls(gpus, put_round(gpus, c, sent, received, cut));
}

/* --- reductions in canonical order --- */

/* Slices of whole lines. All slices together are slightly larger than the data. */
static slices cut_evenly(const lks_gpu_group *gpus, size_t count, size_t each) {
    size_t n = (size_t)gpus->group->size, line = ALIGNMENT / each, step = (count + n - 1) / n;
    return (slices){.step = (step + line - 1) / line * line, .count = count};
}

size_t lksi_gpu_scratch_nbytes(const lks_gpu_group *gpus, size_t nbytes) {
    return nbytes + (size_t)gpus->group->size * 2 * ALIGNMENT;
}

static lks_status find_scratch(lks_gpu_group *gpus, const lksi_gpu_call *c, size_t nbytes, unsigned char **scratch) {
    uint64_t capture = 0;
    if (nbytes > gpus->scratch_nbytes) LKSI_GPU_TRY(gpus, gpus->module->capture_of(c->stream, &capture));
    if (capture != 0)
        return lksi_error(LKS_ERR_STATE, "%s of %zu bytes cannot be captured into a graph: call lks_gpu_reserve first",
                          c->name, c->call.nbytes);
    LKS_TRY(lksi_gpu_make_scratch(gpus, nbytes));
    *scratch = gpus->scratches[gpus->n_scratches - 1];
    return LKS_OK;
}

/* Combines this rank's slice of all contributions and writes it to `out`. */
static lks_status combine(lks_gpu_group *gpus, const lksi_gpu_call *c, const slices *cut, const unsigned char *scratch,
                          void *out) {
    size_t each = lksi_type_nbytes(c->call.type), me = (size_t)gpus->group->rank, stride = cut->step * each;
    unsigned char *in = (unsigned char *)(uintptr_t)c->call.in;
    side sent = {in, stride, true, EVERYONE};
    side received = {(unsigned char *)(uintptr_t)scratch, stride, false, EVERYONE};
    LKS_TRY(exchange(gpus, c, &sent, &received, cut));
    lksi_nccl_reduction reduction = {.out = out,
                                     .own = in + me * stride,
                                     .others = scratch,
                                     .rank = gpus->group->rank,
                                     .n = gpus->group->size,
                                     .stride = cut->step,
                                     .count = slice_count(cut, gpus->group->rank),
                                     .type = c->call.type,
                                     .op = c->call.op};
    return lksi_gpu_check(gpus, gpus->module->reduce(&reduction, c->stream));
}

/* In a reduce, a rank that gets no result keeps its slice of it in scratch memory, at the place of its own
 * contribution. */
static lks_status reduce_in_order(lks_gpu_group *gpus, const lksi_gpu_call *c) {
    size_t each = lksi_type_nbytes(c->call.type), me = (size_t)gpus->group->rank;
    bool is_scatter = c->call.operation->is_in_blocked, is_rooted = c->call.operation->is_rooted;
    bool has_out = !is_rooted || c->call.root == gpus->group->rank;
    slices cut = cut_evenly(gpus, c->call.count, each);
    if (is_scatter) cut = (slices){c->call.count, c->call.count * (size_t)gpus->group->size};
    size_t stride = cut.step * each;
    unsigned char *scratch = NULL, *out = c->call.out;
    LKS_TRY(find_scratch(gpus, c, (size_t)gpus->group->size * stride, &scratch));
    if (is_scatter) return combine(gpus, c, &cut, scratch, out);
    unsigned char *result = (has_out ? out : scratch) + me * stride;
    LKS_TRY(combine(gpus, c, &cut, scratch, result));
    side sent = {result, 0, false, !is_rooted ? EVERYONE : has_out ? NOBODY : c->call.root};
    side received = {out, stride, true, has_out ? EVERYONE : NOBODY};
    return exchange(gpus, c, &sent, &received, &cut);
}

/* --- blocks that are copied unchanged --- */

static lks_status copy_own(lks_gpu_group *gpus, const lksi_gpu_call *c, const void *from, void *to) {
    if (from == to || c->call.nbytes == 0) return LKS_OK;
    return lksi_gpu_check(gpus, gpus->module->copy(to, from, c->call.nbytes, LKSI_NCCL_WITHIN_GPU, c->stream));
}

/* gather, scatter, all_to_all. */
static lks_status move_blocks(lks_gpu_group *gpus, const lksi_gpu_call *c) {
    const lksi_operation *operation = c->call.operation;
    size_t me = (size_t)gpus->group->rank, nbytes = c->call.nbytes;
    bool is_root = c->call.root == gpus->group->rank, is_scatter = operation->in == LKSI_ROOT;
    int others = is_root ? EVERYONE : c->call.root;
    slices cut = {c->call.count, c->call.count * (size_t)gpus->group->size};
    side in = {(unsigned char *)(uintptr_t)c->call.in, operation->is_in_blocked ? nbytes : 0, true, EVERYONE};
    side out = {c->call.out, operation->is_out_blocked ? nbytes : 0, true, EVERYONE};
    if (operation->is_rooted) { /* the senders are the root of a scatter, and the other ranks of a gather */
        in.peers = is_scatter == is_root ? others : NOBODY;
        out.peers = is_scatter == is_root ? NOBODY : others;
    }
    if (!operation->is_rooted || is_root)
        LKS_TRY(copy_own(gpus, c, in.data + me * in.stride, out.data + me * out.stride));
    return exchange(gpus, c, &in, &out, &cut);
}

/* --- choice of the implementation --- */

/* Whether NCCL's own reduction can be used: it has the operator, and gives the required bits. */
static bool is_ready_made(const lksi_gpu_call *c) {
    bool is_integer = c->call.type >= LKS_I8, is_order_free = c->order == LKS_ORDER_ANY || is_integer;
    switch (c->call.op) {
    case LKS_SUM:
    case LKS_PRODUCT:
    case LKS_AVG:
        return is_order_free;
    case LKS_MIN:
    case LKS_MAX:
        return is_integer; /* NCCL does not define what happens to a NaN */
    default:
        return false;
    }
}

static lks_status run_ready_made(lks_gpu_group *gpus, const lksi_gpu_call *c, lksi_nccl_kind kind) {
    lksi_nccl_collective collective = {.kind = kind,
                                       .in = c->call.in,
                                       .out = c->call.out,
                                       .count = c->call.count,
                                       .type = c->call.type,
                                       .op = c->call.op,
                                       .root = c->call.root};
    LKSI_GPU_TRY(gpus, gpus->module->collective(gpus->communicator, &collective, c->stream));
    return lksi_gpu_settle(gpus);
}

lks_status lksi_gpu_run_nccl(lks_gpu_group *gpus, const lksi_gpu_call *c) {
    const lksi_operation *operation = c->call.operation;
    if (c->call.count == 0) return LKS_OK;
    if (operation->is_reduction && !is_ready_made(c)) return reduce_in_order(gpus, c);
    if (operation->is_reduction)
        return run_ready_made(gpus, c,
                              operation->is_in_blocked ? LKSI_NCCL_REDUCE_SCATTER
                              : operation->is_rooted   ? LKSI_NCCL_REDUCE
                                                       : LKSI_NCCL_ALL_REDUCE);
    if (operation == lksi_operation_find("broadcast")) return run_ready_made(gpus, c, LKSI_NCCL_BROADCAST);
    if (operation == lksi_operation_find("all_gather")) return run_ready_made(gpus, c, LKSI_NCCL_ALL_GATHER);
    return move_blocks(gpus, c);
}
