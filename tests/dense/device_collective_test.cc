#include "dense/device_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/cuda/graph.h"
#include "tests/dense/double_reference.h"
#include "tests/support/child_process.h"
#include "tests/support/gpu.h"
#include "tests/support/rendezvous_stores.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;
using testing::RandomFloats;

constexpr char kStoreVariable[] = "SPARROW_TEST_DEVICE_STORE";
constexpr absl::Duration kLong = absl::Seconds(40);

class DeviceCollectiveTest : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu<>::SetUp();
    if (IsSkipped()) return;
    if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD: the collective was not run";
  }
};

class TwoGpus : public DeviceCollectiveTest {
 protected:
  void SetUp() override {
    DeviceCollectiveTest::SetUp();
    if (IsSkipped()) return;
    if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two ranks were compiled but not run";
  }
};

using Body = std::function<void(DeviceCollective*, const Stream&)>;

// Runs `body` as each of two members, each a thread with its own GPU.
void RunTwo(const Body& body) {
  MapStore store;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      UseGpu(static_cast<int>(rank));
      const Stream stream;
      auto member =
          MakeNcclCollective({.rank = rank, .size = 2, .connect_timeout = kLong, .queue_timeout = kLong}, &store);
      ASSERT_TRUE(member.ok()) << member.status();
      EXPECT_EQ((*member)->rank(), rank);
      EXPECT_EQ((*member)->size(), 2u);
      body(member->get(), stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What rank r contributes.
std::vector<float> Part(uint32_t rank, size_t n, uint64_t round = 0) {
  return RandomFloats(1000 * round + 10 * n + rank + 1, n);
}
std::vector<float> SumOfTwo(size_t n, uint64_t round = 0) {
  std::vector<float> sum = Part(0, n, round);
  const std::vector<float> other = Part(1, n, round);
  for (size_t i = 0; i < n; ++i) sum[i] += other[i];
  return sum;
}

const size_t kSizes[] = {0, 1, 31, 32, 33, 257, 70'001, 3'000'000};

TEST_F(DeviceCollectiveTest, NcclWorksAsAWorldOfOneInAGraphToo) {
  const Stream stream;
  MapStore store;
  auto one = MakeNcclCollective({}, &store);
  ASSERT_TRUE(one.ok()) << one.status();
  for (const size_t n : kSizes) {
    DeviceBuffer<float> values = Upload(Part(0, n), stream);
    const auto sum = [&] { ASSERT_TRUE((*one)->AllReduceSum(values.data(), n, stream).ok()); };
    sum();
    const Graph graph(stream, sum);
    graph.Replay(stream);
    EXPECT_TRUE((*one)->Wait(stream, kLong).ok());
    EXPECT_EQ(Download(values, stream), Part(0, n));
  }
}

TEST_F(DeviceCollectiveTest, MemberThatNeverComesIsNamedWithinTheDeadline) {
  MapStore store;
  const absl::Time start = absl::Now();
  const auto alone = MakeNcclCollective({.rank = 0, .size = 2, .connect_timeout = absl::Seconds(2)}, &store);
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kUnavailable) << alone.status();
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("connecting of rank 0 of 2"));
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("nothing was heard of rank 1"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(14));
  std::printf("connecting alone was over after %s\n", absl::FormatDuration(absl::Now() - start).c_str());
}

TEST_F(DeviceCollectiveTest, RankZeroThatNeverComesIsNamedToo) {
  MapStore store;
  const auto alone = MakeNcclCollective({.rank = 1, .size = 2, .connect_timeout = absl::Milliseconds(200)}, &store);
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kUnavailable) << alone.status();
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("rank 1 of 2 did not meet rank 0"));
}

TEST_F(DeviceCollectiveTest, CancellationEndsTheWaiting) {
  MapStore store;
  const absl::Time start = absl::Now();
  const auto alone =
      MakeNcclCollective({.rank = 0,
                          .size = 2,
                          .connect_timeout = absl::Minutes(5),
                          .cancelled = [start] { return absl::Now() - start > absl::Milliseconds(300); }},
                         &store);
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kCancelled) << alone.status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(12));
}

TEST_F(TwoGpus, SumsAreEqualBitForBitOnBothRanks) {
  RunTwo([](DeviceCollective* member, const Stream& stream) {
    for (const size_t n : kSizes) {
      DeviceBuffer<float> values = Upload(Part(member->rank(), n), stream);
      ASSERT_TRUE(member->AllReduceSum(values.data(), static_cast<int64_t>(n), stream).ok());
      ASSERT_TRUE(member->Wait(stream, kLong).ok());
      EXPECT_EQ(Download(values, stream), SumOfTwo(n)) << n << " floats";
    }
  });
}

TEST_F(TwoGpus, BothGetWhatEachHasInTheOrderOfRanks) {
  RunTwo([](DeviceCollective* member, const Stream& stream) {
    for (const size_t n : kSizes) {
      const DeviceBuffer<float> mine = Upload(Part(member->rank(), n), stream);
      DeviceBuffer<float> all = Upload(std::vector<float>(2 * n, -1), stream);
      ASSERT_TRUE(member->AllGather(mine.data(), all.data(), static_cast<int64_t>(n * sizeof(float)), stream).ok());
      ASSERT_TRUE(member->Wait(stream, kLong).ok());
      std::vector<float> expected = Part(0, n);
      const std::vector<float> other = Part(1, n);
      expected.insert(expected.end(), other.begin(), other.end());
      EXPECT_EQ(Download(all, stream), expected) << n << " floats";
    }
  });
}

// Of 2 n elements, in place and not, and of double.
TEST_F(TwoGpus, SharesOfSumsAndTheirGatheringAreTheTwoHalvesOfASum) {
  RunTwo([](DeviceCollective* member, const Stream& stream) {
    for (const size_t n : {0, 4, 32, 300, 70'000, 1'500'000}) {
      const size_t own = member->rank() * n;
      const std::vector<float> sum = SumOfTwo(2 * n);
      const std::vector<float> share(sum.begin() + own, sum.begin() + own + n);
      DeviceBuffer<float> values = Upload(Part(member->rank(), 2 * n), stream);
      DeviceBuffer<float> apart = Upload(std::vector<float>(n), stream);
      ASSERT_TRUE(member->ReduceScatterSum(values.data(), apart.data(), n, stream).ok());
      ASSERT_TRUE(member->ReduceScatterSum(values.data(), values.data() + own, n, stream).ok());
      ASSERT_TRUE(member->Wait(stream, kLong).ok());
      EXPECT_EQ(Download(apart, stream), share) << n;
      const std::vector<float> scattered = Download(values, stream);
      EXPECT_EQ(std::vector<float>(scattered.begin() + own, scattered.begin() + own + n), share) << n;
      DeviceBuffer<uint16_t> ranks = Upload(std::vector<uint16_t>(2, member->rank() + 7), stream);
      const std::vector<DeviceCollective::SharedRange> ranges = {
          {.data = values.data(), .bytes = static_cast<int64_t>(n * sizeof(float))},
          {},
          {.data = ranks.data(), .bytes = sizeof(uint16_t)}};
      ASSERT_TRUE(member->GatherShares(ranges, stream).ok());
      ASSERT_TRUE(member->Wait(stream, kLong).ok());
      EXPECT_EQ(Download(values, stream), sum) << n;
      EXPECT_EQ(Download(ranks, stream), (std::vector<uint16_t>{7, 8}));
    }
    DeviceBuffer<double> doubles = Upload(std::vector<double>{1 + 0x1p-40, 3.0 * member->rank()}, stream);
    ASSERT_TRUE(member->AllReduceSum(doubles.data(), 2, stream).ok());
    ASSERT_TRUE(member->Wait(stream, kLong).ok());
    EXPECT_EQ(Download(doubles, stream), (std::vector<double>{2 + 0x1p-39, 3}));
  });
}

TEST_F(TwoGpus, AGraphThatBothHaveRecordedSumsAtEachReplay) {
  RunTwo([](DeviceCollective* member, const Stream& stream) {
    for (const size_t n : {33u, 70'001u, 3'000'000u}) {
      DeviceBuffer<float> values = Upload(Part(member->rank(), n), stream);
      const auto sum = [&] { ASSERT_TRUE(member->AllReduceSum(values.data(), n, stream).ok()); };
      sum();
      ASSERT_TRUE(member->Wait(stream, kLong).ok());
      const Graph graph(stream, sum);
      for (uint64_t round = 1; round <= 5; ++round) {
        const std::vector<float> part = Part(member->rank(), n, round);
        values.CopyFrom(part, stream);
        graph.Replay(stream);
        ASSERT_TRUE(member->Wait(stream, kLong).ok());
        ASSERT_EQ(Download(values, stream), SumOfTwo(n, round)) << n << " floats, round " << round;
      }
    }
  });
}

TEST_F(TwoGpus, MemberThatDoesNotComeIsNamedAndLearnsThatTheOtherHasGivenUp) {
  absl::Notification gave_up;
  RunTwo([&](DeviceCollective* member, const Stream& stream) {
    DeviceBuffer<float> values = Upload(Part(member->rank(), 70'001), stream);
    const auto sum = [&] { return member->AllReduceSum(values.data(), 70'001, stream); };
    ASSERT_TRUE(sum().ok());
    ASSERT_TRUE(member->Wait(stream, kLong).ok());
    if (member->rank() == 1) gave_up.WaitForNotificationWithTimeout(kLong);
    const absl::Time start = absl::Now();
    absl::Status status;
    // Rank 1 finds what rank 0 has sent for one sum more.
    for (int sums = 0; sums < 3 && status.ok(); ++sums) {
      status = sum();
      if (status.ok()) status = member->Wait(stream, member->rank() == 0 ? absl::Seconds(2) : kLong);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    const std::string message(status.message());
    std::printf("%s (after %s)\n", message.c_str(), absl::FormatDuration(absl::Now() - start).c_str());
    EXPECT_LT(absl::Now() - start, absl::Seconds(14));
    if (member->rank() == 0) {
      EXPECT_THAT(message, HasSubstr("Wait of rank 0 of 2"));
      EXPECT_THAT(message, HasSubstr("not over within 2s"));
      EXPECT_THAT(message, HasSubstr("nothing was heard of rank 1"));
      gave_up.Notify();
    } else {
      EXPECT_THAT(message, HasSubstr("given up has rank 0"));
    }
    // What was queued is over, and the member stays unusable.
    stream.Synchronize();
    EXPECT_EQ(sum(), status);
    EXPECT_EQ(member->Wait(stream, kLong), status);
  });
}

TEST_F(TwoGpus, GivingUpEndsASumUnderWay) {
  absl::Notification over;
  RunTwo([&](DeviceCollective* member, const Stream& stream) {
    DeviceBuffer<float> values = Upload(Part(member->rank(), 70'001), stream);
    ASSERT_TRUE(member->AllReduceSum(values.data(), 70'001, stream).ok());
    ASSERT_TRUE(member->Wait(stream, kLong).ok());
    if (member->rank() == 1) {
      over.WaitForNotificationWithTimeout(kLong);
      return;
    }
    ASSERT_TRUE(member->AllReduceSum(values.data(), 70'001, stream).ok());  // Alone.
    const absl::Time start = absl::Now();
    member->GiveUp();
    stream.Synchronize();
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    EXPECT_EQ(member->AllReduceSum(values.data(), 1, stream).code(), absl::StatusCode::kUnavailable);
    over.Notify();
  });
}

TEST_F(TwoGpus, DestructionEndsASumUnderWay) {
  absl::Notification over;
  MapStore store;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      UseGpu(static_cast<int>(rank));
      const Stream stream;
      DeviceBuffer<float> values = Upload(Part(rank, 70'001), stream);
      {
        auto member = MakeNcclCollective({.rank = rank, .size = 2, .connect_timeout = kLong}, &store);
        ASSERT_TRUE(member.ok()) << member.status();
        ASSERT_TRUE((*member)->AllReduceSum(values.data(), 70'001, stream).ok());
        ASSERT_TRUE((*member)->Wait(stream, kLong).ok());
        if (rank == 1) over.WaitForNotificationWithTimeout(kLong);
        if (rank == 0) {
          ASSERT_TRUE((*member)->AllReduceSum(values.data(), 70'001, stream).ok());  // Alone.
        }
      }
      stream.Synchronize();
      if (rank == 0) over.Notify();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The other process of the test below.
TEST(DeviceCollectiveChild, SumsThenIsKilledInTheMiddleOfASum) {
  const char* directory = std::getenv(kStoreVariable);
  if (directory == nullptr) GTEST_SKIP() << "only as a child";
  UseGpu(1);
  FileStore store(directory);
  const Stream stream;
  auto member = MakeNcclCollective({.rank = 1, .size = 2, .connect_timeout = kLong, .queue_timeout = kLong}, &store);
  ASSERT_TRUE(member.ok()) << member.status();
  DeviceBuffer<float> values = Upload(Part(1, 3'000'000), stream);
  ASSERT_TRUE((*member)->AllReduceSum(values.data(), 3'000'000, stream).ok());
  ASSERT_TRUE((*member)->Wait(stream, kLong).ok());
  ASSERT_TRUE((*member)->AllReduceSum(values.data(), 3'000'000, stream).ok());
  absl::SleepFor(absl::Milliseconds(300));  // The kernel runs, and waits for the parent.
  std::raise(SIGKILL);
}

TEST_F(TwoGpus, MemberThatIsKilledInTheMiddleOfASumIsNoticed) {
  const TemporaryDirectory directory;
  ChildProcess child(
      {std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_filter=DeviceCollectiveChild.*"},
      {.directory = "", .environment = {std::string(kStoreVariable) + "=" + directory.path()}});
  UseGpu(0);
  FileStore store(directory.path());
  const Stream stream;
  auto member =
      MakeNcclCollective({.rank = 0, .size = 2, .connect_timeout = kLong, .queue_timeout = absl::Seconds(3)}, &store);
  ASSERT_TRUE(member.ok()) << member.status() << child.Stdout() << child.Stderr();
  DeviceBuffer<float> values = Upload(Part(0, 3'000'000), stream);
  ASSERT_TRUE((*member)->AllReduceSum(values.data(), 3'000'000, stream).ok());
  ASSERT_TRUE((*member)->Wait(stream, kLong).ok());
  EXPECT_EQ(Download(values, stream), SumOfTwo(3'000'000));
  ASSERT_EQ(child.Wait(kLong), 128 + SIGKILL);
  const absl::Time start = absl::Now();
  absl::Status status = (*member)->AllReduceSum(values.data(), 3'000'000, stream);
  if (status.ok()) status = (*member)->Wait(stream, absl::Seconds(3));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("nothing was heard of rank 1"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(16));
  std::printf("%s (after %s)\n", std::string(status.message()).c_str(),
              absl::FormatDuration(absl::Now() - start).c_str());
}

}  // namespace
}  // namespace sparrow
