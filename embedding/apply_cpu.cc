#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "embedding/apply.h"

namespace sparrow {
namespace {

// Whether all are within the limit. No early exit, so that the loop vectorises.
bool AllWithin(std::span<const float> values, float limit) {
  uint32_t outside = 0;
  for (const float value : values) outside |= std::fabs(value) <= limit ? 0u : 1u;  // NaN compares false.
  return outside == 0;
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

void InitRowCpu(const TableSpec& spec, Key key, char* record) {
  const RowLayout layout = spec.Layout();
  InitWeights(spec.initializer, spec.seed, key, spec.dim, layout.Weights(record));
  InitState(spec.optimizer, layout.Weights(record), spec.dim, layout.State(record));
  layout.SetMetadata(RowMetadata{}, record);
}

void UpdateRowCpu(const TableSpec& spec, const ApplyOptions& options, const float* gradient, char* record) {
  constexpr uint32_t kCountMax = std::numeric_limits<uint32_t>::max();
  const RowLayout layout = spec.Layout();
  RowMetadata metadata = layout.Metadata(record);
  if (metadata.updates < kCountMax) ++metadata.updates;
  if (metadata.frequency < kCountMax) ++metadata.frequency;
  metadata.last_step = options.step;
  layout.SetMetadata(metadata, record);
  const RowStep step = {.learning_rate = spec.optimizer.learning_rate * options.learning_rate_factor,
                        .gradient_scale = static_cast<float>(options.gradient_scale),
                        .updates = metadata.updates};
  UpdateRow(spec.optimizer, step, gradient, spec.dim, layout.Weights(record), layout.State(record));
}

}  // namespace sparrow
