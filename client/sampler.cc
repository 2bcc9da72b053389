#include "client/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace sparrow {

uint16_t SampleToken(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return static_cast<uint16_t>(likeliest - logits.begin());

  std::vector<uint32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  if (options.top_k > 0 && options.top_k < tokens.size()) {
    std::nth_element(tokens.begin(), tokens.begin() + options.top_k, tokens.end(),
                     [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    tokens.resize(options.top_k);
    std::sort(tokens.begin(), tokens.end());
  }
  std::vector<double> sums;  // Of the weights up to each token.
  double sum = 0;
  for (const uint32_t token : tokens) {
    sum += std::exp((static_cast<double>(logits[token]) - *likeliest) / options.temperature);
    sums.push_back(sum);
  }
  const auto drawn = std::upper_bound(sums.begin(), sums.end(), uniform * sum);
  return static_cast<uint16_t>(tokens[static_cast<size_t>(std::min(drawn, sums.end() - 1) - sums.begin())]);
}

}  // namespace sparrow
