#ifndef SPARROW_DENSE_GRID_SUM_H_
#define SPARROW_DENSE_GRID_SUM_H_

// Memory for sums over a whole grid in one launch, in an order that depends on the number of elements alone
// (dense/grid_sum.cuh).

#include <cstdint>
#include <optional>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"

namespace sparrow {

// Lies in GPU memory, for one launch at a time: launches that share it follow each other in one stream.
struct GridSums {
  // Eight blocks for each of the 132 multiprocessors of an H200. The same on every GPU, so that sums are.
  static constexpr int kBlocksMax = 1056;
  double partials[kBlocksMax];
  uint32_t finished;  // Blocks of the launch that runs; 0 between launches.
};

// nullopt: the GPU is out of memory.
inline std::optional<DeviceBuffer<GridSums>> MakeGridSums(const Stream& stream) {
  std::optional<DeviceBuffer<GridSums>> sums = DeviceBuffer<GridSums>::Allocate(1);
  if (sums.has_value()) sums->Fill(0, stream);
  return sums;
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_GRID_SUM_H_
