#ifndef SPARROW_DENSE_SHARD_REDUCER_H_
#define SPARROW_DENSE_SHARD_REDUCER_H_

// Sums gradients over workers where each keeps the sums of its share alone: stage 2 of ZeRO
// (dense/sharded_optimizer_gpu.h has the source). Of other gradients there is room for those that backward has at hand
// (MakeGradientRing). So every micro batch is summed over workers by itself: a bucket is, on a stream beside, as soon
// as it is complete, and the share's sums are added up.
//
// A bucket waits for the sum of the one before in its place, and that for events of the pass that is going on, so
// passes are queued bucket by bucket and never recorded.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cuda/pinned_buffer.h"
#include "base/cuda/stream.h"
#include "dense/device_collective.h"
#include "dense/device_parameters.h"
#include "dense/gradient_buckets.h"
#include "dense/gradient_reducer.h"

namespace sparrow {

// Not thread-safe. All members make the same calls, but for Backward, which a member without the micro batch replaces
// by BackwardOfNothing. Errors are the collective's, which are final. Destroyed with sums under way it gives up the
// collective.
class ShardReducer {
 public:
  // ResourceExhausted. All outlive it, `sums` too (ShardedOptimizerGpu::sums); `stream` is the model's, on which all
  // its gradients come. REQUIRES: the model tells of the parameters between the first and the last bucket in the
  // vector's order, from its end.
  static absl::StatusOr<std::unique_ptr<ShardReducer>> Make(GradientSource* model, DeviceCollective* collective,
                                                            std::vector<GradientBucket> buckets,
                                                            std::vector<float*> sums /*[buckets]*/,
                                                            absl::Duration timeout, const Stream& stream);
  ~ShardReducer();
  ShardReducer(const ShardReducer&) = delete;
  ShardReducer& operator=(const ShardReducer&) = delete;

  // Queues a micro batch's pass, which backward() queues on the model's stream, and its sums; `first` ones replace what
  // there is. What comes on the model's stream afterwards may overwrite gradients.
  absl::Status Backward(bool first, absl::FunctionRef<void()> backward);
  absl::Status BackwardOfNothing(bool first);

  // Queues the sums of the totals and waits for all. What is queued on the model's stream from now on may use the
  // share's sums.
  absl::StatusOr<GradientReducer::Result> Finish(const GradientReducer::Totals& totals);

  // What this member has sent since the last first micro batch, on the average over members.
  double bytes_sent() const { return bytes_sent_; }

 private:
  ShardReducer(GradientSource* model, DeviceCollective* collective, std::vector<GradientBucket> buckets,
               std::vector<float*> sums, absl::Duration timeout, const Stream& stream, PinnedBuffer<float> totals);

  void Begin(bool first);
  absl::Status End();
  float* Gradients(size_t bucket) { return model_->parameters()->gradients_at(buckets_[bucket].begin); }
  void Queued(const float* gradients);
  // All of the bucket's gradients have been queued.
  void Complete(size_t bucket);
  absl::Status QueueSums(size_t bucket);

  GradientSource* const model_;
  DeviceCollective* const collective_;
  const std::vector<GradientBucket> buckets_;
  const std::vector<float*> shares_;  // [buckets]
  const absl::Duration timeout_;
  const Stream& main_;

  bool in_backward_ = false;
  bool under_way_ = false;    // Not finished.
  bool first_ = false;        // Of the present micro batch, as all below.
  size_t next_ = 0;           // The bucket between the first and the last that is to be completed next.
  std::vector<int> missing_;  // [buckets]: parameters that backward has not told of.
  absl::Status queued_;

  Stream sums_;
  std::vector<std::unique_ptr<Event>> complete_;  // [buckets]
  std::vector<std::unique_ptr<Event>> summed_;    // [buckets]
  Event computed_;                                // The last pass.
  Event ended_;
  double bytes_sent_ = 0;
  PinnedBuffer<float> totals_;  // [kStepTotals]
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_SHARD_REDUCER_H_
