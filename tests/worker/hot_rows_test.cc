// Rows that the worker holds itself change no number: whole runs against real shards, with and without them.

#include "worker/hot_rows.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/support/forwarding_transport.h"
#include "tests/worker/training_harness.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 29;
constexpr char kEverything[] = "bytes: 1073741824";  // More than all tables have.

class HotRowsTest : public ::testing::Test {
 protected:
  HotRowsTest() {
    WriteClicks(harness_.data_root() + "/train.tsv", 32 * 10 + 7, kSeed);
    WriteClicks(harness_.data_root() + "/test.tsv", 200, kSeed + 1);
  }

  // Evaluates on the way and is saved; without hot rows if `budget` is empty.
  static v1::Job Job(const std::string& budget, const std::string& optimizer = "adam {}") {
    v1::Job job = ClickJob();
    job.mutable_checkpoint()->set_at_end(true);
    job.mutable_eval()->set_every_steps(4);
    for (v1::TableConfig& table : *job.mutable_tables()) {
      CHECK(google::protobuf::TextFormat::ParseFromString(absl::StrCat("learning_rate: 0.1 ", optimizer),
                                                          table.mutable_optimizer()));
    }
    if (!budget.empty()) {
      CHECK(google::protobuf::TextFormat::ParseFromString(budget, job.mutable_train()->mutable_hot_rows()));
    }
    return job;
  }

  // Every file of a checkpoint but its manifest, whose job differs.
  static std::map<std::string, std::string> Files(const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
      const std::string name = entry.path().filename().string();
      if (name == "MANIFEST.textproto") continue;
      const auto bytes = ReadFile(entry.path().string());
      EXPECT_TRUE(bytes.ok()) << bytes.status();
      files[name] = *bytes;
    }
    return files;
  }

  // That two runs have trained the same, to the last bit.
  static void ExpectEqual(const TrainingHarness::Result& run, const TrainingHarness::Result& expected) {
    ASSERT_TRUE(run.status().ok()) << run.status();
    ASSERT_TRUE(expected.status().ok()) << expected.status();
    ASSERT_EQ(run.recorder.losses.size(), expected.recorder.losses.size());
    for (size_t i = 0; i < run.recorder.losses.size(); ++i) {
      ASSERT_EQ(run.recorder.losses[i].loss(), expected.recorder.losses[i].loss()) << "step " << i;
    }
    ASSERT_EQ(run.recorder.evals.size(), expected.recorder.evals.size());
    for (size_t i = 0; i < run.recorder.evals.size(); ++i) {
      EXPECT_EQ(run.recorder.evals[i].SerializeAsString(), expected.recorder.evals[i].SerializeAsString()) << i;
    }
    const auto files = Files(run.summary().checkpoint());
    const auto expected_files = Files(expected.summary().checkpoint());
    ASSERT_EQ(files.size(), expected_files.size());
    for (const auto& [name, bytes] : expected_files) {
      EXPECT_TRUE(files.at(name) == bytes) << name << " differs";
    }
  }

  TrainingHarness harness_;
};

class HotRowsOptimizer : public HotRowsTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(HotRowsOptimizer, AnyBudgetTrainsEvaluatesAndSavesTheSameToTheLastBit) {
  for (const uint32_t servers : {1u, 3u}) {
    const auto expected = harness_.Train(Job("", GetParam()), {.servers = servers});
    for (const bool prefetch : {true, false}) {
      for (const std::string budget : {"rows: 0", "rows: 7", "rows: 150", "bytes: 5000", kEverything}) {
        SCOPED_TRACE(absl::StrCat(servers, " servers, ", budget, prefetch ? "" : ", without prefetch"));
        v1::Job job = Job(budget, GetParam());
        job.mutable_train()->set_prefetch(prefetch);
        ExpectEqual(harness_.Train(job, {.servers = servers}), expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, HotRowsOptimizer,
                         ::testing::Values("sgd {}", "momentum {}", "adagrad {}", "rowwise_adagrad {}", "adam {}",
                                           "rowwise_adam {}", "ftrl {}", "rmsprop {}"));

}  // namespace
}  // namespace sparrow
