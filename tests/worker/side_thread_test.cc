#include "worker/side_thread.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "base/parallel.h"

namespace sparrow {
namespace {

TEST(SideThread, DoesItsWorkBesideItsOwnerOnAsManyCores) {
  SideThread side(1);
  absl::Notification go;
  int done = 0;
  std::thread::id where;
  int threads = 0;
  side.Start([&] {
    go.WaitForNotification();
    where = std::this_thread::get_id();
    threads = ParallelThreads();
    ++done;
  });
  go.Notify();  // Start has not waited for the work.
  side.Wait();
  EXPECT_EQ(done, 1);
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_EQ(threads, 1);
  side.Wait();
  for (int i = 0; i < 100; ++i) {
    side.Start([&] { ++done; });
    side.Wait();
    ASSERT_EQ(done, 2 + i);
  }
}

TEST(SideThread, WithoutCoresItsOwnerDoesTheWork) {
  SideThread side(0);
  std::thread::id where;
  side.Start([&] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  side.Wait();
}

TEST(SideThread, EndsWhenWhatWasBegunIsDone) {
  bool done = false;
  {
    SideThread side(1);
    side.Start([&] { done = true; });
  }
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace sparrow
