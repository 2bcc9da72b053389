#ifndef SPARROW_WORKER_NPY_SOURCE_H_
#define SPARROW_WORKER_NPY_SOURCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/npy.h"
#include "base/thread_team.h"
#include "worker/row_source.h"

namespace sparrow {

// Rows of facebookresearch/dlrm's npy sets PREFIX_labels, PREFIX_dense, PREFIX_sparse. Only the rows asked for are
// read, by pread. A row that does not fit is InvalidArgument "FILE: row R, column C: ...", both counted from 0 as NumPy
// does. Not thread-safe.
//
// Threads turn blocks of rows into columns, checking all values of a block at once. Where one does not fit, the block
// is read again row by row, so that what is refused, and what is said of it, does not depend on threads or blocks.
class NpySource : public RowSource {
 public:
  struct Options {
    StopCheck stop;
    int threads = 1;
  };
  // Opens the headers. InvalidArgument: a type or shape that is not what the job says, lengths that differ in a set.
  static absl::StatusOr<std::unique_ptr<NpySource>> Open(const v1::DlrmNpy& config,
                                                         std::span<const v1::FeatureConfig> features,
                                                         const std::vector<std::string>& prefixes, Options options);
  ~NpySource() override;

  absl::Status Check() override;
  absl::Status Restart() override;
  absl::StatusOr<uint64_t> Skip(uint64_t n) override;
  absl::StatusOr<uint64_t> Read(uint64_t n, BatchBuilder* out, BadRows* bad_rows) override;
  std::string LastRow() const override;
  absl::StatusOr<bool> AtEnd() override { return row_ == rows_; }
  absl::StatusOr<uint64_t> CountRows() override { return rows_; }
  bool CountIsFree() const override { return true; }
  uint32_t DenseColumns() const override { return dense_columns_; }
  const std::vector<FeatureShape>& Shapes() const override { return shapes_; }
  const std::vector<std::string>& files() const override { return files_; }
  uint64_t BytesRead() const override { return bytes_read_; }

 private:
  struct File {
    std::string path;
    NpyHeader header;
    int fd = -1;

    uint64_t RowBytes() const { return header.Columns() * NpyTypeBytes(header.type); }
  };
  struct Set {
    File labels;
    File dense;
    File sparse;
    uint64_t first_row = 0;  // Of all rows.

    uint64_t Rows() const { return labels.header.Rows(); }
  };

  // The bytes of some rows.
  struct Rows {
    std::vector<char> labels;
    std::vector<char> dense;
    std::vector<char> sparse;
    std::vector<float> floats;  // Dense, aligned as such.
  };

  explicit NpySource(Options options)
      : stop_(std::move(options.stop)), team_(options.threads), rows_of_(team_.threads()) {}

  absl::StatusOr<Set> OpenSet(const std::string& prefix, uint64_t sparse_columns) const;
  absl::Status OpenFile(File* file) const;
  // Reads `rows` rows from `row` of the set on. REQUIRES: its files are open.
  absl::Status ReadRows(const Set& set, uint64_t row, uint64_t rows, Rows* to) const;
  void CloseSet(Set* set);
  uint64_t BlockRows(const Set& set) const;
  // Adds the rows of whole blocks from `row` of the set on, up to the first block in which one does not fit; returns
  // how many. On several threads.
  absl::StatusOr<uint64_t> AddBlocks(const Set& set, uint64_t row, uint64_t rows, BatchBuilder* out);
  // Writes rows `row` to `row + rows - 1` of the set to their place, which is `first` rows behind `place`. False: not
  // all fit.
  bool WriteBlock(const Set& set, uint64_t row, uint64_t rows, uint64_t first, const BatchBuilder::Place& place,
                  BatchBuilder* out, Rows* buffer) const;
  // The ids and offsets of rows `begin` to `begin + rows - 1` of a block.
  bool WriteIds(const Set& set, uint64_t begin, uint64_t rows, uint64_t first, const BatchBuilder::Place& place,
                const Rows& buffer, BatchBuilder* out) const;
  // Adds rows one by one.
  absl::Status AddRows(const Set& set, uint64_t row, uint64_t rows, BatchBuilder* out, BadRows* bad_rows);
  // Adds row `i` of the buffers, which is row `row` of the set.
  absl::Status AddRow(const Set& set, uint64_t row, uint64_t i, BatchBuilder* out, float* label) const;
  absl::Status AddIds(const Set& set, uint64_t row, uint64_t i, BatchBuilder* out) const;

  // Constant after Open.
  uint32_t dense_columns_ = 0;
  std::vector<uint32_t> bag_sizes_;  // For each feature.
  std::vector<FeatureShape> shapes_;
  std::vector<std::string> files_;
  const StopCheck stop_;
  uint64_t rows_ = 0;

  std::vector<Set> sets_;
  size_t set_ = 0;    // The one that holds row_, or sets_.size().
  uint64_t row_ = 0;  // Next, of all rows.
  uint64_t bytes_read_ = 0;
  uint64_t blocks_ = 1;  // To be tried at once: few after one that did not fit, then more and more.
  ThreadTeam team_;
  std::vector<Rows> rows_of_;  // [threads] The first is that of AddRows, too.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_NPY_SOURCE_H_
