// NVML, loaded when it is asked. Its few functions are declared here, because its header is not in every toolkit.

#include "base/cuda/management.h"

#include <dlfcn.h>

namespace sparrow {
namespace {

using Device = struct nvmlDevice_st*;
struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};
constexpr int kSuccess = 0;

}  // namespace

std::optional<GpuMemory> ManagedGpuMemory(const std::string& address) {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);  // Stays, as it may have threads.
  if (library == nullptr) return std::nullopt;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  const auto find = reinterpret_cast<int (*)(const char*, Device*)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  const auto ask = reinterpret_cast<int (*)(Device, Memory*)>(dlsym(library, "nvmlDeviceGetMemoryInfo"));
  if (init == nullptr || shutdown == nullptr || find == nullptr || ask == nullptr) return std::nullopt;
  if (init() != kSuccess) return std::nullopt;
  Device device = nullptr;
  Memory memory = {};
  const bool known = find(address.c_str(), &device) == kSuccess && ask(device, &memory) == kSuccess;
  shutdown();
  if (!known) return std::nullopt;
  return GpuMemory{.total = memory.total, .free = memory.free};
}

}  // namespace sparrow
