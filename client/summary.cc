#include "client/summary.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/utf8.h"

namespace sparrow {
namespace {

using nlohmann::ordered_json;

// JSON has no NaN and no infinity.
ordered_json Number(std::optional<double> value) {
  return value.has_value() && std::isfinite(*value) ? ordered_json(*value) : ordered_json();
}

// A count that is never 0 once it is known.
ordered_json KnownCount(uint64_t count) { return count == 0 ? ordered_json() : ordered_json(count); }

bool IsWhole(const v1::JobStatus& status) { return status.state() == v1::JobStatus::SUCCEEDED && status.has_summary(); }

std::optional<double> LossOf(const v1::EvalResult& eval) {
  return eval.rows() == 0 ? std::nullopt : std::optional<double>(eval.loss());
}

// EvalResult has 0 where it is not defined.
std::optional<double> CalibrationOf(const v1::EvalResult& eval) {
  return eval.calibration() == 0 ? std::nullopt : std::optional<double>(eval.calibration());
}

// The last evaluation: of the summary, or of a job that did not come to its end.
const v1::EvalResult* LastEval(const v1::JobStatus& status) {
  if (IsWhole(status) && status.summary().has_eval()) return &status.summary().eval();
  return status.evals().empty() ? nullptr : &status.evals(status.evals_size() - 1);
}

// Of a job that did not come to its end: as it last said.
const std::string& LastCheckpoint(const v1::JobStatus& status) {
  return status.summary().checkpoint().empty() ? status.progress().checkpoint() : status.summary().checkpoint();
}

ordered_json EvalJson(const v1::EvalResult& eval) {
  ordered_json json;
  json["step"] = eval.step();
  json["rows"] = eval.rows();
  json["loss"] = Number(LossOf(eval));
  json["auc"] = eval.has_auc() ? Number(eval.auc()) : ordered_json();
  return json;
}

void AddLine(std::string* text, absl::string_view name, absl::string_view value) {
  absl::StrAppendFormat(text, "  %-14s %s\n", name, value);
}

// At most a few names: a month of files is not read line by line.
std::string SourcesText(const v1::Summary& summary) {
  constexpr int kShown = 4;
  if (summary.sources().empty()) return "-";
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

std::vector<std::pair<std::string, double>> StepParts(const google::protobuf::Map<std::string, double>& seconds) {
  std::vector<std::pair<std::string, double>> parts;
  for (const char* part : {"load", "pull", "h2d", "forward", "backward", "allreduce", "optimizer", "push", "wait"}) {
    const auto found = seconds.find(part);
    if (found != seconds.end()) parts.emplace_back(part, found->second);
  }
  return parts;
}

std::string FigureText(const absl::FormatSpec<double>& format, std::optional<double> value) {
  return value.has_value() && std::isfinite(*value) ? absl::StrFormat(format, *value) : "-";
}

std::string EvalText(const v1::EvalResult& eval) {
  return absl::StrCat(AucText(eval), ", logloss ", FigureText("%.5f", LossOf(eval)), ", calibration ",
                      FigureText("%.4f", CalibrationOf(eval)), " on ", eval.rows(), " rows");
}

std::string TokenLossText(const v1::EvalResult& eval) {
  return absl::StrCat("validation loss ", FigureText("%.4f", LossOf(eval)));
}

std::string TokenEvalText(const v1::EvalResult& eval) {
  return absl::StrCat(TokenLossText(eval), " on ", eval.rows(), " tokens");
}

JobFigures FiguresOf(const v1::JobStatus& status) {
  const v1::Summary& summary = status.summary();
  const v1::Progress& progress = status.progress();
  JobFigures figures;
  double samples_per_second = 0, train_loss = 0;
  if (IsWhole(status)) {
    figures = {.steps = summary.steps(),
               .rows_read = summary.rows_read(),
               .rows_trained = summary.rows_trained(),
               .rows_skipped = summary.rows_skipped(),
               .steps_skipped = summary.steps_skipped(),
               .samples_per_second = std::nullopt,
               .train_loss = std::nullopt};
    samples_per_second = summary.samples_per_second();
    train_loss = summary.train_loss();
  } else {
    figures = {.steps = progress.step(),
               .rows_read = progress.rows_read(),
               .rows_trained = progress.rows_trained(),
               .rows_skipped = progress.rows_skipped(),
               .steps_skipped = progress.steps_skipped(),
               .samples_per_second = std::nullopt,
               .train_loss = std::nullopt};
    samples_per_second = progress.samples_per_second();
    train_loss = progress.loss();
  }
  if (figures.rows_trained > 0) {
    figures.train_loss = train_loss;
    if (samples_per_second > 0) figures.samples_per_second = samples_per_second;
  }
  return figures;
}

bool CountsTokens(const v1::JobStatus& status) {
  return status.summary().rows_are_tokens() || status.progress().rows_are_tokens();
}

void FillInFromJob(const v1::Job& job, v1::JobStatus* status) {
  v1::Summary* summary = status->mutable_summary();
  if (job.model().has_gpt2()) summary->set_rows_are_tokens(true);
  if (!summary->sources().empty()) return;
  if (job.train().epochs() > 0) {
    for (const std::string& path : job.data().train().path()) summary->add_sources(AsUtf8(path));
  }
  for (const std::string& path : job.data().test().path()) {
    const auto& named = summary->sources();
    const std::string name = AsUtf8(path);
    if (std::find(named.begin(), named.end(), name) == named.end()) summary->add_sources(name);
  }
}

std::string SummaryText(const v1::JobStatus& status) {
  const v1::Summary& summary = status.summary();
  const JobFigures figures = FiguresOf(status);
  std::string text = absl::StrCat("job ", status.name(), " (", status.job_id(), ") ", StateName(status.state()), "\n");
  if (!status.message().empty()) AddLine(&text, "message", status.message());
  AddLine(&text, "source", SourcesText(summary));
  const bool tokens = CountsTokens(status);
  AddLine(&text, tokens ? "tokens read" : "rows read", absl::StrCat(figures.rows_read));
  AddLine(
      &text, tokens ? "tokens trained" : "rows trained",
      absl::StrCat(
          figures.rows_trained,
          figures.rows_skipped == 0 ? "" : absl::StrCat(" (", figures.rows_skipped, " did not fit and were skipped)")));
  AddLine(&text, "steps",
          absl::StrCat(figures.steps, figures.steps_skipped == 0
                                          ? ""
                                          : absl::StrCat(" (", figures.steps_skipped,
                                                         " were skipped: a gradient passed the range of float16, or "
                                                         "the loss stood out)")));
  std::string rate = FigureText("%.0f", figures.samples_per_second);
  if (IsWhole(status) && figures.samples_per_second.has_value()) {
    absl::StrAppendFormat(&rate, " (%.1f s of training on %d worker%s", summary.train_seconds(), summary.workers(),
                          summary.workers() == 1 ? "" : "s");
    if (!tokens) absl::StrAppendFormat(&rate, ", %d server%s", summary.servers(), summary.servers() == 1 ? "" : "s");
    rate += ")";
  }
  AddLine(&text, tokens ? "tokens/s" : "samples/s", rate);
  AddLine(&text, "train loss", FigureText("%.5f", figures.train_loss));
  if (const v1::EvalResult* eval = LastEval(status)) {
    AddLine(&text, "evaluation",
            absl::StrCat(tokens ? TokenEvalText(*eval) : EvalText(*eval), " after step ", eval->step()));
  } else {
    AddLine(&text, "evaluation", "none");
  }
  if (!summary.step_seconds().empty()) {
    std::vector<std::string> parts;
    for (const auto& [part, seconds] : StepParts(summary.step_seconds())) {
      if (part == "h2d" && seconds == 0) continue;  // On the CPU there is nothing to copy.
      parts.push_back(absl::StrFormat("%s %.2f", part, 1e3 * seconds));
    }
    AddLine(&text, "ms a step", absl::StrJoin(parts, ", "));
  }
  if (!summary.resumed_from().empty()) AddLine(&text, "resumed from", summary.resumed_from());
  const std::string& checkpoint = LastCheckpoint(status);
  AddLine(&text, "checkpoint", checkpoint.empty() ? "none" : checkpoint);
  if (summary.checkpoints() > 1 || summary.checkpoints_failed() > 0) {
    AddLine(&text, "checkpoints",
            absl::StrCat(summary.checkpoints(), " written in ",
                         absl::StrFormat("%.1f s, the last of %d bytes", summary.checkpoint_seconds(),
                                         summary.checkpoint_bytes()),
                         summary.checkpoints_failed() == 0
                             ? ""
                             : absl::StrCat("; ", summary.checkpoints_failed(), " could not be written")));
  }
  return text;
}

std::string SummaryJson(const v1::JobStatus& status) {
  const v1::Summary& summary = status.summary();
  const JobFigures figures = FiguresOf(status);
  ordered_json json;
  json["job"] = status.name();
  json["job_id"] = status.job_id();
  json["state"] = StateName(status.state());
  json["message"] = status.message();
  json["rows_are_tokens"] = CountsTokens(status);
  json["steps"] = figures.steps;
  json["steps_skipped"] = figures.steps_skipped;
  json["rows_read"] = figures.rows_read;
  json["rows_trained"] = figures.rows_trained;
  json["rows_skipped"] = figures.rows_skipped;
  json["samples_per_second"] = Number(figures.samples_per_second);
  json["train_loss"] = Number(figures.train_loss);

  const v1::EvalResult* eval = LastEval(status);
  json["eval_rows"] = eval == nullptr ? ordered_json() : ordered_json(eval->rows());
  json["eval_loss"] = eval == nullptr ? ordered_json() : Number(LossOf(*eval));
  json["eval_auc"] = eval != nullptr && eval->has_auc() ? Number(eval->auc()) : ordered_json();
  json["eval_auc_reason"] = eval == nullptr   ? ordered_json("no evaluation")
                            : eval->has_auc() ? ordered_json()
                                              : ordered_json(eval->auc_reason());
  json["eval_calibration"] = eval == nullptr ? ordered_json() : Number(CalibrationOf(*eval));
  const std::string& checkpoint = LastCheckpoint(status);
  json["checkpoint"] = checkpoint.empty() ? ordered_json() : ordered_json(checkpoint);
  json["resumed_from"] = summary.resumed_from().empty() ? ordered_json() : ordered_json(summary.resumed_from());
  json["checkpoints"] = IsWhole(status) ? ordered_json(summary.checkpoints()) : ordered_json();
  json["checkpoints_failed"] = IsWhole(status) ? ordered_json(summary.checkpoints_failed()) : ordered_json();
  json["checkpoint_seconds"] =
      Number(summary.checkpoints() == 0 ? std::nullopt : std::optional<double>(summary.checkpoint_seconds()));
  json["checkpoint_bytes"] = KnownCount(summary.checkpoint_bytes());
  json["workers"] = KnownCount(summary.workers());
  json["servers"] = KnownCount(summary.servers());
  json["train_seconds"] =
      Number(summary.rows_trained() == 0 ? std::nullopt : std::optional<double>(summary.train_seconds()));
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
