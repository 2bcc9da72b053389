#ifndef SPARROW_DENSE_DEVICE_BATCH_BUFFER_H_
#define SPARROW_DENSE_DEVICE_BATCH_BUFFER_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "dense/device_matrix.h"

namespace sparrow {

// A matrix with room for rows_max rows, owned. Rows are padded, and the padding is 0 as long as nobody writes there.
class DeviceBatchBuffer {
 public:
  // ResourceExhausted names `what`.
  static absl::StatusOr<DeviceBatchBuffer> Make(int64_t rows_max, int64_t cols, Precision precision,
                                                absl::string_view what, const Stream& stream);

  // The first rows, padded columns included. REQUIRES: rows <= rows_max.
  DeviceMatrix Rows(int64_t rows) { return Columns(rows, 0, stride_); }
  // The first rows, columns [begin, end).
  DeviceMatrix Columns(int64_t rows, int64_t begin, int64_t end);

 private:
  DeviceBatchBuffer(DeviceBuffer<char> memory, int64_t rows_max, int64_t stride, Precision precision)
      : memory_(std::move(memory)), rows_max_(rows_max), stride_(stride), precision_(precision) {}

  DeviceBuffer<char> memory_;
  int64_t rows_max_;
  int64_t stride_;
  Precision precision_;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_DEVICE_BATCH_BUFFER_H_
