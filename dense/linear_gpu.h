#ifndef SPARROW_DENSE_LINEAR_GPU_H_
#define SPARROW_DENSE_LINEAR_GPU_H_

// The CUDA half of dense/linear.h: the matrix products of fully connected layers, by cuBLASLt, with what comes after a
// product (bias, ReLU or GELU, its derivative, the bias's gradients) in the product's epilogue where that is faster.
// Needs CUDA and base/cuda only.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"

namespace sparrow {

// Bytes of the mask that a forward pass with ReLU writes and the backward pass reads: one bit an element, set where the
// ReLU's input was not negative, so that the derivative at exactly 0 is 1 (dense/activation.h has 0 there; cuBLASLt's
// epilogue does not). Bit j % 8 of byte i * PITCH + j / 8 is that of row i, column j; PITCH is a multiple of 16.
size_t ReluMaskBytes(int64_t n, int64_t cols);

constexpr size_t kProductsWorkspaceBytes = size_t{32}
                                           << 20;  // GPU memory of one object: what cuBLAS asks for on Hopper.

// What BackwardWeights takes and makes of a layer.
struct LayerGradients {
  DeviceMatrix y_gradients = {};  // [n, out]
  DeviceMatrix x = {};            // [n, in]
  float* w_gradients = nullptr;   // [out, in]
  float* b_gradients = nullptr;   // [out], or null.
};

// Whether a kernel waits on the GPU until those before it have ended, or may begin before (base/cuda/launch_early.cuh).
enum class LaunchAt { kEnd, kEarly };

// How BackwardWeightsTogether divides the gradients of weights, and how many tiles have a multiprocessor each.
constexpr int64_t kWeightTile = 128;
constexpr int64_t kWeightTilesAtOnce = 132;  // The same on every GPU, for the same sums.
inline int64_t WeightTiles(const LayerGradients& layer) {
  const auto tiles = [](int64_t size) { return (size + kWeightTile - 1) / kWeightTile; };
  return tiles(layer.y_gradients.cols) * tiles(layer.x.cols);
}

// Products sum in float32, whatever the precision: no partial sum is ever stored in 16 bits. kFloat32 never uses tensor
// cores, which would take tf32.
//
// The first call with a shape (operation, sizes, strides, flags) chooses how it is computed: it asks cuBLASLt for
// candidates, runs each on the caller's own data, times them (warm, as a CUDA graph), and keeps the fastest. That takes
// some milliseconds up to some 100, allocates and waits for the stream, so it must not be inside a stream capture.
// Every later call with the shape allocates nothing, waits for nothing, and may be captured into a graph
// (base/cuda/graph.h). Choices differ between two runs, and so do the last bits of results, unless a plan file or
// `deterministic` fixes them.
//
// REQUIRES of every matrix: cols and stride are multiples of kColumnsMultiple, cols > 0, stride >= cols, data a
// multiple of 16 bytes, as every other pointer. n is any number >= 0. Outputs overlap no input. NaN is never hidden: a
// candidate whose ReLU makes 0 of it is not taken.
//
// One for each model and stream: every call gets the stream that it was made with. Not thread-safe.
class ProductsGpu {
 public:
  struct Options {
    Precision precision = Precision::kBfloat16;
    // The library's first choice is taken, or a product of our own where there is one; nothing is timed and no plan
    // file is read or written, so that two runs on like GPUs with the same library are equal bit for bit.
    bool deterministic = false;
    // Where choices are kept from one start to the next; "": nowhere. A file from another GPU, driver or library, or a
    // damaged one, is ignored with a warning and written anew. Several objects and processes may share it.
    std::string plan_file = "";
    // Products are chosen and run as if the GPU had so many multiprocessors; 0: as many as it has. For two objects
    // whose streams run side by side: each leaves room for the other.
    int multiprocessors = 0;
    // Whether BackwardThroughRelu without a mask uses a product of our own (bf16 on Hopper), whose epilogue does it
    // all.
    enum class Own { kNever, kWhereFaster, kAlways };
    Own own = Own::kWhereFaster;
    // Up to so many rows, forward and backward to the inputs are products of our own for small batches, untimed where
    // they can do it (dense/tile_product.cuh: bf16 on Hopper): what they gain is seen in a chain of kernels, not alone.
    int64_t small_rows_max = 0;
    // The kernel queued last before a product never writes its weights and biases, and that one or another between is
    // not launched early (base/cuda/launch_early.cuh), so products may read these before that kernel ends.
    bool weights_ready = false;
    // False: nothing goes into an epilogue; own kernels follow the product. For tests and to measure what epilogues
    // gain; such choices are not kept in the plan file.
    bool fuse = true;
    // False: no product is cuBLASLt's, as if it had none for any shape; then a slow one of our own does it. For tests.
    bool library = true;
  };

  // nullopt: out of GPU memory; it takes 32 MiB. REQUIRES: GpuCount() > 0.
  static std::optional<ProductsGpu> Make(const Options& options, const Stream& stream);
  ProductsGpu(ProductsGpu&&) noexcept;
  ProductsGpu& operator=(ProductsGpu&&) noexcept;
  ~ProductsGpu();  // Saves.

  // y = activation(x w^T + b). b: null, or of the precision's type. relu_mask: null, or GPU memory of
  // ReluMaskBytes(n, out), which is written. REQUIRES: relu, or no mask.
  void Forward(const DeviceMatrix& x /*[n, in]*/, const DeviceMatrix& w /*[out, in]*/, const void* b /*[out]*/,
               bool relu, const DeviceMatrix& y /*[n, out]*/, void* relu_mask, const Stream& stream);

  // y = GELU(before), with before = x w^T + b, which is written too (dense/gelu.h; an epilogue takes the GELU of what
  // is not rounded yet). REQUIRES: before and y have the same shape and stride.
  void ForwardGelu(const DeviceMatrix& x /*[n, in]*/, const DeviceMatrix& w /*[out, in]*/, const void* b /*[out]*/,
                   const DeviceMatrix& before /*[n, out]*/, const DeviceMatrix& y /*[n, out]*/, const Stream& stream);

  // x_gradients = y_gradients w, with 0 where relu_mask, that of the layer below whose output x is, has no bit; null:
  // no mask. add: x_gradients += y_gradients w; REQUIRES: no mask then.
  void BackwardInput(const DeviceMatrix& y_gradients /*[n, out]*/, const DeviceMatrix& w /*[out, in]*/,
                     const void* relu_mask, bool add, const DeviceMatrix& x_gradients /*[n, in]*/,
                     const Stream& stream);

  // BackwardInput through the ReLU of the layer below, whose output x is, and with the gradients of that layer's
  // biases: x_gradients = y_gradients w where the ReLU passed, 0 elsewhere, and b_gradients = the sums of x_gradients'
  // columns, float32; null: not wanted. One kernel after the product does both, so this is faster than BackwardInput
  // with a mask and BackwardWeights with biases. relu_mask: what that layer's Forward wrote; null: the ReLU passed
  // where x > 0 (the derivative at 0 is 0), which reads x again and spares Forward the mask.
  void BackwardThroughRelu(const DeviceMatrix& y_gradients /*[n, out]*/, const DeviceMatrix& w /*[out, in]*/,
                           const DeviceMatrix& x /*[n, in]*/, const void* relu_mask,
                           const DeviceMatrix& x_gradients /*[n, in]*/, float* b_gradients /*[in]*/,
                           const Stream& stream);

  // BackwardInput through the GELU of the layer below: x_gradients = (y_gradients w) GELU'(before), element by element.
  // REQUIRES: before and x_gradients have the same shape and stride.
  void BackwardThroughGelu(const DeviceMatrix& y_gradients /*[n, out]*/, const DeviceMatrix& w /*[out, in]*/,
                           const DeviceMatrix& before /*[n, in]*/, const DeviceMatrix& x_gradients /*[n, in]*/,
                           const Stream& stream);

  // w_gradients = y_gradients^T x and b_gradients = the sums of y_gradients' columns, both float32 whatever the
  // precision; 0 for n = 0. b_gradients null: not wanted.
  void BackwardWeights(const DeviceMatrix& y_gradients /*[n, out]*/, const DeviceMatrix& x /*[n, in]*/,
                       float* w_gradients /*[out, in]*/, float* b_gradients /*[out]*/, const Stream& stream);

  // BackwardWeights added to what the layer's gradients hold, in float32.
  void AddBackwardWeights(const LayerGradients& layer, const Stream& stream);

  // BackwardWeights of several layers. Where CanWeightsTogether, in one launch, or one for every eight, of a product of
  // our own (dense/weight_product.cuh), which may be captured from the first call on. Their outputs overlap nothing.
  // REQUIRES: all x have the same number of rows.
  void BackwardWeightsTogether(std::span<const LayerGradients> layers, LaunchAt at, const Stream& stream);
  // bf16 on Hopper, and products of our own are allowed.
  bool CanWeightsTogether() const;

  // Whether BackwardThroughRelu of so many rows is faster without the gradients of biases by more than ColumnSums on
  // another stream costs.
  bool SumsCost(int64_t rows) const;

  // sums[j] = the sum of column j in float32, in an order that depends on the matrix's shape alone; 0 for 0 rows. May
  // be captured from the first call on.
  void ColumnSums(const DeviceMatrix& values /*[n, cols]*/, float* sums /*[cols]*/, const Stream& stream);

  // Writes the choices made since the last Save into the plan file, if there is one, beside those that others have put
  // there. False, with a warning on stderr: the file could not be written.
  bool Save();

  // A line for each shape asked for so far, for logs and benchmarks: the shape, what was chosen of how many candidates,
  // microseconds.
  std::string Describe() const;

 private:
  class State;
  explicit ProductsGpu(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_LINEAR_GPU_H_
