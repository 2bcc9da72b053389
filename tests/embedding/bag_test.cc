// Pooling against a scalar reference in double, gradients also by finite differences.

#include "embedding/bag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "embedding/dedup.h"

namespace sparrow {
namespace {

// A feature of random bags over `unique` rows.
struct Feature {
  std::vector<uint32_t> offsets = {0};
  std::vector<uint32_t> index;
  std::vector<float> weights;
  Pooling pooling;

  Bags bags() const { return {.offsets = offsets, .index = index, .weights = weights, .pooling = pooling}; }
};

Feature RandomFeature(int64_t bags, uint32_t longest, uint32_t unique, bool weighted, Pooling pooling, uint64_t seed) {
  std::mt19937_64 random(seed);
  Feature feature;
  feature.pooling = pooling;
  for (int64_t i = 0; i < bags; ++i) {
    for (uint64_t n = random() % (longest + 1); n > 0; --n) {
      feature.index.push_back(static_cast<uint32_t>(random() % unique));
      if (weighted) feature.weights.push_back(std::uniform_real_distribution<float>(0.1f, 2)(random));
    }
    feature.offsets.push_back(static_cast<uint32_t>(feature.index.size()));
  }
  return feature;
}

std::vector<float> RandomFloats(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random);
  return values;
}

// The factor of look-up j in bag i, from the definition.
double FactorOf(const Feature& f, size_t i, size_t j) {
  double divisor = 1;
  if (f.pooling == Pooling::kMean) {
    divisor = 0;
    for (size_t k = f.offsets[i]; k < f.offsets[i + 1]; ++k) divisor += f.weights.empty() ? 1 : f.weights[k];
  }
  return (f.weights.empty() ? 1 : f.weights[j]) / divisor;
}

std::vector<double> ForwardReference(const Feature& f, const std::vector<float>& rows, uint32_t dim) {
  std::vector<double> output((f.offsets.size() - 1) * dim);
  for (size_t i = 0; i + 1 < f.offsets.size(); ++i) {
    for (size_t j = f.offsets[i]; j < f.offsets[i + 1]; ++j) {
      for (uint32_t d = 0; d < dim; ++d) output[i * dim + d] += FactorOf(f, i, j) * rows[f.index[j] * dim + d];
    }
  }
  return output;
}

std::vector<double> BackwardReference(const Feature& f, const std::vector<float>& output_gradients, uint32_t dim,
                                      uint32_t unique) {
  std::vector<double> gradients(uint64_t{unique} * dim);
  for (size_t i = 0; i + 1 < f.offsets.size(); ++i) {
    for (size_t j = f.offsets[i]; j < f.offsets[i + 1]; ++j) {
      for (uint32_t d = 0; d < dim; ++d) {
        gradients[f.index[j] * dim + d] += FactorOf(f, i, j) * output_gradients[i * dim + d];
      }
    }
  }
  return gradients;
}

struct Shape {
  int64_t bags;
  uint32_t longest, unique, dim;
};

class Bag : public testing::TestWithParam<std::tuple<Shape, bool, Pooling>> {
 protected:
  Shape shape() const { return std::get<0>(GetParam()); }
  Feature MakeFeature() const {
    return RandomFeature(shape().bags, shape().longest, shape().unique, std::get<1>(GetParam()),
                         std::get<2>(GetParam()), 99);
  }
};
INSTANTIATE_TEST_SUITE_P(
    All, Bag,
    testing::Combine(testing::Values(Shape{0, 3, 4, 8}, Shape{1, 1, 1, 1}, Shape{33, 5, 7, 3}, Shape{257, 1, 100, 16},
                                     Shape{300, 6, 50, 129}, Shape{5'000, 8, 900, 16}, Shape{40, 5, 30, 2},
                                     Shape{40, 5, 30, 5}, Shape{40, 5, 30, 10}, Shape{40, 5, 30, 13},
                                     Shape{40, 5, 30, 128}, Shape{30, 5, 20, 1024}, Shape{30, 5, 20, 1028},
                                     Shape{30, 5, 20, 2048}, Shape{60, 9, 11, 4096}),
                     testing::Bool(), testing::Values(Pooling::kSum, Pooling::kMean)));

TEST_P(Bag, ForwardEqualsTheReferenceInDouble) {
  const uint32_t dim = shape().dim;
  const Feature feature = MakeFeature();
  const std::vector<float> rows = RandomFloats(uint64_t{shape().unique} * dim, 1);
  ASSERT_TRUE(CheckBags(feature.bags(), shape().unique).ok());
  // In the middle of wider rows, whose other columns stay as they are.
  const uint32_t stride = dim + 5, column = 2;
  std::vector<float> output(shape().bags * stride, 7.0f);
  BagForwardCpu(feature.bags(), rows, dim, output, stride, column);
  const std::vector<double> expected = ForwardReference(feature, rows, dim);
  for (int64_t i = 0; i < shape().bags; ++i) {
    for (uint32_t c = 0; c < stride; ++c) {
      const bool inside = c >= column && c < column + dim;
      ASSERT_NEAR(output[i * stride + c], inside ? expected[i * dim + c - column] : 7.0, 3e-6) << i << " " << c;
    }
  }
}

TEST_P(Bag, BackwardEqualsTheReferenceInDoubleAndAddsToWhatIsThere) {
  const uint32_t dim = shape().dim;
  const Feature feature = MakeFeature();
  const std::vector<float> output_gradients = RandomFloats(shape().bags * dim, 2);
  const uint32_t stride = dim + 3, column = 1;
  std::vector<float> wide(shape().bags * stride, 1e6f);
  for (int64_t i = 0; i < shape().bags; ++i) {
    std::copy_n(output_gradients.begin() + i * dim, dim, wide.begin() + i * stride + column);
  }
  std::vector<float> gradients(uint64_t{shape().unique} * dim, 0.5f);
  BagBackwardCpu(feature.bags(), wide, stride, column, dim, gradients);
  const std::vector<double> expected = BackwardReference(feature, output_gradients, dim, shape().unique);
  for (size_t i = 0; i < gradients.size(); ++i) {
    ASSERT_NEAR(gradients[i], 0.5 + expected[i], 2e-5 * (1 + std::fabs(expected[i]))) << i;
  }
}

TEST(BagGradient, AgreesWithFiniteDifferences) {
  constexpr uint32_t kDim = 5, kUnique = 6;
  for (const Pooling pooling : {Pooling::kSum, Pooling::kMean}) {
    for (const bool weighted : {false, true}) {
      const Feature feature = RandomFeature(12, 4, kUnique, weighted, pooling, 3);
      std::vector<float> rows = RandomFloats(kUnique * kDim, 4);
      const std::vector<float> coefficients = RandomFloats(12 * kDim, 5);
      const auto loss = [&] {
        std::vector<float> output(12 * kDim);
        BagForwardCpu(feature.bags(), rows, kDim, output, kDim, 0);
        double sum = 0;
        for (size_t i = 0; i < output.size(); ++i) sum += double{coefficients[i]} * output[i];
        return sum;
      };
      std::vector<float> gradients(kUnique * kDim);
      BagBackwardCpu(feature.bags(), coefficients, kDim, 0, kDim, gradients);
      for (size_t i = 0; i < rows.size(); ++i) {
        const float at = rows[i];
        rows[i] = at + 0.5f;  // The loss is linear in the rows: a large step costs nothing.
        const double up = loss();
        rows[i] = at - 0.5f;
        const double down = loss();
        rows[i] = at;
        EXPECT_NEAR(gradients[i], up - down, 1e-5) << i;
      }
    }
  }
}

// Large enough for several threads; the small one goes through in order, on one.
TEST(BagGradient, DoesNotDependOnHowTheWorkIsCut) {
  constexpr uint32_t kDim = 16, kUnique = 700;
  const Feature feature = RandomFeature(4'000, 6, kUnique, true, Pooling::kMean, 8);
  const std::vector<float> output_gradients = RandomFloats(4'000 * kDim, 9);
  std::vector<float> at_once(kUnique * kDim), in_pieces(kUnique * kDim);
  BagBackwardCpu(feature.bags(), output_gradients, kDim, 0, kDim, at_once);
  for (size_t i = 0; i < 4'000; i += 100) {
    std::vector<uint32_t> offsets(feature.offsets.begin() + i, feature.offsets.begin() + i + 101);
    const uint32_t begin = offsets.front(), end = offsets.back();
    for (uint32_t& offset : offsets) offset -= begin;
    const Bags piece = {.offsets = offsets,
                        .index = std::span(feature.index).subspan(begin, end - begin),
                        .weights = std::span(feature.weights).subspan(begin, end - begin),
                        .pooling = feature.pooling};
    BagBackwardCpu(piece, std::span(output_gradients).subspan(i * kDim, 100 * kDim), kDim, 0, kDim, in_pieces);
  }
  EXPECT_EQ(at_once, in_pieces);
}

// One row with all the traffic, few with most of it, and all alike: https://github.com/pytorch/pytorch/issues/20655
// The bench embedding/bag reports what each costs.
TEST(Bag, SumsAreTheReferencesHoweverTheIdsFall) {
  constexpr size_t kLookups = 65'536;
  constexpr uint32_t kDim = 8, kRows = 20'000;
  std::mt19937_64 random(31);
  std::vector<double> cumulative(kRows);
  double sum = 0;
  for (uint32_t rank = 0; rank < kRows; ++rank) cumulative[rank] = sum += std::pow(rank + 1.0, -1.05);
  const auto zipf = [&] {
    const double u = std::uniform_real_distribution<double>(0, sum)(random);
    return static_cast<Key>(std::lower_bound(cumulative.begin(), cumulative.end(), u) - cumulative.begin());
  };
  const std::pair<const char*, std::function<Key()>> all[] = {
      {"identical", [] { return Key{12}; }}, {"Zipf", zipf}, {"uniform", [&] { return random() % kRows; }}};
  const std::vector<float> output_gradients = RandomFloats(kLookups * kDim, 32);
  double slowest = 0, uniform = 0;
  for (const auto& [name, draw] : all) {
    std::vector<Key> keys(kLookups);
    for (Key& key : keys) key = draw();
    Feature feature;
    feature.pooling = Pooling::kSum;
    feature.index.resize(kLookups);
    for (uint32_t i = 1; i <= kLookups; ++i) feature.offsets.push_back(i);
    const auto start = std::chrono::steady_clock::now();
    Dedup dedup;
    dedup.Add(keys, feature.index);
    const uint32_t unique = static_cast<uint32_t>(dedup.unique().size());
    ASSERT_TRUE(CheckBags(feature.bags(), unique).ok());
    std::vector<float> gradients(uint64_t{unique} * kDim);
    BagBackwardCpu(feature.bags(), output_gradients, kDim, 0, kDim, gradients);
    uniform = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    slowest = std::max(slowest, uniform);
    const std::vector<double> expected = BackwardReference(feature, output_gradients, kDim, unique);
    for (size_t i = 0; i < gradients.size(); ++i) {
      // Up to 65,536 roundings of a sum below 512: one is at most 1.5e-5, and they go both ways.
      ASSERT_NEAR(gradients[i], expected[i], 1e-2) << name << " " << i;
    }
  }
  EXPECT_LT(slowest, 20 * uniform) << "few rows with all the traffic";  // It is faster; nothing is quadratic.
}

TEST(Bag, SixtyFiveThousandIdenticalIdsSumInOneRow) {
  constexpr size_t kLookups = 65'536;
  constexpr uint32_t kDim = 8;
  const std::vector<Key> keys(kLookups, 12);
  std::vector<uint32_t> index(kLookups), offsets(kLookups + 1);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<uint32_t>(i);
  Dedup dedup;
  dedup.Add(keys, index);
  const Bags bags = {.offsets = offsets, .index = index, .weights = {}, .pooling = Pooling::kSum};
  ASSERT_TRUE(CheckBags(bags, dedup.unique().size()).ok());
  std::vector<float> gradients(kDim);
  BagBackwardCpu(bags, std::vector<float>(kLookups * kDim, 0.25f), kDim, 0, kDim, gradients);
  EXPECT_THAT(gradients, testing::Each(kLookups * 0.25f));  // Exact in float.
}

TEST(Bag, TwoFeaturesOfOneTableAddUp) {
  constexpr uint32_t kDim = 3;
  const std::vector<Key> keys_a = {4, 8, 4}, keys_b = {8, 15, 8, 8};
  std::vector<uint32_t> index_a(3), index_b(4);
  Dedup dedup;
  dedup.Add(keys_a, index_a);
  dedup.Add(keys_b, index_b);
  const std::vector<uint32_t> offsets_a = {0, 1, 3}, offsets_b = {0, 4, 4};
  const Bags a = {.offsets = offsets_a, .index = index_a, .weights = {}, .pooling = Pooling::kSum};
  const Bags b = {.offsets = offsets_b, .index = index_b, .weights = {}, .pooling = Pooling::kMean};
  const std::vector<float> output_gradients = RandomFloats(2 * 2 * kDim, 6);  // [2, a then b]
  std::vector<float> gradients(3 * kDim);
  BagBackwardCpu(a, output_gradients, 2 * kDim, 0, kDim, gradients);
  BagBackwardCpu(b, output_gradients, 2 * kDim, kDim, kDim, gradients);
  const auto at = [&](int row, int feature, uint32_t d) { return output_gradients[row * 6 + feature * 3 + d]; };
  for (uint32_t d = 0; d < kDim; ++d) {
    EXPECT_NEAR(gradients[0 * kDim + d], at(0, 0, d) + at(1, 0, d), 1e-6);         // Key 4.
    EXPECT_NEAR(gradients[1 * kDim + d], at(1, 0, d) + 0.75 * at(0, 1, d), 1e-6);  // Key 8.
    EXPECT_NEAR(gradients[2 * kDim + d], 0.25 * at(0, 1, d), 1e-6);                // Key 15.
  }
}

TEST(Bag, WeightsThatSumToZeroUnderMeanGiveZero) {
  const std::vector<uint32_t> offsets = {0, 2}, index = {0, 1};
  const std::vector<float> weights = {1, -1};
  const Bags bags = {.offsets = offsets, .index = index, .weights = weights, .pooling = Pooling::kMean};
  std::vector<float> output(2, 5.0f), gradients(4);
  BagForwardCpu(bags, std::vector<float>{1, 2, 3, 4}, 2, output, 2, 0);
  BagBackwardCpu(bags, std::vector<float>{1, 1}, 2, 0, 2, gradients);
  EXPECT_THAT(output, testing::Each(0.0f));
  EXPECT_THAT(gradients, testing::Each(0.0f));
}

TEST(CheckBags, AcceptsWhatIsWellFormed) {
  const std::vector<uint32_t> zero = {0}, empty_bags = {0, 0, 0}, offsets = {0, 2, 2, 3}, index = {1, 0, 1};
  const std::vector<float> weights = {1, 0, -3};
  EXPECT_TRUE(CheckBags({}, 0).ok());
  EXPECT_EQ(Bags{}.rows(), 0);
  EXPECT_TRUE(CheckBags({.offsets = zero, .index = {}, .weights = {}}, 0).ok());
  EXPECT_TRUE(CheckBags({.offsets = empty_bags, .index = {}, .weights = {}}, 0).ok());
  EXPECT_TRUE(CheckBags({.offsets = offsets, .index = index, .weights = weights}, 2).ok());
  BagForwardCpu({}, {}, 4, {}, 4, 0);  // No bags: nothing is read or written.
  BagBackwardCpu({}, {}, 4, 0, 4, {});
}

TEST(CheckBags, RefusesWhatIsMalformedWithItsNumbers) {
  const std::vector<uint32_t> index = {0, 1, 2};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const uint32_t negative = static_cast<uint32_t>(-10);
  const struct {
    std::vector<uint32_t> offsets;
    std::vector<float> weights;
    uint64_t unique;
    const char* message;
  } cases[] = {
      {{1, 3}, {}, 3, "offsets[0] is 1"},
      {{negative, 3}, {}, 3, "offsets[0] is 4294967286"},
      {{0, 2, 1, 3}, {}, 3, "offsets[2] is 1, below offsets[1], which is 2"},
      {{0, negative, 3}, {}, 3, "offsets[2] is 3, below offsets[1]"},
      {{0, 4}, {}, 3, "last offset is 4, but there are 3"},
      {{0, 2}, {}, 3, "last offset is 2, but there are 3"},
      {{0}, {}, 3, "last offset is 0, but there are 3"},
      {{}, {}, 3, "no offsets, but 3 look-ups"},
      {{0, 3}, {1, 1}, 3, "2 weights for 3 look-ups"},
      {{0, 3}, {1, 1, 1, 1}, 3, "4 weights for 3 look-ups"},
      {{0, 3}, {1, nan, 1}, 3, "weights[1] is nan"},
      {{0, 3}, {}, 2, "index[2] is 2, but there are 2 unique rows"},
      {{0, 3}, {}, 0, "but there are 0 unique rows"},
  };
  for (const auto& c : cases) {
    const absl::Status status = CheckBags({.offsets = c.offsets, .index = index, .weights = c.weights}, c.unique);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace sparrow
