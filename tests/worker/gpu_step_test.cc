// How a GPU's step is put together changes no number: rows of one-hot features that the model gathers by itself against
// pooled ones, held here or by servers. And that it is put together as it should be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/cuda/operation.h"
#include "tests/support/gpu.h"
#include "tests/worker/training_harness.h"

namespace sparrow {
namespace {

using ::testing::Contains;
using ::testing::Not;

// The operations of the last step, in the order in which they are queued.
class LastStep final : public OperationListener {
 public:
  LastStep() { SetOperationListener(this); }
  ~LastStep() override { SetOperationListener(nullptr); }

  void Begin(const OperationCost& cost) override {
    const absl::MutexLock lock(&mu_);
    names_.push_back(cost.name);
  }
  void End() override {}
  void StepBegins() override {
    const absl::MutexLock lock(&mu_);
    names_.clear();
  }
  void StepEnds() override {}

  std::vector<std::string> names() const {
    const absl::MutexLock lock(&mu_);
    return names_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
};

class GpuStepTest : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu<>::SetUp();
    if (IsSkipped()) return;
    WriteClicks(harness_.data_root() + "/train.tsv", 1'000, 1);
    WriteClicks(harness_.data_root() + "/test.tsv", 200, 2);
  }

  // A column of one id a sample, of which nobody can know as long as it has a separator.
  enum class Form { kOneHot, kBags };

  // The last batch of an epoch is not full. hot_rows < 0: none.
  static v1::Job JobOf(Form form, v1::TrainConfig::Precision precision, int hot_rows) {
    v1::Job job = ClickJob();
    for (v1::TableConfig& table : *job.mutable_tables()) {
      table.set_dim(16);
      table.mutable_optimizer()->mutable_adagrad();
    }
    job.clear_features();
    job.add_features()->set_name("a");
    v1::FeatureConfig* const c = job.add_features();
    c->set_name("c");
    c->set_table("b");
    c->set_pooling(v1::FeatureConfig::MEAN);
    job.mutable_model()->mutable_dlrm()->set_bottom(1, 16);
    for (v1::Column& column : *job.mutable_data()->mutable_text()->mutable_columns()) {
      if (column.name() == "b") column.mutable_ignored();
      if (column.name() == "a" && form == Form::kBags) column.mutable_categorical()->set_separator(";");
    }
    job.mutable_train()->set_precision(precision);
    job.mutable_train()->set_deterministic(true);
    job.mutable_train()->set_epochs(2);
    if (hot_rows >= 0) job.mutable_train()->mutable_hot_rows()->set_rows(static_cast<uint64_t>(hot_rows));
    return job;
  }

  // Its features are not in the order of their tables.
  static v1::Job Reversed(v1::Job job) {
    job.mutable_features()->SwapElements(0, 1);
    return job;
  }

  // Nothing follows the last step.
  static v1::Job ThreeStepsOf(v1::Job job) {
    job.mutable_train()->set_steps_max(3);
    job.mutable_data()->clear_test();
    return job;
  }

  std::vector<double> LossesOf(const v1::Job& job, const Device& device = {.gpu = 0}) {
    const auto run = harness_.Train(job, {.devices = {device}});
    EXPECT_TRUE(run.status().ok()) << run.status();
    std::vector<double> losses;
    for (const v1::LossPoint& point : run.recorder.losses) losses.push_back(point.loss());
    losses.push_back(run.summary().eval().loss());
    return losses;
  }

  TrainingHarness harness_;
};

TEST_F(GpuStepTest, GatheredRowsGiveTheLossesOfPooledOnes) {
  for (const auto precision : {v1::TrainConfig::BFLOAT16, v1::TrainConfig::FLOAT16, v1::TrainConfig::FULL}) {
    const std::vector<double> pooled = LossesOf(JobOf(Form::kBags, precision, -1));
    ASSERT_EQ(pooled.size(), 2 * 32 + 1u);
    for (const int hot_rows : {-1, 50, 1000}) {
      SCOPED_TRACE(testing::Message() << v1::TrainConfig::Precision_Name(precision) << ", hot rows " << hot_rows);
      EXPECT_EQ(LossesOf(JobOf(Form::kOneHot, precision, hot_rows)), pooled);
      EXPECT_EQ(LossesOf(JobOf(Form::kBags, precision, hot_rows)), pooled);
    }
  }
}

TEST_F(GpuStepTest, FeaturesInAnotherOrderThanTheirTablesReadTheirOwnRows) {
  const auto precision = v1::TrainConfig::BFLOAT16;
  const std::vector<double> servers = LossesOf(Reversed(JobOf(Form::kBags, precision, -1)));
  for (const int hot_rows : {-1, 50, 1000}) {
    EXPECT_EQ(LossesOf(Reversed(JobOf(Form::kOneHot, precision, hot_rows))), servers) << hot_rows;
  }
}

TEST_F(GpuStepTest, LambTrainsTheDenseModelAsOnTheCpu) {
  for (const int hot_rows : {-1, 1000}) {
    v1::Job job = JobOf(Form::kOneHot, v1::TrainConfig::FULL, hot_rows);
    job.mutable_train()->set_steps_max(10);
    v1::OptimizerConfig* const optimizer = job.mutable_train()->mutable_optimizer();
    optimizer->set_learning_rate(0.01);
    optimizer->mutable_lamb()->set_weight_decay(0.1);
    const std::vector<double> gpu = LossesOf(job);
    job.mutable_train()->clear_hot_rows();
    const std::vector<double> cpu = LossesOf(job, Device{});
    ASSERT_EQ(gpu.size(), cpu.size());
    for (size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 1e-5 * cpu[i]) << hot_rows << ", " << i;
  }
}

TEST_F(GpuStepTest, TheModelGathersOneHotRowsAndNoOthers) {
  const LastStep last;
  const auto operations = [&](const v1::Job& job) {
    LossesOf(ThreeStepsOf(job));
    return last.names();
  };
  const char* const gathers = "interaction forward, gathered";
  const char* const pools = "pooling of dim 16";
  const std::vector<std::string> one_hot = operations(JobOf(Form::kOneHot, v1::TrainConfig::BFLOAT16, 1000));
  EXPECT_THAT(one_hot, Contains(gathers));
  EXPECT_THAT(one_hot, Not(Contains(pools)));
  for (const std::vector<std::string>& names :
       {operations(JobOf(Form::kBags, v1::TrainConfig::BFLOAT16, 1000)),
        operations(JobOf(Form::kOneHot, v1::TrainConfig::FULL, 1000)),
        operations(Reversed(JobOf(Form::kOneHot, v1::TrainConfig::BFLOAT16, 1000)))}) {
    EXPECT_THAT(names, Contains(pools));
    EXPECT_THAT(names, Not(Contains(gathers)));
  }
}

TEST_F(GpuStepTest, RowsAreUpdatedBesideTheBottomsBackwardUnlessTheLossIsScaled) {
  const LastStep last;
  for (const auto precision : {v1::TrainConfig::BFLOAT16, v1::TrainConfig::FLOAT16}) {
    LossesOf(ThreeStepsOf(JobOf(Form::kOneHot, precision, 1000)));
    const std::vector<std::string> names = last.names();
    const auto place = [&](const std::string& name) {
      const auto found = std::find(names.begin(), names.end(), name);
      EXPECT_NE(found, names.end()) << name << " is not among " << testing::PrintToString(names);
      return found - names.begin();
    };
    // Of the bottom's first layer, the last of backward.
    const auto bottom = std::find_if(names.rbegin(), names.rend(),
                                     [](const std::string& name) { return name.find("product") != name.npos; });
    ASSERT_NE(bottom, names.rend()) << testing::PrintToString(names);
    const auto backward_ends = names.rend() - bottom - 1;
    EXPECT_EQ(place("sparse update") < backward_ends, precision == v1::TrainConfig::BFLOAT16)
        << testing::PrintToString(names);
    EXPECT_LT(place("step gate"), place("sparse update"));
  }
}

}  // namespace
}  // namespace sparrow
