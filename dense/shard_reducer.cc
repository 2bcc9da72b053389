#include "dense/shard_reducer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/cuda/allocate.h"
#include "base/status_macros.h"
#include "dense/add_floats.h"
#include "dense/step_totals_gpu.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<ShardReducer>> ShardReducer::Make(GradientSource* model, DeviceCollective* collective,
                                                                 std::vector<GradientBucket> buckets,
                                                                 std::vector<float*> sums, absl::Duration timeout,
                                                                 const Stream& stream) {
  CHECK_EQ(buckets.size(), sums.size());
  ASSIGN_OR_RETURN(PinnedBuffer<float> totals, AllocatePinned<float>(kStepTotals, "a step's sums"));
  return std::unique_ptr<ShardReducer>(
      new ShardReducer(model, collective, std::move(buckets), std::move(sums), timeout, stream, std::move(totals)));
}

ShardReducer::ShardReducer(GradientSource* model, DeviceCollective* collective, std::vector<GradientBucket> buckets,
                           std::vector<float*> sums, absl::Duration timeout, const Stream& stream,
                           PinnedBuffer<float> totals)
    : model_(model),
      collective_(collective),
      buckets_(std::move(buckets)),
      shares_(std::move(sums)),
      timeout_(timeout),
      main_(stream),
      missing_(buckets_.size()),
      totals_(std::move(totals)) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    complete_.push_back(std::make_unique<Event>());
    summed_.push_back(std::make_unique<Event>());
  }
  model_->set_gradients_queued([this](const float* gradients, const Stream& used) {
    CHECK(&used == &main_) << "gradients come from another stream";
    Queued(gradients);
  });
}

ShardReducer::~ShardReducer() {
  model_->set_gradients_queued(nullptr);
  if (under_way_) collective_->GiveUp();
}

void ShardReducer::Begin(bool first) {
  under_way_ = true;
  first_ = first;
  if (first) bytes_sent_ = 0;
  next_ = 1;
  for (size_t b = 0; b < buckets_.size(); ++b) missing_[b] = buckets_[b].parameters;
}

absl::Status ShardReducer::Backward(bool first, absl::FunctionRef<void()> backward) {
  Begin(first);
  in_backward_ = true;
  backward();
  in_backward_ = false;
  CHECK(std::ranges::all_of(missing_, [](int missing) { return missing == 0; })) << "backward did not tell of all";
  return End();
}

absl::Status ShardReducer::BackwardOfNothing(bool first) {
  Begin(first);
  for (size_t i = 1; i <= buckets_.size(); ++i) {
    const size_t b = i % buckets_.size();
    const int64_t end = std::min(buckets_[b].end, model_->parameters()->layout().size());
    internal::FillDevice(Gradients(b), 0, static_cast<size_t>(end - buckets_[b].begin) * sizeof(float), main_);
    if (b > 0) Complete(b);
  }
  return End();
}

// The first bucket is complete no later than the last one, but all members sum it last.
absl::Status ShardReducer::End() {
  Complete(0);
  computed_.Record(main_);
  main_.WaitFor(*summed_[0]);
  return std::exchange(queued_, absl::OkStatus());
}

void ShardReducer::Queued(const float* gradients) {
  if (!in_backward_) return;
  // Several buckets lie in one place; of those only the next one is at work.
  const auto has = [&](size_t b) {
    return gradients >= Gradients(b) && gradients < Gradients(b) + (buckets_[b].end - buckets_[b].begin);
  };
  const size_t last = buckets_.size() - 1;
  const size_t b = has(0) ? 0 : has(last) ? last : next_;
  CHECK(b < buckets_.size() && has(b)) << "gradients of no bucket that is at work";
  CHECK_GT(missing_[b], 0) << "a parameter's gradients were queued twice";
  if (--missing_[b] == 0 && b > 0) Complete(b);
}

void ShardReducer::Complete(size_t bucket) {
  complete_[bucket]->Record(main_);
  sums_.WaitFor(*complete_[bucket]);
  queued_.Update(QueueSums(bucket));
  summed_[bucket]->Record(sums_);
  if (bucket == 0 || bucket + 1 == buckets_.size()) return;
  CHECK_EQ(bucket, next_) << "buckets are complete in another order";
  ++next_;
  if (next_ > 2 && Gradients(next_) == Gradients(next_ - 2)) main_.WaitFor(*summed_[next_ - 2]);
}

absl::Status ShardReducer::QueueSums(size_t bucket) {
  const BucketShares shares = SharesOf(buckets_[bucket], model_->parameters()->layout().size(), collective_->size());
  float* const all = Gradients(bucket);
  float* const own = all + collective_->rank() * shares.each;
  float* const rest = all + (shares.rest - shares.begin);
  float* const sums = shares_[bucket];
  const int64_t rests = shares.end - shares.rest;
  const double members = collective_->size();
  bytes_sent_ += (members - 1) * (static_cast<double>(shares.each) + 2 * rests / members) * sizeof(float);
  RETURN_IF_ERROR(collective_->ReduceScatterSum(all, first_ ? sums : own, shares.each, sums_));
  RETURN_IF_ERROR(collective_->AllReduceSum(rest, rests, sums_));
  if (first_) {
    if (rests > 0) internal::CopyOnDevice(sums + shares.each, rest, rests * sizeof(float), sums_);
  } else {
    AddFloatsGpu(own, shares.each, sums, sums_);
    AddFloatsGpu(rest, rests, sums + shares.each, sums_);
  }
  return absl::OkStatus();
}

absl::StatusOr<GradientReducer::Result> ShardReducer::Finish(const GradientReducer::Totals& totals) {
  DeviceParameters* const parameters = model_->parameters();
  StepTotalsGpu(totals.loss_sum, totals.samples, totals.not_finite, parameters->totals(), main_);
  complete_[0]->Record(main_);
  sums_.WaitFor(*complete_[0]);
  RETURN_IF_ERROR(collective_->AllReduceSum(parameters->totals(), kStepTotals, sums_));
  ended_.Record(sums_);
  internal::CopyToHost(totals_.data(), parameters->totals(), kStepTotals * sizeof(float), sums_);
  RETURN_IF_ERROR(collective_->Wait(sums_, timeout_));
  under_way_ = false;
  main_.WaitFor(ended_);
  const double milliseconds = ended_.MillisecondsSince(computed_);
  return GradientReducer::Result{.totals = TakeStepTotals(totals_.data()),
                                 .exposed_seconds = std::max(0.0, milliseconds) * 1e-3};
}

}  // namespace sparrow
