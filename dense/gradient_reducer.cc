#include "dense/gradient_reducer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/cuda/allocate.h"
#include "base/cuda/operation.h"
#include "base/status_macros.h"
#include "dense/step_totals_gpu.h"

namespace sparrow {

std::vector<GradientBucket> GradientReducer::Buckets(GradientSource* model, const Options& options) {
  const DeviceLayout& layout = model->parameters()->layout();
  return MakeGradientBuckets(layout.Offsets(), layout.size() + kStepTotals,
                             options.bucket_bytes / static_cast<int64_t>(sizeof(float)), model->gradient_cuts());
}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Make(GradientSource* model,
                                                                       DeviceCollective* collective,
                                                                       const Options& options, const Stream& stream) {
  ASSIGN_OR_RETURN(PinnedBuffer<float> totals, AllocatePinned<float>(kStepTotals, "a step's sums"));
  return std::unique_ptr<GradientReducer>(new GradientReducer(model, collective, options, stream, std::move(totals)));
}

GradientReducer::GradientReducer(GradientSource* model, DeviceCollective* collective, const Options& options,
                                 const Stream& stream, PinnedBuffer<float> totals)
    : model_(model),
      collective_(collective),
      options_(options),
      main_(stream),
      buckets_(Buckets(model, options)),
      totals_(std::move(totals)) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    progress_.push_back(std::make_unique<Progress>());
    progress_.back()->main_ready.Record(stream);  // Waited for in every step, also if backward records it in none.
    progress_.back()->side_ready.Record(stream);
  }
  model_->set_gradients_queued([this](const float* gradients, const Stream& used) { Queued(gradients, used); });
}

GradientReducer::~GradientReducer() {
  model_->set_gradients_queued(nullptr);
  if (under_way_) collective_->GiveUp();
}

void GradientReducer::Backward(const Totals& totals, absl::FunctionRef<void()> backward) {
  side_ = nullptr;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    progress_[b]->missing = buckets_[b].parameters;
    progress_[b]->ready = progress_[b]->on_main = progress_[b]->on_side = false;
  }
  // The totals lie behind the gradients of the last layer, so in the first bucket.
  if (options_.totals_last) {
    ++progress_[0]->missing;
  } else {
    StepTotalsGpu(totals.loss_sum, totals.samples, /*not_finite=*/nullptr, model_->parameters()->totals(), main_);
    progress_[0]->on_main = true;
  }
  in_backward_ = true;
  backward();
  in_backward_ = false;
  for (size_t b = options_.totals_last ? 1 : 0; b < progress_.size(); ++b) {
    if (progress_[b]->ready) continue;
    progress_[b]->on_main = true;  // What the model has not told of is complete by now.
    MarkReady(progress_[b].get());
  }
}

void GradientReducer::PutTotals(const Totals& totals) {
  CHECK(options_.totals_last) << "the totals are put by Backward";
  StepTotalsGpu(totals.loss_sum, totals.samples, totals.not_finite, model_->parameters()->totals(), main_);
  progress_[0]->on_main = true;
  progress_[0]->on_side = false;  // The model's stream has waited for the other.
  MarkReady(progress_[0].get());
}

void GradientReducer::Queued(const float* gradients, const Stream& stream) {
  if (!in_backward_) return;
  Progress& progress = *progress_[BucketOf(buckets_, gradients - model_->parameters()->gradients())];
  if (&stream == &main_) {
    progress.on_main = true;
  } else {
    CHECK(side_ == nullptr || side_ == &stream) << "gradients come from more than two streams";
    side_ = &stream;
    progress.on_side = true;
  }
  CHECK_GT(progress.missing, 0) << "a parameter's gradients were queued twice";
  if (--progress.missing == 0) MarkReady(&progress);
}

void GradientReducer::MarkReady(Progress* progress) {
  progress->ready = true;
  if (progress->on_main) progress->main_ready.RecordForOutside(main_);
  if (progress->on_side) progress->side_ready.RecordForOutside(*side_);
}

absl::Status GradientReducer::QueueSums() {
  for (size_t b = options_.totals_last ? 1 : 0; b < buckets_.size(); ++b) RETURN_IF_ERROR(QueueSum(b));
  return options_.totals_last ? QueueSum(0) : absl::OkStatus();
}

absl::Status GradientReducer::QueueSum(size_t bucket) {
  const GradientBucket& range = buckets_[bucket];
  // An event that this step's backward has not recorded has passed long ago.
  sums_.WaitForOutside(progress_[bucket]->main_ready);
  sums_.WaitForOutside(progress_[bucket]->side_ready);
  float* const gradients = model_->parameters()->gradients();
  if (!options_.shares) return collective_->AllReduceSum(gradients + range.begin, range.end - range.begin, sums_);
  const BucketShares shares = SharesOf(range, model_->parameters()->layout().size(), collective_->size());
  float* const first = gradients + shares.begin;
  RETURN_IF_ERROR(collective_->ReduceScatterSum(first, first + collective_->rank() * shares.each, shares.each, sums_));
  return collective_->AllReduceSum(gradients + shares.rest, range.end - shares.rest, sums_);
}

double GradientReducer::bytes_sent() const {
  const double members = collective_->size();
  const int64_t size = model_->parameters()->layout().size();
  double floats = 0;  // On their way, of all members.
  for (const GradientBucket& bucket : buckets_) {
    const int64_t scattered = options_.shares ? SharesOf(bucket, size, collective_->size()).rest - bucket.begin : 0;
    floats += (members - 1) * static_cast<double>(scattered + 2 * (bucket.end - bucket.begin - scattered));
  }
  return floats / members * sizeof(float);
}

absl::Status GradientReducer::Start() {
  computed_.Record(main_);
  ++steps_;
  under_way_ = true;
  if (!options_.record || steps_ == 1 || OperationListenerNow() != nullptr) {  // What a graph does has no operations.
    RETURN_IF_ERROR(QueueSums());
  } else {
    if (!graph_.has_value()) {
      absl::Status queued;
      graph_ = Graph::Record(sums_, [&] {
        queued = QueueSums();
        return queued.ok();
      });
      RETURN_IF_ERROR(queued);
      if (!graph_.has_value()) {
        return GpuIsOutOfMemory(absl::StrCat("sums of gradients in ", buckets_.size(), " buckets cannot be recorded"));
      }
    }
    graph_->Replay(sums_);
  }
  summed_.Record(sums_);
  internal::CopyToHost(totals_.data(), model_->parameters()->totals(), kStepTotals * sizeof(float), sums_);
  return absl::OkStatus();
}

absl::StatusOr<GradientReducer::Result> GradientReducer::Finish() {
  RETURN_IF_ERROR(collective_->Wait(sums_, options_.timeout));
  under_way_ = false;
  main_.WaitFor(summed_);
  computed_.Synchronize();
  const double milliseconds = summed_.MillisecondsSince(computed_);
  return Result{.totals = TakeStepTotals(totals_.data()), .exposed_seconds = std::max(0.0, milliseconds) * 1e-3};
}

}  // namespace sparrow
