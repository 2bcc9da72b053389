#include "client/direct_transport.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace sparrow {
namespace {

// A shard whose pulls of step 0 are answered at once, and others when AnswerAll is called.
class FakeShard final : public Shard {
 public:
  absl::Status OpenJob(const v1::OpenJobRequest&, v1::OpenJobResponse* response) override {
    response->add_rows(5);
    return absl::OkStatus();
  }
  uint64_t Pull(const v1::PullRequest* request, std::span<const std::span<float>>, v1::PullResponse* response,
                Done done) override {
    response->set_version(request->step());
    if (request->step() == 0) {
      done(absl::OkStatus());
      return 0;
    }
    absl::MutexLock lock(&mu_);
    waiting_[++last_id_] = std::move(done);
    return last_id_;
  }
  void CancelPull(uint64_t id) override { End(id, absl::CancelledError("by CancelPull")); }
  absl::Status Push(const v1::PushRequest& request, std::span<const std::span<const char>>,
                    v1::PushResponse*) override {
    return request.parts() == 0 ? absl::InvalidArgumentError("no parts") : absl::OkStatus();
  }
  absl::Status SaveTables(const v1::SaveTablesRequest&, v1::SaveTablesResponse* response) override {
    response->add_files()->set_name("f");
    return absl::OkStatus();
  }
  absl::Status CloseJob(const v1::CloseJobRequest&, v1::CloseJobResponse*) override { return absl::OkStatus(); }
  void KeepOnly(const std::vector<std::string>&, uint64_t) override {}
  uint64_t opened() const override { return 0; }
  void Shutdown() override {}
  std::shared_ptr<CallMemory> call_memory() override { return nullptr; }
  Usage GetUsage() override { return {}; }

  void AnswerAll() {
    std::map<uint64_t, Done> waiting;
    {
      absl::MutexLock lock(&mu_);
      waiting.swap(waiting_);
    }
    for (auto& [id, done] : waiting) done(absl::OkStatus());
  }

 private:
  void End(uint64_t id, absl::Status status) {
    Done done;
    {
      absl::MutexLock lock(&mu_);
      const auto found = waiting_.find(id);
      if (found == waiting_.end()) return;
      done = std::move(found->second);
      waiting_.erase(found);
    }
    done(std::move(status));
  }

  absl::Mutex mu_;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Done> waiting_ ABSL_GUARDED_BY(mu_);
};

// A pull and its end.
struct PullCall {
  RowPull request;
  v1::PullResponse response;
  absl::Status status;
  int ends = 0;
  absl::Notification ended;

  void Start(PsTransport* transport, uint64_t step, absl::Duration timeout = absl::Seconds(60)) {
    request.message.set_step(step);
    transport->Pull(&request, &response, timeout, [this](absl::Status s) {
      status = std::move(s);
      ++ends;
      ended.Notify();
    });
  }
};

TEST(DirectTransport, EveryCallReachesTheShardAndBringsItsAnswer) {
  FakeShard shard;
  const std::unique_ptr<PsTransport> transport = MakeDirectTransport(&shard);
  const absl::Duration timeout = absl::Seconds(5);
  absl::Status status = absl::UnknownError("not called");
  const auto done = [&](absl::Status s) { status = std::move(s); };

  v1::OpenJobRequest open;
  v1::OpenJobResponse opened;
  transport->OpenJob(&open, &opened, timeout, done);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(opened.rows(0), 5u);

  RowPush push;
  v1::PushResponse pushed;
  transport->Push(&push, &pushed, timeout, done);
  EXPECT_EQ(status, absl::InvalidArgumentError("no parts"));

  v1::SaveTablesRequest save;
  v1::SaveTablesResponse saved;
  transport->SaveTables(&save, &saved, timeout, done);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(saved.files(0).name(), "f");

  status = absl::UnknownError("not called");
  v1::CloseJobRequest close;
  v1::CloseJobResponse closed;
  transport->CloseJob(&close, &closed, timeout, done);
  EXPECT_TRUE(status.ok());

  PullCall at_once, later;
  at_once.Start(transport.get(), 0);
  EXPECT_TRUE(at_once.ended.HasBeenNotified());
  later.Start(transport.get(), 3);
  EXPECT_FALSE(later.ended.HasBeenNotified());
  shard.AnswerAll();
  EXPECT_TRUE(later.ended.HasBeenNotified());
  EXPECT_TRUE(later.status.ok());
  EXPECT_EQ(later.response.version(), 3u);
}

TEST(DirectTransport, CancelEndsWhatWaitsAndWhatComesLater) {
  FakeShard shard;
  PullCall waiting, later;
  const std::unique_ptr<PsTransport> transport = MakeDirectTransport(&shard);
  waiting.Start(transport.get(), 1);
  transport->Cancel();
  waiting.ended.WaitForNotification();
  EXPECT_TRUE(absl::IsCancelled(waiting.status)) << waiting.status;
  later.Start(transport.get(), 0);
  EXPECT_TRUE(absl::IsCancelled(later.status)) << later.status;
  absl::Status pushed;
  RowPush push;
  v1::PushResponse response;
  transport->Push(&push, &response, absl::Seconds(1), [&](absl::Status s) { pushed = std::move(s); });
  EXPECT_TRUE(absl::IsCancelled(pushed)) << pushed;
}

TEST(DirectTransport, APullThatIsNotAnsweredInTimeEndsWithDeadlineExceeded) {
  FakeShard shard;
  PullCall slow, patient;  // Outlive the transport, which ends the one that still waits.
  const std::unique_ptr<PsTransport> transport = MakeDirectTransport(&shard);
  patient.Start(transport.get(), 1);
  slow.Start(transport.get(), 1, absl::Milliseconds(20));
  ASSERT_TRUE(slow.ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.status)) << slow.status;
  EXPECT_FALSE(patient.ended.HasBeenNotified());
}

TEST(DirectTransport, DestructionEndsWaitingPulls) {
  FakeShard shard;
  std::unique_ptr<PsTransport> transport = MakeDirectTransport(&shard);
  PullCall waiting;
  waiting.Start(transport.get(), 1);
  transport.reset();
  ASSERT_TRUE(waiting.ended.HasBeenNotified());
  EXPECT_TRUE(absl::IsCancelled(waiting.status)) << waiting.status;
}

TEST(DirectTransport, EveryPullEndsOnceHoweverAnswersCancelAndTimeoutsMeet) {
  for (int round = 0; round < 20; ++round) {
    FakeShard shard;
    std::unique_ptr<PsTransport> transport = MakeDirectTransport(&shard);
    std::vector<std::unique_ptr<PullCall>> calls;
    for (int i = 0; i < 120; ++i) calls.push_back(std::make_unique<PullCall>());
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t; i < 120; i += 3) {
          calls[i]->Start(transport.get(), static_cast<uint64_t>(i % 2), absl::Milliseconds(i % 5));
        }
      });
    }
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) shard.AnswerAll();
    });
    threads.emplace_back([&] { transport->Cancel(); });
    for (std::thread& thread : threads) thread.join();
    transport.reset();
    for (const auto& call : calls) {
      ASSERT_TRUE(call->ended.HasBeenNotified());
      ASSERT_EQ(call->ends, 1);
    }
  }
}

}  // namespace
}  // namespace sparrow
