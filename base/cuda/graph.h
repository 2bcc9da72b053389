#ifndef SPARROW_BASE_CUDA_GRAPH_H_
#define SPARROW_BASE_CUDA_GRAPH_H_

#include <functional>
#include <optional>
#include <utility>

#include "base/cuda/stream.h"

struct CUgraphExec_st;

namespace sparrow {

// Work that was recorded once and is queued again as a whole. It keeps the addresses and the plain arguments that it
// was recorded with, so what changes from one replay to the next lies in GPU memory.
class Graph {
 public:
  // Records what `work` queues on `stream`, without running it, and gives it the GPU memory that replays need. nullopt:
  // there is not that much memory, or `work` returned false, which leaves it to the caller to know why; the stream is
  // as it was before. REQUIRES: `work` allocates no GPU memory and waits for nothing.
  static std::optional<Graph> Record(const Stream& stream, const std::function<bool()>& work);
  // The same where memory is certain, as in tests and benchmarks: a CHECK fails where Record gives nullopt.
  Graph(const Stream& stream, const std::function<void()>& work);

  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~Graph();

  void Replay(const Stream& stream) const;

 private:
  explicit Graph(CUgraphExec_st* graph) : graph_(graph) {}

  CUgraphExec_st* graph_ = nullptr;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_GRAPH_H_
