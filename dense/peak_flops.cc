#include "dense/peak_flops.h"

namespace sparrow {
namespace {

// TFLOP/s.
struct Peak {
  std::string_view name;
  double bits_16;
  double tf32;
  double float32;
};

// From the makers' data sheets. The first name that a GPU's begins with counts.
constexpr Peak kPeaks[] = {
    {"NVIDIA H200 NVL", 835.5, 417.5, 60}, {"NVIDIA H200", 989.5, 494.7, 66.9}, {"NVIDIA H100 PCIe", 756, 378, 51},
    {"NVIDIA H100 NVL", 835.5, 417.5, 60}, {"NVIDIA H100", 989.5, 494.7, 66.9}, {"NVIDIA A100", 312, 156, 19.5},
};

}  // namespace

double PeakFlops(std::string_view gpu, Precision precision) {
  if (gpu.find(" MIG ") != std::string_view::npos) return 0;  // A part of one.
  for (const Peak& peak : kPeaks) {
    if (!gpu.starts_with(peak.name)) continue;
    if (ElementBytes(precision) == 2) return peak.bits_16 * 1e12;
    return (precision == Precision::kTf32 ? peak.tf32 : peak.float32) * 1e12;
  }
  return 0;
}

}  // namespace sparrow
