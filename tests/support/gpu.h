#ifndef SPARROW_TESTS_SUPPORT_GPU_H_
#define SPARROW_TESTS_SUPPORT_GPU_H_

// Arrays to the GPU and back, for tests of twins.

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"

namespace sparrow {

// A test that skips where there is no GPU.
template <typename Base = ::testing::Test>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    if (GpuCount() == 0) GTEST_SKIP() << "NO GPU HERE: the CUDA half was compiled but not run";
  }
};

template <typename T>
DeviceBuffer<T> Upload(const std::vector<T>& host, const Stream& stream) {
  std::optional<DeviceBuffer<T>> buffer = DeviceBuffer<T>::Allocate(host.size());
  CHECK(buffer.has_value()) << "the GPU is out of memory";
  buffer->CopyFrom(host, stream);
  stream.Synchronize();  // The host memory may be a temporary.
  return std::move(*buffer);
}

template <typename T>
std::vector<T> Download(const DeviceBuffer<T>& buffer, const Stream& stream) {
  std::vector<T> host(buffer.size());
  buffer.CopyTo(host, stream);
  stream.Synchronize();
  return host;
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_GPU_H_
