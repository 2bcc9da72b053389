#ifndef SPARROW_DENSE_DENSE_UPDATE_H_
#define SPARROW_DENSE_DENSE_UPDATE_H_

// The arithmetic of one dense parameter: how its gradient changes it and its optimizer state. Written once, compiled
// into the CPU and the CUDA halves. Formulas and their sources: proto/sparrow/v1/table.proto. Elements are computed in
// float; what all elements share (learning rate, bias corrections) in double.

#include <cmath>
#include <cstdint>

#include "base/cuda/host_device.h"
#include "base/power.h"

namespace sparrow {

// AdamW is kAdam with a weight decay; Adam's is 0.
enum class DenseOptimizerKind { kSgd, kMomentum, kAdagrad, kAdam, kLamb };

// Plain parameters, unused ones 0.
struct DenseRule {
  DenseOptimizerKind kind = DenseOptimizerKind::kSgd;
  double learning_rate = 0;
  double weight_decay = 0;
  double momentum = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double initial_accumulator = 0;
};

// Numbers of state beside each parameter.
SPARROW_HOST_DEVICE constexpr int DenseStates(DenseOptimizerKind kind) {
  switch (kind) {
    case DenseOptimizerKind::kSgd:
      return 0;
    case DenseOptimizerKind::kMomentum:
    case DenseOptimizerKind::kAdagrad:
      return 1;
    case DenseOptimizerKind::kAdam:
    case DenseOptimizerKind::kLamb:
      return 2;
  }
  return 0;
}

// What a state is called in checkpoints. REQUIRES: i < DenseStates(kind).
constexpr const char* DenseStateName(DenseOptimizerKind kind, int i) {
  if (kind == DenseOptimizerKind::kMomentum) return "momentum";
  if (kind == DenseOptimizerKind::kAdagrad) return "accumulator";
  return i == 0 ? "m" : "v";
}

// What a state is before the first update.
constexpr float InitialDenseState(const DenseRule& rule) {
  return rule.kind == DenseOptimizerKind::kAdagrad ? static_cast<float>(rule.initial_accumulator) : 0.0f;
}

// One update. The gradient is gradients[i] * gradient_scale; the learning rate is the configured one times
// learning_rate_factor.
struct DenseStepOptions {
  double gradient_scale = 1;
  double learning_rate_factor = 1;
};

// Bias corrections of Adam and LAMB, of the update with this number (from 1); 1 for other kinds.
struct DenseCorrections {
  double m = 1;  // 1 - beta1^t
  double v = 1;  // 1 / sqrt(1 - beta2^t)
};
SPARROW_HOST_DEVICE inline DenseCorrections CorrectionsOf(const DenseRule& rule, uint64_t update) {
  if (rule.kind != DenseOptimizerKind::kAdam && rule.kind != DenseOptimizerKind::kLamb) return {};
  return {1 - PowerOf(rule.beta1, update), 1 / std::sqrt(1 - PowerOf(rule.beta2, update))};
}

// What all elements of an update share.
struct DenseScalars {
  float gradient_scale;
  float rate;  // Adam: bias correction of m included. LAMB: not.
  float weight_decay;
  float momentum;
  float beta1, beta1_rest;
  float beta2, beta2_rest;
  float m_correction;  // LAMB.
  float v_correction;
  float keep;  // AdamW: what is left of a weight.
  float eps;
};
SPARROW_HOST_DEVICE inline DenseScalars ScalarsOf(const DenseRule& rule, const DenseStepOptions& options,
                                                  const DenseCorrections& corrections) {
  const double rate = rule.learning_rate * options.learning_rate_factor;
  return {.gradient_scale = static_cast<float>(options.gradient_scale),
          .rate = static_cast<float>(rule.kind == DenseOptimizerKind::kLamb ? rate : rate / corrections.m),
          .weight_decay = static_cast<float>(rule.weight_decay),
          .momentum = static_cast<float>(rule.momentum),
          .beta1 = static_cast<float>(rule.beta1),
          .beta1_rest = static_cast<float>(1 - rule.beta1),
          .beta2 = static_cast<float>(rule.beta2),
          .beta2_rest = static_cast<float>(1 - rule.beta2),
          .m_correction = static_cast<float>(1 / corrections.m),
          .v_correction = static_cast<float>(corrections.v),
          .keep = static_cast<float>(1 - rate * rule.weight_decay),
          .eps = static_cast<float>(rule.eps)};
}

// Momentum's m and Adagrad's accumulator are `first`; Adam's m and v are `first` and `second`. What a kind does not
// have is neither read nor written. LAMB's update takes the functions below.
template <DenseOptimizerKind kKind>
SPARROW_HOST_DEVICE inline void UpdateElement(const DenseScalars& s, float unscaled_gradient, float& weight,
                                              float& first, float& second) {
  using Kind = DenseOptimizerKind;
  static_assert(kKind != Kind::kLamb);
  const float gradient = unscaled_gradient * s.gradient_scale;
  if constexpr (kKind == Kind::kSgd) {
    weight -= s.rate * (gradient + s.weight_decay * weight);
  } else if constexpr (kKind == Kind::kMomentum) {
    first = s.momentum * first + gradient;
    weight -= s.rate * first;
  } else if constexpr (kKind == Kind::kAdagrad) {
    first += gradient * gradient;
    // Nothing learnt yet and no gradient: without the test eps = 0 would make 0 / 0.
    weight -= gradient == 0 ? 0 : s.rate * gradient / (std::sqrt(first) + s.eps);
  } else {
    first = s.beta1 * first + s.beta1_rest * gradient;
    second = s.beta2 * second + s.beta2_rest * gradient * gradient;
    // m is 0 where no gradient has come yet; see Adagrad.
    const float change = first == 0 ? 0 : s.rate * first / (std::sqrt(second) * s.v_correction + s.eps);
    weight = s.keep * weight - change;
  }
}

// LAMB in two passes, since a tensor's norms lie between them. First m and v; then, from these, the direction u in
// which the weight goes: by -rate * u * (its tensor's ratio).
SPARROW_HOST_DEVICE inline void UpdateLambMoments(const DenseScalars& s, float unscaled_gradient, float& first,
                                                  float& second) {
  const float gradient = unscaled_gradient * s.gradient_scale;
  first = s.beta1 * first + s.beta1_rest * gradient;
  second = s.beta2 * second + s.beta2_rest * gradient * gradient;
}
SPARROW_HOST_DEVICE inline float LambDirection(const DenseScalars& s, float weight, float first, float second) {
  // m is 0 where no gradient has come yet; see Adagrad.
  const float step = first == 0 ? 0 : s.m_correction * first / (std::sqrt(second) * s.v_correction + s.eps);
  return step + s.weight_decay * weight;
}
// The rate of a tensor, its ratio included, from the sums of its weights' and its directions' squares.
SPARROW_HOST_DEVICE inline float LambRate(const DenseRule& rule, const DenseStepOptions& options, double weights,
                                          double directions) {
  const double ratio = weights > 0 && directions > 0 ? std::sqrt(weights / directions) : 1;
  return static_cast<float>(rule.learning_rate * options.learning_rate_factor * ratio);
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_DENSE_UPDATE_H_
