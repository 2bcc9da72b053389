#ifndef SPARROW_BENCH_SUPPORT_GPU_TIMING_H_
#define SPARROW_BENCH_SUPPORT_GPU_TIMING_H_

// GPU memory, times and bounds for benchmarks of kernels.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"

namespace sparrow {

// What a large bfloat16 product reaches on an H200, in operations a second.
inline constexpr double kBfloat16ProductFlops = 787e12;
// With tf32 its tensor cores do half as many.
inline constexpr double kTf32ProductFlops = kBfloat16ProductFlops / 2;
// Outside tensor cores: 132 multiprocessors, 128 multiply-adds each, at 1.98 GHz.
inline constexpr double kFloat32Flops = 132 * 128 * 2 * 1.98e9;

template <typename T>
DeviceBuffer<T> Allocate(size_t size) {
  std::optional<DeviceBuffer<T>> buffer = DeviceBuffer<T>::Allocate(size);
  CHECK(buffer.has_value()) << "no GPU memory for " << size * sizeof(T) << " bytes";
  return std::move(*buffer);
}

// Waits, so `host` may go.
template <typename T>
DeviceBuffer<T> Upload(const std::vector<T>& host, const Stream& stream) {
  DeviceBuffer<T> buffer = Allocate<T>(host.size());
  buffer.CopyFrom(host, stream);
  stream.Synchronize();
  return buffer;
}

template <typename T>
std::vector<T> Download(const T* from, size_t n, const Stream& stream) {
  std::vector<T> host(n);
  internal::CopyToHost(host.data(), from, n * sizeof(T), stream);
  stream.Synchronize();
  return host;
}

struct Spread {
  double median_us = 0;
  double min_us = 0;
  double max_us = 0;
};

// Of `runs` runs of `work` between events, after five that warm up. Before each, untimed, come `before`, unless it is
// null, and a fill of `flush`, which drives out of the caches what the run before has left there.
inline Spread Time(int runs, const std::function<void()>& before, const std::function<void()>& work,
                   DeviceBuffer<char>* flush, const Stream& stream) {
  constexpr int kWarmUp = 5;
  std::vector<double> us;
  for (int i = 0; i < kWarmUp + runs; ++i) {
    if (before != nullptr) before();
    flush->Fill(i, stream);
    Event start, end;
    start.Record(stream);
    work();
    end.Record(stream);
    if (i >= kWarmUp) us.push_back(end.MillisecondsSince(start) * 1e3);
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us.front(), us.back()};
}

// Bytes a second, read and written ones together, of a copy on the device of `bytes` bytes from one array to another.
inline double CopyRate(int runs, size_t bytes, const DeviceBuffer<char>& from, DeviceBuffer<char>* to,
                       DeviceBuffer<char>* flush, const Stream& stream) {
  const Spread time = Time(
      runs, nullptr, [&] { internal::CopyOnDevice(to->data(), from.data(), bytes, stream); }, flush, stream);
  return 2.0 * static_cast<double>(bytes) / (time.median_us * 1e-6);
}

}  // namespace sparrow

#endif  // SPARROW_BENCH_SUPPORT_GPU_TIMING_H_
