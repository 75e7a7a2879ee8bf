// The CUDA runtime without a GPU, for the tests: memory, streams, events, recordings, and kernels run by the host.
//
// LOCKSTEP_EMULATED_GPU selects a defect or a limit: "no-driver", "old-driver", "no-gpu", "memory=BYTES", "gpus=N",
// "no-pinned-memory".
#include "cuda/emulation/emulation.h"
#include "cuda/emulation/kernel.h"

#include <sched.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// --- kernels: the threads of a block run in sequence, each on a stack of its own from its first barrier on ---

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace {

[[noreturn]] void give_up(const char *what) {
    fprintf(stderr, "emulated GPU: %s\n", what);
    abort();
}

constexpr size_t stack_nbytes = 128 << 10;

// Where a thread of the GPU, or the scheduler, continues. swapcontext is only the fallback, because it makes a system
// call for the signal mask each time.
#ifdef __x86_64__
struct place {
    void *stack = nullptr;
};
extern "C" void emulation_switch(void **from, void *to);
asm(R"(
.text
.local emulation_switch
.type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
void switch_to(place *from, place *to) { emulation_switch(&from->stack, to->stack); }
void begin_at(place *p, char *stack, void (*function)()) {
    auto top = reinterpret_cast<uintptr_t>(stack + stack_nbytes) / 16 * 16;
    void **words = reinterpret_cast<void **>(top) - 8; // six registers, the function, its own null return address
    for (int i = 0; i < 8; i++) words[i] = nullptr;
    words[6] = reinterpret_cast<void *>(function);
    p->stack = words;
}
#else
struct place {
    ucontext_t context;
};
void switch_to(place *from, place *to) { swapcontext(&from->context, &to->context); }
void begin_at(place *p, char *stack, void (*function)()) {
    getcontext(&p->context);
    p->context.uc_stack.ss_sp = stack;
    p->context.uc_stack.ss_size = stack_nbytes;
    p->context.uc_link = nullptr;
    makecontext(&p->context, function, 0);
}
#endif

struct fiber {
    place here;
    std::unique_ptr<char[]> stack{new char[stack_nbytes]};
    uint3 thread;
    bool is_waiting = false;
};

struct block_run {
    const std::function<void()> *kernel;
    unsigned n_threads, next = 0;
    place scheduler;
    fiber *current = nullptr;
};

thread_local block_run *running;
thread_local std::vector<std::unique_ptr<fiber>> idle;

uint3 thread_at(unsigned i) { return {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y}; }

// Threads that meet no barrier run in sequence on one fiber.
void fiber_main() {
    block_run *run = running;
    fiber *self = run->current;
    while (run->next < run->n_threads) {
        self->thread = threadIdx = thread_at(run->next++);
        (*run->kernel)();
        run = running;
    }
    switch_to(&run->current->here, &run->scheduler); // does not return
}

void resume(block_run *run, fiber *f) {
    run->current = f;
    threadIdx = f->thread;
    f->is_waiting = false;
    switch_to(&run->scheduler, &f->here);
}

std::unique_ptr<fiber> begin_fiber() {
    std::unique_ptr<fiber> f;
    if (idle.empty()) {
        f.reset(new fiber);
    } else {
        f = std::move(idle.back());
        idle.pop_back();
    }
    begin_at(&f->here, f->stack.get(), fiber_main);
    return f;
}

void run_block(const std::function<void()> &kernel) {
    block_run run{};
    run.kernel = &kernel;
    run.n_threads = blockDim.x * blockDim.y * blockDim.z;
    block_run *outer = running;
    running = &run;
    std::vector<std::unique_ptr<fiber>> waiting;
    while (run.next < run.n_threads) {
        std::unique_ptr<fiber> f = begin_fiber();
        resume(&run, f.get());
        (f->is_waiting ? waiting : idle).push_back(std::move(f));
    }
    while (!waiting.empty()) {
        if (waiting.size() != run.n_threads) give_up("__syncthreads was reached by some threads of a block only");
        size_t n_waiting = 0;
        for (auto &f : waiting) {
            resume(&run, f.get());
            n_waiting += f->is_waiting;
        }
        if (n_waiting != 0 && n_waiting != waiting.size())
            give_up("__syncthreads was reached by some threads of a block only");
        if (n_waiting == 0) {
            for (auto &f : waiting) idle.push_back(std::move(f));
            waiting.clear();
        }
    }
    running = outer;
}

} // namespace

void __syncthreads() {
    block_run *run = running;
    fiber *self = run->current;
    self->is_waiting = true;
    switch_to(&self->here, &run->scheduler);
}

int atomicAdd(int *address, int value) {
    int old = *address;
    *address = old + value;
    return old;
}

int atomicCAS(int *address, int compare, int value) {
    int old = *address;
    if (old == compare) *address = value;
    return old;
}

// --- memory ---

namespace {

constexpr size_t region_nbytes = size_t{64} << 30, page = 4096;

struct memory {
    std::recursive_mutex mutex;
    char *region = nullptr;
    size_t limit = region_nbytes, used_nbytes = 0, top = 0;
    int n_open = 0;                       // threads that run the work of a stream
    std::map<char *, size_t> allocations; // with the room behind them
};

memory &the_memory() {
    static memory *m = new memory; // never destroyed, because modules may end in any order
    return *m;
}

const char *trouble() {
    const char *text = getenv("LOCKSTEP_EMULATED_GPU");
    return text != nullptr ? text : "";
}

cudaError_t check_driver() {
    if (strcmp(trouble(), "no-driver") == 0 || strcmp(trouble(), "old-driver") == 0) return cudaErrorInsufficientDriver;
    return strcmp(trouble(), "no-gpu") == 0 ? cudaErrorNoDevice : cudaSuccess;
}

void prepare(memory &m) {
    if (m.region != nullptr) return;
    void *region = mmap(nullptr, region_nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) give_up("no address space");
    m.region = static_cast<char *>(region);
    if (strncmp(trouble(), "memory=", 7) == 0) m.limit = strtoull(trouble() + 7, nullptr, 10);
}

// Sets all bits of [at, at + nbytes), which are whole pages. Large ranges map the same pages again and again, so that
// memory that is never written takes no space.
void fill(char *at, size_t nbytes) {
    static const size_t few = size_t{1} << 20, piece = size_t{32} << 20;
    static const int file = [] {
        int made = memfd_create("emulated-gpu", MFD_CLOEXEC);
        std::vector<char> ones(piece, '\xff');
        if (made < 0 || write(made, ones.data(), piece) != static_cast<ssize_t>(piece)) give_up("no memory file");
        return made;
    }();
    if (nbytes < few) {
        mprotect(at, nbytes, PROT_READ | PROT_WRITE);
        memset(at, 0xff, nbytes);
    }
    for (size_t i = 0; nbytes >= few && i < nbytes; i += piece) {
        size_t n = nbytes - i < piece ? nbytes - i : piece;
        if (mmap(at + i, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED)
            give_up("no memory");
    }
}

struct opened {
    opened() {
        memory &m = the_memory();
        std::lock_guard<std::recursive_mutex> lock(m.mutex);
        prepare(m);
        if (m.n_open++ == 0) mprotect(m.region, m.top, PROT_READ | PROT_WRITE);
    }
    ~opened() {
        memory &m = the_memory();
        std::lock_guard<std::recursive_mutex> lock(m.mutex);
        if (--m.n_open == 0) mprotect(m.region, m.top, PROT_NONE);
    }
};

thread_local cudaError_t last_error;
cudaError_t tell(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

// --- streams, events and recordings ---

using work = std::function<bool()>; // false: not done yet
using objects = std::vector<std::shared_ptr<void>>;
struct recording {
    std::vector<work> steps;
    objects retained;
    std::vector<CUstream_st *> forks; // streams that take part, except the origin
    unsigned long long id = 0;
    bool is_ended = false, is_spoiled = false;
    bool is_global = false; // captured in global mode: no thread may wait or allocate meanwhile, not only this one
};

// The recording that this thread began.
thread_local std::shared_ptr<recording> recorded_here;
cudaError_t check_recording() {
    if (recorded_here == nullptr) return cudaSuccess;
    recorded_here->is_spoiled = true;
    return tell(cudaErrorStreamCaptureUnsupported);
}

// One record of an event. The work that waits for it may outlive the event, and the event's next record.
struct event_record {
    CUstream_st *stream;
    bool is_done = false;
};

struct event_state {
    std::shared_ptr<event_record> last = std::make_shared<event_record>(event_record{nullptr, true});
    std::shared_ptr<recording> captured_by;
    CUstream_st *captured_on = nullptr;
    size_t n_captured = 0; // number of recorded steps of that stream
};

} // namespace

struct CUstream_st {
    std::recursive_mutex mutex;
    std::deque<work> queue;
    std::shared_ptr<recording> capture; // the recording it takes part in; ignored once that has ended
    size_t n_captured = 0;              // number of its steps in that recording
    bool is_origin = false, is_joined = false;
    bool is_busy = false;
    int device = 0;

    recording *captured_by() {
        if (capture != nullptr && capture->is_ended) capture = nullptr;
        return capture.get();
    }
};
struct CUevent_st : event_state {};
struct CUgraph_st {
    std::shared_ptr<recording> steps;
    objects retained;
};
struct CUgraphExec_st {
    std::shared_ptr<recording> steps;
    objects retained;
};

namespace {

CUstream_st *stream_of(cudaStream_t stream) {
    if (stream == nullptr) give_up("the default stream is not used here");
    return stream;
}

// Runs work until is_enough(), or until a work is not done yet.
void drain_some(CUstream_st *s, const std::function<bool()> &is_enough) {
    std::lock_guard<std::recursive_mutex> lock(s->mutex);
    if (s->is_busy || s->queue.empty()) return;
    s->is_busy = true;
    opened memory_is_open;
    bool is_done = true;
    while (!s->queue.empty() && is_done && !is_enough()) {
        is_done = s->queue.front()();
        if (is_done) s->queue.pop_front();
    }
    s->is_busy = false;
    if (!is_done) usleep(30); // let other threads use this CPU
}

bool is_empty(CUstream_st *s) {
    std::lock_guard<std::recursive_mutex> lock(s->mutex);
    return s->queue.empty();
}

void drain(CUstream_st *s) {
    for (drain_some(s, [] { return false; }); !is_empty(s) && !s->is_busy; drain_some(s, [] { return false; }))
        sched_yield();
}

struct streams {
    std::mutex mutex;
    std::map<CUstream_st *, std::shared_ptr<CUstream_st>> all;
};

streams &the_streams() {
    static streams *s = new streams; // never destroyed, like the memory
    return *s;
}

std::vector<std::shared_ptr<CUstream_st>> streams_of(int device) {
    std::lock_guard<std::mutex> lock(the_streams().mutex);
    std::vector<std::shared_ptr<CUstream_st>> found;
    for (auto &each : the_streams().all)
        if (each.second->device == device) found.push_back(each.second);
    return found;
}

} // namespace

namespace emulation {

void enqueue(cudaStream_t stream, std::function<void()> next) {
    enqueue_attempt(stream, [=] {
        next();
        return true;
    });
}

void enqueue_attempt(cudaStream_t stream, std::function<bool()> next) {
    CUstream_st *s = stream_of(stream);
    std::lock_guard<std::recursive_mutex> lock(s->mutex);
    if (s->captured_by() == nullptr) return s->queue.push_back(std::move(next));
    s->capture->steps.push_back(std::move(next));
    s->n_captured++;
    s->is_joined = false;
}

bool is_capturing(cudaStream_t stream) { return stream_of(stream)->captured_by() != nullptr; }

bool is_captured_globally(cudaStream_t stream) {
    recording *capture = stream_of(stream)->captured_by();
    return capture != nullptr && capture->is_global;
}

void retain(cudaStream_t stream, std::shared_ptr<void> object) {
    stream_of(stream)->capture->retained.push_back(std::move(object));
}

bool is_device_memory(const void *pointer) {
    memory &m = the_memory();
    const char *p = static_cast<const char *>(pointer);
    return m.region != nullptr && p >= m.region && p < m.region + region_nbytes;
}

void run_grid(dim3 grid, dim3 block, const std::function<void()> &kernel) {
    if (block.x * block.y * block.z > 1024 || block.x * block.y * block.z == 0)
        give_up("a block of no or > 1024 threads");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) give_up("a grid that is none");
    gridDim = grid;
    blockDim = block;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                run_block(kernel);
            }
}

} // namespace emulation

extern "C" {

cudaError_t cudaDriverGetVersion(int *version) {
    *version = strcmp(trouble(), "no-driver") == 0 ? 0 : strcmp(trouble(), "old-driver") == 0 ? 11040 : 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = strncmp(trouble(), "gpus=", 5) == 0 ? atoi(trouble() + 5) : 1;
    return tell(check_driver());
}

static thread_local int current_device;
cudaError_t cudaSetDevice(int device) {
    current_device = device;
    return tell(check_driver());
}
cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return tell(check_driver());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "emulated GPU %d", device);
    properties->major = 9;
    properties->multiProcessorCount = 1;
    properties->totalGlobalMem = the_memory().limit;
    return tell(check_driver());
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int nbytes, int device) {
    snprintf(text, static_cast<size_t>(nbytes), "0000:%02x:00.0", device);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total) {
    memory &m = the_memory();
    std::lock_guard<std::recursive_mutex> lock(m.mutex);
    prepare(m);
    *n_free = m.limit - m.used_nbytes;
    *n_total = m.limit;
    return tell(check_driver());
}

// Fresh memory holds no zeros: all bits are set, so that floats are NaN. Freed memory is never reused.
cudaError_t cudaMalloc(void **pointer, size_t nbytes) {
    if (check_driver() != cudaSuccess) return tell(check_driver());
    if (check_recording() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    memory &m = the_memory();
    std::lock_guard<std::recursive_mutex> lock(m.mutex);
    prepare(m);
    size_t room = (nbytes + page - 1) / page * page + page; // an unused page after each allocation
    if (m.used_nbytes + nbytes > m.limit || m.top + room > region_nbytes) return tell(cudaErrorMemoryAllocation);
    char *at = m.region + m.top;
    fill(at, room - page);
    if (m.n_open == 0) mprotect(at, room - page, PROT_NONE);
    m.top += room;
    m.used_nbytes += nbytes;
    m.allocations[at] = nbytes;
    *pointer = at;
    return cudaSuccess;
}

// Waits for all work on the GPU, like the real function.
cudaError_t cudaFree(void *pointer) {
    memory &m = the_memory();
    if (pointer == nullptr) return cudaSuccess;
    if (check_recording() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    for (auto &stream : streams_of(current_device)) drain(stream.get());
    std::lock_guard<std::recursive_mutex> lock(m.mutex);
    auto found = m.allocations.find(static_cast<char *>(pointer));
    if (found == m.allocations.end()) return tell(cudaErrorInvalidValue);
    m.used_nbytes -= found->second;
    madvise(found->first, found->second, MADV_DONTNEED);
    m.allocations.erase(found);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t nbytes, unsigned) {
    if (check_driver() != cudaSuccess) return tell(check_driver());
    if (check_recording() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    *pointer = strcmp(trouble(), "no-pinned-memory") != 0 ? malloc(nbytes) : nullptr;
    return *pointer != nullptr ? cudaSuccess : tell(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void **pointer, size_t nbytes) { return cudaHostAlloc(pointer, nbytes, 0); }
cudaError_t cudaFreeHost(void *pointer) {
    if (check_recording() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
    memset(attributes, 0, sizeof *attributes);
    attributes->type = emulation::is_device_memory(pointer) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    attributes->devicePointer = const_cast<void *>(pointer);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t nbytes, cudaMemcpyKind kind, cudaStream_t stream) {
    bool is_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool is_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (nbytes > 0 && (emulation::is_device_memory(to) != is_to || emulation::is_device_memory(from) != is_from))
        return tell(cudaErrorInvalidValue);
    emulation::enqueue(stream, [=] { memmove(to, from, nbytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t nbytes, cudaStream_t stream) {
    if (nbytes > 0 && !emulation::is_device_memory(memory)) return tell(cudaErrorInvalidValue);
    emulation::enqueue(stream, [=] { memset(memory, value, nbytes); });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    if (check_driver() != cudaSuccess) return tell(check_driver());
    auto made = std::make_shared<CUstream_st>();
    made->device = current_device;
    std::lock_guard<std::mutex> lock(the_streams().mutex);
    the_streams().all[made.get()] = made;
    *stream = made.get();
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    drain(stream);
    std::lock_guard<std::mutex> lock(the_streams().mutex);
    the_streams().all.erase(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (check_recording() != cudaSuccess || emulation::is_capturing(stream))
        return tell(cudaErrorStreamCaptureUnsupported);
    drain(stream);
    return cudaSuccess;
}

// A query does some of the work, so that polling ends. If it is not ready, that is the last error.
static void do_some(CUstream_st *stream) {
    int n = 0;
    drain_some(stream, [&n] { return n++ > 0; });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    if (check_recording() != cudaSuccess || emulation::is_capturing(stream))
        return tell(cudaErrorStreamCaptureUnsupported);
    do_some(stream);
    return is_empty(stream) ? cudaSuccess : tell(cudaErrorNotReady);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    if (check_driver() != cudaSuccess) return tell(check_driver());
    *event = new CUevent_st;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    CUstream_st *s = stream_of(stream);
    if (s->captured_by() != nullptr) { // in a recording, events only order what is recorded
        event->captured_by = s->capture;
        event->captured_on = s;
        event->n_captured = s->n_captured;
        return cudaSuccess;
    }
    event->captured_by = nullptr;
    auto record = event->last = std::make_shared<event_record>(event_record{s});
    emulation::enqueue(stream, [=] { record->is_done = true; });
    return cudaSuccess;
}

static bool try_record(event_record *r) {
    if (!r->is_done) drain_some(r->stream, [=] { return r->is_done; });
    return r->is_done;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (check_recording() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    while (!try_record(event->last.get())) sched_yield();
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (check_recording() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    if (!event->last->is_done) do_some(event->last->stream);
    return event->last->is_done ? cudaSuccess : tell(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    CUstream_st *s = stream_of(stream);
    if (s->captured_by() != nullptr && s->capture != event->captured_by) return tell(cudaErrorStreamCaptureIsolation);
    if (event->captured_by != nullptr && event->captured_by->is_ended) return tell(cudaErrorCapturedEvent);
    if (event->captured_by != nullptr) { // the stream joins the recording
        CUstream_st *other = event->captured_on;
        if (s->is_origin && other->n_captured == event->n_captured) other->is_joined = true;
        if (s->captured_by() != nullptr) return cudaSuccess;
        s->capture = event->captured_by;
        s->capture->forks.push_back(s);
        s->n_captured = 0;
        s->is_joined = false;
        return cudaSuccess;
    }
    auto record = event->last;
    emulation::enqueue_attempt(stream, [=] { return try_record(record.get()); });
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    static std::atomic<unsigned long long> n_begun;
    CUstream_st *s = stream_of(stream);
    if (s->captured_by() != nullptr || recorded_here != nullptr) return tell(cudaErrorIllegalState);
    recorded_here = s->capture = std::make_shared<recording>();
    s->capture->id = n_begun++;
    s->capture->is_global = mode == cudaStreamCaptureModeGlobal;
    s->is_origin = true;
    return cudaSuccess;
}

static cudaError_t tell_capture(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id) {
    const recording *capture = stream_of(stream)->captured_by();
    *status = capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (capture != nullptr) *id = capture->id;
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *, const cudaGraphNode_t **, const cudaGraphEdgeData **, size_t *) {
    return tell_capture(stream, status, id);
}
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                                        cudaGraph_t *, const cudaGraphNode_t **, size_t *) {
    return tell_capture(stream, status, id);
}
#endif

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    CUstream_st *s = stream_of(stream);
    if (s->captured_by() == nullptr || !s->is_origin) return tell(cudaErrorIllegalState);
    if (s->capture != recorded_here) return tell(cudaErrorStreamCaptureWrongThread);
    std::shared_ptr<recording> ended = std::move(s->capture);
    recorded_here = nullptr;
    ended->is_ended = true;
    s->is_origin = false;
    *graph = nullptr;
    objects retained = std::move(ended->retained); // streams that took part may still refer to the recording
    if (ended->is_spoiled) return tell(cudaErrorStreamCaptureInvalidated);
    for (const CUstream_st *fork : ended->forks)
        if (!fork->is_joined) return tell(cudaErrorStreamCaptureUnjoined);
    *graph = new CUgraph_st{ended, std::move(retained)};
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
    *made = new CUgraphExec_st{graph->steps, graph->retained};
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) {
    delete made;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t stream) {
    for (const work &step : made->steps->steps) emulation::enqueue_attempt(stream, step);
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char *cudaGetErrorString(cudaError_t error) {
    static thread_local char text[32];
    snprintf(text, sizeof text, "error %d", static_cast<int>(error));
    return text;
}

} // extern "C"
