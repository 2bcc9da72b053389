// Question: does pooling run at the speed at which its rows can be copied? And what do few rows with all the traffic
// cost the backward? Fixed: 2,048 bags, all cores. Varies: dim, ids a bag, and how ids fall: uniform over 20,000 rows,
// Zipf with exponent 1.05, or all the same. Bound: memcpy of as many bytes as the rows that are read have ("copy_GB/s",
// beside bytes_per_second). Dedup of the same ids is beside it.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "embedding/bag.h"
#include "embedding/dedup.h"

namespace sparrow {
namespace {

bool Smoke() { return std::getenv("SPARROW_BENCH_SMOKE") != nullptr; }

enum class Ids { kUniform, kZipf, kIdentical };

struct Feature {
  std::vector<Key> keys;
  std::vector<uint32_t> offsets, index;
  uint64_t unique;

  Bags bags() const { return {.offsets = offsets, .index = index, .weights = {}, .pooling = Pooling::kSum}; }
};

Feature MakeFeature(Ids ids, int64_t ids_per_bag) {
  constexpr size_t kRows = 20'000;
  const int64_t bags = Smoke() ? 64 : 2'048;
  std::mt19937_64 random(3);
  std::vector<double> cumulative(kRows);
  double sum = 0;
  for (size_t rank = 0; rank < kRows; ++rank) {
    cumulative[rank] = sum += ids == Ids::kZipf ? std::pow(static_cast<double>(rank + 1), -1.05) : 1;
  }
  Feature feature;
  for (int64_t i = 0; i < bags * ids_per_bag; ++i) {
    const double u = std::uniform_real_distribution<double>(0, sum)(random);
    const auto rank = std::lower_bound(cumulative.begin(), cumulative.end(), u) - cumulative.begin();
    feature.keys.push_back(ids == Ids::kIdentical ? 77 : RandomBits(1, rank));
  }
  for (int64_t i = 0; i <= bags; ++i) feature.offsets.push_back(static_cast<uint32_t>(i * ids_per_bag));
  feature.index.resize(feature.keys.size());
  Dedup dedup;
  dedup.Add(feature.keys, feature.index);
  feature.unique = dedup.unique().size();
  CHECK(CheckBags(feature.bags(), feature.unique).ok());
  return feature;
}

std::vector<float> Values(uint64_t n) {
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) values[i] = static_cast<float>(RandomUniform(9, i) - 0.5);
  return values;
}

void Finish(benchmark::State& state, const Feature& feature, uint32_t dim, const std::vector<float>& result) {
  const int64_t bytes = static_cast<int64_t>(feature.keys.size()) * dim * 4;
  std::vector<char> from(bytes, 1), to(bytes, 2);
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 10; ++run) {
    const auto start = std::chrono::steady_clock::now();
    ParallelFor(bytes, 1 << 16,
                [&](int64_t begin, int64_t end) { std::memcpy(to.data() + begin, from.data() + begin, end - begin); });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(feature.keys.size()));
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["copy_GB/s"] = static_cast<double>(bytes) / best * 1e-9;
  double checksum = 0;
  for (const float value : result) checksum += value;
  state.counters["checksum"] = checksum;
}

void Forward(benchmark::State& state, Ids ids) {
  const uint32_t dim = static_cast<uint32_t>(state.range(0));
  const Feature feature = MakeFeature(ids, state.range(1));
  const std::vector<float> rows = Values(feature.unique * dim);
  std::vector<float> output(feature.bags().rows() * dim);
  for (auto _ : state) BagForwardCpu(feature.bags(), rows, dim, output, dim, 0);
  Finish(state, feature, dim, output);
}

void Backward(benchmark::State& state, Ids ids) {
  const uint32_t dim = static_cast<uint32_t>(state.range(0));
  const Feature feature = MakeFeature(ids, state.range(1));
  const std::vector<float> output_gradients = Values(feature.bags().rows() * dim);
  std::vector<float> gradients(feature.unique * dim);
  for (auto _ : state) {
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    BagBackwardCpu(feature.bags(), output_gradients, dim, 0, dim, gradients);
  }
  Finish(state, feature, dim, gradients);
}

void DedupIds(benchmark::State& state, Ids ids) {
  const Feature feature = MakeFeature(ids, state.range(0));
  std::vector<uint32_t> index(feature.keys.size());
  Dedup dedup;
  for (auto _ : state) {
    dedup.Clear();
    dedup.Add(feature.keys, index);
    benchmark::DoNotOptimize(index.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(feature.keys.size()));
  state.counters["unique"] = static_cast<double>(dedup.unique().size());
}

void Shapes(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t dim : {16, 128}) {
    for (const int64_t ids_per_bag : {1, 32}) benchmark->Args({dim, ids_per_bag});
  }
  benchmark->UseRealTime();
}
BENCHMARK_CAPTURE(Forward, Uniform, Ids::kUniform)->Apply(Shapes);
BENCHMARK_CAPTURE(Forward, Zipf, Ids::kZipf)->Apply(Shapes);
BENCHMARK_CAPTURE(Forward, Identical, Ids::kIdentical)->Apply(Shapes);
BENCHMARK_CAPTURE(Backward, Uniform, Ids::kUniform)->Apply(Shapes);
BENCHMARK_CAPTURE(Backward, Zipf, Ids::kZipf)->Apply(Shapes);
BENCHMARK_CAPTURE(Backward, Identical, Ids::kIdentical)->Apply(Shapes);
BENCHMARK_CAPTURE(DedupIds, Uniform, Ids::kUniform)->Arg(1)->Arg(32);
BENCHMARK_CAPTURE(DedupIds, Zipf, Ids::kZipf)->Arg(1)->Arg(32);
BENCHMARK_CAPTURE(DedupIds, Identical, Ids::kIdentical)->Arg(1)->Arg(32);

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
