#ifndef SPARROW_BENCH_SPARROW_BENCH_STEP_PROFILE_H_
#define SPARROW_BENCH_SPARROW_BENCH_STEP_PROFILE_H_

// What `sparrow-bench step --profile` measures. The measuring half is step_profile_gpu.cc, or step_profile_absent.cc in
// a build without CUDA.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/sparrow_bench/report.h"

namespace sparrow::bench {

struct StepProfileFlags {
  std::string of = "dlrm";  // "dlrm", "dcnv2", a name of deploy/jobs, or a job file.
  std::string jobs;         // Directory of deploy/jobs.
  std::string data_root;    // Of a job file.
  int64_t batch_size = 0;   // 0: 65,536 of DLRM, 8,192 of DCNv2, a job's own.
  bool zipf = false;
  int64_t warm_up_steps = 50;  // Of a job.
  int64_t steps = 20;
  bool smoke = false;
};

// Prints the report. Internal: what launches say of themselves and what ran are not the same. REQUIRES: GpuCount() > 0.
absl::StatusOr<std::vector<Fields>> ProfileStep(const StepProfileFlags& flags);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_STEP_PROFILE_H_
