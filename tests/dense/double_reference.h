#ifndef SPARROW_TESTS_DENSE_DOUBLE_REFERENCE_H_
#define SPARROW_TESTS_DENSE_DOUBLE_REFERENCE_H_

// Dense models in double precision, written apart from the code under test: one sample at a time, plain loops, only the
// forward direction. Derivatives come from central differences of it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "dense/model.h"

namespace sparrow::testing {

using Vector = std::vector<double>;

// n numbers, uniform in [-1, 1) without the neighbourhood of 0.
inline std::vector<float> RandomFloats(uint64_t seed, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const double u = 2 * RandomUniform(seed, i) - 1;
    values[i] = static_cast<float>(u + (u < 0 ? -0.05 : 0.05));
  }
  return values;
}

inline Vector ToDouble(std::span<const float> values) { return {values.begin(), values.end()}; }

// w [out, in] x + b, then ReLU where asked.
inline Vector Linear(const Vector& x, std::span<const double> w, std::span<const double> b, bool relu) {
  Vector y(b.size());
  for (size_t o = 0; o < y.size(); ++o) {
    double sum = b[o];
    for (size_t i = 0; i < x.size(); ++i) sum += w[o * x.size() + i] * x[i];
    y[o] = relu ? std::max(sum, 0.0) : sum;
  }
  return y;
}

// First vector, then dot products of pairs in facebookresearch/dlrm's order: for i: for j < i.
inline Vector Interaction(const std::vector<Vector>& vectors, bool first_is_bottom) {
  Vector out;
  if (first_is_bottom) out = vectors[0];
  for (size_t i = 0; i < vectors.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      double dot = 0;
      for (size_t d = 0; d < vectors[i].size(); ++d) dot += vectors[i][d] * vectors[j][d];
      out.push_back(dot);
    }
  }
  return out;
}

// x0 * (w (v x) + b) + x
inline Vector Cross(const Vector& x0, const Vector& x, std::span<const double> v, std::span<const double> w,
                    std::span<const double> b) {
  const size_t in = x.size();
  const size_t rank = v.size() / in;
  const Vector projected = Linear(x, v, Vector(rank, 0.0), false);
  const Vector factor = Linear(projected, w, b, false);
  Vector y(in);
  for (size_t i = 0; i < in; ++i) y[i] = x0[i] * factor[i] + x[i];
  return y;
}

// The parameter of this name in a flat vector.
inline std::span<const double> Find(const std::vector<Parameter>& parameters, const Vector& flat,
                                    const std::string& name) {
  for (const Parameter& parameter : parameters) {
    if (parameter.name == name) return std::span(flat).subspan(parameter.offset, parameter.size);
  }
  return {};
}

// All layers PREFIX.0, PREFIX.1, ... that the parameters name.
inline Vector MlpReference(const std::vector<Parameter>& parameters, const Vector& weights, const std::string& prefix,
                           Vector x, bool relu_last) {
  const auto find = [&](size_t layer, const std::string& what) {
    return Find(parameters, weights, prefix + "." + std::to_string(layer) + "." + what);
  };
  for (size_t i = 0; !find(i, "bias").empty(); ++i) {
    const bool last = find(i + 1, "bias").empty();
    x = Linear(x, find(i, "weight"), find(i, "bias"), !last || relu_last);
  }
  return x;
}

// The logit of one sample.
inline double DlrmReference(const std::vector<Parameter>& parameters, const Vector& weights, const Vector& dense,
                            const std::vector<Vector>& features, bool bottom_relu) {
  std::vector<Vector> vectors;
  if (!dense.empty()) vectors.push_back(MlpReference(parameters, weights, "bottom", dense, bottom_relu));
  vectors.insert(vectors.end(), features.begin(), features.end());
  return MlpReference(parameters, weights, "top", Interaction(vectors, !dense.empty()), false)[0];
}

inline double Dcnv2Reference(const std::vector<Parameter>& parameters, const Vector& weights, const Vector& dense,
                             const std::vector<Vector>& features) {
  Vector x0 = MlpReference(parameters, weights, "bottom", dense, true);
  for (const Vector& feature : features) x0.insert(x0.end(), feature.begin(), feature.end());
  Vector x = x0;
  for (size_t i = 0;; ++i) {
    const std::string prefix = "cross." + std::to_string(i) + ".";
    const auto b = Find(parameters, weights, prefix + "b");
    if (b.empty()) break;
    x = Cross(x0, x, Find(parameters, weights, prefix + "v"), Find(parameters, weights, prefix + "w"), b);
  }
  return MlpReference(parameters, weights, "top", x, false)[0];
}

// d f / d x by a central difference. The step is large beside the rounding of double precision, and so small that
// hardly ever a ReLU changes sides within it.
inline double Derivative(const std::function<double()>& f, double* x) {
  constexpr double kStep = 1e-7;
  const double before = *x;
  *x = before + kStep;
  const double up = f();
  *x = before - kStep;
  const double down = f();
  *x = before;
  return (up - down) / (2 * kStep);
}

// |a - b| relative to the larger of scale and |b|. Products of some hundred single-precision terms of size 1 are right
// to about 1e-5.
inline bool Near(double a, double b, double tolerance, double scale = 1) {
  return std::abs(a - b) <= tolerance * std::max(scale, std::abs(b));
}

}  // namespace sparrow::testing

#endif  // SPARROW_TESTS_DENSE_DOUBLE_REFERENCE_H_
