// Checkpoints while a job runs: when they are written, that they change nothing, and that each of them can be resumed.

#include "worker/checkpointer.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/worker/thread_collective.h"
#include "tests/worker/training_harness.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 11;
constexpr uint64_t kEvery = 4;

class OnTheWay : public ::testing::Test {
 protected:
  OnTheWay() {
    WriteClicks(harness_.data_root() + "/train.tsv", 32 * 10 + 7, kSeed);
    WriteClicks(harness_.data_root() + "/test.tsv", 200, kSeed + 1);
    WriteWalk(harness_.data_root() + "/text.bin", 8 * 77 + 1, 13);
  }

  static v1::Job Merged(v1::Job job, const std::string& more) {
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(more, &job)) << more;
    return job;
  }
  // 11 steps an epoch.
  static v1::Job Clicks(const std::string& more = "") {
    return Merged(ClickJob(), absl::StrCat("train { epochs: 2 } checkpoint { at_end: true } ", more));
  }
  // 11 steps an epoch.
  static v1::Job Tokens(const std::string& more = "") { return Merged(WalkJob(), more); }

  static std::string Dense(const std::string& checkpoint) {
    const auto bytes = ReadFile(checkpoint + "/" + kDenseFileName);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or("");
  }
  std::set<std::string> Entries(const std::string& directory) const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(harness_.checkpoint_root() + "/" + directory)) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  std::string Find(const std::string& directory) const { return harness_.checkpoint_root() + "/" + directory; }

  // That a run with checkpoints on the way is the one without, and so is every run that goes on from one of them, on
  // `servers_then` servers.
  void ExpectResumable(const v1::Job& job, TrainingHarness::Run run, uint32_t servers_then) {
    run.job_id = "whole";
    const auto whole = harness_.Train(job, run);
    ASSERT_TRUE(whole.status().ok()) << whole.status();
    run.job_id = "cut";
    const auto cut =
        harness_.Train(Merged(job, absl::StrCat("checkpoint { every_steps: ", kEvery, " keep: 100 }")), run);
    ASSERT_TRUE(cut.status().ok()) << cut.status();
    ExpectEqual(cut, whole);
    const uint64_t steps = whole.summary().steps();
    EXPECT_EQ(cut.summary().checkpoints(), steps / kEvery + (steps % kEvery == 0 ? 0 : 1));
    run.servers = servers_then;
    for (uint64_t step = kEvery; step < steps; step += kEvery) {
      run.job_id = absl::StrCat("from-", step);
      const std::string from = Find(absl::StrCat(job.name(), "-cut/step-", step));
      run.restore_from = from;
      const auto rest = harness_.Train(job, run);
      ASSERT_TRUE(rest.status().ok()) << rest.status();
      ExpectEqual(rest, whole);
      EXPECT_EQ(rest.summary().resumed_from(), from);
      // Every row is trained once, either before the cut or after it.
      uint64_t before = 0;
      for (const v1::Progress& progress : whole_progress_) {
        if (progress.step() == step) before = progress.rows_trained();
      }
      EXPECT_EQ(before + rest.summary().rows_trained(), whole.summary().rows_trained()) << "from step " << step;
    }
  }
  static void ExpectEqual(const TrainingHarness::Result& run, const TrainingHarness::Result& whole) {
    EXPECT_EQ(run.summary().steps(), whole.summary().steps());
    EXPECT_TRUE(Dense(run.summary().checkpoint()) == Dense(whole.summary().checkpoint()));
    EXPECT_EQ(run.summary().eval().auc(), whole.summary().eval().auc());
    EXPECT_EQ(run.summary().eval().loss(), whole.summary().eval().loss());
    ASSERT_LE(run.recorder.losses.size(), whole.recorder.losses.size());
    const size_t skipped = whole.recorder.losses.size() - run.recorder.losses.size();
    for (size_t i = 0; i < run.recorder.losses.size(); ++i) {
      EXPECT_EQ(run.recorder.losses[i].loss(), whole.recorder.losses[skipped + i].loss()) << skipped + i;
    }
  }
  // Collects whole_progress_ of the first run alone.
  TrainingHarness::Run Counted(uint32_t workers, uint32_t servers) {
    whole_progress_.clear();
    return {.workers = workers, .servers = servers, .on_progress = [this](const v1::Progress& progress) {
              if (whole_progress_.empty() || whole_progress_.back().step() < progress.step()) {
                whole_progress_.push_back(progress);
              }
            }};
  }

  TrainingHarness harness_;
  std::vector<v1::Progress> whole_progress_;
};

struct Shape {
  uint32_t workers;
  uint32_t servers;
  uint32_t servers_then;
};

class OnTheWayOf : public OnTheWay, public ::testing::WithParamInterface<Shape> {};

TEST_P(OnTheWayOf, AClickJobEachIsResumedBitForBit) {
  const Shape shape = GetParam();
  ExpectResumable(Clicks(), Counted(shape.workers, shape.servers), shape.servers_then);
}

TEST_P(OnTheWayOf, AClickJobWithRowsThatWorkersHoldEachIsResumedBitForBit) {
  const Shape shape = GetParam();
  ExpectResumable(Clicks("train { hot_rows { rows: 128 } } eval { every_steps: 3 }"),
                  Counted(shape.workers, shape.servers), shape.servers_then);
}

TEST_P(OnTheWayOf, ALanguageModelEachIsResumedBitForBit) {
  ExpectResumable(Tokens("train { loss_spike {} }"), Counted(GetParam().workers, 1), 1);
}

TEST_P(OnTheWayOf, ALanguageModelInSlicesEachIsResumedBitForBit) {
  ExpectResumable(Tokens("train { zero: GRADIENTS } eval { every_steps: 4 }"), Counted(GetParam().workers, 1), 1);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OnTheWayOf, ::testing::Values(Shape{1, 1, 3}, Shape{2, 3, 1}, Shape{3, 2, 2}),
                         [](const auto& shape) {
                           return absl::StrCat(shape.param.workers, "On", shape.param.servers, "Then",
                                               shape.param.servers_then);
                         });

TEST_F(OnTheWay, TheTwoNewestStayAndTheLastOneIsThatOfTheEnd) {
  const auto result = harness_.Train(Clicks("checkpoint { every_steps: 11 }"), {.workers = 2});
  ASSERT_TRUE(result.status().ok()) << result.status();
  EXPECT_THAT(Entries("clicks-job-1"), ElementsAre("step-11", "step-22"));
  EXPECT_EQ(result.summary().checkpoint(), Find("clicks-job-1/step-22"));
  EXPECT_EQ(result.summary().checkpoints(), 2u) << "that of the last step is not written twice";
  EXPECT_GT(result.summary().checkpoint_bytes(), 0u);
  EXPECT_GT(result.summary().checkpoint_seconds(), 0);
  const std::string served = harness_.metrics().Text();
  EXPECT_THAT(served,
              HasSubstr(absl::StrCat("\nsparrow_worker_checkpoint_bytes ", result.summary().checkpoint_bytes())));
  EXPECT_THAT(served, HasSubstr("\nsparrow_worker_checkpoint_unix_seconds "));
  EXPECT_THAT(served, HasSubstr("\nsparrow_worker_checkpoint_seconds_count 2"));
  EXPECT_EQ(harness_.worker_metrics().checkpoints_failed.Value(), 0);
}

TEST_F(OnTheWay, WithoutOneAtTheEndTheLastOfTheWayIsTheSummarys) {
  const auto result = harness_.Train(Clicks("checkpoint { every_steps: 3 at_end: false keep: 1 }"), {});
  ASSERT_TRUE(result.status().ok()) << result.status();
  EXPECT_THAT(Entries("clicks-job-1"), ElementsAre("step-21"));
  EXPECT_EQ(result.summary().checkpoint(), Find("clicks-job-1/step-21"));
  EXPECT_EQ(result.recorder.last_progress.checkpoint(), Find("clicks-job-1/step-21"));
}

// Ranks other than 0 look into no file of tables: they take rank 0's word.
TEST_F(OnTheWay, AJobsDirectoryMeansItsNewestWholeOneForAllWorkers) {
  const v1::Job job = Clicks("checkpoint { every_steps: 4 keep: 3 }");
  const auto whole = harness_.Train(job, {.workers = 2, .servers = 2});
  ASSERT_TRUE(whole.status().ok()) << whole.status();
  EXPECT_THAT(Entries("clicks-job-1"), ElementsAre("step-16", "step-20", "step-22"));
  std::filesystem::resize_file(Find("clicks-job-1/step-22/b.server-1.rows"), 50);
  const auto resumed =
      harness_.Train(job, {.workers = 2, .servers = 2, .restore_from = "clicks-job-1", .job_id = "job-2"});
  ASSERT_TRUE(resumed.status().ok()) << resumed.status();
  EXPECT_EQ(resumed.summary().resumed_from(), Find("clicks-job-1/step-20"));
  EXPECT_EQ(resumed.recorder.losses.size(), 2u);
  ExpectEqual(resumed, whole);

  for (const char* step : {"step-16", "step-20"})
    std::filesystem::remove(Find("clicks-job-1/") + step + "/b.server-1.rows");
  const auto refused = harness_.Train(job, {.workers = 2, .servers = 2, .restore_from = "clicks-job-1"});
  EXPECT_THAT(std::string(refused.ranks[0].status().message()), HasSubstr("step-22/b.server-1.rows has 50 bytes"));
  EXPECT_THAT(std::string(refused.ranks[1].status().message()), HasSubstr("rank 0 has found no checkpoint"));
}

// Whose dense file is larger than kFullAt, and no other file is.
v1::Job Large(v1::Job job) {
  if (job.model().has_dlrm()) job.mutable_model()->mutable_dlrm()->set_bottom(0, 3000);
  if (job.model().has_gpt2()) job.mutable_model()->mutable_gpt2()->set_width(64);
  return job;
}
constexpr rlim_t kFullAt = 150'000;

// While it lives no file grows beyond `bytes`: as on a full disk, writing fails.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST_F(OnTheWay, WhatCannotBeWrittenIsSaidAndCountedAndTrainingGoesOn) {
  for (const bool tokens : {false, true}) {
    const v1::Job job = Large(Merged(tokens ? Tokens() : Clicks(), "checkpoint { every_steps: 4 }"));
    const double failed = harness_.worker_metrics().checkpoints_failed.Value();
    const auto whole = harness_.Train(job, {.workers = 2, .job_id = "whole"});
    ASSERT_TRUE(whole.status().ok()) << whole.status();
    std::optional<FileSizeLimit> full;
    testing::internal::CaptureStderr();
    const auto result =
        harness_.Train(job, {.workers = 2, .job_id = "full", .on_progress = [&](const v1::Progress& progress) {
                               // The disk is full from step 6 to step 14.
                               if (progress.step() == 6) full.emplace(kFullAt);
                               if (progress.step() == 14) full.reset();
                             }});
    const std::string said = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(result.status().ok()) << result.status();
    ExpectEqual(result, whole);
    const std::string name = job.name() + "-full";
    EXPECT_EQ(result.summary().checkpoints(), 4u);  // 4, 16, 20, 22.
    EXPECT_EQ(result.summary().checkpoints_failed(), 2u);
    EXPECT_EQ(harness_.worker_metrics().checkpoints_failed.Value() - failed, 2);
    EXPECT_THAT(said, HasSubstr("full: the checkpoint of step 8 in " + Find(name) + " could not be written"));
    EXPECT_THAT(said, HasSubstr("the last one is " + Find(name) + "/step-4: " + Find(name) + "/step-12/"));
    EXPECT_THAT(said, HasSubstr("File too large"));
    EXPECT_THAT(Entries(name), ElementsAre("step-20", "step-22"));
  }
}

TEST_F(OnTheWay, AtTheEndWhatCannotBeWrittenIsAnError) {
  std::optional<FileSizeLimit> full;
  const auto result =
      harness_.Train(Large(Clicks("checkpoint { every_steps: 4 }")), {.on_progress = [&](const auto& progress) {
                       if (progress.step() == 21) full.emplace(kFullAt);
                     }});
  full.reset();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("step-22"));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("File too large"));
  EXPECT_THAT(Entries("clicks-job-1"), ElementsAre("step-16", "step-20"));
}

// Counts the gatherings of one rank.
class CountedCollective final : public Collective {
 public:
  CountedCollective(ThreadGroup* group, uint32_t rank) : to_(group, rank) {}
  uint32_t rank() const override { return to_.rank(); }
  uint32_t size() const override { return to_.size(); }
  absl::Status AllReduceSum(std::span<float> values) override { return to_.AllReduceSum(values); }
  absl::Status AllReduceSum(std::span<double> values) override { return to_.AllReduceSum(values); }
  absl::Status ReduceScatterSum(std::span<float> values, const SliceEnds& ends) override {
    return to_.ReduceScatterSum(values, ends);
  }
  absl::Status AllGatherSlices(std::span<float> values, const SliceEnds& ends) override {
    return to_.AllGatherSlices(values, ends);
  }
  uint64_t slice_bytes_sent() const override { return to_.slice_bytes_sent(); }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override {
    ++gatherings;
    return to_.AllGather(bytes);
  }
  absl::Status Barrier() override { return to_.Barrier(); }

  int gatherings = 0;

 private:
  ThreadCollective to_;
};

// Steps of 10 ms, on clocks of which rank 1's is an hour behind: rank 0's says when.
TEST(EverySeconds, AllWorkersSaveAfterTheSameStepsAndSeldomMeet) {
  v1::Job job;
  job.mutable_checkpoint()->set_every_seconds(30);
  Metrics metrics;
  const WorkerMetrics worker_metrics(&metrics);
  StopSignal stop;
  ThreadGroup group(2);
  std::vector<std::vector<uint64_t>> saved(2);
  std::vector<int> gatherings(2);
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<CountedCollective>> members;
  for (uint32_t rank = 0; rank < 2; ++rank) members.push_back(std::make_unique<CountedCollective>(&group, rank));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      FakeClock clock(absl::UnixEpoch() + absl::Hours(10 - rank));
      v1::Summary summary;
      TemporaryDirectory root;
      Checkpointer checkpointer(job, "job-1", &worker_metrics, &summary, &stop, &clock);
      ASSERT_TRUE(checkpointer.Prepare(root.path()).ok());
      for (uint64_t step = 1; step <= 10'000; ++step) {
        clock.Advance(absl::Milliseconds(10));
        const auto due = checkpointer.IsDue(step, members[rank].get());
        ASSERT_TRUE(due.ok()) << due.status();
        if (!*due) continue;
        saved[rank].push_back(step);
        if (rank != 0) continue;
        const absl::Time began = clock.Now();
        clock.Advance(absl::Seconds(5));  // So long it takes.
        ASSERT_TRUE(
            checkpointer
                .SaveOnTheWay({.step = step}, began,
                              [](const std::string&, const std::string&, v1::Manifest*) { return absl::OkStatus(); })
                .ok());
        EXPECT_EQ(summary.checkpoint_seconds(), 5 * static_cast<double>(saved[rank].size()));
      }
      gatherings[rank] = members[rank]->gatherings;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(saved[0], saved[1]);
  ASSERT_EQ(saved[0].size(), 3u);  // In 100 s of training.
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(static_cast<double>(saved[0][i]), 3000.0 * static_cast<double>(i + 1), 350) << i;
  EXPECT_EQ(gatherings[0], gatherings[1]);
  EXPECT_LT(gatherings[0], 150);  // Once a second, more often at first.
}

}  // namespace
}  // namespace sparrow
