#ifndef SPARROW_WORKER_PREPARED_BATCH_H_
#define SPARROW_WORKER_PREPARED_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "embedding/bag.h"
#include "embedding/dedup.h"
#include "worker/batch.h"
#include "worker/job_layout.h"
#include "worker/key_partition.h"
#include "worker/ps_client.h"

namespace sparrow {

// A batch made ready for its step: which rows it needs, each once, and where they live. Reusable.
struct PreparedBatch {
  Batch batch;
  std::vector<Dedup> tables;  // Unique keys of each table, over all features that read it.
  std::vector<std::vector<uint32_t>>
      index;  // [features][look-ups]: position of the look-up's key in partition.keys() of its table.
  KeyPartition partition;
  // Room for the rows of partition.keys(), where a pull puts them.
  std::vector<std::vector<float>> row_buffers;  // [tables]
  std::vector<std::span<float>> rows;           // [tables], each [unique, dim]

  // Views; valid until the batch changes.
  Bags bags(const JobLayout& layout, uint32_t feature) const;
};

// Fills everything but `batch` from it. InvalidArgument names the feature whose bags are malformed, or are not as many
// as the batch has rows.
// `before` has the keys of the batch before (KeyPartition::Build), or is null.
absl::Status PrepareBatch(const JobLayout& layout, const PsClient& client, const KeyFilter* before,
                          PreparedBatch* prepared);

// Checks the same of a batch whose rows are looked up by its ids themselves, and fills nothing.
absl::Status CheckBatch(const JobLayout& layout, const Batch& batch);

}  // namespace sparrow

#endif  // SPARROW_WORKER_PREPARED_BATCH_H_
