#ifndef SPARROW_DENSE_DEVICE_LAYOUT_H_
#define SPARROW_DENSE_DEVICE_LAYOUT_H_

// Where a model's parameters lie in its flat vectors on a GPU: in the order of the host's, but each tensor at a
// multiple of 64 elements and its rows and columns padded as tensor cores want them (dense/device_matrix.h). What lies
// between and in the padding is 0, and a step keeps it so: activations are 0 there, so gradients are. A matrix that the
// host has as [in, out] can lie transposed, as products want it (dense/linear_gpu.h).

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "dense/dense_parameters.h"
#include "dense/device_matrix.h"

namespace sparrow {

// A parameter as a matrix; a vector has one row. Elements offset to offset + rows * cols, row-major.
struct DeviceTensor {
  int64_t offset = 0;
  int64_t rows = 0;  // Padded, unless it is a vector.
  int64_t cols = 0;  // Padded.
};

// How a matrix lies on the GPU where that is not as it lies on the host.
struct TensorForm {
  bool transposed = false;
  int64_t rows_multiple = kColumnsMultiple;  // To which its rows, there, are padded.
};
using TensorForms = absl::flat_hash_map<std::string, TensorForm>;  // By the parameter's name.

// Immutable, so thread-safe.
class DeviceLayout {
 public:
  // REQUIRES: each parameter has one or two extents, those of `forms` two.
  explicit DeviceLayout(const std::vector<Parameter>& parameters, const TensorForms& forms = {});

  int64_t size() const { return size_; }                                     // Elements of a flat vector on the GPU.
  const DeviceTensor& at(absl::string_view name) const;                      // REQUIRES: there is such a parameter.
  std::vector<int64_t> Offsets() const;                                      // Of all parameters, ascending from 0.
  void Spread(std::span<const float> host, std::span<float> device) const;   // Writes all of `device`, gaps included.
  void Collect(std::span<const float> device, std::span<float> host) const;  // The inverse; passes over the gaps.

  // Where parameters with two extents lie, their padding included, ascending.
  std::vector<Slice> Matrices() const;

 private:
  struct Placed {
    DeviceTensor device;
    bool vector = false;
    bool transposed = false;
    int64_t host_offset = 0;
    int64_t rows = 0;  // The host's.
    int64_t cols = 0;
  };

  std::vector<Placed> placed_;
  absl::flat_hash_map<std::string, size_t> by_name_;
  int64_t size_ = 0;
  int64_t host_size_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_DEVICE_LAYOUT_H_
