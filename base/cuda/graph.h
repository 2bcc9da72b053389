#ifndef SPARROW_BASE_CUDA_GRAPH_H_
#define SPARROW_BASE_CUDA_GRAPH_H_

#include <functional>

#include "base/cuda/stream.h"

struct CUgraphExec_st;

namespace sparrow {

// Work that was recorded once and is queued again as a whole. It keeps the addresses and the plain arguments that it
// was recorded with, so what changes from one replay to the next lies in GPU memory.
class Graph {
 public:
  // Records what `work` queues on `stream`, without running it. REQUIRES: `work` allocates no GPU memory and waits for
  // nothing.
  Graph(const Stream& stream, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void Replay(const Stream& stream) const;

 private:
  CUgraphExec_st* graph_ = nullptr;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_GRAPH_H_
