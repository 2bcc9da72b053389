#include "client/click_model.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace sparrow {
namespace {

// What the log looks like; the numbers are in the manner of Criteo's.
struct CategoricalShape {
  uint32_t vocabulary;
  double zipf;     // P(rank r) ~ (r + 1)^-zipf
  double missing;  // Probability.
};
constexpr CategoricalShape kCategoricals[kClickCategoricals] = {
    {400, 1.1, 0},   {200, 1.05, 0},    {20000, 1.4, 0.03}, {10000, 1.35, 0.03}, {60, 1.3, 0},    {8, 1.2, 0.12},
    {5000, 1.3, 0},  {80, 1.3, 0},      {3, 0.7, 0},        {8000, 1.35, 0},     {2000, 1.25, 0}, {15000, 1.4, 0.03},
    {1500, 1.2, 0},  {16, 1.1, 0},      {3000, 1.25, 0},    {12000, 1.35, 0.03}, {10, 0.9, 0},    {1000, 1.15, 0},
    {600, 1.2, 0.4}, {4, 0.8, 0.4},     {40000, 1.4, 0.03}, {12, 1.2, 0.7},      {14, 1.1, 0},    {4000, 1.3, 0.03},
    {40, 1.2, 0.4},  {2500, 1.25, 0.4},
};

struct IntegerShape {
  double log_mean;  // Values are floor(exp(log_mean + log_stddev * normal)) + shift.
  double log_stddev;
  int32_t shift;
  double missing;
  double weight;  // Standard deviation of its effect, before the sign is drawn; 0: says nothing.
};
constexpr IntegerShape kIntegers[kClickIntegers] = {
    {0.6, 1.2, -1, 0.45, 0.5}, {1.5, 1.8, -2, 0, 0.3},    {1.8, 1.4, -1, 0.2, 0.4},  {1.5, 1.0, -1, 0.2, 0.5},
    {7.0, 2.2, -1, 0.03, 0.6}, {3.5, 1.6, -1, 0.2, 0.4},  {1.5, 1.5, -1, 0.04, 0.6}, {2.0, 1.2, -1, 0, 0.2},
    {4.0, 1.4, -1, 0.04, 0},   {0.4, 0.6, -1, 0.45, 0.3}, {0.9, 1.0, -1, 0.04, 0.5}, {0.2, 1.0, -1, 0.7, 0},
    {1.7, 1.1, -1, 0.2, 0.4},
};
constexpr int32_t kIntegerMax = 1600000;

// Pairs of columns whose ids interact: few enough combinations that a million rows tell them.
constexpr std::pair<int, int> kInteractions[] = {{8, 22}, {5, 16}, {13, 21}, {19, 24}};
constexpr double kInteractionStddev = 0.3;

constexpr double kLogitStddev = 1.4;
constexpr double kClickRate = 0.25;
constexpr uint64_t kCalibrationRows = 1 << 14;
constexpr size_t kIntegerValues = 1024;  // Distinct draws of an integer column, a power of two.

// Streams of random numbers: one for each thing that is drawn.
enum Stream : uint64_t { kIds = 1, kEffects, kIntegerDraws, kIntegerWeights, kLeft, kRight, kRows, kCalibration };
constexpr uint64_t kLabelDraw = 1000;  // Index in a row's stream, past those of the columns.

uint64_t StreamSeed(uint64_t seed, Stream stream, uint64_t column) {
  return RandomBits(RandomBits(seed, stream), column);
}

// A bijection of 32-bit numbers (xor and odd multiplications), so that different ranks have different ids.
uint32_t RankToId(uint32_t rank, uint32_t mask) {
  uint32_t x = rank ^ mask;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Walker's alias tables (Vose's construction) for outcomes of the given probabilities, which add up to 1.
void BuildAlias(std::vector<double> probability, std::vector<uint32_t>* threshold, std::vector<uint32_t>* alias) {
  const size_t n = probability.size();
  threshold->assign(n, UINT32_MAX);
  alias->resize(n);
  std::vector<uint32_t> small, large;
  for (size_t i = 0; i < n; ++i) {
    (*alias)[i] = static_cast<uint32_t>(i);
    probability[i] *= static_cast<double>(n);
    (probability[i] < 1 ? small : large).push_back(static_cast<uint32_t>(i));
  }
  while (!small.empty() && !large.empty()) {
    const uint32_t s = small.back(), l = large.back();
    small.pop_back();
    (*threshold)[s] = static_cast<uint32_t>(probability[s] * 0x1p32);
    (*alias)[s] = l;
    probability[l] -= 1 - probability[s];
    if (probability[l] < 1) {
      large.pop_back();
      small.push_back(l);
    }
  }
}

// Rare ids must matter less, or no amount of rows would be enough to learn them.
double EffectStddev(uint32_t vocabulary) { return vocabulary <= 100 ? 1.0 : std::pow(100.0 / vocabulary, 0.6); }

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

ClickModel::ClickModel(uint64_t seed) : seed_(seed) {
  for (int c = 0; c < kClickCategoricals; ++c) {
    const CategoricalShape& shape = kCategoricals[c];
    Categorical& column = categoricals_[c];
    column.vocabulary = shape.vocabulary;
    column.id_mask = static_cast<uint32_t>(StreamSeed(seed, kIds, c));
    std::vector<double> probability(shape.vocabulary + 1);
    double sum = 0;
    for (uint32_t r = 0; r < shape.vocabulary; ++r) sum += probability[r] = std::pow(r + 1.0, -shape.zipf);
    for (double& p : probability) p *= (1 - shape.missing) / sum;
    probability.back() = shape.missing;
    BuildAlias(probability, &column.threshold, &column.alias);

    const uint64_t stream = StreamSeed(seed, kEffects, c);
    column.effect.resize(shape.vocabulary + 1);
    for (size_t i = 0; i < column.effect.size(); ++i) {
      column.effect[i] = static_cast<float>(EffectStddev(shape.vocabulary) * RandomNormal(stream, i));
    }
  }

  for (int c = 0; c < kClickIntegers; ++c) {
    const IntegerShape& shape = kIntegers[c];
    Integer& column = integers_[c];
    column.missing_threshold = static_cast<uint32_t>(shape.missing * 0x1p32);
    const bool negative = (StreamSeed(seed, kIntegerWeights, c) & 1) != 0;
    const double weight = (negative ? -shape.weight : shape.weight) / shape.log_stddev;
    for (size_t i = 0; i < kIntegerValues; ++i) {
      const double draw =
          std::exp(shape.log_mean + shape.log_stddev * RandomNormal(StreamSeed(seed, kIntegerDraws, c), i));
      const int32_t value = static_cast<int32_t>(std::min<double>(draw, kIntegerMax)) + shape.shift;
      column.values.push_back(value);
      column.effect.push_back(static_cast<float>(weight * std::log1p(std::max(value, 0))));
    }
  }

  for (const auto& [a, b] : kInteractions) {
    Interaction interaction{a, b, {}, {}};
    const uint64_t pair = static_cast<uint64_t>(a) * kClickCategoricals + static_cast<uint64_t>(b);
    const double stddev = std::sqrt(kInteractionStddev / std::sqrt(static_cast<double>(kRank)));
    for (size_t i = 0; i < categoricals_[a].effect.size() * kRank; ++i) {
      interaction.left.push_back(static_cast<float>(stddev * RandomNormal(StreamSeed(seed, kLeft, pair), i)));
    }
    for (size_t i = 0; i < categoricals_[b].effect.size() * kRank; ++i) {
      interaction.right.push_back(static_cast<float>(stddev * RandomNormal(StreamSeed(seed, kRight, pair), i)));
    }
    interactions_.push_back(std::move(interaction));
  }
  SetSpreadAndRate();
}

double ClickModel::DrawValues(uint64_t row_seed, ClickRow* row) const {
  double sum = 0;
  for (int c = 0; c < kClickIntegers; ++c) {
    const Integer& column = integers_[c];
    const uint64_t bits = RandomBits(row_seed, static_cast<uint64_t>(c));
    if (static_cast<uint32_t>(bits) < column.missing_threshold) {
      row->integers_missing |= 1u << c;
      continue;  // Counts as log(1 + 0).
    }
    const size_t draw = (bits >> 32) % kIntegerValues;
    row->integers[c] = column.values[draw];
    sum += column.effect[draw];
  }

  std::array<uint32_t, kClickCategoricals> outcomes;
  for (int c = 0; c < kClickCategoricals; ++c) {
    const Categorical& column = categoricals_[c];
    const uint64_t bits = RandomBits(row_seed, static_cast<uint64_t>(kClickIntegers + c));
    auto outcome = static_cast<uint32_t>(((bits >> 32) * column.threshold.size()) >> 32);
    if (static_cast<uint32_t>(bits) >= column.threshold[outcome]) outcome = column.alias[outcome];
    outcomes[c] = outcome;
    sum += column.effect[outcome];
    if (outcome == column.vocabulary) {
      row->ids_missing |= 1u << c;
    } else {
      row->ids[c] = RankToId(outcome, column.id_mask);
    }
  }
  for (const Interaction& interaction : interactions_) {
    const float* left = &interaction.left[outcomes[interaction.column_a] * kRank];
    const float* right = &interaction.right[outcomes[interaction.column_b] * kRank];
    for (int k = 0; k < kRank; ++k) sum += static_cast<double>(left[k]) * right[k];
  }
  return sum;
}

void ClickModel::SetSpreadAndRate() {
  std::vector<double> sums;
  double mean = 0;
  for (uint64_t i = 0; i < kCalibrationRows; ++i) {
    ClickRow row;
    sums.push_back(DrawValues(StreamSeed(seed_, kCalibration, i), &row));
    mean += sums.back() / kCalibrationRows;
  }
  double variance = 0;
  for (double sum : sums) variance += (sum - mean) * (sum - mean) / kCalibrationRows;
  scale_ = kLogitStddev / std::sqrt(variance);

  // The rate rises with the bias: bisection.
  double low = -scale_ * mean - kLogitMax, high = -scale_ * mean + kLogitMax;
  for (int i = 0; i < 50; ++i) {
    bias_ = (low + high) / 2;
    double rate = 0;
    for (double sum : sums) rate += Sigmoid(scale_ * sum + bias_) / kCalibrationRows;
    (rate < kClickRate ? low : high) = bias_;
  }
}

ClickRow ClickModel::MakeRow(uint64_t index) const {
  ClickRow row;
  const uint64_t row_seed = StreamSeed(seed_, kRows, index);
  const double logit = scale_ * DrawValues(row_seed, &row) + bias_;
  row.logit_steps = static_cast<int32_t>(std::lround(std::clamp<double>(logit, -kLogitMax, kLogitMax) * kLogitSteps));
  row.label = RandomUniform(row_seed, kLabelDraw) < Sigmoid(row.logit());
  return row;
}

}  // namespace sparrow
