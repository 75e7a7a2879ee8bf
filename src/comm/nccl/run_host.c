/* The host backend: copies the data to host memory, runs the group's own operation there, and copies the result back,
 * one piece after the other.
 *
 *     stream    in 0 │ in 1 │ .............. │ out 0 │ in 2 │ ........ │ out 1 │ ...      copies, in this order
 *     host             wait 0 │ operation 0 ─┘   wait 1 │ operation 1 ─┘
 *
 *     The room has two halves that take turns: one piece is copied while the other ranks process the piece before it.
 *     A half may be reused once the copy into it is done: on the stream it comes after the last copy out of it.
 */
#include "comm/collective/collective.h"
#include "comm/nccl/gpu_internal.h"

enum { ROOM_NBYTES = 8 << 20 /* both halves */, MESSAGE_TAG = 0 };

/* --- room --- */

static lksi_nccl_state event_state(lks_gpu_group *gpus, void *event) { return gpus->module->event_state(event); }

static lks_status await_mark(lks_gpu_group *gpus, int i) { return lksi_gpu_await(gpus, event_state, gpus->events[i]); }

static lks_status mark(lks_gpu_group *gpus, int i, void *stream) {
    return lksi_gpu_check(gpus, gpus->module->mark(gpus->events[i], stream));
}

/* Allocates the room. It first waits for the stream, because earlier copies may still use the old room. The stream has
 * waited for those on other streams. */
static lks_status make_room(lks_gpu_group *gpus, size_t nbytes, void *stream) {
    void *made;
    if (nbytes <= gpus->room_nbytes) return LKS_OK;
    LKS_TRY(mark(gpus, 0, stream));
    LKS_TRY(await_mark(gpus, 0));
    gpus->module->free_host(gpus->room);
    gpus->room = NULL, gpus->room_nbytes = 0;
    LKSI_GPU_TRY(gpus, gpus->module->alloc_host(nbytes, &made));
    gpus->room = made, gpus->room_nbytes = nbytes;
    return LKS_OK;
}

/* --- collectives --- */

/* Elements [first, first + count) of every block. */
typedef struct piece {
    size_t first, count;
    unsigned char *in, *out; /* in the room, without gaps between the blocks */
    int room;
} piece;

typedef struct shape {
    size_t n_in, n_out; /* blocks that this rank sends and receives */
    size_t step;        /* elements of a block in one piece */
} shape;

static shape shape_of(const lks_gpu_group *gpus, const lksi_call *call) {
    const lksi_operation *operation = call->operation;
    size_t n = (size_t)gpus->group->size, each = lksi_type_nbytes(call->type);
    bool is_root = gpus->group->rank == call->root;
    shape s = {operation->is_in_blocked ? n : 1, operation->is_out_blocked ? n : 1, 0};
    s.step = ROOM_NBYTES / 2 / (s.n_in + s.n_out) / each; /* the same on all ranks */
    if (operation->in == LKSI_ROOT && !is_root) s.n_in = 0;
    if (operation->out == LKSI_ROOT && !is_root) s.n_out = 0;
    if (operation->in == LKSI_NOBODY) s.n_in = is_root ? 1 : 0, s.n_out = is_root ? 0 : 1; /* broadcast */
    return s;
}

static piece piece_at(lks_gpu_group *gpus, const lksi_call *call, const shape *s, size_t index) {
    piece p = {.first = index * s->step, .room = (int)(index % 2)};
    p.count = lksi_least(s->step, call->count - p.first);
    p.in = gpus->room + (size_t)p.room * (ROOM_NBYTES / 2);
    p.out = call->operation->in == LKSI_NOBODY ? p.in : p.in + s->n_in * p.count * lksi_type_nbytes(call->type);
    return p;
}

static lks_status copy_in(lks_gpu_group *gpus, const lksi_gpu_call *c, const shape *s, const piece *p) {
    size_t each = lksi_type_nbytes(c->call.type), nbytes = p->count * each;
    const unsigned char *from = c->call.in;
    for (size_t block = 0; block < s->n_in; block++)
        LKSI_GPU_TRY(gpus, gpus->module->copy(p->in + block * nbytes, from + (block * c->call.count + p->first) * each,
                                              nbytes, LKSI_NCCL_TO_HOST, c->stream));
    return mark(gpus, p->room, c->stream);
}

static lks_status copy_out(lks_gpu_group *gpus, const lksi_gpu_call *c, const shape *s, const piece *p) {
    size_t each = lksi_type_nbytes(c->call.type), nbytes = p->count * each;
    unsigned char *to = c->call.out;
    for (size_t block = 0; block < s->n_out; block++)
        LKSI_GPU_TRY(gpus, gpus->module->copy(to + (block * c->call.count + p->first) * each, p->out + block * nbytes,
                                              nbytes, LKSI_NCCL_TO_GPU, c->stream));
    return mark(gpus, p->room, c->stream);
}

static lks_status run_piece(lks_gpu_group *gpus, const lksi_gpu_call *c, const piece *p) {
    lksi_call call = c->call;
    LKS_TRY(await_mark(gpus, p->room));
    call.in = call.operation->in == LKSI_NOBODY ? NULL : p->in;
    call.out = p->out;
    call.count = p->count;
    return lksi_run(gpus->group, &call, NULL);
}

static lks_status refuse_capture(lks_gpu_group *gpus, const char *name, void *stream) {
    uint64_t capture;
    LKSI_GPU_TRY(gpus, gpus->module->capture_of(stream, &capture));
    return capture == 0 ? LKS_OK
                        : lksi_error(LKS_ERR_STATE,
                                     "%s cannot be captured into a graph: this GPU group uses the backend host", name);
}

/* A call with no elements still runs, so that the ranks compare it. */
lks_status lksi_gpu_run_host(lks_gpu_group *gpus, const lksi_gpu_call *c) {
    shape s = shape_of(gpus, &c->call);
    size_t n_pieces = c->call.count == 0 ? 1 : (c->call.count + s.step - 1) / s.step;
    LKS_TRY(refuse_capture(gpus, c->name, c->stream));
    LKS_TRY(make_room(gpus, ROOM_NBYTES, c->stream));
    piece next = piece_at(gpus, &c->call, &s, 0);
    LKS_TRY(copy_in(gpus, c, &s, &next));
    for (size_t i = 0; i < n_pieces; i++) {
        piece now = next;
        if (i + 1 < n_pieces) {
            next = piece_at(gpus, &c->call, &s, i + 1);
            LKS_TRY(copy_in(gpus, c, &s, &next));
        }
        LKS_TRY(run_piece(gpus, c, &now));
        LKS_TRY(copy_out(gpus, c, &s, &now));
    }
    return LKS_OK;
}

/* --- messages --- */

static size_t message_nbytes(const lksi_gpu_message *m) { return m->count * lksi_type_nbytes(m->type); }

/* Copies data to send into the room, or received data out of it. */
static lks_status copy_messages(lks_gpu_group *gpus, bool is_send) {
    unsigned char *room = gpus->room;
    for (size_t i = 0; i < gpus->n_messages; i++) {
        const lksi_gpu_message *m = &gpus->messages[i];
        size_t nbytes = message_nbytes(m);
        if (m->is_send == is_send)
            LKSI_GPU_TRY(gpus, gpus->module->copy(is_send ? room : m->data, is_send ? m->data : room, nbytes,
                                                  is_send ? LKSI_NCCL_TO_HOST : LKSI_NCCL_TO_GPU, m->stream));
        room += nbytes;
    }
    return LKS_OK;
}

typedef struct posted {
    lks_work *work;
    lks_received received;
} posted;

static lks_status post_one(lks_gpu_group *gpus, const lksi_gpu_message *m, unsigned char *room, posted *p) {
    return m->is_send ? lks_isend(gpus->group, room, m->count, m->type, m->peer, MESSAGE_TAG, &p->work)
                      : lks_irecv(gpus->group, room, m->count, m->type, m->peer, MESSAGE_TAG, &p->received, &p->work);
}

/* The count of the group's receive is only a maximum, so the received count is checked here. */
static lks_status await_one(const lks_gpu_group *gpus, const lksi_gpu_message *m, const posted *p) {
    LKS_TRY(lks_work_wait(p->work));
    if (m->is_send || p->received.count == m->count) return LKS_OK;
    return lksi_error(LKS_ERR_MISMATCH, "gpu_recv of %zu elements: %s has sent %zu", m->count,
                      lksi_rank_describe(gpus->group, m->peer).text, p->received.count);
}

/* Waits for all works even after an error, because they use the room. */
static lks_status post_messages(lks_gpu_group *gpus, posted *all) {
    unsigned char *room = gpus->room;
    lks_status first = LKS_OK;
    size_t n_posted = 0;
    for (; n_posted < gpus->n_messages && first == LKS_OK; n_posted++) {
        const lksi_gpu_message *m = &gpus->messages[n_posted];
        first = post_one(gpus, m, room, &all[n_posted]);
        if (first != LKS_OK) break;
        room += message_nbytes(m);
    }
    for (size_t i = 0; i < n_posted; i++) {
        lks_status status = await_one(gpus, &gpus->messages[i], &all[i]);
        if (first == LKS_OK) first = status;
    }
    return first;
}

static lks_status run_messages(lks_gpu_group *gpus, posted *all) {
    void *stream = gpus->messages[0].stream;
    size_t nbytes = 0;
    for (size_t i = 0; i < gpus->n_messages; i++) nbytes += message_nbytes(&gpus->messages[i]);
    LKS_TRY(refuse_capture(gpus, gpus->name, stream));
    LKS_TRY(make_room(gpus, nbytes, stream));
    LKS_TRY(copy_messages(gpus, true));
    LKS_TRY(mark(gpus, 0, stream));
    LKS_TRY(await_mark(gpus, 0));
    LKS_TRY(post_messages(gpus, all));
    LKS_TRY(copy_messages(gpus, false));
    return mark(gpus, 0, stream);
}

lks_status lksi_gpu_messages_host(lks_gpu_group *gpus) {
    posted *all = lksi_alloc_array(gpus->n_messages, sizeof *all);
    lks_status status = all != NULL ? run_messages(gpus, all) : LKS_ERR_MEMORY;
    lksi_free(all);
    return status;
}
