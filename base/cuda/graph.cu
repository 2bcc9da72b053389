#include <cuda_runtime.h>

#include <cstdio>

#include "base/cuda/graph.h"
#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"

namespace sparrow {
namespace {

// Whether the call succeeded; false: for want of memory. All else is a broken invariant.
bool HadMemory(cudaError_t error, const char* call) {
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // Reported by the return value.
    return false;
  }
  CHECK(error == cudaSuccess) << call << ": " << CudaTrouble(error);
  return true;
}
#define HAD_MEMORY(call) HadMemory(call, #call)

}  // namespace

std::optional<Graph> Graph::Record(const Stream& stream, const std::function<bool()>& work) {
  cudaGraph_t recorded = nullptr;
  if (!HAD_MEMORY(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal))) return std::nullopt;
  internal::records_a_graph = true;
  const bool worked = work();
  internal::records_a_graph = false;
  if (!worked) {
    // Whatever state the recording is in, this ends it.
    if (cudaStreamEndCapture(stream.get(), &recorded) == cudaSuccess) CHECK_CUDA(cudaGraphDestroy(recorded));
    cudaGetLastError();
    return std::nullopt;
  }
  if (!HAD_MEMORY(cudaStreamEndCapture(stream.get(), &recorded))) return std::nullopt;
  Graph graph(nullptr);
  // Upload: else the first replay asks for the memory, and can no longer do without.
  const bool made = HAD_MEMORY(cudaGraphInstantiate(&graph.graph_, recorded, 0)) &&
                    HAD_MEMORY(cudaGraphUpload(graph.graph_, stream.get()));
  CHECK_CUDA(cudaGraphDestroy(recorded));
  if (!made) return std::nullopt;
  return graph;
}

Graph::Graph(const Stream& stream, const std::function<void()>& work) {
  std::optional<Graph> recorded = Record(stream, [&] {
    work();
    return true;
  });
  CHECK(recorded.has_value()) << "the GPU has no memory for a recorded graph: "
                              << CudaTrouble(cudaErrorMemoryAllocation);
  *this = *std::move(recorded);
}

Graph::~Graph() {
  if (graph_ == nullptr) return;
  if (cudaGraphExecDestroy(graph_) != cudaSuccess) std::fprintf(stderr, "a CUDA graph could not be destroyed\n");
}

void Graph::Replay(const Stream& stream) const { CHECK_CUDA(cudaGraphLaunch(graph_, stream.get())); }

}  // namespace sparrow
