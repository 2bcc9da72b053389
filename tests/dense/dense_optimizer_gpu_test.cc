// The twins of dense/dense_optimizer.h: several steps with schedule, scale and clipping, against the CPU half.

#include "dense/dense_optimizer_gpu.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/cuda/graph.h"
#include "dense/dense_optimizer.h"
#include "dense/dense_parameters.h"
#include "dense/device_layout.h"
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
                              "learning_rate: 0.1 adamw { beta1: 0.8 beta2: 0.95 eps: 0.01 weight_decay: 0.2 }",
                              "learning_rate: 0.1 lamb { beta1: 0.8 beta2: 0.95 eps: 0.01 weight_decay: 0.2 }"};

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
  // Of one tensor, and what is not decayed.
  Training(const std::string& kind, size_t n, WeightCopy copy_type, size_t decayed = SIZE_MAX)
      : Training(kind, RandomFloats(5, n), copy_type, decayed, {{{0, std::min(n, decayed)}}}) {}
  Training(const std::string& kind, const std::vector<float>& weights, WeightCopy copy_type, size_t decayed,
           const std::vector<Slice>& tensors)
      : n_(weights.size()),
        decayed_(decayed),
        copy_type_(copy_type),
        optimizer_(DenseOptimizerGpu::Make(RuleOf(kind), static_cast<int64_t>(n_), stream_, tensors)),
        weights_(Guarded(weights)),
        gradients_(Guarded(std::vector<float>(n_, 0.0f))),
        copy_(Upload(std::vector<uint16_t>(n_ + kGuard, 0xabcd), stream_)),
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
  DenseOptimizerGpu::StepArguments Arguments(bool skip_unless_finite, bool clip) {
    return {.weights = weights_.data(),
            .gradients = gradients_.data(),
            .copy_type = copy_type_,
            .copy = copy_type_ == WeightCopy::kNone ? nullptr : copy_.data(),
            .options = options_.data(),
            .clip = clip ? clip_.data() : nullptr,
            .decayed = static_cast<int64_t>(std::min<size_t>(decayed_, INT64_MAX)),
            .skip_unless_finite = skip_unless_finite};
  }
  void Queue(bool skip_unless_finite = false, bool clip = true) {
    GradientNormGpu(gradients_.data(), static_cast<int64_t>(n_), options_.data(), kClip, sums_->data(), clip_.data(),
                    stream_);
    optimizer_->Step(Arguments(skip_unless_finite, clip), stream_);
  }
  // The halves of a step without clipping.
  std::span<LambSums> Begin() { return optimizer_->Begin(Arguments(false, false), stream_); }
  void End() { optimizer_->End(Arguments(false, false), stream_); }
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
  const size_t decayed_;
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
    Training run(GetParam(), kSize, WeightCopy::kBfloat16, decayed);
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<float> gradients = GradientsOf(step, kSize);
      (*cpu)->Step(expected, gradients, OptionsOf(step));
      run.SetInput(gradients, OptionsOf(step));
      run.Queue(/*skip_unless_finite=*/false, /*clip=*/false);
    }
    const std::vector<float> weights = run.Values()[0];
    for (size_t i = 0; i < kSize; ++i) {
      ASSERT_NEAR(weights[i], expected[i], kTolerance * std::max(1.0, std::abs(static_cast<double>(expected[i]))))
          << "element " << i << ", decayed " << decayed;
    }
  }
}

constexpr char kLamb[] = "learning_rate: 0.1 lamb { beta1: 0.8 beta2: 0.95 eps: 0.01 weight_decay: 0.2 }";

// A model of tensors that a GPU pads, one of zeros, and some without a ratio between those that have one.
class Tensors final : public DenseParameters {
 public:
  Tensors() {
    for (const std::vector<uint64_t>& shape : std::vector<std::vector<uint64_t>>{
             {300, 70}, {3, 5}, {1, 1}, {257}, {90, 100}, {1}, {1, 1}, {7, 9001}, {3}, {129, 31}}) {
      const uint64_t size = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
      parameters_.push_back(
          {.name = "t" + std::to_string(parameters_.size()), .shape = shape, .offset = weights_.size(), .size = size});
      const std::vector<float> values = RandomFloats(parameters_.size(), size);
      weights_.insert(weights_.end(), values.begin(), values.end());
      if (shape[0] == 90) std::fill(weights_.end() - static_cast<int64_t>(size), weights_.end(), 0.0f);
    }
    gradients_.resize(weights_.size());
  }
};

class LambGpu : public OnGpu<> {
 protected:
  std::vector<float> Spread(std::span<const float> host) const {
    std::vector<float> device(static_cast<size_t>(layout_.size()));
    layout_.Spread(host, device);
    return device;
  }

  Tensors model_;
  const DeviceLayout layout_{model_.parameters(), {{"t0", {.transposed = true}}, {"t4", {.rows_multiple = 128}}}};
};

TEST_F(LambGpu, ManyTensorsInAGpusLayoutAreUpdatedAsTheCpus) {
  const size_t n = model_.weights().size();
  const auto cpu = MakeDenseOptimizer(Parse(kLamb), model_).value();
  Training run(kLamb, Spread(model_.weights()), WeightCopy::kBfloat16, SIZE_MAX, layout_.Matrices());
  Training again(kLamb, Spread(model_.weights()), WeightCopy::kBfloat16, SIZE_MAX, layout_.Matrices());
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> gradients = GradientsOf(step, n);
    DenseStepOptions options = OptionsOf(step);
    for (Training* training : {&run, &again}) {
      training->SetInput(Spread(gradients), options);
      training->Queue();
    }
    options.gradient_scale *= GradientNormCpu(gradients, options.gradient_scale, kClip).scale;
    cpu->Step(model_.weights(), gradients, options);
  }
  const auto values = run.Values();
  EXPECT_EQ(values, again.Values());
  EXPECT_EQ(values[0], Spread([&] {
              std::vector<float> collected(n);
              layout_.Collect(values[0], collected);
              return collected;
            }()))
      << "padding stays 0";
  const auto states = cpu->states();
  for (size_t v = 0; v < values.size(); ++v) {
    const std::span<const float> host = v == 0 ? std::span<const float>(model_.weights()) : states[v - 1].values;
    const std::vector<float> expected = Spread(host);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(values[v][i], expected[i], kTolerance * std::max(1.0f, std::abs(expected[i])))
          << "array " << v << ", element " << i;
    }
  }
}

// Of whatever slices, the sums of some of whose tensors are of nothing.
TEST_F(LambGpu, OptimizersOfSlicesWhoseSumsAreAddedAreOneOfAll) {
  const std::vector<float> weights = Spread(model_.weights());
  const size_t size = weights.size();
  const std::vector<Slice> tensors = layout_.Matrices();
  for (const size_t cut : {size_t{4}, size_t{21'004}, size_t{41'000}, size - 4}) {
    Training whole(kLamb, weights, WeightCopy::kNone, SIZE_MAX, tensors);
    std::vector<std::unique_ptr<Training>> parts;
    const Slice slices[] = {{0, cut}, {cut, size}};
    for (const Slice& slice : slices) {
      std::vector<Slice> inside;
      for (const Slice& tensor : tensors) {
        inside.push_back({std::clamp(tensor.begin, slice.begin, slice.end) - slice.begin,
                          std::clamp(tensor.end, slice.begin, slice.end) - slice.begin});
      }
      parts.push_back(std::make_unique<Training>(
          kLamb, std::vector<float>(weights.begin() + slice.begin, weights.begin() + slice.end), WeightCopy::kNone,
          SIZE_MAX, inside));
    }
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<float> gradients = Spread(GradientsOf(step, model_.weights().size()));
      whole.SetInput(gradients, OptionsOf(step));
      whole.Queue(/*skip_unless_finite=*/false, /*clip=*/false);
      std::vector<std::span<LambSums>> sums;
      std::vector<LambSums> total(tensors.size()), of_part(tensors.size());
      for (size_t p = 0; p < parts.size(); ++p) {
        parts[p]->SetInput({gradients.begin() + slices[p].begin, gradients.begin() + slices[p].end}, OptionsOf(step));
        sums.push_back(parts[p]->Begin());
        ASSERT_EQ(sums[p].size(), tensors.size());
        internal::CopyToHost(of_part.data(), sums[p].data(), sums[p].size_bytes(), parts[p]->stream());
        parts[p]->stream().Synchronize();
        for (size_t t = 0; t < total.size(); ++t) {
          total[t].weights += of_part[t].weights;
          total[t].directions += of_part[t].directions;
        }
      }
      for (size_t p = 0; p < parts.size(); ++p) {
        internal::CopyToDevice(sums[p].data(), total.data(), sums[p].size_bytes(), parts[p]->stream());
        parts[p]->End();
      }
    }
    const std::vector<float> expected = whole.Values()[0];
    std::vector<float> actual;
    for (const auto& part : parts) {
      const std::vector<float> values = part->Values()[0];
      actual.insert(actual.end(), values.begin(), values.end());
    }
    for (size_t i = 0; i < size; ++i) {
      ASSERT_NEAR(actual[i], expected[i], kTolerance * std::max(1.0f, std::abs(expected[i]))) << cut << ", " << i;
    }
  }
}

}  // namespace
}  // namespace sparrow
