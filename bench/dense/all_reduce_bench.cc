// How long GPUs of one machine take to sum an array: DeviceCollective::AllReduceSum over NCCL.
//
// Held fixed: float32, in place, one thread a GPU. Varies: the size; queued one by one, or recorded as a graph. A time
// is the mean over sums in a row, and of such rows the median, on GPU 0 (the others take part in each). Bus bandwidth
// is 2 (n - 1) / n times the bytes by the time: what each link carries one way. The bound is the link: 450 GB/s one way
// on an H200 (18 NVLinks of 25 GB/s).
//
//   all_reduce_bench [--bytes-max N]

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/cuda/graph.h"
#include "bench/support/gpu_timing.h"
#include "dense/device_collective.h"
#include "tests/support/rendezvous_stores.h"

namespace sparrow {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr double kLinkRate = 450e9;

// Microseconds of one of `in_a_row` sums that `queue` queues.
double MedianUs(DeviceCollective* member, int runs, int in_a_row, const std::function<void()>& queue,
                std::barrier<>* all, const Stream& stream) {
  std::vector<double> us;
  for (int i = 0; i < 3 + runs; ++i) {
    all->arrive_and_wait();
    Event start, end;
    start.Record(stream);
    queue();
    end.Record(stream);
    CHECK(member->Wait(stream, kTimeout).ok());
    if (i >= 3) us.push_back(end.MillisecondsSince(start) * 1e3 / in_a_row);
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

void Measure(DeviceCollective* member, size_t bytes, std::barrier<>* all, const Stream& stream) {
  const size_t n = bytes / sizeof(float);
  DeviceBuffer<float> values = Allocate<float>(n);
  // One sum that is looked at, then sums of zeros, which no number of them makes overflow.
  std::vector<float> host(n, static_cast<float>(member->rank() + 1));
  values.CopyFrom(host, stream);
  const auto sum = [&] { CHECK(member->AllReduceSum(values.data(), static_cast<int64_t>(n), stream).ok()); };
  sum();
  CHECK(member->Wait(stream, kTimeout).ok());
  values.CopyTo(host, stream);
  stream.Synchronize();
  const float expected = static_cast<float>(member->size() * (member->size() + 1) / 2);
  const bool right = host.front() == expected && host[n / 2] == expected && host.back() == expected;
  values.Fill(0, stream);
  const int runs = bytes >= size_t{64} << 20 ? 5 : 15;
  const int in_a_row = bytes >= size_t{64} << 20 ? 3 : 20;
  const auto row = [&] {
    for (int i = 0; i < in_a_row; ++i) sum();
  };
  const double queued = MedianUs(member, runs, in_a_row, row, all, stream);
  const Graph graph(stream, row);
  const double recorded = MedianUs(
      member, runs, in_a_row, [&] { graph.Replay(stream); }, all, stream);
  if (member->rank() != 0) return;
  const double size = member->size();
  const double bus = 2 * (size - 1) / size * static_cast<double>(bytes) / recorded * 1e6;
  std::printf("| %zu | %.1f | %.1f | %.1f | %.1f | %.0f %% | %s |\n", bytes, queued, recorded,
              static_cast<double>(bytes) / recorded * 1e-3, bus * 1e-9, 100 * bus / kLinkRate, right ? "yes" : "NO");
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  size_t bytes_max = size_t{1} << 30;
  if (argc == 3 && std::strcmp(argv[1], "--bytes-max") == 0) bytes_max = std::strtoull(argv[2], nullptr, 10);
  const int gpus = GpuCount();
  if (gpus < 2) {
    std::fprintf(stderr, "%d GPUs here, %s; two are needed\n", gpus, GpuAbsence().c_str());
    return 77;
  }
  std::printf("%d x %s, NCCL %llu\n\n", gpus, GpuName().c_str(), static_cast<unsigned long long>(NcclVersion()));
  std::printf("| bytes | us, queued | us, recorded | GB/s | bus GB/s | of the link | right |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  MapStore store;
  std::barrier<> all(gpus);
  std::vector<std::thread> threads;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    threads.emplace_back([&, gpu] {
      UseGpu(gpu);
      const Stream stream;
      auto member =
          MakeNcclCollective({.rank = static_cast<uint32_t>(gpu), .size = static_cast<uint32_t>(gpus)}, &store);
      CHECK(member.ok()) << std::string(member.status().message());
      for (const size_t bytes : {size_t{1} << 10, size_t{1} << 14, size_t{1} << 18, size_t{1} << 20, size_t{1} << 22,
                                 size_t{1} << 24, size_t{1} << 26, size_t{1} << 28, size_t{1} << 30}) {
        if (bytes <= bytes_max) Measure(member->get(), bytes, &all, stream);
      }
      all.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
