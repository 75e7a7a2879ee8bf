// The emulated GPU, for the emulations of its libraries.
//
// A stream is a queue of work that is done when the host waits for it and not before: what was overwritten too early
// shows. The GPU's memory cannot be touched but by such work: host code that does ends with SIGSEGV.
#ifndef EMULATION_H
#define EMULATION_H

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

namespace emulation {
void enqueue(cudaStream_t stream, std::function<void()> work);
// The same for work that waits for others: it is tried until it says that it is done. Put on a recording it is copied
// with every launch, so what it has to remember it holds by value.
void enqueue_attempt(cudaStream_t stream, std::function<bool()> attempt);
bool is_capturing(cudaStream_t stream);
bool is_captured_globally(cudaStream_t stream); // so that no thread may wait or make memory
// The recording that `stream` takes part in holds `object`, and so does what is made of it, until all that is
// destroyed.
void retain(cudaStream_t stream, std::shared_ptr<void> object);
bool is_device_memory(const void *pointer);
} // namespace emulation

#endif
