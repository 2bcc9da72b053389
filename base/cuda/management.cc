// NVML, loaded when it is asked. Its few functions are declared here, because its header is not in every toolkit.

#include "base/cuda/management.h"

#include "base/dynamic_library.h"

namespace sparrow {
namespace {

using Device = struct nvmlDevice_st*;
struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};
constexpr int kSuccess = 0;
constexpr const char* kFunctions[] = {"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetHandleByPciBusId_v2",
                                      "nvmlDeviceGetMemoryInfo"};

}  // namespace

std::optional<GpuMemory> ManagedGpuMemory(const std::string& address) {
  static const auto* const library = new DynamicLibrary("libnvidia-ml.so.1", kFunctions);
  if (!library->absence().empty()) return std::nullopt;
  const auto init = library->Symbol<int()>("nvmlInit_v2");
  const auto shutdown = library->Symbol<int()>("nvmlShutdown");
  const auto find = library->Symbol<int(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2");
  const auto ask = library->Symbol<int(Device, Memory*)>("nvmlDeviceGetMemoryInfo");
  if (init() != kSuccess) return std::nullopt;
  Device device = nullptr;
  Memory memory = {};
  const bool known = find(address.c_str(), &device) == kSuccess && ask(device, &memory) == kSuccess;
  shutdown();
  if (!known) return std::nullopt;
  return GpuMemory{.total = memory.total, .free = memory.free};
}

}  // namespace sparrow
