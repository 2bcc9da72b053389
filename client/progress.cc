#include "client/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/summary.h"

namespace sparrow {
namespace {

constexpr absl::Duration kLineEvery = absl::Seconds(2);  // Of plain lines.
constexpr int kBarWidth = 24;

// "forward 33 % backward 60 % optimizer 7 %": shares of a step, but those that round to 0.
std::string SplitText(const v1::Progress& progress) {
  const std::vector<std::pair<std::string, double>> parts = StepParts(progress.step_seconds());
  double sum = 0;
  for (const auto& [part, seconds] : parts) sum += seconds;
  std::vector<std::string> shares;
  for (const auto& [part, seconds] : parts) {
    const double percent = 100 * seconds / sum;
    if (percent >= 0.5) shares.push_back(absl::StrFormat("%s %.0f %%", part, percent));
  }
  return absl::StrJoin(shares, " ");
}

// Columns of the terminal that `out` is; 0: not known.
size_t Columns(std::FILE* out) {
  winsize size = {};
  const int fd = fileno(out);
  return fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

std::string ProgressText(const v1::Progress& progress, const std::string& auc) {
  std::string text = absl::StrCat("step ", progress.step());
  if (progress.steps_total() > 0) absl::StrAppend(&text, "/", progress.steps_total());
  absl::StrAppendFormat(&text, "  %.0f %s/s  loss %.4f", progress.samples_per_second(),
                        progress.rows_are_tokens() ? "tokens" : "samples", progress.loss());
  if (progress.peak_samples_per_second() > 0) {
    absl::StrAppendFormat(&text, "  MFU %.1f %%",
                          100 * progress.samples_per_second() / progress.peak_samples_per_second());
  } else if (progress.rows_are_tokens()) {
    absl::StrAppend(&text, "  MFU unknown");
  }
  if (progress.has_gradient_norm()) absl::StrAppendFormat(&text, "  norm %.3f", progress.gradient_norm());
  if (progress.steps_skipped() > 0) absl::StrAppend(&text, "  ", progress.steps_skipped(), " skipped");
  if (!auc.empty()) absl::StrAppend(&text, "  ", auc);
  if (progress.eta_seconds() > 0 && std::isfinite(progress.eta_seconds())) {
    absl::StrAppend(&text, "  ETA ", absl::FormatDuration(absl::Seconds(std::llround(progress.eta_seconds()))));
  }
  const std::string split = SplitText(progress);
  if (!split.empty()) absl::StrAppend(&text, "  ", split);
  return text;
}

std::string ProgressView::BarText(const v1::Progress& progress) const {
  if (progress.steps_total() == 0) return ProgressText(progress, auc_);
  const double share =
      std::clamp(static_cast<double>(progress.step()) / static_cast<double>(progress.steps_total()), 0.0, 1.0);
  const auto full = static_cast<size_t>(share * kBarWidth);
  return absl::StrCat("[", std::string(full, '#'), std::string(kBarWidth - full, '.'), "]",
                      absl::StrFormat("%4.0f%%  ", 100 * share), ProgressText(progress, auc_));
}

void ProgressView::EndBar() {
  if (!bar_drawn_) return;
  std::fputc('\n', out_);
  std::fflush(out_);
  bar_drawn_ = false;
}

void ProgressView::Update(const v1::JobStatus& status, absl::Time now) {
  if (status.state() == v1::JobStatus::QUEUED && status.message() != waiting_for_) {
    waiting_for_ = status.message();
    EndBar();
    std::fprintf(out_, "%s is queued: %s\n", status.job_id().c_str(), waiting_for_.c_str());
  }
  const v1::Progress& progress = status.progress();
  const bool tokens = CountsTokens(status);  // The first evaluation may come before the first step.
  for (; evals_shown_ < status.evals_size(); ++evals_shown_) {
    const v1::EvalResult& eval = status.evals(evals_shown_);
    auc_ = tokens ? TokenLossText(eval) : AucText(eval);
    EndBar();
    absl::FPrintF(out_, "evaluation after step %d: %s\n", eval.step(), tokens ? TokenEvalText(eval) : EvalText(eval));
  }
  if (progress.step() > 0 && progress.step() != step_shown_) {
    if (terminal_) {
      // A bar that went on in the next line could not be drawn over. "\033[K" clears what the last, longer line left.
      std::string bar = BarText(progress);
      const size_t columns = Columns(out_);
      if (columns > 0 && bar.size() >= columns) bar.resize(columns - 1);
      absl::FPrintF(out_, "\r%s\033[K", bar);
      bar_drawn_ = true;
      step_shown_ = progress.step();
    } else if (now - last_line_ >= kLineEvery) {
      absl::FPrintF(out_, "%s\n", ProgressText(progress, auc_));
      last_line_ = now;
      step_shown_ = progress.step();
    }
  }
  std::fflush(out_);
}

}  // namespace sparrow
