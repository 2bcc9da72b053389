#ifndef SPARROW_DENSE_DENSE_OPTIMIZER_GPU_H_
#define SPARROW_DENSE_DENSE_OPTIMIZER_GPU_H_

// The CUDA half of dense/dense_optimizer.h: one launch (LAMB: two) updates the whole flat vector, its state, and a
// 16-bit copy of it for tensor cores. What changes from step to step lies in GPU memory, so that a step can be replayed
// as a CUDA graph. Needs CUDA and base/cuda only.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "dense/dense_parameters.h"
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

// Where LAMB's ratios come from.
struct LambRange {  // Elements [begin, end) of the vector, all of a tensor or none.
  int64_t begin;
  int64_t end;
  int32_t tensor;  // -1: of none that has a ratio.
};
struct LambTensor {
  int32_t first;  // Of its ranges, which lie one behind the other; one at least, be it empty.
  int32_t ranges;
  uint32_t finished;  // Ranges of the launch that runs; 0 between launches.
};
struct LambSums {  // Of squares.
  double weights;
  double directions;
};

// Not thread-safe; its calls are queued and all belong to one stream. The same arithmetic as the CPU half's, which
// differs by fused multiply-add, and LAMB's ratios by the order of their sums, alone; two runs are bit-equal.
class DenseOptimizerGpu {
 public:
  // `tensors` is what LAMB decays and has a ratio of: ranges of the vector, in order; padding in them is 0, with
  // gradients of 0, and so adds nothing to a norm. Other kinds take none. nullopt: the GPU has not
  // DenseStates(rule.kind) * size * 4 bytes free (LAMB: 28 for each tensor and 40 for each 8,192 elements more).
  // REQUIRES: rule is from DenseRuleOf.
  static std::optional<DenseOptimizerGpu> Make(const DenseRule& rule, int64_t size, const Stream& stream,
                                               std::span<const Slice> tensors = {});

  // All pointers are GPU memory. REQUIRES: weights and gradients aligned to 16 bytes, copy to 8.
  struct StepArguments {
    float* weights = nullptr;          // [size], the master copy
    const float* gradients = nullptr;  // [size]
    WeightCopy copy_type = WeightCopy::kNone;
    uint16_t* copy = nullptr;                   // [size], the new weights rounded to the nearest, ties to even
    const DenseStepOptions* options = nullptr;  // [1]
    const GradientClip* clip = nullptr;         // [1]: its scale goes on top of gradient_scale. nullptr: no clipping
    int64_t decayed = INT64_MAX;  // A weight decay is for elements [0, decayed) alone; LAMB's is for its tensors.
    // If gradient_scale (dense/step_gate.h) or clip->norm is not finite, nothing is written and the update does not
    // count.
    bool skip_unless_finite = false;
    // The kernel queued last before writes neither weights nor states: they may be read before it ends.
    bool weights_ready = false;
  };
  void Step(const StepArguments& arguments, const Stream& stream) {
    Begin(arguments, stream);
    End(arguments, stream);
  }

  // A step's two halves, as DenseOptimizer's, with the same arguments: between the halves what Begin returns, in GPU
  // memory, becomes its sum over all slices of the vector. LAMB: of each tensor, in order; other kinds: nothing.
  std::span<LambSums> Begin(const StepArguments& arguments, const Stream& stream);
  void End(const StepArguments& arguments, const Stream& stream);

  // State and updates as Make leaves them.
  void Reset(const Stream& stream);

  // State i is called DenseStateName(kind, i) in checkpoints; [size] each.
  std::vector<DeviceBuffer<float>>& states() { return states_; }

  // Updates done, as in the CPU half; copied when the stream comes to it.
  void CopyUpdatesTo(uint64_t* updates /*[1], host memory*/, const Stream& stream) const;
  void SetUpdates(uint64_t updates, const Stream& stream);

 private:
  DenseOptimizerGpu(const DenseRule& rule, int64_t size, std::vector<DeviceBuffer<float>> states,
                    DeviceBuffer<DenseProgress> progress, DeviceBuffer<LambRange> ranges,
                    DeviceBuffer<LambTensor> tensors, DeviceBuffer<LambSums> range_sums, DeviceBuffer<LambSums> sums)
      : rule_(rule),
        size_(size),
        states_(std::move(states)),
        progress_(std::move(progress)),
        ranges_(std::move(ranges)),
        tensors_(std::move(tensors)),
        range_sums_(std::move(range_sums)),
        sums_(std::move(sums)) {}

  DenseRule rule_;
  int64_t size_;
  std::vector<DeviceBuffer<float>> states_;
  DeviceBuffer<DenseProgress> progress_;  // [1]
  DeviceBuffer<LambRange> ranges_;        // LAMB's; empty for other kinds, as all below.
  DeviceBuffer<LambTensor> tensors_;
  DeviceBuffer<LambSums> range_sums_;  // [ranges]
  DeviceBuffer<LambSums> sums_;        // [tensors]
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_DENSE_OPTIMIZER_GPU_H_
