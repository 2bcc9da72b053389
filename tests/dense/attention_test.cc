#include "dense/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "tests/dense/gpt2_reference.h"

namespace sparrow {
namespace {

using testing::Derivative;
using testing::Near;
using testing::RandomFloats;
using testing::ToDouble;
using testing::Vector;

constexpr uint64_t kFirstSequence = 2;

struct Case {
  int64_t sequences, length, heads, head_width;
  double dropout;
};

class AttentionTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    shape_ = {.sequences = c.sequences, .length = c.length, .heads = c.heads, .head_width = c.head_width};
    dropout_ = Dropout::Of(c.dropout, 77);
    qkv_ = RandomFloats(1, shape_.rows() * 3 * shape_.width());
    for (float& v : qkv_) v *= 2;  // So that weights differ.
  }

  ConstMatrix qkv() const { return AsMatrix(std::span(qkv_), shape_.rows(), 3 * shape_.width()); }

  // The outputs of one head of one sequence.
  std::vector<Vector> Reference(const Vector& qkv, int64_t sequence, int64_t head) const {
    std::vector<Vector> parts[3];
    for (int64_t p = 0; p < 3; ++p) {
      for (int64_t t = 0; t < shape_.length; ++t) {
        const auto from =
            qkv.begin() + ((sequence * shape_.length + t) * 3 + p) * shape_.width() + head * shape_.head_width;
        parts[p].emplace_back(from, from + shape_.head_width);
      }
    }
    const uint64_t number = (kFirstSequence + static_cast<uint64_t>(sequence)) * static_cast<uint64_t>(shape_.heads) +
                            static_cast<uint64_t>(head);
    return testing::AttendHead(
        parts[0], parts[1], parts[2],
        [dropout = HeadDropout::Of(dropout_, number)](size_t t, size_t u) { return dropout.Factor(t, u); });
  }

  struct Run {
    std::vector<float> y, log_sums, gradients;
  };
  Run Both(const std::vector<float>& y_gradients) const {
    Run run;
    run.y.assign(shape_.rows() * shape_.width(), 9.0f);
    run.log_sums.resize(shape_.weight_rows());
    run.gradients.assign(qkv_.size(), 9.0f);
    const auto view = [&](auto& values, int64_t cols) { return AsMatrix(std::span(values), shape_.rows(), cols); };
    AttentionForwardCpu(shape_, qkv(), dropout_, kFirstSequence, view(run.y, shape_.width()), run.log_sums);
    AttentionBackwardCpu(shape_, qkv(), view(run.y, shape_.width()), run.log_sums, dropout_, kFirstSequence,
                         AsMatrix(std::span(y_gradients), shape_.rows(), shape_.width()),
                         view(run.gradients, 3 * shape_.width()));
    return run;
  }

  AttentionShape shape_;
  Dropout dropout_;
  std::vector<float> qkv_;
};

TEST_P(AttentionTest, ForwardAndBackwardEqualDoubleReference) {
  const std::vector<float> c = RandomFloats(2, shape_.rows() * shape_.width());
  const Run run = Both(c);
  Vector values = ToDouble(qkv_);
  for (int64_t s = 0; s < shape_.sequences; ++s) {
    for (int64_t h = 0; h < shape_.heads; ++h) {
      const auto row_of = [&](int64_t t) { return (s * shape_.length + t) * shape_.width() + h * shape_.head_width; };
      const std::vector<Vector> expected = Reference(values, s, h);
      for (int64_t t = 0; t < shape_.length; ++t) {
        for (int64_t j = 0; j < shape_.head_width; ++j) {
          ASSERT_TRUE(Near(run.y[row_of(t) + j], expected[t][j], 2e-5)) << s << " " << h << " " << t << " " << j;
        }
      }
      const auto objective = [&] {
        double sum = 0;
        const std::vector<Vector> y = Reference(values, s, h);
        for (int64_t t = 0; t < shape_.length; ++t) {
          for (int64_t j = 0; j < shape_.head_width; ++j) sum += c[row_of(t) + j] * y[t][j];
        }
        return sum;
      };
      for (const int64_t t : {int64_t{0}, shape_.length / 2, shape_.length - 1}) {
        for (int64_t p = 0; p < 3; ++p) {
          const size_t i = ((s * shape_.length + t) * 3 + p) * shape_.width() + h * shape_.head_width;
          ASSERT_TRUE(Near(run.gradients[i], Derivative(objective, &values[i]), 1e-4)) << s << " " << h << " " << t;
        }
      }
    }
  }
}

// Cores divide heads, never a sum.
TEST_P(AttentionTest, ThreadsChangeNoBit) {
  const std::vector<float> c = RandomFloats(2, shape_.rows() * shape_.width());
  const Run many = Both(c);
  Run one;
  std::thread([&] {
    UseOneThread();
    one = Both(c);
  }).join();
  EXPECT_EQ(many.y, one.y);
  EXPECT_EQ(many.gradients, one.gradients);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTest,
                         ::testing::Values(Case{0, 4, 2, 3, 0}, Case{1, 1, 1, 1, 0}, Case{3, 7, 2, 5, 0},
                                           Case{2, 63, 1, 4, 0}, Case{1, 64, 2, 8, 0.2}, Case{1, 65, 1, 16, 0},
                                           Case{1, 130, 1, 3, 0.5}));

TEST(HeadDropout, ItsShareIsTheNearestOf256ButNeitherNoneNorAll) {
  for (const double share : {0.1, 0.5, 0.999, 1e-6, 1 - 1e-9}) {
    SCOPED_TRACE(share);
    const HeadDropout dropout = HeadDropout::Of(Dropout::Of(share, 3), 4);
    const double rounded = std::clamp(std::round(share * 256), 1.0, 255.0) / 256;
    EXPECT_EQ(dropout.threshold, rounded * 0x1p32);
    EXPECT_EQ(dropout.scale, static_cast<float>(1 / (1 - rounded)));
  }
  EXPECT_FALSE(HeadDropout::Of(Dropout::Of(0, 3), 4).enabled());
  EXPECT_EQ(HeadDropout().Factor(5, 6), 1);
}

// Whether weights of two kinds stay: as often as the share says, each alone and both at once.
struct Counts {
  double one = 0, other = 0, both = 0, all = 0;
  void Count(bool first, bool second) {
    one += first;
    other += second;
    both += first && second;
    ++all;
  }
  // Within five standard deviations.
  void ExpectIndependent(double stays) const {
    const auto near = [&](double count, double p) { EXPECT_NEAR(count, p * all, 5 * std::sqrt(p * (1 - p) * all)); };
    near(one, stays);
    near(other, stays);
    near(both, stays * stays);
  }
};

TEST(HeadDropout, WeightsStayOrGoIndependently) {
  constexpr uint32_t kRows = 512;
  const double share = 0.25;
  const HeadDropout dropout = HeadDropout::Of(Dropout::Of(share, 5), 9);
  const HeadDropout heads[] = {HeadDropout::Of(Dropout::Of(share, 5), 10), HeadDropout::Of(Dropout::Of(share, 6), 9)};
  const auto stays = [](const HeadDropout& of, uint32_t query, uint32_t key) { return of.Factor(query, key) != 0; };
  // Beside it, those of its call of Philox, and further away; then the same place of another head and another stream.
  for (const auto& [rows, columns] : std::vector<std::pair<uint32_t, uint32_t>>{{0, 1},
                                                                                {1, 0},
                                                                                {1, 1},
                                                                                {0, 8},
                                                                                {0, 9},
                                                                                {8, 0},
                                                                                {8, 1},
                                                                                {8, 8},
                                                                                {8, 9},
                                                                                {0, 16},
                                                                                {16, 0},
                                                                                {0, 64},
                                                                                {64, 0},
                                                                                {64, 64}}) {
    SCOPED_TRACE(::testing::Message() << rows << " queries and " << columns << " keys further");
    Counts counts;
    for (uint32_t q = 0; q < kRows; ++q) {
      for (uint32_t k = 0; k < kRows; ++k) counts.Count(stays(dropout, q, k), stays(dropout, q + rows, k + columns));
    }
    counts.ExpectIndependent(1 - share);
  }
  for (const HeadDropout& other : heads) {
    Counts counts;
    for (uint32_t q = 0; q < kRows; ++q) {
      for (uint32_t k = 0; k < kRows; ++k) counts.Count(stays(dropout, q, k), stays(other, q, k));
    }
    counts.ExpectIndependent(1 - share);
  }
}

// Which bits of a call a weight has.
TEST(HeadDropout, EightWeightsShareACall) {
  const HeadDropout dropout = HeadDropout::Of(Dropout::Of(0.5, 1), 2);
  for (const uint32_t q : {0u, 7u, 16u, 1000003u}) {
    for (const uint32_t k : {0u, 6u, 32u, 70000u}) {
      const RandomWords bits = Philox(q, dropout.first + k, dropout.key);
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t odd = i / 4, query_on = i / 2 % 2, key_on = i % 2;
        const uint32_t number = bits.words[odd] >> (16 * query_on + 8 * key_on) & 0xff;
        EXPECT_EQ(dropout.Factor(q + 8 * query_on, k + odd + 8 * key_on), number < 128 ? 0 : 2) << q << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace sparrow
