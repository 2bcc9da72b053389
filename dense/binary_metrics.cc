#include "dense/binary_metrics.h"

#include <array>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dense/activation.h"

namespace sparrow {
namespace {

// A score that orders as the float does, and the label in the lowest bit. -0 and 0 are one score.
uint64_t ScoreAndLabel(float logit, bool positive) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  const uint32_t score = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{score} << 1 | (positive ? 1 : 0);
}

// Sorts 33-bit numbers, 11 bits a pass.
void RadixSort(std::vector<uint64_t>* values) {
  constexpr int kBits = 11;
  std::vector<uint64_t> other(values->size());
  for (int shift = 0; shift < 33; shift += kBits) {
    std::array<size_t, 1 << kBits> ends{};
    for (uint64_t value : *values) ++ends[value >> shift & (ends.size() - 1)];
    size_t sum = 0;
    for (size_t& end : ends) sum += std::exchange(end, sum);
    for (uint64_t value : *values) other[ends[value >> shift & (ends.size() - 1)]++] = value;
    values->swap(other);
  }
}

// The share of (positive, negative) pairs in which the positive scores higher, ties counting a half. In integers, so
// exact but for the last division.
double Auc(std::vector<uint64_t> scores, uint64_t positives, uint64_t negatives) {
  RadixSort(&scores);
  unsigned __int128 half_wins = 0;
  uint64_t negatives_below = 0;
  for (size_t i = 0; i < scores.size();) {
    const uint64_t score = scores[i] >> 1;
    uint64_t tied[2] = {0, 0};
    for (; i < scores.size() && scores[i] >> 1 == score; ++i) ++tied[scores[i] & 1];
    half_wins += static_cast<unsigned __int128>(tied[1]) * (2 * negatives_below + tied[0]);
    negatives_below += tied[0];
  }
  return static_cast<double>(static_cast<long double>(half_wins) /
                             (2.0L * static_cast<long double>(positives) * static_cast<long double>(negatives)));
}

}  // namespace

BinaryMetrics ComputeBinaryMetrics(std::span<const float> logits, std::span<const float> labels) {
  CHECK_EQ(logits.size(), labels.size());
  BinaryMetrics metrics;
  metrics.rows = logits.size();
  if (logits.empty()) {
    metrics.auc_reason = "undefined: no rows";
    return metrics;
  }
  std::vector<uint64_t> scores;
  scores.reserve(logits.size());
  uint64_t positives = 0;
  double loss_sum = 0, prediction_sum = 0;
  bool nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double z = logits[i];
    const bool positive = labels[i] > 0.5f;
    positives += positive ? 1 : 0;
    nan |= std::isnan(z);
    // An infinite logit that is right costs nothing, where max(z, 0) - z y would be infinity minus infinity.
    const double signed_logit = positive ? -z : z;
    loss_sum += (signed_logit > 0 ? signed_logit : 0) + std::log1p(std::exp(-std::abs(z)));
    prediction_sum += Sigmoid(z);
    scores.push_back(ScoreAndLabel(logits[i], positive));
  }
  const double rows = static_cast<double>(metrics.rows);
  metrics.logloss = loss_sum / rows;
  if (positives > 0) metrics.calibration = prediction_sum / static_cast<double>(positives);
  if (positives == 0 || positives == metrics.rows) {
    metrics.auc_reason = "undefined: one class";
  } else if (nan) {
    metrics.auc_reason = "undefined: a prediction is not a number";
  } else {
    metrics.auc = Auc(std::move(scores), positives, metrics.rows - positives);
  }
  return metrics;
}

}  // namespace sparrow
