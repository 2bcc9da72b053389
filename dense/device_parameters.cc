#include "dense/device_parameters.h"

#include <algorithm>

#include "base/cuda/allocate.h"
#include "base/status_macros.h"
#include "dense/cast_gpu.h"
#include "dense/step_totals.h"

namespace sparrow {

absl::StatusOr<DeviceParameters> DeviceParameters::Make(DeviceLayout layout, Precision precision, const Stream& stream,
                                                        std::vector<GradientSegment> segments) {
  const size_t size = static_cast<size_t>(layout.size());
  ASSIGN_OR_RETURN(DeviceBuffer<float> weights, AllocateOnDevice<float>(size, "the dense parameters"));
  size_t gradients_size = segments.empty() ? size + kStepTotals : 0;
  for (const GradientSegment& segment : segments) {
    gradients_size = std::max(gradients_size, static_cast<size_t>(segment.at + segment.end - segment.begin));
  }
  ASSIGN_OR_RETURN(DeviceBuffer<float> gradients, AllocateOnDevice<float>(gradients_size, "the dense gradients"));
  ASSIGN_OR_RETURN(DeviceBuffer<uint16_t> copy, AllocateOnDevice<uint16_t>(ElementBytes(precision) == 2 ? size : 0,
                                                                           "the dense parameters of 16 bits"));
  gradients.Fill(0, stream);
  return DeviceParameters(std::move(layout), precision, std::move(segments), std::move(weights), std::move(gradients),
                          std::move(copy));
}

float* DeviceParameters::gradients_at(int64_t offset) {
  if (segments_.empty()) return gradients_.data() + offset;
  const auto found = std::find_if(segments_.begin(), segments_.end(), [offset](const GradientSegment& segment) {
    return segment.begin <= offset && offset < segment.end;
  });
  CHECK(found != segments_.end()) << "no gradients lie at " << offset;
  return gradients_.data() + found->at + offset - found->begin;
}

DeviceMatrix DeviceParameters::matrix(const DeviceTensor& tensor) {
  void* const data = copy_.size() > 0 ? static_cast<void*>(copy_.data() + tensor.offset)
                                      : static_cast<void*>(weights_.data() + tensor.offset);
  return {.data = data, .rows = tensor.rows, .cols = tensor.cols, .stride = tensor.cols};
}

void DeviceParameters::Set(std::span<const float> host, const Stream& stream) {
  std::vector<float> spread(weights_.size());
  layout_.Spread(host, spread);
  weights_.CopyFrom(spread, stream);
  if (copy_.size() > 0) {
    CastGpu(precision_, weights_.data(), layout_.size(),
            {.data = copy_.data(), .rows = 1, .cols = layout_.size(), .stride = layout_.size()}, stream);
  }
  stream.Synchronize();
}

void DeviceParameters::Get(std::span<float> host, const Stream& stream) const {
  std::vector<float> spread(weights_.size());
  weights_.CopyTo(spread, stream);
  stream.Synchronize();
  layout_.Collect(spread, host);
}

}  // namespace sparrow
