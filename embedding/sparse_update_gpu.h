#ifndef SPARROW_EMBEDDING_SPARSE_UPDATE_GPU_H_
#define SPARROW_EMBEDDING_SPARSE_UPDATE_GPU_H_

// The CUDA half of embedding/sparse_update.h, for row records in GPU memory. Needs CUDA and base/cuda only.
//
// GroupLookupsGpu sorts a batch's look-ups by row; it needs no gradient, so it can run beside the forward.
// SparseUpdateGpu then sums the gradients of each row and updates it, reading and writing it once; or SumGradientsGpu
// makes the sums alone, the same bits, for rows whose optimizer runs elsewhere. None allocates or waits, so all can be
// captured in a CUDA graph; what changes from step to step lies in GPU memory.
//
// Deterministic: no float atomics. Up to 64 look-ups of a row are summed in the order of the CPU half; more of them in
// runs of 64, whose sums are then added in an order that depends on their number alone. So a row's bits depend on its
// own look-ups, not on its slot or on what else is in the batch. They equal the CPU half's where the sums do.

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "embedding/bag_gpu.h"
#include "embedding/optimizer.h"
#include "embedding/row_layout.h"

namespace sparrow {

// embedding/apply.h ApplyOptions, read from GPU memory when the update runs.
struct SparseStep {
  double gradient_scale = 1;
  double learning_rate_factor = 1;
  uint64_t step = 0;
};

constexpr uint32_t kSparseUpdateDimMax = 4096;

// What a workspace is for. A batch may have fewer look-ups than `lookups`: those behind the last bag's are passed over.
// That is how one CUDA graph serves batches of several sizes.
struct SparseUpdateSize {
  uint32_t lookups = 0;  // Below 2^31.
  uint32_t slots = 0;    // Rows in the array of records; below 2^32 - 1.
  uint32_t dim = 0;
};

// An array of records in GPU memory, each in a slot of layout.slot_bytes().
struct DeviceRecords {
  char* data = nullptr;  // At a multiple of 16.
  RowLayout layout;      // Of float32 storage.

  DeviceRows Rows() const { return {data, layout.slot_bytes(), layout.dim()}; }
};

// GPU memory for the calls below to work in, at a multiple of 256. They leave nothing there for the next batch.
struct DeviceWorkspace {
  void* data = nullptr;
  size_t bytes = 0;  // At least SparseUpdateWorkspaceBytes.
};
size_t SparseUpdateWorkspaceBytes(const SparseUpdateSize& size);

// bags.index are slots. Queued on `queue`.
void GroupLookupsGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DeviceWorkspace& workspace,
                     const Stream& queue);

// As SparseUpdateCpu. `gradients`, of any type, are those of the pooled output. *refused_rows grows by the rows that
// are left as they are, because their sum times the scale is NaN or above kGradientMax in an element. REQUIRES:
// GroupLookupsGpu of the same bags, size and workspace has run or is queued before, for this call alone.
void SparseUpdateGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DevicePooled& gradients,
                     const SparseOptimizer& optimizer, const SparseStep* step /*in GPU memory*/,
                     const DeviceRecords& records, uint64_t* refused_rows /*in GPU memory*/,
                     const DeviceWorkspace& workspace, const Stream& queue);

// As SumGradientsCpu: sums[s] is the sum that SparseUpdateGpu would update row s by, not scaled; 0 where no look-up
// reads the row. *not_finite_rows grows by the rows whose sums are not finite.
// REQUIRES: as SparseUpdateGpu.
void SumGradientsGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DevicePooled& gradients,
                     float* sums /*[size.slots, size.dim] in GPU memory*/, uint64_t* not_finite_rows /*in GPU memory*/,
                     const DeviceWorkspace& workspace, const Stream& queue);

// The same, but where no look-up reads a row, its sum stays as it is: for slots of which the first ones are all read.
void SumReadGradientsGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DevicePooled& gradients,
                         float* sums /*[size.slots, size.dim] in GPU memory*/,
                         uint64_t* not_finite_rows /*in GPU memory*/, const DeviceWorkspace& workspace,
                         const Stream& queue);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_SPARSE_UPDATE_GPU_H_
