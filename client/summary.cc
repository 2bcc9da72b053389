#include "client/summary.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

using nlohmann::ordered_json;

// JSON has no NaN and no infinity.
ordered_json Number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }

// The last evaluation: of the summary, or of a job that did not come to its end.
const v1::EvalResult* LastEval(const v1::JobStatus& status) {
  if (status.summary().has_eval()) return &status.summary().eval();
  return status.evals().empty() ? nullptr : &status.evals(status.evals_size() - 1);
}

ordered_json EvalJson(const v1::EvalResult& eval) {
  ordered_json json;
  json["step"] = eval.step();
  json["rows"] = eval.rows();
  json["loss"] = Number(eval.loss());
  json["auc"] = eval.has_auc() ? Number(eval.auc()) : ordered_json();
  return json;
}

void AddLine(std::string* text, absl::string_view name, absl::string_view value) {
  absl::StrAppendFormat(text, "  %-14s %s\n", name, value);
}

// At most a few names: a month of files is not read line by line.
std::string SourcesText(const v1::Summary& summary) {
  constexpr int kShown = 4;
  if (summary.sources().empty()) return "none";
  std::vector<std::string> shown;
  for (const std::string& source : summary.sources()) {
    if (shown.size() == kShown) {
      shown.push_back(absl::StrCat("... (", summary.sources_size(), " files)"));
      break;
    }
    shown.push_back(source);
  }
  return absl::StrJoin(shown, ", ");
}

}  // namespace

std::string StateName(v1::JobStatus::State state) { return v1::JobStatus::State_Name(state); }

bool IsFinal(v1::JobStatus::State state) {
  return state == v1::JobStatus::SUCCEEDED || state == v1::JobStatus::FAILED || state == v1::JobStatus::CANCELLED;
}

std::string AucText(const v1::EvalResult& eval) {
  return eval.has_auc() ? absl::StrFormat("AUC %.4f", eval.auc()) : absl::StrCat("AUC ", eval.auc_reason());
}

std::string SummaryText(const v1::JobStatus& status) {
  const bool whole = status.has_summary();
  const v1::Summary& summary = status.summary();
  const v1::Progress& progress = status.progress();
  std::string text = absl::StrCat("job ", status.name(), " (", status.job_id(), ") ", StateName(status.state()), "\n");
  if (!status.message().empty()) AddLine(&text, "message", status.message());
  AddLine(&text, "source", SourcesText(summary));
  AddLine(&text, "rows read", absl::StrCat(whole ? summary.rows_read() : progress.rows_read()));
  const uint64_t skipped = whole ? summary.rows_skipped() : progress.rows_skipped();
  AddLine(&text, "rows trained",
          absl::StrCat(whole ? summary.rows_trained() : progress.rows_trained(),
                       skipped == 0 ? "" : absl::StrCat(" (", skipped, " did not fit and were skipped)")));
  AddLine(&text, "steps", absl::StrCat(whole ? summary.steps() : progress.step()));
  AddLine(&text, "samples/s",
          whole ? absl::StrFormat("%.0f (%.1f s of training on %d worker%s, %d server%s)", summary.samples_per_second(),
                                  summary.train_seconds(), summary.workers(), summary.workers() == 1 ? "" : "s",
                                  summary.servers(), summary.servers() == 1 ? "" : "s")
                : absl::StrFormat("%.0f", progress.samples_per_second()));
  AddLine(&text, "train loss", absl::StrFormat("%.5f", whole ? summary.train_loss() : progress.loss()));
  if (const v1::EvalResult* eval = LastEval(status)) {
    AddLine(&text, "evaluation",
            absl::StrFormat("%s, logloss %.5f, calibration %.4f on %d rows after step %d", AucText(*eval), eval->loss(),
                            eval->calibration(), eval->rows(), eval->step()));
  } else {
    AddLine(&text, "evaluation", "none");
  }
  if (!summary.step_seconds().empty()) {
    std::vector<std::string> parts;
    for (const char* part : {"load", "pull", "forward", "backward", "allreduce", "optimizer", "push"}) {
      const auto found = summary.step_seconds().find(part);
      if (found != summary.step_seconds().end()) parts.push_back(absl::StrFormat("%s %.2f", part, 1e3 * found->second));
    }
    AddLine(&text, "ms a step", absl::StrJoin(parts, ", "));
  }
  AddLine(&text, "checkpoint", summary.checkpoint().empty() ? "none" : summary.checkpoint());
  return text;
}

std::string SummaryJson(const v1::JobStatus& status) {
  const bool whole = status.has_summary();
  const v1::Summary& summary = status.summary();
  const v1::Progress& progress = status.progress();
  ordered_json json;
  json["job"] = status.name();
  json["job_id"] = status.job_id();
  json["state"] = StateName(status.state());
  json["message"] = status.message();
  json["steps"] = whole ? summary.steps() : progress.step();
  json["rows_read"] = whole ? summary.rows_read() : progress.rows_read();
  json["rows_trained"] = whole ? summary.rows_trained() : progress.rows_trained();
  json["rows_skipped"] = whole ? summary.rows_skipped() : progress.rows_skipped();
  json["samples_per_second"] = Number(whole ? summary.samples_per_second() : progress.samples_per_second());
  json["train_loss"] = Number(whole ? summary.train_loss() : progress.loss());

  const v1::EvalResult* eval = LastEval(status);
  json["eval_rows"] = eval == nullptr ? ordered_json() : ordered_json(eval->rows());
  json["eval_loss"] = eval == nullptr ? ordered_json() : Number(eval->loss());
  json["eval_auc"] = eval != nullptr && eval->has_auc() ? Number(eval->auc()) : ordered_json();
  json["eval_auc_reason"] = eval == nullptr   ? ordered_json("no evaluation")
                            : eval->has_auc() ? ordered_json()
                                              : ordered_json(eval->auc_reason());
  json["eval_calibration"] = eval == nullptr ? ordered_json() : Number(eval->calibration());
  json["checkpoint"] = summary.checkpoint().empty() ? ordered_json() : ordered_json(summary.checkpoint());
  json["workers"] = summary.workers();
  json["servers"] = summary.servers();
  json["train_seconds"] = Number(summary.train_seconds());
  json["step_seconds"] = ordered_json::object();
  for (const auto& [part, seconds] : summary.step_seconds()) json["step_seconds"][part] = Number(seconds);
  json["sources"] = ordered_json::array();
  for (const std::string& source : summary.sources()) json["sources"].push_back(source);
  json["loss_curve"] = ordered_json::array();
  for (const v1::LossPoint& point : status.loss_curve()) {
    json["loss_curve"].push_back({point.step(), Number(point.loss())});
  }
  json["evals"] = ordered_json::array();
  for (const v1::EvalResult& each : status.evals()) json["evals"].push_back(EvalJson(each));
  // A name or message that is not UTF-8 must not cost the whole summary.
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string LossesCsv(const v1::JobStatus& status) {
  std::string text = "step,loss\n";
  for (const v1::LossPoint& point : status.loss_curve()) {
    absl::StrAppendFormat(&text, "%d,%.17g\n", point.step(), point.loss());
  }
  return text;
}

}  // namespace sparrow
