#ifndef SPARROW_DENSE_SHARDED_OPTIMIZER_GPU_H_
#define SPARROW_DENSE_SHARDED_OPTIMIZER_GPU_H_

// An optimizer over several GPUs, each of which holds its state for one share of the parameters and updates that alone:
// stage 1 of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020).
// Shares are those that GradientReducer sums with Options.shares: a part of each bucket, so that a bucket's sum and its
// gathering are each one operation to which all members give and from which all take as much.
//
// After an update all members get what products read, which is the copy of 16 bits where there is one. Master weights
// are then those of the share alone, until GatherWeights. The few parameters that no even share has (SharesOf) are
// updated by all members alike.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "dense/dense_optimizer.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/device_collective.h"
#include "dense/device_parameters.h"
#include "dense/gradient_buckets.h"
#include "dense/grid_sum.h"

namespace sparrow {

// Not thread-safe; its calls belong to the stream that it was made with. Calls marked so are made by all members;
// errors of theirs are the collective's.
class ShardedOptimizerGpu {
 public:
  struct Options {
    uint32_t rank = 0;  // REQUIRES: below members.
    uint32_t members = 1;
    // The share's sums have memory of their own, where a step adds them up; else they are in their places among the
    // gradients of `parameters`.
    bool keeps_sums = false;
  };
  // As a new optimizer is. `parameters` and `stream` outlive it. ResourceExhausted. REQUIRES: rule is from DenseRuleOf,
  // and not LAMB's.
  static absl::StatusOr<std::unique_ptr<ShardedOptimizerGpu>> Make(const DenseRule& rule, DeviceParameters* parameters,
                                                                   std::span<const GradientBucket> buckets,
                                                                   const Options& options, const Stream& stream);

  // The share of `whole`; waits for the copying. REQUIRES: one kind, of the host's vector.
  void SetState(DenseOptimizer* whole);

  // To be called once, before what all members call. It outlives this.
  void Join(DeviceCollective* collective) { collective_ = collective; }

  // Of each bucket, the even share and behind it what all members have, aligned to 16 bytes. REQUIRES: keeps_sums.
  std::vector<float*> sums();

  // All members. Queues: what GradientNormGpu finds of the gradients' sums over workers, whose shares are in place.
  absl::Status Norm(const DenseStepOptions* step /*[1], GPU memory*/, const ClipOptions& options,
                    GradientClip* clip /*[1], GPU memory*/);

  // All members. Queues the update and the gathering. `step` as for one optimizer of all parameters, but for its
  // weights, gradients and copy, which are those of `parameters`.
  absl::Status Update(DenseOptimizerGpu::StepArguments step);

  // All members. Queues: master weights are all members'.
  absl::Status GatherWeights();

  // All members; waits. `whole` has the state of all. Gradients are 0 then. REQUIRES: as SetState.
  absl::Status CopyState(DenseOptimizer* whole, absl::Duration timeout);

  // Of the state, and of sums of its own, on this GPU.
  uint64_t state_bytes() const;
  uint64_t sums_bytes() const { return sums_.size() * sizeof(float); }
  // What this member sends in an update, on the average over members.
  double bytes_sent() const;

 private:
  // Elements of the vector that are in one piece, and their state.
  struct Piece {
    int64_t begin = 0;
    int64_t size = 0;
    bool everyones = false;  // Every member has it.
    const float* sums = nullptr;
    DenseOptimizerGpu optimizer;
  };
  struct Bucket {
    BucketShares shares;
    int64_t sums_at = 0;  // Where they begin in sums_.
    std::vector<Piece> pieces;
  };

  ShardedOptimizerGpu(int states, DeviceParameters* parameters, const Options& options, const Stream& stream,
                      DeviceBuffer<float> sums, DeviceBuffer<GridSums> grid_sums, DeviceBuffer<double> squares)
      : states_(states),
        parameters_(parameters),
        options_(options),
        stream_(stream),
        sums_(std::move(sums)),
        grid_sums_(std::move(grid_sums)),
        squares_(std::move(squares)) {}

  bool has_copy() const { return parameters_->copy() != nullptr; }
  template <typename T>
  absl::Status Gather(T* values /*[the vector]*/);
  DenseOptimizerGpu* first() { return &buckets_[0].pieces[0].optimizer; }

  const int states_;  // Numbers an element.
  DeviceParameters* const parameters_;
  const Options options_;
  const Stream& stream_;
  DeviceCollective* collective_ = nullptr;
  std::vector<Bucket> buckets_;
  DeviceBuffer<float> sums_;          // Empty without keeps_sums.
  DeviceBuffer<GridSums> grid_sums_;  // [1]
  DeviceBuffer<double> squares_;      // [1]
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_SHARDED_OPTIMIZER_GPU_H_
