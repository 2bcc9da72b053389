// sparrowctl evaluate

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "client/cli.h"
#include "client/embedded_cluster.h"
#include "client/follow_job.h"
#include "client/job_file.h"
#include "client/predictor.h"
#include "client/run_embedded.h"
#include "server/shard.h"
#include "worker/checkpoint.h"
#include "worker/job_check.h"

namespace sparrow {
namespace {

absl::StatusOr<v1::Job> EvaluationJob(const Checkpoint& checkpoint, const std::vector<std::string>& sets) {
  ASSIGN_OR_RETURN(v1::Job job, TestOnlyJob(checkpoint.manifest.job(), checkpoint.directory, sets));
  RETURN_IF_ERROR(ValidateJob(job));
  return job;
}

absl::Status Predict(const v1::Job& job, const EmbeddedClusterOptions& cluster, const std::string& checkpoint,
                     const std::string& path) {
  PredictionOptions options;
  options.checkpoint_root = cluster.checkpoint_root;
  options.checkpoint = checkpoint;
  options.data_root = cluster.data_root;
  options.memory_bytes = cluster.memory_bytes;
  ASSIGN_OR_RETURN(const uint64_t rows, WritePredictions(job, options, path));
  std::printf("  %-14s %s (%llu rows)\n", "predictions", path.c_str(), static_cast<unsigned long long>(rows));
  return absl::OkStatus();
}

}  // namespace

int EvaluateCommand(const Arguments& arguments, Interrupt* interrupt) {
  EmbeddedClusterOptions cluster;
  JobOutputs outputs;
  std::vector<std::string> sets;
  std::string predictions;
  const std::vector<Option> options = {
      {"data-root", &cluster.data_root, "Directory that the job's files lie under.", false},
      {"set", &sets, "Changes the job: --set data.test.path=other.tsv. May be repeated.", false},
      {"json", &outputs.json, "Writes the summary to this file as one JSON object.", false},
      {"predictions", &predictions, "Writes every row's prediction to this file as CSV: row,label,probability.", false},
      {"memory", BytesFlag{&cluster.memory_bytes, kMemoryBytesMin}, "DRAM for rows; what is over goes to disk.", false},
  };
  const Usage usage{
      "sparrowctl evaluate", "CHECKPOINT",
      "Loads a checkpoint and measures it on the test data of its job: AUC, logloss, calibration; of a language\n"
      "model the validation loss. Nothing is trained or written to the checkpoint.",
      "  sparrowctl evaluate checkpoints/quickstart-job-1/step-1954 --data-root out/quickstart\n"
      "  sparrowctl evaluate CHECKPOINT --set data.test.path=tomorrow.tsv --predictions p.csv\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  absl::Status status = CheckOutputs(outputs);
  if (status.ok()) status = CheckWritable("--predictions", predictions);
  if (status.ok()) status = CheckDirectory("--data-root", cluster.data_root);
  if (!status.ok()) return Fail(status);

  const absl::StatusOr<Checkpoint> checkpoint = OpenCheckpointAt(positional[0]);
  if (!checkpoint.ok()) return FailBeforeStart(checkpoint.status(), v1::Job(), outputs);
  const absl::StatusOr<v1::Job> job = EvaluationJob(*checkpoint, sets);
  if (!job.ok()) return FailBeforeStart(job.status(), checkpoint->manifest.job(), outputs);
  if (!predictions.empty()) status = Annotate(CheckPredicts(*job), "--predictions");
  if (!status.ok()) return FailBeforeStart(status, *job, outputs);

  const std::filesystem::path directory(checkpoint->directory);
  cluster.checkpoint_root = directory.parent_path().string();
  const std::string name = directory.filename().string();
  const int exit_status = RunEmbedded(*job, cluster, name, outputs, interrupt);
  if (exit_status != kExitSuccess || predictions.empty()) return exit_status;
  const absl::Status predicted = Predict(*job, cluster, name, predictions);
  return predicted.ok() ? kExitSuccess : Fail(predicted);
}

}  // namespace sparrow
