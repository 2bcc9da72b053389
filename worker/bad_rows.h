#ifndef SPARROW_WORKER_BAD_ROWS_H_
#define SPARROW_WORKER_BAD_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// What becomes of rows that do not fit: the policy of DataConfig.on_bad_row, with its cap a pass. Not thread-safe.
class BadRows {
 public:
  static constexpr size_t kExamples = 5;

  BadRows(v1::DataConfig::BadRowPolicy policy, uint64_t rows_max) : policy_(policy), rows_max_(rows_max) {}

  // One for a later part of the input, by another thread: it keeps the errors of rows that do not fit, as many as could
  // be added here, and then returns the next.
  BadRows ForLaterPart() const {
    BadRows later(v1::DataConfig::SKIP, 0);
    later.kept_max_ = policy_ == v1::DataConfig::STOP ? 1 : std::max(rows_max_, rows_max_ + 1);
    return later;
  }
  // What it has kept, in order: to be added to the one that it was made of.
  const std::vector<absl::Status>& kept() const { return kept_; }

  // A pass over the input begins; its count starts at 0.
  void StartPass() { pass_rows_ = 0; }

  // OK: leave the row out. STOP: `why`. SKIP beyond the cap: an error that names count, cap and the first such row.
  absl::Status Add(const absl::Status& why);

  uint64_t pass_rows() const { return pass_rows_; }
  // The errors of the first rows that were left out, over all passes.
  const std::vector<std::string>& examples() const { return examples_; }

 private:
  const v1::DataConfig::BadRowPolicy policy_;
  const uint64_t rows_max_;
  uint64_t pass_rows_ = 0;
  std::vector<std::string> examples_;
  uint64_t kept_max_ = 0;  // Above 0: of ForLaterPart.
  std::vector<absl::Status> kept_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_BAD_ROWS_H_
