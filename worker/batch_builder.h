#ifndef SPARROW_WORKER_BATCH_BUILDER_H_
#define SPARROW_WORKER_BATCH_BUILDER_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sparrow/v1/job.pb.h"
#include "worker/batch.h"
#include "worker/dense_transform.h"

namespace sparrow {

// The id after FeatureConfig.modulo; 0: none. The missing id becomes 0, others 1 to modulo - 1.
inline uint64_t FoldId(uint64_t id, uint64_t modulo) {
  if (modulo == 0) return id;
  if (id == kMissingId || modulo == 1) return 0;
  const uint64_t divisor = modulo - 1;
  // A 32-bit division where it does: it is several times faster.
  if (((id | divisor) >> 32) == 0) return 1 + static_cast<uint32_t>(id) % static_cast<uint32_t>(divisor);
  return 1 + id % divisor;
}

// What the input gives a feature.
struct FeatureShape {
  bool bag = false;       // Any number of ids a row; false: exactly one.
  bool weighted = false;  // Each id has a weight.
};

struct BatchBuilderOptions {
  uint32_t dense_columns = 0;
  v1::DataConfig::DenseTransform dense_transform = v1::DataConfig::LOG1P;
  float missing_dense = 0;
  std::vector<v1::FeatureConfig> features;
  std::vector<FeatureShape> shapes;    // For each feature.
  std::vector<uint64_t> bounded_rows;  // For each feature, the rows of its table; 0: hashed. Empty: all hashed.
};

// Fills a Batch row by row: applies the dense transform, modulo and the bounds of tables, and takes a row back whole.
// Begin, then for each row StartRow, setters, and FinishRow or DropRow; then End. Or many rows at once, column by
// column and by several threads: AddRows, then what it says to write, and TakeBack of those that do not fit. Not
// thread-safe.
class BatchBuilder {
 public:
  explicit BatchBuilder(BatchBuilderOptions options);

  // Empties *batch, keeping its memory. `batch` outlives End.
  void Begin(Batch* batch);
  void StartRow() {
    if (!fits_) Fit();
    batch_->dense.resize(batch_->dense.size() + dense_columns_, missing_dense_);
  }
  // ResourceExhausted if a feature has more ids than a batch can index.
  absl::Status FinishRow(float label) {
    batch_->labels.push_back(label);
    ++batch_->rows;
    return bags_.empty() ? absl::OkStatus() : FinishBags();
  }
  void DropRow();
  void End();

  // Where rows that AddRows has added begin: in labels and dense, and for each feature in ids (and weights).
  struct Place {
    uint32_t row = 0;
    std::vector<uint64_t> id;  // [features]
  };
  // Adds rows with ids[f] ids of feature f, which is `rows` for one that is no bag. All of them are unspecified until
  // they are written: labels, dense (Transform), ids (FoldIds), weights, and offsets[row + 1 ... row + rows] of each
  // feature. ResourceExhausted, and none is added, as in FinishRow.
  absl::Status AddRows(uint32_t rows, std::span<const uint64_t> ids, Place* place);
  // Writes rows of another builder's batch, after its End, to their place. Thread-safe, at different places.
  void Write(const Batch& rows, const Place& place);
  // The last n rows are not there. REQUIRES: n of the rows that AddRows has added last.
  void TakeBack(uint32_t n) {
    batch_->rows -= n;
    fits_ = false;
  }
  Batch* batch() { return batch_; }

  // What SetDense does to each value. False: one of them is not finite, and what `to` has is unspecified. Thread-safe.
  bool Transform(std::span<const float> values, float* to) const;
  // What AddId does to each id. False: one of them is outside the feature's table. Thread-safe.
  bool FoldIds(uint32_t feature, std::span<uint64_t> ids) const;

  // `column` in [0, dense columns). A column that is not set is missing.
  void SetDense(uint32_t column, double value) {
    DenseRow()[column] = log1p_ ? (value > 0 ? Log1pOf(value) : 0.0f) : static_cast<float>(value);
  }
  void SetDenseInteger(uint32_t column, uint64_t value) {
    DenseRow()[column] = log1p_ ? Log1pOf(value, log1p_table_) : static_cast<float>(value);
  }

  // False: the id is outside the feature's table, and OutOfBounds says so; the row is to be dropped.
  bool AddId(uint32_t feature, uint64_t id) {
    const Rule& rule = rules_[feature];
    id = FoldId(id, rule.modulo);
    if (rule.bounded_rows != 0 && id >= rule.bounded_rows) return false;
    batch_->features[feature].ids.push_back(id);
    return true;
  }
  bool AddWeightedId(uint32_t feature, uint64_t id, float weight) {
    batch_->features[feature].weights.push_back(weight);
    return AddId(feature, id);
  }
  // 'id 10 of feature "user", whose table has 10 rows'; then what to do.
  std::string OutOfBounds(uint32_t feature, uint64_t id) const;

  const BatchBuilderOptions& options() const { return options_; }

 private:
  struct Rule {
    uint64_t modulo = 0;  // 0: none.
    uint64_t bounded_rows = 0;
  };

  // Cuts the batch's columns, which may be longer since AddRows or a batch before, to its rows.
  void Fit();
  float* DenseRow() { return batch_->dense.data() + batch_->dense.size() - dense_columns_; }
  absl::Status FinishBags();
  // That a batch can index so many ids of a feature.
  absl::Status CheckIds(size_t feature, uint64_t ids) const;

  const BatchBuilderOptions options_;
  const uint32_t dense_columns_;
  const float missing_dense_;
  const bool log1p_;
  const float* const log1p_table_;
  std::vector<Rule> rules_;     // Constant after construction.
  std::vector<uint32_t> bags_;  // Features that are bags; constant after construction.
  Batch* batch_ = nullptr;
  bool fits_ = true;
  uint32_t counted_rows_ = 0;  // Of these AddRows' caller has written the offsets of every feature.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_BATCH_BUILDER_H_
