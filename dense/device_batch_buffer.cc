#include "dense/device_batch_buffer.h"

#include "base/check.h"
#include "base/cuda/allocate.h"
#include "base/status_macros.h"

namespace sparrow {

absl::StatusOr<DeviceBatchBuffer> DeviceBatchBuffer::Make(int64_t rows_max, int64_t cols, Precision precision,
                                                          absl::string_view what, const Stream& stream) {
  const int64_t stride = PaddedColumns(cols);
  ASSIGN_OR_RETURN(DeviceBuffer<char> memory,
                   AllocateOnDevice<char>(static_cast<size_t>(rows_max * stride) * ElementBytes(precision), what));
  memory.Fill(0, stream);
  return DeviceBatchBuffer(std::move(memory), rows_max, stride, precision);
}

DeviceMatrix DeviceBatchBuffer::Columns(int64_t rows, int64_t begin, int64_t end) {
  CHECK(rows <= rows_max_ && begin <= end && end <= stride_) << rows << " rows, columns " << begin << " to " << end;
  return {.data = memory_.data() + static_cast<size_t>(begin) * ElementBytes(precision_),
          .rows = rows,
          .cols = end - begin,
          .stride = stride_};
}

}  // namespace sparrow
