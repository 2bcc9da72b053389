#ifndef SPARROW_BASE_CUDA_MANAGEMENT_H_
#define SPARROW_BASE_CUDA_MANAGEMENT_H_

#include <optional>
#include <string>

#include "base/cuda/stream.h"

namespace sparrow {

// The memory of a GPU as the driver's management library (NVML) knows it, also where this process cannot use the GPU,
// since that library takes no memory there. `address` is on the PCI bus ("0000:3b:00.0"). nullopt: the library is not
// there, or does not say.
std::optional<GpuMemory> ManagedGpuMemory(const std::string& address);

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_MANAGEMENT_H_
