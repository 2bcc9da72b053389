// What a step does with bags that are malformed, and with a batch of no rows.

#include "worker/prepared_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dense/model.h"
#include "tests/worker/fake_transport.h"
#include "tests/worker/training_harness.h"
#include "worker/batch_model.h"
#include "worker/batch_trainer.h"
#include "worker/job_layout.h"
#include "worker/ps_client.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::vector<uint32_t> DimsOf(const JobLayout& layout) {
  std::vector<uint32_t> dims;
  for (const JobLayout::Table& table : layout.tables) dims.push_back(table.dim);
  return dims;
}

class PreparedBatchTest : public ::testing::Test {
 protected:
  PreparedBatchTest() : layout_(MakeJobLayout(ClickJob())), server_(DimsOf(layout_)) {
    std::vector<PsServer> servers;
    servers.push_back({"fake", std::make_unique<FakeTransport>(&server_)});
    PsClientOptions options;
    options.tables = layout_.Shapes();
    client_ = std::make_unique<PsClient>(options, ShardAssignment::RowWise(1), std::move(servers));
    auto model = MakeModel(ClickJob().model(), {layout_.dense_columns, layout_.FeatureDims()}, 3);
    CHECK(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  // Two rows: one id in a and c, bags of two and none in b.
  static Batch GoodBatch() {
    Batch batch;
    batch.rows = 2;
    batch.labels = {0, 1};
    batch.dense = {1, 2, 3, 4};
    batch.features = {{{0, 1, 2}, {7, 8}, {}}, {{0, 2, 2}, {5, 6}, {}}, {{0, 1, 2}, {5, 9}, {}}};
    return batch;
  }
  absl::Status Prepare(Batch batch) {
    prepared_.batch = std::move(batch);
    return PrepareBatch(layout_, *client_, /*before=*/nullptr, &prepared_);
  }
  BatchModel::Result Step() {
    for (const std::span<float> rows : prepared_.rows) std::fill(rows.begin(), rows.end(), 0.5f);
    return batch_model_->ForwardBackward(prepared_);
  }

  const JobLayout layout_;
  FakeServer server_;
  std::unique_ptr<PsClient> client_;
  std::unique_ptr<Model> model_;
  PreparedBatch prepared_;
  std::unique_ptr<BatchModel> batch_model_;
};

// https://github.com/pytorch/pytorch/issues/193095
TEST_F(PreparedBatchTest, MalformedOffsetsAreRefusedByFeatureAndTheNextBatchIsServed) {
  const struct {
    std::vector<uint32_t> offsets;  // Of b: two rows, two look-ups.
    const char* says;
  } cases[] = {
      {{1, 2, 2}, "offsets[0] is 1"},
      {{static_cast<uint32_t>(-1000), 2, 2}, "offsets[0] is 4294966296"},
      {{0, 2, 1}, "offsets[2] is 1, below offsets[1], which is 2"},
      {{0, 2, 3}, "last offset is 3, but there are 2"},
      {{0, 1, 1}, "last offset is 1, but there are 2"},
      {{0, 2}, "has 1 bags in a batch of 2 rows"},
      {{0, 2, 2, 2}, "has 3 bags in a batch of 2 rows"},
      {{0}, "has 0 bags in a batch of 2 rows"},
      {{}, "has 0 bags in a batch of 2 rows"},
  };
  for (const auto& c : cases) {
    Batch batch = GoodBatch();
    batch.features[1].offsets = c.offsets;
    const absl::Status status = Prepare(batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.says;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("feature \"b\""), HasSubstr(c.says)));
    EXPECT_EQ(CheckBatch(layout_, batch), status) << "whoever makes the keys unique";
  }
  Batch no_ids = GoodBatch();  // Rows, but neither offsets nor ids.
  no_ids.features[1] = {};
  EXPECT_EQ(Prepare(no_ids).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Prepare(GoodBatch()).ok());
}

// Features and tables are there, rows are not, and offsets may be too:
// https://github.com/meta-pytorch/torchrec/pull/4638
TEST_F(PreparedBatchTest, ABatchWithoutRowsHasNoLossAndGradientsOfZero) {
  for (const uint64_t cut : {0, 16}) {
    batch_model_ = std::make_unique<BatchModel>(&layout_, model_.get(), cut);
    for (const bool with_offsets : {true, false}) {
      ASSERT_TRUE(Prepare(GoodBatch()).ok());  // What it leaves behind is not taken for the next batch's.
      EXPECT_GT(Step().loss_sum, 0);
      Batch none;
      none.features.resize(3);
      if (with_offsets) {
        for (SparseFeature& feature : none.features) feature.offsets = {0};
      }
      const absl::Status status = Prepare(none);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(prepared_.partition.rows(), 0u);
      const BatchModel::Result result = Step();
      EXPECT_EQ(result.loss_sum, 0);
      EXPECT_EQ(result.gradients.size(), model_->weights().size());
      EXPECT_THAT(result.gradients, Each(0.0f));
      ASSERT_EQ(result.row_gradients.size(), 2u);
      for (const std::span<const float> rows : result.row_gradients) EXPECT_TRUE(rows.empty());
    }
  }
}

// SGD with a rate of 1: the step is the gradient.
TEST_F(PreparedBatchTest, TheDenseGradientIsClippedByItsNormAndNotWhereItIsSmaller) {
  v1::OptimizerConfig sgd;
  sgd.set_learning_rate(1);
  sgd.mutable_sgd();
  const auto step_of = [&](std::optional<double> clip_norm) {
    auto model = MakeModel(ClickJob().model(), {layout_.dense_columns, layout_.FeatureDims()}, 3);
    auto optimizer = MakeDenseOptimizer(sgd, (*model)->weights().size());
    EXPECT_TRUE(model.ok() && optimizer.ok());
    const std::vector<float> before((*model)->weights().begin(), (*model)->weights().end());
    const std::unique_ptr<BatchTrainer> trainer = MakeCpuBatchTrainer(
        {.layout = &layout_, .model = model->get(), .optimizer = optimizer->get(), .clip_norm = clip_norm}, /*cut=*/0);
    EXPECT_TRUE(Prepare(GoodBatch()).ok());
    for (const std::span<float> rows : prepared_.rows) std::fill(rows.begin(), rows.end(), 0.5f);
    EXPECT_TRUE(trainer->Start(prepared_, /*learning_rate_factor=*/1).ok());
    EXPECT_TRUE(trainer->Finish().ok());
    EXPECT_TRUE(trainer->UpdateDense(prepared_.batch.rows, 1).ok());
    std::vector<double> step(before.size());
    for (size_t i = 0; i < before.size(); ++i) step[i] = static_cast<double>(before[i]) - (*model)->weights()[i];
    return step;
  };
  const auto norm_of = [](const std::vector<double>& step) {
    double sum = 0;
    for (const double x : step) sum += x * x;
    return std::sqrt(sum);
  };
  const std::vector<double> whole = step_of(std::nullopt);
  const double norm = norm_of(whole);
  ASSERT_GT(norm, 0);
  EXPECT_EQ(step_of(2 * norm), whole);
  const std::vector<double> clipped = step_of(norm / 4);
  EXPECT_NEAR(norm_of(clipped), norm / 4, 1e-4 * norm);
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(clipped[i], whole[i] / 4, 1e-4 * norm) << i;
}

}  // namespace
}  // namespace sparrow
