#ifndef SPARROW_CLIENT_SUMMARY_H_
#define SPARROW_CLIENT_SUMMARY_H_

// What a job that has ended says of itself: as text for people, as JSON for scripts, its losses as CSV.

#include <string>

#include "absl/status/status.h"
#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

// Some lines, each "name   value", that end in a newline. Always: state, source files, rows read and trained, steps,
// samples/s, training loss; evaluation (AUC or why there is none) and checkpoint where there are any.
std::string SummaryText(const v1::JobStatus& status);

// One object, indented. job, job_id, state, message, steps, rows_read, rows_trained, rows_skipped, samples_per_second,
// train_loss, eval_rows, eval_loss, eval_auc, eval_auc_reason, eval_calibration, checkpoint, workers, servers,
// train_seconds, step_seconds {part: seconds}, sources [], loss_curve [[step, loss], ...], evals []. What is not known
// is null: eval_auc then has its reason beside it, and eval_auc_reason is null otherwise. A job that failed has the
// counts that it reached.
std::string SummaryJson(const v1::JobStatus& status);

// "step,loss" and a line for each point of the curve, losses with all their digits.
std::string LossesCsv(const v1::JobStatus& status);

// "AUC 0.8012", or "AUC undefined: one class".
std::string AucText(const v1::EvalResult& eval);

// "QUEUED", "RUNNING", ...
std::string StateName(v1::JobStatus::State state);
bool IsFinal(v1::JobStatus::State state);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_SUMMARY_H_
