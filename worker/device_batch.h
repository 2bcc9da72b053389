#ifndef SPARROW_WORKER_DEVICE_BATCH_H_
#define SPARROW_WORKER_DEVICE_BATCH_H_

// Batches and their rows in GPU memory, in the form that the kernels of embedding/ and dense/ read: one that is
// computed, and the next one, whose inputs are copied meanwhile.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/mirror.h"
#include "base/cuda/stream.h"
#include "base/parallel.h"
#include "base/task_pool.h"
#include "dense/device_matrix.h"
#include "embedding/bag_gpu.h"
#include "embedding/sparse_update_gpu.h"
#include "worker/job_layout.h"
#include "worker/prepared_batch.h"

namespace sparrow {

// Not thread-safe.
class DeviceBatch {
 public:
  // The features of one dimension, whose tables' rows lie in one array: those of the batch, one table after the other,
  // or records somewhere else, which look-ups find by slots (DeviceBatch::Place).
  struct Group {
    uint32_t dim = 0;
    uint32_t padded_dim = 0;  // Floats from one row to the next in `rows`: a multiple of 4.
    std::vector<uint32_t> tables;
    std::vector<uint32_t> features;  // Table by table.
    bool columns_ascend = true;      // The features' columns, in this order.
    bool columns_divide_by_4 = false;
    bool any_mean = false;   // Among the features' poolings.
    size_t lookups_max = 0;  // Of a batch.

    Mirror<uint32_t> columns = Mirror<uint32_t>::Empty();   // [features]
    Mirror<uint8_t> mean = Mirror<uint8_t>::Empty();        // [features]
    Mirror<uint32_t> table_of = Mirror<uint32_t>::Empty();  // [features]
    std::optional<DeviceRecords> records;                   // Where rows are placed, if they are.
    bool summed = false;  // Gradients of placed rows are summed by the row's number in the batch (Lookups::rows).
    // Of the batch in work:
    Mirror<float> rows = Mirror<float>::Empty();  // [unique, padded_dim], unless they are placed
    Mirror<float> sums = Mirror<float>::Empty();  // [size.slots, dim]: the gradients of rows
    DeviceBuffer<char> workspace = *DeviceBuffer<char>::Allocate(0);
    SparseUpdateSize size;  // For as many look-ups and rows as there is room for.

    DeviceWorkspace Workspace() { return {.data = workspace.data(), .bytes = workspace.size()}; }
  };

  // A group's part of an input.
  struct Lookups {
    uint32_t count = 0;
    std::vector<uint32_t> base = {0};  // [tables + 1]: where each table's rows begin; of placed ones, those whose sums
                                       // are fetched.
    Mirror<uint32_t> offsets = Mirror<uint32_t>::Empty();  // [features * rows + 1]
    size_t counted = 0;  // The first so many offsets are 0, 1, 2, ...: those of one-hot features, whatever the rows.
    Mirror<Key> keys = Mirror<Key>::Empty();             // [count], of placed rows.
    Mirror<uint32_t> index = Mirror<uint32_t>::Empty();  // [count]: slots. Those of placed rows are not copied.
    DeviceBuffer<uint32_t> rows = *DeviceBuffer<uint32_t>::Allocate(0);  // [count], if the group is summed
    Mirror<float> weights = Mirror<float>::Empty();                      // [count], if a feature has weights
  };

  // One batch. What lies behind its own rows counts for nothing: empty bags, dense inputs of 0.
  struct Input {
    int number = 0;        // Of the two.
    int64_t rows = 0;      // As which it is computed.
    bool one_hot = false;  // Each of these rows has one id of each feature, without a weight.
    Mirror<float> dense = Mirror<float>::Empty();
    Mirror<float> labels = Mirror<float>::Empty();
    Mirror<uint32_t> samples = Mirror<uint32_t>::Empty();  // [1]
    std::vector<Lookups> groups;
    Event loaded;
  };

  // ResourceExhausted. A group for each of table_groups, of equal dimensions. Layout and stream outlive it; the stream
  // is where batches are computed.
  static absl::StatusOr<std::unique_ptr<DeviceBatch>> Make(const JobLayout* layout,
                                                           const std::vector<std::vector<uint32_t>>& table_groups,
                                                           int64_t rows_max, const Stream* stream);
  // The tables of each dimension.
  static std::vector<std::vector<uint32_t>> GroupsByDim(const JobLayout& layout);

  // From now on the group's rows are these records, in slots below slots_end; batches bring keys, and someone else
  // (worker/hot_row_store_gpu.h) fills Lookups::index.
  void Place(size_t group, const DeviceRecords& records, uint32_t slots_end);

  // The same, and someone fills Lookups::rows too: with numbers below rows_max, those below the number of the batch's
  // rows all being met.
  void PlaceForSums(size_t group, const DeviceRecords& records, uint32_t rows_max);

  // Copies a batch, but for its rows, to the input that was not loaded last, and queues its way to the GPU on `copies`;
  // Input::loaded is its end. REQUIRES: prepared.batch.rows <= rows <= rows_max; whatever reads what that input held is
  // over.
  absl::Status Load(const PreparedBatch& prepared, int64_t rows, const Stream& copies);
  // Whether Load of this batch would allocate nothing. (What frees memory waits for all that the GPU has to do.)
  bool HasRoom(const PreparedBatch& prepared) const;
  // The one that was loaded last.
  Input& input() { return inputs_[last_]; }

  // Makes ready what batches share, once no other one is in work: room for the input loaded last.
  absl::Status MakeRoom(bool with_sums);
  absl::Status MakeRoomForRows();  // A part of it, which is enough for a batch without a backward.
  // Copies the rows of the batch, unless they are placed, to pinned memory; UploadRows queues their way to the GPU.
  // REQUIRES: the batch was loaded last; MakeRoomForRows.
  void FillRows(const PreparedBatch& prepared);
  void UploadRows();

  // Grows when memory has been allocated anew, so that what was recorded with addresses (base/cuda/graph.h) is void.
  uint64_t generation() const { return generation_; }
  std::vector<Group>& groups() { return groups_; }
  DeviceBags Bags(size_t group, const Input& input) const;
  // The same look-ups, as their gradients are summed.
  DeviceBags SumBags(size_t group, const Input& input) const;
  DeviceRows Rows(size_t group) const;
  // A group's part of all features' pooled vectors, or their gradients.
  DevicePooled Pooled(size_t group, const DeviceMatrix& vectors /*[rows, sparse columns]*/, Precision precision) const;
  // Queues the pooling of all groups on the stream.
  void Pool(const Input& input, const DeviceMatrix& vectors, Precision precision) const;

  // Queues the copies of the groups' sums to the host.
  void FetchSums();
  // A span for each table, [unique, dim], once the stream has passed FetchSums; valid until the next MakeRoom.
  std::span<const std::span<const float>> Sums(const Input& input);

 private:
  DeviceBatch(const JobLayout* layout, int64_t rows_max, const Stream* stream)
      : layout_(layout), rows_max_(rows_max), stream_(*stream), copiers_(std::clamp(Cores() / 4, 1, 8) - 1) {}

  absl::StatusOr<Group> MakeGroup(const std::vector<uint32_t>& tables) const;
  absl::Status MakeRoomForLookups(const PreparedBatch& prepared, const Group& group, Lookups* lookups);
  bool IsOneHot(const Batch& batch, int64_t rows) const;
  void CopyInput(const Batch& batch, Input* input);
  void LoadLookups(const PreparedBatch& prepared, const Input& input, const Group& group, Lookups* lookups,
                   const Stream& copies) const;
  void LoadOffsets(const Batch& batch, const Input& input, const Group& group, Lookups* lookups,
                   const Stream& copies) const;
  void LoadSlots(const PreparedBatch& prepared, const Group& group, Lookups* lookups, const Stream& copies) const;

  const JobLayout* const layout_;
  const int64_t rows_max_;
  const Stream& stream_;
  uint64_t generation_ = 0;
  std::vector<Group> groups_;
  std::array<Input, 2> inputs_;
  size_t last_ = 0;
  std::vector<std::span<const float>> sums_;  // [tables]
  // Few: beside these, others answer pulls and take pushes.
  TaskPool copiers_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_DEVICE_BATCH_H_
