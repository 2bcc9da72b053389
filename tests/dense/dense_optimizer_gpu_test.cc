// The twins of dense/dense_optimizer.h: several steps with schedule, scale and clipping, against the CPU half.

#include "dense/dense_optimizer_gpu.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/cuda/graph.h"
#include "dense/dense_optimizer.h"
#include "dense/gradient_norm_gpu.h"
#include "embedding/row_codec.h"
#include "tests/dense/double_reference.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

using testing::RandomFloats;

// Of the larger of 1 and the value: a step is a few single-precision operations, of which the halves fuse different
// ones.
constexpr double kTolerance = 1e-6;
constexpr float kUntouched = -123;
constexpr size_t kGuard = 8;  // Elements behind each array, to be left alone.
constexpr int kSteps = 4;
constexpr ClipOptions kClip{.max_norm = 3, .eps = 0.5};

const char* const kKinds[] = {"learning_rate: 0.1 sgd { weight_decay: 0.3 }",
                              "learning_rate: 0.1 momentum { momentum: 0.8 }",
                              "learning_rate: 0.1 adagrad { eps: 0.01 initial_accumulator: 0.2 }",
                              "learning_rate: 0.1 adam { beta1: 0.8 beta2: 0.95 eps: 0.01 }",
                              "learning_rate: 0.1 adamw { beta1: 0.8 beta2: 0.95 eps: 0.01 weight_decay: 0.2 }"};

v1::OptimizerConfig Parse(const std::string& text) {
  v1::OptimizerConfig config;
  CHECK(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

DenseRule RuleOf(const std::string& text) {
  const auto rule = DenseRuleOf(Parse(text));
  CHECK(rule.ok()) << rule.status();
  return *rule;
}

DenseStepOptions OptionsOf(int step) {
  return {.gradient_scale = 0.25 * (step + 1), .learning_rate_factor = 1.0 / (step + 1)};
}

std::vector<float> GradientsOf(int step, size_t n) { return RandomFloats(100 + step, n); }

// An optimizer with its arrays in GPU memory.
class Training {
 public:
  Training(const std::string& kind, size_t n, WeightCopy copy_type)
      : n_(n),
        copy_type_(copy_type),
        optimizer_(DenseOptimizerGpu::Make(RuleOf(kind), static_cast<int64_t>(n), stream_)),
        weights_(Guarded(RandomFloats(5, n))),
        gradients_(Guarded(std::vector<float>(n, 0.0f))),
        copy_(Upload(std::vector<uint16_t>(n + kGuard, 0xabcd), stream_)),
        options_(Upload(std::vector<DenseStepOptions>(1), stream_)),
        clip_(Upload(std::vector<GradientClip>(1), stream_)),
        sums_(MakeGridSums(stream_)) {
    CHECK(optimizer_.has_value() && sums_.has_value());
  }

  void SetInput(const std::vector<float>& gradients, const DenseStepOptions& options) {
    std::vector<float> guarded = gradients;
    guarded.resize(n_ + kGuard, kUntouched);
    gradients_.CopyFrom(guarded, stream_);
    options_.CopyFrom({&options, 1}, stream_);
    stream_.Synchronize();
  }
  void Queue(bool skip_unless_finite = false, bool clip = true, int64_t decayed = INT64_MAX) {
    GradientNormGpu(gradients_.data(), static_cast<int64_t>(n_), options_.data(), kClip, sums_->data(), clip_.data(),
                    stream_);
    optimizer_->Step({.weights = weights_.data(),
                      .gradients = gradients_.data(),
                      .copy_type = copy_type_,
                      .copy = copy_type_ == WeightCopy::kNone ? nullptr : copy_.data(),
                      .options = options_.data(),
                      .clip = clip ? clip_.data() : nullptr,
                      .decayed = decayed,
                      .skip_unless_finite = skip_unless_finite},
                     stream_);
  }
  void Step(int step) {
    SetInput(GradientsOf(step, n_), OptionsOf(step));
    Queue();
  }

  // Weights and, behind them, states; checks that what is behind the arrays has been left alone.
  std::vector<std::vector<float>> Values() {
    std::vector<std::vector<float>> values = {Download(weights_, stream_)};
    for (size_t i = n_; i < n_ + kGuard; ++i) EXPECT_EQ(values[0][i], kUntouched) << "written beyond the end";
    values[0].resize(n_);
    for (const DeviceBuffer<float>& state : optimizer_->states()) values.push_back(Download(state, stream_));
    return values;
  }
  std::vector<uint16_t> Copy() {
    std::vector<uint16_t> copy = Download(copy_, stream_);
    for (size_t i = n_; i < n_ + kGuard; ++i) EXPECT_EQ(copy[i], 0xabcd) << "written beyond the end";
    copy.resize(n_);
    return copy;
  }
  uint64_t Updates() {
    uint64_t updates = 0;
    optimizer_->CopyUpdatesTo(&updates, stream_);
    stream_.Synchronize();
    return updates;
  }
  void Restore(const std::vector<std::vector<float>>& values, uint64_t updates) {
    std::vector<float> weights = values[0];
    weights.resize(n_ + kGuard, kUntouched);
    weights_.CopyFrom(weights, stream_);
    for (size_t s = 0; s + 1 < values.size(); ++s) optimizer_->states()[s].CopyFrom(values[s + 1], stream_);
    optimizer_->SetUpdates(updates, stream_);
    stream_.Synchronize();
  }
  const Stream& stream() const { return stream_; }

 private:
  DeviceBuffer<float> Guarded(std::vector<float> values) {
    values.resize(n_ + kGuard, kUntouched);
    return Upload(values, stream_);
  }

  const Stream stream_;
  const size_t n_;
  const WeightCopy copy_type_;
  std::optional<DenseOptimizerGpu> optimizer_;
  DeviceBuffer<float> weights_, gradients_;
  DeviceBuffer<uint16_t> copy_;
  DeviceBuffer<DenseStepOptions> options_;
  DeviceBuffer<GradientClip> clip_;
  std::optional<DeviceBuffer<GridSums>> sums_;
};

class DenseOptimizerGpuTwins : public OnGpu<::testing::TestWithParam<std::tuple<const char*, int, WeightCopy>>> {};

TEST_P(DenseOptimizerGpuTwins, StepsEqualTheCpuHalfAndThemselves) {
  const auto [kind, n, copy_type] = GetParam();
  auto made = MakeDenseOptimizer(Parse(kind), n);
  ASSERT_TRUE(made.ok()) << made.status();
  DenseOptimizer& cpu = **made;
  std::vector<float> expected = RandomFloats(5, n);
  Training run(kind, n, copy_type);
  Training again(kind, n, copy_type);
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> gradients = GradientsOf(step, n);
    DenseStepOptions options = OptionsOf(step);
    options.gradient_scale *= GradientNormCpu(gradients, options.gradient_scale, kClip).scale;
    cpu.Step(expected, gradients, options);
    run.Step(step);
    again.Step(step);
  }

  const auto values = run.Values();
  const auto states = cpu.states();
  ASSERT_EQ(values.size(), states.size() + 1);
  for (size_t v = 0; v < values.size(); ++v) {
    for (int i = 0; i < n; ++i) {
      const double want = v == 0 ? expected[i] : states[v - 1].values[i];
      ASSERT_NEAR(values[v][i], want, kTolerance * std::max(1.0, std::abs(want))) << "array " << v << ", element " << i;
    }
  }
  EXPECT_EQ(run.Updates(), static_cast<uint64_t>(kSteps));
  EXPECT_EQ(values, again.Values()) << "two runs must agree bit for bit";
  EXPECT_EQ(run.Copy(), again.Copy());

  std::vector<uint16_t> copy(n, 0xabcd);
  if (copy_type != WeightCopy::kNone && n > 0) {
    uint64_t saturated = 0;
    EncodeRowsCpu(copy_type == WeightCopy::kBfloat16 ? RowType::kBfloat16 : RowType::kFloat16, values[0], n,
                  reinterpret_cast<char*>(copy.data()), &saturated);
  }
  EXPECT_EQ(run.Copy(), copy) << "the copy is the weights, rounded";
}

INSTANTIATE_TEST_SUITE_P(
    All, DenseOptimizerGpuTwins,
    ::testing::Combine(::testing::ValuesIn(kKinds), ::testing::Values(0, 1, 2, 3, 4, 31, 32, 33, 257, 70'001),
                       ::testing::Values(WeightCopy::kNone, WeightCopy::kBfloat16, WeightCopy::kFloat16)));

// More than one piece a thread on the largest GPU.
INSTANTIATE_TEST_SUITE_P(Large, DenseOptimizerGpuTwins,
                         ::testing::Combine(::testing::ValuesIn(kKinds), ::testing::Values(5'000'003),
                                            ::testing::Values(WeightCopy::kBfloat16)));

class DenseOptimizerGpuKinds : public OnGpu<::testing::TestWithParam<const char*>> {};
INSTANTIATE_TEST_SUITE_P(Kinds, DenseOptimizerGpuKinds, ::testing::ValuesIn(kKinds));

TEST_P(DenseOptimizerGpuKinds, AReplayedGraphEqualsStepsBitForBit) {
  constexpr size_t kSize = 10'007;
  Training direct(GetParam(), kSize, WeightCopy::kBfloat16);
  Training replayed(GetParam(), kSize, WeightCopy::kBfloat16);
  const Graph graph(replayed.stream(), [&] { replayed.Queue(); });
  EXPECT_EQ(replayed.Updates(), 0u) << "recording runs nothing";
  for (int step = 0; step < kSteps; ++step) {
    direct.Step(step);
    replayed.SetInput(GradientsOf(step, kSize), OptionsOf(step));
    graph.Replay(replayed.stream());
  }
  EXPECT_EQ(direct.Values(), replayed.Values());
  EXPECT_EQ(direct.Copy(), replayed.Copy());
  EXPECT_EQ(replayed.Updates(), static_cast<uint64_t>(kSteps));
}

TEST_P(DenseOptimizerGpuKinds, RestoredStateContinuesBitForBit) {
  constexpr size_t kSize = 257;
  Training first(GetParam(), kSize, WeightCopy::kNone);
  for (int step = 0; step < kSteps; ++step) first.Step(step);
  Training second(GetParam(), kSize, WeightCopy::kNone);
  second.Restore(first.Values(), first.Updates());
  first.Step(kSteps);
  second.Step(kSteps);
  EXPECT_EQ(first.Values(), second.Values());
}

TEST_P(DenseOptimizerGpuKinds, AGradientThatIsNotFiniteIsSkippedWhereAskedAndShownElsewhere) {
  constexpr size_t kSize = 1027;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Training run(GetParam(), kSize, WeightCopy::kBfloat16);
    run.Step(0);
    const auto values = run.Values();
    const auto copy = run.Copy();
    std::vector<float> gradients = GradientsOf(1, kSize);
    gradients[1026] = bad;
    run.SetInput(gradients, OptionsOf(1));
    run.Queue(/*skip_unless_finite=*/true);
    EXPECT_EQ(run.Values(), values);
    EXPECT_EQ(run.Copy(), copy);
    EXPECT_EQ(run.Updates(), 1u);
    run.Queue(/*skip_unless_finite=*/false);
    EXPECT_TRUE(std::isnan(run.Values()[0][1026]));
    EXPECT_EQ(run.Updates(), 2u);
  }
}

TEST_P(DenseOptimizerGpuKinds, AScaleThatIsNotANumberShutsTheGate) {
  constexpr size_t kSize = 1027;
  for (const bool clip : {false, true}) {
    Training run(GetParam(), kSize, WeightCopy::kBfloat16);
    run.Step(0);
    const auto values = run.Values();
    run.SetInput(GradientsOf(1, kSize), {.gradient_scale = std::numeric_limits<double>::quiet_NaN()});
    run.Queue(/*skip_unless_finite=*/true, clip);
    EXPECT_EQ(run.Values(), values);
    EXPECT_EQ(run.Updates(), 1u);
    run.SetInput(GradientsOf(1, kSize), OptionsOf(1));
    run.Queue(/*skip_unless_finite=*/true, clip);
    EXPECT_NE(run.Values(), values);
    EXPECT_EQ(run.Updates(), 2u);
  }
}

TEST_P(DenseOptimizerGpuKinds, ASkippedStepIsAsIfItHadNotBeen) {
  constexpr size_t kSize = 1027;
  Training skipping(GetParam(), kSize, WeightCopy::kNone);
  Training straight(GetParam(), kSize, WeightCopy::kNone);
  skipping.Step(0);
  skipping.SetInput(std::vector<float>(kSize, std::numeric_limits<float>::infinity()), OptionsOf(1));
  skipping.Queue(/*skip_unless_finite=*/true);
  skipping.Step(1);
  straight.Step(0);
  straight.Step(1);
  EXPECT_EQ(skipping.Values(), straight.Values());
}

TEST_P(DenseOptimizerGpuKinds, AWeightDecayIsForTheFirstElementsAlone) {
  constexpr size_t kSize = 1027;
  // Within a thread's four elements, at their border, among the last ones, none and all.
  for (const size_t decayed : {size_t{0}, size_t{1}, size_t{514}, size_t{516}, size_t{1025}, kSize, kSize + 5}) {
    auto cpu = MakeDenseOptimizer(Parse(GetParam()), kSize, decayed);
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    std::vector<float> expected = RandomFloats(5, kSize);
    Training run(GetParam(), kSize, WeightCopy::kBfloat16);
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<float> gradients = GradientsOf(step, kSize);
      (*cpu)->Step(expected, gradients, OptionsOf(step));
      run.SetInput(gradients, OptionsOf(step));
      run.Queue(/*skip_unless_finite=*/false, /*clip=*/false, static_cast<int64_t>(decayed));
    }
    const std::vector<float> weights = run.Values()[0];
    for (size_t i = 0; i < kSize; ++i) {
      ASSERT_NEAR(weights[i], expected[i], kTolerance * std::max(1.0, std::abs(static_cast<double>(expected[i]))))
          << "element " << i << ", decayed " << decayed;
    }
  }
}

}  // namespace
}  // namespace sparrow
