// What base/cuda/stream.h says of GPUs where a build has no CUDA.

#include "base/check.h"
#include "base/cuda/stream.h"

namespace sparrow {

int GpuCount() { return 0; }
std::string GpuAbsence() { return "this build of Sparrow has no CUDA"; }
std::string TryGpu(int) { return GpuAbsence(); }
int CurrentGpu() { return 0; }
void UseGpu(int gpu) { CHECK(false) << "GPU " << gpu << " in a build without CUDA"; }

}  // namespace sparrow
