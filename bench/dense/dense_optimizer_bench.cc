// Question: does an optimizer step run at memory speed?
// Fixed: all cores, one pass (LAMB: two). Varies: the kind and the number of parameters (0.5 M: Criteo-Kaggle's DLRM,
// in cache; 32 M: out of it). Bound: bytes read and written by memcpy on all cores ("copy_GB/s", beside
// bytes_per_second). SGD moves 12 bytes a parameter, momentum and Adagrad 20, Adam 28, LAMB 40.

#include <benchmark/benchmark.h>
#include <google/protobuf/text_format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "base/random.h"
#include "dense/dense_optimizer.h"

namespace sparrow {
namespace {

bool Smoke() { return std::getenv("SPARROW_BENCH_SMOKE") != nullptr; }

double CopyBytesPerSecond(int64_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 10; ++run) {
    const auto start = std::chrono::steady_clock::now();
    ParallelFor(bytes, 1 << 16,
                [&](int64_t begin, int64_t end) { std::memcpy(to.data() + begin, from.data() + begin, end - begin); });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2 * static_cast<double>(bytes) / best;
}

void Step(benchmark::State& state, const std::string& kind, int64_t bytes_per_parameter) {
  const int64_t n = Smoke() ? 10'000 : state.range(0);
  v1::OptimizerConfig config;
  CHECK(google::protobuf::TextFormat::ParseFromString("learning_rate: 0.001 " + kind, &config));
  auto optimizer = MakeDenseOptimizer(config, n);
  CHECK(optimizer.ok()) << optimizer.status();
  std::vector<float> weights(n), gradients(n);
  for (int64_t i = 0; i < n; ++i) {
    weights[i] = static_cast<float>(RandomUniform(1, i));
    gradients[i] = static_cast<float>(RandomUniform(2, i) - 0.5);
  }
  for (auto _ : state) (*optimizer)->Step(weights, gradients, {.gradient_scale = 0.5});
  double sum = 0;
  for (float weight : weights) sum += weight;
  state.SetItemsProcessed(state.iterations() * n);
  state.SetBytesProcessed(state.iterations() * n * bytes_per_parameter);
  state.counters["copy_GB/s"] = CopyBytesPerSecond(n * bytes_per_parameter / 2) * 1e-9;
  state.counters["checksum"] = sum;
}

void Sgd(benchmark::State& state) { Step(state, "sgd {}", 12); }
void Momentum(benchmark::State& state) { Step(state, "momentum {}", 20); }
void Adagrad(benchmark::State& state) { Step(state, "adagrad {}", 20); }
void Adam(benchmark::State& state) { Step(state, "adam {}", 28); }
void AdamW(benchmark::State& state) { Step(state, "adamw {}", 28); }
void Lamb(benchmark::State& state) { Step(state, "lamb {}", 40); }

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->Arg(500'000)->Arg(32'000'000)->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(Sgd)->Apply(Sizes);
BENCHMARK(Momentum)->Apply(Sizes);
BENCHMARK(Adagrad)->Apply(Sizes);
BENCHMARK(Adam)->Apply(Sizes);
BENCHMARK(AdamW)->Apply(Sizes);
BENCHMARK(Lamb)->Apply(Sizes);

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
