#ifndef SPARROW_BENCH_SPARROW_BENCH_ROOFLINE_H_
#define SPARROW_BENCH_SPARROW_BENCH_ROOFLINE_H_

// The arithmetic of `sparrow-bench step --profile`: from a trace of training steps to a table that holds each of their
// operations against its bound. Knows no GPU.

#include <cstdint>
#include <string>
#include <vector>

#include "base/cuda/kernel_trace.h"
#include "bench/sparrow_bench/report.h"

namespace sparrow::bench {

// What the GPU can do, measured. 0: is no bound.
struct RooflineBounds {
  double copy_bytes_per_second = 0;     // In GPU memory, read and written.
  double product_flops_per_second = 0;  // In the precision of the steps.
  double to_gpu_bytes_per_second = 0;   // Over the link, from pinned memory.
  double to_host_bytes_per_second = 0;
  double kernel_us = 0;  // The shortest kernel.
};

enum class RooflineBound { kNone, kCopy, kProduct, kLink, kKernel };
inline constexpr const char* kRooflineBoundNames[] = {"none", "copy", "product", "link", "kernel"};

// One operation of a step, or a copy or a fill outside of any: medians over the steps.
struct RooflineRow {
  std::string name;
  std::string functions;  // Of its kernels, without arguments, separated by ", ".
  bool known = true;      // False: a kernel that no operation claims.
  size_t launches = 0;    // Kernels, copies and fills, of a step.
  double begin_us = 0;    // From the step's begin.
  double us = 0;  // Of its launches together. Those that begin early (base/cuda/launch_early.cuh) wait meanwhile.
  double bytes = 0;
  double flops = 0;
  RooflineBound bound = RooflineBound::kNone;  // The one that takes longest:
  double bound_us = 0;
};

struct Roofline {
  std::vector<RooflineRow> rows;  // In the order in which they begin.
  size_t steps = 0;               // With these operations; others are left out.
  size_t steps_traced = 0;
  double step_us = 0;  // From the first begin to the last end.
  double busy_us = 0;  // In which something was at work.
  // Kernels that no operation claims, from the first step on, in steps or outside, and operations without a kernel,
  // copy or fill. Both are mistakes in what is said at a launch.
  std::vector<std::string> unclaimed;
  std::vector<std::string> without_work;

  double launches_us() const;  // The rows' together.
  double bound_us() const;
};

// distinct_rows: of a batch, for operations whose bytes depend on it; < 0: unknown, as many as there can be.
Roofline MakeRoofline(const Trace& trace, const RooflineBounds& bounds, double distinct_rows);

// A table in markdown, and below it the sums.
std::string RooflineText(const Roofline& roofline);

// For the report: an object for each row.
std::vector<Fields> RooflineFields(const std::string& name, const Roofline& roofline);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_ROOFLINE_H_
