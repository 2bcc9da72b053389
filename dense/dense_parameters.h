#ifndef SPARROW_DENSE_DENSE_PARAMETERS_H_
#define SPARROW_DENSE_DENSE_PARAMETERS_H_

// A dense model's parameters as one vector: what collectives, optimizers and checkpoints see of it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sparrow {

// One named tensor of a model: elements offset to offset + product(shape) of the flat arrays, row-major.
struct Parameter {
  std::string name;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;
  uint64_t size = 0;
};

// Elements [begin, end) of a model's flat array.
struct Slice {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
};

// All parameters lie in one flat array, and their gradients in another of the same layout. Not thread-safe.
class DenseParameters {
 public:
  virtual ~DenseParameters() = default;

  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::span<float> weights() { return weights_; }
  std::span<const float> weights() const { return weights_; }
  std::span<float> gradients() { return gradients_; }

  // AdamW's decay is for elements [0, decayed()) alone.
  uint64_t decayed() const { return decayed_.value_or(weights_.size()); }

 protected:
  DenseParameters() = default;

  std::vector<Parameter> parameters_;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  std::optional<uint64_t> decayed_;  // None: all.
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_DENSE_PARAMETERS_H_
