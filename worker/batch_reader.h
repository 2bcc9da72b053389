#ifndef SPARROW_WORKER_BATCH_READER_H_
#define SPARROW_WORKER_BATCH_READER_H_

// Where a batch is read: files -> rows -> this worker's part of each global batch, on a thread of its own.
//
// Rows have one global order (files in the order given, rows in the order of the file, cut by DataSource.rows). Global
// batch t of an epoch is rows [tB, (t+1)B) of it, and worker r of N has the part [rB/N, (r+1)B/N) of that, so the
// batches are the same whatever the number of workers and files, and every row is in exactly one part. An epoch ends
// with a batch that may be short, in which some parts may be empty. Every worker sees the end at the same step.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"
#include "worker/batch.h"

namespace sparrow {

struct BatchReaderOptions {
  std::string data_root;  // Paths outside it are refused.
  v1::DataConfig data;    // Format and policy.
  v1::DataSource source;  // data.train or data.test.
  std::vector<v1::FeatureConfig> features;
  std::vector<uint64_t>
      bounded_rows;  // For each feature, the rows of its table; 0: hashed. An id outside is an error that names both.
  uint64_t batch_size = 1;  // Rows of a global batch.
  uint32_t rank = 0;
  uint32_t workers = 1;
  uint64_t epochs = 1;
  // Where to begin, for a resumed job: this many epochs and rows (skipped ones included) have been consumed, in
  // `first_step` steps.
  uint64_t first_step = 0;
  uint64_t first_epoch = 0;
  uint64_t first_row_in_epoch = 0;
  uint32_t queue_batches_max = 4;  // Parsed ahead at most.
  int threads = 1;                 // That parse. Batches, errors and statistics are the same, however many there are.
  // Polled during Open and on the reading thread; true ends them with Cancelled. Null: never.
  std::function<bool()> cancelled;
};

// What Next has handed out so far, over all epochs.
struct BatchReaderStats {
  uint64_t rows_read = 0;     // By this worker, skipped ones included.
  uint64_t rows_skipped = 0;  // Of those, rows that did not fit (SKIP policy).
  uint64_t bytes_read =
      0;  // From files, compressed as they are; without what is parsed ahead and without counting passes.
  std::string first_skipped;  // The error of the first skipped row.
};

// One thread calls Next; Stats is thread-safe.
class BatchReader {
 public:
  virtual ~BatchReader() = default;

  // Opens the files, counts their rows if source.rows has a share, and checks what can be checked before reading:
  // NotFound (a missing file), InvalidArgument (a directory, an empty set of rows, a header without a column, a schema
  // that does not fit the features). The message names file, what was expected, what was found, and the remedy.
  static absl::StatusOr<std::unique_ptr<BatchReader>> Open(const BatchReaderOptions& options);

  // Moves the next batch into *batch; its old vectors are reused. False: all epochs are read. An error names file, line
  // and column, and is final.
  virtual absl::StatusOr<bool> Next(Batch* batch) = 0;

  virtual BatchReaderStats Stats() const = 0;
  // Rows of one epoch over all workers; 0: not known without reading everything (text without a share in `rows` before
  // the end of the first epoch).
  virtual uint64_t EpochRows() const = 0;
  virtual uint32_t DenseColumns() const = 0;
  virtual const std::vector<std::string>& files() const = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_BATCH_READER_H_
