#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace sparrow {
namespace {

TEST(BoundedQueue, ItemsComeOutInOrder) {
  BoundedQueue<std::unique_ptr<int>> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.Push(std::make_unique<int>(i)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(**queue.Pop(), i);
}

TEST(BoundedQueue, AFullQueueMakesThePusherWait) {
  BoundedQueue<int> queue(1);
  ASSERT_TRUE(queue.Push(1));
  absl::Notification pushed;
  std::thread pusher([&] {
    EXPECT_TRUE(queue.Push(2));
    pushed.Notify();
  });
  EXPECT_FALSE(pushed.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  EXPECT_EQ(*queue.Pop(), 1);
  pushed.WaitForNotification();
  EXPECT_EQ(*queue.Pop(), 2);
  pusher.join();
}

TEST(BoundedQueue, ClosingWakesThoseWhoWaitAndLeavesWhatIsInside) {
  BoundedQueue<int> full(1);
  ASSERT_TRUE(full.Push(1));
  BoundedQueue<int> empty(1);
  std::thread pusher([&] { EXPECT_FALSE(full.Push(2)); });
  std::thread popper([&] { EXPECT_FALSE(empty.Pop().has_value()); });
  full.Close();
  empty.Close();
  pusher.join();
  popper.join();
  EXPECT_EQ(*full.Pop(), 1);
  EXPECT_FALSE(full.Pop().has_value());
  EXPECT_FALSE(full.Push(3));
}

TEST(BoundedQueue, ManyThreadsLoseAndRepeatNothing) {
  BoundedQueue<int> queue(4);
  constexpr int kThreads = 3;
  constexpr int kItems = 2000;
  std::vector<std::thread> pushers;
  for (int t = 0; t < kThreads; ++t) {
    pushers.emplace_back([&, t] {
      for (int i = 0; i < kItems; ++i) EXPECT_TRUE(queue.Push(t * kItems + i));
    });
  }
  std::vector<int> seen(kThreads * kItems);
  absl::Mutex mu;
  std::vector<std::thread> poppers;
  for (int t = 0; t < kThreads; ++t) {
    poppers.emplace_back([&] {
      while (const std::optional<int> item = queue.Pop()) {
        absl::MutexLock lock(&mu);
        ++seen[static_cast<size_t>(*item)];
      }
    });
  }
  for (std::thread& pusher : pushers) pusher.join();
  queue.Close();
  for (std::thread& popper : poppers) popper.join();
  for (const int count : seen) ASSERT_EQ(count, 1);
}

}  // namespace
}  // namespace sparrow
