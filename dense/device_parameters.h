#ifndef SPARROW_DENSE_DEVICE_PARAMETERS_H_
#define SPARROW_DENSE_DEVICE_PARAMETERS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "dense/device_layout.h"
#include "dense/device_matrix.h"
#include "dense/gradient_buckets.h"

namespace sparrow {

// Called when all that computes the gradients of one parameter, which begin at `gradients`, has been queued on
// `stream`.
using GradientsQueued = std::function<void(const float* gradients, const Stream& stream)>;

// The flat vectors of a model on a GPU, all of one layout.
class DeviceParameters {
 public:
  // ResourceExhausted. Gradients are 0 at first, weights undefined until Set.
  // With `segments`, which cover the gradients and the totals behind them, each parameter in one of them, gradients lie
  // where those say, and several parameters' may lie at one place; else all lie one behind the other.
  static absl::StatusOr<DeviceParameters> Make(DeviceLayout layout, Precision precision, const Stream& stream,
                                               std::vector<GradientSegment> segments = {});

  const DeviceLayout& layout() const { return layout_; }
  float* weights() { return weights_.data(); }
  float* gradients() {
    CHECK(segments_.empty()) << "gradients are not in one piece";
    return gradients_.data();
  }
  float* gradients_at(int64_t offset);  // Those from there to the end of the segment.
  // All of their memory, whatever lies where.
  DeviceBuffer<float>* gradient_memory() { return &gradients_; }
  // Right behind the gradients, to be summed over workers with them: dense/step_totals.h, [kStepTotals].
  float* totals() { return gradients_at(layout_.size()); }
  uint16_t* copy() { return copy_.data(); }  // The weights in the precision's type; null where that is float.

  // A parameter as products read it: of the precision's type.
  DeviceMatrix matrix(const DeviceTensor& tensor);
  const void* vector(const DeviceTensor& tensor) { return matrix(tensor).data; }
  float* weights(const DeviceTensor& tensor) { return weights_.data() + tensor.offset; }
  float* gradients(const DeviceTensor& tensor) { return gradients_at(tensor.offset); }

  // Sets weights and copy; waits for the copying.
  void Set(std::span<const float> host, const Stream& stream);
  // The weights, in the host's layout; waits for all that is queued.
  void Get(std::span<float> host, const Stream& stream) const;

 private:
  DeviceParameters(DeviceLayout layout, Precision precision, std::vector<GradientSegment> segments,
                   DeviceBuffer<float> weights, DeviceBuffer<float> gradients, DeviceBuffer<uint16_t> copy)
      : layout_(std::move(layout)),
        precision_(precision),
        segments_(std::move(segments)),
        weights_(std::move(weights)),
        gradients_(std::move(gradients)),
        copy_(std::move(copy)) {}

  DeviceLayout layout_;
  Precision precision_;
  std::vector<GradientSegment> segments_;
  DeviceBuffer<float> weights_;
  DeviceBuffer<float> gradients_;
  DeviceBuffer<uint16_t> copy_;
};

// What computes such gradients on a GPU, parameter by parameter.
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  virtual DeviceParameters* parameters() = 0;
  // Backward tells `queued` of each parameter, the last layer's first, as soon as its gradients have been queued, so
  // that they can be summed over workers while it goes on. Empty: tells nobody.
  virtual void set_gradients_queued(GradientsQueued queued) = 0;
  // Offsets of parameters where a bucket of gradients has to begin (dense/gradient_buckets.h), because backward
  // completes those before at another time than the vector's order says.
  virtual std::vector<int64_t> gradient_cuts() const { return {}; }
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_DEVICE_PARAMETERS_H_
