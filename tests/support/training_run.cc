#include "tests/support/training_run.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/file.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {

TrainingRun Train(const TrainingRunOptions& options) {
  const TemporaryDirectory out;
  std::vector<std::string> arguments = {ProgramPath("sparrowctl"),
                                        options.coordinator.empty() ? "run" : "submit",
                                        absl::StrCat(SPARROW_SOURCE_DIR, "/", options.job),
                                        "--json",
                                        out.File("out.json"),
                                        "--losses",
                                        out.File("losses.csv")};
  if (options.coordinator.empty()) {
    for (const std::string& more :
         {std::string("--data-root"), options.data_root, std::string("--checkpoint-root"),
          options.checkpoint_root.empty() ? out.File("checkpoints") : options.checkpoint_root}) {
      arguments.push_back(more);
    }
  } else {
    for (const std::string& more : {std::string("--coordinator"), options.coordinator, std::string("--watch")}) {
      arguments.push_back(more);
    }
  }
  for (const std::string& set : options.sets) {
    arguments.push_back("--set");
    arguments.push_back(set);
  }
  arguments.insert(arguments.end(), options.flags.begin(), options.flags.end());

  const RunResult result = RunProgram(arguments, options.timeout);
  TrainingRun run{result.status, result.out, result.err, {}, nullptr};
  const absl::StatusOr<std::string> summary = ReadFile(out.File("out.json"));
  if (summary.ok()) run.summary = nlohmann::json::parse(*summary);
  std::ifstream losses(out.File("losses.csv"));
  std::string line;
  std::getline(losses, line);  // step,loss
  std::string first;           // Step; not 0 in a run that went on from a checkpoint.
  while (std::getline(losses, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    if (run.losses.empty()) first = fields[0];
    if (fields[0] != absl::StrCat(std::stoull(first) + run.losses.size())) break;
    run.losses.push_back(std::stod(fields[1]));
  }
  return run;
}

}  // namespace sparrow
