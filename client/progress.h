#ifndef SPARROW_CLIENT_PROGRESS_H_
#define SPARROW_CLIENT_PROGRESS_H_

// Shows how a job goes: on a terminal a bar that is drawn over itself, cut at the terminal's width, elsewhere a plain
// line now and then; in both, a line for each evaluation.

#include <cstdio>
#include <string>

#include "absl/time/time.h"
#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

// Not thread-safe.
class ProgressView {
 public:
  // Draws on `out` (which outlives the view); `terminal` says which of the two ways.
  ProgressView(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  ~ProgressView() { EndBar(); }

  // What the job says at time `now`.
  void Update(const v1::JobStatus& status, absl::Time now);

  // Leaves the bar as it is and goes to the next line, for other output.
  void EndBar();

 private:
  std::string BarText(const v1::Progress& progress) const;

  std::FILE* const out_;
  const bool terminal_;
  bool bar_drawn_ = false;
  int evals_shown_ = 0;
  std::string auc_;          // Of the last evaluation.
  std::string waiting_for_;  // The last QUEUED message shown.
  uint64_t step_shown_ = 0;
  absl::Time last_line_ = absl::InfinitePast();
};

// "step 500/1954  12345 samples/s  loss 0.4567  AUC 0.7890  ETA 12s  load 1 % forward 39 % backward 60 %"; what is not
// known is left out, and so are parts of a step that round to 0 %.
std::string ProgressText(const v1::Progress& progress, const std::string& auc);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_PROGRESS_H_
