// sparrowctl predict

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "client/cli.h"
#include "client/job_file.h"
#include "client/predictor.h"
#include "server/shard.h"
#include "worker/checkpoint.h"
#include "worker/job_check.h"

namespace sparrow {
namespace {

absl::StatusOr<uint64_t> Predict(const std::string& path, const std::vector<std::string>& sets,
                                 PredictionOptions options, const std::string& to) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpointAt(path));
  RETURN_IF_ERROR(CheckPredicts(checkpoint.manifest.job()));
  ASSIGN_OR_RETURN(const v1::Job job, TestOnlyJob(checkpoint.manifest.job(), checkpoint.directory, sets));
  RETURN_IF_ERROR(ValidateJobForReading(job));
  const std::filesystem::path directory(checkpoint.directory);
  options.checkpoint_root = directory.parent_path().string();
  options.checkpoint = directory.filename().string();
  return WritePredictions(job, options, to);
}

}  // namespace

int PredictCommand(const Arguments& arguments, Interrupt* interrupt) {
  PredictionOptions prediction;
  prediction.cancelled = [interrupt] { return interrupt->signal() != 0; };
  std::vector<std::string> sets;
  std::string to;
  const std::vector<Option> options = {
      {"to", &to, "The file to write.", true},
      {"data-root", &prediction.data_root, "Directory that the job's files lie under.", false},
      {"set", &sets, "Changes the job: --set data.test.path=other.tsv. May be repeated.", false},
      {"memory", BytesFlag{&prediction.memory_bytes, kMemoryBytesMin}, "DRAM for rows; what is over goes to disk.",
       false},
  };
  const Usage usage{
      "sparrowctl predict", "CHECKPOINT",
      "Writes a trained model's prediction for every row of its job's test data, in order, as CSV:\n"
      "row,label,probability. Rows count from 0. Where data.test.unlabelled is true the rows have no label, and the\n"
      "label is empty.",
      "  sparrowctl predict checkpoints/quickstart-job-1/step-1954 --data-root out/quickstart --to p.csv\n"
      "  sparrowctl predict CHECKPOINT --set data.test.path=test.txt --set data.test.unlabelled=true --to p.csv\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  absl::Status status = CheckWritable("--to", to);
  if (status.ok()) status = CheckDirectory("--data-root", prediction.data_root);
  if (!status.ok()) return Fail(status);
  const absl::StatusOr<uint64_t> rows = Predict(positional[0], sets, prediction, to);
  if (!rows.ok()) {
    Fail(rows.status());
    return interrupt->signal() != 0 ? 128 + interrupt->signal() : kExitFailure;
  }
  std::printf("%s: %llu rows\n", to.c_str(), static_cast<unsigned long long>(*rows));
  return kExitSuccess;
}

}  // namespace sparrow
