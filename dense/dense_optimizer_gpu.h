#ifndef SPARROW_DENSE_DENSE_OPTIMIZER_GPU_H_
#define SPARROW_DENSE_DENSE_OPTIMIZER_GPU_H_

// The CUDA half of dense/dense_optimizer.h: one launch updates the whole flat vector, its state, and a 16-bit copy of
// it for tensor cores. What changes from step to step lies in GPU memory, so that a step can be replayed as a CUDA
// graph. Needs CUDA and base/cuda only.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "dense/dense_update.h"
#include "dense/device_matrix.h"
#include "dense/gradient_norm.h"

namespace sparrow {

// How far an optimizer has come. Kept in GPU memory by the launches themselves, so that a replay needs no host.
struct DenseProgress {
  uint64_t updates;              // Done.
  DenseCorrections corrections;  // Of the next update.
  uint32_t started;              // Blocks of the launch that runs; 0 between launches.
};

enum class WeightCopy { kNone, kBfloat16, kFloat16 };
// What products of a precision read.
inline WeightCopy WeightCopyOf(Precision precision) {
  if (ElementBytes(precision) == 4) return WeightCopy::kNone;
  return precision == Precision::kBfloat16 ? WeightCopy::kBfloat16 : WeightCopy::kFloat16;
}

// Not thread-safe; its calls are queued and all belong to one stream. The same arithmetic as the CPU half's, which
// differs by fused multiply-add alone; two runs are bit-equal.
class DenseOptimizerGpu {
 public:
  // nullopt: the GPU has not DenseStates(rule.kind) * size * 4 bytes free. REQUIRES: rule is from DenseRuleOf,
  // and not LAMB's.
  static std::optional<DenseOptimizerGpu> Make(const DenseRule& rule, int64_t size, const Stream& stream);

  // All pointers are GPU memory. REQUIRES: weights and gradients aligned to 16 bytes, copy to 8.
  struct StepArguments {
    float* weights = nullptr;          // [size], the master copy
    const float* gradients = nullptr;  // [size]
    WeightCopy copy_type = WeightCopy::kNone;
    uint16_t* copy = nullptr;                   // [size], the new weights rounded to the nearest, ties to even
    const DenseStepOptions* options = nullptr;  // [1]
    const GradientClip* clip = nullptr;         // [1]: its scale goes on top of gradient_scale. nullptr: no clipping
    int64_t decayed = INT64_MAX;                // A weight decay is for elements [0, decayed) alone.
    // If gradient_scale (dense/step_gate.h) or clip->norm is not finite, nothing is written and the update does not
    // count.
    bool skip_unless_finite = false;
    // The kernel queued last before writes neither weights nor states: they may be read before it ends.
    bool weights_ready = false;
  };
  void Step(const StepArguments& arguments, const Stream& stream);

  // State and updates as Make leaves them.
  void Reset(const Stream& stream);

  // State i is called DenseStateName(kind, i) in checkpoints; [size] each.
  std::vector<DeviceBuffer<float>>& states() { return states_; }

  // Updates done, as in the CPU half; copied when the stream comes to it.
  void CopyUpdatesTo(uint64_t* updates /*[1], host memory*/, const Stream& stream) const;
  void SetUpdates(uint64_t updates, const Stream& stream);

 private:
  DenseOptimizerGpu(const DenseRule& rule, int64_t size, std::vector<DeviceBuffer<float>> states,
                    DeviceBuffer<DenseProgress> progress)
      : rule_(rule), size_(size), states_(std::move(states)), progress_(std::move(progress)) {}

  DenseRule rule_;
  int64_t size_;
  std::vector<DeviceBuffer<float>> states_;
  DeviceBuffer<DenseProgress> progress_;  // [1]
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_DENSE_OPTIMIZER_GPU_H_
