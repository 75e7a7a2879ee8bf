/* Byte streams between two ranks over MPI: as over tcp, one per group, context, pair and direction.
 *
 *     rank 0 ── tag 0: "group 7, collective: tag 12" ──> rank 1        the hello, before the first bytes
 *     rank 0 ══ tag 12: up to 64 KiB ══════════════════> rank 1        at most 4 pieces whose receive has not begun
 *
 * The sender numbers its streams. So a tag of one source never means two streams, and ranks need not agree on tags.
 * Pieces are copied and sent synchronously. So MPI buffers at most 4 pieces per stream for a late receiver, and never
 * uses the caller's memory. The control connections are those of tcp, which report a lost rank at once.
 *
 * MPI cannot wake a sleeping thread. So a sleeper polls: each pause is an eighth of the time slept so far, but at least
 * 20 us and at most 0.5 ms.
 */
#include "comm/transport/mpi/streams.h"

#include "comm/copy.h"
#include "comm/transport/tcp/tcp.h"

#include <pthread.h>
#include <string.h>

enum {
    HELLO_TAG = 0,
    N_SLOTS = 4,
    PIECE_NBYTES = 64 * 1024,
    MAX_PARTS = 4,
    FIRST_PAUSE_NS = 20 * 1000,
    LAST_PAUSE_NS = 500 * 1000,
    DRAIN_MS = 1000,
    N_LAST_LOOKS = 100,
    PATIENCE_MS = 500, /* for the reason why a stream ended, which comes over the control connections */
};

/* Announces which stream a tag of its sender belongs to. */
typedef struct hello {
    uint64_t group_id;
    int32_t context, tag;
} hello;

/* A hello that arrived before its stream was read. */
typedef struct known {
    struct known *next;
    int source;
    hello said;
} known;

typedef struct out_stream {
    int tag;                                /* 0: the hello was not sent yet */
    lksi_mpi_transfer *pieces[N_SLOTS + 1]; /* in progress; the last one is the hello */
} out_stream;

typedef struct in_stream {
    int tag; /* 0: no hello yet */
    lksi_mpi_transfer *coming;
    bool is_whole;
    size_t n_taken;
    int n_last_looks; /* in vain, since the sender has gone */
} in_stream;

struct lksi_mpi_streams {
    const lksi_remote *beside; /* tcp's */
    out_stream *out[LKSI_N_CONTEXTS];
    in_stream *in[LKSI_N_CONTEXTS];
};

static pthread_mutex_t known_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the next three variables */
static known *known_streams;
static int n_joined, last_tag;

/* --- tags --- */

static lks_status number_stream(int *tag) {
    pthread_mutex_lock(&known_mutex);
    int most_tag = lksi_mpi_facts_get()->most_tag;
    bool is_left = last_tag < most_tag;
    if (is_left) *tag = ++last_tag;
    pthread_mutex_unlock(&known_mutex);
    if (is_left) return LKS_OK;
    return lksi_error(LKS_ERR_UNSUPPORTED, "this process has used all %d tags of its MPI: too many groups were made",
                      most_tag);
}

static lks_status keep(int source, const hello *said) {
    known *kept = lksi_alloc(sizeof *kept);
    if (kept == NULL) return LKS_ERR_MEMORY;
    *kept = (known){.source = source, .said = *said};
    pthread_mutex_lock(&known_mutex);
    kept->next = known_streams;
    known_streams = kept;
    pthread_mutex_unlock(&known_mutex);
    return LKS_OK;
}

/* Frees the kept hellos of a group, or all (NULL). known_mutex is held. */
static void forget(const uint64_t *group_id) {
    for (known **link = &known_streams; *link != NULL;) {
        known *each = *link;
        if (group_id != NULL && each->said.group_id != *group_id) {
            link = &each->next;
            continue;
        }
        *link = each->next;
        lksi_free(each);
    }
}

static int take_known(const lks_group *group, lksi_context context, int source) {
    int tag = 0;
    pthread_mutex_lock(&known_mutex);
    for (known **link = &known_streams; *link != NULL && tag == 0;) {
        known *each = *link;
        bool is_it = each->source == source && each->said.group_id == group->id && each->said.context == (int)context;
        if (!is_it) {
            link = &each->next;
            continue;
        }
        tag = each->said.tag;
        *link = each->next;
        lksi_free(each);
    }
    pthread_mutex_unlock(&known_mutex);
    return tag;
}

/* Receives hellos one after the other and keeps them. The lock is held. */
static lks_status hear_hellos(const lksi_mpi_module *mpi) {
    static lksi_mpi_transfer *coming;
    for (;;) {
        bool is_done = false;
        int code = coming == NULL ? mpi->receive(LKSI_MPI_ANY_SOURCE, HELLO_TAG, &coming) : 0;
        if (code == 0 && coming != NULL) code = mpi->test(coming, &is_done);
        if (code != 0) return lksi_mpi_error(code, "a stream's first message");
        if (!is_done) return LKS_OK;
        hello said = {.tag = 0};
        if (coming->nbytes == sizeof said) memcpy(&said, coming->data, sizeof said);
        int source = coming->source;
        mpi->release(coming);
        coming = NULL;
        if (said.tag > 0) LKS_TRY(keep(source, &said));
    }
}

/* --- ends --- */

/* A rank says goodbye only when its pieces are being received, or after it has waited long for that. So if it is gone
 * and nothing has arrived, nothing will. (A reader looks more than once: MPI may look before it makes progress.) */
static lks_status look_for_end(lks_group *group, lksi_context context, int rank) {
    if (!lksi_tcp_is_gone(group, rank)) return LKS_OK;
    return lksi_tcp_refuse_gone(group, context, rank);
}

/* MPI's own error for a lost rank says less than the control connections will. So this waits for their reason. The lock
 * is not held. */
static lks_status failed(lks_group *group, lksi_context context, lks_status status) {
    char doing[160];
    if (status != LKS_ERR_SYSTEM) return status;
    for (int i = 0; i < PATIENCE_MS && !lksi_control_is_aborted(group->control); i++) lksi_sleep_ns(1000000);
    if (!lksi_control_is_aborted(group->control)) return status;
    lksi_progress_describe(group, context, doing, sizeof doing);
    return lksi_control_abort_error(group->control, doing);
}

/* --- out --- */

/* Finds a free slot for a piece. *slot is -1 if all are in use. The lock is held. */
static lks_status free_slot(const lksi_mpi_module *mpi, out_stream *out, int *slot) {
    *slot = -1;
    for (int i = 0; i < N_SLOTS; i++) {
        bool is_done = true;
        int code = out->pieces[i] == NULL ? 0 : mpi->test(out->pieces[i], &is_done);
        if (code != 0) return lksi_mpi_error(code, "a message to another rank");
        if (!is_done) continue;
        mpi->release(out->pieces[i]);
        out->pieces[i] = NULL;
        *slot = i;
        return LKS_OK;
    }
    return LKS_OK;
}

static lks_status introduce(const lksi_mpi_module *mpi, const lks_group *group, lksi_context context, int to) {
    out_stream *out = &group->mpi_streams->out[context][to];
    hello said = {.group_id = group->id, .context = (int32_t)context};
    if (out->tag != 0) return LKS_OK;
    LKS_TRY(number_stream(&said.tag));
    struct iovec whole = {&said, sizeof said};
    int code = mpi->send(lksi_world_rank(group, to), HELLO_TAG, &whole, 1, &out->pieces[N_SLOTS]);
    if (code != 0) return lksi_mpi_error(code, "a message to another rank");
    out->tag = said.tag;
    return LKS_OK;
}

/* Cuts one piece of at most PIECE_NBYTES from `parts`, from byte `begin` on. Returns its number of parts. */
static int cut_piece(const struct iovec *parts, int n_parts, size_t begin, struct iovec *piece, size_t *nbytes) {
    int n = 0;
    *nbytes = 0;
    for (int i = 0; i < n_parts && *nbytes < PIECE_NBYTES && n < MAX_PARTS; i++) {
        size_t skipped = begin < parts[i].iov_len ? begin : parts[i].iov_len, length = parts[i].iov_len - skipped;
        begin -= skipped;
        if (length > PIECE_NBYTES - *nbytes) length = PIECE_NBYTES - *nbytes;
        if (length == 0) continue;
        piece[n++] = (struct iovec){(char *)parts[i].iov_base + skipped, length};
        *nbytes += length;
    }
    return n;
}

static lks_status write_pieces(const lksi_mpi_module *mpi, const lks_group *group, lksi_context context, int to,
                               const struct iovec *parts, int n_parts, size_t *n_written) {
    out_stream *out = &group->mpi_streams->out[context][to];
    LKS_TRY(introduce(mpi, group, context, to));
    for (;;) {
        struct iovec piece[MAX_PARTS];
        size_t nbytes;
        int slot, n = cut_piece(parts, n_parts, *n_written, piece, &nbytes);
        if (nbytes == 0) return LKS_OK;
        LKS_TRY(free_slot(mpi, out, &slot));
        if (slot < 0) return LKS_OK;
        int code = mpi->send(lksi_world_rank(group, to), out->tag, piece, n, &out->pieces[slot]);
        if (code != 0) return lksi_mpi_error(code, "a message to another rank");
        *n_written += nbytes;
    }
}

static lks_status write_some(lks_group *group, lksi_context context, int to, const struct iovec *parts, int n_parts,
                             size_t *n_written) {
    *n_written = 0;
    const lksi_mpi_module *mpi = lksi_mpi_enter();
    if (mpi == NULL) return LKS_OK;
    lks_status status = write_pieces(mpi, group, context, to, parts, n_parts, n_written);
    lksi_mpi_leave();
    if (status != LKS_OK) return failed(group, context, status);
    return *n_written > 0 ? LKS_OK : look_for_end(group, context, to);
}

/* --- in --- */

/* Finds the next piece and progresses it. in->is_whole: it can be read. The lock is held. */
static lks_status fetch(const lksi_mpi_module *mpi, const lks_group *group, lksi_context context, int from) {
    in_stream *in = &group->mpi_streams->in[context][from];
    int source = lksi_world_rank(group, from), code = 0;
    if (in->is_whole) return LKS_OK;
    if (in->tag == 0) {
        LKS_TRY(hear_hellos(mpi));
        in->tag = take_known(group, context, source);
    }
    if (in->tag != 0 && in->coming == NULL) code = mpi->receive(source, in->tag, &in->coming);
    if (code == 0 && in->coming != NULL) code = mpi->test(in->coming, &in->is_whole);
    return code == 0 ? LKS_OK : lksi_mpi_error(code, "a message from another rank");
}

static lks_status read_pieces(const lksi_mpi_module *mpi, const lks_group *group, lksi_context context, int from,
                              unsigned char *data, size_t nbytes, size_t *n_read) {
    in_stream *in = &group->mpi_streams->in[context][from];
    while (*n_read < nbytes) {
        LKS_TRY(fetch(mpi, group, context, from));
        if (!in->is_whole) return LKS_OK;
        size_t n = in->coming->nbytes - in->n_taken;
        if (n > nbytes - *n_read) n = nbytes - *n_read;
        lksi_copy(data + *n_read, in->coming->data + in->n_taken, n);
        *n_read += n, in->n_taken += n;
        if (in->n_taken < in->coming->nbytes) return LKS_OK;
        mpi->release(in->coming);
        in->coming = NULL, in->is_whole = false, in->n_taken = 0;
    }
    return LKS_OK;
}

/* Reads from a piece that was received completely. That needs neither MPI nor the lock. */
static size_t take_ahead(in_stream *in, void *data, size_t nbytes) {
    size_t n = in->is_whole ? in->coming->nbytes - in->n_taken : 0;
    if (n <= nbytes) return 0; /* the last bytes of a piece also release it, which needs the lock */
    lksi_copy(data, in->coming->data + in->n_taken, nbytes);
    in->n_taken += nbytes;
    return nbytes;
}

static lks_status read_some(lks_group *group, lksi_context context, int from, void *data, size_t nbytes,
                            size_t *n_read) {
    in_stream *in = &group->mpi_streams->in[context][from];
    *n_read = take_ahead(in, data, nbytes);
    if (*n_read > 0 || nbytes == 0) return LKS_OK;
    bool had_left = lksi_tcp_is_gone(group, from); /* read before the data: data sent before it left still counts */
    const lksi_mpi_module *mpi = lksi_mpi_enter();
    if (mpi == NULL) return LKS_OK;
    lks_status status = read_pieces(mpi, group, context, from, data, nbytes, n_read);
    lksi_mpi_leave();
    if (status != LKS_OK) return failed(group, context, status);
    if (*n_read > 0 || !had_left || in->coming != NULL || ++in->n_last_looks < N_LAST_LOOKS) return LKS_OK;
    return look_for_end(group, context, from);
}

/* --- sleeping --- */

static bool may_go_on(lks_group *group, lksi_context context, const lksi_interest *interest) {
    lksi_mpi_streams *streams = group->mpi_streams;
    bool may = false;
    int slot;
    const lksi_mpi_module *mpi = lksi_mpi_enter();
    if (mpi == NULL) return false;
    if (interest->is_write)
        may = free_slot(mpi, &streams->out[context][interest->peer], &slot) != LKS_OK || slot >= 0;
    else
        may = fetch(mpi, group, context, interest->peer) != LKS_OK || streams->in[context][interest->peer].is_whole;
    lksi_mpi_leave();
    return may || lksi_tcp_is_gone(group, interest->peer);
}

static void sleep_on_streams(lks_group *group, lksi_context context, const lksi_interest *interests, int n_interests,
                             int64_t limit_ns) {
    int64_t begin_ns = lksi_now_ns(), slept_ns;
    while (!lksi_control_is_aborted(group->control) && (slept_ns = lksi_now_ns() - begin_ns) < limit_ns) {
        for (int i = 0; i < n_interests; i++)
            if (may_go_on(group, context, &interests[i])) return;
        int64_t pause_ns = slept_ns / 8;
        lksi_sleep_ns(pause_ns < FIRST_PAUSE_NS ? FIRST_PAUSE_NS : pause_ns > LAST_PAUSE_NS ? LAST_PAUSE_NS : pause_ns);
    }
}

/* --- the group's life --- */

static bool is_drained(const lksi_mpi_module *mpi, out_stream *out) {
    for (int i = 0; i <= N_SLOTS; i++) {
        bool is_done = true;
        if (out->pieces[i] != NULL && mpi->test(out->pieces[i], &is_done) == 0 && !is_done) return false;
    }
    return true;
}

/* The lock is held. */
static bool are_all_drained(const lksi_mpi_module *mpi, const lks_group *group) {
    for (int context = 0; context < LKSI_N_CONTEXTS; context++)
        for (int rank = 0; rank < group->size && group->mpi_streams->out[context] != NULL; rank++)
            if (!lksi_tcp_is_gone(group, rank) && !is_drained(mpi, &group->mpi_streams->out[context][rank]))
                return false;
    return true;
}

/* MPI makes progress only inside MPI calls. So a rank that leaves waits for at most DRAIN_MS until the others are
 * receiving what it sent to them. */
static void drain(const lks_group *group) {
    int64_t end_ns = lksi_now_ns() + INT64_C(1000000) * DRAIN_MS;
    while (lksi_now_ns() < end_ns && !lksi_control_is_aborted(group->control)) {
        bool is_done = false;
        const lksi_mpi_module *mpi = lksi_mpi_enter();
        if (mpi != NULL) {
            is_done = are_all_drained(mpi, group);
            lksi_mpi_leave();
        }
        if (is_done) return;
        lksi_sleep_ns(FIRST_PAUSE_NS);
    }
}

/* If another thread is stuck in MPI, the group is dead, and the transfers in progress are left to MPI. */
static void release_transfers(const lks_group *group) {
    lksi_mpi_streams *streams = group->mpi_streams;
    const lksi_mpi_module *mpi = NULL;
    for (int i = 0; i < PATIENCE_MS && (mpi = lksi_mpi_enter()) == NULL; i++) lksi_sleep_ns(1000000);
    if (mpi == NULL) return;
    for (int context = 0; context < LKSI_N_CONTEXTS; context++)
        for (int rank = 0; rank < group->size; rank++) {
            if (streams->in[context] != NULL) mpi->release(streams->in[context][rank].coming);
            for (int i = 0; i <= N_SLOTS && streams->out[context] != NULL; i++)
                mpi->release(streams->out[context][rank].pieces[i]);
        }
    lksi_mpi_leave();
}

static void leave_known(const lks_group *group) {
    pthread_mutex_lock(&known_mutex);
    forget(--n_joined == 0 ? NULL : &group->id);
    pthread_mutex_unlock(&known_mutex);
}

static void mpi_close(lks_group *group) {
    lksi_mpi_streams *streams = group->mpi_streams;
    if (group->status == LKS_OK) drain(group);
    release_transfers(group);
    leave_known(group);
    streams->beside->close(group);
    for (int context = 0; context < LKSI_N_CONTEXTS; context++) {
        lksi_free(streams->out[context]);
        lksi_free(streams->in[context]);
    }
    lksi_free(streams);
    group->mpi_streams = NULL;
}

static lks_status attend(lks_group *group, lksi_context context, int rank) {
    (void)context;
    lksi_tcp_attend(group, rank);
    return LKS_OK;
}

static const lksi_remote mpi_remote = {.name = "mpi",
                                       .write_some = write_some,
                                       .read_some = read_some,
                                       .sleep = sleep_on_streams,
                                       .announce = lksi_tcp_announce,
                                       .has_left = lksi_tcp_star_has_left,
                                       .attend = attend,
                                       .roll_call = lksi_tcp_roll_call,
                                       .close = mpi_close};

/* A hello may arrive before this rank has made the group. Any other group then receives and keeps it. n_joined is
 * counted first, so that kept hellos survive when another group is left meanwhile. */
lks_status lksi_mpi_join(lks_group *group, int *connections) {
    size_t n = (size_t)group->size;
    pthread_mutex_lock(&known_mutex);
    n_joined++;
    pthread_mutex_unlock(&known_mutex);
    lks_status status = lksi_tcp_join(group, connections);
    struct lksi_mpi_streams *streams = group->remote != NULL ? lksi_alloc(sizeof *streams) : NULL;
    if (streams == NULL) {
        leave_known(group);
        return group->remote != NULL ? LKS_ERR_MEMORY : status;
    }
    streams->beside = group->remote;
    group->mpi_streams = streams;
    group->remote = &mpi_remote;
    for (int context = 0; context < LKSI_N_CONTEXTS && status == LKS_OK; context++) {
        streams->out[context] = lksi_alloc_array(n, sizeof(out_stream));
        streams->in[context] = lksi_alloc_array(n, sizeof(in_stream));
        if (streams->out[context] == NULL || streams->in[context] == NULL) status = LKS_ERR_MEMORY;
    }
    return status;
}
