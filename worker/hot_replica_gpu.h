#ifndef SPARROW_WORKER_HOT_REPLICA_GPU_H_
#define SPARROW_WORKER_HOT_REPLICA_GPU_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "dense/device_collective.h"
#include "worker/device_batch.h"
#include "worker/hot_replica.h"
#include "worker/hot_row_store.h"
#include "worker/job_layout.h"

namespace sparrow {

// Records and their index in GPU memory; what rows are held, the host's sets say. A batch is looked up beside the one
// that computes (as in worker/hot_row_store_gpu.h), and its rows are numbered, the held ones first: so the sums of
// their gradients lie together. Per step, every GPU gathers all members' slots and sums, [members, the most that one
// has, dim], sorts them by slot, and updates each row once by the sum in the order of ranks, in the pass of
// embedding/sparse_update_gpu.h. That is (members - 1) * rows * (4 dim + 4) bytes over the link for each GPU; a dense
// sum of all held rows' gradients would be less only where a batch uses more than half of them. Cold rows lie behind
// the held ones for the step, and their sums go to the host.
//
// What changes records is queued on a stream of its own, and Place lets the next batch wait for it.
struct GpuHotReplicaParts {  // All outlive the replica.
  const JobLayout* layout;
  std::span<const HotRowShare> shares;
  std::span<const TableSpec> tables;
  int64_t samples_max;       // Of a batch of any member.
  DeviceBatch* batch;        // A group for each share, whose rows are placed here. Look is for its input().
  const Stream* compute;     // Where batches are computed.
  const Stream* beside;      // Where the batch's inputs are copied.
  const Event* rows_summed;  // Once the sums of rows in DeviceBatch::Group::sums are there, of the batch started last.
  // Begins the sums of dense gradients, behind those of rows, since the collective makes one after the other and rows
  // take longer. Null: they have begun.
  std::function<absl::Status()> start_sums;
  DeviceCollective* collective;
};

// ResourceExhausted: the memory of the GPU.
absl::StatusOr<std::unique_ptr<HotReplica>> MakeGpuHotReplica(const GpuHotReplicaParts& parts);

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_REPLICA_GPU_H_
