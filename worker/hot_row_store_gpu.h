#ifndef SPARROW_WORKER_HOT_ROW_STORE_GPU_H_
#define SPARROW_WORKER_HOT_ROW_STORE_GPU_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "embedding/optimizer.h"
#include "embedding/sparse_update_gpu.h"
#include "worker/device_batch.h"
#include "worker/hot_row_store.h"
#include "worker/job_layout.h"

namespace sparrow {

// What a store on a GPU needs of the trainer there, which has the gradients.
class DeviceRowUser {
 public:
  virtual ~DeviceRowUser() = default;

  // Queues, on the stream that the store was made with, the update of the rows that the batch in work has in this
  // share. *refused grows by rows that stay as they are because a gradient is not finite.
  virtual void UpdateRows(size_t share, const SparseOptimizer& optimizer, const SparseStep* step /*in GPU memory*/,
                          uint64_t* refused /*[1] in GPU memory*/) = 0;
  // What these gradients are multiplied by, which `step` is to divide by.
  virtual double gradients_scale() const = 0;
};

// Rows in GPU memory.
class HotRowStoreGpu : public HotRowStore {
 public:
  // All outlive the store. samples_max: of a batch.
  struct Parts {
    const JobLayout* layout;
    std::span<const HotRowShare> shares;
    std::span<const TableSpec> tables;
    int64_t samples_max;
    DeviceRowUser* user;
    const Stream* stream;
  };
  // ResourceExhausted: the memory of the GPU.
  static absl::StatusOr<std::unique_ptr<HotRowStoreGpu>> Make(const Parts& parts);

  // Where the rows of the batch lie that Ready has had last, a share each.
  virtual std::span<const DeviceBatch::Placed> placed() const = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_ROW_STORE_GPU_H_
