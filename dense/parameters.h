#ifndef SPARROW_DENSE_PARAMETERS_H_
#define SPARROW_DENSE_PARAMETERS_H_

// The layout of a model's flat parameter vector as it is being built, and its initial values.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dense/dense_parameters.h"
#include "dense/matrix.h"

namespace sparrow {

class ParameterLayout {
 public:
  // Appends a tensor whose elements start normal with this standard deviation (0: zeros). Returns its number.
  size_t Add(std::string name, std::vector<uint64_t> shape, double stddev);
  // The same of a tensor that starts with one value.
  size_t AddConstant(std::string name, std::vector<uint64_t> shape, float value);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  uint64_t size() const { return size_; }

  // Element i of a parameter becomes float(stddev * RandomNormal(RandomBits(seed, HashBytes(name)), i)), a pure
  // function of (seed, name, i). Fixed for ever. REQUIRES: weights.size() == size().
  void Initialize(uint64_t seed, std::span<float> weights) const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<double> stddevs_;
  std::vector<float> constants_;  // Of tensors whose deviation is 0.
  uint64_t size_ = 0;
};

// A parameter's elements in a flat array of the layout.
template <typename T>
std::span<T> ElementsOf(const Parameter& parameter, std::span<T> flat) {
  return flat.subspan(parameter.offset, parameter.size);
}

// The same as a matrix. REQUIRES: it has two extents.
template <typename T>
MatrixView<T> MatrixOf(const Parameter& parameter, std::span<T> flat) {
  return AsMatrix(ElementsOf(parameter, flat), static_cast<int64_t>(parameter.shape.at(0)),
                  static_cast<int64_t>(parameter.shape.at(1)));
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_PARAMETERS_H_
