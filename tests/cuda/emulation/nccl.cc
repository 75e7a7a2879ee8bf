// NCCL without GPUs, for the tests. Ranks are threads or processes of this machine, and meet in shared memory that the
// unique id names. It emulates NCCL's difficult behaviour:
// - A started operation is on its stream only after the communicator's state was queried. A call before that is
//   refused.
// - Ranks do not learn that a rank died.
// - A group of calls belongs to its thread, whatever the communicators: a call in it starts at the outermost end.
// - A communicator ends only when the last graph with one of its operations is destroyed: abort and destroy wait for
//   that, after all operations were given up. Destroy also waits until the other ranks destroy or abort theirs.
// - The first collective of a kind makes connections, on threads of its own: it waits until all ranks have reached it,
//   and cannot be captured in a graph. So does the first message from one rank to another, for the other of the two.
// - An operation that a graph launches on one rank must be launched by a graph on all ranks.
//
// LOCKSTEP_EMULATED_NCCL: the version that it reports ("23000"). LOCKSTEP_EMULATED_NCCL_FAILS: a communicator has an
// error after so many operations.
#include "comm/arithmetic/half.h"
#include "cuda/emulation/emulation.h"

#include <nccl.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr size_t box_nbytes = 32 << 10;
constexpr int most_ranks = 16;

// --- the meeting place: for every pair of ranks a box with the bytes in transit ---

struct box {
    std::atomic<uint64_t> n_written, n_read;
    char data[box_nbytes];
};

enum class kind { messages, broadcast, all_gather, reduce };
constexpr int n_kinds = 4;

struct place {
    std::atomic<int> n_joined, n_closed, n_connecting[n_kinds];
    std::atomic<int> n_meeting[most_ranks][most_ranks]; // of a message's two ranks; from, to
    struct {
        uint64_t host;
        int device;
    } ranks[most_ranks];
    box boxes[most_ranks][most_ranks]; // from, to
};

int version() {
    const char *given = getenv("LOCKSTEP_EMULATED_NCCL");
    return given != nullptr ? atoi(given) : NCCL_VERSION_CODE;
}

uint64_t host_hash() {
    const char *given = getenv("NCCL_HOSTID");
    return given != nullptr && given[0] != '\0' ? std::hash<std::string>{}(given) : 0;
}

bool may_share() {
    const char *given = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return version() >= 23000 && given != nullptr && strcmp(given, "1") == 0;
}

struct state {
    place *where = nullptr;
    std::string name;
    int rank = 0, size = 0, device = 0;
    std::atomic<bool> is_aborted{false};
    std::atomic<bool> is_mixed{false};        // the operation is in a graph on this rank, but not on the peer
    std::shared_ptr<void> captured{new char}; // graphs hold a reference, too

    bool is_in_graphs() const { return captured.use_count() > 1; }
    ~state() {
        if (where != nullptr) munmap(where, sizeof(place));
        shm_unlink(name.c_str());
    }
    bool join() {
        int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
        if (file < 0 || ftruncate(file, sizeof(place)) != 0) return false;
        void *mapped = mmap(nullptr, sizeof(place), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (mapped == MAP_FAILED) return false;
        where = static_cast<place *>(mapped);
        where->ranks[rank].host = host_hash();
        where->ranks[rank].device = device;
        if (++where->n_joined == size) shm_unlink(name.c_str()); // so that nothing remains if ranks are killed
        return true;
    }
    bool has_duplicates() const {
        for (int i = 0; i < size; i++)
            for (int j = 0; j < i; j++)
                if (where->ranks[i].host == where->ranks[j].host && where->ranks[i].device == where->ranks[j].device)
                    return !may_share();
        return false;
    }
};

// --- operations: bytes to and from others, and what happens when all have arrived ---

struct transfer {
    bool is_send;
    char *data;
    size_t nbytes, n_done;
    int peer;
    bool is_told = false;
};

// Both sides must agree on whether an operation comes from a graph. A byte before the data says so. Returns whether
// that byte was transferred.
bool tell(state *s, transfer *t, bool is_captured) {
    box &b = t->is_send ? s->where->boxes[s->rank][t->peer] : s->where->boxes[t->peer][s->rank];
    uint64_t n_written = b.n_written, n_read = b.n_read;
    if (t->is_told || n_written - n_read == (t->is_send ? box_nbytes : 0)) return t->is_told;
    char &byte = b.data[(t->is_send ? n_written : n_read) % box_nbytes];
    if (t->is_send) byte = is_captured;
    if (byte != is_captured) s->is_mixed = true;
    (t->is_send ? b.n_written : b.n_read)++;
    return t->is_told = true;
}

bool advance(state *s, transfer *t, bool is_captured) {
    if (!tell(s, t, is_captured)) return false;
    while (t->n_done < t->nbytes) {
        box &b = t->is_send ? s->where->boxes[s->rank][t->peer] : s->where->boxes[t->peer][s->rank];
        uint64_t n_written = b.n_written, n_read = b.n_read, at = t->is_send ? n_written : n_read;
        size_t n = t->is_send ? box_nbytes - (n_written - n_read) : n_written - n_read;
        n = std::min({n, t->nbytes - t->n_done, box_nbytes - at % box_nbytes});
        if (n == 0) return false;
        if (t->is_send)
            memcpy(b.data + at % box_nbytes, t->data + t->n_done, n);
        else
            memcpy(t->data + t->n_done, b.data + at % box_nbytes, n);
        (t->is_send ? b.n_written : b.n_read) = at + n;
        t->n_done += n;
    }
    return true;
}

constexpr int bfloat16 = 9; // ncclBfloat16, which not every header declares here

size_t nbytes_of(ncclDataType_t type) {
    switch (static_cast<int>(type)) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case bfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    default:
        return 8;
    }
}

struct operation {
    std::shared_ptr<state> s;
    kind what = kind::messages;
    const char *in = nullptr;
    char *out = nullptr;
    size_t n_in = 0; // bytes that each rank contributes
    int root = 0;
    ncclDataType_t type = ncclFloat32;
    ncclRedOp_t op = ncclSum;
    size_t first = 0, count = 0; // of a reduction: the elements of the result that this rank gets
    std::vector<transfer> transfers;
    std::vector<std::vector<char>> heard;
    bool is_begun = false, is_captured = false;

    void begin();
    void finish();
    bool operator()() {
        if (s->is_aborted) return true;
        if (!is_begun) begin();
        bool is_done = true;
        for (transfer &t : transfers) is_done &= advance_in_turn(&t);
        if (is_done) finish();
        return is_done;
    }
    // Messages of the same pair and direction are transferred in order.
    bool advance_in_turn(transfer *t) {
        for (transfer &before : transfers) {
            if (&before == t) return advance(s.get(), t, is_captured);
            if (before.is_send == t->is_send && before.peer == t->peer &&
                !(before.is_told && before.n_done == before.nbytes))
                return false;
        }
        return true;
    }
};

void operation::begin() {
    is_begun = true;
    if (what == kind::messages) return;
    heard.resize(static_cast<size_t>(s->size));
    for (int peer = 0; peer < s->size; peer++) {
        auto &h = heard[static_cast<size_t>(peer)];
        h.resize(n_in);
        bool is_sent = what != kind::broadcast || s->rank == root, is_heard = what != kind::broadcast || peer == root;
        if (peer == s->rank && is_sent) memcpy(h.data(), in, n_in);
        if (peer == s->rank) continue;
        if (is_sent) transfers.push_back({true, const_cast<char *>(in), n_in, 0, peer});
        if (is_heard) transfers.push_back({false, h.data(), n_in, 0, peer});
    }
}

// The order is not canonical, so that code which relies on it fails: from the last rank down, in double.
template <typename A, typename U> A combine(ncclRedOp_t op, A a, A b) {
    switch (op) {
    case ncclProd:
        return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
    case ncclMin:
        return a < b ? a : b;
    case ncclMax:
        return a > b ? a : b;
    default:
        return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    }
}

template <typename T, typename A, typename U> void reduce(const operation &o, A (*load)(T), T (*store)(A)) {
    for (size_t i = 0; i < o.count; i++) {
        A sum{};
        for (size_t rank = o.heard.size(); rank-- > 0;) {
            T value;
            memcpy(&value, o.heard[rank].data() + (o.first + i) * sizeof value, sizeof value);
            sum = rank + 1 == o.heard.size() ? load(value) : combine<A, U>(o.op, sum, load(value));
        }
        T result = store(o.op == ncclAvg ? sum / static_cast<A>(o.heard.size()) : sum);
        memcpy(o.out + i * sizeof result, &result, sizeof result);
    }
}

template <typename T, typename A, typename U> void reduce_plain(const operation &o) {
    reduce<T, A, U>(
        o, [](T value) { return static_cast<A>(value); }, [](A value) { return static_cast<T>(value); });
}

void operation::finish() {
    if (what == kind::broadcast) memcpy(out, heard[static_cast<size_t>(root)].data(), n_in);
    if (what == kind::all_gather)
        for (size_t rank = 0; rank < heard.size(); rank++) memcpy(out + rank * n_in, heard[rank].data(), n_in);
    if (what != kind::reduce || count == 0) return;
    switch (static_cast<int>(type)) {
    case ncclInt8:
        return reduce_plain<int8_t, int64_t, uint64_t>(*this);
    case ncclUint8:
        return reduce_plain<uint8_t, int64_t, uint64_t>(*this);
    case ncclInt32:
        return reduce_plain<int32_t, int64_t, uint64_t>(*this);
    case ncclInt64:
        return reduce_plain<int64_t, int64_t, uint64_t>(*this);
    case ncclFloat64:
        return reduce_plain<double, double, double>(*this);
    case ncclFloat16:
        return ::reduce<uint16_t, double, double>(
            *this, [](uint16_t value) { return static_cast<double>(lksi_f16_to_f32(value)); },
            [](double value) { return lksi_f32_to_f16(static_cast<float>(value)); });
    case bfloat16:
        return ::reduce<uint16_t, double, double>(
            *this, [](uint16_t value) { return static_cast<double>(lksi_bf16_to_f32(value)); },
            [](double value) { return lksi_f32_to_bf16(static_cast<float>(value)); });
    default:
        return reduce_plain<float, double, double>(*this);
    }
}

} // namespace

struct ncclComm {
    std::shared_ptr<state> s{new state};
    ncclResult_t failed = ncclSuccess;
    bool is_finalizing = false;
    // Started, but not yet on its stream: the state must be queried n_questions times first.
    std::unique_ptr<operation> started;
    bool is_deferred = false; // until the end of its thread's group
    cudaStream_t stream = nullptr;
    int n_questions = 0, n_started = 0;
    std::set<std::atomic<int> *> connecting; // the counters in which this rank is counted

    // A connection is made when as many ranks as it has are counted.
    struct connection {
        std::atomic<int> *n;
        int size;
    };
    std::vector<connection> connections() const {
        if (started->what != kind::messages)
            return {{&s->where->n_connecting[static_cast<int>(started->what)], s->size}};
        std::vector<connection> found;
        for (const transfer &t : started->transfers)
            found.push_back(
                {t.is_send ? &s->where->n_meeting[s->rank][t.peer] : &s->where->n_meeting[t.peer][s->rank], 2});
        return found;
    }
    bool is_connected() {
        bool is_made = true;
        for (const connection &c : connections()) {
            if (connecting.insert(c.n).second) ++*c.n;
            is_made &= *c.n == c.size;
        }
        return is_made;
    }
    ncclResult_t check_capture() const {
        if (started == nullptr || !emulation::is_capturing(stream)) return ncclSuccess;
        if (emulation::is_captured_globally(stream)) return ncclUnhandledCudaError;
        for (const connection &c : connections())
            if (connecting.count(c.n) == 0) return ncclInvalidUsage;
        return ncclSuccess;
    }
    void close() {
        s->where->n_closed++;
        while (!s->is_aborted && s->where->n_closed < s->size) usleep(100);
        while (s->is_in_graphs()) usleep(100);
        delete this;
    }
};

namespace {

thread_local int depth;
thread_local std::vector<ncclComm_t> grouped;

ncclResult_t start(ncclComm_t comm, cudaStream_t stream, operation &&o) {
    if (comm->started == nullptr) {
        o.s = comm->s;
        comm->started.reset(new operation(std::move(o)));
        comm->stream = stream;
        comm->n_questions = 2;
        comm->n_started++;
        comm->is_deferred = depth > 0;
        if (depth > 0) grouped.push_back(comm);
    } else {
        if (depth == 0 || comm->stream != stream || o.what != kind::messages) return ncclInvalidArgument;
        comm->started->transfers.push_back(o.transfers[0]);
    }
    return depth > 0 ? ncclSuccess : ncclInProgress;
}

ncclResult_t message(ncclComm_t comm, cudaStream_t stream, bool is_send, void *data, size_t nbytes, int peer) {
    operation o;
    o.transfers.push_back({is_send, static_cast<char *>(data), nbytes, 0, peer});
    return start(comm, stream, std::move(o));
}

ncclResult_t reduction(ncclComm_t comm, cudaStream_t stream, const void *in, void *out, size_t n_brought, size_t first,
                       size_t count, ncclDataType_t type, ncclRedOp_t op) {
    operation o;
    o.what = kind::reduce;
    o.in = static_cast<const char *>(in), o.out = static_cast<char *>(out);
    o.n_in = n_brought * nbytes_of(type);
    o.first = first, o.count = count;
    o.type = type, o.op = op;
    return start(comm, stream, std::move(o));
}

} // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *v) {
    *v = version();
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclInvalidUsage ? "invalid usage" : result == ncclInvalidArgument ? "invalid argument" : "error";
}
const char *ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static std::atomic<int> n_made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/emulated-nccl-%d-%d", static_cast<int>(getpid()), n_made++);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *made, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    if (depth > 0) return ncclInvalidUsage; /* NCCL would start it only at the end of the thread's group */
    if (size > most_ranks || config->blocking != 0) return ncclInvalidArgument;
    std::unique_ptr<ncclComm> comm(new ncclComm);
    comm->s->name = id.internal, comm->s->rank = rank, comm->s->size = size;
    cudaGetDevice(&comm->s->device);
    if (!comm->s->join()) return ncclSystemError;
    *made = comm.release();
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
    *result = ncclSuccess;
    if (comm->is_deferred) return ncclSuccess;
    place *where = comm->s->where;
    bool is_met = where->n_joined == comm->s->size;
    if (is_met && comm->s->has_duplicates()) comm->failed = ncclInvalidUsage;
    const char *limit = getenv("LOCKSTEP_EMULATED_NCCL_FAILS");
    if (limit != nullptr && comm->n_started > atoi(limit)) comm->failed = ncclRemoteError;
    if (comm->failed == ncclSuccess) comm->failed = comm->check_capture();
    if (comm->s->is_mixed) comm->failed = ncclInvalidUsage;
    *result = comm->failed;
    if (comm->failed != ncclSuccess) return ncclSuccess;
    bool is_waiting = !is_met || (comm->is_finalizing && comm->s->is_in_graphs());
    if (comm->started != nullptr && (--comm->n_questions > 0 || !comm->is_connected())) is_waiting = true;
    if (is_waiting) *result = ncclInProgress;
    if (is_waiting || comm->started == nullptr) return ncclSuccess;
    comm->started->is_captured = emulation::is_capturing(comm->stream);
    if (comm->started->is_captured) emulation::retain(comm->stream, comm->s->captured);
    emulation::enqueue_attempt(comm->stream, *comm->started);
    comm->started = nullptr;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    comm->is_finalizing = true;
    return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    comm->close();
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->s->is_aborted = true;
    comm->close();
    return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
    depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    bool is_any = !grouped.empty();
    if (--depth > 0) return ncclSuccess;
    for (ncclComm_t comm : grouped) comm->is_deferred = false;
    grouped.clear();
    return is_any ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return message(comm, stream, true, const_cast<void *>(data), count * nbytes_of(type), peer);
}
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return message(comm, stream, false, data, count * nbytes_of(type), peer);
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return reduction(comm, stream, in, out, count, 0, count, type, op);
}
ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return reduction(comm, stream, in, out, count, 0, comm->s->rank == root ? count : 0, type, op);
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    size_t rank = static_cast<size_t>(comm->s->rank), size = static_cast<size_t>(comm->s->size);
    return reduction(comm, stream, in, out, size * count, rank * count, count, type, op);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    operation o;
    o.what = kind::broadcast;
    o.in = static_cast<const char *>(in), o.out = static_cast<char *>(out);
    o.n_in = count * nbytes_of(type);
    o.root = root;
    return start(comm, stream, std::move(o));
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    operation o;
    o.what = kind::all_gather;
    o.in = static_cast<const char *>(in), o.out = static_cast<char *>(out);
    o.n_in = count * nbytes_of(type);
    return start(comm, stream, std::move(o));
}

} // extern "C"
