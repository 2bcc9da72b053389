#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "dense/gradient_norm.h"

namespace sparrow {

double SumOfSquaresCpu(std::span<const float> gradients) {
  // Sums of fixed blocks, added in order: the result does not depend on the number of threads.
  constexpr int64_t kBlock = 4096;
  const int64_t n = static_cast<int64_t>(gradients.size());
  std::vector<double> sums((n + kBlock - 1) / kBlock);
  ParallelFor(static_cast<int64_t>(sums.size()), 2, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      // Eight sums, so that additions do not wait for each other.
      double lanes[8] = {};
      for (int64_t i = block * kBlock; i < std::min(n, (block + 1) * kBlock); ++i) {
        lanes[i % 8] += static_cast<double>(gradients[i]) * gradients[i];
      }
      for (const double lane : lanes) sums[block] += lane;
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace sparrow
