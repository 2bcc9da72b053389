#ifndef SPARROW_BENCH_SPARROW_BENCH_KERNEL_BENCH_H_
#define SPARROW_BENCH_SPARROW_BENCH_KERNEL_BENCH_H_

// Times kernels beside their bounds, for `sparrow-bench kernels`.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "bench/sparrow_bench/report.h"
#include "bench/support/gpu_timing.h"

namespace sparrow::bench {

// A kernel, or some that are called together.
struct KernelCall {
  std::string name = "";
  // The kernels of ours that it launches, as "FirstKernel UniqueKernel": tests/tidy_test.cc wants each of the tree
  // named in some call.
  const char* kernels = "";
  const char* type = "fp32";  // Of most of what it moves, or of the rows that names and slots stand for.
  uint64_t rows = 0;          // Elements, samples, look-ups or names.
  uint64_t dim = 1;           // Columns of a row.
  double bytes = 0;           // That it must move: each input once, each output once.
  double flops = 0;           // Of products, else 0.
  double flops_per_second = kBfloat16ProductFlops;  // At most, with such operands.
  std::function<void()> before = nullptr;           // Queued untimed before each run; may be nullptr.
  std::function<void()> run = nullptr;
  const void* result = nullptr;  // In GPU memory: what the checksum is of.
  size_t result_bytes = 0;
};

class KernelBench {
 public:
  static constexpr int kRuns = 25;
  static constexpr int kCalls = kRuns + 5;  // Time warms up with five.

  // Measures the copy and prints the table's heading. REQUIRES: GpuCount() > 0.
  KernelBench();

  const Stream& stream() const { return stream_; }
  // Of the kernels that follow.
  void SetFamily(const std::string& family) { family_ = family; }
  // Prints a line and adds an object to the report.
  void Measure(const KernelCall& call);

  const std::vector<Fields>& report() const { return report_; }

 private:
  // Bytes a second, read and written, of a copy that moves `bytes`.
  double RateOfLikeCopy(double bytes);

  const Stream stream_;
  DeviceBuffer<char> flush_;
  DeviceBuffer<char> from_;
  DeviceBuffer<char> to_;
  std::map<size_t, double> like_rates_;  // By bytes copied.
  double copy_rate_ = 0;                 // Bytes a second, read and written.
  std::string family_;
  std::vector<Fields> report_;
};

// The families (bench/sparrow_bench/kernels.h). Each frees what it has allocated.
void MeasureOptimizers(KernelBench* bench);
void MeasureNorm(KernelBench* bench);
void MeasureLossScale(KernelBench* bench);
void MeasureCast(KernelBench* bench);
void MeasureActivations(KernelBench* bench);
void MeasureInteraction(KernelBench* bench);
void MeasureAnyInteraction(KernelBench* bench);
void MeasureAttention(KernelBench* bench);
void MeasureAnyAttention(KernelBench* bench);
void MeasureCross(KernelBench* bench);
void MeasureLastLayer(KernelBench* bench);
void MeasureTotals(KernelBench* bench);
void MeasureLayerNorm(KernelBench* bench);
void MeasureGelu(KernelBench* bench);
void MeasureTokenEmbedding(KernelBench* bench);
void MeasureSoftmaxLoss(KernelBench* bench);
void MeasureProducts(KernelBench* bench);
void MeasureBags(KernelBench* bench);
void MeasureGroup(KernelBench* bench);
void MeasureUpdate(KernelBench* bench);
void MeasureSums(KernelBench* bench);
void MeasureCache(KernelBench* bench);
void MeasureParcel(KernelBench* bench);
void MeasureReplica(KernelBench* bench);
void MeasureUnique(KernelBench* bench);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_KERNEL_BENCH_H_
