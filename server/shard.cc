#include "server/shard.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "base/task_pool.h"
#include "embedding/table.h"
#include "server/call_memory.h"
#include "server/checkpoint_files.h"
#include "server/data_directory.h"
#include "server/job.h"
#include "server/job_spec.h"
#include "server/metrics.h"
#include "server/request_check.h"

namespace sparrow {
namespace {

absl::Status ShuttingDown() { return absl::UnavailableError("the parameter server is shutting down"); }

// Of a server's memory, so much is RocksDB's: half of it caches blocks, indexes and filters, half holds rows on their
// way to files.
uint64_t ColdBytes(const ShardOptions& options) {
  constexpr uint64_t kShare = 8;
  constexpr uint64_t kMost = uint64_t{1} << 30;  // More makes no read faster.
  return std::min(options.memory_bytes / kShare, kMost);
}

std::shared_ptr<ColdShare> MakeColdShare(const ShardOptions& options) {
  constexpr uint64_t kLeast = 1 << 20;  // What RocksDB can work with.
  const uint64_t half = std::max(kLeast, ColdBytes(options) / 2);
  return ColdStore::Share(
      {.block_cache_bytes = half, .write_buffer_bytes = half, .disk_bytes_max = options.disk_bytes});
}

// Finds the job of each call; server/job.cc does the work.
class LocalShard final : public Shard {
 public:
  LocalShard(ShardOptions options, std::unique_ptr<DataDirectory> data, Metrics* metrics)
      : options_(std::move(options)),
        metrics_(metrics),
        data_(std::move(data)),
        cold_share_(MakeColdShare(options_)),
        budget_(std::make_shared<MemoryBudget>(options_.memory_bytes - ColdBytes(options_))),
        memory_(std::make_shared<CallMemory>(options_.memory_bytes, budget_)),
        task_pool_(std::make_shared<TaskPool>(Cores() - 1)) {}
  ~LocalShard() override {
    Shutdown();
    Report({}, {});
  }

  absl::Status OpenJob(const v1::OpenJobRequest& request, v1::OpenJobResponse* response) override {
    return Timed(metrics_.open_job_seconds, [&] { return Open(request, response); });
  }

  uint64_t Pull(const v1::PullRequest* request, std::span<const std::span<float>> rows, v1::PullResponse* response,
                Done done) override {
    const absl::Time start = absl::Now();
    const uint64_t id = next_pull_.fetch_add(1, std::memory_order_relaxed);
    Done finish = [this, start, done = std::move(done)](absl::Status status) {
      metrics_.pull_seconds.Observe(absl::ToDoubleSeconds(absl::Now() - start));
      metrics_.CountRefusal(status);
      done(std::move(status));
    };
    const absl::StatusOr<std::shared_ptr<Job>> job = Find(request->context());
    if (job.ok()) {
      (*job)->Pull(id, request, rows, response, std::move(finish));
    } else {
      finish(job.status());
    }
    return id;
  }

  void CancelPull(uint64_t id) override {
    for (const std::shared_ptr<Job>& job : AllJobs()) {
      if (job->CancelPull(id)) return;
    }
  }

  absl::Status Push(const v1::PushRequest& request, std::span<const std::span<const char>> beside,
                    v1::PushResponse* response) override {
    return Timed(metrics_.push_seconds, [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, Find(request.context()));
      return job->Push(request, beside, response);
    });
  }
  absl::Status SaveTables(const v1::SaveTablesRequest& request, v1::SaveTablesResponse* response) override {
    return Timed(metrics_.save_tables_seconds, [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, Find(request.context()));
      return job->SaveTables(request, response);
    });
  }

  absl::Status CloseJob(const v1::CloseJobRequest& request, v1::CloseJobResponse*) override {
    return Timed(metrics_.close_job_seconds, [&] { return CloseOne(request.context()); });
  }

  void KeepOnly(const std::vector<std::string>& live_job_ids, uint64_t opened_before) override {
    const std::set<std::string> live(live_job_ids.begin(), live_job_ids.end());
    std::vector<std::shared_ptr<Job>> dropped;
    {
      absl::MutexLock lock(&mu_);
      for (auto it = jobs_.begin(); it != jobs_.end();) {
        if (it->second.number >= opened_before || live.contains(it->first)) {
          ++it;
          continue;
        }
        dropped.push_back(std::move(it->second.job));
        it = jobs_.erase(it);
      }
      metrics_.jobs.Add(-static_cast<double>(dropped.size()));
    }
    for (const std::shared_ptr<Job>& job : dropped) {
      LOG(INFO) << "job " << job->spec().job_id << " is over: its rows are dropped";
      job->Close(absl::AbortedError(absl::StrCat("job ", job->spec().job_id, " is over")));
    }
  }

  uint64_t opened() const override {
    absl::MutexLock lock(&mu_);
    return opened_;
  }

  void Shutdown() override {
    std::map<std::string, OpenedJob> jobs;
    {
      absl::MutexLock lock(&mu_);
      shut_down_ = true;
      jobs.swap(jobs_);
      metrics_.jobs.Add(-static_cast<double>(jobs.size()));
    }
    for (const auto& [id, opened] : jobs) opened.job->Close(ShuttingDown());
  }

  Usage GetUsage() override {
    TableStats sum;
    for (const std::shared_ptr<Job>& job : AllJobs()) {
      sum += job->Stats();
    }
    memory_->Settle(absl::Now());
    Report(sum, {.used = memory_->used_bytes(), .waiting = memory_->waiting_bytes()});
    return {.rows = sum.rows, .memory_bytes = sum.dram_bytes, .evictions = sum.evictions, .cold_reads = sum.cold_reads};
  }

  std::shared_ptr<CallMemory> call_memory() override { return memory_; }

 private:
  struct OpenedJob {
    std::shared_ptr<Job> job;  // Shared with the calls that are working on it.
    uint64_t number = 0;       // Jobs opened before it.
  };

  // Bytes beside tables and RocksDB.
  struct BytesOfCalls {
    uint64_t used = 0;
    uint64_t waiting = 0;
  };

  // Brings the gauges to `now`. By differences, because servers of one process share them.
  void Report(const TableStats& now, const BytesOfCalls& of_calls) {
    const auto change = [](uint64_t after, uint64_t before) {
      return static_cast<double>(after) - static_cast<double>(before);
    };
    absl::MutexLock lock(&reported_mu_);
    metrics_.dram_rows.Add(change(now.dram_rows, reported_.dram_rows));
    metrics_.dram_bytes.Add(change(now.dram_bytes, reported_.dram_bytes));
    metrics_.disk_rows.Add(change(now.disk_rows, reported_.disk_rows));
    metrics_.disk_bytes.Add(change(now.disk_bytes, reported_.disk_bytes));
    metrics_.call_bytes.Add(change(of_calls.used, reported_calls_.used));
    metrics_.waiting_bytes.Add(change(of_calls.waiting, reported_calls_.waiting));
    reported_ = now;
    reported_calls_ = of_calls;
  }

  template <typename Call>
  absl::Status Timed(const Histogram& seconds, Call call) {
    const absl::Time start = absl::Now();
    absl::Status status = call();
    seconds.Observe(absl::ToDoubleSeconds(absl::Now() - start));
    metrics_.CountRefusal(status);
    return status;
  }

  absl::Status Open(const v1::OpenJobRequest& request, v1::OpenJobResponse* response) {
    ASSIGN_OR_RETURN(JobSpec spec, ParseOpenJob(request));
    // Of every call, also of one that is repeated: its caller keeps the probe until it has the answer.
    if (!request.checkpoint_probe().empty()) {
      RETURN_IF_ERROR(Annotate(CheckCheckpointProbe(options_.checkpoint_root, request.checkpoint_probe()),
                               absl::StrCat("job ", spec.job_id, " cannot be opened")));
    }
    std::shared_ptr<Job> job;
    std::shared_ptr<Job> replaced;
    bool is_new = false;
    {
      absl::MutexLock lock(&mu_);
      if (shut_down_) return ShuttingDown();
      OpenedJob& entry = jobs_[spec.job_id];
      if (entry.job != nullptr) {
        const JobSpec& open = entry.job->spec();
        if (spec.epoch < open.epoch) {
          return absl::FailedPreconditionError(absl::StrCat("job ", spec.job_id, ": epoch ", spec.epoch,
                                                            " is over, the job is open here in epoch ", open.epoch));
        }
        if (spec.epoch == open.epoch) RETURN_IF_ERROR(CheckSameConfiguration(open, spec));
      }
      is_new = entry.job == nullptr || spec.epoch > entry.job->spec().epoch;
      if (is_new) {
        replaced = std::move(entry.job);
        if (replaced == nullptr) metrics_.jobs.Add(1);
        const std::string directory = data_->ForJob(absl::StrCat(spec.job_id, ".", spec.epoch, ".", opened_));
        entry.job =
            std::make_shared<Job>(std::move(spec), Job::Environment{.directory = directory,
                                                                    .checkpoint_root = options_.checkpoint_root,
                                                                    .message_bytes_max = options_.message_bytes_max,
                                                                    .budget = budget_.get(),
                                                                    .memory = memory_,
                                                                    .task_pool = task_pool_,
                                                                    .cold_share = cold_share_,
                                                                    .metrics = metrics_});
        entry.number = opened_++;
      }
      job = entry.job;
    }
    if (replaced != nullptr) {
      replaced->Close(absl::AbortedError(absl::StrCat("job ", job->spec().job_id, ": epoch ", replaced->spec().epoch,
                                                      " was replaced by epoch ", job->spec().epoch)));
      replaced.reset();  // Its memory is free, unless a call is still busy with it, before the new job takes its own.
    }
    const absl::Status status = is_new ? job->Open() : job->WaitUntilOpen();
    if (!status.ok()) {
      if (is_new) Forget(job, status);
      return Annotate(status, absl::StrCat("job ", job->spec().job_id, " cannot be opened"));
    }
    response->clear_rows();
    for (const uint64_t rows : job->RowsByTable()) response->add_rows(rows);
    return absl::OkStatus();
  }

  absl::Status CloseOne(const v1::CallContext& context) {
    std::shared_ptr<Job> job;
    {
      absl::MutexLock lock(&mu_);
      const auto it = jobs_.find(context.job_id());
      if (it == jobs_.end()) return absl::OkStatus();
      job = it->second.job;
    }
    if (context.epoch() < job->spec().epoch) {
      return absl::FailedPreconditionError(absl::StrCat("job ", context.job_id(), ": epoch ", context.epoch(),
                                                        " is over, the job is open here in epoch ", job->spec().epoch));
    }
    Forget(job, absl::AbortedError(absl::StrCat("job ", context.job_id(), " was closed")));
    return absl::OkStatus();
  }

  // Drops this very job, not one that has replaced it.
  void Forget(const std::shared_ptr<Job>& job, const absl::Status& reason) {
    {
      absl::MutexLock lock(&mu_);
      const auto it = jobs_.find(job->spec().job_id);
      if (it != jobs_.end() && it->second.job == job) {
        jobs_.erase(it);
        metrics_.jobs.Add(-1);
      }
    }
    job->Close(reason);
  }

  absl::StatusOr<std::shared_ptr<Job>> Find(const v1::CallContext& context) const {
    std::shared_ptr<Job> job;
    {
      absl::MutexLock lock(&mu_);
      if (shut_down_) return ShuttingDown();
      const auto it = jobs_.find(context.job_id());
      if (it != jobs_.end()) job = it->second.job;
    }
    if (job == nullptr || !job->IsOpen()) {
      return absl::FailedPreconditionError(absl::StrCat("job \"", context.job_id().substr(0, 128),
                                                        "\" is not open on this server; OpenJob comes first (was the "
                                                        "server restarted?)"));
    }
    RETURN_IF_ERROR(CheckContext(job->spec(), context));
    return job;
  }

  std::vector<std::shared_ptr<Job>> AllJobs() const {
    absl::MutexLock lock(&mu_);
    std::vector<std::shared_ptr<Job>> all;
    for (const auto& [id, opened] : jobs_) all.push_back(opened.job);
    return all;
  }

  const ShardOptions options_;
  const ServerMetrics metrics_;
  const std::unique_ptr<DataDirectory> data_;
  const std::shared_ptr<ColdShare> cold_share_;  // With the stores of jobs, which calls may keep alive.

  const std::shared_ptr<MemoryBudget> budget_;  // Thread-safe. Shared with memory_.
  const std::shared_ptr<CallMemory> memory_;    // With jobs, which calls may keep alive, and with messages of calls.

  const std::shared_ptr<TaskPool> task_pool_;  // With jobs, which calls may keep alive.

  mutable absl::Mutex mu_;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t opened_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, OpenedJob> jobs_ ABSL_GUARDED_BY(mu_);  // By job id.

  absl::Mutex reported_mu_;
  TableStats reported_ ABSL_GUARDED_BY(reported_mu_);          // What the gauges say of this shard,
  BytesOfCalls reported_calls_ ABSL_GUARDED_BY(reported_mu_);  // and of its calls.

  std::atomic<uint64_t> next_pull_{1};  // Relaxed: only hands out numbers.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(const ShardOptions& options, Metrics* metrics) {
  ASSIGN_OR_RETURN(auto data, DataDirectory::Claim(options.data));
  return std::make_unique<LocalShard>(options, std::move(data), metrics);
}

}  // namespace sparrow
