#ifndef SPARROW_WORKER_NPY_SOURCE_H_
#define SPARROW_WORKER_NPY_SOURCE_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/npy.h"
#include "worker/row_source.h"

namespace sparrow {

// Rows of facebookresearch/dlrm's npy sets PREFIX_labels, PREFIX_dense, PREFIX_sparse. Only the rows asked for are
// read, by pread. A row that does not fit is InvalidArgument "FILE: row R, column C: ...", both counted from 0 as NumPy
// does. Not thread-safe.
class NpySource : public RowSource {
 public:
  // Opens the headers. InvalidArgument: a type or shape that is not what the job says, lengths that differ in a set.
  static absl::StatusOr<std::unique_ptr<NpySource>> Open(const v1::DlrmNpy& config,
                                                         std::span<const v1::FeatureConfig> features,
                                                         const std::vector<std::string>& prefixes, StopCheck stop);
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

  NpySource() = default;

  absl::StatusOr<Set> OpenSet(const std::string& prefix, uint64_t sparse_columns) const;
  // Reads `rows` rows from `row` of the file on into *to.
  absl::Status ReadRows(File* file, uint64_t row, uint64_t rows, std::vector<char>* to);
  void CloseSet(Set* set);
  // Adds row `i` of the buffers, which is row `row` of the set.
  absl::Status AddRow(const Set& set, uint64_t row, uint64_t i, BatchBuilder* out, float* label) const;
  absl::Status AddIds(const Set& set, uint64_t row, uint64_t i, BatchBuilder* out) const;

  // Constant after Open.
  uint32_t dense_columns_ = 0;
  std::vector<uint32_t> bag_sizes_;  // For each feature.
  std::vector<FeatureShape> shapes_;
  std::vector<std::string> files_;
  StopCheck stop_;
  uint64_t rows_ = 0;

  std::vector<Set> sets_;
  size_t set_ = 0;    // The one that holds row_, or sets_.size().
  uint64_t row_ = 0;  // Next, of all rows.
  uint64_t bytes_read_ = 0;
  std::vector<char> labels_;
  std::vector<char> dense_;
  std::vector<char> sparse_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_NPY_SOURCE_H_
