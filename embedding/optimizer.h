#ifndef SPARROW_EMBEDDING_OPTIMIZER_H_
#define SPARROW_EMBEDDING_OPTIMIZER_H_

// The arithmetic of one row: how a summed gradient changes weights and optimizer state. Written once, compiled into the
// CPU and the CUDA halves. Formulas and their sources: proto/sparrow/v1/table.proto, beside each optimizer. Elements
// are computed in float; what is one number a row (mean of squares, bias corrections) in double.

#include <cmath>
#include <cstdint>

#include "base/cuda/host_device.h"
#include "base/power.h"

namespace sparrow {

enum class SparseOptimizerKind { kSgd, kMomentum, kAdagrad, kRowwiseAdagrad, kAdam, kRowwiseAdam, kFtrl, kRmsProp };

// Plain parameters, unused ones 0.
struct SparseOptimizer {
  SparseOptimizerKind kind = SparseOptimizerKind::kSgd;
  double learning_rate = 0;
  double weight_decay = 0;
  double momentum = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double initial_accumulator = 0;
  double l1 = 0;
  double l2 = 0;
  double beta = 0;
  double decay = 0;

  friend bool operator==(const SparseOptimizer&, const SparseOptimizer&) = default;
};

// Floats of optimizer state of a row, in this order: momentum m; Adagrad a; row-wise Adagrad one a; Adam m, v; row-wise
// Adam m, one v; FTRL z, n; RMSprop v.
SPARROW_HOST_DEVICE constexpr uint32_t StateFloats(SparseOptimizerKind kind, uint32_t dim) {
  switch (kind) {
    case SparseOptimizerKind::kSgd:
      return 0;
    case SparseOptimizerKind::kRowwiseAdagrad:
      return 1;
    case SparseOptimizerKind::kMomentum:
    case SparseOptimizerKind::kAdagrad:
    case SparseOptimizerKind::kRmsProp:
      return dim;
    case SparseOptimizerKind::kRowwiseAdam:
      return dim + 1;
    case SparseOptimizerKind::kAdam:
    case SparseOptimizerKind::kFtrl:
      return 2 * dim;
  }
  return 0;
}

// The state of a row that has its initial weights and no update yet.
SPARROW_HOST_DEVICE inline void InitState(const SparseOptimizer& o, const float* __restrict__ weights /*[dim]*/,
                                          uint32_t dim, float* __restrict__ state /*[StateFloats(o.kind, dim)]*/) {
  const uint32_t floats = StateFloats(o.kind, dim);
  const bool adagrad = o.kind == SparseOptimizerKind::kAdagrad || o.kind == SparseOptimizerKind::kRowwiseAdagrad;
  const float value = adagrad ? static_cast<float>(o.initial_accumulator) : 0.0f;
  for (uint32_t i = 0; i < floats; ++i) state[i] = value;
  if (o.kind != SparseOptimizerKind::kFtrl) return;
  // FTRL's closed form with n = 0, solved for z; z has the sign opposite to the weight's.
  for (uint32_t i = 0; i < dim; ++i) {
    const double w = weights[i];
    const double sign = w > 0 ? 1 : w < 0 ? -1 : 0;
    state[i] = static_cast<float>(-w * (o.beta / o.learning_rate + o.l2) - sign * o.l1);
  }
}

// Larger gradients (after scaling) are refused like infinite ones: their squares would leave the optimizer's state
// infinite, and the row lost, long before a weight is NaN.
inline constexpr float kGradientMax = 1e15f;

// What all elements of a row share.
struct RowStep {
  double learning_rate = 0;  // Schedule included.
  float gradient_scale = 1;  // g is the gradient times this.
  uint32_t updates = 1;      // Of this row, this one included: t.
};

// Mean over the row of g^2, in sixteen sums whose order is fixed: enough that additions do not wait for each other.
SPARROW_HOST_DEVICE inline double MeanSquare(const float* __restrict__ gradient, uint32_t dim, float scale) {
  constexpr uint32_t kSums = 16;
  double sums[kSums] = {};
  uint32_t i = 0;
  for (; i + kSums <= dim; i += kSums) {
    for (uint32_t lane = 0; lane < kSums; ++lane) {
      const double g = gradient[i + lane] * scale;
      sums[lane] += g * g;
    }
  }
  for (; i < dim; ++i) {
    const double g = gradient[i] * scale;
    sums[i % kSums] += g * g;
  }
  for (uint32_t width = kSums / 2; width > 0; width /= 2) {
    for (uint32_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0] / dim;
}

SPARROW_HOST_DEVICE inline void UpdateSgd(const SparseOptimizer& o, const RowStep& step,
                                          const float* __restrict__ gradient, uint32_t dim, float* __restrict__ w) {
  const float rate = static_cast<float>(step.learning_rate);
  const float weight_decay = static_cast<float>(o.weight_decay);
  for (uint32_t i = 0; i < dim; ++i) w[i] -= rate * (gradient[i] * step.gradient_scale + weight_decay * w[i]);
}

SPARROW_HOST_DEVICE inline void UpdateMomentum(const SparseOptimizer& o, const RowStep& step,
                                               const float* __restrict__ gradient, uint32_t dim, float* __restrict__ w,
                                               float* __restrict__ m) {
  const float rate = static_cast<float>(step.learning_rate);
  const float momentum = static_cast<float>(o.momentum);
  for (uint32_t i = 0; i < dim; ++i) {
    m[i] = momentum * m[i] + gradient[i] * step.gradient_scale;
    w[i] -= rate * m[i];
  }
}

SPARROW_HOST_DEVICE inline void UpdateAdagrad(const SparseOptimizer& o, const RowStep& step,
                                              const float* __restrict__ gradient, uint32_t dim, float* __restrict__ w,
                                              float* __restrict__ a) {
  const float rate = static_cast<float>(step.learning_rate);
  const float eps = static_cast<float>(o.eps);
  for (uint32_t i = 0; i < dim; ++i) {
    const float g = gradient[i] * step.gradient_scale;
    a[i] += g * g;
    w[i] -= rate * g / (std::sqrt(a[i]) + eps);
  }
}

SPARROW_HOST_DEVICE inline void UpdateRowwiseAdagrad(const SparseOptimizer& o, const RowStep& step, double mean_square,
                                                     const float* __restrict__ gradient, uint32_t dim,
                                                     float* __restrict__ w, float* __restrict__ a /*[1]*/) {
  a[0] = static_cast<float>(a[0] + mean_square);
  const float rate = static_cast<float>(step.learning_rate / (std::sqrt(static_cast<double>(a[0])) + o.eps));
  for (uint32_t i = 0; i < dim; ++i) w[i] -= rate * (gradient[i] * step.gradient_scale);
}

SPARROW_HOST_DEVICE inline void UpdateAdam(const SparseOptimizer& o, const RowStep& step,
                                           const float* __restrict__ gradient, uint32_t dim, float* __restrict__ w,
                                           float* __restrict__ m, float* __restrict__ v) {
  const float rate = static_cast<float>(step.learning_rate / (1 - PowerOf(o.beta1, step.updates)));
  const float v_factor = static_cast<float>(1 / (1 - PowerOf(o.beta2, step.updates)));
  const float beta1 = static_cast<float>(o.beta1), beta1_rest = static_cast<float>(1 - o.beta1);
  const float beta2 = static_cast<float>(o.beta2), beta2_rest = static_cast<float>(1 - o.beta2);
  const float eps = static_cast<float>(o.eps);
  for (uint32_t i = 0; i < dim; ++i) {
    const float g = gradient[i] * step.gradient_scale;
    m[i] = beta1 * m[i] + beta1_rest * g;
    v[i] = beta2 * v[i] + beta2_rest * g * g;
    w[i] -= rate * m[i] / (std::sqrt(v[i] * v_factor) + eps);
  }
}

SPARROW_HOST_DEVICE inline void UpdateRowwiseAdam(const SparseOptimizer& o, const RowStep& step, double mean_square,
                                                  const float* __restrict__ gradient, uint32_t dim,
                                                  float* __restrict__ w, float* __restrict__ m,
                                                  float* __restrict__ v /*[1]*/) {
  v[0] = static_cast<float>(o.beta2 * v[0] + (1 - o.beta2) * mean_square);
  const double v_hat = v[0] / (1 - PowerOf(o.beta2, step.updates));
  const float rate =
      static_cast<float>(step.learning_rate / (1 - PowerOf(o.beta1, step.updates)) / (std::sqrt(v_hat) + o.eps));
  const float beta1 = static_cast<float>(o.beta1), beta1_rest = static_cast<float>(1 - o.beta1);
  for (uint32_t i = 0; i < dim; ++i) {
    m[i] = beta1 * m[i] + beta1_rest * (gradient[i] * step.gradient_scale);
    w[i] -= rate * m[i];
  }
}

// In double throughout: s is a difference of nearly equal roots, and z - s w another.
SPARROW_HOST_DEVICE inline void UpdateFtrl(const SparseOptimizer& o, const RowStep& step,
                                           const float* __restrict__ gradient, uint32_t dim, float* __restrict__ w,
                                           float* __restrict__ z, float* __restrict__ n) {
  if (!(step.learning_rate > 0)) return;  // A schedule at 0: FTRL's formula has no value there, and nothing to learn.
  const double inverse_rate = 1 / step.learning_rate;
  for (uint32_t i = 0; i < dim; ++i) {
    const double g = gradient[i] * step.gradient_scale;
    const double n_new = n[i] + g * g;
    const double root = std::sqrt(n_new);
    const double s = (root - std::sqrt(static_cast<double>(n[i]))) * inverse_rate;
    z[i] = static_cast<float>(z[i] + g - s * w[i]);
    n[i] = static_cast<float>(n_new);
    const double z_new = z[i];
    const double shrunk = z_new - (z_new > 0 ? o.l1 : -o.l1);
    const double weight = -shrunk / ((o.beta + root) * inverse_rate + o.l2);
    w[i] = std::fabs(z_new) <= o.l1 ? 0.0f : static_cast<float>(weight);
  }
}

SPARROW_HOST_DEVICE inline void UpdateRmsProp(const SparseOptimizer& o, const RowStep& step,
                                              const float* __restrict__ gradient, uint32_t dim, float* __restrict__ w,
                                              float* __restrict__ v) {
  const float rate = static_cast<float>(step.learning_rate);
  const float decay = static_cast<float>(o.decay), rest = static_cast<float>(1 - o.decay);
  const float eps = static_cast<float>(o.eps);
  for (uint32_t i = 0; i < dim; ++i) {
    const float g = gradient[i] * step.gradient_scale;
    v[i] = decay * v[i] + rest * g * g;
    w[i] -= rate * g / (std::sqrt(v[i]) + eps);
  }
}

// Whether an update needs the mean of the row's squares.
SPARROW_HOST_DEVICE constexpr bool UsesMeanSquare(SparseOptimizerKind kind) {
  return kind == SparseOptimizerKind::kRowwiseAdagrad || kind == SparseOptimizerKind::kRowwiseAdam;
}

// One update of one row. gradient, weights and state do not overlap. mean_square is MeanSquare's where UsesMeanSquare.
// The kind is a parameter of the template, so that a batch of rows chooses once.
template <SparseOptimizerKind kKind>
SPARROW_HOST_DEVICE inline void UpdateRowOfKind(const SparseOptimizer& o, const RowStep& step, double mean_square,
                                                const float* __restrict__ gradient /*[dim]*/, uint32_t dim,
                                                float* __restrict__ weights /*[dim]*/,
                                                float* __restrict__ state /*[StateFloats(kKind, dim)]*/) {
  if constexpr (kKind == SparseOptimizerKind::kSgd) UpdateSgd(o, step, gradient, dim, weights);
  if constexpr (kKind == SparseOptimizerKind::kMomentum) UpdateMomentum(o, step, gradient, dim, weights, state);
  if constexpr (kKind == SparseOptimizerKind::kAdagrad) UpdateAdagrad(o, step, gradient, dim, weights, state);
  if constexpr (kKind == SparseOptimizerKind::kRowwiseAdagrad) {
    UpdateRowwiseAdagrad(o, step, mean_square, gradient, dim, weights, state);
  }
  if constexpr (kKind == SparseOptimizerKind::kAdam) UpdateAdam(o, step, gradient, dim, weights, state, state + dim);
  if constexpr (kKind == SparseOptimizerKind::kRowwiseAdam) {
    UpdateRowwiseAdam(o, step, mean_square, gradient, dim, weights, state, state + dim);
  }
  if constexpr (kKind == SparseOptimizerKind::kFtrl) UpdateFtrl(o, step, gradient, dim, weights, state, state + dim);
  if constexpr (kKind == SparseOptimizerKind::kRmsProp) UpdateRmsProp(o, step, gradient, dim, weights, state);
}

// The same, of any kind.
SPARROW_HOST_DEVICE inline void UpdateRow(const SparseOptimizer& o, const RowStep& step,
                                          const float* __restrict__ gradient /*[dim]*/, uint32_t dim,
                                          float* __restrict__ weights /*[dim]*/,
                                          float* __restrict__ state /*[StateFloats(o.kind, dim)]*/) {
  using Kind = SparseOptimizerKind;
  const double mean_square = UsesMeanSquare(o.kind) ? MeanSquare(gradient, dim, step.gradient_scale) : 0;
  switch (o.kind) {
    case Kind::kSgd:
      return UpdateRowOfKind<Kind::kSgd>(o, step, mean_square, gradient, dim, weights, state);
    case Kind::kMomentum:
      return UpdateRowOfKind<Kind::kMomentum>(o, step, mean_square, gradient, dim, weights, state);
    case Kind::kAdagrad:
      return UpdateRowOfKind<Kind::kAdagrad>(o, step, mean_square, gradient, dim, weights, state);
    case Kind::kRowwiseAdagrad:
      return UpdateRowOfKind<Kind::kRowwiseAdagrad>(o, step, mean_square, gradient, dim, weights, state);
    case Kind::kAdam:
      return UpdateRowOfKind<Kind::kAdam>(o, step, mean_square, gradient, dim, weights, state);
    case Kind::kRowwiseAdam:
      return UpdateRowOfKind<Kind::kRowwiseAdam>(o, step, mean_square, gradient, dim, weights, state);
    case Kind::kFtrl:
      return UpdateRowOfKind<Kind::kFtrl>(o, step, mean_square, gradient, dim, weights, state);
    case Kind::kRmsProp:
      return UpdateRowOfKind<Kind::kRmsProp>(o, step, mean_square, gradient, dim, weights, state);
  }
}

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_OPTIMIZER_H_
