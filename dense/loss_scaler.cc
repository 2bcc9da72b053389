#include "dense/loss_scaler.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr uint32_t kScaleMax = 1 << 24;

absl::Status CheckScale(absl::string_view field, uint32_t scale) {
  if (std::has_single_bit(scale) && scale <= kScaleMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("train.loss_scale.", field, " is ", scale, ", expected a power of two from 1 to ", kScaleMax));
}

}  // namespace

absl::Status CheckLossScale(const v1::LossScale& config) {
  RETURN_IF_ERROR(CheckScale("min", config.min()));
  RETURN_IF_ERROR(CheckScale("max", config.max()));
  RETURN_IF_ERROR(CheckScale("initial", config.initial()));
  if (config.initial() < config.min() || config.initial() > config.max()) {
    return absl::InvalidArgumentError(absl::StrCat("train.loss_scale.initial is ", config.initial(),
                                                   ", expected min to max, ", config.min(), " to ", config.max()));
  }
  if (config.growth_steps() == 0) {
    return absl::InvalidArgumentError("train.loss_scale.growth_steps is 0, expected at least 1");
  }
  return absl::OkStatus();
}

LossScaler::LossScaler(const v1::LossScale& config)
    : growth_steps_(config.growth_steps()),
      min_(config.min()),
      max_(config.max()),
      state_({.scale = config.initial(), .good_steps = 0}) {}

void LossScaler::Resume(const State& state) {
  state_ = {.scale = std::clamp(state.scale, min_, max_), .good_steps = state.good_steps};
}

bool LossScaler::Update(bool overflowed) {
  if (overflowed) {
    if (state_.scale == min_) return false;
    state_ = {.scale = state_.scale / 2, .good_steps = 0};
    return true;
  }
  if (++state_.good_steps >= growth_steps_) state_ = {.scale = std::min(state_.scale * 2, max_), .good_steps = 0};
  return true;
}

}  // namespace sparrow
