#ifndef SPARROW_EMBEDDING_APPLY_H_
#define SPARROW_EMBEDDING_APPLY_H_

// Making and updating whole records (embedding/row_layout.h): what every table of the CPU does with a row. Compiled
// once and without fused multiply-add, so a row's bits depend on its updates alone, not on the tier it was in.

#include <atomic>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "embedding/table_spec.h"

namespace sparrow {

struct ApplyOptions {
  double gradient_scale = 1;        // The gradient is multiplied by this.
  double learning_rate_factor = 1;  // The learning rate is multiplied by this. Not negative.
  uint64_t step = 0;                // Kept as the row's last step.
};

// InvalidArgument, naming table, key and column, if a gradient times `scale` is NaN or above kGradientMax in magnitude.
absl::Status CheckGradients(const TableSpec& spec, std::span<const Key> keys /*[n]*/,
                            std::span<const float> gradients /*[n, dim]*/, double scale);

// The weights of a record of any storage, as floats. `record`, here and below, is aligned to 4.
void LoadWeights(const RowLayout& layout, const char* record, float* weights /*[dim]*/);

// The weights of a row that is not there: what LoadWeights gives after InitRowCpu.
void LoadInitialWeights(const TableSpec& spec, Key key, float* weights /*[dim]*/);

// Initial weights, the optimizer's initial state, metadata of no update. `record` is spec.Layout().record_bytes() long.
// Returns how many weights the storage's range did not hold.
uint64_t InitRowCpu(const TableSpec& spec, Key key, char* record);

// What one batch does to each of its rows: made once a batch, so that nothing is chosen or converted a row. Weights are
// updated in float32 and, where the storage is a 16-bit type, rounded stochastically (embedding/row_codec.h).
// Immutable, so threads may share it. `spec` outlives it.
class RowUpdate {
 public:
  RowUpdate(const TableSpec& spec, const ApplyOptions& options);

  // One update of the row of `key`, counted in its metadata. Returns how many of the new weights the storage's range
  // did not hold.
  uint64_t operator()(Key key, const float* gradient /*[dim]*/, char* record) const {
    return update_(*this, key, gradient, record);
  }

 private:
  using Update = uint64_t (*)(const RowUpdate&, Key, const float*, char*);

  template <SparseOptimizerKind kKind>
  static uint64_t UpdateOfKind(const RowUpdate& batch, Key key, const float* gradient, char* record);
  static Update Choose(SparseOptimizerKind kind);

  const TableSpec& spec_;
  const RowLayout layout_;
  const uint64_t step_;
  const RowStep row_step_;  // But for the row's updates.
  const Update update_;
};

// How many weights of a table were out of range. Thread-safe.
class SaturationCount {
 public:
  void Add(uint64_t weights) {
    if (weights != 0) weights_.fetch_add(weights, std::memory_order_relaxed);
  }
  uint64_t value() const { return weights_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> weights_{0};  // Relaxed: a count.
};

// MeanSquare (embedding/optimizer.h), bit for bit, in vectors.
double MeanSquareSimd(const float* gradient, uint32_t dim, float scale);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_APPLY_H_
