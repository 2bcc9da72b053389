#include "dense/collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/dense/double_reference.h"
#include "tests/support/rendezvous_stores.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;
using testing::RandomFloats;

constexpr absl::Duration kConnectTimeout = absl::Seconds(20);

// Runs `body` as each member of a Gloo group, one thread a member.
void RunGroup(uint32_t size, absl::Duration timeout, const std::function<void(Collective*)>& body) {
  MapStore store;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto collective = MakeGlooCollective(
          {.rank = rank, .size = size, .host = "127.0.0.1", .connect_timeout = kConnectTimeout, .timeout = timeout},
          &store);
      ASSERT_TRUE(collective.ok()) << collective.status();
      EXPECT_EQ((*collective)->rank(), rank);
      EXPECT_EQ((*collective)->size(), size);
      body(collective->get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

constexpr absl::Duration kTimeout = absl::Seconds(30);

class GlooGroups : public ::testing::TestWithParam<uint32_t> {};

TEST_P(GlooGroups, AllReduceSumsOverMembers) {
  const uint32_t size = GetParam();
  for (size_t n : {1, 2, 31, 257, 70'001, 600'000}) {
    std::vector<double> expected(n);
    for (uint32_t r = 0; r < size; ++r) {
      const auto part = RandomFloats(r + 1, n);
      for (size_t i = 0; i < n; ++i) expected[i] += part[i];
    }
    std::vector<std::vector<float>> floats(size);
    RunGroup(size, kTimeout, [&](Collective* group) {
      floats[group->rank()] = RandomFloats(group->rank() + 1, n);
      std::vector<double> doubles(floats[group->rank()].begin(), floats[group->rank()].end());
      ASSERT_TRUE(group->AllReduceSum(std::span<float>(floats[group->rank()])).ok());
      ASSERT_TRUE(group->AllReduceSum(std::span<double>(doubles)).ok());
      for (size_t i = 0; i < n; ++i) ASSERT_NEAR(doubles[i], expected[i], 1e-14);
    });
    for (size_t i = 0; i < n; ++i) ASSERT_NEAR(floats[0][i], expected[i], 1e-6);
    for (uint32_t r = 1; r < size; ++r) EXPECT_EQ(floats[r], floats[0]);
  }
}

TEST_P(GlooGroups, AllReduceIsBitEqualFromRunToRun) {
  const uint32_t size = GetParam();
  constexpr size_t kElements = 10'001;
  std::vector<float> results[2];
  for (auto& result : results) {
    RunGroup(size, kTimeout, [&](Collective* group) {
      // Members arrive in different orders in different runs.
      absl::SleepFor(absl::Milliseconds(group->rank() * (&result == results ? 3 : -3) + 10));
      std::vector<float> values = RandomFloats(group->rank() + 7, kElements);
      ASSERT_TRUE(group->AllReduceSum(std::span<float>(values)).ok());
      if (group->rank() == size - 1) result = values;
    });
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(GlooGroups, AllReduceOfNothingIsLegal) {
  RunGroup(GetParam(), kTimeout, [&](Collective* group) {
    EXPECT_TRUE(group->AllReduceSum(std::span<float>()).ok());
    EXPECT_TRUE(group->AllReduceSum(std::span<double>()).ok());
    std::vector<float> one = {1};
    EXPECT_TRUE(group->AllReduceSum(std::span<float>(one)).ok());
    EXPECT_EQ(one[0], static_cast<float>(GetParam()));
  });
}

TEST_P(GlooGroups, AllGatherTakesDifferentLengthsAndZero) {
  const auto bytes_of = [](uint32_t rank, int round) {
    if (round == 0) return std::string();                                           // Nobody has anything.
    if (round == 1) return rank == 1 ? std::string() : std::string(rank + 3, 'x');  // One has nothing.
    if (round == 2) return rank == 1 ? std::string("\0only", 5) : std::string();    // One has something.
    return std::string(100'000 * (rank + 1), static_cast<char>('a' + rank));
  };
  RunGroup(GetParam(), kTimeout, [&](Collective* group) {
    for (int round = 0; round < 4; ++round) {
      const auto parts = group->AllGather(bytes_of(group->rank(), round));
      ASSERT_TRUE(parts.ok()) << parts.status();
      ASSERT_EQ(parts->size(), GetParam());
      for (uint32_t r = 0; r < GetParam(); ++r) EXPECT_EQ((*parts)[r], bytes_of(r, round)) << round << " " << r;
    }
  });
}

// Slices of all kinds: even ones, empty ones, one that holds everything, and longer ones than a piece of a message.
std::vector<SliceEnds> CutsOf(uint64_t n, uint32_t members) {
  std::vector<SliceEnds> cuts = {EvenSlices(n, members)};
  for (uint32_t owner = 0; owner < members; ++owner) {
    SliceEnds ends(members, n);
    std::fill(ends.begin(), ends.begin() + owner, 0);
    cuts.push_back(ends);
  }
  SliceEnds uneven(members);
  for (uint64_t r = 0; r < members; ++r) uneven[r] = n * (r + 1) * (r + 1) / (members * members);
  cuts.push_back(uneven);
  return cuts;
}

TEST_P(GlooGroups, ReduceScatterSumsTheOwnSliceAndAllGatherCopiesIt) {
  const uint32_t size = GetParam();
  RunGroup(size, kTimeout, [&](Collective* group) {
    const uint32_t rank = group->rank();
    for (const uint64_t n : {0, 1, 2, 3, 5, 257, 70'001, 1'500'000}) {
      std::vector<double> expected(n);
      for (uint32_t r = 0; r < size; ++r) {
        const auto part = RandomFloats(r + 1, n);
        for (size_t i = 0; i < n; ++i) expected[i] += part[i];
      }
      for (const SliceEnds& ends : CutsOf(n, size)) {
        const Slice own = SliceOf(ends, rank), next = SliceOf(ends, (rank + 1) % size);
        const uint64_t sent_before = group->slice_bytes_sent();
        std::vector<float> values = RandomFloats(rank + 1, n);
        ASSERT_TRUE(group->ReduceScatterSum(values, ends).ok());
        for (uint64_t i = own.begin; i < own.end; ++i) ASSERT_NEAR(values[i], expected[i], 1e-6) << rank << " " << i;
        // The others' elements are for them to send.
        for (uint64_t i = 0; i < n; ++i) {
          if (i < own.begin || i >= own.end) values[i] = -1e9f;
        }
        ASSERT_TRUE(group->AllGatherSlices(values, ends).ok());
        for (uint64_t i = 0; i < n; ++i) ASSERT_NEAR(values[i], expected[i], 1e-6) << rank << " " << i;
        EXPECT_EQ(group->slice_bytes_sent() - sent_before, 4 * (2 * n - own.size() - next.size()));
        const auto all = group->AllGather({reinterpret_cast<const char*>(values.data()), 4 * n});
        ASSERT_TRUE(all.ok()) << all.status();
        for (const std::string& others : *all) ASSERT_TRUE(others == (*all)[0]) << "to the bit, on all members";
      }
    }
  });
}

// So that a vector may be reduced in parts: the order of a sum depends on its slice, not on what else is in the
// message.
TEST_P(GlooGroups, ReduceScatterOfPartsEqualsThatOfTheWholeBitForBit) {
  const uint32_t size = GetParam();
  constexpr uint64_t kElements = 300'001;
  const SliceEnds ends = EvenSlices(kElements, size);
  RunGroup(size, kTimeout, [&](Collective* group) {
    std::vector<float> whole = RandomFloats(group->rank() + 3, kElements), parts = whole;
    ASSERT_TRUE(group->ReduceScatterSum(whole, ends).ok());
    for (uint64_t begin = 0; begin < kElements; begin += 77'777) {
      const Slice part{begin, std::min(begin + 77'777, kElements)};
      ASSERT_TRUE(
          group->ReduceScatterSum(std::span(parts).subspan(part.begin, part.size()), SlicesWithin(ends, part)).ok());
    }
    const Slice own = SliceOf(ends, group->rank());
    EXPECT_TRUE(std::equal(whole.begin() + own.begin, whole.begin() + own.end, parts.begin() + own.begin));
    EXPECT_TRUE(group->Barrier().ok());
  });
}

TEST_P(GlooGroups, MemberThatLeavesMakesAReduceScatterUnavailable) {
  const uint32_t size = GetParam();
  const absl::Time start = absl::Now();
  const SliceEnds ends = EvenSlices(600'000, size);
  RunGroup(size, absl::Seconds(5), [&](Collective* group) {
    std::vector<float> values(600'000, 1.0f);
    ASSERT_TRUE(group->ReduceScatterSum(values, ends).ok());
    if (group->rank() == size - 1) return;  // Leaves.
    const absl::Status status = group->ReduceScatterSum(values, ends);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ReduceScatterSum of rank"));
    EXPECT_EQ(group->AllGatherSlices(values, ends).code(), absl::StatusCode::kUnavailable);
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

TEST(Slices, CoverAVectorInOrder) {
  EXPECT_EQ(EvenSlices(10, 3), (SliceEnds{4, 7, 10}));
  EXPECT_EQ(EvenSlices(2, 4), (SliceEnds{1, 2, 2, 2}));
  EXPECT_EQ(EvenSlices(0, 2), (SliceEnds{0, 0}));
  EXPECT_EQ(EvenSlices(uint64_t{1} << 62, 3).back(), uint64_t{1} << 62);
  EXPECT_EQ(SliceOf({4, 7, 10}, 0).begin, 0u);
  EXPECT_EQ(SliceOf({4, 7, 10}, 1).begin, 4u);
  EXPECT_EQ(SliceOf({4, 7, 10}, 1).end, 7u);
  EXPECT_EQ(SlicesWithin({4, 7, 10}, {5, 9}), (SliceEnds{0, 2, 4}));
  EXPECT_EQ(SlicesWithin({4, 7, 10}, {0, 3}), (SliceEnds{3, 3, 3}));
}

TEST_P(GlooGroups, BarrierWaitsForAll) {
  absl::Mutex mu;
  uint32_t arrived = 0;
  RunGroup(GetParam(), kTimeout, [&](Collective* group) {
    absl::SleepFor(absl::Milliseconds(20 * group->rank()));
    {
      absl::MutexLock lock(&mu);
      ++arrived;
    }
    ASSERT_TRUE(group->Barrier().ok());
    absl::MutexLock lock(&mu);
    EXPECT_EQ(arrived, GetParam());
  });
}

TEST_P(GlooGroups, MemberThatLeavesMakesTheOthersUnavailable) {
  const uint32_t size = GetParam();
  const absl::Time start = absl::Now();
  RunGroup(size, absl::Seconds(5), [&](Collective* group) {
    std::vector<float> values(1000, 1.0f);
    ASSERT_TRUE(group->AllReduceSum(std::span<float>(values)).ok());
    if (group->rank() == size - 1) return;  // Leaves.
    absl::Status status = group->AllReduceSum(std::span<float>(values));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("AllReduceSum of rank"));
    // The group stays unusable.
    EXPECT_EQ(group->Barrier().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(group->AllGather("x").status().code(), absl::StatusCode::kUnavailable);
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

// A member that writes to one that has just left is sent SIGPIPE, which ends a process that says nothing about it.
TEST(GlooCollective, WritingToAMemberThatHasLeftIsNoSignal) {
  const auto before = signal(SIGPIPE, SIG_DFL);
  RunGroup(2, kTimeout, [&](Collective*) {});
  EXPECT_EQ(raise(SIGPIPE), 0);
  signal(SIGPIPE, before);
}

TEST_P(GlooGroups, MemberThatIsTooSlowMakesTheOthersUnavailable) {
  const uint32_t size = GetParam();
  absl::Mutex mu;
  uint32_t done = 0;
  RunGroup(size, absl::Milliseconds(300), [&](Collective* group) {
    ASSERT_TRUE(group->Barrier().ok());
    if (group->rank() == 0) {  // There, but calls nothing until the others have given up.
      absl::MutexLock lock(&mu);
      const auto all_others = [&] { return done == size - 1; };
      EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&all_others), absl::Seconds(20)));
      return;
    }
    std::vector<double> values(10, 1.0);
    const absl::Status status = group->AllReduceSum(std::span<double>(values));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    absl::MutexLock lock(&mu);
    ++done;
  });
}

// A member that stands still holds its connections open: nothing but the end of its lease says that it is lost.
TEST_P(GlooGroups, AbortEndsWhatWaitsForAMemberThatStandsStillAndEveryLaterCall) {
  const uint32_t size = GetParam();
  absl::Mutex mu;
  uint32_t done = 0;
  const absl::Time start = absl::Now();
  RunGroup(size, absl::Minutes(5), [&](Collective* group) {
    ASSERT_TRUE(group->Barrier().ok());
    const auto all_others = [&] { return done == size - 1; };
    if (group->rank() == 0) {
      absl::MutexLock lock(&mu);
      EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&all_others), absl::Seconds(60)));
      return;
    }
    std::thread aborter([&] {
      absl::SleepFor(absl::Milliseconds(20 * group->rank()));
      group->Abort();
    });
    std::vector<float> values(100'000, 1.0f);
    absl::Status status;
    for (int i = 0; i < 2 && status.ok(); ++i) status = group->AllReduceSum(std::span<float>(values));
    EXPECT_TRUE(absl::IsCancelled(status) || absl::IsUnavailable(status)) << status;  // Of another's abort.
    aborter.join();
    EXPECT_FALSE(group->Barrier().ok());
    absl::MutexLock lock(&mu);
    ++done;
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
}

TEST(GlooCollective, AGroupThatWasAbortedBeforeACallWaitsForNobody) {
  RunGroup(2, absl::Minutes(5), [](Collective* group) {
    group->Abort();
    const absl::Status status = group->Barrier();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Barrier of rank"));
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, GlooGroups, ::testing::Values(2, 3, 4));

TEST(GlooCollective, MemberThatNeverComesIsAnErrorWithinTheConnectTimeout) {
  MapStore store;
  const absl::Time start = absl::Now();
  const auto collective = MakeGlooCollective(
      {.rank = 0, .size = 2, .host = "127.0.0.1", .connect_timeout = absl::Milliseconds(300)}, &store);
  EXPECT_EQ(collective.status().code(), absl::StatusCode::kUnavailable) << collective.status();
  EXPECT_THAT(std::string(collective.status().message()), HasSubstr("rank 0 of 2"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(GlooCollective, HostThatIsNotThisMachineIsNamed) {
  for (const std::string host : {"no-such-host.invalid", "192.0.2.1", ""}) {
    MapStore store;
    const auto collective =
        MakeGlooCollective({.rank = 0, .size = 2, .host = host, .connect_timeout = absl::Milliseconds(300)}, &store);
    EXPECT_EQ(collective.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(collective.status().message()), HasSubstr("at host \"" + host + "\" could not join"));
  }
}

TEST(LocalCollective, IsTheIdentity) {
  const auto group = MakeLocalCollective();
  EXPECT_EQ(group->rank(), 0u);
  EXPECT_EQ(group->size(), 1u);
  std::vector<float> values = {1, 2};
  EXPECT_TRUE(group->AllReduceSum(std::span<float>(values)).ok());
  EXPECT_TRUE(group->ReduceScatterSum(values, {2}).ok());
  EXPECT_TRUE(group->AllGatherSlices(values, {2}).ok());
  EXPECT_EQ(group->slice_bytes_sent(), 0u);
  EXPECT_EQ(values, (std::vector<float>{1, 2}));
  EXPECT_EQ(group->AllGather("abc").value(), std::vector<std::string>{"abc"});
  EXPECT_TRUE(group->Barrier().ok());
}

}  // namespace
}  // namespace sparrow
