#ifndef SPARROW_BENCH_WORKER_TABLE_STEP_H_
#define SPARROW_BENCH_WORKER_TABLE_STEP_H_

// A training step of one of MLPerf's shapes with all tables in GPU memory: look-ups are sorted on a side stream beside
// the forward, the dense optimizer runs beside the sparse one. (gpu_step_bench.cc's rows are updated sooner, beside the
// bottom's backward.)

#include <cstdint>
#include <optional>
#include <string>

#include "base/cuda/stream.h"
#include "bench/worker/gpu_step_parts.h"

namespace sparrow {

struct TableStepOptions {
  std::string config;  // kStepDlrm or kStepDcnv2.
  StepTables tables;
  int64_t samples = 0;
  bool zipf = false;      // Ids by Zipf's law with exponent 1.05 in each table, else uniform.
  bool gathered = false;  // The interaction reads rows by itself; else a kernel pools them before.
  SparseOptimizer sparse;
  DenseRule dense;
  std::string plan_file;
};

class TableStep {
 public:
  explicit TableStep(const TableStepOptions& options);

  // Of batch number `batch` of kStepBatches.
  void Queue(int batch);

  const Stream& stream() const { return stream_; }  // What is queued there waits for what Queue has queued.
  const StepLookups& lookups() const { return lookups_; }
  const StepModel& model() const { return model_; }
  // Updates that were refused so far. Waits.
  uint64_t Refused() const;

 private:
  const TableStepOptions options_;
  const RowLayout layout_;
  const Stream stream_;
  const Stream side_;
  Event started_, grouped_, went_back_, dense_updated_;
  StepModel model_;
  StepLookups lookups_;
  const SparseUpdateSize size_;
  DeviceBuffer<char> records_;
  DeviceBuffer<char> workspace_;
  DeviceBuffer<SparseStep> sparse_step_;
  DeviceBuffer<uint64_t> refused_;
};

}  // namespace sparrow

#endif  // SPARROW_BENCH_WORKER_TABLE_STEP_H_
