#ifndef SPARROW_DENSE_MODEL_GPU_H_
#define SPARROW_DENSE_MODEL_GPU_H_

// dense/model.h on a GPU: the same models, layer by layer the same parameters, in a precision of choice. Needs a CUDA
// toolkit at build time; without one MakeModelGpu says so.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "dense/device_matrix.h"
#include "dense/device_parameters.h"
#include "dense/model.h"

namespace sparrow {

// Rows of embedding records that a model's first layer may read by itself, in place of pooled vectors.
struct GatheredVectors;

// Not thread-safe; all its work belongs to the stream that it was made with. Nothing waits and nothing is allocated in
// Forward, ForwardLoss and Backward, so they can be recorded as a CUDA graph (base/cuda/graph.h) once each has run with
// that number of rows, which is when the matrix products choose their algorithms.
class ModelGpu : public GradientSource {
 public:
  struct Options {
    Precision precision = Precision::kBfloat16;
    int64_t rows_max = 0;
    bool deterministic = false;  // Nothing is chosen by its speed, so that two runs are bit-equal.
    std::string plan_file;       // Where the choices by speed are kept (dense/linear_gpu.h); empty: nowhere.
  };

  // A batch in GPU memory. `rows` is how many rows are computed; those at and beyond *samples are there to fill up (a
  // graph is recorded for one number of rows): they count for nothing, but their inputs are finite.
  struct Batch {
    int64_t rows = 0;
    const float* dense = nullptr;               // [rows, dense columns]
    const float* labels = nullptr;              // [rows]; of training only, as all below but logits
    const uint32_t* samples = nullptr;          // [1], at most rows
    const float* loss_scale = nullptr;          // [1]: multiplies all gradients, not the loss
    float* logits = nullptr;                    // [rows]
    double* loss_sum = nullptr;                 // [1], of the samples' losses
    const GatheredVectors* gathered = nullptr;  // Not null: takes the place of sparse(). REQUIRES: takes_gathered().
  };

  // Where the pooled vectors of all features, side by side, go before a forward, and where their gradients are after
  // Backward: [rows, S] of the precision's type.
  virtual DeviceMatrix sparse(int64_t rows) = 0;
  virtual DeviceMatrix sparse_gradients(int64_t rows) = 0;
  // Whether the first layer reads rows by itself, which is faster than pooling them before. The numbers are the same.
  virtual bool takes_gathered() const { return false; }

  // Logits alone.
  virtual void Forward(const Batch& batch, const Stream& stream) = 0;
  // Training: up to the loss, then the way back, which overwrites parameters()->gradients() and sparse_gradients() with
  // loss_scale times the sums over the samples. REQUIRES: the same batch.
  virtual void ForwardLoss(const Batch& batch, const Stream& stream) = 0;
  virtual void Backward(const Batch& batch, const Stream& stream) = 0;

  // Backward tells `queued` when the gradients of pooled vectors have been queued on its stream, so that what they are
  // for can be queued on another stream, behind an event, while it goes on. Empty: tells nobody.
  using SparseGradientsQueued = std::function<void()>;
  virtual void set_sparse_gradients_queued(SparseGradientsQueued queued) = 0;

  DeviceParameters* parameters() override { return parameters_.get(); }

 protected:
  explicit ModelGpu(std::unique_ptr<DeviceParameters> parameters) : parameters_(std::move(parameters)) {}

  std::unique_ptr<DeviceParameters> parameters_;
};

// TrainConfig.precision.
Precision PrecisionOf(v1::TrainConfig::Precision precision);

// The twin of `model`, which MakeModel made of the same config and shape, with its weights. ResourceExhausted: the
// memory of the GPU, with numbers. Unimplemented: no CUDA in this build.
absl::StatusOr<std::unique_ptr<ModelGpu>> MakeModelGpu(const v1::ModelConfig& config, const ModelShape& shape,
                                                       const Model& model, const ModelGpu::Options& options,
                                                       const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_MODEL_GPU_H_
