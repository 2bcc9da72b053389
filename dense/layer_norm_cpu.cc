#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "dense/layer_norm.h"

namespace sparrow {
namespace {

constexpr int64_t kBlockRows = 64;

}  // namespace

void LayerNormForwardCpu(ConstMatrix x, std::span<const float> weight, std::span<const float> bias,
                         std::span<RowMoments> moments, Matrix y) {
  const int64_t width = x.cols;
  ParallelFor(x.rows, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* const from = x.row(i);
      double sum = 0;
      for (int64_t j = 0; j < width; ++j) sum += from[j];
      const double mean = sum / static_cast<double>(width);
      double squares = 0;
      for (int64_t j = 0; j < width; ++j) squares += (from[j] - mean) * (from[j] - mean);
      const RowMoments m = {static_cast<float>(mean),
                            static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width) + kLayerNormEps))};
      moments[i] = m;
      float* const to = y.row(i);
      for (int64_t j = 0; j < width; ++j) to[j] = (from[j] - m.mean) * m.inverse_deviation * weight[j] + bias[j];
    }
  });
}

void LayerNormBackwardCpu(ConstMatrix y_gradients, ConstMatrix x, std::span<const float> weight,
                          std::span<const RowMoments> moments, Write write, Matrix x_gradients,
                          std::span<float> weight_gradients, std::span<float> bias_gradients) {
  const int64_t width = x.cols;
  const int64_t blocks = (x.rows + kBlockRows - 1) / kBlockRows;
  std::vector<float> sums(2 * blocks * width);  // Of each block: the weight's gradients, then the bias's.
  ParallelFor(blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      float* const of_weight = sums.data() + 2 * block * width;
      float* const of_bias = of_weight + width;
      for (int64_t i = block * kBlockRows; i < std::min(x.rows, (block + 1) * kBlockRows); ++i) {
        const auto [mean, inverse_deviation] = moments[i];
        const float* const from = x.row(i);
        const float* const dy = y_gradients.row(i);
        double sum = 0, sum_with_x = 0;  // Of the gradients by the normalised row; of their products with it.
        for (int64_t j = 0; j < width; ++j) {
          const float normal = (from[j] - mean) * inverse_deviation;
          const float gradient = dy[j] * weight[j];
          sum += gradient;
          sum_with_x += gradient * normal;
          of_weight[j] += dy[j] * normal;
          of_bias[j] += dy[j];
        }
        const float mean_gradient = static_cast<float>(sum / static_cast<double>(width));
        const float mean_with_x = static_cast<float>(sum_with_x / static_cast<double>(width));
        float* const dx = x_gradients.row(i);
        for (int64_t j = 0; j < width; ++j) {
          const float normal = (from[j] - mean) * inverse_deviation;
          const float gradient = (dy[j] * weight[j] - mean_gradient - normal * mean_with_x) * inverse_deviation;
          dx[j] = write == Write::kAdd ? dx[j] + gradient : gradient;
        }
      }
    }
  });
  for (int64_t block = 0; block < blocks; ++block) {
    const float* const of_weight = sums.data() + 2 * block * width;
    for (int64_t j = 0; j < width; ++j) {
      weight_gradients[j] += of_weight[j];
      bias_gradients[j] += of_weight[width + j];
    }
  }
}

}  // namespace sparrow
