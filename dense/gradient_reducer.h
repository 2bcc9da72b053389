#ifndef SPARROW_DENSE_GRADIENT_REDUCER_H_
#define SPARROW_DENSE_GRADIENT_REDUCER_H_

// Sums a model's gradients over workers while its backward pass goes on: a bucket of them is summed, on a stream
// beside, as soon as all its gradients have been computed. The step's loss and number of samples go along.
//
// NCCL wants an operation recorded in a graph by all members or by none, but which member replays a recorded backward
// pass in which step is its own affair. So the sums are in no graph of the backward pass: that one records events
// (Event::RecordForOutside), and the sums wait for them, in a graph of their own, which all members record at their
// second step.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cuda/graph.h"
#include "base/cuda/pinned_buffer.h"
#include "base/cuda/stream.h"
#include "dense/device_collective.h"
#include "dense/device_parameters.h"
#include "dense/gradient_buckets.h"
#include "dense/step_totals.h"

namespace sparrow {

// Not thread-safe. Destroyed with sums under way it gives up the collective. The model is told whom to tell of
// gradients (GradientSource::set_gradients_queued) as long as this lives.
class GradientReducer {
 public:
  struct Options {
    int64_t bucket_bytes = 4 << 20;              // At least, but for the last bucket.
    bool record = true;                          // The sums as a graph; false: queued one by one in every step.
    absl::Duration timeout = absl::Minutes(10);  // Of a step's sums: how far apart workers may be.
    // The totals say whether gradients have overflowed, which is known at the end: PutTotals follows each Backward, and
    // the bucket of the totals is summed last. The same for all members.
    bool totals_last = false;
    // Each member gets its share of the sums alone (SharesOf), and the totals; what the gradients are elsewhere is not
    // specified.
    bool shares = false;
  };

  // The buckets that Make will use, for members to compare (dense/reduction_terms.h).
  static std::vector<GradientBucket> Buckets(GradientSource* model, const Options& options);

  // ResourceExhausted. All outlive it; `stream` is the model's.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Make(GradientSource* model, DeviceCollective* collective,
                                                               const Options& options, const Stream& stream);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // What goes along, in GPU memory, [1] each.
  struct Totals {
    const double* loss_sum = nullptr;
    const uint32_t* samples = nullptr;
    const uint64_t* not_finite = nullptr;  // Gradients that overflowed; null: none. Of PutTotals alone.
  };
  // backward(), with events: it queues the model's backward pass, or nothing where the gradients have been queued. May
  // be recorded in a graph, and replayed.
  void Backward(const Totals& totals, absl::FunctionRef<void()> backward);
  // Queues the totals. May be recorded in the graph of the Backward before it. REQUIRES: Options.totals_last.
  void PutTotals(const Totals& totals);
  // Queues the sums, after the Backward that has been queued or replayed last. The model's stream does not wait for
  // them. Errors of the collective, which are final; ResourceExhausted: GPU memory for the graph.
  absl::Status Start();

  // Sums over workers, and what they cost.
  struct Result {
    StepTotals totals;
    double exposed_seconds = 0;  // From when all that was queued before Start was over to the end of the last sum.
  };
  // Waits for the sums; what is queued on the model's stream from now on may use the gradients. Unavailable. REQUIRES:
  // Start.
  absl::StatusOr<Result> Finish();

  const std::vector<GradientBucket>& buckets() const { return buckets_; }
  // What this member sends in a step's sums, on the average over members.
  double bytes_sent() const;

 private:
  // What backward has told of a bucket so far, and the moments when its gradients are complete on each stream that has
  // computed some: the model's and one other.
  struct Progress {
    int missing = 0;
    bool ready = false;
    bool on_main = false;
    bool on_side = false;
    Event main_ready;
    Event side_ready;
  };

  GradientReducer(GradientSource* model, DeviceCollective* collective, const Options& options, const Stream& stream,
                  PinnedBuffer<float> totals);

  void Queued(const float* gradients, const Stream& stream);
  void MarkReady(Progress* progress);
  absl::Status QueueSums();
  absl::Status QueueSum(size_t bucket);

  GradientSource* const model_;
  DeviceCollective* const collective_;
  const Options options_;
  const Stream& main_;
  const std::vector<GradientBucket> buckets_;
  std::vector<std::unique_ptr<Progress>> progress_;  // [buckets]

  bool in_backward_ = false;
  bool under_way_ = false;        // Started, not finished.
  const Stream* side_ = nullptr;  // Seen in this backward pass.
  Stream sums_;
  Event computed_;
  Event summed_;
  uint64_t steps_ = 0;
  std::optional<Graph> graph_;
  PinnedBuffer<float> totals_;  // [kStepTotals]
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_GRADIENT_REDUCER_H_
