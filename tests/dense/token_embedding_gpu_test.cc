// The twins of dense/token_embedding.h, with dropout.

#include "dense/token_embedding_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "base/cuda/graph.h"
#include "dense/dropout.h"
#include "dense/token_embedding.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/gpu_matrix.h"

namespace sparrow {
namespace {

using testing::Absolute;
using testing::GpuMatrix;
using testing::RandomFloats;
using testing::Rounded;
using testing::Roundoff;
using testing::View;

constexpr int64_t kVocabulary = 301;
constexpr uint64_t kPlace = 4;
constexpr DropoutStep kStep = {.seed = 17, .first_sequence = 2};

// Token i of a batch. One that is every third, or all; runs of equal tokens through many tiles.
using Tokens = std::function<uint16_t(uint64_t)>;
const Tokens kUniform = [](uint64_t i) { return static_cast<uint16_t>(RandomBits(1, i) % kVocabulary); };
const Tokens kOften = [](uint64_t i) { return RandomBits(2, i) % 3 == 0 ? uint16_t{7} : kUniform(i); };
const Tokens kOne = [](uint64_t) { return static_cast<uint16_t>(kVocabulary - 1); };
const Tokens kTwo = [](uint64_t i) { return static_cast<uint16_t>(i % 2); };

std::vector<uint16_t> TokensOf(const Tokens& tokens, int64_t n) {
  std::vector<uint16_t> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = tokens(static_cast<uint64_t>(i));
  return values;
}

class TokenEmbeddingGpu : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int>>> {
 protected:
  Precision precision() const { return std::get<0>(GetParam()); }
  int64_t width() const { return std::get<1>(GetParam()); }
  std::vector<float> Random(uint64_t seed, int64_t n) const {
    return Rounded(precision(), RandomFloats(seed, n * width()));
  }
  static void DropOnCpu(double share, int64_t sequence_elements, std::vector<float>* values) {
    DropoutCpu(Dropout::Of(share, RandomBits(kStep.seed, kPlace)), kStep.first_sequence * sequence_elements, *values);
  }
  ::testing::Message Name(int64_t sequences, int64_t length, int64_t gap, double share) const {
    return ::testing::Message() << testing::NameOf(precision()) << ", " << sequences << " x " << length << ", width "
                                << width() << ", gap " << gap << ", share " << share;
  }

  void ExpectForwardTwinsAgree(int64_t sequences, int64_t length, int64_t gap, double share) {
    SCOPED_TRACE(Name(sequences, length, gap, share));
    const Stream stream;
    const int64_t n = sequences * length;
    const std::vector<uint16_t> tokens = TokensOf(kUniform, n);
    const std::vector<float> token_vectors = Random(3, kVocabulary), position_vectors = Random(4, length + 2);
    std::vector<float> x(n * width());
    TokenEmbeddingForwardCpu(tokens, length, View(token_vectors, kVocabulary, width()),
                             View(position_vectors, length + 2, width()), View(&x, n, width()));
    if (share > 0) DropOnCpu(share, length * width(), &x);
    const GpuMatrix d_tokens(precision(), token_vectors, kVocabulary, width(), width() + gap, stream);
    const GpuMatrix d_positions(precision(), position_vectors, length + 2, width(), width() + 2 * gap, stream);
    const GpuMatrix d_x(precision(), n, width(), width() + gap, stream);
    const DeviceBuffer<uint16_t> ids = Upload(tokens, stream);
    const DeviceBuffer<DropoutStep> step = Upload(std::vector<DropoutStep>{kStep}, stream);
    TokenEmbeddingForwardGpu(precision(), ids.data(), length, d_tokens.view(), d_positions.view(),
                             DropoutGpu::Of(share, step.data(), kPlace, length * width()), d_x.view(), stream);
    const std::vector<float> actual = d_x.Values(stream);
    const double subnormal = precision() == Precision::kFloat16 ? 0x1p-25 : 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], x[i], 1.01 * Roundoff(precision()) * std::abs(x[i]) + subnormal) << i;
    }
  }

  void ExpectBackwardTwinsAgree(const Tokens& which, int64_t sequences, int64_t length, int64_t gap, double share) {
    SCOPED_TRACE(Name(sequences, length, gap, share));
    const Stream stream;
    const int64_t n = sequences * length;
    const std::vector<uint16_t> tokens = TokensOf(which, n);
    const std::vector<float> dx = Random(5, n);
    const std::vector<float> before_tokens = RandomFloats(6, kVocabulary * width());
    const std::vector<float> before_positions = RandomFloats(7, (length + 2) * width());
    std::vector<float> dropped = dx;
    if (share > 0) DropOnCpu(share, length * width(), &dropped);
    // Sums of float32 in different orders differ by the sum of absolute values.
    const auto cpu = [&](const std::vector<float>& from, std::vector<float> to_tokens,
                         std::vector<float> to_positions) {
      TokenEmbeddingBackwardCpu(tokens, length, View(from, n, width()), View(&to_tokens, kVocabulary, width()),
                                View(&to_positions, length + 2, width()));
      return std::pair(to_tokens, to_positions);
    };
    const auto [token_sums, position_sums] = cpu(dropped, before_tokens, before_positions);
    const auto [token_sizes, position_sizes] =
        cpu(Absolute(dropped), Absolute(before_tokens), Absolute(before_positions));

    const GpuMatrix d_dx(precision(), dx, n, width(), width() + gap, stream);
    const DeviceBuffer<uint16_t> ids = Upload(tokens, stream);
    const DeviceBuffer<DropoutStep> step = Upload(std::vector<DropoutStep>{kStep}, stream);
    std::optional<TokenEmbeddingBackwardGpu> backward = TokenEmbeddingBackwardGpu::Make(n + 3, width(), stream);
    ASSERT_TRUE(backward.has_value());
    const auto run = [&] {
      const GpuMatrix to_tokens(Precision::kFloat32, before_tokens, kVocabulary, width(), width() + gap, stream);
      const GpuMatrix to_positions(Precision::kFloat32, before_positions, length + 2, width(), width() + gap, stream);
      backward->Group(ids.data(), n, stream);
      backward->Run(precision(), length, DropoutGpu::Of(share, step.data(), kPlace, length * width()), d_dx.view(),
                    to_tokens.view(), to_positions.view(), stream);
      return std::pair(to_tokens.Values(stream), to_positions.Values(stream));
    };
    const auto [actual_tokens, actual_positions] = run();
    for (size_t i = 0; i < token_sums.size(); ++i) {
      ASSERT_NEAR(actual_tokens[i], token_sums[i], kTolerance * token_sizes[i]) << "token " << i / width();
    }
    for (size_t i = 0; i < position_sums.size(); ++i) {
      ASSERT_NEAR(actual_positions[i], position_sums[i], kTolerance * position_sizes[i]) << "position " << i / width();
    }
    EXPECT_EQ(run(), std::pair(actual_tokens, actual_positions)) << "two runs must agree bit for bit";
  }

  // Of the sum of absolute values: the CPU half adds up to 70,000 numbers one after the other.
  static constexpr double kTolerance = 4e-6;
};

struct Shape {
  int64_t sequences;
  int64_t length;
};
constexpr Shape kShapes[] = {{1, 1}, {1, 31}, {31, 1}, {1, 32}, {3, 11}, {2, 64}, {9, 65}, {70, 33}};

TEST_P(TokenEmbeddingGpu, ForwardEqualsTheCpuHalf) {
  for (const Shape& shape : kShapes) {
    ExpectForwardTwinsAgree(shape.sequences, shape.length, 0, 0);
    ExpectForwardTwinsAgree(shape.sequences, shape.length, 8, 0.3);
    ExpectForwardTwinsAgree(shape.sequences, shape.length, 1, 0.3);
    if (HasFatalFailure()) return;
  }
  ExpectForwardTwinsAgree(0, 5, 0, 0);
}

TEST_P(TokenEmbeddingGpu, BackwardEqualsTheCpuHalf) {
  for (const Tokens& tokens : {kUniform, kOften, kOne, kTwo}) {
    for (const Shape& shape : kShapes) {
      ExpectBackwardTwinsAgree(tokens, shape.sequences, shape.length, 0, 0);
      if (HasFatalFailure()) return;
    }
    ExpectBackwardTwinsAgree(tokens, 9, 65, 8, 0.3);
    ExpectBackwardTwinsAgree(tokens, 9, 65, 1, 0.3);
  }
  ExpectBackwardTwinsAgree(kUniform, 0, 5, 0, 0);
}

INSTANTIATE_TEST_SUITE_P(All, TokenEmbeddingGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBfloat16,
                                                              Precision::kFloat16),
                                            ::testing::Values(1, 7, 8, 48, 129, 768, 1600)));

class TokenEmbeddingGpuManyRows : public TokenEmbeddingGpu {};

TEST_P(TokenEmbeddingGpuManyRows, EqualsTheCpuHalf) {
  ExpectForwardTwinsAgree(70, 1000, 0, 0.3);
  for (const Tokens& tokens : {kUniform, kOften, kOne}) ExpectBackwardTwinsAgree(tokens, 70, 1000, 0, 0.3);
}

INSTANTIATE_TEST_SUITE_P(All, TokenEmbeddingGpuManyRows,
                         ::testing::Values(std::tuple(Precision::kFloat32, 8), std::tuple(Precision::kBfloat16, 40)));

class TokenEmbeddingGpuGraph : public OnGpu<> {};

TEST_F(TokenEmbeddingGpuGraph, AReplayTakesTheTokensAndTheStepThatAreThereThen) {
  constexpr int64_t kSequences = 5, kLength = 60, kWidth = 24, kRows = kSequences * kLength;
  constexpr Precision kPrecision = Precision::kBfloat16;
  const Stream stream;
  const GpuMatrix dx(kPrecision, Rounded(kPrecision, RandomFloats(5, kRows * kWidth)), kRows, kWidth, kWidth, stream);
  DeviceBuffer<uint16_t> ids = Upload(TokensOf(kUniform, kRows), stream);
  DeviceBuffer<DropoutStep> step = Upload(std::vector<DropoutStep>{kStep}, stream);
  const std::vector<float> zeros(kVocabulary * kWidth);
  const GpuMatrix to(Precision::kFloat32, zeros, kVocabulary, kWidth, kWidth, stream);
  const GpuMatrix expected(Precision::kFloat32, zeros, kVocabulary, kWidth, kWidth, stream);
  const std::vector<float> none(kLength * kWidth);
  const GpuMatrix positions(Precision::kFloat32, none, kLength, kWidth, kWidth, stream);
  std::optional<TokenEmbeddingBackwardGpu> backward = TokenEmbeddingBackwardGpu::Make(kRows, kWidth, stream);
  ASSERT_TRUE(backward.has_value());
  const auto queue = [&](const GpuMatrix& token_gradients) {
    backward->Group(ids.data(), kRows, stream);
    backward->Run(kPrecision, kLength, DropoutGpu::Of(0.3, step.data(), kPlace, kLength * kWidth), dx.view(),
                  token_gradients.view(), positions.view(), stream);
  };
  const Graph graph(stream, [&] { queue(to); });
  ids.CopyFrom(TokensOf(kOften, kRows), stream);
  const DropoutStep next = {.seed = 18, .first_sequence = 7};
  step.CopyFrom({&next, 1}, stream);
  stream.Synchronize();
  graph.Replay(stream);
  queue(expected);
  EXPECT_NE(to.Values(stream), zeros);
  EXPECT_EQ(to.Values(stream), expected.Values(stream));
}

}  // namespace
}  // namespace sparrow
