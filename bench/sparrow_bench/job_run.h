#ifndef SPARROW_BENCH_SPARROW_BENCH_JOB_RUN_H_
#define SPARROW_BENCH_SPARROW_BENCH_JOB_RUN_H_

// What step and tiers are measured on: whole jobs on a cluster in this process, as `sparrowctl run` trains them.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/sparrow_bench/report.h"
#include "client/embedded_cluster.h"
#include "sparrow/v1/job.pb.h"
#include "worker/metrics.h"

namespace sparrow::bench {

// Steps of a run.
struct Window {
  uint64_t warm_up = 0;   // Not measured,
  uint64_t measured = 0;  // and after them.
};

// What the measured steps cost, and what they left.
struct RunFigures {
  double samples_per_second = 0;
  double rows_per_second = 0;  // Unique rows pulled, each step's;
  double rows_of_step = 0;     // of one, in the mean.
  double step_ms = 0;
  double step_p50_ms = 0;  // From one step's push to the next one's.
  double step_p99_ms = 0;
  double cpu_ms = 0;  // Of all threads of this process, a step: it depends least on what else the machine does.
  std::array<double, kStepParts> part_ms{};  // Of a step.
  double cold_reads_per_second = 0;
  double evictions_per_second = 0;
  double dram_hit_rate = 0;     // Of rows pulled and of rows pushed, those that were in DRAM.
  uint64_t rows = 0;            // In the tables.
  uint64_t table_bytes = 0;     // Of rows and index in DRAM.
  uint64_t resident_bytes = 0;  // The most that this process had.
  std::vector<double> losses;   // Of every step, those of the warm-up included.

  double part(StepPart part) const { return part_ms[static_cast<size_t>(part)]; }
};

// Trains window.warm_up + window.measured steps from the checkpoint `restore_from` (empty: from the beginning), with
// one worker and one server, and writes no checkpoint. Calls at_window once, when the warm-up is over, unless it is
// null. CHECKs that the job succeeds.
RunFigures RunJob(v1::Job job, EmbeddedClusterOptions cluster, const std::string& restore_from, const Window& window,
                  const std::function<void()>& at_window = nullptr);

// What the report says of such a run; the bound is left out. REQUIRES: the tables of `job` have one dim.
Measurement MeasurementOf(const std::string& name, const v1::Job& job, const EmbeddedClusterOptions& cluster,
                          const RunFigures& figures);

// The job file `name`.textproto of the directory `jobs`, set to read the click log `log` and to test nothing.
absl::StatusOr<v1::Job> LoadClickJob(const std::string& jobs, const std::string& name, const std::string& log);

// Divides the rows of each bounded table of a click job by `divisor`, and takes the ids as they are.
void ShrinkTables(uint64_t divisor, v1::Job* job);
// Rows of all tables. REQUIRES: they are bounded.
uint64_t RowsOf(const v1::Job& job);

// Writes a click log whose ids are drawn by Zipf's law with exponent 1.05 from the rows of each column's table, whose
// number a fixed bijection makes of the rank; labels and numbers are those of client/click_model.h. REQUIRES: a table
// for each column, in their order, bounded.
absl::Status WriteZipfLog(const v1::Job& job, uint64_t rows, const std::string& path);

// Writes a checkpoint of the job before its first step in which all rows of its tables exist. Returns its directory.
// `scratch` is an empty directory.
absl::StatusOr<std::string> WriteFullCheckpoint(const v1::Job& job, const std::string& scratch,
                                                const std::string& checkpoint_root);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_JOB_RUN_H_
