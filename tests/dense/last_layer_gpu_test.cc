// The twins of dense/last_layer.h.

#include "dense/last_layer_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "base/cuda/graph.h"
#include "dense/last_layer.h"
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

// Of the sum of absolute values: sums of at most 4,096 products in float32, in different orders.
constexpr double kSumTolerance = 4e-6;
// A logit's gradient is rounded to float once.
constexpr double kGradientTolerance = 6e-8;

struct Case {
  Case(Precision precision, int64_t n, int64_t in, bool relu) : n(n), in(in) {
    const uint64_t seed = 131 * n + in;
    h = Rounded(precision, RandomFloats(seed, n * in));
    // As a ReLU leaves it, but for the negative numbers, which tell "not above 0" from "is 0".
    for (size_t i = 0; relu && i < h.size(); i += 3) h[i] = 0;
    w = RandomFloats(seed + 1, in);
    for (float& value : w) value *= 4 / std::sqrt(static_cast<float>(in));
    b = {0.375f};
    labels = RandomFloats(seed + 2, n);
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = i % 3 == 0 ? 0.25f : labels[i] > 0;
  }

  int64_t n, in;
  std::vector<float> h, w, b, labels;
};

struct Results {
  std::vector<float> logits, h, w, b;
  double loss;
};

Results OfCpu(const Case& c, bool relu, int64_t samples, float scale) {
  Results r{std::vector<float>(c.n), std::vector<float>(c.n * c.in), std::vector<float>(c.in), std::vector<float>(1),
            0};
  r.loss = LastLayerLossCpu(View(c.h, c.n, c.in), {c.w.data(), c.b.data(), relu}, c.labels, samples, scale, r.logits,
                            {View(&r.h, c.n, c.in), r.w, r.b.data()});
  return r;
}

// A case on the GPU.
class OnDevice {
 public:
  OnDevice(const Case& c, Precision precision, bool relu, uint32_t samples, float scale, int64_t gap)
      : precision_(precision),
        relu_(relu),
        h_(precision, c.h, c.n, c.in, PaddedColumns(c.in) + gap, stream_),
        h_gradients_(precision, c.n, c.in, PaddedColumns(c.in) + gap, stream_),
        w_(Upload(c.w, stream_)),
        b_(Upload(c.b, stream_)),
        labels_(Upload(c.labels, stream_)),
        samples_(Upload(std::vector<uint32_t>{samples}, stream_)),
        scale_(Upload(std::vector<float>{scale}, stream_)),
        logits_(Upload(std::vector<float>(c.n, kNan), stream_)),
        w_gradients_(Upload(std::vector<float>(c.in, kNan), stream_)),
        b_gradients_(Upload(std::vector<float>(1, kNan), stream_)),
        loss_(Upload(std::vector<double>(1, -1), stream_)),
        workspace_(Upload(std::vector<char>(LastLayerWorkspaceBytes(c.n, c.in), '\x7f'), stream_)) {}

  void Queue(bool in_place, bool logits) {
    LastLayerLossGpu(precision_, h_.view(), layer(), labels_.data(), samples_.data(), scale_.data(),
                     logits ? logits_.data() : nullptr, in_place ? h_.view() : h_gradients_.view(), w_gradients_.data(),
                     b_gradients_.data(), loss_.data(), workspace_.data(), stream_);
  }
  Results Get(bool in_place = false) {
    return {Download(logits_, stream_), (in_place ? h_ : h_gradients_).Values(stream_), Download(w_gradients_, stream_),
            Download(b_gradients_, stream_), Download(loss_, stream_)[0]};
  }
  std::vector<float> Logits() {
    LastLayerForwardGpu(precision_, h_.view(), layer(), logits_.data(), stream_);
    return Download(logits_, stream_);
  }
  void CopySamples(uint32_t samples) {
    samples_.CopyFrom({&samples, 1}, stream_);
    stream_.Synchronize();
  }
  const Stream& stream() const { return stream_; }

 private:
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  LastLayer layer() const { return {w_.data(), b_.data(), relu_}; }

  const Stream stream_;
  const Precision precision_;
  const bool relu_;
  GpuMatrix h_, h_gradients_;
  DeviceBuffer<float> w_, b_, labels_;
  DeviceBuffer<uint32_t> samples_;
  DeviceBuffer<float> scale_, logits_, w_gradients_, b_gradients_;
  DeviceBuffer<double> loss_;
  DeviceBuffer<char> workspace_;
};

void ExpectNear(const Results& actual, const Results& expected, const Case& c, Precision precision, int64_t samples,
                float scale) {
  std::vector<float> absolute(c.n);
  const std::vector<float> h = Absolute(c.h), w = Absolute(c.w);
  LastLayerForwardCpu(View(h, c.n, c.in), {w.data(), c.b.data(), false}, absolute);
  const double u = Roundoff(precision);
  double loss_tolerance = 1e-12 * expected.loss, b_tolerance = 0;
  std::vector<double> w_tolerance(c.in);
  for (int64_t i = 0; i < c.n; ++i) {
    const double logit_tolerance = kSumTolerance * absolute[i];
    ASSERT_NEAR(actual.logits[i], expected.logits[i], logit_tolerance) << "logit " << i;
    if (i < samples) loss_tolerance += logit_tolerance;  // The loss's derivative is at most 1, the gradient's 1/4.
    const double tolerance = i < samples ? scale * (kGradientTolerance + logit_tolerance / 4) : 0;
    b_tolerance += tolerance + 1e-6 * scale;
    for (int64_t j = 0; j < c.in; ++j) {
      const double gradient = expected.h[i * c.in + j];
      ASSERT_NEAR(actual.h[i * c.in + j], gradient, u * 1.01 * std::abs(gradient) + 1.01 * tolerance * w[j])
          << "row " << i << ", column " << j;
      w_tolerance[j] += h[i * c.in + j] * (tolerance + 1e-6 * scale);  // Blocks sum some hundred rows in float32.
    }
  }
  for (int64_t j = 0; j < c.in; ++j) ASSERT_NEAR(actual.w[j], expected.w[j], w_tolerance[j]) << "w " << j;
  ASSERT_NEAR(actual.b[0], expected.b[0], b_tolerance);
  ASSERT_NEAR(actual.loss, expected.loss, loss_tolerance);
}

void ExpectTwinsAgree(Precision precision, int64_t n, int64_t in, bool relu, int64_t samples, int64_t gap) {
  const float scale = precision == Precision::kFloat16 ? 64 : 0.5f;
  SCOPED_TRACE(::testing::Message() << testing::NameOf(precision) << ", n " << n << ", in " << in << ", relu " << relu
                                    << ", samples " << samples << ", gap " << gap);
  const Case c(precision, n, in, relu);
  const Results expected = OfCpu(c, relu, samples, scale);
  OnDevice d(c, precision, relu, static_cast<uint32_t>(samples), scale, gap);
  const std::vector<float> logits = d.Logits();
  d.Queue(false, true);
  const Results actual = d.Get();
  ExpectNear(actual, expected, c, precision, std::min(samples, n), scale);
  EXPECT_EQ(actual.logits, logits) << "both functions must compute the same logits";

  d.Queue(true, false);
  const Results again = d.Get(true);
  EXPECT_EQ(again.h, actual.h) << "two runs, in place and apart, must agree bit for bit";
  EXPECT_EQ(again.w, actual.w);
  EXPECT_EQ(again.b, actual.b);
  EXPECT_EQ(again.loss, actual.loss);
}

class LastLayerGpu : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int>>> {};

TEST_P(LastLayerGpu, EqualsTheCpuHalfAndItself) {
  const auto [precision, in] = GetParam();
  for (const int64_t n : {0, 1, 31, 32, 33, 257}) {
    for (const bool relu : {false, true}) ExpectTwinsAgree(precision, n, in, relu, n - n / 5, 0);
    if (HasFatalFailure()) return;
  }
  ExpectTwinsAgree(precision, 33, in, true, 0, 8);
  ExpectTwinsAgree(precision, 33, in, true, 1000, 3);
}

INSTANTIATE_TEST_SUITE_P(All, LastLayerGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kTf32,
                                                              Precision::kBfloat16, Precision::kFloat16),
                                            ::testing::Values(1, 7, 8, 16, 129, 256, 264, 512, 1024, 1032, 2047,
                                                              4096)));

class LastLayerGpuOnce : public OnGpu<> {};

TEST_F(LastLayerGpuOnce, ManyRows) {
  ExpectTwinsAgree(Precision::kBfloat16, 70'001, 16, true, 70'000, 0);  // More rows than the blocks take at once.
  ExpectTwinsAgree(Precision::kFloat32, 70'001, 24, false, 65'537, 0);
  ExpectTwinsAgree(Precision::kFloat16, 70'001, 7, true, 70'001, 0);
  ExpectTwinsAgree(Precision::kBfloat16, 70'001, 256, true, 69'000, 0);
  ExpectTwinsAgree(Precision::kFloat32, 70'001, 520, true, 70'001, 0);  // In two passes.
}

TEST_F(LastLayerGpuOnce, AGraphReplaysWithAnotherNumberOfSamples) {
  const Case c(Precision::kBfloat16, 257, 256, true);
  OnDevice d(c, Precision::kBfloat16, true, 257, 2, 0);
  const Graph graph(d.stream(), [&] { d.Queue(false, true); });
  for (const uint32_t samples : {257, 100, 0}) {
    d.CopySamples(samples);
    graph.Replay(d.stream());
    ExpectNear(d.Get(), OfCpu(c, true, samples, 2), c, Precision::kBfloat16, samples, 2);
  }
}

TEST_F(LastLayerGpuOnce, NanIsNotHidden) {
  for (const int64_t in : {16, 7}) {
    Case c(Precision::kFloat32, 33, in, true);
    c.h[5 * in + 2] = std::numeric_limits<float>::quiet_NaN();
    OnDevice d(c, Precision::kFloat32, true, 33, 1, 0);
    d.Queue(false, true);
    const Results results = d.Get();
    EXPECT_TRUE(std::isnan(results.loss));
    EXPECT_TRUE(std::isnan(results.logits[5]));
    EXPECT_TRUE(std::isnan(results.h[5 * in + 2]));
    EXPECT_TRUE(std::isnan(results.w[0]));
    EXPECT_FALSE(std::isnan(results.logits[4]));
  }
}

}  // namespace
}  // namespace sparrow
