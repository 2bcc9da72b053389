#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/all_within.h"
#include "base/check.h"
#include "embedding/apply.h"
#include "embedding/row_codec.h"

namespace sparrow {
namespace {

// Float32 weights that an update drove out of range: an infinity becomes the largest number of its sign, and a NaN, of
// which nothing is known, stays. Returns how many there were.
uint64_t Saturate(std::span<float> weights) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (AllFinite(weights)) return 0;
  uint64_t outside = 0;
  for (float& weight : weights) {
    if (std::fabs(weight) <= kLargest) continue;
    ++outside;
    if (!std::isnan(weight)) weight = std::copysign(kLargest, weight);
  }
  return outside;
}

uint64_t StoreRounded(const RowLayout& layout, const float* weights, uint64_t rounding_seed, char* record) {
  const uint64_t bytes = uint64_t{2} * layout.dim();
  std::memset(record + bytes, 0, layout.weight_bytes() - bytes);
  return EncodeStochastic(layout.storage(), std::span(weights, layout.dim()), rounding_seed, record);
}

}  // namespace

absl::Status CheckGradients(const TableSpec& spec, std::span<const Key> keys, std::span<const float> gradients,
                            double scale) {
  const double magnitude = std::fabs(scale);
  CHECK(std::isfinite(magnitude)) << "gradient scale " << scale;
  const double limit_double = magnitude > 0 ? kGradientMax / magnitude : std::numeric_limits<float>::max();
  const float limit =
      static_cast<float>(std::min(limit_double, static_cast<double>(std::numeric_limits<float>::max())));
  if (AllWithin(gradients, limit)) return absl::OkStatus();
  size_t at = 0;
  while (std::fabs(gradients[at]) <= limit) ++at;
  return absl::InvalidArgumentError(absl::StrCat(
      "table \"", spec.name, "\": the gradient of key ", keys[at / spec.dim], ", column ", at % spec.dim, ", is ",
      gradients[at], std::isfinite(gradients[at]) ? absl::StrCat(", above ", limit, " in magnitude") : ", not finite",
      "; no row of the push was changed. Lower the learning rate or look for bad input values"));
}

void LoadWeights(const RowLayout& layout, const char* record, float* weights) {
  DecodeRows(layout.storage(), record, 1, layout.dim(), std::span(weights, layout.dim()));
}

void LoadInitialWeights(const TableSpec& spec, Key key, float* weights) {
  InitWeights(spec.initializer, spec.seed, key, spec.dim, weights);
  if (spec.storage == RowType::kFloat32) return;
  char rounded[2 * kDimMax];
  EncodeStochastic(spec.storage, std::span(weights, spec.dim), RoundingSeed(spec.seed, key, 0), rounded);
  DecodeRows(spec.storage, rounded, 1, spec.dim, std::span(weights, spec.dim));
}

uint64_t InitRowCpu(const TableSpec& spec, Key key, char* record) {
  const RowLayout layout = spec.Layout();
  layout.SetMetadata(RowMetadata{}, record);
  if (spec.storage == RowType::kFloat32) {
    InitWeights(spec.initializer, spec.seed, key, spec.dim, layout.Weights(record));
    InitState(spec.optimizer, layout.Weights(record), spec.dim, layout.State(record));
    return 0;
  }
  float weights[kDimMax];
  InitWeights(spec.initializer, spec.seed, key, spec.dim, weights);
  const uint64_t saturated = StoreRounded(layout, weights, RoundingSeed(spec.seed, key, 0), record);
  LoadWeights(layout, record, weights);
  InitState(spec.optimizer, weights, spec.dim, layout.State(record));
  return saturated;
}

RowUpdate::RowUpdate(const TableSpec& spec, const ApplyOptions& options)
    : spec_(spec),
      layout_(spec.Layout()),
      step_(options.step),
      row_step_({.learning_rate = spec.optimizer.learning_rate * options.learning_rate_factor,
                 .gradient_scale = static_cast<float>(options.gradient_scale)}),
      update_(Choose(spec.optimizer.kind)) {}

template <SparseOptimizerKind kKind>
uint64_t RowUpdate::UpdateOfKind(const RowUpdate& batch, Key key, const float* gradient, char* record) {
  constexpr uint32_t kCountMax = std::numeric_limits<uint32_t>::max();
  const TableSpec& spec = batch.spec_;
  const RowLayout& layout = batch.layout_;
  RowMetadata metadata = layout.Metadata(record);
  if (metadata.updates < kCountMax) ++metadata.updates;
  if (metadata.frequency < kCountMax) ++metadata.frequency;
  metadata.last_step = batch.step_;
  layout.SetMetadata(metadata, record);
  RowStep step = batch.row_step_;
  step.updates = metadata.updates;
  const double mean_square = UsesMeanSquare(kKind) ? MeanSquareSimd(gradient, spec.dim, step.gradient_scale) : 0;
  if (layout.storage() == RowType::kFloat32) {
    UpdateRowOfKind<kKind>(spec.optimizer, step, mean_square, gradient, spec.dim, layout.Weights(record),
                           layout.State(record));
    return Saturate({layout.Weights(record), spec.dim});
  }
  float weights[kDimMax];
  LoadWeights(layout, record, weights);
  UpdateRowOfKind<kKind>(spec.optimizer, step, mean_square, gradient, spec.dim, weights, layout.State(record));
  return StoreRounded(layout, weights, RoundingSeed(spec.seed, key, metadata.updates), record);
}

RowUpdate::Update RowUpdate::Choose(SparseOptimizerKind kind) {
  switch (kind) {
    case SparseOptimizerKind::kSgd:
      return UpdateOfKind<SparseOptimizerKind::kSgd>;
    case SparseOptimizerKind::kMomentum:
      return UpdateOfKind<SparseOptimizerKind::kMomentum>;
    case SparseOptimizerKind::kAdagrad:
      return UpdateOfKind<SparseOptimizerKind::kAdagrad>;
    case SparseOptimizerKind::kRowwiseAdagrad:
      return UpdateOfKind<SparseOptimizerKind::kRowwiseAdagrad>;
    case SparseOptimizerKind::kAdam:
      return UpdateOfKind<SparseOptimizerKind::kAdam>;
    case SparseOptimizerKind::kRowwiseAdam:
      return UpdateOfKind<SparseOptimizerKind::kRowwiseAdam>;
    case SparseOptimizerKind::kFtrl:
      return UpdateOfKind<SparseOptimizerKind::kFtrl>;
    case SparseOptimizerKind::kRmsProp:
      return UpdateOfKind<SparseOptimizerKind::kRmsProp>;
  }
  CHECK(false) << "optimizer " << static_cast<int>(kind);
  return nullptr;
}

}  // namespace sparrow
