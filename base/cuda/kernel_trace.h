#ifndef SPARROW_BASE_CUDA_KERNEL_TRACE_H_
#define SPARROW_BASE_CUDA_KERNEL_TRACE_H_

// What the GPU did and when, as CUPTI, which comes with the CUDA toolkit, records it: every kernel, copy and fill of
// this process, with the operation (base/cuda/operation.h) in whose scope it was queued. CUPTI is loaded when it is
// asked for; a build whose toolkit has no cupti.h says that it is absent.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/cuda/operation.h"

namespace sparrow {

struct TracedWork {
  enum class Kind { kKernel, kCopyToGpu, kCopyToHost, kCopyOnGpu, kFill };

  Kind kind = Kind::kKernel;
  std::string name;     // A kernel's function. Not set of others.
  double begin_us = 0;  // On the GPU, from some moment on.
  double end_us = 0;
  uint64_t bytes = 0;      // Of a copy or a fill.
  uint32_t stream = 0;     // Equal: one after the other.
  uint64_t queued = 0;     // Grows in the order in which work was queued.
  int64_t operation = -1;  // In Trace::operations; -1: it was queued outside of any.
  int64_t step = -1;       // Numbered from 0; -1: outside of any.
};

struct Trace {
  std::vector<TracedWork> work;  // By `queued`. A graph's is outside of any operation and all of one `queued`.
  std::vector<OperationCost> operations;
  int64_t steps = 0;
  uint64_t lost = 0;  // Records that CUPTI dropped.
};

// Records from its making on. One at a time in a process. Thread-safe.
class KernelTrace {
 public:
  // Why there can be none; "" if there can.
  static std::string Absence();

  // REQUIRES: Absence().empty(), and GpuCount() > 0.
  static std::unique_ptr<KernelTrace> Start();
  virtual ~KernelTrace() = default;

  // Ends it. REQUIRES: the GPU has done all that was queued, and no operation is in its scope; called once.
  virtual Trace Stop() = 0;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_KERNEL_TRACE_H_
