#include <cuda_runtime.h>

#include <cstdio>

#include "base/cuda/graph.h"
#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"

namespace sparrow {

Graph::Graph(const Stream& stream, const std::function<void()>& work) {
  cudaGraph_t recorded = nullptr;
  CHECK_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  internal::records_a_graph = true;
  work();
  internal::records_a_graph = false;
  CHECK_CUDA(cudaStreamEndCapture(stream.get(), &recorded));
  CHECK_CUDA(cudaGraphInstantiate(&graph_, recorded, 0));
  CHECK_CUDA(cudaGraphDestroy(recorded));
}

Graph::~Graph() {
  if (cudaGraphExecDestroy(graph_) != cudaSuccess) std::fprintf(stderr, "a CUDA graph could not be destroyed\n");
}

void Graph::Replay(const Stream& stream) const { CHECK_CUDA(cudaGraphLaunch(graph_, stream.get())); }

}  // namespace sparrow
