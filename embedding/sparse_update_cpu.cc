#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "embedding/sparse_update.h"

namespace sparrow {

uint64_t SumGradientsCpu(std::span<const Bags> features, std::span<const uint32_t> columns,
                         std::span<const float> output_gradients, uint32_t stride, uint32_t dim,
                         std::span<float> sums) {
  CHECK_EQ(features.size(), columns.size());
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (size_t f = 0; f < features.size(); ++f) {
    BagBackwardCpu(features[f], output_gradients, stride, columns[f], dim, sums);
  }
  uint64_t not_finite_rows = 0;
  for (size_t at = 0; at < sums.size(); at += dim) {
    const std::span<const float> row = sums.subspan(at, dim);
    if (!std::all_of(row.begin(), row.end(), [](float sum) { return std::isfinite(sum); })) ++not_finite_rows;
  }
  return not_finite_rows;
}

uint64_t SparseUpdateCpu(const TableSpec& spec, std::span<const Bags> features, std::span<const uint32_t> columns,
                         std::span<const float> output_gradients, uint32_t stride, const ApplyOptions& options,
                         std::span<char> records) {
  CHECK(spec.storage == RowType::kFloat32);
  const uint64_t slot_bytes = spec.Layout().slot_bytes();
  const uint64_t slots = records.size() / slot_bytes;
  std::vector<float> sums(slots * spec.dim);
  SumGradientsCpu(features, columns, output_gradients, stride, spec.dim, sums);
  std::vector<bool> touched(slots);
  for (const Bags& bags : features) {
    for (const uint32_t slot : bags.index) touched[slot] = true;
  }
  const RowUpdate update(spec, options);
  const auto scale = static_cast<float>(options.gradient_scale);
  uint64_t refused_rows = 0;
  for (uint64_t slot = 0; slot < slots; ++slot) {
    if (!touched[slot]) continue;
    const std::span<const float> sum(sums.data() + slot * spec.dim, spec.dim);
    if (std::all_of(sum.begin(), sum.end(), [&](float g) { return std::fabs(g * scale) <= kGradientMax; })) {
      update(slot, sum.data(), records.data() + slot * slot_bytes);
    } else {
      ++refused_rows;
    }
  }
  return refused_rows;
}

}  // namespace sparrow
