#ifndef SPARROW_CLIENT_CLICK_LOG_H_
#define SPARROW_CLIENT_CLICK_LOG_H_

// Writes a click log of a planted world (click_model.h) in Criteo's format: label, 13 integers, 26 categoricals of 8
// hex digits, separated by tabs, LF at the end, a missing value empty. Beside OUT it writes OUT.truth.json with the
// best AUC and logloss that any model can reach on exactly these rows.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/click_model.h"

namespace sparrow {

// How well the true logits predict the labels of some rows; any number of rows in 2 MB. Not thread-safe.
class ClickTruth {
 public:
  ClickTruth();
  void Add(const ClickRow& row);

  uint64_t rows() const { return rows_; }
  uint64_t positives() const { return positives_; }
  double Logloss() const;             // 0 without rows.
  std::optional<double> Auc() const;  // Exact, ties count 0.5. Absent if all labels are equal.

 private:
  uint64_t rows_ = 0;
  uint64_t positives_ = 0;
  std::vector<uint64_t> counts_[2];  // By label: rows of each logit step.
};

struct ClickLogOptions {
  uint64_t rows = 0;
  std::string out;         // Compressed if it ends in .gz.
  uint64_t test_rows = 0;  // Follow the others in the same world; 0: none.
  std::string test_out = "";
  uint64_t seed = 1;
};

struct ClickLogResult {
  ClickTruth train;
  ClickTruth test;
  uint64_t bytes = 0;  // Written to both, before compression.
  std::string truth_path;
};

// Writes to OUT.tmp and renames: a log that is there is whole. Memory does not grow with the rows. Calls on_progress
// with the rows done every 2^16 rows; if it returns false the temporary file is removed and the result is Cancelled.
absl::StatusOr<ClickLogResult> WriteClickLog(const ClickLogOptions& options,
                                             const std::function<bool(uint64_t rows)>& on_progress);

// The row as a line, with its line end.
void AppendCriteoLine(const ClickRow& row, std::string* text);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_CLICK_LOG_H_
