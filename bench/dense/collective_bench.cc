// Question: do the two halves of an all-reduce by slices (ReduceScatterSum, AllGatherSlices) take longer than Gloo's
// all-reduce?
// Fixed: float32, members are threads of this process over loopback, even slices. Varies: members, elements. Bound:
// what a ring sends, 2 (n - 1) / n of the bytes a member ("bytes_per_second"), at the rate of one stream of loopback
// (1.5 GB/s on the 2-core machine of README.md), as long as there is a core for each member.

#include <benchmark/benchmark.h>

#include <barrier>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/check.h"
#include "dense/collective.h"
#include "tests/support/rendezvous_stores.h"

namespace sparrow {
namespace {

// Members 1 and on repeat what member 0 does, until it says that it was the last time.
void Measure(benchmark::State& state, bool by_slices) {
  const uint32_t members = static_cast<uint32_t>(state.range(0));
  const uint64_t n = std::getenv("SPARROW_BENCH_SMOKE") != nullptr ? 10'000 : static_cast<uint64_t>(state.range(1));
  const SliceEnds ends = EvenSlices(n, members);
  MapStore store;
  std::barrier<> all(members);
  bool more = true;
  const auto sum = [&](Collective* group, std::vector<float>* values) {
    if (!by_slices) {
      CHECK(group->AllReduceSum(std::span<float>(*values)).ok());
      return;
    }
    CHECK(group->ReduceScatterSum(*values, ends).ok());
    CHECK(group->AllGatherSlices(*values, ends).ok());
  };
  // One sum that is looked at, then sums of zeros, which no number of them makes overflow.
  const auto first_sum = [&](Collective* group) {
    std::vector<float> values(n, static_cast<float>(group->rank() + 1));
    sum(group, &values);
    for (const float value : values) CHECK_EQ(value, static_cast<float>(members * (members + 1) / 2));
    return std::vector<float>(n, 0.0f);
  };
  std::vector<std::thread> threads;
  const auto make = [&](uint32_t rank) {
    auto group = MakeGlooCollective({.rank = rank, .size = members, .host = "127.0.0.1"}, &store);
    CHECK(group.ok()) << group.status();
    return std::move(group).value();
  };
  for (uint32_t rank = 1; rank < members; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = make(rank);
      std::vector<float> values = first_sum(group.get());
      for (;;) {
        all.arrive_and_wait();
        if (!more) return;
        sum(group.get(), &values);
      }
    });
  }
  const auto group = make(0);
  std::vector<float> values = first_sum(group.get());
  for (auto _ : state) {
    all.arrive_and_wait();
    sum(group.get(), &values);
  }
  more = false;
  all.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(n));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(2 * (members - 1) * n * sizeof(float) / members));
}

void GlooAllReduce(benchmark::State& state) { Measure(state, /*by_slices=*/false); }
void BySlices(benchmark::State& state) { Measure(state, /*by_slices=*/true); }

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgsProduct({{2, 4}, {10'000, 1'000'000, 32'000'000}})->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(GlooAllReduce)->Apply(Sizes);
BENCHMARK(BySlices)->Apply(Sizes);

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
