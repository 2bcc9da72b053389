#include <cuda_runtime.h>
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/cuda/device_buffer.h"
#include "base/cuda/launch.cuh"
#include "base/cuda/management.h"
#include "base/cuda/pinned_buffer.h"
#include "base/cuda/stream.h"

namespace sparrow {
namespace {

constexpr size_t kContextBytes = size_t{525} << 20;  // Before anything is allocated; measured on an H200.

// "11.8" of 11080.
std::string CudaVersion(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// What the runtime says of a driver that is not there and of one that is too old is the same.
std::string Explain(cudaError_t error) {
  if (error != cudaErrorInsufficientDriver) return cudaGetErrorString(error);
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "no NVIDIA driver is installed";
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) return cudaGetErrorString(error);
  return "the NVIDIA driver is too old: it knows CUDA up to " + CudaVersion(driver) +
         ", and this build of Sparrow needs " + CudaVersion(runtime);
}

}  // namespace

std::string CudaTrouble(cudaError_t error) {
  std::string text = std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
  GpuMemory memory;
  if (cudaMemGetInfo(&memory.free, &memory.total) == cudaSuccess) {
    text +=
        "; " + std::to_string(memory.free) + " of " + std::to_string(memory.total) + " bytes of GPU memory are free";
  }
  return text;
}

void internal::CheckLaunched(const void* kernel, int64_t grid, int block) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  std::string name = "a kernel without a name";
  if (const char* mangled = nullptr; cudaFuncGetName(&mangled, kernel) == cudaSuccess) {
    char* const readable = abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr);
    name = readable != nullptr ? readable : mangled;
    std::free(readable);
  }
  CHECK(false) << "launch of " << name << " with " << grid << " blocks of " << block << ": " << CudaTrouble(error);
}

int GpuCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // No driver or no GPU is an answer, not an error that a later call should find.
    return 0;
  }
  return count;
}

std::string GpuAbsence() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count > 0 ? "" : "no GPU";
  cudaGetLastError();
  return Explain(error);
}

void UseGpu(int gpu) { CHECK_CUDA(cudaSetDevice(gpu)); }

std::string TryGpu(int gpu) {
  cudaError_t error = cudaSetDevice(gpu);
  if (error == cudaSuccess) error = cudaFree(nullptr);  // Makes the context, which is what can fail.
  if (error != cudaSuccess) {
    cudaGetLastError();
    std::string why = Explain(error);
    char address[32];
    if (error != cudaErrorMemoryAllocation || cudaDeviceGetPCIBusId(address, sizeof(address), gpu) != cudaSuccess) {
      return why;
    }
    const std::optional<GpuMemory> memory = ManagedGpuMemory(address);
    why += "; a process needs some " + std::to_string(kContextBytes) + " bytes to begin with";
    if (memory.has_value()) {
      why += ", " + std::to_string(memory->free) + " of " + std::to_string(memory->total) + " are free";
    }
    return why;
  }
  int major = 0;
  CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu));
  constexpr int kMajorMin = 9;  // cmake/Dependencies.cmake compiles for 9.0 and later.
  if (major >= kMajorMin) return "";
  return "its compute capability is " + std::to_string(major) + ".x, and this build needs " +
         std::to_string(kMajorMin) + ".0 or later";
}

GpuMemory GpuMemoryNow() {
  GpuMemory memory;
  CHECK_CUDA(cudaMemGetInfo(&memory.free, &memory.total));
  return memory;
}

std::string GpuName() {
  cudaDeviceProp properties;
  int device = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
  return std::string(properties.name) + ", compute capability " + std::to_string(properties.major) + "." +
         std::to_string(properties.minor);
}

std::string GpuUuid() {
  cudaDeviceProp properties;
  int device = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
  std::string digits;
  for (const char byte : properties.uuid.bytes) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned char>(byte));
    digits += two;
  }
  return digits;
}

Stream::Stream(Turn turn) {
  int last = 0, first = 0;  // Lower numbers come first.
  CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&last, &first));
  CHECK_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, turn == Turn::kFirst ? first : last));
}

Stream::~Stream() {
  if (cudaStreamDestroy(stream_) != cudaSuccess) std::fprintf(stderr, "a CUDA stream could not be destroyed\n");
}

void Stream::Synchronize() const { CHECK_CUDA(cudaStreamSynchronize(stream_)); }

void Stream::WaitFor(const Event& event) const { CHECK_CUDA(cudaStreamWaitEvent(stream_, event.get(), 0)); }

namespace {

bool IsBeingRecorded(const Stream& stream) {
  cudaStreamCaptureStatus status;
  CHECK_CUDA(cudaStreamIsCapturing(stream.get(), &status));
  return status == cudaStreamCaptureStatusActive;
}

}  // namespace

void Stream::WaitForOutside(const Event& event) const {
  CHECK_CUDA(
      cudaStreamWaitEvent(stream_, event.get(), IsBeingRecorded(*this) ? cudaEventWaitExternal : cudaEventWaitDefault));
}

Event::Event() { CHECK_CUDA(cudaEventCreate(&event_)); }

Event::~Event() {
  if (cudaEventDestroy(event_) != cudaSuccess) std::fprintf(stderr, "a CUDA event could not be destroyed\n");
}

void Event::Record(const Stream& stream) { CHECK_CUDA(cudaEventRecord(event_, stream.get())); }

void Event::RecordForOutside(const Stream& stream) {
  CHECK_CUDA(cudaEventRecordWithFlags(event_, stream.get(),
                                      IsBeingRecorded(stream) ? cudaEventRecordExternal : cudaEventRecordDefault));
}

bool Event::Passed() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // An answer, not an error that a later call should find.
    return false;
  }
  CHECK_CUDA(state);
  return true;
}

void Event::Synchronize() const { CHECK_CUDA(cudaEventSynchronize(event_)); }

float Event::MillisecondsSince(const Event& start) const {
  float milliseconds = 0;
  CHECK_CUDA(cudaEventSynchronize(event_));
  CHECK_CUDA(cudaEventElapsedTime(&milliseconds, start.event_, event_));
  return milliseconds;
}

namespace internal {

void* DeviceAllocate(size_t bytes, size_t spare) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // Reported by the return value.
    return nullptr;
  }
  CHECK_CUDA(error);
  if (spare > 0 && GpuMemoryNow().free < spare) {
    DeviceFree(memory);
    return nullptr;
  }
  return memory;
}

void DeviceFree(void* memory) {
  if (cudaFree(memory) != cudaSuccess) std::fprintf(stderr, "GPU memory could not be freed\n");
}

void* PinnedAllocate(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocHost(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // Reported by the return value.
    return nullptr;
  }
  CHECK_CUDA(error);
  return memory;
}

void PinnedFree(void* memory) {
  if (cudaFreeHost(memory) != cudaSuccess) std::fprintf(stderr, "pinned memory could not be freed\n");
}

void CopyToDevice(void* device, const void* host, size_t bytes, const Stream& stream) {
  if (bytes != 0) CHECK_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream.get()));
}

void CopyToHost(void* host, const void* device, size_t bytes, const Stream& stream) {
  if (bytes != 0) CHECK_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream.get()));
}

void CopyOnDevice(void* to, const void* from, size_t bytes, const Stream& stream) {
  if (bytes != 0) CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()));
}

void FillDevice(void* device, int byte, size_t bytes, const Stream& stream) {
  if (bytes != 0) CHECK_CUDA(cudaMemsetAsync(device, byte, bytes, stream.get()));
}

}  // namespace internal
}  // namespace sparrow
