// One loop for each kind: every array is read and written once, in single precision, vectorised, on all cores. Scalars
// (learning rate, bias corrections) are computed in double precision once a step.

#include <cmath>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "dense/dense_optimizer.h"

namespace sparrow {
namespace {

// Elements below which a second thread costs more than it saves.
constexpr int64_t kGrain = 8192;

class SgdCpu final : public DenseOptimizer {
 public:
  SgdCpu(uint64_t size, double learning_rate, const v1::Sgd& config)
      : size_(size), learning_rate_(learning_rate), weight_decay_(static_cast<float>(config.weight_decay())) {}

  void Step(std::span<float> weights, std::span<const float> gradients, const StepOptions& options) override {
    CHECK(weights.size() == size_ && gradients.size() == size_);
    ++updates_;
    const float scale = static_cast<float>(options.gradient_scale);
    const float rate = static_cast<float>(learning_rate_ * options.learning_rate_factor);
    ParallelFor(size_, kGrain, [&, decay = weight_decay_](int64_t begin, int64_t end) {
      float* __restrict w = weights.data();
      const float* __restrict g = gradients.data();
      for (int64_t i = begin; i < end; ++i) w[i] -= rate * (g[i] * scale + decay * w[i]);
    });
  }

  std::vector<State> states() override { return {}; }

 private:
  const uint64_t size_;
  const double learning_rate_;
  const float weight_decay_;
};

class MomentumCpu final : public DenseOptimizer {
 public:
  MomentumCpu(uint64_t size, double learning_rate, const v1::Momentum& config)
      : learning_rate_(learning_rate), momentum_factor_(static_cast<float>(config.momentum())), momentum_(size) {}

  void Step(std::span<float> weights, std::span<const float> gradients, const StepOptions& options) override {
    CHECK(weights.size() == momentum_.size() && gradients.size() == momentum_.size());
    ++updates_;
    const float scale = static_cast<float>(options.gradient_scale);
    const float rate = static_cast<float>(learning_rate_ * options.learning_rate_factor);
    ParallelFor(weights.size(), kGrain, [&, factor = momentum_factor_](int64_t begin, int64_t end) {
      float* __restrict w = weights.data();
      float* __restrict m = momentum_.data();
      const float* __restrict g = gradients.data();
      for (int64_t i = begin; i < end; ++i) {
        m[i] = factor * m[i] + g[i] * scale;
        w[i] -= rate * m[i];
      }
    });
  }

  std::vector<State> states() override { return {{"momentum", momentum_}}; }

 private:
  const double learning_rate_;
  const float momentum_factor_;
  std::vector<float> momentum_;
};

class AdagradCpu final : public DenseOptimizer {
 public:
  AdagradCpu(uint64_t size, double learning_rate, const v1::Adagrad& config)
      : learning_rate_(learning_rate),
        eps_(static_cast<float>(config.eps())),
        accumulator_(size, static_cast<float>(config.initial_accumulator())) {}

  void Step(std::span<float> weights, std::span<const float> gradients, const StepOptions& options) override {
    CHECK(weights.size() == accumulator_.size() && gradients.size() == accumulator_.size());
    ++updates_;
    const float scale = static_cast<float>(options.gradient_scale);
    const float rate = static_cast<float>(learning_rate_ * options.learning_rate_factor);
    ParallelFor(weights.size(), kGrain, [&, eps = eps_](int64_t begin, int64_t end) {
      float* __restrict w = weights.data();
      float* __restrict a = accumulator_.data();
      const float* __restrict g = gradients.data();
      for (int64_t i = begin; i < end; ++i) {
        const float gradient = g[i] * scale;
        a[i] += gradient * gradient;
        // Nothing learnt yet and no gradient: without the test eps = 0 would make 0 / 0.
        w[i] -= gradient == 0 ? 0 : rate * gradient / (std::sqrt(a[i]) + eps);
      }
    });
  }

  std::vector<State> states() override { return {{"accumulator", accumulator_}}; }

 private:
  const double learning_rate_;
  const float eps_;
  std::vector<float> accumulator_;
};

// AdamW is Adam with a weight decay of its own; Adam's is 0.
class AdamCpu final : public DenseOptimizer {
 public:
  struct Options {
    double learning_rate = 0;
    double beta1 = 0;
    double beta2 = 0;
    double eps = 0;
    double weight_decay = 0;
  };
  AdamCpu(uint64_t size, const Options& options) : options_(options), m_(size), v_(size) {}

  void Step(std::span<float> weights, std::span<const float> gradients, const StepOptions& options) override {
    CHECK(weights.size() == m_.size() && gradients.size() == m_.size());
    ++updates_;
    const double t = static_cast<double>(updates_);
    const double rate = options_.learning_rate * options.learning_rate_factor;
    const float scale = static_cast<float>(options.gradient_scale);
    const float keep = static_cast<float>(1 - rate * options_.weight_decay);
    const float step = static_cast<float>(rate / (1 - std::pow(options_.beta1, t)));
    const float v_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t)));
    const float beta1 = static_cast<float>(options_.beta1);
    const float beta2 = static_cast<float>(options_.beta2);
    const float rest1 = static_cast<float>(1 - options_.beta1);
    const float rest2 = static_cast<float>(1 - options_.beta2);
    const float eps = static_cast<float>(options_.eps);
    ParallelFor(weights.size(), kGrain, [&](int64_t begin, int64_t end) {
      float* __restrict w = weights.data();
      float* __restrict m = m_.data();
      float* __restrict v = v_.data();
      const float* __restrict g = gradients.data();
      for (int64_t i = begin; i < end; ++i) {
        const float gradient = g[i] * scale;
        m[i] = beta1 * m[i] + rest1 * gradient;
        v[i] = beta2 * v[i] + rest2 * gradient * gradient;
        // m is 0 where no gradient has come yet; see Adagrad.
        const float change = m[i] == 0 ? 0 : step * m[i] / (std::sqrt(v[i]) * v_correction + eps);
        w[i] = keep * w[i] - change;
      }
    });
  }

  std::vector<State> states() override { return {{"m", m_}, {"v", v_}}; }

 private:
  const Options options_;
  std::vector<float> m_;
  std::vector<float> v_;
};

absl::Status CheckAtLeast0(absl::string_view field, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("train.optimizer.", field, " is ", value, ", expected a finite number, at least 0"));
}

absl::Status CheckBelow1(absl::string_view field, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("train.optimizer.", field, " is ", value, ", expected at least 0 and below 1"));
}

absl::Status ForTablesOnly(absl::string_view kind) {
  return absl::InvalidArgumentError(absl::StrCat(
      "train.optimizer.", kind, " is for tables only; dense parameters take sgd, momentum, adagrad, adam or adamw"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseOptimizer>> MakeDenseOptimizer(const v1::OptimizerConfig& config, uint64_t size) {
  const double rate = config.learning_rate();
  if (!(rate > 0 && std::isfinite(rate))) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.optimizer.learning_rate is ", rate, ", expected a finite number above 0"));
  }
  switch (config.kind_case()) {
    case v1::OptimizerConfig::kSgd:
      RETURN_IF_ERROR(CheckAtLeast0("sgd.weight_decay", config.sgd().weight_decay()));
      return std::make_unique<SgdCpu>(size, rate, config.sgd());
    case v1::OptimizerConfig::kMomentum:
      RETURN_IF_ERROR(CheckBelow1("momentum.momentum", config.momentum().momentum()));
      return std::make_unique<MomentumCpu>(size, rate, config.momentum());
    case v1::OptimizerConfig::kAdagrad:
      RETURN_IF_ERROR(CheckAtLeast0("adagrad.eps", config.adagrad().eps()));
      RETURN_IF_ERROR(CheckAtLeast0("adagrad.initial_accumulator", config.adagrad().initial_accumulator()));
      return std::make_unique<AdagradCpu>(size, rate, config.adagrad());
    case v1::OptimizerConfig::kAdam: {
      const v1::Adam& adam = config.adam();
      RETURN_IF_ERROR(CheckBelow1("adam.beta1", adam.beta1()));
      RETURN_IF_ERROR(CheckBelow1("adam.beta2", adam.beta2()));
      RETURN_IF_ERROR(CheckAtLeast0("adam.eps", adam.eps()));
      return std::make_unique<AdamCpu>(
          size,
          AdamCpu::Options{.learning_rate = rate, .beta1 = adam.beta1(), .beta2 = adam.beta2(), .eps = adam.eps()});
    }
    case v1::OptimizerConfig::kAdamw: {
      const v1::AdamW& adamw = config.adamw();
      RETURN_IF_ERROR(CheckBelow1("adamw.beta1", adamw.beta1()));
      RETURN_IF_ERROR(CheckBelow1("adamw.beta2", adamw.beta2()));
      RETURN_IF_ERROR(CheckAtLeast0("adamw.eps", adamw.eps()));
      RETURN_IF_ERROR(CheckAtLeast0("adamw.weight_decay", adamw.weight_decay()));
      return std::make_unique<AdamCpu>(size, AdamCpu::Options{.learning_rate = rate,
                                                              .beta1 = adamw.beta1(),
                                                              .beta2 = adamw.beta2(),
                                                              .eps = adamw.eps(),
                                                              .weight_decay = adamw.weight_decay()});
    }
    case v1::OptimizerConfig::kRowwiseAdagrad:
      return ForTablesOnly("rowwise_adagrad");
    case v1::OptimizerConfig::kRowwiseAdam:
      return ForTablesOnly("rowwise_adam");
    case v1::OptimizerConfig::kFtrl:
      return ForTablesOnly("ftrl");
    case v1::OptimizerConfig::kRmsprop:
      return ForTablesOnly("rmsprop");
    case v1::OptimizerConfig::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "train.optimizer has no kind; set one of sgd, momentum, adagrad, adam or adamw, as in adagrad {}");
}

}  // namespace sparrow
