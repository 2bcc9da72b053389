#ifndef SPARROW_WORKER_DATA_CHECK_H_
#define SPARROW_WORKER_DATA_CHECK_H_

// Reads a job's input without training, and says what is in it and what is odd about it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"
#include "worker/line_reader.h"

namespace sparrow {

// Of a dense column, as it is in the file, before the transform.
struct DenseColumnReport {
  std::string name;
  uint64_t missing = 0;
  uint64_t negative = 0;
  // Of the values present; 0 if there are none.
  double min = 0;
  double max = 0;
  double mean = 0;
};

// Of a feature's ids, as they are in the file, before its modulo.
struct FeatureReport {
  std::string name;
  std::string column;
  uint64_t ids = 0;
  uint64_t distinct = 0;
  bool distinct_exact = true;  // False: estimated within about 0.8 % (worker/distinct_counter.h).
  uint64_t ids_per_row_max = 0;
  uint64_t missing = 0;        // Rows with the missing id, or with an empty bag.
  uint64_t max_id = 0;         // Unsigned, without the missing id; 0 if there is none.
  uint64_t out_of_bounds = 0;  // Ids, after modulo, that the feature's bounded table does not have.
};

struct SourceReport {
  std::string name;  // "train" or "test"
  std::vector<std::string> files;
  uint64_t rows = 0;        // In the source's range, bad ones included.
  uint64_t bad_rows = 0;    // Of those, the ones that do not fit; nothing else counts them.
  uint64_t file_bytes = 0;  // Read, compressed as they are.
  bool labelled = true;
  uint64_t ones = 0;  // Rows with label 1.
  std::vector<DenseColumnReport> dense;
  std::vector<FeatureReport> features;
  std::vector<std::string> bad_row_examples;
  std::vector<std::string> problems;  // What training would stop at.
  std::vector<std::string> oddities;  // What is allowed but perhaps not meant.
};

struct DataReport {
  std::vector<SourceReport> sources;

  bool HasProblems() const;
};

// Reads data.train and data.test of the job, those that are there, in bounded memory. A row that does not fit is
// counted and shown instead of ending the check. Errors: what BatchReader::Open refuses, unreadable files, Cancelled by
// `stop`.
absl::StatusOr<DataReport> CheckInput(const v1::Job& job, const std::string& data_root, StopCheck stop);

// The report for people, a few lines for each column.
std::string FormatReport(const DataReport& report);

}  // namespace sparrow

#endif  // SPARROW_WORKER_DATA_CHECK_H_
