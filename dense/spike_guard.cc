#include "dense/spike_guard.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr uint32_t kWindowMin = 2;
constexpr uint32_t kWindowMax = 1000;

absl::Status CheckFactor(absl::string_view field, double factor) {
  if (factor > 1 && std::isfinite(factor)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("train.loss_spike.", field, " is ", factor, ", expected a finite number above 1"));
}

double MedianOf(const std::deque<SpikeGuard::Figures>& figures, double SpikeGuard::Figures::*figure) {
  std::vector<double> values;
  for (const SpikeGuard::Figures& one : figures) values.push_back(one.*figure);
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

absl::Status CheckLossSpike(const v1::LossSpike& config) {
  if (config.window() < kWindowMin || config.window() > kWindowMax) {
    return absl::InvalidArgumentError(absl::StrCat("train.loss_spike.window is ", config.window(), ", expected ",
                                                   kWindowMin, " to ", kWindowMax, " steps"));
  }
  RETURN_IF_ERROR(CheckFactor("loss_factor", config.loss_factor()));
  RETURN_IF_ERROR(CheckFactor("norm_factor", config.norm_factor()));
  if (config.skips_max() == 0) {
    return absl::InvalidArgumentError(
        "train.loss_spike.skips_max is 0, expected at least 1; set train.loss_spike.action to STOP to skip none");
  }
  return absl::OkStatus();
}

std::string SpikeGuard::State::Text() const {
  std::string text = absl::StrCat(skips);
  for (const Figures& one : applied) absl::StrAppendFormat(&text, " %a,%a", one.loss, one.norm);
  return text;
}

std::optional<SpikeGuard::State> SpikeGuard::State::Parse(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  State state;
  if (!absl::SimpleAtoi(words[0], &state.skips) || words.size() > kWindowMax + 1) return std::nullopt;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(words[i], absl::MaxSplits(',', 1));
    Figures figures;
    for (const auto& [digits, figure] :
         {std::pair(&pair.first, &figures.loss), std::pair(&pair.second, &figures.norm)}) {
      // absl's numbers know no hexadecimal fractions.
      char* end = nullptr;
      *figure = std::strtod(digits->c_str(), &end);
      if (digits->empty() || *end != 0 || !std::isfinite(*figure)) return std::nullopt;
    }
    state.applied.push_back(figures);
  }
  return state;
}

void SpikeGuard::Resume(State state) {
  state_ = std::move(state);
  while (state_.applied.size() > config_.window()) state_.applied.pop_front();
}

bool SpikeGuard::Accept(const Figures& figures) {
  why_.clear();
  if (state_.applied.size() == config_.window()) {
    const auto judge = [&](absl::string_view what, double Figures::*figure, absl::string_view field, double factor) {
      const double median = MedianOf(state_.applied, figure);
      if (figures.*figure <= factor * median) return;  // False for NaN.
      absl::StrAppend(&why_, why_.empty() ? "" : "; ", what, " is ", figures.*figure, ", more than ", factor, " times ",
                      median, ", the median of the last ", config_.window(),
                      " steps that were applied (train.loss_spike.", field, ")");
    };
    judge("the loss", &Figures::loss, "loss_factor", config_.loss_factor());
    judge("the gradients' norm", &Figures::norm, "norm_factor", config_.norm_factor());
    if (!why_.empty()) {
      ++state_.skips;
      return false;
    }
    state_.applied.pop_front();
  }
  state_.skips = 0;
  state_.applied.push_back(figures);
  return true;
}

}  // namespace sparrow
