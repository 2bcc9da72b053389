#ifndef SPARROW_WORKER_GPU_RESERVE_H_
#define SPARROW_WORKER_GPU_RESERVE_H_

// GPU memory that a job takes without asking: kernels, which CUDA loads when they are first started, recorded steps,
// and what the libraries work in. Where those find none, nothing can be saved any more (base/cuda/launch.cuh), so it is
// looked at before.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda/allocate.h"

namespace sparrow {

// What is left free once a job has all it asks for.
inline constexpr uint64_t kGpuReserveBytes = uint64_t{512} << 20;
// What is free before a pass is computed or recorded for the first time: others use the GPU, too.
inline constexpr uint64_t kGpuRoomBytes = uint64_t{64} << 20;

// ResourceExhausted: less than the reserve is free; `why` says what has taken it ("train.hot_rows leave too little").
inline absl::Status CheckGpuReserve(absl::string_view why) {
  if (GpuMemoryNow().free >= kGpuReserveBytes) return absl::OkStatus();
  return GpuIsOutOfMemory(
      absl::StrCat(why, ": kernels, recorded steps and evaluation need ", kGpuReserveBytes, " bytes"));
}

// The same for a pass, `what`.
inline absl::Status CheckGpuRoom(absl::string_view what) {
  if (GpuMemoryNow().free >= kGpuRoomBytes) return absl::OkStatus();
  return GpuIsOutOfMemory(absl::StrCat(what, " needs ", kGpuRoomBytes, " bytes for kernels"));
}

}  // namespace sparrow

#endif  // SPARROW_WORKER_GPU_RESERVE_H_
