#ifndef SPARROW_CLIENT_SUMMARY_H_
#define SPARROW_CLIENT_SUMMARY_H_

// What a job that has ended says of itself: as text for people, as JSON for scripts, its losses as CSV.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "sparrow/v1/coordinator.pb.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// What a job has come to: of one that has succeeded what its summary says, of another what was last heard of it.
struct JobFigures {
  uint64_t steps = 0;
  uint64_t rows_read = 0;
  uint64_t rows_trained = 0;
  uint64_t rows_skipped = 0;
  uint64_t steps_skipped = 0;  // Of float16: changed nothing.
  // Absent where no row was trained.
  std::optional<double> samples_per_second;
  std::optional<double> train_loss;
};
JobFigures FiguresOf(const v1::JobStatus& status);

// Some lines, each "name   value", that end in a newline. Always: state, source files, rows read and trained, steps,
// samples/s, training loss; evaluation (AUC or why there is none) and checkpoint where there are any. A figure that
// does not exist is "-".
std::string SummaryText(const v1::JobStatus& status);

// One object, indented. job, job_id, state, message, steps, steps_skipped, rows_read, rows_trained, rows_skipped,
// samples_per_second, train_loss, eval_rows, eval_loss, eval_auc, eval_auc_reason, eval_calibration, checkpoint,
// workers, servers, train_seconds, step_seconds {part: seconds}, sources [], loss_curve [[step, loss], ...], evals [].
// What is not known is null: eval_auc then has its reason beside it, and eval_auc_reason is null otherwise. A job that
// failed has the counts that it reached.
std::string SummaryJson(const v1::JobStatus& status);

// "step,loss" and a line for each point of the curve, losses with all their digits.
std::string LossesCsv(const v1::JobStatus& status);

// "AUC 0.8012", or "AUC undefined: one class".
std::string AucText(const v1::EvalResult& eval);

// "AUC 0.8012, logloss 0.45000, calibration 1.0200 on 50 rows"; "-" for what does not exist.
std::string EvalText(const v1::EvalResult& eval);
// The same of a language model: "validation loss 1.4697", and with " on 111540 tokens".
std::string TokenLossText(const v1::EvalResult& eval);
std::string TokenEvalText(const v1::EvalResult& eval);

// The parts of a step that are known, of `seconds` by part, in the order of a step.
std::vector<std::pair<std::string, double>> StepParts(const google::protobuf::Map<std::string, double>& seconds);

// The number by this format, or "-".
std::string FigureText(const absl::FormatSpec<double>& format, std::optional<double> value);

// Whether its rows are tokens, as a language model's are.
bool CountsTokens(const v1::JobStatus& status);

// A status of a job that failed before its input was open gets what the job itself says: the sources that it names,
// and what its rows are.
void FillInFromJob(const v1::Job& job, v1::JobStatus* status);

// "QUEUED", "RUNNING", ...
std::string StateName(v1::JobStatus::State state);
bool IsFinal(v1::JobStatus::State state);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_SUMMARY_H_
