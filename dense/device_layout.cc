#include "dense/device_layout.h"

#include <algorithm>

#include "base/check.h"
#include "dense/device_matrix.h"

namespace sparrow {

constexpr int64_t kTensorMultiple = 64;  // Elements: 128 bytes of 16-bit ones.

DeviceLayout::DeviceLayout(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    CHECK(parameter.shape.size() == 1 || parameter.shape.size() == 2) << parameter.name;
    const bool vector = parameter.shape.size() == 1;
    Placed placed;
    placed.host_offset = static_cast<int64_t>(parameter.offset);
    placed.rows = vector ? 1 : static_cast<int64_t>(parameter.shape[0]);
    placed.cols = static_cast<int64_t>(parameter.shape.back());
    placed.device = {
        .offset = size_, .rows = vector ? 1 : PaddedColumns(placed.rows), .cols = PaddedColumns(placed.cols)};
    const int64_t elements = placed.device.rows * placed.device.cols;
    size_ += (elements + kTensorMultiple - 1) / kTensorMultiple * kTensorMultiple;
    host_size_ += placed.rows * placed.cols;
    by_name_[parameter.name] = placed_.size();
    placed_.push_back(placed);
  }
}

const DeviceTensor& DeviceLayout::at(absl::string_view name) const {
  const auto found = by_name_.find(name);
  CHECK(found != by_name_.end()) << "no parameter " << std::string(name);
  return placed_[found->second].device;
}

std::vector<int64_t> DeviceLayout::Offsets() const {
  std::vector<int64_t> offsets;
  for (const Placed& placed : placed_) offsets.push_back(placed.device.offset);
  return offsets;
}

void DeviceLayout::Spread(std::span<const float> host, std::span<float> device) const {
  CHECK_EQ(static_cast<int64_t>(host.size()), host_size_);
  CHECK_EQ(static_cast<int64_t>(device.size()), size_);
  std::fill(device.begin(), device.end(), 0.0f);
  for (const Placed& placed : placed_) {
    for (int64_t i = 0; i < placed.rows; ++i) {
      std::copy_n(host.data() + placed.host_offset + i * placed.cols, placed.cols,
                  device.data() + placed.device.offset + i * placed.device.cols);
    }
  }
}

void DeviceLayout::Collect(std::span<const float> device, std::span<float> host) const {
  CHECK_EQ(static_cast<int64_t>(host.size()), host_size_);
  CHECK_EQ(static_cast<int64_t>(device.size()), size_);
  for (const Placed& placed : placed_) {
    for (int64_t i = 0; i < placed.rows; ++i) {
      std::copy_n(device.data() + placed.device.offset + i * placed.device.cols, placed.cols,
                  host.data() + placed.host_offset + i * placed.cols);
    }
  }
}

}  // namespace sparrow
