#include "bench/sparrow_bench/kernels.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/cuda/stream.h"
#include "base/status_macros.h"
#include "bench/sparrow_bench/commands.h"

namespace sparrow::bench {
namespace {

absl::Status Run(const std::string& only, const std::string& json) {
  ASSIGN_OR_RETURN(const std::vector<Fields> report, MeasureKernels(only));
  return WriteJson(report, json);
}

}  // namespace

int KernelsCommand(const Arguments& arguments) {
  std::string only, json;
  const std::vector<Option> options = {
      {"only", &only, "One family of kernels; \"\": all."},
      {"json", &json, "File for the report as JSON."},
  };
  std::string families;
  for (const KernelFamily& family : kKernelFamilies)
    absl::StrAppend(&families, family.name, ": ", family.summary, "\n");
  const Usage usage = {
      .program = "sparrow-bench kernels",
      .positional = "",
      .summary = absl::StrCat(
          "How near to its bound is each GPU kernel? A table in markdown: for every kernel the median of 25\n"
          "launches between events, caches flushed before each, and what that is of its bound. The bound is the\n"
          "larger of two times: the bytes that the kernel must move (inputs read once, outputs written once) at the\n"
          "rate of a copy of 2 GiB on the device, measured in the same run; and, of products, the operations at 787\n"
          "TFLOP/s, which a large bfloat16 product reaches on an H200 (tf32: at half of that, float32: at the peak\n"
          "outside tensor cores, 66.9). Beside it: of a copy of as many bytes, since what takes microseconds does not\n"
          "reach the rate of 2 GiB. Takes up to half a minute and 12 GB of GPU\n"
          "memory. Without a GPU it says so and ends with status 77.\n\nfamilies:\n\n",
          families),
      .examples = "  sparrow-bench kernels\n  sparrow-bench kernels --only products --json out.json\n"};
  if (const std::optional<int> status = ParseCommand(usage, options, arguments)) return *status;
  const bool known = std::any_of(std::begin(kKernelFamilies), std::end(kKernelFamilies),
                                 [&](const KernelFamily& family) { return only == family.name; });
  if (!only.empty() && !known) {
    std::fprintf(stderr, "sparrow-bench kernels: --only=%s: no such family; there are\n%s", only.c_str(),
                 families.c_str());
    return 2;
  }
  if (GpuCount() == 0) {
    std::fprintf(stderr, "sparrow-bench kernels: needs a GPU: %s\n", GpuAbsence().c_str());
    return kNoGpu;
  }
  const absl::Status status = Run(only, json);
  if (status.ok()) return 0;
  std::fprintf(stderr, "sparrow-bench kernels: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace sparrow::bench
