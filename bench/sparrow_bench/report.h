#ifndef SPARROW_BENCH_SPARROW_BENCH_REPORT_H_
#define SPARROW_BENCH_SPARROW_BENCH_REPORT_H_

// What every subcommand of sparrow-bench reports, and how.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace sparrow::bench {

inline constexpr const char* kWireNames[] = {"fp32", "bf16", "fp16", "int8"};  // By RowType.

// One measurement beside its bound, which is measured in the same run: what every command tells of each.
struct Measurement {
  std::string name = "";       // "pull", "push", "pull_in_process"
  std::string transport = "";  // "tcp", "unix", "direct"
  std::string wire = "";       // "fp32", "bf16", "fp16", "int8"
  uint64_t keys = 0;           // Unique rows of one call, or of a training step in the mean.
  uint64_t dim = 0;
  uint64_t servers = 0;
  uint64_t workers = 0;
  double rows_per_second = 0;
  double p50_ms = 0;  // Of the time of a call, or of a step.
  double p99_ms = 0;
  std::string bound = "";  // Its name.
  double bound_rows_per_second = 0;
  std::string checksum = "";  // Of the rows, or of the losses, in hexadecimal; equal ones give equal ones.
};

// Prints a line of the table, under a heading if it is the first.
void PrintMeasurement(const Measurement& measurement, bool first);

// A checksum as it is reported.
std::string HexChecksum(uint64_t checksum);

// The fields of one object of the report, in their order. The first is "name"; "bound" is what the measurement is held
// against, and a field "bound_..." its figure.
using Fields = std::vector<std::pair<std::string, std::variant<std::string, uint64_t, double, bool>>>;

// Those of a measurement, to which commands add their own.
Fields FieldsOf(const Measurement& measurement);

// A list of objects, one a measurement. Nothing if the path is empty.
absl::Status WriteJson(const std::vector<Fields>& objects, const std::string& path);

// The middle, and what one in a hundred exceeds. REQUIRES: not empty.
double Percentile(std::vector<double> values, double share);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_REPORT_H_
