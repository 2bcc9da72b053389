#ifndef SPARROW_BASE_CUDA_OPERATION_H_
#define SPARROW_BASE_CUDA_OPERATION_H_

// What the GPU is asked to do, said where it is asked: every launch of dense/ and embedding/ stands in the scope of an
// Operation that states its name and its cost, so that a profile (base/cuda/kernel_trace.h) can hold what kernels take
// against their bounds. Where nobody profiles it costs a look at a pointer.

#include <atomic>
#include <string>

namespace sparrow {

struct OperationCost {
  std::string name = "";  // Of one of a step's, with the sizes that matter: "product forward 1024 -> 512".
  double bytes = 0;       // That it moves to and from GPU memory, as the kernel's comment says.
  double flops = 0;       // Of its products: a multiplication and an addition are two.
  double row_bytes = 0;   // Moved besides for each distinct row of a batch. How many there are the GPU alone knows;
  double rows_max = 0;    // so many at most.
};

// Who hears of operations. Called by whatever threads queue them, on each in the order in which they are queued.
class OperationListener {
 public:
  virtual ~OperationListener() = default;

  // All that the calling thread queues from here to the End that belongs to it; operations nest, and work is the
  // innermost one's.
  virtual void Begin(const OperationCost& cost) = 0;
  virtual void End() = 0;
  // What the calling thread queues from here to the next call of either is a training step, or is none.
  virtual void StepBegins() = 0;
  virtual void StepEnds() = 0;
};

namespace internal {
inline std::atomic<OperationListener*> operation_listener{nullptr};  // Release and acquire: what it points to is made.
inline thread_local bool records_a_graph = false;  // Of the calling thread: what it queues does not run yet.
}  // namespace internal

// nullptr: nobody. REQUIRES: a listener stays until no operation that began while it listened is left.
inline void SetOperationListener(OperationListener* listener) {
  internal::operation_listener.store(listener, std::memory_order_release);
}

// Null too while the calling thread records a graph (base/cuda/graph.h).
inline OperationListener* OperationListenerNow() {
  OperationListener* const listener = internal::operation_listener.load(std::memory_order_acquire);
  return listener == nullptr || internal::records_a_graph ? nullptr : listener;
}

// The scope. `cost` is called, for an OperationCost, only where somebody listens.
class Operation {
 public:
  template <typename Cost>
  explicit Operation(const Cost& cost) : listener_(OperationListenerNow()) {
    if (listener_ != nullptr) listener_->Begin(cost());
  }
  ~Operation() {
    if (listener_ != nullptr) listener_->End();
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

 private:
  OperationListener* const listener_;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_OPERATION_H_
