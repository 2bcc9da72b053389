#include "dense/parameters.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "base/random.h"

namespace sparrow {

size_t ParameterLayout::Add(std::string name, std::vector<uint64_t> shape, double stddev) {
  uint64_t size = 1;
  for (uint64_t extent : shape) size *= extent;
  parameters_.push_back({.name = std::move(name), .shape = std::move(shape), .offset = size_, .size = size});
  stddevs_.push_back(stddev);
  constants_.push_back(0);
  size_ += size;
  return parameters_.size() - 1;
}

size_t ParameterLayout::AddConstant(std::string name, std::vector<uint64_t> shape, float value) {
  const size_t number = Add(std::move(name), std::move(shape), 0);
  constants_[number] = value;
  return number;
}

void ParameterLayout::Initialize(uint64_t seed, std::span<float> weights) const {
  CHECK_EQ(weights.size(), size_);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const uint64_t parameter_seed = RandomBits(seed, HashBytes(parameters_[p].name));
    const std::span<float> elements = ElementsOf(parameters_[p], weights);
    if (stddevs_[p] == 0) {
      std::fill(elements.begin(), elements.end(), constants_[p]);
      continue;
    }
    ParallelFor(static_cast<int64_t>(elements.size()), 1024, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        elements[i] = static_cast<float>(stddevs_[p] * RandomNormal(parameter_seed, static_cast<uint64_t>(i)));
      }
    });
  }
}

}  // namespace sparrow
