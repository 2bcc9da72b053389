#ifndef SPARROW_DENSE_ATTENTION_GPU_H_
#define SPARROW_DENSE_ATTENTION_GPU_H_

// The CUDA half of dense/attention.h. Needs CUDA and base/cuda only.
//
// All matrices are GPU memory with elements of the precision's type, row-major, rows as in dense/attention.h; sums are
// float32. Queued on `stream`, without allocation or synchronisation, so a graph can record it. Any length, number of
// heads and head width >= 1, and 0 sequences, are legal. No float atomics: two runs are bit-equal.
//
// bfloat16 and float16 with a head width that is a multiple of 8 up to 128, and rows that begin at multiples of 16
// bytes, go through the tensor cores of Hopper (dense/attention_tiles.cuh); everything else goes through plain
// arithmetic (dense/attention_any.cuh).

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/cuda/device_buffer.h"
#include "base/cuda/host_device.h"
#include "base/cuda/stream.h"
#include "dense/attention.h"
#include "dense/attention_dropout.h"
#include "dense/device_matrix.h"

namespace sparrow {

// Where the dropout of a call begins. In GPU memory, so that it may change between replays of a graph.
struct DropoutPlaceGpu {
  uint64_t stream = 0;          // As Dropout::stream.
  uint64_t first_sequence = 0;  // As AttentionForwardCpu's.
};

struct AttentionDropoutGpu {
  const DropoutPlaceGpu* place = nullptr;  // [1], GPU memory. Null: no dropout, and the rest is ignored.
  uint32_t threshold = 0;                  // As Dropout's.

  // Of one head's weights. REQUIRES: place, on a GPU.
  SPARROW_HOST_DEVICE HeadDropout Of(int64_t sequence, int64_t heads, int64_t head) const {
    const uint64_t number = (place->first_sequence + static_cast<uint64_t>(sequence)) * static_cast<uint64_t>(heads) +
                            static_cast<uint64_t>(head);
    return HeadDropout::Of({.stream = place->stream, .threshold = threshold}, number);
  }
};

// One for each stream: calls share a workspace. Not thread-safe.
class AttentionGpu {
 public:
  // nullopt: the GPU has not 8 bytes free for each row of weights, of lengths rounded up to a multiple of 64.
  static std::optional<AttentionGpu> Make(const AttentionShape& largest, Precision precision);

  // As AttentionForwardCpu.
  void Forward(const AttentionShape& shape, const DeviceMatrix& qkv /*[rows, 3 width]*/,
               const AttentionDropoutGpu& dropout, const DeviceMatrix& y /*[rows, width]*/,
               float* log_sums /*[sequences, heads, length]*/, const Stream& stream);

  // As AttentionBackwardCpu. REQUIRES: no number of the shape is above the largest's.
  void Backward(const AttentionShape& shape, const DeviceMatrix& qkv /*[rows, 3 width]*/,
                const DeviceMatrix& y /*[rows, width]*/, const float* log_sums /*[sequences, heads, length]*/,
                const AttentionDropoutGpu& dropout, const DeviceMatrix& y_gradients /*[rows, width]*/,
                const DeviceMatrix& qkv_gradients /*[rows, 3 width], overwritten*/, const Stream& stream);

  // Which kernels the largest shape goes through, and why.
  std::string Describe() const;

 private:
  AttentionGpu(const AttentionShape& largest, Precision precision, bool has_tiles, DeviceBuffer<float> numbers)
      : largest_(largest), precision_(precision), has_tiles_(has_tiles), numbers_(std::move(numbers)) {}

  AttentionShape largest_;
  Precision precision_;
  bool has_tiles_;               // The GPU has the tensor cores, and the program their kernels.
  DeviceBuffer<float> numbers_;  // Two of each row of weights, which one kernel of Backward leaves for the next.
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_ATTENTION_GPU_H_
