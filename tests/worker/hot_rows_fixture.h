#ifndef SPARROW_TESTS_WORKER_HOT_ROWS_FIXTURE_H_
#define SPARROW_TESTS_WORKER_HOT_ROWS_FIXTURE_H_

// Jobs whose workers hold rows themselves, and when two runs of them are equal.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "tests/support/forwarding_transport.h"
#include "tests/worker/training_harness.h"
#include "worker/checkpoint.h"

namespace sparrow {

inline constexpr uint64_t kClickSeed = 29;
inline constexpr char kEverything[] = "bytes: 1000000";  // More than all tables have.
inline constexpr char kSome[] = "rows: 7";               // A bucket of 128, and so fewer than a batch may use.

class HotRowsTest : public ::testing::Test {
 protected:
  HotRowsTest() {
    WriteClicks(harness_.data_root() + "/train.tsv", 32 * 10 + 7, kClickSeed);
    WriteClicks(harness_.data_root() + "/test.tsv", 200, kClickSeed + 1);
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

  // From the middle on other ids are used; b's have weights.
  void WriteShiftingClicks() {
    std::ofstream file(harness_.data_root() + "/train.tsv");
    for (int i = 0; i < 32 * 40 + 1; ++i) {
      const int from = i < 32 * 20 ? 0 : 20;
      file << i % 2 << '\t' << i % 7 << '\t' << i % 5 << '\t' << from + i * i % 20 << '\t' << 1000 * from + i * i % 60
           << ":0.5," << 1000 * from + i * 7 % 90 << ":-2\t" << 1000 * from + i % 50 << '\n';
    }
  }
  // For these, without hot rows.
  static v1::Job ShiftingJob() {
    v1::Job job = Job("", "momentum {}");
    job.mutable_train()->set_epochs(1);
    job.mutable_data()->clear_test();
    job.clear_eval();
    job.mutable_data()->mutable_text()->mutable_columns(4)->mutable_categorical()->set_weight_separator(":");
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

// Loses answers: the call has been done, but its caller hears that the server is not there.
class LossyTransport final : public ForwardingTransport {
 public:
  LossyTransport(std::unique_ptr<PsTransport> inner, std::atomic<int>* lost)
      : ForwardingTransport(std::move(inner)), lost_(*lost) {}

  void Pull(const RowPull* request, v1::PullResponse* response, absl::Duration timeout, Done done) override {
    ForwardingTransport::Pull(request, response, timeout, Lose(pulls_++, std::move(done)));
  }
  void Push(const RowPush* request, v1::PushResponse* response, absl::Duration timeout, Done done) override {
    ForwardingTransport::Push(request, response, timeout, Lose(pushes_++, std::move(done)));
  }

 private:
  Done Lose(int call, Done done) {
    if (call % 4 != 1) return done;
    ++lost_;
    return [done = std::move(done)](absl::Status status) {
      done(status.ok() ? absl::UnavailableError("the connection was lost") : std::move(status));
    };
  }

  std::atomic<int>& lost_;
  int pulls_ = 0;
  int pushes_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_WORKER_HOT_ROWS_FIXTURE_H_
