// Question: what does DLRM's dot interaction cost beside the memory it must move?
// Fixed: batch 2048, all cores, each a block of rows. Varies: vectors and dimension. Bound: a copy of as many bytes as
// go in and out ("copy_GB/s", beside bytes_per_second); for large dimensions the cores' fp32 rate.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "dense/interaction.h"
#include "dense/row_blocks.h"

namespace sparrow {
namespace {

constexpr int64_t kRows = 2048;

std::vector<float> Random(uint64_t seed, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(2 * RandomUniform(seed, i) - 1);
  return values;
}

// Bytes read and written by a copy of `bytes` bytes in a second, on all cores.
double CopyBytesPerSecond(int64_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 20; ++run) {
    const auto start = std::chrono::steady_clock::now();
    ParallelFor(bytes, 1 << 16,
                [&](int64_t begin, int64_t end) { std::memcpy(to.data() + begin, from.data() + begin, end - begin); });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2 * static_cast<double>(bytes) / best;
}

void Interact(benchmark::State& state, bool backward) {
  const InteractionShape shape{.dim = state.range(1), .bottom_cols = state.range(1), .features = state.range(0) - 1};
  const std::vector<float> bottom = Random(1, kRows * shape.dim),
                           sparse = Random(2, kRows * shape.features * shape.dim);
  std::vector<float> out = Random(3, kRows * shape.outputs());
  std::vector<float> bottom_gradients(bottom.size()), sparse_gradients(sparse.size());
  const ConstMatrix b = AsMatrix(std::span(bottom), kRows, shape.dim);
  const ConstMatrix s = AsMatrix(std::span(sparse), kRows, shape.features * shape.dim);
  const Matrix o = AsMatrix(std::span(out), kRows, shape.outputs());
  const Matrix db = AsMatrix(std::span(bottom_gradients), kRows, shape.dim);
  const Matrix ds = AsMatrix(std::span(sparse_gradients), kRows, shape.features * shape.dim);
  const RowBlocks blocks = RowBlocks::Of(kRows);
  for (auto _ : state) {
    blocks.ForEach([&](int64_t, int64_t begin, int64_t end) {
      if (backward) {
        InteractionBackwardCpu(shape, b.Rows(begin, end), s.Rows(begin, end), o.Rows(begin, end), db.Rows(begin, end),
                               ds.Rows(begin, end));
      } else {
        InteractionForwardCpu(shape, b.Rows(begin, end), s.Rows(begin, end), o.Rows(begin, end));
      }
    });
  }
  double sum = 0;
  for (float value : backward ? sparse_gradients : out) sum += value;
  const int64_t inputs = static_cast<int64_t>(bottom.size() + sparse.size());
  const int64_t bytes = 4 * (inputs * (backward ? 2 : 1) + static_cast<int64_t>(out.size()));
  state.SetItemsProcessed(state.iterations() * kRows);
  state.SetBytesProcessed(state.iterations() * bytes);
  const double flops = static_cast<double>(kRows * shape.pairs() * shape.dim) * (backward ? 4 : 2);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["copy_GB/s"] = CopyBytesPerSecond(bytes / 2) * 1e-9;
  state.counters["checksum"] = sum;
}

void Forward(benchmark::State& state) { Interact(state, false); }
void Backward(benchmark::State& state) { Interact(state, true); }

BENCHMARK(Forward)->Args({27, 16})->Args({27, 64})->Args({27, 128})->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(Backward)->Args({27, 16})->Args({27, 64})->Args({27, 128})->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
