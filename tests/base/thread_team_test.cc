#include "base/thread_team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace sparrow {
namespace {

TEST(ThreadTeam, EachTaskIsDoneOnceAndSeenAfterwards) {
  for (const int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.threads(), threads);
    for (const size_t tasks : {0, 1, 2, 3, 100, 1000}) {
      std::vector<int> done(tasks);
      team.Run(tasks, [&](size_t task, int) { ++done[task]; });
      EXPECT_EQ(std::count(done.begin(), done.end(), 1), static_cast<int64_t>(tasks)) << threads << " threads";
    }
  }
}

TEST(ThreadTeam, NoTwoTasksAtOnceHaveTheSameThread) {
  ThreadTeam team(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes{0};
  for (int round = 0; round < 200; ++round) {
    team.Run(8, [&](size_t, int thread) {
      if (inside[static_cast<size_t>(thread)].fetch_add(1) != 0) ++clashes;
      inside[static_cast<size_t>(thread)].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadTeam, ATaskMayWaitForOneBeforeIt) {
  ThreadTeam team(3);
  std::vector<std::atomic<bool>> done(50);
  team.Run(done.size(), [&](size_t task, int) {
    while (task > 0 && !done[task - 1]) std::this_thread::yield();
    done[task] = true;
  });
  EXPECT_TRUE(done.back());
}

}  // namespace
}  // namespace sparrow
