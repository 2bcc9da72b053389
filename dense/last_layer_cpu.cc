#include <algorithm>
#include <vector>

#include "base/check.h"
#include "dense/bce_loss.h"
#include "dense/last_layer.h"
#include "dense/linear.h"

namespace sparrow {

void LastLayerForwardCpu(ConstMatrix h, const LastLayer& layer, std::span<float> logits) {
  const ConstMatrix w(layer.w, 1, h.cols);
  LinearForwardCpu(h, w, {layer.b, 1}, Activation::kIdentity, AsMatrix(logits, h.rows, 1));
}

double LastLayerLossCpu(ConstMatrix h, const LastLayer& layer, std::span<const float> labels, int64_t samples,
                        float loss_scale, std::span<float> logits, const LastLayerGradients& gradients) {
  CHECK_EQ(static_cast<int64_t>(labels.size()), h.rows);
  CHECK_EQ(static_cast<int64_t>(gradients.w.size()), h.cols);
  CHECK(gradients.h.rows == h.rows && gradients.h.cols == h.cols);
  std::vector<float> z(h.rows);
  LastLayerForwardCpu(h, layer, z);
  if (!logits.empty()) std::copy_n(z.begin(), logits.size(), logits.begin());

  double loss = 0;
  double b_sum = 0;
  std::vector<double> w_sums(h.cols);
  for (int64_t i = 0; i < h.rows; ++i) {
    float g = 0;
    if (i < samples) {
      const BceTerm term = BceTermOf(z[i], labels[i]);
      loss += term.loss;
      g = term.gradient * loss_scale;
    }
    b_sum += g;
    for (int64_t j = 0; j < h.cols; ++j) {
      const float x = h.row(i)[j];
      gradients.h.row(i)[j] = i >= samples || (layer.relu && x <= 0) ? 0 : g * layer.w[j];
      w_sums[j] += double{g} * x;
    }
  }
  std::copy(w_sums.begin(), w_sums.end(), gradients.w.begin());
  *gradients.b = static_cast<float>(b_sum);
  return loss;
}

}  // namespace sparrow
