#ifndef SPARROW_WORKER_ROW_SOURCE_H_
#define SPARROW_WORKER_ROW_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"
#include "worker/bad_rows.h"
#include "worker/batch_builder.h"
#include "worker/line_reader.h"
#include "worker/not_utf8.h"

namespace sparrow {

// All rows of a DataSource in their global order, whatever the format: files in the order given, rows in the order of
// the file. Every error is final. Not thread-safe.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Opens every file and checks what can be seen without reading it: headers, shapes, that there is a row at all.
  // Before row 0 afterwards.
  virtual absl::Status Check() = 0;
  // Before row 0 again.
  virtual absl::Status Restart() = 0;
  // Passes over up to n rows without parsing them; returns how many there were.
  virtual absl::StatusOr<uint64_t> Skip(uint64_t n) = 0;
  // Reads up to n rows; returns how many there were, those that `bad_rows` left out included.
  virtual absl::StatusOr<uint64_t> Read(uint64_t n, BatchBuilder* out, BadRows* bad_rows) = 0;
  // Where the last row read is: "FILE:7", or "FILE: row 6" of npy. REQUIRES: Read has just returned more than 0.
  virtual std::string LastRow() const = 0;
  // No row is left.
  virtual absl::StatusOr<bool> AtEnd() = 0;
  // Rows of all files; text is read through for it, once. Before row 0 afterwards.
  virtual absl::StatusOr<uint64_t> CountRows() = 0;
  // CountRows needs no pass over the files.
  virtual bool CountIsFree() const = 0;

  virtual uint32_t DenseColumns() const = 0;
  virtual const std::vector<FeatureShape>& Shapes() const = 0;  // For each feature.
  virtual const std::vector<std::string>& files() const = 0;
  // From files, compressed as they are; without CountRows.
  virtual uint64_t BytesRead() const = 0;
};

struct RowSourceOptions {
  std::string data_root;
  v1::DataConfig data;
  v1::DataSource source;
  std::vector<v1::FeatureConfig> features;
  StopCheck stop;
  int threads = 1;  // That turn bytes into rows, the caller's among them. The rows are the same.
  // Of delimited text: counts values here that are not UTF-8, which takes time. Null: does not. Outlives the source.
  NotUtf8ByColumn* not_utf8 = nullptr;
};

// The source of the format that `data` has, unchecked. Errors of the schema, of names, and NotFound.
absl::StatusOr<std::unique_ptr<RowSource>> OpenRowSource(const RowSourceOptions& options);

}  // namespace sparrow

#endif  // SPARROW_WORKER_ROW_SOURCE_H_
