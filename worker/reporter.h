#ifndef SPARROW_WORKER_REPORTER_H_
#define SPARROW_WORKER_REPORTER_H_

#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/link.h"
#include "sparrow/v1/coordinator.pb.h"
#include "worker/stop_signal.h"
#include "worker/trainer.h"

namespace sparrow {

// Tells the coordinator what a task does, on a thread of its own and a few times a second at most, so that no step
// waits for it. Rank 0 reports progress; every rank reports its end. Stops the task if an answer says so. Thread-safe.
class Reporter final : public TrainObserver {
 public:
  // link, stop and `leaving`, which ends every call, outlive the reporter.
  Reporter(CoordinatorLink* link, std::string member_id, const v1::Task& task, StopSignal* stop, Cancellation* leaving);
  ~Reporter() override;

  void OnOpened(const v1::Summary& summary) override;
  void OnProgress(const v1::Progress& progress) override;
  void OnLoss(const v1::LossPoint& point) override;
  void OnEval(const v1::EvalResult& result) override;

  // Sends what is left and the end; returns when the coordinator has it. The first end counts, later ones do nothing.
  absl::Status End(v1::ReportRequest::End end, const std::string& error, const v1::Summary* summary);

 private:
  void Run();
  // Moves what is to be told into the request; false if there is nothing.
  bool Fill(v1::ReportRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Restores what a failed report carried, so that the next one carries it.
  void PutBack(v1::ReportRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddRates(v1::Progress* progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  CoordinatorLink* const link_;
  const v1::ReportRequest identity_;  // Member, job, epoch and rank.
  StopSignal* const stop_;
  Cancellation* const leaving_;

  absl::Mutex mu_;
  bool progressed_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  v1::ReportRequest pending_ ABSL_GUARDED_BY(mu_);
  // Moments of the recent past and the rows trained by then, for the rate.
  std::deque<std::pair<absl::Time, uint64_t>> past_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_REPORTER_H_
