#include "server/call_memory.h"

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics.h"
#include "tests/server/service_fixture.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A table that gives back what it is asked for.
class Giver final : public MemoryBudget::Holder {
 public:
  Giver(MemoryBudget* budget, uint64_t held) : budget_(*budget), held_(held) {
    budget_.Add(static_cast<int64_t>(held));
    budget_.Register(this);
  }
  ~Giver() override { budget_.Unregister(this); }
  uint64_t HeldBytes() const override { return held_; }
  void GiveBack(uint64_t bytes) override {
    ++asked_;
    held_ -= bytes;
    budget_.Add(-static_cast<int64_t>(bytes));
  }
  int asked() const { return asked_; }

 private:
  MemoryBudget& budget_;
  uint64_t held_;
  int asked_ = 0;
};

struct Memory {
  explicit Memory(uint64_t bytes) : budget(std::make_shared<MemoryBudget>(bytes)), calls(bytes, budget) {}
  uint64_t budget_used() const { return static_cast<uint64_t>(budget->used()); }

  const std::shared_ptr<MemoryBudget> budget;
  CallMemory calls;
};

TEST(CallMemory, TheFirstUseTakesTheBaseAndOrdinaryCallsFitInIt) {
  Memory memory(1024 * kMiB);
  EXPECT_EQ(memory.budget_used(), 0u) << "a server without calls leaves all to rows";
  {
    const CallMemory::Hold hold = memory.calls.Use(kMiB);
    EXPECT_EQ(memory.calls.used_bytes(), kMiB);
    EXPECT_EQ(memory.budget_used(), 64 * kMiB);
    const CallMemory::Hold more = memory.calls.Use(20 * kMiB);
    EXPECT_EQ(memory.budget_used(), 64 * kMiB);
  }
  EXPECT_EQ(memory.calls.used_bytes(), 0u);
  EXPECT_EQ(memory.budget_used(), 64 * kMiB) << "the base stays";
}

TEST(CallMemory, TablesMakeRoomForMoreThanTheBase) {
  Memory memory(1024 * kMiB);
  Giver large(memory.budget.get(), 700 * kMiB), small(memory.budget.get(), 300 * kMiB);
  const CallMemory::Hold hold = memory.calls.Use(100 * kMiB);
  EXPECT_GE(memory.calls.counted_bytes(), 100 * kMiB);
  EXPECT_FALSE(memory.budget->used() > static_cast<int64_t>(memory.budget->bytes_max()) + 2);
  EXPECT_EQ(large.asked(), 1);
  EXPECT_EQ(small.asked(), 1);
  EXPECT_NEAR(static_cast<double>(small.HeldBytes()) / static_cast<double>(large.HeldBytes()), 3.0 / 7, 0.01);
}

TEST(CallMemory, WhatIsNotUsedForTwoWindowsIsGivenBack) {
  Memory memory(1024 * kMiB);
  absl::Time now = absl::UnixEpoch();
  memory.calls.Settle(now);
  { const CallMemory::Hold hold = memory.calls.Use(300 * kMiB); }
  for (int i = 0; i < 2; ++i) {
    memory.calls.Settle(now += absl::Seconds(11));
    EXPECT_GE(memory.budget_used(), 300 * kMiB) << "the next step may want it again";
  }
  memory.calls.Settle(now += absl::Seconds(1));
  EXPECT_GE(memory.budget_used(), 300 * kMiB) << "within a window";
  memory.calls.Settle(now += absl::Seconds(10));
  EXPECT_EQ(memory.budget_used(), 64 * kMiB);
}

TEST(CallMemory, TablesKeepAQuarterWhateverCallsUse) {
  Memory memory(1024 * kMiB);
  const CallMemory::Hold hold = memory.calls.Use(2000 * kMiB);
  EXPECT_EQ(memory.budget_used(), 768 * kMiB);
}

TEST(CallMemory, WhatWaitsIsBounded) {
  Memory memory(100 * kMiB);
  EXPECT_EQ(memory.calls.waiting_bytes_max(), 50 * kMiB);
  std::optional<CallMemory::Hold> first = memory.calls.TryWait(30 * kMiB);
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(memory.calls.TryWait(21 * kMiB).has_value());
  EXPECT_EQ(memory.calls.waiting_bytes(), 30 * kMiB);
  EXPECT_EQ(memory.calls.used_bytes(), 30 * kMiB) << "a refusal leaves nothing behind";
  EXPECT_TRUE(memory.calls.TryWait(20 * kMiB).has_value());
  first.reset();
  EXPECT_EQ(memory.calls.waiting_bytes(), 0u);
  EXPECT_TRUE(memory.calls.TryWait(50 * kMiB).has_value());
}

TEST(CallMemory, BuffersAreKeptByKindWithinTheBase) {
  Memory memory(1000 * kMiB);  // A base of 62.5 MiB, a fifth for each kind.
  EXPECT_TRUE(memory.calls.Keep(CallMemory::Kind::kGradients, 12 * kMiB));
  EXPECT_FALSE(memory.calls.Keep(CallMemory::Kind::kGradients, kMiB));
  EXPECT_TRUE(memory.calls.Keep(CallMemory::Kind::kFloats, 12 * kMiB)) << "no kind takes another's share";
  EXPECT_EQ(memory.calls.used_bytes(), 24 * kMiB);
  memory.calls.Unkeep(CallMemory::Kind::kGradients, 12 * kMiB);
  memory.calls.Unkeep(CallMemory::Kind::kFloats, 12 * kMiB);
  EXPECT_EQ(memory.calls.used_bytes(), 0u);
  Memory small(kMiB);
  EXPECT_TRUE(small.calls.Keep(CallMemory::Kind::kPushRequests, 2 * kMiB)) << "an ordinary chunk, on any server";
  small.calls.Unkeep(CallMemory::Kind::kPushRequests, 2 * kMiB);
}

TEST(CallMemory, ThreadsLeaveNothingBehind) {
  Memory memory(64 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      for (uint64_t i = 1; i < 2000; ++i) {
        CallMemory::Hold hold = memory.calls.Use(i * 1000);
        hold.Resize(i);
        const auto waiting = memory.calls.TryWait(i * 5000);
        if (memory.calls.Keep(CallMemory::Kind::kFloats, i)) memory.calls.Unkeep(CallMemory::Kind::kFloats, i);
        if (t == 0) memory.calls.Settle(absl::UnixEpoch() + absl::Seconds(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.calls.used_bytes(), 0u);
  EXPECT_EQ(memory.calls.waiting_bytes(), 0u);
  EXPECT_EQ(memory.budget_used(), memory.calls.counted_bytes());
}

// A server of 64 MiB, whose jobs' steps are large for it, behind a connection. 28 MiB may wait.
class LargeStepsTest : public ServiceFixture {
 protected:
  static constexpr uint32_t kDim = 64;
  static constexpr size_t kRows = 40'000;  // Of a push: 10.9 MB with their keys.
  static constexpr uint64_t kPushBytes = kRows * (kDim * sizeof(float) + sizeof(Key));

  LargeStepsTest() : ServiceFixture(64 * kMiB) {
    job_.workers = 3;
    job_.tables = {SgdTable("user", kDim)};
  }

  static std::vector<Key> Keys(Key first) {
    std::vector<Key> keys(kRows);
    std::iota(keys.begin(), keys.end(), first);
    return keys;
  }
  v1::PushRequest LargePush(uint64_t step, uint32_t worker, Key first, uint32_t part = 0, uint32_t parts = 1) const {
    v1::PushRequest push = job_.Push(step, {{0, Keys(first), std::vector<float>(kRows * kDim, 1.0f)}}, worker);
    push.set_part(part);
    push.set_parts(parts);
    return push;
  }
  uint64_t Waiting() { return server_.shard->call_memory()->waiting_bytes(); }

  TestJob job_;
};

TEST_F(LargeStepsTest, PartsThatWaitCountUntilTheStepIsApplied) {
  ASSERT_TRUE(Open(job_).ok());
  const std::vector<float> before = RowsOf(*Pull(job_.Pull(0, {{0, {5}}})));
  ASSERT_TRUE(Push(LargePush(0, 0, 0)).ok());
  EXPECT_GE(Waiting(), kPushBytes);
  ASSERT_TRUE(Push(LargePush(0, 1, 0)).ok());
  EXPECT_GE(Waiting(), 2 * kPushBytes);
  EXPECT_GE(server_.shard->call_memory()->counted_bytes(), 2 * kPushBytes);
  ASSERT_TRUE(Push(job_.Push(0, {}, 2)).ok());
  EXPECT_EQ(Waiting(), 0u);
  EXPECT_EQ(RowsOf(*Pull(job_.Pull(1, {{0, {5}}})))[0], before[0] - 0.5f * 2 / 3);
}

TEST_F(LargeStepsTest, APushThatHasNoRoomToWaitIsRefusedAndSucceedsLater) {
  ASSERT_TRUE(Open(job_).ok());
  TestJob other = job_;
  other.id = "other";
  other.workers = 2;
  ASSERT_TRUE(Open(other).ok());
  const std::vector<float> before = RowsOf(*Pull(job_.Pull(0, {{0, {5}}})));
  ASSERT_TRUE(Push(other.Push(0, {{0, Keys(0), std::vector<float>(kRows * kDim, 1.0f)}}, 0)).ok());
  const v1::PushRequest accepted = LargePush(0, 0, 0), refused = LargePush(0, 1, 0);
  ASSERT_TRUE(Push(accepted).ok());
  const uint64_t waiting = Waiting();
  const uint64_t most = server_.shard->call_memory()->waiting_bytes_max();
  ASSERT_GT(waiting + kPushBytes, most);

  const absl::Status status = Push(refused);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("job job-1"), HasSubstr("worker 1"), HasSubstr("step 0"),
                    HasSubstr(absl::StrCat(kPushBytes, " bytes")), HasSubstr(absl::StrCat(waiting, " bytes")),
                    HasSubstr(absl::StrCat("at most ", most)), HasSubstr("--memory")));
  EXPECT_EQ(Waiting(), waiting);
  EXPECT_EQ(ServerMetrics(&server_.metrics).refused_resource_exhausted.Value(), 1);

  v1::PushResponse again;
  ASSERT_TRUE(Push(accepted, &again).ok()) << "a repeated part needs no room";
  EXPECT_TRUE(again.duplicate());

  ASSERT_TRUE(Push(other.Push(0, {}, 1)).ok());  // The other job's step is applied, and waits no more.
  ASSERT_TRUE(Push(refused, &again).ok());
  EXPECT_FALSE(again.duplicate());
  ASSERT_TRUE(Push(job_.Push(0, {}, 2)).ok());
  EXPECT_EQ(RowsOf(*Pull(job_.Pull(1, {{0, {5}}})))[0], before[0] - 0.5f * 2 / 3);
  EXPECT_EQ(Waiting(), 0u);
}

TEST_F(LargeStepsTest, TheEndOfAJobFreesWhatWaits) {
  ASSERT_TRUE(Open(job_).ok());
  ASSERT_TRUE(Push(LargePush(0, 0, 0, 0, 3)).ok());
  ASSERT_TRUE(Push(LargePush(0, 0, kRows, 1, 3)).ok());
  EXPECT_GE(Waiting(), 2 * kPushBytes);
  EXPECT_TRUE(absl::IsResourceExhausted(Push(LargePush(0, 0, 2 * kRows, 2, 3))));
  v1::CloseJobRequest close;
  *close.mutable_context() = job_.Context();
  v1::CloseJobResponse response;
  ASSERT_TRUE(server_.shard->CloseJob(close, &response).ok());
  EXPECT_EQ(Waiting(), 0u);
}

TEST_F(LargeStepsTest, ALoneWorkersPartsHoldNothing) {
  job_.workers = 1;
  ASSERT_TRUE(Open(job_).ok());
  for (uint32_t part = 0; part < 8; ++part) {
    ASSERT_TRUE(Push(LargePush(0, 0, part * kRows, part, 9)).ok());
    EXPECT_EQ(Waiting(), 0u);
  }
}

TEST_F(LargeStepsTest, WaitingPullsAreBounded) {
  ASSERT_TRUE(Open(job_).ok());
  std::vector<Key> keys(1'000'000);
  std::iota(keys.begin(), keys.end(), Key{0});
  const v1::PullRequest pull = job_.Pull(1, {{0, {keys.begin(), keys.begin() + 200'000}}});
  std::vector<std::unique_ptr<WirePull>> pulls;
  for (double waiting = 1; waiting <= 18; ++waiting) {  // 1.6 MB each, of 28 MiB.
    pulls.push_back(std::make_unique<WirePull>(stub_.get(), pull));
    ASSERT_TRUE(WaitForWaitingPulls(waiting));
  }
  EXPECT_EQ(Waiting(), 18u * 1'600'000);
  const absl::Status refused = Pull(pull).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("job job-1: pull of worker 0, step 1: its 1600000 bytes"), HasSubstr("28800000 bytes")));
  pulls.clear();
  ASSERT_TRUE(WaitForWaitingPulls(0));
  EXPECT_EQ(Waiting(), 0u);
}

TEST_F(LargeStepsTest, TablesMakeRoomForStepsAndAllOfItStaysInTheBudget) {
  ASSERT_TRUE(Open(job_).ok());
  // More than the memory, so that tables hold all there is.
  for (Key first = 0; first < 8 * kRows; first += kRows) ASSERT_TRUE(Pull(job_.Pull(0, {{0, Keys(first)}})).ok());
  for (uint64_t step = 0; step < 2; ++step) {
    for (uint32_t worker = 0; worker < job_.workers; ++worker) {
      ASSERT_TRUE(Pull(job_.Pull(step, {{0, Keys(worker * kRows / 2)}}, worker)).ok());
    }
    for (uint32_t worker = 0; worker < 2; ++worker) ASSERT_TRUE(Push(LargePush(step, worker, worker * kRows / 2)).ok());
    ASSERT_TRUE(Push(job_.Push(step, {}, 2)).ok());
  }
  const uint64_t tables = server_.shard->GetUsage().memory_bytes;
  // An eighth of it is RocksDB's, and of the rest a sixteenth the calls' from the first on: the tables may have all
  // else, as long as the calls do not need more.
  EXPECT_LT(tables, 64 * kMiB / 8 * 7 / 16 * 15 - 10 * kMiB);
  EXPECT_LE(tables + server_.shard->call_memory()->counted_bytes(), 64 * kMiB / 8 * 7 / 64 * 66);
}

TEST_F(LargeStepsTest, WhatCallsHoldIsInTheMetrics) {
  const ServerMetrics metrics(&server_.metrics);
  ASSERT_TRUE(Open(job_).ok());
  server_.shard->GetUsage();
  EXPECT_EQ(metrics.waiting_bytes.Value(), 0);
  ASSERT_TRUE(Push(LargePush(0, 0, 0)).ok());
  server_.shard->GetUsage();
  EXPECT_GE(metrics.waiting_bytes.Value(), static_cast<double>(kPushBytes));
  EXPECT_GE(metrics.call_bytes.Value(), metrics.waiting_bytes.Value());
  for (uint32_t worker = 1; worker < 3; ++worker) ASSERT_TRUE(Push(job_.Push(0, {}, worker)).ok());
  server_.shard->GetUsage();
  EXPECT_EQ(metrics.waiting_bytes.Value(), 0);
}

}  // namespace
}  // namespace sparrow
