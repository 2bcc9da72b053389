#include "embedding/background_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace sparrow {
namespace {

// Has a number of batches to write.
class Counted final : public BackgroundWriter::Source {
 public:
  explicit Counted(int batches = 0) : left_(batches) {}
  bool WriteBatch() override {
    ++written_;
    if (--left_ > 0) return true;
    if (left_ == 0) done_.Notify();
    return false;
  }
  int written() const { return written_; }
  void Wait() { done_.WaitForNotification(); }

 private:
  std::atomic<int> left_, written_{0};
  absl::Notification done_;
};

TEST(BackgroundWriter, WritesForWhoeverAskedUntilThereIsNoMore) {
  BackgroundWriter writer;
  Counted a(3), b(5), never;
  writer.Wake(&a);
  writer.Wake(&b);
  a.Wait();
  b.Wait();
  writer.Remove(&a);
  writer.Remove(&b);
  EXPECT_EQ(a.written(), 3);
  EXPECT_EQ(b.written(), 5);
  EXPECT_EQ(never.written(), 0);
}

// Its batches last until it is let go, and there are always more, or never.
class Slow final : public BackgroundWriter::Source {
 public:
  explicit Slow(bool has_more) : has_more_(has_more) {}
  bool WriteBatch() override {
    ++written;
    if (!begun.HasBeenNotified()) begun.Notify();
    go_on.WaitForNotification();
    return has_more_;
  }
  std::atomic<int> written{0};
  absl::Notification begun, go_on;

 private:
  const bool has_more_;
};

TEST(BackgroundWriter, RemoveWaitsForTheBatchUnderWayAndNoneFollows) {
  BackgroundWriter writer;
  Slow slow(/*has_more=*/true);
  writer.Wake(&slow);
  slow.begun.WaitForNotification();
  std::atomic<bool> is_removed{false};
  std::thread remover([&] {
    writer.Remove(&slow);
    is_removed = true;
  });
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(is_removed);
  slow.go_on.Notify();
  remover.join();
  const int written = slow.written;
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(slow.written, written);
}

TEST(BackgroundWriter, OneWritesAtATimeAndOneWokenMeanwhileWritesAgain) {
  BackgroundWriter writer;
  Counted counted(2);
  Slow slow(/*has_more=*/false);
  writer.Wake(&slow);
  slow.begun.WaitForNotification();
  writer.Wake(&slow);
  writer.Wake(&slow);
  writer.Wake(&counted);
  EXPECT_EQ(counted.written(), 0);
  slow.go_on.Notify();
  counted.Wait();
  EXPECT_EQ(slow.written, 2);  // It was asked for before.
  writer.Remove(&slow);
  writer.Remove(&counted);
  EXPECT_EQ(counted.written(), 2);
}

TEST(BackgroundWriter, OneThatWasNeverWokenEnds) {
  BackgroundWriter writer;
  Counted counted;
  writer.Remove(&counted);
}

}  // namespace
}  // namespace sparrow
