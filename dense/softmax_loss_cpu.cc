#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "dense/softmax_loss.h"

namespace sparrow {
namespace {

// NaN among the logits stays NaN.
struct RowSums {
  float most;
  double sum;  // Of exp(logit - most).
};
RowSums SumsOf(const float* logits, int64_t classes) {
  const float most = *std::max_element(logits, logits + classes);
  double sum = 0;
  for (int64_t j = 0; j < classes; ++j) sum += std::exp(logits[j] - most);
  return {most, sum};
}

template <typename Row>
double SumOverRows(int64_t rows, const Row& row) {
  std::vector<double> losses(static_cast<size_t>(rows));
  ParallelFor(rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) losses[static_cast<size_t>(i)] = row(i);
  });
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

double LossOf(const RowSums& sums, float target_logit) {
  return std::log(sums.sum) + static_cast<double>(sums.most) - static_cast<double>(target_logit);
}

}  // namespace

double SoftmaxLossCpu(ConstMatrix logits, std::span<const uint16_t> targets) {
  return SumOverRows(logits.rows, [&](int64_t i) {
    const float* const row = logits.row(i);
    return LossOf(SumsOf(row, logits.cols), row[targets[static_cast<size_t>(i)]]);
  });
}

double SoftmaxLossAndGradientsCpu(Matrix logits, std::span<const uint16_t> targets) {
  return SumOverRows(logits.rows, [&](int64_t i) {
    float* const row = logits.row(i);
    const uint16_t target = targets[static_cast<size_t>(i)];
    const RowSums sums = SumsOf(row, logits.cols);
    const double loss = LossOf(sums, row[target]);
    const float inverse = static_cast<float>(1 / sums.sum);
    for (int64_t j = 0; j < logits.cols; ++j) row[j] = std::exp(row[j] - sums.most) * inverse;
    row[target] -= 1;
    return loss;
  });
}

}  // namespace sparrow
