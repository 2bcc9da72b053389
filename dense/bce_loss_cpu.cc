#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "dense/bce_loss.h"

namespace sparrow {

double BceWithLogitsCpu(std::span<const float> logits, std::span<const float> labels,
                        std::span<float> logit_gradients) {
  CHECK_EQ(logits.size(), labels.size());
  CHECK_EQ(logits.size(), logit_gradients.size());
  // Sums of fixed blocks, added in order: the result does not depend on the number of threads.
  constexpr int64_t kBlock = 512;
  const int64_t n = static_cast<int64_t>(logits.size());
  std::vector<double> sums((n + kBlock - 1) / kBlock);
  ParallelFor(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      double sum = 0;
      for (int64_t i = block * kBlock; i < std::min(n, (block + 1) * kBlock); ++i) {
        const BceTerm term = BceTermOf(logits[i], labels[i]);
        sum += term.loss;
        logit_gradients[i] = term.gradient;
      }
      sums[block] = sum;
    }
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace sparrow
