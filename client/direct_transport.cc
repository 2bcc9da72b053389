#include "client/direct_transport.h"

#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/bounded_queue.h"
#include "base/parallel.h"
#include "embedding/row_codec.h"
#include "worker/ps_client.h"

namespace sparrow {
namespace {

absl::Status CancelledHere() { return absl::CancelledError("the call was cancelled"); }

class DirectTransport final : public PsTransport {
 public:
  DirectTransport(Shard* shard, int ahead_threads)
      : shard_(shard), timer_([this] { ExpirePulls(); }), ahead_thread_([this, ahead_threads] {
          UseThreads(ahead_threads);
          PullAhead();
        }) {}

  ~DirectTransport() override {
    Cancel();
    timer_.join();
    ahead_.Close();
    ahead_thread_.join();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &DirectTransport::Idle));
  }

  void Pull(const RowPull* request, v1::PullResponse* response, absl::Duration timeout, Done done) override {
    if (!request->message.ahead()) return PullNow(request, response, timeout, std::move(done));
    // The caller computes meanwhile.
    ahead_.Push([=, this, done = std::move(done)]() mutable { PullNow(request, response, timeout, std::move(done)); });
  }

  void PullNow(const RowPull* request, v1::PullResponse* response, absl::Duration timeout, Done done) {
    const v1::RowType type = request->message.row_type();
    std::span<const std::span<float>> rows = request->rows;
    if (type != v1::FLOAT32) {  // As they would arrive elsewhere: rounded, and then floats again.
      rows = {};
      done = [request, response, done = std::move(done)](absl::Status status) {
        if (status.ok()) Decode(*request, response);
        done(std::move(status));
      };
    }
    uint64_t call = 0;
    {
      absl::MutexLock lock(&mu_);
      if (!cancelled_) {
        call = ++last_call_;
        pulls_[call].deadline = absl::Now() + timeout;
        pulls_[call].done = std::move(done);
      }
    }
    if (call == 0) return done(CancelledHere());
    const uint64_t id = shard_->Pull(&request->message, rows, response,
                                     [this, call](absl::Status status) { Finish(call, std::move(status)); });
    bool end_now = false;
    {
      absl::MutexLock lock(&mu_);
      const auto pull = pulls_.find(call);
      if (pull == pulls_.end() || !pull->second.done) return;  // Done already.
      pull->second.shard_id = id;
      end_now = cancelled_ || pull->second.expired;
    }
    if (end_now) shard_->CancelPull(id);
  }

  void Push(const RowPush* request, v1::PushResponse* response, absl::Duration, Done done) override {
    Call([&] { return shard_->Push(request->message, request->beside, response); }, done);
  }
  void OpenJob(const v1::OpenJobRequest* request, v1::OpenJobResponse* response, absl::Duration, Done done) override {
    Call([&] { return shard_->OpenJob(*request, response); }, done);
  }
  void SaveTables(const v1::SaveTablesRequest* request, v1::SaveTablesResponse* response, absl::Duration,
                  Done done) override {
    Call([&] { return shard_->SaveTables(*request, response); }, done);
  }
  void CloseJob(const v1::CloseJobRequest* request, v1::CloseJobResponse* response, absl::Duration,
                Done done) override {
    Call([&] { return shard_->CloseJob(*request, response); }, done);
  }

  // Calls are made one after the other, and each has all cores: few large ones.
  uint64_t ChunkBytes() const override { return kChunkBytesMax; }

  void Cancel() override {
    std::vector<uint64_t> ids;
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
      for (const auto& [call, pull] : pulls_) {
        if (pull.shard_id.has_value() && pull.done) ids.push_back(*pull.shard_id);
      }
    }
    for (const uint64_t id : ids) shard_->CancelPull(id);
  }

 private:
  struct PullCall {
    absl::Time deadline;
    Done done;                         // Empty: being called.
    std::optional<uint64_t> shard_id;  // Not there until Shard::Pull has returned.
    bool expired = false;
  };

  static void Decode(const RowPull& request, v1::PullResponse* response) {
    const RowType type = static_cast<RowType>(request.message.row_type());
    for (size_t i = 0; i < request.rows.size(); ++i) {
      v1::TableRows* table = response->mutable_tables(static_cast<int>(i));
      DecodeRows(type, table->rows().data(), table->rows().size() / RowWireBytes(type, table->dim()), table->dim(),
                 request.rows[i]);
      table->clear_rows();
    }
  }

  static constexpr size_t kAheadMax = 256;  // Calls that wait for the thread; beyond, callers wait.

  void PullAhead() {
    while (std::optional<std::function<void()>> call = ahead_.Pop()) (*call)();
  }

  template <typename Body>
  void Call(const Body& body, const Done& done) {
    bool cancelled = false;
    {
      absl::MutexLock lock(&mu_);
      cancelled = cancelled_;
      if (!cancelled) ++calls_;
    }
    if (cancelled) return done(CancelledHere());
    done(body());
    absl::MutexLock lock(&mu_);
    --calls_;
  }

  void Finish(uint64_t call, absl::Status status) {
    Done done;
    {
      absl::MutexLock lock(&mu_);
      PullCall& pull = pulls_[call];
      done = std::exchange(pull.done, nullptr);
      if (pull.expired && absl::IsCancelled(status)) {
        status = absl::DeadlineExceededError("a pull was not answered in time: other workers' pushes are missing");
      }
    }
    done(std::move(status));
    absl::MutexLock lock(&mu_);
    pulls_.erase(call);  // Last: the destructor waits for it.
  }

  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return calls_ == 0 && pulls_.empty(); }

  // The timer's thread: ends pulls whose deadline has passed. Timeouts are long, so looking now and then is enough.
  void ExpirePulls() {
    constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
    for (;;) {
      std::vector<uint64_t> ids;
      {
        absl::MutexLock lock(&mu_);
        if (mu_.AwaitWithTimeout(absl::Condition(&cancelled_), kLookEvery)) return;
        const absl::Time now = absl::Now();
        for (auto& [call, pull] : pulls_) {
          if (pull.expired || now < pull.deadline) continue;
          pull.expired = true;
          if (pull.shard_id.has_value() && pull.done) ids.push_back(*pull.shard_id);
        }
      }
      for (const uint64_t id : ids) shard_->CancelPull(id);
    }
  }

  Shard* const shard_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_call_ ABSL_GUARDED_BY(mu_) = 0;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;  // Other than pulls, in progress.
  absl::flat_hash_map<uint64_t, PullCall> pulls_ ABSL_GUARDED_BY(mu_);

  BoundedQueue<std::function<void()>> ahead_{kAheadMax};  // Open until the destructor, which empties it.

  std::thread timer_;  // Last, since they use the others.
  std::thread ahead_thread_;
};

}  // namespace

std::unique_ptr<PsTransport> MakeDirectTransport(Shard* shard, int ahead_threads) {
  return std::make_unique<DirectTransport>(shard, ahead_threads);
}

}  // namespace sparrow
