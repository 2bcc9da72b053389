#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "embedding/bag.h"

namespace sparrow {
namespace {

// Floats that one thread should have to move before a second thread pays.
constexpr int64_t kFloatsPerThread = 32768;

int64_t Grain(int64_t items, int64_t floats) {
  if (floats <= kFloatsPerThread) return std::max<int64_t>(1, items);
  return std::max<int64_t>(1, items * kFloatsPerThread / floats);
}

// What the sum of bag [begin, end) is multiplied by.
float BagScale(const Bags& bags, uint32_t begin, uint32_t end) {
  if (bags.pooling == Pooling::kSum) return 1;
  double divisor = end - begin;
  if (!bags.weights.empty()) {
    divisor = 0;
    for (uint32_t j = begin; j < end; ++j) divisor += bags.weights[j];
  }
  return divisor == 0 ? 0 : static_cast<float>(1 / divisor);
}

void AddScaled(float factor, const float* __restrict__ from, uint32_t dim, float* __restrict__ to) {
  if (factor == 1) {
    for (uint32_t d = 0; d < dim; ++d) to[d] += from[d];
  } else {
    for (uint32_t d = 0; d < dim; ++d) to[d] += factor * from[d];
  }
}

// Factor of look-up j in the bag that has `scale`.
float Factor(const Bags& bags, uint32_t j, float scale) {
  return bags.weights.empty() ? scale : bags.weights[j] * scale;
}

void BackwardInOrder(const Bags& bags, const float* output_gradients, uint32_t stride, uint32_t dim, float* gradients) {
  for (int64_t i = 0; i < bags.rows(); ++i) {
    const float scale = BagScale(bags, bags.offsets[i], bags.offsets[i + 1]);
    for (uint32_t j = bags.offsets[i]; j < bags.offsets[i + 1]; ++j) {
      AddScaled(Factor(bags, j, scale), output_gradients + i * stride, dim, gradients + uint64_t{bags.index[j]} * dim);
    }
  }
}

}  // namespace

absl::Status CheckOffsets(std::span<const uint32_t> offsets, std::span<const float> weights, size_t lookups) {
  if (!weights.empty() && weights.size() != lookups) {
    return absl::InvalidArgumentError(
        absl::StrCat("bags: ", weights.size(), " weights for ", lookups, " look-ups; give one each, or none"));
  }
  if (offsets.empty()) {
    if (lookups == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("bags: no offsets, but ", lookups, " look-ups belong to no bag"));
  }
  if (offsets.front() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("bags: offsets[0] is ", offsets.front(), ", but must be 0"));
  }
  for (size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat("bags: offsets[", i, "] is ", offsets[i], ", below offsets[",
                                                     i - 1, "], which is ", offsets[i - 1]));
    }
  }
  if (offsets.back() != lookups) {
    return absl::InvalidArgumentError(
        absl::StrCat("bags: the last offset is ", offsets.back(), ", but there are ", lookups, " look-ups"));
  }
  for (size_t j = 0; j < weights.size(); ++j) {
    if (!std::isfinite(weights[j])) {
      return absl::InvalidArgumentError(absl::StrCat("bags: weights[", j, "] is ", weights[j], ", not finite"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBags(const Bags& bags, uint64_t unique_rows) {
  const size_t lookups = bags.index.size();
  RETURN_IF_ERROR(CheckOffsets(bags.offsets, bags.weights, lookups));
  uint32_t largest = 0;
  for (const uint32_t u : bags.index) largest = std::max(largest, u);
  if (lookups > 0 && largest >= unique_rows) {
    const size_t at = std::find(bags.index.begin(), bags.index.end(), largest) - bags.index.begin();
    return absl::InvalidArgumentError(
        absl::StrCat("bags: index[", at, "] is ", largest, ", but there are ", unique_rows, " unique rows"));
  }
  return absl::OkStatus();
}

void BagForwardCpu(const Bags& bags, std::span<const float> rows, uint32_t dim, std::span<float> output,
                   uint32_t stride, uint32_t column) {
  CHECK_LE(uint64_t{column} + dim, stride);
  CHECK_EQ(output.size(), static_cast<uint64_t>(bags.rows()) * stride);
  const int64_t floats = (static_cast<int64_t>(bags.index.size()) + bags.rows()) * dim;
  ParallelFor(bags.rows(), Grain(bags.rows(), floats), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      float* __restrict__ to = output.data() + i * stride + column;
      const uint32_t begin = bags.offsets[i], end = bags.offsets[i + 1];
      const float scale = BagScale(bags, begin, end);
      const bool weighted = !bags.weights.empty();
      if (end - begin == 1 && scale == 1 && (!weighted || bags.weights[begin] == 1)) {  // One id a bag: most features.
        std::memcpy(to, rows.data() + uint64_t{bags.index[begin]} * dim, dim * sizeof(float));
        continue;
      }
      std::fill(to, to + dim, 0.0f);
      for (uint32_t j = begin; j < end; ++j) {
        AddScaled(weighted ? bags.weights[j] : 1, rows.data() + uint64_t{bags.index[j]} * dim, dim, to);
      }
      if (scale != 1) {
        for (uint32_t d = 0; d < dim; ++d) to[d] *= scale;
      }
    }
  });
}

void BagBackwardCpu(const Bags& bags, std::span<const float> output_gradients, uint32_t stride, uint32_t column,
                    uint32_t dim, std::span<float> gradients) {
  CHECK_LE(uint64_t{column} + dim, stride);
  CHECK_EQ(output_gradients.size(), static_cast<uint64_t>(bags.rows()) * stride);
  const int64_t lookups = static_cast<int64_t>(bags.index.size());
  if (lookups == 0) return;
  const float* from = output_gradients.data() + column;
  if (ParallelThreads() == 1 || lookups * dim <= kFloatsPerThread) {
    BackwardInOrder(bags, from, stride, dim, gradients.data());
    return;
  }
  // Look-ups sorted by row, those of a row in the order of the bags (counting sort). Then each row belongs to one
  // thread: the one in whose range of look-ups its first one falls, which balances the threads unless a single row has
  // most of the look-ups.
  struct Lookup {
    uint32_t bag;
    float factor;
  };
  const uint64_t unique = gradients.size() / dim;
  std::vector<uint32_t> start(unique + 1);
  for (const uint32_t u : bags.index) ++start[u + 1];
  for (uint64_t u = 0; u < unique; ++u) start[u + 1] += start[u];
  std::vector<uint32_t> next(start.begin(), start.end() - 1);
  std::vector<Lookup> sorted(lookups);
  for (int64_t i = 0; i < bags.rows(); ++i) {
    const float scale = BagScale(bags, bags.offsets[i], bags.offsets[i + 1]);
    for (uint32_t j = bags.offsets[i]; j < bags.offsets[i + 1]; ++j) {
      sorted[next[bags.index[j]]++] = {.bag = static_cast<uint32_t>(i), .factor = Factor(bags, j, scale)};
    }
  }
  ParallelFor(lookups, Grain(lookups, lookups * dim), [&](int64_t begin, int64_t end) {
    uint64_t u = std::lower_bound(start.begin(), start.end(), static_cast<uint32_t>(begin)) - start.begin();
    for (; u < unique && start[u] < end; ++u) {
      float* to = gradients.data() + u * dim;
      for (uint32_t k = start[u]; k < start[u + 1]; ++k) {
        AddScaled(sorted[k].factor, from + uint64_t{sorted[k].bag} * stride, dim, to);
      }
    }
  });
}

}  // namespace sparrow
