#ifndef SPARROW_TESTS_SUPPORT_TRAINING_RUN_H_
#define SPARROW_TESTS_SUPPORT_TRAINING_RUN_H_

// `sparrowctl run` or `submit --watch` as a user types it, and what it leaves.

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace sparrow {

struct TrainingRun {
  int status = 0;
  std::string out;
  std::string err;
  std::vector<double> losses;  // Of consecutive steps from the first on; one alone unless loss_every_steps is 1.
  nlohmann::json summary;      // null if none was written.
};

struct TrainingRunOptions {
  std::string job;                   // Path relative to the project's root.
  std::vector<std::string> flags;    // More flags.
  std::vector<std::string> sets;     // "train.seed=2"
  std::string coordinator;           // HOST:PORT: submit --watch; empty: run.
  std::string data_root;             // For run.
  std::string checkpoint_root = "";  // For run; empty: a directory that is gone afterwards.
  absl::Duration timeout = absl::Minutes(5);
};

// CHECKs that the program ends in time.
TrainingRun Train(const TrainingRunOptions& options);

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_TRAINING_RUN_H_
