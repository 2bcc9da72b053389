#ifndef SPARROW_BENCH_SUPPORT_GPU_LOOKUPS_H_
#define SPARROW_BENCH_SUPPORT_GPU_LOOKUPS_H_

// Random look-ups of a batch for benchmarks of kernels: a table a feature, all of as many rows, in one array.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"

namespace sparrow {

inline constexpr double kLookupZipf = 1.05;

// Look-ups of a sample in each table of MLPerf's DLRM-DCNv2, 214 in all; and one each.
inline constexpr uint32_t kDcnv2BagSizes[] = {3, 2, 1, 2, 6, 1, 1,  1,   1,  7,  3, 8, 1,
                                              6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1};
inline constexpr uint32_t kOneHotBagSizes[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// The rank among `rows` of a number u that is uniform in [0, 1). Zipf: the continuous distribution of exponent
// kLookupZipf, cut to whole ranks.
inline uint64_t RankOf(double u, uint64_t rows, bool zipf) {
  const double count = static_cast<double>(rows);
  const double rank =
      zipf ? std::pow(1 - u * (1 - std::pow(count + 1, 1 - kLookupZipf)), 1 / (1 - kLookupZipf)) - 1 : u * count;
  return std::min(static_cast<uint64_t>(rank), rows - 1);
}

// Bags of all features, one feature after the other (embedding/bag_gpu.h DeviceBags).
struct Lookups {
  std::vector<uint32_t> offsets = {0};
  std::vector<uint32_t> index;  // Slots: a row's number in its table behind the rows of the tables before.
};

inline Lookups MakeLookups(uint32_t samples, std::span<const uint32_t> bag_sizes /*[features]*/, uint32_t rows,
                           bool zipf) {
  Lookups lookups;
  for (uint32_t f = 0; f < bag_sizes.size(); ++f) {
    for (uint32_t i = 0; i < samples; ++i) {
      for (uint32_t k = 0; k < bag_sizes[f]; ++k) {
        const uint64_t row = RankOf(RandomUniform(1, lookups.index.size()), rows, zipf);
        lookups.index.push_back(static_cast<uint32_t>(f * uint64_t{rows} + row * 2654435761u % rows));
      }
      lookups.offsets.push_back(static_cast<uint32_t>(lookups.index.size()));
    }
  }
  return lookups;
}

// In ascending order.
inline std::vector<uint32_t> DistinctSlots(std::vector<uint32_t> slots) {
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return slots;
}

// Each slot's place among the distinct ones.
inline std::vector<uint32_t> RanksAmong(std::span<const uint32_t> distinct, std::span<const uint32_t> slots) {
  std::vector<uint32_t> ranks;
  for (const uint32_t slot : slots) {
    ranks.push_back(static_cast<uint32_t>(std::lower_bound(distinct.begin(), distinct.end(), slot) - distinct.begin()));
  }
  return ranks;
}

}  // namespace sparrow

#endif  // SPARROW_BENCH_SUPPORT_GPU_LOOKUPS_H_
