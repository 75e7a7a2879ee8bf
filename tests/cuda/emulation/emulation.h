// The emulated GPU, for the emulations of its libraries.
//
// A stream is a queue of work. The work runs when the host waits for it and not before, so that data which were
// overwritten too early give wrong results. Only such work can access the GPU's memory: host code that does gets
// SIGSEGV.
#ifndef EMULATION_H
#define EMULATION_H

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

namespace emulation {
void enqueue(cudaStream_t stream, std::function<void()> work);
// As above, for work that waits for other work: it is tried until it returns true. A recording copies it with every
// launch, so it must hold its state by value.
void enqueue_attempt(cudaStream_t stream, std::function<bool()> attempt);
bool is_capturing(cudaStream_t stream);
bool is_captured_globally(cudaStream_t stream); // then no thread may wait or allocate memory
// The recording that `stream` takes part in keeps `object` alive, and so do graphs made from it, until all of them are
// destroyed.
void retain(cudaStream_t stream, std::shared_ptr<void> object);
bool is_device_memory(const void *pointer);
} // namespace emulation

#endif
