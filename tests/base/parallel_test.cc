#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace sparrow {
namespace {

TEST(Parallel, EveryIndexIsVisitedOnceAndCutsAreMultiplesOfTheGrain) {
  for (const int64_t n : {0, 1, 31, 32, 33, 257, 70'001}) {
    for (const int64_t grain : {1, 7, 32, 100'000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
      ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
        EXPECT_LT(begin, end);
        EXPECT_EQ(begin % grain, 0);
        EXPECT_TRUE(end == n || end % grain == 0);
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      for (const auto& count : visits) ASSERT_EQ(count, 1) << n << " by " << grain;
    }
  }
}

TEST(Parallel, ASmallLoopRunsOnTheCallingThread) {
  const std::thread::id self = std::this_thread::get_id();
  ParallelFor(5, 5, [&](int64_t, int64_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
}

TEST(Parallel, AnEmptyLoopCallsNothing) {
  ParallelFor(0, 1, [](int64_t, int64_t) { ADD_FAILURE(); });
  ParallelFor(-3, 1, [](int64_t, int64_t) { ADD_FAILURE(); });
}

TEST(Parallel, NestedLoopsCoverAllToo) {
  std::atomic<int64_t> sum{0};
  ParallelFor(8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ParallelFor(100, 1, [&](int64_t first, int64_t last) { sum += last - first; });
    }
  });
  EXPECT_EQ(sum, 800);
  EXPECT_GE(ParallelThreads(), 1);
}

}  // namespace
}  // namespace sparrow
