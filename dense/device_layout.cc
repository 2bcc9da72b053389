#include "dense/device_layout.h"

#include <algorithm>

#include "base/check.h"
#include "dense/device_matrix.h"

namespace sparrow {

namespace {

constexpr int64_t kTensorMultiple = 64;  // Elements: 128 bytes of 16-bit ones.
constexpr int64_t kTile = 32;  // Rows and columns that are transposed at a time, so that both sides stay cached.

int64_t RoundedUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// to[j, i] = from[i, j]
void Transpose(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float* to, int64_t to_stride) {
  for (int64_t i0 = 0; i0 < rows; i0 += kTile) {
    for (int64_t j0 = 0; j0 < cols; j0 += kTile) {
      for (int64_t j = j0; j < std::min(cols, j0 + kTile); ++j) {
        for (int64_t i = i0; i < std::min(rows, i0 + kTile); ++i) to[j * to_stride + i] = from[i * from_stride + j];
      }
    }
  }
}

}  // namespace

DeviceLayout::DeviceLayout(const std::vector<Parameter>& parameters, const TensorForms& forms) {
  for (const Parameter& parameter : parameters) {
    CHECK(parameter.shape.size() == 1 || parameter.shape.size() == 2) << parameter.name;
    const bool vector = parameter.shape.size() == 1;
    Placed placed;
    placed.vector = vector;
    placed.host_offset = static_cast<int64_t>(parameter.offset);
    placed.rows = vector ? 1 : static_cast<int64_t>(parameter.shape[0]);
    placed.cols = static_cast<int64_t>(parameter.shape.back());
    const auto found = forms.find(parameter.name);
    const TensorForm form = found == forms.end() ? TensorForm{} : found->second;
    CHECK(found == forms.end() || !vector) << parameter.name;
    placed.transposed = form.transposed;
    const int64_t rows = form.transposed ? placed.cols : placed.rows;
    const int64_t cols = form.transposed ? placed.rows : placed.cols;
    placed.device = {
        .offset = size_, .rows = vector ? 1 : RoundedUp(rows, form.rows_multiple), .cols = PaddedColumns(cols)};
    size_ += RoundedUp(placed.device.rows * placed.device.cols, kTensorMultiple);
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

std::vector<Slice> DeviceLayout::Matrices() const {
  std::vector<Slice> matrices;
  for (const Placed& placed : placed_) {
    if (placed.vector) continue;
    const DeviceTensor& tensor = placed.device;
    matrices.push_back({.begin = static_cast<uint64_t>(tensor.offset),
                        .end = static_cast<uint64_t>(tensor.offset + tensor.rows * tensor.cols)});
  }
  return matrices;
}

void DeviceLayout::Spread(std::span<const float> host, std::span<float> device) const {
  CHECK_EQ(static_cast<int64_t>(host.size()), host_size_);
  CHECK_EQ(static_cast<int64_t>(device.size()), size_);
  std::fill(device.begin(), device.end(), 0.0f);
  for (const Placed& placed : placed_) {
    if (placed.transposed) {
      Transpose(host.data() + placed.host_offset, placed.cols, placed.rows, placed.cols,
                device.data() + placed.device.offset, placed.device.cols);
      continue;
    }
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
    if (placed.transposed) {
      Transpose(device.data() + placed.device.offset, placed.device.cols, placed.cols, placed.rows,
                host.data() + placed.host_offset, placed.cols);
      continue;
    }
    for (int64_t i = 0; i < placed.rows; ++i) {
      std::copy_n(device.data() + placed.device.offset + i * placed.device.cols, placed.cols,
                  host.data() + placed.host_offset + i * placed.cols);
    }
  }
}

}  // namespace sparrow
