// One loop for each kind: every array is read and written once (LAMB: twice), in single precision, vectorised, on all
// cores. Scalars (learning rate, bias corrections) are computed in double precision once a step.

#include <algorithm>
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

// The arrays an update goes through. States that the kind does not have are nullptr.
struct Elements {
  float* weights;
  const float* gradients;
  float* first;
  float* second;
};

// Scalars by value: behind a reference they could be what a store to the arrays changes.
template <DenseOptimizerKind kKind>
void UpdateRange(const Elements& elements, DenseScalars scalars, int64_t begin, int64_t end) {
  constexpr int kStates = DenseStates(kKind);
  float* __restrict w = elements.weights;
  const float* __restrict g = elements.gradients;
  float* __restrict first = elements.first;
  float* __restrict second = elements.second;
  float none = 0;
  for (int64_t i = begin; i < end; ++i) {
    UpdateElement<kKind>(scalars, g[i], w[i], kStates > 0 ? first[i] : none, kStates > 1 ? second[i] : none);
  }
}

class DenseOptimizerCpu final : public DenseOptimizer {
 public:
  DenseOptimizerCpu(const DenseRule& rule, uint64_t size, uint64_t decayed)
      : rule_(rule), size_(size), decayed_(std::min(size, decayed)) {
    for (int i = 0; i < DenseStates(rule.kind); ++i) states_[i].assign(size, InitialDenseState(rule));
  }

  std::span<double> Begin(std::span<float>, std::span<const float>, const StepOptions&) override { return {}; }

  void End(std::span<float> weights, std::span<const float> gradients, const StepOptions& options) override {
    CHECK(weights.size() == size_ && gradients.size() == size_);
    DenseRule rule = rule_;
    const DenseCorrections corrections = CorrectionsOf(rule, ++updates_);
    const Elements elements{weights.data(), gradients.data(), states_[0].data(), states_[1].data()};
    Update(elements, ScalarsOf(rule, options, corrections), 0, decayed_);
    rule.weight_decay = 0;
    Update(elements, ScalarsOf(rule, options, corrections), decayed_, size_);
  }

  std::vector<State> states() override {
    std::vector<State> result;
    for (int i = 0; i < DenseStates(rule_.kind); ++i) result.push_back({DenseStateName(rule_.kind, i), states_[i]});
    return result;
  }

 private:
  void Update(const Elements& elements, const DenseScalars& scalars, uint64_t first, uint64_t last) const {
    ParallelFor(static_cast<int64_t>(last - first), kGrain, [&](int64_t part_begin, int64_t part_end) {
      const int64_t begin = static_cast<int64_t>(first) + part_begin;
      const int64_t end = static_cast<int64_t>(first) + part_end;
      switch (rule_.kind) {
        case DenseOptimizerKind::kSgd:
          return UpdateRange<DenseOptimizerKind::kSgd>(elements, scalars, begin, end);
        case DenseOptimizerKind::kMomentum:
          return UpdateRange<DenseOptimizerKind::kMomentum>(elements, scalars, begin, end);
        case DenseOptimizerKind::kAdagrad:
          return UpdateRange<DenseOptimizerKind::kAdagrad>(elements, scalars, begin, end);
        case DenseOptimizerKind::kAdam:
          return UpdateRange<DenseOptimizerKind::kAdam>(elements, scalars, begin, end);
        case DenseOptimizerKind::kLamb:
          CHECK(false) << "LambCpu";
      }
    });
  }

  const DenseRule rule_;
  const uint64_t size_;
  const uint64_t decayed_;
  std::vector<float> states_[2];  // Those that the kind has; [size] each.
};

// LAMB. A tensor is cut into blocks whose sums are added in order, so that no number depends on the threads.
class LambCpu final : public DenseOptimizer {
 public:
  // Tensors that have a ratio, by their ranges in a vector of `size` elements, in order; the elements outside have
  // none.
  LambCpu(const DenseRule& rule, uint64_t size, std::span<const Slice> tensors)
      : rule_(rule), first_(size), second_(size), sums_(2 * tensors.size()) {
    uint64_t done = 0;
    for (size_t t = 0; t < tensors.size(); ++t) {
      AddBlocks({done, tensors[t].begin}, kNoTensor);
      AddBlocks(tensors[t], t);
      done = tensors[t].end;
    }
    AddBlocks({done, size}, kNoTensor);
  }

  std::span<double> Begin(std::span<float> weights, std::span<const float> gradients,
                          const StepOptions& options) override {
    CHECK(weights.size() == first_.size() && gradients.size() == first_.size());
    const DenseScalars scalars = ScalarsOf(rule_, options, CorrectionsOf(rule_, ++updates_));
    std::vector<BlockSums> block_sums(blocks_.size());
    ForEachBlock([&](size_t b) { block_sums[b] = Moments(blocks_[b], scalars, weights.data(), gradients.data()); });
    std::ranges::fill(sums_, 0.0);
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].tensor == kNoTensor) continue;
      sums_[2 * blocks_[b].tensor] += block_sums[b].weights;
      sums_[2 * blocks_[b].tensor + 1] += block_sums[b].directions;
    }
    return sums_;
  }

  void End(std::span<float> weights, std::span<const float>, const StepOptions& options) override {
    const DenseScalars scalars = ScalarsOf(rule_, options, CorrectionsOf(rule_, updates_));
    ForEachBlock([&](size_t b) {
      DenseScalars s = scalars;
      if (blocks_[b].tensor == kNoTensor) {
        s.weight_decay = 0;
      } else {
        s.rate = LambRate(rule_, options, sums_[2 * blocks_[b].tensor], sums_[2 * blocks_[b].tensor + 1]);
      }
      Apply(blocks_[b], s, weights.data());
    });
  }

  std::vector<State> states() override {
    return {{DenseStateName(rule_.kind, 0), first_}, {DenseStateName(rule_.kind, 1), second_}};
  }

 private:
  static constexpr size_t kNoTensor = SIZE_MAX;
  static constexpr uint64_t kBlock = 4096;  // Elements.
  struct Block {
    Slice elements;
    size_t tensor;
  };
  struct BlockSums {
    double weights = 0, directions = 0;  // Of squares.
  };

  void AddBlocks(const Slice& elements, size_t tensor) {
    for (uint64_t begin = elements.begin; begin < elements.end; begin += kBlock) {
      blocks_.push_back({{begin, std::min(elements.end, begin + kBlock)}, tensor});
    }
  }

  template <typename Body>
  void ForEachBlock(const Body& body) const {
    ParallelFor(static_cast<int64_t>(blocks_.size()), 2, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) body(static_cast<size_t>(b));
    });
  }

  BlockSums Moments(const Block& block, DenseScalars s, const float* __restrict w, const float* __restrict g) {
    float* __restrict m = first_.data();
    float* __restrict v = second_.data();
    for (uint64_t i = block.elements.begin; i < block.elements.end; ++i) UpdateLambMoments(s, g[i], m[i], v[i]);
    if (block.tensor == kNoTensor) return {};
    // Eight sums, so that additions do not wait for each other.
    double weights[8] = {}, directions[8] = {};
    for (uint64_t i = block.elements.begin; i < block.elements.end; ++i) {
      const double weight = w[i], direction = LambDirection(s, w[i], m[i], v[i]);
      weights[i % 8] += weight * weight;
      directions[i % 8] += direction * direction;
    }
    BlockSums sums;
    for (int lane = 0; lane < 8; ++lane) sums.weights += weights[lane], sums.directions += directions[lane];
    return sums;
  }

  void Apply(const Block& block, DenseScalars s, float* __restrict w) const {
    const float* __restrict m = first_.data();
    const float* __restrict v = second_.data();
    for (uint64_t i = block.elements.begin; i < block.elements.end; ++i) {
      w[i] -= s.rate * LambDirection(s, w[i], m[i], v[i]);
    }
  }

  const DenseRule rule_;
  std::vector<float> first_, second_;
  std::vector<Block> blocks_;
  std::vector<double> sums_;  // Of each tensor: squares of weights, squares of directions.
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
  return absl::InvalidArgumentError(
      absl::StrCat("train.optimizer.", kind,
                   " is for tables only; dense parameters take sgd, momentum, adagrad, adam, adamw or "
                   "lamb"));
}

}  // namespace

absl::StatusOr<DenseRule> DenseRuleOf(const v1::OptimizerConfig& config) {
  DenseRule rule{.learning_rate = config.learning_rate()};
  if (!(rule.learning_rate > 0 && std::isfinite(rule.learning_rate))) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.optimizer.learning_rate is ", rule.learning_rate, ", expected a finite number above 0"));
  }
  switch (config.kind_case()) {
    case v1::OptimizerConfig::kSgd:
      RETURN_IF_ERROR(CheckAtLeast0("sgd.weight_decay", config.sgd().weight_decay()));
      rule.kind = DenseOptimizerKind::kSgd;
      rule.weight_decay = config.sgd().weight_decay();
      return rule;
    case v1::OptimizerConfig::kMomentum:
      RETURN_IF_ERROR(CheckBelow1("momentum.momentum", config.momentum().momentum()));
      rule.kind = DenseOptimizerKind::kMomentum;
      rule.momentum = config.momentum().momentum();
      return rule;
    case v1::OptimizerConfig::kAdagrad:
      RETURN_IF_ERROR(CheckAtLeast0("adagrad.eps", config.adagrad().eps()));
      RETURN_IF_ERROR(CheckAtLeast0("adagrad.initial_accumulator", config.adagrad().initial_accumulator()));
      rule.kind = DenseOptimizerKind::kAdagrad;
      rule.eps = config.adagrad().eps();
      rule.initial_accumulator = config.adagrad().initial_accumulator();
      return rule;
    case v1::OptimizerConfig::kAdam: {
      const v1::Adam& adam = config.adam();
      RETURN_IF_ERROR(CheckBelow1("adam.beta1", adam.beta1()));
      RETURN_IF_ERROR(CheckBelow1("adam.beta2", adam.beta2()));
      RETURN_IF_ERROR(CheckAtLeast0("adam.eps", adam.eps()));
      rule.kind = DenseOptimizerKind::kAdam;
      rule.beta1 = adam.beta1();
      rule.beta2 = adam.beta2();
      rule.eps = adam.eps();
      return rule;
    }
    case v1::OptimizerConfig::kAdamw: {
      const v1::AdamW& adamw = config.adamw();
      RETURN_IF_ERROR(CheckBelow1("adamw.beta1", adamw.beta1()));
      RETURN_IF_ERROR(CheckBelow1("adamw.beta2", adamw.beta2()));
      RETURN_IF_ERROR(CheckAtLeast0("adamw.eps", adamw.eps()));
      RETURN_IF_ERROR(CheckAtLeast0("adamw.weight_decay", adamw.weight_decay()));
      rule.kind = DenseOptimizerKind::kAdam;
      rule.beta1 = adamw.beta1();
      rule.beta2 = adamw.beta2();
      rule.eps = adamw.eps();
      rule.weight_decay = adamw.weight_decay();
      return rule;
    }
    case v1::OptimizerConfig::kLamb: {
      const v1::Lamb& lamb = config.lamb();
      RETURN_IF_ERROR(CheckBelow1("lamb.beta1", lamb.beta1()));
      RETURN_IF_ERROR(CheckBelow1("lamb.beta2", lamb.beta2()));
      RETURN_IF_ERROR(CheckAtLeast0("lamb.eps", lamb.eps()));
      RETURN_IF_ERROR(CheckAtLeast0("lamb.weight_decay", lamb.weight_decay()));
      rule.kind = DenseOptimizerKind::kLamb;
      rule.beta1 = lamb.beta1();
      rule.beta2 = lamb.beta2();
      rule.eps = lamb.eps();
      rule.weight_decay = lamb.weight_decay();
      return rule;
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
      "train.optimizer has no kind; set one of sgd, momentum, adagrad, adam, adamw or lamb, as in adagrad {}");
}

absl::StatusOr<std::unique_ptr<DenseOptimizer>> MakeDenseOptimizer(const v1::OptimizerConfig& config,
                                                                   const DenseParameters& model, const Slice& slice) {
  ASSIGN_OR_RETURN(const DenseRule rule, DenseRuleOf(config));
  CHECK(slice.begin <= slice.end && slice.end <= model.weights().size());
  const auto inside = [&](uint64_t element) { return std::clamp(element, slice.begin, slice.end) - slice.begin; };
  if (rule.kind != DenseOptimizerKind::kLamb) {
    return std::make_unique<DenseOptimizerCpu>(rule, slice.size(), inside(model.decayed()));
  }
  std::vector<Slice> tensors;  // All, so that the sums of all slices are alike.
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.shape.size() < 2) continue;
    tensors.push_back({inside(parameter.offset), inside(parameter.offset + parameter.size)});
  }
  return std::make_unique<LambCpu>(rule, slice.size(), tensors);
}

absl::StatusOr<std::unique_ptr<DenseOptimizer>> MakeDenseOptimizer(const v1::OptimizerConfig& config,
                                                                   const DenseParameters& model) {
  return MakeDenseOptimizer(config, model, {0, model.weights().size()});
}

absl::StatusOr<std::unique_ptr<DenseOptimizer>> MakeDenseOptimizer(const v1::OptimizerConfig& config, uint64_t size,
                                                                   uint64_t decayed) {
  ASSIGN_OR_RETURN(const DenseRule rule, DenseRuleOf(config));
  if (rule.kind == DenseOptimizerKind::kLamb) {
    const Slice tensor{0, std::min(size, decayed)};
    return std::make_unique<LambCpu>(rule, size, std::span(&tensor, 1));
  }
  return std::make_unique<DenseOptimizerCpu>(rule, size, decayed);
}

}  // namespace sparrow
