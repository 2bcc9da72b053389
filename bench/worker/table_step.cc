#include "bench/worker/table_step.h"

#include <vector>

#include "dense/interaction_gpu.h"

namespace sparrow {

TableStep::TableStep(const TableStepOptions& options)
    : options_(options),
      layout_(kStepDim, options.sparse.kind),
      model_(options.config, options.samples, options.plan_file, stream_),
      lookups_(options.tables, static_cast<uint32_t>(options.samples), options.zipf, /*as_names=*/false, stream_),
      size_{
          .lookups = lookups_.lookups(), .slots = static_cast<uint32_t>(options.tables.total_rows()), .dim = kStepDim},
      records_(Allocate<char>(options.tables.total_rows() * layout_.slot_bytes())),
      workspace_(Allocate<char>(SparseUpdateWorkspaceBytes(size_))),
      sparse_step_(Upload(
          std::vector<SparseStep>{
              {.gradient_scale = 1 / static_cast<double>(options.samples), .learning_rate_factor = 1, .step = 1}},
          stream_)),
      refused_(Upload(std::vector<uint64_t>(1), stream_)) {
  FillWithPattern(layout_, options.tables.total_rows(), &records_, stream_);
  model_.Reset(options.dense, stream_);
}

void TableStep::Queue(int batch) {
  const DeviceBags bags = lookups_.Bags(batch);
  const DeviceRecords records{records_.data(), layout_};
  const DeviceWorkspace workspace{workspace_.data(), workspace_.size()};
  started_.Record(stream_);
  side_.WaitFor(started_);
  GroupLookupsGpu(bags, size_, workspace, side_);
  grouped_.Record(side_);

  const GatheredVectors gathered{.records = records_.data(), .slot_bytes = layout_.slot_bytes(), .slots = bags.index};
  const ModelGpu::Batch inputs = model_.Batch(options_.gathered ? &gathered : nullptr);
  ModelGpu* const model = model_.model();
  if (!options_.gathered) {
    BagsForwardGpu(bags, records.Rows(), model_.Pooled(model->sparse(options_.samples)), stream_);
  }
  model->ForwardLoss(inputs, stream_);
  model->Backward(inputs, stream_);

  went_back_.Record(stream_);
  side_.WaitFor(went_back_);
  model_.UpdateDense(side_);
  dense_updated_.Record(side_);
  stream_.WaitFor(grouped_);
  SparseUpdateGpu(bags, size_, model_.Pooled(model->sparse_gradients(options_.samples)), options_.sparse,
                  sparse_step_.data(), records, refused_.data(), workspace, stream_);
  stream_.WaitFor(dense_updated_);
}

uint64_t TableStep::Refused() const { return Download(refused_.data(), 1, stream_)[0]; }

}  // namespace sparrow
