#include "worker/token_batches.h"

#include <algorithm>
#include <map>
#include <set>

#include "tests/worker/input_test_support.h"
#include "tests/worker/token_files.h"

namespace sparrow {
namespace {

// One window as it was handed out, with where it belongs.
struct Seen {
  uint64_t step = 0;
  uint64_t epoch = 0;
  uint64_t windows_in_epoch = 0;
  uint64_t global_windows = 0;
  bool last_in_epoch = false;
  std::vector<uint16_t> tokens;
  std::vector<uint16_t> targets;

  bool operator==(const Seen&) const = default;
};

struct ReadAllResult {
  std::vector<TokenBatch> batches;
  std::vector<Seen> windows;
  absl::Status status;
};

ReadAllResult ReadAll(const TokenBatchesOptions& options) {
  ReadAllResult result;
  auto batches = TokenBatches::Open(options);
  result.status = batches.status();
  if (!batches.ok()) return result;
  TokenBatch batch;
  for (;;) {
    const absl::StatusOr<bool> more = (*batches)->Next(&batch);
    result.status = more.status();
    if (!more.ok() || !*more) return result;
    result.batches.push_back(batch);
    EXPECT_EQ(batch.tokens.size(), batch.windows * options.context);
    EXPECT_EQ(batch.targets.size(), batch.tokens.size());
    for (uint32_t i = 0; i < batch.windows; ++i) {
      const auto begin = static_cast<std::ptrdiff_t>(i * options.context);
      const auto end = begin + static_cast<std::ptrdiff_t>(options.context);
      result.windows.push_back({batch.step,
                                batch.epoch,
                                batch.windows_in_epoch,
                                batch.global_windows,
                                batch.last_in_epoch,
                                {batch.tokens.begin() + begin, batch.tokens.begin() + end},
                                {batch.targets.begin() + begin, batch.targets.begin() + end}});
    }
  }
}

// 1,000 tokens of which each is its own place.
class TokenBatchesTest : public testing::Test {
 protected:
  TokenBatchesTest() {
    files_.Write("a.bin", HeadedTokens(CountUp(0, 333)));
    files_.Write("b.bin", PlainTokens(CountUp(333, 667)));
    options_.data_root = files_.root();
    options_.source.add_path("a.bin");
    options_.source.add_path("b.bin");
    options_.context = 7;
    options_.vocabulary = 1000;
    options_.seed = 11;
    options_.batch_size = 12;
    options_.epochs = 3;
  }

  const TempFiles files_;
  TokenBatchesOptions options_;
};

TEST_F(TokenBatchesTest, TargetsAreTheTokensBehind) {
  const ReadAllResult all = ReadAll(options_);
  ASSERT_TRUE(all.status.ok()) << all.status;
  for (const Seen& window : all.windows) {
    EXPECT_EQ(window.tokens, CountUp(window.tokens[0], 7));
    EXPECT_EQ(window.targets, CountUp(static_cast<uint16_t>(window.tokens[0] + 1), 7));
  }
}

TEST_F(TokenBatchesTest, StepsEpochsAndTheirEndsAreTold) {
  auto batches = TokenBatches::Open(options_);
  ASSERT_TRUE(batches.ok()) << batches.status();
  EXPECT_EQ((*batches)->tokens(), 1000u);
  EXPECT_EQ((*batches)->Describe(), "1000 tokens: 142 windows of 7, and 5 tokens over");
  const ReadAllResult all = ReadAll(options_);
  uint64_t step = 0, used_bytes = 0;
  auto at = all.batches.begin();
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    const uint64_t windows = (*batches)->EpochWindows(epoch);
    EXPECT_GE(windows, 141u);
    EXPECT_EQ((*batches)->UnusedTokens(epoch), 1000 - windows * 7 - 1);
    EXPECT_EQ((*batches)->EpochSteps(epoch), 12u);
    for (uint64_t done = 0; done < windows; ++at, ++step) {
      ASSERT_NE(at, all.batches.end());
      const uint64_t size = std::min<uint64_t>(12, windows - done);
      done += size;
      EXPECT_EQ(at->step, step);
      EXPECT_EQ(at->epoch, epoch);
      EXPECT_EQ(at->global_windows, size);
      EXPECT_EQ(at->windows, size);
      EXPECT_EQ(at->windows_in_epoch, done);
      EXPECT_EQ(at->last_in_epoch, done == windows);
      used_bytes += size * 16;
    }
  }
  EXPECT_EQ(at, all.batches.end());
  TokenBatch batch;
  while (*(*batches)->Next(&batch)) {
  }
  EXPECT_EQ((*batches)->bytes_read(), used_bytes);
  EXPECT_FALSE(*(*batches)->Next(&batch)) << "and stays at the end";
}

TEST_F(TokenBatchesTest, WorkersHaveTheWindowsOfOneBetweenThem) {
  const ReadAllResult one = ReadAll(options_);
  ASSERT_TRUE(one.status.ok()) << one.status;
  for (options_.workers = 1; options_.workers <= 5; ++options_.workers) {
    std::map<uint64_t, std::vector<Seen>> by_step;  // In rank order.
    for (options_.rank = 0; options_.rank < options_.workers; ++options_.rank) {
      const ReadAllResult part = ReadAll(options_);
      ASSERT_TRUE(part.status.ok()) << part.status;
      ASSERT_EQ(part.batches.size(), one.batches.size()) << "every worker sees the end at the same step";
      for (size_t k = 0; k < part.batches.size(); ++k) {
        EXPECT_EQ(part.batches[k].step, one.batches[k].step);
        EXPECT_EQ(part.batches[k].global_windows, one.batches[k].global_windows);
        EXPECT_EQ(part.batches[k].windows_in_epoch, one.batches[k].windows_in_epoch);
        EXPECT_EQ(part.batches[k].last_in_epoch, one.batches[k].last_in_epoch);
      }
      for (const Seen& window : part.windows) by_step[window.step].push_back(window);
    }
    std::vector<Seen> together;
    for (const auto& [step, windows] : by_step) together.insert(together.end(), windows.begin(), windows.end());
    EXPECT_EQ(together, one.windows) << options_.workers << " workers";
  }
  // And no window of an epoch twice.
  std::map<uint64_t, std::set<uint16_t>> first_tokens;
  for (const Seen& window : one.windows) EXPECT_TRUE(first_tokens[window.epoch].insert(window.tokens[0]).second);
}

TEST_F(TokenBatchesTest, ResumingAnywhereIsAsIfNothingHadHappened) {
  options_.workers = 3;
  options_.rank = 1;
  const ReadAllResult whole = ReadAll(options_);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  for (size_t done = 1; done <= whole.batches.size(); ++done) {
    const TokenBatch& last = whole.batches[done - 1];
    TokenBatchesOptions resumed = options_;
    resumed.first_step = last.step + 1;
    resumed.first_epoch = last.epoch;
    resumed.first_window_in_epoch = last.windows_in_epoch;
    const ReadAllResult rest = ReadAll(resumed);
    ASSERT_TRUE(rest.status.ok()) << rest.status;
    std::vector<Seen> expected;
    for (const Seen& window : whole.windows) {
      if (window.step > last.step) expected.push_back(window);
    }
    EXPECT_EQ(rest.windows, expected) << "after step " << last.step;
  }
  TokenBatchesOptions next_epoch = options_;
  next_epoch.first_epoch = 1;
  next_epoch.first_step = 12;
  EXPECT_EQ(ReadAll(next_epoch).windows.front().epoch, 1u);
  EXPECT_EQ(ReadAll(next_epoch).windows.front().step, 12u);
}

TEST_F(TokenBatchesTest, APlaceThatTheDataDoNotHaveIsRefused) {
  options_.first_window_in_epoch = 143;
  EXPECT_ERROR(ReadAll(options_).status, kInvalidArgument, "a.bin: the job has read 143 windows of epoch 0",
               "resume with the files");
  options_.first_epoch = 3;
  options_.first_window_in_epoch = 0;
  const ReadAllResult ended = ReadAll(options_);
  EXPECT_TRUE(ended.status.ok());
  EXPECT_TRUE(ended.batches.empty());
}

TEST_F(TokenBatchesTest, TooFewTokensAreRefusedWithTheArithmetic) {
  options_.batch_size = 142;
  EXPECT_ERROR(ReadAll(options_).status, kInvalidArgument,
               "a.bin: tokens 1000 - 1 = 142 windows of 7 + 5, one fewer in epochs that begin later",
               "train.batch_size 142 (over 1 worker) x model.gpt2.context 7 = 994 tokens a step",
               "lower train.batch_size to at most 141");
  options_.batch_size = 141;
  EXPECT_TRUE(ReadAll(options_).status.ok());
  options_.batch_size = 142;
  options_.shuffle = false;
  EXPECT_TRUE(ReadAll(options_).status.ok()) << "all epochs have 142";
  options_.batch_size = 4;
  options_.workers = 6;
  EXPECT_ERROR(ReadAll(options_).status, kInvalidArgument, "train.batch_size 4 is fewer windows a step than the 6",
               "2 of them would never train", "at least 6");
  options_.workers = 1;
  options_.batch_size = 1;
  options_.context = 1000;
  EXPECT_ERROR(ReadAll(options_).status, kInvalidArgument,
               "a.bin: 1000 tokens - 1 = 999, fewer than one window of 1000 (model.gpt2.context)");
  options_.context = 999;
  EXPECT_TRUE(ReadAll(options_).status.ok());
}

TEST_F(TokenBatchesTest, AMismatchOfTheVocabularyIsRefusedAtOpen) {
  options_.vocabulary = 999;
  EXPECT_ERROR(TokenBatches::Open(options_).status(), kInvalidArgument, "b.bin: token 666 is 999");
}

TEST_F(TokenBatchesTest, AnEvaluationReadsEachWindowOnceInFileOrder) {
  v1::Job job = FromText<v1::Job>(R"(
    data { train { path: "a.bin" } test { path: "a.bin" path: "b.bin" } tokens {} }
    model { gpt2 { context: 7 vocabulary: 1000 } }
    train { batch_size: 5 epochs: 4 seed: 3 }
    eval { batch_size: 50 }
  )");
  TokenBatchesOptions options = EvaluationTokens(job);
  options.data_root = files_.root();
  std::vector<uint16_t> first;
  for (options.workers = 1; options.workers <= 200; options.workers *= 10) {
    std::map<uint64_t, std::vector<uint16_t>> by_step;
    for (options.rank = 0; options.rank < options.workers; ++options.rank) {
      const ReadAllResult part = ReadAll(options);
      ASSERT_TRUE(part.status.ok()) << part.status;
      ASSERT_EQ(part.batches.size(), 3u) << "50, 50 and 42";
      for (const Seen& window : part.windows) by_step[window.step].push_back(window.tokens[0]);
    }
    EXPECT_EQ(by_step[2].size(), 42u);
    uint16_t expected = 0;
    for (const auto& [step, windows] : by_step) {
      for (const uint16_t token : windows) {
        EXPECT_EQ(token, expected);
        expected = static_cast<uint16_t>(expected + 7);
      }
    }
    EXPECT_EQ(expected, 142 * 7);
  }
  options.workers = 1;
  options.rank = 0;
  auto batches = TokenBatches::Open(options);
  ASSERT_TRUE(batches.ok());
  EXPECT_EQ((*batches)->UnusedTokens(0), 5u);
  EXPECT_EQ((*batches)->EpochWindows(0) * 7 + 1 + (*batches)->UnusedTokens(0), (*batches)->tokens());

  const TokenBatchesOptions train = TrainingTokens(job);
  EXPECT_EQ(train.source.path_size(), 1);
  EXPECT_EQ(train.batch_size, 5u);
  EXPECT_EQ(train.epochs, 4u);
  EXPECT_EQ(train.seed, 3u);
  EXPECT_EQ(train.context, 7u);
  EXPECT_EQ(train.vocabulary, 1000u);
  EXPECT_TRUE(train.shuffle);
  EXPECT_TRUE(train.full_batches);
  job.mutable_data()->mutable_tokens()->set_shuffle(false);
  EXPECT_FALSE(TrainingTokens(job).shuffle);
}

}  // namespace
}  // namespace sparrow
