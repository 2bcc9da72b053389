#include <iterator>

#include "absl/strings/str_cat.h"
#include "bench/sparrow_bench/kernel_bench.h"
#include "bench/sparrow_bench/kernels.h"

namespace sparrow::bench {
namespace {

// By position in kKernelFamilies.
void (*const kMeasures[])(KernelBench*) = {
    MeasureOptimizers,  MeasureNorm,           MeasureLossScale, MeasureCast,         MeasureActivations,
    MeasureInteraction, MeasureAnyInteraction, MeasureAttention, MeasureAnyAttention, MeasureCross,
    MeasureLastLayer,   MeasureTotals,         MeasureLayerNorm, MeasureGelu,         MeasureTokenEmbedding,
    MeasureSoftmaxLoss, MeasureProducts,       MeasureBags,      MeasureGroup,        MeasureUpdate,
    MeasureSums,        MeasureCache,          MeasureParcel,    MeasureReplica,      MeasureUnique};
static_assert(std::size(kMeasures) == std::size(kKernelFamilies));

constexpr uint64_t kMemoryBytes = uint64_t{12} << 30;

}  // namespace

absl::StatusOr<std::vector<Fields>> MeasureKernels(const std::string& only) {
  if (const std::string why = TryGpu(0); !why.empty()) return absl::UnavailableError(why);
  if (const GpuMemory memory = GpuMemoryNow(); memory.free < kMemoryBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("takes up to ", kMemoryBytes, " bytes of GPU memory, ",
                                                     memory.free, " of ", memory.total, " are free"));
  }
  KernelBench bench;
  for (size_t i = 0; i < std::size(kMeasures); ++i) {
    if (!only.empty() && only != kKernelFamilies[i].name) continue;
    bench.SetFamily(kKernelFamilies[i].name);
    kMeasures[i](&bench);
  }
  return bench.report();
}

}  // namespace sparrow::bench
