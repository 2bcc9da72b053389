#ifndef SPARROW_WORKER_BAD_ROWS_H_
#define SPARROW_WORKER_BAD_ROWS_H_

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
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_BAD_ROWS_H_
