#include "worker/reporter.h"

#include "absl/time/clock.h"
#include "base/log.h"
#include "base/utf8.h"

namespace sparrow {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(250);
constexpr absl::Duration kRatePast = absl::Seconds(5);  // How far back samples_per_second looks.

v1::ReportRequest Identity(std::string member_id, const v1::Task& task) {
  v1::ReportRequest identity;
  identity.set_member_id(std::move(member_id));
  identity.set_job_id(task.job_id());
  identity.set_epoch(task.epoch());
  identity.set_rank(task.rank());
  return identity;
}

}  // namespace

Reporter::Reporter(CoordinatorLink* link, std::string member_id, const v1::Task& task, StopSignal* stop,
                   Cancellation* leaving)
    : link_(link), identity_(Identity(std::move(member_id), task)), stop_(stop), leaving_(leaving) {
  if (task.rank() == 0) thread_ = std::thread(&Reporter::Run, this);
}

Reporter::~Reporter() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Reporter::OnOpened(const v1::Summary& summary) {
  if (identity_.rank() != 0) return;
  absl::MutexLock lock(&mu_);
  *pending_.mutable_summary() = summary;
}

void Reporter::OnProgress(const v1::Progress& progress) {
  if (identity_.rank() != 0) return;
  absl::MutexLock lock(&mu_);
  *pending_.mutable_progress() = progress;
  progressed_ = true;
}

void Reporter::OnLoss(const v1::LossPoint& point) {
  if (identity_.rank() != 0) return;
  absl::MutexLock lock(&mu_);
  *pending_.add_loss_points() = point;
}

void Reporter::OnEval(const v1::EvalResult& result) {
  if (identity_.rank() != 0) return;
  absl::MutexLock lock(&mu_);
  *pending_.add_evals() = result;
}

absl::Status Reporter::End(v1::ReportRequest::End end, const std::string& error, const v1::Summary* summary) {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return absl::OkStatus();
    closed_ = true;
  }
  // The thread's last report comes before the end.
  if (thread_.joinable()) thread_.join();
  v1::ReportRequest request = identity_;
  {
    absl::MutexLock lock(&mu_);
    Fill(&request);
  }
  request.set_end(end);
  request.set_error(AsUtf8(error));
  if (summary != nullptr && identity_.rank() == 0) *request.mutable_summary() = *summary;
  return link_->Report(request, {.cancellation = leaving_}).status();
}

void Reporter::Run() {
  for (;;) {
    v1::ReportRequest request = identity_;
    bool something = false;
    {
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(&closed_), kInterval);
      if (closed_) return;
      something = Fill(&request);
    }
    if (!something) continue;
    const absl::StatusOr<v1::ReportResponse> response = link_->Report(request, {.cancellation = leaving_});
    if (!response.ok()) {
      LOG(WARNING) << identity_.job_id() << ": progress could not be reported: " << response.status().message();
      absl::MutexLock lock(&mu_);
      PutBack(&request);
    } else if (response->stop()) {
      stop_->Stop();
    }
  }
}

bool Reporter::Fill(v1::ReportRequest* request) {
  if (progressed_) {
    AddRates(pending_.mutable_progress());
    *request->mutable_progress() = pending_.progress();
    progressed_ = false;
  }
  if (pending_.has_summary()) {
    *request->mutable_summary() = pending_.summary();
    pending_.clear_summary();
  }
  request->mutable_loss_points()->Swap(pending_.mutable_loss_points());
  request->mutable_evals()->Swap(pending_.mutable_evals());
  return request->has_progress() || request->has_summary() || request->loss_points_size() > 0 ||
         request->evals_size() > 0;
}

void Reporter::PutBack(v1::ReportRequest* request) {
  request->mutable_loss_points()->MergeFrom(pending_.loss_points());
  request->mutable_loss_points()->Swap(pending_.mutable_loss_points());
  request->mutable_evals()->MergeFrom(pending_.evals());
  request->mutable_evals()->Swap(pending_.mutable_evals());
  progressed_ = progressed_ || request->has_progress();
  if (request->has_summary()) *pending_.mutable_summary() = request->summary();
}

void Reporter::AddRates(v1::Progress* progress) {
  const absl::Time now = absl::Now();
  past_.emplace_back(now, progress->rows_trained());
  while (past_.size() > 2 && now - past_[1].first >= kRatePast) past_.pop_front();
  const double seconds = absl::ToDoubleSeconds(now - past_.front().first);
  const uint64_t rows = progress->rows_trained() - past_.front().second;
  if (seconds <= 0 || rows == 0) return;
  progress->set_samples_per_second(static_cast<double>(rows) / seconds);
  const uint64_t left = progress->steps_total() > progress->step() ? progress->steps_total() - progress->step() : 0;
  const double rows_a_step = static_cast<double>(progress->rows_trained()) / static_cast<double>(progress->step());
  progress->set_eta_seconds(static_cast<double>(left) * rows_a_step / progress->samples_per_second());
}

}  // namespace sparrow
