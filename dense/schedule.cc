#include "dense/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

absl::Status CheckDecay(absl::string_view field, uint64_t decay_steps, double end_factor) {
  if (decay_steps == 0) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".decay_steps is 0, expected at least 1"));
  }
  if (!(end_factor >= 0 && end_factor <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".end_factor is ", end_factor, ", expected 0 to 1"));
  }
  return absl::OkStatus();
}

// How much of the decay is over, 0 to 1.
double Progress(uint64_t step, uint64_t decay_start, uint64_t decay_steps) {
  if (step <= decay_start) return 0;
  return std::min(1.0, static_cast<double>(step - decay_start) / static_cast<double>(decay_steps));
}

}  // namespace

absl::Status CheckSchedule(const v1::ScheduleConfig& config) {
  switch (config.decay_case()) {
    case v1::ScheduleConfig::kPolynomial: {
      const v1::PolynomialDecay& decay = config.polynomial();
      RETURN_IF_ERROR(CheckDecay("train.schedule.polynomial", decay.decay_steps(), decay.end_factor()));
      if (!(decay.power() > 0 && std::isfinite(decay.power()))) {
        return absl::InvalidArgumentError(
            absl::StrCat("train.schedule.polynomial.power is ", decay.power(), ", expected a number above 0"));
      }
      return absl::OkStatus();
    }
    case v1::ScheduleConfig::kCosine:
      return CheckDecay("train.schedule.cosine", config.cosine().decay_steps(), config.cosine().end_factor());
    case v1::ScheduleConfig::DECAY_NOT_SET:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

double LearningRateFactor(const v1::ScheduleConfig& config, uint64_t step) {
  constexpr double kPi = 3.141592653589793;
  if (step < config.warmup_steps()) {
    return static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps());
  }
  switch (config.decay_case()) {
    case v1::ScheduleConfig::kPolynomial: {
      const v1::PolynomialDecay& decay = config.polynomial();
      const double t = Progress(step, decay.decay_start(), decay.decay_steps());
      return decay.end_factor() + (1 - decay.end_factor()) * std::pow(1 - t, decay.power());
    }
    case v1::ScheduleConfig::kCosine: {
      const v1::CosineDecay& decay = config.cosine();
      const double t = Progress(step, decay.decay_start(), decay.decay_steps());
      return decay.end_factor() + (1 - decay.end_factor()) * (1 + std::cos(kPi * t)) / 2;
    }
    case v1::ScheduleConfig::DECAY_NOT_SET:
      return 1;
  }
  return 1;
}

}  // namespace sparrow
