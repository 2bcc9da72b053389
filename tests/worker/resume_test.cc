// Checkpoints of whole runs: what is resumed, what is refused, what is left alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/support/temporary_directory.h"
#include "tests/worker/training_harness.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kSeed = 11;

class Resume : public ::testing::Test {
 protected:
  Resume() {
    WriteClicks(harness_.data_root() + "/train.tsv", 32 * 10 + 7, kSeed);
    WriteClicks(harness_.data_root() + "/test.tsv", 200, kSeed + 1);
  }

  static v1::Job SavingJob() {
    v1::Job job = ClickJob();
    job.mutable_checkpoint()->set_at_end(true);
    return job;
  }
  // Trains SavingJob for `steps` steps; returns the checkpoint.
  std::string Save(uint64_t steps) {
    v1::Job job = SavingJob();
    job.mutable_train()->set_steps_max(steps);
    const auto result = harness_.Train(job, {});
    EXPECT_TRUE(result.status().ok()) << result.status();
    return result.summary().checkpoint();
  }
  std::string Dense(const std::string& checkpoint) {
    const auto bytes = ReadFile(checkpoint + "/" + kDenseFileName);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.ok() ? *bytes : "";
  }
  std::string Refusal(const std::string& checkpoint, const v1::Job& job) {
    const auto result = harness_.Train(job, {.restore_from = checkpoint});
    EXPECT_FALSE(result.status().ok());
    EXPECT_TRUE(result.recorder.losses.empty()) << "refused before the first step";
    return std::string(result.status().message());
  }

  TrainingHarness harness_;
};

TEST_F(Resume, ATestSetThatCannotBeReadDoesNotCostTheTraining) {
  std::ofstream(harness_.data_root() + "/test.tsv", std::ios::app) << "no row\n";
  const auto result = harness_.Train(SavingJob(), {});
  ASSERT_FALSE(result.status().ok());
  const std::string message(result.status().message());
  EXPECT_THAT(message, HasSubstr("evaluation at the end"));
  EXPECT_THAT(message, HasSubstr("test.tsv:201: 1 field, expected 6"));
  const std::string kSaved = "the trained model is saved, in ";
  ASSERT_THAT(message, HasSubstr(kSaved));
  const std::string checkpoint = message.substr(message.find(kSaved) + kSaved.size());

  WriteClicks(harness_.data_root() + "/test.tsv", 200, kSeed + 1);
  EXPECT_EQ(Dense(checkpoint), Dense(Save(/*steps=*/1000)));
}

// A root that cannot be used costs no training.
class CheckpointRoot : public Resume {
 protected:
  std::string FailsBeforeTraining(const TrainingHarness::Run& run) {
    const auto result = harness_.Train(SavingJob(), run);
    EXPECT_FALSE(result.status().ok());
    EXPECT_TRUE(result.recorder.losses.empty()) << "refused before the first step";
    return std::string(result.ranks[0].status().message());
  }
  // Under the workers' root.
  std::vector<std::string> Entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(harness_.checkpoint_root())) {
      names.push_back(entry.path().lexically_relative(harness_.checkpoint_root()).string());
    }
    return names;
  }
  const std::string kRemedy = "; give all members one --checkpoint-root that they share and may write";
};

TEST_F(CheckpointRoot, ThatRank0CannotWriteFailsTheJobBeforeItsFirstStep) {
  const std::string taken = harness_.checkpoint_root() + "/clicks-job-1";
  std::ofstream(taken) << "a file";
  const std::string message = FailsBeforeTraining({.workers = 2});
  EXPECT_THAT(message, HasSubstr("--checkpoint-root " + harness_.checkpoint_root() + ": " + taken + ": cannot "));
  EXPECT_THAT(message, HasSubstr(kRemedy));
  EXPECT_THAT(Entries(), ElementsAre("clicks-job-1")) << "what was there stays";

  v1::Job not_saving = ClickJob();
  EXPECT_TRUE(harness_.Train(not_saving, {}).status().ok()) << "nothing is to be written";
}

TEST_F(CheckpointRoot, ThatAServerDoesNotShareFailsTheJobBeforeItsFirstStep) {
  TemporaryDirectory other;
  const TrainingHarness::Run run = {.workers = 2, .servers = 2, .server_checkpoint_root = other.path()};
  const std::string message = FailsBeforeTraining(run);
  EXPECT_THAT(message, HasSubstr("parameter server 1 at shard-1: opening the job: job job-1 cannot be opened: "
                                 "--checkpoint-root " +
                                 other.path() + ": " + other.path() + "/clicks-job-1/.probe-"));
  EXPECT_THAT(message, HasSubstr("which rank 0 has just written under its root, is not there" + kRemedy));
  EXPECT_THAT(Entries(), ElementsAre()) << "what the start made is gone";

  // The same name in both roots does not make them one; and what was there stays.
  for (const std::string& root : {harness_.checkpoint_root(), other.path()}) {
    ASSERT_TRUE(MakeDirectories(root + "/clicks-job-1").ok());
  }
  EXPECT_THAT(FailsBeforeTraining(run), HasSubstr("is not there"));
  EXPECT_THAT(Entries(), ElementsAre("clicks-job-1"));
}

TEST_F(CheckpointRoot, IsLeftAsItWasByAJobThatFailsInTraining) {
  std::ofstream(harness_.data_root() + "/train.tsv", std::ios::app) << "no row\n";
  std::filesystem::remove(harness_.checkpoint_root());
  const auto result = harness_.Train(SavingJob(), {});
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("train.tsv:328: 1 field, expected 6"));
  EXPECT_FALSE(result.recorder.losses.empty()) << "it got past the start";
  EXPECT_FALSE(std::filesystem::exists(harness_.checkpoint_root())) << "which the start had made";
}

TEST_F(CheckpointRoot, HoldsNothingButTheCheckpointAfterTheJob) {
  const std::string checkpoint = Save(/*steps=*/1);
  EXPECT_THAT(Entries(),
              UnorderedElementsAre("clicks-job-1", "clicks-job-1/step-1", "clicks-job-1/step-1/a.server-0.rows",
                                   "clicks-job-1/step-1/b.server-0.rows", "clicks-job-1/step-1/dense.safetensors",
                                   "clicks-job-1/step-1/MANIFEST.textproto"));
  // A job that only evaluates writes nothing, wherever it could.
  TemporaryDirectory other;
  v1::Job job = SavingJob();
  job.mutable_train()->set_steps_max(1);
  std::filesystem::copy(harness_.checkpoint_root(), other.path(), std::filesystem::copy_options::recursive);
  const auto evaluated = harness_.Train(job, {.restore_from = checkpoint, .server_checkpoint_root = other.path()});
  EXPECT_TRUE(evaluated.status().ok()) << evaluated.status();
}

class ResumeAt : public Resume, public ::testing::WithParamInterface<uint64_t> {};

// 11 steps an epoch; cuts in an epoch, at its end, and behind it.
TEST_P(ResumeAt, EqualsTrainingWithoutInterruptionBitForBit) {
  v1::Job job = SavingJob();
  job.mutable_train()->set_epochs(2);
  const auto whole = harness_.Train(job, {});
  ASSERT_TRUE(whole.status().ok()) << whole.status();
  ASSERT_EQ(whole.summary().steps(), 22u);

  v1::Job first = job;
  first.mutable_train()->set_steps_max(GetParam());
  const auto cut = harness_.Train(first, {});
  ASSERT_TRUE(cut.status().ok()) << cut.status();
  ASSERT_EQ(cut.summary().steps(), GetParam());
  // The rows come back on another number of servers.
  const auto rest = harness_.Train(job, {.servers = 3, .restore_from = cut.summary().checkpoint(), .job_id = "job-2"});
  ASSERT_TRUE(rest.status().ok()) << rest.status();
  EXPECT_EQ(rest.summary().steps(), 22u);

  std::vector<double> expected, got;
  for (const v1::LossPoint& point : whole.recorder.losses) expected.push_back(point.loss());
  for (const v1::LossPoint& point : cut.recorder.losses) got.push_back(point.loss());
  for (const v1::LossPoint& point : rest.recorder.losses) got.push_back(point.loss());
  EXPECT_EQ(got, expected);
  EXPECT_EQ(Dense(rest.summary().checkpoint()), Dense(whole.summary().checkpoint()));
  EXPECT_EQ(rest.summary().eval().auc(), whole.summary().eval().auc());
  EXPECT_EQ(rest.summary().eval().loss(), whole.summary().eval().loss());
}

INSTANTIATE_TEST_SUITE_P(Cuts, ResumeAt, ::testing::Values(1, 10, 11, 15));

TEST_F(Resume, AFinishedJobGoesOnWithMoreEpochs) {
  const auto first = harness_.Train(SavingJob(), {});
  ASSERT_EQ(first.summary().steps(), 11u);
  v1::Job longer = SavingJob();
  longer.mutable_train()->set_epochs(3);
  const auto more = harness_.Train(longer, {.restore_from = first.summary().checkpoint()});
  ASSERT_TRUE(more.status().ok()) << more.status();
  EXPECT_EQ(more.summary().steps(), 33u);
  EXPECT_EQ(more.summary().rows_trained(), 2u * 327);
}

TEST_F(Resume, WithNothingLeftToTrainItEvaluatesAndTheStepsStay) {
  const auto first = harness_.Train(SavingJob(), {});
  const auto again = harness_.Train(SavingJob(), {.restore_from = first.summary().checkpoint()});
  ASSERT_TRUE(again.status().ok()) << again.status();
  EXPECT_EQ(again.summary().steps(), 11u);
  EXPECT_EQ(again.summary().rows_trained(), 0u);
  EXPECT_EQ(again.summary().eval().auc(), first.summary().eval().auc());
  EXPECT_EQ(again.summary().checkpoint(), first.summary().checkpoint());
}

TEST_F(Resume, ZeroEpochsOnlyEvaluate) {
  const auto first = harness_.Train(SavingJob(), {});
  v1::Job job = SavingJob();
  job.mutable_train()->set_epochs(0);
  job.mutable_data()->clear_train();
  job.mutable_train()->mutable_optimizer()->mutable_sgd();  // Not the one of the checkpoint: it is not used.
  const auto evaluated = harness_.Train(job, {.workers = 2, .restore_from = first.summary().checkpoint()});
  ASSERT_TRUE(evaluated.status().ok()) << evaluated.status();
  EXPECT_EQ(evaluated.summary().steps(), 11u);
  EXPECT_NEAR(evaluated.summary().eval().auc(), first.summary().eval().auc(), 1e-6);
}

TEST_F(Resume, ASecondJobOfTheSameNameLeavesTheFirstCheckpointAlone) {
  const std::string first = Save(4);
  const std::string manifest = *ReadFile(first + "/" + kManifestName);
  const std::string second = Save(4);
  EXPECT_NE(first, second);
  EXPECT_EQ(*ReadFile(first + "/" + kManifestName), manifest);
  EXPECT_TRUE(OpenCheckpoint(harness_.checkpoint_root(), second).ok());
}

TEST_F(Resume, OtherTablesFeaturesModelSeedOrColumnsAreRefusedByFieldAndBothValues) {
  const std::string checkpoint = Save(2);
  v1::Job job = SavingJob();
  job.mutable_tables(0)->set_bounded_rows(41);
  EXPECT_THAT(Refusal(checkpoint, job), HasSubstr("tables[0].bounded_rows is 40 in the checkpoint and 41 in the job"));
  job = SavingJob();
  job.mutable_features(2)->set_modulo(100);
  EXPECT_THAT(Refusal(checkpoint, job),
              HasSubstr("features[2].modulo is not set in the checkpoint and 100 in the job"));
  job = SavingJob();
  job.mutable_model()->mutable_dlrm()->set_top(0, 9);
  EXPECT_THAT(Refusal(checkpoint, job), HasSubstr("model.dlrm.top[0] is 8 in the checkpoint and 9 in the job"));
  job = SavingJob();
  job.mutable_train()->set_seed(4);
  EXPECT_THAT(Refusal(checkpoint, job), HasSubstr("train.seed is 3 in the checkpoint and 4 in the job"));
  job = SavingJob();
  job.mutable_data()->mutable_text()->mutable_columns()->SwapElements(1, 2);  // n2 before n1.
  EXPECT_THAT(Refusal(checkpoint, job), HasSubstr("data.text.columns[0].name is \"n1\" in the checkpoint and \"n2\""));
  job = SavingJob();
  job.mutable_train()->mutable_optimizer()->mutable_sgd();
  EXPECT_THAT(Refusal(checkpoint, job), HasSubstr("train.optimizer"));
}

// The hash range and the way to the ids are the checkpoint's too: https://github.com/facebookresearch/dlrm/issues/53,
// https://github.com/mlcommons/inference/issues/1253
TEST_F(Resume, AnotherHashRangeOrAnotherReadingOfTheDataIsRefusedByFieldBeforeTheFirstStep) {
  v1::Job saved = SavingJob();
  saved.mutable_features(2)->set_modulo(100);
  saved.mutable_train()->set_steps_max(2);
  const auto result = harness_.Train(saved, {});
  ASSERT_TRUE(result.status().ok()) << result.status();
  const std::string checkpoint = result.summary().checkpoint();
  const auto refuse = [&](auto change, const std::string& says) {
    v1::Job job = saved;
    job.mutable_train()->clear_steps_max();
    change(&job);
    EXPECT_THAT(Refusal(checkpoint, job), HasSubstr(says));
  };
  refuse([](v1::Job* job) { job->mutable_features(2)->set_modulo(10); },
         "features[2].modulo is 100 in the checkpoint and 10 in the job");
  refuse([](v1::Job* job) { job->mutable_features(2)->clear_modulo(); },
         "features[2].modulo is 100 in the checkpoint and not set in the job");
  refuse([](v1::Job* job) { job->mutable_features(1)->set_column("c"), job->mutable_features(2)->set_column("b"); },
         "features[1].column is not set in the checkpoint and \"c\" in the job");
  refuse([](v1::Job* job) { job->mutable_features(1)->set_pooling(v1::FeatureConfig::SUM); },
         "features[1].pooling is MEAN in the checkpoint and SUM in the job");
  refuse([](v1::Job* job) { job->mutable_tables(0)->mutable_hashed(); }, "tables[0].");
  refuse(
      [](v1::Job* job) {
        job->mutable_data()->mutable_text()->mutable_columns(5)->mutable_categorical()->set_ids(
            v1::CategoricalColumn::HEX);
      },
      "categorical.ids is INTEGER in the checkpoint and HEX in the job");
  refuse([](v1::Job* job) { job->mutable_data()->set_dense_transform(v1::DataConfig::IDENTITY); },
         "data.dense_transform is LOG1P in the checkpoint and IDENTITY in the job");
  // What is only another place of the same data is not.
  v1::Job job = saved;
  job.mutable_train()->clear_steps_max();
  job.mutable_eval()->set_batch_size(50);
  EXPECT_TRUE(harness_.Train(job, {.restore_from = checkpoint}).status().ok());
}

TEST_F(Resume, ADamagedFileIsNamed) {
  const std::string checkpoint = Save(2);
  const auto opened = OpenCheckpoint(harness_.checkpoint_root(), checkpoint);
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::vector<v1::SavedFile> files(opened->manifest.files().begin(), opened->manifest.files().end());
  files.push_back(opened->manifest.dense());
  ASSERT_GE(files.size(), 3u);
  for (const v1::SavedFile& file : files) {
    const std::string path = checkpoint + "/" + file.name();
    const std::string good = *ReadFile(path);
    std::string bad = good;
    bad[bad.size() / 2] ^= 1;
    std::ofstream(path, std::ios::binary) << bad;
    EXPECT_THAT(Refusal(checkpoint, SavingJob()), HasSubstr(file.name())) << file.name();
    std::ofstream(path, std::ios::binary) << good.substr(0, good.size() - 1);
    EXPECT_THAT(Refusal(checkpoint, SavingJob()), HasSubstr(absl::StrCat(good.size() - 1, " bytes"))) << file.name();
    std::filesystem::remove(path);
    EXPECT_THAT(Refusal(checkpoint, SavingJob()), HasSubstr(file.name())) << file.name();
    std::ofstream(path, std::ios::binary) << good;
  }
  EXPECT_TRUE(harness_.Train(SavingJob(), {.restore_from = checkpoint}).status().ok());
}

TEST_F(Resume, ADirectoryWithoutManifestIsNoCheckpointAndThoseInsideAreNamed) {
  const std::string checkpoint = Save(2);
  EXPECT_THAT(std::string(OpenCheckpoint(harness_.checkpoint_root(), "clicks-job-1").status().message()),
              HasSubstr("it holds step-2"));
  std::filesystem::remove(checkpoint + "/" + kManifestName);
  EXPECT_THAT(Refusal(checkpoint, SavingJob()), HasSubstr(kManifestName));
  EXPECT_THAT(Refusal("absent", SavingJob()), HasSubstr("no such directory"));
  EXPECT_THAT(Refusal("/etc", SavingJob()), HasSubstr("outside"));
}

TEST_F(Resume, ACheckpointThatIsNotThereIsAnsweredWithThoseThatAre) {
  EXPECT_THAT(Refusal("absent", SavingJob()), HasSubstr(harness_.checkpoint_root() + " holds no checkpoint"));
  Save(2);
  EXPECT_THAT(Refusal("absent", SavingJob()), HasSubstr(harness_.checkpoint_root() + " holds clicks-job-1/step-2"));
}

TEST_F(Resume, ACheckpointOutsideTheRootIsAnsweredWithTheRootThatWouldDo) {
  const std::string checkpoint = Save(2);
  TemporaryDirectory other;
  const absl::Status outside = OpenCheckpoint(other.path(), checkpoint).status();
  EXPECT_TRUE(absl::IsPermissionDenied(outside));
  EXPECT_THAT(std::string(outside.message()),
              HasSubstr("; start with --checkpoint-root " + harness_.checkpoint_root() + " to use it"));
  std::filesystem::create_directory_symlink(checkpoint, other.File("link"));
  EXPECT_THAT(std::string(OpenCheckpoint(other.path(), "link").status().message()),
              HasSubstr(other.File("link") + " is a link to " + checkpoint));
}

TEST_F(Resume, AnAbsolutePathIsTakenAsItStands) {
  const std::string checkpoint = Save(2);
  EXPECT_TRUE(std::filesystem::path(checkpoint).is_absolute());
  EXPECT_TRUE(OpenCheckpoint(harness_.checkpoint_root(), checkpoint).ok());
  EXPECT_TRUE(OpenCheckpointAt(checkpoint).ok());
  EXPECT_TRUE(OpenCheckpointAt(checkpoint + "/").ok());
  const absl::Status absent = OpenCheckpointAt("absent").status();
  EXPECT_THAT(std::string(absent.message()), HasSubstr("absent was looked up from the current directory"));
}

TEST_F(Resume, AManifestOfGarbageIsOneLineThatNamesThePlaceAndProtobufIsSilent) {
  const std::string checkpoint = Save(2);
  const std::string path = checkpoint + "/" + kManifestName;
  for (const std::string garbage : {"format: 1\n)(garbage", "\x01\xff\x02", "format: one", "colour: \"red\""}) {
    std::ofstream(path, std::ios::binary) << garbage;
    testing::internal::CaptureStderr();
    const absl::Status status = OpenCheckpoint(harness_.checkpoint_root(), checkpoint).status();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(path + ":"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("use another checkpoint"));
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("\n")));
  }
}

}  // namespace
}  // namespace sparrow
