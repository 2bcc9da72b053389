#include "coordinator/job_history.h"

#include "base/log.h"
#include "coordinator/text.h"

namespace sparrow {
namespace {

constexpr size_t kAucReasonBytesMax = 256;

// Keeps the first, third, fifth ... item.
template <typename Items>
void Halve(Items* items) {
  int kept = 0;
  for (int i = 0; i < items->size(); i += 2) items->SwapElements(kept++, i);
  items->DeleteSubrange(kept, items->size() - kept);
}

}  // namespace

void JobHistory::Append(const v1::ReportRequest& report, v1::JobStatus* status) {
  for (const v1::LossPoint& point : report.loss_points()) {
    if (last_loss_step_.has_value() && point.step() <= *last_loss_step_) continue;
    last_loss_step_ = point.step();
    if (losses_seen_++ % loss_stride_ != 0) continue;
    *status->add_loss_curve() = point;
    if (status->loss_curve_size() <= kLossPointsMax) continue;
    Halve(status->mutable_loss_curve());
    loss_stride_ *= 2;
    LOG(INFO) << status->job_id() << ": the loss curve has over " << kLossPointsMax << " points; one of "
              << loss_stride_ << " is kept from here on";
  }
  for (const v1::EvalResult& eval : report.evals()) {
    const int size = status->evals_size();
    if (size > 0 && eval.step() < status->evals(size - 1).step()) continue;
    // The evaluation at the end may follow a regular one of the same step: it takes its place.
    const bool same_step = size > 0 && eval.step() == status->evals(size - 1).step();
    if (!same_step && size >= kEvalsMax) Halve(status->mutable_evals());
    v1::EvalResult* kept = same_step ? status->mutable_evals(size - 1) : status->add_evals();
    *kept = eval;
    kept->set_auc_reason(OneLine(eval.auc_reason(), kAucReasonBytesMax));
  }
}

}  // namespace sparrow
