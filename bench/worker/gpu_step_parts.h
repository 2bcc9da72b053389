#ifndef SPARROW_BENCH_WORKER_GPU_STEP_PARTS_H_
#define SPARROW_BENCH_WORKER_GPU_STEP_PARTS_H_

// What a benchmark of whole training steps on a GPU needs: a model with its inputs, look-ups of several batches,
// records.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "bench/support/gpu_timing.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/model_gpu.h"
#include "embedding/bag_gpu.h"
#include "embedding/row_layout.h"
#include "embedding/row_name.h"
#include "embedding/sparse_update_gpu.h"

namespace sparrow {

constexpr uint32_t kStepFeatures = 26;
constexpr uint32_t kStepDim = 128;
constexpr uint32_t kStepDense = 13;
constexpr int kStepBatches = 10;  // Of different look-ups.

// MLPerf's shapes, for StepModel.
inline constexpr char kStepDlrm[] =
    "dlrm { bottom: 512 bottom: 256 bottom: 128 top: 1024 top: 1024 top: 512 top: 256 top: 1 }";
inline constexpr char kStepDcnv2[] =
    "dcnv2 { bottom: 512 bottom: 256 bottom: 128 cross_layers: 3 cross_rank: 512 top: 1024 top: 1024 top: 512 "
    "top: 256 top: 1 }";

// A table a feature, and how many look-ups a sample has in each.
struct StepTables {
  std::vector<uint64_t> rows;
  std::vector<uint32_t> bags;

  // 26 of 1 M rows, one-hot.
  static StepTables Dlrm();
  // MLPerf's tables, of at most rows_max rows each, and its bags: 214 look-ups a sample.
  static StepTables Dcnv2(uint64_t rows_max);
  uint64_t total_rows() const;
};

// Random look-ups in all tables. A row's slot is its number in its table behind the rows of the tables before.
class StepLookups {
 public:
  // With as_names, index() is left for the caller to fill.
  StepLookups(const StepTables& tables, uint32_t samples, bool zipf, bool as_names, const Stream& stream);

  uint32_t lookups() const { return lookups_; }        // Of a batch.
  double unique_rows() const { return unique_rows_; }  // Of a batch, on the average.
  DeviceBags Bags(int batch) const;
  DeviceBuffer<uint32_t>& index(int batch) { return index_[static_cast<size_t>(batch)]; }
  DeviceNames Names(int batch) const;

 private:
  uint32_t samples_;
  uint32_t lookups_ = 0;
  double unique_rows_ = 0;
  std::vector<DeviceBuffer<uint32_t>> index_;
  std::vector<DeviceBuffer<RowName>> names_;
  std::optional<DeviceBuffer<uint32_t>> offsets_;
};

// Records with random weights and no update yet, which repeat after so many: row r's is that of r % kPatternRows.
constexpr uint32_t kPatternRows = 65536;
DeviceBuffer<char> RecordPattern(const RowLayout& layout, const Stream& stream);
// Waits. REQUIRES: room for the rows.
void FillWithPattern(const RowLayout& layout, uint64_t rows, DeviceBuffer<char>* memory, const Stream& stream);

// A bfloat16 model for one number of rows, and its inputs. Products have chosen their algorithms.
class StepModel {
 public:
  StepModel(const std::string& config, int64_t rows, const std::string& plan_file, const Stream& stream);

  // Initial weights, and an optimizer that has done nothing.
  void Reset(const DenseRule& rule, const Stream& stream);
  // Random vectors as the pooled ones.
  void GiveVectors(const Stream& stream);

  int64_t rows() const { return rows_; }
  double flops() const;                     // Of a step's products.
  double Loss(const Stream& stream) const;  // Of a sample, in the last step.

  ModelGpu* model() { return model_.get(); }
  ModelGpu::Batch Batch(const GatheredVectors* gathered);
  DevicePooled Pooled(const DeviceMatrix& vectors) const;
  void UpdateDense(const Stream& stream);

 private:
  int64_t rows_;
  std::unique_ptr<Model> host_;
  std::unique_ptr<ModelGpu> model_;
  std::optional<DenseOptimizerGpu> optimizer_;
  DeviceBuffer<float> dense_;
  DeviceBuffer<float> labels_;
  DeviceBuffer<uint32_t> samples_;
  DeviceBuffer<float> scale_;
  DeviceBuffer<DenseStepOptions> options_;
  DeviceBuffer<float> logits_;
  DeviceBuffer<double> loss_;
  DeviceBuffer<uint32_t> columns_;
};

}  // namespace sparrow

#endif  // SPARROW_BENCH_WORKER_GPU_STEP_PARTS_H_
