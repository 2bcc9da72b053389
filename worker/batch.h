#ifndef SPARROW_WORKER_BATCH_H_
#define SPARROW_WORKER_BATCH_H_

#include <cstdint>
#include <vector>

namespace sparrow {

// The id of an empty value in a one-id categorical column: XXH64 of the empty string, seed 0. Its own value, like any
// other.
inline constexpr uint64_t kMissingId = 0xef46db3751d8e999u;

// One feature of a batch: bag i is ids[offsets[i]] to ids[offsets[i + 1] - 1].
struct SparseFeature {
  std::vector<uint32_t> offsets;  // [rows + 1]
  std::vector<uint64_t> ids;      // After FeatureConfig.modulo.
  std::vector<float> weights;     // As long as ids, or empty: all 1.
};

// One worker's part of a global batch.
struct Batch {
  uint64_t step = 0;   // Global batches since the start of the first epoch, from 0.
  uint64_t epoch = 0;  // From 0.
  bool last_in_epoch = false;
  uint64_t rows_in_epoch =
      0;  // Rows of this epoch in all global batches up to and including this one, skipped rows included.
  uint64_t global_rows = 0;             // Rows of the global batch over all workers, skipped rows included.
  uint64_t rows_read = 0;               // Rows of this worker's part, skipped ones included.
  uint32_t rows = 0;                    // Rows here; 0 is legal.
  std::vector<float> labels;            // [rows], 0 or 1; all 0 where DataSource.unlabelled is set
  std::vector<float> dense;             // [rows, dense columns], transformed
  std::vector<SparseFeature> features;  // In the job's order.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_BATCH_H_
