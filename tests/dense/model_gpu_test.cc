#include "dense/model_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/cuda/graph.h"
#include "dense/bce_loss.h"
#include "dense/cast.h"
#include "dense/model.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/model_cases.h"
#include "tests/support/gpu.h"
#include "tests/support/stated_costs.h"

namespace sparrow {
namespace {

using testing::RandomFloats;

constexpr uint64_t kSeed = 4711;

// With shapes near MLPerf's, which kernels have their own ways for.
std::vector<ModelCase> Cases() {
  std::vector<ModelCase> cases = kModelCases;
  cases.insert(cases.end(),
               {
                   {"DlrmMlperf", "dlrm { bottom: 64 bottom: 32 bottom: 128 top: 96 top: 64 top: 1 }", 13,
                    std::vector<uint32_t>(26, 128)},
                   // Gradients of weights fill a GPU more than once.
                   {"DlrmWide", "dlrm { bottom: 64 bottom: 128 top: 1416 top: 1416 top: 72 top: 1 }", 13,
                    std::vector<uint32_t>(26, 128)},
                   {"Dcnv2Mlperf", "dcnv2 { bottom: 64 bottom: 16 cross_layers: 3 cross_rank: 32 top: 64 top: 1 }", 13,
                    std::vector<uint32_t>(26, 16)},
               });
  return cases;
}

// What one training step of a model gives.
struct Step {
  std::vector<float> logits;
  std::vector<float> gradients;
  std::vector<float> sparse_gradients;
  double loss = 0;
};

// The norm of the difference in units of the norm of `expected`: a measure that one unlucky element of many does not
// decide.
double RelativeError(std::span<const float> actual, std::span<const float> expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(actual[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

class ModelGpuTest : public OnGpu<::testing::TestWithParam<ModelCase>> {
 protected:
  static constexpr int64_t kRowsMax = 320;

  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    auto model = MakeModel(ParseModel(GetParam().config), shape(), kSeed);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = std::move(model).value();
    for (uint32_t dim : GetParam().dims) sparse_columns_ += dim;
    // Biases too are not 0; their size keeps activations near 1.
    const std::vector<float> random = RandomFloats(kSeed, model_->weights().size());
    for (const Parameter& parameter : model_->parameters()) {
      if (parameter.shape.size() == 2) continue;
      for (uint64_t i = 0; i < parameter.size; ++i) {
        model_->weights()[parameter.offset + i] = 0.2f * random[parameter.offset + i];
      }
    }
    stream_.emplace();
  }

  ModelShape shape() const { return {.dense_columns = GetParam().dense_columns, .feature_dims = GetParam().dims}; }

  std::unique_ptr<ModelGpu> OnDevice(Precision precision) {
    auto model =
        MakeModelGpu(ParseModel(GetParam().config), shape(), *model_,
                     {.precision = precision, .rows_max = kRowsMax, .deterministic = true, .plan_file = {}}, *stream_);
    EXPECT_TRUE(model.ok()) << model.status();
    return std::move(model).value();
  }

  // Inputs of n rows; the embeddings are numbers that 16 bits hold, as the pooling kernel would leave them.
  void MakeInputs(size_t n, Precision precision) {
    dense_ = RandomFloats(kSeed + n, n * GetParam().dense_columns);
    sparse_ = RandomFloats(kSeed + n + 1, n * sparse_columns_);
    if (ElementBytes(precision) == 2) {
      std::vector<uint16_t> bits(sparse_.size());
      const int64_t size = static_cast<int64_t>(sparse_.size());
      CastCpu(precision, {sparse_.data(), 1, size}, {bits.data(), 1, size, size});
      for (size_t i = 0; i < bits.size(); ++i) sparse_[i] = FromBits(precision, bits[i]);
    }
    labels_ = RandomFloats(kSeed + n + 2, n);
    for (float& label : labels_) label = label > 0 ? 1.0f : 0.0f;
  }

  Step OnCpu() {
    const size_t n = labels_.size();
    Step step{.logits = std::vector<float>(n), .gradients = {}, .sparse_gradients = std::vector<float>(sparse_.size())};
    std::vector<float> logit_gradients(n);
    model_->Forward(dense_, sparse_, step.logits);
    step.loss = BceWithLogitsCpu(step.logits, labels_, logit_gradients);
    model_->Backward(logit_gradients, step.sparse_gradients);
    step.gradients.assign(model_->gradients().begin(), model_->gradients().end());
    return step;
  }

  // The inputs as the first of `rows` rows; those behind are full of old numbers. replay: as a recorded graph, after
  // the first run.
  Step OnGpuWith(ModelGpu* model, Precision precision, int64_t rows, float loss_scale, bool replay) {
    const int64_t n = static_cast<int64_t>(labels_.size());
    const int64_t columns = static_cast<int64_t>(sparse_columns_);
    std::vector<float> padded = dense_;
    padded.resize(rows * GetParam().dense_columns, 0.7f);
    DeviceBuffer<float> dense = Upload(padded, *stream_);
    padded = labels_;
    padded.resize(rows, 1.0f);
    DeviceBuffer<float> labels = Upload(padded, *stream_);
    DeviceBuffer<uint32_t> samples = Upload(std::vector<uint32_t>{static_cast<uint32_t>(n)}, *stream_);
    DeviceBuffer<float> scale = Upload(std::vector<float>{loss_scale}, *stream_);
    DeviceBuffer<float> logits = Upload(std::vector<float>(rows, 9.0f), *stream_);
    DeviceBuffer<double> loss = Upload(std::vector<double>{9.0}, *stream_);
    const DeviceMatrix sparse = model->sparse(rows);
    const size_t element = ElementBytes(precision);
    std::vector<char> row(columns * element);
    for (int64_t i = 0; i < n && columns > 0; ++i) {
      CastCpu(precision, {sparse_.data() + i * columns, 1, columns}, {row.data(), 1, columns, columns});
      internal::CopyToDevice(static_cast<char*>(sparse.data) + i * sparse.stride * element, row.data(), row.size(),
                             *stream_);
      stream_->Synchronize();
    }
    const ModelGpu::Batch batch{.rows = rows,
                                .dense = dense.data(),
                                .labels = labels.data(),
                                .samples = samples.data(),
                                .loss_scale = scale.data(),
                                .logits = logits.data(),
                                .loss_sum = loss.data()};
    const auto work = [&] {
      model->ForwardLoss(batch, *stream_);
      model->Backward(batch, *stream_);
    };
    work();
    if (replay) {
      const Graph graph(*stream_, work);
      graph.Replay(*stream_);
      stream_->Synchronize();
    }
    stream_->Synchronize();

    Step step;
    step.logits = Download(logits, *stream_);
    step.logits.resize(n);
    step.loss = Download(loss, *stream_)[0];
    step.gradients.resize(model_->weights().size());
    std::vector<float> spread(model->parameters()->layout().size());
    internal::CopyToHost(spread.data(), model->parameters()->gradients(), spread.size() * sizeof(float), *stream_);
    stream_->Synchronize();
    model->parameters()->layout().Collect(spread, step.gradients);
    const DeviceMatrix gradients = model->sparse_gradients(rows);
    step.sparse_gradients.resize(n * columns);
    for (int64_t i = 0; i < n && columns > 0; ++i) {
      internal::CopyToHost(row.data(), static_cast<char*>(gradients.data) + i * gradients.stride * element, row.size(),
                           *stream_);
      stream_->Synchronize();
      for (int64_t j = 0; j < columns; ++j) {
        step.sparse_gradients[i * columns + j] =
            element == 2 ? FromBits(precision, reinterpret_cast<const uint16_t*>(row.data())[j])
                         : reinterpret_cast<const float*>(row.data())[j];
      }
    }
    return step;
  }

  std::unique_ptr<Model> model_;
  size_t sparse_columns_ = 0;
  std::vector<float> dense_, sparse_, labels_;
  std::optional<Stream> stream_;
};

// Sums of up to some thousand terms of 24, 11 and 8 bits, through up to seven layers. The loss scale is a power of two.
double ToleranceOf(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return 1e-5;
    case Precision::kTf32:
    case Precision::kFloat16:
      return 1e-2;
    case Precision::kBfloat16:
      return 6e-2;
  }
  return 0;
}

TEST_P(ModelGpuTest, AStepEqualsTheCpusWithinThePrecision) {
  for (Precision precision : {Precision::kFloat32, Precision::kTf32, Precision::kBfloat16, Precision::kFloat16}) {
    const std::unique_ptr<ModelGpu> model = OnDevice(precision);
    const float scale = precision == Precision::kFloat16 ? 64 : 1;
    for (const auto& [n, rows] : std::vector<std::pair<size_t, int64_t>>{{1, 1}, {33, 64}, {257, 320}, {31, 31}}) {
      SCOPED_TRACE(::testing::Message() << "precision " << static_cast<int>(precision) << ", " << n << " of " << rows);
      MakeInputs(n, precision);
      const Step expected = OnCpu();
      Step actual = OnGpuWith(model.get(), precision, rows, scale, /*replay=*/false);
      for (float& gradient : actual.gradients) gradient /= scale;
      for (float& gradient : actual.sparse_gradients) gradient /= scale;
      const double tolerance = ToleranceOf(precision);
      EXPECT_LT(RelativeError(actual.logits, expected.logits), tolerance);
      EXPECT_LT(std::abs(actual.loss - expected.loss), tolerance * expected.loss);
      // A ReLU near 0 may be on in one precision and off in the other.
      EXPECT_LT(RelativeError(actual.gradients, expected.gradients), 5 * tolerance);
      EXPECT_LT(RelativeError(actual.sparse_gradients, expected.sparse_gradients), 5 * tolerance);
    }
  }
}

TEST_P(ModelGpuTest, AReplayedGraphIsEqualBitForBit) {
  for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    const std::unique_ptr<ModelGpu> model = OnDevice(precision);
    MakeInputs(100, precision);
    const Step eager = OnGpuWith(model.get(), precision, 128, 1, /*replay=*/false);
    const Step replayed = OnGpuWith(model.get(), precision, 128, 1, /*replay=*/true);
    EXPECT_EQ(eager.logits, replayed.logits);
    EXPECT_EQ(eager.loss, replayed.loss);
    EXPECT_EQ(eager.gradients, replayed.gradients);
    EXPECT_EQ(eager.sparse_gradients, replayed.sparse_gradients);
  }
}

TEST_P(ModelGpuTest, EveryKernelOfAStepStatesItsCost) {
  for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    const std::unique_ptr<ModelGpu> model = OnDevice(precision);
    MakeInputs(100, precision);
    OnGpuWith(model.get(), precision, 128, 1, /*replay=*/false);  // Products choose.
    ExpectStatedCosts([&] { OnGpuWith(model.get(), precision, 128, 1, /*replay=*/false); });
  }
}

TEST_P(ModelGpuTest, WeightsComeBackAsTheyWere) {
  const std::unique_ptr<ModelGpu> model = OnDevice(Precision::kBfloat16);
  std::vector<float> weights(model_->weights().size());
  model->parameters()->Get(weights, *stream_);
  EXPECT_EQ(weights, std::vector<float>(model_->weights().begin(), model_->weights().end()));
}

INSTANTIATE_TEST_SUITE_P(All, ModelGpuTest, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<ModelCase>& info) { return info.param.name; });

}  // namespace
}  // namespace sparrow
