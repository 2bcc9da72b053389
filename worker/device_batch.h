#ifndef SPARROW_WORKER_DEVICE_BATCH_H_
#define SPARROW_WORKER_DEVICE_BATCH_H_

// A batch and its rows in GPU memory, in the form that the kernels of embedding/ and dense/ read.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/mirror.h"
#include "base/cuda/stream.h"
#include "embedding/bag_gpu.h"
#include "embedding/sparse_update_gpu.h"
#include "worker/job_layout.h"
#include "worker/prepared_batch.h"

namespace sparrow {

// Not thread-safe; its copies belong to one stream.
class DeviceBatch {
 public:
  // Rows of a group that lie in GPU memory already: in slots of an array of records.
  struct Placed {
    DeviceRecords records;
    uint32_t slots_end = 0;           // All slots are below it.
    std::span<const uint32_t> slots;  // [unique]: of the rows of the group's tables, one table after the other.
  };

  // The features of one dimension, whose tables' rows lie in one array: those of tables[i] from row base[i] on.
  struct Group {
    uint32_t dim = 0;
    uint32_t padded_dim = 0;  // Floats from one row to the next in `rows`: a multiple of 4.
    std::vector<uint32_t> tables;
    std::vector<uint32_t> base;  // [tables + 1]
    std::vector<uint32_t> features;
    bool columns_divide_by_4 = false;

    Mirror<uint32_t> columns;  // [features]
    Mirror<uint8_t> mean;      // [features]
    Mirror<uint32_t> offsets;  // [features * rows_max + 1]
    Mirror<uint32_t> index;    // [lookups]
    Mirror<float> weights;     // [lookups], if a feature has weights
    Mirror<float> rows;        // [unique, padded_dim], unless they are placed
    Mirror<float> sums;        // [unique, dim]: the gradients of rows
    DeviceBuffer<char> workspace;
    DeviceRows source;      // Of the batch loaded last: `rows`, or where they are placed.
    SparseUpdateSize size;  // For as many look-ups and rows as there is room for.
  };

  // ResourceExhausted. A group for each of table_groups, of equal dimensions. The layout outlives it.
  static absl::StatusOr<DeviceBatch> Make(const JobLayout* layout,
                                          const std::vector<std::vector<uint32_t>>& table_groups, int64_t rows_max,
                                          const Stream& stream);
  // The tables of each dimension.
  static std::vector<std::vector<uint32_t>> GroupsByDim(const JobLayout& layout);

  // Queues the copies of a batch to the GPU, as `rows` rows: those behind the batch's own have empty bags, and dense
  // inputs of 0. Its rows are copied too, unless they are placed. Waits for earlier copies.
  // REQUIRES: prepared.batch.rows <= rows <= rows_max.
  absl::Status Load(const PreparedBatch& prepared, int64_t rows, std::span<const Placed> placed /*[groups], or empty*/,
                    const Stream& stream);

  // Grows when memory has been allocated anew, so that what was recorded with addresses (base/cuda/graph.h) is void.
  uint64_t generation() const { return generation_; }

  const float* dense() const { return dense_.device.data(); }
  const float* labels() const { return labels_.device.data(); }
  const uint32_t* samples() const { return samples_.device.data(); }
  std::vector<Group>& groups() { return groups_; }

  // Of the batch loaded last.
  DeviceBags Bags(const Group& group, int64_t rows) const;
  // Room for the groups' sums. REQUIRES: Load.
  absl::Status MakeRoomForSums();
  // Queues the copies of the groups' sums to the host.
  void FetchSums(const Stream& stream);
  // A span for each table, [unique, dim], once the stream has passed FetchSums; valid until the next Load.
  std::span<const std::span<const float>> Sums();

 private:
  DeviceBatch(const JobLayout* layout, int64_t rows_max, Mirror<float> dense, Mirror<float> labels,
              Mirror<uint32_t> samples)
      : layout_(layout),
        rows_max_(rows_max),
        dense_(std::move(dense)),
        labels_(std::move(labels)),
        samples_(std::move(samples)) {}

  absl::StatusOr<Group> MakeGroup(const std::vector<uint32_t>& tables, const Stream& stream) const;
  // placed: null, or where the group's rows are.
  absl::Status MakeRoom(const PreparedBatch& prepared, const Placed* placed, Group* group);
  void LoadGroup(const PreparedBatch& prepared, int64_t rows, const Placed* placed, Group* group, const Stream& stream);

  const JobLayout* layout_;
  int64_t rows_max_;
  uint64_t generation_ = 0;
  Mirror<float> dense_;
  Mirror<float> labels_;
  Mirror<uint32_t> samples_;
  std::vector<Group> groups_;
  std::vector<std::span<const float>> sums_;  // [tables]
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_DEVICE_BATCH_H_
